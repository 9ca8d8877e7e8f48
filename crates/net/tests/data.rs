//! Placed writes over loopback TCP and over the in-process transport.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use common::*;
use linerate_core::Run;
use linerate_net::channel::{AckReader, ChannelEnd, ChannelError, Sender, WriteOrder};
use linerate_net::region::Region;
use linerate_net::tcp::Stream;
use linerate_net::tcp::send::{StreamAcks, StreamSender};
use linerate_net::tcp::stats::tcp_info;
use linerate_wire::frame::{HEADER_BYTES, encode_write, encode_write_without_checksum};

fn order<'a>(sequence: u64, region: &'a dyn Region, data: &'a [Run], zero: &'a [Run]) -> WriteOrder<'a> {
    WriteOrder { sequence, region_id: 0, region, data, zero }
}

/// Acknowledgements until one reaches `through`; returns all that arrived damaged.
fn acknowledged(acks: &mut StreamAcks, through: u64) -> Vec<u64> {
    let mut refused = Vec::new();
    loop {
        let ack = acks.next(WAIT).unwrap().expect("an acknowledgement");
        refused.extend(ack.damaged);
        if ack.through == through {
            return refused;
        }
        assert!(ack.through < through);
    }
}

fn mixed_runs_land_identical(source_end: Stream, destination_end: Stream) {
    let size = 3 << 20;
    let (source, _) = heap(content(size));
    let (landed, regions) = heap(vec![0xee; size]);
    let destination = Destination::serve(destination_end, regions);
    let (mut sender, mut acks) = (StreamSender::new(source_end.clone()), StreamAcks::new(source_end.clone()));
    let frames = 24;
    let step = size as u64 / frames;
    for frame in 0..frames {
        let (mut data, mut zero) = (Vec::new(), Vec::new());
        source.split_zero(&[run(frame * step, step)], &mut data, &mut zero).unwrap();
        assert!(!data.is_empty() && !zero.is_empty());
        let order = order(frame + 1, source.as_ref(), &data, &zero);
        assert!(sender.write(&order).unwrap() > order.data_bytes());
    }
    sender.probe(frames + 1, 100_000).unwrap();
    assert_eq!(acknowledged(&mut acks, frames + 1), []);
    assert!(landed.snapshot() == source.snapshot());
    let counters = sender.stats().counters();
    assert_eq!(counters.data_bytes + counters.zero_bytes, size as u64);
    source_end.closer().close();
    assert!(matches!(destination.end(), ChannelEnd::Closed));
}

#[test]
fn mixed_runs_land_identical_over_tcp() {
    let (source, destination) = tcp_pair();
    mixed_runs_land_identical(source, destination);
}

#[test]
fn mixed_runs_land_identical_in_memory() {
    let (source, destination) = linerate_net::memory::connect::pair().unwrap();
    mixed_runs_land_identical(source, destination);
}

#[test]
fn the_kernel_reports_on_a_connection() {
    let (source, _destination) = tcp_pair();
    let before = tcp_info(&source).expect("sock_diag").bytes_acknowledged;
    rustix::net::send(source.as_fd(), &[1; 1000], rustix::net::SendFlags::empty()).unwrap();
    until("the kernel's acknowledgement", || tcp_info(&source).unwrap().bytes_acknowledged >= before + 1000);
    assert!(tcp_info(&source).unwrap().segment_bytes > 500);
}

/// Passes bytes on in both directions and flips one bit of the byte at `flip`, counted from the source.
fn proxy(flip: usize) -> (Stream, Stream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let source = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut near, _) = listener.accept().unwrap();
    let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (destination, _) = listener.accept().unwrap();
    let (mut near_back, mut far_back) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    std::thread::spawn(move || {
        let mut seen = 0;
        let mut buffer = [0; 5000];
        while let Ok(bytes @ 1..) = near.read(&mut buffer) {
            if (seen..seen + bytes).contains(&flip) {
                buffer[flip - seen] ^= 0x10;
            }
            seen += bytes;
            if far.write_all(&buffer[..bytes]).is_err() {
                break;
            }
        }
        let _ = far.shutdown(std::net::Shutdown::Both);
    });
    std::thread::spawn(move || std::io::copy(&mut far_back, &mut near_back));
    (Stream::new(source).unwrap(), Stream::new(destination).unwrap())
}

#[test]
fn a_payload_without_a_checksum_counts_as_damaged_in_plain_text() {
    let (source_end, destination_end) = tcp_pair();
    let destination = Destination::serve(destination_end, heap(vec![0; 4096]).1);
    let mut frame = Vec::new();
    encode_write_without_checksum(&mut frame, 1, 0, &[run(0, PAGE)], &[]).unwrap();
    frame.extend([7; PAGE as usize]);
    source_end.send_all(&frame, soon()).unwrap();
    assert_eq!(acknowledged(&mut StreamAcks::new(source_end), 1), [1]);
    drop(destination);
}

