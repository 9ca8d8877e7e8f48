//! Guests that are prepared before the links have room for them.

use super::*;

fn prepares(orders: &[Order]) -> Vec<u32> {
    let guest = |order: &Order| if let Order::Prepare { guest, .. } = order { Some(guest.0) } else { None };
    orders.iter().filter_map(guest).collect()
}

#[test]
fn at_first_two_guests_are_prepared_and_one_that_takes_long_does_not_keep_others_back() {
    // Small guests: four of them last less than the time that preparing one is taken to need.
    let mut hand = Hand::new(&(0..8).map(|n| start(n, 1)).collect::<Vec<_>>());
    (0..8).for_each(|n| drop(hand.placed(n, 0, 2e9)));
    assert_eq!(prepares(&hand.orders).len(), 2);
    assert_eq!(hand.controller.next_timer(), Some(hand.now + Duration::from_secs(4)));
    assert_eq!(prepares(&hand.after(3.9)), []);
    assert_eq!(prepares(&hand.after(0.1)).len(), 2, "the first two are late");
    // One that was prepared in 4.5 s says how many are prepared ahead: 6.75 s of the links, 13.5 GB.
    hand.now = hand.now + Duration::from_millis(500);
    let first = prepares(&hand.orders)[0];
    assert!(prepares(&hand.prepared(first)).len() > 2);
}

#[test]
fn at_first_two_guests_are_prepared_at_each_destination() {
    let mut hand = Hand::new(&(0..9).map(|n| start(n, 1)).collect::<Vec<_>>());
    (0..9).for_each(|n| drop(hand.placed(n, n % 3, 2e9)));
    let (mut there, mut count) = ([0; 3], 0);
    for order in &hand.orders {
        if let Order::Prepare { host, .. } = order {
            (there[host.0 as usize], count) = (there[host.0 as usize] + 1, count + 1);
        }
    }
    assert!(there.iter().all(|count| (1..=2).contains(count)) && count > 2, "{there:?}");
}

/// What one guest reaches is not known before one was measured: preparing the others then takes seconds in which fast
/// links stay empty.
#[test]
fn at_first_as_many_guests_are_prepared_as_fill_fast_links() {
    let prepared_over = |bytes_per_s: f64| {
        let mut hand = Hand::over(&[bytes_per_s], &(0..9).map(|n| start(n, 100)).collect::<Vec<_>>());
        (0..9).for_each(|n| drop(hand.placed(n, n % 3, bytes_per_s)));
        prepares(&hand.orders).len()
    };
    assert_eq!(prepared_over(1.2e9), 1, "100 GB over 10 Gb/s");
    assert_eq!(prepared_over(5e9), 3, "the same guests over 40 Gb/s");
}
