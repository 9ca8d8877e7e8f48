//! The handshake: one small frame each way, with a deadline over the whole.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use linerate_wire::frame::{Frame, HEADER_BYTES, Header, Tag};
use linerate_wire::{DecodeError, EncodeError};
use thiserror::Error;

use super::Stream;
use crate::socket::{receive_exact, send_all};

/// A handshake frame could not be sent or received.
#[derive(Debug, Error)]
pub enum ExchangeError {
    /// The connection failed or the time was over ([`io::ErrorKind::TimedOut`]).
    #[error("the connection failed in the handshake: {0}")]
    Socket(#[source] io::Error),
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
    send_all(stream.as_fd(), &bytes, deadline).map_err(ExchangeError::Socket)
}

/// Reads one frame of the tags allowed, and not a byte more. The tag is checked before anything is allocated.
pub(super) fn receive(stream: &Stream, allowed: &[Tag], deadline: Instant) -> Result<Frame, ExchangeError> {
    let mut bytes = [0; HEADER_BYTES];
    receive_exact(stream.as_fd(), &mut bytes, deadline).map_err(ExchangeError::Socket)?;
    let header = Header::decode(&bytes)?;
    if !allowed.contains(&header.tag) {
        return Err(ExchangeError::Unexpected(header.tag));
    }
    let mut body = vec![0; header.body_length as usize];
    receive_exact(stream.as_fd(), &mut body, deadline).map_err(ExchangeError::Socket)?;
    Ok(Frame::decode(&header, &body)?)
}
