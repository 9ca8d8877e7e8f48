//! One TLS connection without a socket: `rustls` by its unbuffered interface, client or server.
//!
//! Two habits of `rustls` are fenced in here, because it panics otherwise, and a panic ends the agent:
//!
//! * after an error the connection is never advanced again, but for the alert that it has ready;
//! * between two calls it never keeps a part of a handshake message, which it would look for in the next call's buffer.

use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{ClientConfig, CommonState, ProtocolVersion, ServerConfig};

use super::error::TlsError;

/// Content type, version and length in front of a record.
const RECORD_HEADER_BYTES: usize = 5;
/// Plain bytes in a record (RFC 8446, 5.1).
pub(super) const RECORD_BYTES_MAX: usize = 16 << 10;
/// Bytes of a record on the wire at most: header, content, and 256 for content type, padding and tag (RFC 8446, 5.2).
pub(super) const WIRE_RECORD_BYTES_MAX: usize = RECORD_HEADER_BYTES + RECORD_BYTES_MAX + 256;
/// What a record needs beyond its content, with key updates in front of it. An alert needs no more.
pub(super) const RECORD_SPARE_BYTES: usize = 512;
/// Calls for an alert: one for it, and one for a key update that waited before it. More are a defect.
const ALERT_CALLS_MAX: usize = 4;

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Something was done; call again.
    Again,
    /// Nothing more can be done without more input.
    NeedsInput,
    /// The same, and application data may be sent.
    Ready,
    /// The request is done; the number of bytes that were written.
    Wrote(usize),
    /// The peer has said that nothing more comes.
    PeerClosed,
}

/// What is written where application data may be sent.
#[derive(Clone, Copy)]
enum Wish<'a> {
    Nothing,
    Encrypt(&'a [u8]),
    Close,
}

enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// One end of a TLS connection: handshake, keys and records, without a socket.
pub(super) struct Connection {
    side: Side,
    /// Records of the handshake and alerts that are not sent yet. After the handshake only an error makes any.
    ready: Vec<u8>,
    failed: Option<TlsError>,
    closed_here: bool,
}

impl Connection {
    pub fn client(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Connection, TlsError> {
        let side = UnbufferedClientConnection::new(config, name).map_err(TlsError::Protocol)?;
        Ok(Connection::new(Side::Client(side)))
    }

    pub fn server(config: Arc<ServerConfig>) -> Result<Connection, TlsError> {
        let side = UnbufferedServerConnection::new(config).map_err(TlsError::Protocol)?;
        Ok(Connection::new(Side::Server(side)))
    }

    fn new(side: Side) -> Connection {
        Connection { side, ready: Vec::new(), failed: None, closed_here: false }
    }

    fn state(&self) -> &CommonState {
        match &self.side {
            Side::Client(connection) => connection,
            Side::Server(connection) => connection,
        }
    }

    pub fn is_client(&self) -> bool {
        matches!(self.side, Side::Client(_))
    }

    pub fn is_handshaking(&self) -> bool {
        self.state().is_handshaking()
    }

    pub fn is_tls13(&self) -> bool {
        self.state().protocol_version() == Some(ProtocolVersion::TLSv1_3)
    }

    pub fn alpn(&self) -> Option<&[u8]> {
        self.state().alpn_protocol()
    }

    /// The peer's chain, its own certificate first.
    pub fn peer_certificates(&self) -> Vec<CertificateDer<'static>> {
        self.state().peer_certificates().unwrap_or_default().to_vec()
    }

