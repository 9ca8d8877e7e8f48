//! Any frame and any message that keeps the rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use linerate_wire::fault::{Code, Fault, Side, Step};
use linerate_wire::frame::{
    Ack, Claim, Frame, Grant, Hello, LISTS_MAX, ListNumber, PAYLOAD_BYTES_MAX, Role, Welcome, Write,
};
use linerate_wire::message::{
    Endpoint, Extent, LastLook, Message, Mode, Outcome, RegionInfo, Run, STREAM_CHANNELS_MAX, SessionId,
    StreamNote, StreamSettings, Token, UnknownMode,
};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::select;

use super::Sample;

/// Any frame with a header that fits it.
pub fn sample() -> impl Strategy<Value = Sample> {
    prop_oneof![
        unnumbered().prop_map(|frame| Sample::bare(frame, 0)),
        (write(), 1u64.., any::<u32>()).prop_map(write_sample),
        (0..=PAYLOAD_BYTES_MAX, 1u64.., any::<u32>()).prop_map(|(length, sequence, checksum)| {
            with_payload(Frame::Probe, sequence, length, checksum)
        }),
        damaged().prop_map(|(applied, damaged)| Sample::bare(Frame::Ack(Ack { damaged }), applied)),
        (message(), 1u64..).prop_map(|(message, sequence)| Sample::bare(Frame::Control(message), sequence)),
        any::<u64>().prop_map(|sequence| Sample::bare(Frame::ControlAck, sequence)),
    ]
}

pub fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        select(vec![
            Message::Prepare,
            Message::RamSealed,
            Message::Loaded,
            Message::Commit,
            Message::Finished,
            Message::Aborted,
        ]),
        (text(63), text(500), mode()).prop_map(|(guest, description, mode)| Message::Offer {
            guest,
            description,
            mode
        }),
        vec(endpoint(), 0..20).prop_map(|endpoints| Message::Admitted { endpoints }),
        (regions(), vec(extent(), 0..20))
            .prop_map(|(regions, touched)| Message::Prepared { regions, touched }),
        any::<(u32, u64)>().prop_map(|(round, bytes)| Message::RoundMark { round, bytes }),
        any::<u32>().prop_map(|channel| Message::Fence { channel }),
        (any::<u32>(), damaged()).prop_map(|(channel, (applied, damaged))| Message::Fenced {
            channel,
            applied,
            damaged
        }),
        (any::<bool>(), text(500)).prop_map(|(was_running, disks)| Message::Stopped { was_running, disks }),
        any::<Option<u64>>().prop_map(|digest| Message::RamComplete { digest }),
        vec(any::<u8>(), 0..5000).prop_map(|bytes| Message::DeviceState { bytes }),
        any::<u64>().prop_map(|total| Message::DeviceStateEnd { total }),
        any::<(u64, u64)>().prop_map(|(resume_us, cpu_us)| Message::TakenOver { resume_us, cpu_us }),
        last_look().prop_map(Message::LastLook),
        fault().prop_map(Message::Abort),
        (0..=STREAM_CHANNELS_MAX, any::<(bool, bool)>()).prop_map(settings),
        (any::<u16>(), note()).prop_map(|(stream, note)| Message::Stream { stream, note }),
    ]
}

fn mode() -> impl Strategy<Value = Result<Mode, UnknownMode>> {
    prop_oneof![
        regions().prop_map(|regions| Ok(Mode::Direct { regions })),
        (0..=STREAM_CHANNELS_MAX).prop_map(|channels| Ok(Mode::Streams { channels })),
        regions().prop_map(|regions| Ok(Mode::Handover { regions })),
        (4u8.., vec(any::<u8>(), 0..50)).prop_map(|(number, fields)| Err(UnknownMode { number, fields })),
    ]
}

fn last_look() -> impl Strategy<Value = LastLook> {
    prop_oneof![
        select(vec![LastLook::NothingWrong, LastLook::Ended]),
        text(16).prop_map(|run_state| LastLook::Stopped { run_state }),
    ]
}

fn settings((channels, (return_path, zero_pages_in_channels)): (u16, (bool, bool))) -> Message {
    Message::StreamsPrepared(StreamSettings { channels, return_path, zero_pages_in_channels })
}

fn note() -> impl Strategy<Value = StreamNote> {
    prop_oneof![
        (text(63), any::<u64>()).prop_map(|(service, window)| StreamNote::Open { service, window }),
        any::<u64>().prop_map(|window| StreamNote::Opened { window }),
        text(63).prop_map(|reason| StreamNote::Refused { reason }),
        any::<u64>().prop_map(|limit| StreamNote::Credit { limit }),
        any::<u64>().prop_map(|total| StreamNote::End { total }),
        select(vec![StreamNote::Reset, StreamNote::Stop, StreamNote::Closed]),
    ]
}

