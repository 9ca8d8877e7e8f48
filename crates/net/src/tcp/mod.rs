//! The TCP carrier: frames over one connection, payload straight from and to the region.
//!
//! * [`options`]: what the sockets are told. * [`connect`]: the source's side of opening, [`listen`] the destination's.
//! * [`send`], [`receive`]: the two halves of a channel. * [`stats`]: what the kernel knows of a connection.
//!
//! All sockets are non-blocking, and every wait is a `poll` with a deadline.

pub mod connect;
pub mod exchange;
pub mod listen;
pub mod options;
pub mod receive;
pub mod send;
pub mod stats;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::net::Shutdown;

use crate::channel::Closer;

/// A connected, non-blocking stream socket, open as long as one of its clones lives.
#[derive(Clone, Debug)]
pub struct Stream(Arc<OwnedFd>);

impl Stream {
    /// Takes a connected stream socket and makes it non-blocking.
    pub fn new(socket: impl Into<OwnedFd>) -> io::Result<Stream> {
        let socket = socket.into();
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Stream(Arc::new(socket)))
    }

    /// Address of this end; `None` if it is not connected over IP.
    pub fn own_address(&self) -> Option<std::net::SocketAddr> {
        socket2::SockRef::from(self).local_addr().ok()?.as_socket()
    }

    /// Ends the connection in both directions.
    pub fn closer(&self) -> Closer {
        let stream = self.clone();
        Closer::new(move || stream.shut())
    }

    /// Sends all before the deadline.
    pub fn send_all(&self, bytes: &[u8], deadline: Instant) -> io::Result<()> {
        crate::socket::send_all(self.as_fd(), bytes, deadline)
    }

    /// Fills the buffer before the deadline.
    pub fn receive_exact(&self, buffer: &mut [u8], deadline: Instant) -> io::Result<()> {
        crate::socket::receive_exact(self.as_fd(), buffer, deadline)
    }

    pub(crate) fn shut(&self) {
        // It fails only if the connection has ended already.
        let _ = rustix::net::shutdown(self, Shutdown::Both);
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
