//! Copied disks with a guest whose RAM goes in the hypervisor's own streams.

use std::time::Duration;

use super::stream_tests::{ALL, At::Streaming, Driver};
use super::*;
use crate::policy::Limits;
use crate::statistics::{Disks, Streamed};

fn disks(done_bytes: u64, total_bytes: u64, carried_bytes: u64) -> Event {
    Event::Disks(Disks {
        total_bytes,
        done_bytes,
        carried_bytes,
        bytes_per_s: 1e6,
        scanning_allocation: false,
    })
}

#[test]
fn a_large_disk_whose_use_is_looked_for_is_no_stall_but_not_without_end() {
    let mut driver = Driver::at(Streaming);
    let searches = |carried| {
        let disks = Disks {
            total_bytes: 7,
            done_bytes: 7,
            carried_bytes: carried,
            bytes_per_s: 1e6,
            scanning_allocation: true,
        };
        Event::Disks(disks)
    };
    for _ in 0..2 * 599 {
        driver.wait(Duration::from_millis(500));
        driver.handle(searches(1));
        assert_eq!(driver.fault(), None);
    }
    // Zeros are written, and it is looked for again.
    for second in 0..600 {
        assert_eq!(driver.fault(), None, "after {second} s");
        driver.wait(Duration::from_secs(1));
        driver.handle(searches(2));
    }
    for _ in 0..31 {
        driver.wait(Duration::from_secs(1));
        driver.handle(searches(2));
    }
    assert_eq!(driver.fault().map(|fault| fault.code), Some(Code::PeerLost));
}

#[test]
fn disks_that_are_copied_before_ram_are_no_round_and_their_time_is_not_the_first_passes() {
    let mut driver = Driver::at(Streaming);
    for done in [0, 5, 9] {
        driver.wait(Duration::from_secs(1));
        driver.handle(disks(done, 9, done));
    }
    assert!(driver.machine.statistics().rounds.is_empty());
    driver.handle(Event::Streamed(Streamed { remaining_bytes: 100, ..Streamed::default() }));
    driver.wait(Duration::from_secs(2));
    driver.handle(disks(10, 10, 50));
    driver.handle(Event::Streamed(Streamed { round: 1, carried_bytes: 60, ..Streamed::default() }));
    let statistics = driver.machine.statistics();
    assert_eq!(statistics.disks.map(|disks| (disks.done_bytes, disks.left_bytes())), Some((10, 0)));
    assert_eq!(statistics.disks_only_phase, Duration::from_secs(3));
    assert_eq!(statistics.rounds[0].took, Some(Duration::from_secs(2)));
}

#[test]
fn disks_without_progress_fail_after_the_limit_however_much_the_guest_writes() {
    let mut driver = Driver::at(Streaming);
    for second in 0..29 {
        driver.wait(Duration::from_secs(1));
        driver.handle(disks(1, 100 + second, 1));
        assert_eq!(driver.fault(), None, "after {second} s");
    }
    driver.handle(disks(2, 200, 1));
    for second in 0..29 {
        driver.wait(Duration::from_secs(1));
        driver.handle(disks(2, 200 + second, 1));
        assert_eq!(driver.fault(), None, "after {second} s");
    }
    driver.wait(Duration::from_secs(2));
    assert_eq!(driver.fault().map(|fault| fault.code), Some(Code::PeerLost));
}

/// A driver whose guest writes `written` bytes of its disks each second, of which `carried` are sent.
/// The driver, and after how many seconds the migration is given up.
fn given_up_after(limits: Limits, written: u64, carried: u64, seconds: u64) -> (Driver, Option<u64>) {
    let mut driver = Driver::new(limits);
    ALL.into_iter().take_while(|at| *at <= Streaming).for_each(|at| drop(driver.step(at)));
    let (mut done, mut total) = (0, 100);
    for second in 0..seconds {
        driver.wait(Duration::from_secs(1));
        driver.handle(disks(done, total, done));
        if driver.fault().is_some() {
            return (driver, Some(second));
        }
        // What is written again before it is copied is no more to copy.
        total = (total + written).min(done + 100);
        done = (done + carried).min(total);
    }
    (driver, None)
}

