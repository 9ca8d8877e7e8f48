//! The transport over real adapters. These need a device: the lab runs them in its RDMA machine, whose first link leads
//! from 10.9.0.1 (device l0a) to 10.9.0.2 (l0b), its second from 10.9.1.1 to 10.9.1.2; everywhere else they are listed
//! as ignored.

use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, mpsc};
use std::time::{Duration, Instant};

use linerate_core::{Code, Fault, Run, SessionId, Side, Step, Token};
use linerate_wire::frame::{Hello, Role, Welcome, encode_write};

use super::connect::{ConnectError, connect};
use super::connection::RdmaWrite;
use super::listen::{Accepted, Listener};
use super::memory::FileRegion;
use super::options::RdmaOptions;
use super::receive::{RdmaReceiver, closer};
use super::send::{RdmaAcks, RdmaSender, halves};
use super::source::SourceEnd;
use super::{Connection, Domains, error::RdmaError};
use crate::channel::{AckReader, ChannelEnd, ChannelError, Closer, Receiver, Sender, WriteOrder};
use crate::fence::Fence;
use crate::region::pinned::WINDOW_BYTES;
use crate::region::{Mapped, Region};
use crate::round_trip::RoundTrip;
use crate::table::RegionTable;
use crate::tcp::connect::Route;
use linerate_lock::Mutex;

mod errors;
mod huge;
mod measure;
mod planted;
mod streams;
mod wires;

const PAGE: u64 = 4096;
const WAIT: Duration = Duration::from_secs(60);
const NEAR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 1));
const FAR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 2));

const NEAR_2: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 1, 1));
const FAR_2: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 1, 2));

/// Some tests take the link down.
static LINK: Mutex<()> = Mutex::new(());

fn link() -> MutexGuard<'static, ()> {
    LINK.lock()
}

fn run(offset: u64, length: u64) -> Run {
    Run { offset, length }
}

fn hello() -> Hello {
    Hello {
        version_min: 1,
        version_max: 1,
        session: SessionId([7; 16]),
        role: Role::Data,
        link: 0,
        channel: 5,
        token: Token([9; 32]),
    }
}

/// An emulated machine on a busy host takes seconds for what adapters do in microseconds. An adapter that sends again
/// too early is trouble there: soft-RoCE of kernel 6.1 then delivers a message twice now and then, or ends the
/// connection as if a request had been invalid. 18 is 1.07 s.
fn patient() -> RdmaOptions {
    RdmaOptions { connect_wait: Duration::from_secs(30), ack_timeout: 18, ..RdmaOptions::default() }
}

/// Both ends of a connection over the first link that has shaken hands.
fn connected(options: &RdmaOptions) -> (Arc<Connection>, Arc<Connection>) {
    connected_over((NEAR, FAR), options)
}

fn connected_over(ends: (IpAddr, IpAddr), options: &RdmaOptions) -> (Arc<Connection>, Arc<Connection>) {
    connected_in(ends, options, &Default::default())
}

/// With the domains of the two ends.
fn connected_in(
    (near, far): (IpAddr, IpAddr),
    options: &RdmaOptions,
    [here, there]: &[Domains; 2],
) -> (Arc<Connection>, Arc<Connection>) {
    let (taken, connections) = mpsc::channel();
    let listener = Listener::start(&[SocketAddr::new(far, 0)], move |accepted: Accepted| {
        assert_eq!(accepted.hello, hello());
        assert_eq!(accepted.peer.ip(), near);
        let _ = taken.send(accepted);
    })
    .unwrap();
    let route = Route { local: Some(near), device: None, remote: listener.addresses()[0] };
    std::thread::scope(|scope| {
        let destination = scope.spawn(move || {
            let welcome = Welcome { version: 1, control_received: 0 };
            connections.recv_timeout(WAIT).unwrap().welcome(welcome, there, RoundTrip::default()).unwrap()
        });
        let (source, welcome) = connect(&route, &hello(), options, here).unwrap();
        assert_eq!(welcome.version, 1);
        (source, destination.join().unwrap())
    })
}

