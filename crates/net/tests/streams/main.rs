//! Byte streams over real sockets and real channels that are cut.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod pair;

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use linerate_core::stream::Config;
use pair::{Pair, WAIT};
use socket2::SockRef;

fn config() -> Config {
    Config { window_bytes: 256 << 10, streams_max: 40, ..Config::default() }
}

/// Bytes that follow from a seed, in any order of asking.
struct Bytes(u64);

impl Bytes {
    fn fill(&mut self, place: &mut [u8]) {
        for byte in place {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            *byte = (self.0 >> 24) as u8;
        }
    }
}

/// Writes `total` bytes in pieces of odd sizes.
fn write_seeded(mut socket: impl Write, seed: u64, total: usize) {
    let (mut bytes, mut left) = (Bytes(seed), total);
    let mut place = vec![0; 70_001];
    while left > 0 {
        let length = left.min(1 + (left * 7919 + seed as usize) % place.len());
        bytes.fill(&mut place[..length]);
        socket.write_all(&place[..length]).unwrap();
        left -= length;
    }
}

/// Reads to the end and compares.
fn receive(mut socket: impl Read, seed: u64, total: usize) {
    let (mut bytes, mut seen) = (Bytes(seed), 0);
    let (mut place, mut wanted) = (vec![0; 50_000], vec![0; 50_000]);
    loop {
        let length = socket.read(&mut place).unwrap();
        if length == 0 {
            break;
        }
        bytes.fill(&mut wanted[..length]);
        assert!(place[..length] == wanted[..length], "stream {seed}: other bytes around {seen}");
        seen += length;
    }
    assert_eq!(seen, total, "stream {seed}");
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT;
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Descriptors are counted by process, so tests do not run beside each other.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn many_streams_both_ways_survive_cuts_and_leave_nothing() {
    let _alone = alone();
    let before = descriptors();
    {
        let pair = Pair::new(&config(), 2);
        let (over, cutter) = (AtomicBool::new(false), pair.cutter());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut n = 0;
                while !over.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(20 + n % 37));
                    cutter.cut(n as usize * 31);
                    n += 1;
                }
            });
            let mut threads = Vec::new();
            for seed in 1..=12u64 {
                let total = if seed % 4 == 0 { 777 } else { 3_000_000 + seed as usize };
                let near = pair.open_unix("unix");
                let far = pair.arrived_unix();
                let ends = [(near, seed), (far, seed + 1000)];
                let clones = ends.each_ref().map(|(socket, _)| socket.try_clone().unwrap());
                for (socket, seed) in ends {
                    threads.push(scope.spawn(move || {
                        write_seeded(&socket, seed, total);
                        socket.shutdown(Shutdown::Write).unwrap();
                    }));
                }
                for (socket, seed) in clones.into_iter().zip([seed + 1000, seed]) {
                    threads.push(scope.spawn(move || receive(socket, seed, total)));
                }
            }
            let joined: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            over.store(true, Ordering::SeqCst);
            assert!(joined.iter().all(Result::is_ok));
        });
        until("all streams to be gone", || pair.streams() == 0);
    }
    until("descriptors to be closed", || descriptors() <= before);
}

#[test]
fn a_half_closed_stream_answers() {
    let _alone = alone();
    let pair = Pair::new(&config(), 1);
    let mut near = pair.open_unix("unix");
    let mut far = pair.arrived_unix();
    near.write_all(b"how many?").unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    let mut question = String::new();
    far.read_to_string(&mut question).unwrap();
    assert_eq!(question, "how many?");
    std::thread::sleep(Duration::from_millis(100));
    far.write_all(b"nine").unwrap();
    drop(far);
    let mut answer = String::new();
    near.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "nine");
    drop(near);
    until("the stream to be gone", || pair.streams() == 0);
}

#[test]
fn a_reset_arrives_as_a_reset() {
    let _alone = alone();
    let pair = Pair::new(&config(), 1);
    let mut near = pair.open_tcp("tcp");
    let mut far = pair.arrived_tcp();
    near.write_all(b"x").unwrap();
    far.read_exact(&mut [0]).unwrap();
    SockRef::from(&near).set_linger(Some(Duration::ZERO)).unwrap();
    drop(near);
    let error = far.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    until("the stream to be gone", || pair.streams() == 0);
}

#[test]
fn a_reader_that_goes_stops_the_writer() {
    let _alone = alone();
    let pair = Pair::new(&config(), 1);
    let mut near = pair.open_unix("unix");
    let far = pair.arrived_unix();
    far.shutdown(Shutdown::Read).unwrap();
    let block = vec![1; 65_536];
    let error = (0..10_000)
        .find_map(|_| near.write_all(&block).err())
        .expect("the write must fail as the reader has closed");
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    // The other direction stays open.
    (&far).write_all(b"still here").unwrap();
    drop(far);
    let mut answer = String::new();
    near.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "still here");
    drop(near);
    until("the stream to be gone", || pair.streams() == 0);
}

#[test]
fn a_refused_stream_resets_its_socket_and_reports_why() {
    let _alone = alone();
    let pair = Pair::new(&config(), 1);
    let mut near = pair.open_tcp("nobody");
    assert_eq!(near.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(pair.refusals.recv_timeout(WAIT).unwrap(), "no listener there");
    assert_eq!(pair.streams(), 0);
}

#[test]
fn an_unread_stream_does_not_delay_others() {
    let _alone = alone();
    let pair = Pair::new(&config(), 1);
    let stuck = pair.open_unix("unix");
    let _unread = pair.arrived_unix();
    stuck.set_nonblocking(true).unwrap();
    let block = vec![1; 65_536];
    let mut quiet = 0;
    while quiet < 50 {
        // Nothing taken is an error: the socket does not wait.
        quiet = if (&stuck).write(&block).is_ok_and(|bytes| bytes > 0) { 0 } else { quiet + 1 };
        if quiet > 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let near = pair.open_unix("unix");
    let far = pair.arrived_unix();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            write_seeded(&near, 5, 4_000_000);
            near.shutdown(Shutdown::Write).unwrap();
        });
        receive(&far, 5, 4_000_000);
    });
}

#[test]
fn the_end_of_a_session_resets_every_socket() {
    let _alone = alone();
    let before = descriptors();
    {
        let pair = Pair::new(&config(), 1);
        let mut near = pair.open_tcp("tcp");
        let mut far = pair.arrived_tcp();
        near.write_all(b"x").unwrap();
        far.read_exact(&mut [0]).unwrap();
        for session in &pair.sessions {
            session.fail_all();
            assert!(session.wait_ended(WAIT));
        }
        for socket in [&mut near, &mut far] {
            assert_eq!(socket.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        }
        assert_eq!(pair.streams(), 0);
    }
    until("descriptors to be closed", || descriptors() <= before);
}
