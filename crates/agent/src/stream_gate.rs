//! Connections of a hypervisor that wait until they are admitted, and whose bytes wait until they are released.
//!
//! A hypervisor that migrates to a socket connects, and sleeps in the kernel: the socket has a queue of one, which a
//! connection of ours fills. Once admitted, it stops its guest soon. From then on what it writes is always read (a
//! hypervisor may write with its big lock held). Bytes that were read while the guest still ran are forwarded. The rest
//! is kept here until it is released, once, or never. What the other side sends is always forwarded.

mod arrivals;
mod job;

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use linerate_lock::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, SockAddr, Type};

pub use self::arrivals::{ArrivalCount, DomainArrival};
pub use self::job::{Ending, LibvirtJob};
use crate::faults::chain;

/// Bytes read at a time.
const PIECE_BYTES: usize = 256 << 10;
/// Most bytes that are kept, as for device state elsewhere.
const HELD_BYTES_MAX: u64 = 512 << 20;
/// A migration has a main connection and one parallel one.
const CONNECTIONS_MAX: usize = 8;
/// Between two checks whether the gate was closed.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Stream gates and libvirt jobs of this host, by their sockets.
#[derive(Default)]
pub struct StreamGates {
    streams: Mutex<BTreeMap<PathBuf, Arc<StreamGate>>>,
    jobs: Mutex<BTreeMap<PathBuf, Arc<LibvirtJob>>>,
}

impl StreamGates {
    pub fn add(&self, gate: Arc<StreamGate>) {
        self.streams.lock().insert(gate.path.clone(), gate);
    }

    /// The one with this socket.
    pub fn get(&self, path: &Path) -> Option<Arc<StreamGate>> {
        self.streams.lock().get(path).cloned()
    }

    /// Adds one for libvirt's own connection.
    pub fn add_job(&self, gate: Arc<LibvirtJob>) {
        self.jobs.lock().insert(gate.path.clone(), gate);
    }

    /// The one with this socket.
    pub fn job(&self, path: &Path) -> Option<Arc<LibvirtJob>> {
        self.jobs.lock().get(path).cloned()
    }

    /// Removes a gate, and its socket: no connection is possible any more.
    pub fn forget(&self, gate: &StreamGate) {
        self.streams.lock().remove(&gate.path);
        gate.remove();
    }

    /// Removes a job's gate, and its socket.
    pub fn forget_job(&self, gate: &LibvirtJob) {
        self.jobs.lock().remove(&gate.path);
        gate.remove();
    }
}

/// Takes the other end of a pair of sockets, over which a connection continues.
pub(crate) type Connect = Box<dyn Fn(UnixStream) -> Result<(), ConnectError> + Send + Sync>;

/// Why it does not continue there. A gate does not know what it continues over.
pub(crate) type ConnectError = Box<dyn Error + Send + Sync>;

/// Why a connection does not continue.
#[derive(Debug, thiserror::Error)]
enum GateError {
    /// A socket, or a thread.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The reason is that of whoever closed the gate.
    #[error("{why}")]
    Closed { why: String },
    #[error("more than {CONNECTIONS_MAX} connections")]
    Full,
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

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
    /// Why nothing is forwarded any more.
    close_reason: Option<String>,
}

/// A connection of the hypervisor, and what was read from it and not forwarded.
struct Connection {
    hypervisor: UnixStream,
    forward: UnixStream,
    read: u64,
    forwarded: u64,
    /// Bytes of it that may be forwarded.
    release_limit: u64,
    pieces: VecDeque<Vec<u8>>,
    ended: bool,
}

impl Connection {
    /// The next bytes that may be forwarded.
    fn take(&mut self) -> Option<Vec<u8>> {
        let release_limit =
            usize::try_from(self.release_limit.saturating_sub(self.forwarded)).unwrap_or(usize::MAX);
        if release_limit == 0 {
            return None;
        }
        let mut piece = self.pieces.pop_front()?;
        if piece.len() > release_limit {
            self.pieces.push_front(piece.split_off(release_limit));
        }
        self.forwarded += piece.len() as u64;
        Some(piece)
    }

