//! What the two halves of a channel share at the source: what came from the destination, and what is in flight to it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use linerate_core::Run;
use linerate_wire::frame::{Claim, Frame, Grant};

use super::abi::Wc;
use super::connection::{Connection, RdmaWrite};
use super::error::RdmaError;
use super::options::{CLAIMS_MAX, MESSAGES, SEND_QUEUE};
use super::receive::split;
use super::verbs::{POLL_BATCH, Registration};
use crate::channel::{Acknowledged, ChannelError};
use linerate_lock::{Condvar, Mutex};

/// A thread that waits for something polls the queue itself this often, in case that no other thread does.
const LOOK: Duration = Duration::from_millis(1);

/// What came, and what is waited for.
#[derive(Default)]
pub(super) struct Inbox {
    keys: HashMap<(u16, u64), Grant>,
    claimed: HashSet<(u16, u64)>,
    acknowledged: VecDeque<Acknowledged>,
    /// Number and bytes of frames that are not acknowledged.
    in_flight: VecDeque<(u64, u64)>,
    bytes: u64,
    /// Staging memory that was sent.
    released: u64,
    failed: Option<RdmaError>,
}

impl Inbox {
    pub(super) fn in_flight(&self) -> (usize, u64) {
        (self.in_flight.len(), self.bytes)
    }

    pub(super) fn key(&self, region: u16, window: Run) -> Option<Grant> {
        self.keys.get(&(region, window.offset)).copied()
    }

    pub(super) fn is_claimed(&self, region: u16, window: Run) -> bool {
        self.claimed.contains(&(region, window.offset))
    }

    pub(super) fn take_released(&mut self) -> u64 {
        std::mem::take(&mut self.released)
    }

    fn take(&mut self, frame: Frame, sequence: u64) -> Result<(), ChannelError> {
        match frame {
            Frame::Grant(grant) => {
                let place = (grant.region, grant.window.offset);
                if !self.claimed.remove(&place) {
                    return Err(RdmaError::Rules("a key that was not asked for").into());
                }
                self.keys.insert(place, grant);
            }
            Frame::Ack(ack) => {
                while let Some((number, bytes)) =
                    self.in_flight.front().copied().filter(|(n, _)| *n <= sequence)
                {
                    let _ = number;
                    self.bytes = self.bytes.saturating_sub(bytes);
                    self.in_flight.pop_front();
                }
                self.acknowledged.push_back(Acknowledged { through: sequence, damaged: ack.damaged });
            }
            Frame::Refuse(fault) => return Err(RdmaError::Refused(fault).into()),
            other => return Err(ChannelError::UnexpectedFrame { tag: other.tag() }),
        }
        Ok(())
    }
}

/// A message that was given to the adapter, with what must stay until it is out.
struct Pending {
    slot: usize,
    operations: usize,
    staged: u64,
    bytes: u64,
    _windows: Vec<Arc<Registration>>,
}

struct Outbox {
    pending: VecDeque<Pending>,
    slots: Vec<usize>,
    operations: usize,
}

pub(super) struct SourceEnd {
    pub(super) connection: Arc<Connection>,
    // Locked in this order where both are.
    inbox: Mutex<Inbox>,
    outbox: Mutex<Outbox>,
    changed: Condvar,
    /// Bytes that the peer's adapter has taken.
    moved: AtomicU64,
}

impl SourceEnd {
    pub(super) fn new(connection: Arc<Connection>) -> SourceEnd {
        let outbox = Outbox { pending: VecDeque::new(), slots: (0..MESSAGES).collect(), operations: 0 };
        SourceEnd {
            connection,
            inbox: Mutex::default(),
            outbox: Mutex::new(outbox),
            changed: Condvar::new(),
            moved: AtomicU64::new(0),
        }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock()
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock()
    }

    pub(super) fn with_inbox<T>(&self, look: impl FnOnce(&mut Inbox) -> T) -> T {
        look(&mut self.inbox())
    }

