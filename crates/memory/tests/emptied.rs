//! Pages that were written and whose page-table entry the kernel emptied: every scan must report them. Needs root.
//! lab/tests/rdma.rs runs these on Linux 6.12 too.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::undocumented_unsafe_blocks,
    reason = "a test program: its helpers fail by panic, and its unsafe calls are system calls on live locals"
)]

mod common;

use common::{Guest, PAGE, scan};
use linerate_memory::{Mapping, Tracker};

/// Small pages in a huge one.
const HUGE: u64 = 512;
const SIZE: u64 = 8 * HUGE * PAGE;

/// A guest whose pages are all written and protected, in huge pages where it says so.
fn tracked(huge: bool) -> (Guest, Tracker) {
    let mut guest = Guest::start(SIZE, &[]);
    guest.command(&format!("write 0 {}", SIZE / PAGE));
    if huge {
        guest.command("collapse");
    }
    let (tracker, _) = Tracker::attach(guest.pid(), &[guest.block()], &[]).unwrap();
    tracker.protect().unwrap();
    (guest, tracker)
}

/// Written pages are reported, once; written again they are reported again. Others are not missed meanwhile.
fn reports(guest: &mut Guest, tracker: &Tracker, written: &[(u64, u64)]) {
    let covers = |found: &[(u64, u64)]| {
        written
            .iter()
            .all(|(page, _)| found.iter().any(|(first, count)| (*first..first + count).contains(page)))
    };
    let (peeked, cleared) = (scan(tracker, false), scan(tracker, true));
    assert!(covers(&peeked) && covers(&cleared), "{written:?} written, {peeked:?} and {cleared:?} found");
    assert!(!covers(&scan(tracker, true)), "cleared");
    for (page, _) in written {
        guest.command(&format!("write {page} 1"));
    }
    assert!(covers(&scan(tracker, true)), "written again");
    guest.command("verify");
}

#[test]
fn written_pages_are_reported_after_a_hole_in_their_huge_page() {
    let (mut guest, tracker) = tracked(true);
    for (page, hole) in [(7, 100), (HUGE + 300, HUGE + 299), (3 * HUGE, 3 * HUGE + 511)] {
        guest.command(&format!("write {page} 1"));
        guest.punch(hole, 1);
    }
    reports(&mut guest, &tracker, &[(7, 1), (HUGE + 300, 1), (3 * HUGE, 1)]);
}

#[test]
fn written_pages_are_reported_after_they_became_a_huge_page() {
    let (mut guest, tracker) = tracked(false);
    let written = [(7, 1), (300, 1), (5 * HUGE + 1, 1)];
    written.iter().for_each(|(page, _)| guest.command(&format!("write {page} 1")));
    guest.command("collapse protected");
    reports(&mut guest, &tracker, &written);
}

#[test]
fn written_pages_are_reported_after_their_mapping_was_reclaimed() {
    for huge in [false, true] {
        let (mut guest, tracker) = tracked(huge);
        let written = [(7, 1), (300, 1), (5 * HUGE + 1, 1)];
        written.iter().for_each(|(page, _)| guest.command(&format!("write {page} 1")));
        guest.command("reclaim");
        reports(&mut guest, &tracker, &written);
    }
}

#[test]
fn written_pages_are_reported_where_a_huge_page_came_back_after_a_balloon() {
    let (mut guest, tracker) = tracked(false);
    let mapping = Mapping::new(&guest.block()).unwrap();
    // Written, so that no protection is left to keep the page table alive, and given back as QEMU's balloon does it.
    guest.command(&format!("write {HUGE} {HUGE}"));
    guest.punch(HUGE, HUGE);
    guest.command(&format!("forget {HUGE} {HUGE}"));
    let all = linerate_core::Run { offset: HUGE * PAGE, length: HUGE * PAGE };
    mapping.wipe(all).unwrap();
    assert!(mapping.is_whole(all).unwrap());
    // As khugepaged does it for another process that maps the file, such as the agent.
    let mut other = Guest::start_at(&guest.path, SIZE, &[], None);
    other.command("load 0 4096");
    other.command("collapse");
    guest.command(&format!("write {} 1", HUGE + 7));
    guest.punch(HUGE + 100, 1);
    reports(&mut guest, &tracker, &[(HUGE + 7, 1)]);
}

#[test]
fn a_clean_page_that_was_given_back_is_a_hole_that_is_found() {
    let (mut guest, tracker) = tracked(true);
    let mapping = Mapping::new(&guest.block()).unwrap();
    let seen = guest.block().populated(&mapping).unwrap();
    guest.punch(100, 1);
    guest.command("forget 100 1");
    let holes = mapping.holes_among(&seen).unwrap();
    assert_eq!(holes, [common::run(100, 1)]);
    assert_eq!(guest.block().holes_among(&mapping, &seen).unwrap(), holes);
    guest.command("write 100 1");
    assert_eq!(scan(&tracker, true), [(100, 1)]);
}
