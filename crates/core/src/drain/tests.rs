//! Tests of the controller by hand: one rule each.

mod admission;
mod ahead;
mod late;

use std::time::Duration;

use super::bound::{Bound, Work};
use super::*;
use crate::{Code, Side, Step};

const GIB: u64 = 1 << 30;

/// A drain and the orders that it gave.
#[derive(Clone)]
pub(super) struct Hand {
    pub controller: Controller,
    pub now: Time,
    pub orders: Vec<Order>,
}

pub(super) fn start(guest: u32, gib: u64) -> Start {
    Start {
        guest: GuestId(guest),
        copy_bytes: gib * GIB,
        memory_bytes: gib * GIB,
        write_bytes_per_s: 0.0,
        limit_bytes_per_s: None,
        keep: false,
    }
}

fn guest(n: u32) -> GuestId {
    GuestId(n)
}

impl Hand {
    /// A source with two ports of 1 GB/s.
    fn new(guests: &[Start]) -> Hand {
        Hand::over(&[1e9, 1e9], guests)
    }

    /// A source with these ports, in bytes per second.
    fn over(ports: &[f64], guests: &[Start]) -> Hand {
        let controller = Controller::new(Settings::default(), ports.to_vec(), guests, Time::ZERO);
        let mut hand = Hand { controller, now: Time::ZERO, orders: Vec::new() };
        hand.tell(Event::Tick);
        hand
    }

    fn tell(&mut self, event: Event) -> Vec<Order> {
        let orders = self.controller.handle(self.now, event);
        self.orders.extend(orders.clone());
        orders
    }

    fn after(&mut self, seconds: f64) -> Vec<Order> {
        self.now = self.now + Duration::from_secs_f64(seconds);
        self.tell(Event::Tick)
    }

    fn placed(&mut self, n: u32, host: u32, bytes_per_s: f64) -> Vec<Order> {
        self.tell(Event::Placed { guest: guest(n), host: HostId(host), ports: 3, bytes_per_s })
    }

    fn prepared(&mut self, n: u32) -> Vec<Order> {
        self.tell(Event::Prepared { guest: guest(n) })
    }

    fn measured(&mut self, n: u32, round: u32, left: u64, bytes_per_s: f64, writes: f64) -> Vec<Order> {
        let sample = Sample {
            round,
            copied_bytes: GIB,
            left_bytes: left,
            bytes_per_s,
            write_bytes_per_s: (round > 0).then_some(writes),
        };
        self.tell(Event::Progress { guest: guest(n), sample })
    }

    fn failed(&mut self, n: u32, code: Code, side: Side) -> Vec<Order> {
        self.tell(Event::Failed { guest: guest(n), fault: Fault::new(code, Step::Copy, side, "") })
    }

    fn state(&self, n: u32) -> State {
        self.controller.guests().find(|(id, ..)| *id == guest(n)).unwrap().1.clone()
    }

    fn reasons(&self, n: u32) -> Vec<Reason> {
        let attempts = self.controller.guests().find(|(id, ..)| *id == guest(n)).unwrap().2;
        attempts.iter().map(|attempt| attempt.reason.clone()).collect()
    }

    /// All guests placed, guest n on host `hosts[n]`, and prepared as far as that was ordered.
    fn ready(guests: &[Start], hosts: &[u32]) -> Hand {
        let mut hand = Hand::new(guests);
        for (start, host) in guests.iter().zip(hosts) {
            hand.placed(start.guest.0, *host, 2e9);
        }
        hand.now = hand.now + Duration::from_secs(1);
        let preparing = |hand: &Hand| {
            let mut guests = hand.controller.guests();
            guests.find(|(_, state, _)| **state == State::Preparing).map(|(id, ..)| id)
        };
        while let Some(id) = preparing(&hand) {
            hand.prepared(id.0);
        }
        hand
    }
}

fn copies(orders: &[Order]) -> Vec<u32> {
    orders
        .iter()
        .filter_map(|order| if let Order::Copy { guest, .. } = order { Some(guest.0) } else { None })
        .collect()
}

