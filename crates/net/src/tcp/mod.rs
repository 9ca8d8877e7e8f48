//! The TCP transport: frames over one connection, payload straight from and to the region.
//!
//! * [`options`]: options of the sockets. * [`connect`]: the source's side of opening, [`listen`] the destination's.
//! * [`send`], [`receive`]: the two halves of a channel. * [`stats`]: what the kernel knows of a connection.
//!
//! All sockets are non-blocking, and every wait is a `poll` with a deadline.

mod acceptor;
pub mod connect;
pub mod exchange;
mod gate;
mod known;
pub mod listen;
pub mod options;
pub mod receive;
mod room;
pub mod send;
pub mod stats;

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_core::Run;
use rustix::net::Shutdown;
use rustls::pki_types::CertificateDer;

use crate::channel::{Closer, total};
use crate::region::Region;
use crate::socket::{self, Wait, is_transient};
use crate::tls::session::Session;
use crate::tls::{Tls, TlsError};

/// A connected, non-blocking stream socket, open as long as one of its clones lives. With TLS, what is sent and
/// received is the content of its records; the descriptor is for options and questions only.
#[derive(Clone, Debug)]
pub struct Stream {
    socket: Arc<OwnedFd>,
    tls: Option<Arc<Session>>,
    /// What its owner counts it by.
    counted: Option<Arc<dyn Any + Send + Sync>>,
}

