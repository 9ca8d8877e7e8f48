//! Virtual links, and the connections on them.
//!
//! A link has a rate and a latency in each direction, shared by all that is sent on it. A connection is a stream: what
//! arrives, arrives in order. When a link is lost, what is in flight does not simply vanish: some of it lies in buffers
//! and is handed to the receiver later, perhaps much later, and the write behind it may land in part.

use std::collections::VecDeque;
use std::time::Duration;

use linerate_core::control::Outgoing;
use linerate_core::{Run, Side, Time};

use crate::random::Random;

/// A placed write on its way.
#[derive(Clone, Debug)]
pub struct Write {
    /// Frame number on its channel.
    pub sequence: u64,
    pub region: usize,
    pub runs: Vec<Run>,
    /// What the pages held when they were read, in order.
    pub pages: Vec<u64>,
    /// When they were read.
    pub read_at: Time,
    /// The guest wrote while they were read: the checksum is wrong.
    pub torn: bool,
}

/// What a wire carries.
#[derive(Clone, Debug)]
pub enum Packet {
    /// First on every connection.
    Hello,
    Control(Outgoing),
    /// On a path: a keepalive only.
    Heartbeat,
    Write(Write),
    /// The beginning of a write whose end was lost.
    Partial(Write),
    Ping(u64),
    /// On a channel, back.
    Acknowledgement {
        /// Applied up to here.
        through: u64,
        /// Writes up to there that arrived damaged, by their number.
        damaged: Vec<u64>,
    },
}

