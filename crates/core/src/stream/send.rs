//! The direction of a stream that leaves this side.

use std::collections::VecDeque;

use super::spans::Spans;
use super::{POSITION_MAX, Piece, StreamId};

/// Unacknowledged pieces of a stream beyond which small ones wait for company.
const SMALL_PIECES_MAX: usize = 64;

/// What a reader of the local socket may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendSpace {
    /// Put bytes into the ring at this position.
    Space {
        /// Position in the stream of the first byte to write.
        position: u64,
        /// Free bytes of the ring; they may wrap around its end.
        bytes: u64,
    },
    /// The ring is full, or the stream is not open yet.
    Wait,
    /// The peer takes no more bytes: read no more.
    Stopped,
}

/// How the direction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Open,
    /// The local socket has no more; everything before is still to go.
    Ended,
    /// Reset, here or there: nothing more is sent.
    Stopped,
}

#[derive(Debug)]
pub(super) struct SendHalf {
    ring_bytes: u64,
    /// Bytes put into the ring since the beginning.
    produced: u64,
    /// Bytes given to the scheduler.
    scheduled: u64,
    /// The peer takes nothing from here on.
    limit: u64,
    delivered: Spans,
    /// Ends of the pieces that are not settled, for the rule of small pieces.
    pieces: VecDeque<u64>,
    /// Bytes pending or in flight.
    outstanding: u64,
    ending: Ending,
}

impl SendHalf {
    pub fn new(ring_bytes: u64) -> SendHalf {
        SendHalf {
            ring_bytes,
            produced: 0,
            scheduled: 0,
            limit: 0,
            delivered: Spans::default(),
            pieces: VecDeque::new(),
            outstanding: 0,
            ending: Ending::Open,
        }
    }

    pub fn send_space(&self) -> SendSpace {
        // Before the first credit the ring can be filled all the same.
        let free = self.ring_bytes - (self.produced - self.delivered.contiguous_end());
        let free = free.min(POSITION_MAX - self.produced);
        match self.ending {
            Ending::Open if free > 0 => SendSpace::Space { position: self.produced, bytes: free },
            Ending::Open => SendSpace::Wait,
            Ending::Ended | Ending::Stopped => SendSpace::Stopped,
        }
    }

    /// Bytes in the ring that the peer does not have.
    pub fn waiting(&self) -> u64 {
        self.produced - self.delivered.contiguous_end()
    }

    /// Bytes were put where [`SendSpace::Space`] said.
    pub fn produced(&mut self, bytes: u64) {
        if let SendSpace::Space { bytes: free, .. } = self.send_space() {
            self.produced += bytes.min(free);
        }
    }

    /// The local socket has no more. Returns how many bytes there were, if that is news.
    pub fn end(&mut self) -> Option<u64> {
        (self.ending == Ending::Open).then(|| {
            self.ending = Ending::Ended;
            self.produced
        })
    }

    /// Nothing more goes. False if that is so already.
    pub fn stop(&mut self) -> bool {
        let news = self.ending != Ending::Stopped && !self.is_done();
        self.ending = Ending::Stopped;
        news
    }

    pub fn is_stopped(&self) -> bool {
        self.ending == Ending::Stopped
    }

    /// The peer takes bytes up to here.
    pub fn credit(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    /// Bytes that may go now.
    fn ready(&self) -> u64 {
        let bytes = self.produced.min(self.limit).saturating_sub(self.scheduled);
        if self.ending == Ending::Stopped { 0 } else { bytes }
    }

    /// Whether [`SendHalf::next_piece`] would give a piece.
    pub fn is_ready(&self, piece_bytes: u64) -> bool {
        let bytes = self.ready();
        bytes > 0 && (bytes >= piece_bytes || self.pieces.len() < SMALL_PIECES_MAX)
    }

    /// The next piece for the scheduler.
    pub fn next_piece(&mut self, stream: StreamId, piece_bytes: u64) -> Option<Piece> {
        if !self.is_ready(piece_bytes) {
            return None;
        }
        let bytes = self.ready().min(piece_bytes);
        let piece = Piece { stream, position: self.scheduled, bytes };
        self.scheduled += bytes;
        self.outstanding += bytes;
        self.pieces.push_back(self.scheduled);
        Some(piece)
    }

    /// The peer has these bytes.
    pub fn delivered(&mut self, position: u64, bytes: u64) {
        self.delivered.insert(position, position + bytes);
        self.forget(bytes);
        while self.pieces.front().is_some_and(|end| *end <= self.delivered.contiguous_end()) {
            self.pieces.pop_front();
        }
    }

    /// The scheduler holds `bytes` of this stream no more.
    pub fn forget(&mut self, bytes: u64) {
        self.outstanding = self.outstanding.saturating_sub(bytes);
    }

    /// It has ended, and nothing of it is pending or in flight.
    pub fn is_done(&self) -> bool {
        match self.ending {
            Ending::Open => false,
            Ending::Ended => self.delivered.contiguous_end() == self.produced,
            Ending::Stopped => self.outstanding == 0,
        }
    }
}