/// A destination that serves one channel, and the source's halves of it.
struct Channel {
    sender: RdmaSender,
    acks: RdmaAcks,
    closer: Closer,
    fence: Arc<Fence>,
    regions: Arc<RegionTable>,
    serving: Option<std::thread::JoinHandle<ChannelEnd>>,
}

impl Channel {
    fn open(options: RdmaOptions, regions: &Arc<RegionTable>) -> Channel {
        Channel::over(connected(&options), options, regions)
    }

    fn over(
        (source, destination): (Arc<Connection>, Arc<Connection>),
        options: RdmaOptions,
        regions: &Arc<RegionTable>,
    ) -> Channel {
        let fence = Arc::new(Fence::new(closer(&destination)));
        let (inner, table) = (Arc::clone(&fence), Arc::clone(regions));
        let serving = std::thread::spawn(move || RdmaReceiver::new(destination).serve(&table, &inner));
        let (sender, acks, closer) = halves(source, options);
        Channel { sender, acks, closer, fence, regions: Arc::clone(regions), serving: Some(serving) }
    }

    /// Acknowledgements until one reaches `through`; returns all that arrived damaged.
    fn acknowledged(&mut self, through: u64) -> Vec<u64> {
        let mut refused = Vec::new();
        loop {
            let ack = self.acks.next(WAIT).unwrap().expect("an acknowledgement");
            refused.extend(ack.damaged);
            if ack.through == through {
                return refused;
            }
            assert!(ack.through < through);
        }
    }

    fn end(&mut self) -> ChannelEnd {
        self.serving.take().unwrap().join().unwrap()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.closer.close();
        let _ = self.fence.close(WAIT);
    }
}

fn region(size: u64) -> (Arc<FileRegion>, Arc<RegionTable>) {
    let region = Arc::new(FileRegion::new(size).unwrap());
    let table = RegionTable::new([(0, Arc::clone(&region) as Arc<dyn Region>)]);
    (region, Arc::new(table))
}

/// Bytes that differ everywhere, with every fourth page zero. Made word by word: a checker on an emulated CPU takes
/// minutes for bytes.
fn content(size: u64) -> Vec<u8> {
    let word = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 0x0101_0101_0101_0101;
    let mut bytes = vec![0; size as usize];
    bytes.chunks_exact_mut(8).zip(1..).for_each(|(place, n)| place.copy_from_slice(&word(n).to_le_bytes()));
    bytes.chunks_mut(PAGE as usize).step_by(4).for_each(|page| page.fill(0));
    bytes
}

fn order<'a>(sequence: u64, region: &'a dyn Region, data: &'a [Run], zero: &'a [Run]) -> WriteOrder<'a> {
    WriteOrder { sequence, region_id: 0, region, data, zero }
}

/// Sends the whole region in frames of `step` bytes.
fn send_all(channel: &mut Channel, source: &FileRegion, step: u64) -> u64 {
    let frames = source.size() / step;
    for frame in 0..frames {
        let (mut data, mut zero) = (Vec::new(), Vec::new());
        source.split_zero(&[run(frame * step, step)], &mut data, &mut zero).unwrap();
        channel.sender.write(&order(frame + 1, source, &data, &zero)).unwrap();
        while channel.acks.next(Duration::ZERO).unwrap().is_some() {}
    }
    frames
}

