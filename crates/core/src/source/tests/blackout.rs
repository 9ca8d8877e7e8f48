//! The order of the blackout, the run state and the copied disks, and roll-backs that do not come to their end.

use super::*;

#[test]
fn the_stop_is_sent_before_anything_that_follows_from_it() {
    for was_running in [true, false] {
        let mut driver = Driver::at(Switching);
        let actions = driver.handle(Event::PreSwitchover { was_running, disks: "[7]".into() });
        let wanted = Message::Stopped { was_running, disks: "[7]".into() };
        assert!(sends(&actions, |message| *message == wanted), "{actions:?}");
        assert!(actions.contains(&Action::WriteDeviceState), "{actions:?}");
        assert!(!actions.iter().any(|action| matches!(action, Action::Scan { .. })), "{actions:?}");
    }
}

#[test]
fn what_is_found_behind_the_device_state_is_copied_before_ram_is_sealed() {
    for verify in [false, true] {
        let mut driver = Driver::at(WritingDeviceState);
        driver.machine.config.verify = verify;
        driver.handle(Event::DeviceState(vec![1, 2]));
        let actions = driver.handle(Event::DeviceStateDone);
        assert!(sends(&actions, |message| *message == Message::DeviceStateEnd { total: 2 }), "{actions:?}");
        assert!(actions.contains(&Action::Scan { last: true, also: vec![] }), "{actions:?}");
        let actions = driver.handle(scanned(page(7)));
        let seals = |actions: &[Action]| {
            let digests = actions.contains(&Action::Digest);
            let seals = sends(actions, |message| matches!(message, Message::RamComplete { .. }));
            assert!(!(digests && seals), "{actions:?}");
            if verify { digests } else { seals }
        };
        assert!(!seals(&actions), "{actions:?}");
        let Next::Work(work) = driver.machine.next_work(driver.now, CHANNEL) else { panic!("not copied") };
        assert_eq!(work.runs.iter().map(|run| run.offset / PAGE).collect::<Vec<_>>(), [7]);
        driver.machine.acknowledged(driver.now, CHANNEL, work.sequence, &[work.sequence]);
        assert!(!seals(&driver.actions()), "it was refused");
        let actions = driver.carry();
        assert!(seals(&actions), "{actions:?}");
        assert!(!actions.contains(&Action::WriteDeviceState), "it is written already: {actions:?}");
    }
}

#[test]
fn device_state_that_ends_out_of_its_turn_ends_the_migration() {
    for state in [Switching, LastScan, LastCopy, Digesting, Sealing] {
        let mut driver = Driver::at(state);
        driver.handle(Event::DeviceStateDone);
        assert_eq!(driver.fault().map(|fault| fault.code), Some(Code::Internal), "{state:?}");
    }
}

#[test]
fn a_guest_that_did_not_run_arrives_paused() {
    for (was_running, arrived) in
        [(true, GuestState::RunsAtDestination), (false, GuestState::PausedAtDestination)]
    {
        let mut driver = Driver::at(Switching);
        driver.handle(pre_switchover(was_running));
        driver.handle(Event::DeviceStateDone);
        driver.handle(scanned(vec![]));
        driver.handle(Event::Digested(1));
        driver.receive(Message::RamSealed);
        driver.receive(Message::Loaded);
        driver.handle(Event::Journaled(SourcePhase::CommitSent));
        driver.receive(Message::TakenOver { resume_us: 1, cpu_us: 0 });
        driver.receive(Message::LastLook(LastLook::NothingWrong));
        driver.handle(Event::CleanedUp);
        let actions = driver.handle(Event::ControlAcknowledged { path: PATH, through: u64::MAX });
        let ending = Ending { fault: None, guest: arrived, unfinished: false };
        assert!(actions.contains(&Action::End(ending)), "{actions:?}");
    }
}

#[test]
fn a_roll_back_that_failed_is_not_written_and_left_to_recovery() {
    for state in BEFORE_COMMIT.into_iter().chain([Committing]) {
        let mut driver = Driver::at(state);
        let mut actions = if state == Committing {
            driver.handle(Event::Answered(Outcome::Returned))
        } else {
            driver.handle(Event::Failed(fault(Code::HypervisorFailed)))
        };
        actions.extend(driver.receive(Message::Aborted));
        let guest = GuestState::PausedAtSource;
        actions.extend(driver.handle(Event::RolledBack { guest, complete: false }));
        assert!(!actions.contains(&Action::Journal(SourcePhase::RolledBack)), "{state:?}: {actions:?}");
        let ends = actions.iter().any(
            |action| matches!(action, Action::End(ending) if ending.unfinished && ending.guest == guest),
        );
        assert!(ends, "{state:?}: {actions:?}");
    }
}

