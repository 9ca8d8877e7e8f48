//! The acknowledgement of a data channel.

use super::{Envelope, Tag};
use crate::codec::{Reader, Writer};
use crate::error::{DecodeError, EncodeError};

/// Most damaged frames that one ACK or [`crate::message::Message::Fenced`] names.
pub const DAMAGED_MAX: usize = 512;

/// All frames of the channel up to the header's sequence were applied in order, but for these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// Frames whose payload did not match its checksum: ascending, each reported once, none above the header's
    /// sequence. Their bytes may have landed, so that all runs of them must be sent again.
    pub damaged: Vec<u64>,
}

impl Ack {
    pub(super) fn read(reader: &mut Reader<'_>, applied: u64) -> Result<Ack, DecodeError> {
        let count = reader.u16("ACK count")?;
        reader.reserved::<6>("ACK reserved")?;
        let damaged = read_damaged(reader, count, applied)?;
        Ok(Ack { damaged })
    }
}

/// [`super::Frame::encode`] of an ACK from a list that the caller keeps.
pub fn encode_ack(out: &mut Vec<u8>, applied: u64, damaged: &[u64]) -> Result<(), EncodeError> {
    let envelope = Envelope { tag: Tag::Ack, sequence: applied, payload_length: 0, payload_checksum: 0 };
    envelope.fill(out, |writer| write_damaged(damaged, applied, writer))
}

pub(super) fn write_damaged(
    damaged: &[u64],
    applied: u64,
    writer: &mut Writer<'_>,
) -> Result<(), DecodeError> {
    check_damaged(damaged, applied)?;
    writer.count("damaged frames", damaged.len(), DAMAGED_MAX)?;
    writer.reserved::<6>();
    damaged.iter().for_each(|sequence| writer.u64(*sequence));
    Ok(())
}

/// The list behind its count, in an ACK and in a Fenced.
pub(crate) fn read_damaged(
    reader: &mut Reader<'_>,
    count: u16,
    applied: u64,
) -> Result<Vec<u64>, DecodeError> {
    let count = usize::from(count);
    if count > DAMAGED_MAX {
        return Err(DecodeError::TooMany { what: "damaged frames", count, max: DAMAGED_MAX });
    }
    let damaged: Vec<u64> = (0..count).map(|_| reader.u64("damaged frame")).collect::<Result<_, _>>()?;
    check_damaged(&damaged, applied)?;
    Ok(damaged)
}

/// Damaged frame numbers are reported once each, in order, and only of frames that were passed. The sender gives each
/// of them out anew, and one given out twice would be in flight twice.
pub(crate) fn check_damaged(damaged: &[u64], applied: u64) -> Result<(), DecodeError> {
    let mut above = 0;
    for &sequence in damaged {
        if sequence <= above || sequence > applied {
            return Err(DecodeError::DamagedOrder { sequence, applied });
        }
        above = sequence;
    }
    Ok(())
}
