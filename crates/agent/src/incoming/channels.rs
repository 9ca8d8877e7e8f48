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
    pub fn open(&self, channel: ChannelId, fence: Arc<Fence>) -> io::Result<()> {
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
        for channel in open {
            if let Err(error) = self.fence(channel) {
                tracing::error!(channel, error = chain(&error), "a channel could not be shut");
            }
        }
    }
}

/// Serves a TCP connection.
pub(super) fn attach(shared: &Arc<Incoming>, channel: ChannelId, stream: Stream) -> io::Result<()> {
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

/// Applies what comes, in a thread of its own.
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
    let fence = Arc::new(Fence::new(closer));
    shared.channels.open(channel, fence.clone())?;
    let session = shared.clone();
    std::thread::Builder::new().name(format!("channel-{channel}")).spawn(move || {
        let end = receiver.serve(&regions, &fence);
        session.received_bytes.fetch_add(stats.counters().data_bytes, Ordering::Relaxed);
        if let ChannelEnd::Failed(error) = end {
            tracing::warn!(channel, error = chain(&error), "a channel broke off");
        }
    })?;
    Ok(())
}

/// Fences a channel in a thread of its own, since it may have to wait for a write under way.
pub(super) fn fence(shared: &Arc<Incoming>, channel: ChannelId) {
    let session = shared.clone();
    let fencing = move || match session.channels.fence(channel) {
        Ok(fenced) => {
            session.tell(Event::Fenced { channel, applied: fenced.applied, refused: fenced.refused })
        }
        // Without an answer the source must not send the extents again: it gives up in the end, and the guest is safe.
        Err(error) => tracing::error!(channel, error = chain(&error), "a channel could not be fenced"),
    };
    if let Err(error) = std::thread::Builder::new().name(format!("fence-{channel}")).spawn(fencing) {
        tracing::error!(channel, %error, "no thread to fence a channel");
    }
}
