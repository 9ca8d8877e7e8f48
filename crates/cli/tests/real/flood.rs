//! Connections that say nothing, from addresses of a host that no agent uses.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use linerate_lab::Host;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

/// Addresses of the link's network that belong to the flood; no host of the lab has such a number.
const FIRST: u8 = 200;
/// Open ones are looked at after so many new ones.
const AT_ONCE: usize = 100;

/// Makes connections until it is told to stop, and holds those that are not closed.
pub struct Flood {
    addresses: Vec<Ipv4Addr>,
    to: SocketAddr,
    stop: AtomicBool,
    /// No more are made; those that are open stay.
    pub pause: AtomicBool,
    pub made: AtomicUsize,
    /// Most that were open at a time.
    pub open: AtomicUsize,
}

impl Flood {
    /// From eleven addresses of this host on its first link.
    pub fn new(host: &Host, to: SocketAddr) -> Flood {
        let [a, b, c, _] = host.address(0).octets();
        let addresses: Vec<Ipv4Addr> = (FIRST..FIRST + 11).map(|last| [a, b, c, last].into()).collect();
        for address in &addresses {
            // No subnet: the agents make no link of it.
            let address = format!("{address}/32");
            let words = ["-n", host.namespace(), "addr", "add", &address, "dev", &host.device(0)];
            assert!(std::process::Command::new("ip").args(words).status().unwrap().success());
        }
        let (stop, pause, made, open) = Default::default();
        Flood { addresses, to, stop, pause, made, open }
    }

    /// To be run inside the host: 10,000 connections of one address to each 1,000 of the ten others.
    pub fn run(&self) {
        let mut held: Vec<TcpStream> = Vec::new();
        while !self.stop.load(Ordering::SeqCst) {
            if self.pause.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            let made = self.made.load(Ordering::SeqCst);
            let place = if made % 11 == 10 { 1 + (made / 11) % 10 } else { 0 };
            // Refused while the agent's queue is full.
            held.extend(self.connect(self.addresses[place]));
            self.made.store(made + 1, Ordering::SeqCst);
            if made.is_multiple_of(AT_ONCE) {
                held.retain(|stream| !is_closed(stream));
                self.open.fetch_max(held.len(), Ordering::SeqCst);
            }
        }
    }

    fn connect(&self, from: Ipv4Addr) -> Option<TcpStream> {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::from((from, 0))).ok()?;
        connect(&socket, &self.to).ok()?;
        Some(TcpStream::from(socket))
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

fn is_closed(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    match stream.read(&mut [0]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

/// A line of /proc/PID/status, KiB.
pub fn memory(pid: u32, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let found = status.lines().find_map(|one| one.strip_prefix(line)?.strip_prefix(':'));
    found.unwrap().trim().trim_end_matches(" kB").parse().unwrap()
}
