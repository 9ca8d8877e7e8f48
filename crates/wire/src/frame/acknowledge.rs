//! The acknowledgement of a data channel.

use super::{Envelope, Tag};
use crate::codec::{Reader, Writer};
use crate::error::{DecodeError, EncodeError};

/// Most refused frames that one ACK or [`crate::message::Message::Fenced`] tells of.
pub const REFUSED_MAX: usize = 512;

/// All frames of the channel up to the header's sequence were applied in order, but for these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// Frames whose payload did not match its checksum: ascending, each told once, none above the header's sequence. Their
    /// bytes may have landed, so that all runs of them must be sent again.
    pub refused: Vec<u64>,
}

impl Ack {
    pub(super) fn read(reader: &mut Reader<'_>, applied: u64) -> Result<Ack, DecodeError> {
        let count = reader.u16("ACK count")?;
        reader.reserved::<6>("ACK reserved")?;
        let refused = read_refused(reader, count, applied)?;
        Ok(Ack { refused })
    }
}

/// [`super::Frame::encode`] of an ACK from a list that the caller keeps.
pub fn encode_ack(out: &mut Vec<u8>, applied: u64, refused: &[u64]) -> Result<(), EncodeError> {
    let envelope = Envelope { tag: Tag::Ack, sequence: applied, payload_length: 0, payload_checksum: 0 };
    envelope.fill(out, |writer| write_refused(refused, applied, writer))
}

pub(super) fn write_refused(
    refused: &[u64],
    applied: u64,
    writer: &mut Writer<'_>,
) -> Result<(), DecodeError> {
    check_refused(refused, applied)?;
    writer.count("refused frames", refused.len(), REFUSED_MAX)?;
    writer.reserved::<6>();
    refused.iter().for_each(|sequence| writer.u64(*sequence));
    Ok(())
}

/// The list behind its count, in an ACK and in a Fenced.
pub(crate) fn read_refused(
    reader: &mut Reader<'_>,
    count: u16,
    applied: u64,
) -> Result<Vec<u64>, DecodeError> {
    let count = usize::from(count);
    if count > REFUSED_MAX {
        return Err(DecodeError::TooMany { what: "refused frames", count, max: REFUSED_MAX });
    }
    let refused: Vec<u64> = (0..count).map(|_| reader.u64("refused frame")).collect::<Result<_, _>>()?;
    check_refused(&refused, applied)?;
    Ok(refused)
}

/// Refused frame numbers are told once each, in order, and only of frames that were passed. The sender gives each of
/// them out anew, and one given out twice would be in flight twice.
pub(crate) fn check_refused(refused: &[u64], applied: u64) -> Result<(), DecodeError> {
    let mut above = 0;
    for &sequence in refused {
        if sequence <= above || sequence > applied {
            return Err(DecodeError::RefusedOrder { sequence, applied });
        }
        above = sequence;
    }
    Ok(())
}
