//! Memory of our own that adapters work on: message slots, staging and scratch; and a region in a memory file.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;

use linerate_core::{PAGE_BYTES, Run};
use linerate_wire::PayloadChecksum;
use rustix::mm::{MapFlags, ProtFlags};

use super::error::RdmaError;
use super::verbs::{Access, ProtectionDomain, Registration};
use crate::region::heap::HeapRegion;
use crate::region::{Mapped, Region};

/// A shared mapping. Shared, so that a fork of this process does not move its pages away from under the adapter.
struct Map {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: plain memory without an owner thread; all access is by copies through raw pointers.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    fn anonymous(length: usize) -> io::Result<Map> {
        // SAFETY: a new mapping at a place of the kernel's choice.
        let base = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, protection, MapFlags::SHARED)
        }?;
        Map::at(base.cast(), length)
    }

    fn file(file: &File, length: usize) -> io::Result<Map> {
        // SAFETY: a new mapping at a place of the kernel's choice.
        let base = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0)
        }?;
        Map::at(base.cast(), length)
    }

    fn at(base: *mut u8, length: usize) -> io::Result<Map> {
        NonNull::new(base).map(|base| Map { base, length }).ok_or_else(|| io::ErrorKind::AddrInUse.into())
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: made by `anonymous` or `file`, and nothing borrowed from it is left. Registered pages stay locked.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// Registered memory of our own.
pub(super) struct Buffer {
    // Before the mapping, so that the adapter forgets it first.
    registration: Registration,
    map: Map,
}

impl Buffer {
    pub(super) fn new(
        domain: &Arc<ProtectionDomain>,
        length: usize,
        access: Access,
    ) -> Result<Buffer, RdmaError> {
        let map = Map::anonymous(length).map_err(|error| RdmaError::Call {
            what: "taking memory for messages",
            source: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::NOMEM),
        })?;
        // SAFETY: our own mapping, of which no slice is ever made; all access here is by copying.
        let registration = unsafe { Registration::new(domain, map.base, length, access) }?;
        Ok(Buffer { registration, map })
    }

    pub(super) fn address(&self) -> u64 {
        self.map.base.as_ptr() as u64
    }

    pub(super) fn local_key(&self) -> u32 {
        self.registration.local_key()
    }

    pub(super) fn remote_key(&self) -> u32 {
        self.registration.remote_key()
    }

    /// Copies bytes in. What does not fit is a defect of this side: nothing is copied then.
    pub(super) fn put(&self, at: usize, bytes: &[u8]) -> bool {
        if at.checked_add(bytes.len()).is_none_or(|end| end > self.map.length) {
            return false;
        }
        // SAFETY: the range was checked to lie in the mapping; the source is a slice, which never overlaps it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.map.base.as_ptr().add(at), bytes.len()) };
        true
    }

    /// Copies bytes out; `false` and nothing if they do not lie inside.
    pub(super) fn get(&self, at: usize, bytes: &mut [u8]) -> bool {
        if at.checked_add(bytes.len()).is_none_or(|end| end > self.map.length) {
            return false;
        }
        // SAFETY: as in `put`. A peer that has a key may write meanwhile; whatever is read is bytes, and is checked.
        unsafe {
            std::ptr::copy_nonoverlapping(self.map.base.as_ptr().add(at), bytes.as_mut_ptr(), bytes.len());
        }
        true
    }
}

/// A region in a memory file: for benchmarks, tests and byte streams. It has holes, as guest RAM has.
pub struct FileRegion {
    file: File,
    map: Map,
}

impl FileRegion {
    /// A region that is one hole.
    pub fn new(size: u64) -> io::Result<FileRegion> {
        let file = File::from(rustix::fs::memfd_create("linerate-region", rustix::fs::MemfdFlags::CLOEXEC)?);
        file.set_len(size)?;
        let length = usize::try_from(size).map_err(io::Error::other)?;
        let map = Map::file(&file, length)?;
        Ok(FileRegion { file, map })
    }

