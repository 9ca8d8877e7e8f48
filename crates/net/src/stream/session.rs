//! All streams of a session, shared by its channels, its control stream and its local sockets.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::{Duration, Instant};

use linerate_core::scheduler::Next as Order;
use linerate_core::stream::{
    Class, Config, End, Event, OpenError, Piece, REGION, Readable, SendSpace, StreamId, StreamViolation,
    Streams,
};
use linerate_core::{ChannelId, LinkId, Run, StreamNote, Time};
use thiserror::Error;

use super::endpoint::{self, Socket};
use super::rings::{Receiving, Ring, RingMemory, Rings, Sending};
use crate::channel::ChannelError;
use crate::channel_thread::{Next, WorkSource};
use crate::region::Region;
use crate::table::RegionTable;
use linerate_lock::{Condvar, Mutex};

/// A channel without work looks again after this long without any call: pings are due then.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Who owns the session. Called without any lock held; must not wait.
pub trait StreamEvents: Send + Sync {
    /// Notes wait for the peer: [`StreamSession::take_notes`].
    fn attention(&self);
    /// The peer wants a stream: [`StreamSession::accept`] or [`StreamSession::refuse`] it, from any thread.
    fn asked(&self, stream: StreamId, service: String);
    /// The peer did not take a stream; its socket was reset.
    fn refused(&self, stream: StreamId, reason: String);
    /// A channel cannot be used any more: close its link, and have it fenced.
    fn channel_lost(&self, channel: ChannelId, error: ChannelError);
}

