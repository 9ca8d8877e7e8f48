//! The sending side of datagrams, on one port.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use socket2::{Domain, Protocol, Socket, Type};

use super::ask::Target;
use super::datagram::{REPLY_BYTES, Reply, read_reply, request};

/// A datagram to an echo.
pub struct Sender {
    socket: Socket,
    token: [u8; 16],
    sequence: u32,
    /// IP and UDP headers, bytes.
    headers: u32,
}

/// What became of a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// It arrived, and its reply too.
    Received {
        /// What the reply says.
        reply: Reply,
        /// From sending to the reply.
        round_trip: Duration,
        /// The own clock in the middle of it, since 1970.
        clock: Duration,
    },
    /// It was too large, and the own port or a router on the way said so.
    TooLarge,
    /// There was no reply within the time limit.
    Lost,
    /// An ICMP error reported that there is no listener.
    Refused,
    /// It could not be sent.
    Unsendable(io::ErrorKind),
}

/// Small packets that had no reply yet.
#[derive(Debug, Default)]
pub struct InFlight(BTreeMap<u32, SentAt>);

/// When a packet was sent.
#[derive(Clone, Copy, Debug)]
struct SentAt {
    began: Instant,
    /// The own clock, since 1970.
    clock: Duration,
}

impl SentAt {
    /// Notes the time, then sends: the kernel may carry packet and reply before `send` is back. On an idle machine a
    /// clock that starts behind it leaves out all but the whole round trip.
    fn before<T>(send: impl FnOnce() -> Result<T, ProbeResult>) -> Result<(SentAt, T), ProbeResult> {
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let sent = SentAt { began: Instant::now(), clock };
        Ok((sent, send()?))
    }

    /// Its reply is here now.
    fn received(self, reply: Reply) -> ProbeResult {
        let round_trip = self.began.elapsed();
        ProbeResult::Received { reply, round_trip, clock: self.clock + round_trip / 2 }
    }
}

impl InFlight {
    /// Sends a small probe and notes when.
    pub fn send(&mut self, sender: &mut Sender) -> Result<(), ProbeResult> {
        let (sent, number) = SentAt::before(|| sender.send(sender.small()))?;
        self.0.insert(number, sent);
        Ok(())
    }

    /// What became of the next one that has a reply; `None` when the time is over. An error belongs to none of them.
    pub fn next(&mut self, sender: &mut Sender, wait: Duration) -> Option<ProbeResult> {
        let deadline = Instant::now() + wait;
        loop {
            match sender.next_reply(deadline.saturating_duration_since(Instant::now())) {
                Ok(reply) => {
                    let reply = reply?;
                    if let Some(sent) = self.0.remove(&reply.sequence) {
                        return Some(sent.received(reply));
                    }
                }
                Err(result) => return Some(result),
            }
        }
    }

    /// All have a reply.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Sender {
    /// Sends from the target's own end and by its port, whatever the routes say, never in fragments.
    pub fn new(target: &Target) -> io::Result<Sender> {
        let remote = target.echo;
        let socket = Socket::new(Domain::for_address(remote), Type::DGRAM, Some(Protocol::UDP))?;
        socket.bind_device(Some(target.from.port.as_bytes()))?;
        socket.bind(&SocketAddr::new(target.from.ip, 0).into())?;
        match remote.ip() {
            IpAddr::V4(_) => set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?,
            IpAddr::V6(_) => set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)?,
        }
        socket.connect(&remote.into())?;
        // A datagram of 64 KiB must fit, and all replies to a burst.
        socket.set_send_buffer_size(256 << 10)?;
        room_for_bursts(&socket)?;
        let headers = if remote.is_ipv4() { 28 } else { 48 };
        Ok(Sender { socket, token: target.token, sequence: 0, headers })
    }

    /// Sends a packet of this size, IP header counted, and waits for its reply.
    pub fn try_packet(&mut self, packet_bytes: u32, wait: Duration) -> ProbeResult {
        match SentAt::before(|| self.send(packet_bytes)) {
            Ok((sent, sequence)) => self.wait_for(sequence, sent, wait),
            Err(result) => result,
        }
    }

    /// Sends packets of several sizes at once, so many of each, and says what became of each size.
    pub fn try_sizes(&mut self, sizes: &[u32], copies: usize, wait: Duration) -> Vec<ProbeResult> {
        let (mut results, mut numbers) = (vec![ProbeResult::Lost; sizes.len()], Vec::new());
        for (at, size) in sizes.iter().enumerate() {
            for _ in 0..copies {
                // A router's word on an earlier packet comes with the next one that is sent.
                match self.send(*size).or_else(|_| self.send(*size)) {
                    Ok(number) => numbers.push((number, at)),
                    Err(result) => results.get_mut(at).into_iter().for_each(|one| *one = result.clone()),
                }
            }
        }
        let deadline = Instant::now() + wait * 3;
        let mut spoke = false;
        while results.contains(&ProbeResult::Lost) && Instant::now() < deadline {
            match self.next_reply(wait) {
                Ok(Some(reply)) => {
                    let at = numbers.iter().find(|(number, _)| *number == reply.sequence).map(|(_, at)| *at);
                    if let Some(result) = at.and_then(|at| results.get_mut(at)) {
                        let clock = reply.clock;
                        *result = ProbeResult::Received { reply, round_trip: wait, clock };
                    }
                }
                Ok(None) => break,
                Err(result) => spoke |= result == ProbeResult::TooLarge,
            }
        }
        if spoke {
            results
                .iter_mut()
                .filter(|result| **result == ProbeResult::Lost)
                .for_each(|result| *result = ProbeResult::TooLarge);
        }
        results
    }

    /// A packet of the smallest size.
    pub fn try_small(&mut self, wait: Duration) -> ProbeResult {
        self.try_packet(self.small(), wait)
    }

    /// Sends a packet and does not wait. Gives its number.
    pub fn send(&mut self, packet_bytes: u32) -> Result<u32, ProbeResult> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = packet_bytes.saturating_sub(self.headers) as usize;
        match self.socket.send(&request(&self.token, self.sequence, bytes)) {
            Ok(_) => Ok(self.sequence),
            Err(error) => Err(result_of(&error)),
        }
    }

    /// A reply that is there already.
    pub fn reply_there(&mut self) -> Option<Reply> {
        let mut buffer = [0; 256];
        let received = rustix::net::recv(&self.socket, &mut buffer[..], rustix::net::RecvFlags::DONTWAIT);
        let (_, bytes) = received.ok()?;
        read_reply(buffer.get(..bytes).unwrap_or_default(), &self.token)
    }

    /// Size of the smallest packet, bytes.
    pub fn small(&self) -> u32 {
        REPLY_BYTES as u32 + self.headers
    }

    /// The next reply, to any of the packets sent. `Ok(None)` when the time is over.
    pub fn next_reply(&mut self, wait: Duration) -> Result<Option<Reply>, ProbeResult> {
        let deadline = Instant::now() + wait;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            // A time-out of zero would wait for ever.
            let turn = left.max(Duration::from_millis(1));
            self.socket.set_read_timeout(Some(turn)).map_err(|error| result_of(&error))?;
            let mut buffer = [0; 256];
            match io::Read::read(&mut &self.socket, &mut buffer) {
                Ok(bytes) => {
                    if let Some(reply) = read_reply(buffer.get(..bytes).unwrap_or_default(), &self.token) {
                        return Ok(Some(reply));
                    }
                }
                Err(error) if is_time_out(&error) => {}
                Err(error) => return Err(result_of(&error)),
            }
        }
    }

    fn wait_for(&mut self, sequence: u32, sent: SentAt, wait: Duration) -> ProbeResult {
        loop {
            match self.next_reply(wait.saturating_sub(sent.began.elapsed())) {
                Ok(Some(reply)) if reply.sequence == sequence => return sent.received(reply),
                // A late one of an earlier packet.
                Ok(Some(_)) => {}
                Ok(None) => return ProbeResult::Lost,
                Err(result) => return result,
            }
        }
    }
}

