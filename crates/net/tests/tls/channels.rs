//! Channels, control connections and measurements over TLS.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use linerate_core::{Message, Outcome, Run};
use linerate_net::bench::TestConnection;
use linerate_net::bench::tcp::TcpTestConnection;
use linerate_net::channel::{AckReader, ChannelEnd, ChannelError, Sender, WriteOrder};
use linerate_net::control::{ControlError, ControlEvent, ControlOptions, ControlPath};
use linerate_net::region::Region;
use linerate_net::region::heap::HeapRegion;
use linerate_net::tcp::Stream;
use linerate_net::tcp::connect::query;
use linerate_net::tcp::listen::{ListenOptions, Listener};
use linerate_net::tcp::send::{StreamAcks, StreamSender};
use linerate_net::tls::{Tls, TlsError};
use linerate_wire::frame::{Role, encode_control};
use rustix::io::Errno;

use crate::common::forward::forward;
use crate::common::*;
use crate::identity::*;
use crate::relay::*;
use crate::{pair, pair_with_buffers, tcp_options};

fn tls() -> Tls {
    Parts::of(&Authority::new("cluster")).tls()
}

/// Sends the runs of a region in frames, with a run of zeroes where a page is zero, and waits until all is applied.
fn send_all(stream: &Stream, source: &dyn Region, part: Run, frame: u64) {
    let (mut sender, mut acks) = (StreamSender::new(stream.clone()), StreamAcks::new(stream.clone()));
    let frames = part.length / frame;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..frames {
                let (mut data, mut zero) = (Vec::new(), Vec::new());
                let runs = [run(part.offset + number * frame, frame)];
                source.split_zero(&runs, &mut data, &mut zero).unwrap();
                let order = WriteOrder {
                    sequence: number + 1,
                    region_id: 0,
                    region: source,
                    data: &data,
                    zero: &zero,
                };
                sender.write(&order).unwrap();
            }
        });
        let mut through = 0;
        while through < frames {
            let ack = acks.next(WAIT).unwrap().expect("an acknowledgement");
            assert_eq!(ack.damaged, []);
            through = ack.through;
        }
    });
}

#[test]
fn placed_writes_land_over_several_channels_at_once() {
    const CHANNELS: u64 = 3;
    const PART: u64 = 3 << 20;
    let tls = tls();
    let (source, _) = heap(content((CHANNELS * PART) as usize));
    let (landed, regions) = heap(vec![0xee; (CHANNELS * PART) as usize]);
    let pairs: Vec<(Stream, Stream)> = (0..CHANNELS).map(|_| pair(&tls, &tls)).collect();
    let destinations: Vec<Destination> =
        pairs.iter().map(|(_, far)| Destination::serve(far.clone(), Arc::clone(&regions))).collect();
    std::thread::scope(|scope| {
        for (number, (near, _)) in (0..).zip(&pairs) {
            let source = source.as_ref();
            scope.spawn(move || send_all(near, source, run(number * PART, PART), 96 << 10));
        }
    });
    assert!(landed.snapshot() == source.snapshot());
    for ((near, _), destination) in pairs.iter().zip(destinations) {
        near.closer().close();
        assert!(matches!(destination.end(), ChannelEnd::Closed));
    }
}

#[test]
fn a_write_does_not_stay_behind_in_part() {
    let tls = tls();
    let (near, far) = pair_with_buffers(&tls, 16 << 10);
    let (source, _) = heap(content(1 << 20));
    let (landed, regions) = heap(vec![0xee; 1 << 20]);
    let destination = Destination::serve(far, regions);
    send_all(&near, source.as_ref(), run(0, 1 << 20), 1 << 20);
    assert!(landed.snapshot() == source.snapshot());
    drop(destination);
}

#[test]
fn probes_are_answered() {
    let tls = tls();
    let (near, far) = pair(&tls, &tls);
    let destination = Destination::serve(far, heap(vec![0; 4096]).1);
    let (mut sender, mut acks) = (StreamSender::new(near.clone()), StreamAcks::new(near));
    sender.probe(1, 300_000).unwrap();
    assert_eq!(acks.next(WAIT).unwrap().unwrap().through, 1);
    drop(destination);
}

