//! One or more frames of every tag, and one or more messages of every kind, with fixed content.

use linerate_wire::fault::{Code, Fault, Side, Step};
use linerate_wire::frame::{Ack, Claim, Frame, Grant, Hello, ListNumber, Role, Welcome, Write};
use linerate_wire::message::{
    Endpoint, Extent, LastLook, Message, Mode, Outcome, RegionInfo, Run, SessionId, StreamNote,
    StreamSettings, Token, UnknownMode,
};

use super::Sample;

/// Frames other than CONTROL.
pub fn frames() -> Vec<(&'static str, Sample)> {
    vec![
        ("hello", Sample::bare(Frame::Hello(hello()), 0)),
        ("welcome", Sample::bare(Frame::Welcome(Welcome { version: 1, control_received: 0x0102_0304 }), 0)),
        ("refuse", Sample::bare(Frame::Refuse(fault()), 0)),
        ("outcome", Sample::bare(Frame::Outcome(Outcome::Aborted), 0)),
        (
            "write",
            Sample {
                frame: Frame::Write(write()),
                sequence: 7,
                payload_length: 0x3000,
                payload_checksum: 0x1122_3344,
            },
        ),
        ("write of zeroes", Sample::bare(Frame::Write(write_of_zeroes()), u64::MAX)),
        (
            "probe",
            Sample { frame: Frame::Probe, sequence: 1, payload_length: 9, payload_checksum: 0xe306_9283 },
        ),
        ("ping", Sample::bare(Frame::Probe, 2)),
        ("ack", Sample::bare(Frame::Ack(Ack { damaged: vec![3, 9] }), 9)),
        ("ack of nothing", Sample::bare(Frame::Ack(Ack::default()), 0)),
        ("control", Sample::bare(Frame::Control(Message::Fence { channel: 5 }), 12)),
        ("control ack", Sample::bare(Frame::ControlAck, 12)),
        ("keepalive", Sample::bare(Frame::Keepalive, 0)),
        ("write without checksum", {
            let write = Write { without_checksum: true, zero: vec![], ..write() };
            Sample { frame: Frame::Write(write), sequence: 8, payload_length: 0x3000, payload_checksum: 0 }
        }),
        ("claim", Sample::bare(Frame::Claim(Claim { region: 1, window: window() }), 0)),
        ("grant", Sample::bare(Frame::Grant(grant()), 0)),
        ("lists", Sample::bare(Frame::Lists(vec![ListNumber { authority: [0xc5; 32], number: 7 }]), 0)),
        ("no lists", Sample::bare(Frame::Lists(vec![]), 0)),
    ]
}

pub fn messages() -> Vec<(&'static str, Message)> {
    vec![
        ("offer", offer(Ok(Mode::Direct { regions: regions() }))),
        ("offer by streams", offer(Ok(Mode::Streams { channels: 4 }))),
        ("offer to hand over", offer(Ok(Mode::Handover { regions: regions() }))),
        ("offer in an unknown mode", offer(Err(UnknownMode { number: 9, fields: vec![1, 2] }))),
        ("admitted", Message::Admitted { endpoints: vec![endpoint_v4(), endpoint_v6()] }),
        ("prepare", Message::Prepare),
        ("prepared", Message::Prepared { regions: regions(), touched: vec![Extent::new(1, 0x3000, 0x2000)] }),
        ("round mark", Message::RoundMark { round: 3, bytes: 0x0123_4567_89ab }),
        ("fence", Message::Fence { channel: 5 }),
        ("fenced", Message::Fenced { channel: 5, applied: 1000, damaged: vec![1, 999, 1000] }),
        ("stopped", Message::Stopped { was_running: true, disks: "{}".into() }),
        ("ram complete", Message::RamComplete { digest: None }),
        ("ram complete with digest", Message::RamComplete { digest: Some(0xfedc_ba98_7654_3210) }),
        ("ram sealed", Message::RamSealed),
        ("device state", Message::DeviceState { bytes: b"QEVM\x00\x00\x00\x03".to_vec() }),
        ("device state end", Message::DeviceStateEnd { total: 65_536 }),
        ("loaded", Message::Loaded),
        ("commit", Message::Commit),
        ("taken over", Message::TakenOver { resume_us: 1234, cpu_us: 567_890 }),
        ("finished", Message::Finished),
        ("last look", Message::LastLook(LastLook::NothingWrong)),
        (
            "last look at one that stopped",
            Message::LastLook(LastLook::Stopped { run_state: "io-error".into() }),
        ),
        ("last look at one that ended", Message::LastLook(LastLook::Ended)),
        ("abort", Message::Abort(fault())),
        ("aborted", Message::Aborted),
        ("stream open", stream(StreamNote::Open { service: "nbd".into(), window: 8 << 20 })),
        ("stream opened", stream(StreamNote::Opened { window: 1 << 20 })),
        ("stream refused", stream(StreamNote::Refused { reason: "nobody listens".into() })),
        ("stream credit", stream(StreamNote::Credit { limit: 0x0123_4567_89ab })),
        ("stream end", stream(StreamNote::End { total: 4096 })),
        ("stream reset", stream(StreamNote::Reset)),
        ("stream stop", stream(StreamNote::Stop)),
        ("stream closed", stream(StreamNote::Closed)),
        ("streams prepared", Message::StreamsPrepared(settings(4, true, false))),
    ]
}