#[test]
fn disks_that_the_guest_writes_too_fast_are_given_up_after_so_many_passes() {
    let limits = Limits { rounds_max: 3, ..Limits::default() };
    let (driver, after) = given_up_after(limits.clone(), 60, 50, 1000);
    let fault = driver.fault().unwrap();
    assert_eq!((fault.code, fault.step, fault.side), (Code::NotConverging, Step::Copy, Side::Source));
    assert!(fault.detail.contains("after 4 passes") && fault.detail.contains("--throttle"), "{fault}");
    // One pass of 100 bytes and three of the 50 that are left, at 50 a second.
    assert_eq!(after, Some(5));
    assert_eq!(driver.machine.statistics().disk_pass, 4);
    assert_eq!(driver.machine.statistics().disk_write_bytes_per_s.map(f64::round), Some(50.0));
    let patient = Limits { rounds_max: 30, ..limits };
    assert_eq!(given_up_after(patient.clone(), 60, 50, 1000).1, Some(32));
    assert_eq!(given_up_after(patient, 60, 50, 32).1, None);
}

#[test]
fn disks_are_not_given_up_for_what_the_guest_wrote_before_they_were_the_same_for_once() {
    let mut driver = Driver::new(Limits { rounds_max: 1, ..Limits::default() });
    ALL.into_iter().take_while(|at| *at <= Streaming).for_each(|at| drop(driver.step(at)));
    let mut copy = |done, total| {
        driver.wait(Duration::from_millis(100));
        driver.handle(disks(done, total, done));
    };
    copy(0, 0);
    // Many passes of moments, as they are when little is left.
    (1..9).for_each(|n| copy(n, n + 1));
    driver.handle(Event::Streamed(Streamed::default()));
    for n in 1..100 {
        driver.wait(Duration::from_secs(1));
        driver.handle(disks(100 * n, 100 * n + 50, 100 * n));
    }
    assert_eq!(driver.fault(), None, "RAM has rounds of its own");
}

/// At a million bytes a second, of which the blackout may have 300 000 and disks half of that.
fn beside_ram(limits: Limits) -> Driver {
    let mut driver = Driver::new(limits);
    ALL.into_iter().take_while(|at| *at <= Streaming).for_each(|at| drop(driver.step(at)));
    driver.handle(disks(1, 1, 1));
    driver
}

fn ram(round: u32, remaining_bytes: u64) -> Event {
    let expected_downtime = Some(Duration::from_millis(40));
    Event::Streamed(Streamed {
        round,
        remaining_bytes,
        bytes_per_s: 1e6,
        expected_downtime,
        ..Streamed::default()
    })
}

#[test]
fn what_is_left_of_disks_is_in_the_predicted_blackout() {
    let mut driver = beside_ram(Limits::default());
    driver.handle(disks(100_000, 110_000, 1));
    driver.handle(ram(0, 1));
    assert_eq!(driver.machine.statistics().predicted_blackout, Some(Duration::from_millis(50)));
    driver.handle(disks(100_000, 2_100_000, 1));
    driver.handle(ram(0, 1));
    assert_eq!(driver.machine.statistics().predicted_blackout, Some(Duration::from_millis(2040)));
}

#[test]
fn rounds_in_which_only_disks_keep_ram_from_its_end_do_not_count() {
    let limits = Limits { rounds_max: 3, ..Limits::default() };
    for (left, given_up) in [(150_000, true), (150_001, false)] {
        let mut driver = beside_ram(limits.clone());
        for round in 0..9 {
            driver.handle(disks(1, 1 + left, u64::from(round)));
            driver.handle(ram(round, 1));
        }
        assert_eq!(driver.fault().is_some(), given_up, "{left}");
    }
}

#[test]
fn disks_that_keep_ram_from_its_end_are_given_up_after_so_many_passes() {
    let passes = |ram_left: u64, disks_left: u64| {
        let mut driver = beside_ram(Limits { rounds_max: 3, ..Limits::default() });
        driver.handle(ram(0, ram_left));
        let over = (1..100).find(|nth| {
            driver.wait(Duration::from_secs(1));
            driver.handle(disks(nth * disks_left, (nth + 1) * disks_left, *nth));
            driver.handle(ram(0, ram_left));
            driver.fault().is_some()
        });
        over.map(|_| driver.fault().map(|fault| fault.code))
    };
    assert_eq!(passes(1, 200_000), Some(Some(Code::NotConverging)));
    assert_eq!(passes(1, 100_000), None, "it fits");
    assert_eq!(passes(5_000_000, 200_000), None, "RAM has so much left that disks may still come down");
}