impl Packet {
    /// Bytes on the wire. Holes and zero pages are runs in the header.
    pub fn bytes(&self) -> u64 {
        match self {
            Packet::Write(write) | Packet::Partial(write) => {
                64 + 4096
                    * write.pages.iter().filter(|&&page| crate::guest::content(page) != 0).count() as u64
            }
            _ => 64,
        }
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Path,
    Channel,
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub struct Pipe {
    /// What is in flight, and when it arrives.
    pub queue: VecDeque<(Time, Packet)>,
    /// Nothing sent from now on arrives.
    pub cut: bool,
    last_arrival: Time,
}

/// A stream between the agents.
#[derive(Debug)]
pub struct Connection {
    /// Its number, also the channel's or path's.
    pub id: u32,
    /// What it is for.
    pub purpose: Purpose,
    /// Index of its link.
    pub link: usize,
    /// Towards the destination, towards the source.
    pub pipes: [Pipe; 2],
    /// Whether the end at the source, at the destination, is open.
    pub open: [bool; 2],
    /// When the end at the source, at the destination, last received anything.
    pub last_received_at: [Time; 2],
}

/// A pair of ports.
#[derive(Clone, Debug)]
pub struct Link {
    /// Bytes per second, at most.
    pub rate: f64,
    /// In one direction; there and back takes twice as long.
    pub latency: Duration,
    /// Whether it carries towards the destination, towards the source.
    pub alive: [bool; 2],
    /// Bytes that entered it.
    pub carried: u64,
    busy_until: [Time; 2],
}

/// Index of a direction or an end.
pub fn index(side: Side) -> usize {
    match side {
        Side::Source => 0,
        Side::Destination => 1,
    }
}

pub fn other(side: Side) -> Side {
    match side {
        Side::Source => Side::Destination,
        Side::Destination => Side::Source,
    }
}

impl Link {
    /// A link that works.
    pub fn new(rate: f64, latency: Duration) -> Link {
        Link { rate, latency, alive: [true; 2], carried: 0, busy_until: [Time::ZERO; 2] }
    }

    /// Whether a connection can be made.
    pub fn connects(&self) -> bool {
        self.alive == [true; 2]
    }

    /// Takes a packet sent in a direction; gives when it arrives.
    fn carry(&mut self, now: Time, direction: usize, bytes: u64) -> Time {
        let begins = self.busy_until[direction].max(now);
        let ends = begins + Duration::from_secs_f64(bytes as f64 / self.rate);
        self.busy_until[direction] = ends;
        self.carried += bytes;
        ends + self.latency
    }

    /// Nothing moves until then, and nothing is lost.
    pub fn stall(&mut self, now: Time, span: Duration) {
        self.busy_until.iter_mut().for_each(|busy| *busy = (*busy).max(now) + span);
    }
}

impl Connection {
    /// A connection that is open at both ends.
    pub fn new(now: Time, id: u32, purpose: Purpose, link: usize) -> Connection {
        let pipes = [Pipe::default(), Pipe::default()];
        Connection { id, purpose, link, pipes, open: [true; 2], last_received_at: [now; 2] }
    }

    /// Sends from a side; gives when it arrives, if it does.
    pub fn send(&mut self, now: Time, link: &mut Link, from: Side, packet: Packet) -> Option<Time> {
        let direction = index(from);
        if !self.open[direction] {
            return None;
        }
        // A packet that enters a dead link cost the sender's time all the same.
        let arrives = link.carry(now, direction, packet.bytes());
        let pipe = &mut self.pipes[direction];
        if pipe.cut || !link.alive[direction] {
            pipe.cut = true;
            return None;
        }
        pipe.last_arrival = pipe.last_arrival.max(arrives);
        pipe.queue.push_back((pipe.last_arrival, packet));
        Some(pipe.last_arrival)
    }

    /// What has arrived at the end of the direction.
    pub fn arrived(&mut self, now: Time, direction: usize) -> Option<Packet> {
        let pipe = &mut self.pipes[direction];
        let due = pipe.queue.front().is_some_and(|(at, _)| *at <= now);
        if due { pipe.queue.pop_front().map(|(_, packet)| packet) } else { None }
    }

    /// The direction is cut: of what is in flight the first few come late, one perhaps in part, the rest never.
    /// Gives the times at which something arrives.
    pub fn cut(&mut self, now: Time, direction: usize, random: &mut Random, late_max: Duration) -> Vec<Time> {
        let pipe = &mut self.pipes[direction];
        if std::mem::replace(&mut pipe.cut, true) {
            return Vec::new();
        }
        let keep = if random.percent(40) { 0 } else { random.below(pipe.queue.len() as u64 + 1) as usize };
        let tail = pipe.queue.get(keep).map(|(_, packet)| packet.clone());
        pipe.queue.truncate(keep);
        if let Some(Packet::Write(write)) = tail
            && random.percent(50)
        {
            pipe.queue.push_back((now, Packet::Partial(write)));
        }
        let late = random.micros(0, late_max.as_micros() as u64);
        let mut times = Vec::new();
        for (at, _) in &mut pipe.queue {
            *at = (*at).max(now) + late;
            times.push(*at);
        }
        times
    }

    /// Everything in flight in a direction is delayed; gives the new times.
    pub fn delay(&mut self, direction: usize, span: Duration) -> Vec<Time> {
        let pipe = &mut self.pipes[direction];
        pipe.last_arrival = pipe.last_arrival + span;
        pipe.queue.iter_mut().for_each(|(at, _)| *at = *at + span);
        pipe.queue.iter().map(|(at, _)| *at).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Time {
        Time(n * 1_000_000)
    }

    #[test]
    fn a_link_is_shared_and_a_stream_keeps_its_order() {
        let mut link = Link::new(64_000.0, Duration::from_millis(5));
        let mut one = Connection::new(ms(0), 1, Purpose::Path, 0);
        let mut two = Connection::new(ms(0), 2, Purpose::Path, 0);
        assert_eq!(one.send(ms(0), &mut link, Side::Source, Packet::Heartbeat), Some(ms(6)));
        assert_eq!(two.send(ms(0), &mut link, Side::Source, Packet::Heartbeat), Some(ms(7)));
        assert_eq!(one.send(ms(0), &mut link, Side::Source, Packet::Ping(1)), Some(ms(8)));
        assert!(one.arrived(ms(5), 0).is_none());
        assert!(matches!(one.arrived(ms(8), 0), Some(Packet::Heartbeat)));
        assert!(matches!(one.arrived(ms(8), 0), Some(Packet::Ping(1))));
    }

    #[test]
    fn a_cut_stream_gives_a_prefix_and_never_more() {
        for seed in 0..50 {
            let mut link = Link::new(1e9, Duration::from_millis(5));
            let mut stream = Connection::new(ms(0), 1, Purpose::Channel, 0);
            for n in 0..10 {
                stream.send(ms(0), &mut link, Side::Source, Packet::Ping(n));
            }
            stream.cut(ms(1), 0, &mut Random::new(seed), Duration::from_secs(3));
            assert_eq!(stream.send(ms(2), &mut link, Side::Source, Packet::Ping(99)), None);
            let got: Vec<u64> = std::iter::from_fn(|| stream.arrived(ms(20_000), 0))
                .map(|packet| if let Packet::Ping(n) = packet { n } else { panic!("{packet:?}") })
                .collect();
            assert!(got.iter().copied().eq(0..got.len() as u64), "{got:?}");
        }
    }
}
