//! The handshake: one small frame each way, with a deadline over the whole.

use std::io;
use std::time::Instant;

use linerate_wire::frame::{Frame, HEADER_BYTES, Header, Tag};
use linerate_wire::{DecodeError, EncodeError};
use thiserror::Error;

use super::Stream;
use crate::tls::TlsError;

/// A handshake frame could not be sent or received.
#[derive(Debug, Error)]
pub enum ExchangeError {
    /// The connection failed or the time was over ([`io::ErrorKind::TimedOut`]).
    #[error("the connection failed in the handshake: {0}")]
    Socket(#[source] io::Error),
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// It is no frame.
    #[error("the peer's handshake is no frame: {0}")]
    Decode(#[from] DecodeError),
    /// A defect on this side.
    #[error("a handshake frame could not be made: {0}")]
    Encode(#[from] EncodeError),
    /// A frame that has no place in a handshake.
    #[error("a {0} frame has no place in a handshake")]
    Unexpected(Tag),
}

pub(super) fn send(stream: &Stream, frame: &Frame, deadline: Instant) -> Result<(), ExchangeError> {
    let mut bytes = Vec::new();
    frame.encode(0, 0, 0, &mut bytes)?;
    stream.send_all(&bytes, deadline).map_err(failed)
}

/// Two frames, one behind the other.
pub(super) fn send_both(
    stream: &Stream,
    frames: [&Frame; 2],
    deadline: Instant,
) -> Result<(), ExchangeError> {
    let (mut both, mut bytes) = (Vec::new(), Vec::new());
    for frame in frames {
        frame.encode(0, 0, 0, &mut bytes)?;
        both.extend_from_slice(&bytes);
    }
    stream.send_all(&both, deadline).map_err(failed)
}

/// Reads one frame of the tags allowed, and not a byte more. The tag is checked before anything is allocated.
pub(super) fn receive(stream: &Stream, allowed: &[Tag], deadline: Instant) -> Result<Frame, ExchangeError> {
    let mut bytes = [0; HEADER_BYTES];
    let received = stream.receive_exact(&mut bytes, deadline);
    // A TLS record begins with its content type and a version of 3; no frame has such a tag.
    if !stream.is_encrypted() && bytes.get(1) == Some(&3) {
        match bytes.first() {
            Some(21) => return Err(TlsError::PeerExpectsTls.into()),
            Some(22) => return Err(TlsError::PeerSpokeTls.into()),
            _ => {}
        }
    }
    received.map_err(failed)?;
    let header = Header::decode(&bytes)?;
    if !allowed.contains(&header.tag) {
        return Err(ExchangeError::Unexpected(header.tag));
    }
    let mut body = vec![0; header.body_length as usize];
    stream.receive_exact(&mut body, deadline).map_err(failed)?;
    Ok(Frame::decode(&header, &body)?)
}

fn failed(error: io::Error) -> ExchangeError {
    match TlsError::of(&error) {
        Some(inner) => ExchangeError::Tls(inner.clone()),
        None => ExchangeError::Socket(error),
    }
}
