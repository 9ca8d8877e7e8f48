//! A socket whose reads and writes all end by one time, however slowly the other end sends.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A connected socket with the time by which all must be read and written.
pub struct Deadline {
    socket: TcpStream,
    end: Instant,
}

impl Deadline {
    pub fn new(socket: TcpStream, wait: Duration) -> io::Result<Deadline> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(false)?;
        Ok(Deadline { socket, end: Instant::now() + wait })
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(late()) } else { Ok(left) }
    }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "it took too long")
}

/// A socket's own time-out is told as `WouldBlock`, which callers would take for a reason to try again.
fn named(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { late() } else { error }
}

impl Read for Deadline {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.left()?))?;
        self.socket.read(buffer).map_err(named)
    }
}

impl Write for Deadline {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.left()?))?;
        self.socket.write(buffer).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}
