//! What a transport gives to both sides of a channel. `tcp/` and `memory/` implement it, in files of the same names.
//!
//! ```text
//! source                                             destination
//! Sender::write  -- WRITE 1, 2, 3 ...  -->           Receiver::serve: bounds, payload into the region, checksum, zero runs
//! AckReader::next <-- ACK up to 3, but 2 damaged --  (before it would wait, or every 8 frames or 2 MiB)
//! Closer::close  -- end of stream -->                ChannelEnd::Closed
//! ```
//! Frames of a channel are numbered upwards from 1. A number is never given twice, also not on a new connection: a lost
//! channel comes back as another channel.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use linerate_core::{RegionId, Run};
use linerate_wire::frame::Tag;
use linerate_wire::{DecodeError, EncodeError};
use thiserror::Error;

use crate::fence::Fence;
use crate::rdma::error::RdmaError;
use crate::region::Region;
use crate::round_trip::RoundTrip;
use crate::stats::ChannelStats;
use crate::table::RegionTable;

/// One placed write that is to be sent.
#[derive(Clone, Copy)]
pub struct WriteOrder<'a> {
    /// Number of the frame on this channel.
    pub sequence: u64,
    /// The region at both ends.
    pub region_id: RegionId,
    /// Where the bytes are.
    pub region: &'a dyn Region,
    /// Runs whose bytes are sent.
    pub data: &'a [Run],
    /// Runs that become zero.
    pub zero: &'a [Run],
}

impl WriteOrder<'_> {
    /// Bytes of the data runs.
    pub fn data_bytes(&self) -> u64 {
        total(self.data)
    }
}

/// Bytes of all runs; saturates.
pub(crate) fn total(runs: &[Run]) -> u64 {
    runs.iter().fold(0, |sum, run| sum.saturating_add(run.length))
}

/// Source side, sending half.
pub trait Sender: Send {
    /// Sends a write; returns the bytes put on the wire. On return the transport has taken it; it may not have arrived.
    fn write(&mut self, order: &WriteOrder<'_>) -> Result<u64, ChannelError>;
    /// Sends `bytes` of payload that the other side throws away and acknowledges; returns the bytes put on the wire.
    fn probe(&mut self, sequence: u64, bytes: usize) -> Result<u64, ChannelError>;
    /// Counters of what was sent.
    fn stats(&self) -> Arc<ChannelStats>;
}

/// What the destination said: all frames up to `through` are applied, but for `damaged`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// Highest frame number that was dealt with.
    pub through: u64,
    /// Frames that arrived damaged and count as not sent; ascending.
    pub damaged: Vec<u64>,
}

/// Source side, acknowledging half.
pub trait AckReader: Send {
    /// The next acknowledgement; `None` when the wait is over.
    fn next(&mut self, wait: Duration) -> Result<Option<Acknowledged>, ChannelError>;
    /// Bytes that the peer's kernel or adapter has taken so far; 0 where the transport does not report it.
    fn progress(&mut self) -> u64;
    /// Round trip of the link; zero where it is not known.
    fn round_trip(&self) -> RoundTrip;
}

pub trait Receiver: Send {
    /// Applies what comes until the channel ends. Runs in a thread of its own; [`Fence::close`] ends it.
    fn serve(self, regions: &RegionTable, fence: &Fence) -> ChannelEnd;
}

/// How serving a channel ended.
#[derive(Debug)]
pub enum ChannelEnd {
    /// The source closed it between two frames.
    Closed,
    /// This side's fence closed it.
    Fenced,
    /// Anything else. What came before it was applied as the fence says.
    Failed(ChannelError),
}

/// Ends a channel from another thread, at once and without waiting.
#[derive(Clone)]
pub struct Closer(Arc<dyn Fn() + Send + Sync>);

impl Closer {
    /// Wraps the transport's way to close.
    pub fn new(close: impl Fn() + Send + Sync + 'static) -> Closer {
        Closer(Arc::new(close))
    }

    /// Closes in both directions; any wait inside the transport ends. May be called again.
    pub fn close(&self) {
        (self.0)();
    }
}

impl fmt::Debug for Closer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Closer")
    }
}

