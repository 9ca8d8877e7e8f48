//! Tests of the controller by hand: one rule each.

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
        let controller = Controller::new(Settings::default(), vec![1e9, 1e9], guests, Time::ZERO);
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
fn one_guest_copies_over_all_links_and_the_next_is_prepared_meanwhile() {
    let mut hand = Hand::new(&[start(0, 60), start(1, 50), start(2, 40)]);
    assert_eq!(hand.orders, [Order::Place((0..3).map(|n| (guest(n), vec![])).collect())]);
    (0..3).for_each(|n| drop(hand.placed(n, n, 2e9)));
    assert_eq!(
        hand.orders[1..],
        [Order::Prepare { guest: guest(0), host: HostId(0) }],
        "one is enough to begin with"
    );
    let orders = hand.prepared(0);
    let copy = Order::Copy { guest: guest(0), host: HostId(0), ports: 3 };
    assert_eq!(orders, [copy, Order::Prepare { guest: guest(1), host: HostId(1) }]);
    hand.prepared(1);
    hand.now = hand.now + Duration::from_secs(1);
    assert_eq!(hand.measured(0, 0, 59 * GIB, 1.95e9, 0.0), [], "the links are full");
    assert_eq!(hand.state(1), State::Prepared);
    let left = Event::Left { guest: guest(0) };
    assert_eq!(copies(&hand.tell(left)), [1], "it is only looked at once more");
    assert_eq!(hand.state(0), State::Copying);
    assert_eq!(copies(&hand.tell(Event::Moved { guest: guest(0) })), []);
    assert_eq!(hand.state(0), State::Ended(Outcome::Moved(HostId(0))));
}

#[test]
fn another_copies_too_while_one_guest_cannot_fill_the_links() {
    let mut hand = Hand::ready(&[start(0, 60), start(1, 50), start(2, 40)], &[1, 2, 3]);
    assert_eq!(copies(&hand.orders), [0]);
    hand.now = hand.now + Duration::from_secs(1);
    assert_eq!(copies(&hand.measured(0, 0, 59 * GIB, 0.9e9, 0.0)), [1]);
    hand.prepared(2);
    hand.now = hand.now + Duration::from_secs(1);
    hand.measured(0, 0, 58 * GIB, 0.9e9, 0.0);
    assert_eq!(copies(&hand.measured(1, 0, 49 * GIB, 1.0e9, 0.0)), [], "now they are full");
}

#[test]
fn another_copies_too_to_a_second_destination_while_the_first_is_slower() {
    let mut hand = Hand::new(&[start(0, 60), start(1, 50), start(2, 40)]);
    hand.placed(0, 1, 0.5e9);
    hand.placed(1, 1, 0.5e9);
    hand.placed(2, 2, 2e9);
    (0..3).for_each(|n| drop(hand.prepared(n)));
    hand.now = hand.now + Duration::from_secs(1);
    hand.measured(0, 0, 59 * GIB, 0.5e9, 0.0);
    (1..3).for_each(|n| drop(hand.prepared(n)));
    assert_eq!(hand.state(0), State::Copying);
    assert_eq!(hand.state(2), State::Copying, "its destination has nothing to do");
    assert_ne!(hand.state(1), State::Copying, "its destination is full");
}

#[test]
fn another_begins_in_the_last_rounds_of_the_one_before() {
    let mut hand = Hand::ready(&[start(0, 60), start(1, 50)], &[1, 2]);
    hand.now = hand.now + Duration::from_secs(20);
    assert_eq!(copies(&hand.measured(0, 0, 10 * GIB, 2e9, 1e8)), []);
    assert_eq!(copies(&hand.measured(0, 1, GIB, 2e9, 1e8)), [1]);
}

#[test]
fn one_more_that_brings_nothing_is_the_last_one() {
    let guests: Vec<Start> = (0..5).map(|n| start(n, 60)).collect();
    let mut hand = Hand::ready(&guests, &[1, 2, 3, 4, 5]);
    hand.now = hand.now + Duration::from_secs(1);
    // The links carry 1 GB/s together, half of what they say.
    assert_eq!(copies(&hand.measured(0, 0, 59 * GIB, 1.0e9, 0.0)), [1]);
    for _ in 0..3 {
        hand.now = hand.now + Duration::from_secs(1);
        hand.measured(0, 0, 58 * GIB, 0.5e9, 0.0);
        hand.measured(1, 0, 59 * GIB, 0.5e9, 0.0);
    }
    (2..5).for_each(|n| drop(hand.prepared(n)));
    assert!(copies(&hand.orders).len() <= 3, "{:?}", copies(&hand.orders));
    let before = copies(&hand.orders).len();
    hand.after(1.0);
    assert_eq!(copies(&hand.orders).len(), before);
}

