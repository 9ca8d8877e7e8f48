//! What a session needs to carry byte streams, a tunnel's or a migration's: the streams, the channels that this side
//! writes to, and those that it receives from.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use linerate_core::stream::{Class, Config, End, StreamViolation};
use linerate_core::{ChannelId, LinkId, Message, SessionId};
use linerate_lock::Mutex;
use linerate_net::channel::{ChannelEnd, Closer, Receiver};
use linerate_net::channel_thread::{ChannelEnds, ChannelHandle, ChannelThreadOptions};
use linerate_net::fence::Fenced;
use linerate_net::pacer::Pacer;
use linerate_net::rdma;
use linerate_net::rdma::receive::RdmaReceiver;
use linerate_net::region::Region;
use linerate_net::stream::{RingMemory, StreamEvents, StreamSession};
use linerate_net::tcp::Stream;
use linerate_net::tcp::receive::StreamReceiver;
use linerate_wire::frame::DAMAGED_MAX;

use super::contact::OPEN_WITHIN;
use super::fences::Fences;
use super::probe::{OpenError, tcp_ends};
use crate::ram::Ram;

/// What a migration's streams are opened to: the other side's hypervisor.
pub(crate) const QEMU_SERVICE: &str = "qemu";
/// The images of copied disks, which it offers over NBD.
pub(crate) const DISKS_SERVICE: &str = "disks";
/// Classes of a migration's streams.
pub(crate) const MEMORY: Class = 0;
/// Class of the streams of copied disks.
pub(crate) const STORAGE: Class = 1;
/// More than the connections of any hypervisor's migration, and of as many copied disks as are allowed.
const MIGRATION_STREAMS_MAX: usize = 64;

/// What QEMU has written counts for it as sent: it must not be much more than was, or the blackout is longer than QEMU
/// predicts.
const MIGRATION_BACKLOG: Duration = Duration::from_millis(50);

/// Rings of a migration's streams. One that is smaller than what all links have in flight leaves the faster ones idle.
/// QEMUs before 10.0 suffer most, as they make one stream. In a larger one more waits for a destination that loads
/// slowly, in the blackout.
const MIGRATION_WINDOW: u64 = 16 << 20;

/// Streams of a migration, of which copied disks have so many percent of the links where memory wants the rest.
pub(crate) fn migration_streams(storage_percent: u8) -> Config {
    let storage = u16::from(storage_percent.clamp(1, 99));
    Config {
        weights: vec![100 - storage, storage],
        window_bytes: MIGRATION_WINDOW,
        streams_max: MIGRATION_STREAMS_MAX,
        backlog: Some(MIGRATION_BACKLOG),
        // Adapters know rings by their streams' numbers.
        never_reuse_numbers: true,
        ..Config::default()
    }
}

/// Sockets of streams are reset within this.
const STREAMS_END: Duration = Duration::from_secs(10);

pub(crate) struct StreamTransport {
    /// All streams of the session.
    pub streams: Arc<StreamSession>,
    pub fences: Arc<Fences>,
    /// This side's channels, where the peer connected them; none in the place of one that has ended, whose number is
    /// used.
    pumps: Mutex<HashMap<ChannelId, Option<ChannelHandle>>>,
}

impl StreamTransport {
    /// No stream and no channel yet.
    pub fn new(
        end: End,
        config: Config,
        owner: Box<dyn StreamEvents>,
        fences: Arc<Fences>,
    ) -> StreamTransport {
        // What adapters may know stays where it is.
        let memory = if config.never_reuse_numbers { ring_memory().keeping() } else { ring_memory() };
        let streams = StreamSession::new(end, config, memory, owner);
        StreamTransport { streams, fences, pumps: Mutex::default() }
    }

    /// Puts a channel of this side to work.
    pub fn pump(
        &self,
        channel: ChannelId,
        link: LinkId,
        ends: ChannelEnds,
        pacer: Option<Arc<Pacer>>,
    ) -> Result<ChannelHandle, OpenError> {
        self.streams.channel_up(channel, link);
        let options =
            ChannelThreadOptions { pacer, ..ChannelThreadOptions::new(self.streams.sending_table()) };
        Ok(ChannelHandle::start(channel, ends, self.streams.clone(), options)?)
    }

    /// The peer connected a channel for this side to write to.
    pub fn attach_back(&self, channel: ChannelId, link: LinkId, stream: &Stream) -> Result<(), OpenError> {
        let ends = tcp_ends(stream, OPEN_WITHIN)?;
        self.keep(channel, || self.pump(channel, link, ends, None))
    }

