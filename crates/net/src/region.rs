//! What a transport needs of the memory that it reads from and writes to.
//!
//! Guest RAM changes while it is read, and is shared with other processes, so it is never seen as a slice. A transport
//! hands the region a socket and a list of runs, and the region does the gathered or scattered system call itself.
//! With TLS it has the region copy from and to buffers. An RDMA adapter gets the region's address, and reads
//! and writes it by itself.

pub mod heap;
pub mod pinned;

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use linerate_core::Run;

use self::pinned::window_of;

/// Where memory is mapped in this process: shared memory of a file, which stays mapped as long as the region lives.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    pub base: NonNull<u8>,
    /// Length of the mapping in bytes.
    pub length: u64,
}

/// A region of memory that placed writes are read from or land in.
///
/// Runs that reach over the end of the region are refused with [`io::ErrorKind::InvalidInput`] by every method.
pub trait Region: Send + Sync {
    /// Size of the region in bytes; it never changes.
    fn size(&self) -> u64;

    /// Payload checksum (crc32c). It covers what was summed before (`before`, 0 for nothing) and then the runs, one
    /// after the other, as they are in memory now.
    fn checksum_after(&self, before: u32, runs: &[Run]) -> io::Result<u32>;

    /// Payload checksum of the runs alone.
    fn checksum(&self, runs: &[Run]) -> io::Result<u32> {
        self.checksum_after(0, runs)
    }

    /// Splits runs into those with content and those that are zero or holes, page by page, without reading holes.
    /// Both outputs are appended to, in order, with neighbours joined.
    fn split_zero(&self, runs: &[Run], data: &mut Vec<Run>, zero: &mut Vec<Run>) -> io::Result<()>;

    /// One `sendmsg` of `head` followed by the runs, of which `done` bytes (counted over both) have gone before.
    /// Returns the bytes taken by the socket.
    fn send(&self, socket: BorrowedFd<'_>, head: &[u8], runs: &[Run], done: usize) -> io::Result<usize>;

    /// One scattered receive straight into the runs, of which `done` bytes have come before. Returns the bytes
    /// received; 0 means that the peer closed.
    fn receive(&self, socket: BorrowedFd<'_>, runs: &[Run], done: usize) -> io::Result<usize>;

    /// Copies a run out; `to` is as long as the run. A page that cannot be had, as in a full tmpfs, is an error.
    fn read(&self, run: Run, to: &mut [u8]) -> io::Result<()>;

    /// Copies into a run; `from` is as long as the run. A page that cannot be had is an error, and the pages before it
    /// are written then.
    fn write(&self, run: Run, from: &[u8]) -> io::Result<()>;

    /// Makes the run read as zero, and a hole where it can.
    fn clear(&self, run: Run) -> io::Result<()>;

    /// Said before data lands in these runs: populate them in the cheapest way, or refuse them.
    fn populate(&self, runs: &[Run]) -> io::Result<()>;

    // ---- for adapters; a region that has no mapping needs none of them ----

    /// Where it is mapped, for registration with an adapter; `None` if it is not in shared memory.
    fn mapped(&self) -> Option<Mapped> {
        None
    }

    /// Where a run that lies in one window is: a mapping, and the run's place in it.
    fn mapped_at(&self, run: Run) -> Option<(Mapped, Run)> {
        Some((self.mapped()?, run))
    }

    /// The window that is claimed for what is, or lands, at this offset: named in the same way at both ends. `None`
    /// outside.
    fn window(&self, offset: u64) -> Option<Run> {
        window_of(offset, self.size())
    }

    /// Makes the run read as zero *in the pages that it has*, which an adapter may know.
    fn wipe(&self, run: Run) -> io::Result<()> {
        self.clear(run)
    }

    /// Appends the parts of the run that are known to be holes.
    fn holes(&self, run: Run, holes: &mut Vec<Run>) -> io::Result<()> {
        let _ = (run, holes);
        Ok(())
    }

    /// Whether the run is known to have no hole, so that registering it costs no memory.
    fn is_whole(&self, run: Run) -> io::Result<bool> {
        let _ = run;
        Ok(false)
    }

    /// From now on an adapter may write into this run at any time: its pages must stay the ones that they are. Called
    /// *before* it is registered.
    fn pin(&self, run: Run) -> io::Result<()> {
        let _ = run;
        Ok(())
    }

    /// An adapter has written these runs.
    fn written_by_adapter(&self, runs: &[Run]) {
        let _ = runs;
    }

    /// No adapter writes any more: what was held can be as it should be. `release` ends the registration of a window.
    fn settle(&self, release: &dyn Fn(Run)) -> io::Result<()> {
        let _ = release;
        Ok(())
    }

    // ---- for byte streams ----

    /// Said when data has come into these runs and fitted its checksum. Guest RAM does not care.
    fn placed(&self, runs: &[Run]) -> io::Result<()> {
        let _ = runs;
        Ok(())
    }
}
