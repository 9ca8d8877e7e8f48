//! The sending side of datagrams, on one port.

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
pub enum Fate {
    /// It came, and its reply too.
    Came {
        /// What the reply says.
        reply: Reply,
        /// From sending to the reply.
        round_trip: Duration,
        /// The own clock in the middle of it, since 1970.
        clock: Duration,
    },
    /// It was too large, and the own port or a router on the way said so.
    TooLarge,
    /// Nobody said anything.
    Lost,
    /// Somebody said that nobody listens there.
    Refused,
    /// It could not be sent.
    Unsendable(io::ErrorKind),
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
        // A datagram of 64 KiB must fit.
        socket.set_send_buffer_size(256 << 10)?;
        let headers = if remote.is_ipv4() { 28 } else { 48 };
        Ok(Sender { socket, token: target.token, sequence: 0, headers })
    }

    /// Sends a packet of this size, IP header counted, and waits for its reply.
    pub fn try_packet(&mut self, packet_bytes: u32, wait: Duration) -> Fate {
        let sequence = match self.send(packet_bytes) {
            Ok(sequence) => sequence,
            Err(fate) => return fate,
        };
        self.wait_for(sequence, wait)
    }

    /// A packet of the smallest size.
    pub fn try_small(&mut self, wait: Duration) -> Fate {
        self.try_packet(REPLY_BYTES as u32 + self.headers, wait)
    }

    /// Sends a packet and does not wait. Gives its number.
    pub fn send(&mut self, packet_bytes: u32) -> Result<u32, Fate> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = packet_bytes.saturating_sub(self.headers) as usize;
        match self.socket.send(&request(&self.token, self.sequence, bytes)) {
            Ok(_) => Ok(self.sequence),
            Err(error) => Err(fate_of(&error)),
        }
    }

    /// The next reply, to any of the packets sent. `Ok(None)` when the time is over.
    pub fn next_reply(&mut self, wait: Duration) -> Result<Option<Reply>, Fate> {
        let deadline = Instant::now() + wait;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            // A time-out of zero would wait for ever.
            let turn = left.max(Duration::from_millis(1));
            self.socket.set_read_timeout(Some(turn)).map_err(|error| fate_of(&error))?;
            let mut buffer = [0; 256];
            match io::Read::read(&mut &self.socket, &mut buffer) {
                Ok(bytes) => {
                    if let Some(reply) = read_reply(buffer.get(..bytes).unwrap_or_default(), &self.token) {
                        return Ok(Some(reply));
                    }
                }
                Err(error) if is_time_out(&error) => {}
                Err(error) => return Err(fate_of(&error)),
            }
        }
    }

    fn wait_for(&mut self, sequence: u32, wait: Duration) -> Fate {
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let sent = Instant::now();
        loop {
            match self.next_reply(wait.saturating_sub(sent.elapsed())) {
                Ok(Some(reply)) if reply.sequence == sequence => {
                    let round_trip = sent.elapsed();
                    return Fate::Came { reply, round_trip, clock: clock + round_trip / 2 };
                }
                // A late one of an earlier packet.
                Ok(Some(_)) => {}
                Ok(None) => return Fate::Lost,
                Err(fate) => return fate,
            }
        }
    }
}

fn is_time_out(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn fate_of(error: &io::Error) -> Fate {
    const TOO_LARGE: i32 = 90; // EMSGSIZE
    match (error.raw_os_error(), error.kind()) {
        (Some(TOO_LARGE), _) => Fate::TooLarge,
        (_, io::ErrorKind::ConnectionRefused) => Fate::Refused,
        (_, kind) => Fate::Unsendable(kind),
    }
}
