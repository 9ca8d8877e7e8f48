//! TLS on a connected socket, for a thread that reads and a thread that writes.
//!
//! Three locks, taken in this order: what came in (readers), what goes out (writers; it is the order of records on the
//! wire), and the connection's keys and counters. The last is held for one record at a time, so that a reader and a
//! writer hold each other up for no longer. No lock is held while waiting for the socket.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustls::pki_types::CertificateDer;

use super::connection::{Connection, RECORD_BYTES_MAX, Step};
use super::error::TlsError;
use super::incoming::Incoming;
use super::outgoing::Outgoing;
use super::{BATCH_BYTES, Tls, handshake};
use crate::socket::Wait;
use linerate_lock::Mutex;

/// A TLS connection over a socket; reading and writing go on at the same time.
pub(crate) struct Session {
    incoming: Mutex<Incoming>,
    outgoing: Mutex<Outgoing>,
    connection: Mutex<Connection>,
    closed_here: AtomicBool,
    peer_certificates: Vec<CertificateDer<'static>>,
    cipher: &'static str,
}

impl Session {
    /// The handshake of the side that connected.
    pub fn connect(
        tls: &Tls,
        socket: BorrowedFd<'_>,
        peer: Option<IpAddr>,
        deadline: Instant,
    ) -> Result<Session, TlsError> {
        let client = tls.client()?;
        let connection = Connection::client(client.clone(), super::peer_name(peer))?;
        Session::after(handshake::run(connection, socket, &client.alpn_protocols, deadline)?)
    }

    /// The handshake of the side that was connected to.
    pub fn accept(tls: &Tls, socket: BorrowedFd<'_>, deadline: Instant) -> Result<Session, TlsError> {
        let server = tls.server()?;
        let connection = Connection::server(server.clone())?;
        Session::after(handshake::run(connection, socket, &server.alpn_protocols, deadline)?)
    }

    fn after((connection, incoming): (Connection, Incoming)) -> Result<Session, TlsError> {
        let (peer_certificates, cipher) = (connection.peer_certificates(), connection.cipher());
        let outgoing = if connection.is_client() { Outgoing::unbounded() } else { Outgoing::bounded() };
        Ok(Session {
            incoming: Mutex::new(incoming),
            outgoing: Mutex::new(outgoing),
            connection: Mutex::new(connection),
            closed_here: AtomicBool::new(false),
            peer_certificates,
            cipher,
        })
    }

    pub fn peer_certificates(&self) -> &[CertificateDer<'static>] {
        &self.peer_certificates
    }

