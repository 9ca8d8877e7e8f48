//! Byte streams over placed writes; docs/streams.md has the design, and the diagram of both sides.
//!
//! A run of region [`REGION`] names bytes of a stream by their position in it ([`address`]). The receiver folds
//! positions into a ring; where that lies is the driver's affair.
//!
//! ```text
//! room, produced      socket --> ring    Streams::next --> channels --> check, landed   ring --> socket    readable, consumed
//!                                ^ acknowledged: room again            (credit: notes)  <------- consumed
//! ```
//!
//! * [`Streams`]: all streams of a session, one object on each side; both directions of each stream.
//! * `send`, `receive`: the two directions of one stream. * `spans`: what has come ahead of its turn.
//! * `turns`: whose bytes go next.
//!
//! Invariants (tests and the simulation check them):
//! * a byte is given out once, in order, and only after it has landed;
//! * a position is overwritten in the sender's ring only when it was acknowledged, in the receiver's only when it was
//!   read;
//! * a number is given again only when no byte of its old stream is pending or in flight on either side.

mod fair_queue;
mod receive;
mod send;
mod spans;
mod streams;

use std::time::Duration;

use crate::scheduler;
use crate::{RegionId, Run};

pub use fair_queue::Class;
pub use receive::Readable;
pub use send::SendSpace;
pub use streams::{Event, Streams};

/// Number of a stream within a session.
pub type StreamId = u16;

/// The region number of all streams of one direction. No RAM block has this number.
pub const REGION: RegionId = RegionId::MAX;
/// Bits of a position; above them an offset has the stream's number.
pub const POSITION_BITS: u32 = 48;
/// Bytes that a stream can carry from its opening to its end.
pub const POSITION_MAX: u64 = (1 << POSITION_BITS) - 1;

/// Where a byte of a stream lies in [`REGION`].
pub fn address(stream: StreamId, position: u64) -> u64 {
    u64::from(stream) << POSITION_BITS | (position & POSITION_MAX)
}

/// Stream and position of an offset in [`REGION`].
pub fn position_of(offset: u64) -> (StreamId, u64) {
    ((offset >> POSITION_BITS) as StreamId, offset & POSITION_MAX)
}

/// A piece of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The stream that the bytes belong to.
    pub stream: StreamId,
    /// Position of the first byte.
    pub position: u64,
    /// Length of the piece, bytes.
    pub bytes: u64,
}

impl Piece {
    /// The piece that a run names.
    pub fn of(run: Run) -> Piece {
        let (stream, position) = position_of(run.offset);
        Piece { stream, position, bytes: run.length }
    }

    /// The run that names the piece.
    pub fn run(self) -> Run {
        Run { offset: address(self.stream, self.position), length: self.bytes }
    }
}

/// Which end of the session this is; decides whose numbers are whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Opens the session; its streams have even numbers.
    Source,
    /// Its streams have odd numbers.
    Destination,
}

/// Limits of a session's streams; both sides may have different ones.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes of each ring: one for what is sent and one for what is received, per stream. A stream moves at most a
    /// window per round trip, credit included. Larger costs memory while a stream is busy, none while it is not.
    pub window_bytes: u64,
    /// Streams at a time. With the window it bounds the memory of a session: twice the window for each.
    pub streams_max: usize,
    /// Most bytes of one turn.
    pub piece_bytes: u64,
    /// Given to the scheduler ahead of need, in bytes per active channel. Less is fairer, more keeps channels busier.
    pub lookahead_bytes: u64,
    /// How much of all streams may wait in their rings for the peer, as time at the rate that the links carry; all of
    /// the rings if absent. For writers that guess from their sockets how fast they are being read, and what is left.
    pub backlog: Option<Duration>,
    /// Weights of classes of streams ([`Streams::open_in`]): where all have something to send, each is carried by its
    /// weight over the sum, however many streams it has. One class if empty.
    pub weights: Vec<u16>,
    /// Never give a number twice in a session: for transports that remember where a stream's ring is, by its number.
    pub never_reuse_numbers: bool,
    /// Channels and their windows.
    pub scheduler: scheduler::Config,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            window_bytes: 8 << 20,
            streams_max: 256,
            piece_bytes: 256 << 10,
            lookahead_bytes: 512 << 10,
            backlog: None,
            weights: Vec::new(),
            never_reuse_numbers: false,
            scheduler: scheduler::Config { write_bytes_min: 64 << 10, ..scheduler::Config::default() },
        }
    }
}

/// The peer broke the rules of streams; nothing that it says can be relied on any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum StreamViolation {
    /// A note or a write for a stream that does not exist.
    #[error("stream {0} does not exist")]
    Unknown(StreamId),
    /// An Open with a number that is taken or not the peer's to give.
    #[error("stream {0} cannot be opened by the peer")]
    NumberNotAllowed(StreamId),
    /// A note that has no place in the stream's state.
    #[error("stream {0}: a note came that has no place there")]
    UnexpectedNote(StreamId),
    /// A write of bytes that were read already or that no credit was given for.
    #[error("stream {stream}: bytes {from} to {to} are not inside the window")]
    OutsideWindow {
        stream: StreamId,
        from: u64,
        /// First position behind it.
        to: u64,
    },
    /// More gaps than an honest sender leaves.
    #[error("stream {0}: more gaps than can be kept")]
    TooManyGaps(StreamId),
    /// Bytes behind the end, an end before bytes that have come, or two ends.
    #[error("stream {0}: its end does not fit its bytes")]
    ConflictingEnd(StreamId),
}

/// A stream cannot be opened here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum OpenError {
    /// The session has as many as it may.
    #[error("the session has {max} streams already; close some or raise the limit")]
    TooMany { max: usize },
    /// The session is over.
    #[error("the session is over")]
    Over,
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
