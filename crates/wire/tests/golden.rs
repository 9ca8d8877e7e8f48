//! Every frame and message against bytes that are written out here. If one of these fails, the protocol has changed:
//! that needs a new version, not new bytes.

mod common;

use common::samples;
use linerate_wire::frame::{Frame, Tag};
use linerate_wire::message::{Message, MessageTag};

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn frames_have_these_bytes() {
    let samples = samples::frames();
    assert_eq!(samples.len(), FRAMES.len());
    for ((name, sample), (golden_name, golden)) in samples.into_iter().zip(FRAMES) {
        assert_eq!(name, *golden_name);
        assert_eq!(hex(&sample.encode()), hex(&unhex(golden)), "{name} is encoded differently");
        assert_eq!(common::decode(&unhex(golden)), Ok(sample), "{name} is decoded differently");
    }
}

#[test]
fn messages_have_these_bytes() {
    let samples = samples::messages();
    assert_eq!(samples.len(), MESSAGES.len());
    for ((name, message), (golden_name, golden)) in samples.into_iter().zip(MESSAGES) {
        assert_eq!(name, *golden_name);
        let mut bytes = Vec::new();
        message.encode(&mut bytes).unwrap();
        assert_eq!(hex(&bytes), hex(&unhex(golden)), "{name} is encoded differently");
        assert_eq!(Message::decode(&unhex(golden)), Ok(message), "{name} is decoded differently");
    }
}

#[test]
fn every_tag_and_message_has_a_sample() {
    let frames: Vec<Frame> = samples::frames().into_iter().map(|(_, sample)| sample.frame).collect();
    for tag in Tag::ALL {
        assert!(frames.iter().any(|frame| frame.tag() == *tag), "no sample of {tag}");
    }
    let messages = samples::messages();
    for tag in MessageTag::ALL {
        assert!(messages.iter().any(|(_, message)| message.tag() == *tag), "no sample of {tag}");
    }
}

/// Header (tag, flags, body length, payload length, payload checksum, sequence, body checksum, header checksum), then
/// body.
const FRAMES: &[(&str, &str)] = &[
    (
        "hello",
        "0100 0000 40000000 00000000 00000000 0000000000000000 48ca13cd 0f24b159
         4c4e525401000300a0a1a2a3a4a5a6a7a8a9aaabacadaeaf0300020005000100
         000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
    ),
    (
        "welcome",
        "0200 0000 10000000 00000000 00000000 0000000000000000 4eaff9ca 4e2083ee
         01000000000000000403020100000000",
    ),
    (
        "refuse",
        "0300 0000 2b000000 00000000 00000000 0000000000000000 194b23e1 6bbcf69c
         0a00030225003820476942206e65656465642c203520476942206672656520e2
         809320c3bc626572616c6c",
    ),
    (
        "outcome",
        "0400 0000 04000000 00000000 00000000 0000000000000000 466800f7 82e297c0
         02000000",
    ),
    (
        "write",
        "1000 0000 38000000 00300000 44332211 0700000000000000 34d46da1 975d46ae
         0100000002000100001000000000000000200000000000000000000001000000
         001000000000000000800000000000000000000000010000",
    ),
    (
        "write of zeroes",
        "1000 0000 18000000 00000000 00000000 ffffffffffffffff 8817dd4f 67f11954
         00000000000001000000000000000000ffffffffffffffff",
    ),
    ("probe", "1100 0000 00000000 09000000 839206e3 0100000000000000 00000000 27baec74"),
    ("ping", "1100 0000 00000000 00000000 00000000 0200000000000000 00000000 170ddc32"),
    (
        "ack",
        "2000 0000 18000000 00000000 00000000 0900000000000000 0d0677ed f35c2b1e
         020000000000000003000000000000000900000000000000",
    ),
    (
        "ack of nothing",
        "2000 0000 08000000 00000000 00000000 0000000000000000 8ab2288c e2522a5f
         0000000000000000",
    ),
    (
        "control",
        "3000 0000 08000000 00000000 00000000 0c00000000000000 e2512a99 933b69de
         0600000005000000",
    ),
    ("control ack", "3100 0000 00000000 00000000 00000000 0c00000000000000 00000000 92f05d10"),
    ("keepalive", "3200 0000 00000000 00000000 00000000 0000000000000000 00000000 8e9c2ab8"),
    (
        "write without checksum",
        "1000 0000 28000000 00300000 00000000 0800000000000000 91952417 f1a01733
         0100010002000000001000000000000000200000000000000000000001000000
         0010000000000000",
    ),
    (
        "claim",
        "1200 0000 18000000 00000000 00000000 0000000000000000 e2595e52 f50ce1c9
         010000000000000000006000000000000000200000000000",
    ),
    (
        "grant",
        "2100 0000 20000000 00000000 00000000 0000000000000000 8a2a095e b1c0b3ae
         01000000d4c3b2a10000600000000000000020000000000000006034127f0000",
    ),
    (
        "lists",
        "0500 0000 2a000000 00000000 00000000 0000000000000000 4186a150 94960283
         0100c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5
         c5c50700000000000000",
    ),
    ("no lists", "0500 0000 02000000 00000000 00000000 0000000000000000 d27761f1 cf496cb8 0000"),
];