/// Any fault whose detail is not cut.
pub fn fault() -> impl Strategy<Value = Fault> {
    let side = select(vec![Side::Source, Side::Destination]);
    (select(Code::ALL), select(Step::ALL.to_vec()), side, text(256))
        .prop_map(|(code, step, side, detail)| Fault { code, step, side, detail })
}

fn unnumbered() -> impl Strategy<Value = Frame> {
    let outcomes = vec![Outcome::Committed, Outcome::Aborted, Outcome::Pending, Outcome::Unknown];
    prop_oneof![
        hello().prop_map(Frame::Hello),
        any::<(u16, u64)>()
            .prop_map(|(version, control_received)| Frame::Welcome(Welcome { version, control_received })),
        fault().prop_map(Frame::Refuse),
        select(outcomes).prop_map(Frame::Outcome),
        (any::<u16>(), run(1..=u64::MAX)).prop_map(|(region, window)| Frame::Claim(Claim { region, window })),
        (any::<(u16, u32)>(), run(1..=u64::MAX), run(0..=u64::MAX)).prop_map(grant),
        vec(list_number(), 0..=LISTS_MAX).prop_map(Frame::Lists),
        Just(Frame::Keepalive),
    ]
}

fn list_number() -> impl Strategy<Value = ListNumber> {
    any::<([u8; 32], u64)>().prop_map(|(authority, number)| ListNumber { authority, number })
}

fn grant(((region, key), window, place): ((u16, u32), Run, Run)) -> Frame {
    let address = place.offset.min(u64::MAX - window.length);
    Frame::Grant(Grant { region, key, window, address })
}

fn hello() -> impl Strategy<Value = Hello> {
    let versions = (1u16..).prop_flat_map(|min| (Just(min), min..));
    (versions, any::<[u8; 16]>(), select(Role::ALL.to_vec()), any::<(u16, u32)>(), any::<[u8; 32]>())
        .prop_map(|((version_min, version_max), session, role, (link, channel), token)| Hello {
            version_min,
            version_max,
            session: SessionId(session),
            role,
            link,
            channel,
            token: Token(token),
        })
}

fn write() -> impl Strategy<Value = Write> {
    let data = vec(run(1..=16_384), 0..=256);
    let zero = vec(run(1..=u64::MAX), 0..=256);
    (any::<(u16, bool)>(), data, zero)
        .prop_filter("a write names something", |(_, data, zero)| data.len() + zero.len() > 0)
        .prop_map(|((region, without_checksum), data, zero)| Write { region, data, zero, without_checksum })
}

fn run(length: std::ops::RangeInclusive<u64>) -> impl Strategy<Value = Run> {
    length.prop_flat_map(|length| (0..=u64::MAX - length).prop_map(move |offset| Run { offset, length }))
}

fn write_sample((write, sequence, checksum): (Write, u64, u32)) -> Sample {
    let length: u64 = write.data.iter().map(|run| run.length).sum();
    let checksum = if write.without_checksum { 0 } else { checksum };
    with_payload(Frame::Write(write), sequence, length as u32, checksum)
}

fn with_payload(frame: Frame, sequence: u64, payload_length: u32, checksum: u32) -> Sample {
    let payload_checksum = if payload_length == 0 { 0 } else { checksum };
    Sample { frame, sequence, payload_length, payload_checksum }
}

fn damaged() -> impl Strategy<Value = (u64, Vec<u64>)> {
    (btree_set(1u64.., 0..40), any::<u64>()).prop_map(|(damaged, applied)| {
        let last = damaged.last().copied().unwrap_or(0);
        (applied.max(last), damaged.into_iter().collect())
    })
}

fn extent() -> impl Strategy<Value = Extent> {
    (any::<u16>(), 0..=u64::MAX / 2, 1..=u64::MAX / 2)
        .prop_map(|(region, offset, length)| Extent::new(region, offset, length))
}

fn regions() -> impl Strategy<Value = Vec<RegionInfo>> {
    vec(
        (any::<u16>(), text(63), any::<u64>()).prop_map(|(id, name, size)| RegionInfo { id, name, size }),
        0..=64,
    )
}

fn endpoint() -> impl Strategy<Value = Endpoint> {
    (text(16), address(), 0u8..=32, any::<(u32, u32, i32, bool, u16)>()).prop_map(
        |(interface, address, prefix, (speed_mbps, mtu, numa, up, rdma_port))| Endpoint {
            interface,
            address,
            prefix,
            speed_mbps,
            mtu,
            numa,
            up,
            rdma_port,
        },
    )
}

fn address() -> impl Strategy<Value = SocketAddr> {
    prop_oneof![
        any::<(u32, u16)>().prop_map(|(ip, port)| SocketAddr::new(IpAddr::V4(Ipv4Addr::from(ip)), port)),
        any::<(u128, u16, u32, u32)>().prop_map(|(ip, port, flow, scope)| {
            SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope).into()
        }),
    ]
}

/// Any text of at most so many characters. One is at most 4 bytes, so callers name a quarter of the field's cap.
fn text(characters: usize) -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..=characters).prop_map(String::from_iter)
}
