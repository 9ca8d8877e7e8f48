//! The rules of headers, of the opening frames and of reserved fields: each breach is refused for what it is.

mod common;

use common::{changed, error, put, reseal_header, samples, set};
use linerate_wire::error::DecodeError;
use linerate_wire::frame::{CONTROL_BODY_MAX, Frame, Header, Hello, PAYLOAD_BYTES_MAX, RUNS_MAX, Tag};

/// A header alone, for bodies too long to write out.
fn header_error(tag: Tag, body: u32, payload: u32, sequence: u64) -> Option<DecodeError> {
    let header = Header {
        tag,
        body_length: body,
        payload_length: payload,
        payload_checksum: 0,
        body_checksum: 0,
        sequence,
    };
    Header::decode(&header.encode()).err()
}

#[test]
fn every_reserved_bit_is_refused() {
    // Byte ranges that must be zero, in the whole frame.
    let reserved: &[(&str, std::ops::Range<usize>)] = &[
        ("keepalive", 2..4),
        ("hello", 32 + 25..32 + 26),
        ("welcome", 32 + 2..32 + 8),
        ("outcome", 32 + 1..32 + 4),
        ("write", 32 + 3..32 + 4),
        ("claim", 32 + 2..32 + 8),
        ("grant", 32 + 2..32 + 4),
        ("ack", 32 + 2..32 + 8),
        ("commit", 32 + 2..32 + 4),
        // In the address of the first endpoint: name of 6 bytes, 16 bytes of numbers, the family.
        ("admitted", 32 + 4 + 2 + 2 + 6 + 16 + 1..32 + 4 + 2 + 2 + 6 + 16 + 2),
    ];
    for (name, range) in reserved {
        for at in range.clone() {
            for bit in 0..8 {
                let refused = error(&changed(name, |bytes| bytes[at] ^= 1 << bit));
                assert!(
                    matches!(refused, DecodeError::Reserved { .. }),
                    "{name} byte {at} bit {bit}: {refused}"
                );
            }
        }
    }
}

#[test]
fn unknown_numbers_are_refused() {
    let table: &[(&str, usize, u8)] = &[
        ("hello", 32 + 24, 0),
        ("hello", 32 + 24, 12),
        ("outcome", 32, 0),
        ("outcome", 32, 8),
        ("refuse", 32, 0),
        ("refuse", 32, 200),
        ("refuse", 32 + 2, 0),
        ("refuse", 32 + 2, 11),
        ("refuse", 32 + 3, 0),
        ("refuse", 32 + 3, 3),
        ("stopped", 32 + 4, 2),
        ("ram complete", 32 + 4, 2),
        ("last look", 32 + 4, 0),
        ("last look", 32 + 4, 4),
        ("stream open", 32 + 4 + 2, 0),
        ("stream open", 32 + 4 + 2, 9),
        // First endpoint: carrier, prefix, family.
        ("admitted", 32 + 4 + 2 + 2 + 6 + 12, 2),
        ("admitted", 32 + 4 + 2 + 2 + 6 + 13, 33),
        ("admitted", 32 + 4 + 2 + 2 + 6 + 16, 5),
        ("write", 32 + 2, 2),
    ];
    for (name, at, value) in table {
        let refused = error(&changed(name, set(*at, *value)));
        assert!(matches!(refused, DecodeError::UnknownNumber { .. }), "{name} {at} {value}: {refused}");
    }
}

#[test]
fn unknown_tags_and_messages_are_refused() {
    for number in 0..=u16::MAX {
        let bytes = changed("keepalive", put(0, number.to_le_bytes()));
        if Tag::from_number(number).is_none() {
            assert_eq!(error(&bytes), DecodeError::UnknownTag { number });
        }
    }
    for number in [0, 0x17, 0xffff] {
        assert_eq!(
            error(&changed("commit", put(32, u16::to_le_bytes(number)))),
            DecodeError::UnknownMessage { number }
        );
    }
}

