//! Connections of a hypervisor that wait until they are let in, and whose bytes wait until they are released.
//!
//! A hypervisor that is told to migrate to a socket connects, and sleeps in the kernel: the socket has a queue of one,
//! which a connection of ours fills. When it is let in it stops its guest soon. From then on what it writes is always
//! read (a hypervisor may write with its big lock held) and kept here, but for what came while the guest still ran.
//! Until it is released, once, or never. What comes back from the other side always passes.

mod arrivals;
mod job;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use linerate_net::lock::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, SockAddr, Type};

pub use self::arrivals::{ArrivalCount, Arriving};
pub use self::job::{Ending, LibvirtJob};
use crate::faults::chain;

/// Bytes read at a time.
const PIECE_BYTES: usize = 256 << 10;
/// Most bytes that are kept, as for device state elsewhere.
const HELD_BYTES_MAX: u64 = 512 << 20;
/// A migration has a main connection and one parallel one.
const CONNECTIONS_MAX: usize = 8;
/// Between two looks at whether it was shut.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Stream gates and libvirt jobs of this host, by their sockets.
#[derive(Default)]
pub struct StreamGates {
    streams: Mutex<BTreeMap<PathBuf, Arc<StreamGate>>>,
    jobs: Mutex<BTreeMap<PathBuf, Arc<LibvirtJob>>>,
}

impl StreamGates {
    /// One more.
    pub fn add(&self, gate: Arc<StreamGate>) {
        self.streams.lock().insert(gate.path.clone(), gate);
    }

    /// The one with this socket.
    pub fn get(&self, path: &Path) -> Option<Arc<StreamGate>> {
        self.streams.lock().get(path).cloned()
    }

    /// One more, for libvirt's own connection.
    pub fn add_job(&self, gate: Arc<LibvirtJob>) {
        self.jobs.lock().insert(gate.path.clone(), gate);
    }

    /// The one with this socket.
    pub fn job(&self, path: &Path) -> Option<Arc<LibvirtJob>> {
        self.jobs.lock().get(path).cloned()
    }

    /// It is of no more use, and nobody may connect to its socket any more.
    pub fn forget(&self, gate: &StreamGate) {
        self.streams.lock().remove(&gate.path);
        gate.remove();
    }

    /// The same.
    pub fn forget_job(&self, gate: &LibvirtJob) {
        self.jobs.lock().remove(&gate.path);
        gate.remove();
    }
}

/// Where a connection goes on: the other end of a pair of sockets.
pub(crate) type Connect = Box<dyn Fn(UnixStream) -> Result<(), String> + Send + Sync>;

/// See the module.
pub struct StreamGate {
    path: PathBuf,
    /// Until it is opened: the socket, and what fills its queue.
    waiting: Mutex<Option<(UnixListener, UnixStream)>>,
    connect: Connect,
    state: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Most bytes that are kept of one connection.
    held_max: u64,
}

#[derive(Default)]
struct State {
    connections: Vec<Connection>,
    released: bool,
    /// Why nothing goes on any more.
    shut: Option<String>,
}

/// One of the hypervisor's, and what was read from it and not given on.
struct Connection {
    hypervisor: UnixStream,
    onward: UnixStream,
    read: u64,
    given: u64,
    /// So much of it may be given on.
    allowed: u64,
    pieces: VecDeque<Vec<u8>>,
    ended: bool,
}

impl Connection {
    /// The next bytes that may be given on.
    fn take(&mut self) -> Option<Vec<u8>> {
        let allowed = usize::try_from(self.allowed.saturating_sub(self.given)).unwrap_or(usize::MAX);
        if allowed == 0 {
            return None;
        }
        let mut piece = self.pieces.pop_front()?;
        if piece.len() > allowed {
            self.pieces.push_front(piece.split_off(allowed));
        }
        self.given += piece.len() as u64;
        Some(piece)
    }

