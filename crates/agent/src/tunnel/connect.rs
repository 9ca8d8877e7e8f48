//! Where streams go: sockets of this host that the operator allows.

use std::ffi::OsStr;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use linerate_api::TunnelAddress;
use linerate_core::stream::StreamId;
use linerate_net::stream::endpoint::Socket;
use linerate_trust::name::HostName;
use socket2::{Domain, SockAddr, Type};

use super::{Sessions, Tunnel};
use crate::faults::chain;
use crate::local::{CONNECT_WAIT, connect_in_folder, connect_unix};
use crate::security::PeerName;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
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
    #[error(
        "{address} at {host} is not granted to host {peer}: add it to `tunnel_targets` in {table} of agent.toml there"
    )]
    NotGranted { address: TunnelAddress, host: String, peer: HostName, table: String },
}

/// A stream that the peer asked for, and the service to connect it to.
pub(super) type Asked = (StreamId, String);

/// Connects the streams that are queued, one after the other, in a thread of its own: a hypervisor distinguishes its
/// connections by the order in which they are made. Ends with the last sender of the queue.
pub(super) fn start(sessions: Arc<Sessions>, tunnel: Arc<Tunnel>) -> io::Result<Sender<Asked>> {
    let (asked, queue) = channel::<Asked>();
    std::thread::Builder::new().name("tunnel-connect".into()).spawn(move || {
        for (stream, service) in queue {
            connect(&sessions, &tunnel, stream, service);
        }
    })?;
    Ok(asked)
}

fn connect(sessions: &Sessions, tunnel: &Tunnel, stream: StreamId, service: String) {
    match reach(sessions, &tunnel.opener, service) {
        Ok(socket) => {
            if let Err(error) = tunnel.stream_transport.streams.accept(stream, socket) {
                tracing::error!(stream, error = chain(&error), "a stream cannot be taken");
            }
        }
        Err(error) => {
            tracing::warn!(peer = %tunnel.peer, %error, "a stream is refused");
            tunnel.stream_transport.streams.refuse(stream, &error.to_string());
        }
    }
}

/// Whether a tunnel of that host's may reach a socket of this one.
pub(crate) fn may_reach(
    sessions: &Sessions,
    opener: &PeerName,
    service: String,
) -> Result<TunnelAddress, ConnectError> {
    let address: TunnelAddress =
        service.parse().map_err(|source| ConnectError::NoAddress { service, source })?;
    let host = sessions.config.name.clone();
    let targets = &sessions.config.tunnel_targets;
    if !targets.iter().any(|entry| entry.allows(&address)) {
        return Err(ConnectError::NotAllowed { address, host });
    }
    if let Some(granted) = sessions.security.grants(opener)
        && granted.grants.target(&address).is_err()
    {
        let (peer, table) = (granted.host.clone(), granted.table);
        return Err(ConnectError::NotGranted { address, host, peer, table });
    }
    Ok(address)
}

fn reach(sessions: &Sessions, opener: &PeerName, service: String) -> Result<Socket, ConnectError> {
    let address = may_reach(sessions, opener, service)?;
    let host = sessions.config.name.clone();
    open(sessions, &address, opener).map_err(|source| ConnectError::Connect { address, host, source })
}

/// By the names that all of its daemons give their sockets.
fn is_libvirts(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.ends_with("-sock"))
}

fn open(sessions: &Sessions, address: &TunnelAddress, opener: &PeerName) -> io::Result<Socket> {
    let address = match address {
        TunnelAddress::Unix(path) => {
            // A folder's files are made by others; what the operator names by itself may be a link.
            let named = sessions.config.tunnel_targets.contains(address);
            let connect = if named { connect_unix } else { connect_in_folder };
            let socket: UnixStream = connect(path, CONNECT_WAIT)?.into();
            return Socket::new(if is_libvirts(path) {
                sessions.arrivals.hold(socket, opener)?
            } else {
                socket
            });
        }
        TunnelAddress::Tcp(address) => *address,
    };
    let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.connect_timeout(&SockAddr::from(address), CONNECT_WAIT)?;
    Socket::new(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::tests::member;
    use crate::testing::{authority, secured};

    #[test]
    fn a_tunnel_reaches_what_is_granted_to_its_host_and_no_more() {
        let (dir, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut authority = authority(&dir.path().join("authority"));
        let policy =
            "[grants]\ntunnel_targets = [\"tcp:127.0.0.1:9\"]\n[hosts.other.grants]\ntunnel_targets = []\n";
        let own = member(&mut authority, &dir.path().join("own"), "own", policy);
        let agent = secured(&files, &[], own);
        let reached = |host: &str, port: u16| {
            let opener = Some(host.parse().unwrap());
            reach(&agent.tunnels, &opener, format!("tcp:127.0.0.1:{port}")).map(drop)
        };
        // It may be that something listens there.
        assert!(matches!(reached("one", 9), Ok(()) | Err(ConnectError::Connect { .. })));
        let refused = reached("other", 9).unwrap_err();
        assert!(matches!(refused, ConnectError::NotGranted { .. }), "{refused}");
        assert!(refused.to_string().contains("[peers.hosts.other.grants]"), "{refused}");
        assert!(matches!(reached("one", 10), Err(ConnectError::NotAllowed { .. })));
    }
}
