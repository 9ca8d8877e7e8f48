//! From the last of the device state to the guest's first instruction: what the journal has before what is said, who
//! decides over a guest that is complete here, and what becomes of one that cannot run.

use super::*;

/// A destination that has been notified of the stop, with RAM sealed.
fn sealed(was_running: bool) -> Driver {
    let mut driver = Driver::at(Receiving);
    driver.receive(Message::Stopped { was_running, disks: "[]".into() });
    driver.receive(Message::RamComplete { digest: None });
    driver.tell(Event::Sealed(None));
    driver
}

fn commits(actions: &[Action]) -> bool {
    actions.contains(&Action::Journal(DestinationPhase::Committed))
}

fn aborts(actions: &[Action]) -> bool {
    actions.contains(&Action::Journal(DestinationPhase::Aborted)) && actions.contains(&Action::Discard)
}

#[test]
fn a_guest_is_loaded_when_its_state_and_its_disks_are_in_whatever_order() {
    let notes = |actions: &[Action]| actions.contains(&Action::Journal(DestinationPhase::Loaded));
    let mut driver = sealed(true);
    assert!(!notes(&driver.load()), "its disks may be others");
    assert!(notes(&driver.tell(Event::DisksChecked)));
    let mut driver = sealed(true);
    assert!(!notes(&driver.tell(Event::DisksChecked)), "its state is missing");
    assert!(notes(&driver.load()));
}

#[test]
fn the_disks_are_compared_before_anything_is_loaded() {
    let mut driver = Driver::at(Receiving);
    let actions = driver.receive(Message::Stopped { was_running: true, disks: "[7]".into() });
    assert_eq!(actions.first(), Some(&Action::CheckDisks("[7]".into())));
    let differs = Fault::new(Code::GuestDiffers, Step::Blackout, Side::Destination, "another image");
    assert!(aborts(&driver.tell(Event::Failed(differs.clone()))));
    assert!(says(&driver.tell(Event::Discarded), |message| *message == Message::Abort(differs.clone())));
}

#[test]
fn a_guest_without_the_message_of_its_stop_is_never_loaded() {
    let mut driver = Driver::at(Receiving);
    driver.receive(Message::RamComplete { digest: None });
    driver.tell(Event::Sealed(None));
    assert!(!driver.load().contains(&Action::Journal(DestinationPhase::Loaded)));
    driver.receive(stopped());
    assert_eq!(driver.fault().map(|fault| fault.code), Some(Code::ProtocolViolation), "it comes too late");
}

#[test]
fn a_second_message_of_its_stop_is_refused() {
    let mut driver = Driver::at(Receiving);
    driver.receive(stopped());
    driver.receive(stopped());
    assert_eq!(driver.fault().map(|fault| fault.code), Some(Code::ProtocolViolation));
}

#[test]
fn loaded_is_sent_only_when_the_journal_has_it() {
    let mut driver = Driver::at(Loading);
    let before = driver.load();
    assert!(before.contains(&Action::Journal(DestinationPhase::Loaded)), "{before:?}");
    assert!(!says(&before, |message| *message == Message::Loaded), "{before:?}");
    let after = driver.tell(Event::Journaled(DestinationPhase::Loaded));
    assert!(says(&after, |message| *message == Message::Loaded), "{after:?}");
    // And never if it cannot be written.
    let mut driver = Driver::at(JournalingLoaded);
    let mut actions = driver.tell(Event::Failed(fault(Code::JournalFailed)));
    assert!(aborts(&actions), "{actions:?}");
    actions.extend(driver.tell(Event::Discarded));
    assert!(!says(&actions, |message| *message == Message::Loaded), "{actions:?}");
}

#[test]
fn device_state_and_its_end_may_come_before_ram_is_sealed_and_are_loaded_in_order_after_it() {
    for ends_early in [false, true] {
        let mut driver = Driver::at(Receiving);
        driver.receive(stopped());
        let mut early = driver.receive(Message::DeviceState { bytes: vec![7] });
        early.extend(driver.receive(Message::DeviceState { bytes: vec![8, 9] }));
        if ends_early {
            early.extend(driver.receive(Message::DeviceStateEnd { total: 3 }));
        }
        early.extend(driver.receive(Message::RamComplete { digest: None }));
        let loads =
            |action: &Action| matches!(action, Action::LoadDeviceState(_) | Action::FinishDeviceState);
        assert!(!early.iter().any(loads), "{early:?}");
        let mut later = driver.tell(Event::Sealed(None));
        later.extend(if ends_early { vec![] } else { driver.receive(Message::DeviceStateEnd { total: 3 }) });
        let later: Vec<Action> = later.into_iter().filter(loads).collect();
        let wanted = [
            Action::LoadDeviceState(vec![7]),
            Action::LoadDeviceState(vec![8, 9]),
            Action::FinishDeviceState,
        ];
        assert_eq!(later, wanted);
    }
}

