//! What the tests share: sample frames of every kind, and strategies that make any.

#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::expect_used, reason = "test code: it should fail at this line")]

pub mod samples;
pub mod strategies;

use linerate_wire::DecodeError;
use linerate_wire::frame::{Frame, HEADER_BYTES, Header, Tag};
use linerate_wire::payload_checksum;

/// A frame with all that the header says of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub frame: Frame,
    pub sequence: u64,
    pub payload_length: u32,
    pub payload_checksum: u32,
}

impl Sample {
    /// A frame without payload.
    pub fn bare(frame: Frame, sequence: u64) -> Sample {
        Sample { frame, sequence, payload_length: 0, payload_checksum: 0 }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.frame
            .encode(self.sequence, self.payload_length, self.payload_checksum, &mut out)
            .expect("samples keep the rules");
        out
    }
}

/// Reads header and body that fill all of `bytes`.
pub fn decode(bytes: &[u8]) -> Result<Sample, DecodeError> {
    let Some((head, body)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(DecodeError::Truncated { what: "header", needed: HEADER_BYTES, left: bytes.len() });
    };
    let header = Header::decode(head)?;
    let frame = Frame::decode(&header, body);
    if header.tag == Tag::Write {
        check_decode_into(&header, body, &frame);
    }
    Ok(Sample {
        frame: frame?,
        sequence: header.sequence,
        payload_length: header.payload_length,
        payload_checksum: header.payload_checksum,
    })
}

/// The way that reuses a WRITE takes and refuses exactly what the other does.
fn check_decode_into(header: &Header, body: &[u8], expected: &Result<Frame, DecodeError>) {
    let mut write = samples::write();
    let reused = write.decode_into(header, body).map(|()| Frame::Write(write));
    assert_eq!(&reused, expected);
}

/// Puts right both checksums and the body length after a test has changed something, so that what is refused is refused
/// for the change itself.
pub fn reseal(bytes: &mut [u8]) {
    let body_length = (bytes.len() - HEADER_BYTES) as u32;
    bytes[4..8].copy_from_slice(&body_length.to_le_bytes());
    let body_checksum = payload_checksum(&bytes[HEADER_BYTES..]);
    bytes[24..28].copy_from_slice(&body_checksum.to_le_bytes());
    reseal_header(bytes);
}

/// Puts right the header's own checksum only.
pub fn reseal_header(bytes: &mut [u8]) {
    let checksum = payload_checksum(&bytes[..28]);
    bytes[28..32].copy_from_slice(&checksum.to_le_bytes());
}

/// The sample of this name, changed, with its checksums put right.
pub fn changed(name: &str, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let (_, sample) =
        samples::all().into_iter().find(|(other, _)| *other == name).expect("a sample of that name");
    let mut bytes = sample.encode();
    change(&mut bytes);
    reseal(&mut bytes);
    bytes
}

/// One byte, for [`changed`].
pub fn set(at: usize, value: u8) -> impl FnOnce(&mut Vec<u8>) {
    move |bytes| bytes[at] = value
}

pub fn put<const N: usize>(at: usize, value: [u8; N]) -> impl FnOnce(&mut Vec<u8>) {
    move |bytes| bytes[at..at + N].copy_from_slice(&value)
}

/// What header and body are refused for.
pub fn error(bytes: &[u8]) -> DecodeError {
    decode(bytes).expect_err("must be refused")
}
