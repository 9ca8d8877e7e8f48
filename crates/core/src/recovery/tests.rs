//! What a journal as a whole says, and both recoveries step by step.

use super::destination::{RUN_AGAIN_AFTER, RUN_FOR};
use super::*;
use crate::journal::Decided;
use crate::journal::DestinationPhase as To;
use crate::journal::SourcePhase as From;
use crate::{GuestState, Outcome, Time};

const FROM: [From; 5] =
    [From::Started, From::CommitSent, From::ResumingHere, From::Finished, From::RolledBack];
const TO: [To; 7] =
    [To::Started, To::Loaded, To::Committed, To::Running, To::Finished, To::Aborted, To::Returned];

fn process(pid: i32) -> Process {
    Process { boot: "today".into(), pid, start_ticks: 7 }
}

fn entry(order: u64, phase: Phase, process: Option<Process>) -> Entry {
    Entry { session: SessionId([order as u8; 16]), order, phase, process }
}

fn source(order: u64, phase: From, pid: i32) -> Entry {
    entry(order, Phase::Source(phase), Some(process(pid)))
}

fn destination(order: u64, phase: To, pid: i32) -> Entry {
    entry(order, Phase::Destination(phase), Some(process(pid)))
}

fn every_phase() -> Vec<Phase> {
    FROM.map(Phase::Source).into_iter().chain(TO.map(Phase::Destination)).collect()
}

/// What is done to a process or written about it.
fn acts(plan: Plan) -> bool {
    !matches!(plan, Plan::Nothing | Plan::RecordLoss | Plan::RecordEnd(_))
}

mod journals {
    use super::*;

    /// The plan of the first record.
    fn plan_of(all: &[Entry], alive: &[i32]) -> Plan {
        let is_alive = |one: &Process| one.boot == "today" && alive.contains(&one.pid);
        plan(&all[0], all, is_alive)
    }

    #[test]
    fn each_phase_of_a_process_that_is_alive() {
        let plans = [
            (Phase::Source(From::Started), Plan::RollBack),
            (Phase::Source(From::CommitSent), Plan::Query),
            (Phase::Source(From::ResumingHere), Plan::RollBack),
            (Phase::Source(From::Finished), Plan::Nothing),
            (Phase::Source(From::RolledBack), Plan::Nothing),
            (Phase::Destination(To::Started), Plan::Discard),
            (Phase::Destination(To::Loaded), Plan::Wait),
            (Phase::Destination(To::Committed), Plan::Inspect),
            (Phase::Destination(To::Running), Plan::Nothing),
            (Phase::Destination(To::Finished), Plan::Nothing),
            (Phase::Destination(To::Aborted), Plan::Discard),
            (Phase::Destination(To::Returned), Plan::Discard),
        ];
        for (phase, wanted) in plans {
            assert_eq!(plan_of(&[entry(1, phase, Some(process(1)))], &[1]), wanted, "{phase:?}");
        }
    }