/// Packets that wait for this thread while the machine is busy are not lost.
pub(super) fn room_for_bursts(socket: &Socket) -> io::Result<()> {
    const BYTES: usize = 2 << 20;
    // Beyond the system's limit only with CAP_NET_ADMIN.
    let forced = nix::sys::socket::setsockopt(socket, nix::sys::socket::sockopt::RcvBufForce, &BYTES);
    forced
        .or_else(|_| {
            socket
                .set_recv_buffer_size(BYTES)
                .map_err(|error| nix::errno::Errno::from_raw(error.raw_os_error().unwrap_or(0)))
        })
        .map_err(Into::into)
}

fn is_time_out(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn result_of(error: &io::Error) -> ProbeResult {
    const TOO_LARGE: i32 = 90; // EMSGSIZE
    match (error.raw_os_error(), error.kind()) {
        (Some(TOO_LARGE), _) => ProbeResult::TooLarge,
        (_, io::ErrorKind::ConnectionRefused) => ProbeResult::Refused,
        (_, kind) => ProbeResult::Unsendable(kind),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::thread;

    use super::*;
    use crate::model::End;
    use crate::probe::echo::Echo;

    fn to_an_echo(echo: &Echo) -> Sender {
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let end = |host: &str| End { host: host.into(), port: "lo".into(), ip: local(0).ip() };
        let echoing = echo.echoing();
        Sender::new(&Target {
            from: end("a"),
            to: end("b"),
            mtu: 65_536,
            speed_mbps: 0,
            echo: echoing.addresses[0],
            token: echoing.token,
            agent: local(1),
            rdma: false,
        })
        .unwrap()
    }

    /// A send that takes long, as where the kernel carries packet and reply in it.
    #[test]
    fn what_the_kernel_does_while_it_sends_belongs_to_the_round_trip() {
        const SENDING: Duration = Duration::from_millis(20);
        let echo = Echo::start(&[SocketAddr::from(([127, 0, 0, 1], 0))], Duration::from_secs(60)).unwrap();
        let mut sender = to_an_echo(&echo);
        let (sent, number) = SentAt::before(|| {
            let number = sender.send(sender.small());
            thread::sleep(SENDING);
            number
        })
        .unwrap();
        let result = sender.wait_for(number, sent, Duration::from_secs(60));
        let ProbeResult::Received { round_trip, clock: middle, .. } = result else { panic!("{result:?}") };
        assert!(round_trip >= SENDING, "{round_trip:?}");
        assert_eq!(middle - sent.clock, round_trip / 2);
    }

    #[test]
    fn a_round_trip_is_within_the_time_of_asking() {
        let echo = Echo::start(&[SocketAddr::from(([127, 0, 0, 1], 0))], Duration::from_secs(60)).unwrap();
        let mut sender = to_an_echo(&echo);
        let began = Instant::now();
        let result = sender.try_small(Duration::from_secs(60));
        let all = began.elapsed();
        let ProbeResult::Received { round_trip, .. } = result else { panic!("{result:?}") };
        assert!(round_trip > Duration::ZERO && round_trip <= all, "{round_trip:?} of {all:?}");
    }
}
