//! Test connections, as a measurement sees them: each sends `n` bytes and waits for `n` bytes.
//! `linerate bench` and the load of `linerate doctor` are made of it.
//!
//! * [`TestConnection`]: what a transport gives; [`tcp`] is one, [`crate::rdma::test_connection`] the other.
//! * [`rules`]: sizes and repetitions of a ping-pong.
//! * [`role`]: the two sides of a ping-pong, and of a stream in one direction.
//! * [`group`]: threads that send and receive, with a limit over all of them and a way to stop them.
//! * [`document_channel`]: documents between the two agents.
//!
//! No guest memory is used: a test connection has buffers of its own, because RDMA needs them registered.

pub mod document_channel;
pub mod group;
pub mod role;
pub mod rules;
pub mod tcp;

use std::io;
use std::time::Duration;

use thiserror::Error;

use crate::channel::Closer;
use crate::rdma::error::RdmaError;

/// Longest message, bytes: the longest of a ping-pong by IMB's rules.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Bytes of a block of a stream: what an extent of a migration has.
pub const BLOCK_BYTES: usize = 256 << 10;

/// A connection that is measured. One thread at each end uses it.
///
/// Messages carry no content: both sides know before each which size comes next. A transport that cannot send an empty
/// message sends a byte instead ([`TestConnection::carried_bytes`]). Every wait ends: with an error when nothing moves
/// for the transport's silence limit, or when the [`Closer`] is used.
pub trait TestConnection: Send {
    /// Sends a message of `bytes`. Its buffer may be used again when this returns.
    fn send(&mut self, bytes: usize) -> Result<(), TestError>;

    /// Waits until a whole message of `bytes` is there.
    fn receive(&mut self, bytes: usize) -> Result<(), TestError>;

    /// Sends a block of [`BLOCK_BYTES`]; `last` marks it as the last of the stream.
    fn send_block(&mut self, last: bool) -> Result<(), TestError>;

    /// Waits for a block; true if it is the last.
    fn receive_block(&mut self) -> Result<bool, TestError>;

    /// Bytes that a message of `bytes` takes on the connection, headers of lower layers left out.
    fn carried_bytes(&self, bytes: usize) -> usize;

    /// Cuts it off from any thread: all waits end.
    fn closer(&self) -> Closer;
}

/// Why a test connection failed.
#[derive(Debug, Error)]
pub enum TestError {
    /// The other side ended, or was cut off.
    #[error("the peer closed the connection")]
    Closed,
    /// Nothing moved for too long.
    #[error("nothing moved for {} s", waited.as_secs())]
    Silent { waited: Duration },
    /// The system says that the connection failed.
    #[error("the connection failed: {0}")]
    Socket(#[source] io::Error),
    /// The adapter or its connection failed.
    #[error(transparent)]
    Rdma(RdmaError),
    /// A size over [`MESSAGE_BYTES_MAX`].
    #[error("a message of {bytes} bytes; at most {MESSAGE_BYTES_MAX} are taken")]
    TooLarge { bytes: usize },
    /// A block that is neither the last nor another one.
    #[error("a block begins with {mark:#04x}, which is no mark")]
    Mark { mark: u8 },
    /// The receiver of a stream said something else.
    #[error("the receiver of a stream sent {mark:#04x}, which is no credit")]
    Credit { mark: u8 },
    /// The threads' limit was reached.
    #[error("it was not done within {} s", limit.as_secs())]
    TimedOut { limit: Duration },
    /// A thread could not be started.
    #[error("no thread: {0}")]
    Thread(#[source] io::Error),
    /// A thread could not be put on its CPU.
    #[error("CPU {cpu} cannot be used: {source}")]
    Cpu { cpu: usize, source: io::Error },
}
