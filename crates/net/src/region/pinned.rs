//! A destination's region that adapters write into: keeps holes holes although registered memory has none.
//!
//! Registering memory with an adapter fills its holes and nails its pages down: a page that is punched out later is no
//! longer the one that the adapter writes to. So, for every *held* window (2 MiB, the unit of registration):
//!
//! * clearing a run writes zeroes instead of punching a hole;
//! * a bit says of each page that nothing should be there: it was a hole when the window was first held, or was
//!   cleared, and no data has come since;
//! * when no adapter can write any more, and before anybody else does, pages with the bit are punched out.
//!
//! All channels of a session go through this, TCP too, because a page may come over either.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use linerate_core::{PAGE_BYTES, Run};

use super::{Mapped, Region};
use linerate_lock::RwLock;

/// Bytes that are registered at a time. docs/rdma.md has the measurement that chose it.
pub const WINDOW_BYTES: u64 = 2 << 20;
const WORD_PAGES: u64 = 64;
const WORDS: usize = (WINDOW_BYTES / PAGE_BYTES / WORD_PAGES) as usize;

/// One bit for each page: nothing should be there.
type Empty = [AtomicU64; WORDS];

pub struct PinnedRegion {
    inner: Arc<dyn Region>,
    /// By number of the window. Read during every call that writes, so that a window is not held in the middle of one.
    windows: RwLock<BTreeMap<u64, Box<Empty>>>,
}

/// The window that an offset is in, cut off at the region's end; `None` outside.
pub fn window_of(offset: u64, size: u64) -> Option<Run> {
    let start = offset - offset % WINDOW_BYTES;
    (offset < size).then(|| Run { offset: start, length: WINDOW_BYTES.min(size - start) })
}

/// Cuts a run at the borders of windows.
pub fn pieces(run: Run) -> impl Iterator<Item = Run> {
    let mut at = run.offset;
    std::iter::from_fn(move || {
        let end = run.end().min((at - at % WINDOW_BYTES).saturating_add(WINDOW_BYTES));
        let piece = (at < end).then(|| Run { offset: at, length: end - at })?;
        at = end;
        Some(piece)
    })
}

impl PinnedRegion {
    /// Nothing of it is held yet.
    pub fn new(inner: Arc<dyn Region>) -> PinnedRegion {
        PinnedRegion { inner, windows: RwLock::default() }
    }

    /// Makes these runs of a window holes. The kernel splits no huge page that is registered and only writes zeroes, so
    /// the window is released first. Small pages and whole huge pages need no release, which the blackout would pay
    /// for.
    fn punch(&self, window: Run, runs: &[Run], release: &dyn Fn(Run)) -> io::Result<()> {
        if let Some(first) = runs.first().filter(|first| first.length < WINDOW_BYTES) {
            let page = Run { length: first.length.min(PAGE_BYTES), ..*first };
            self.inner.clear(page)?;
            let mut holes = Vec::new();
            self.inner.holes(page, &mut holes)?;
            if holes.is_empty() {
                release(window);
            }
        }
        runs.iter().try_for_each(|run| self.inner.clear(*run))
    }

    fn mark(windows: &BTreeMap<u64, Box<Empty>>, runs: &[Run], empty: bool) {
        if windows.is_empty() {
            return;
        }
        for piece in runs.iter().flat_map(|run| pieces(*run)) {
            if let Some(bits) = windows.get(&(piece.offset / WINDOW_BYTES)) {
                set(bits, piece, empty);
            }
        }
    }
}

/// Sets or clears the bits of a piece inside one window.
fn set(bits: &Empty, piece: Run, empty: bool) {
    let first = piece.offset % WINDOW_BYTES / PAGE_BYTES;
    let behind = (piece.offset % WINDOW_BYTES + piece.length).div_ceil(PAGE_BYTES);
    for (word, bits) in bits.iter().enumerate() {
        let base = word as u64 * WORD_PAGES;
        let (from, to) = (first.clamp(base, base + WORD_PAGES), behind.clamp(base, base + WORD_PAGES));
        if from == to {
            continue;
        }
        let mask = (u64::MAX >> (WORD_PAGES - (to - from))) << (from - base);
        match empty {
            true => bits.fetch_or(mask, Ordering::SeqCst),
            false => bits.fetch_and(!mask, Ordering::SeqCst),
        };
    }
}

