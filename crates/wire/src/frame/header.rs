//! The header in front of every frame. It can be read and trusted without its body.

use super::Tag;
use crate::checksum::payload_checksum;
use crate::codec::Reader;
use crate::error::DecodeError;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 32;
/// Bytes of a header that its own checksum covers.
const CHECKED_BYTES: usize = HEADER_BYTES - 4;

/// A header that has been checked: its lengths and its sequence are within what its tag allows.
///
/// Layout, little-endian: u16 tag, u16 flags (0), u32 body length, u32 payload length, u32 payload checksum; u64
/// sequence, u32 body checksum, u32 checksum of the 28 bytes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is.
    pub tag: Tag,
    /// Bytes of the body, which follows the header.
    pub body_length: u32,
    /// Bytes of the payload, which follows the body.
    pub payload_length: u32,
    /// crc32c of the payload; 0 without one.
    pub payload_checksum: u32,
    /// crc32c of the body; 0 without one.
    pub body_checksum: u32,
    /// Number of the frame, or of the one that it acknowledges (see [`Tag::sequence_rule`]).
    pub sequence: u64,
}

impl Header {
    /// Reads and checks a header.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, DecodeError> {
        check_header_checksum(bytes)?;
        let mut reader = Reader::new(bytes);
        let number = reader.u16("tag")?;
        reader.reserved::<2>("header flags")?;
        let header = Header {
            tag: Tag::from_number(number).ok_or(DecodeError::UnknownTag { number })?,
            body_length: reader.u32("body length")?,
            payload_length: reader.u32("payload length")?,
            payload_checksum: reader.u32("payload checksum")?,
            sequence: reader.u64("sequence")?,
            body_checksum: reader.u32("body checksum")?,
        };
        header.check_rules()?;
        Ok(header)
    }

    /// The header's bytes, its own checksum with them. Checks nothing.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let (checked, own) = bytes.split_at_mut(CHECKED_BYTES);
        self.put_fields(checked);
        own.copy_from_slice(&payload_checksum(checked).to_le_bytes());
        bytes
    }

    /// All but the header's own checksum, one field behind the other.
    fn put_fields(&self, checked: &mut [u8]) {
        let tag = (self.tag as u16).to_le_bytes();
        let flags = 0u16.to_le_bytes();
        let lengths = [self.body_length, self.payload_length, self.payload_checksum].map(u32::to_le_bytes);
        let sequence = self.sequence.to_le_bytes();
        let body_checksum = self.body_checksum.to_le_bytes();
        let fields = [&tag[..], &flags, lengths.as_flattened(), &sequence, &body_checksum];
        for (place, byte) in checked.iter_mut().zip(fields.into_iter().flatten()) {
            *place = *byte;
        }
    }

    /// Whether these bytes are the body that the header announces.
    pub fn check_body(&self, body: &[u8]) -> Result<(), DecodeError> {
        if u32::try_from(body.len()) != Ok(self.body_length) {
            return Err(DecodeError::BodyMissing { named: self.body_length, got: body.len() });
        }
        let computed = payload_checksum(body);
        if computed != self.body_checksum {
            return Err(DecodeError::BodyChecksum { tag: self.tag, named: self.body_checksum, computed });
        }
        Ok(())
    }

    /// The rules of the tag's line in the table. They hold for what is sent as for what is read.
    pub(super) fn check_rules(&self) -> Result<(), DecodeError> {
        let tag = self.tag;
        let (min, max) = (tag.body_length_min(), tag.body_length_max());
        if !(min..=max).contains(&self.body_length) {
            return Err(DecodeError::BodyLength { tag, length: self.body_length, min, max });
        }
        let max = tag.payload_length_max();
        if self.payload_length > max {
            return Err(DecodeError::PayloadLength { tag, length: self.payload_length.into(), max });
        }
        check_empty("body", self.body_length, self.body_checksum)?;
        check_empty("payload", self.payload_length, self.payload_checksum)?;
        if !tag.sequence_rule().allows(self.sequence) {
            return Err(DecodeError::Sequence { tag, sequence: self.sequence });
        }
        Ok(())
    }
}

/// First of all: of a damaged header, no other error would be true.
fn check_header_checksum(bytes: &[u8; HEADER_BYTES]) -> Result<(), DecodeError> {
    let (checked, own) = bytes.split_at(CHECKED_BYTES);
    let named = Reader::new(own).u32("header checksum")?;
    let computed = payload_checksum(checked);
    if named == computed { Ok(()) } else { Err(DecodeError::HeaderChecksum { named, computed }) }
}

fn check_empty(part: &'static str, length: u32, checksum: u32) -> Result<(), DecodeError> {
    if length == 0 && checksum != 0 {
        return Err(DecodeError::EmptyChecksum { part, checksum });
    }
    Ok(())
}
