//! What an operator decides over a guest that is complete here: when that counts, and who is heard before.

use super::*;

#[test]
fn the_operator_decides_over_a_loaded_guest_only_if_its_source_does_not_answer() {
    for run in [true, false] {
        for state in ALL {
            for answered in [true, false] {
                let mut driver = Driver::at(state);
                let mut actions = if answered { vec![] } else { driver.handle(Event::PathLost(PATH)) };
                assert_eq!(driver.machine.is_held(), state == Loaded && !answered, "{state:?}");
                actions.extend(if run { driver.let_run() } else { driver.handle(Event::Resolve(false)) });
                let decides = state == Loaded && !answered;
                assert_eq!(commits(&actions), decides && run, "{state:?}, {answered}: {actions:?}");
                assert_eq!(aborts(&actions), decides && !run, "{state:?}, {answered}: {actions:?}");
            }
        }
    }
}

/// An agent that is restarted before finds the guest loaded, and knows of no decision.
#[test]
fn an_operators_decision_counts_when_it_is_carried_out() {
    let held = || {
        let mut driver = Driver::at(Loaded);
        driver.handle(Event::PathLost(PATH));
        driver
    };
    let unwritten = || Event::Failed(fault(Code::JournalFailed));
    let mut driver = held();
    driver.let_run();
    for _ in 0..3 {
        assert_eq!(driver.machine.decided_for(true), Decided::Waiting);
        assert!(driver.machine.is_in_doubt() && driver.machine.takes(true) && !driver.machine.takes(false));
        driver.handle(unwritten());
        driver.now = driver.now + crate::recovery::RETRY_AFTER;
        assert!(commits(&driver.handle(Event::Tick)));
    }
    driver.handle(Event::Journaled(DestinationPhase::Committed));
    driver.handle(Event::CannotRun(fault(Code::HypervisorFailed)));
    assert_eq!(driver.machine.decided_for(true), Decided::Waiting, "the guest may still go back");
    assert!(driver.machine.is_in_doubt() && !driver.machine.takes(false));
    driver.handle(Event::GuestRuns { took: Duration::ZERO, cpu: Duration::ZERO });
    assert_eq!((driver.machine.decided_for(true), driver.machine.is_in_doubt()), (Decided::Taken, false));
    let mut driver = held();
    assert!(aborts(&driver.handle(Event::Resolve(false))));
    for before in [unwritten(), Event::Journaled(DestinationPhase::Aborted)] {
        driver.handle(before);
        assert_eq!(driver.machine.decided_for(false), Decided::Waiting, "QEMU has not ended");
        assert!(!driver.machine.takes(true));
    }
    driver.handle(Event::Discarded);
    assert_eq!(driver.machine.decided_for(false), Decided::Taken);
    let mut driver = held();
    driver.let_run();
    driver.handle(unwritten());
    assert!(aborts(&driver.handle(Event::RolledBackAtSource)), "its source runs it");
    assert_eq!((driver.machine.decided_for(true), driver.machine.is_in_doubt()), (Decided::Overruled, false));
}

/// The operator of the destination has decided, and the source has never said that its copy is gone.
#[test]
fn a_guest_that_an_operator_lets_run_in_vain_returns_to_its_source() {
    let mut driver = Driver::at(Loaded);
    driver.handle(Event::PathLost(PATH));
    driver.let_run();
    driver.handle(Event::Journaled(DestinationPhase::Committed));
    driver.handle(Event::CommitAgain { copy: true });
    let actions = driver.handle(Event::CannotRun(fault(Code::HypervisorFailed)));
    assert!(actions.contains(&Action::Journal(DestinationPhase::Returned)), "{actions:?}");
    driver.handle(Event::Journaled(DestinationPhase::Returned));
    driver.handle(Event::Discarded);
    assert_eq!(driver.machine.decided_for(true), Decided::Overruled);
}

/// A command that the hypervisor had could not be called back.
#[test]
fn an_operator_reads_that_a_guest_may_run_at_the_source_too() {
    let mut driver = Driver::at(Loaded);
    driver.handle(Event::PathLost(PATH));
    driver.let_run();
    driver.handle(Event::Journaled(DestinationPhase::Committed));
    driver.handle(Event::RolledBackAtSource);
    assert!(driver.machine.is_rolled_back_at_source());
    driver.handle(Event::GuestRuns { took: Duration::ZERO, cpu: Duration::ZERO });
    assert_eq!(driver.machine.decided_for(true), Decided::AlsoAtSource);
}

