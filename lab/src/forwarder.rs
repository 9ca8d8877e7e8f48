//! A program between two ports that hands on packets a while later, but for some that it loses: what `netem` does where
//! the kernel has it.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_lock::{Condvar, Mutex};
use nix::sys::socket::LinkAddr;
use socket2::{Domain, Protocol, Socket, Type};

use crate::error::io_error;
use crate::{LabError, netns};

/// How soon threads notice that they shall end.
const TURN: Duration = Duration::from_millis(50);
const ALL_PROTOCOLS: u16 = 3;
const FRAME_BYTES: usize = 70_000;

/// One direction of a cable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// Every packet arrives so much later.
    pub delay: Duration,
    /// One packet of so many is lost; 0: none.
    pub loses_one_of: u32,
}

/// Hands packets on until it is dropped.
#[derive(Debug)]
pub struct Forwarder {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    frames: Mutex<VecDeque<(Instant, Vec<u8>)>>,
    more: Condvar,
}

impl Queue {
    fn frames(&self) -> MutexGuard<'_, VecDeque<(Instant, Vec<u8>)>> {
        self.frames.lock()
    }
}

impl Forwarder {
    /// Between two ports of a namespace: from the first to the second, and the other way.
    pub(crate) fn start(namespace: &str, ports: &[String; 2], ways: [Way; 2]) -> Result<Forwarder, LabError> {
        let sockets = netns::inside(namespace, || Ok([open(&ports[0])?, open(&ports[1])?]))?;
        let sockets = sockets.map(Arc::new);
        let stop = Arc::new(AtomicBool::new(false));
        let mut this = Forwarder { stop, threads: Vec::new() };
        for (way, (from, to)) in ways.into_iter().zip([(0, 1), (1, 0)]) {
            let queue = Arc::new(Queue::default());
            let (own, socket, stop) = (queue.clone(), sockets[from].clone(), this.stop.clone());
            this.threads.push(std::thread::spawn(move || receive(&socket, &own, way, &stop)));
            let (socket, stop) = (sockets[to].clone(), this.stop.clone());
            this.threads.push(std::thread::spawn(move || send(&socket, &queue, &stop)));
        }
        Ok(this)
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic in it was reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// A packet socket on a port. What it sends itself it does not receive.
fn open(port: &str) -> Result<Socket, LabError> {
    let failed =
        |error: std::io::Error| io_error("open a packet socket on", std::path::Path::new(port))(error);
    let protocol = Protocol::from(i32::from(ALL_PROTOCOLS.to_be()));
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol)).map_err(failed)?;
    let address = link_address(port).ok_or_else(|| failed(ErrorKind::NotFound.into()))?;
    nix::sys::socket::bind(socket.as_raw_fd(), &address).map_err(|error| failed(error.into()))?;
    socket.set_read_timeout(Some(TURN)).map_err(failed)?;
    let room = nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::RcvBufForce, &(32 << 20));
    room.map_err(|error| failed(error.into()))?;
    Ok(socket)
}

fn link_address(port: &str) -> Option<LinkAddr> {
    let mut all = nix::ifaddrs::getifaddrs().ok()?.filter(|one| one.interface_name == port);
    all.find_map(|one| one.address?.as_link_addr().copied())
}

fn receive(socket: &Socket, queue: &Queue, way: Way, stop: &AtomicBool) {
    let mut buffer = vec![0; FRAME_BYTES];
    let mut count = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        let Ok(bytes) = (&mut &*socket).read(&mut buffer) else { continue };
        count = count.wrapping_add(1);
        if way.loses_one_of > 0 && count.is_multiple_of(way.loses_one_of) {
            continue;
        }
        let mut frame = buffer[..bytes].to_vec();
        complete(&mut frame);
        queue.frames().push_back((Instant::now() + way.delay, frame));
        queue.more.notify_all();
    }
}

fn send(socket: &Socket, queue: &Queue, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let first = queue.frames().pop_front();
        let Some((at, frame)) = first else {
            let wait = queue.more.wait_timeout_while(queue.frames(), TURN, |frames| frames.is_empty());
            drop(wait);
            continue;
        };
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        // A port that is down, or a packet that is too large for it, loses packets as a cable would.
        let _ = socket.send(&frame);
    }
}

/// Writes the check sum of TCP or UDP over IPv4, which the sending host left to its adapter.
fn complete(frame: &mut [u8]) {
    const IPV4: [u8; 2] = [8, 0];
    const ETHERNET: usize = 14;
    if frame.get(12..14) != Some(&IPV4) || frame.len() < ETHERNET + 20 {
        return;
    }
    let header = usize::from(frame[ETHERNET] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([frame[ETHERNET + 2], frame[ETHERNET + 3]]));
    let (protocol, from) = (frame[ETHERNET + 9], ETHERNET + header);
    let at = match protocol {
        6 => from + 16,
        17 => from + 6,
        _ => return,
    };
    let end = (ETHERNET + total).min(frame.len());
    if at + 2 > end {
        return;
    }
    frame[at..at + 2].fill(0);
    let mut sum = u64::from(protocol) + (end - from) as u64;
    for pair in frame[ETHERNET + 12..ETHERNET + 20].chunks(2).chain(frame[from..end].chunks(2)) {
        sum += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    let sum = if sum == 0xffff { 0xffff } else { !(sum as u16) };
    frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}
