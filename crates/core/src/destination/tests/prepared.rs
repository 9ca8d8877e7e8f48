//! From the last of the device state to the guest's first instruction: what the journal has before what is said, and
//! what becomes of a guest that cannot run.

use super::*;

/// A destination that has been notified of the stop, with RAM sealed.
fn sealed(was_running: bool) -> Driver {
    let mut driver = Driver::at(Receiving);
    driver.receive(Message::Stopped { was_running, disks: "[]".into() });
    driver.receive(Message::RamComplete { digest: None });
    driver.handle(Event::Sealed(None));
    driver
}

#[test]
fn a_guest_is_loaded_when_its_state_and_its_disks_are_in_whatever_order() {
    let notes = |actions: &[Action]| actions.contains(&Action::Journal(DestinationPhase::Loaded));
    let mut driver = sealed(true);
    assert!(!notes(&driver.load()), "its disks may be others");
    assert!(notes(&driver.handle(Event::DisksChecked)));
    let mut driver = sealed(true);
    assert!(!notes(&driver.handle(Event::DisksChecked)), "its state is missing");
    assert!(notes(&driver.load()));
}

#[test]
fn the_disks_are_compared_before_anything_is_loaded() {
    let mut driver = Driver::at(Receiving);
    let actions = driver.receive(Message::Stopped { was_running: true, disks: "[7]".into() });
    assert_eq!(actions.first(), Some(&Action::CheckDisks("[7]".into())));
    let differs = Fault::new(Code::GuestDiffers, Step::Blackout, Side::Destination, "another image");
    assert!(aborts(&driver.handle(Event::Failed(differs.clone()))));
    assert!(sends(&driver.handle(Event::Discarded), |message| *message == Message::Abort(differs.clone())));
}

