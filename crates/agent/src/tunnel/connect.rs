//! Where streams go: sockets of this host that the operator allows.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use linerate_api::TunnelAddress;
use linerate_core::stream::StreamId;
use linerate_net::stream::endpoint::Socket;
use socket2::{Domain, SockAddr, Type};

use super::Tunnel;
use crate::agent::Agent;
use crate::faults::chain;

/// A local service answers within this.
const CONNECT_WAIT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("{service}: {source}")]
    NoAddress {
        service: String,
        #[source]
        source: linerate_api::TunnelAddressError,
    },
    #[error("{address} is not in tunnel_targets of the agent at {host}; add it there and restart that agent")]
    NotAllowed { address: TunnelAddress, host: String },
    #[error("{address} at {host}: {source}")]
    Connect {
        address: TunnelAddress,
        host: String,
        #[source]
        source: io::Error,
    },
}

/// Connects a stream that the peer asked for, in a thread of its own.
pub(super) fn connect(agent: &Arc<Agent>, tunnel: &Arc<Tunnel>, stream: StreamId, service: String) {
    let (agent, session) = (agent.clone(), tunnel.clone());
    let connecting = move || match reach(&agent, service) {
        Ok(socket) => {
            if let Err(error) = session.streams.accept(stream, socket) {
                tracing::error!(stream, error = chain(&error), "a stream cannot be taken");
            }
        }
        Err(error) => {
            tracing::warn!(peer = %session.peer, %error, "a stream is refused");
            session.streams.refuse(stream, &error.to_string());
        }
    };
    if let Err(error) = std::thread::Builder::new().name(format!("connect-{stream}")).spawn(connecting) {
        tunnel.streams.refuse(stream, &format!("no thread to connect: {error}"));
    }
}

fn reach(agent: &Agent, service: String) -> Result<Socket, ConnectError> {
    let address: TunnelAddress =
        service.parse().map_err(|source| ConnectError::NoAddress { service, source })?;
    let host = agent.config.name.clone();
    if !agent.config.tunnel_targets.iter().any(|entry| entry.allows(&address)) {
        return Err(ConnectError::NotAllowed { address, host });
    }
    open(&address).map_err(|source| ConnectError::Connect { address, host, source })
}

fn open(address: &TunnelAddress) -> io::Result<Socket> {
    let (domain, to) = match address {
        TunnelAddress::Unix(path) => (Domain::UNIX, SockAddr::unix(path)?),
        TunnelAddress::Tcp(address) => (Domain::for_address(*address), SockAddr::from(*address)),
    };
    let socket = socket2::Socket::new(domain, Type::STREAM, None)?;
    socket.connect_timeout(&to, CONNECT_WAIT)?;
    Socket::new(socket)
}
