//! Measuring the links to another host: `linerate bench`.
//!
//! | module | what it has |
//! |---|---|
//! | [`Host`] | one measurement at a time, whichever side of it this host is; ended for migrations |
//! | `ask` | the side that was asked by its operator: finds the links, opens the connections |
//! | `pingpong`, `bandwidth` | the two measurements, seen from that side |
//! | `answer` | the other side: plays the parts that it is asked for, within its caps |
//! | `places` | slots for its connections, given before anything is spent on one |
//! | `documents` | the messages between the two sides |
//! | `ports`, `cpu` | what is known of a connection's port; where its thread runs |
//! | `stop`, `error` | ending it from outside; why it failed |
//!
//! It shares no state with migrations: [`local`] runs both sides in one process, without an agent.

mod answer;
mod ask;
mod bandwidth;
mod cpu;
mod documents;
mod error;
mod host;
mod pingpong;
mod ports;
mod slots;
mod stop;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use linerate_api::{BenchDirection, BenchEvent, BenchReport, BenchRequest, BenchTransport, ErrorBody};
use linerate_net::bench::tcp::TcpTestConnection;
use linerate_net::bench::{TestConnection, TestError};
use linerate_net::rdma::{self, test_connection::RdmaTestConnection};
use linerate_net::tcp::Stream;
use linerate_net::tcp::listen::{ListenOptions, Listener};

use crate::faults::chain;
use crate::security::Security;

pub use error::BenchError;
pub use host::Host;
pub(crate) use host::{Terms, accept, accept_rdma};
pub use stop::{Reason, Stop};

/// How long nothing may move on a connection that is measured.
const SILENCE: Duration = Duration::from_secs(5);

/// What a stream is measured in, one after the other.
const DIRECTIONS: [BenchDirection; 3] = [BenchDirection::Out, BenchDirection::In, BenchDirection::Both];

/// Where links come from.
pub(crate) enum PeerKind {
    /// From pairing the other agent's ports with ours.
    Agent,
    /// Both ends are here: each address is a link.
    Local,
}

/// Measures, and reports how far it is. Blocks; `stop` ends it.
pub fn measure(
    host: &Arc<Host>,
    request: &BenchRequest,
    migrating: bool,
    stop: &Arc<Stop>,
    report: &mut dyn FnMut(BenchEvent),
) -> BenchEvent {
    finished(ask::measure(host, request, &PeerKind::Agent, migrating, stop, &DIRECTIONS, report))
}

/// A stream from here over all links that the request names, and nothing else. Blocks; `stop` ends it.
pub(crate) fn send(
    host: &Arc<Host>,
    request: &BenchRequest,
    stop: &Arc<Stop>,
) -> Result<BenchReport, BenchError> {
    ask::measure(host, request, &PeerKind::Agent, false, stop, &[BenchDirection::Out], &mut |_| {})
}

/// Measures over addresses of this host, both sides in this process. `request.to` names nothing then.
pub fn local(
    addresses: &[SocketAddr],
    request: &BenchRequest,
    stop: &Arc<Stop>,
    report: &mut dyn FnMut(BenchEvent),
) -> BenchEvent {
    finished(both_sides(addresses, request, stop, report))
}

fn both_sides(
    addresses: &[SocketAddr],
    request: &BenchRequest,
    stop: &Arc<Stop>,
    report: &mut dyn FnMut(BenchEvent),
) -> Result<BenchReport, BenchError> {
    let name = crate::config::host_name();
    let answering = Arc::new(Host::new(name.clone(), Vec::new(), Security::insecure()));
    let other = Arc::clone(&answering);
    let accept = move |accepted| {
        let terms = Terms { migrating: false, may_force: true };
        if let Err(error) = host::accept(&other, accepted, terms) {
            tracing::warn!(error = chain(&error), "a connection of a measurement was not taken");
        }
    };
    let listener = Listener::start(addresses, ListenOptions::default(), accept)?;
    answering.listen_at(listener.addresses().to_vec());
    let _rdma = match request.transport {
        BenchTransport::Rdma => Some(listen_rdma(&answering, listener.addresses())?),
        BenchTransport::Tcp => None,
    };
    let to = listener.addresses().first().map(ToString::to_string).unwrap_or_default();
    let asking = Arc::new(Host::new(name, Vec::new(), Security::insecure()));
    let request = BenchRequest { to, links: Vec::new(), ..request.clone() };
    ask::measure(&asking, &request, &PeerKind::Local, false, stop, &DIRECTIONS, report)
}

/// Takes RDMA connections for a measurement in this process.
fn listen_rdma(host: &Arc<Host>, addresses: &[SocketAddr]) -> Result<rdma::listen::Listener, BenchError> {
    let other = Arc::clone(host);
    let accept = move |accepted| {
        if let Err(error) = accept_rdma(&other, accepted) {
            tracing::warn!(error = chain(&error), "an RDMA connection of a measurement was not taken");
        }
    };
    let listener = rdma::listen::Listener::start(addresses, accept).map_err(BenchError::Rdma)?;
    host.rdma.set(&listener.addresses());
    Ok(listener)
}

fn finished(measured: Result<BenchReport, BenchError>) -> BenchEvent {
    match measured {
        Ok(report) => BenchEvent::Finished { error: None, report: Some(Box::new(report)) },
        Err(error) => BenchEvent::failed(ErrorBody::from(&error)),
    }
}

/// The two places where a connection becomes a test connection, the same on both sides.
fn rdma_test_connection(connection: Arc<rdma::Connection>) -> Result<Box<dyn TestConnection>, TestError> {
    Ok(Box::new(RdmaTestConnection::new(connection, SILENCE)?))
}

fn tcp_test_connection(stream: Stream) -> Result<Box<dyn TestConnection>, TestError> {
    Ok(Box::new(TcpTestConnection::new(stream, SILENCE).map_err(TestError::Socket)?))
}

#[cfg(test)]
mod tests;
