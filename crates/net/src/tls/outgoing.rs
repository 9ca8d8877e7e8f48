//! Records on their way to the socket. Its owner decides on the order of records.

use std::io;
use std::os::fd::BorrowedFd;

use super::connection::{RECORD_BYTES_MAX, RECORD_SPARE_BYTES};
use crate::socket::Wait;

/// Records that are made before the socket is given them: one system call for all.
const RECORDS: usize = 16;

#[derive(Default)]
pub(super) struct Outgoing {
    /// Content of the record that is being made.
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

    /// Room for a record of this content, and for the content itself. `None` once there are enough records.
    pub fn room(&mut self, content: usize) -> Option<(&mut [u8], &mut [u8])> {
        let needed = self.end + content + RECORD_SPARE_BYTES;
        if needed > RECORDS * (RECORD_BYTES_MAX + RECORD_SPARE_BYTES) {
            return None;
        }
        if self.records.len() < needed {
            self.records.resize(needed, 0);
        }
        if self.plain.len() < content {
            self.plain.resize(content, 0);
        }
        Some((self.plain.get_mut(..content)?, self.records.get_mut(self.end..)?))
    }

    /// So many bytes were written into the room.
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