#[test]
fn a_roll_back_is_written_before_it_ends() {
    for state in BEFORE_COMMIT {
        let mut driver = Driver::at(state);
        driver.handle(Event::Failed(fault(Code::HypervisorFailed)));
        let mut actions = driver.receive(Message::Aborted);
        actions.extend(driver.handle(rolled_back(true)));
        let written = actions.iter().position(|one| *one == Action::Journal(SourcePhase::RolledBack));
        let ended = actions.iter().position(|one| matches!(one, Action::End(_)));
        assert!(written.is_some() && written < ended, "{state:?}: {actions:?}");
    }
}

#[test]
fn a_clean_up_that_never_ends_is_left_to_recovery_and_not_written() {
    let mut driver = Driver::at(CleaningUp);
    driver.now = driver.now + driver.machine.config.step_timeout;
    let actions = driver.handle(Event::PathAlive(PATH));
    assert!(!actions.contains(&Action::Journal(SourcePhase::Finished)), "{actions:?}");
    let ends = actions.iter().any(|action| matches!(action, Action::End(ending) if ending.unfinished));
    assert!(ends, "{actions:?}");
}

#[test]
fn a_guest_that_is_gone_or_unknown_over_there_is_left_paused_for_the_operator() {
    for outcome in [Outcome::Gone, Outcome::Unknown] {
        let mut driver = Driver::at(Committing);
        let actions = driver.handle(Event::Answered(outcome));
        assert!(!actions.contains(&Action::RollBack) && !actions.contains(&Action::CleanUp), "{actions:?}");
        let left = actions.iter().any(|action| {
            matches!(action, Action::End(ending)
                if ending.unfinished && ending.guest == GuestState::InDoubt && ending.fault.is_some())
        });
        assert!(left, "{outcome:?}: {actions:?}");
    }
}

#[test]
fn what_the_operator_resumes_here_after_commit_sends_a_roll_back_notice() {
    let mut driver = Driver::at(Committing);
    driver.handle(Event::PathLost(PATH));
    let decided = Action::Journal(SourcePhase::ResumingHere);
    // The destination is asked once more: it may answer.
    assert_eq!(driver.handle(Event::Resolve(true)), [Action::Query { gives_up: false }]);
    assert!(driver.handle(Event::Unanswered).contains(&decided));
    assert_eq!(driver.handle(Event::Resolve(false)), [], "what is decided is not decided again");
    // The disk does not take it: nothing is done. Its operator may have let the guest run there meanwhile.
    driver.handle(Event::Failed(fault(Code::JournalFailed)));
    driver.now = driver.now + Duration::from_secs(1);
    let later = driver.handle(Event::Tick);
    assert!(later.contains(&Action::Query { gives_up: false }) && !later.contains(&decided), "{later:?}");
    assert!(driver.handle(Event::Unanswered).contains(&decided));
    assert!(driver.handle(Event::Journaled(SourcePhase::ResumingHere)).contains(&Action::RollBack));
    let actions = driver.handle(rolled_back(true));
    assert_eq!(withdraws(&actions), Some(true), "a guest may be held over there: {actions:?}");
}

#[test]
fn a_hypervisor_that_ends_when_nothing_of_it_is_needed_any_more_does_not_end_the_only_copy() {
    let gone = || Event::Failed(fault(Code::GuestGone));
    for state in [Sealing, Loading, Journaling] {
        let mut driver = Driver::at(state);
        let mut actions = driver.handle(gone());
        if state == Sealing {
            actions.extend(driver.receive(Message::RamSealed));
        }
        if state < Journaling {
            actions.extend(driver.receive(Message::Loaded));
            assert!(actions.contains(&Action::Journal(SourcePhase::CommitSent)), "{state:?}: {actions:?}");
        }
        assert!(!actions.contains(&Action::RollBack), "{state:?}: {actions:?}");
        let commits = driver.handle(Event::Journaled(SourcePhase::CommitSent));
        assert!(sends(&commits, |message| *message == Message::Commit), "{state:?}");
    }
    // If it stays unknown whether the destination has it, it is not asked to give it up.
    for state in [Sealing, Loading] {
        let mut driver = Driver::at(state);
        let mut actions = driver.handle(gone());
        driver.now = ms(3_600_000);
        actions.extend(driver.handle(Event::PathAlive(PATH)));
        actions.extend(driver.handle(Event::RolledBack { guest: GuestState::Gone, complete: true }));
        assert!(actions.contains(&Action::RollBack), "{state:?}: {actions:?}");
        assert!(!sends(&actions, |message| matches!(message, Message::Abort(_))), "{state:?}: {actions:?}");
        assert_eq!(withdraws(&actions), None, "{state:?}");
    }
    // Nor if its disks are found to have changed, or that cannot be known any more: its operator decides there.
    for state in [Loading, Journaling] {
        let mut driver = Driver::at(state);
        let mut actions = driver.handle(gone());
        actions.extend(driver.handle(Event::Failed(fault(Code::GuestDiffers))));
        assert!(actions.contains(&Action::RollBack), "{state:?}: {actions:?}");
        actions.extend(driver.handle(Event::RolledBack { guest: GuestState::Gone, complete: true }));
        driver.now = ms(3_600_000);
        actions.extend(driver.handle(Event::PathAlive(PATH)));
        assert!(
            !sends(&actions, |message| matches!(message, Message::Abort(_) | Message::Commit)),
            "{actions:?}"
        );
        assert_eq!(withdraws(&actions), None, "{state:?}");
    }
    let mut driver = Driver::at(WritingDeviceState);
    assert!(driver.handle(gone()).contains(&Action::RollBack), "the destination cannot have it");
}