    fn reset(&self) {
        for socket in [&self.hypervisor, &self.forward] {
            // It fails only if it has ended already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl StreamGate {
    /// A socket at which connections wait. Once admitted, each continues by `connect`.
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

    /// Admits connections. What they write is kept.
    pub fn admit(self: &Arc<StreamGate>) -> io::Result<()> {
        let waiting = self.waiting.lock().take();
        let (listener, ours) = waiting.ok_or_else(|| io::Error::other("it was opened or closed before"))?;
        // The first in the queue is ours.
        drop(listener.accept()?);
        drop(ours);
        listener.set_nonblocking(true)?;
        let gate = self.clone();
        std::thread::Builder::new().name("gate".into()).spawn(move || gate.accept(&listener)).map(drop)
    }

    fn accept(&self, listener: &UnixListener) {
        while !self.is_closed() {
            let mut fds = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
            let _ = poll(&mut fds, Some(&POLL_INTERVAL));
            match listener.accept() {
                Ok((socket, _)) => {
                    if let Err(error) = self.take(socket) {
                        self.close(&format!("a connection could not be taken: {}", chain(&error)));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => self.close(&format!("no connection can be taken: {error}")),
            }
        }
    }

    fn take(&self, hypervisor: UnixStream) -> Result<(), GateError> {
        hypervisor.set_nonblocking(false)?;
        let (forward, other) = UnixStream::pair()?;
        let (mut from, mut back_to) = (hypervisor.try_clone()?, hypervisor.try_clone()?);
        let (mut to, mut back_from) = (forward.try_clone()?, forward.try_clone()?);
        let index = {
            let mut state = self.state.state.lock();
            // Nothing would end a connection that is accepted after the gate was closed.
            if let Some(why) = &state.close_reason {
                return Err(GateError::Closed { why: why.clone() });
            }
            if state.connections.len() >= CONNECTIONS_MAX {
                return Err(GateError::Full);
            }
            let release_limit = if state.released { u64::MAX } else { 0 };
            let pieces = VecDeque::new();
            let connection = Connection {
                hypervisor,
                forward,
                read: 0,
                forwarded: 0,
                release_limit,
                pieces,
                ended: false,
            };
            state.connections.push(connection);
            state.connections.len() - 1
        };
        (self.connect)(other)?;
        let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.into()).spawn(work).map(drop)
        };
        let shared = self.state.clone();
        start("gate-read", Box::new(move || shared.read(index, &mut from)))?;
        let shared = self.state.clone();
        start("gate-write", Box::new(move || shared.write(index, &mut to)))?;
        start("gate-back", Box::new(move || back(&mut back_from, &mut back_to)))?;
        Ok(())
    }

    /// Bytes read from each connection so far.
    pub fn mark(&self) -> Vec<u64> {
        self.state.state.lock().connections.iter().map(|connection| connection.read).collect()
    }

    /// Releases what had been read at the mark: the guest ran after that.
    pub fn release_up_to(&self, mark: &[u64]) {
        let mut state = self.state.state.lock();
        for (connection, mark) in state.connections.iter_mut().zip(mark) {
            connection.release_limit = connection.release_limit.max(*mark);
        }
        self.state.changed.notify_all();
    }

    /// Releases everything, for good.
    pub fn release(&self) {
        let mut state = self.state.state.lock();
        state.released = true;
        state.connections.iter_mut().for_each(|connection| connection.release_limit = u64::MAX);
        self.state.changed.notify_all();
    }

    /// Nothing is forwarded any more, and waiting connections are refused. The socket's name stays as long as a
    /// hypervisor may still connect to it: another program that made one of that name would receive the guest.
    pub fn close(&self, why: &str) {
        drop(self.waiting.lock().take());
        self.state.close(why);
    }

    fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }

    fn is_closed(&self) -> bool {
        self.state.state.lock().close_reason.is_some()
    }

    /// Why nothing is forwarded any more, if so.
    pub fn close_reason(&self) -> Option<String> {
        self.state.state.lock().close_reason.clone()
    }
}

impl Shared {
    fn close(&self, why: &str) {
        let mut state = self.state.lock();
        state.close_reason.get_or_insert_with(|| why.to_owned());
        state.connections.iter().for_each(Connection::reset);
        self.changed.notify_all();
    }

    /// Always reads, until the connection ends.
    fn read(&self, index: usize, from: &mut UnixStream) {
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let read = from.read(&mut buffer);
            let mut state = self.state.lock();
            let Some(connection) = state.connections.get_mut(index) else { return };
            match read {
                Ok(0) | Err(_) => {
                    connection.ended = true;
                    return self.changed.notify_all();
                }
                Ok(n) => {
                    connection.read += n as u64;
                    connection.pieces.push_back(buffer.iter().take(n).copied().collect());
                    if connection.read - connection.forwarded > self.held_max {
                        drop(state);
                        let most = self.held_max;
                        return self
                            .close(&format!("more than {most} bytes were read of a guest that is paused"));
                    }
                    self.changed.notify_all();
                }
            }
        }
    }

    /// Forwards what may be forwarded.
    fn write(&self, index: usize, to: &mut UnixStream) {
        let mut state = self.state.lock();
        loop {
            if state.close_reason.is_some() {
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
                state.connections.get(index).into_iter().for_each(Connection::reset);
                return;
            }
        }
    }
}

/// What the other side sends is forwarded at once.
fn back(from: &mut UnixStream, to: &mut UnixStream) {
    if io::copy(from, to).is_err() {
        let _ = from.shutdown(Shutdown::Both);
    }
    let _ = to.shutdown(Shutdown::Write);
}

impl Drop for StreamGate {
    fn drop(&mut self) {
        self.close("it is not in use any more");
        self.remove();
    }
}

#[cfg(test)]
mod tests;