#[test]
fn a_failed_guest_is_tried_elsewhere_so_many_times_and_every_reason_is_kept() {
    let mut hand = Hand::ready(&[start(0, 8)], &[1]);
    for (host, wait) in [(1, 10.0), (2, 20.0)] {
        let orders = hand.failed(0, Code::HypervisorFailed, Side::Destination);
        assert_eq!(orders, [Order::Release { guest: guest(0) }]);
        assert_eq!(hand.after(wait - 1.0), [], "not at once");
        let avoid = (1..=host).map(HostId).collect();
        assert_eq!(hand.after(1.0), [Order::Place(vec![(guest(0), avoid)])]);
        hand.placed(0, host + 1, 2e9);
        hand.prepared(0);
    }
    hand.failed(0, Code::PeerLost, Side::Source);
    let State::Ended(Outcome::Failed { reason: Reason::Fault(fault), in_doubt: false }) = hand.state(0)
    else {
        panic!("{:?}", hand.state(0));
    };
    assert_eq!(fault.code, Code::PeerLost);
    assert_eq!(hand.reasons(0).len(), 3);
    assert!(hand.controller.is_over());
}

#[test]
fn what_no_retry_can_help_is_not_tried_again() {
    for code in [Code::NotMigratable, Code::Cancelled] {
        let mut hand = Hand::ready(&[start(0, 8)], &[1]);
        hand.failed(0, code, Side::Source);
        assert!(matches!(hand.state(0), State::Ended(Outcome::Failed { .. })), "{code:?}");
    }
    let mut hand = Hand::ready(&[start(0, 8)], &[1]);
    hand.failed(0, Code::GuestGone, Side::Source);
    assert_eq!(hand.state(0), State::Ended(Outcome::Gone));
}

#[test]
fn a_host_that_lacks_something_is_left_at_once_and_never_tried_again() {
    let mut hand = Hand::ready(&[start(0, 8)], &[1]);
    let orders = hand.failed(0, Code::NotMigratable, Side::Destination);
    let place = |hosts: &[u32]| Order::Place(vec![(guest(0), hosts.iter().copied().map(HostId).collect())]);
    assert_eq!(orders, [Order::Release { guest: guest(0) }, place(&[1])], "another host at once");
    hand.placed(0, 2, 2e9);
    hand.prepared(0);
    assert_eq!(
        hand.failed(0, Code::HypervisorFailed, Side::Destination),
        [Order::Release { guest: guest(0) }]
    );
    assert_eq!(hand.after(10.0), [place(&[1, 2])]);
    // No other host is there: what failed by chance is tried again, and what it lacks is not.
    let why = Nowhere(vec![(crate::fleet::Obstacle::Forbidden.name(), 2)]);
    assert_eq!(hand.tell(Event::NoPlace { guest: guest(0), why }), [place(&[1])]);
}

#[test]
fn a_host_that_was_cordoned_is_left_at_once_and_asked_again_where_no_other_is() {
    let mut hand = Hand::ready(&[start(0, 8)], &[1]);
    let place = |hosts: &[HostId]| Order::Place(vec![(guest(0), hosts.to_vec())]);
    let orders = hand.failed(0, Code::Cordoned, Side::Destination);
    assert_eq!(orders, [Order::Release { guest: guest(0) }, place(&[HostId(1)])]);
    // The only other host is full by now.
    let why = Nowhere(vec![(crate::fleet::Obstacle::Forbidden.name(), 1), ("too little free memory", 1)]);
    assert_eq!(hand.tell(Event::NoPlace { guest: guest(0), why }), [place(&[])], "it may be released by now");
    // It is not: that is a try.
    let why = Nowhere(vec![("cordoned", 1), ("too little free memory", 1)]);
    let orders = hand.tell(Event::NoPlace { guest: guest(0), why });
    assert_eq!(orders, [Order::Release { guest: guest(0) }]);
    assert_eq!(hand.after(10.0), [place(&[])]);
    hand.placed(0, 1, 2e9);
    hand.prepared(0);
    assert_eq!(hand.state(0), State::Copying);
}

