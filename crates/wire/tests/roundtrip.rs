//! What is encoded is decoded to the same, whatever it is.

mod common;

use common::strategies;
use linerate_wire::fault::{Code, Fault, Side, Step};
use linerate_wire::frame::{
    Frame, HEADER_BYTES, Header, Write, encode_ack, encode_control, encode_write,
    encode_write_without_checksum,
};
use linerate_wire::message::Message;
use proptest::prelude::*;

proptest! {
    #[test]
    fn any_frame_comes_back_as_it_was(sample in strategies::sample()) {
        prop_assert_eq!(common::decode(&sample.encode()), Ok(sample));
    }

    #[test]
    fn any_message_comes_back_as_it_was(message in strategies::message()) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes).unwrap();
        prop_assert_eq!(Message::decode(&bytes), Ok(message));
    }

    #[test]
    fn the_ways_without_copying_give_the_same_bytes(sample in strategies::sample()) {
        let mut out = vec![0xee; 100];
        match &sample.frame {
            Frame::Write(write) => {
                let Write { region, data, zero, without_checksum } = write;
                let (sequence, checksum) = (sample.sequence, sample.payload_checksum);
                match without_checksum {
                    false => encode_write(&mut out, sequence, *region, data, zero, checksum).unwrap(),
                    true => encode_write_without_checksum(&mut out, sequence, *region, data, zero).unwrap(),
                }
            }
            Frame::Ack(ack) => encode_ack(&mut out, sample.sequence, &ack.damaged).unwrap(),
            Frame::Control(message) => encode_control(&mut out, sample.sequence, message).unwrap(),
            _ => return Ok(()),
        }
        prop_assert_eq!(out, sample.encode());
    }
}

#[test]
fn one_write_is_reused_for_all_frames() {
    let mut write = Write::default();
    for (_, sample) in common::samples::frames() {
        let bytes = sample.encode();
        let (head, body) = bytes.split_first_chunk::<HEADER_BYTES>().unwrap();
        let header = Header::decode(head).unwrap();
        match &sample.frame {
            Frame::Write(expected) => {
                write.decode_into(&header, body).unwrap();
                assert_eq!(&write, expected);
            }
            _ => assert!(write.decode_into(&header, body).is_err(), "{} taken for a WRITE", header.tag),
        }
    }
}

#[test]
fn a_long_detail_is_cut_between_characters() {
    // One byte in front, so that the cap falls into the middle of a two-byte character.
    let detail = format!("x{}", "é".repeat(600));
    let fault = Fault::new(Code::Internal, Step::Copy, Side::Source, detail);
    let mut bytes = Vec::new();
    Message::Abort(fault.clone()).encode(&mut bytes).unwrap();
    let Ok(Message::Abort(cut)) = Message::decode(&bytes) else { panic!("no abort came back") };
    assert_eq!(cut.detail.len(), Fault::DETAIL_BYTES_MAX - 1);
    assert!(fault.detail.starts_with(&cut.detail));
}
