//! libvirt decides which hypervisor runs the guest.

use super::super::blackout::DECIDES_WITHIN;
use super::*;

fn handover(state: At) -> Driver {
    let mut driver = Driver::new();
    driver.machine.config.mode = Mode::Handover { regions: regions() };
    for reached in all().into_iter().filter(|reached| *reached <= state) {
        driver.step(reached);
    }
    driver
}

#[test]
fn libvirts_stream_is_released_after_ram_is_sealed_and_nothing_is_committed() {
    for state in all().into_iter().filter(|state| *state < Sealing) {
        let mut driver = handover(state);
        let actions = driver.receive(Message::RamSealed);
        assert!(!actions.contains(&Action::ReleaseStream), "{state:?}: {actions:?}");
    }
    let mut driver = handover(Sealing);
    let actions = driver.receive(Message::RamSealed);
    assert_eq!(actions.first(), Some(&Action::ReleaseStream));
    assert!(!actions.contains(&Action::WriteDeviceState), "{actions:?}");
    assert_eq!(driver.machine.step(), Step::Commit);
    assert_eq!(driver.handle(Event::GuestLeft).first(), Some(&Action::CleanUp));
    let actions = driver.handle(Event::CleanedUp);
    assert!(actions.contains(&Action::Journal(SourcePhase::Finished)), "{actions:?}");
    assert!(sends(&actions, |message| *message == Message::Finished), "{actions:?}");
    let ends = driver.handle(Event::ControlAcknowledged { path: PATH, through: u64::MAX });
    let ending = Ending { fault: None, guest: GuestState::RunsAtDestination, unfinished: false };
    assert!(ends.contains(&Action::End(ending)), "{ends:?}");
}

#[test]
fn only_libvirts_decision_or_that_it_has_none_ends_a_released_stream() {
    let mut driver = handover(Loading);
    let others: [fn(&mut Driver) -> Vec<Action>; 4] = [
        |driver| driver.handle(Event::Cancel),
        |driver| driver.receive(Message::Abort(fault(Code::Cancelled))),
        |driver| driver.handle(Event::Forgotten),
        |driver| {
            driver.handle(Event::PathLost(PATH));
            driver.now = driver.now + 2 * driver.machine.config.link_timeout;
            driver.handle(Event::Tick)
        },
    ];
    for (n, other) in others.into_iter().enumerate() {
        assert!(!other(&mut driver).contains(&Action::RollBack), "{n}: libvirt decides");
    }
    driver.handle(Event::PathUp(PATH + 1));
    assert_eq!(driver.handle(Event::GuestLeft).first(), Some(&Action::CleanUp));

    let mut driver = handover(Loading);
    let actions = driver.handle(Event::Failed(fault(Code::HypervisorFailed)));
    assert!(actions.contains(&Action::RollBack), "{actions:?}");
    assert!(sends(&actions, |message| matches!(message, Message::Abort(_))), "{actions:?}");
    let actions = driver.handle(rolled_back(true));
    assert!(actions.contains(&Action::Journal(SourcePhase::RolledBack)), "{actions:?}");

    // It is not waited for without end.
    let mut driver = handover(Loading);
    driver.now = driver.now + DECIDES_WITHIN;
    driver.handle(Event::PathAlive(PATH));
    let State::RollingBack(roll_back) = &driver.machine.state else { panic!("{:?}", driver.machine.state) };
    assert_eq!(roll_back.fault().code, Code::TimedOut);
}

#[test]
fn that_the_guest_has_left_is_no_news_before_it_was_let_go() {
    for state in [Copying, Sealing] {
        let mut driver = handover(state);
        let actions = driver.handle(Event::GuestLeft);
        assert!(actions.contains(&Action::RollBack), "{state:?}: {actions:?}");
    }
}
