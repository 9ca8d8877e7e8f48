//! Control connections: frames out, events in. Numbers, order and sending again belong to `linerate-core`.
//!
//! Each connection is a *path*. One thread reads; another sends KEEPALIVE when nothing else was sent. A
//! path on which nothing was received for the silence limit is lost; that is reported once. The limit is
//! longer where the link is far.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_core::{LinkId, Message};
use linerate_wire::frame::{CONTROL_BODY_MAX, Frame, HEADER_BYTES, Header, Tag};
use linerate_wire::{DecodeError, EncodeError};
use thiserror::Error;

use crate::round_trip::RoundTrip;
use crate::socket::is_transient;
use crate::tcp::Stream;
use linerate_lock::{Condvar, Mutex};

/// Times of control paths.
#[derive(Clone, Copy, Debug)]
pub struct ControlOptions {
    /// Something is said at least this often.
    pub keepalive: Duration,
    /// Nothing received for this long: the path is lost. Shorter finds dead links earlier and loses paths to busy
    /// hosts. A far link has longer.
    pub silence_max: Duration,
}

impl Default for ControlOptions {
    fn default() -> ControlOptions {
        ControlOptions { keepalive: Duration::from_millis(100), silence_max: Duration::from_millis(900) }
    }
}

/// Events of control paths between their threads and who hears them; more wait in the kernel's buffers.
pub const EVENTS_MAX: usize = 8;
/// Between two tries to hand an event over while too many wait, and to find room for a message.
const EVENT_WAIT: Duration = Duration::from_micros(500);

/// Memory for the longer messages that the control paths of a session have received: one of the longest, or seven
/// pieces of device state. A message is there twice while it is decoded.
const ROOM_BYTES: usize = 2 * CONTROL_BODY_MAX as usize;
/// A message of up to this many bytes needs no room: fences and notes of streams do not wait for longer ones.
const SHORT_BYTES: usize = 4 << 10;

