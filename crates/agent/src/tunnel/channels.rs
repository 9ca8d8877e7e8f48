//! Channels of both directions.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use linerate_core::{ChannelId, LinkId};
use linerate_net::pump::{Carrier, PumpHandle, PumpOptions};
use linerate_net::tcp::Stream;
use linerate_net::tcp::receive::StreamReceiver;
use linerate_net::tcp::send::{StreamAcks, StreamSender};
use linerate_wire::frame::REFUSED_MAX;

use super::{Input, Tunnel};
use crate::outgoing::channels::{OpenError, probe};

/// Pumps by channel.
#[derive(Default)]
pub(super) struct Pumps(Mutex<HashMap<ChannelId, PumpHandle>>);

impl Pumps {
    fn insert(&self, channel: ChannelId, pump: PumpHandle) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(channel, pump);
    }

    /// Ends a pump; waits for its threads.
    pub fn remove(&self, channel: ChannelId) {
        let pump = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&channel);
        drop(pump);
    }

    /// Ends all of them.
    pub fn clear(&self) {
        let pumps = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        drop(pumps);
    }
}

/// A connection that this side writes to, once bytes have moved over it for a proof.
pub(super) fn proven(stream: &Stream) -> Result<Carrier, OpenError> {
    let mut carrier = Carrier {
        sender: Box::new(StreamSender::new(stream.clone())),
        acks: Box::new(StreamAcks::new(stream.clone())),
        closer: stream.closer(),
    };
    probe(&mut carrier)?;
    Ok(carrier)
}

/// Puts a channel of this side to work.
pub(super) fn pump(
    tunnel: &Tunnel,
    channel: ChannelId,
    link: LinkId,
    carrier: Carrier,
) -> Result<PumpHandle, OpenError> {
    tunnel.streams.channel_up(channel, link);
    let options = PumpOptions::new(tunnel.streams.sending_table());
    Ok(PumpHandle::start(channel, carrier, tunnel.streams.clone(), options)?)
}

/// The peer connected a channel for this side to write to.
pub(super) fn attach_back(
    tunnel: &Tunnel,
    channel: ChannelId,
    link: LinkId,
    stream: &Stream,
) -> Result<(), OpenError> {
    let carrier = proven(stream)?;
    let pump = pump(tunnel, channel, link, carrier)?;
    tunnel.pumps.insert(channel, pump);
    Ok(())
}

/// Applies what the peer writes.
pub(super) fn serve(tunnel: &Tunnel, channel: ChannelId, stream: Stream) -> io::Result<()> {
    let (closer, regions) = (stream.closer(), tunnel.streams.receiving_table());
    let receiver = StreamReceiver::new(stream).refusals_max(REFUSED_MAX);
    tunnel.fences.serve(channel, closer, receiver, regions, || {})
}

/// Fences a channel of the peer, and tells the loop.
pub(super) fn fence(tunnel: &Arc<Tunnel>, channel: ChannelId) {
    let session = tunnel.clone();
    tunnel.fences.fence_apart(channel, move |fenced| session.tell(Input::Fenced(channel, fenced)));
}