    pub fn cipher(&self) -> &'static str {
        self.state().negotiated_cipher_suite().and_then(|suite| suite.suite().as_str()).unwrap_or("unknown")
    }

    /// Reads what it can of these records, and returns how many bytes to discard. What is left must be passed again.
    /// Application data goes to `deliver`, at most one record of it in a call. Records to send are [`take_ready`]'s.
    ///
    /// [`take_ready`]: Connection::take_ready
    pub fn read(
        &mut self,
        records: &mut [u8],
        deliver: &mut dyn FnMut(&[u8]),
    ) -> (usize, Result<Step, TlsError>) {
        let (discard, step) = self.advance(records, Wish::Nothing, &mut [], deliver);
        let waits = matches!(step, Ok(Step::Ready | Step::NeedsInput));
        let kept = records.get(discard..).is_some_and(begins_with_record);
        if waits && kept && !self.is_handshaking() {
            // All was looked at, and a whole record is still needed: it holds a part of a handshake message.
            return (discard, Err(self.fail(TlsError::Fragmented)));
        }
        (discard, step)
    }

    /// Makes a record of at most [`RECORD_BYTES_MAX`] bytes, and returns the bytes written. `out` has
    /// [`RECORD_SPARE_BYTES`] more than the content.
    pub fn encrypt(&mut self, plain: &[u8], out: &mut [u8]) -> Result<usize, TlsError> {
        match self.closed_here && self.failed.is_none() {
            true => Err(TlsError::ClosedHere),
            false => self.write(Wish::Encrypt(plain), out),
        }
    }

    /// Makes the record that says the end. Nothing can be encrypted after it.
    pub fn close_notify(&mut self, out: &mut [u8]) -> Result<usize, TlsError> {
        match std::mem::replace(&mut self.closed_here, true) {
            true => Ok(0),
            false => self.write(Wish::Close, out),
        }
    }

    /// Records to send: of the handshake, and alerts. Also after an error.
    pub fn take_ready(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.ready)
    }

    fn write(&mut self, wish: Wish<'_>, out: &mut [u8]) -> Result<usize, TlsError> {
        match self.advance(&mut [], wish, out, &mut |_| {}).1? {
            Step::Wrote(bytes) => Ok(bytes),
            _ => Err(self.fail(defect())),
        }
    }

    /// One call of `rustls`, never after an error.
    fn advance(
        &mut self,
        records: &mut [u8],
        wish: Wish<'_>,
        out: &mut [u8],
        deliver: &mut dyn FnMut(&[u8]),
    ) -> (usize, Result<Step, TlsError>) {
        if let Some(error) = &self.failed {
            return (0, Err(error.clone()));
        }
        let handshaking = self.is_handshaking();
        let (discard, step) = self.call(records, wish, out, deliver);
        let step = step.map_err(|error| {
            let error = match handshaking {
                true => TlsError::in_handshake(error),
                false => TlsError::in_traffic(error),
            };
            self.make_alert();
            self.fail(error)
        });
        (discard, step)
    }

    fn call(
        &mut self,
        records: &mut [u8],
        wish: Wish<'_>,
        out: &mut [u8],
        deliver: &mut dyn FnMut(&[u8]),
    ) -> (usize, Result<Step, rustls::Error>) {
        let ready = &mut self.ready;
        match &mut self.side {
            Side::Client(side) => handle(side.process_tls_records(records), wish, out, ready, deliver),
            Side::Server(side) => handle(side.process_tls_records(records), wish, out, ready, deliver),
        }
    }

    /// After an error `rustls` may have an alert for the peer. While it has, a call does nothing but hand it out.
    fn make_alert(&mut self) {
        for _ in 0..ALERT_CALLS_MAX {
            if !self.state().wants_write()
                || self.call(&mut [], Wish::Nothing, &mut [], &mut |_| {}).1.is_err()
            {
                return;
            }
        }
    }

    fn fail(&mut self, error: TlsError) -> TlsError {
        self.failed.get_or_insert(error).clone()
    }
}

fn handle<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    wish: Wish<'_>,
    out: &mut [u8],
    ready: &mut Vec<u8>,
    deliver: &mut dyn FnMut(&[u8]),
) -> (usize, Result<Step, rustls::Error>) {
    let UnbufferedStatus { mut discard, state } = status;
    let step = match state {
        Err(error) => Err(error),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match traffic.next_record() {
                Some(Ok(record)) => {
                    discard += record.discard;
                    deliver(record.payload);
                }
                Some(Err(error)) => break Err(error),
                None => break Ok(Step::Again),
            }
        },
        Ok(ConnectionState::EncodeTlsData(mut data)) => encode(&mut data, ready),
        // It is in order in `ready`, and goes out before the next call.
        Ok(ConnectionState::TransmitTlsData(sent)) => {
            sent.done();
            Ok(Step::Again)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Step::NeedsInput),
        Ok(ConnectionState::WriteTraffic(mut traffic)) => match wish {
            Wish::Nothing => Ok(Step::Ready),
            Wish::Encrypt(plain) => traffic.encrypt(plain, out).map(Step::Wrote).map_err(other),
            Wish::Close => traffic.queue_close_notify(out).map(Step::Wrote).map_err(other),
        },
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Step::PeerClosed),
        // Early data, which is off, and states that are not there yet.
        Ok(_) => Err(rustls::Error::General("a state that is not expected".into())),
    };
    (discard, step)
}

fn encode<Data>(data: &mut EncodeTlsData<'_, Data>, ready: &mut Vec<u8>) -> Result<Step, rustls::Error> {
    let before = ready.len();
    let needed = match data.encode(&mut []) {
        Err(EncodeError::InsufficientSize(needed)) => needed.required_size,
        Ok(_) => 0,
        Err(error) => return Err(other(error)),
    };
    ready.resize(before + needed, 0);
    let place = ready.get_mut(before..).unwrap_or_default();
    if needed > 0 {
        data.encode(place).map_err(other)?;
    }
    Ok(Step::Again)
}

fn other(error: impl std::error::Error) -> rustls::Error {
    rustls::Error::General(error.to_string())
}

fn defect() -> TlsError {
    TlsError::Protocol(rustls::Error::General("application data cannot be sent in this state".into()))
}

/// Whether the bytes begin with a record that is there as a whole, or that is too long to be one.
pub(super) fn begins_with_record(bytes: &[u8]) -> bool {
    let Some([_, _, _, high, low]) = bytes.first_chunk::<RECORD_HEADER_BYTES>() else { return false };
    let whole = RECORD_HEADER_BYTES + usize::from(u16::from_be_bytes([*high, *low]));
    whole > WIRE_RECORD_BYTES_MAX || bytes.len() >= whole
}
