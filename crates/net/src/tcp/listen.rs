//! Taking connections at the destination.
//!
//! One thread accepts on all addresses. A connection is held until the peer says something, and then says HELLO in a
//! short-lived thread of its own, with a deadline. How many there are of each kind is bounded, for an address and in
//! total. Hosts that are known have room of their own, so that strangers do not keep them out:
//!
//! | module | what it has |
//! |---|---|
//! | `acceptor` | the thread: connections that say nothing, and the handshakes |
//! | `room` | which connection gives way to another |
//! | `gate` | turns to do the handshake |
//! | `known` | addresses of hosts that are no strangers |

use std::any::Any;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_core::{Fault, Outcome};
use linerate_wire::frame::{Frame, Hello, Welcome};
use rustix::pipe::{PipeFlags, pipe_with};
use rustls::pki_types::CertificateDer;
use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

use super::Stream;
use super::acceptor::Acceptor;
use super::exchange::{self, ExchangeError};
use super::gate::{Both, Gate, Slot};
use super::options::TcpOptions;
use super::room::Limits;
use crate::tls::Tls;

/// Connections that wait for the accept thread, per address.
const BACKLOG: i32 = 4096;

/// How connections are taken.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Options of the connections.
    pub tcp: TcpOptions,
    /// Within this time a connection must say something. From then on, and from its turn on, it has this time again for
    /// HELLO and its answer.
    pub handshake_wait: Duration,
    /// Handshakes at a time of hosts that are known, and as many of strangers. More wait for their turn.
    pub handshakes_max: usize,
    /// The same for one address of strangers.
    pub handshakes_per_address: usize,
    /// Connections at a time that say nothing, of hosts that are known, and as many of strangers. The oldest gives way.
    pub silent_max: usize,
    /// The same for one address of strangers.
    pub silent_per_address: usize,
    /// An address that no port of this host has is no error: connections come once a port has it.
    pub may_be_absent: bool,
    /// Called for each peer that TLS refuses, or that refuses this side.
    pub on_refusal: Option<OnRefusal>,
}

/// Called with the address of a peer, and why it was refused.
#[derive(Clone)]
pub struct OnRefusal(pub Arc<RefusalHandler>);

/// What [`OnRefusal`] calls: with the peer's address and the reason.
pub type RefusalHandler = dyn Fn(SocketAddr, &str) + Send + Sync;

impl fmt::Debug for OnRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnRefusal")
    }
}

impl Default for ListenOptions {
    fn default() -> ListenOptions {
        ListenOptions {
            tcp: TcpOptions::default(),
            handshake_wait: Duration::from_secs(5),
            handshakes_max: 64,
            handshakes_per_address: 16,
            silent_max: 256,
            silent_per_address: 32,
            may_be_absent: false,
            on_refusal: None,
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
    pub(super) stream: Stream,
    /// What protects it; `None` in plain text.
    pub(super) tls: Option<Tls>,
    pub(super) deadline: Instant,
    pub(super) slot: Slot,
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

    /// Keeps this as long as the connection, or a clone of it, lives.
    pub fn count_by(&mut self, counted: Arc<dyn Any + Send + Sync>) {
        self.stream.count_by(counted);
    }

    pub fn welcome(self, welcome: Welcome) -> Result<Stream, ExchangeError> {
        self.answer(&Frame::Welcome(welcome))?;
        self.slot.taken(&self.stream);
        Ok(self.stream)
    }

    /// Does not take it and says why.
    pub fn refuse(self, fault: Fault) -> Result<(), ExchangeError> {
        self.answer(&Frame::Refuse(fault))
    }

    pub fn outcome(self, outcome: Outcome) -> Result<(), ExchangeError> {
        self.answer(&Frame::Outcome(outcome))
    }

    /// Over TLS the revocation lists of this host go before it, in one piece.
    fn answer(&self, answer: &Frame) -> Result<(), ExchangeError> {
        match &self.tls {
            Some(tls) => exchange::send_both(
                &self.stream,
                [&Frame::Lists(tls.lists().numbers()), answer],
                self.deadline,
            ),
            None => exchange::send(&self.stream, answer, self.deadline),
        }
    }
}

/// Listens until it is dropped. Connections that were taken live on.
#[derive(Debug)]
pub struct Listener {
    addresses: Vec<SocketAddr>,
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Listens on all the addresses or fails. The handler is called in a thread of each connection and must answer;
    /// what it does after the answer is its own affair.
    pub fn start(
        addresses: &[SocketAddr],
        options: ListenOptions,
        handler: impl Fn(Accepted) + Send + Sync + 'static,
    ) -> Result<Listener, ListenError> {
        let listening = |address: &SocketAddr| {
            listen(*address, &options).map_err(|source| ListenError::Address { address: *address, source })
        };
        let sockets = addresses.iter().map(listening).collect::<Result<Vec<_>, _>>()?;
        let bound = sockets.iter().filter_map(|socket| socket.local_addr().ok()?.as_socket()).collect();
        let (stopped, stop) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|error| ListenError::Start(error.into()))?;
        let all = Limits { total: options.handshakes_max.max(1), of_one: options.handshakes_max.max(1) };
        let strangers = Limits { of_one: options.handshakes_per_address.clamp(1, all.total), ..all };
        let gate = Gate::new(Both { known: all, strangers }).map_err(ListenError::Start)?;
        let acceptor = Acceptor::new(sockets, stopped, Arc::new(gate), options, handler);
        let acceptor = acceptor.map_err(ListenError::Start)?;
        let thread = std::thread::Builder::new()
            .name("accept".into())
            .spawn(move || acceptor.run())
            .map_err(ListenError::Start)?;
        Ok(Listener { addresses: bound, stop: Some(stop), thread: Some(thread) })
    }

    /// The addresses, with the ports that the system chose where 0 was asked for.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // How it ended changes nothing any more.
            let _ = thread.join();
        }
    }
}

fn listen(address: SocketAddr, options: &ListenOptions) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    match address {
        SocketAddr::V4(_) if options.may_be_absent => socket.set_freebind_v4(true)?,
        SocketAddr::V6(_) if options.may_be_absent => socket.set_freebind_v6(true)?,
        _ => {}
    }
    socket.set_reuse_address(true)?;
    options.tcp.apply_before(&socket)?;
    socket.bind(&address.into())?;
    socket.set_nonblocking(true)?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}
