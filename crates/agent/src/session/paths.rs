//! Control connections of a session: their numbers, what is received and what is sent on them.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use linerate_core::control::Outgoing as Frame;
use linerate_core::{LinkId, Message, PathId, destination, source};
use linerate_lock::{Condvar, Mutex};
use linerate_net::control::{ControlError, ControlEvent, ControlPath, EVENTS_MAX, MessageRoom};
use linerate_wire::frame::encode_control;

use crate::faults::chain;

/// Sending a frame that takes longer than this is logged.
const SLOW: Duration = Duration::from_millis(5);

/// Control connections of a session at a time. Each has two threads.
const PATHS_MAX: usize = 64;
/// Bytes of what was received and waits for the loop. A peer that sends more waits.
const BACKLOG_BYTES_MAX: usize = 8 << 20;
/// Of an event without a message.
const EVENT_BYTES: usize = 128;

/// What a control connection received.
pub(crate) enum PathEvent {
    Received { path: PathId, sequence: u64, message: Message },
    Acknowledged { path: PathId, through: u64 },
    Alive(PathId),
    Lost(PathId),
}

impl From<ControlEvent> for PathEvent {
    fn from(event: ControlEvent) -> PathEvent {
        match event {
            ControlEvent::Message { path, sequence, message, .. } => {
                PathEvent::Received { path: path.into(), sequence, message }
            }
            ControlEvent::Acknowledged { path, through } => {
                PathEvent::Acknowledged { path: path.into(), through }
            }
            ControlEvent::Keepalive { path } => PathEvent::Alive(path.into()),
            ControlEvent::Lost { path, error } => {
                tracing::debug!(path, error = chain(&error), "a control connection is lost");
                PathEvent::Lost(path.into())
            }
        }
    }
}

impl From<PathEvent> for source::Event {
    fn from(event: PathEvent) -> source::Event {
        match event {
            PathEvent::Received { path, sequence, message } => {
                source::Event::Received { path, sequence, message }
            }
            PathEvent::Acknowledged { path, through } => source::Event::ControlAcknowledged { path, through },
            PathEvent::Alive(path) => source::Event::PathAlive(path),
            PathEvent::Lost(path) => source::Event::PathLost(path),
        }
    }
}

impl From<PathEvent> for destination::Event {
    fn from(event: PathEvent) -> destination::Event {
        match event {
            PathEvent::Received { path, sequence, message } => {
                destination::Event::Received { path, sequence, message }
            }
            PathEvent::Acknowledged { path, through } => {
                destination::Event::ControlAcknowledged { path, through }
            }
            PathEvent::Alive(path) => destination::Event::PathAlive(path),
            PathEvent::Lost(path) => destination::Event::PathLost(path),
        }
    }
}

impl PathEvent {
    fn weight(&self) -> usize {
        match self {
            PathEvent::Received { message, .. } => EVENT_BYTES + message.weight(),
            _ => EVENT_BYTES,
        }
    }
}

/// What waits for a session's loop.
#[derive(Default)]
struct Backlog {
    /// Bytes; `None` when nothing is counted any more.
    bytes: Mutex<Option<usize>>,
    changed: Condvar,
}

impl Backlog {
    /// Waits until there is room for `bytes`.
    fn enter(backlog: &Arc<Backlog>, bytes: usize) -> Held {
        let waiting = backlog.bytes.lock();
        let full = |waiting: &mut Option<usize>| {
            waiting.is_some_and(|waiting| waiting > 0 && waiting + bytes > BACKLOG_BYTES_MAX)
        };
        let mut waiting = backlog.changed.wait_while(waiting, full);
        if let Some(waiting) = waiting.as_mut() {
            *waiting += bytes;
        }
        Held { backlog: backlog.clone(), bytes }
    }

    fn close(&self) {
        *self.bytes.lock() = None;
        self.changed.notify_all();
    }
}

/// Room for an event, until the loop has handled it.
pub(crate) struct Held {
    backlog: Arc<Backlog>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(waiting) = self.backlog.bytes.lock().as_mut() {
            *waiting = waiting.saturating_sub(self.bytes);
        }
        self.backlog.changed.notify_all();
    }
}

/// Where control connections of a session begin: each gets a number, and what it receives goes to the session's loop.
pub(crate) struct Door {
    next: AtomicU32,
    events: Mutex<Option<SyncSender<ControlEvent>>>,
    backlog: Arc<Backlog>,
    /// For messages that are not in the backlog yet.
    room: Arc<MessageRoom>,
    /// Every connection that is open has a clone.
    open: Arc<()>,
}