#[test]
fn lengths_over_the_caps_of_a_tag_are_refused_by_the_header_alone() {
    for &tag in Tag::ALL {
        let (min, max) = (tag.body_length_min(), tag.body_length_max());
        for length in [max + 1, u32::MAX] {
            let refused = header_error(tag, length, 0, 1);
            assert_eq!(refused, Some(DecodeError::BodyLength { tag, length, min, max }));
        }
        if min > 0 {
            let refused = header_error(tag, min - 1, 0, 1);
            assert_eq!(refused, Some(DecodeError::BodyLength { tag, length: min - 1, min, max }));
        }
        let max = tag.payload_length_max();
        for length in [max + 1, u32::MAX] {
            let refused = header_error(tag, min, length, 1);
            assert_eq!(refused, Some(DecodeError::PayloadLength { tag, length: length.into(), max }));
        }
    }
}

#[test]
fn the_caps_are_these() {
    let caps: Vec<_> = Tag::ALL
        .iter()
        .map(|tag| (tag.body_length_min(), tag.body_length_max(), tag.payload_length_max()))
        .collect();
    assert_eq!((RUNS_MAX, PAYLOAD_BYTES_MAX, CONTROL_BODY_MAX), (512, 4 << 20, 2 << 20));
    assert_eq!(
        caps,
        [
            (64, 64, 0),
            (16, 16, 0),
            (6, 1030, 0),
            (4, 4, 0),
            (2, 82, 0),
            (24, 8200, 4 << 20),
            (0, 0, 4 << 20),
            (24, 24, 0),
            (8, 4104, 0),
            (32, 32, 0),
            (4, 2 << 20, 0),
            (0, 0, 0),
            (0, 0, 0),
        ]
    );
}

#[test]
fn the_sequence_must_suit_the_tag() {
    for &tag in Tag::ALL {
        let sequence = match tag {
            Tag::Hello
            | Tag::Welcome
            | Tag::Refuse
            | Tag::Outcome
            | Tag::Lists
            | Tag::Claim
            | Tag::Grant
            | Tag::Keepalive => 1,
            Tag::Write | Tag::Probe | Tag::Control => 0,
            Tag::Ack | Tag::ControlAck => continue,
        };
        let refused = header_error(tag, tag.body_length_min(), 0, sequence);
        assert_eq!(refused, Some(DecodeError::Sequence { tag, sequence }));
    }
}

#[test]
fn a_checksum_over_nothing_must_be_zero() {
    let empty_payload = error(&changed("ping", set(12, 1)));
    assert_eq!(empty_payload, DecodeError::EmptyChecksum { part: "payload", checksum: 1 });
    let (_, ping) = samples::frames().remove(7);
    let mut bytes = ping.encode();
    bytes[24] = 1;
    reseal_header(&mut bytes);
    assert_eq!(error(&bytes), DecodeError::EmptyChecksum { part: "body", checksum: 1 });
}

#[test]
fn a_body_of_another_length_is_refused() {
    let (_, ack) = samples::frames().remove(8);
    let mut bytes = ack.encode();
    let named = bytes.len() as u32 - 32;
    bytes.push(0);
    assert_eq!(error(&bytes), DecodeError::BodyMissing { named, got: 25 });
    bytes.truncate(32 + 23);
    assert_eq!(error(&bytes), DecodeError::BodyMissing { named, got: 23 });
}

#[test]
fn strangers_and_odd_version_ranges_are_refused() {
    assert_eq!(error(&changed("hello", set(32, b'G'))), DecodeError::Magic);
    assert_eq!(
        error(&changed("hello", put(36, [0, 0, 1, 0]))),
        DecodeError::VersionRange { min: 0, max: 1 },
        "0 is no version"
    );
    assert_eq!(error(&changed("hello", put(36, [2, 0, 1, 0]))), DecodeError::VersionRange { min: 2, max: 1 });
    let upside_down = Hello { version_min: 2, version_max: 1, ..samples::hello() };
    assert!(Frame::Hello(upside_down).encode(0, 0, 0, &mut Vec::new()).is_err());
}