fn mixed_runs_land_identical(options: RdmaOptions) {
    let _link = link();
    // Under a checker on an emulated CPU each MiB takes many seconds.
    let windows = if std::env::var_os("RDMA_TESTS_SHORT").is_some() { 2 } else { 6 };
    let size = windows * WINDOW_BYTES + 3 * PAGE * 128;
    let (source, _) = region(size);
    let (landed, table) = region(size);
    source.store(0, &content(size)).unwrap();
    landed.store(0, &vec![0xee; size as usize]).unwrap();
    let mut channel = Channel::open(options, &table);
    let frames = send_all(&mut channel, &source, 128 * PAGE);
    channel.sender.probe(frames + 1, 100_000).unwrap();
    assert_eq!(channel.acknowledged(frames + 1), []);
    assert!(landed.snapshot().unwrap() == source.snapshot().unwrap());
    let counters = channel.sender.stats().counters();
    assert_eq!(counters.data_bytes + counters.zero_bytes, size);
    channel.closer.close();
    assert!(matches!(channel.end(), ChannelEnd::Closed));
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn mixed_runs_land_identical_from_where_they_lie() {
    mixed_runs_land_identical(patient());
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn mixed_runs_land_identical_when_copied_first() {
    mixed_runs_land_identical(RdmaOptions { zero_copy: false, ..patient() });
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn mixed_runs_land_identical_without_checksums() {
    let marked = RdmaOptions { checksums: false, type_of_service: Some(26 << 2), ..patient() };
    mixed_runs_land_identical(marked);
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn more_than_the_staging_memory_holds_goes_through_it() {
    let _link = link();
    let size = 16 * WINDOW_BYTES;
    let ((source, _), (landed, table)) = (region(size), region(size));
    source.store(0, &vec![0x5a; size as usize]).unwrap();
    let mut channel = Channel::open(RdmaOptions { zero_copy: false, ..patient() }, &table);
    // Pieces that end with the ring, and then pieces that do not.
    let frames = send_all(&mut channel, &source, 64 * PAGE);
    assert_eq!(channel.acknowledged_or_done(frames), []);
    drop(channel);
    let mut channel = Channel::open(RdmaOptions { zero_copy: false, ..patient() }, &table);
    let frames = send_all(&mut channel, &source, 100 * PAGE);
    assert_eq!(channel.acknowledged_or_done(frames), []);
    assert!(landed.snapshot().unwrap() == source.snapshot().unwrap());
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn holes_stay_holes_on_both_sides() {
    let _link = link();
    let size = 8 * WINDOW_BYTES;
    let ((source, _), (landed, table)) = (region(size), region(size));
    // A page in every window, and one window full.
    for window in 0..8 {
        source.store(window * WINDOW_BYTES + window * 5 * PAGE, &[window as u8 + 1; PAGE as usize]).unwrap();
    }
    source.store(3 * WINDOW_BYTES, &vec![0x33; WINDOW_BYTES as usize]).unwrap();
    let populated = source.populated().unwrap();
    let mut channel = Channel::open(patient(), &table);
    let frames = send_all(&mut channel, &source, 128 * PAGE);
    assert_eq!(channel.acknowledged_or_done(frames), []);
    assert!(landed.populated().unwrap() > populated, "registering fills holes for the time being");
    channel.regions.seal();
    assert_eq!(landed.populated().unwrap(), populated);
    assert_eq!(source.populated().unwrap(), populated, "a hole of the source was filled");
    assert!(landed.snapshot().unwrap() == source.snapshot().unwrap());
}

impl Channel {
    /// As [`Channel::acknowledged`], where some acknowledgements were taken already.
    fn acknowledged_or_done(&mut self, frames: u64) -> Vec<u64> {
        self.sender.probe(frames + 1, 0).unwrap();
        self.acknowledged(frames + 1)
    }
}

/// The sending thread takes messages in too, while it waits for room.
#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn acknowledgements_come_in_their_order_to_two_threads_that_look() {
    const FRAMES: u64 = 6000;
    let _link = link();
    let (_landed, table) = region(WINDOW_BYTES);
    let mut channel = Channel::open(patient(), &table);
    let Channel { sender, acks, .. } = &mut channel;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for frame in 1..=FRAMES {
                sender.probe(frame, 0).unwrap();
            }
        });
        let mut before = 0;
        while before < FRAMES {
            let ack = acks.next(WAIT).unwrap().expect("an acknowledgement");
            assert!(ack.through > before, "{} was acknowledged after {before}", ack.through);
            before = ack.through;
        }
    });
}

/// Whose sum of what landed is wrong the first time.
struct Damaged {
    inner: FileRegion,
    sums: AtomicU64,
}

