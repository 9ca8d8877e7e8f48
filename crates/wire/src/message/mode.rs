//! How a guest moves.
//!
//! In an offer a mode is its number and its fields behind their length. An agent that does not know the number can read
//! the offer all the same, and refuses it with a sentence.

use std::fmt;

use thiserror::Error;

use super::RegionInfo;
use super::codec::{read_stream_channels, write_stream_channels};
use super::parts::{read_regions, write_regions};
use crate::codec::{Reader, Writer};
use crate::error::DecodeError;

/// Most bytes of a mode's fields in an offer.
pub const MODE_BYTES_MAX: usize = 64 << 10;

/// How a guest moves: what carries its RAM and device state, and who decides which hypervisor runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// RAM goes by placed writes, device state in the session. The session's commit decides.
    Direct {
        /// RAM blocks that placed writes fill.
        regions: Vec<RegionInfo>,
    },
    /// RAM and device state go in the hypervisor's own streams. The session's commit decides.
    Streams {
        /// Parallel channels that the source's hypervisor would use beside its main one; 0 for none.
        channels: u16,
    },
    /// RAM goes by placed writes. libvirt's own stream brings the device state, and libvirt decides.
    Handover {
        /// RAM blocks that placed writes fill.
        regions: Vec<RegionInfo>,
    },
}

/// Names a [`Mode`], without what belongs to one migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "each is the number of the mode of its name")]
pub enum ModeTag {
    Direct = 1,
    Streams = 2,
    Handover = 3,
}

/// A mode that a peer offers and this agent does not know.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "the source offers to move the guest in mode {number}, which this agent does not know: install the same release of linerate on both hosts"
)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub struct UnknownMode {
    pub number: u8,
    /// The mode's fields, unread.
    pub fields: Vec<u8>,
}

impl Mode {
    /// Its name, without the fields.
    pub fn tag(&self) -> ModeTag {
        match self {
            Mode::Direct { .. } => ModeTag::Direct,
            Mode::Streams { .. } => ModeTag::Streams,
            Mode::Handover { .. } => ModeTag::Handover,
        }
    }

    /// RAM blocks that placed writes fill; none where the hypervisor's streams carry RAM.
    pub fn regions(&self) -> &[RegionInfo] {
        match self {
            Mode::Direct { regions } | Mode::Handover { regions } => regions,
            Mode::Streams { .. } => &[],
        }
    }

    fn write(&self, writer: &mut Writer<'_>) -> Result<(), DecodeError> {
        match self {
            Mode::Direct { regions } | Mode::Handover { regions } => write_regions(regions, writer),
            Mode::Streams { channels } => write_stream_channels(*channels, writer),
        }
    }

    fn read(tag: ModeTag, reader: &mut Reader<'_>) -> Result<Mode, DecodeError> {
        Ok(match tag {
            ModeTag::Direct => Mode::Direct { regions: read_regions(reader)? },
            ModeTag::Streams => Mode::Streams { channels: read_stream_channels(reader)? },
            ModeTag::Handover => Mode::Handover { regions: read_regions(reader)? },
        })
    }

    /// Whether the source may be answered so: no more channels than it offered.
    pub fn allows_channels(&self, used: u16) -> bool {
        match self {
            Mode::Streams { channels } => used <= *channels,
            Mode::Direct { .. } | Mode::Handover { .. } => false,
        }
    }
}

impl ModeTag {
    /// All modes, for tables and tests.
    pub const ALL: &'static [ModeTag] = &[ModeTag::Direct, ModeTag::Streams, ModeTag::Handover];

    /// The mode with this number.
    pub fn from_number(number: u8) -> Option<ModeTag> {
        ModeTag::ALL.iter().copied().find(|tag| *tag as u8 == number)
    }

    /// The name used in the journal, the documentation and errors.
    pub fn name(self) -> &'static str {
        match self {
            ModeTag::Direct => "direct",
            ModeTag::Streams => "streams",
            ModeTag::Handover => "handover",
        }
    }

    /// The mode with this name.
    pub fn from_name(name: &str) -> Option<ModeTag> {
        ModeTag::ALL.iter().copied().find(|tag| tag.name() == name)
    }

    /// The hypervisor's own streams carry RAM and device state; otherwise placed writes carry RAM.
    pub fn carries_streams(self) -> bool {
        match self {
            ModeTag::Streams => true,
            ModeTag::Direct | ModeTag::Handover => false,
        }
    }

    /// The session brings the device state and decides by commit which hypervisor runs the guest. Otherwise libvirt
    /// does both.
    pub fn commits(self) -> bool {
        match self {
            ModeTag::Direct | ModeTag::Streams => true,
            ModeTag::Handover => false,
        }
    }
}

impl fmt::Display for ModeTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads an offered mode: u8 number, then the fields as bytes behind a u32 with their count.
pub(super) fn read_mode(reader: &mut Reader<'_>) -> Result<Result<Mode, UnknownMode>, DecodeError> {
    let number = reader.u8("mode")?;
    if number == 0 {
        return Err(DecodeError::UnknownNumber { what: "mode", number: 0 });
    }
    let fields = reader.long_bytes("mode fields", MODE_BYTES_MAX)?;
    let Some(tag) = ModeTag::from_number(number) else { return Ok(Err(UnknownMode { number, fields })) };
    let mut reader = Reader::new(&fields);
    let mode = Mode::read(tag, &mut reader)?;
    reader.finish("mode")?;
    Ok(Ok(mode))
}

/// An unknown mode is written as it came, so that a message has one encoding.
pub(super) fn write_mode(
    mode: &Result<Mode, UnknownMode>,
    writer: &mut Writer<'_>,
) -> Result<(), DecodeError> {
    let (number, fields) = match mode {
        Ok(mode) => {
            let mut fields = Vec::new();
            mode.write(&mut Writer::new(&mut fields))?;
            (mode.tag() as u8, fields)
        }
        Err(UnknownMode { number, .. }) if *number == 0 || ModeTag::from_number(*number).is_some() => {
            return Err(DecodeError::UnknownNumber { what: "unknown mode", number: (*number).into() });
        }
        Err(UnknownMode { number, fields }) => (*number, fields.clone()),
    };
    writer.u8(number);
    writer.long_bytes("mode fields", &fields, MODE_BYTES_MAX)
}