    fn cut(&self) {
        for socket in [&self.hypervisor, &self.onward] {
            // It fails only if it has ended already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl StreamGate {
    /// A socket at which connections wait. Each goes on by `connect` once it was let in.
    pub fn new(path: &Path, connect: Connect) -> io::Result<StreamGate> {
        StreamGate::with_room(path, connect, HELD_BYTES_MAX)
    }

    fn with_room(path: &Path, connect: Connect, held_max: u64) -> io::Result<StreamGate> {
        let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&SockAddr::unix(path)?)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        socket.listen(0)?;
        let ours = UnixStream::connect(path)?;
        let waiting = Mutex::new(Some((UnixListener::from(socket), ours)));
        let state = Shared { state: Mutex::default(), changed: Condvar::new(), held_max };
        Ok(StreamGate { path: path.to_owned(), waiting, connect, state: Arc::new(state) })
    }

    /// Lets connections in. What they write is kept.
    pub fn admit(self: &Arc<StreamGate>) -> io::Result<()> {
        let waiting = self.waiting.lock().take();
        let (listener, ours) = waiting.ok_or_else(|| io::Error::other("it was opened or shut before"))?;
        // The first in the queue is ours.
        drop(listener.accept()?);
        drop(ours);
        listener.set_nonblocking(true)?;
        let gate = self.clone();
        std::thread::Builder::new().name("gate".into()).spawn(move || gate.accept(&listener)).map(drop)
    }

    fn accept(&self, listener: &UnixListener) {
        while !self.is_shut() {
            let mut fds = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
            let _ = poll(&mut fds, Some(&LOOK));
            match listener.accept() {
                Ok((socket, _)) => {
                    if let Err(error) = self.take(socket) {
                        self.shut(&format!("a connection could not be taken: {error}"));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => self.shut(&format!("no connection can be taken: {error}")),
            }
        }
    }

    fn take(&self, hypervisor: UnixStream) -> Result<(), String> {
        hypervisor.set_nonblocking(false).map_err(|error| chain(&error))?;
        let (onward, other) = UnixStream::pair().map_err(|error| chain(&error))?;
        let clone = |socket: &UnixStream| socket.try_clone().map_err(|error| chain(&error));
        let (mut from, mut back_to) = (clone(&hypervisor)?, clone(&hypervisor)?);
        let (mut to, mut back_from) = (clone(&onward)?, clone(&onward)?);
        let index = {
            let mut state = self.state.state.lock();
            // Nobody would end one that came while it was shut.
            if let Some(why) = &state.shut {
                return Err(why.clone());
            }
            if state.connections.len() >= CONNECTIONS_MAX {
                return Err(format!("more than {CONNECTIONS_MAX} connections"));
            }
            let allowed = if state.released { u64::MAX } else { 0 };
            let pieces = VecDeque::new();
            let connection =
                Connection { hypervisor, onward, read: 0, given: 0, allowed, pieces, ended: false };
            state.connections.push(connection);
            state.connections.len() - 1
        };
        (self.connect)(other)?;
        let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.into()).spawn(work).map(drop).map_err(|error| chain(&error))
        };
        let shared = self.state.clone();
        start("gate-read", Box::new(move || shared.read(index, &mut from)))?;
        let shared = self.state.clone();
        start("gate-write", Box::new(move || shared.write(index, &mut to)))?;
        start("gate-back", Box::new(move || back(&mut back_from, &mut back_to)))
    }

    /// How much of each connection has come so far.
    pub fn mark(&self) -> Vec<u64> {
        self.state.state.lock().connections.iter().map(|connection| connection.read).collect()
    }

    /// Lets through what had come at the mark: the guest ran after that.
    pub fn pass(&self, mark: &[u64]) {
        let mut state = self.state.state.lock();
        for (connection, mark) in state.connections.iter_mut().zip(mark) {
            connection.allowed = connection.allowed.max(*mark);
        }
        self.state.changed.notify_all();
    }

    /// Lets everything through, for good.
    pub fn release(&self) {
        let mut state = self.state.state.lock();
        state.released = true;
        state.connections.iter_mut().for_each(|connection| connection.allowed = u64::MAX);
        self.state.changed.notify_all();
    }

    /// Nothing goes through any more, and who waits is refused. The socket's name stays as long as a hypervisor may
    /// still be told to connect to it: whoever made one of that name would be sent the guest.
    pub fn shut(&self, why: &str) {
        drop(self.waiting.lock().take());
        self.state.shut(why);
    }

    fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }

    fn is_shut(&self) -> bool {
        self.state.state.lock().shut.is_some()
    }

    /// Why nothing goes through any more, if so.
    pub fn why_shut(&self) -> Option<String> {
        self.state.state.lock().shut.clone()
    }
}

impl Shared {
    fn shut(&self, why: &str) {
        let mut state = self.state.lock();
        state.shut.get_or_insert_with(|| why.to_owned());
        state.connections.iter().for_each(Connection::cut);
        self.changed.notify_all();
    }

    /// Reads always, until the end.
    fn read(&self, index: usize, from: &mut UnixStream) {
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let came = from.read(&mut buffer);
            let mut state = self.state.lock();
            let Some(connection) = state.connections.get_mut(index) else { return };
            match came {
                Ok(0) | Err(_) => {
                    connection.ended = true;
                    return self.changed.notify_all();
                }
                Ok(n) => {
                    connection.read += n as u64;
                    connection.pieces.push_back(buffer.iter().take(n).copied().collect());
                    if connection.read - connection.given > self.held_max {
                        drop(state);
                        let most = self.held_max;
                        return self.shut(&format!("more than {most} bytes came of a guest that stands"));
                    }
                    self.changed.notify_all();
                }
            }
        }
    }

    /// Gives on what may be given on.
    fn write(&self, index: usize, to: &mut UnixStream) {
        let mut state = self.state.lock();
        loop {
            if state.shut.is_some() {
                return;
            }
            let Some(connection) = state.connections.get_mut(index) else { return };
            let Some(piece) = connection.take() else {
                if connection.ended && connection.pieces.is_empty() {
                    let _ = to.shutdown(Shutdown::Write);
                    return;
                }
                state = self.changed.wait(state);
                continue;
            };
            drop(state);
            let gone = to.write_all(&piece).is_err();
            state = self.state.lock();
            if gone {
                state.connections.get(index).into_iter().for_each(Connection::cut);
                return;
            }
        }
    }
}

/// What comes from the other side passes at once.
fn back(from: &mut UnixStream, to: &mut UnixStream) {
    if io::copy(from, to).is_err() {
        let _ = from.shutdown(Shutdown::Both);
    }
    let _ = to.shutdown(Shutdown::Write);
}

impl Drop for StreamGate {
    fn drop(&mut self) {
        self.shut("nobody uses it any more");
        self.remove();
    }
}

#[cfg(test)]
mod tests;