/// Exit code 0 would say that it runs there.
#[test]
fn a_guest_that_stops_by_itself_in_its_first_moment_is_not_reported_as_one_that_runs() {
    let stopped = LastLook::Stopped { run_state: "io-error".into() };
    let cases = [
        (LastLook::NothingWrong, None, GuestState::RunsAtDestination),
        (stopped, Some(Code::GuestStopped), GuestState::StoppedAtDestination),
        (LastLook::Ended, Some(Code::GuestGone), GuestState::Gone),
    ];
    for (seen, code, guest) in cases {
        let mut driver = Driver::at(Closing);
        driver.handle(Event::ControlAcknowledged { path: PATH, through: u64::MAX });
        assert!(!driver.machine.is_ended(), "nothing was seen yet");
        let actions = driver.receive(Message::LastLook(seen.clone()));
        let ended = actions.iter().find_map(|action| match action {
            Action::End(ending) => Some((ending.fault.as_ref().map(|fault| fault.code), ending.guest)),
            _ => None,
        });
        assert_eq!(ended, Some((code, guest)), "{seen:?}");
    }
}

#[test]
fn the_last_look_holds_neither_the_sources_copy_nor_its_report_for_long() {
    let mut driver = Driver::at(Committing);
    let actions = driver.receive(Message::TakenOver { resume_us: 1, cpu_us: 0 });
    assert!(actions.contains(&Action::CleanUp), "{actions:?}");
    driver.handle(Event::CleanedUp);
    driver.handle(Event::ControlAcknowledged { path: PATH, through: u64::MAX });
    driver.now = driver.now + Duration::from_secs(1);
    let actions = driver.handle(Event::Tick);
    let ending = Ending { fault: None, guest: GuestState::RunsAtDestination, unfinished: false };
    assert!(actions.contains(&Action::End(ending)), "{actions:?}");
}

/// A source in this state, of a guest with so much RAM, that has waited for so many seconds since the state began.
fn waiting(state: At, tebibytes: u64, seconds: u64) -> Driver {
    let mut driver = Driver::new();
    if let Mode::Direct { regions } = &mut driver.machine.config.mode {
        regions[0].size = tebibytes << 40;
    }
    for reached in all().into_iter().take_while(|reached| *reached <= state) {
        match reached {
            Protecting => {
                let regions = driver.machine.config.mode.regions().to_vec();
                driver.receive(Message::Prepared { regions, touched: vec![] });
                driver.handle(Event::Attached);
                driver.handle(Event::ChannelUp { channel: CHANNEL, link: 0 });
            }
            other => driver.step(other),
        }
    }
    driver.now = driver.now + Duration::from_secs(seconds);
    driver.handle(Event::Tick);
    driver
}

#[test]
fn work_on_all_ram_may_take_longer_for_more_of_it() {
    // Seconds that one TiB takes at the slowest rates that are allowed for.
    let (pages, digests) = (128, 1024);
    for tebibytes in [1, 12] {
        for (state, fixed_s, grows_s) in [(Protecting, 60, pages), (Digesting, 130, digests)] {
            let driver = waiting(state, tebibytes, fixed_s - 1 + tebibytes * grows_s);
            assert!(driver.fault().is_none(), "{state:?} {tebibytes} TiB: {:?}", driver.fault());
            let driver = waiting(state, tebibytes, fixed_s + 1 + tebibytes * grows_s);
            assert_eq!(driver.fault().map(|fault| fault.code), Some(Code::TimedOut), "{state:?}");
        }
        let driver = waiting(CleaningUp, tebibytes, 59 + tebibytes * pages);
        assert!(!driver.machine.is_ended(), "its QEMU has {tebibytes} TiB to free");
    }
}
