//! What a journal as a whole says.

use super::*;

/// The plan of the first record.
fn plan_of(all: &[Entry], alive: &[i32]) -> Plan {
    let is_alive = |one: &Process| one.boot == "today" && alive.contains(&one.pid);
    plan(&all[0], all, is_alive)
}

/// Each phase, and what is done about it while its process is alive and when it has ended.
const PLANS: [(Phase, Plan, Plan); 12] = [
    // Not notified: a copy over there may be the only one.
    (Phase::Source(From::Started), Plan::RollBack, Plan::RecordLoss),
    // Its only copy may be the destination's: that is asked, and has to run.
    (Phase::Source(From::CommitSent), Plan::Query, Plan::Query),
    (Phase::Source(From::ResumingHere), Plan::RollBack, Plan::RecordLoss),
    (Phase::Source(From::Finished), Plan::Nothing, Plan::Nothing),
    (Phase::Source(From::RolledBack), Plan::Nothing, Plan::Nothing),
    (Phase::Destination(To::Started), Plan::Discard, Plan::Discard),
    (Phase::Destination(To::Loaded), Plan::Wait, Plan::Discard),
    (Phase::Destination(To::Committed), Plan::Inspect, Plan::Nothing),
    (Phase::Destination(To::Running), Plan::Nothing, Plan::Nothing),
    (Phase::Destination(To::Finished), Plan::Nothing, Plan::Nothing),
    (Phase::Destination(To::Aborted), Plan::Discard, Plan::Discard),
    (Phase::Destination(To::Returned), Plan::Discard, Plan::Discard),
];

#[test]
fn each_phase_of_a_process_that_is_alive() {
    for (phase, wanted, _) in PLANS {
        assert_eq!(plan_of(&[entry(1, phase, Some(process(1)))], &[1]), wanted, "{phase:?}");
    }
}

#[test]
fn each_phase_of_a_process_that_has_ended() {
    for (phase, _, wanted) in PLANS {
        assert_eq!(plan_of(&[entry(1, phase, Some(process(1)))], &[]), wanted, "{phase:?}");
        // The same number in another boot, or at another time in this one, is another process.
        let others =
            [Process { boot: "yesterday".into(), ..process(1) }, Process { start_ticks: 8, ..process(1) }];
        for other in others {
            let one = entry(1, phase, Some(other));
            let is_alive = |found: &Process| *found == process(1);
            assert_eq!(plan(&one, std::slice::from_ref(&one), is_alive), wanted, "{phase:?}");
        }
    }
}

#[test]
fn the_other_copy_of_a_paused_guest_is_kept_if_it_ended_here_and_did_not_move_on() {
    use NoticeStep::{Send, Wait, Withdraw};
    let step = |ran, later: Option<From>, alive: &[i32]| {
        let mut all = vec![source(1, From::RolledBack, 1), source(2, From::Started, 9)];
        all.extend(later.map(|phase| source(3, phase, 1)));
        notice_step(ran, &all[0], &all, |found| alive.contains(&found.pid))
    };
    assert_eq!((step(false, None, &[]), step(false, None, &[1])), (Withdraw, Send));
    assert_eq!(step(true, None, &[]), Send, "it ran on");
    for (later, wanted) in [
        (From::Started, Wait),
        (From::CommitSent, Wait),
        (From::ResumingHere, Wait),
        (From::Finished, Send),
        (From::RolledBack, Withdraw),
    ] {
        assert_eq!(step(false, Some(later), &[]), wanted, "{later:?}");
        assert_eq!((step(true, Some(later), &[]), step(false, Some(later), &[1])), (Send, Send));
    }
}

#[test]
fn a_record_without_a_process_touches_none() {
    for phase in every_phase() {
        let one = entry(1, phase, None);
        let asked = std::cell::Cell::new(false);
        let what = plan(&one, &[one.clone(), destination(2, To::Running, 1)], |_| {
            asked.set(true);
            true
        });
        assert!(!asked.get(), "{phase:?}");
        let harmless = matches!(
            what,
            Plan::Nothing | Plan::RecordLoss | Plan::RecordEnd(_) | Plan::Discard | Plan::Query
        );
        assert!(harmless, "{phase:?}: {what:?}");
    }
}