#[test]
fn where_one_host_is_all_there_is_a_guest_has_all_its_tries_there() {
    let mut hand = Hand::ready(&[start(0, 8)], &[1]);
    let place = |hosts: &[HostId]| Order::Place(vec![(guest(0), hosts.to_vec())]);
    for wait in [10.0, 20.0] {
        hand.failed(0, Code::HypervisorFailed, Side::Destination);
        assert_eq!(hand.after(wait), [place(&[HostId(1)])]);
        let nowhere = Event::NoPlace { guest: guest(0), why: Nowhere::default() };
        assert_eq!(hand.tell(nowhere), [place(&[])], "a look that finds no other host is no try");
        hand.placed(0, 1, 2e9);
        hand.prepared(0);
    }
    hand.failed(0, Code::HypervisorFailed, Side::Destination);
    assert!(hand.controller.is_over());
    assert!(hand.reasons(0).iter().all(|reason| matches!(reason, Reason::Fault(_))), "{:?}", hand.reasons(0));
}

#[test]
fn where_every_host_lacks_something_the_last_reason_is_the_guests() {
    let mut hand = Hand::ready(&[start(0, 8)], &[1]);
    hand.failed(0, Code::NotMigratable, Side::Destination);
    let forbidden = crate::fleet::Obstacle::Forbidden.name();
    hand.tell(Event::NoPlace { guest: guest(0), why: Nowhere(vec![(forbidden, 1)]) });
    let State::Ended(Outcome::Failed { reason: Reason::Fault(fault), in_doubt: false }) = hand.state(0)
    else {
        panic!("{:?}", hand.state(0));
    };
    assert_eq!((fault.code, fault.side), (Code::NotMigratable, Side::Destination));
}

#[test]
fn a_guest_that_was_left_in_doubt_keeps_its_reservation_and_does_not_hold_the_drain() {
    let mut hand = Hand::ready(&[start(0, 8), start(1, 4)], &[1, 1]);
    let fault = Fault::new(Code::Internal, Step::Commit, Side::Source, "");
    hand.controller.leave_in_doubt(guest(0), fault, hand.now);
    assert!(matches!(hand.state(0), State::Ended(Outcome::Failed { in_doubt: true, .. })));
    let orders = hand.after(1.0);
    assert_eq!(copies(&orders), [1], "others go on");
    assert!(!orders.contains(&Order::Release { guest: guest(0) }));
    assert_eq!(copies(&hand.after(100.0)), [], "it is started nowhere else");
    hand.tell(Event::Moved { guest: guest(1) });
    assert!(hand.controller.is_over());
}

#[test]
fn a_guest_without_a_host_ends_with_what_the_hosts_lack() {
    let mut hand = Hand::new(&[start(0, 8)]);
    let why = Nowhere(vec![("too little free memory", 3)]);
    for wait in [10.0, 20.0, 0.0] {
        hand.tell(Event::NoPlace { guest: guest(0), why: why.clone() });
        hand.after(wait);
    }
    assert_eq!(
        hand.state(0),
        State::Ended(Outcome::Failed { reason: Reason::Nowhere(why), in_doubt: false })
    );
}

#[test]
fn paused_nothing_new_starts_and_what_runs_goes_on() {
    let mut hand = Hand::ready(&[start(0, 60), start(1, 50), start(2, 40)], &[1, 2, 3]);
    hand.tell(Event::Pause);
    assert_eq!(hand.tell(Event::Moved { guest: guest(0) }), []);
    assert_eq!(hand.after(100.0), []);
    assert_eq!(copies(&hand.tell(Event::Resume)), [1]);
}

#[test]
fn a_drain_that_may_start_nothing_asks_for_no_timer_in_the_past() {
    let mut hand = Hand::new(&[start(0, 8)]);
    hand.tell(Event::Store(false));
    hand.tell(Event::NoPlace { guest: guest(0), why: Nowhere::default() });
    assert_eq!(hand.controller.next_timer(), Some(hand.now + Duration::from_secs(10)));
    hand.after(10.0);
    assert_eq!(hand.controller.next_timer(), None, "the store's return is an event");
}

#[test]
fn without_its_store_nothing_new_starts() {
    let mut hand = Hand::ready(&[start(0, 60), start(1, 50)], &[1, 2]);
    hand.tell(Event::Store(false));
    assert_eq!(hand.tell(Event::Moved { guest: guest(0) }), []);
    assert_eq!(copies(&hand.tell(Event::Store(true))), [1]);
}

