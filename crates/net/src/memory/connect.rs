//! Both ends of a channel at once.

use std::io;
use std::os::unix::net::UnixStream;

use crate::tcp::Stream;

/// Two connected ends; no handshake. Use them as any [`Stream`].
pub fn pair() -> io::Result<(Stream, Stream)> {
    let (one, other) = UnixStream::pair()?;
    Ok((Stream::new(one)?, Stream::new(other)?))
}
