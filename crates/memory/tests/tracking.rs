//! What a tracker sees and what it leaves behind. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::undocumented_unsafe_blocks,
    reason = "a test program: its helpers fail by panic, and its unsafe calls are system calls on live locals"
)]

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;

use common::{Guest, PAGE, Shm, in_pages, run};
use linerate_memory::{AttachError, Mapping, TrackError, Tracker};

const SIZE: u64 = 64 << 20;

fn scan(tracker: &Tracker) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let report = tracker.scan(true, &mut found).unwrap();
    let pages = in_pages(&found);
    assert_eq!(report.pages, pages.iter().map(|(_, pages)| pages).sum::<u64>());
    pages
}

/// A thread that waits for work is preferred to the main one; on a busy machine it may not wait yet.
fn attach_to_a_waiting_thread(guest: &Guest) -> Tracker {
    for _ in 0..1200 {
        let (tracker, report) = Tracker::attach(guest.pid(), &[guest.block()], &[]).unwrap();
        if report.thread != guest.pid() {
            return tracker;
        }
        tracker.detach().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("the main thread was taken each time, although another waits for work");
}

#[test]
fn sees_exactly_the_pages_that_were_written() {
    let mut guest = Guest::start(SIZE, &[]);
    guest.command("write 0 100");
    let tracker = attach_to_a_waiting_thread(&guest);
    tracker.protect().unwrap();
    assert_eq!(scan(&tracker), []);
    // Written before and after, never touched, at both ends; loads are no writes.
    guest.command("write 10 3");
    guest.command("write 5000 1");
    guest.command(&format!("write {} 1", SIZE / PAGE - 1));
    guest.command("load 20 60");
    guest.command("load 7000 10");
    let mut peeked = Vec::new();
    tracker.scan(false, &mut peeked).unwrap();
    let written = [(10, 3), (5000, 1), (SIZE / PAGE - 1, 1)];
    assert_eq!(in_pages(&peeked), written);
    assert_eq!(scan(&tracker), written, "peeking clears nothing");
    assert_eq!(scan(&tracker), []);
    guest.command("write 10 1");
    assert_eq!(scan(&tracker), [(10, 1)], "a cleared page is seen again");
    guest.command("verify");
}

#[test]
fn what_a_process_touched_is_distinguished_from_what_others_filled() {
    let mut guest = Guest::start(SIZE, &[]);
    let block = guest.block();
    assert_eq!(block.touched().unwrap(), []);
    let data = vec![7; 300 * PAGE as usize];
    block.file().write_all_at(&data, 1000 * PAGE).unwrap();
    guest.command("write 10 3");
    guest.command("write 1100 1");
    let pages: Vec<(u64, u64)> =
        block.touched().unwrap().iter().map(|run| (run.offset / PAGE, run.length / PAGE)).collect();
    assert!(pages.iter().any(|&(at, count)| at <= 10 && at + count >= 13), "{pages:?}");
    assert!(pages.iter().any(|&(at, count)| at <= 1100 && at + count > 1100), "{pages:?}");
    assert!(
        pages.iter().map(|(_, count)| count).sum::<u64>() < 100,
        "filled by us, not by the guest: {pages:?}"
    );
}

#[test]
fn what_a_block_holds_is_reported_for_every_writer_and_protected_or_not() {
    let mut guest = Guest::start(SIZE, &[]);
    let block = guest.block();
    let mapping = Mapping::new(&block).unwrap();
    assert_eq!(block.populated(&mapping).unwrap(), []);
    block.file().write_all_at(&vec![7; 300 * PAGE as usize], 1000 * PAGE).unwrap();
    guest.command("write 10 3");
    guest.command("write 1100 1");
    guest.command(&format!("write {} 1", SIZE / PAGE - 1));
    let expected = mapping.populated().unwrap();
    assert_eq!(expected.len(), 3, "{expected:?}");
    assert_eq!(block.populated(&mapping).unwrap(), expected);
    let tracker = attach_to_a_waiting_thread(&guest);
    tracker.protect().unwrap();
    assert_eq!(block.populated(&mapping).unwrap(), expected, "protection makes entries for holes too");
    let all = [common::run(0, SIZE / PAGE)];
    assert_eq!(block.holes_among(&mapping, &all).unwrap(), mapping.holes_among(&all).unwrap());
    assert_eq!(block.holes_among(&mapping, &expected).unwrap(), []);
    assert_eq!(mapping.populated().unwrap(), expected, "asking fills nothing");
    guest.kill();
    assert_eq!(block.populated(&mapping).unwrap(), expected, "the file is asked when the process has ended");
}

#[test]
fn made_ram_is_new_and_its_own() {
    let shm = Shm::new();
    let made = Mapping::make(&shm.0, SIZE).unwrap();
    assert_eq!((made.size(), made.resident_bytes().unwrap()), (SIZE, 0));
    assert!(Mapping::make(&shm.0, SIZE).is_err(), "never over a file that is there");
    let guest = Guest::start_at(&shm.0, SIZE, &[], None);
    assert!(made.shows(&guest.block()).unwrap());
    let other = Guest::start(SIZE, &[]);
    assert!(!made.shows(&other.block()).unwrap());
}

#[test]
fn sees_what_the_kernel_writes_for_the_guest() {
    let mut guest = Guest::start(SIZE, &[]);
    guest.command("write 0 100");
    let block = guest.block();
    let address = block.segments()[0].address;
    let (tracker, _) = Tracker::attach(guest.pid(), &[block], &[]).unwrap();
    tracker.protect().unwrap();
    guest.command("pipe 7");
    guest.command("pipe 9000");
    let bytes = [1u8; 16];
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: 16 };
    let remote = libc::iovec { iov_base: (address + 50 * PAGE - 8) as *mut libc::c_void, iov_len: 16 };
    let moved = unsafe { libc::process_vm_writev(guest.pid(), &local, 1, &remote, 1, 0) };
    assert_eq!(moved, 16);
    assert_eq!(scan(&tracker), [(7, 1), (49, 2), (9000, 1)]);
}

