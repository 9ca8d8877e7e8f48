//! Mode Handover: libvirt's own stream brings the device state.

use super::*;

fn loading() -> Driver {
    let mut driver = Driver::new();
    driver.receive(offer_in(Ok(Mode::Handover { regions: regions() })));
    driver.handle(Event::Admitted(vec![]));
    driver.receive(Message::Prepare);
    driver.handle(Event::Prepared { regions: vec![], touched: vec![] });
    driver.receive(Message::RamComplete { digest: None });
    driver.handle(Event::Sealed(None));
    assert_eq!(driver.machine.state, State::Loading);
    driver
}

#[test]
fn a_session_finishes_after_libvirt_runs_the_domain() {
    let mut driver = loading();
    assert_eq!(driver.receive(Message::Finished).first(), Some(&Action::RestoreHypervisor));
    assert_eq!(driver.machine.outcome(), Outcome::Pending);
    let actions = driver.handle(Event::HypervisorRestored);
    assert!(
        actions.starts_with(&[Action::Journal(DestinationPhase::Finished), Action::End(None)]),
        "{actions:?}"
    );
}

#[test]
fn guest_of_another_mode_is_not_let_go() {
    let mut driver = Driver::at(Loading);
    let actions = driver.receive(Message::Finished);
    assert!(
        actions.contains(&Action::Discard) && !actions.contains(&Action::RestoreHypervisor),
        "{actions:?}"
    );
}

#[test]
fn session_brings_no_device_state_where_libvirt_does() {
    let messages =
        [Message::DeviceState { bytes: vec![1] }, Message::DeviceStateEnd { total: 0 }, Message::Commit];
    for message in messages {
        let mut driver = loading();
        driver.receive(message.clone());
        let fault = driver.fault().unwrap();
        assert_eq!(fault.code, Code::ProtocolViolation, "{message:?}");
        let expected = format!("the source sent {} while the destination was loading", message.name());
        assert_eq!(fault.detail, expected);
    }
    let mut driver = Driver::new();
    driver.receive(offer_in(Ok(Mode::Handover { regions: regions() })));
    driver.handle(Event::Admitted(vec![]));
    driver.receive(Message::Prepare);
    driver.handle(Event::Prepared { regions: vec![], touched: vec![] });
    assert!(!driver.receive(stopped()).iter().any(|action| matches!(action, Action::CheckDisks(_))));
    assert_eq!(driver.fault().map(|fault| fault.code), Some(Code::ProtocolViolation));
}

#[test]
fn what_cannot_be_let_go_is_torn_down() {
    let mut driver = loading();
    driver.receive(Message::Finished);
    let actions = driver.handle(Event::Failed(fault(Code::HypervisorFailed)));
    assert!(actions.contains(&Action::Discard), "{actions:?}");
    // It is neither run nor let go any more.
    assert_eq!(driver.handle(Event::HypervisorRestored), []);
}

#[test]
fn unknown_mode_is_refused_with_a_sentence() {
    let mut driver = Driver::new();
    let actions = driver.receive(offer_in(Err(UnknownMode { number: 9, fields: vec![1, 2] })));
    assert!(!actions.iter().any(|action| matches!(action, Action::Admit { .. })), "{actions:?}");
    let actions = driver.handle(Event::Discarded);
    let fault = driver.fault().cloned().unwrap();
    assert!(sends(&actions, |message| *message == Message::Abort(fault.clone())), "{actions:?}");
    assert_eq!((fault.code, fault.side), (Code::NotMigratable, Side::Destination));
    assert!(fault.detail.contains("in mode 9, which this agent does not know"), "{fault}");
    assert_eq!(driver.machine.guest(), "g");
}
