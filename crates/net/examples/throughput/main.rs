//! Memory to memory over loopback TCP, with the frames, checksums and chunk sizes of a data channel, against a plain
//! send and receive loop in the same run; then plain text against TLS. Prints tables of medians with the spread;
//! compare within one run only.
//!
//! `cargo run --release -p linerate-net --example throughput`, with `-- tls` for the second table only.
#![allow(clippy::unwrap_used, reason = "certificates are made by the code of the tests")]

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

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SIZE: usize = 64 << 20;
const TIME: Duration = Duration::from_millis(500);
const ROUNDS: usize = 5;

/// A region that is not checked, to see what checking costs.
struct Unchecked(HeapRegion);

impl Region for Unchecked {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn checksum_after(&self, _before: u32, _runs: &[Run]) -> io::Result<u32> {
        Ok(0)
    }
    fn split_zero(&self, runs: &[Run], data: &mut Vec<Run>, zero: &mut Vec<Run>) -> io::Result<()> {
        self.0.split_zero(runs, data, zero)
    }
    fn send(&self, socket: BorrowedFd<'_>, head: &[u8], runs: &[Run], done: usize) -> io::Result<usize> {
        self.0.send(socket, head, runs, done)
    }
    fn receive(&self, socket: BorrowedFd<'_>, runs: &[Run], done: usize) -> io::Result<usize> {
        self.0.receive(socket, runs, done)
    }
    fn read(&self, run: Run, to: &mut [u8]) -> io::Result<()> {
        self.0.read(run, to)
    }
    fn write(&self, run: Run, from: &[u8]) -> io::Result<()> {
        self.0.write(run, from)
    }
    fn clear(&self, run: Run) -> io::Result<()> {
        self.0.clear(run)
    }
    fn populate(&self, runs: &[Run]) -> io::Result<()> {
        self.0.populate(runs)
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

fn framed(case: Case, checked: bool) -> Outcome<f64> {
    let region = || -> Arc<dyn Region> {
        let heap = HeapRegion::from(vec![0x5a; SIZE]);
        if checked { Arc::new(heap) } else { Arc::new(Unchecked(heap)) }
    };
    let (near, far) = connection(case.buffer)?;
    let fence = Fence::new(far.closer());
    let regions = RegionTable::new([(0, region())]);
    let source = region();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| StreamReceiver::new(far).serve(&regions, &fence));
        let (mut sender, mut acks) = (StreamSender::new(near.clone()), StreamAcks::new(near.clone()));
        let (begun, mut sequence, mut bytes, mut through) = (Instant::now(), 0, 0, 0);
        while begun.elapsed() < TIME {
            let offset = sequence * case.chunk as u64 % SIZE as u64;
            sequence += 1;
            let data = [Run { offset, length: case.chunk as u64 }];
            sender.write(&WriteOrder {
                sequence,
                region_id: 0,
                region: source.as_ref(),
                data: &data,
                zero: &[],
            })?;
            bytes += case.chunk as u64;
            while let Some(acknowledged) = acks.next(Duration::ZERO)? {
                through = acknowledged.through;
            }
        }
        while through < sequence {
            through = acks.next(Duration::from_secs(5))?.ok_or("no acknowledgement")?.through;
        }
        let rate = rate(bytes, begun);
        near.closer().close();
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
        rates.sort_by(f64::total_cmp);
        let way = match case.checked {
            None => "plain loop",
            Some(false) => "frames, no checksum",
            Some(true) => "frames, checksum",
        };
        let buffer = if case.buffer == 0 { "kernel's".into() } else { format!("{} KiB", case.buffer >> 10) };
        let (least, most) = (rates.first().ok_or("no rounds")?, rates.last().ok_or("no rounds")?);
        let median = rates.get(ROUNDS / 2).ok_or("no rounds")?;
        println!("| {way} | {} KiB | {buffer} | {median:.1} ({least:.1} to {most:.1}) |", case.chunk >> 10);
    }
    Ok(())
}