#[test]
fn an_abort_cancels_what_runs_and_frees_what_waits() {
    let mut hand = Hand::ready(&[start(0, 60), start(1, 50), start(2, 40), start(3, 30)], &[1, 2, 3, 4]);
    let running: Vec<u32> = (0..4).filter(|n| hand.state(*n) != State::Placed).collect();
    let orders = hand.tell(Event::Abort);
    for n in 0..4 {
        let expected = if running.contains(&n) {
            Order::Cancel { guest: guest(n) }
        } else {
            Order::Release { guest: guest(n) }
        };
        assert!(orders.contains(&expected), "{n}: {orders:?}");
    }
    hand.tell(Event::Moved { guest: guest(0) });
    assert_eq!(hand.state(0), State::Ended(Outcome::Moved(HostId(1))), "too late to cancel");
    for n in 1..4 {
        hand.tell(Event::Cancelled { guest: guest(n) });
        assert_eq!(hand.state(n), State::Ended(Outcome::Aborted));
    }
    assert!(hand.controller.is_over());
    hand.after(1000.0);
    assert!(copies(&hand.orders).len() == 1);
}

#[test]
fn an_abort_cancels_what_runs_before_it_frees_what_waits() {
    let mut hand = Hand::ready(&[start(0, 30), start(1, 40), start(2, 50), start(3, 60)], &[1, 2, 3, 4]);
    assert_eq!((hand.state(0), hand.state(3)), (State::Placed, State::Copying));
    let orders = hand.tell(Event::Abort);
    let is_cancel = |order: &Order| matches!(order, Order::Cancel { .. });
    let cancels = orders.iter().take_while(|order| is_cancel(order)).count();
    assert_eq!(cancels, orders.iter().filter(|order| is_cancel(order)).count(), "{orders:?}");
    assert!(0 < cancels && cancels < orders.len(), "{orders:?}");
}

#[test]
fn guests_of_a_lost_destination_go_elsewhere_without_using_a_try() {
    let mut hand = Hand::ready(&[start(0, 60), start(1, 50)], &[1, 1]);
    let orders = hand.tell(Event::HostLost(HostId(1)));
    assert_eq!(orders, [0, 1].map(|n| Order::Cancel { guest: guest(n) }));
    let mut hand = Hand::ready(&[start(0, 60)], &[1]);
    for lost in 1..=5u32 {
        let orders = hand.tell(Event::HostLost(HostId(lost)));
        assert_eq!(orders, [Order::Cancel { guest: guest(0) }], "nothing new before its session has ended");
        let avoid: Vec<HostId> = (1..=lost).map(HostId).collect();
        let expected = [Order::Release { guest: guest(0) }, Order::Place(vec![(guest(0), avoid)])];
        assert_eq!(hand.tell(Event::Cancelled { guest: guest(0) }), expected);
        hand.placed(0, lost + 1, 2e9);
        hand.prepared(0);
    }
    assert_eq!(hand.reasons(0), (1..=5).map(|lost| Reason::HostLost(HostId(lost))).collect::<Vec<_>>());
    hand.tell(Event::Moved { guest: guest(0) });
    assert!(hand.controller.is_over());
    // It has a destination and waits for its turn: no session has to be ended.
    let mut hand = Hand::ready(&[start(0, 60), start(1, 50), start(2, 40)], &[1, 1, 7]);
    let orders = hand.tell(Event::HostDrained(HostId(7)));
    assert_eq!(orders, [Order::Release { guest: guest(2) }, Order::Place(vec![(guest(2), vec![HostId(7)])])]);
}

#[test]
fn a_guest_that_fails_at_the_source_while_it_is_cancelled_stays_with_its_reason() {
    for event in [Event::HostLost(HostId(1)), Event::Abort] {
        let mut hand = Hand::ready(&[start(0, 60)], &[1]);
        assert_eq!(hand.tell(event.clone()), [Order::Cancel { guest: guest(0) }]);
        // As of a domain that may run at the lost host too.
        let orders = hand.failed(0, Code::NotMigratable, Side::Source);
        assert_eq!(orders, [Order::Release { guest: guest(0) }], "it goes nowhere: {event:?}");
        let is_failed = matches!(hand.state(0), State::Ended(Outcome::Failed { in_doubt: false, .. }));
        assert!(is_failed, "{:?}", hand.state(0));
        assert!(matches!(&hand.reasons(0)[..], [Reason::Fault(_)]), "{:?}", hand.reasons(0));
    }
    // What would pass does not keep it from another host.
    let mut hand = Hand::ready(&[start(0, 60)], &[1]);
    hand.tell(Event::HostLost(HostId(1)));
    let orders = hand.failed(0, Code::PeerLost, Side::Source);
    assert!(orders.contains(&Order::Place(vec![(guest(0), vec![HostId(1)])])), "{orders:?}");
}

