//! Opening a connection from the source.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_core::Fault;
use linerate_wire::frame::{Frame, HEADER_BYTES, Header, Hello, Welcome};
use rustix::io::Errno;
use thiserror::Error;

use super::abi::{
    RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_REJECTED,
    RDMA_CM_EVENT_ROUTE_ERROR, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_UNREACHABLE,
};
use super::cm::{Event, EventChannel, Identifier};
use super::connection::Connection;
use super::domain::Domains;
use super::error::{RdmaError, check, errno};
use super::library::Library;
use super::options::RdmaOptions;
use crate::tcp::connect::Route;

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum ConnectError {
    #[error("no RDMA connection to {remote}: {source}")]
    Here {
        remote: SocketAddr,
        #[source]
        source: RdmaError,
    },
    /// The address is not one of an RDMA device, or there is no way from it to the destination.
    #[error(
        "no RDMA device leads to {remote}: {source}; check that the port is up, that its address is that of an RDMA device (`rdma link`), and that both ends have a GID of the same kind"
    )]
    Address {
        remote: SocketAddr,
        /// What the system said.
        #[source]
        source: Errno,
    },
    #[error(
        "{remote} cannot be reached by RDMA: {source}; check that both ports are up, and on RoCE that UDP port 4791 passes between them"
    )]
    Unreachable {
        remote: SocketAddr,
        /// What the system said.
        #[source]
        source: Errno,
    },
    /// The host answers, and no agent listens.
    #[error("{remote} takes no RDMA connection (reason {reason} of the connection manager)")]
    Rejected {
        remote: SocketAddr,
        /// The connection manager's number.
        reason: i32,
    },
    /// The destination's agent refused.
    #[error("{remote} refused the connection: {fault}")]
    Refused {
        remote: SocketAddr,
        #[source]
        fault: Fault,
    },
    /// The answer is no WELCOME, or of a version that was not offered.
    #[error("{remote} answered with something that is no welcome")]
    NoWelcome { remote: SocketAddr },
}

/// Connects, says HELLO, and returns the connection with the destination's WELCOME. The route's port is that of the
/// destination's RDMA listener.
pub fn connect(
    route: &Route,
    hello: &Hello,
    options: &RdmaOptions,
    domains: &Domains,
) -> Result<(Arc<Connection>, Welcome), ConnectError> {
    let remote = route.remote;
    let here = |source| ConnectError::Here { remote, source };
    let library = Library::get().map_err(|error| here(RdmaError::Library(error)))?;
    let events = EventChannel::new(library).map_err(here)?;
    let identifier = Identifier::new(library, &events).map_err(here)?;
    options.apply(&identifier).map_err(here)?;
    resolve(&identifier, &events, route, options)?;
    let connection = Connection::prepare(identifier, events, domains).map_err(here)?;
    let welcome = greet(&connection, hello, remote, options.step_wait())?;
    Ok((Arc::new(connection), welcome))
}

/// Finds the device and the way.
fn resolve(
    identifier: &Identifier,
    events: &EventChannel,
    route: &Route,
    options: &RdmaOptions,
) -> Result<(), ConnectError> {
    let remote = route.remote;
    let here = |source| ConnectError::Here { remote, source };
    let local = route.local.map(|ip| SocketAddr::new(ip, 0));
    let milliseconds = i32::try_from(options.step_wait().as_millis()).unwrap_or(i32::MAX);
    identifier.resolve_address(local, remote, milliseconds).map_err(|error| match error {
        RdmaError::Call { source, .. } => ConnectError::Address { remote, source },
        other => here(other),
    })?;
    // The kernel ends each step in time; the deadline is for a kernel that does not.
    let deadline = || Instant::now() + options.step_wait() + Duration::from_secs(1);
    let event = events.wait("the address", deadline()).map_err(here)?;
    expect(&event, RDMA_CM_EVENT_ADDR_RESOLVED, remote)?;
    identifier.resolve_route(milliseconds).map_err(here)?;
    let event = events.wait("the route", deadline()).map_err(here)?;
    expect(&event, RDMA_CM_EVENT_ROUTE_RESOLVED, remote)
}

fn greet(
    connection: &Connection,
    hello: &Hello,
    remote: SocketAddr,
    wait: Duration,
) -> Result<Welcome, ConnectError> {
    let here = |source| ConnectError::Here { remote, source };
    let request =
        hello.to_request().ok_or_else(|| here(RdmaError::Rules("only data channels go over RDMA")))?;
    let mut parameters = Connection::parameters(&request).map_err(here)?;
    let identifier = connection.identifier();
    connection.check_port().map_err(here)?;
    // SAFETY: the identifier's route is resolved and its queue pair made; the parameters and the request that they
    // point to are read during the call.
    let begun = unsafe { (identifier.library().cm.rdma_connect)(identifier.pointer(), &mut parameters) };
    check("connecting", begun).map_err(here)?;
    let event = connection.events().wait("the connection", Instant::now() + wait).map_err(here)?;
    expect(&event, RDMA_CM_EVENT_ESTABLISHED, remote)?;
    match greeting(&event.data) {
        Some(Frame::Welcome(welcome))
            if (hello.version_min..=hello.version_max).contains(&welcome.version) =>
        {
            Ok(welcome)
        }
        _ => Err(ConnectError::NoWelcome { remote }),
    }
}

/// The event that was waited for, or the sentence for what came instead.
fn expect(event: &Event, wanted: u32, remote: SocketAddr) -> Result<(), ConnectError> {
    let source = errno(event.status);
    match event.kind {
        kind if kind == wanted => Ok(()),
        RDMA_CM_EVENT_ADDR_ERROR | RDMA_CM_EVENT_ROUTE_ERROR => Err(ConnectError::Address { remote, source }),
        RDMA_CM_EVENT_REJECTED => Err(match greeting(&event.data) {
            Some(Frame::Refuse(fault)) => ConnectError::Refused { remote, fault },
            _ => ConnectError::Rejected { remote, reason: event.status },
        }),
        RDMA_CM_EVENT_UNREACHABLE => Err(ConnectError::Unreachable { remote, source }),
        _ => Err(ConnectError::Unreachable { remote, source }),
    }
}

/// The frame that an answer begins with. What is behind it is padding.
fn greeting(data: &[u8]) -> Option<Frame> {
    let (header, rest) = data.split_first_chunk::<HEADER_BYTES>()?;
    let header = Header::decode(header).ok()?;
    let body = rest.get(..usize::try_from(header.body_length).ok()?)?;
    Frame::decode(&header, body).ok()
}
