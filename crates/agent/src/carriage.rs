//! What a session needs to carry byte streams, a tunnel's or a migration's: the streams, the channels that this side writes to,
//! and those that it receives from.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use linerate_core::stream::{Config, End};
use linerate_core::{ChannelId, LinkId};
use linerate_net::fence::Fenced;
use linerate_net::pacer::Pacer;
use linerate_net::pump::{Carrier, PumpHandle, PumpOptions};
use linerate_net::region::Region;
use linerate_net::stream::{Owner, RingMemory, StreamSession};
use linerate_net::tcp::Stream;
use linerate_net::tcp::receive::StreamReceiver;
use linerate_net::tcp::send::{StreamAcks, StreamSender};
use linerate_wire::frame::REFUSED_MAX;

use crate::incoming::channels::Channels as Fences;
use crate::outgoing::channels::{OpenError, probe};
use crate::ram::Ram;

/// What a migration's streams are opened to: the other side's hypervisor.
pub(crate) const QEMU_SERVICE: &str = "qemu";
/// More than the connections of any hypervisor's migration.
const MIGRATION_STREAMS_MAX: usize = 64;

/// What QEMU has written counts for it as sent: it must not be much more than was, or the blackout is longer than QEMU predicts.
const MIGRATION_BACKLOG: Duration = Duration::from_millis(50);

/// Streams of a migration.
pub(crate) fn migration_streams() -> Config {
    Config { streams_max: MIGRATION_STREAMS_MAX, backlog: Some(MIGRATION_BACKLOG), ..Config::default() }
}

/// See the module.
pub(crate) struct Carriage {
    /// All streams of the session.
    pub streams: Arc<StreamSession>,
    /// The peer's channels.
    pub fences: Arc<Fences>,
    /// This side's channels, where the peer connected them.
    pumps: Mutex<HashMap<ChannelId, PumpHandle>>,
}

impl Carriage {
    /// No stream and no channel yet.
    pub fn new(end: End, config: Config, owner: Box<dyn Owner>, fences: Arc<Fences>) -> Carriage {
        let streams = StreamSession::new(end, config, ring_memory(), owner);
        Carriage { streams, fences, pumps: Mutex::default() }
    }

    /// Puts a channel of this side to work.
    pub fn pump(
        &self,
        channel: ChannelId,
        link: LinkId,
        carrier: Carrier,
        pacer: Option<Arc<Pacer>>,
    ) -> Result<PumpHandle, OpenError> {
        self.streams.channel_up(channel, link);
        let options = PumpOptions { pacer, ..PumpOptions::new(self.streams.sending_table()) };
        Ok(PumpHandle::start(channel, carrier, self.streams.clone(), options)?)
    }

    /// The peer connected a channel for this side to write to.
    pub fn attach_back(&self, channel: ChannelId, link: LinkId, stream: &Stream) -> Result<(), OpenError> {
        let carrier = proven(stream)?;
        let pump = self.pump(channel, link, carrier, None)?;
        self.lock().insert(channel, pump);
        Ok(())
    }

    /// Applies what the peer writes.
    pub fn serve(
        &self,
        channel: ChannelId,
        stream: Stream,
        ended: impl FnOnce(u64) + Send + 'static,
    ) -> io::Result<()> {
        let (closer, regions) = (stream.closer(), self.streams.receiving_table());
        let receiver = StreamReceiver::new(stream).refusals_max(REFUSED_MAX);
        let stats = receiver.stats();
        self.fences.serve(channel, closer, receiver, regions, move || ended(stats.counters().data_bytes))
    }

    /// Fences a channel of the peer.
    pub fn fence(&self, channel: ChannelId, told: impl FnOnce(Fenced) + Send + 'static) {
        self.fences.fence(channel, told);
    }

    /// Ends a pump; waits for its threads.
    pub fn remove_pump(&self, channel: ChannelId) {
        let pump = self.lock().remove(&channel);
        drop(pump);
    }

    /// Ends everything: sockets are reset, channels closed.
    pub fn end(&self) {
        self.streams.fail_all();
        self.fences.close_all();
        let pumps = std::mem::take(&mut *self.lock());
        drop(pumps);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ChannelId, PumpHandle>> {
        self.pumps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that this side writes to, once bytes have moved over it for a proof.
pub(crate) fn proven(stream: &Stream) -> Result<Carrier, OpenError> {
    let mut carrier = Carrier {
        sender: Box::new(StreamSender::new(stream.clone())),
        acks: Box::new(StreamAcks::new(stream.clone())),
        closer: stream.closer(),
    };
    probe(&mut carrier)?;
    Ok(carrier)
}

/// Rings in memory that the kernel can take back when a stream is gone.
fn ring_memory() -> RingMemory {
    RingMemory::new(|bytes| {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = std::fs::File::from(rustix::fs::memfd_create("linerate-ring", flags)?);
        file.set_len(bytes)?;
        let mapping = linerate_memory::Mapping::of_file(file)?;
        Ok(Arc::new(Ram::new(mapping)) as Arc<dyn Region>)
    })
}