#[test]
fn nothing_more_of_the_device_state_is_taken_after_its_end() {
    for state in [Receiving, Sealing, Loading] {
        for message in [Message::DeviceState { bytes: vec![1] }, Message::DeviceStateEnd { total: 0 }] {
            let mut driver = Driver::at(state);
            driver.receive(Message::DeviceStateEnd { total: 0 });
            driver.receive(message.clone());
            let code = driver.fault().map(|fault| fault.code);
            assert_eq!(code, Some(Code::ProtocolViolation), "{message:?} in {state:?}");
        }
    }
}

#[test]
fn device_state_shorter_than_announced_is_refused() {
    let mut driver = Driver::at(Loading);
    driver.receive(Message::DeviceState { bytes: vec![1] });
    driver.receive(Message::DeviceStateEnd { total: 2 });
    assert_eq!(driver.fault().map(|fault| fault.code), Some(Code::ProtocolViolation));
}

#[test]
fn a_loaded_guest_whose_source_does_not_answer_is_kept_for_days() {
    for state in [JournalingLoaded, Loaded] {
        let mut driver = Driver::at(state);
        let mut actions = driver.tell(Event::PathLost(PATH));
        for _ in 0..3 * 24 {
            driver.now = driver.now + Duration::from_secs(3600);
            actions.extend(driver.tell(Event::Tick));
        }
        assert!(!aborts(&actions), "{state:?}: {actions:?}");
        actions.extend(driver.tell(Event::Journaled(DestinationPhase::Loaded)));
        assert!(driver.machine.is_held(), "{state:?}: {:?}", driver.machine.state);
        assert_eq!(driver.machine.outcome(), Outcome::Pending, "{state:?}");
        assert!(commits(&driver.tell(Event::CommitAgain { copy: false })), "{state:?}");
    }
}

#[test]
fn a_source_that_answers_again_decides_over_a_loaded_guest() {
    let words: [(Onward, bool); 4] = [
        (|d| d.receive(Message::Commit), true),
        (|d| d.tell(Event::CommitAgain { copy: false }), true),
        (|d| d.receive(Message::Abort(fault(Code::Cancelled))), false),
        (|d| d.tell(Event::RolledBackAtSource), false),
    ];
    for (n, (word, runs)) in words.into_iter().enumerate() {
        let mut driver = Driver::at(Loaded);
        driver.tell(Event::PathLost(PATH));
        driver.now = ms(3_600_000);
        driver.tell(Event::PathUp(PATH));
        let actions = word(&mut driver);
        assert_eq!((commits(&actions), aborts(&actions)), (runs, !runs), "{n}: {actions:?}");
    }
}

#[test]
fn the_operator_decides_over_a_loaded_guest_only_if_its_source_does_not_answer() {
    for run in [true, false] {
        for state in ALL {
            for answered in [true, false] {
                let mut driver = Driver::at(state);
                let mut actions = if answered { vec![] } else { driver.tell(Event::PathLost(PATH)) };
                assert_eq!(driver.machine.is_held(), state == Loaded && !answered, "{state:?}");
                actions.extend(driver.tell(Event::Resolve(run)));
                let decides = state == Loaded && !answered;
                assert_eq!(commits(&actions), decides && run, "{state:?}, {answered}: {actions:?}");
                assert_eq!(aborts(&actions), decides && !run, "{state:?}, {answered}: {actions:?}");
            }
        }
    }
}

#[test]
fn a_repeated_commit_is_accepted_only_once_loaded() {
    for state in ALL {
        let mut driver = Driver::at(state);
        let (fault, outcome) = (driver.fault().cloned(), driver.machine.outcome());
        let actions = driver.tell(Event::CommitAgain { copy: false });
        assert_eq!(commits(&actions), state == Loaded, "{state:?}: {actions:?}");
        assert!(!actions.contains(&Action::Discard), "{state:?}: {actions:?}");
        assert_eq!((driver.fault().cloned(), driver.machine.outcome()), (fault, outcome), "{state:?}");
        assert!(!commits(&driver.tell(Event::CommitAgain { copy: false })), "{state:?}: twice");
    }
}

