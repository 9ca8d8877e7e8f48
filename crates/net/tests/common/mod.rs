//! A destination that takes data channels over loopback, and helpers of all tests.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(unused_imports, unused_macros)]
pub mod forward;

use std::net::SocketAddr;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use linerate_core::{Run, SessionId, Token};
use linerate_net::channel::{ChannelEnd, Receiver};
use linerate_net::fence::Fence;
use linerate_net::region::Region;
use linerate_net::region::heap::HeapRegion;
use linerate_net::table::RegionTable;
use linerate_net::tcp::Stream;
use linerate_net::tcp::connect::{Route, connect};
use linerate_net::tcp::listen::{Accepted, ListenOptions, Listener};
use linerate_net::tcp::options::TcpOptions;
use linerate_net::tcp::receive::StreamReceiver;
use linerate_wire::frame::{Hello, Role, Welcome};

pub const PAGE: u64 = 4096;
pub const WAIT: Duration = Duration::from_secs(60);

pub fn run(offset: u64, length: u64) -> Run {
    Run { offset, length }
}

/// Bytes that differ everywhere, with every fourth page zero.
pub fn content(size: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..size as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 23) as u8 | 1).collect();
    bytes.chunks_mut(PAGE as usize).step_by(4).for_each(|page| page.fill(0));
    bytes
}

pub fn table(region: Arc<dyn Region>) -> Arc<RegionTable> {
    Arc::new(RegionTable::new([(0, region)]))
}

pub fn heap(bytes: Vec<u8>) -> (Arc<HeapRegion>, Arc<RegionTable>) {
    let region = Arc::new(HeapRegion::from(bytes));
    (Arc::clone(&region), table(region))
}

pub fn hello(role: Role) -> Hello {
    Hello {
        version_min: 1,
        version_max: 1,
        session: SessionId([7; 16]),
        role,
        link: 0,
        channel: 0,
        token: Token([9; 32]),
    }
}

pub fn route(remote: SocketAddr) -> Route {
    Route { local: Some([127, 0, 0, 1].into()), device: None, remote }
}

pub fn welcome() -> Welcome {
    Welcome { version: 1, control_received: 0 }
}

/// No wait of these ends before a test does: the host may be busy, and some regions are slow.
pub fn patient() -> TcpOptions {
    TcpOptions { connect_wait: WAIT, user_timeout: WAIT, ..TcpOptions::default() }
}

/// Listens on loopback and hands out what was taken.
pub fn listener() -> (Listener, mpsc::Receiver<Stream>) {
    listener_with(ListenOptions { tcp: patient(), handshake_wait: WAIT, ..ListenOptions::default() })
}

/// As [`listener`], with these options.
pub fn listener_with(options: ListenOptions) -> (Listener, mpsc::Receiver<Stream>) {
    let (taken, streams) = mpsc::channel();
    let taken = Mutex::new(taken);
    let handler = move |accepted: Accepted| {
        if let Ok(stream) = accepted.welcome(welcome()) {
            let _ = taken.lock().unwrap().send(stream);
        }
    };
    let address = "127.0.0.1:0".parse().unwrap();
    (Listener::start(&[address], options, handler).unwrap(), streams)
}

/// Both ends of a TCP connection that has shaken hands.
pub fn tcp_pair() -> (Stream, Stream) {
    let (listener, streams) = listener();
    let (source, _) = connect(&route(listener.addresses()[0]), &hello(Role::Data), &patient()).unwrap();
    (source, streams.recv_timeout(WAIT).unwrap())
}

/// A destination that serves one channel.
pub struct Destination {
    pub fence: Arc<Fence>,
    thread: Option<std::thread::JoinHandle<ChannelEnd>>,
}

impl Destination {
    pub fn serve(stream: Stream, regions: Arc<RegionTable>) -> Destination {
        let fence = Arc::new(Fence::new(stream.closer()));
        let inner = Arc::clone(&fence);
        let thread = std::thread::spawn(move || StreamReceiver::new(stream).serve(&regions, &inner));
        Destination { fence, thread: Some(thread) }
    }

    pub fn end(mut self) -> ChannelEnd {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        let _ = self.fence.close(WAIT);
    }
}

/// Waits for something that another thread brings about.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT;
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// For what only a hang makes late.
pub fn soon() -> Instant {
    Instant::now() + WAIT
}
