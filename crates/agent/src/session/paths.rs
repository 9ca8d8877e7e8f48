//! Control connections of a session: their numbers, what is received and what is sent on them.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use linerate_core::control::Outgoing as Frame;
use linerate_core::{LinkId, Message, PathId, destination, source};
use linerate_net::control::{ControlError, ControlEvent, ControlPath};
use linerate_net::lock::Mutex;
use linerate_wire::frame::encode_control;

use crate::faults::chain;

/// Sending a frame that takes longer than this is logged.
const SLOW: Duration = Duration::from_millis(5);

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
            ControlEvent::Message { path, sequence, message } => {
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

/// Where control connections of a session begin: each gets a number, and what it receives goes to the session's loop.
pub(crate) struct Door {
    next: AtomicU32,
    events: Mutex<Option<Sender<ControlEvent>>>,
}

impl Door {
    /// Calls `deliver` in a thread of its own, which ends after [`Door::close`] and the last connection.
    pub fn open(deliver: impl Fn(PathEvent) + Send + 'static) -> io::Result<Door> {
        let (events, received) = channel();
        let forward = move || received.into_iter().map(PathEvent::from).for_each(deliver);
        std::thread::Builder::new().name("control-events".into()).spawn(forward)?;
        Ok(Door { next: AtomicU32::new(0), events: Mutex::new(Some(events)) })
    }

    /// One that takes no connection.
    #[cfg(test)]
    pub fn closed() -> Door {
        Door { next: AtomicU32::new(0), events: Mutex::default() }
    }

    /// Puts a welcomed connection to use, and numbers it. The loop has to be given it, and owns it from then on.
    pub fn listen(&self, connection: &mut ControlPath) -> io::Result<PathId> {
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