#[test]
fn a_commit_sent_on_its_own_connection_may_come_again_in_the_session() {
    for state in [Journaling, Resuming, Running] {
        let mut driver = Driver::at(state);
        let actions = driver.receive(Message::Commit);
        assert!(!commits(&actions) && !aborts(&actions), "{state:?}: {actions:?}");
    }
}

#[test]
fn a_guest_that_did_not_run_at_the_source_is_not_run_here() {
    for was_running in [true, false] {
        let mut driver = sealed(was_running);
        assert_eq!(driver.machine.was_running(), Some(was_running));
        driver.tell(Event::DisksChecked);
        driver.load();
        driver.tell(Event::Journaled(DestinationPhase::Loaded));
        driver.receive(Message::Commit);
        let actions = driver.tell(Event::Journaled(DestinationPhase::Committed));
        assert_eq!(actions, [Action::Run { was_running }]);
    }
}

#[test]
fn committed_is_reported_only_once_the_guest_runs() {
    let mut driver = Driver::at(Loaded);
    driver.receive(Message::Commit);
    driver.tell(Event::Journaled(DestinationPhase::Committed));
    assert_eq!(driver.machine.outcome(), Outcome::Pending, "the hypervisor may refuse");
    let actions = driver.tell(runs());
    assert!(says(&actions, |message| matches!(message, Message::TakenOver { .. })), "{actions:?}");
    assert!(actions.contains(&Action::Journal(DestinationPhase::Running)), "{actions:?}");
    assert_eq!(driver.machine.outcome(), Outcome::Committed);
    // A record that is missing changes nothing of that: the driver writes it until the disk takes it.
    driver.tell(Event::Failed(fault(Code::JournalFailed)));
    assert_eq!(driver.machine.outcome(), Outcome::Committed);
}

#[test]
fn a_guest_that_cannot_run_is_returned_after_it_is_gone() {
    for state in ALL {
        let mut driver = Driver::at(state);
        if state == Resuming {
            driver.tell(Event::CommitAgain { copy: true });
        }
        let actions = driver.tell(Event::CannotRun(fault(Code::HypervisorFailed)));
        if state != Resuming {
            let ends = actions.contains(&Action::Journal(DestinationPhase::Returned))
                || actions.contains(&Action::Discard);
            assert!(!ends, "{state:?}: {actions:?}");
            continue;
        }
        assert_eq!(actions, [Action::Journal(DestinationPhase::Returned), Action::Discard]);
        assert_eq!(driver.machine.outcome(), Outcome::Pending, "not before it is gone");
        assert!(!driver.machine.is_committed());
        let told = driver.tell(Event::Discarded);
        let refused = Message::Abort(fault(Code::HypervisorFailed));
        assert!(says(&told, |message| *message == refused), "{told:?}");
        assert_eq!(driver.machine.outcome(), Outcome::Returned);
        driver.receive(Message::Aborted);
        assert!(driver.machine.is_ended());
        assert_eq!(driver.machine.outcome(), Outcome::Returned);
    }
}

#[test]
fn a_guest_whose_hypervisor_ended_after_commit_is_gone_and_not_returned() {
    for state in ALL {
        let mut driver = Driver::at(state);
        let before = driver.machine.outcome();
        let mut actions = driver.tell(Event::GuestEnded(fault(Code::GuestGone)));
        if !matches!(state, Resuming | Running) {
            assert_eq!(driver.machine.outcome(), before, "{state:?}");
            continue;
        }
        assert_eq!(actions, [Action::End(Some(fault(Code::GuestGone)))]);
        for event in [
            Event::RolledBackAtSource,
            Event::CommitAgain { copy: false },
            Event::Resolve(true),
            Event::Cancel,
            Event::Tick,
        ] {
            actions.extend(driver.tell(event));
        }
        let says_abort = says(&actions, |message| matches!(message, Message::Abort(_)));
        assert!(!says_abort && !aborts(&actions), "the source may resume on it: {actions:?}");
        assert_eq!(driver.machine.outcome(), Outcome::Gone);
    }
}