#[test]
fn a_guest_without_the_message_of_its_stop_is_never_loaded() {
    let mut driver = Driver::at(Receiving);
    driver.receive(Message::RamComplete { digest: None });
    driver.handle(Event::Sealed(None));
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
    assert!(!sends(&before, |message| *message == Message::Loaded), "{before:?}");
    let after = driver.handle(Event::Journaled(DestinationPhase::Loaded));
    assert!(sends(&after, |message| *message == Message::Loaded), "{after:?}");
    // And never if it cannot be written.
    let mut driver = Driver::at(JournalingLoaded);
    let mut actions = driver.handle(Event::Failed(fault(Code::JournalFailed)));
    assert!(aborts(&actions), "{actions:?}");
    actions.extend(driver.handle(Event::Discarded));
    assert!(!sends(&actions, |message| *message == Message::Loaded), "{actions:?}");
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
        let mut later = driver.handle(Event::Sealed(None));
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
fn bytes_of_the_source_count_as_held_until_the_driver_takes_them_or_the_guest_is_given_up() {
    let piece = || Message::DeviceState { bytes: vec![7; 1000] };
    for gives_up in [false, true] {
        let mut driver = Driver::at(Receiving);
        assert_eq!(driver.machine.held_bytes(), 0);
        driver.receive(piece());
        driver.receive(piece());
        assert_eq!(driver.machine.held_bytes(), 2 * piece_weight(&[7; 1000]));
        assert!(piece_weight(&[7]) > 64, "a piece of one byte takes more than its byte");
        if gives_up {
            driver.handle(Event::Cancel);
        } else {
            driver.receive(Message::RamComplete { digest: None });
            driver.machine.handle(driver.now, Event::Sealed(None));
            assert_eq!(driver.machine.held_bytes(), 2 * piece_weight(&[7; 1000]), "no action was taken");
            driver.actions();
        }
        assert_eq!(driver.machine.held_bytes(), 0, "gives up: {gives_up}");
        let (sequence, message) = (driver.sequence + 2, Message::Aborted);
        driver.handle(Event::Received { path: PATH, sequence, message });
        assert!(driver.machine.held_bytes() > 0, "it came ahead of its turn");
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
        let mut actions = driver.handle(Event::PathLost(PATH));
        for _ in 0..3 * 24 {
            driver.now = driver.now + Duration::from_secs(3600);
            actions.extend(driver.handle(Event::Tick));
        }
        assert!(!aborts(&actions), "{state:?}: {actions:?}");
        actions.extend(driver.handle(Event::Journaled(DestinationPhase::Loaded)));
        assert!(driver.machine.is_held(), "{state:?}: {:?}", driver.machine.state);
        assert_eq!(driver.machine.outcome(), Outcome::Pending, "{state:?}");
        assert!(commits(&driver.handle(Event::CommitAgain { copy: false })), "{state:?}");
    }
}

#[test]
fn a_source_that_answers_again_decides_over_a_loaded_guest() {
    let words: [(Onward, bool); 4] = [
        (|d| d.receive(Message::Commit), true),
        (|d| d.handle(Event::CommitAgain { copy: false }), true),
        (|d| d.receive(Message::Abort(fault(Code::Cancelled))), false),
        (|d| d.handle(Event::RolledBackAtSource), false),
    ];
    for (n, (word, runs)) in words.into_iter().enumerate() {
        let mut driver = Driver::at(Loaded);
        driver.handle(Event::PathLost(PATH));
        driver.now = ms(3_600_000);
        driver.handle(Event::PathUp(PATH));
        let actions = word(&mut driver);
        assert_eq!((commits(&actions), aborts(&actions)), (runs, !runs), "{n}: {actions:?}");
    }
}

#[test]
fn a_repeated_commit_is_accepted_only_once_loaded() {
    for state in ALL {
        let mut driver = Driver::at(state);
        let (fault, outcome) = (driver.fault().cloned(), driver.machine.outcome());
        let actions = driver.handle(Event::CommitAgain { copy: false });
        assert_eq!(commits(&actions), state == Loaded, "{state:?}: {actions:?}");
        assert!(!actions.contains(&Action::Discard), "{state:?}: {actions:?}");
        assert_eq!((driver.fault().cloned(), driver.machine.outcome()), (fault, outcome), "{state:?}");
        assert!(!commits(&driver.handle(Event::CommitAgain { copy: false })), "{state:?}: twice");
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
        driver.handle(Event::DisksChecked);
        driver.load();
        driver.handle(Event::Journaled(DestinationPhase::Loaded));
        driver.receive(Message::Commit);
        let actions = driver.handle(Event::Journaled(DestinationPhase::Committed));
        assert_eq!(actions, [Action::Run { was_running }]);
    }
}

#[test]
fn committed_is_reported_only_once_the_guest_runs() {
    let mut driver = Driver::at(Loaded);
    driver.receive(Message::Commit);
    driver.handle(Event::Journaled(DestinationPhase::Committed));
    assert_eq!(driver.machine.outcome(), Outcome::Pending, "the hypervisor may refuse");
    let actions = driver.handle(runs());
    assert!(sends(&actions, |message| matches!(message, Message::TakenOver { .. })), "{actions:?}");
    assert!(actions.contains(&Action::Journal(DestinationPhase::Running)), "{actions:?}");
    assert_eq!(driver.machine.outcome(), Outcome::Committed);
    // A record that is missing changes nothing of that: the driver writes it until the disk takes it.
    driver.handle(Event::Failed(fault(Code::JournalFailed)));
    assert_eq!(driver.machine.outcome(), Outcome::Committed);
}

#[test]
fn a_guest_that_cannot_run_is_returned_after_it_is_gone() {
    for state in ALL {
        let mut driver = Driver::at(state);
        if state == Resuming {
            driver.handle(Event::CommitAgain { copy: true });
        }
        let actions = driver.handle(Event::CannotRun(fault(Code::HypervisorFailed)));
        if state != Resuming {
            let ends = actions.contains(&Action::Journal(DestinationPhase::Returned))
                || actions.contains(&Action::Discard);
            assert!(!ends, "{state:?}: {actions:?}");
            continue;
        }
        assert_eq!(actions, [Action::Journal(DestinationPhase::Returned), Action::Discard]);
        assert_eq!(driver.machine.outcome(), Outcome::Pending, "not before it has ended");
        assert!(!driver.machine.is_committed());
        let actions = driver.handle(Event::Discarded);
        let refused = Message::Abort(fault(Code::HypervisorFailed));
        assert!(sends(&actions, |message| *message == refused), "{actions:?}");
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
        let mut actions = driver.handle(Event::GuestEnded(fault(Code::GuestGone)));
        if !matches!(state, Resuming | Running) {
            assert_eq!(driver.machine.outcome(), before, "{state:?}");
            continue;
        }
        // A later start does not tell its end again.
        let written = (state == Running).then_some(Action::Journal(DestinationPhase::Finished));
        let end = Action::End(Some(fault(Code::GuestGone)));
        assert_eq!(actions, written.into_iter().chain([end]).collect::<Vec<_>>());
        for event in [
            Event::RolledBackAtSource,
            Event::CommitAgain { copy: false },
            Event::Resolve(true),
            Event::Cancel,
            Event::Tick,
        ] {
            actions.extend(driver.handle(event));
        }
        let sends_abort = sends(&actions, |message| matches!(message, Message::Abort(_)));
        assert!(!sends_abort && !aborts(&actions), "the source may resume on it: {actions:?}");
        assert_eq!(driver.machine.outcome(), Outcome::Gone);
    }
}

/// The answer to the command was lost, and the hypervisor refuses since: nobody could decide about it here.
#[test]
fn a_guest_that_may_have_run_and_cannot_be_run_is_left_to_recovery() {
    let lost = || Event::MayHaveRun(fault(Code::HypervisorFailed));
    for state in ALL {
        let mut driver = Driver::at(state);
        let before = driver.machine.outcome();
        let mut actions = driver.handle(lost());
        actions.retain(|action| !matches!(action, Action::Transmit(..)));
        if state != Resuming {
            assert!(actions.is_empty(), "{state:?}: {actions:?}");
            assert_eq!(driver.machine.outcome(), before, "{state:?}");
            continue;
        }
        let left = Action::LeaveToRecovery { fault: fault(Code::HypervisorFailed), rolled_back: false };
        assert_eq!(actions, [left]);
        for event in [
            Event::CommitAgain { copy: true },
            Event::CannotRun(fault(Code::HypervisorFailed)),
            lost(),
            Event::RolledBackAtSource,
            Event::Resolve(false),
            Event::Cancel,
            Event::Tick,
        ] {
            actions.extend(driver.handle(event));
        }
        actions.retain(|action| !matches!(action, Action::Transmit(..)));
        assert_eq!(actions.len(), 1, "recovery has it: {actions:?}");
        assert!(driver.machine.is_ended() && !driver.machine.is_held());
        assert_eq!(driver.machine.outcome(), Outcome::Pending, "the source keeps its copy");
    }
}

#[test]
fn a_commit_that_cannot_be_journalled_returns_the_guest_only_to_a_source_with_a_copy() {
    let unwritten = || Event::Failed(fault(Code::JournalFailed));
    let mut driver = Driver::at(Journaling);
    driver.handle(Event::CommitAgain { copy: true });
    assert!(aborts(&driver.handle(unwritten())), "the source has its copy and resumes at once");

    let words: [Onward; 4] = [
        |d| d.receive(Message::Commit),
        |d| d.handle(Event::CommitAgain { copy: false }),
        |d| {
            d.handle(Event::PathLost(PATH));
            d.let_run()
        },
        |d| {
            let commits = d.receive(Message::Commit);
            d.handle(Event::PathLost(PATH));
            commits
        },
    ];
    for (n, word) in words.into_iter().enumerate() {
        let mut driver = Driver::at(Loaded);
        assert!(commits(&word(&mut driver)), "{n}");
        for _ in 0..200 {
            let mut actions = driver.handle(unwritten());
            actions.extend(driver.handle(Event::Tick));
            assert!(
                !aborts(&actions) && !commits(&actions),
                "{n}: this copy may be the only one: {actions:?}"
            );
            driver.now = driver.now + crate::recovery::RETRY_AFTER;
            assert!(
                commits(&driver.handle(Event::PathAlive(PATH))),
                "{n}: it is written until it is on disk"
            );
        }
        let runs = driver.handle(Event::Journaled(DestinationPhase::Committed));
        assert_eq!(runs, [Action::Run { was_running: true }], "{n}");
    }
}

#[test]
fn a_commit_that_is_not_on_disk_is_revoked_by_its_sender() {
    let mut driver = Driver::at(Loaded);
    driver.handle(Event::CommitAgain { copy: false });
    driver.handle(Event::Failed(fault(Code::JournalFailed)));
    let actions = driver.handle(Event::RolledBackAtSource);
    assert!(aborts(&actions) && !commits(&actions), "{actions:?}");
    driver.now = ms(3_600_000);
    assert!(!commits(&driver.handle(Event::Tick)));
}

/// The source's operator has ended its copy before the guest was confirmed here.
#[test]
fn the_only_copy_is_not_given_up_when_the_source_says_that_it_has_finished() {
    for state in [Loaded, Journaling, Resuming] {
        let mut driver = Driver::at(state);
        let actions = driver.receive(Message::Finished);
        assert_eq!(commits(&actions), state == Loaded, "{state:?}: {actions:?}");
        assert!(!aborts(&actions) && !actions.contains(&Action::Discard), "{state:?}: {actions:?}");
        assert_eq!(driver.machine.outcome(), Outcome::Pending, "{state:?}");
        if state != Resuming {
            driver.handle(Event::Failed(fault(Code::JournalFailed)));
            driver.now = driver.now + crate::recovery::RETRY_AFTER;
            assert!(commits(&driver.handle(Event::Tick)), "{state:?}: it is tried until the disk takes it");
        }
    }
}

#[test]
fn a_complete_guest_is_given_up_by_no_cancel_as_the_sources_copy_may_be_lost() {
    for answered in [true, false] {
        for state in [JournalingLoaded, Loaded, Journaling] {
            let mut driver = Driver::at(state);
            assert!(driver.machine.is_complete());
            if !answered {
                driver.handle(Event::PathLost(PATH));
            }
            let actions = driver.handle(Event::Cancel);
            assert!(!aborts(&actions), "{state:?}: {actions:?}");
            assert!(driver.fault().is_none(), "{state:?}");
        }
    }
    let mut driver = Driver::at(Loaded);
    driver.handle(Event::PathLost(PATH));
    assert!(
        aborts(&driver.handle(Event::Resolve(false))),
        "an operator asserts this of a guest that was looked for"
    );
}

/// Its source's operator has let it run there. Run here later, it would have older memory than its disks.
#[test]
fn a_guest_that_could_not_run_is_not_run_any_more_when_its_source_has_rolled_back() {
    let words: [Onward; 2] =
        [|d| d.handle(Event::RolledBackAtSource), |d| d.receive(Message::Abort(fault(Code::Cancelled)))];
    for word in words {
        let mut driver = Driver::at(Resuming);
        driver.handle(Event::CommitAgain { copy: false });
        let mut done = || {
            let actions = word(&mut driver).into_iter();
            actions.filter(|one| !matches!(one, Action::Transmit(..))).collect::<Vec<Action>>()
        };
        assert_eq!(done(), [], "it is just being run");
        let actions = driver.handle(Event::CannotRun(fault(Code::HypervisorFailed)));
        assert_eq!(actions, [Action::Journal(DestinationPhase::Returned), Action::Discard]);

        let mut driver = Driver::at(Resuming);
        driver.handle(Event::CannotRun(fault(Code::HypervisorFailed)));
        let actions = word(&mut driver);
        assert!(actions.contains(&Action::Journal(DestinationPhase::Returned)), "{actions:?}");
    }
}

/// An earlier question may arrive late.
#[test]
fn a_guest_that_cannot_run_does_not_return_to_a_copy_that_was_given_up() {
    let mut driver = Driver::at(Resuming);
    driver.handle(Event::CommitAgain { copy: false });
    driver.handle(Event::CommitAgain { copy: true });
    assert_eq!(driver.handle(Event::CannotRun(fault(Code::HypervisorFailed))), []);
    assert_eq!(driver.machine.outcome(), Outcome::Pending);
}

#[test]
fn a_guest_that_cannot_run_is_kept_until_a_source_can_take_it() {
    let refused = || Event::CannotRun(fault(Code::HypervisorFailed));
    // A connection says that the agent over there runs, and nothing of its hypervisor.
    let alone: [Onward; 4] = [
        |d| d.handle(Event::CommitAgain { copy: false }),
        |d| d.handle(Event::PathLost(PATH)),
        |d| d.handle(Event::PathUp(PATH + 1)),
        |d| d.handle(Event::PathAlive(PATH)),
    ];
    for (n, alone) in alone.into_iter().enumerate() {
        let mut driver = Driver::at(Resuming);
        alone(&mut driver);
        for _ in 0..3600 {
            let actions = driver.handle(refused());
            assert_eq!(actions, [], "{n}: this copy may be the only one");
            assert_eq!(driver.machine.outcome(), Outcome::Pending);
            driver.now = driver.now + crate::recovery::RETRY_AFTER;
            assert!(driver.handle(Event::Tick).contains(&Action::Run { was_running: true }), "{n}");
        }
        driver.handle(Event::CommitAgain { copy: true });
        let actions = driver.handle(refused());
        assert!(actions.contains(&Action::Journal(DestinationPhase::Returned)), "{n}: {actions:?}");
    }
}

#[test]
fn a_source_that_is_about_to_resume_learns_what_the_destination_may_still_run() {
    for state in ALL {
        let driver = Driver::at(state);
        let (plain, resuming) = (driver.machine.outcome(), driver.machine.outcome_for_resuming());
        let may_run = driver.machine.is_committed() || plain != Outcome::Pending;
        assert!(
            resuming == plain || resuming == Outcome::NotCommitted && !may_run,
            "{state:?}: {resuming:?}"
        );
    }
    assert_eq!(Driver::at(Loaded).machine.outcome_for_resuming(), Outcome::NotCommitted);
}

/// Nothing but the source's report waits for it.
#[test]
fn a_guest_that_was_let_run_is_looked_at_once_and_the_source_learns_what_was_seen() {
    let mut driver = Driver::at(Running);
    driver.receive(Message::Finished);
    driver.now = driver.now + Duration::from_millis(299);
    assert!(!driver.handle(Event::Tick).contains(&Action::Look), "it has run for a moment only");
    driver.now = driver.now + Duration::from_millis(1);
    assert!(driver.handle(Event::Tick).contains(&Action::Look));
    assert!(!driver.handle(Event::Tick).contains(&Action::Look), "once");
    let seen = LastLook::Stopped { run_state: "io-error".into() };
    let actions = driver.handle(Event::Looked(seen.clone()));
    assert!(sends(&actions, |message| *message == Message::LastLook(seen.clone())), "{actions:?}");
    assert!(!driver.machine.is_ended(), "the source may not have it");
    let actions = driver.handle(Event::ControlAcknowledged { path: PATH, through: u64::MAX });
    assert!(actions.contains(&Action::Journal(DestinationPhase::Finished)), "{actions:?}");
    assert!(driver.machine.is_ended());
}

#[test]
fn a_look_that_takes_long_does_not_hold_the_session() {
    let mut driver = Driver::at(Running);
    driver.now = driver.now + Duration::from_secs(1);
    assert!(driver.handle(Event::Tick).contains(&Action::Look));
    driver.receive(Message::Finished);
    driver.now = driver.now + Duration::from_secs(2);
    driver.handle(Event::Tick);
    assert!(driver.machine.is_ended());
    // Nor is anybody there to be told.
    let mut driver = Driver::at(Running);
    driver.receive(Message::Finished);
    driver.handle(Event::PathLost(PATH));
    assert!(driver.machine.is_ended());
}

#[test]
fn a_guest_that_is_not_to_run_is_not_looked_at() {
    let mut driver = sealed(false);
    driver.handle(Event::DisksChecked);
    driver.load();
    driver.handle(Event::Journaled(DestinationPhase::Loaded));
    driver.receive(Message::Commit);
    driver.handle(Event::Journaled(DestinationPhase::Committed));
    let actions = driver.handle(runs());
    let nothing = Message::LastLook(LastLook::NothingWrong);
    assert!(sends(&actions, |message| *message == nothing), "{actions:?}");
    driver.now = driver.now + Duration::from_secs(1);
    assert!(!driver.handle(Event::Tick).contains(&Action::Look));
}