    pub fn cipher(&self) -> &'static str {
        self.cipher
    }

    /// Makes records of at most `length` bytes and gives the socket what it takes of them, in one system call if it
    /// takes all. Returns the bytes that are taken over; [`flush`](Session::flush) says when they are gone. `fill` is
    /// asked for the content of many records, which begins at a number of bytes. `WouldBlock` while records of before
    /// are left.
    pub fn send(
        &self,
        socket: BorrowedFd<'_>,
        wait: Wait,
        length: usize,
        fill: &mut dyn FnMut(usize, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<usize> {
        let mut outgoing = self.outgoing.lock();
        // No record is made while the socket does not take those of before.
        outgoing.flush(socket, wait)?;
        let (at_once, mut taken) = (outgoing.at_once(length), 0);
        while taken < at_once {
            let size = BATCH_BYTES.min(at_once - taken);
            match fill(taken, outgoing.content(size)) {
                // What was taken over before goes out; the next call finds the error again.
                Err(_) if taken > 0 => break,
                filled => filled?,
            }
            for start in (0..size).step_by(RECORD_BYTES_MAX) {
                let (content, room) = outgoing.record(start..size.min(start + RECORD_BYTES_MAX));
                let written = self.connection.lock().encrypt(content, room)?;
                outgoing.made(written);
            }
            taken += size;
        }
        match outgoing.flush(socket, wait) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// Gives the socket what is left. `WouldBlock` if it does not take all.
    pub fn flush(&self, socket: BorrowedFd<'_>, wait: Wait) -> io::Result<()> {
        self.outgoing.lock().flush(socket, wait)
    }

    /// Whether something can be received without the socket.
    pub fn is_readable(&self) -> bool {
        self.incoming.lock().is_ready()
    }

    /// Gives content of records that are verified to `take`, at most `length` bytes of it, and returns how many. `take`
    /// is called with the number of bytes before it, and with the content of many records at once where they are there.
    /// Ok(0) is the end that the peer has said. `WouldBlock` if no whole record is there.
    pub fn receive(
        &self,
        socket: BorrowedFd<'_>,
        wait: Wait,
        length: usize,
        take: &mut dyn FnMut(usize, &[u8]) -> io::Result<()>,
    ) -> io::Result<usize> {
        let mut incoming = self.incoming.lock();
        let mut done = 0;
        while done < length {
            let rest = length - done;
            self.read(&mut incoming, socket, rest.min(BATCH_BYTES));
            match incoming.left() {
                [] if done > 0 || incoming.ended => break,
                [] => {
                    if let Some(error) = &incoming.failed {
                        return Err(error.clone().into());
                    }
                    if !self.refill(&mut incoming, socket, wait)? {
                        break;
                    }
                }
                left => {
                    let bytes = left.len().min(rest);
                    match take(done, left.get(..bytes).unwrap_or_default()) {
                        // The next call finds the error again.
                        Err(_) if done > 0 => break,
                        taken => taken?,
                    }
                    incoming.take(bytes);
                    done += bytes;
                }
            }
        }
        Ok(done)
    }

    /// Reads records that are there until `enough` content is left to be taken. What was verified before a record that
    /// is damaged is left in front of the error, and nothing behind it is read.
    fn read(&self, incoming: &mut Incoming, socket: BorrowedFd<'_>, enough: usize) {
        while incoming.left().len() < enough && incoming.has_record() {
            let (records, content) = incoming.parts();
            let (discard, step) =
                self.connection.lock().read(records, &mut |piece| content.extend_from_slice(piece));
            incoming.discard(discard);
            match step {
                Ok(Step::PeerClosed) => incoming.ended = true,
                Ok(_) => {}
                Err(error) => {
                    self.send_alert(socket);
                    incoming.failed = Some(error);
                }
            }
        }
    }

    /// False at the end of the stream, if it is this side that ended it.
    fn refill(&self, incoming: &mut Incoming, socket: BorrowedFd<'_>, wait: Wait) -> io::Result<bool> {
        match incoming.receive(socket, usize::MAX, wait)? {
            0 if self.closed_here.load(Ordering::SeqCst) => Ok(false),
            0 => {
                incoming.failed = Some(TlsError::Truncated);
                Ok(true)
            }
            _ => Ok(true),
        }
    }

    /// Sends the peer the reason why reading ended, if the socket takes it at once.
    fn send_alert(&self, socket: BorrowedFd<'_>) {
        let mut outgoing = self.outgoing.lock();
        let alert = self.connection.lock().take_ready();
        outgoing.append(&alert);
        // The connection is over in either case.
        let _ = outgoing.flush(socket, Wait::Never);
    }

    /// Says that nothing more comes from here, without waiting: a writer in the middle of a record keeps the connection
    /// from ending well.
    pub fn close(&self, socket: BorrowedFd<'_>) {
        self.closed_here.store(true, Ordering::SeqCst);
        let Some(mut outgoing) = self.outgoing.try_lock() else { return };
        let (_, room) = outgoing.record(0..0);
        if let Ok(bytes) = self.connection.lock().close_notify(room) {
            outgoing.made(bytes);
            let _ = outgoing.flush(socket, Wait::Never);
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("cipher", &self.cipher).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::time::Duration;

    use rustls::crypto::aws_lc_rs;
    use rustls::pki_types::PrivateKeyDer;
    use rustls::{ClientConfig, RootCertStore, ServerConfig};

    use super::*;
    use crate::tls::large::{LARGE_MAX, Large};
    use crate::tls::outgoing::LARGE;

    /// Only a hang meets it.
    const LONG: Duration = Duration::from_secs(60);
    /// What is sent at a time.
    const BYTES: usize = 1 << 20;

    /// One end of a connection, and its socket.
    type End = (Session, UnixStream);

    /// Of a host that trusts itself.
    fn tls() -> Tls {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let client = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        Tls::new(client, server)
    }

    /// The end that opened a connection, and the end that took it.
    fn pair(tls: &Tls) -> (End, End) {
        let (near, far) = UnixStream::pair().unwrap();
        for socket in [&near, &far] {
            socket2::SockRef::from(socket).set_send_buffer_size(64 << 10).unwrap();
        }
        let (address, deadline) = (Some(Ipv4Addr::LOCALHOST.into()), Instant::now() + LONG);
        let (opened, taken) = std::thread::scope(|scope| {
            let taking = scope.spawn(|| Session::accept(tls, far.as_fd(), deadline).unwrap());
            let opened = Session::connect(tls, near.as_fd(), address, deadline).unwrap();
            (opened, taking.join().unwrap())
        });
        ((opened, near), (taken, far))
    }

    /// Sends more than the socket takes while nobody reads. The bytes that were taken over, and those of buffers.
    fn fill((session, socket): &End) -> (usize, usize) {
        let (mut taken, mut waits) = (0, 0);
        for _ in 0..64 {
            let sent = session.send(socket.as_fd(), Wait::Never, BYTES, &mut |_, content| {
                content.fill(0x55);
                Ok(())
            });
            match sent {
                Ok(bytes) => taken += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => waits += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(waits > 32, "the writer waits for the reader: {waits} times, after {taken} bytes");
        (taken, session.outgoing.lock().held())
    }

    /// Reads what the writer was taken over, which sends what it still has meanwhile.
    fn drain((reader, from): &End, (writer, socket): &End, bytes: usize) {
        let (mut left, end) = (bytes, Instant::now() + LONG);
        while left > 0 {
            assert!(Instant::now() < end, "{left} bytes do not come");
            let received = reader.receive(from.as_fd(), Wait::Never, left, &mut |_, content| {
                assert!(content.iter().all(|byte| *byte == 0x55));
                Ok(())
            });
            match received {
                Ok(bytes) => left -= bytes,
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
                    // `WouldBlock` while something is left.
                    let _ = writer.flush(socket.as_fd(), Wait::Never);
                }
            }
        }
    }

    #[test]
    fn a_reader_that_stalls_makes_the_writer_wait_and_hold_no_more_memory() {
        let tls = tls();
        // No other test of this process sends over TLS. Other connections have all large buffers but one.
        let _others: Vec<Large> = (1..LARGE_MAX).map(|_| Large::take(&LARGE).unwrap()).collect();
        let ((_, _reader), first) = pair(&tls);
        let (opened_here, second) = pair(&tls);
        let (_, large) = fill(&first);
        assert!((256 << 10..=390 << 10).contains(&large), "{large} bytes");
        let (taken, small) = fill(&second);
        assert!(small <= 33 << 10, "{small} bytes");
        // This host decides how many it opens: no others keep them small.
        let (_, own) = fill(&opened_here);
        assert!((256 << 10..=390 << 10).contains(&own), "{own} bytes");
        drain(&opened_here, &second, taken);
        drop(first);
        let (more, held) = fill(&second);
        assert!(more > 0 && held > small, "it goes on, now with the large buffer: {held} bytes");
    }
}
