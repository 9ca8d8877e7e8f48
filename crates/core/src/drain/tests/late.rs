//! What the store, or the report of a session, comes late for.

use super::*;

#[test]
fn a_copy_that_the_store_did_not_take_is_begun_when_it_answers() {
    let mut hand = Hand::ready(&[start(0, 60)], &[1]);
    assert_eq!(hand.state(0), State::Copying);
    hand.tell(Event::Store(false));
    assert_eq!(hand.tell(Event::Held { guest: guest(0) }), []);
    assert_eq!(hand.after(5000.0), [], "however long that takes");
    assert_eq!(hand.state(0), State::Prepared);
    assert_eq!(copies(&hand.tell(Event::Store(true))), [0]);
}

/// As after a stop of the agent's process: its time is over before its reports are read.
#[test]
fn a_session_whose_end_is_reported_late_leaves_no_doubt() {
    let doubt = || {
        let mut hand = Hand::ready(&[start(0, 60)], &[1]);
        hand.tell(Event::HostLost(HostId(1)));
        hand.after(120.0);
        assert!(matches!(hand.state(0), State::Ended(Outcome::Failed { in_doubt: true, .. })));
        hand
    };
    let fault = Fault::new(Code::PeerLost, Step::Copy, Side::Source, "");
    for event in [Event::Cancelled { guest: guest(0) }, Event::Failed { guest: guest(0), fault }] {
        let mut hand = doubt();
        assert_eq!(hand.tell(event.clone()), [Order::Release { guest: guest(0) }], "{event:?}");
        assert!(matches!(hand.state(0), State::Unplaced { .. }), "it is here, and is tried again: {event:?}");
        let mut hand = doubt();
        hand.tell(Event::Abort);
        hand.tell(event);
        assert_eq!(hand.state(0), State::Ended(Outcome::Aborted));
    }
    let mut hand = doubt();
    assert_eq!(hand.tell(Event::Gone { guest: guest(0) }), [Order::Release { guest: guest(0) }]);
    assert_eq!(hand.state(0), State::Ended(Outcome::Gone));
}