impl Door {
    /// Calls `deliver` in a thread of its own, which ends after [`Door::close`] and the last connection.
    /// The loop drops what it gets with an event when it has handled that.
    pub fn open(deliver: impl Fn(PathEvent, Held) + Send + 'static) -> io::Result<Door> {
        let (events, received) = sync_channel::<ControlEvent>(EVENTS_MAX);
        let backlog = Arc::new(Backlog { bytes: Mutex::new(Some(0)), changed: Condvar::new() });
        let entered = backlog.clone();
        let forward = move || {
            for mut event in received {
                let room = event.take_room();
                let event = PathEvent::from(event);
                let held = Backlog::enter(&entered, event.weight());
                drop(room);
                deliver(event, held);
            }
        };
        std::thread::Builder::new().name("control-events".into()).spawn(forward)?;
        Ok(Door { events: Mutex::new(Some(events)), backlog, ..Door::closed() })
    }

    /// One that takes no connection.
    pub fn closed() -> Door {
        Door {
            next: AtomicU32::new(0),
            events: Mutex::default(),
            backlog: Arc::default(),
            room: Arc::default(),
            open: Arc::default(),
        }
    }

    /// Puts a welcomed connection to use, and numbers it. The loop has to be given it, and owns it from then on.
    pub fn listen(&self, connection: &mut ControlPath) -> io::Result<PathId> {
        // The clones of those that are open, and the one here.
        if Arc::strong_count(&self.open) > PATHS_MAX {
            return Err(io::Error::other(format!("the session has {PATHS_MAX} control connections already")));
        }
        connection.count_by(self.open.clone());
        connection.share_room(self.room.clone());
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = u16::try_from(number).map_err(io::Error::other)?;
        let events = self.events.lock().clone();
        let events = events.ok_or_else(|| io::Error::other("the session is over"))?;
        connection.listen(path, events).map_err(io::Error::other)?;
        Ok(number)
    }

    /// The session is over: no connection is put to use any more.
    pub fn close(&self) {
        *self.events.lock() = None;
        self.backlog.close();
    }
}

/// Control connections as the loop of a session owns them. Those of a link go when it is closed.
#[derive(Default)]
pub(crate) struct Paths(HashMap<PathId, (Option<LinkId>, ControlPath)>);

impl Paths {
    pub fn add(&mut self, path: PathId, link: Option<LinkId>, connection: ControlPath) {
        self.0.insert(path, (link, connection));
    }

    /// Closes it. Returns its link, if it had one and was not closed before.
    pub fn remove(&mut self, path: PathId) -> Option<LinkId> {
        self.0.remove(&path).and_then(|(link, _)| link)
    }