impl Region for Damaged {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn checksum_after(&self, before: u32, runs: &[Run]) -> std::io::Result<u32> {
        let first = self.sums.fetch_add(1, Ordering::SeqCst) == 0;
        self.inner.checksum_after(before, runs).map(|sum| if first { !sum } else { sum })
    }
    fn split_zero(&self, _: &[Run], _: &mut Vec<Run>, _: &mut Vec<Run>) -> std::io::Result<()> {
        Ok(())
    }
    fn send(&self, _: std::os::fd::BorrowedFd<'_>, _: &[u8], _: &[Run], _: usize) -> std::io::Result<usize> {
        Ok(0)
    }
    fn receive(&self, _: std::os::fd::BorrowedFd<'_>, _: &[Run], _: usize) -> std::io::Result<usize> {
        Ok(0)
    }
    fn read(&self, run: Run, to: &mut [u8]) -> std::io::Result<()> {
        self.inner.read(run, to)
    }
    fn write(&self, run: Run, from: &[u8]) -> std::io::Result<()> {
        self.inner.write(run, from)
    }
    fn clear(&self, run: Run) -> std::io::Result<()> {
        self.inner.clear(run)
    }
    fn populate(&self, _: &[Run]) -> std::io::Result<()> {
        Ok(())
    }
    fn mapped(&self) -> Option<Mapped> {
        self.inner.mapped()
    }
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn a_damaged_payload_is_reported_and_can_be_sent_again() {
    let _link = link();
    let (source, _) = region(WINDOW_BYTES);
    source.store(0, &[0x44; 8 * PAGE as usize]).unwrap();
    let damaged = Damaged { inner: FileRegion::new(WINDOW_BYTES).unwrap(), sums: AtomicU64::new(0) };
    let table = Arc::new(RegionTable::new([(0, Arc::new(damaged) as Arc<dyn Region>)]));
    let mut channel = Channel::open(patient(), &table);
    let data = [run(0, 8 * PAGE)];
    channel.sender.write(&order(1, source.as_ref(), &data, &[])).unwrap();
    assert_eq!(channel.acknowledged(1), [1]);
    channel.sender.write(&order(2, source.as_ref(), &data, &[])).unwrap();
    assert_eq!(channel.acknowledged(2), []);
    let fenced = channel.fence.close(WAIT).unwrap();
    assert_eq!((fenced.applied, fenced.damaged), (2, vec![1]));
}

/// Sends ever new content to every page until it is stopped or cannot.
fn keep_sending(
    mut sender: RdmaSender,
    mut acks: RdmaAcks,
    stop: Arc<AtomicBool>,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let source = FileRegion::new(64 * PAGE).unwrap();
        for sequence in 1.. {
            let page = sequence % 64;
            source.store(page * PAGE, &[(sequence % 251) as u8 + 1; PAGE as usize]).unwrap();
            let data = [run(page * PAGE, PAGE)];
            let sent = sender.write(&order(sequence, &source, &data, &[]));
            if stop.load(Ordering::SeqCst) || sent.is_err() || acks.next(Duration::ZERO).is_err() {
                return;
            }
        }
    })
}

fn nothing_changes_after(end: impl FnOnce(&Channel)) {
    let _link = link();
    let (landed, table) = region(64 * PAGE);
    let mut channel = Channel::open(patient(), &table);
    let stop = Arc::new(AtomicBool::new(false));
    let (sender, acks) = channel.take_halves();
    let sending = keep_sending(sender, acks, Arc::clone(&stop));
    // Bytes land before the receiver's thread has seen their frames, but never more than 32 frames ahead of it: when
    // the 41st is there, 8 at least were applied.
    until("some writes", || landed.snapshot().unwrap()[4 * PAGE as usize..].iter().any(|byte| *byte > 40));
    end(&channel);
    let after = landed.snapshot().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(landed.snapshot().unwrap() == after, "a byte changed afterwards");
    stop.store(true, Ordering::SeqCst);
    channel.closer.close();
    sending.join().unwrap();
    let end = channel.end();
    assert!(matches!(end, ChannelEnd::Fenced | ChannelEnd::Failed(ChannelError::Sealed)), "{end:?}");
}