    #[test]
    fn each_phase_of_a_process_that_has_ended() {
        let plans = [
            // Not notified: a copy over there may be the only one.
            (Phase::Source(From::Started), Plan::RecordLoss),
            // Its only copy may be the destination's: that is asked, and has to run.
            (Phase::Source(From::CommitSent), Plan::Query),
            (Phase::Destination(To::Started), Plan::Discard),
            (Phase::Destination(To::Loaded), Plan::Discard),
            (Phase::Destination(To::Committed), Plan::Nothing),
            (Phase::Destination(To::Running), Plan::Nothing),
            (Phase::Destination(To::Aborted), Plan::Discard),
            (Phase::Destination(To::Returned), Plan::Discard),
        ];
        for (phase, wanted) in plans {
            assert_eq!(plan_of(&[entry(1, phase, Some(process(1)))], &[]), wanted, "{phase:?}");
            // The same number in another boot, or at another time in this one, is another process.
            let others = [
                Process { boot: "yesterday".into(), ..process(1) },
                Process { start_ticks: 8, ..process(1) },
            ];
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

    /// The review's histories: the guest left, and came back as another process of the same name.
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
}

mod at_the_source {
    use super::*;

    struct Driver {
        recovery: SourceRecovery,
        now: Time,
    }

    impl Driver {
        fn new(recovery: SourceRecovery) -> Driver {
            Driver { recovery, now: Time::ZERO }
        }

        fn action(&mut self) -> Option<SourceAction> {
            let action = self.recovery.poll_action(self.now);
            assert_eq!(self.recovery.poll_action(self.now), None, "one at a time");
            action
        }

        fn handle(&mut self, event: SourceEvent) -> Option<SourceAction> {
            self.recovery.handle(self.now, event);
            self.action()
        }

        /// Nothing before it is due, then this.
        #[track_caller]
        fn again(&mut self, wanted: SourceAction) {
            assert_eq!(self.action(), None, "it spins");
            self.now = self.recovery.timeout().expect("it waits for ever");
            assert_eq!(self.action(), Some(wanted));
        }
    }

    fn resuming() -> Driver {
        Driver::new(SourceRecovery::resume_here(Time::ZERO))
    }

    fn querying() -> Driver {
        Driver::new(SourceRecovery::query(Time::ZERO))
    }

    #[test]
    fn resuming_and_writing_the_end_are_repeated_until_they_succeed() {
        let mut driver = resuming();
        assert!(driver.recovery.resumes_here());
        assert_eq!(driver.action(), Some(SourceAction::ResumeHere));
        for _ in 0..1000 {
            assert_eq!(
                driver.handle(SourceEvent::ResumedHere(None)),
                None,
                "nothing is written for a failure"
            );
            driver.again(SourceAction::ResumeHere);
        }
        let writes = SourceAction::Write(From::RolledBack);
        assert_eq!(driver.handle(SourceEvent::ResumedHere(Some(GuestState::RunsAtSource))), Some(writes));
        for _ in 0..1000 {
            assert_eq!(driver.handle(SourceEvent::Written(false)), None);
            assert_eq!(driver.recovery.is_over(), None);
            driver.again(writes);
        }
        assert_eq!(driver.handle(SourceEvent::Written(true)), None);
        assert_eq!(driver.recovery.is_over(), Some(GuestState::RunsAtSource));
        assert_eq!(driver.recovery.timeout(), None);
    }

    #[test]
    fn a_guest_is_given_up_until_it_is_gone_and_only_then_is_it_written() {
        let mut driver = querying();
        assert_eq!(driver.action(), Some(SourceAction::Query { gives_up: false }));
        let gives_up = driver.handle(SourceEvent::Answered(Some(Outcome::Committed)));
        assert_eq!(gives_up, Some(SourceAction::EndSource));
        assert_eq!(driver.handle(SourceEvent::SourceEnded(false)), None);
        driver.again(SourceAction::EndSource);
        assert_eq!(driver.handle(SourceEvent::SourceEnded(true)), Some(SourceAction::Write(From::Finished)));
        driver.handle(SourceEvent::Written(true));
        assert_eq!(driver.recovery.is_over(), Some(GuestState::RunsAtDestination));
    }

    #[test]
    fn it_asks_until_the_answer_decides() {
        let mut driver = querying();
        driver.action();
        let in_doubt = [None, Some(Outcome::Pending), Some(Outcome::Unknown), Some(Outcome::Gone), None];
        for answer in in_doubt {
            assert_eq!(driver.handle(SourceEvent::Answered(answer)), None, "{answer:?}");
            assert!(driver.recovery.is_in_doubt());
            driver.again(SourceAction::Query { gives_up: false });
        }
        assert_eq!(driver.recovery.answer(), Some(Outcome::Gone), "the last that there was");
        for (answer, follows) in [
            (Outcome::Committed, SourceAction::EndSource),
            (Outcome::Aborted, SourceAction::ResumeHere),
            (Outcome::Returned, SourceAction::ResumeHere),
        ] {
            let mut driver = querying();
            driver.action();
            assert_eq!(driver.handle(SourceEvent::Answered(Some(answer))), Some(follows), "{answer:?}");
        }
    }

    #[test]
    fn the_operator_decides_after_one_more_question_or_the_one_in_progress() {
        let decided = SourceAction::Write(From::ResumingHere);
        for (resume, follows) in [(true, decided), (false, SourceAction::EndSource)] {
            let mut driver = querying();
            driver.action();
            assert_eq!(driver.handle(SourceEvent::Resolve(resume)), None, "one action at a time");
            let mut next = driver.handle(SourceEvent::Answered(None));
            if !resume {
                // The destination may still return the guest to the copy that is to be ended.
                assert_eq!(next, Some(SourceAction::Query { gives_up: true }));
                next = driver.handle(SourceEvent::Answered(None));
            }
            assert_eq!(next, Some(follows));
            let mut driver = querying();
            driver.action();
            driver.handle(SourceEvent::Answered(None));
            let asks = SourceAction::Query { gives_up: !resume };
            assert_eq!(driver.handle(SourceEvent::Resolve(resume)), Some(asks));
            assert_eq!(driver.handle(SourceEvent::Answered(None)), Some(follows));
        }
    }

    /// Without the destination's word nobody knows that it runs there.
    #[test]
    fn what_the_operator_gave_up_is_not_reported_as_moved() {
        for (answer, guest) in
            [(None, GuestState::Unknown), (Some(Outcome::Committed), GuestState::RunsAtDestination)]
        {
            let mut driver = querying();
            driver.handle(SourceEvent::Resolve(false));
            driver.action();
            assert_eq!(driver.handle(SourceEvent::Answered(answer)), Some(SourceAction::EndSource));
            driver.handle(SourceEvent::SourceEnded(true));
            driver.handle(SourceEvent::Written(true));
            assert_eq!(driver.recovery.is_over(), Some(guest));
        }
    }

    /// It takes the question for a commit.
    #[test]
    fn a_decision_to_resume_is_void_if_the_query_in_progress_finds_the_guest_over_there() {
        let mut driver = querying();
        driver.action();
        driver.handle(SourceEvent::Resolve(true));
        assert_eq!(driver.recovery.decided(), Decided::Waiting);
        assert_eq!(driver.handle(SourceEvent::Answered(Some(Outcome::Pending))), None);
        assert_eq!(driver.recovery.decided(), Decided::Void, "it is not dropped without a word");
        driver.again(SourceAction::Query { gives_up: false });
        assert_eq!(
            driver.handle(SourceEvent::Answered(Some(Outcome::Committed))),
            Some(SourceAction::EndSource)
        );
    }

    /// Two operators: each is told what became of the own decision.
    #[test]
    fn a_decision_that_waits_is_not_replaced_by_another() {
        for first in [true, false] {
            let mut driver = querying();
            driver.action();
            driver.handle(SourceEvent::Resolve(first));
            assert!(driver.recovery.takes(first) && !driver.recovery.takes(!first), "{first}");
            driver.handle(SourceEvent::Resolve(!first));
            let mut next = driver.handle(SourceEvent::Answered(None));
            if !first {
                assert_eq!(next, Some(SourceAction::Query { gives_up: true }));
                next = driver.handle(SourceEvent::Answered(None));
            }
            let writes = SourceAction::Write(From::ResumingHere);
            assert_eq!(next, Some(if first { writes } else { SourceAction::EndSource }), "{first}");
        }
    }

    #[test]
    fn a_decision_that_is_void_is_not_taken_for_the_one_that_follows() {
        let mut driver = querying();
        driver.action();
        driver.handle(SourceEvent::Resolve(true));
        driver.handle(SourceEvent::Answered(Some(Outcome::Pending)));
        assert_eq!(driver.handle(SourceEvent::Resolve(false)), Some(SourceAction::Query { gives_up: true }));
        let decided = |driver: &Driver| [true, false].map(|resume| driver.recovery.decided_for(resume));
        assert_eq!(decided(&driver), [Decided::Void, Decided::Waiting]);
        assert_eq!(driver.handle(SourceEvent::Answered(None)), Some(SourceAction::EndSource));
        assert_eq!(decided(&driver), [Decided::Void, Decided::Taken]);
    }

    /// A later agent asks again, which is a commit.
    #[test]
    fn a_decision_to_resume_waits_until_it_is_on_disk() {
        let mut driver = querying();
        driver.action();
        driver.handle(SourceEvent::Resolve(true));
        driver.handle(SourceEvent::Answered(None));
        driver.handle(SourceEvent::Written(false));
        assert!(driver.recovery.is_in_doubt() && !driver.recovery.resumes_here());
        assert_eq!(driver.recovery.decided_for(true), Decided::Waiting);
        assert!(!driver.recovery.takes(false));
        driver.again(SourceAction::Write(From::ResumingHere));
        assert_eq!(driver.handle(SourceEvent::Written(true)), Some(SourceAction::ResumeHere));
        assert!(driver.recovery.resumes_here() && !driver.recovery.is_in_doubt());
        assert_eq!(driver.recovery.decided_for(true), Decided::Taken);
    }

    #[test]
    fn the_operators_decision_is_on_disk_before_the_guest_runs_without_further_questions() {
        let mut driver = querying();
        driver.action();
        driver.handle(SourceEvent::Answered(None));
        let writes = SourceAction::Write(From::ResumingHere);
        assert_eq!(driver.handle(SourceEvent::Resolve(true)), Some(SourceAction::Query { gives_up: false }));
        assert_eq!(driver.handle(SourceEvent::Answered(None)), Some(writes));
        for _ in 0..100 {
            assert_eq!(driver.handle(SourceEvent::Written(false)), None);
            driver.again(writes);
        }
        assert_eq!(driver.handle(SourceEvent::Written(true)), Some(SourceAction::ResumeHere));
    }

    #[test]
    fn an_answer_that_decides_weighs_more_than_the_operators_decision() {
        for (answer, follows) in [
            (Outcome::Committed, SourceAction::EndSource),
            (Outcome::Aborted, SourceAction::ResumeHere),
            (Outcome::Returned, SourceAction::ResumeHere),
        ] {
            for resume in [true, false] {
                let mut driver = querying();
                driver.action();
                driver.handle(SourceEvent::Resolve(resume));
                let next = driver.handle(SourceEvent::Answered(Some(answer)));
                assert_eq!(next, Some(follows), "{answer:?}, {resume}: the destination knows");
                let followed = resume == (follows == SourceAction::ResumeHere);
                let decided = if followed { Decided::Taken } else { Decided::Overruled };
                assert_eq!(driver.recovery.decided(), decided, "{answer:?}, {resume}");
            }
        }
    }

    #[test]
    fn what_is_decided_is_not_decided_again() {
        let mut driver = resuming();
        driver.action();
        for event in [
            SourceEvent::Resolve(false),
            SourceEvent::Answered(Some(Outcome::Committed)),
            SourceEvent::SourceEnded(true),
            SourceEvent::Written(true),
            SourceEvent::Tick,
        ] {
            assert_eq!(driver.handle(event), None, "{event:?}");
            assert!(driver.recovery.resumes_here(), "{event:?}");
        }
    }
}

mod at_the_destination {
    use super::DestinationAction as Do;
    use super::DestinationEvent as Did;
    use super::*;

    struct Driver {
        recovery: DestinationRecovery,
        now: Time,
    }

    impl Driver {
        fn new(recovery: DestinationRecovery) -> Driver {
            Driver { recovery, now: Time::ZERO }
        }

        fn action(&mut self) -> Option<Do> {
            let action = self.recovery.poll_action(self.now);
            assert_eq!(self.recovery.poll_action(self.now), None, "one at a time");
            action
        }

        fn handle(&mut self, event: Did) -> Option<Do> {
            self.recovery.handle(self.now, event);
            self.action()
        }

        /// Nothing before it is due, then this.
        #[track_caller]
        fn again(&mut self, wanted: Do) {
            assert_eq!(self.action(), None, "it spins");
            self.now = self.recovery.timeout().expect("it waits for ever");
            assert_eq!(self.action(), Some(wanted));
        }
    }

    fn discarding(phase: To) -> Driver {
        Driver::new(DestinationRecovery::discard(Time::ZERO, phase))
    }

    fn waiting() -> Driver {
        Driver::new(DestinationRecovery::wait())
    }

    fn seeing() -> Driver {
        let mut driver = Driver::new(DestinationRecovery::inspect(Time::ZERO));
        assert_eq!(driver.action(), Some(Do::Inspect));
        driver
    }

    #[test]
    fn what_is_left_is_removed_until_nothing_is_and_the_end_written_until_it_sticks() {
        for (phase, end, outcome) in [
            (To::Started, To::Aborted, Outcome::Aborted),
            (To::Loaded, To::Aborted, Outcome::Aborted),
            (To::Aborted, To::Aborted, Outcome::Aborted),
            (To::Returned, To::Returned, Outcome::Returned),
        ] {
            let mut driver = discarding(phase);
            assert_eq!(driver.action(), Some(Do::Discard));
            for _ in 0..100 {
                assert_eq!(driver.handle(Did::Discarded(false)), None);
                assert_eq!(driver.recovery.outcome(), Some(Outcome::Pending), "it is still there");
                driver.again(Do::Discard);
            }
            assert_eq!(driver.handle(Did::Discarded(true)), Some(Do::Write(end)), "{phase:?}");
            assert_eq!(driver.recovery.outcome(), Some(outcome), "{phase:?}: nothing is left of it");
            for _ in 0..100 {
                assert_eq!(driver.handle(Did::Written(false)), None);
                driver.again(Do::Write(end));
            }
            driver.handle(Did::Written(true));
            assert_eq!(driver.recovery.is_over(), Some(end));
            assert_eq!(driver.recovery.outcome(), None, "the journal has it");
        }
    }

    #[test]
    fn a_complete_guest_waits_for_days_and_is_decided_by_the_source_or_an_operator() {
        for (event, follows) in [
            (Did::CommitAgain { copy: false }, Do::Write(To::Committed)),
            (Did::Resolve(true), Do::Write(To::Committed)),
            (Did::RolledBackAtSource, Do::Discard),
            (Did::Resolve(false), Do::Discard),
        ] {
            let mut driver = waiting();
            driver.now = Time::ZERO + Duration::from_secs(3 * 86_400);
            assert_eq!(driver.handle(Did::Tick), None);
            assert!(driver.recovery.is_waiting());
            assert_eq!(driver.recovery.outcome(), Some(Outcome::Pending));
            assert_eq!(driver.handle(event), Some(follows), "{event:?}");
        }
    }

    #[test]
    fn a_guest_that_was_waited_for_runs_only_when_the_journal_has_it() {
        let mut driver = waiting();
        assert_eq!(driver.handle(Did::CommitAgain { copy: false }), Some(Do::Write(To::Committed)));
        for _ in 0..100 {
            assert_eq!(driver.handle(Did::Written(false)), None);
            assert_eq!(driver.recovery.outcome(), Some(Outcome::Pending));
            driver.again(Do::Write(To::Committed));
        }
        assert_eq!(driver.handle(Did::RolledBackAtSource), None, "it may be on disk");
        assert_eq!(driver.handle(Did::Written(true)), Some(Do::Run));
        assert_eq!(driver.recovery.outcome(), Some(Outcome::Pending));
        assert_eq!(driver.handle(Did::Ran(RunResult::Runs)), Some(Do::Write(To::Running)));
        assert_eq!(driver.recovery.outcome(), Some(Outcome::Committed), "it runs");
        driver.handle(Did::Written(true));
        assert_eq!(driver.recovery.is_over(), Some(To::Running));
    }

    #[test]
    fn a_commit_that_is_not_on_disk_is_revoked_by_its_sender() {
        for word in [Did::RolledBackAtSource, Did::Resolve(false)] {
            let mut driver = waiting();
            driver.handle(Did::CommitAgain { copy: false });
            assert_eq!(driver.handle(word), None, "it may be on disk: {word:?}");
            driver.handle(Did::Written(false));
            assert_eq!(driver.handle(word), Some(Do::Discard), "{word:?}");
            assert_eq!(driver.handle(Did::Discarded(true)), Some(Do::Write(To::Aborted)));
        }
    }

    #[test]
    fn what_is_found_of_a_committed_guest_decides() {
        for (found, follows) in [
            (Inspection::Runs, Some(Do::Write(To::Running))),
            (Inspection::NeverRan, Some(Do::Run)),
            (Inspection::MayHaveRun, None),
            (Inspection::Ended, None),
            (Inspection::Unknown, None),
        ] {
            assert_eq!(seeing().handle(Did::Inspected(found)), follows, "{found:?}");
        }
    }

    #[test]
    fn a_hypervisor_that_does_not_answer_is_asked_again_and_gets_no_command() {
        let mut driver = seeing();
        for _ in 0..1000 {
            assert_eq!(driver.handle(Did::Inspected(Inspection::Unknown)), None);
            assert_eq!(driver.recovery.outcome(), Some(Outcome::Pending));
            driver.again(Do::Inspect);
        }
        // The same if it does not answer to the command: it may have run it.
        assert_eq!(driver.handle(Did::Inspected(Inspection::NeverRan)), Some(Do::Run));
        assert_eq!(driver.handle(Did::Ran(RunResult::Unknown)), None);
        driver.again(Do::Inspect);
    }

    #[test]
    fn a_guest_that_may_have_run_is_an_operators() {
        let held = || {
            let mut driver = seeing();
            driver.handle(Did::Inspected(Inspection::MayHaveRun));
            driver
        };
        let mut driver = held();
        driver.now = Time::ZERO + Duration::from_secs(86_400);
        for event in [Did::Tick, Did::CommitAgain { copy: false }, Did::Written(true)] {
            let next = driver.handle(event);
            assert!(next.is_none_or(|next| next == Do::Inspect), "{event:?}: an operator may have paused it");
        }
        assert!(driver.recovery.is_held());
        assert_eq!(driver.recovery.outcome(), Some(Outcome::Pending));
        assert_eq!(driver.handle(Did::Resolve(true)), Some(Do::Run));
    }

    #[test]
    fn a_loaded_guest_that_its_operator_lets_run_is_done_and_one_that_is_given_up_is_gone_and_not_returned() {
        let held = || {
            let mut driver = seeing();
            driver.handle(Did::Inspected(Inspection::MayHaveRun));
            driver.now = driver.now + Duration::from_secs(60);
            assert_eq!(driver.action(), Some(Do::Inspect));
            driver
        };
        assert_eq!(held().handle(Did::Inspected(Inspection::Runs)), Some(Do::Write(To::Running)));
        let mut driver = held();
        driver.handle(Did::Inspected(Inspection::MayHaveRun));
        driver.handle(Did::CommitAgain { copy: true });
        assert_eq!(driver.handle(Did::Resolve(false)), Some(Do::Discard));
        assert_eq!(driver.handle(Did::Discarded(true)), None);
        assert_eq!(
            driver.recovery.is_over(),
            Some(To::Committed),
            "its source keeps the copy for its operator"
        );
    }

    /// Its source may have ended its copy: the message that the guest runs may have arrived, and not this record.
    #[test]
    fn a_guest_that_may_have_run_is_given_up_only_while_its_source_reports_a_copy() {
        let late = crate::source_copy::COPY_COUNTS_FOR + RETRY_AFTER;
        for (copy, after, is_given_up) in [
            (None, Duration::ZERO, false),
            (Some(false), Duration::ZERO, false),
            (Some(true), late, false),
            (Some(true), Duration::ZERO, true),
        ] {
            let mut driver = seeing();
            driver.handle(Did::Inspected(Inspection::MayHaveRun));
            copy.map(|copy| driver.handle(Did::CommitAgain { copy }));
            driver.now = driver.now + after;
            if driver.action().is_some() {
                driver.handle(Did::Inspected(Inspection::MayHaveRun));
            }
            assert_eq!(driver.recovery.may_be_given_up(driver.now), is_given_up, "{copy:?}, {after:?}");
            let next = driver.handle(Did::Resolve(false));
            assert_eq!(next == Some(Do::Discard), is_given_up, "{copy:?}, {after:?}: {next:?}");
            assert_eq!(driver.recovery.is_held(), !is_given_up, "{copy:?}, {after:?}");
        }
    }

    fn held() -> Driver {
        let mut driver = seeing();
        driver.handle(Did::Inspected(Inspection::MayHaveRun));
        driver.handle(Did::CommitAgain { copy: true });
        driver
    }

    /// An agent that is restarted before finds the guest as it was, and knows of no decision.
    #[test]
    fn a_decision_counts_when_it_is_on_disk_or_done() {
        let mut driver = waiting();
        assert_eq!(driver.handle(Did::Resolve(true)), Some(Do::Write(To::Committed)));
        for _ in 0..100 {
            assert_eq!(driver.recovery.decided_for(true), Decided::Waiting);
            assert!(driver.recovery.is_in_doubt());
            assert_eq!(driver.handle(Did::Written(false)), None);
            driver.again(Do::Write(To::Committed));
        }
        assert_eq!(driver.handle(Did::Written(true)), Some(Do::Run));
        assert_eq!(
            (driver.recovery.decided_for(true), driver.recovery.is_in_doubt()),
            (Decided::Taken, false)
        );
        // One that may have run is as it was until it runs.
        let mut driver = held();
        assert_eq!(driver.handle(Did::Resolve(true)), Some(Do::Run));
        assert_eq!(driver.recovery.decided_for(true), Decided::Waiting);
        assert_eq!(driver.handle(Did::Ran(RunResult::Unknown)), None);
        driver.again(Do::Inspect);
        assert_eq!(driver.recovery.decided_for(true), Decided::Waiting);
        driver.handle(Did::Inspected(Inspection::Runs));
        assert_eq!(driver.recovery.decided_for(true), Decided::Taken);
        for mut driver in [waiting(), held()] {
            assert_eq!(driver.handle(Did::Resolve(false)), Some(Do::Discard));
            for _ in 0..100 {
                assert_eq!(driver.recovery.decided_for(false), Decided::Waiting, "it is still there");
                assert_eq!(driver.handle(Did::Discarded(false)), None);
                driver.again(Do::Discard);
            }
            driver.handle(Did::Discarded(true));
            assert_eq!(driver.recovery.decided_for(false), Decided::Taken);
        }
    }

    /// Two operators: each is told what became of the own decision.
    #[test]
    fn a_decision_that_does_not_count_yet_is_not_replaced_by_another() {
        for (run, failed) in [(true, Did::Written(false)), (false, Did::Discarded(false))] {
            let mut driver = waiting();
            driver.handle(Did::Resolve(run));
            driver.handle(failed);
            assert!(driver.recovery.takes(run) && !driver.recovery.takes(!run));
            assert_eq!(driver.handle(Did::Resolve(!run)), None, "{run}");
            assert_eq!(driver.recovery.waiting_decision(), Some(run));
        }
        // One that came to nothing may be.
        let mut driver = held();
        driver.handle(Did::Resolve(true));
        driver.now = driver.now + RUN_FOR;
        driver.handle(Did::Ran(RunResult::Refused));
        assert!(driver.recovery.is_held() && driver.recovery.takes(false));
        driver.handle(Did::CommitAgain { copy: true });
        driver.handle(Did::Resolve(false));
        assert_eq!(driver.recovery.decided_for(true), Decided::GivenUp);
    }

    #[test]
    fn an_operator_reads_that_the_source_has_revoked_what_was_to_run_here() {
        let mut driver = waiting();
        driver.handle(Did::Resolve(true));
        driver.handle(Did::Written(false));
        assert_eq!(driver.handle(Did::RolledBackAtSource), Some(Do::Discard));
        assert_eq!(driver.recovery.decided_for(true), Decided::GivenUp);
        assert!(!driver.recovery.is_in_doubt());
    }

    #[test]
    fn a_guest_that_cannot_run_is_tried_for_a_while_and_then_returned() {
        let mut driver = seeing();
        assert_eq!(driver.handle(Did::Inspected(Inspection::NeverRan)), Some(Do::Run));
        driver.handle(Did::CommitAgain { copy: true });
        let (began, mut tries) = (driver.now, 1);
        while driver.handle(Did::Ran(RunResult::Refused)).is_none() {
            assert!(driver.now - began < RUN_FOR + RUN_AGAIN_AFTER);
            driver.again(Do::Run);
            tries += 1;
        }
        assert!(tries >= 5, "{tries}");
        assert_eq!(driver.recovery.outcome(), Some(Outcome::Pending), "not before it has ended");
        // Whether it is on disk or not: it must not stay, and the end is written again.
        assert_eq!(driver.handle(Did::Written(false)), Some(Do::Discard));
        assert_eq!(driver.handle(Did::Discarded(true)), Some(Do::Write(To::Returned)));
        assert_eq!(driver.recovery.outcome(), Some(Outcome::Returned));
        driver.handle(Did::Written(true));
        assert_eq!(driver.recovery.is_over(), Some(To::Returned));
    }

    #[test]
    fn a_guest_that_cannot_run_is_kept_while_no_source_can_take_it() {
        let mut driver = waiting();
        driver.handle(Did::CommitAgain { copy: false });
        driver.handle(Did::Written(true));
        for _ in 0..3600 {
            assert_eq!(driver.handle(Did::Ran(RunResult::Refused)), None, "this copy may be the only one");
            assert_eq!(driver.recovery.outcome(), Some(Outcome::Pending));
            driver.again(Do::Run);
        }
        assert_eq!(driver.handle(Did::CommitAgain { copy: true }), None, "one action at a time");
        assert_eq!(driver.handle(Did::Ran(RunResult::Refused)), Some(Do::Write(To::Returned)));
    }

    #[test]
    fn a_guest_that_could_not_run_is_not_run_any_more_when_its_source_has_rolled_back() {
        let mut driver = waiting();
        driver.handle(Did::CommitAgain { copy: false });
        driver.handle(Did::Written(true));
        assert_eq!(driver.handle(Did::RolledBackAtSource), None, "it is just being run");
        assert_eq!(driver.handle(Did::Ran(RunResult::Refused)), Some(Do::Write(To::Returned)));
        let mut driver = waiting();
        driver.handle(Did::CommitAgain { copy: false });
        driver.handle(Did::Written(true));
        driver.handle(Did::Ran(RunResult::Refused));
        assert_eq!(driver.handle(Did::RolledBackAtSource), Some(Do::Write(To::Returned)));
    }

    /// The notice arrives while its hypervisor does not answer.
    #[test]
    fn a_guest_that_never_ran_is_not_run_when_its_source_has_rolled_back_before_that_is_known() {
        let mut driver = seeing();
        driver.handle(Did::Inspected(Inspection::Unknown));
        assert_eq!(driver.handle(Did::RolledBackAtSource), None, "it may run here");
        driver.again(Do::Inspect);
        assert_eq!(driver.handle(Did::Inspected(Inspection::NeverRan)), Some(Do::Write(To::Returned)));
        assert_eq!(driver.handle(Did::Written(true)), Some(Do::Discard));
    }

    #[test]
    fn a_guest_whose_process_has_ended_keeps_its_record() {
        let ends: [fn(&mut Driver); 2] = [
            |d| assert_eq!(d.handle(Did::Inspected(Inspection::Ended)), None),
            |d| {
                d.handle(Did::Inspected(Inspection::NeverRan));
                d.handle(Did::Ran(RunResult::Ended));
            },
        ];
        for end in ends {
            let mut driver = seeing();
            end(&mut driver);
            assert_eq!(driver.recovery.is_over(), Some(To::Committed));
            assert_eq!(crate::journal::outcome(Some(To::Committed), ProcessFate::Ended), Outcome::Gone);
        }
    }

    #[test]
    fn a_guest_that_may_have_run_is_held_again_and_not_returned_for_a_refusal() {
        let mut driver = seeing();
        driver.handle(Did::CommitAgain { copy: true });
        driver.handle(Did::Inspected(Inspection::MayHaveRun));
        assert!(driver.recovery.is_held());
        assert_eq!(driver.handle(Did::Resolve(true)), Some(Do::Run));
        let mut next = None;
        for _ in 0..20 {
            driver.handle(Did::CommitAgain { copy: true });
            driver.now = driver.now + RUN_AGAIN_AFTER;
            next = driver.handle(Did::Ran(RunResult::Refused)).or(driver.action());
            assert!(next.is_none_or(|next| matches!(next, Do::Run | Do::Inspect)), "{next:?}");
        }
        assert!(next != Some(Do::Run) && driver.recovery.is_held(), "an operator decides again");
    }

    /// Its source's operator has let it run there.
    #[test]
    fn a_guest_that_may_have_run_is_not_run_beside_its_source() {
        let mut driver = seeing();
        driver.handle(Did::Inspected(Inspection::MayHaveRun));
        assert_eq!(driver.handle(Did::RolledBackAtSource), None, "what it did here may be wanted");
        assert!(driver.recovery.is_held() && driver.recovery.is_rolled_back_at_source());
        assert_ne!(driver.handle(Did::Resolve(true)), Some(Do::Run));
        assert_eq!(driver.handle(Did::Resolve(false)), Some(Do::Discard));
    }

    /// The notice arrives while it is tried: an operator lets it run on here, and another at the source.
    #[test]
    fn a_guest_that_may_have_run_is_not_tried_any_more_when_its_source_has_rolled_back() {
        for in_flight in [true, false] {
            let mut driver = held();
            assert_eq!(driver.handle(Did::Resolve(true)), Some(Do::Run));
            if in_flight {
                assert_eq!(driver.handle(Did::RolledBackAtSource), None, "it is just being run");
                driver.handle(Did::Ran(RunResult::Refused));
            } else {
                driver.handle(Did::Ran(RunResult::Refused));
                assert_eq!(driver.handle(Did::RolledBackAtSource), None);
            }
            assert!(driver.recovery.is_held(), "{in_flight}");
            assert_ne!(driver.handle(Did::Resolve(true)), Some(Do::Run), "{in_flight}");
            driver.again(Do::Inspect);
        }
    }

    /// An earlier question may arrive late.
    #[test]
    fn a_guest_does_not_return_to_a_copy_that_was_given_up() {
        let mut driver = seeing();
        driver.handle(Did::Inspected(Inspection::NeverRan));
        driver.handle(Did::CommitAgain { copy: false });
        for _ in 0..20 {
            driver.handle(Did::CommitAgain { copy: true });
            driver.now = driver.now + RETRY_AFTER;
            let next = driver.handle(Did::Ran(RunResult::Refused)).or(driver.action());
            assert!(next.is_none_or(|next| next == Do::Run), "{next:?}");
        }
    }

    #[test]
    fn a_source_that_does_not_answer_any_more_does_not_get_the_guest_back() {
        let mut driver = seeing();
        driver.handle(Did::CommitAgain { copy: true });
        driver.now = driver.now + crate::source_copy::COPY_COUNTS_FOR + RETRY_AFTER;
        driver.handle(Did::Inspected(Inspection::NeverRan));
        for _ in 0..20 {
            driver.now = driver.now + RETRY_AFTER;
            let next = driver.handle(Did::Ran(RunResult::Refused)).or(driver.action());
            assert!(next.is_none_or(|next| next == Do::Run), "its host may be lost: {next:?}");
        }
        driver.handle(Did::CommitAgain { copy: true });
        assert_eq!(driver.handle(Did::Ran(RunResult::Refused)), Some(Do::Write(To::Returned)));
    }
}