const MESSAGES: &[(&str, &str)] = &[
    (
        "offer",
        "0100 0000 040076c3a4620a0000007b2263707573223a347d 01 20000000
         020000000000000001000000060070632e72616d010000002000000000000000",
    ),
    ("offer by streams", "0100 0000 040076c3a4620a0000007b2263707573223a347d 02 02000000 0400"),
    (
        "offer to hand over",
        "0100 0000 040076c3a4620a0000007b2263707573223a347d 03 20000000
         020000000000000001000000060070632e72616d010000002000000000000000",
    ),
    ("offer in an unknown mode", "0100 0000 040076c3a4620a0000007b2263707573223a347d 09 02000000 0102"),
    (
        "admitted",
        "0200 0000 02000600656e73316630a861000028230000010000000118e81c0400e81cc000
         0207030062723000000000dc050000ffffffff004000000600e81cfe80000000
         00000000000000000000010000000003000000",
    ),
    ("prepare", "0300 0000"),
    (
        "prepared",
        "0400 0000 020000000000000001000000060070632e72616d0100000020000000
         00000000 0100 0100 0030000000000000 0020000000000000",
    ),
    ("round mark", "0500 0000 03000000ab89674523010000"),
    ("fence", "0600 0000 05000000"),
    (
        "fenced",
        "0700 0000 05000000e80300000000000003000100000000000000e70300000000
         0000e803000000000000",
    ),
    ("stopped", "1500 0000 0102000000 7b7d"),
    ("ram complete", "0800 0000 00"),
    ("ram complete with digest", "0800 0000 011032547698badcfe"),
    ("ram sealed", "0900 0000"),
    ("device state", "0a00 0000 080000005145564d00000003"),
    ("device state end", "0b00 0000 0000010000000000"),
    ("loaded", "0c00 0000"),
    ("commit", "0d00 0000"),
    ("taken over", "0e00 0000 d204000000000000 52aa080000000000"),
    ("finished", "0f00 0000"),
    ("last look", "1600 0000 01"),
    ("last look at one that stopped", "1600 0000 02 0800 696f2d6572726f72"),
    ("last look at one that ended", "1600 0000 03"),
    (
        "abort",
        "1000 0000 0a00030225003820476942206e65656465642c203520476942206672
         656520e2809320c3bc626572616c6c",
    ),
    ("aborted", "1100 0000"),
    ("stream open", "1200 0000 0302 01 00 0000800000000000 0300 6e6264"),
    ("stream opened", "1200 0000 0302 02 00 0000100000000000"),
    ("stream refused", "1200 0000 0302 03 00 0e00 6e6f626f6479206c697374656e73"),
    ("stream credit", "1200 0000 0302 04 00 ab89674523010000"),
    ("stream end", "1200 0000 0302 05 00 0010000000000000"),
    ("stream reset", "1200 0000 0302 06 00"),
    ("stream stop", "1200 0000 0302 07 00"),
    ("stream closed", "1200 0000 0302 08 00"),
    ("streams prepared", "1400 0000 0400 01 00"),
];
