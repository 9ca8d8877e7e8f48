//! Opening a connection from the source.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use linerate_core::{Fault, Outcome};
use linerate_wire::frame::{Frame, Hello, Tag, Welcome};
use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

use super::Stream;
use super::exchange::{self, ExchangeError};
use super::options::TcpOptions;
use crate::links::Link;
use crate::round_trip::{ROUND_TRIP_MAX, RoundTrip};
use crate::tls::TlsError;

/// Where a connection goes, and through which port.
#[derive(Clone, Debug)]
pub struct Route {
    /// Source address; `None` where routing chooses.
    pub local: Option<IpAddr>,
    /// Local interface; `None` where routing chooses.
    pub device: Option<String>,
    pub remote: SocketAddr,
}

impl From<&Link> for Route {
    fn from(link: &Link) -> Route {
        Route { local: link.local, device: link.device.clone(), remote: link.remote }
    }
}

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// No socket, or it did not take its options.
    #[error("no socket to {remote}: {source}")]
    Socket {
        remote: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The source address is not there.
    #[error("cannot send from {local} to {remote}: {source}")]
    Bind {
        local: IpAddr,
        remote: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    #[error(
        "cannot connect to {remote}: {source}; check that an agent runs there and that no firewall is between"
    )]
    Connect {
        remote: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// No answer of any kind.
    #[error(
        "{remote} did not answer within {} ms; check that an agent runs there and that no firewall is between. The \
         round trip of a link may be {} ms at most", waited.as_millis(), ROUND_TRIP_MAX.as_millis()
    )]
    Silent { remote: SocketAddr, waited: Duration },
    /// The connection was closed in the handshake.
    #[error("no handshake with {remote}: {source}")]
    Handshake {
        remote: SocketAddr,
        #[source]
        source: ExchangeError,
    },
    /// TLS could not be agreed on, or is not what the peer speaks.
    #[error("no TLS with {remote}: {source}")]
    Tls {
        remote: SocketAddr,
        #[source]
        source: TlsError,
    },
    #[error("{remote} refused the connection: {fault}")]
    Refused {
        remote: SocketAddr,
        #[source]
        fault: Fault,
    },
    /// The destination chose a version that was not offered.
    #[error("{remote} chose protocol version {version}, which was not offered")]
    Version { remote: SocketAddr, version: u16 },
}

/// Connects, says HELLO, and returns the connection with the destination's WELCOME.
pub fn connect(
    route: &Route,
    hello: &Hello,
    options: &TcpOptions,
) -> Result<(Stream, Welcome), ConnectError> {
    let remote = route.remote;
    let (stream, answer) = open(route, hello, options, &[Tag::Welcome, Tag::Refuse])?;
    match answer {
        Frame::Welcome(welcome) if (hello.version_min..=hello.version_max).contains(&welcome.version) => {
            Ok((stream, welcome))
        }
        Frame::Welcome(welcome) => Err(ConnectError::Version { remote, version: welcome.version }),
        other => Err(not_taken(remote, other)),
    }
}

/// Asks how a session ended; `hello` must have the role of a query.
pub fn query(route: &Route, hello: &Hello, options: &TcpOptions) -> Result<Outcome, ConnectError> {
    match open(route, hello, options, &[Tag::Outcome, Tag::Refuse])?.1 {
        Frame::Outcome(outcome) => Ok(outcome),
        other => Err(not_taken(route.remote, other)),
    }
}

fn not_taken(remote: SocketAddr, answer: Frame) -> ConnectError {
    match answer {
        Frame::Refuse(fault) => ConnectError::Refused { remote, fault },
        other => ConnectError::Handshake { remote, source: ExchangeError::Unexpected(other.tag()) },
    }
}

fn open(
    route: &Route,
    hello: &Hello,
    options: &TcpOptions,
    answers: &[Tag],
) -> Result<(Stream, Frame), ConnectError> {
    let remote = route.remote;
    let deadline = Instant::now() + options.connect_wait;
    let stream = connect_stream(route, options)?;
    let round_trip = RoundTrip::of(&stream);
    let later = || deadline.max(Instant::now() + round_trip.silence(Duration::ZERO));
    let stream = match &options.tls {
        Some(tls) => stream.begin_tls(tls, later()).map_err(|source| ConnectError::Tls { remote, source })?,
        None => stream,
    };
    let deadline = later();
    let answer = match exchange::send(&stream, &Frame::Hello(hello.clone()), deadline) {
        // The peer may have refused this host's certificate just now, and closed. It has said so before.
        Err(error) if !stream.is_encrypted() => Err(error),
        _ => receive_answer(route, &stream, answers, options, deadline),
    };
    match answer {
        Ok(answer) => Ok((stream, answer)),
        Err(ExchangeError::Tls(source)) => Err(ConnectError::Tls { remote, source }),
        Err(source) => Err(ConnectError::Handshake { remote, source }),
    }
}

/// Over TLS the peer says first which revocation lists it has.
fn receive_answer(
    route: &Route,
    stream: &Stream,
    answers: &[Tag],
    options: &TcpOptions,
    deadline: Instant,
) -> Result<Frame, ExchangeError> {
    if let Some(tls) = &options.tls
        && let Frame::Lists(numbers) = exchange::receive(stream, &[Tag::Lists], deadline)?
    {
        tls.lists().peer_lists_known(route, &numbers);
    }
    exchange::receive(stream, answers, deadline)
}

fn connect_stream(route: &Route, options: &TcpOptions) -> Result<Stream, ConnectError> {
    let remote = route.remote;
    let failed = |source| ConnectError::Socket { remote, source };
    // Protocol TCP and not MPTCP: it would move segments to other links behind our back.
    let socket =
        Socket::new(Domain::for_address(remote), Type::STREAM, Some(Protocol::TCP)).map_err(failed)?;
    options.apply_before(&socket).map_err(failed)?;
    bind(&socket, route)?;
    socket
        .connect_timeout(&remote.into(), options.connect_wait)
        .map_err(|source| not_connected(route, source, options.connect_wait))?;
    let stream = Stream::new(socket).map_err(failed)?;
    options.apply(&stream).map_err(failed)?;
    Ok(stream)
}

fn not_connected(route: &Route, source: io::Error, waited: Duration) -> ConnectError {
    let remote = route.remote;
    match source.kind() {
        io::ErrorKind::TimedOut => ConnectError::Silent { remote, waited },
        _ => ConnectError::Connect { remote, source },
    }
}

fn bind(socket: &Socket, route: &Route) -> Result<(), ConnectError> {
    let remote = route.remote;
    if let Some(device) = &route.device {
        match socket.bind_device(Some(device.as_bytes())) {
            // Without the privilege the source address and the routing table have to do.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                tracing::debug!(device, "not allowed to bind to the device; routing chooses it");
            }
            bound => bound.map_err(|source| ConnectError::Socket { remote, source })?,
        }
    }
    if let Some(local) = route.local {
        socket.bind(&SocketAddr::new(local, 0).into()).map_err(|source| ConnectError::Bind {
            local,
            remote,
            source,
        })?;
    }
    Ok(())
}
