//! Records on their way to the socket. Its owner decides on the order of records.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use super::connection::{RECORD_BYTES_MAX, RECORD_SPARE_BYTES};
use crate::socket::Wait;

/// Content of the records that are made before the socket is given them: one system call for all.
pub(super) const SENT_BYTES: usize = 16 * RECORD_BYTES_MAX;

#[derive(Default)]
pub(super) struct Outgoing {
    /// Content of the records that are being made.
    plain: Vec<u8>,
    records: Vec<u8>,
    sent: usize,
    end: usize,
}

impl Outgoing {
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
        if self.plain.len() < bytes {
            self.plain.resize(bytes, 0);
        }
        self.plain.get_mut(..bytes).unwrap_or_default()
    }

    /// A part of the content, and the room for a record of it.
    pub fn record(&mut self, part: Range<usize>) -> (&[u8], &mut [u8]) {
        let needed = self.end + part.len() + RECORD_SPARE_BYTES;
        if self.records.len() < needed {
            self.records.resize(needed, 0);
        }
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
}
