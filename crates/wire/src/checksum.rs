//! crc32c (CRC-32/ISCSI), the one checksum on the wire: over headers, bodies and payloads.
//!
//! It guards against damage, not against an attacker; TLS does that.

use crc_fast::{CrcAlgorithm, Digest};

/// crc32c of bytes that lie in one piece. 0 for no bytes.
pub fn payload_checksum(bytes: &[u8]) -> u32 {
    low_half(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes))
}

/// crc32c of a payload that comes in pieces, such as the runs of a placed write.
pub struct PayloadChecksum(Digest);

impl PayloadChecksum {
    /// Nothing seen yet; [`PayloadChecksum::finish`] would give 0.
    pub fn new() -> PayloadChecksum {
        PayloadChecksum(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Goes on from what [`PayloadChecksum::finish`] gave for the pieces before. Two sums of pieces could be combined
    /// as well, but that takes longer than to sum some tens of KiB.
    pub fn after(before: u32) -> PayloadChecksum {
        PayloadChecksum(Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, (!before).into()))
    }

    /// Takes the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all pieces in order.
    pub fn finish(self) -> u32 {
        low_half(self.0.finalize())
    }
}

impl Default for PayloadChecksum {
    fn default() -> PayloadChecksum {
        PayloadChecksum::new()
    }
}

impl std::fmt::Debug for PayloadChecksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PayloadChecksum(…)")
    }
}

/// The library hands out every algorithm's result in 64 bits; a crc32's upper half is empty.
fn low_half(value: u64) -> u32 {
    (value & u64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_published_check_value() {
        assert_eq!(payload_checksum(b"123456789"), 0xe306_9283);
        assert_eq!(payload_checksum(b""), 0);
        // RFC 3720, appendix B.4: 32 bytes of zeroes.
        assert_eq!(payload_checksum(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn pieces_give_the_same_as_one_piece() {
        let bytes: Vec<u8> = (0..10_000u32).map(|number| (number * 7 % 251) as u8).collect();
        for cut in [0, 1, 15, 16, 17, 4096, 9_999, 10_000] {
            let (head, tail) = bytes.split_at(cut);
            let mut checksum = PayloadChecksum::new();
            checksum.update(head);
            checksum.update(tail);
            assert_eq!(checksum.finish(), payload_checksum(&bytes), "cut at {cut}");
            let mut checksum = PayloadChecksum::after(payload_checksum(head));
            checksum.update(tail);
            assert_eq!(checksum.finish(), payload_checksum(&bytes), "after {cut}");
        }
        assert_eq!(PayloadChecksum::new().finish(), 0);
    }
}
