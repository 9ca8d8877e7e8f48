//! The rules of placed writes and their acknowledgements: each breach is refused, when reading and before sending.

mod common;

use common::{changed, error, put};
use linerate_wire::error::DecodeError;
use linerate_wire::frame::{Ack, Frame, PAYLOAD_BYTES_MAX, RUNS_MAX, Write, encode_ack, encode_write};
use linerate_wire::message::{Message, Outcome, Run};

#[test]
fn a_write_whose_runs_and_payload_differ_is_refused() {
    for payload in [0u32, 0x2fff, 0x3001, PAYLOAD_BYTES_MAX] {
        let bytes = changed("write", |bytes| {
            bytes[8..12].copy_from_slice(&payload.to_le_bytes());
            if payload == 0 {
                bytes[12..16].fill(0);
            }
        });
        assert_eq!(error(&bytes), DecodeError::PayloadSum { payload, runs: 0x3000 });
    }
    let zeroes_counted_as_data = changed("write of zeroes", put(32 + 4, [1, 0, 0, 0]));
    assert_eq!(error(&zeroes_counted_as_data), DecodeError::PayloadSum { payload: 0, runs: u64::MAX });
}

#[test]
fn a_sum_of_runs_that_wraps_to_the_payload_is_refused() {
    // 2^64 - 0x1000 and 0x4000 wrap to the 0x3000 of the payload.
    let bytes = changed("write", |bytes| {
        bytes[40..48].fill(0);
        bytes[48..56].copy_from_slice(&0u64.wrapping_sub(0x1000).to_le_bytes());
        bytes[64..72].copy_from_slice(&0x4000u64.to_le_bytes());
    });
    assert_eq!(error(&bytes), DecodeError::PayloadSum { payload: 0x3000, runs: u64::MAX });
}

#[test]
fn empty_and_overflowing_runs_are_refused() {
    for at in [40, 56, 72] {
        let empty = error(&changed("write", put(at + 8, [0; 8])));
        assert!(matches!(empty, DecodeError::EmptyRun { .. }), "{empty}");
        let over = error(&changed("write", put(at, [0xff; 8])));
        assert!(matches!(over, DecodeError::RunOverflow { offset: u64::MAX, .. }), "{over}");
    }
    let mut out = Vec::new();
    for run in [Run { offset: 5, length: 0 }, Run { offset: 2, length: u64::MAX }] {
        assert!(encode_write(&mut out, 1, 0, &[], &[run], 0).is_err());
        assert!(out.is_empty(), "half a frame was left to be sent");
    }
}

#[test]
fn run_counts_that_do_not_fit_are_refused() {
    let none = changed("write", put(36, [0; 4]));
    assert_eq!(error(&none), DecodeError::NoRuns);
    let more_than_there = changed("write", put(38, [2, 0]));
    assert_eq!(error(&more_than_there), DecodeError::Truncated { what: "WRITE runs", needed: 64, left: 48 });
    let fewer_than_there = changed("write", put(38, [0, 0]));
    assert_eq!(error(&fewer_than_there), DecodeError::Trailing { what: "WRITE", left: 16 });
    let too_many = changed("write", put(36, [0xff; 4]));
    assert_eq!(error(&too_many), DecodeError::TooMany { what: "WRITE runs", count: 131_070, max: RUNS_MAX });
}

#[test]
fn the_most_runs_and_bytes_pass_and_one_more_does_not() {
    let run = Run { offset: 0, length: 8192 };
    let mut out = Vec::new();
    encode_write(&mut out, 1, 0, &[run; RUNS_MAX], &[], 7).unwrap();
    let taken = common::decode(&out).unwrap();
    assert_eq!(taken.payload_length, PAYLOAD_BYTES_MAX);
    assert!(encode_write(&mut out, 1, 0, &[run; RUNS_MAX], &[run], 7).is_err());
    let longer = Run { offset: 0, length: u64::from(PAYLOAD_BYTES_MAX) + 1 };
    assert!(encode_write(&mut out, 1, 0, &[longer], &[], 7).is_err());
    out = b"of before".to_vec();
    assert!(encode_write(&mut out, 1, 0, &[Run { offset: 0, length: 1 << 40 }], &[], 7).is_err());
    assert!(out.is_empty(), "a frame of before was left to be sent");
    assert!(encode_write(&mut out, 1, 0, &[], &[], 0).is_err());
    assert!(encode_write(&mut out, 0, 0, &[run], &[], 7).is_err(), "frames are numbered from 1");
}

#[test]
fn a_payload_goes_with_writes_and_probes_only() {
    let mut out = Vec::new();
    let write = Frame::Write(Write {
        region: 0,
        data: vec![Run { offset: 0, length: 10 }],
        zero: vec![],
        without_checksum: false,
    });
    assert!(write.encode(1, 10, 3, &mut out).is_ok());
    assert!(write.encode(1, 11, 3, &mut out).is_err());
    assert!(Frame::Outcome(Outcome::Pending).encode(0, 1, 3, &mut out).is_err());
    assert!(out.is_empty());
}

#[test]
fn damaged_frames_out_of_order_are_refused() {
    // The sample ACK of 9 refuses 3 and 9: repeated, descending, 0, beyond what was applied.
    for (first, second) in [(3u64, 3u64), (9, 3), (0, 9), (3, 10)] {
        let bytes = changed("ack", |bytes| {
            bytes[40..48].copy_from_slice(&first.to_le_bytes());
            bytes[48..56].copy_from_slice(&second.to_le_bytes());
        });
        let refused = error(&bytes);
        assert!(matches!(refused, DecodeError::DamagedOrder { .. }), "{first} {second}: {refused}");
        assert!(encode_ack(&mut Vec::new(), 9, &[first, second]).is_err());
    }
    let fenced = Message::Fenced { channel: 0, applied: 4, damaged: vec![5] };
    assert!(fenced.encode(&mut Vec::new()).is_err());
}

#[test]
fn more_damaged_frames_than_the_cap_are_refused() {
    let damaged: Vec<u64> = (1..=512).collect();
    let ack = Frame::Ack(Ack { damaged: damaged.clone() });
    let mut out = Vec::new();
    ack.encode(512, 0, 0, &mut out).unwrap();
    assert_eq!(common::decode(&out).unwrap().frame, ack);
    let over: Vec<u64> = (1..=513).collect();
    assert!(encode_ack(&mut out, 513, &over).is_err());
    assert!(Message::Fenced { channel: 0, applied: 513, damaged: over }.encode(&mut out).is_err());
    let named = error(&changed("ack", put(32, 513u16.to_le_bytes())));
    assert_eq!(named, DecodeError::TooMany { what: "damaged frames", count: 513, max: 512 });
}
