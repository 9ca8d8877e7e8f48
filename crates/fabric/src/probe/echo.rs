//! The receiving side of datagrams: for a while, to every sender that has the token.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use linerate_lock::Mutex;
use nix::sys::socket::sockopt::{Ipv4PacketInfo, Ipv6RecvPacketInfo};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt};
use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

use super::ask::{self, Echoing};
use super::datagram::{Reply, read_request, reply};
use super::sender::room_for_bursts;
use crate::collect::kernel::links;

/// No echo is open longer, whatever it was asked for.
pub const LONGEST: Duration = Duration::from_secs(120);
const TURN: Duration = Duration::from_millis(100);
/// The largest datagram that there can be.
const DATAGRAM_BYTES: usize = 65_535;

/// Datagrams cannot be answered.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum EchoError {
    /// No socket at an address.
    #[error("no datagram socket at {address}: {source}")]
    Socket {
        address: IpAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    #[error("the kernel gave no random numbers for a token")]
    Random,
    #[error("cannot start a thread to answer datagrams: {0}")]
    Thread(#[source] io::Error),
}

/// Datagrams are answered until the time is over.
#[derive(Debug)]
pub struct Echo {
    echoing: Echoing,
    until: Arc<Mutex<Instant>>,
    counts: RequestCounts,
}

/// Requests that came with the token: from where, to which address, how many.
type RequestCounts = Arc<Mutex<BTreeMap<(SocketAddr, IpAddr), u32>>>;

/// Senders that are counted; more are answered all the same.
const SENDERS_MAX: usize = 65_536;

impl Echo {
    /// Answers at these addresses, but those that no port of this host has. The port is that of each address if it is
    /// free, so that a rule of a firewall for the agent's port covers it; else any.
    pub fn start(addresses: &[SocketAddr], last: Duration) -> Result<Echo, EchoError> {
        let mut token = [0; 16];
        getrandom::fill(&mut token).map_err(|_| EchoError::Random)?;
        let until = Arc::new(Mutex::new(Instant::now() + last.min(LONGEST)));
        let names = port_names();
        let counts = RequestCounts::default();
        let mut bound = Vec::new();
        for address in addresses {
            let failed = |source| EchoError::Socket { address: address.ip(), source };
            let socket = match socket(*address) {
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => continue,
                made => made.map_err(failed)?,
            };
            bound.extend(socket.local_addr().map_err(failed)?.as_socket());
            let (at, names, counts, until) = (address.ip(), names.clone(), counts.clone(), until.clone());
            let serve = move || serve(&socket, &token, &names, &until, |from| count(&counts, from, at));
            std::thread::Builder::new().name("echo".into()).spawn(serve).map_err(EchoError::Thread)?;
        }
        Ok(Echo { echoing: Echoing { token, addresses: bound, sources: Vec::new() }, until, counts })
    }

    /// Where, what requests must begin with, and which came.
    pub fn echoing(&self) -> Echoing {
        let mut sums: BTreeMap<(IpAddr, IpAddr), u64> = BTreeMap::new();
        for ((from, at), count) in self.counts.lock().iter() {
            *sums.entry((from.ip(), *at)).or_default() += u64::from(*count);
        }
        let sources = sums.into_iter().map(|((from, at), requests)| ask::EchoSource { from, at, requests });
        Echoing { sources: sources.collect(), ..self.echoing.clone() }
    }

    /// Lets it live at least this much longer. False if it has ended already.
    pub fn extend(&self, last: Duration) -> bool {
        let mut until = self.until.lock();
        let now = Instant::now();
        // The threads look every turn; one that is about to end may have looked already.
        if *until < now + TURN * 2 {
            return false;
        }
        *until = (*until).max(now + last.min(LONGEST));
        true
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        *self.until.lock() = Instant::now();
    }
}

fn count(counts: &RequestCounts, from: SocketAddr, at: IpAddr) -> u32 {
    let mut counts = counts.lock();
    if counts.len() >= SENDERS_MAX && !counts.contains_key(&(from, at)) {
        return 0;
    }
    let count = counts.entry((from, at)).or_default();
    *count = count.saturating_add(1);
    *count
}

fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if socket.bind(&address.into()).is_err() {
        socket.bind(&SocketAddr::new(address.ip(), 0).into())?;
    }
    socket.set_read_timeout(Some(TURN))?;
    // Room for what comes while this thread waits for a CPU under load.
    room_for_bursts(&socket)?;
    // The port that it comes in by is reported if the kernel reports it.
    let _ = match address {
        SocketAddr::V4(_) => setsockopt(&socket, Ipv4PacketInfo, &true),
        SocketAddr::V6(_) => setsockopt(&socket, Ipv6RecvPacketInfo, &true),
    };
    Ok(socket)
}

fn port_names() -> BTreeMap<u32, String> {
    let links = links::read().unwrap_or_default();
    links.into_iter().filter_map(|link| Some((link.port.index?, link.port.name))).collect()
}

fn serve(
    socket: &Socket,
    token: &[u8; 16],
    names: &BTreeMap<u32, String>,
    until: &Mutex<Instant>,
    count: impl Fn(SocketAddr) -> u32,
) {
    let mut buffer = vec![0; DATAGRAM_BYTES];
    while Instant::now() < *until.lock() {
        match receive(socket, &mut buffer) {
            Ok((bytes, index, from)) => {
                let datagram = buffer.get(..bytes).unwrap_or_default();
                let Some(sequence) = read_request(datagram, token) else { continue };
                let port = index.and_then(|index| names.get(&index)).cloned().unwrap_or_default();
                let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let answer = Reply { sequence, bytes: bytes as u32, clock, port, arrived: count(from) };
                // A reply that cannot be sent is a reply that is lost: the sender counts it.
                let _ = socket.send_to(&reply(token, &answer), &from.into());
            }
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => {}
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Bytes, number of the port, sender.
fn receive(socket: &Socket, buffer: &mut [u8]) -> nix::Result<(usize, Option<u32>, SocketAddr)> {
    let mut space = nix::cmsg_space!(nix::libc::in6_pktinfo);
    let mut pieces = [io::IoSliceMut::new(buffer)];
    let message =
        recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut pieces, Some(&mut space), MsgFlags::empty())?;
    let port = message.cmsgs().ok().into_iter().flatten().find_map(|control| match control {
        ControlMessageOwned::Ipv4PacketInfo(info) => u32::try_from(info.ipi_ifindex).ok(),
        ControlMessageOwned::Ipv6PacketInfo(info) => Some(info.ipi6_ifindex),
        _ => None,
    });
    let from = message.address.as_ref().and_then(socket_address).ok_or(nix::errno::Errno::EINTR)?;
    Ok((message.bytes, port, from))
}

fn socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(SocketAddr::V4((*v4).into()));
    }
    address.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port has failed, or gets its address later. The address is for documentation: no host has it.
    #[test]
    fn an_address_that_no_port_has_keeps_no_other_from_answering() {
        let addresses = [SocketAddr::from(([192, 0, 2, 77], 0)), SocketAddr::from(([127, 0, 0, 1], 0))];
        let echo = Echo::start(&addresses, Duration::from_millis(1)).unwrap();
        let answering: Vec<IpAddr> = echo.echoing().addresses.iter().map(SocketAddr::ip).collect();
        assert_eq!(answering, [IpAddr::from([127, 0, 0, 1])]);
    }
}