#[test]
fn ports_that_say_too_much_let_no_more_than_twice_as_many_begin_before_it_is_judged() {
    let guests: Vec<Start> = (0..6).map(|n| start(n, 60)).collect();
    let mut hand = Hand::ready(&guests, &[1; 6]);
    hand.after(1.0);
    // The ports say 2 GB/s. One guest is copied at a hundredth of that: by what is it limited?
    assert_eq!(copies(&hand.measured(0, 0, 59 * GIB, 2e7, 0.0)), [1]);
    (2..6).for_each(|n| drop(hand.prepared(n)));
    hand.after(0.5);
    assert_eq!(copies(&hand.measured(1, 0, 59 * GIB, 2e7, 0.0)), [], "not judged yet");
    hand.after(0.5);
    // They do not take from each other: two more.
    let orders = hand.measured(1, 0, 59 * GIB, 2e7, 0.0);
    assert_eq!(copies(&orders), [2, 3], "{orders:?}");
    hand.after(1.0);
    (0..3).for_each(|n| assert_eq!(copies(&hand.measured(n, 0, 59 * GIB, 1e7, 0.0)), []));
    // All four together have what two had: the links were full.
    assert_eq!(copies(&hand.measured(3, 0, 59 * GIB, 1e7, 0.0)), []);
    assert_eq!(copies(&hand.after(5.0)), []);
    assert_eq!(copies(&hand.orders), [0, 1, 2, 3]);
}

#[test]
fn before_any_goodput_was_measured_no_copy_counts_as_nearly_done() {
    let mut hand = Hand::ready(&[start(0, 1), start(1, 1), start(2, 1)], &[1, 1, 1]);
    (1..3).for_each(|n| drop(hand.prepared(n)));
    // By what the ports say, the first one is done after half a second.
    assert_eq!(copies(&hand.after(5.0)), []);
    assert_eq!(copies(&hand.orders), [0]);
    hand.measured(0, 0, GIB / 2, 1.95e9, 0.0);
    hand.tell(Event::Moved { guest: guest(0) });
    (1..3).for_each(|n| drop(hand.prepared(n)));
    hand.after(0.6);
    assert_eq!(copies(&hand.orders), [0, 1, 2], "now it is known how long one takes");
}

/// A destination takes 1 GB/s. Guest 0 is nearly done, so guest 1 of 10 GiB begins; guest 2 is prepared.
fn two_share() -> Hand {
    let mut hand = Hand::new(&[start(0, 60), start(1, 10), start(2, 10)]);
    hand.controller.remember(HostId(1), 1e9, hand.now);
    (0..3).for_each(|n| drop(hand.placed(n, 1, 2e9)));
    (0..3).for_each(|n| drop(hand.prepared(n)));
    hand.after(10.0);
    hand.measured(0, 1, GIB / 20, 1e9, 0.0);
    (1..3).for_each(|n| drop(hand.prepared(n)));
    hand.after(0.1);
    hand.prepared(2);
    assert_eq!(copies(&hand.orders), [0, 1]);
    hand
}

#[test]
fn a_guest_whose_first_pass_shared_the_links_is_not_nearly_done_before_it_is_known_what_it_wrote() {
    // Alone: 10.7 s.
    let mut alone = two_share();
    alone.tell(Event::Moved { guest: guest(0) });
    alone.after(1.0);
    alone.measured(1, 0, 9 * GIB, 1e9, 0.0);
    assert_eq!(copies(&alone.after(9.6)), [2], "before the end of its first pass");
    // The other needs another round.
    let mut shared = two_share();
    shared.after(1.0);
    shared.measured(0, 2, 20 * GIB, 0.5e9, 0.0);
    shared.after(14.5);
    assert_eq!(copies(&shared.measured(1, 0, GIB / 20, 0.5e9, 0.0)), []);
    assert_eq!(copies(&shared.after(0.1)), []);
    assert_eq!(copies(&shared.measured(1, 1, GIB / 20, 0.5e9, 0.0)), [2], "it wrote little");
}