#[test]
fn a_damaged_payload_is_reported_and_can_be_sent_again() {
    let (source_end, destination_end) = proxy(9000);
    let (source, _) = heap(vec![0x55; 64 << 10]);
    let (landed, regions) = heap(vec![0; 64 << 10]);
    let destination = Destination::serve(destination_end, regions);
    let (mut sender, mut acks) = (StreamSender::new(source_end.clone()), StreamAcks::new(source_end));
    let pages = |page| [run(page * 4 * PAGE, 4 * PAGE)];
    for sequence in 1..=4 {
        sender.write(&order(sequence, source.as_ref(), &pages(sequence - 1), &[])).unwrap();
    }
    assert_eq!(acknowledged(&mut acks, 4), [1]);
    sender.write(&order(5, source.as_ref(), &pages(0), &[])).unwrap();
    assert_eq!(acknowledged(&mut acks, 5), []);
    assert!(landed.snapshot() == source.snapshot());
    let fenced = destination.fence.close(WAIT).unwrap();
    assert_eq!(
        (fenced.applied, fenced.damaged),
        (5, vec![1]),
        "reported again: the first report may have been lost"
    );
}

#[test]
fn a_damaged_header_ends_the_channel() {
    let (source_end, destination_end) = proxy(9);
    let (source, regions) = heap(vec![0x55; 64 << 10]);
    let destination = Destination::serve(destination_end, regions);
    StreamSender::new(source_end).write(&order(1, source.as_ref(), &[run(0, PAGE)], &[])).unwrap();
    assert!(matches!(destination.end(), ChannelEnd::Failed(ChannelError::Decode(_))));
}

#[test]
fn a_peer_cannot_write_outside_a_region_or_go_back() {
    const FIRST: Run = Run { offset: 0, length: PAGE };
    const BEHIND: Run = Run { offset: PAGE, length: PAGE };
    type Case = (&'static [(u64, u16, Run)], fn(&ChannelError) -> bool);
    let cases: [Case; 3] = [
        (&[(1, 0, BEHIND)], |error| matches!(error, ChannelError::RunOutside { .. })),
        (&[(1, 9, FIRST)], |error| matches!(error, ChannelError::RegionUnknown { region: 9 })),
        (&[(2, 0, FIRST), (2, 0, FIRST)], |error| {
            matches!(error, ChannelError::SequenceOrder { sequence: 2, after: 2 })
        }),
    ];
    for (frames, expected) in cases {
        let (source_end, destination_end) = tcp_pair();
        let (_, regions) = heap(vec![0; PAGE as usize]);
        let destination = Destination::serve(destination_end, regions);
        for (sequence, region, run) in frames {
            let mut frame = Vec::new();
            encode_write(&mut frame, *sequence, *region, &[], &[*run], 0).unwrap();
            rustix::net::send(source_end.as_fd(), &frame, rustix::net::SendFlags::NOSIGNAL).unwrap();
        }
        match destination.end() {
            ChannelEnd::Failed(error) => assert!(expected(&error), "{error}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_cut_inside_a_frame_leaves_a_consistent_fence() {
    let (source_end, destination_end) = tcp_pair();
    let (source, _) = heap(vec![0x55; 64 << 10]);
    let (landed, regions) = heap(vec![0; 64 << 10]);
    let destination = Destination::serve(destination_end, regions);
    let mut sender = StreamSender::new(source_end.clone());
    for sequence in 1..=3 {
        sender.write(&order(sequence, source.as_ref(), &[run((sequence - 1) * PAGE, PAGE)], &[])).unwrap();
    }
    let data = [run(3 * PAGE, 2 * PAGE)];
    let mut head = Vec::new();
    encode_write(&mut head, 4, 0, &data, &[], source.checksum(&data).unwrap()).unwrap();
    head.extend([0x55; PAGE as usize]);
    rustix::net::send(source_end.as_fd(), &head, rustix::net::SendFlags::NOSIGNAL).unwrap();
    source_end.closer().close();
    let fence = std::sync::Arc::clone(&destination.fence);
    assert!(matches!(destination.end(), ChannelEnd::Failed(ChannelError::ClosedInFrame)));
    let fenced = fence.close(WAIT).unwrap();
    assert_eq!((fenced.applied, fenced.damaged), (3, vec![]));
    assert!(landed.snapshot()[..3 * PAGE as usize].iter().all(|byte| *byte == 0x55));
}

#[test]
fn half_a_header_holds_nothing_but_its_thread() {
    let (source_end, destination_end) = tcp_pair();
    let (_, regions) = heap(vec![0; PAGE as usize]);
    let destination = Destination::serve(destination_end, std::sync::Arc::clone(&regions));
    rustix::net::send(source_end.as_fd(), &[1; HEADER_BYTES / 2], rustix::net::SendFlags::NOSIGNAL).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    regions.seal();
    assert_eq!(destination.fence.close(WAIT).unwrap().applied, 0);
    assert!(matches!(destination.end(), ChannelEnd::Fenced));
}
