//! Every text, list and byte string of a message: the longest one passes, one more is refused in both directions.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code: it should fail at this line"
)]

use linerate_wire::error::DecodeError;
use linerate_wire::frame::CONTROL_BODY_MAX;
use linerate_wire::message::{
    Endpoint, Extent, LastLook, Message, MessageTag, Mode, RegionInfo, UnknownMode,
};

/// Encodes with `length` of something; the cap is the longest that passes.
fn check(what: &str, cap: usize, message: impl Fn(usize) -> Message) {
    let longest = message(cap);
    let mut bytes = Vec::new();
    longest.encode(&mut bytes).unwrap_or_else(|error| panic!("{what} of {cap}: {error:?}"));
    assert_eq!(Message::decode(&bytes).as_ref(), Ok(&longest), "{what} of {cap}");
    let refused = message(cap + 1).encode(&mut Vec::new()).expect_err(what).0;
    assert!(
        matches!(refused, DecodeError::TooLong { .. } | DecodeError::TooMany { .. }),
        "{what}: {refused}"
    );
}

fn offer(guest: usize, description: usize) -> Message {
    let mode = Ok(Mode::Direct { regions: vec![] });
    Message::Offer { guest: "g".repeat(guest), description: "d".repeat(description), mode }
}

fn offered(mode: Result<Mode, UnknownMode>) -> Message {
    Message::Offer { guest: String::new(), description: String::new(), mode }
}

fn regions(count: usize, name: usize) -> Vec<RegionInfo> {
    vec![RegionInfo { id: 1, name: "n".repeat(name), size: 1 }; count]
}

fn endpoints(count: usize, interface: usize) -> Message {
    let endpoint = Endpoint {
        interface: "i".repeat(interface),
        address: "[2001:db8::1]:1".parse().unwrap(),
        prefix: 128,
        speed_mbps: u32::MAX,
        mtu: u32::MAX,
        numa: i32::MIN,
        up: true,
        rdma_port: u16::MAX,
    };
    Message::Admitted { endpoints: vec![endpoint; count] }
}

fn prepared(regions: Vec<RegionInfo>, touched: usize) -> Message {
    Message::Prepared { regions, touched: vec![Extent::new(0, 0, 4096); touched] }
}

#[test]
fn the_longest_passes_and_one_more_does_not() {
    check("guest name", 255, |length| offer(length, 0));
    check("description", 1 << 20, |length| offer(0, length));
    check("regions", 64, |count| prepared(regions(count, 255), 0));
    check("region name", 255, |length| prepared(regions(1, length), 0));
    check("touched runs", 1024, |count| prepared(vec![], count));
    check("endpoints", 256, |count| endpoints(count, 64));
    check("interface", 64, |length| endpoints(1, length));
    check("device state", 256 << 10, |length| Message::DeviceState { bytes: vec![7; length] });
    check("stream channels", 255, |channels| offered(Ok(Mode::Streams { channels: channels as u16 })));
    check("regions of an offer", 64, |count| offered(Ok(Mode::Handover { regions: regions(count, 255) })));
    check("unknown mode", 64 << 10, |length| {
        offered(Err(UnknownMode { number: 4, fields: vec![7; length] }))
    });
    check("run state", 64, |length| Message::LastLook(LastLook::Stopped { run_state: "s".repeat(length) }));
    check("damaged", 512, |count| Message::Fenced {
        channel: 0,
        applied: 513,
        damaged: (1..=count as u64).collect(),
    });
}

#[test]
fn the_largest_offer_fits_into_a_frame() {
    let largest = Message::Offer {
        guest: "g".repeat(255),
        description: "d".repeat(1 << 20),
        mode: Ok(Mode::Direct { regions: regions(64, 255) }),
    };
    let mut bytes = Vec::new();
    linerate_wire::frame::encode_control(&mut bytes, 1, &largest).unwrap();
    assert!(bytes.len() <= CONTROL_BODY_MAX as usize);
}

/// Message number and reserved, then the fields.
fn named(tag: MessageTag, fields: &[u8]) -> DecodeError {
    let bytes = [&(tag as u16).to_le_bytes()[..], &[0, 0], fields].concat();
    Message::decode(&bytes).expect_err("must be refused")
}

#[test]
fn counts_over_the_cap_are_refused_before_the_bytes_are_looked_for() {
    let over = DecodeError::TooLong { what: "guest name", length: 256, max: 255 };
    assert_eq!(named(MessageTag::Offer, &[0, 1]), over);
    let over = DecodeError::TooLong { what: "guest description", length: u32::MAX as usize, max: 1 << 20 };
    assert_eq!(named(MessageTag::Offer, &[0, 0, 0xff, 0xff, 0xff, 0xff]), over);
    let over = DecodeError::TooMany { what: "regions", count: 65, max: 64 };
    assert_eq!(named(MessageTag::Prepared, &[65, 0]), over);
    let over = DecodeError::TooMany { what: "touched runs", count: 1025, max: 1024 };
    assert_eq!(named(MessageTag::Prepared, &[0, 0, 1, 4]), over);
    let over = DecodeError::TooMany { what: "endpoints", count: 257, max: 256 };
    assert_eq!(named(MessageTag::Admitted, &[1, 1]), over);
    let over = DecodeError::TooLong { what: "device state", length: (256 << 10) + 1, max: 256 << 10 };
    assert_eq!(named(MessageTag::DeviceState, &[1, 0, 4, 0]), over);
    let over = DecodeError::TooLong { what: "fault detail", length: 1025, max: 1024 };
    assert_eq!(named(MessageTag::Abort, &[1, 0, 1, 1, 1, 4]), over);
}

/// An offer of nothing in a mode with these fields.
fn offer_with(number: u8, fields: &[u8]) -> Vec<u8> {
    let length = (fields.len() as u32).to_le_bytes();
    [&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, number][..], &length, fields].concat()
}

#[test]
fn unknown_mode_is_read_and_named_and_a_known_one_has_its_own_fields_only() {
    let Ok(Message::Offer { mode: Err(unknown), .. }) = Message::decode(&offer_with(4, &[1, 2, 3])) else {
        panic!("an offer that can be refused with a sentence")
    };
    assert!(unknown.to_string().contains("in mode 4, which this agent does not know"), "{unknown}");
    let none = DecodeError::UnknownNumber { what: "mode", number: 0 };
    assert_eq!(Message::decode(&offer_with(0, &[])), Err(none));
    let trailing = DecodeError::Trailing { what: "mode", left: 1 };
    assert_eq!(Message::decode(&offer_with(2, &[1, 0, 9])), Err(trailing));
    let short = DecodeError::Truncated { what: "regions", needed: 2, left: 1 };
    assert_eq!(Message::decode(&offer_with(1, &[1])), Err(short));
    let known = offered(Err(UnknownMode { number: 2, fields: vec![1, 0] }));
    known.encode(&mut Vec::new()).expect_err("a known mode has one encoding");
}

#[test]
fn texts_that_are_not_utf8_are_refused() {
    let refused = named(MessageTag::Offer, &[2, 0, b'a', 0xff]);
    assert!(matches!(refused, DecodeError::NotUtf8 { what: "guest name", .. }), "{refused}");
    assert!(std::error::Error::source(&refused).is_some());
}
