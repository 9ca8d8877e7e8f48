//! Records on their way to the socket. Its owner decides on the order of records.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicUsize;

use super::connection::{RECORD_BYTES_MAX, RECORD_SPARE_BYTES};
use super::large::Large;
use crate::socket::Wait;

/// Content of the records that are made before the socket is given them: one system call for all.
const SENT_BYTES: usize = 16 * RECORD_BYTES_MAX;

/// Connections that other hosts opened, and that make more than one record at a time now.
pub(super) static LARGE: AtomicUsize = AtomicUsize::new(0);

pub(super) struct Outgoing {
    is_bounded: bool,
    /// The right to make more than one record at a time, where it needs one.
    large: Option<Large>,
    /// Content of the records that are being made.
    plain: Vec<u8>,
    records: Vec<u8>,
    sent: usize,
    end: usize,
}

impl Outgoing {
    /// Of a connection that another host opened: only some of these make many records at a time.
    pub fn bounded() -> Outgoing {
        Outgoing { is_bounded: true, ..Outgoing::unbounded() }
    }

    /// Of a connection that this host opened: it chooses how many it opens.
    pub fn unbounded() -> Outgoing {
        Outgoing { is_bounded: false, large: None, plain: Vec::new(), records: Vec::new(), sent: 0, end: 0 }
    }

    /// How many of the `length` bytes may be made records before the socket is given them.
    pub fn at_once(&mut self, length: usize) -> usize {
        if length > RECORD_BYTES_MAX && self.is_bounded {
            self.large = self.large.take().or_else(|| Large::take(&LARGE));
            if self.large.is_none() {
                return RECORD_BYTES_MAX;
            }
        }
        length.min(SENT_BYTES)
    }

    /// Gives the socket what it takes. `WouldBlock` while something is left.
    pub fn flush(&mut self, socket: BorrowedFd<'_>, wait: Wait) -> io::Result<()> {
        while let Some(rest) = self.records.get(self.sent..self.end).filter(|rest| !rest.is_empty()) {
            match rustix::net::send(socket, rest, wait.sending()) {
                Ok(bytes) => self.sent += bytes,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        (self.sent, self.end) = (0, 0);
        Ok(())
    }

    /// The place of content that records will be made of.
    pub fn content(&mut self, bytes: usize) -> &mut [u8] {
        grow(&mut self.plain, bytes);
        self.plain.get_mut(..bytes).unwrap_or_default()
    }

    /// A part of the content, and the room for a record of it.
    pub fn record(&mut self, part: Range<usize>) -> (&[u8], &mut [u8]) {
        grow(&mut self.records, self.end + part.len() + RECORD_SPARE_BYTES);
        let content = self.plain.get(part).unwrap_or_default();
        (content, self.records.get_mut(self.end..).unwrap_or_default())
    }

    /// `bytes` were written into the room.
    pub fn made(&mut self, bytes: usize) {
        self.end += bytes;
    }

    /// Appends records that were made elsewhere.
    pub fn append(&mut self, records: &[u8]) {
        self.records.truncate(self.end);
        self.records.extend_from_slice(records);
        self.end = self.records.len();
    }

    /// Bytes that the buffers have.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.plain.capacity() + self.records.capacity()
    }
}

/// To so many bytes, and with no room for more: there are many such buffers.
fn grow(buffer: &mut Vec<u8>, bytes: usize) {
    if buffer.len() < bytes {
        buffer.reserve_exact(bytes - buffer.len());
        buffer.resize(bytes, 0);
    }
}
