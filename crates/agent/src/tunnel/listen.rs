//! Where streams come from: sockets that this host listens on.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use linerate_api::{TunnelAddress, TunnelEvent, TunnelPair};
use linerate_net::stream::endpoint::Socket;
use linerate_net::stream::session::AttachError;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use super::{Sessions, Tunnel, stale};
use crate::faults::chain;
use crate::stream_gate::{Connect, LibvirtJob, StreamGate};

/// Out of descriptors, most likely: the connection stays in the queue, so do not spin.
const ACCEPT_AGAIN: Duration = Duration::from_millis(20);

/// A socket cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub(super) struct ListenError {
    address: TunnelAddress,
    #[source]
    source: io::Error,
}

/// Why a local connection did not become a stream.
#[derive(Debug, thiserror::Error)]
enum SocketNotTaken {
    #[error(transparent)]
    Socket(#[from] io::Error),
    #[error(transparent)]
    Stream(#[from] AttachError),
}

enum Listener {
    Tcp(TcpListener),
    /// Removed from the file system when it is dropped.
    Unix(UnixListener, PathBuf),
}

impl Listener {
    fn open(address: &TunnelAddress) -> io::Result<Listener> {
        let listener = match address {
            TunnelAddress::Tcp(address) => Listener::Tcp(TcpListener::bind(address)?),
            TunnelAddress::Unix(path) => {
                // Anything else in that place is left alone, and binding fails.
                stale::clear(path)?;
                let listener = UnixListener::bind(path)?;
                let listener = Listener::Unix(listener, path.clone());
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
                listener
            }
        };
        rustix::io::ioctl_fionbio(listener.as_fd(), true)?;
        Ok(listener)
    }

    fn address(&self) -> io::Result<TunnelAddress> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().map(TunnelAddress::Tcp),
            Listener::Unix(_, path) => Ok(TunnelAddress::Unix(path.clone())),
        }
    }

    fn accept(&self) -> io::Result<OwnedFd> {
        match self {
            Listener::Tcp(listener) => listener.accept().map(|(socket, _)| socket.into()),
            Listener::Unix(listener, _) => listener.accept().map(|(socket, _)| socket.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener, _) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Listens until it is dropped.
pub(super) struct Listeners {
    listeners: Vec<(Listener, TunnelPair)>,
}

impl Listeners {
    /// Listens on all of them or fails.
    pub fn open(pairs: &[TunnelPair]) -> Result<Listeners, ListenError> {
        let open = |pair: &TunnelPair| {
            Listener::open(&pair.listen)
                .map(|listener| (listener, pair.clone()))
                .map_err(|source| ListenError { address: pair.listen.clone(), source })
        };
        let listeners = pairs.iter().filter(|pair| !pair.waits && !pair.drives).map(open);
        Ok(Listeners { listeners: listeners.collect::<Result<_, _>>()? })
    }

    /// With the ports that the system chose.
    pub fn addresses(&self) -> Vec<TunnelAddress> {
        let address = |(listener, pair): &(Listener, TunnelPair)| {
            listener.address().unwrap_or_else(|_| pair.listen.clone())
        };
        self.listeners.iter().map(address).collect()
    }

    /// Makes a stream of each connection, in a thread of its own, until the returned handle is dropped.
    pub fn start(self, tunnel: Arc<Tunnel>) -> io::Result<Accepting> {
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)?;
        let thread = std::thread::Builder::new()
            .name("tunnel-accept".into())
            .spawn(move || while self.turn(&stopped, &tunnel) {})?;
        Ok(Accepting { stop: Some(stop), thread: Some(thread) })
    }

    /// False when it shall end.
    fn turn(&self, stopped: &OwnedFd, tunnel: &Tunnel) -> bool {
        let mut fds = vec![PollFd::new(stopped, PollFlags::IN)];
        fds.extend(self.listeners.iter().map(|(listener, _)| PollFd::new(listener, PollFlags::IN)));
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return true,
            Err(_) => return false,
        }
        let Some((stop, rest)) = fds.split_first() else { return false };
        if !stop.revents().is_empty() {
            return false;
        }
        let ready = self.listeners.iter().zip(rest).filter(|(_, fd)| !fd.revents().is_empty());
        // In the order of the list, one of each: streams are opened in the order of their connections.
        for ((listener, pair), _) in ready {
            match listener.accept() {
                Ok(socket) => take(tunnel, socket, pair),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    std::thread::sleep(ACCEPT_AGAIN);
                }
            }
        }
        true
    }
}

fn take(tunnel: &Tunnel, socket: OwnedFd, pair: &TunnelPair) {
    if let Err(error) = tunnel.open(&pair.connect, socket) {
        let reason = chain(&error);
        tracing::warn!(listen = %pair.listen, reason, "a connection was not taken");
        tunnel.publish(TunnelEvent::Refused { reason });
    }
}

impl Tunnel {
    /// Opens those pairs whose connections wait.
    pub(super) fn open_gates(
        self: &Arc<Tunnel>,
        sessions: &Sessions,
        pairs: &[TunnelPair],
    ) -> Result<(), ListenError> {
        for pair in pairs.iter().filter(|pair| pair.waits || pair.drives) {
            let (tunnel, to) = (self.clone(), pair.connect.clone());
            let failed = |source| ListenError { address: pair.listen.clone(), source };
            let TunnelAddress::Unix(path) = &pair.listen else {
                return Err(failed(io::Error::other("only connections to a UNIX socket can wait")));
            };
            let connect: Connect = Box::new(move |socket| Ok(tunnel.open(&to, socket)?));
            if pair.drives {
                let gate = Arc::new(LibvirtJob::new(path, connect).map_err(failed)?);
                sessions.gates.add_job(gate.clone());
                self.jobs.lock().push(gate);
            } else {
                let gate = Arc::new(StreamGate::new(path, connect).map_err(failed)?);
                sessions.gates.add(gate.clone());
                self.gates.lock().push(gate);
            }
            if self.is_over() {
                // It ended before it knew of this one.
                self.close_gates(sessions, "its other end is closed");
            }
        }
        Ok(())
    }

    /// The tunnel is over.
    pub(super) fn close_gates(&self, sessions: &Sessions, why: &str) {
        let gates = std::mem::take(&mut *self.gates.lock());
        for gate in gates {
            gate.close(&format!("the tunnel ended: {why}"));
            sessions.gates.forget(&gate);
        }
        let jobs = std::mem::take(&mut *self.jobs.lock());
        for gate in jobs {
            gate.close(&format!("the tunnel ended: {why}"));
            sessions.gates.forget_job(&gate);
        }
    }

    /// If it cannot be opened, the socket is reset.
    fn open(&self, to: &TunnelAddress, socket: impl Into<OwnedFd>) -> Result<(), SocketNotTaken> {
        self.stream_transport.streams.open(&to.to_string(), Socket::new(socket)?)?;
        Ok(())
    }
}

/// Accepts until it is dropped.
pub(super) struct Accepting {
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is behind the tunnel may take whoever connects for a user with rights.
    #[test]
    fn nobody_but_the_agents_user_connects_to_a_socket_of_a_tunnel() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let listener = Listener::open(&TunnelAddress::Unix(path.clone())).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(listener);
        assert!(!path.exists());
    }
}
