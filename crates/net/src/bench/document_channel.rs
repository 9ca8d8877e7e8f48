//! Documents over a connection whose handshake is done: u32 length, then the document, each within a cap and a
//! deadline.

use std::io;
use std::time::Instant;

use thiserror::Error;

use crate::channel::Closer;
use crate::tcp::Stream;

/// Longest document in bytes; a longer one ends the connection.
pub const DOCUMENT_BYTES_MAX: usize = 256 << 10;

/// Why no document came or went.
#[derive(Debug, Error)]
pub enum DocumentError {
    #[error("the peer closed the connection")]
    Closed,
    /// The peer said nothing in time.
    #[error("the peer did not answer in time")]
    Silent,
    /// The system says that the connection failed.
    #[error("the connection failed: {0}")]
    Socket(#[source] io::Error),
    /// Longer than any document is.
    #[error("a document of {bytes} bytes; at most {DOCUMENT_BYTES_MAX} are taken")]
    TooLong { bytes: usize },
}

/// One end of the conversation.
#[derive(Clone, Debug)]
pub struct DocumentChannel(Stream);

impl DocumentChannel {
    /// Takes over a connection past its hello.
    pub fn new(stream: Stream) -> DocumentChannel {
        DocumentChannel(stream)
    }

    /// Ends it from any thread.
    pub fn closer(&self) -> Closer {
        self.0.closer()
    }

    pub fn send(&self, document: &[u8], deadline: Instant) -> Result<(), DocumentError> {
        let bytes = document.len();
        let too_long = DocumentError::TooLong { bytes };
        let length = u32::try_from(bytes).ok().filter(|_| bytes <= DOCUMENT_BYTES_MAX).ok_or(too_long)?;
        let whole = [&length.to_le_bytes(), document].concat();
        self.0.send_all(&whole, deadline).map_err(error)
    }

    /// Waits for a document.
    pub fn receive(&self, deadline: Instant) -> Result<Vec<u8>, DocumentError> {
        let mut length = [0; 4];
        self.0.receive_exact(&mut length, deadline).map_err(error)?;
        let bytes = u32::from_le_bytes(length) as usize;
        if bytes > DOCUMENT_BYTES_MAX {
            return Err(DocumentError::TooLong { bytes });
        }
        let mut document = vec![0; bytes];
        self.0.receive_exact(&mut document, deadline).map_err(error)?;
        Ok(document)
    }
}

fn error(error: io::Error) -> DocumentError {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof};
    match error.kind() {
        UnexpectedEof | ConnectionReset | BrokenPipe => DocumentError::Closed,
        TimedOut => DocumentError::Silent,
        _ => DocumentError::Socket(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn documents_come_as_they_went_and_absurd_lengths_are_refused() {
        let (one, mut other) = UnixStream::pair().unwrap();
        let talk = DocumentChannel::new(Stream::new(one).unwrap());
        other.write_all(b"\x02\0\0\0{}\xff\xff\xff\xff").unwrap();
        assert_eq!(talk.receive(soon()).unwrap(), b"{}");
        assert!(matches!(talk.receive(soon()), Err(DocumentError::TooLong { bytes: 0xffff_ffff })));
        assert!(matches!(
            talk.send(&vec![0; DOCUMENT_BYTES_MAX + 1], soon()),
            Err(DocumentError::TooLong { .. })
        ));
        assert!(matches!(talk.receive(Instant::now()), Err(DocumentError::Silent)));
        drop(other);
        assert!(matches!(talk.receive(soon()), Err(DocumentError::Closed)));
    }
}
