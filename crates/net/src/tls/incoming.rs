//! Records that came from the socket and are not read yet, and content that was read and not taken yet.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicUsize;

use super::connection::{WIRE_RECORD_BYTES_MAX, begins_with_record};
use super::error::TlsError;
use super::large::Large;
use crate::socket::Wait;

/// At first; enough for a control connection. A handshake is shorter, and a full buffer has a whole record.
pub(super) const FIRST_BYTES: usize = 2 * WIRE_RECORD_BYTES_MAX;
/// Where bytes come fast. Larger reads save system calls, and smaller ones stay in the cache.
const BYTES_MAX: usize = 16 * WIRE_RECORD_BYTES_MAX;
/// Connections of this process that have more now.
static LARGE: AtomicUsize = AtomicUsize::new(0);

pub(super) struct Incoming {
    records: Vec<u8>,
    /// What large buffers are counted by, and this one's right to be one.
    count: &'static AtomicUsize,
    large: Option<Large>,
    start: usize,
    end: usize,
    /// Content of records that are verified, not taken yet from `taken` on.
    content: Vec<u8>,
    taken: usize,
    /// The peer has said that nothing more comes.
    pub ended: bool,
    /// Why nothing more can be read. What was read before it is still to be taken.
    pub failed: Option<TlsError>,
}

impl Incoming {
    pub fn new() -> Incoming {
        Incoming::counted_by(&LARGE)
    }

    fn counted_by(count: &'static AtomicUsize) -> Incoming {
        Incoming {
            records: vec![0; FIRST_BYTES],
            count,
            large: None,
            start: 0,
            end: 0,
            content: Vec::new(),
            taken: 0,
            ended: false,
            failed: None,
        }
    }

    /// One `recv`, of at most `limit` bytes. Ok(0) is the end of the stream.
    pub fn receive(&mut self, socket: BorrowedFd<'_>, limit: usize, wait: Wait) -> io::Result<usize> {
        if self.start > 0 {
            self.records.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = self.records.get_mut(self.end..).unwrap_or_default();
        let room = room.get_mut(..limit.min(room.len())).unwrap_or_default();
        let (bytes, _) = rustix::net::recv(socket, room, wait.receiving())?;
        self.end += bytes;
        if self.end == self.records.len() && self.end < BYTES_MAX && self.may_grow() {
            self.records.resize((2 * self.end).min(BYTES_MAX), 0);
        }
        Ok(bytes)
    }

    fn may_grow(&mut self) -> bool {
        self.large = self.large.take().or_else(|| Large::take(self.count));
        self.large.is_some()
    }

    /// Whether a record is there to be read. After an error and after the end none is.
    pub fn has_record(&self) -> bool {
        !self.ended
            && self.failed.is_none()
            && self.records.get(self.start..self.end).is_some_and(begins_with_record)
    }

    /// Whether something can be taken, or an error or the end be found, without the socket.
    pub fn is_ready(&self) -> bool {
        self.ended || self.failed.is_some() || self.taken < self.content.len() || self.has_record()
    }

    pub fn first_byte(&self) -> Option<u8> {
        self.records.get(self.start..self.end)?.first().copied()
    }

    /// The records, and the content to append theirs to.
    pub fn parts(&mut self) -> (&mut [u8], &mut Vec<u8>) {
        // What is not taken is a part of one record at most, while records are read.
        self.content.drain(..self.taken);
        self.taken = 0;
        (self.records.get_mut(self.start..self.end).unwrap_or_default(), &mut self.content)
    }

    pub fn discard(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.end);
    }

    /// Content that is not taken yet.
    pub fn left(&self) -> &[u8] {
        self.content.get(self.taken..).unwrap_or_default()
    }

    pub fn take(&mut self, bytes: usize) {
        self.taken = (self.taken + bytes).min(self.content.len());
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::tls::large::LARGE_MAX;

    /// Its buffer was full three times.
    fn filled(count: &'static AtomicUsize) -> Incoming {
        let (mut peer, here) = UnixStream::pair().unwrap();
        let mut incoming = Incoming::counted_by(count);
        for _ in 0..3 {
            let room = incoming.records.len();
            peer.write_all(&vec![0; room]).unwrap();
            let mut received = 0;
            while received < room {
                received += incoming.receive(here.as_fd(), usize::MAX, Wait::Never).unwrap();
            }
            incoming.discard(room);
        }
        incoming
    }

    #[test]
    fn large_buffers_are_bounded_and_other_connections_read_in_smaller_steps() {
        static ALMOST_ALL: AtomicUsize = AtomicUsize::new(LARGE_MAX - 1);
        let first = filled(&ALMOST_ALL);
        assert_eq!(first.records.len(), BYTES_MAX);
        assert_eq!(filled(&ALMOST_ALL).records.len(), FIRST_BYTES);
        drop(first);
        assert_eq!(filled(&ALMOST_ALL).records.len(), BYTES_MAX);
    }
}
