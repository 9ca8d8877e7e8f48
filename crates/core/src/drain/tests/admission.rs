//! Which guest copies next, and what is learned from those that copy.

use super::*;

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
