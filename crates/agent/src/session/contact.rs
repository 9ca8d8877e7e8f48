//! Connections to the other host's agent that belong to no link: the first connection, joining, questions on a
//! connection of their own.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use linerate_core::{Code, Fault, Outcome, Side, Step};
use linerate_net::control::{ControlOptions, ControlPath};
use linerate_net::tcp::Stream;
use linerate_net::tcp::connect::{ConnectError, Route, connect, query};
use linerate_net::tcp::options::TcpOptions;
use linerate_wire::frame::Role;

use super::identity::Identity;
use crate::faults::{chain, fault};

/// Connection and handshake must be done within this, and a probe too. A far link has longer.
pub(crate) const OPEN_WITHIN: Duration = Duration::from_secs(2);

pub(crate) fn tcp_options(identity: &Identity) -> TcpOptions {
    TcpOptions { connect_wait: OPEN_WITHIN, tls: identity.security.tls().cloned(), ..TcpOptions::default() }
}

fn route(remote: SocketAddr) -> Route {
    Route { local: None, device: None, remote }
}

/// Reaches the destination's agent at one of its addresses and opens the session.
pub(crate) fn open_session(
    peers: &[SocketAddr],
    role: Role,
    identity: &Identity,
) -> Result<(ControlPath, SocketAddr), Fault> {
    let mut last = None;
    for &remote in peers {
        match connect(&route(remote), &identity.hello(role, 0, 0), &tcp_options(identity)) {
            Ok((stream, _)) => {
                if role == Role::ControlNew {
                    identity.security.permit_destination(stream.peer_certificates())?;
                }
                let control = keep(stream)
                    .map_err(|error| fault(Code::Internal, Step::Authorise, Side::Source, &error))?;
                return Ok((control, remote));
            }
            Err(ConnectError::Refused { fault, .. }) => return Err(fault),
            Err(error) => last = Some(fault(Code::NoLink, Step::Authorise, Side::Source, &error)),
        }
    }
    Err(last.unwrap_or_else(|| {
        Fault::new(Code::NoLink, Step::Authorise, Side::Source, "the host has no address")
    }))
}

/// Joins the session again at the first of the addresses that takes it; otherwise the error of the last one.
pub(crate) fn join_any(peers: &[SocketAddr], identity: &Identity) -> Result<Stream, Option<ConnectError>> {
    let mut last = None;
    for &remote in peers {
        match connect(&route(remote), &identity.hello(Role::ControlJoin, 0, 0), &tcp_options(identity)) {
            Ok((stream, _)) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    Err(last)
}

/// A welcomed control connection. The destination does not take it for dead until it is put to use.
pub(crate) fn keep(stream: Stream) -> io::Result<ControlPath> {
    ControlPath::keep(stream, ControlOptions::default()).map_err(io::Error::other)
}

/// How the session ended: the first answer from any of a host's addresses.
pub(crate) fn ask_any(peers: &[SocketAddr], identity: &Identity) -> Option<Outcome> {
    ask_as(Role::Query, peers, identity)
}

/// Sends commit again; the answer is the session's outcome there.
pub(crate) fn commit_any(peers: &[SocketAddr], identity: &Identity) -> Option<Outcome> {
    ask_as(Role::CommitAgain, peers, identity)
}

/// Notifies any of a host's addresses that the session is rolled back; the answer is the session's outcome there.
pub(super) fn notify_rolled_back(peers: &[SocketAddr], identity: &Identity) -> Option<Outcome> {
    ask_as(Role::RolledBack, peers, identity)
}

fn ask_as(role: Role, peers: &[SocketAddr], identity: &Identity) -> Option<Outcome> {
    for &remote in peers {
        match query(&route(remote), &identity.hello(role, 0, 0), &tcp_options(identity)) {
            Ok(outcome) => return Some(outcome),
            Err(error) => tracing::debug!(%remote, error = chain(&error), "no answer"),
        }
    }
    None
}