#[test]
fn a_guest_that_another_migration_has_uses_no_try_and_is_added_again_when_that_has_ended() {
    let mut hand = Hand::new(&[start(0, 1)]);
    for _ in 0..2 * hand.controller.settings().tries_max {
        hand.placed(0, 1, 2e9);
        assert_eq!(hand.state(0), State::Preparing);
        assert_eq!(hand.tell(Event::Taken { guest: guest(0) }), [Order::Release { guest: guest(0) }]);
        assert!(hand.controller.is_over(), "nothing is left to do but to wait");
        hand.now = hand.now + Duration::from_secs(600);
        let again = hand.tell(Event::Added(start(0, 1)));
        assert_eq!(again, [Order::Place(vec![(guest(0), vec![])])]);
        assert_eq!(hand.reasons(0), []);
    }
    // Of an aborted drain it is a guest as before.
    hand.placed(0, 1, 2e9);
    hand.tell(Event::Abort);
    hand.tell(Event::Taken { guest: guest(0) });
    assert_eq!(hand.state(0), State::Ended(Outcome::Aborted));
}

#[test]
fn guests_that_have_failed_get_all_their_tries_again_and_are_placed_together() {
    let mut hand = Hand::ready(&[start(0, 60), start(1, 50)], &[1, 1]);
    hand.failed(0, Code::NotMigratable, Side::Source);
    hand.failed(1, Code::NotMigratable, Side::Source);
    assert!(hand.controller.is_over());
    let both = vec![guest(0), guest(1)];
    let orders = hand.tell(Event::Again(both.clone()));
    assert_eq!(orders, [Order::Place(vec![(guest(0), vec![]), (guest(1), vec![])])]);
    assert_eq!(hand.reasons(0).len(), 1, "what failed is still known");
    assert_eq!(hand.tell(Event::Again(both.clone())), [], "they do not wait for it");
    hand.tell(Event::Abort);
    assert_eq!(hand.tell(Event::Again(both)), []);
    assert_eq!(hand.state(0), State::Ended(Outcome::Aborted));

    let mut hand = Hand::new(&[start(0, 1)]);
    let fail = |hand: &mut Hand| {
        hand.placed(0, 1, 2e9);
        hand.failed(0, Code::PeerLost, Side::Source);
        hand.after(60.0);
        hand.controller.is_over()
    };
    assert_eq!([0; 3].map(|_| fail(&mut hand)), [false, false, true]);
    hand.tell(Event::Again(vec![guest(0)]));
    assert_eq!([0; 3].map(|_| fail(&mut hand)), [false, false, true]);
    assert_eq!(hand.reasons(0).len(), 6);
}

#[test]
fn a_session_whose_end_is_not_reported_leaves_the_guest_in_doubt_and_its_reservation() {
    let mut hand = Hand::ready(&[start(0, 60)], &[1]);
    hand.tell(Event::HostLost(HostId(1)));
    let orders = hand.after(120.0);
    assert_eq!(orders, [], "it may run there: nothing is freed, and it is started nowhere else");
    assert!(matches!(hand.state(0), State::Ended(Outcome::Failed { in_doubt: true, .. })));
    hand.tell(Event::Moved { guest: guest(0) });
    assert_eq!(hand.state(0), State::Ended(Outcome::Moved(HostId(1))), "known in the end");
}

#[test]
fn an_agent_that_never_answers_does_not_hold_the_drain() {
    let mut hand = Hand::new(&[start(0, 8)]);
    let mut turns = 0;
    while !hand.controller.is_over() {
        hand.now = hand.controller.next_timer().expect("something is waited for").max(hand.now);
        hand.tell(Event::Tick);
        turns += 1;
        assert!(turns < 100);
    }
    assert_eq!(hand.reasons(0), vec![Reason::NoAnswer(Stage::Place); 3]);
}