/// Runs of a window's pages whose bit is set, neighbours joined.
fn empty_runs(window: Run, bits: &Empty) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let words = bits.iter().enumerate().map(|(word, bits)| (word as u64, bits.load(Ordering::SeqCst)));
    for (word, bits) in words.filter(|(_, bits)| *bits != 0) {
        for page in (0..WORD_PAGES).filter(|page| bits >> page & 1 == 1) {
            let offset = window.offset + (word * WORD_PAGES + page) * PAGE_BYTES;
            let length = PAGE_BYTES.min(window.end().saturating_sub(offset));
            match runs.last_mut() {
                Some(last) if last.end() == offset => last.length += length,
                _ => runs.push(Run { offset, length }),
            }
        }
    }
    runs
}

impl Region for PinnedRegion {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn checksum_after(&self, before: u32, runs: &[Run]) -> io::Result<u32> {
        self.inner.checksum_after(before, runs)
    }

    fn split_zero(&self, runs: &[Run], data: &mut Vec<Run>, zero: &mut Vec<Run>) -> io::Result<()> {
        self.inner.split_zero(runs, data, zero)
    }

    fn send(&self, socket: BorrowedFd<'_>, head: &[u8], runs: &[Run], done: usize) -> io::Result<usize> {
        self.inner.send(socket, head, runs, done)
    }

    fn receive(&self, socket: BorrowedFd<'_>, runs: &[Run], done: usize) -> io::Result<usize> {
        // Held until the bytes are there: a window that is held in between would take their pages for holes.
        let windows = self.windows.read();
        PinnedRegion::mark(&windows, runs, false);
        self.inner.receive(socket, runs, done)
    }

    fn write(&self, run: Run, from: &[u8]) -> io::Result<()> {
        // Held until the bytes are there, as in `receive`.
        let windows = self.windows.read();
        PinnedRegion::mark(&windows, &[run], false);
        self.inner.write(run, from)
    }

    fn clear(&self, run: Run) -> io::Result<()> {
        let windows = self.windows.read();
        let mut free: Option<Run> = None;
        for piece in pieces(run) {
            match windows.get(&(piece.offset / WINDOW_BYTES)) {
                Some(bits) => {
                    self.inner.wipe(piece)?;
                    set(bits, piece, true);
                }
                None => match &mut free {
                    Some(last) if last.end() == piece.offset => last.length += piece.length,
                    _ => {
                        if let Some(done) = free.replace(piece) {
                            self.inner.clear(done)?;
                        }
                    }
                },
            }
        }
        free.map_or(Ok(()), |last| self.inner.clear(last))
    }

    fn populate(&self, runs: &[Run]) -> io::Result<()> {
        self.inner.populate(runs)
    }

    fn mapped(&self) -> Option<Mapped> {
        self.inner.mapped()
    }

    fn mapped_at(&self, run: Run) -> Option<(Mapped, Run)> {
        self.inner.mapped_at(run)
    }

    fn window(&self, offset: u64) -> Option<Run> {
        self.inner.window(offset)
    }

    fn read(&self, run: Run, to: &mut [u8]) -> io::Result<()> {
        self.inner.read(run, to)
    }

    fn placed(&self, runs: &[Run]) -> io::Result<()> {
        self.inner.placed(runs)
    }

    fn wipe(&self, run: Run) -> io::Result<()> {
        self.inner.wipe(run)
    }

    fn holes(&self, run: Run, holes: &mut Vec<Run>) -> io::Result<()> {
        self.inner.holes(run, holes)
    }

    fn is_whole(&self, run: Run) -> io::Result<bool> {
        self.inner.is_whole(run)
    }

    fn pin(&self, run: Run) -> io::Result<()> {
        let mut windows = self.windows.write();
        for piece in pieces(run) {
            let number = piece.offset / WINDOW_BYTES;
            let Some(window) = window_of(piece.offset, self.size()) else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            if windows.contains_key(&number) {
                continue;
            }
            let (bits, mut holes) = (Box::new(Empty::default()), Vec::new());
            self.inner.holes(window, &mut holes)?;
            holes.iter().for_each(|hole| set(&bits, *hole, true));
            windows.insert(number, bits);
        }
        Ok(())
    }

    fn written_by_adapter(&self, runs: &[Run]) {
        PinnedRegion::mark(&self.windows.read(), runs, false);
    }

