//! Taking connections at the destination.
//!
//! One thread accepts on all addresses. Each connection sends HELLO in a short-lived thread of its own, with a
//! deadline. How many there are at a time is capped, so that a silent client takes a slot for some seconds and
//! no more.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_core::{Code, Fault, Outcome, Side, Step};
use linerate_wire::frame::{Frame, Hello, Tag, Welcome};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustls::pki_types::CertificateDer;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use thiserror::Error;

use super::Stream;
use super::exchange::{self, ExchangeError};
use super::options::TcpOptions;
use crate::lock::{Condvar, Mutex};
use crate::tls::TlsError;

/// Connections that wait for the accept thread, per address.
const BACKLOG: i32 = 256;
/// Between two warnings of connections that were refused.
const REPORT_GAP: Duration = Duration::from_secs(1);

/// How connections are taken.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Options of the connections.
    pub tcp: TcpOptions,
    /// Within this time a HELLO must be complete, and an answer sent.
    pub handshake_wait: Duration,
    /// Handshakes at a time; more wait in the kernel's queue.
    pub handshakes_max: usize,
}

impl Default for ListenOptions {
    fn default() -> ListenOptions {
        ListenOptions {
            tcp: TcpOptions::default(),
            handshake_wait: Duration::from_secs(5),
            handshakes_max: 64,
        }
    }
}

/// Why nothing is listened on.
#[derive(Debug, Error)]
pub enum ListenError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Address {
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// No thread or no pipe to stop it.
    #[error("the accept thread could not be started: {0}")]
    Start(#[source] io::Error),
}

/// A connection that said HELLO and has no answer yet. Dropped without one, it is closed.
#[derive(Debug)]
pub struct Accepted {
    pub hello: Hello,
    pub peer: SocketAddr,
    stream: Stream,
    deadline: Instant,
    _slot: Slot,
}

impl Accepted {
    /// The chain that the peer proved itself with, in DER, its own certificate first. Empty without TLS.
    pub fn peer_certificates(&self) -> &[CertificateDer<'static>] {
        self.stream.peer_certificates()
    }

    /// Cipher of the connection; `None` in plain text.
    pub fn cipher(&self) -> Option<&'static str> {
        self.stream.cipher()
    }

    pub fn welcome(self, welcome: Welcome) -> Result<Stream, ExchangeError> {
        exchange::send(&self.stream, &Frame::Welcome(welcome), self.deadline)?;
        Ok(self.stream)
    }

    /// Does not take it and says why.
    pub fn refuse(self, fault: Fault) -> Result<(), ExchangeError> {
        exchange::send(&self.stream, &Frame::Refuse(fault), self.deadline)
    }

    pub fn outcome(self, outcome: Outcome) -> Result<(), ExchangeError> {
        exchange::send(&self.stream, &Frame::Outcome(outcome), self.deadline)
    }
}

/// Listens until it is dropped. Connections that were taken live on.
#[derive(Debug)]
pub struct Listener {
    addresses: Vec<SocketAddr>,
    stop: Option<OwnedFd>,
    slots: Arc<Slots>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Listens on all the addresses or fails. The handler is called in a thread of each connection and must answer; what it
    /// does after the answer is its own affair.
    pub fn start(
        addresses: &[SocketAddr],
        options: ListenOptions,
        handler: impl Fn(Accepted) + Send + Sync + 'static,
    ) -> Result<Listener, ListenError> {
        let listening = |address: &SocketAddr| {
            listen(*address, &options.tcp)
                .map_err(|source| ListenError::Address { address: *address, source })
        };
        let sockets = addresses.iter().map(listening).collect::<Result<Vec<_>, _>>()?;
        let bound = sockets.iter().filter_map(|socket| socket.local_addr().ok()?.as_socket()).collect();
        let (stopped, stop) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|error| ListenError::Start(error.into()))?;
        let slots = Arc::new(Slots::new(options.handshakes_max));
        let acceptor =
            Acceptor { sockets, stopped, slots: Arc::clone(&slots), options, handler: Arc::new(handler) };
        let thread = std::thread::Builder::new()
            .name("accept".into())
            .spawn(move || acceptor.run())
            .map_err(ListenError::Start)?;
        Ok(Listener { addresses: bound, stop: Some(stop), slots, thread: Some(thread) })
    }

    /// The addresses, with the ports that the system chose where 0 was asked for.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.take();
        self.slots.stop();
        if let Some(thread) = self.thread.take() {
            // How it ended changes nothing any more.
            let _ = thread.join();
        }
    }
}

fn listen(address: SocketAddr, options: &TcpOptions) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    options.apply_before(&socket)?;
    socket.bind(&address.into())?;
    socket.set_nonblocking(true)?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