impl Stream {
    /// Takes a connected stream socket and makes it non-blocking.
    pub fn new(socket: impl Into<OwnedFd>) -> io::Result<Stream> {
        let socket = socket.into();
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Stream { socket: Arc::new(socket), tls: None, counted: None })
    }

    /// Begins TLS as the side that connected. Nothing may have been sent or received.
    pub fn begin_tls(self, tls: &Tls, deadline: Instant) -> Result<Stream, TlsError> {
        let peer = socket2::SockRef::from(&self).peer_addr().ok().and_then(|address| address.as_socket());
        let session = Arc::new(Session::connect(tls, self.as_fd(), peer.map(|peer| peer.ip()), deadline)?);
        tls.connections().add(&self.socket, &session, true);
        Ok(Stream { tls: Some(session), ..self })
    }

    /// Begins TLS as the side that was connected to.
    pub fn accept_tls(self, tls: &Tls, deadline: Instant) -> Result<Stream, TlsError> {
        let session = Arc::new(Session::accept(tls, self.as_fd(), deadline)?);
        tls.connections().add(&self.socket, &session, false);
        Ok(Stream { tls: Some(session), ..self })
    }

    pub(crate) fn of_session(socket: Arc<OwnedFd>, session: Arc<Session>) -> Stream {
        Stream { socket, tls: Some(session), counted: None }
    }

    /// Keeps this as long as it, or a clone that is made from now on, lives.
    pub(crate) fn count_by(&mut self, counted: Arc<dyn Any + Send + Sync>) {
        self.counted = Some(counted);
    }

    /// Whether the bytes go through TLS.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// The chain that the peer proved itself with, in DER, its own certificate first. Empty without TLS.
    pub fn peer_certificates(&self) -> &[CertificateDer<'static>] {
        self.tls.as_ref().map_or(&[], |session| session.peer_certificates())
    }

    /// The cipher suite by its name in RFC 8446; `None` without TLS.
    pub fn cipher(&self) -> Option<&'static str> {
        self.tls.as_ref().map(|session| session.cipher())
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
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.send_now(rest) {
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(error) if is_transient(&error) => self.wait_until_writable(deadline)?,
                Err(error) => return Err(error),
            }
        }
        while !self.is_flushed(Wait::Never)? {
            self.wait_until_writable(deadline)?;
        }
        Ok(())
    }

    /// Fills the buffer before the deadline.
    pub fn receive_exact(&self, buffer: &mut [u8], deadline: Instant) -> io::Result<()> {
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.receive_now(rest) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => done += bytes,
                Err(error) if is_transient(&error) => {
                    socket::wait_until(deadline, |left| self.wait_readable(left))?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends what is taken now, and returns how much of the bytes is taken over. `WouldBlock` if nothing is. What is
    /// taken over may still be here: [`is_flushed`](Stream::is_flushed) sends it.
    pub(crate) fn send_now(&self, bytes: &[u8]) -> io::Result<usize> {
        self.send(bytes, Wait::Never)
    }

    /// The same, and waits as the socket is set to.
    pub(crate) fn send(&self, bytes: &[u8], wait: Wait) -> io::Result<usize> {
        match &self.tls {
            Some(session) => session.send(self.as_fd(), wait, bytes.len(), &mut |at, content| {
                let piece = bytes.get(at..).and_then(|rest| rest.get(..content.len()));
                content.copy_from_slice(piece.ok_or(io::ErrorKind::InvalidInput)?);
                Ok(())
            }),
            None => Ok(rustix::net::send(self, bytes, wait.sending())?),
        }
    }

    /// As [`send_now`](Stream::send_now), of `head` followed by the runs, of which `done` bytes (counted over both)
    /// have gone before.
    pub(crate) fn send_region(
        &self,
        region: &dyn Region,
        head: &[u8],
        runs: &[Run],
        done: usize,
    ) -> io::Result<usize> {
        match &self.tls {
            Some(session) => {
                let length = head.len() + usize::try_from(total(runs)).unwrap_or(usize::MAX);
                session.send(self.as_fd(), Wait::Never, length - done.min(length), &mut |at, content| {
                    gather(region, head, runs, done + at, content)
                })
            }
            None => region.send(self.as_fd(), head, runs, done),
        }
    }

    /// Whether all that was taken over is the kernel's. Sends what is left, as far as it goes now.
    pub(crate) fn is_flushed(&self, wait: Wait) -> io::Result<bool> {
        match self.tls.as_ref().map_or(Ok(()), |session| session.flush(self.as_fd(), wait)) {
            Err(error) if is_transient(&error) => Ok(false),
            flushed => flushed.map(|()| true),
        }
    }

    /// Receives what is there, at most the buffer. `WouldBlock` if nothing is, 0 at the end.
    pub(crate) fn receive_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(buffer, Wait::Never)
    }

    /// The same, and waits as the socket is set to.
    pub(crate) fn receive(&self, buffer: &mut [u8], wait: Wait) -> io::Result<usize> {
        match &self.tls {
            Some(session) => session.receive(self.as_fd(), wait, buffer.len(), &mut |at, content| {
                let place = buffer.get_mut(at..).and_then(|rest| rest.get_mut(..content.len()));
                place.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(content);
                Ok(())
            }),
            None => Ok(rustix::net::recv(self, buffer, wait.receiving())?.0),
        }
    }

    /// As [`receive_now`](Stream::receive_now), into the runs, of which `done` bytes have come before. With TLS only
    /// verified bytes reach them.
    pub(crate) fn receive_region(&self, region: &dyn Region, runs: &[Run], done: usize) -> io::Result<usize> {
        match &self.tls {
            Some(session) => {
                let length = usize::try_from(total(runs)).unwrap_or(usize::MAX);
                session.receive(self.as_fd(), Wait::Never, length - done.min(length), &mut |at, content| {
                    scatter(region, runs, done + at, content)
                })
            }
            None => region.receive(self.as_fd(), runs, done),
        }
    }

    /// Waits until something can be received. False when the time is over.
    pub(crate) fn wait_readable(&self, wait: Duration) -> io::Result<bool> {
        let ready = self.tls.as_ref().is_some_and(|session| session.is_readable());
        if ready { Ok(true) } else { socket::wait_readable(self.as_fd(), wait) }
    }

    /// Waits until something can be sent. False when the time is over.
    pub(crate) fn wait_writable(&self, wait: Duration) -> io::Result<bool> {
        socket::wait_writable(self.as_fd(), wait)
    }

    fn wait_until_writable(&self, deadline: Instant) -> io::Result<()> {
        socket::wait_until(deadline, |left| self.wait_writable(left))
    }

    pub(crate) fn shut(&self) {
        if let Some(session) = &self.tls {
            session.close(self.as_fd());
        }
        // It fails only if the connection has ended already.
        let _ = rustix::net::shutdown(self, Shutdown::Both);
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Fills `to` with what follows the first `at` bytes of `head` and the runs.
fn gather(region: &dyn Region, head: &[u8], runs: &[Run], mut at: usize, to: &mut [u8]) -> io::Result<()> {
    let front = head.get(at..).unwrap_or_default();
    let (first, mut to) = to.split_at_mut(front.len().min(to.len()));
    first.copy_from_slice(front.get(..first.len()).unwrap_or_default());
    at = (at + first.len()).saturating_sub(head.len());
    for run in runs_after(runs, at) {
        let bytes = usize::try_from(run.length).unwrap_or(usize::MAX).min(to.len());
        if bytes == 0 {
            break;
        }
        let (piece, rest) = to.split_at_mut(bytes);
        region.read(Run { length: bytes as u64, ..run }, piece)?;
        to = rest;
    }
    if to.is_empty() { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Puts `from` behind the first `at` bytes of the runs.
fn scatter(region: &dyn Region, runs: &[Run], at: usize, mut from: &[u8]) -> io::Result<()> {
    for run in runs_after(runs, at) {
        let bytes = usize::try_from(run.length).unwrap_or(usize::MAX).min(from.len());
        if bytes == 0 {
            break;
        }
        let (piece, rest) = from.split_at(bytes);
        region.write(Run { length: bytes as u64, ..run }, piece)?;
        from = rest;
    }
    if from.is_empty() { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// What is left of the runs when their first `at` bytes are gone.
fn runs_after(runs: &[Run], at: usize) -> impl Iterator<Item = Run> {
    let mut gone = at as u64;
    runs.iter().filter_map(move |run| {
        let skipped = gone.min(run.length);
        gone -= skipped;
        let rest = Run { offset: run.offset + skipped, length: run.length - skipped };
        (rest.length > 0).then_some(rest)
    })
}
