//! Records that came from the socket and are not read yet, and content that was read and not taken yet.

use std::io;
use std::os::fd::BorrowedFd;

use super::connection::{WIRE_RECORD_BYTES_MAX, begins_with_record};
use super::error::TlsError;
use crate::socket::Wait;

/// At first; enough for a control connection.
const FIRST_BYTES: usize = 2 * WIRE_RECORD_BYTES_MAX;
/// Where bytes come fast. Larger reads save system calls, and smaller ones stay in the cache.
const BYTES_MAX: usize = 16 * WIRE_RECORD_BYTES_MAX;

pub(super) struct Incoming {
    records: Vec<u8>,
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
        Incoming {
            records: vec![0; FIRST_BYTES],
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
        if self.end == self.records.len() && self.end < BYTES_MAX {
            self.records.resize((2 * self.end).min(BYTES_MAX), 0);
        }
        Ok(bytes)
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
