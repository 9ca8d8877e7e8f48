//! What a peer gets before it is known: floods from addresses of loopback, and a real peer beside them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::{Read, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use common::*;
use linerate_net::tcp::connect::{ConnectError, Route, connect};
use linerate_net::tcp::listen::ListenOptions;
use linerate_wire::frame::{Frame, Role};
use socket2::{Domain, Socket, Type};

/// No connection ends by itself in a test.
fn no_end() -> ListenOptions {
    ListenOptions { handshake_wait: 4 * WAIT, ..ListenOptions::default() }
}

/// Both ends of many connections are in this process.
fn allow_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const WANTED: u64 = 16_384;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < WANTED) {
        let raised = Some(maximum.map_or(WANTED, |most| most.min(WANTED)));
        setrlimit(Resource::Nofile, Rlimit { current: raised, maximum }).unwrap();
    }
}

/// A connection from an address of loopback.
fn from(host: u8, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, host], 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

/// A host at that address opens a session.
fn opens(host: u8, to: SocketAddr) -> Result<(), ConnectError> {
    let route = Route { local: Some(IpAddr::from([127, 0, 0, host])), device: None, remote: to };
    connect(&route, &hello(Role::ControlNew), &patient()).map(drop)
}

/// Whether the connection was closed by the other end.
fn is_closed(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    match stream.read(&mut [0]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

fn open_ones(streams: &[TcpStream]) -> usize {
    streams.iter().filter(|stream| !is_closed(stream)).count()
}

/// Waits until that many are left open.
fn until_left(streams: &[TcpStream], left: usize) {
    let deadline = Instant::now() + WAIT;
    while open_ones(streams) != left {
        assert!(Instant::now() < deadline, "{} are open instead of {left}", open_ones(streams));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn ten_thousand_silent_connections_of_one_address_cost_its_share_and_keep_nobody_out() {
    allow_descriptors();
    let (listener, _taken) = listener_with(no_end());
    let (address, share) = (listener.addresses()[0], no_end().silent_per_address);
    let mut open: Vec<TcpStream> = Vec::new();
    for count in 1..=10_000 {
        open.push(from(2, address));
        if count % 500 == 0 {
            opens(3, address).expect("another host is let in");
            until_left(&open, share);
            open.retain(|stream| !is_closed(stream));
        }
    }
    // The newest of them are left, and their own address is not shut out.
    opens(2, address).expect("a host at the same address is let in");
}

#[test]
fn silent_connections_of_many_addresses_are_bounded_and_the_oldest_are_closed() {
    allow_descriptors();
    let (listener, _taken) = listener_with(ListenOptions { silent_max: 40, ..no_end() });
    let address = listener.addresses()[0];
    // Of ten hosts a hundred each, in turn.
    let open: Vec<TcpStream> = (0..1000).map(|count| from(10 + (count % 10) as u8, address)).collect();
    until_left(&open, 40);
    assert!(open.iter().rev().take(40).all(|stream| !is_closed(stream)), "the newest are left");
    opens(3, address).expect("another host is let in");
}

#[test]
fn a_flood_does_not_close_a_lone_silent_connection() {
    let (listener, _taken) = listener_with(ListenOptions { silent_max: 40, ..no_end() });
    let address = listener.addresses()[0];
    let lone = from(3, address);
    let flood: Vec<TcpStream> = (0..200).map(|count| from(10 + count % 2, address)).collect();
    until_left(&flood, 39);
    assert!(!is_closed(&lone));
}

#[test]
fn a_known_host_is_not_kept_out_by_as_many_addresses_as_there_is_room() {
    // As many strangers as may be, each alone at its address: no one of them gives way before another.
    let options = ListenOptions { silent_max: 8, handshakes_max: 2, ..no_end() };
    let (listener, taken) = listener_with(options);
    let address = listener.addresses()[0];
    opens(3, address).unwrap();
    let session = taken.recv_timeout(WAIT).unwrap();
    let mut known = from(3, address);
    let flood: Vec<TcpStream> = (0..60).map(|host| from(100 + host, address)).collect();
    until_left(&flood, 8);
    assert!(!is_closed(&known), "it is silent, and no stranger takes its place");
    // Strangers that begin to speak have all turns of strangers.
    let mut speaking = flood.iter().filter(|stream| !is_closed(stream));
    speaking.by_ref().take(2).for_each(|mut stream| stream.write_all(&[1; 7]).unwrap());
    opens(3, address).expect("a known host has turns of its own");
    // Its address stays known after its connections have ended.
    drop(session);
    known.write_all(&[1; 7]).unwrap();
    opens(3, address).expect("it was here not long ago");
}

#[test]
fn a_slow_handshake_keeps_its_slot_until_another_host_needs_it() {
    let (listener, _taken) = listener_with(ListenOptions { handshakes_max: 4, ..no_end() });
    let address = listener.addresses()[0];
    let mut slow: Vec<TcpStream> = (0..4).map(|_| from(2, address)).collect();
    slow.iter_mut().for_each(|stream| stream.write_all(&[1]).unwrap());
    // They have four times `WAIT`, and all turns as soon as their bytes were seen.
    let end = Instant::now() + WAIT;
    // Each host is a stranger.
    for host in 3.. {
        opens(host, address).expect("the oldest of the slow ones gives way");
        if open_ones(&slow) < 4 {
            break;
        }
        assert!(Instant::now() < end, "all of them have their turns");
    }
}

#[test]
fn a_line_of_those_that_let_bytes_trickle_is_not_waited_for() {
    let (listener, _taken) = listener_with(ListenOptions { handshakes_max: 2, ..no_end() });
    let address = listener.addresses()[0];
    let slow: Vec<TcpStream> = (0..100).map(|count| from(10 + count % 4, address)).collect();
    slow.iter().for_each(|mut stream| stream.write_all(&[1]).unwrap());
    // Each of them may have its turn for a second and more.
    opens(3, address).expect("the address with the fewest connections is next");
}

#[test]
fn a_byte_now_and_then_does_not_lengthen_the_time_that_a_handshake_has() {
    let wait = Duration::from_millis(300);
    let (listener, _taken) =
        listener_with(ListenOptions { handshake_wait: wait, ..ListenOptions::default() });
    let mut slow = from(2, listener.addresses()[0]);
    let mut frame = Vec::new();
    Frame::Hello(hello(Role::ControlNew)).encode(0, 0, 0, &mut frame).unwrap();
    // All but the last byte, of which each could begin a time of its own.
    let mut bytes = frame[..frame.len() - 1].iter();
    let began = Instant::now();
    while !is_closed(&slow) {
        // Refused once the other end is closed.
        let _ = bytes.next().map(|byte| slow.write_all(&[*byte]));
        std::thread::sleep(wait / 10);
        assert!(began.elapsed() < WAIT, "it is still open");
    }
    assert!(began.elapsed() >= wait);
}

/// The kernel keeps nothing of a connection that was closed for its silence: the peer gets a reset, and no end of file.
#[test]
fn who_says_nothing_is_reset() {
    use std::io::Read;
    let wait = Duration::from_millis(300);
    let (listener, _taken) =
        listener_with(ListenOptions { handshake_wait: wait, ..ListenOptions::default() });
    let mut silent = std::net::TcpStream::connect(listener.addresses()[0]).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let ended = silent.read(&mut [0; 1]).map_err(|error| error.kind());
    assert_eq!(ended, Err(std::io::ErrorKind::ConnectionReset));
}

#[test]
fn who_says_nothing_is_closed_after_a_time() {
    let wait = Duration::from_millis(300);
    let (listener, _taken) =
        listener_with(ListenOptions { handshake_wait: wait, ..ListenOptions::default() });
    until_left(&[from(2, listener.addresses()[0])], 0);
}
