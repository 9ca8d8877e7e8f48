//! Memory to memory over loopback TCP, with the frames, checksums and chunk sizes of a data channel. It is compared
//! with a plain send and receive loop in the same run; then plain text with TLS. Prints tables of medians with the
//! spread; compare within one run only.
//!
//! `cargo run --release -p linerate-net --example throughput`, with `-- tls` for the second table only.
#![allow(clippy::unwrap_used, reason = "certificates are made by the code of the tests")]

#[path = "../../tests/common/forward.rs"]
mod forward;
#[path = "../../tests/tls/identity.rs"]
#[allow(dead_code)]
mod identity;
mod secure;

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_core::Run;
use linerate_net::channel::{AckReader, Receiver, Sender, WriteOrder};
use linerate_net::fence::Fence;
use linerate_net::region::Region;
use linerate_net::region::heap::HeapRegion;
use linerate_net::table::RegionTable;
use linerate_net::tcp::Stream;
use linerate_net::tcp::receive::StreamReceiver;
use linerate_net::tcp::send::{StreamAcks, StreamSender};

use forward::forward;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SIZE: usize = 64 << 20;
const TIME: Duration = Duration::from_millis(500);
const ROUNDS: usize = 5;

/// A region that is not checked, to see what checking costs.
struct Unchecked(HeapRegion);

impl Region for Unchecked {
    forward!(size split_zero send receive read write clear populate);

    fn checksum_after(&self, _before: u32, _runs: &[Run]) -> io::Result<u32> {
        Ok(0)
    }
}

#[derive(Clone, Copy)]
struct Case {
    /// Frames with or without checksum, or no frames at all.
    checked: Option<bool>,
    chunk: usize,
    buffer: usize,
}

fn connection(buffer: usize) -> Outcome<(Stream, Stream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    if buffer > 0 {
        for one in [socket2::SockRef::from(&socket), socket2::SockRef::from(&listener)] {
            one.set_send_buffer_size(buffer)?;
            one.set_recv_buffer_size(buffer)?;
        }
    }
    socket.connect(&listener.local_addr()?.into())?;
    let (other, _) = listener.accept()?;
    Ok((Stream::new(socket)?, Stream::new(other)?))
}

/// Gb/s.
fn rate(bytes: u64, begun: Instant) -> f64 {
    bytes as f64 * 8.0 / 1e9 / begun.elapsed().as_secs_f64()
}

/// Sends one part of the source again and again in frames of this size; returns the bytes.
fn send(stream: &Stream, source: &dyn Region, part: Run, frame: u64, until: Instant) -> Outcome<u64> {
    let (mut sender, mut acks) = (StreamSender::new(stream.clone()), StreamAcks::new(stream.clone()));
    let (mut sequence, mut through) = (0, 0);
    while Instant::now() < until {
        let data = [Run { offset: part.offset + sequence * frame % part.length, length: frame }];
        sequence += 1;
        sender.write(&WriteOrder { sequence, region_id: 0, region: source, data: &data, zero: &[] })?;
        while let Some(acknowledged) = acks.next(Duration::ZERO)? {
            through = acknowledged.through;
        }
    }
    while through < sequence {
        through = acks.next(Duration::from_secs(5))?.ok_or("no acknowledgement")?.through;
    }
    stream.closer().close();
    Ok(sequence * frame)
}

fn framed(case: Case, checked: bool) -> Outcome<f64> {
    let region = || -> Arc<dyn Region> {
        let heap = HeapRegion::from(vec![0x5a; SIZE]);
        if checked { Arc::new(heap) } else { Arc::new(Unchecked(heap)) }
    };
    let (near, far) = connection(case.buffer)?;
    let fence = Fence::new(far.closer());
    let regions = RegionTable::new([(0, region())]);
    let (source, all) = (region(), Run { offset: 0, length: SIZE as u64 });
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| StreamReceiver::new(far).serve(&regions, &fence));
        let begun = Instant::now();
        let bytes = send(&near, source.as_ref(), all, case.chunk as u64, begun + TIME)?;
        let rate = rate(bytes, begun);
        serving.join().map_err(|_| "the serving thread failed")?;
        Ok(rate)
    })
}

fn plain(case: Case) -> Outcome<f64> {
    let (near, far) = connection(case.buffer)?;
    let (source, target) = (HeapRegion::from(vec![0x5a; SIZE]), HeapRegion::new(SIZE));
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| -> u64 {
            let mut total = 0u64;
            loop {
                let offset = total % SIZE as u64;
                let run = Run { offset, length: (case.chunk as u64).min(SIZE as u64 - offset) };
                match target.receive(far.as_fd(), &[run], 0) {
                    Ok(0) => return total,
                    Ok(bytes) => total += bytes as u64,
                    Err(_) => wait(&far, rustix::event::PollFlags::IN),
                }
            }
        });
        let (begun, mut bytes) = (Instant::now(), 0u64);
        while begun.elapsed() < TIME {
            let offset = bytes % SIZE as u64;
            let run = Run { offset, length: (case.chunk as u64).min(SIZE as u64 - offset) };
            match source.send(near.as_fd(), &[], &[run], 0) {
                Ok(sent) => bytes += sent as u64,
                Err(_) => wait(&near, rustix::event::PollFlags::OUT),
            }
        }
        rustix::net::shutdown(&near, rustix::net::Shutdown::Write)?;
        let received = receiving.join().map_err(|_| "the receiving thread failed")?;
        Ok(rate(received, begun))
    })
}

/// Median, least and most.
fn spread(values: &mut [f64]) -> String {
    values.sort_by(f64::total_cmp);
    match &*values {
        [least, .., most] => format!("{:.2} ({least:.2} to {most:.2})", values[values.len() / 2]),
        _ => "-".into(),
    }
}

fn wait(stream: &Stream, flags: rustix::event::PollFlags) {
    let limit = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
    let _ = rustix::event::poll(&mut [rustix::event::PollFd::new(stream, flags)], Some(&limit));
}

fn main() -> Outcome<()> {
    if std::env::args().nth(1).as_deref() != Some("tls") {
        framing()?;
        println!();
    }
    secure::run()
}

fn framing() -> Outcome<()> {
    let mut cases = Vec::new();
    for chunk in [64 << 10, 256 << 10, 1 << 20] {
        for checked in [None, Some(false), Some(true)] {
            cases.push(Case { checked, chunk, buffer: 0 });
        }
    }
    cases.push(Case { checked: Some(true), chunk: 256 << 10, buffer: 4 << 20 });
    let mut rates = vec![Vec::new(); cases.len()];
    for _ in 0..ROUNDS {
        for (case, rates) in cases.iter().zip(&mut rates) {
            rates.push(match case.checked {
                None => plain(*case)?,
                Some(checked) => framed(*case, checked)?,
            });
        }
    }
    println!("| way | chunk | buffers | Gb/s median (least to most) |\n|---|---|---|---|");
    for (case, rates) in cases.iter().zip(&mut rates) {
        let way = match case.checked {
            None => "plain loop",
            Some(false) => "frames, no checksum",
            Some(true) => "frames, checksum",
        };
        let buffer = if case.buffer == 0 { "kernel's".into() } else { format!("{} KiB", case.buffer >> 10) };
        println!("| {way} | {} KiB | {buffer} | {} |", case.chunk >> 10, spread(rates));
    }
    Ok(())
}
