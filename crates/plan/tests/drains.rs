//! Drains in the fleet simulation: against the bound, at a small scale, and with defects that must be noticed.

#![allow(clippy::panic, clippy::expect_used, clippy::unwrap_used)] // Tests say what they expect.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use linerate_core::drain::Event;
use linerate_core::fleet::{GroupId, Guest, GuestId, Host, HostId, Offer, Port};
use linerate_plan::fleet::mixes::{self, Ratios};
use linerate_plan::fleet::scale::{self, Fleet};
use linerate_plan::fleet::world::{Load, Times, World};
use linerate_plan::fleet::{Defect, Rule, Violation};

const GIB: u64 = 1 << 30;

#[test]
fn a_drain_is_close_to_the_bound_and_no_fixed_number_is_better() {
    let (mut controller, mut one, mut all, mut four) =
        (Ratios::default(), Ratios::default(), Ratios::default(), Ratios::default());
    for seed in 0..40 {
        let run = mixes::drain(seed, None);
        assert!(run.violations.is_empty(), "seed {seed}: {:?}", run.violations);
        controller.add(run.ratio_with_ends());
        let fixed = |at_once| mixes::drain(seed, Some(at_once)).ratio_with_ends();
        one.add(fixed(1));
        four.add(fixed(4));
        all.add(fixed(run.guests));
    }
    println!(
        "median {:.3}, one {:.3}, all {:.3}",
        controller.percentile(50),
        one.percentile(50),
        all.percentile(50)
    );
    assert!(controller.percentile(50) < 1.06, "median {}", controller.percentile(50));
    assert!(
        controller.mean() < one.mean() && controller.mean() < all.mean() && controller.mean() < four.mean()
    );
}

#[test]
fn rolling_drains_break_no_rule_and_leave_nobody_behind() {
    let fleet = Fleet { hosts: 200, guests_per_host: 12, at_once: 8, deaths: 4, seed: 1, defect: None };
    let report = scale::roll(&fleet);
    assert_eq!(report.violations, []);
    assert_eq!((report.drains, report.overfilled, report.left_behind), (200, 0, 0));
    assert!(report.outcomes["moved"] > 1500, "{:?}", report.outcomes);
}

/// Two hosts that are drained at the same time into three others, of which one dies; one drain is paused, the other
/// aborted near its end; one guest is kept; the store is away for a while.
fn rough(seed: u64, defect: Option<Defect>) -> Vec<Violation> {
    let mut world = World::new(seed, Times::default(), defect);
    let ports = |rate: f64| {
        vec![Port { network: "a".into(), bytes_per_s: rate }, Port { network: "b".into(), bytes_per_s: rate }]
    };
    let host = |gib: u64| Host {
        offer: Offer { ports: ports(1e9), ..Offer::default() },
        memory_bytes: gib * GIB,
        reserve_bytes: 2 * GIB,
    };
    let sources = [world.add_host(host(256), None), world.add_host(host(256), None)];
    let others: Vec<HostId> = [26, 28, 30, 34].iter().map(|gib| world.add_host(host(*gib), None)).collect();
    let cordoned = world.add_host(host(48), None);
    world.cordon(cordoned, true);
    let mut guests: Vec<GuestId> = Vec::new();
    for n in 0..16u64 {
        let copy_bytes = (2 + (n * 7 + seed) % 9) * GIB;
        let load = Load {
            copy_bytes,
            write_bytes_per_s: ((n + seed) % 5) as f64 * 4e7,
            working_set_bytes: copy_bytes / 10,
            limit_bytes_per_s: 1.2e9,
        };
        let guest = Guest { memory_bytes: copy_bytes + (GIB >> 2), ..Guest::default() };
        guests.push(world.add_guest(guest, sources[n as usize % 2], load));
    }
    let seconds = Duration::from_secs;
    let first = world.drain(sources[0], &BTreeSet::from([guests[0]]), None);
    let second = world.drain(sources[1], &BTreeSet::new(), None);
    world.tell_in(seconds(4 + seed % 9), first, Event::Pause);
    world.tell_in(seconds(24 + seed % 9), first, Event::Resume);
    world.store_is_away(seconds(30 + seed % 7), seconds(45));
    world.host_dies_in(seconds(2 + seed % 11), others[seed as usize % 4], seconds(100));
    if seed.is_multiple_of(3) {
        world.tell_in(seconds(12 + seed % 17), second, Event::Abort);
    }
    world.run(seconds(48 * 3600), |_| false);
    world.violations
}

