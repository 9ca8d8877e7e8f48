//! Our own mapping of a RAM block: what a carrier reads from and writes to.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;

use linerate_core::{PAGE_BYTES, Run};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::block::{Backing, RamBlock};
use crate::gather::{self, Gather};
use crate::holes::{next_data, push_run};
use crate::scan::cut;
use crate::zero::{PAGE, page_is_zero, slice_is_zero};
use crate::{sum, sys};

/// Size and alignment of a transparent huge page.
const HUGE_BYTES: u64 = 2 << 20;
/// Bytes copied before they are summed: fits the first-level cache together with the sum's tables.
const BOUNCE_BYTES: usize = 16 << 10;

/// A shared mapping of a whole RAM block in our own address space.
///
/// Guest and hypervisor write the same memory at the same time. Therefore no method gives out a slice of it. Runs that
/// reach over the end are refused with [`io::ErrorKind::InvalidInput`] by every method.
///
/// Loads from the mapping fault with SIGBUS if the file is made shorter; only the hypervisor and root can do that.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    size: u64,
    backing: Backing,
    file: File,
}

// SAFETY: the mapping is shared memory without an owner thread; `base` and `size` never change, and every access goes
// through the kernel or through volatile or assembly loads that tolerate concurrent writers.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method needs exclusive access.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub fn new(block: &RamBlock) -> io::Result<Mapping> {
        Mapping::of_file(block.file().try_clone()?)
    }

    /// Makes a new file of `size` bytes, all of it a hole, readable and writable by its owner only, and maps it. On
    /// `Err` there is no such file, unless it was there before.
    pub fn make(path: &Path, size: u64) -> io::Result<Mapping> {
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        let made = file.set_len(size).and_then(|()| Mapping::of_file(file));
        if made.is_err() {
            let _ = std::fs::remove_file(path);
        }
        made
    }

    /// Whether the block lies in this very file.
    pub fn shows(&self, block: &RamBlock) -> io::Result<bool> {
        let (ours, theirs) = (self.file.metadata()?, block.file().metadata()?);
        Ok((ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino()))
    }

    /// Maps a whole file on tmpfs or hugetlbfs.
    pub fn of_file(file: File) -> io::Result<Mapping> {
        let size = file.metadata()?.len();
        let backing = match rustix::fs::fstatfs(&file)?.f_type {
            libc::TMPFS_MAGIC => Backing::Tmpfs,
            libc::HUGETLBFS_MAGIC => Backing::Hugetlbfs,
            _ => return Err(invalid("the file is neither on tmpfs nor on hugetlbfs")),
        };
        if size == 0 || !size.is_multiple_of(PAGE_BYTES) {
            return Err(invalid("the file is not a positive number of pages"));
        }
        let length =
            usize::try_from(size).map_err(|_| invalid("the file is larger than the address space"))?;
        // SAFETY: the kernel chooses a free range, so nothing that exists is mapped over.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        }?;
        let base =
            NonNull::new(base.cast()).ok_or_else(|| invalid("the kernel mapped the file at address 0"))?;
        let mapping = Mapping { base, size, backing, file };
        mapping.advise(0, length, Advice::LinuxDontFork)?;
        // Only a wish: a kernel without transparent huge pages refuses it.
        let _ = mapping.advise(0, length, Advice::LinuxHugepage);
        Ok(mapping)
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Payload checksum (crc32c) over the runs, one after the other, as they are in memory now.
    pub fn checksum(&self, runs: &[Run]) -> io::Result<u32> {
        self.checksum_after(0, runs)
    }

    /// The same of what was summed before (`before`, 0 for nothing) and then the runs.
    pub fn checksum_after(&self, before: u32, runs: &[Run]) -> io::Result<u32> {
        if sum::available() {
            self.checksum_in_place(before, runs)
        } else {
            self.checksum_of_copy(before, runs)
        }
    }

    fn checksum_in_place(&self, before: u32, runs: &[Run]) -> io::Result<u32> {
        runs.iter().try_fold(before, |before, run| {
            let (start, length) = self.check(*run)?;
            // SAFETY: `check` guarantees `length` bytes at `start`, and the caller asked for the instruction.
            Ok(unsafe { sum::crc32c(before, start, length) })
        })
    }

    fn checksum_of_copy(&self, before: u32, runs: &[Run]) -> io::Result<u32> {
        let mut sum = linerate_wire::PayloadChecksum::after(before);
        let mut bounce = [0u8; BOUNCE_BYTES];
        for run in runs {
            let (start, length) = self.check(*run)?;
            for at in (0..length).step_by(BOUNCE_BYTES) {
                let Some(piece) = bounce.get_mut(..BOUNCE_BYTES.min(length - at)) else { break };
                // SAFETY: `check` guarantees `length` bytes at `start`, and `at + piece.len() <= length`.
                unsafe { copy_shared(start.add(at), piece.as_mut_ptr(), piece.len()) };
                sum.update(piece);
            }
        }
        Ok(sum.finish())
    }

    /// Splits runs into those with content and those that are zero or holes, page by page, without reading holes.
    /// Both outputs are appended to, in order, with neighbours joined. Runs must be page-aligned.
    pub fn split_zero(&self, runs: &[Run], data: &mut Vec<Run>, zero: &mut Vec<Run>) -> io::Result<()> {
        for run in runs {
            self.check(*run)?;
            if !run.offset.is_multiple_of(PAGE_BYTES) || !run.length.is_multiple_of(PAGE_BYTES) {
                return Err(invalid("a run is not made of whole pages"));
            }
            self.walk(*run, |part, holds_data| {
                if !holds_data {
                    push_run(zero, part);
                    return Ok(());
                }
                for offset in (part.offset..part.end()).step_by(PAGE) {
                    let page = Run { offset, length: PAGE_BYTES };
                    push_run(if self.is_zero(page)? { zero } else { data }, page);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Whether a page that the file holds is zero. On hugetlbfs it may be a hole, so it is not read through the
    /// mapping.
    fn is_zero(&self, page: Run) -> io::Result<bool> {
        if self.backing == Backing::Hugetlbfs {
            let mut copy = [0; PAGE];
            self.file.read_exact_at(&mut copy, page.offset)?;
            return Ok(slice_is_zero(&copy));
        }
        let (start, _) = self.check(page)?;
        // SAFETY: `check` guarantees a page at `start`; the caller aligned it to a page, hence to 8 bytes.
        Ok(unsafe { page_is_zero(start.cast()) })
    }

    /// One `sendmsg` of `head` followed by the runs, of which `done` bytes (counted over both) have gone before.
    /// Returns the bytes taken by the socket. Nothing left to send is [`io::ErrorKind::InvalidInput`].
    pub fn send(&self, socket: BorrowedFd<'_>, head: &[u8], runs: &[Run], done: usize) -> io::Result<usize> {
        let mut gather = Gather::new(done, runs);
        gather.push(head.as_ptr().cast_mut(), head.len());
        let mut entries = self.push_runs(gather, runs)?;
        let message = message(&mut entries);
        // SAFETY: every entry lies in `head` or, checked, in the mapping, both of which outlive the call; the kernel
        // only reads them, and copes with memory that others write.
        gather::retry(|| unsafe { libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL) })
    }

    /// One scattered receive straight into the runs, of which `done` bytes have come before. Returns the bytes
    /// received; 0 means that the peer closed. Nothing left to receive is [`io::ErrorKind::InvalidInput`].
    pub fn receive(&self, socket: BorrowedFd<'_>, runs: &[Run], done: usize) -> io::Result<usize> {
        let mut entries = self.push_runs(Gather::new(done, runs), runs)?;
        let mut message = message(&mut entries);
        // SAFETY: every entry was checked to lie in the mapping, which is writable, outlives the call and is never
        // borrowed as a slice.
        gather::retry(|| unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, 0) })
    }

    /// All runs are checked, also those that do not fit the call.
    fn push_runs(&self, mut gather: Gather, runs: &[Run]) -> io::Result<Vec<libc::iovec>> {
        for run in runs {
            let (start, length) = self.check(*run)?;
            gather.push(start, length);
        }
        gather.finish()
    }

    /// Makes the run read as zero, and a hole where it can.
    pub fn clear(&self, run: Run) -> io::Result<()> {
        self.check(run)?;
        // Punching costs a walk over all mappings of the file; a run that is a hole already needs none.
        if self.backing == Backing::Tmpfs && next_data(&self.file, run.offset, run.end())? == run.end() {
            return Ok(());
        }
        let mode = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, mode, run.offset, run.length)?)
    }

    /// Hint that data will land in these runs soon: populates those 2 MiB pieces that the runs cover as a whole, since
    /// only there it saves anything (docs/memory.md has the figures). The rest is populated by the receive itself.
    pub fn populate(&self, runs: &[Run]) -> io::Result<()> {
        for run in runs {
            self.check(*run)?;
            let first = run.offset.next_multiple_of(HUGE_BYTES);
            let end = run.end() - run.end() % HUGE_BYTES;
            if self.backing == Backing::Tmpfs && first < end {
                let (start, length) = (first as usize, (end - first) as usize);
                self.advise(start, length, Advice::LinuxPopulateWrite)?;
            }
        }
        Ok(())
    }

    /// Where the block is mapped, for those that work on it by themselves, as adapters do. It stays there as long as
    /// this.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Copies a run out; `to` must be as long. Holes are read as zero and stay holes.
    ///
    /// It reads the file, unless all pages were there just now: loads from the mapping would fault with SIGBUS where a
    /// hole cannot be filled.
    pub fn read(&self, run: Run, to: &mut [u8]) -> io::Result<()> {
        let (start, length) = self.check(run)?;
        if length != to.len() {
            return Err(invalid("the place for a run is not as long as the run"));
        }
        if !self.is_resident(run) {
            return self.file.read_exact_at(to, run.offset);
        }
        // SAFETY: `check` guarantees `length` bytes at `start`, which is the length of `to`.
        unsafe { copy_shared(start, to.as_mut_ptr(), length) };
        Ok(())
    }

    /// Copies into a run; `from` must be as long. Where no page can be had, as in a full tmpfs, it is an error
    /// (`EFAULT`), and what is before it is written. Only pages that were there just now are stored to from here.
    pub fn write(&self, run: Run, from: &[u8]) -> io::Result<()> {
        let (start, length) = self.check(run)?;
        if length != from.len() {
            return Err(invalid("what goes into a run is not as long as the run"));
        }
        // SAFETY: `check` guarantees `length` bytes at `start`, which is the length of `from`; the mapping is writable,
        // outlives the call and is never seen as a slice.
        unsafe {
            match self.is_resident(run) {
                true => copy_shared(from.as_ptr(), start, length),
                false => sys::write_own(from, start)?,
            }
        }
        Ok(())
    }

    /// Whether every page of the run was in memory just now. A page that is punched out since is filled again by a load
    /// or a store. The file system has the room for it that the page left. As with every load of
    /// [`split_zero`](Mapping::split_zero), only a file system that is full again in that moment has none.
    fn is_resident(&self, run: Run) -> bool {
        let pages = run.end().div_ceil(PAGE_BYTES) - run.offset / PAGE_BYTES;
        self.backing == Backing::Tmpfs && sys::pages_cached(&self.file, run.offset, run.length) == Some(pages)
    }

    /// Makes the run read as zero without taking its pages away: an adapter that has their addresses keeps them.
    pub fn wipe(&self, run: Run) -> io::Result<()> {
        let (start, length) = self.check(run)?;
        // SAFETY: `check` guarantees `length` bytes at `start`; the mapping is writable and never seen as a slice.
        unsafe { std::ptr::write_bytes(start, 0, length) };
        Ok(())
    }

    /// Whether every page of the run is known to be there. On hugetlbfs the kernel does not say, so never there.
    pub fn is_whole(&self, run: Run) -> io::Result<bool> {
        Ok(self.backing == Backing::Tmpfs && self.holes_among(&[run])?.is_empty())
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn backing(&self) -> Backing {
        self.backing
    }

    /// Address and length of a run that lies inside the mapping.
    pub(crate) fn check(&self, run: Run) -> io::Result<(*mut u8, usize)> {
        let end = run.offset.checked_add(run.length);
        if run.length == 0 || end.is_none_or(|end| end > self.size) {
            return Err(invalid("a run is empty or reaches over the end of the region"));
        }
        // SAFETY: `offset` is below `size`, which is the length of the mapping at `base`.
        let start = unsafe { self.base.as_ptr().add(run.offset as usize) };
        Ok((start, run.length as usize))
    }

    fn advise(&self, offset: usize, length: usize, advice: Advice) -> io::Result<()> {
        // SAFETY: callers pass ranges inside the mapping, and only advice that changes no content (fork behaviour, huge
        // pages, populating).
        unsafe { rustix::mm::madvise(self.base.as_ptr().add(offset).cast(), length, advice) }?;
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        for piece in unmapped(self.size, self.backing) {
            // SAFETY: the piece lies in the mapping of `size` bytes at `base` that `of_file` made, no two overlap, and
            // nothing borrowed from it is left.
            let _ = unsafe {
                let start = self.base.as_ptr().add(piece.offset as usize);
                rustix::mm::munmap(start.cast(), piece.length as usize)
            };
        }
    }
}

/// While the kernel takes a mapping away, no other thread of this process maps or unmaps anything: of this many bytes
/// some 3 ms, in 4 KiB pages.
const UNMAPPED_BYTES: u64 = 64 << 20;

/// The pieces in which a mapping of `size` bytes is taken away. On hugetlbfs, which has few entries, it is one: pieces
/// would have to be whole huge pages.
fn unmapped(size: u64, backing: Backing) -> impl Iterator<Item = Run> {
    let bytes = match backing {
        Backing::Tmpfs => UNMAPPED_BYTES,
        Backing::Hugetlbfs => size,
    };
    cut(Run { offset: 0, length: size }, bytes)
}

fn message(entries: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: `msghdr` is numbers and pointers, for which all zero is "none".
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = entries.as_mut_ptr();
    message.msg_iovlen = entries.len();
    message
}

pub(crate) fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Copies between memory that others may read and write meanwhile and memory that is ours.
///
/// # Safety
/// `from` must be readable and `to` writable for `length` bytes during the call; the two must not overlap, and the one
/// that is shared must not be seen as a slice.
unsafe fn copy_shared(from: *const u8, to: *mut u8, length: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller guarantees both; the direction flag is clear by the calling convention and the instruction
    // keeps it. Assembly is opaque to the compiler, which therefore assumes nothing about the values that concurrent
    // writers leave in the source.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") length => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    for at in 0..length {
        // SAFETY: `at` is below the length that the caller guarantees; volatile, because others may read and write.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_taken_away_in_pieces_between_which_other_threads_go_on() {
        let size = (1 << 30) + PAGE_BYTES;
        let pieces: Vec<Run> = unmapped(size, Backing::Tmpfs).collect();
        assert!(pieces.iter().all(|piece| piece.length <= UNMAPPED_BYTES));
        assert!(pieces.windows(2).all(|two| two[0].end() == two[1].offset));
        assert_eq!(pieces.iter().map(|piece| piece.length).sum::<u64>(), size);
        assert_eq!(unmapped(size, Backing::Hugetlbfs).count(), 1);
    }

    #[test]
    fn nothing_of_a_mapping_is_left() {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        file.as_file().set_len(3 * UNMAPPED_BYTES + PAGE_BYTES).unwrap();
        let path = file.path().to_str().unwrap();
        let mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().contains(path);
        let mapping = Mapping::of_file(file.reopen().unwrap()).unwrap();
        assert!(mapped());
        drop(mapping);
        assert!(!mapped());
    }
}