#[test]
fn several_threads_find_the_same_as_one() {
    let mut guest = Guest::start(3 << 30, &[]);
    let pages = (3 << 30) / PAGE;
    let (mut tracker, _) = Tracker::attach(guest.pid(), &[guest.block()], &[]).unwrap();
    for threads in [1, 3, 8] {
        tracker.set_threads(threads);
        tracker.protect().unwrap();
        let border = (1 << 30) / PAGE;
        let writes = [(3, 2), (border - 1, 2), (2 * border, 1), (pages - 1, 1)];
        writes.iter().for_each(|(first, count)| guest.command(&format!("write {first} {count}")));
        let mut found: Vec<u64> = Vec::new();
        scan(&tracker).iter().for_each(|(first, count)| found.extend(*first..first + count));
        let expected: Vec<u64> = writes.iter().flat_map(|(first, count)| *first..first + count).collect();
        assert_eq!(found, expected, "{threads} threads");
    }
}

#[test]
fn several_blocks_are_distinguished() {
    let mut guest = Guest::start(SIZE, &[]);
    let blocks = [guest.block(), guest.block()];
    let (tracker, _) = Tracker::attach(guest.pid(), &blocks[1..], &[]).unwrap();
    tracker.protect().unwrap();
    guest.command("write 1 1");
    let mut found = Vec::new();
    tracker.scan(true, &mut found).unwrap();
    assert_eq!(found, [(0, run(1, 1))]);
}

#[test]
fn a_memfd_works_like_a_file() {
    let mut guest = Guest::start_at(Path::new("memfd:guest-ram"), SIZE, &[], None);
    let (tracker, _) = Tracker::attach(guest.pid(), &[guest.block()], &[]).unwrap();
    tracker.protect().unwrap();
    guest.command("write 77 2");
    assert_eq!(scan(&tracker), [(77, 2)]);
}

#[test]
fn detaching_and_dropping_leave_nothing() {
    // Its protection is taken off in several pieces.
    let mut guest = Guest::start(4 * SIZE, &[]);
    guest.command("write 0 1000");
    let mappings = guest.mappings();
    let descriptors = guest.descriptors();
    for drops in [false, true, false, true] {
        let (tracker, _) = Tracker::attach(guest.pid(), &[guest.block()], &[]).unwrap();
        assert!(guest.is_watched());
        assert_eq!(guest.descriptors(), descriptors, "the descriptor must not stay in the guest's process");
        tracker.protect().unwrap();
        if drops {
            drop(tracker);
        } else {
            tracker.detach().unwrap();
        }
        assert!(!guest.is_watched());
        assert_eq!(guest.mappings(), mappings, "its mapping must not stay in pieces");
        guest.command("write 0 2000");
        guest.command("pipe 3000");
    }
}

#[test]
fn a_paused_guest_can_be_attached_to_and_stays_paused() {
    let mut guest = Guest::start(SIZE, &[]);
    guest.pause();
    let (tracker, _) = Tracker::attach(guest.pid(), &[guest.block()], &[]).unwrap();
    tracker.protect().unwrap();
    // A thread that a tracer lets go while its process is stopped runs inside of the kernel for a moment, to stop
    // again.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", guest.pid())).unwrap();
        if stat.contains(") T ") {
            break;
        }
        assert!(std::time::Instant::now() < end, "{stat}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    guest.resume();
    guest.command("write 5 1");
    assert_eq!(scan(&tracker), [(5, 1)]);
}

#[test]
fn the_end_of_the_guest_is_an_error_and_not_an_empty_scan() {
    let mut guest = Guest::start(SIZE, &["--threads", "2"]);
    let (tracker, _) = Tracker::attach(guest.pid(), &[guest.block()], &[]).unwrap();
    tracker.protect().unwrap();
    tracker.check_mapped().unwrap();
    let block = guest.block();
    guest.kill();
    assert!(matches!(tracker.scan(true, &mut Vec::new()), Err(TrackError::TargetEnded { .. })));
    assert!(matches!(tracker.protect(), Err(TrackError::TargetEnded { .. })));
    assert!(tracker.check_mapped().is_err());
    tracker.detach().unwrap();
    let again = Tracker::attach(guest.pid(), &[block], &[]);
    assert!(matches!(again, Err(AttachError::TargetEnded { .. })), "{again:?}");
}

#[test]
fn a_guest_killed_at_any_moment_is_an_error_and_no_panic() {
    let mut attached = 0;
    let moments = (0..30u64).map(|round| round * 150);
    // On a busy machine none of these leaves the time to attach.
    let later = (0..6u32).map(|round| 20_000 << round);
    for delay_us in moments.chain(later) {
        if delay_us >= 20_000 && attached > 0 {
            break;
        }
        let mut guest = Guest::start(SIZE, &["--threads", "2"]);
        let (pid, block) = (guest.pid(), guest.block());
        let agent = std::thread::spawn(move || {
            let Ok((tracker, _)) = Tracker::attach(pid, &[block], &[]) else { return false };
            while tracker.protect().is_ok() && tracker.scan(true, &mut Vec::new()).is_ok() {}
            let _ = tracker.detach();
            true
        });
        std::thread::sleep(std::time::Duration::from_micros(delay_us));
        guest.kill();
        attached += u32::from(agent.join().unwrap());
    }
    assert!(attached > 0, "no guest was attached to before it was killed");
}
