//! The direction of a stream that comes to this side.

use super::spans::Spans;
use super::{StreamId, StreamViolation};

/// Gaps that are kept. An honest sender has one per piece in flight at most.
const GAPS_MAX: usize = 4096;

/// What a writer of the local socket may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readable {
    /// Write these bytes out of the ring.
    Bytes {
        /// Position of the first.
        position: u64,
        /// Bytes that can be read at once.
        bytes: u64,
    },
    /// Nothing is there yet.
    Wait,
    /// All was written: shut the socket for writing, and say [`super::Streams::finished`].
    End,
    /// The stream was reset: reset the socket, and say [`super::Streams::finished`].
    Reset,
    /// It is over here.
    Done,
}

#[derive(Debug)]
pub(super) struct ReceiveHalf {
    window_bytes: u64,
    consumed: u64,
    arrived: Spans,
    /// End of the farthest byte that has landed.
    farthest: u64,
    /// First position that the peer may not write, as reported to it.
    announced: u64,
    total: Option<u64>,
    broken: bool,
    /// The reader takes no more bytes.
    done: bool,
}

impl ReceiveHalf {
    pub fn new(window_bytes: u64) -> ReceiveHalf {
        ReceiveHalf {
            window_bytes,
            consumed: 0,
            arrived: Spans::default(),
            farthest: 0,
            announced: window_bytes,
            total: None,
            broken: false,
            done: false,
        }
    }

    /// Whether these bytes may be written now. Once the reader takes no more, any may: they are thrown away.
    pub fn check(&self, stream: StreamId, position: u64, bytes: u64) -> Result<(), StreamViolation> {
        let end = position.saturating_add(bytes);
        if self.is_over() {
            return Ok(());
        }
        if position < self.consumed || end > self.announced {
            return Err(StreamViolation::OutsideWindow { stream, from: position, to: end });
        }
        match self.total {
            Some(total) if end > total => Err(StreamViolation::ConflictingEnd(stream)),
            _ => Ok(()),
        }
    }

    /// These bytes are in the ring.
    pub fn received(&mut self, stream: StreamId, position: u64, bytes: u64) -> Result<(), StreamViolation> {
        if self.is_over() {
            return Ok(());
        }
        self.check(stream, position, bytes)?;
        self.arrived.insert(position, position + bytes);
        self.farthest = self.farthest.max(position + bytes);
        if self.arrived.gaps() > GAPS_MAX { Err(StreamViolation::TooManyGaps(stream)) } else { Ok(()) }
    }

    pub fn readable(&self) -> Readable {
        let bytes = self.arrived.contiguous_end() - self.consumed;
        match self.total {
            _ if self.done => Readable::Done,
            _ if self.broken => Readable::Reset,
            _ if bytes > 0 => Readable::Bytes { position: self.consumed, bytes },
            Some(total) if total == self.consumed => Readable::End,
            _ => Readable::Wait,
        }
    }

    /// `bytes` were written out. Returns the credit to be reported, if it is large enough for a message.
    pub fn consumed(&mut self, bytes: u64) -> Option<u64> {
        self.consumed = (self.consumed + bytes).min(self.arrived.contiguous_end());
        let limit = self.consumed + self.window_bytes;
        let enough = self.total.is_some_and(|total| total <= self.announced);
        if enough || self.is_over() || limit - self.announced < self.window_bytes.div_ceil(4) {
            return None;
        }
        self.announced = limit;
        Some(limit)
    }

    /// The peer has said where it ends. That may lie beyond what it has credit for.
    pub fn end(&mut self, stream: StreamId, total: u64) -> Result<(), StreamViolation> {
        if self.total.is_some() || self.broken || total < self.farthest {
            return Err(StreamViolation::ConflictingEnd(stream));
        }
        self.total = Some(total);
        Ok(())
    }

    /// The peer has reset its direction.
    pub fn reset(&mut self) {
        self.broken = true;
    }

    /// The reader takes no more bytes. False if that is so already.
    pub fn finish(&mut self) -> bool {
        !std::mem::replace(&mut self.done, true)
    }

    fn is_over(&self) -> bool {
        self.done || self.broken
    }

    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Whether all has come that will, or its absence is known.
    pub fn has_ended(&self) -> bool {
        self.broken || self.total.is_some()
    }
}
