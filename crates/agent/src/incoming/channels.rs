//! Threads that apply placed writes, and their fences.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use linerate_core::ChannelId;
use linerate_core::destination::Event;
use linerate_net::channel::{ChannelEnd, Closer, Receiver};
use linerate_net::fence::{Fence, Fenced};
use linerate_net::rdma::{self, receive::RdmaReceiver};
use linerate_net::stats::ChannelStats;
use linerate_net::table::RegionTable;
use linerate_net::tcp::Stream;
use linerate_net::tcp::receive::StreamReceiver;

use super::Incoming;
use crate::faults::chain;

/// A fence waits for a write under way: at most a payload into memory.
const FENCE_WAIT: Duration = Duration::from_secs(5);

enum Slot {
    Open(Arc<Fence>),
    /// Fenced, or fenced before it ever came: nothing is applied from it.
    Closed(Fenced),
}

/// The channels of a session by number.
#[derive(Default)]
pub(crate) struct Channels(Mutex<HashMap<ChannelId, Slot>>);

impl Channels {
    fn lock(&self) -> MutexGuard<'_, HashMap<ChannelId, Slot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a new channel. A number that is taken or fenced already is refused.
    fn open(&self, channel: ChannelId, fence: Arc<Fence>) -> io::Result<()> {
        let mut slots = self.lock();
        if slots.contains_key(&channel) {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("channel {channel} was used already"),
            ));
        }
        slots.insert(channel, Slot::Open(fence));
        Ok(())
    }

    /// Rule 3: after this has returned, nothing more is applied from the channel.
    pub fn fence(&self, channel: ChannelId) -> io::Result<Fenced> {
        let fence = match self.lock().get(&channel) {
            Some(Slot::Closed(fenced)) => return Ok(fenced.clone()),
            Some(Slot::Open(fence)) => Some(fence.clone()),
            None => None,
        };
        // A channel that never came here: it must not come later either.
        let fenced = match fence {
            Some(fence) => fence.close(FENCE_WAIT).map_err(io::Error::other)?,
            None => Fenced::default(),
        };
        self.lock().insert(channel, Slot::Closed(fenced.clone()));
        Ok(fenced)
    }

    /// Shuts all of them.
    pub fn close_all(&self) {
        let open: Vec<ChannelId> = self.lock().keys().copied().collect();
        open.into_iter().for_each(|channel| self.shut(channel));
    }

    /// Applies what comes over a new channel, in a thread of its own, and calls `ended` when nothing comes any more.
    pub fn serve(
        self: &Arc<Channels>,
        channel: ChannelId,
        closer: Closer,
        receiver: impl Receiver + 'static,
        regions: Arc<RegionTable>,
        ended: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let fence = Arc::new(Fence::new(closer));
        self.open(channel, fence.clone())?;
        let channels = self.clone();
        std::thread::Builder::new().name(format!("channel-{channel}")).spawn(move || {
            let end = receiver.serve(&regions, &fence);
            ended();
            if let ChannelEnd::Failed(error) = end {
                tracing::warn!(channel, error = chain(&error), "a channel broke off");
            }
            drop(fence);
            // Whether the peer ever asks for the fence or not: a session that lives long keeps no connection for channels
            // that have ended.
            channels.shut(channel);
        })?;
        Ok(())
    }

    fn shut(&self, channel: ChannelId) {
        if let Err(error) = self.fence(channel) {
            tracing::error!(channel, error = chain(&error), "a channel could not be shut");
        }
    }

    /// Fences a channel in a thread of its own, since it may have to wait for a write under way.
    pub fn fence_apart(self: &Arc<Channels>, channel: ChannelId, told: impl FnOnce(Fenced) + Send + 'static) {
        let channels = self.clone();
        let fencing = move || match channels.fence(channel) {
            Ok(fenced) => told(fenced),
            // Without an answer the peer must not send the extents again: a migration gives up in the end, and the guest is
            // safe; streams stand still until their session's end.
            Err(error) => tracing::error!(channel, error = chain(&error), "a channel could not be fenced"),
        };
        if let Err(error) = std::thread::Builder::new().name(format!("fence-{channel}")).spawn(fencing) {
            tracing::error!(channel, %error, "no thread to fence a channel");
        }
    }
}

/// Serves a TCP connection.
pub(super) fn attach(shared: &Arc<Incoming>, channel: ChannelId, stream: Stream) -> io::Result<()> {
    if let Some(carriage) = shared.carriage.get() {
        let session = shared.clone();
        return carriage.serve(channel, stream, move |bytes| {
            session.received_bytes.fetch_add(bytes, Ordering::Relaxed);
        });
    }
    let (closer, receiver) = (stream.closer(), StreamReceiver::new(stream));
    let stats = receiver.stats();
    serve(shared, channel, closer, receiver, stats)
}

/// Serves a queue pair.
pub(super) fn attach_rdma(
    shared: &Arc<Incoming>,
    channel: ChannelId,
    connection: Arc<rdma::Connection>,
) -> io::Result<()> {
    let (closer, receiver) = (rdma::receive::closer(&connection), RdmaReceiver::new(connection));
    let stats = receiver.stats();
    serve(shared, channel, closer, receiver, stats)
}

/// Applies what comes to the guest's RAM.
fn serve(
    shared: &Arc<Incoming>,
    channel: ChannelId,
    closer: Closer,
    receiver: impl Receiver + 'static,
    stats: Arc<ChannelStats>,
) -> io::Result<()> {
    let regions = shared.regions.get().cloned().ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotConnected, "a data channel before the guest was admitted")
    })?;
    let session = shared.clone();
    let ended = move || {
        session.received_bytes.fetch_add(stats.counters().data_bytes, Ordering::Relaxed);
    };
    shared.channels.serve(channel, closer, receiver, regions, ended)
}

/// Fences a channel, and tells the brain.
pub(super) fn fence(shared: &Arc<Incoming>, channel: ChannelId) {
    let session = shared.clone();
    shared.channels.fence_apart(channel, move |fenced| {
        session.tell(Event::Fenced { channel, applied: fenced.applied, refused: fenced.refused });
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::time::Instant;

    use super::*;

    /// Applies one frame, and ends as a connection does that the peer closes.
    struct Short;

    impl Receiver for Short {
        fn serve(self, _regions: &RegionTable, fence: &Fence) -> ChannelEnd {
            fence.enter().unwrap().apply(9);
            ChannelEnd::Closed
        }
    }

    #[test]
    fn a_channel_that_ended_keeps_no_connection_and_answers_for_its_fence() {
        let channels = Arc::<Channels>::default();
        let connection = Arc::new(());
        let gone: Weak<()> = Arc::downgrade(&connection);
        let closer = Closer::new(move || drop(connection.clone()));
        let regions = Arc::new(RegionTable::new([]));
        channels.serve(4, closer, Short, regions, || {}).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while gone.upgrade().is_some() {
            assert!(
                Instant::now() < deadline,
                "its connection is kept although nobody will ask for the fence"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(channels.fence(4).unwrap(), Fenced { applied: 9, refused: Vec::new() });
        let again = channels.serve(4, Closer::new(|| {}), Short, Arc::new(RegionTable::new([])), || {});
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AlreadyExists, "a number is never given twice");
    }
}
