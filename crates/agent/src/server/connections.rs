//! The socket of the local API. Users other than root have a bounded number of connections, so that none of them uses
//! up the agent's descriptors. A few of their requests are worked on at a time: none of them uses up threads, the
//! monitors of guests, or the answers of other hosts.

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
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections at a time of one user that is not root.
pub(super) const OF_ONE_USER: usize = 64;
/// Connections at a time of all such users: one user may have many numbers by its namespaces.
const OF_ALL_USERS: usize = 1024;
/// Requests of one user that is not root that are worked on at a time; its others wait. As many more may look at what
/// goes on, or end it.
pub(super) const TURNS: usize = 8;
/// After an error of the system, out of descriptors most likely.
const PAUSE: Duration = Duration::from_millis(100);

/// Users that have a connection or a request now, by number. Root is not among them.
type Open = Arc<Mutex<HashMap<u32, User>>>;

#[derive(Debug)]
struct User {
    /// Its connections that are open, or have a request that is worked on.
    connections: usize,
    turns: Turns,
}

impl Default for User {
    fn default() -> User {
        let turns = || Arc::new(Semaphore::new(TURNS));
        User { connections: 0, turns: Turns { most: turns(), urgent: turns() } }
    }
}

/// The turns of one user. Whoever watches, cancels or decides does not wait for what takes minutes.
#[derive(Clone, Debug)]
struct Turns {
    most: Arc<Semaphore>,
    urgent: Arc<Semaphore>,
}

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

/// A connection of a user.
pub(super) struct Connection {
    stream: UnixStream,
    place: Place,
}

/// What a connection takes of its user's share, until the last clone is dropped. Root's takes nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Place(Option<Arc<Counted>>);

#[derive(Debug)]
struct Counted {
    uid: u32,
    open: Open,
    turns: Turns,
}

/// One of the user's requests is worked on until this is dropped, also when its client has gone: its connection counts
/// as long.
pub(super) struct Turn {
    _permit: Option<OwnedSemaphorePermit>,
    _place: Place,
}

impl Place {
    /// Waits until fewer than [`TURNS`] requests of the user are worked on, of the urgent ones or of the others.
    pub async fn turn(&self, is_urgent: bool) -> Turn {
        let permit = match self.0.as_deref() {
            // An error means that the semaphore was closed, which nobody does.
            Some(Counted { turns: Turns { most, urgent }, .. }) => {
                let turns = if is_urgent { urgent } else { most };
                turns.clone().acquire_owned().await.ok()
            }
            None => None,
        };
        Turn { _permit: permit, _place: self.clone() }
    }
}

impl Connection {
    /// None if its user has too many. The connection is closed then.
    fn counted(stream: UnixStream, open: &Open) -> Option<Connection> {
        // Who it is cannot be found out: everybody has to share one number.
        let uid = stream.peer_cred().map_or(u32::MAX, |one| one.uid());
        if uid == 0 || uid == rustix::process::geteuid().as_raw() {
            return Some(Connection { stream, place: Place::default() });
        }
        let mut users = open.lock();
        let all: usize = users.values().map(|user| user.connections).sum();
        let own = users.entry(uid).or_default();
        if own.connections >= OF_ONE_USER || all >= OF_ALL_USERS {
            if own.connections == 0 {
                users.remove(&uid);
            }
            return None;
        }
        own.connections += 1;
        let counted = Counted { uid, open: open.clone(), turns: own.turns.clone() };
        Some(Connection { stream, place: Place(Some(Arc::new(counted))) })
    }

    pub fn place(&self) -> Place {
        self.place.clone()
    }

    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut users = self.open.lock();
        let left = users.get(&self.uid).map_or(0, |user| user.connections.saturating_sub(1));
        if left == 0 {
            users.remove(&self.uid);
        } else if let Some(user) = users.get_mut(&self.uid) {
            user.connections = left;
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