impl Channel {
    /// Halves of a connection of its own take the place of those that are given out.
    fn take_halves(&mut self) -> (RdmaSender, RdmaAcks) {
        let (source, _destination) = connected(&patient());
        let (sender, acks, _) = halves(source, patient());
        (std::mem::replace(&mut self.sender, sender), std::mem::replace(&mut self.acks, acks))
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT;
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn no_byte_changes_after_the_fence_closed() {
    nothing_changes_after(|channel| {
        let fenced = channel.fence.close(WAIT).unwrap();
        assert!(fenced.applied >= 2 && fenced.damaged.len() < 20, "{fenced:?}");
    });
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn no_byte_changes_after_the_seal() {
    nothing_changes_after(|channel| channel.regions.seal());
}

/// Both ways down, as a cable that is pulled out.
fn set_link(state: &str) {
    for device in ["l0a", "l0b"] {
        let done = Command::new("ip").args(["link", "set", device, state]).status().unwrap();
        assert!(done.success());
    }
}

/// What `rdma-links` set up goes with the link.
fn restore_link() {
    set_link("up");
    for (to, from, device) in [("10.9.0.2", "10.9.0.1", "l0a"), ("10.9.0.1", "10.9.0.2", "l0b")] {
        let arguments = ["route", "replace", to, "dev", device, "src", from, "table", "100"];
        let done = Command::new("ip").args(arguments).status().unwrap();
        assert!(done.success());
    }
    until("the ports", || {
        ["rx0a", "rx0b"].iter().all(|device| {
            let state = std::fs::read_to_string(format!("/sys/class/infiniband/{device}/ports/1/state"));
            state.is_ok_and(|state| state.contains("ACTIVE"))
        })
    });
    // The kernel looks a neighbour up for rdma_cm only slowly; agents have asked by TCP before.
    until("the neighbour", || {
        let asked =
            Command::new("ping").args(["-c", "1", "-W", "5", "10.9.0.2"]).stdout(Stdio::null()).status();
        asked.unwrap().success()
    });
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn a_cut_in_the_middle_is_reported_and_what_was_not_applied_goes_over_another_link() {
    let _link = link();
    let size = 16 * WINDOW_BYTES;
    let ((source, _), (landed, table)) = (region(size), region(size));
    source.store(0, &content(size)).unwrap();
    let mut channel = Channel::open(patient(), &table);
    let (frames, step) = (size / (64 * PAGE), 64 * PAGE);
    let mut lost = None;
    for frame in 0..frames {
        if frame == frames / 3 {
            set_link("down");
        }
        let (mut data, mut zero) = (Vec::new(), Vec::new());
        source.split_zero(&[run(frame * step, step)], &mut data, &mut zero).unwrap();
        let sent = channel.sender.write(&order(frame + 1, source.as_ref(), &data, &zero));
        if let Err(error) = sent {
            lost = Some(error);
            break;
        }
    }
    assert!(lost.is_some(), "a third of the frames cannot be in flight without acknowledgement");
    let fenced = channel.fence.close(WAIT).unwrap();
    assert!(fenced.applied < frames && fenced.damaged.is_empty(), "{fenced:?}");
    let mut next = Channel::over(connected_over((NEAR_2, FAR_2), &patient()), patient(), &table);
    for frame in fenced.applied..frames {
        let (mut data, mut zero) = (Vec::new(), Vec::new());
        source.split_zero(&[run(frame * step, step)], &mut data, &mut zero).unwrap();
        next.sender.write(&order(frame + 1, source.as_ref(), &data, &zero)).unwrap();
    }
    next.acknowledged_or_done(frames);
    assert!(landed.snapshot().unwrap() == source.snapshot().unwrap());
    drop(channel);
    restore_link();
    // Connections that ended while the link was down leave the device fit for others.
    drop(connected(&patient()));
}
