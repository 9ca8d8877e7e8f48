//! Channels of the source: what they receive is applied to the guest's RAM, or to the rings of its streams.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use linerate_core::destination::Event;
use linerate_core::{ChannelId, Code, Fault, Side};
use linerate_net::channel::{ChannelEnd, ChannelError, Closer, Receiver};
use linerate_net::rdma::{self, receive::RdmaReceiver};
use linerate_net::stats::ChannelStats;
use linerate_net::table::RegionTable;
use linerate_net::tcp::Stream;
use linerate_net::tcp::receive::StreamReceiver;

use super::{ChannelTarget, Incoming};
use crate::faults::chain;

/// Serves a TCP connection.
pub(super) fn attach(shared: &Arc<Incoming>, channel: ChannelId, stream: Stream) -> io::Result<()> {
    match shared.target.get().ok_or_else(not_admitted)? {
        ChannelTarget::Streams(stream_transport) => stream_transport.serve(channel, stream, count(shared)),
        ChannelTarget::Ram(regions) => {
            let (closer, receiver) = (stream.closer(), StreamReceiver::new(stream));
            let stats = receiver.stats();
            fill(shared, regions, channel, closer, receiver, stats)
        }
    }
}

/// Serves a queue pair.
pub(super) fn attach_rdma(
    shared: &Arc<Incoming>,
    channel: ChannelId,
    connection: Arc<rdma::Connection>,
) -> io::Result<()> {
    match shared.target.get().ok_or_else(not_admitted)? {
        ChannelTarget::Streams(stream_transport) => {
            stream_transport.serve_rdma(channel, connection, count(shared))
        }
        ChannelTarget::Ram(regions) => {
            let (closer, receiver) = (rdma::receive::closer(&connection), RdmaReceiver::new(connection));
            let stats = receiver.stats();
            fill(shared, regions, channel, closer, receiver, stats)
        }
    }
}

fn not_admitted() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "a data channel before the guest was admitted")
}

/// Counts what a channel received.
fn count(shared: &Arc<Incoming>) -> impl FnOnce(u64) + Send + use<> {
    let session = shared.clone();
    move |bytes| {
        session.received_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Applies what is received to the guest's RAM.
fn fill(
    shared: &Arc<Incoming>,
    regions: &Arc<RegionTable>,
    channel: ChannelId,
    closer: Closer,
    receiver: impl Receiver + 'static,
    stats: Arc<ChannelStats>,
) -> io::Result<()> {
    let session = shared.clone();
    let ended = move |end: &ChannelEnd| {
        if let ChannelEnd::Failed(error @ ChannelError::Memory { .. }) = end {
            // No other channel could do better, and a link that is opened again and again would hide it.
            let fault =
                Fault::new(Code::MemoryFailed, session.machine().step(), Side::Destination, chain(error));
            session.send(Event::ReceivingFailed(session.ram_folder.explain(fault)));
        }
        session.received_bytes.fetch_add(stats.counters().data_bytes, Ordering::Relaxed);
    };
    shared.fences.serve(channel, closer, receiver, regions.clone(), ended)
}

/// Fences a channel, and reports it to the core.
pub(super) fn fence(shared: &Arc<Incoming>, channel: ChannelId) {
    let session = shared.clone();
    shared.fences.fence(channel, move |fenced| {
        session.send(Event::Fenced { channel, applied: fenced.applied, damaged: fenced.damaged });
    });
}