    pub fn of_link(&self, link: LinkId) -> Vec<PathId> {
        self.0.iter().filter(|(_, (of, _))| *of == Some(link)).map(|(path, _)| *path).collect()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Puts a frame on a connection, unless that is closed. `true` if the connection still works.
    pub fn send(&self, path: PathId, frame: Frame) -> bool {
        let Some((_, connection)) = self.0.get(&path) else { return true };
        tracing::trace!(path, what = name(&frame), "transmit");
        let began = Instant::now();
        let sent = put(connection, frame);
        if began.elapsed() > SLOW {
            tracing::debug!(path, took = ?began.elapsed(), "a control connection was slow to take a frame");
        }
        sent.inspect_err(|error| {
            tracing::debug!(path, error = chain(error), "a control connection takes nothing more");
        })
        .is_ok()
    }
}

fn put(path: &ControlPath, frame: Frame) -> Result<(), ControlError> {
    match frame {
        Frame::Message { sequence, message } => {
            let mut bytes = Vec::new();
            encode_control(&mut bytes, sequence, &message)?;
            path.sender().send(&bytes)
        }
        Frame::Acknowledgement { through } => path.sender().acknowledge(through),
    }
}

/// What a frame is, for traces.
fn name(frame: &Frame) -> String {
    match frame {
        Frame::Message { sequence, message } => format!("{:?} {sequence}", message.tag()),
        Frame::Acknowledgement { through } => format!("acknowledge {through}"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::{Receiver, channel};

    use linerate_net::control::ControlOptions;
    use linerate_net::tcp::Stream;
    use linerate_wire::frame::CONTROL_BODY_MAX;
    use socket2::SockRef;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    /// For what must not come.
    const A_WHILE: Duration = Duration::from_millis(300);

    type Events = Receiver<(PathEvent, Held)>;

    fn door() -> (Door, Events) {
        let (events, received) = channel();
        (Door::open(move |event, held| drop(events.send((event, held)))).unwrap(), received)
    }

    fn connection() -> (ControlPath, ControlPath) {
        let (here, there) = UnixStream::pair().unwrap();
        // A peer that has to wait does not take this side for dead.
        let options = ControlOptions { silence_max: LONG, ..ControlOptions::default() };
        let path = |stream| ControlPath::keep(Stream::new(stream).unwrap(), options).unwrap();
        (path(here), path(there))
    }

    #[test]
    fn control_connections_of_a_session_are_bounded_at_a_time() {
        let (door, _events) = door();
        let mut open: Vec<_> = (0..PATHS_MAX).map(|_| connection()).collect();
        for (path, _) in &mut open {
            door.listen(path).unwrap();
        }
        let mut one_more = connection();
        let refused = door.listen(&mut one_more.0).unwrap_err().to_string();
        assert!(refused.contains("64 control connections"), "{refused}");
        open.pop();
        door.listen(&mut one_more.0).unwrap();
    }

    #[test]
    fn a_peer_waits_while_the_loop_is_behind_and_loses_nothing() {
        const PIECE: usize = 256 << 10;
        let (door, events) = door();
        let (mut path, peer) = connection();
        door.listen(&mut path).unwrap();
        let sent = Arc::new(AtomicUsize::new(0));
        let (counted, sender) = (sent.clone(), peer.sender());
        // Four times what may wait.
        let pieces = 4 * BACKLOG_BYTES_MAX / PIECE;
        let sending = std::thread::spawn(move || {
            for number in 1..=pieces as u64 {
                let mut frame = Vec::new();
                let message = Message::DeviceState { bytes: vec![7; PIECE] };
                encode_control(&mut frame, number, &message).unwrap();
                sender.send(&frame).unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        // Until nothing more is taken: what waits for the loop, and what the threads and the kernel have in hand.
        let mut before = 0;
        loop {
            std::thread::sleep(Duration::from_millis(300));
            let now = sent.load(Ordering::SeqCst);
            if now == before && now > 0 {
                break;
            }
            before = now;
        }
        assert!(before < pieces, "all of it was taken");
        let mut received = 0;
        while received < pieces {
            let (event, held) = events.recv_timeout(LONG).unwrap();
            if let PathEvent::Received { message, .. } = event {
                assert!(matches!(&message, Message::DeviceState { bytes } if bytes.len() == PIECE));
                received += 1;
            }
            drop(held);
        }
        sending.join().unwrap();
    }

    #[test]
    fn control_connections_of_a_session_share_the_room_for_long_messages() {
        let (door, events) = door();
        let deadline = Instant::now() + LONG;
        let open = || {
            let (here, there) = UnixStream::pair().unwrap();
            // Small, so that what was sent is being received.
            SockRef::from(&there).set_send_buffer_size(16 << 10).unwrap();
            let options = ControlOptions { silence_max: LONG, ..ControlOptions::default() };
            let mut path = ControlPath::keep(Stream::new(here).unwrap(), options).unwrap();
            let number = door.listen(&mut path).unwrap();
            (number, path, Stream::new(there).unwrap())
        };
        let next = |wait: Duration| {
            let (event, _held) = events.recv_timeout(wait).ok()?;
            if let PathEvent::Received { path, .. } = event { Some(path) } else { None }
        };
        let mut frame = Vec::new();
        let message = Message::DeviceState { bytes: vec![7; 256 << 10] };
        encode_control(&mut frame, 1, &message).unwrap();
        let (last, most) = frame.split_last().unwrap();
        // A message needs room twice, and there is room for the longest one.
        let count = CONTROL_BODY_MAX as usize / frame.len();
        let begun: Vec<_> = (0..count).map(|_| open()).collect();
        for (_, _, peer) in &begun {
            peer.send_all(most, deadline).unwrap();
        }
        let ((late, _path, peer), whole) = (open(), frame.clone());
        let sending = std::thread::spawn(move || peer.send_all(&whole, deadline).map(|()| peer));
        assert_eq!(next(A_WHILE), None, "more is received than there is room for");
        let (first, _, peer) = &begun[0];
        peer.send_all(&[*last], deadline).unwrap();
        assert_eq!((next(LONG), next(LONG)), (Some(*first), Some(late)));
        drop(sending.join().unwrap().unwrap());
    }

    #[test]
    fn a_path_and_a_session_end_while_the_loop_is_behind() {
        let (door, events) = door();
        let (mut path, peer) = connection();
        door.listen(&mut path).unwrap();
        let sender = peer.sender();
        let sending = std::thread::spawn(move || {
            let mut frame = Vec::new();
            let message = Message::DeviceState { bytes: vec![7; 256 << 10] };
            encode_control(&mut frame, 1, &message).unwrap();
            while sender.send(&frame).is_ok() {}
        });
        std::thread::sleep(Duration::from_millis(300));
        // By the loop's own thread, which takes nothing meanwhile.
        drop(path);
        sending.join().unwrap();
        door.close();
        drop(events);
    }
}