    fn settle(&self, release: &dyn Fn(Run)) -> io::Result<()> {
        let mut windows = self.windows.write();
        for (number, bits) in std::mem::take(&mut *windows) {
            if let Some(window) = window_of(number * WINDOW_BYTES, self.size()) {
                self.punch(window, &empty_runs(window, &bits), release)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::rdma::memory::FileRegion;

    const PAGE: u64 = PAGE_BYTES;

    fn run(page: u64, pages: u64) -> Run {
        Run { offset: page * PAGE, length: pages * PAGE }
    }

    /// Fills all holes of a window, as registering it does.
    fn register(inner: &FileRegion, window: Run) {
        let bytes = inner.snapshot().unwrap();
        let (from, to) = (window.offset as usize, window.end() as usize);
        inner.store(window.offset, &bytes[from..to]).unwrap();
    }

    #[test]
    fn runs_are_cut_at_windows() {
        let cut: Vec<Run> = pieces(Run { offset: WINDOW_BYTES - 1, length: WINDOW_BYTES + 2 }).collect();
        let lengths: Vec<u64> = cut.iter().map(|piece| piece.length).collect();
        assert_eq!(lengths, [1, WINDOW_BYTES, 1]);
        assert_eq!(window_of(WINDOW_BYTES + 5, WINDOW_BYTES + PAGE), Some(run(512, 1)));
        assert_eq!(window_of(PAGE, PAGE), None);
        assert_eq!(pieces(Run { offset: 7, length: 0 }).count(), 0);
    }

    #[test]
    fn holes_of_a_pinned_window_are_holes_again_when_it_is_settled_and_data_stays() {
        let inner = Arc::new(FileRegion::new(2 * WINDOW_BYTES).unwrap());
        let held = PinnedRegion::new(inner.clone());
        inner.store(10 * PAGE, &[7; PAGE as usize]).unwrap();
        held.pin(run(0, 1)).unwrap();
        register(&inner, run(0, 512));
        assert_eq!(inner.populated().unwrap(), WINDOW_BYTES);
        // An adapter writes pages 20 to 22 and 100, then 21 and the page that was there before become zero.
        inner.store(20 * PAGE, &[9; 3 * PAGE as usize]).unwrap();
        inner.store(100 * PAGE, &[9; PAGE as usize]).unwrap();
        held.written_by_adapter(&[run(20, 3), run(100, 1)]);
        held.clear(run(21, 1)).unwrap();
        held.clear(run(10, 1)).unwrap();
        assert_eq!(inner.populated().unwrap(), WINDOW_BYTES, "no page may be punched out under the adapter");
        held.settle(&|_| {}).unwrap();
        assert_eq!(inner.populated().unwrap(), 3 * PAGE);
        let bytes = inner.snapshot().unwrap();
        let full: Vec<usize> = (0..512).filter(|page| bytes[page * PAGE as usize] != 0).collect();
        assert_eq!(full, [20, 22, 100]);
    }

    #[test]
    fn a_clear_over_held_and_free_windows_wipes_the_one_and_punches_the_others() {
        let inner = Arc::new(FileRegion::new(4 * WINDOW_BYTES).unwrap());
        inner.store(0, &vec![1; 4 * WINDOW_BYTES as usize]).unwrap();
        let held = PinnedRegion::new(inner.clone());
        held.pin(run(512, 1)).unwrap();
        held.clear(run(1, 4 * 512 - 2)).unwrap();
        assert_eq!(inner.populated().unwrap(), WINDOW_BYTES + 2 * PAGE);
        held.settle(&|_| {}).unwrap();
        assert_eq!(inner.populated().unwrap(), 2 * PAGE);
        let left: usize = inner.snapshot().unwrap().iter().map(|byte| usize::from(*byte)).sum();
        assert_eq!(left, 2 * PAGE as usize);
    }

    #[test]
    fn what_tcp_brings_into_a_held_window_is_not_taken_for_a_hole() {
        use std::os::fd::AsFd;
        use std::os::unix::net::UnixStream;
        let inner = Arc::new(FileRegion::new(WINDOW_BYTES).unwrap());
        let held = PinnedRegion::new(inner.clone());
        held.pin(run(0, 1)).unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        rustix::net::send(&near, &[5; 64], rustix::net::SendFlags::empty()).unwrap();
        held.receive(far.as_fd(), &[run(3, 1)], 0).unwrap();
        held.settle(&|_| {}).unwrap();
        assert_eq!(inner.snapshot().unwrap()[3 * PAGE as usize..][..64], [5; 64]);
    }

    #[test]
    fn what_is_copied_into_a_held_window_is_not_taken_for_a_hole() {
        let inner = Arc::new(FileRegion::new(WINDOW_BYTES).unwrap());
        let held = PinnedRegion::new(inner.clone());
        held.pin(run(0, 1)).unwrap();
        held.write(run(3, 1), &[5; PAGE as usize]).unwrap();
        held.settle(&|_| {}).unwrap();
        assert_eq!(inner.snapshot().unwrap()[3 * PAGE as usize..][..64], [5; 64]);
    }

    /// Windows, of which some are huge pages: no hole can be punched into a part of one before it is released.
    struct Huge {
        inner: Arc<FileRegion>,
        locked: Mutex<Vec<Run>>,
    }

    impl Huge {
        fn is_locked(&self, run: Run) -> bool {
            let locked = self.locked.lock().unwrap();
            let part = |page: &Run| page.offset <= run.offset && run.end() <= page.end();
            run.length < WINDOW_BYTES && locked.iter().any(part)
        }
    }

    impl Region for Huge {
        fn size(&self) -> u64 {
            self.inner.size()
        }
        fn checksum_after(&self, before: u32, runs: &[Run]) -> io::Result<u32> {
            self.inner.checksum_after(before, runs)
        }
        fn split_zero(&self, runs: &[Run], data: &mut Vec<Run>, zero: &mut Vec<Run>) -> io::Result<()> {
            self.inner.split_zero(runs, data, zero)
        }
        fn send(&self, _: BorrowedFd<'_>, _: &[u8], _: &[Run], _: usize) -> io::Result<usize> {
            Ok(0)
        }
        fn receive(&self, _: BorrowedFd<'_>, _: &[Run], _: usize) -> io::Result<usize> {
            Ok(0)
        }
        fn read(&self, run: Run, to: &mut [u8]) -> io::Result<()> {
            self.inner.read(run, to)
        }
        fn write(&self, run: Run, from: &[u8]) -> io::Result<()> {
            self.inner.write(run, from)
        }
        fn clear(&self, run: Run) -> io::Result<()> {
            if self.is_locked(run) { self.inner.wipe(run) } else { self.inner.clear(run) }
        }
        fn populate(&self, _: &[Run]) -> io::Result<()> {
            Ok(())
        }
        fn holes(&self, run: Run, holes: &mut Vec<Run>) -> io::Result<()> {
            self.inner.holes(run, holes)
        }
    }

    #[test]
    fn a_huge_page_is_released_before_holes_are_punched_into_it_and_nothing_else_is() {
        // Two huge pages, one of them without data, a window of small pages, a full one, and a huge page that reaches
        // over the end.
        let inner = Arc::new(FileRegion::new(5 * WINDOW_BYTES - PAGE).unwrap());
        let windows = [run(0, 512), run(512, 512), run(2 * 512, 512), run(3 * 512, 512), run(4 * 512, 511)];
        let huge = vec![windows[0], windows[1], windows[4]];
        let region = Arc::new(Huge { inner: inner.clone(), locked: Mutex::new(huge) });
        let held = PinnedRegion::new(region.clone());
        held.pin(Run { offset: 0, length: inner.size() }).unwrap();
        windows.iter().for_each(|window| register(&inner, *window));
        let data = [run(7, 1), run(2 * 512 + 9, 1), run(3 * 512, 512)];
        held.written_by_adapter(&data);
        let released = Mutex::new(Vec::new());
        let release = |window: Run| {
            region.locked.lock().unwrap().retain(|page| *page != window);
            released.lock().unwrap().push(window);
        };
        held.settle(&release).unwrap();
        assert_eq!(released.into_inner().unwrap(), [windows[0], windows[4]]);
        assert_eq!(inner.populated().unwrap(), (1 + 1 + 512) * PAGE);
    }

    #[test]
    fn a_window_outside_is_refused() {
        let held = PinnedRegion::new(Arc::new(FileRegion::new(WINDOW_BYTES).unwrap()));
        assert_eq!(held.pin(run(512, 1)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
