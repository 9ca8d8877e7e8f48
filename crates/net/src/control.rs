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
use linerate_wire::frame::{Frame, HEADER_BYTES, Header, Tag};
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
/// Between two tries to hand an event over while too many wait.
const EVENT_WAIT: Duration = Duration::from_micros(500);

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
    #[error("no thread for the control connection: {0}")]
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
        let mut body = vec![0; header.body_length as usize];
        self.fill(&mut body)?;
        let (path, sequence) = (self.path, header.sequence);
        match Frame::decode(&header, &body)? {
            Frame::Control(message) => Ok(ControlEvent::Message { path, sequence, message }),
            Frame::ControlAck => Ok(ControlEvent::Acknowledged { path, through: sequence }),
            Frame::Keepalive => Ok(ControlEvent::Keepalive { path }),
            other => Err(ControlError::UnexpectedFrame { tag: other.tag() }),
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
    use super::*;

    /// Tests of whole migrations read it from logs.
    #[test]
    fn a_silent_path_says_for_how_many_milliseconds() {
        let silent = ControlError::Silent { waited: Duration::from_millis(1234) };
        assert_eq!(silent.to_string(), "nothing was received from the peer for 1234 ms");
    }
}
