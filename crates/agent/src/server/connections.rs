//! The socket of the local API. Users other than root have a bounded number of connections, so that none of them uses
//! up the agent's descriptors.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use linerate_lock::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};

/// Connections at a time of one user that is not root.
pub(super) const OF_ONE_USER: usize = 64;
/// Connections at a time of all such users: one user may have many numbers by its namespaces.
const OF_ALL_USERS: usize = 1024;
/// After an error of the system, out of descriptors most likely.
const PAUSE: Duration = Duration::from_millis(100);

/// Connections that are open now, by user number. Root's are not counted.
type Open = Arc<Mutex<HashMap<u32, usize>>>;

/// How many connections each user has open, and all users together.
pub(super) struct Connections {
    listener: UnixListener,
    open: Open,
}

impl Connections {
    pub fn new(listener: UnixListener) -> Connections {
        Connections { listener, open: Open::default() }
    }
}

impl Listener for Connections {
    type Io = Connection;
    type Addr = ();

    async fn accept(&mut self) -> (Connection, ()) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    if let Some(connection) = Connection::counted(stream, &self.open) {
                        return (connection, ());
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection to the local API was not taken");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection of a user, which has room for one more when it is dropped.
pub(super) struct Connection {
    stream: UnixStream,
    counted: Option<(u32, Open)>,
}

impl Connection {
    /// None if its user has too many. The connection is closed then.
    fn counted(stream: UnixStream, open: &Open) -> Option<Connection> {
        // Who it is cannot be found out: everybody has to share one number.
        let uid = stream.peer_cred().map_or(u32::MAX, |one| one.uid());
        if uid == 0 || uid == rustix::process::geteuid().as_raw() {
            return Some(Connection { stream, counted: None });
        }
        let mut users = open.lock();
        let all: usize = users.values().sum();
        let own = users.entry(uid).or_default();
        if *own >= OF_ONE_USER || all >= OF_ALL_USERS {
            if *own == 0 {
                users.remove(&uid);
            }
            return None;
        }
        *own += 1;
        Some(Connection { stream, counted: Some((uid, open.clone())) })
    }

    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Some((uid, open)) = &self.counted else { return };
        let mut users = open.lock();
        let left = users.get(uid).map_or(0, |count| count.saturating_sub(1));
        if left == 0 {
            users.remove(uid);
        } else {
            users.insert(*uid, left);
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