#[test]
fn a_copy_that_stalls_and_one_that_never_converges_are_ended() {
    let mut hand = Hand::ready(&[start(0, 8)], &[1]);
    hand.measured(0, 0, 7 * GIB, 1e9, 0.0);
    hand.after(200.0);
    hand.measured(0, 0, 7 * GIB, 1.0, 0.0);
    assert_eq!(hand.after(100.0), [Order::Cancel { guest: guest(0) }], "nothing copied in 300 s");
    assert_eq!(hand.state(0), State::Cancelling(Then::Retry(Reason::Stalled)));
    let mut hand = Hand::ready(&[start(0, 8)], &[1]);
    let copied_bytes = 8 * GIB * 30 + 1;
    let sample =
        Sample { round: 9, copied_bytes, left_bytes: GIB, bytes_per_s: 1e9, write_bytes_per_s: Some(2e9) };
    assert_eq!(hand.tell(Event::Progress { guest: guest(0), sample }), [Order::Cancel { guest: guest(0) }]);
    hand.tell(Event::Cancelled { guest: guest(0) });
    assert_eq!(hand.reasons(0), [Reason::WritesTooFast { writes: 2e9, copied: 1e9 }]);
}

#[test]
fn a_guest_that_has_filled_its_memory_since_it_was_looked_at_is_not_called_endless() {
    // It had just been started, and used little of its memory.
    let mut hand = Hand::ready(&[Start { copy_bytes: 1 << 20, ..start(0, 8) }], &[1]);
    assert_eq!(hand.measured(0, 0, 7 * GIB, 1e9, 0.0), []);
    assert_eq!(hand.state(0), State::Copying);
}

#[test]
fn a_busy_destination_lets_others_go_first_and_is_not_waited_for_without_end() {
    let mut hand = Hand::ready(&[start(0, 60), start(1, 50)], &[1, 2]);
    assert_eq!(copies(&hand.tell(Event::Busy { guest: guest(0) })), [1]);
    hand.tell(Event::Moved { guest: guest(1) });
    let mut turns = 0;
    while hand.state(0) != State::Cancelling(Then::Retry(Reason::Busy(HostId(1)))) {
        hand.tell(Event::Busy { guest: guest(0) });
        hand.after(1.0);
        turns += 1;
        assert!(turns < 2000);
    }
}

#[test]
fn a_reservation_that_comes_too_late_is_given_up() {
    let mut hand = Hand::new(&[start(0, 8)]);
    hand.tell(Event::Abort);
    assert_eq!(hand.placed(0, 1, 2e9), [Order::Release { guest: guest(0) }]);
    let mut hand = Hand::ready(&[start(0, 8)], &[1]);
    assert_eq!(hand.placed(0, 2, 2e9), [], "it has another one by now");
}

#[test]
fn a_guest_that_arrives_late_leaves_too_and_a_kept_one_stays() {
    let mut hand = Hand::new(&[Start { keep: true, ..start(0, 8) }]);
    assert!(hand.controller.is_over());
    assert_eq!(hand.tell(Event::Added(start(7, 8))), [Order::Place(vec![(guest(7), vec![])])]);
    assert!(!hand.controller.is_over());
    assert_eq!(hand.state(0), State::Ended(Outcome::Kept));
}

#[test]
fn the_bound_is_the_largest_of_its_three_terms() {
    let work = |gib: u64, write: f64, rate: f64, host: u32| Work {
        copy_bytes: gib * GIB,
        write_bytes_per_s: write,
        bytes_per_s: rate,
        host: HostId(host),
    };
    let gib = GIB as f64;
    let all = [work(10, 0.0, gib, 1), work(10, 0.0, gib, 1), work(10, 0.0, gib, 2)];
    let bound = Bound::of(&all, gib, |_| gib);
    assert_eq!((bound.source_s, bound.destination_s, bound.guest_s), (30.0, 20.0, 10.0));
    assert_eq!(bound.time(), Duration::from_secs(30));
    assert_eq!(Bound::of(&all, 4.0 * gib, |_| gib).time(), Duration::from_secs(20));
    let writer = [work(10, 0.75 * gib, gib, 1), work(1, 0.0, gib, 2)];
    assert_eq!(Bound::of(&writer, 4.0 * gib, |_| gib).time(), Duration::from_secs(40));
}
