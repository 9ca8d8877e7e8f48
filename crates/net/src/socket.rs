//! Waiting on and moving small pieces over non-blocking stream sockets. Every wait has a deadline.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// Whether a system call on a socket waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not, whatever the socket is set to.
    Never,
    /// As the socket is set to.
    AsSet,
}

impl Wait {
    pub(crate) fn sending(self) -> SendFlags {
        match self {
            Wait::Never => SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            Wait::AsSet => SendFlags::NOSIGNAL,
        }
    }

    pub(crate) fn receiving(self) -> RecvFlags {
        match self {
            Wait::Never => RecvFlags::DONTWAIT,
            Wait::AsSet => RecvFlags::empty(),
        }
    }
}

/// Waits until the descriptor can be read, is closed or has failed. False when the time is over.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, wait: Duration) -> io::Result<bool> {
    wait_for(fd, PollFlags::IN, wait)
}

/// Waits until the descriptor can be written, is closed or has failed. False when the time is over.
pub(crate) fn wait_writable(fd: BorrowedFd<'_>, wait: Duration) -> io::Result<bool> {
    wait_for(fd, PollFlags::OUT, wait)
}

fn wait_for(fd: BorrowedFd<'_>, flags: PollFlags, wait: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + wait;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Clock ticks below a microsecond must not turn into a poll that never ends.
        let timeout =
            Timespec { tv_sec: left.as_secs().min(86_400) as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Receives what is there, at most the buffer. `WouldBlock` if nothing is.
pub(crate) fn receive_now(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    rustix::net::recv(fd, buffer, RecvFlags::DONTWAIT).map(|(bytes, _)| bytes).map_err(io::Error::from)
}

/// Whether the error only says to try once more, now or when the socket is ready.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Sends all before the deadline.
pub(crate) fn send_all(fd: BorrowedFd<'_>, bytes: &[u8], deadline: Instant) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match rustix::net::send(fd, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map_err(io::Error::from)
        {
            Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
            Err(error) if is_transient(&error) => wait_until(deadline, |left| wait_writable(fd, left))?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub(crate) fn wait_until(
    deadline: Instant,
    wait: impl FnOnce(Duration) -> io::Result<bool>,
) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if !left.is_zero() && wait(left)? { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
}
