//! The recovery of a destination, step by step.

use super::DestinationAction as Do;
use super::DestinationEvent as Did;
use super::*;
use crate::source_copy::HEARD_WITHIN;

driver!(DestinationRecovery, Do, Did);

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

fn may_have_run() -> Driver {
    let mut driver = seeing();
    driver.handle(Did::Inspected(Inspection::MayHaveRun));
    driver
}

/// Such a guest, whose source reports a copy.
fn held() -> Driver {
    let mut driver = may_have_run();
    driver.handle(Did::CommitAgain { copy: true });
    driver
}

/// An operator lets a guest that waits run, and its source is not heard meanwhile.
fn let_run(driver: &mut Driver) -> Option<Do> {
    assert_eq!(driver.handle(Did::Resolve(true)), None, "its source is heard first");
    driver.now = driver.now + HEARD_WITHIN;
    driver.handle(Did::Tick)
}

#[test]
fn what_is_left_is_removed_until_nothing_is_and_the_end_written_until_it_is_on_disk() {
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
        (Did::RolledBackAtSource, Do::Discard),
        (Did::ProcessEnded, Do::Discard),
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

/// Its process has ended. What became of a guest that is committed is found out by looking at it.
#[test]
fn only_a_guest_that_waits_is_given_back_as_its_process_has_ended() {
    let mut driver = waiting();
    driver.handle(Did::ProcessEnded);
    assert_eq!(driver.handle(Did::CommitAgain { copy: true }), None, "it is being discarded");
    assert_eq!(driver.handle(Did::Discarded(true)), Some(Do::Write(To::Aborted)));
    let mut driver = waiting();
    driver.handle(Did::CommitAgain { copy: true });
    assert_eq!(driver.handle(Did::ProcessEnded), None, "the commit is being written");
    assert_eq!(driver.handle(Did::Written(true)), Some(Do::Run));
    assert_eq!(driver.handle(Did::ProcessEnded), None, "it is being run");
    assert_eq!(driver.handle(Did::Ran(RunResult::Ended)), None);
    assert_eq!(driver.recovery.is_over(), Some(To::Committed));
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
    assert_eq!(driver.handle(Did::Written(true)), Some(Do::Run));
    assert_eq!(driver.recovery.outcome(), Some(Outcome::Pending));
    assert_eq!(driver.handle(Did::Ran(RunResult::Runs)), Some(Do::Write(To::Running)));
    assert_eq!(driver.recovery.outcome(), Some(Outcome::Committed), "it runs");
    driver.handle(Did::Written(true));
    assert_eq!(driver.recovery.is_over(), Some(To::Running));
}

/// It lets its own copy run: this one must not run beside it.
#[test]
fn a_guest_is_not_run_if_its_source_rolls_back_while_commit_is_written() {
    for decided in [false, true] {
        let mut driver = waiting();
        if decided {
            let_run(&mut driver);
        } else {
            driver.handle(Did::CommitAgain { copy: false });
        }
        assert_eq!(driver.handle(Did::RolledBackAtSource), None, "it may be on disk");
        assert_eq!(driver.handle(Did::Written(true)), Some(Do::Write(To::Returned)), "{decided}");
        assert_eq!(driver.handle(Did::Written(true)), Some(Do::Discard));
        let fate = if decided { Decided::Overruled } else { Decided::Void };
        assert_eq!(driver.recovery.decided_for(true), fate, "{decided}");
    }
}

/// The disk refuses the commit: nothing says that the guest is to run here.
#[test]
fn a_commit_that_the_disk_refuses_is_not_written_any_more_when_the_source_has_rolled_back() {
    let mut driver = waiting();
    let_run(&mut driver);
    driver.handle(Did::RolledBackAtSource);
    assert_eq!(driver.handle(Did::Written(false)), Some(Do::Discard));
    assert_eq!(driver.recovery.decided_for(true), Decided::Overruled);
    assert_eq!(driver.handle(Did::Discarded(true)), Some(Do::Write(To::Aborted)));
}

/// The notice waited behind the write, so that the decision had counted.
#[test]
fn a_decision_is_not_followed_if_the_source_rolls_back_before_the_guest_is_run() {
    let mut driver = waiting();
    let_run(&mut driver);
    driver.recovery.handle(driver.now, Did::Written(true));
    assert_eq!(driver.handle(Did::RolledBackAtSource), Some(Do::Write(To::Returned)));
    assert_eq!(driver.recovery.decided_for(true), Decided::Overruled);
}

/// The live session had the notice.
#[test]
fn a_guest_that_was_left_to_recovery_is_not_run_if_its_source_has_rolled_back() {
    let mut driver = Driver::new(DestinationRecovery::inspect(Time::ZERO));
    driver.recovery.handle(driver.now, Did::RolledBackAtSource);
    assert_eq!(driver.action(), Some(Do::Inspect));
    assert_eq!(driver.handle(Did::Inspected(Inspection::NeverRan)), Some(Do::Write(To::Returned)));
}

/// A command that the hypervisor had could not be called back.
#[test]
fn an_operator_reads_that_a_guest_may_run_at_the_source_too() {
    for answered in [true, false] {
        let mut driver = held();
        assert_eq!(driver.handle(Did::Resolve(true)), Some(Do::Run));
        assert_eq!(driver.handle(Did::RolledBackAtSource), None, "it is just being run");
        if answered {
            driver.handle(Did::Ran(RunResult::Runs));
        } else {
            driver.handle(Did::Ran(RunResult::Unknown));
            driver.again(Do::Inspect);
            driver.handle(Did::Inspected(Inspection::Runs));
        }
        assert_eq!(driver.recovery.decided_for(true), Decided::AlsoAtSource, "{answered}");
    }
}

/// The process answered nothing, so it is looked at, and never ran.
#[test]
fn a_decision_over_a_guest_that_is_returned_is_not_followed() {
    let mut driver = held();
    assert_eq!(driver.handle(Did::Resolve(true)), Some(Do::Run));
    driver.handle(Did::Ran(RunResult::Unknown));
    driver.handle(Did::RolledBackAtSource);
    driver.again(Do::Inspect);
    assert_eq!(driver.handle(Did::Inspected(Inspection::NeverRan)), Some(Do::Write(To::Returned)));
    assert_eq!(driver.recovery.decided_for(true), Decided::Overruled);
}

#[test]
fn a_commit_that_is_not_on_disk_is_revoked_by_its_sender() {
    for word in [Did::RolledBackAtSource, Did::Resolve(false)] {
        let mut driver = waiting();
        driver.handle(Did::CommitAgain { copy: false });
        driver.handle(Did::Written(false));
        assert_eq!(driver.handle(word), Some(Do::Discard), "{word:?}");
        assert_eq!(driver.handle(Did::Discarded(true)), Some(Do::Write(To::Aborted)));
    }
    let mut driver = waiting();
    driver.handle(Did::CommitAgain { copy: false });
    assert_eq!(driver.handle(Did::Resolve(false)), None, "it may be on disk");
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
    let mut driver = may_have_run();
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
    let seen_again = || {
        let mut driver = may_have_run();
        driver.now = driver.now + Duration::from_secs(60);
        assert_eq!(driver.action(), Some(Do::Inspect));
        driver
    };
    assert_eq!(seen_again().handle(Did::Inspected(Inspection::Runs)), Some(Do::Write(To::Running)));
    let mut driver = seen_again();
    driver.handle(Did::Inspected(Inspection::MayHaveRun));
    driver.handle(Did::CommitAgain { copy: true });
    assert_eq!(driver.handle(Did::Resolve(false)), Some(Do::Discard));
    assert_eq!(driver.handle(Did::Discarded(true)), None);
    assert_eq!(driver.recovery.is_over(), Some(To::Committed), "its source keeps the copy for its operator");
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
        let mut driver = may_have_run();
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

/// An agent that is restarted before finds the guest as it was, and knows of no decision.
#[test]
fn an_operator_reads_that_a_guest_that_was_to_run_here_has_ended() {
    let mut driver = held();
    assert_eq!(driver.handle(Did::Resolve(true)), Some(Do::Run));
    driver.handle(Did::Ran(RunResult::Ended));
    assert_eq!(driver.recovery.decided_for(true), Decided::Overruled);
    assert!(driver.recovery.is_over().is_some() && !driver.recovery.is_in_doubt());
}

#[test]
fn a_decision_counts_when_it_is_carried_out() {
    let mut driver = waiting();
    assert_eq!(let_run(&mut driver), Some(Do::Write(To::Committed)));
    for _ in 0..100 {
        assert_eq!(driver.recovery.decided_for(true), Decided::Waiting);
        assert!(driver.recovery.is_in_doubt());
        assert_eq!(driver.handle(Did::Written(false)), None);
        driver.again(Do::Write(To::Committed));
    }
    assert_eq!(driver.handle(Did::Written(true)), Some(Do::Run));
    for _ in 0..100 {
        assert_eq!(driver.recovery.decided_for(true), Decided::Waiting, "the guest may still go back");
        assert!(driver.recovery.is_in_doubt() && !driver.recovery.takes(false));
        assert_eq!(driver.handle(Did::Ran(RunResult::Refused)), None);
        driver.again(Do::Run);
    }
    driver.handle(Did::Ran(RunResult::Runs));
    assert_eq!((driver.recovery.decided_for(true), driver.recovery.is_in_doubt()), (Decided::Taken, false));
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

/// Two operators: each is told what became of their own decision.
#[test]
fn a_decision_that_does_not_count_yet_is_not_replaced_by_another() {
    for (run, failed) in [(true, Did::Written(false)), (false, Did::Discarded(false))] {
        let mut driver = waiting();
        if run {
            let_run(&mut driver);
        } else {
            driver.handle(Did::Resolve(false));
        }
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
    assert_eq!(driver.recovery.decided_for(true), Decided::Void);
}

#[test]
fn an_operator_reads_that_a_guest_that_was_to_run_here_is_returned() {
    let mut driver = waiting();
    let_run(&mut driver);
    assert_eq!(driver.handle(Did::Written(true)), Some(Do::Run));
    driver.handle(Did::CommitAgain { copy: true });
    driver.now = driver.now + RUN_FOR;
    driver.handle(Did::CommitAgain { copy: true });
    assert_eq!(driver.handle(Did::Ran(RunResult::Refused)), Some(Do::Write(To::Returned)));
    assert_eq!(driver.recovery.decided_for(true), Decided::Overruled);
}

#[test]
fn an_operator_reads_that_the_source_has_revoked_what_was_to_run_here() {
    let mut driver = waiting();
    let_run(&mut driver);
    driver.handle(Did::Written(false));
    assert_eq!(driver.handle(Did::RolledBackAtSource), Some(Do::Discard));
    assert_eq!(driver.recovery.decided_for(true), Decided::Overruled);
    assert!(!driver.recovery.is_in_doubt());
}

/// It has a copy. It asks no other question once it is about to resume that.
#[test]
fn a_guest_that_cannot_run_is_returned_to_a_source_that_is_about_to_resume() {
    let mut driver = seeing();
    driver.handle(Did::Inspected(Inspection::NeverRan));
    driver.now = driver.now + RUN_FOR;
    driver.handle(Did::SourceResumes);
    assert_eq!(driver.handle(Did::Ran(RunResult::Refused)), Some(Do::Write(To::Returned)));
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
    assert_eq!(driver.recovery.decided_for(true), Decided::Void);
}

/// Its source's operator has let it run there.
#[test]
fn a_guest_that_may_have_run_is_not_run_beside_its_source() {
    let mut driver = may_have_run();
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
        assert_eq!(driver.recovery.decided_for(true), Decided::Overruled, "{in_flight}");
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

/// Both copies would run.
#[test]
fn a_guest_that_waits_is_not_run_while_its_source_is_about_to_resume_its_own() {
    for word in [Did::Resolve(true), Did::CommitAgain { copy: true }, Did::CommitAgain { copy: false }] {
        let mut driver = waiting();
        assert_eq!(driver.handle(Did::SourceResumes), None);
        assert_eq!(driver.recovery.outcome_for_resuming(), Some(Outcome::NotCommitted));
        assert_eq!(driver.handle(word), None, "{word:?}");
        assert!(driver.recovery.is_waiting(), "{word:?}");
        // A source that is lost meanwhile does not keep it from running for ever.
        driver.now = driver.now + Duration::from_secs(21);
        let next = if word == Did::Resolve(true) { let_run(&mut driver) } else { driver.handle(word) };
        assert_eq!(next, Some(Do::Write(To::Committed)), "{word:?}");
        assert_eq!(driver.recovery.outcome_for_resuming(), Some(Outcome::Pending), "{word:?}");
    }
    let mut driver = waiting();
    driver.handle(Did::SourceResumes);
    assert_eq!(driver.handle(Did::RolledBackAtSource), Some(Do::Discard));
}

/// The source may have asked the agent before it.
#[test]
fn a_guest_that_waits_is_not_run_by_an_operator_just_after_the_start_of_its_agent() {
    let mut driver = Driver::new(DestinationRecovery::wait_after_start(Time::ZERO));
    assert_eq!(driver.handle(Did::Resolve(true)), None);
    assert!(driver.recovery.is_waiting());
    driver.now = driver.now + Duration::from_secs(21);
    assert_eq!(driver.action(), Some(Do::Inspect));
    assert_eq!(driver.handle(Did::Inspected(Inspection::MayHaveRun)), None);
    assert_eq!(let_run(&mut driver), Some(Do::Write(To::Committed)));
    // Its source decides at any time.
    let mut driver = Driver::new(DestinationRecovery::wait_after_start(Time::ZERO));
    assert_eq!(driver.handle(Did::CommitAgain { copy: true }), Some(Do::Write(To::Committed)));
}

/// A link works again, and its notice or question has not arrived yet. Both copies would run.
#[test]
fn a_source_is_heard_before_an_operators_decision_to_run_a_guest_that_waits() {
    use Did::{CommitAgain, ProcessEnded, RolledBackAtSource, SourceResumes};
    let heard = [
        (RolledBackAtSource, Some(Do::Discard), Decided::Overruled),
        (ProcessEnded, Some(Do::Discard), Decided::Overruled),
        (CommitAgain { copy: true }, Some(Do::Write(To::Committed)), Decided::Waiting),
        (SourceResumes, None, Decided::Void),
    ];
    for (word, follows, decided) in heard {
        let mut driver = waiting();
        assert_eq!(driver.handle(Did::Resolve(true)), None, "{word:?}");
        assert!(driver.recovery.is_about_to_run() && driver.recovery.is_in_doubt());
        assert!(driver.recovery.takes(true) && !driver.recovery.takes(false));
        assert_eq!(driver.recovery.outcome_for_resuming(), Some(Outcome::NotCommitted));
        driver.now = driver.now + HEARD_WITHIN / 2;
        driver.handle(Did::Resolve(true));
        driver.now = driver.now + (HEARD_WITHIN / 2 - Duration::from_millis(1));
        assert_eq!(driver.handle(Did::Tick), None, "{word:?}");
        assert_eq!(driver.handle(word), follows, "{word:?}");
        assert_eq!(driver.recovery.decided_for(true), decided, "{word:?}");
        driver.now = driver.now + HEARD_WITHIN;
        let next = driver.handle(Did::Tick);
        assert_eq!(next, None, "{word:?}: nothing else follows from the decision");
    }
}

#[test]
fn a_decision_to_run_a_guest_is_not_put_off_when_it_is_repeated() {
    let mut driver = waiting();
    driver.handle(Did::Resolve(true));
    driver.now = driver.now + HEARD_WITHIN / 2;
    assert_eq!(driver.handle(Did::Resolve(true)), None);
    driver.now = driver.now + HEARD_WITHIN / 2;
    assert_eq!(driver.handle(Did::Tick), Some(Do::Write(To::Committed)));
}

mod hearing;
