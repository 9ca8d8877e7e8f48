//! Somebody else's stream brings the device state.

use super::*;

#[test]
fn a_guest_that_somebody_else_runs_is_let_go_and_only_if_no_device_state_came() {
    let mut driver = Driver::at(Loading);
    assert_eq!(driver.receive(Message::Finished).first(), Some(&Action::Release));
    assert_eq!(driver.brain.outcome(), Outcome::Pending);
    let actions = driver.tell(Event::Released);
    assert!(
        actions.starts_with(&[Action::Journal(DestinationPhase::Finished), Action::End(None)]),
        "{actions:?}"
    );

    let mut driver = Driver::at(Loading);
    driver.receive(Message::DeviceState { bytes: vec![1] });
    let actions = driver.receive(Message::Finished);
    assert!(actions.contains(&Action::TearDown) && !actions.contains(&Action::Release), "{actions:?}");
}

#[test]
fn what_cannot_be_let_go_is_torn_down() {
    let mut driver = Driver::at(Loading);
    driver.receive(Message::Finished);
    let actions = driver.tell(Event::Failed(fault(Code::HypervisorFailed)));
    assert!(actions.contains(&Action::TearDown), "{actions:?}");
    // It is neither run nor let go any more.
    assert_eq!(driver.tell(Event::Released), []);
}
