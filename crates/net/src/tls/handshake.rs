//! The handshake: bounded in time and bytes, whatever the peer does.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use super::connection::{Connection, Step};
use super::error::TlsError;
use super::incoming::{FIRST_BYTES, Incoming};
use crate::socket::{Wait, is_transient, send_all, wait_readable};

/// Far more than a chain of several certificates needs. The first buffer holds it: a handshake makes none grow.
const BYTES_MAX: usize = 32 << 10;
const _: () = assert!(BYTES_MAX < FIRST_BYTES);
/// Content types of TLS records: change_cipher_spec, alert, handshake, application_data (RFC 8446, 5.1).
const CONTENT_TYPES: std::ops::RangeInclusive<u8> = 20..=23;
/// The alert `unexpected_message` (RFC 8446, 6), so that a peer that speaks plain text sees who answers.
const UNEXPECTED_MESSAGE: [u8; 7] = [21, 3, 3, 0, 2, 2, 10];

/// Does the handshake before the deadline. What the peer sent behind it is in the second.
pub(super) fn run(
    mut connection: Connection,
    socket: BorrowedFd<'_>,
    alpn: &[Vec<u8>],
    deadline: Instant,
) -> Result<(Connection, Incoming), TlsError> {
    let mut handshake =
        Handshake { socket, incoming: Incoming::new(), received: 0, deadline, begun: Instant::now() };
    handshake.run(&mut connection)?;
    if !connection.is_tls13() {
        return Err(TlsError::Protocol(rustls::Error::General("only TLS 1.3 is spoken".into())));
    }
    if !alpn.is_empty() && connection.alpn().is_none() {
        return Err(TlsError::Alpn);
    }
    Ok((connection, handshake.incoming))
}

struct Handshake<'a> {
    socket: BorrowedFd<'a>,
    incoming: Incoming,
    received: usize,
    deadline: Instant,
    begun: Instant,
}

impl Handshake<'_> {
    fn run(&mut self, connection: &mut Connection) -> Result<(), TlsError> {
        loop {
            let (records, content) = self.incoming.parts();
            let (discard, step) = connection.read(records, &mut |early| content.extend_from_slice(early));
            self.incoming.discard(discard);
            match step {
                Err(error) => {
                    self.say_why(&connection.take_ready());
                    return Err(error);
                }
                Ok(step) => {
                    self.send(&connection.take_ready())?;
                    match step {
                        Step::Ready if !connection.is_handshaking() => return Ok(()),
                        Step::Ready | Step::NeedsInput => self.receive(connection.is_client())?,
                        Step::PeerClosed => return Err(TlsError::ClosedInHandshake),
                        Step::Again | Step::Wrote(_) => {}
                    }
                }
            }
        }
    }

    fn send(&self, records: &[u8]) -> Result<(), TlsError> {
        send_all(self.socket, records, self.deadline).map_err(|error| match error.kind() {
            std::io::ErrorKind::TimedOut => self.late(),
            _ => TlsError::socket(error),
        })
    }

    /// An alert is for people who look for the reason: it goes if it can go at once.
    fn say_why(&self, alert: &[u8]) {
        let _ = rustix::net::send(self.socket, alert, Wait::Never.sending());
    }

    fn receive(&mut self, is_client: bool) -> Result<(), TlsError> {
        if self.received >= BYTES_MAX {
            return Err(TlsError::TooLong { bytes: self.received });
        }
        let limit = BYTES_MAX - self.received;
        loop {
            match self.incoming.receive(self.socket, limit, Wait::Never) {
                Ok(0) => return Err(TlsError::ClosedInHandshake),
                Ok(bytes) => {
                    let before = self.received;
                    self.received += bytes;
                    return if before == 0 { self.check_first(is_client) } else { Ok(()) };
                }
                Err(error) if is_transient(&error) => self.wait()?,
                Err(error) => return Err(TlsError::socket(error)),
            }
        }
    }

    fn wait(&self) -> Result<(), TlsError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || !wait_readable(self.socket, left).map_err(TlsError::socket)? {
            return Err(self.late());
        }
        Ok(())
    }

    fn late(&self) -> TlsError {
        TlsError::Timeout { allowed: self.deadline.saturating_duration_since(self.begun) }
    }

    fn check_first(&self, is_client: bool) -> Result<(), TlsError> {
        if self.incoming.first_byte().is_none_or(|first| CONTENT_TYPES.contains(&first)) {
            return Ok(());
        }
        if is_client {
            return Err(TlsError::PeerExpectsPlain);
        }
        self.say_why(&UNEXPECTED_MESSAGE);
        Err(TlsError::PeerSpokePlain)
    }
}
