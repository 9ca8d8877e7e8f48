//! A channel is trusted when it has moved some bytes; why a link or a channel could not be opened.

use std::io;
use std::time::{Duration, Instant};

use linerate_core::Code;
use linerate_net::channel::ChannelError;
use linerate_net::channel_thread::ChannelEnds;
use linerate_net::rdma;
use linerate_net::tcp::Stream;
use linerate_net::tcp::connect::ConnectError;
use linerate_net::tcp::send::{StreamAcks, StreamSender};

/// Bytes really moved before a link is trusted: more than a path with a broken MTU carries, and little enough to take
/// some milliseconds at 1 Gb/s.
const PROBE_BYTES: usize = PROBE_KIB << 10;
const PROBE_KIB: usize = 512;
/// Number of the frame that a probe is: the one before the scheduler's first.
const PROBE_SEQUENCE: u64 = linerate_core::scheduler::FIRST_SEQUENCE - 1;

/// Why a link could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Rdma(#[from] rdma::connect::ConnectError),
    #[error("{0} has no carrier")]
    NoCarrier(String),
    #[error("RDMA alone was asked for, and {0}")]
    NoRdma(&'static str),
    #[error("small packets pass and a probe of {PROBE_KIB} KiB does not: {0}")]
    Probe(#[source] ChannelError),
    #[error(
        "small packets pass and a probe of {PROBE_KIB} KiB was not answered in time; check that the MTU is the same along the path"
    )]
    ProbeSilent,
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error(transparent)]
    Path(#[from] io::Error),
}

impl OpenError {
    /// The destination's agent answers and does not know the session.
    pub fn is_forgotten(&self) -> bool {
        matches!(self, OpenError::Connect(ConnectError::Refused { fault, .. }) if fault.code == Code::SessionUnknown)
    }
}

/// A connection that this side writes to, once bytes have moved over it for a proof within `patience`.
pub(crate) fn tcp_ends(stream: &Stream, patience: Duration) -> Result<ChannelEnds, OpenError> {
    let mut ends = ChannelEnds {
        sender: Box::new(StreamSender::new(stream.clone())),
        acks: Box::new(StreamAcks::new(stream.clone())),
        closer: stream.closer(),
    };
    probe(&mut ends, patience)?;
    Ok(ends)
}

/// Moves some bytes for a proof, within `patience` or what a far link needs.
pub(crate) fn probe(ends: &mut ChannelEnds, patience: Duration) -> Result<(), OpenError> {
    let end = Instant::now() + ends.acks.round_trip().opening(patience);
    ends.sender.probe(PROBE_SEQUENCE, PROBE_BYTES).map_err(OpenError::Probe)?;
    while Instant::now() < end {
        match ends.acks.next(Duration::from_millis(50)).map_err(OpenError::Probe)? {
            // A refused probe did not arrive as it was sent.
            Some(reply) if reply.through >= PROBE_SEQUENCE && reply.damaged.is_empty() => return Ok(()),
            _ => {}
        }
    }
    Err(OpenError::ProbeSilent)
}