#[test]
fn what_is_written_in_the_first_pass_keeps_the_next_guest_waiting() {
    let mut hand = two_share();
    hand.tell(Event::Moved { guest: guest(0) });
    hand.after(10.0);
    let mut sample = Sample {
        round: 0,
        copied_bytes: 9 * GIB,
        left_bytes: GIB / 20 + 2 * GIB,
        bytes_per_s: 1e9,
        write_bytes_per_s: Some(0.05e9),
    };
    assert_eq!(copies(&hand.tell(Event::Progress { guest: guest(1), sample })), [], "2 GiB were written");
    assert_eq!(copies(&hand.after(0.5)), []);
    let mut writes = hand.clone();
    sample.left_bytes = 0;
    assert_eq!(copies(&hand.tell(Event::Progress { guest: guest(1), sample })), [2]);
    // What it writes meanwhile is sent, too: half a second's worth takes two and a half.
    sample.left_bytes = GIB / 2;
    sample.write_bytes_per_s = Some(0.8e9);
    assert_eq!(copies(&writes.tell(Event::Progress { guest: guest(1), sample })), []);
    assert_eq!(copies(&writes.after(0.5)), []);
    assert_eq!(copies(&writes.after(2.5)), [2]);
}

#[test]
fn a_copy_that_had_a_part_of_full_links_gets_the_rest_when_the_other_ends() {
    let mut hand = two_share();
    hand.after(1.0);
    hand.measured(0, 2, 20 * GIB, 0.5e9, 0.0);
    hand.measured(1, 0, 9 * GIB, 0.5e9, 0.0);
    hand.after(1.0);
    let mut failed = hand.clone();
    assert_eq!(copies(&failed.failed(0, Code::PeerLost, Side::Destination)), [], "it failed: the same");
    // What it had is no sign of free links, and not what it can be copied at.
    assert_eq!(copies(&hand.tell(Event::Moved { guest: guest(0) })), []);
    assert_eq!(copies(&hand.measured(1, 0, 8 * GIB, 0.5e9, 0.0)), []);
    hand.after(0.3);
    assert_eq!(copies(&hand.measured(1, 0, 8 * GIB, 1e9, 0.0)), []);
    // Where it does not get the rest, another one may.
    hand.after(0.1);
    assert_eq!(copies(&hand.measured(1, 0, 8 * GIB, 0.5e9, 0.0)), [2]);
}

#[test]
fn a_copy_that_has_all_its_destination_takes_is_not_measured_anew_when_another_ends() {
    let mut hand = Hand::new(&(0..3).map(|n| start(n, 60)).collect::<Vec<_>>());
    // Two of the three destinations fill the source's links.
    (0..3).for_each(|n| drop(hand.placed(n, n, 1e9)));
    (0..3).for_each(|n| drop(hand.prepared(n)));
    hand.after(1.0);
    assert_eq!(copies(&hand.measured(0, 1, GIB / 20, 1e9, 0.0)), [1], "the first is nearly done");
    hand.prepared(2);
    hand.after(0.2);
    assert_eq!(copies(&hand.tell(Event::Moved { guest: guest(0) })), [], "nothing is measured of the second");
    hand.after(0.1);
    assert_eq!(copies(&hand.measured(1, 0, 59 * GIB, 1e9, 0.0)), [2], "it has what it had beside the first");
}

#[test]
fn a_first_sample_of_a_time_beside_a_copy_that_ended_is_no_sign_of_free_links() {
    let mut hand = Hand::ready(&[start(0, 60), start(1, 50), start(2, 40)], &[1, 2, 3]);
    hand.after(20.0);
    assert_eq!(copies(&hand.measured(0, 1, GIB / 20, 2e9, 0.0)), [1], "the first is nearly done");
    hand.prepared(2);
    hand.after(0.2);
    assert_eq!(copies(&hand.tell(Event::Moved { guest: guest(0) })), []);
    hand.after(0.1);
    // Each of them fills the links alone.
    assert_eq!(copies(&hand.measured(1, 0, 49 * GIB, 1.6e9, 0.0)), [], "it had a part of them until now");
    assert_eq!(copies(&hand.after(0.3)), []);
    assert_eq!(copies(&hand.measured(1, 0, 48 * GIB, 2e9, 0.0)), [], "they are full");
}

