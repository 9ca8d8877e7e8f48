//! What a carrier needs of the memory that it reads from and writes to.
//!
//! Guest RAM changes while it is read, and is shared with other processes, so it is never seen as a slice: a carrier hands
//! the region a socket and says which runs, and the region does the gathered or scattered system call itself.

pub mod heap;

use std::io;
use std::os::fd::BorrowedFd;

use linerate_core::Run;

/// A region of memory that placed writes are read from or land in.
///
/// Runs that reach over the end of the region are refused with [`io::ErrorKind::InvalidInput`] by every method.
pub trait Region: Send + Sync {
    /// Bytes.
    fn size(&self) -> u64;

    /// Payload checksum (crc32c) over the runs, one after the other, as they are in memory now.
    fn checksum(&self, runs: &[Run]) -> io::Result<u32>;

    /// Splits runs into those with content and those that are zero or holes, page by page, without reading holes.
    /// Both outputs are appended to, in order, with neighbours joined.
    fn split_zero(&self, runs: &[Run], data: &mut Vec<Run>, zero: &mut Vec<Run>) -> io::Result<()>;

    /// One `sendmsg` of `head` followed by the runs, of which `done` bytes (counted over both) have gone before.
    /// Returns the bytes taken by the socket.
    fn send(&self, socket: BorrowedFd<'_>, head: &[u8], runs: &[Run], done: usize) -> io::Result<usize>;

    /// One scattered receive straight into the runs, of which `done` bytes have come before. Returns the bytes received;
    /// 0 means that the peer closed.
    fn receive(&self, socket: BorrowedFd<'_>, runs: &[Run], done: usize) -> io::Result<usize>;

    /// Makes the run read as zero, and a hole where it can.
    fn clear(&self, run: Run) -> io::Result<()>;

    /// Said before data lands in these runs: populate them in the cheapest way, or refuse them.
    fn populate(&self, runs: &[Run]) -> io::Result<()>;

    /// Said when data has landed in these runs and fitted its checksum. Guest RAM does not care.
    fn landed(&self, _runs: &[Run]) -> io::Result<()> {
        Ok(())
    }
}
