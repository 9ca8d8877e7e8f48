//! Why a frame or message was refused.

use std::str::Utf8Error;

use thiserror::Error;

use crate::fault::Code;
use crate::frame::Tag;

/// Why bytes from the peer were refused. After any of these the connection cannot be used any more: close it, and say
/// [`DecodeError::code`] over another one if there is one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum DecodeError {
    /// The header's own checksum is wrong.
    #[error("header damaged: its checksum says {named:#010x}, its bytes give {computed:#010x}")]
    HeaderChecksum {
        /// As the header has it.
        named: u32,
        /// Over the bytes that came.
        computed: u32,
    },
    /// The body's checksum is wrong.
    #[error(
        "body of a {tag} frame damaged: the header says checksum {named:#010x}, its bytes give {computed:#010x}"
    )]
    BodyChecksum {
        tag: Tag,
        /// As the header has it.
        named: u32,
        /// Over the bytes that came.
        computed: u32,
    },
    /// No frame has this tag, or one from a newer version.
    #[error("unknown frame tag {number:#06x}")]
    UnknownTag { number: u16 },
    /// A frame of one tag was to be read as one of another.
    #[error("{got} frame where {expected} was to be read")]
    OtherFrame {
        /// What the reader takes.
        expected: Tag,
        /// What the header says.
        got: Tag,
    },
    /// No message has this number.
    #[error("unknown control message {number:#06x}")]
    UnknownMessage { number: u16 },
    /// A number is not in its table.
    #[error("{what} has no value {number}")]
    UnknownNumber { what: &'static str, number: u64 },
    /// Bits that must be zero are not.
    #[error("reserved field {what} is {value:#x}; it must be 0")]
    Reserved { what: &'static str, value: u64 },
    /// The body's length is not one that a frame of this tag can have.
    #[error("{tag} frame with a body of {length} bytes; it must be {min} to {max}")]
    BodyLength {
        tag: Tag,
        length: u32,
        /// Least bytes for this tag.
        min: u32,
        /// Most bytes for this tag.
        max: u32,
    },
    /// The payload is longer than a frame of this tag can carry.
    #[error("{tag} frame with a payload of {length} bytes; at most {max} are taken")]
    PayloadLength {
        tag: Tag,
        length: u64,
        /// Most bytes for this tag.
        max: u32,
    },
    /// A checksum over no bytes is 0.
    #[error("{part} is empty, but has checksum {checksum:#010x}; it must be 0")]
    EmptyChecksum { part: &'static str, checksum: u32 },
    /// The number of the frame is not one that this tag can have.
    #[error("{tag} frame with sequence {sequence}, which this tag does not allow")]
    Sequence { tag: Tag, sequence: u64 },
    /// The body handed in is not the one that the header announces.
    #[error("body of {got} bytes for a header that names {named}")]
    BodyMissing {
        /// Bytes, as the header has it.
        named: u32,
        got: usize,
    },
    /// A field reaches over the end.
    #[error("{what} reaches over the end: {needed} bytes needed, {left} left")]
    Truncated { what: &'static str, needed: usize, left: usize },
    /// Something follows the last field.
    #[error("{left} bytes too many behind {what}")]
    Trailing { what: &'static str, left: usize },
    /// A text or byte string is over its cap.
    #[error("{what} of {length} bytes; at most {max} are taken")]
    TooLong { what: &'static str, length: usize, max: usize },
    /// A list is over its cap.
    #[error("{count} {what}; at most {max} are taken")]
    TooMany { what: &'static str, count: usize, max: usize },
    /// A text is not UTF-8.
    #[error("{what} is not UTF-8")]
    NotUtf8 {
        what: &'static str,
        /// Where it is not.
        #[source]
        source: Utf8Error,
    },
    /// The peer is no Linerate agent.
    #[error("HELLO does not begin with LNRT: the peer is not a linerate agent")]
    Magic,
    /// No version lies in the range.
    #[error("HELLO names versions {min} to {max}, which is no range")]
    VersionRange { min: u16, max: u16 },
    /// A write names nothing to write.
    #[error("WRITE without runs")]
    NoRuns,
    /// A run of 0 bytes.
    #[error("run of 0 bytes at offset {offset:#x}")]
    EmptyRun { offset: u64 },
    /// A run's end is beyond 64 bits.
    #[error("run of {length:#x} bytes at offset {offset:#x} ends beyond 64 bits")]
    RunOverflow { offset: u64, length: u64 },
    /// The data runs do not add up to the payload.
    #[error("WRITE with {payload} bytes of payload for data runs of {runs} bytes")]
    PayloadSum {
        /// Bytes, as the header has it.
        payload: u32,
        /// Bytes, over the data runs; saturated at 64 bits.
        runs: u64,
    },
    /// Refused frame numbers are not ascending, or not within what was acknowledged.
    #[error("damaged frame {sequence} is out of order, or not in 1 to {applied}")]
    DamagedOrder {
        /// The first that is wrong.
        sequence: u64,
        /// Highest acknowledged frame number.
        applied: u64,
    },
}

impl DecodeError {
    /// The error code that reports it to the peer.
    pub fn code(&self) -> Code {
        match self {
            DecodeError::HeaderChecksum { .. } | DecodeError::BodyChecksum { .. } => Code::ChecksumMismatch,
            DecodeError::VersionRange { .. } => Code::VersionMismatch,
            _ => Code::ProtocolViolation,
        }
    }
}

/// What we were about to send breaks a rule that the peer holds us to: a defect on this side. Nothing was encoded.
///
/// The same rules hold in both directions, so the cause is the one that the peer would have found.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("not sent, because the peer would refuse it")]
pub struct EncodeError(#[from] pub DecodeError);