#[test]
fn what_an_earlier_drain_measured_needs_no_trial_and_gives_way_to_more() {
    let guests: Vec<Start> = (0..3).map(|n| start(n, 60)).collect();
    let mut hand = Hand::new(&guests);
    hand.controller.remember(HostId(1), 1e8, hand.now);
    (0..3).for_each(|n| drop(hand.placed(n, 1, 2e9)));
    (0..3).for_each(|n| drop(hand.prepared(n)));
    hand.after(1.0);
    assert_eq!(copies(&hand.measured(0, 0, 59 * GIB, 1e8, 0.0)), [], "one fills what it takes");
    assert_eq!(hand.controller.carries(), 1e8);
    // The links are faster now.
    hand.after(1.0);
    hand.measured(0, 0, 58 * GIB, 1e9, 0.0);
    assert_eq!(hand.controller.carries(), 1e9);
    assert_eq!(hand.controller.measured_takes().collect::<Vec<_>>(), [(HostId(1), 1e9)]);
    // After a while it is tried whether more carry more.
    (1..3).for_each(|n| drop(hand.prepared(n)));
    hand.after(60.0);
    hand.measured(0, 0, 20 * GIB, 1e9, 0.0);
    assert_eq!(copies(&hand.orders).len(), 2);
}

#[test]
fn the_bound_and_what_is_shown_follow_what_was_measured() {
    let mut hand = Hand::ready(&[start(0, 60), start(1, 50)], &[1, 1]);
    assert_eq!(hand.controller.carries(), 2e9);
    hand.after(1.0);
    assert_eq!(copies(&hand.measured(0, 0, 59 * GIB, 1e8, 0.0)), [1]);
    hand.after(1.0);
    (0..2).for_each(|n| drop(hand.measured(n, 0, 59 * GIB, 0.5e8, 0.0)));
    hand.measured(1, 0, 59 * GIB, 0.5e8, 0.0);
    assert_eq!(hand.controller.carries(), 1e8, "two had what one had");
    let bound = hand.controller.bound(hand.now);
    assert!((bound.destination_s - 110.0 * GIB as f64 / 1e8).abs() < 1.0, "{bound:?}");
    hand.after(1000.0);
    assert_eq!(hand.controller.carries(), 1e8, "for estimates it is believed for longer");
}

#[test]
fn a_guest_that_writes_fast_is_copied_alone() {
    let fast = Start { write_bytes_per_s: 0.8e9, ..start(1, 20) };
    let mut hand = Hand::ready(&[start(0, 60), fast, start(2, 40)], &[1, 2, 3]);
    assert_eq!(copies(&hand.orders), [1], "first");
    // A guest whose first pass shows it is copied alone from then on.
    let mut other = Hand::ready(&[start(0, 60), start(2, 40)], &[1, 3]);
    let sample = |writes| Sample {
        round: 0,
        copied_bytes: GIB,
        left_bytes: 50 * GIB,
        bytes_per_s: 1.1e9,
        write_bytes_per_s: writes,
    };
    assert_eq!(copies(&other.orders), [0]);
    other.now = other.now + Duration::from_secs(1);
    let mut slow = other.clone();
    let tell =
        |hand: &mut Hand, writes| hand.tell(Event::Progress { guest: guest(0), sample: sample(writes) });
    assert_eq!(copies(&tell(&mut other, Some(0.8e9))), []);
    assert_eq!(copies(&tell(&mut slow, Some(0.01e9))), [2]);
    hand.now = hand.now + Duration::from_secs(12);
    let orders = hand.measured(1, 1, GIB, 1.0e9, 0.8e9);
    assert_eq!(copies(&orders), [], "nor where it leaves half of the links");
    let mut ends = hand.clone();
    assert_eq!(copies(&ends.measured(1, 2, 0, 1.0e9, 0.8e9)).len(), 1, "its blackout leaves a gap");
    assert_eq!(copies(&hand.tell(Event::Moved { guest: guest(1) })).len(), 1);
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
