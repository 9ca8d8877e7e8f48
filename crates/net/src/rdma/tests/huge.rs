//! Windows whose holes were filled with huge pages.

use std::fs;

use super::super::verbs::Access;
use super::*;

const SWITCH: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// Memory files get huge pages until this is dropped.
pub(super) struct HugePages(String);

impl HugePages {
    pub(super) fn on() -> HugePages {
        let choices = fs::read_to_string(SWITCH).unwrap();
        let chosen = choices.split(['[', ']']).nth(1).unwrap().to_owned();
        fs::write(SWITCH, "always").unwrap();
        HugePages(chosen)
    }

    /// Huge pages that memory files have got since the start. `ShmemHugePages` of /proc/meminfo is late.
    fn taken() -> u64 {
        let text = fs::read_to_string("/proc/vmstat").unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("thp_file_alloc ")).unwrap();
        count.parse().unwrap()
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = fs::write(SWITCH, &self.0);
    }
}

/// The kernel splits no huge page whose memory is registered: a hole that is punched there gives nothing back.
#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn holes_stay_holes_where_registering_filled_them_with_huge_pages() {
    let _link = link();
    // The last two are claimed ahead, and nothing comes.
    let size = 10 * WINDOW_BYTES;
    let ((source, _), (landed, table)) = (region(size), region(size));
    for window in 0..8 {
        source.store(window * WINDOW_BYTES + window * 5 * PAGE, &[window as u8 + 1; PAGE as usize]).unwrap();
    }
    let _huge = HugePages::on();
    let before = HugePages::taken();
    let mut channel = Channel::open(patient(), &table);
    let frames = send_all(&mut channel, &source, 128 * PAGE);
    assert_eq!(channel.acknowledged_or_done(frames), []);
    // Not all of them are huge where memory is in pieces.
    assert!(HugePages::taken() > before, "registering took small pages only");
    channel.regions.seal();
    assert_eq!(landed.populated().unwrap(), 8 * PAGE);
    assert!(landed.snapshot().unwrap() == source.snapshot().unwrap());
}

/// Registering it again would fill its holes behind the seal's back.
#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn a_released_window_is_not_registered_again_and_none_is_left_behind_its_domain() {
    let _link = link();
    let (landed, _) = region(2 * WINDOW_BYTES);
    let mapped = landed.mapped().unwrap();
    let (source, destination) = connected(&patient());
    let window = |number| run(number * WINDOW_BYTES, WINDOW_BYTES);
    let register = |number| destination.domain.register(mapped, window(number), Access::RemoteWrite);
    let [first, second] = [0, 1].map(|number| Arc::downgrade(&register(number).unwrap()));
    let registrations = destination.domain.registrations();
    registrations.release(mapped, window(0));
    assert!(first.upgrade().is_none() && second.upgrade().is_some());
    assert!(matches!(register(0), Err(RdmaError::ClosedHere)));
    // The thread that seals may hold the windows for longer than their device is open.
    drop((source, destination));
    assert!(second.upgrade().is_none());
    registrations.release(mapped, window(1));
}