fn stream(note: StreamNote) -> Message {
    Message::Stream { stream: 0x0203, note }
}

fn settings(channels: u16, return_path: bool, zero_pages_in_channels: bool) -> StreamSettings {
    StreamSettings { channels, return_path, zero_pages_in_channels }
}

/// Every sample as a frame: the frames, and each message in a CONTROL frame.
pub fn all() -> Vec<(&'static str, Sample)> {
    let control =
        messages().into_iter().map(|(name, message)| (name, Sample::bare(Frame::Control(message), 1)));
    frames().into_iter().chain(control).collect()
}

pub fn hello() -> Hello {
    Hello {
        version_min: 1,
        version_max: 3,
        session: SessionId(std::array::from_fn(|at| 0xa0 + at as u8)),
        role: Role::Data,
        link: 2,
        channel: 0x0001_0005,
        token: Token(std::array::from_fn(|at| at as u8)),
    }
}

pub fn fault() -> Fault {
    Fault::new(Code::MemoryShort, Step::Admit, Side::Destination, "8 GiB needed, 5 GiB free – überall")
}

fn window() -> Run {
    Run { offset: 0x60_0000, length: 0x20_0000 }
}

fn grant() -> Grant {
    Grant { region: 1, key: 0xa1b2_c3d4, window: window(), address: 0x7f12_3460_0000 }
}

pub fn write() -> Write {
    Write {
        region: 1,
        data: vec![Run { offset: 0x1000, length: 0x2000 }, Run { offset: 0x1_0000_0000, length: 0x1000 }],
        zero: vec![Run { offset: 0x8000, length: 1 << 40 }],
        without_checksum: false,
    }
}

fn write_of_zeroes() -> Write {
    Write {
        region: 0,
        data: vec![],
        zero: vec![Run { offset: 0, length: u64::MAX }],
        without_checksum: false,
    }
}

fn offer(mode: Result<Mode, UnknownMode>) -> Message {
    Message::Offer { guest: "väb".into(), description: "{\"cpus\":4}".into(), mode }
}

fn regions() -> Vec<RegionInfo> {
    vec![
        RegionInfo { id: 0, name: "pc.ram".into(), size: 4 << 30 },
        RegionInfo { id: 1, name: String::new(), size: 0x20_0000 },
    ]
}

fn endpoint_v4() -> Endpoint {
    Endpoint {
        interface: "ens1f0".into(),
        address: "192.0.2.7:7400".parse().expect("an address"),
        prefix: 24,
        speed_mbps: 25_000,
        mtu: 9000,
        numa: 1,
        up: true,
        rdma_port: 7400,
    }
}

fn endpoint_v6() -> Endpoint {
    Endpoint {
        interface: "br0".into(),
        address: std::net::SocketAddrV6::new("fe80::1".parse().expect("an address"), 7400, 0, 3).into(),
        prefix: 64,
        speed_mbps: 0,
        mtu: 1500,
        numa: -1,
        up: false,
        rdma_port: 0,
    }
}