/// The decision is on disk, and nothing shows that the guest runs.
#[test]
fn an_operators_decision_does_not_count_for_a_guest_that_ends_or_is_left_to_recovery() {
    let ends = [
        (Event::GuestEnded(fault(Code::GuestGone)), Decided::Overruled),
        (Event::MayHaveRun(fault(Code::HypervisorFailed)), Decided::Void),
    ];
    for (end, decided) in ends {
        let mut driver = Driver::at(Loaded);
        driver.handle(Event::PathLost(PATH));
        driver.let_run();
        driver.handle(Event::Journaled(DestinationPhase::Committed));
        driver.handle(end);
        assert_eq!(driver.machine.decided_for(true), decided);
    }
}

/// Its agent was restarted, or its QEMU did not answer until now. Both copies would run.
#[test]
fn a_loaded_guest_is_not_run_while_its_source_is_about_to_resume_its_own() {
    let words: [Onward; 4] = [
        |d| d.let_run(),
        |d| d.handle(Event::CommitAgain { copy: true }),
        |d| d.handle(Event::CommitAgain { copy: false }),
        |d| {
            d.handle(Event::PathUp(PATH));
            d.receive(Message::Commit)
        },
    ];
    for (n, word) in words.into_iter().enumerate() {
        let mut driver = Driver::at(Loaded);
        driver.handle(Event::PathLost(PATH));
        driver.handle(Event::SourceResumes);
        assert_eq!(driver.machine.outcome_for_resuming(), Outcome::NotCommitted, "{n}");
        assert!(!commits(&word(&mut driver)), "{n}");
        // A source that is lost meanwhile does not keep it from running for ever.
        driver.now = driver.now + Duration::from_secs(21);
        if n < 3 {
            assert!(commits(&word(&mut driver)), "{n}");
            assert_eq!(driver.machine.outcome_for_resuming(), Outcome::Pending, "{n}");
        }
    }
}

/// A link works again, and its notice or question has not arrived yet. Both copies would run.
#[test]
fn a_source_is_heard_before_an_operators_decision_to_run_a_loaded_guest() {
    let heard: [(Onward, Decided); 4] = [
        (|d| d.handle(Event::RolledBackAtSource), Decided::Overruled),
        (|d| d.handle(Event::SourceResumes), Decided::Void),
        // It decides itself, and may be gone again before that.
        (
            |d| {
                d.handle(Event::PathUp(PATH + 1));
                d.handle(Event::PathLost(PATH + 1))
            },
            Decided::Void,
        ),
        (|d| d.handle(Event::CommitAgain { copy: true }), Decided::Waiting),
    ];
    for (n, (word, decided)) in heard.into_iter().enumerate() {
        let mut driver = Driver::at(Loaded);
        driver.handle(Event::PathLost(PATH));
        driver.handle(Event::Resolve(true));
        assert!(driver.machine.is_in_doubt() && !driver.machine.takes(false), "{n}");
        driver.now = driver.now + (HEARD_WITHIN - Duration::from_millis(1));
        assert!(!commits(&driver.handle(Event::Tick)), "{n}");
        assert_eq!(commits(&word(&mut driver)), n == 3, "{n}");
        driver.now = driver.now + Duration::from_millis(1);
        assert!(!commits(&driver.handle(Event::Tick)), "{n}");
        assert_eq!(driver.machine.decided_for(true), decided, "{n}");
    }
}

/// The agent was stopped: what its source has sent is about to arrive.
#[test]
fn time_in_which_the_source_of_a_loaded_guest_cannot_be_heard_does_not_count() {
    let mut driver = Driver::at(Loaded);
    driver.handle(Event::PathLost(PATH));
    driver.machine.was_deaf(driver.now);
    assert_eq!(driver.machine.timeout(), None, "nobody has decided");
    driver.handle(Event::Resolve(true));
    driver.now = driver.now + HEARD_WITHIN * 2;
    driver.machine.was_deaf(driver.now);
    assert!(!commits(&driver.handle(Event::Tick)));
    driver.now = driver.now + HEARD_WITHIN;
    assert!(commits(&driver.handle(Event::Tick)));
}

#[test]
fn a_decision_to_run_a_loaded_guest_is_not_put_off_when_it_is_repeated() {
    let mut driver = Driver::at(Loaded);
    driver.handle(Event::PathLost(PATH));
    driver.handle(Event::Resolve(true));
    driver.now = driver.now + HEARD_WITHIN / 2;
    driver.handle(Event::Resolve(true));
    driver.now = driver.now + HEARD_WITHIN / 2;
    assert!(commits(&driver.handle(Event::Tick)));
}
