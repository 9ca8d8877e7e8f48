//! 2 MiB of our own memory, tracked as a guest's is.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use linerate_core::{PAGE_BYTES, Run};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::block::Segment;
use crate::scan::{Job, Scans, report_buffer, scan_job};
use crate::sys::{self, ScanKind};

/// Small pages in a huge one.
pub(super) const PAGES: u64 = 512;
const BYTES: usize = (PAGES * PAGE_BYTES) as usize;
pub(super) const NAME: &str = "linerate-probe";

/// The page tables of our own process.
pub(super) fn pagemap() -> io::Result<File> {
    File::open("/proc/self/pagemap")
}

/// A mapping of the whole file that begins where a huge page can. Unmapped when dropped.
struct View {
    reserved: NonNull<libc::c_void>,
    base: NonNull<u8>,
}

impl View {
    fn new(file: &File) -> io::Result<View> {
        // SAFETY: the kernel chooses a free range; nothing can be accessed in it.
        let reserved = unsafe {
            mmap_anonymous(std::ptr::null_mut(), 2 * BYTES, ProtFlags::empty(), MapFlags::PRIVATE)
        }?;
        let null = || io::Error::other("the kernel mapped memory at address 0");
        let held = NonNull::new(reserved).ok_or_else(null)?;
        let base = reserved.map_addr(|address| address.next_multiple_of(BYTES));
        let view = View { reserved: held, base: NonNull::new(base.cast()).ok_or_else(null)? };
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: the aligned half of what was just reserved, which no other code knows, is replaced.
        unsafe { mmap(base, BYTES, access, flags, file, 0) }?;
        // A child that the agent starts meanwhile shall not map the pages too.
        view.advise(libc::MADV_DONTFORK);
        Ok(view)
    }

    fn address(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    fn write(&self, page: u64) {
        debug_assert!(page < PAGES);
        let at = (page % PAGES * PAGE_BYTES) as usize;
        // SAFETY: `at` lies inside of the mapping, which is writable and never seen as a reference.
        unsafe { self.base.add(at).write_volatile(1) };
    }

    fn fill(&self) {
        (0..PAGES).for_each(|page| self.write(page));
    }

    /// Whether the kernel took the advice on the whole mapping.
    fn advise(&self, advice: i32) -> bool {
        // SAFETY: the range is the mapping; none of the callers' advice makes it invalid, and its content is not used.
        unsafe { libc::madvise(self.base.as_ptr().cast(), BYTES, advice) == 0 }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the range that `new` reserved, with the mapping in it; nothing borrowed from it is left.
        let _ = unsafe { munmap(self.reserved.as_ptr(), 2 * BYTES) };
    }
}

/// The memory, the file behind it, and what tracks it.
pub(super) struct ProbeMemory {
    view: View,
    file: File,
    uffd: OwnedFd,
    pagemap: File,
    buffer: Vec<sys::PageRegion>,
    scans: Scans,
}

impl ProbeMemory {
    pub fn new(scans: Scans) -> io::Result<ProbeMemory> {
        let file = File::from(memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL)?);
        file.set_len(BYTES as u64)?;
        let uffd = sys::userfaultfd()?;
        sys::uffd_api(&uffd)?;
        let buffer = report_buffer().into_iter().take(BYTES / PAGE_BYTES as usize).collect();
        Ok(ProbeMemory { view: View::new(&file)?, file, uffd, pagemap: pagemap()?, buffer, scans })
    }

    pub fn protect(&self) -> io::Result<()> {
        sys::uffd_register(&self.uffd, self.view.address(), BYTES as u64)?;
        sys::uffd_write_protect(&self.uffd, self.view.address(), BYTES as u64)
    }

    /// Writes every page, so that none is a hole.
    pub fn fill(&self) {
        self.view.fill();
    }

    pub fn write(&self, pages: &[u64]) {
        pages.iter().for_each(|page| self.view.write(*page));
    }

    /// Makes small pages a huge one; false if the kernel does not.
    pub fn collapse(&self) -> bool {
        self.view.advise(libc::MADV_COLLAPSE)
    }

    /// Gives pages back to the kernel, as a balloon does.
    pub fn punch(&self, first: u64, count: u64) -> io::Result<()> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(self.file.as_fd(), mode, first * PAGE_BYTES, count * PAGE_BYTES)?)
    }

    /// Gives everything back, page table included where the kernel does that.
    pub fn give_back(&self) -> io::Result<()> {
        self.punch(0, PAGES)?;
        self.view.advise(libc::MADV_DONTNEED);
        Ok(())
    }

    /// Fills the file through another mapping, with a huge page; false if the kernel gives none.
    pub fn fill_elsewhere(&self) -> io::Result<bool> {
        let other = View::new(&self.file)?;
        other.fill();
        Ok(other.advise(libc::MADV_COLLAPSE))
    }

    /// Has the kernel take the mapping away, to swap if there is some.
    pub fn reclaim(&self) {
        self.view.advise(libc::MADV_PAGEOUT);
    }

    /// Moves pages to another NUMA node; false if there is none.
    pub fn move_away(&self, pages: &[u64]) -> bool {
        let address = |page: &u64| (self.view.address() + page * PAGE_BYTES) as *mut libc::c_void;
        let addresses: Vec<_> = pages.iter().map(address).collect();
        let Some(here) = sys::move_pages(&addresses, None) else { return false };
        (0..sys::NODES_TRIED).filter(|node| !here.contains(node)).any(|node| {
            let moved = sys::move_pages(&addresses, Some(node));
            moved.is_some_and(|moved| moved.iter().all(|now| *now == node))
        })
    }

    /// The pages reported as written, protected again.
    pub fn clear(&mut self) -> io::Result<Vec<u64>> {
        let job = self.job();
        let runs = self.scans.clear(&self.pagemap, &mut self.buffer, &job)?;
        Ok(in_pages(&runs))
    }

    /// The pages reported as written.
    pub fn written(&mut self) -> io::Result<Vec<u64>> {
        let job = self.job();
        let runs = self.scans.peek(&self.pagemap, &mut self.buffer, &job)?;
        Ok(in_pages(&runs))
    }

    /// The pages without an entry in the page tables.
    pub fn empty(&mut self) -> io::Result<Vec<u64>> {
        let job = self.job();
        Ok(in_pages(&scan_job(&self.pagemap, &mut self.buffer, &job, ScanKind::Empty)?))
    }

    fn job(&self) -> Job {
        Job { block: 0, piece: Segment { address: self.view.address(), length: BYTES as u64, offset: 0 } }
    }
}

fn in_pages(runs: &[Run]) -> Vec<u64> {
    runs.iter().flat_map(|run| run.offset / PAGE_BYTES..run.end() / PAGE_BYTES).collect()
}
