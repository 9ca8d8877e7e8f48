//! A stream socket as a test connection.
//!
//! The socket blocks, unlike those of a migration: one system call for each message, as in any plain ping-pong. A
//! `poll` in front of each would be measured as latency. Time-outs of the socket keep every wait short of for ever.

use std::io;
use std::time::Duration;

use socket2::SockRef;

use super::{BLOCK_BYTES, MESSAGE_BYTES_MAX, TestConnection, TestError};
use crate::channel::Closer;
use crate::socket::Wait;
use crate::tcp::Stream;

/// First byte of a block that others follow.
const MORE: u8 = 1;
/// First byte of the last block.
const LAST: u8 = 2;

#[derive(Debug)]
pub struct TcpTestConnection {
    stream: Stream,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    silence: Duration,
}

impl TcpTestConnection {
    /// Takes a connection; nothing may be in flight on it. `silence` is how long nothing may move.
    pub fn new(stream: Stream, silence: Duration) -> io::Result<TcpTestConnection> {
        let socket = SockRef::from(&stream);
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(silence))?;
        socket.set_write_timeout(Some(silence))?;
        Ok(TcpTestConnection { stream, outgoing: Vec::new(), incoming: Vec::new(), silence })
    }

    fn error(&self, error: io::Error) -> TestError {
        match error.kind() {
            // What a blocking socket says when its time is over.
            io::ErrorKind::WouldBlock => TestError::Silent { waited: self.silence },
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => TestError::Closed,
            _ => TestError::Socket(error),
        }
    }

    fn send_bytes(&mut self, bytes: usize) -> Result<(), TestError> {
        provide(&mut self.outgoing, bytes)?;
        let mut rest = self.outgoing.get(..bytes).ok_or(TestError::TooLarge { bytes })?;
        while !rest.is_empty() {
            match self.stream.send(rest, Wait::AsSet) {
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.error(error)),
            }
        }
        match self.stream.is_flushed(Wait::AsSet) {
            Ok(true) => Ok(()),
            Ok(false) => Err(TestError::Silent { waited: self.silence }),
            Err(error) => Err(self.error(error)),
        }
    }

    fn receive_bytes(&mut self, bytes: usize) -> Result<(), TestError> {
        provide(&mut self.incoming, bytes)?;
        let mut rest = self.incoming.get_mut(..bytes).ok_or(TestError::TooLarge { bytes })?;
        while !rest.is_empty() {
            match self.stream.receive(rest, Wait::AsSet) {
                Ok(0) => return Err(TestError::Closed),
                Ok(came) => rest = rest.get_mut(came..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.error(error)),
            }
        }
        Ok(())
    }
}

/// Makes a buffer long enough. Not of zeroes: pages that were never written are all one page, which no cache misses.
fn provide(buffer: &mut Vec<u8>, bytes: usize) -> Result<(), TestError> {
    if bytes > MESSAGE_BYTES_MAX {
        return Err(TestError::TooLarge { bytes });
    }
    buffer.extend((buffer.len()..bytes).map(|at| (at % 251) as u8 | 1));
    Ok(())
}

impl TestConnection for TcpTestConnection {
    fn send(&mut self, bytes: usize) -> Result<(), TestError> {
        self.send_bytes(self.carried_bytes(bytes))
    }

    fn receive(&mut self, bytes: usize) -> Result<(), TestError> {
        self.receive_bytes(self.carried_bytes(bytes))
    }

    fn send_block(&mut self, last: bool) -> Result<(), TestError> {
        provide(&mut self.outgoing, BLOCK_BYTES)?;
        if let Some(mark) = self.outgoing.first_mut() {
            *mark = if last { LAST } else { MORE };
        }
        self.send_bytes(BLOCK_BYTES)
    }

    fn receive_block(&mut self) -> Result<bool, TestError> {
        self.receive_bytes(BLOCK_BYTES)?;
        match self.incoming.first() {
            Some(&LAST) => Ok(true),
            Some(&MORE) => Ok(false),
            other => Err(TestError::Mark { mark: other.copied().unwrap_or(0) }),
        }
    }

    /// A byte stream has no empty messages.
    fn carried_bytes(&self, bytes: usize) -> usize {
        bytes.max(1)
    }

    fn closer(&self) -> Closer {
        self.stream.closer()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair(silence: Duration) -> (TcpTestConnection, TcpTestConnection) {
        let (one, other) = UnixStream::pair().unwrap();
        let wire =
            |socket: UnixStream| TcpTestConnection::new(Stream::new(socket).unwrap(), silence).unwrap();
        (wire(one), wire(other))
    }

    #[test]
    fn messages_of_every_size_arrive_whole() {
        let (mut one, mut other) = pair(Duration::from_secs(20));
        let sizes = [0, 1, 4096, MESSAGE_BYTES_MAX];
        std::thread::scope(|scope| {
            scope.spawn(|| sizes.iter().for_each(|bytes| one.send(*bytes).unwrap()));
            sizes.iter().for_each(|bytes| other.receive(*bytes).unwrap());
        });
        assert_eq!((other.carried_bytes(0), other.carried_bytes(7)), (1, 7));
    }

    #[test]
    fn the_last_block_is_marked() {
        let (mut one, mut other) = pair(Duration::from_secs(20));
        std::thread::scope(|scope| {
            scope.spawn(|| [false, true].iter().for_each(|last| one.send_block(*last).unwrap()));
            assert!(!other.receive_block().unwrap());
            assert!(other.receive_block().unwrap());
        });
    }

    #[test]
    fn absurd_sizes_silence_the_end_and_nonsense_are_errors() {
        let (mut one, mut other) = pair(Duration::from_millis(30));
        let bytes = MESSAGE_BYTES_MAX + 1;
        assert!(matches!(one.send(bytes), Err(TestError::TooLarge { .. })));
        assert!(matches!(one.receive(bytes), Err(TestError::TooLarge { .. })));
        assert!(matches!(other.receive(1), Err(TestError::Silent { .. })));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                provide(&mut one.outgoing, 1).unwrap();
                one.outgoing[0] = 9;
                one.send_bytes(BLOCK_BYTES).unwrap();
            });
            // Patient, since the other thread may be late.
            SockRef::from(&other.stream).set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            assert!(matches!(other.receive_block(), Err(TestError::Mark { mark: 9 })));
        });
        one.closer().close();
        assert!(matches!(other.receive(1), Err(TestError::Closed)));
    }
}