/// A socket cannot become a stream.
#[derive(Debug, Error)]
pub enum AttachError {
    /// The session takes no more.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// No memory for its rings.
    #[error("no memory for the rings of a stream: {0}")]
    Ring(#[source] io::Error),
    /// The socket is of no use.
    #[error("the local socket cannot be used: {0}")]
    Socket(#[source] io::Error),
}

pub struct StreamSession {
    /// For threads that serve a stream.
    this: Weak<StreamSession>,
    began: Instant,
    state: Mutex<State>,
    /// Notified when a channel may find work.
    work: Condvar,
    /// Notified when a stream's threads have ended.
    ended: Condvar,
    memory: RingMemory,
    window_bytes: u64,
    sending: Arc<Rings>,
    receiving: Arc<Rings>,
    receiving_table: Arc<RegionTable>,
    owner: Box<dyn StreamEvents>,
}

pub(super) struct State {
    streams: Streams,
    sockets: HashMap<StreamId, Arc<Local>>,
    /// Streams that were opened here and not answered: no thread serves their sockets yet.
    unanswered: HashSet<StreamId>,
    /// Streams whose threads run.
    serving: usize,
}

/// A stream's local end.
pub(super) struct Local {
    pub socket: Socket,
    pub changed: Condvar,
}

impl StreamSession {
    /// A session without streams.
    pub fn new(
        end: End,
        config: Config,
        memory: RingMemory,
        owner: Box<dyn StreamEvents>,
    ) -> Arc<StreamSession> {
        Arc::new_cyclic(|session| {
            let receiving = Arc::new(Rings::default());
            let region = Receiving { rings: receiving.clone(), session: session.clone() };
            StreamSession {
                this: session.clone(),
                began: Instant::now(),
                window_bytes: config.window_bytes,
                state: Mutex::new(State {
                    streams: Streams::new(end, config),
                    sockets: HashMap::new(),
                    unanswered: HashSet::new(),
                    serving: 0,
                }),
                work: Condvar::new(),
                ended: Condvar::new(),
                memory,
                sending: Arc::default(),
                receiving,
                receiving_table: Arc::new(RegionTable::new([(REGION, Arc::new(region) as Arc<dyn Region>)])),
                owner,
            }
        })
    }

    /// What the pumps of this side's channels read from.
    pub fn sending_table(&self) -> Arc<RegionTable> {
        let region = Sending(self.sending.clone());
        Arc::new(RegionTable::new([(REGION, Arc::new(region) as Arc<dyn Region>)]))
    }

    /// What the peer's channels write to.
    pub fn receiving_table(&self) -> Arc<RegionTable> {
        self.receiving_table.clone()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    // ---- opening and closing ----

    /// Makes a stream of a connected local socket, to what the peer knows by this name. If the peer refuses it, the
    /// socket is reset.
    pub fn open(&self, service: &str, socket: Socket) -> Result<StreamId, AttachError> {
        self.open_in(0, service, socket)
    }

    /// The same with a class, by whose weight it shares the links with others.
    pub fn open_in(&self, class: Class, service: &str, socket: Socket) -> Result<StreamId, AttachError> {
        let rings = self.new_rings().map_err(AttachError::Ring)?;
        let mut state = self.lock();
        let stream = state.streams.open_in(class, service)?;
        // Before Open is said: the peer may write as soon as it has it.
        self.insert_rings(stream, rings);
        state.sockets.insert(stream, Arc::new(Local { socket, changed: Condvar::new() }));
        state.unanswered.insert(stream);
        self.settle(state);
        Ok(stream)
    }

    /// The socket for a stream that the peer asked for.
    pub fn accept(&self, stream: StreamId, socket: Socket) -> Result<(), AttachError> {
        let rings = match self.new_rings() {
            Ok(rings) => rings,
            Err(error) => {
                self.refuse(stream, "no memory for its rings");
                return Err(AttachError::Ring(error));
            }
        };
        self.insert_rings(stream, rings);
        let mut state = self.lock();
        state.streams.accept(stream);
        let local = Arc::new(Local { socket, changed: Condvar::new() });
        state.sockets.insert(stream, local.clone());
        self.serve(&mut state, stream, local);
        self.settle(state);
        Ok(())
    }

    /// The service cannot be reached.
    pub fn refuse(&self, stream: StreamId, reason: &str) {
        let mut state = self.lock();
        state.streams.refuse(stream, reason);
        self.settle(state);
    }

    fn new_rings(&self) -> io::Result<(Arc<Ring>, Arc<Ring>)> {
        Ok((self.memory.ring(self.window_bytes)?, self.memory.ring(self.window_bytes)?))
    }

    fn insert_rings(&self, stream: StreamId, (sending, receiving): (Arc<Ring>, Arc<Ring>)) {
        self.sending.insert(stream, sending);
        self.receiving.insert(stream, receiving);
    }

    fn drop_rings(&self, stream: StreamId) {
        self.sending.remove(stream);
        self.receiving.remove(stream);
    }

    fn serve(&self, state: &mut State, stream: StreamId, local: Arc<Local>) {
        let (Ok(sending), Ok(receiving)) = (self.sending.get(stream), self.receiving.get(stream)) else {
            return;
        };
        sending.set_peer_window(state.streams.peer_window(stream).unwrap_or(0));
        let Some(session) = self.this.upgrade() else { return };
        let serving = move || {
            endpoint::serve(&session, stream, &local, &sending, &receiving);
            session.finish_stream(stream, local);
        };
        state.serving += 1;
        if let Err(error) = std::thread::Builder::new().name(format!("stream-{stream}")).spawn(serving) {
            tracing::error!(%error, stream, "cannot start a thread for a stream");
            state.serving -= 1;
            state.streams.reset_locally(stream);
            state.streams.finished(stream);
        }
    }

    /// A stream's threads have ended: its socket is closed before waiting threads are notified.
    fn finish_stream(&self, stream: StreamId, local: Arc<Local>) {
        let mut state = self.lock();
        // The number may be another stream's by now.
        if state.sockets.get(&stream).is_some_and(|other| Arc::ptr_eq(other, &local)) {
            state.sockets.remove(&stream);
        }
        drop(local);
        state.serving -= 1;
        drop(state);
        self.ended.notify_all();
    }

    /// Everything is over: every socket is reset, and no stream can be opened any more.
    pub fn fail_all(&self) {
        let mut state = self.lock();
        state.streams.fail_all();
        for stream in std::mem::take(&mut state.unanswered) {
            if let Some(local) = state.sockets.remove(&stream) {
                local.socket.abort();
            }
            state.streams.finished(stream);
        }
        self.settle(state);
        self.work.notify_all();
    }

    /// Waits until no stream's thread runs any more. False if the time was too short.
    pub fn wait_ended(&self, wait: Duration) -> bool {
        let (_state, still_serving) =
            self.ended.wait_timeout_while(self.lock(), wait, |state| state.serving > 0);
        !still_serving
    }

    /// Streams that are not gone.
    pub fn count(&self) -> usize {
        self.lock().streams.count()
    }

    // ---- the control stream ----

    /// What is to be said to the peer, in order.
    pub fn take_notes(&self) -> Vec<(StreamId, StreamNote)> {
        let mut state = self.lock();
        std::iter::from_fn(|| state.streams.poll_note()).collect()
    }

    /// Handles a message of the peer. After an error the session cannot be used any more.
    pub fn note(&self, stream: StreamId, note: StreamNote) -> Result<(), StreamViolation> {
        let mut state = self.lock();
        let result = state.streams.note(stream, note);
        self.settle(state);
        result
    }

    // ---- channels ----

    /// A channel of this side can carry work.
    pub fn channel_up(&self, channel: ChannelId, link: LinkId) {
        self.lock().streams.channel_up(self.now(), channel, link);
        self.work.notify_all();
    }

    /// A channel of this side is lost. True the first time: then the peer must fence it.
    pub fn channel_gone(&self, channel: ChannelId) -> bool {
        let news = self.lock().streams.channel_lost(channel);
        self.work.notify_all();
        news
    }

    /// The peer has fenced a channel of this side.
    pub fn fenced(&self, channel: ChannelId, applied: u64, damaged: &[u64]) {
        let mut state = self.lock();
        state.streams.fenced(self.now(), channel, applied, damaged);
        self.settle(state);
        self.work.notify_all();
    }

    /// Bytes acknowledged by the peer so far.
    pub fn acknowledged_bytes(&self) -> u64 {
        self.lock().streams.scheduler().acknowledged_bytes()
    }

    /// How fast streams are carried, in bytes per second: over all links, and over one.
    pub fn bytes_per_s(&self, link: Option<LinkId>) -> f64 {
        let state = self.lock();
        let scheduler = state.streams.scheduler();
        link.map_or_else(|| scheduler.bytes_per_s(), |link| scheduler.link_bytes_per_s(link))
    }

    /// Writes that arrived damaged and were sent again.
    pub fn damaged_count(&self) -> u64 {
        self.lock().streams.scheduler().damaged_count()
    }

    pub(super) fn check(&self, runs: &[Run]) -> io::Result<()> {
        let state = self.lock();
        runs.iter().try_for_each(|run| state.streams.check(Piece::of(*run)).map_err(io::Error::other))
    }

    pub(super) fn received(&self, runs: &[Run]) -> io::Result<()> {
        let mut state = self.lock();
        let received =
            runs.iter().try_for_each(|run| state.streams.received(Piece::of(*run)).map_err(io::Error::other));
        self.settle(state);
        received
    }

    // ---- local sockets ----

    /// Waits until the reader of a local socket may do something, and says what; never [`SendSpace::Wait`].
    pub(super) fn wait_space(&self, stream: StreamId, local: &Local) -> SendSpace {
        let waited = local
            .changed
            .wait_while(self.lock(), |state| state.streams.send_space(stream) == SendSpace::Wait);
        waited.streams.send_space(stream)
    }

    /// Waits until the writer of a local socket may do something, and says what; never [`Readable::Wait`].
    pub(super) fn wait_readable(&self, stream: StreamId, local: &Local) -> Readable {
        let waited =
            local.changed.wait_while(self.lock(), |state| state.streams.readable(stream) == Readable::Wait);
        waited.streams.readable(stream)
    }

    /// Passes an event of a local socket to the state machine.
    pub(super) fn update(&self, update: impl FnOnce(&mut Streams)) {
        let mut state = self.lock();
        update(&mut state.streams);
        self.settle(state);
        self.work.notify_all();
    }

    /// Sees to what follows from a change, and lets the lock go.
    fn settle(&self, mut state: MutexGuard<'_, State>) {
        let mut asked = Vec::new();
        let mut refused = Vec::new();
        while let Some(event) = state.streams.poll_event() {
            match event {
                Event::OpenRequested { stream, service } => asked.push((stream, service)),
                Event::Opened(stream) => {
                    state.unanswered.remove(&stream);
                    if let Some(local) = state.sockets.get(&stream).cloned() {
                        self.serve(&mut state, stream, local);
                    }
                }
                Event::Refused { stream, reason } => {
                    state.unanswered.remove(&stream);
                    if let Some(local) = state.sockets.remove(&stream) {
                        local.socket.abort();
                    }
                    self.drop_rings(stream);
                    refused.push((stream, reason));
                }
                Event::Changed(stream) => {
                    if let Some(local) = state.sockets.get(&stream) {
                        wake(&state.streams, stream, local);
                    }
                }
                Event::Gone(stream) => {
                    if let Some(local) = state.sockets.get(&stream) {
                        local.changed.notify_all();
                    }
                    self.drop_rings(stream);
                }
            }
        }
        let notes = state.streams.has_notes();
        drop(state);
        if notes {
            self.owner.attention();
        }
        asked.into_iter().for_each(|(stream, service)| self.owner.asked(stream, service));
        refused.into_iter().for_each(|(stream, reason)| self.owner.refused(stream, reason));
    }
}

/// Threads that wait for the session look again; those that wait for the socket are let go if there is nothing to wait
/// for.
fn wake(streams: &Streams, stream: StreamId, local: &Local) {
    match (streams.readable(stream), streams.send_space(stream)) {
        (Readable::Reset, _) => local.socket.abort(),
        (_, SendSpace::Stopped) => local.socket.stop_reading(),
        _ => {}
    }
    local.changed.notify_all();
}

impl WorkSource for StreamSession {
    fn next(&self, channel: ChannelId) -> Next {
        let mut state = self.lock();
        loop {
            match state.streams.next(self.now(), channel) {
                Order::Work(work) => {
                    return Next::Work { sequence: work.sequence, region: work.region, runs: work.runs };
                }
                Order::Ping { sequence } => return Next::Ping { sequence },
                Order::Stop => return Next::Stop,
                Order::Wait => state = self.work.wait_timeout(state, LOOK_AGAIN),
            }
        }
    }

    fn sent(&self, channel: ChannelId, sequence: u64, _data_bytes: u64, _zero_bytes: u64, wire_bytes: u64) {
        self.lock().streams.sent(channel, sequence, wire_bytes);
    }

    fn acknowledged(&self, channel: ChannelId, through: u64, damaged: &[u64]) {
        let mut state = self.lock();
        state.streams.acknowledged(self.now(), channel, through, damaged);
        self.settle(state);
        self.work.notify_all();
    }

    fn lost(&self, channel: ChannelId, error: ChannelError) {
        self.owner.channel_lost(channel, error);
    }
}