#[test]
fn a_commit_that_cannot_be_journalled_returns_the_guest_only_to_a_source_with_a_copy() {
    let unwritten = || Event::Failed(fault(Code::JournalFailed));
    let mut driver = Driver::at(Journaling);
    driver.tell(Event::CommitAgain { copy: true });
    assert!(aborts(&driver.tell(unwritten())), "the source has its copy and resumes at once");

    let words: [Onward; 4] = [
        |d| d.receive(Message::Commit),
        |d| d.tell(Event::CommitAgain { copy: false }),
        |d| {
            d.tell(Event::PathLost(PATH));
            d.tell(Event::Resolve(true))
        },
        |d| {
            let commits = d.receive(Message::Commit);
            d.tell(Event::PathLost(PATH));
            commits
        },
    ];
    for (n, word) in words.into_iter().enumerate() {
        let mut driver = Driver::at(Loaded);
        assert!(commits(&word(&mut driver)), "{n}");
        for _ in 0..200 {
            let mut actions = driver.tell(Event::RolledBackAtSource);
            actions.extend(driver.tell(unwritten()));
            actions.extend(driver.tell(Event::Tick));
            assert!(
                !aborts(&actions) && !commits(&actions),
                "{n}: this copy may be the only one: {actions:?}"
            );
            driver.now = driver.now + crate::recovery::RETRY_AFTER;
            assert!(commits(&driver.tell(Event::PathAlive(PATH))), "{n}: it is written until it sticks");
        }
        let runs = driver.tell(Event::Journaled(DestinationPhase::Committed));
        assert_eq!(runs, [Action::Run { was_running: true }], "{n}");
    }
}

#[test]
fn a_commit_that_is_not_on_disk_is_revoked_by_its_sender() {
    let mut driver = Driver::at(Loaded);
    driver.tell(Event::CommitAgain { copy: false });
    driver.tell(Event::Failed(fault(Code::JournalFailed)));
    let actions = driver.tell(Event::RolledBackAtSource);
    assert!(aborts(&actions) && !commits(&actions), "{actions:?}");
    driver.now = ms(3_600_000);
    assert!(!commits(&driver.tell(Event::Tick)));
}

#[test]
fn a_complete_guest_is_given_up_by_no_cancel_as_the_sources_copy_may_be_lost() {
    for answered in [true, false] {
        for state in [JournalingLoaded, Loaded, Journaling] {
            let mut driver = Driver::at(state);
            assert!(driver.machine.is_complete());
            if !answered {
                driver.tell(Event::PathLost(PATH));
            }
            let actions = driver.tell(Event::Cancel);
            assert!(!aborts(&actions), "{state:?}: {actions:?}");
            assert!(driver.fault().is_none(), "{state:?}");
        }
    }
    let mut driver = Driver::at(Loaded);
    driver.tell(Event::PathLost(PATH));
    assert!(
        aborts(&driver.tell(Event::Resolve(false))),
        "this word an operator says of a guest that he has looked for"
    );
}

#[test]
fn a_guest_that_cannot_run_is_kept_until_a_source_can_take_it() {
    let refused = || Event::CannotRun(fault(Code::HypervisorFailed));
    // A connection says that the agent over there runs, and nothing of its hypervisor.
    let alone: [Onward; 4] = [
        |d| d.tell(Event::CommitAgain { copy: false }),
        |d| d.tell(Event::PathLost(PATH)),
        |d| d.tell(Event::PathUp(PATH + 1)),
        |d| d.tell(Event::PathAlive(PATH)),
    ];
    for (n, alone) in alone.into_iter().enumerate() {
        let mut driver = Driver::at(Resuming);
        alone(&mut driver);
        for _ in 0..3600 {
            let actions = driver.tell(refused());
            assert_eq!(actions, [], "{n}: this copy may be the only one");
            assert_eq!(driver.machine.outcome(), Outcome::Pending);
            driver.now = driver.now + crate::recovery::RETRY_AFTER;
            assert!(driver.tell(Event::Tick).contains(&Action::Run { was_running: true }), "{n}");
        }
        driver.tell(Event::CommitAgain { copy: true });
        let actions = driver.tell(refused());
        assert!(actions.contains(&Action::Journal(DestinationPhase::Returned)), "{n}: {actions:?}");
    }
}
