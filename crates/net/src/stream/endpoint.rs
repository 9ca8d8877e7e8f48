//! The local end of a stream: one thread receives the socket into a ring, another writes the other ring out.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use linerate_core::stream::{Readable, SendSpace, StreamId};
use rustix::net::{AddressFamily, Shutdown};
use socket2::SockRef;

use super::rings::Ring;
use super::session::{Local, StreamSession};
use crate::socket::{is_transient, receive_now, wait_readable, wait_writable};
use crate::tcp::Stream;

/// Most bytes received at a time, so that channels begin while more comes.
const RECEIVE_BYTES_MAX: u64 = 512 << 10;
/// More than a UNIX socket holds unread.
const DISCARD_BYTES_MAX: usize = 16 << 20;
/// Local sockets may be idle for ever; ending a stream wakes its threads through the socket.
const FOR_EVER: Duration = Duration::from_secs(86_400);

/// A connected local socket, UNIX or TCP.
#[derive(Debug)]
pub struct Socket {
    stream: Stream,
    is_tcp: bool,
    /// Bytes that came from it, if the caller counts them.
    received: Option<Arc<AtomicU64>>,
}

impl Socket {
    /// Takes a connected stream socket.
    pub fn new(socket: impl Into<OwnedFd>) -> io::Result<Socket> {
        let socket = socket.into();
        let family = rustix::net::getsockname(&socket)?.address_family();
        let is_tcp = family == AddressFamily::INET || family == AddressFamily::INET6;
        if is_tcp {
            // What was written at the other host's end is written here as it comes.
            SockRef::from(&socket).set_tcp_nodelay(true)?;
        }
        Ok(Socket { stream: Stream::new(socket)?, is_tcp, received: None })
    }

    /// Adds what comes from it to a count.
    pub fn counted(mut self, received: Arc<AtomicU64>) -> Socket {
        self.received = Some(received);
        self
    }

    /// Resets it: the other end sees an error, where the kind of socket has one, and not an end.
    pub fn abort(&self) {
        // Dissolving a TCP association sends a reset at once, even if other processes hold the descriptor. UNIX sockets
        // have none.
        if !self.is_tcp || rustix::net::connect_unspec(&self.stream).is_err() {
            self.stream.shut();
        }
    }

    /// Ends reading; wakes the threads that wait for it.
    pub fn stop_reading(&self) {
        // It fails only if the connection has ended already.
        let _ = rustix::net::shutdown(&self.stream, Shutdown::Read);
    }

    /// Throws away what was received and will not be read. A UNIX socket that is closed with bytes unread resets the
    /// other direction too, which may have an end of its own.
    fn discard(&self) {
        let mut scratch = [0; 16 << 10];
        for _ in 0..DISCARD_BYTES_MAX / scratch.len() {
            match receive_now(self.fd(), &mut scratch) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    /// Says the end of the stream.
    fn end(&self) {
        let _ = rustix::net::shutdown(&self.stream, Shutdown::Write);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Moves bytes both ways until both directions have ended.
pub(super) fn serve(
    session: &StreamSession,
    stream: StreamId,
    local: &Local,
    sending: &Ring,
    receiving: &Ring,
) {
    std::thread::scope(|scope| {
        let reader = std::thread::Builder::new().name(format!("stream-{stream}-in"));
        if let Err(error) = reader.spawn_scoped(scope, || read(session, stream, local, sending)) {
            tracing::error!(%error, stream, "cannot start a thread for a stream");
            session.update(|streams| streams.reset_locally(stream));
        }
        write(session, stream, local, receiving);
    });
}

fn read(session: &StreamSession, stream: StreamId, local: &Local, ring: &Ring) {
    while let SendSpace::Space { position, bytes } = session.wait_space(stream, local) {
        match ring.fill(local.socket.fd(), position, bytes.min(RECEIVE_BYTES_MAX)) {
            Ok(0) => session.update(|streams| streams.ended(stream)),
            Ok(bytes) => {
                if let Some(received) = &local.socket.received {
                    received.fetch_add(bytes as u64, Ordering::Relaxed);
                }
                session.update(|streams| streams.produced(stream, bytes as u64));
            }
            Err(error) if is_transient(&error) => {
                let _ = wait_readable(local.socket.fd(), FOR_EVER);
            }
            Err(error) => {
                tracing::debug!(%error, stream, "a local socket was reset");
                // An error of a socket ends both its directions.
                session.update(|streams| {
                    streams.reset_locally(stream);
                    streams.finished(stream);
                });
                local.socket.abort();
            }
        }
    }
    local.socket.discard();
}

fn write(session: &StreamSession, stream: StreamId, local: &Local, ring: &Ring) {
    loop {
        match session.wait_readable(stream, local) {
            Readable::Bytes { position, bytes } => match ring.drain(local.socket.fd(), position, bytes) {
                Ok(bytes) => session.update(|streams| streams.consumed(stream, bytes as u64)),
                Err(error) if is_transient(&error) => {
                    let _ = wait_writable(local.socket.fd(), FOR_EVER);
                }
                Err(error) => {
                    tracing::debug!(%error, stream, "a local socket takes no more");
                    session.update(|streams| streams.finished(stream));
                }
            },
            Readable::End => {
                local.socket.end();
                session.update(|streams| streams.finished(stream));
            }
            Readable::Reset => {
                local.socket.abort();
                session.update(|streams| {
                    streams.finished(stream);
                    streams.reset_locally(stream);
                });
            }
            Readable::Wait => {}
            Readable::Done => return,
        }
    }
}