/// Nothing of a record that is not verified is seen in the region, and a channel that is cut is no channel that ended.
#[test]
fn only_verified_bytes_land() {
    for fault in [RelayFault::Change(9000, 1), RelayFault::Cut(12_000)] {
        let is_cut = matches!(fault, RelayFault::Cut(_));
        let tls = tls();
        let relayed = relayed(&tls, &tls, fault);
        let (landed, regions) = heap(vec![0; 64 << 10]);
        let destination = Destination::serve(relayed.destination.clone(), regions);
        let (source, _) = heap(vec![0x55; 64 << 10]);
        let mut sender = StreamSender::new(relayed.source.clone());
        relayed.arm();
        let data = [run(0, 3 * PAGE)];
        let order = WriteOrder { sequence: 1, region_id: 0, region: source.as_ref(), data: &data, zero: &[] };
        sender.write(&order).unwrap();
        let end = destination.end();
        let ChannelEnd::Failed(ChannelError::Socket(error)) = &end else { panic!("{end:?}") };
        match TlsError::of(error).unwrap() {
            TlsError::Truncated => assert!(is_cut),
            TlsError::Damaged(_) => assert!(!is_cut),
            other => panic!("{other}"),
        }
        assert!(landed.snapshot() == [0; 64 << 10]);
        drop(sender);
        relayed.join();
    }
}

/// Memory that has no page for what lands, as a tmpfs that is full.
struct Full(HeapRegion, Errno);

impl Region for Full {
    forward!(size checksum_after split_zero send read clear populate);

    fn receive(&self, _: BorrowedFd<'_>, _: &[Run], _: usize) -> io::Result<usize> {
        panic!("bytes went from the socket to the region")
    }
    fn write(&self, _: Run, _: &[u8]) -> io::Result<()> {
        Err(self.1.into())
    }
}

#[test]
fn memory_without_a_page_is_named_as_the_reason() {
    let tls = tls();
    for why in [Errno::FAULT, Errno::NOSPC] {
        let (near, far) = pair(&tls, &tls);
        let full = Full(HeapRegion::new(64 << 10), why);
        let destination = Destination::serve(far, table(Arc::new(full)));
        let (source, _) = heap(vec![0x55; 64 << 10]);
        let data = [run(0, 64 << 10)];
        let order = WriteOrder { sequence: 1, region_id: 0, region: source.as_ref(), data: &data, zero: &[] };
        StreamSender::new(near).write(&order).unwrap();
        let end = destination.end();
        assert!(matches!(end, ChannelEnd::Failed(ChannelError::Memory { region: 0, .. })), "{end:?}");
    }
}

#[test]
fn control_messages_go_both_ways_and_the_end_is_reported() {
    let tls = tls();
    let (near, far) = pair(&tls, &tls);
    let options = ControlOptions { silence_max: WAIT, ..ControlOptions::default() };
    let ((sent, events), (back, answers)) = (mpsc::sync_channel(64), mpsc::sync_channel(64));
    let source = ControlPath::start(4, near, options, back).unwrap();
    let destination = ControlPath::start(5, far, options, sent).unwrap();
    let message = Message::DeviceState { bytes: vec![9; 200_000] };
    let mut frame = Vec::new();
    encode_control(&mut frame, 7, &message).unwrap();
    source.sender().send(&frame).unwrap();
    destination.sender().acknowledge(7).unwrap();
    let next = |events: &mpsc::Receiver<ControlEvent>| {
        events.iter().find(|event| !matches!(event, ControlEvent::Keepalive { .. })).unwrap()
    };
    assert!(matches!(next(&events), ControlEvent::Message { message: got, .. } if got == message));
    assert!(matches!(next(&answers), ControlEvent::Acknowledged { through: 7, .. }));
    drop(source);
    let end = next(&events);
    assert!(matches!(end, ControlEvent::Lost { error: ControlError::Closed | ControlError::Socket(_), .. }));
}

#[test]
fn questions_are_answered() {
    let tls = tls();
    let options = ListenOptions { tcp: tcp_options(Some(&tls)), ..ListenOptions::default() };
    let address = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::start(&[address], options, |accepted| {
        assert_eq!(accepted.peer_certificates().len(), 1);
        accepted.outcome(Outcome::Committed).unwrap();
    })
    .unwrap();
    let route = route(listener.addresses()[0]);
    let answer = query(&route, &hello(Role::Query), &tcp_options(Some(&tls))).unwrap();
    assert_eq!(answer, Outcome::Committed);
}

#[test]
fn measurements_go_through_tls() {
    let tls = tls();
    let (near, far) = pair(&tls, &tls);
    let silence = Duration::from_secs(20);
    let mut near = TcpTestConnection::new(near, silence).unwrap();
    let mut far = TcpTestConnection::new(far, silence).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            near.send(3_000_000).unwrap();
            near.receive(1).unwrap();
            (0..9).for_each(|block| near.send_block(block == 8).unwrap());
        });
        far.receive(3_000_000).unwrap();
        far.send(1).unwrap();
        (0..8).for_each(|_| assert!(!far.receive_block().unwrap()));
        assert!(far.receive_block().unwrap());
    });
    near.closer().close();
    assert!(far.receive(1).is_err());
}