    /// Writes from outside of any channel, as a guest does.
    pub fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check(Run { offset, length: bytes.len() as u64 })?;
        self.file.write_all_at(bytes, offset)
    }

    /// A copy of what it holds now.
    pub fn snapshot(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.map.length];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Bytes that are not holes.
    pub fn populated(&self) -> io::Result<u64> {
        use std::os::unix::fs::MetadataExt;
        Ok(self.file.metadata()?.blocks() * 512)
    }

    fn check(&self, run: Run) -> io::Result<()> {
        match run.offset.checked_add(run.length) {
            Some(end) if end <= self.map.length as u64 => Ok(()),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn bytes(&self, run: Run) -> io::Result<Vec<u8>> {
        self.check(run)?;
        let mut bytes = vec![0; usize::try_from(run.length).map_err(io::Error::other)?];
        self.file.read_exact_at(&mut bytes, run.offset)?;
        Ok(bytes)
    }

    fn is_hole(&self, page: u64) -> io::Result<bool> {
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(page)) {
            Ok(data) => Ok(data >= page + PAGE_BYTES),
            Err(rustix::io::Errno::NXIO) => Ok(true),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Region for FileRegion {
    fn size(&self) -> u64 {
        self.map.length as u64
    }

    fn checksum_after(&self, before: u32, runs: &[Run]) -> io::Result<u32> {
        let mut sum = PayloadChecksum::after(before);
        for run in runs {
            sum.update(&self.bytes(*run)?);
        }
        Ok(sum.finish())
    }

    fn split_zero(&self, runs: &[Run], data: &mut Vec<Run>, zero: &mut Vec<Run>) -> io::Result<()> {
        for run in runs {
            self.check(*run)?;
            for offset in (run.offset..run.end()).step_by(PAGE_BYTES as usize) {
                let page = Run { offset, length: PAGE_BYTES.min(run.end() - offset) };
                let empty = self.is_hole(offset)? || self.bytes(page)?.iter().all(|byte| *byte == 0);
                let list = if empty { &mut *zero } else { &mut *data };
                match list.last_mut() {
                    Some(last) if last.end() == page.offset => last.length += page.length,
                    _ => list.push(page),
                }
            }
        }
        Ok(())
    }

    fn send(&self, socket: BorrowedFd<'_>, head: &[u8], runs: &[Run], done: usize) -> io::Result<usize> {
        let mut all = Vec::new();
        for run in runs {
            all.extend(self.bytes(*run)?);
        }
        let heap = HeapRegion::from(all);
        heap.send(socket, head, &[Run { offset: 0, length: heap.size() }], done)
    }

    fn receive(&self, socket: BorrowedFd<'_>, runs: &[Run], done: usize) -> io::Result<usize> {
        let mut done = done as u64;
        for run in runs {
            self.check(*run)?;
            if done < run.length {
                let mut place = vec![0; usize::try_from(run.length - done).map_err(io::Error::other)?];
                let flags = rustix::net::RecvFlags::DONTWAIT;
                let got = rustix::net::recv(socket, &mut place, flags)?.0;
                self.file.write_all_at(place.get(..got).unwrap_or_default(), run.offset + done)?;
                return Ok(got);
            }
            done -= run.length;
        }
        Ok(0)
    }

    fn clear(&self, run: Run) -> io::Result<()> {
        self.check(run)?;
        let mode = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, mode, run.offset, run.length)?)
    }

    fn populate(&self, _runs: &[Run]) -> io::Result<()> {
        Ok(())
    }

    fn mapped(&self) -> Option<Mapped> {
        Some(Mapped { base: self.map.base, length: self.map.length as u64 })
    }

    fn read(&self, run: Run, to: &mut [u8]) -> io::Result<()> {
        self.check(run)?;
        self.file.read_exact_at(to, run.offset)
    }

    fn write(&self, run: Run, from: &[u8]) -> io::Result<()> {
        self.check(Run { length: run.length.max(from.len() as u64), ..run })?;
        self.file.write_all_at(from, run.offset)
    }

    fn wipe(&self, run: Run) -> io::Result<()> {
        self.check(run)?;
        let zeroes = vec![0; usize::try_from(run.length).map_err(io::Error::other)?];
        self.file.write_all_at(&zeroes, run.offset)
    }

    fn holes(&self, run: Run, holes: &mut Vec<Run>) -> io::Result<()> {
        self.check(run)?;
        for offset in (run.offset..run.end()).step_by(PAGE_BYTES as usize) {
            if self.is_hole(offset)? {
                holes.push(Run { offset, length: PAGE_BYTES.min(run.end() - offset) });
            }
        }
        Ok(())
    }

    fn is_whole(&self, run: Run) -> io::Result<bool> {
        let mut holes = Vec::new();
        self.holes(run, &mut holes)?;
        Ok(holes.is_empty())
    }
}