#[test]
fn rough_drains_break_no_rule() {
    for seed in 0..100 {
        assert_eq!(rough(seed, None), [], "seed {seed}");
    }
}

#[test]
fn guests_of_a_group_that_fail_one_after_the_other_leave_together() {
    let mut world = World::new(1, Times::default(), None);
    let host = || Host {
        offer: Offer { ports: vec![Port { network: "a".into(), bytes_per_s: 1e9 }], ..Offer::default() },
        memory_bytes: 256 * GIB,
        reserve_bytes: 2 * GIB,
    };
    let [source, ..] = [0; 3].map(|_| world.add_host(host(), None));
    let copy_bytes = 32 * GIB;
    let load =
        Load { copy_bytes, write_bytes_per_s: 0.0, working_set_bytes: 0, limit_bytes_per_s: f64::INFINITY };
    let guest = || Guest { memory_bytes: copy_bytes, together: Some(GroupId(1)), ..Guest::default() };
    let guests = [0; 2].map(|_| world.add_guest(guest(), source, load));
    let drain = world.drain(source, &BTreeSet::new(), None);
    // By then one is copied and the other prepared.
    for (seconds, guest) in [6, 8].into_iter().zip(guests) {
        world.migration_fails_in(Duration::from_secs(seconds), guest);
    }
    world.run(Duration::from_secs(3600), |_| false);
    assert_eq!(world.violations, []);
    let drain = &world.drains[drain];
    assert_eq!(drain.outcomes, BTreeMap::from([("moved", 2)]));
    assert_eq!(drain.retries, 2, "no try is used up by waiting for the other");
    let [one, other] = guests.map(|guest| world.ledger.host_of(guest));
    assert!(one == other && one != Some(source), "{one:?} {other:?}");
}

/// Asserts that some seed breaks this rule with the defect.
#[track_caller]
fn noticed(defect: Defect, rule: Rule) {
    let breaks = |seed: &u64| rough(*seed, Some(defect)).iter().any(|violation| violation.rule == rule);
    assert!((0..100).any(|seed| breaks(&seed)), "{defect:?} goes unnoticed by {rule:?}");
}

#[test]
fn memory_that_is_not_reserved_or_given_up_early() {
    noticed(Defect::NotReserved, Rule::MemoryCap);
    noticed(Defect::ReleasedEarly, Rule::MemoryCap);
    noticed(Defect::ReleasedEarly, Rule::Admitted);
}

#[test]
fn a_guest_that_is_copied_without_an_order() {
    noticed(Defect::CopiedUnasked, Rule::Admitted);
}

#[test]
fn a_session_that_goes_on_after_its_end_was_reported() {
    noticed(Defect::CancelLies, Rule::OneSession);
}

#[test]
fn a_guest_that_was_to_stay() {
    noticed(Defect::KeepForgotten, Rule::Kept);
}

#[test]
fn a_cordoned_host_that_gets_guests() {
    noticed(Defect::CordonForgotten, Rule::Cordon);
}

#[test]
fn a_pause_and_a_lost_store_that_stop_nothing() {
    noticed(Defect::PauseLost, Rule::Quiet);
    noticed(Defect::StoreLossNotReported, Rule::Quiet);
}

#[test]
fn arrivals_that_are_not_reported() {
    noticed(Defect::MovedNotReported, Rule::Ends);
}

#[test]
fn reservations_that_are_not_given_up() {
    noticed(Defect::ReleaseLost, Rule::NothingLeft);
}

#[test]
fn a_guest_that_is_left_because_its_destination_died() {
    noticed(Defect::LossBlamedOnGuest, Rule::LeftForAReason);
}
