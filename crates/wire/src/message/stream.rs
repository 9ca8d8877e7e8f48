//! What is said of a byte stream besides its bytes, which are placed writes. `docs/streams.md` has the whole.

use crate::codec::{Reader, Writer};
use crate::error::DecodeError;

/// Most bytes of a service's name.
pub const SERVICE_BYTES_MAX: usize = 255;
/// Most bytes of the reason of a refusal.
pub const REASON_BYTES_MAX: usize = 255;

/// Says what a note is. 0 is none; a number once given is never given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "each is the number of the note of its name")]
pub enum StreamNoteTag {
    Open = 1,
    Opened = 2,
    Refused = 3,
    Credit = 4,
    End = 5,
    Reset = 6,
    Stop = 7,
    Closed = 8,
}

impl StreamNoteTag {
    /// All notes, for tables and tests.
    pub const ALL: [StreamNoteTag; 8] = [
        StreamNoteTag::Open,
        StreamNoteTag::Opened,
        StreamNoteTag::Refused,
        StreamNoteTag::Credit,
        StreamNoteTag::End,
        StreamNoteTag::Reset,
        StreamNoteTag::Stop,
        StreamNoteTag::Closed,
    ];

    /// The note with this number.
    pub fn from_number(number: u8) -> Option<StreamNoteTag> {
        Self::ALL.into_iter().find(|tag| *tag as u8 == number)
    }
}

/// One note about a stream, from either side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamNote {
    /// A new stream to something that the other side knows by this name.
    Open {
        /// Name of the service, at most 255 bytes.
        service: String,
        /// Bytes that may be written to the opener before the next Credit.
        window: u64,
    },
    /// The service is there: bytes may flow.
    Opened {
        /// Bytes that may be written to the acceptor before the next Credit.
        window: u64,
    },
    /// It is not; the number is free again.
    Refused {
        /// A sentence for people, at most 255 bytes.
        reason: String,
    },
    /// Bytes may be written up to this position. Never lower than before.
    Credit {
        /// First position that may not be written.
        limit: u64,
    },
    /// The sayer's bytes end here, as a half-closed socket's do.
    End {
        /// Length of the whole stream, bytes.
        total: u64,
    },
    /// The sender resets its direction: the program that wrote to it has closed its socket. What has not been read of
    /// them is lost.
    Reset,
    /// The sender takes no more bytes: the program that read them has closed its socket.
    Stop,
    /// The sender has no byte of the stream in flight and waits for none. Sent once, and nothing after it; when both
    /// have said it the number is free again.
    Closed,
}

impl StreamNote {
    /// Its number in the table.
    pub fn tag(&self) -> StreamNoteTag {
        match self {
            StreamNote::Open { .. } => StreamNoteTag::Open,
            StreamNote::Opened { .. } => StreamNoteTag::Opened,
            StreamNote::Refused { .. } => StreamNoteTag::Refused,
            StreamNote::Credit { .. } => StreamNoteTag::Credit,
            StreamNote::End { .. } => StreamNoteTag::End,
            StreamNote::Reset => StreamNoteTag::Reset,
            StreamNote::Stop => StreamNoteTag::Stop,
            StreamNote::Closed => StreamNoteTag::Closed,
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<StreamNote, DecodeError> {
        let number = reader.u8("stream note")?;
        let tag = StreamNoteTag::from_number(number)
            .ok_or(DecodeError::UnknownNumber { what: "stream note", number: number.into() })?;
        reader.reserved::<1>("stream note reserved")?;
        Ok(match tag {
            StreamNoteTag::Open => StreamNote::Open {
                window: reader.u64("stream window")?,
                service: reader.short_text("stream service", SERVICE_BYTES_MAX)?,
            },
            StreamNoteTag::Opened => StreamNote::Opened { window: reader.u64("stream window")? },
            StreamNoteTag::Refused => {
                StreamNote::Refused { reason: reader.short_text("stream refusal", REASON_BYTES_MAX)? }
            }
            StreamNoteTag::Credit => StreamNote::Credit { limit: reader.u64("stream credit")? },
            StreamNoteTag::End => StreamNote::End { total: reader.u64("stream total")? },
            StreamNoteTag::Reset => StreamNote::Reset,
            StreamNoteTag::Stop => StreamNote::Stop,
            StreamNoteTag::Closed => StreamNote::Closed,
        })
    }

    pub(super) fn write(&self, writer: &mut Writer<'_>) -> Result<(), DecodeError> {
        writer.u8(self.tag() as u8);
        writer.reserved::<1>();
        match self {
            StreamNote::Open { service, window } => {
                writer.u64(*window);
                writer.short_text("stream service", service, SERVICE_BYTES_MAX)?;
            }
            StreamNote::Refused { reason } => {
                writer.short_text("stream refusal", reason, REASON_BYTES_MAX)?
            }
            StreamNote::Opened { window: number }
            | StreamNote::Credit { limit: number }
            | StreamNote::End { total: number } => writer.u64(*number),
            StreamNote::Reset | StreamNote::Stop | StreamNote::Closed => {}
        }
        Ok(())
    }
}