    /// Starts a pump and keeps it. The lock is held meanwhile: it may be lost at once, and the handler of that loss
    /// must find it.
    fn keep(
        &self,
        channel: ChannelId,
        start: impl FnOnce() -> Result<ChannelHandle, OpenError>,
    ) -> Result<(), OpenError> {
        let mut pumps = self.lock();
        if pumps.contains_key(&channel) {
            let text = format!("channel {channel} was used already");
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text).into());
        }
        pumps.insert(channel, Some(start()?));
        Ok(())
    }

    /// Applies what the peer writes over TCP.
    pub fn serve(
        &self,
        channel: ChannelId,
        stream: Stream,
        ended: impl FnOnce(u64) + Send + 'static,
    ) -> io::Result<()> {
        let closer = stream.closer();
        let receiver = StreamReceiver::new(stream).damaged_max(DAMAGED_MAX);
        let stats = receiver.stats();
        self.receive(channel, closer, receiver, move |_| ended(stats.counters().data_bytes))
    }

    /// Applies what the peer writes by RDMA.
    pub fn serve_rdma(
        &self,
        channel: ChannelId,
        connection: Arc<rdma::Connection>,
        ended: impl FnOnce(u64) + Send + 'static,
    ) -> io::Result<()> {
        let closer = rdma::receive::closer(&connection);
        let receiver = RdmaReceiver::new(connection).damaged_max(DAMAGED_MAX);
        let stats = receiver.stats();
        self.receive(channel, closer, receiver, move |_| ended(stats.counters().data_bytes))
    }

    fn receive(
        &self,
        channel: ChannelId,
        closer: Closer,
        receiver: impl Receiver + 'static,
        ended: impl FnOnce(&ChannelEnd) + Send + 'static,
    ) -> io::Result<()> {
        self.fences.serve(channel, closer, receiver, self.streams.receiving_table(), ended)
    }

    /// Fences a channel of the peer.
    pub fn fence(&self, channel: ChannelId, fenced: impl FnOnce(Fenced) + Send + 'static) {
        self.fences.fence(channel, fenced);
    }

    /// Ends a pump; waits for its threads.
    pub fn remove_pump(&self, channel: ChannelId) {
        let pump = self.lock().get_mut(&channel).and_then(Option::take);
        drop(pump);
    }

    /// Takes a message about a stream, or about a channel of this side that the other side has fenced.
    pub fn deliver(&self, message: Message) -> Result<(), StreamViolation> {
        match message {
            Message::Stream { stream, note } => self.streams.note(stream, note)?,
            Message::Fenced { channel, applied, damaged } => self.streams.fenced(channel, applied, &damaged),
            // Nothing else concerns them.
            _ => {}
        }
        Ok(())
    }

    /// Ends everything: sockets are reset, channels closed.
    pub fn end(&self, session: SessionId) {
        self.streams.fail_all();
        self.fences.close_all();
        let pumps = std::mem::take(&mut *self.lock());
        drop(pumps);
        if !self.streams.wait_ended(STREAMS_END) {
            tracing::error!(%session, "a stream does not end");
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ChannelId, Option<ChannelHandle>>> {
        self.pumps.lock()
    }
}

/// Connections of a link that the other side writes to, at the host that opened them. Dropping closes them.
pub(crate) struct ReverseChannels {
    streams: Vec<Stream>,
    /// Called when one has ended; none once they are being closed here.
    lost: Arc<Mutex<Option<Lost>>>,
}

type Lost = Box<dyn Fn(String) + Send>;

impl ReverseChannels {
    /// None yet. `lost` is called when one has ended: the link has to be opened again, or it carries nothing in this
    /// direction.
    pub fn new(lost: impl Fn(String) + Send + 'static) -> ReverseChannels {
        ReverseChannels { streams: Vec::new(), lost: Arc::new(Mutex::new(Some(Box::new(lost)))) }
    }

    pub fn serve(
        &mut self,
        stream_transport: &StreamTransport,
        channel: ChannelId,
        stream: Stream,
    ) -> io::Result<()> {
        self.streams.push(stream.clone());
        let lost = self.lost.clone();
        stream_transport.serve(channel, stream, move |_| {
            if let Some(report) = &*lost.lock() {
                report(format!("channel {channel}, which the other side writes to, has ended"));
            }
        })
    }
}

impl Drop for ReverseChannels {
    fn drop(&mut self) {
        *self.lost.lock() = None;
        self.streams.iter().for_each(|stream| stream.closer().close());
    }
}

/// Rings in memory that the kernel can free when a stream has ended.
fn ring_memory() -> RingMemory {
    RingMemory::new(|bytes| {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = std::fs::File::from(rustix::fs::memfd_create("linerate-ring", flags)?);
        file.set_len(bytes)?;
        let mapping = linerate_memory::Mapping::of_file(file)?;
        Ok(Arc::new(Ram::new(mapping)) as Arc<dyn Region>)
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::{Sender, channel};
    use std::time::Instant;

    use linerate_api::MigrateRequest;
    use linerate_core::StreamNote;
    use linerate_core::stream::StreamId;
    use linerate_net::channel::{ChannelError, Receiver};
    use linerate_net::fence::Fence;
    use linerate_net::region::pinned::WINDOW_BYTES;
    use linerate_net::table::RegionTable;

    use super::*;

    /// Only a hang reaches it.
    const LONG: Duration = Duration::from_secs(60);

    struct Losses(Mutex<Sender<ChannelId>>);

    impl StreamEvents for Losses {
        fn attention(&self) {}
        fn asked(&self, _stream: StreamId, _service: String) {}
        fn refused(&self, _stream: StreamId, _reason: String) {}
        fn channel_lost(&self, channel: ChannelId, _error: ChannelError) {
            let _ = self.0.lock().send(channel);
        }
    }

    /// A destination's transport of streams that takes its losses as a session's loop does.
    fn stream_transport() -> Arc<StreamTransport> {
        let (lost, losses) = channel();
        let owner = Box::new(Losses(Mutex::new(lost)));
        let stream_transport =
            Arc::new(StreamTransport::new(End::Destination, Config::default(), owner, Arc::default()));
        let weak = Arc::downgrade(&stream_transport);
        std::thread::spawn(move || {
            for channel in losses {
                let Some(stream_transport) = weak.upgrade() else { return };
                stream_transport.streams.channel_gone(channel);
                stream_transport.remove_pump(channel);
            }
        });
        stream_transport
    }

    /// A connection, and what closes its other end, which is read until then.
    fn connection() -> (Stream, Arc<TcpStream>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let here = listener.accept().unwrap().0;
        let (closes, reads) = (there.try_clone().unwrap(), Stream::new(there).unwrap());
        std::thread::spawn(move || {
            let fence = Fence::new(reads.closer());
            let _ = StreamReceiver::new(reads).serve(&RegionTable::new([]), &fence);
        });
        (Stream::new(here).unwrap(), Arc::new(closes))
    }

    fn pumping(stream_transport: &StreamTransport) -> Vec<ChannelId> {
        let pumps = stream_transport.lock();
        pumps.iter().filter(|(_, pump)| pump.is_some()).map(|(channel, _)| *channel).collect()
    }

    fn until(what: &str, done: impl Fn() -> bool) {
        let end = Instant::now() + LONG;
        while !done() {
            assert!(Instant::now() < end, "waited in vain for: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// An adapter that has a key to a ring writes by it as long as the session exists.
    #[test]
    fn what_adapters_know_of_a_migrations_rings_stays_true() {
        let config = migration_streams(MigrateRequest::DEFAULT_STORAGE_SHARE_PERCENT);
        assert_eq!(migration_streams(20).weights, [80, 20], "memory, storage");
        assert!(config.never_reuse_numbers, "a key is known by the stream's number");
        assert!(config.window_bytes.is_multiple_of(WINDOW_BYTES), "windows would lie across a ring's end");
    }

    #[test]
    fn a_reverse_channel_with_a_used_number_is_refused() {
        let stream_transport = stream_transport();
        let (first, closes) = connection();
        stream_transport.attach_back(5, 0, &first).unwrap();
        for _ in 0..2 {
            let (again, _closes) = connection();
            let error = stream_transport.attach_back(5, 0, &again).unwrap_err();
            assert!(error.to_string().contains("was used already"), "{error}");
            assert_eq!(pumping(&stream_transport), [5], "the first one continues");
        }
        closes.shutdown(std::net::Shutdown::Both).unwrap();
        until("the loss", || pumping(&stream_transport).is_empty());
        assert!(stream_transport.attach_back(5, 0, &connection().0).is_err(), "the number stays used");
        stream_transport.end(SessionId([0; 16]));
    }

    #[test]
    fn a_reverse_channel_that_is_lost_at_once_is_found_by_the_handler_of_its_loss() {
        let stream_transport = stream_transport();
        let started = stream_transport.keep(5, || {
            assert!(
                stream_transport.pumps.try_lock().is_none(),
                "its loss can be dealt with before it is kept"
            );
            Err(io::Error::other("no threads").into())
        });
        assert!(started.is_err() && pumping(&stream_transport).is_empty());
    }

    #[test]
    fn a_peer_cannot_open_more_streams_than_a_migration_has() {
        let (lost, _losses) = channel();
        let owner = Box::new(Losses(Mutex::new(lost)));
        let stream_transport = StreamTransport::new(
            End::Destination,
            migration_streams(MigrateRequest::DEFAULT_STORAGE_SHARE_PERCENT),
            owner,
            Arc::default(),
        );
        for number in 0..100 {
            let note = StreamNote::Open { service: QEMU_SERVICE.into(), window: 1 };
            stream_transport.deliver(Message::Stream { stream: 2 * number, note }).unwrap();
        }
        assert_eq!(stream_transport.streams.count(), MIGRATION_STREAMS_MAX);
        let notes = stream_transport.streams.take_notes();
        let refused = |(_, note): &&(StreamId, StreamNote)| matches!(note, StreamNote::Refused { .. });
        assert_eq!(notes.iter().filter(refused).count(), 100 - MIGRATION_STREAMS_MAX);
    }
}