/// Why a channel cannot be used any more. Another channel, on this or another link, can carry its work.
#[derive(Debug, Error)]
pub enum ChannelError {
    /// Closed between two frames.
    #[error("the peer closed the channel")]
    Closed,
    /// Closed inside a frame: the peer or the link died.
    #[error("the channel was closed inside a frame")]
    ClosedInFrame,
    /// The system says that the connection failed.
    #[error("the connection failed: {0}")]
    Socket(#[source] io::Error),
    /// Bytes that are no frame.
    #[error("the peer sent something that is no frame: {0}")]
    Decode(#[from] DecodeError),
    /// A defect on this side.
    #[error("a frame could not be made: {0}")]
    Encode(#[from] EncodeError),
    /// A frame that has no business on a data channel, or not in this direction.
    #[error("a {tag} frame has no place here")]
    UnexpectedFrame { tag: Tag },
    /// A frame number came that is not above the one before.
    #[error("frame {sequence} came after frame {after}; numbers must rise")]
    SequenceOrder { sequence: u64, after: u64 },
    /// The peer acknowledged what was never sent, or took an acknowledgement back.
    #[error("the peer acknowledged frame {through}; {acknowledged} were acknowledged and {sent} sent")]
    AcknowledgedWrongly {
        through: u64,
        acknowledged: u64,
        /// Highest number that was sent.
        sent: u64,
    },
    /// No region has this number.
    #[error("no region {region} in this session")]
    RegionUnknown { region: RegionId },
    /// A run is not inside its region.
    #[error("{length:#x} bytes at {offset:#x} are not inside region {region} of {size:#x} bytes", length = run.length, offset = run.offset)]
    RunOutside {
        region: RegionId,
        run: Run,
        /// Size of the region, bytes.
        size: u64,
    },
    /// Memory could not be read or written.
    #[error("memory of region {region} failed: {source}")]
    Memory {
        region: RegionId,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The stream whose bytes were to be sent has ended meanwhile.
    #[error("region {region} has nothing more to send there: its stream has ended")]
    SourceGone { region: RegionId },
    /// Too much arrived damaged.
    #[error("too many frames arrived damaged; look for a faulty port or cable on this link")]
    Damaged,
    /// RAM is complete; nothing may be written any more.
    #[error("memory is sealed: the source reported before that it was complete")]
    Sealed,
    /// Nothing moved for too long.
    #[error("nothing moved for {} ms although something was in flight", waited.as_millis())]
    Stalled { waited: Duration },
    /// This side closed it.
    #[error("the channel was closed on this side")]
    ClosedHere,
    /// A thread could not be started.
    #[error("cannot start a thread for the channel: {0}")]
    Thread(#[source] io::Error),
    /// The adapter, or the peer's.
    #[error("{0}")]
    Rdma(#[source] RdmaError),
}

impl ChannelError {
    /// Whether the transport may be what failed, when the link works: the peer did not end it, nor did this side.
    /// A revocation is this side's end.
    pub fn may_be_the_transports(&self) -> bool {
        !matches!(
            self,
            ChannelError::Closed
                | ChannelError::ClosedHere
                | ChannelError::Rdma(RdmaError::Revoked)
                | ChannelError::Thread(_)
                | ChannelError::SourceGone { .. }
        )
    }
}

impl From<RdmaError> for ChannelError {
    fn from(error: RdmaError) -> ChannelError {
        match error {
            RdmaError::PeerClosed => ChannelError::Closed,
            RdmaError::ClosedHere => ChannelError::ClosedHere,
            other => ChannelError::Rdma(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests of whole migrations read it from logs.
    #[test]
    fn a_stalled_channel_says_for_how_many_milliseconds() {
        let stalled = ChannelError::Stalled { waited: Duration::from_millis(1234) };
        assert_eq!(stalled.to_string(), "nothing moved for 1234 ms although something was in flight");
    }

    #[test]
    fn a_revocation_is_named_and_is_no_failure_of_rdma() {
        let revoked = ChannelError::from(RdmaError::Revoked);
        assert_eq!(revoked.to_string(), "the other host was revoked");
        assert!(!revoked.may_be_the_transports());
    }
}
