//! No input makes the codec take more memory than a small multiple of the bytes that really came. Counted over the
//! whole process, so this file has one test and no other.

mod common;

use std::alloc::System;

use linerate_wire::frame::{Frame, HEADER_BYTES, Header, Tag};
use linerate_wire::message::{Message, MessageTag};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// An endpoint takes 24 bytes on the wire and 80 in memory, and lists double as they grow.
const PER_BYTE: usize = 8;
/// For what does not grow with the bytes.
const ASIDE: usize = 4096;

/// Bytes allocated while `work` runs; freed ones count too. More than `limit` only if that was so each time. The test
/// harness's own thread allocates now and then, and what `work` takes it takes again.
fn allocated(limit: usize, work: impl Fn()) -> usize {
    let mut taken = usize::MAX;
    for _ in 0..100 {
        let region = Region::new(COUNTED);
        work();
        taken = taken.min(region.change().bytes_allocated);
        if taken <= limit {
            break;
        }
    }
    taken
}

fn check_message(bytes: &[u8]) {
    let limit = bytes.len() * PER_BYTE + ASIDE;
    let taken = allocated(limit, || drop(Message::decode(bytes)));
    assert!(taken <= limit, "{taken} bytes for {} of {bytes:02x?}", bytes.len());
}

fn check_body(tag: Tag, body: &[u8]) {
    let header = Header {
        tag,
        body_length: body.len() as u32,
        payload_length: 0,
        payload_checksum: 0,
        body_checksum: linerate_wire::payload_checksum(body),
        sequence: 1,
    };
    let limit = body.len() * PER_BYTE + ASIDE;
    let taken = allocated(limit, || drop(Frame::decode(&header, body)));
    assert!(taken <= limit, "{taken} bytes for {tag} of {}", body.len());
}

#[test]
fn memory_is_taken_for_bytes_that_came_only() {
    // A header takes none at all.
    for (_, sample) in common::samples::all() {
        let bytes = sample.encode();
        let head: &[u8; HEADER_BYTES] = bytes.first_chunk().unwrap();
        assert_eq!(allocated(0, || drop(Header::decode(head))), 0);
    }
    // Counts and lengths at their largest with nothing behind them.
    for tag in MessageTag::ALL {
        for fill in [0x01, 0x3f, 0x40, 0x7f, 0xff] {
            for length in 0..32 {
                let mut bytes = [(*tag as u16).to_le_bytes(), [0, 0]].concat();
                bytes.resize(4 + length, fill);
                check_message(&bytes);
            }
        }
    }
    let input = (
        proptest::sample::select(Tag::ALL),
        proptest::sample::select(MessageTag::ALL),
        proptest::collection::vec(prop_oneof![Just(0), Just(1), Just(255), any::<u8>()], 0..600),
    );
    TestRunner::new(Config { cases: 2000, failure_persistence: None, ..Config::default() })
        .run(&input, |(tag, message, bytes)| {
            check_body(tag, &bytes);
            check_message(&[&(message as u16).to_le_bytes()[..], &[0, 0], &bytes].concat());
            Ok(())
        })
        .unwrap();
}