    /// Waits until it is so, taking in what comes meanwhile.
    pub(super) fn wait_until(
        &self,
        what: &'static str,
        limit: Duration,
        mut ready: impl FnMut(&mut Inbox) -> Result<bool, ChannelError>,
    ) -> Result<(), ChannelError> {
        let begun = Instant::now();
        loop {
            // Looked at first, so that what came before the end is taken first.
            let gone = self.connection.is_closed() || self.connection.is_gone()?;
            let mut inbox = self.take_in()?;
            inbox.released += self.reap()?;
            if ready(&mut inbox)? {
                return Ok(());
            }
            if gone {
                return Err(match self.connection.end_reason() {
                    Some(RdmaError::Revoked) => RdmaError::Revoked.into(),
                    _ => ChannelError::Closed,
                });
            }
            if begun.elapsed() > limit {
                let milliseconds = limit.as_millis() as u64;
                return Err(RdmaError::TimedOut { what, milliseconds }.into());
            }
            // The other thread of the channel wakes this one; if there is none, this one looks by itself.
            drop(self.changed.wait_timeout(inbox, LOOK));
        }
    }

    /// Takes what came, in the order in which it came: completions leave the queue only under the lock under which they
    /// are worked on, for two threads look here.
    fn take_in(&self) -> Result<MutexGuard<'_, Inbox>, ChannelError> {
        let mut inbox = self.inbox();
        if let Some(failed) = &inbox.failed {
            return Err(failed.clone().into());
        }
        let taken = self.read_all(&mut inbox).map_err(|end| explained(end, self.reap()));
        if let Err(ChannelError::Rdma(error)) = &taken {
            inbox.failed = Some(error.clone());
        }
        // One that failed is reported too: a waiting thread would find nothing more.
        if !matches!(taken, Ok(0)) {
            self.changed.notify_all();
        }
        taken.map(|_| inbox)
    }

    /// Returns the number of messages.
    fn read_all(&self, inbox: &mut Inbox) -> Result<usize, ChannelError> {
        let (mut done, mut message) = ([Wc::EMPTY; POLL_BATCH], Vec::new());
        let mut messages = 0;
        loop {
            let found = self.connection.received.poll(&mut done)?;
            if found == 0 {
                return Ok(messages);
            }
            for done in done.iter().take(found) {
                self.connection.judge("receiving", done)?;
                self.connection.message(done, &mut message)?;
                self.connection.ready(usize::try_from(done.wr_id).unwrap_or(usize::MAX))?;
                let (header, body) = split(&message)?;
                inbox.take(Frame::decode(&header, body)?, header.sequence)?;
            }
            messages += found;
        }
    }

    /// Takes the completions of what was sent. Returns the staging memory that is free again.
    fn reap(&self) -> Result<u64, ChannelError> {
        let mut outbox = self.outbox();
        let mut done = [Wc::EMPTY; POLL_BATCH];
        let mut released = 0;
        loop {
            let found = self.connection.sent.poll(&mut done)?;
            for done in done.iter().take(found) {
                self.connection.judge("writing into the destination's memory", done)?;
                // Completions come in the order of what was sent.
                let Some(pending) = outbox.pending.pop_front() else { continue };
                outbox.operations = outbox.operations.saturating_sub(pending.operations);
                outbox.slots.push(pending.slot);
                released += pending.staged;
                self.moved.fetch_add(pending.bytes, Ordering::Relaxed);
            }
            if found == 0 {
                return Ok(released);
            }
        }
    }

    /// Asks for a window, if it was not asked for and not too much is asked for at a time.
    pub(super) fn claim(&self, inbox: &mut Inbox, region: u16, window: Run) -> Result<(), ChannelError> {
        let place = (region, window.offset);
        if inbox.claimed.len() >= CLAIMS_MAX || inbox.claimed.contains(&place) {
            return Ok(());
        }
        let mut frame = Vec::new();
        Frame::Claim(Claim { region, window }).encode(0, 0, 0, &mut frame)?;
        if self.try_post(&[], &frame, 0, Vec::new(), 0)? {
            inbox.claimed.insert(place);
        }
        Ok(())
    }

    /// Sends a frame behind its payload, once there is room in the adapter's queue.
    pub(super) fn post(
        &self,
        writes: &[RdmaWrite],
        frame: &[u8],
        numbered: Option<(u64, u64)>,
        windows: Vec<Arc<Registration>>,
        staged: u64,
    ) -> Result<(), ChannelError> {
        let bytes = numbered.map_or(0, |(_, bytes)| bytes);
        let mut windows = Some(windows);
        self.wait_until("room in the adapter's queue", Duration::from_secs(30), |inbox| {
            if !self.has_room(writes.len()) {
                return Ok(false);
            }
            // Noted first: the acknowledgement may come before the call is back.
            if let Some((sequence, bytes)) = numbered {
                inbox.in_flight.push_back((sequence, bytes));
                inbox.bytes += bytes;
            }
            self.try_post(writes, frame, bytes, windows.take().unwrap_or_default(), staged)
        })
    }

    fn has_room(&self, writes: usize) -> bool {
        let outbox = self.outbox();
        !outbox.slots.is_empty() && outbox.operations + writes < SEND_QUEUE
    }

    /// False if there is no room.
    fn try_post(
        &self,
        writes: &[RdmaWrite],
        frame: &[u8],
        bytes: u64,
        windows: Vec<Arc<Registration>>,
        staged: u64,
    ) -> Result<bool, ChannelError> {
        let mut outbox = self.outbox();
        if outbox.operations + writes.len() >= SEND_QUEUE {
            return Ok(false);
        }
        let Some(slot) = outbox.slots.pop() else { return Ok(false) };
        let operations = writes.len() + 1;
        outbox.operations += operations;
        outbox.pending.push_back(Pending { slot, operations, staged, bytes, _windows: windows });
        self.connection.post(writes, slot, frame, slot as u64)?;
        Ok(true)
    }

    pub(super) fn next_acknowledgement(&self, wait: Duration) -> Result<Option<Acknowledged>, ChannelError> {
        let mut waiting = self.connection.waiting(&self.connection.received, wait);
        loop {
            // Looked at before the queue, so that what came before the end is taken first.
            let end = self.connection.end_reason();
            if let Some(acknowledged) = self.take_in()?.acknowledged.pop_front() {
                waiting.found();
                return Ok(Some(acknowledged));
            }
            if let Some(end) = end {
                return Err(explained(end.into(), self.reap()));
            }
            if !waiting.again()? {
                return Ok(None);
            }
        }
    }

    /// Bytes that the peer's adapter has taken so far.
    pub(super) fn progress(&self) -> u64 {
        // Locked only for as long as it is being looked at.
        let mut inbox = self.inbox();
        match self.reap() {
            Ok(released) => inbox.released += released,
            // Its completion is taken, so nobody else finds the cause.
            Err(ChannelError::Rdma(error)) => {
                inbox.failed.get_or_insert(error);
            }
            Err(error) => tracing::debug!(%error, "what was sent has failed"),
        }
        self.moved.load(Ordering::Relaxed)
    }
}

/// The cause of an end: what the adapter reports of what was sent, if it reports anything. When an operation has
/// failed, the adapter flushes all others, and that looks as if the peer had closed.
fn explained(end: ChannelError, sent: Result<u64, ChannelError>) -> ChannelError {
    match (end, sent) {
        (ChannelError::Closed, Err(cause @ ChannelError::Rdma(_))) => cause,
        (end, _) => end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_that_failed_is_the_cause_and_not_a_peer_that_closed() {
        let cause = explained(ChannelError::Closed, Err(RdmaError::RemoteAccess.into()));
        assert!(matches!(cause, ChannelError::Rdma(RdmaError::RemoteAccess)), "{cause:?}");
        assert!(cause.may_be_the_transports());
        let closed = explained(ChannelError::Closed, Err(RdmaError::PeerClosed.into()));
        assert!(matches!(closed, ChannelError::Closed), "{closed:?}");
        let closed = explained(ChannelError::Closed, Ok(1));
        assert!(matches!(closed, ChannelError::Closed), "{closed:?}");
        let revoked = explained(RdmaError::Revoked.into(), Err(RdmaError::RemoteAccess.into()));
        assert!(!revoked.may_be_the_transports(), "{revoked:?}");
    }
}
