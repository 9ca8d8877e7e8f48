//! Bytes that a peer should not send, by the thousand: nothing panics, and nothing is taken for what it is not.

mod common;

use common::{error, reseal, samples, strategies};
use linerate_wire::error::DecodeError;
use linerate_wire::frame::{HEADER_BYTES, Header, Tag};
use linerate_wire::message::Message;
use proptest::prelude::*;

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = common::decode(&bytes);
        let _ = Message::decode(&bytes);
    }

    #[test]
    fn arbitrary_bodies_under_a_good_header_do_not_panic(
        tag in proptest::sample::select(Tag::ALL),
        body in proptest::collection::vec(any::<u8>(), 0..300),
        sequence in 0u64..3,
    ) {
        let mut bytes = Header {
            tag, body_length: 0, payload_length: 0, payload_checksum: 0, body_checksum: 0, sequence,
        }.encode().to_vec();
        bytes.extend(body);
        reseal(&mut bytes);
        let _ = common::decode(&bytes);
    }

    #[test]
    fn arbitrary_fields_of_a_known_message_do_not_panic(
        number in 1u16..=0x11,
        fields in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let bytes = [&number.to_le_bytes()[..], &[0, 0], &fields].concat();
        let _ = Message::decode(&bytes);
    }

    #[test]
    fn every_single_flipped_bit_is_noticed(sample in strategies::sample(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut bytes = sample.encode();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let refused = error(&bytes);
        let damaged = matches!(refused, DecodeError::HeaderChecksum { .. } | DecodeError::BodyChecksum { .. });
        prop_assert!(damaged, "{refused}");
    }

    #[test]
    fn every_truncation_is_refused(sample in strategies::sample(), at in any::<prop::sample::Index>()) {
        let mut bytes = sample.encode();
        bytes.truncate(at.index(bytes.len()));
        error(&bytes);
        // And again with a header that says so.
        if bytes.len() >= HEADER_BYTES && bytes.len() < sample.encode().len() {
            reseal(&mut bytes);
            error(&bytes);
        }
    }

    #[test]
    fn changed_bytes_under_good_checksums_decode_exactly_or_not_at_all(
        sample in strategies::sample(), at in any::<prop::sample::Index>(), value in any::<u8>(),
    ) {
        let mut bytes = sample.encode();
        let at = at.index(bytes.len());
        bytes[at] = value;
        reseal(&mut bytes);
        if let Ok(other) = common::decode(&bytes) {
            prop_assert_eq!(other.encode(), bytes, "one meaning, one encoding");
        }
    }

    #[test]
    fn anything_behind_a_message_is_refused(message in strategies::message()) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes).unwrap();
        bytes.push(0);
        let refused = Message::decode(&bytes).unwrap_err();
        prop_assert_eq!(refused, DecodeError::Trailing { what: message.tag().name(), left: 1 });
    }
}

#[test]
fn every_prefix_of_every_message_is_refused() {
    for (name, message) in samples::messages() {
        let mut bytes = Vec::new();
        message.encode(&mut bytes).unwrap();
        for length in 0..bytes.len() {
            let refused = Message::decode(&bytes[..length]);
            assert!(
                matches!(refused, Err(DecodeError::Truncated { .. })),
                "{name} cut to {length}: {refused:?}"
            );
        }
    }
}