#[test]
fn of_several_records_of_a_process_only_the_newest_acts_on_it() {
    for older in every_phase() {
        for newer in every_phase() {
            let all = [entry(1, older, Some(process(1))), entry(2, newer, Some(process(1)))];
            let what = plan_of(&all, &[1]);
            assert!(!acts(what), "{older:?} before {newer:?}: {what:?}");
            // Its place in the list does not matter.
            let turned = [all[1].clone(), all[0].clone()];
            assert_eq!(plan_of(&turned, &[1]), plan_of(&turned[..1], &[1]), "{older:?} before {newer:?}");
        }
    }
}

#[test]
fn records_of_other_processes_change_nothing() {
    for phase in every_phase() {
        let one = entry(1, phase, Some(process(1)));
        let alone = plan_of(std::slice::from_ref(&one), &[1, 2]);
        for other in every_phase() {
            let all = [one.clone(), entry(2, other, Some(process(2))), entry(3, other, None)];
            assert_eq!(plan_of(&all, &[1, 2]), alone, "{phase:?} beside {other:?}");
        }
    }
}

#[test]
fn a_superseded_record_is_closed_with_what_the_newer_one_proves() {
    let left = source(9, From::Started, 1);
    let back = Plan::RecordEnd(Phase::Source(From::RolledBack));
    let ours = Plan::RecordEnd(Phase::Destination(To::Finished));
    for phase in [From::Started, From::CommitSent] {
        assert_eq!(plan_of(&[source(1, phase, 1), left.clone()], &[1]), back, "{phase:?}");
    }
    for phase in [To::Started, To::Loaded, To::Committed, To::Running] {
        assert_eq!(plan_of(&[destination(1, phase, 1), left.clone()], &[1]), ours, "{phase:?}");
    }
    for phase in [To::Finished, To::Aborted, To::Returned] {
        assert_eq!(plan_of(&[destination(1, phase, 1), left.clone()], &[1]), Plan::Nothing, "{phase:?}");
    }
}

/// A history: the guest left, and came back as another process of the same name.
#[test]
fn a_guest_that_returned_is_not_changed_by_the_sessions_before() {
    let history = [
        source(1, From::CommitSent, 1), // Its end was never written.
        destination(2, To::Committed, 2),
        source(3, From::Started, 2),
    ];
    let is_alive = |one: &Process| one.pid == 2;
    let plans: Vec<Plan> = history.iter().map(|one| plan(one, &history, is_alive)).collect();
    let closed = Plan::RecordEnd(Phase::Destination(To::Finished));
    assert_eq!(plans, [Plan::Query, closed, Plan::RollBack]);
}

#[test]
fn the_fate_of_a_process_depends_on_its_own_records() {
    let of = |all: &[Entry], alive: bool| process_fate(&all[0], all, |_| alive);
    let came = destination(1, To::Running, 1);
    assert_eq!(of(std::slice::from_ref(&came), true), ProcessFate::Alive);
    assert_eq!(of(std::slice::from_ref(&came), false), ProcessFate::Ended);
    assert_eq!(of(&[came.clone(), source(2, From::Finished, 1)], false), ProcessFate::MovedOn);
    for other in
        [source(2, From::Finished, 2), source(2, From::CommitSent, 1), source(2, From::RolledBack, 1)]
    {
        assert_eq!(of(&[came.clone(), other.clone()], false), ProcessFate::Ended, "{other:?}");
    }
    let older = [destination(2, To::Running, 1), source(1, From::Finished, 1)];
    assert_eq!(of(&older, false), ProcessFate::Ended, "an older record says nothing of it");
    assert_eq!(of(&[entry(1, Phase::Destination(To::Started), None)], true), ProcessFate::Ended);
}