/// Why a control path cannot be used any more.
#[derive(Debug, Error)]
pub enum ControlError {
    /// The peer closed it.
    #[error("the peer closed the control connection")]
    Closed,
    #[error("the control connection failed: {0}")]
    Socket(#[source] io::Error),
    /// Bytes that are no frame or message.
    #[error("the peer sent something that is no control frame: {0}")]
    Decode(#[from] DecodeError),
    /// A defect on this side.
    #[error("a control frame could not be made: {0}")]
    Encode(#[from] EncodeError),
    /// A frame that has no business here.
    #[error("a {tag} frame has no place on a control connection")]
    UnexpectedFrame { tag: Tag },
    #[error("nothing was received from the peer for {} ms", waited.as_millis())]
    Silent { waited: Duration },
    /// A thread could not be started.
    #[error("cannot start a thread for the control connection: {0}")]
    Thread(#[source] io::Error),
}

/// What came over a path.
#[derive(Debug)]
pub enum ControlEvent {
    /// A message with its number. It may have come before over another path.
    Message {
        path: LinkId,
        sequence: u64,
        message: Message,
        /// Held while the message is not counted elsewhere; none for a short one.
        room: Option<RoomTaken>,
    },
    /// The peer has all messages up to this number.
    Acknowledged {
        path: LinkId,
        through: u64,
    },
    Keepalive {
        path: LinkId,
    },
    /// The path is lost; nothing more comes from it.
    Lost {
        path: LinkId,
        error: ControlError,
    },
}

impl ControlEvent {
    /// The room of a message, to be kept as long as that is not counted elsewhere.
    pub fn take_room(&mut self) -> Option<RoomTaken> {
        if let ControlEvent::Message { room, .. } = self { room.take() } else { None }
    }
}

/// What the control paths of one session have for longer messages together. A path reads no message that has no room
/// yet, so a peer with many connections occupies no more.
#[derive(Debug, Default)]
pub struct MessageRoom {
    taken: Mutex<usize>,
}

impl MessageRoom {
    fn take(self: &Arc<MessageRoom>, bytes: usize) -> Option<RoomTaken> {
        let mut taken = self.taken.lock();
        if *taken + bytes > ROOM_BYTES {
            return None;
        }
        *taken += bytes;
        Some(RoomTaken { room: Arc::clone(self), bytes })
    }
}

/// Given back when it is dropped.
#[derive(Debug)]
pub struct RoomTaken {
    room: Arc<MessageRoom>,
    bytes: usize,
}

impl Drop for RoomTaken {
    fn drop(&mut self) {
        *self.room.taken.lock() -= self.bytes;
    }
}

/// Sends on a path, from any thread.
#[derive(Clone, Debug)]
pub struct ControlSender {
    stream: Stream,
    limit: Duration,
    /// When something was sent last. Held while a frame is sent, so that frames do not mix.
    last_sent: Arc<Mutex<Instant>>,
}

impl ControlSender {
    /// Sends an encoded frame. After an error the path is closed, and its loss is reported.
    pub fn send(&self, frame: &[u8]) -> Result<(), ControlError> {
        let mut last_sent = self.last_sent.lock();
        self.send_locked(&mut last_sent, frame)
    }

    /// Confirms to the peer all messages up to this number.
    pub fn acknowledge(&self, through: u64) -> Result<(), ControlError> {
        let mut frame = Vec::new();
        Frame::ControlAck.encode(through, 0, 0, &mut frame)?;
        self.send(&frame)
    }

    fn send_locked(&self, last_sent: &mut Instant, frame: &[u8]) -> Result<(), ControlError> {
        let sent = self.stream.send_all(frame, Instant::now() + self.limit);
        if sent.is_err() {
            // Part of a frame may have gone: nothing that follows would be understood.
            self.stream.shut();
        }
        *last_sent = Instant::now();
        sent.map_err(ControlError::Socket)
    }

    /// Sends a keepalive if nothing was sent for `every`.
    fn keep_alive(&self, frame: &[u8], every: Duration) -> Result<(), ControlError> {
        let mut last_sent = self.last_sent.lock();
        if last_sent.elapsed() < every { Ok(()) } else { self.send_locked(&mut last_sent, frame) }
    }
}

/// A control connection. Dropping it closes it, without reporting a loss.
#[derive(Debug)]
pub struct ControlPath {
    sender: ControlSender,
    silence_max: Duration,
    stop: Arc<Stop>,
    threads: Vec<JoinHandle<()>>,
    /// What its owner counts it by.
    counted: Option<Arc<()>>,
    room: Arc<MessageRoom>,
}

impl ControlPath {
    /// Takes over a connection whose handshake is done, and listens to it.
    pub fn start(
        path: LinkId,
        stream: Stream,
        options: ControlOptions,
        events: mpsc::SyncSender<ControlEvent>,
    ) -> Result<ControlPath, ControlError> {
        let mut this = ControlPath::keep(stream, options)?;
        this.listen(path, events)?;
        Ok(this)
    }

    /// Takes over a connection whose handshake is done, and only sends keepalives. The peer listens from its side of
    /// the handshake on: it takes the path for lost when this side is silent while it opens channels, which may take
    /// seconds.
    pub fn keep(stream: Stream, options: ControlOptions) -> Result<ControlPath, ControlError> {
        let last_sent = Arc::new(Mutex::new(Instant::now()));
        let silence_max = RoundTrip::of(&stream).silence(options.silence_max);
        let sender = ControlSender { stream, limit: silence_max, last_sent };
        let stop = Arc::new(Stop::default());
        let mut keepalive = Vec::new();
        Frame::Keepalive.encode(0, 0, 0, &mut keepalive)?;
        let mut this = ControlPath {
            sender: sender.clone(),
            silence_max,
            stop: Arc::clone(&stop),
            threads: Vec::new(),
            counted: None,
            room: Arc::default(),
        };
        this.spawn("keepalive", move || {
            // Looked at twice as often, so that a pause is never much longer than it should be.
            while stop.sleep(options.keepalive / 2) {
                if sender.keep_alive(&keepalive, options.keepalive).is_err() {
                    return;
                }
            }
        })?;
        Ok(this)
    }

    /// Receives what comes, also what came since [`ControlPath::keep`]. To be called once.
    pub fn listen(
        &mut self,
        path: LinkId,
        events: mpsc::SyncSender<ControlEvent>,
    ) -> Result<(), ControlError> {
        let reader = Reader {
            path,
            stream: self.sender.stream.clone(),
            events,
            silence_max: self.silence_max,
            stop: Arc::clone(&self.stop),
            room: Arc::clone(&self.room),
            last_received_at: Instant::now(),
        };
        self.spawn("control", move || reader.run())
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), ControlError> {
        let thread = std::thread::Builder::new().name(name.into());
        self.threads.push(thread.spawn(run).map_err(ControlError::Thread)?);
        Ok(())
    }

    /// Keeps this as long as the path lives.
    pub fn count_by(&mut self, counted: Arc<()>) {
        self.counted = Some(counted);
    }

    /// Has it share the room of the other paths of its session. To be called before [`ControlPath::listen`].
    pub fn share_room(&mut self, room: Arc<MessageRoom>) {
        self.room = room;
    }

    /// Sends on this path.
    pub fn sender(&self) -> ControlSender {
        self.sender.clone()
    }
}

impl Drop for ControlPath {
    fn drop(&mut self) {
        self.stop.stop();
        self.sender.stream.shut();
        for thread in self.threads.drain(..) {
            // A panic in it was reported by the panic hook; there is nothing to add.
            let _ = thread.join();
        }
    }
}

#[derive(Debug, Default)]
struct Stop {
    wanted: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Stop {
    fn stop(&self) {
        let _held = self.lock.lock();
        self.wanted.store(true, Ordering::SeqCst);
        self.changed.notify_all();
    }

    fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }

    /// False when it is time to stop.
    fn sleep(&self, wait: Duration) -> bool {
        let held = self.lock.lock();
        drop(self.changed.wait_timeout_while(held, wait, |()| !self.is_wanted()));
        !self.is_wanted()
    }
}

struct Reader {
    path: LinkId,
    stream: Stream,
    events: mpsc::SyncSender<ControlEvent>,
    silence_max: Duration,
    stop: Arc<Stop>,
    room: Arc<MessageRoom>,
    /// When a byte came last.
    last_received_at: Instant,
}

impl Reader {
    fn run(mut self) {
        let error = loop {
            match self.event() {
                Ok(event) => {
                    if !self.hand_over(event) {
                        // No receiver: the same as dropped.
                        self.stop.stop();
                        break ControlError::Closed;
                    }
                }
                Err(error) => break error,
            }
        };
        self.stream.shut();
        if !self.stop.is_wanted() {
            // Without a receiver there is nothing to report.
            self.hand_over(ControlEvent::Lost { path: self.path, error });
        }
        self.stop.stop();
    }

    /// Waits while too many events wait, but not for somebody who is about to drop this path. False if nobody listens.
    fn hand_over(&self, mut event: ControlEvent) -> bool {
        loop {
            match self.events.try_send(event) {
                Ok(()) => return true,
                Err(mpsc::TrySendError::Full(back)) if self.stop.sleep(EVENT_WAIT) => event = back,
                Err(_) => return false,
            }
        }
    }

    fn event(&mut self) -> Result<ControlEvent, ControlError> {
        let mut bytes = [0; HEADER_BYTES];
        self.fill(&mut bytes)?;
        let header = Header::decode(&bytes)?;
        let tag = header.tag;
        if !matches!(tag, Tag::Control | Tag::ControlAck | Tag::Keepalive) {
            return Err(ControlError::UnexpectedFrame { tag });
        }
        let length = header.body_length as usize;
        let room = self.room_for(length)?;
        let mut body = vec![0; length];
        self.fill(&mut body)?;
        let (path, sequence) = (self.path, header.sequence);
        match Frame::decode(&header, &body)? {
            Frame::Control(message) => Ok(ControlEvent::Message { path, sequence, message, room }),
            Frame::ControlAck => Ok(ControlEvent::Acknowledged { path, through: sequence }),
            Frame::Keepalive => Ok(ControlEvent::Keepalive { path }),
            other => Err(ControlError::UnexpectedFrame { tag: other.tag() }),
        }
    }

    /// Waits for room for a message of this length; a short one needs none.
    fn room_for(&mut self, length: usize) -> Result<Option<RoomTaken>, ControlError> {
        if length <= SHORT_BYTES {
            return Ok(None);
        }
        loop {
            if let Some(taken) = self.room.take(2 * length) {
                // Nothing was read meanwhile: that was not the peer's silence.
                self.last_received_at = Instant::now();
                return Ok(Some(taken));
            }
            if !self.stop.sleep(EVENT_WAIT) {
                return Err(ControlError::Closed);
            }
        }
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), ControlError> {
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.stream.receive_now(rest) {
                Ok(0) => return Err(ControlError::Closed),
                Ok(bytes) => {
                    done += bytes;
                    self.last_received_at = Instant::now();
                    // A delayed acknowledgement (40 ms) in the middle of a device state is as much of blackout. The
                    // option lasts for the next few segments only, so it is set again and again.
                    let _ = rustix::net::sockopt::set_tcp_quickack(&self.stream, true);
                }
                Err(error) if is_transient(&error) => self.wait()?,
                Err(error) => return Err(ControlError::Socket(error)),
            }
        }
        Ok(())
    }

    fn wait(&self) -> Result<(), ControlError> {
        let waited = self.last_received_at.elapsed();
        let left = self.silence_max.saturating_sub(waited);
        if !left.is_zero() && self.stream.wait_readable(left).map_err(ControlError::Socket)? {
            return Ok(());
        }
        // The clock may have run while this thread did not: only what is really not there counts as silence.
        match self.stream.wait_readable(Duration::ZERO).map_err(ControlError::Socket)? {
            true => Ok(()),
            false => Err(ControlError::Silent { waited: self.last_received_at.elapsed() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use linerate_wire::frame::encode_control;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    /// For what must not come.
    const A_WHILE: Duration = Duration::from_millis(300);

    fn frame(message: &Message) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_control(&mut bytes, 1, message).unwrap();
        bytes
    }

    fn path_of(event: &ControlEvent) -> LinkId {
        if let ControlEvent::Message { path, .. } = event { *path } else { panic!("{event:?}") }
    }

    #[test]
    fn long_messages_of_a_session_share_their_room_and_short_ones_need_none() {
        let (sent, events) = mpsc::sync_channel(64);
        let (room, deadline) = (Arc::<MessageRoom>::default(), Instant::now() + LONG);
        let open = |path: LinkId| {
            let (peer, here) = UnixStream::pair().unwrap();
            let options = ControlOptions { silence_max: LONG, ..ControlOptions::default() };
            let mut control = ControlPath::keep(Stream::new(here).unwrap(), options).unwrap();
            control.share_room(room.clone());
            control.listen(path, sent.clone()).unwrap();
            (Stream::new(peer).unwrap(), control)
        };
        let long = frame(&Message::DeviceState { bytes: vec![7; 256 << 10] });
        let (last, most) = long.split_last().unwrap();
        let needed = 2 * (long.len() - HEADER_BYTES);
        let count = ROOM_BYTES / needed;
        let begun: Vec<_> = (0..count).map(|path| open(path as LinkId)).collect();
        begun.iter().for_each(|(peer, _)| peer.send_all(most, deadline).unwrap());
        while *room.taken.lock() < count * needed {
            assert!(Instant::now() < deadline, "they are not being received");
            std::thread::sleep(Duration::from_millis(5));
        }
        let ((late, _late), whole) = (open(100), long.clone());
        let sending = std::thread::spawn(move || late.send_all(&whole, deadline).map(|()| late));
        let (short, _short) = open(101);
        short.send_all(&frame(&Message::Prepare), deadline).unwrap();
        assert_eq!(path_of(&events.recv_timeout(LONG).unwrap()), 101);
        assert!(events.recv_timeout(A_WHILE).is_err(), "more is received than there is room for");
        begun[0].0.send_all(&[*last], deadline).unwrap();
        let first = events.recv_timeout(LONG).unwrap();
        assert_eq!(path_of(&first), 0);
        assert!(events.recv_timeout(A_WHILE).is_err(), "a message that waits has no room any more");
        drop(first);
        assert_eq!(path_of(&events.recv_timeout(LONG).unwrap()), 100);
        drop(sending.join().unwrap().unwrap());
    }

    /// Tests of whole migrations read it from logs.
    #[test]
    fn a_silent_path_says_for_how_many_milliseconds() {
        let silent = ControlError::Silent { waited: Duration::from_millis(1234) };
        assert_eq!(silent.to_string(), "nothing was received from the peer for 1234 ms");
    }
}
