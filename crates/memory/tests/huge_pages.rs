//! RAM in explicit huge pages: what a tracker sees of it, and how holes are treated. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::undocumented_unsafe_blocks,
    reason = "a test program: its helpers fail by panic, and its unsafe calls are system calls on live locals"
)]

mod common;

use std::fs::File;
use std::path::{Path, PathBuf};

use common::{Guest, PAGE, run, scan};
use linerate_memory::{Backing, Mapping, Tracker};

/// Small pages in a huge one.
const HUGE: u64 = 512;
const SIZE: u64 = 16 * HUGE * PAGE;
/// Surplus pages that the machine may give out: taken from free memory when they are touched.
const LIMIT: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages";

/// More huge pages, for as long as it is there.
struct HugePages(u64);

impl HugePages {
    fn allow(count: u64) -> HugePages {
        change(|limit| limit + count);
        HugePages(count)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        change(|limit| limit.saturating_sub(self.0));
    }
}

fn change(by: impl Fn(u64) -> u64) {
    let _lock = lock();
    let limit: u64 = std::fs::read_to_string(LIMIT).unwrap().trim().parse().unwrap();
    std::fs::write(LIMIT, by(limit).to_string()).unwrap();
}

/// Labs of other test programs change the limit too: all of them hold this lock of theirs meanwhile.
fn lock() -> File {
    let folder =
        std::env::var_os("LINERATE_LAB_DIR").map_or_else(|| "/var/tmp/linerate-lab".into(), PathBuf::from);
    std::fs::create_dir_all(&folder).unwrap();
    let file = File::create(folder.join("huge-pages.lock")).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    file
}

fn guest() -> Guest {
    let guest = Guest::start_at(Path::new("memfd:hugetlb-ram"), SIZE, &[], None);
    assert_eq!(guest.block().backing(), Backing::Hugetlbfs);
    guest
}

// One program, one test: the limit is the machine's.
#[test]
fn writes_are_seen_huge_page_by_huge_page_and_holes_stay_holes() {
    let _pages = HugePages::allow(SIZE / PAGE / HUGE);
    a_tracker_sees_the_huge_pages_that_were_written();
    holes_are_neither_filled_nor_sent();
    huge_pages_that_were_given_back_are_reported();
}

/// The kernel does not call them written, and the file does not say that they are holes.
fn huge_pages_that_were_given_back_are_reported() {
    let mut guest = guest();
    guest.command(&format!("write 0 {}", 8 * HUGE));
    let (tracker, _) = Tracker::attach(guest.pid(), &[guest.block()], &[]).unwrap();
    tracker.protect().unwrap();
    let scan = || scan(&tracker, true);
    assert_eq!(scan(), [], "pages that were never there are protected too");
    guest.command(&format!("write {} 1", 2 * HUGE));
    // One clean, one written, each as QEMU's balloon gives it back.
    for page in [2 * HUGE, 5 * HUGE] {
        guest.punch(page, HUGE);
        guest.command(&format!("forget {page} {HUGE}"));
    }
    assert_eq!(scan(), [(2 * HUGE, HUGE), (5 * HUGE, HUGE)]);
    // What was written has no protection left and is reported as long as it has not come back and been cleared.
    guest.command(&format!("write {} 1", 2 * HUGE));
    assert_eq!(scan(), [(2 * HUGE, HUGE)]);
    assert_eq!(scan(), []);
    guest.command(&format!("load {} 1", 5 * HUGE));
    assert_eq!(scan(), [], "zeroes, as they were reported");
    guest.punch(5 * HUGE, HUGE);
    assert_eq!(scan(), [(5 * HUGE, HUGE)], "given back again");
    assert_eq!(scan(), []);
}

fn a_tracker_sees_the_huge_pages_that_were_written() {
    let mut guest = guest();
    guest.command("write 0 1024");
    let (tracker, _) = Tracker::attach(guest.pid(), &[guest.block()], &[]).unwrap();
    let scan = || scan(&tracker, true);
    tracker.protect().unwrap();
    assert_eq!(scan(), []);
    // There before; never touched before; both sides of a border. Loads are no writes.
    guest.command("write 700 1");
    guest.command(&format!("write {} 1", 5 * HUGE + 3));
    guest.command(&format!("write {} 2", 9 * HUGE - 1));
    guest.command("load 3 1");
    assert_eq!(scan(), [(HUGE, HUGE), (5 * HUGE, HUGE), (8 * HUGE, 2 * HUGE)]);
    assert_eq!(scan(), []);
    guest.command("write 701 1");
    guest.command(&format!("pipe {}", 6 * HUGE));
    assert_eq!(scan(), [(HUGE, HUGE), (6 * HUGE, HUGE)], "seen again, and what the kernel writes too");
    tracker.detach().unwrap();
    assert!(!guest.is_watched());
    guest.command("write 0 1024");
}

fn holes_are_neither_filled_nor_sent() {
    let mut guest = guest();
    let mapping = Mapping::new(&guest.block()).unwrap();
    guest.command("write 0 1");
    guest.command(&format!("write {} 1", 3 * HUGE + 7));
    let two = 2 * HUGE * PAGE;
    assert_eq!(mapping.resident_bytes().unwrap(), two);
    let (mut data, mut zero) = (Vec::new(), Vec::new());
    let all = guest.block().populated(&mapping).unwrap();
    mapping.split_zero(&all, &mut data, &mut zero).unwrap();
    assert_eq!(data, [run(0, 1), run(3 * HUGE + 7, 1)], "only what is not zero is sent");
    mapping.digest(1).unwrap();
    assert_eq!(mapping.resident_bytes().unwrap(), two, "asking fills nothing");
    // A part of a page becomes zero, a whole one a hole, and a hole stays one.
    mapping.clear(run(0, 1)).unwrap();
    mapping.clear(run(9 * HUGE + 1, 100)).unwrap();
    assert_eq!(mapping.resident_bytes().unwrap(), two);
    mapping.clear(run(3 * HUGE, HUGE)).unwrap();
    assert_eq!(mapping.resident_bytes().unwrap(), two / 2);
    (data, zero) = (Vec::new(), Vec::new());
    mapping.split_zero(&all, &mut data, &mut zero).unwrap();
    assert_eq!((data, zero), (Vec::new(), all));
}