struct Acceptor<H> {
    sockets: Vec<Socket>,
    stopped: OwnedFd,
    slots: Arc<Slots>,
    options: ListenOptions,
    handler: Arc<H>,
}

impl<H: Fn(Accepted) + Send + Sync + 'static> Acceptor<H> {
    fn run(self) {
        while let Some(ready) = self.wait() {
            for socket in ready {
                match socket.accept() {
                    Ok((connection, peer)) => self.begin(connection, &peer),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        // Out of descriptors, most likely: the connection stays in the queue, so do not spin.
                        std::thread::sleep(Duration::from_millis(20));
                    }
                }
            }
        }
    }

    /// The sockets that have a connection; `None` when the listener was dropped.
    fn wait(&self) -> Option<Vec<&Socket>> {
        let mut fds = vec![PollFd::new(&self.stopped, PollFlags::IN)];
        fds.extend(self.sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)));
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Some(Vec::new()),
            Err(_) => return None,
        }
        let (stopped, rest) = fds.split_first()?;
        if !stopped.revents().is_empty() {
            return None;
        }
        let ready = self.sockets.iter().zip(rest).filter(|(_, fd)| !fd.revents().is_empty());
        Some(ready.map(|(socket, _)| socket).collect())
    }

    fn begin(&self, connection: Socket, peer: &SockAddr) {
        let Some(peer) = peer.as_socket() else { return };
        let Some(slot) = Slots::take(&self.slots) else { return };
        let (options, handler) = (self.options.clone(), Arc::clone(&self.handler));
        let slots = Arc::clone(&self.slots);
        let thread = std::thread::Builder::new().name("handshake".into());
        let spawned = thread.spawn(move || match handshake(connection, peer, &options, slot) {
            Ok(accepted) => handler(accepted),
            Err(error) => slots.report(peer, &error),
        });
        if let Err(error) = spawned {
            tracing::warn!(%peer, %error, "no thread for a connection");
        }
    }
}

fn handshake(
    connection: Socket,
    peer: SocketAddr,
    options: &ListenOptions,
    slot: Slot,
) -> Result<Accepted, ExchangeError> {
    let deadline = Instant::now() + options.handshake_wait;
    let stream = Stream::new(connection).map_err(ExchangeError::Socket)?;
    options.tcp.apply(&stream).map_err(ExchangeError::Socket)?;
    let stream = match &options.tcp.tls {
        Some(tls) => stream.accept_tls(tls, deadline)?,
        None => stream,
    };
    let hello = exchange::receive(&stream, &[Tag::Hello], deadline);
    if let Err(ExchangeError::Tls(TlsError::PeerSpokeTls)) = &hello {
        // A frame, by which it sees that this is a plain port.
        let fault = Fault::new(Code::NotAuthorised, Step::Authorise, Side::Destination, "this port is plain");
        exchange::send(&stream, &Frame::Refuse(fault), deadline)?;
    }
    match hello? {
        Frame::Hello(hello) => Ok(Accepted { hello, peer, stream, deadline, _slot: slot }),
        other => Err(ExchangeError::Unexpected(other.tag())),
    }
}

/// Counts handshakes in progress.
#[derive(Debug)]
struct Slots {
    /// Slots that are free; `None` when the listener has stopped.
    free: Mutex<Option<usize>>,
    changed: Condvar,
    /// When a refused connection was last logged.
    reported: Mutex<Option<Instant>>,
}

#[derive(Debug)]
struct Slot(Arc<Slots>);

impl Slots {
    fn new(count: usize) -> Slots {
        Slots { free: Mutex::new(Some(count.max(1))), changed: Condvar::new(), reported: Mutex::default() }
    }

    /// Waits for a free one. Each is given back within the handshake's deadline; `None` when the listener has stopped.
    fn take(slots: &Arc<Slots>) -> Option<Slot> {
        let free = slots.free.lock();
        let mut free = slots.changed.wait_while(free, |free| *free == Some(0));
        let left = (*free)?;
        *free = Some(left.saturating_sub(1));
        Some(Slot(Arc::clone(slots)))
    }

    /// A peer that is refused by TLS is worth a warning, at most one in a second: strangers must not fill the log.
    fn report(&self, peer: SocketAddr, error: &ExchangeError) {
        let mut reported = self.reported.lock();
        let is_recent = reported.is_some_and(|last| last.elapsed() < REPORT_GAP);
        if matches!(error, ExchangeError::Tls(_)) && !is_recent {
            *reported = Some(Instant::now());
            tracing::warn!(%peer, %error, "a connection was refused");
        } else {
            tracing::debug!(%peer, %error, "a connection was dropped in the handshake");
        }
    }

    fn stop(&self) {
        *self.free.lock() = None;
        self.changed.notify_all();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(free) = self.0.free.lock().as_mut() {
            *free += 1;
        }
        self.0.changed.notify_all();
    }
}
