//! All probes for one pair of ports in one direction, and which port the kernel would choose.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linerate_net::netlink::NetlinkError;
use linerate_net::round_trip::RoundTrip;
use linerate_net::tcp::connect::Route;
use linerate_net::tls::Tls;
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::collect::kernel::links;
use crate::collect::kernel::netlink::{Asker, Attributes, Writer};
use crate::model::{Latency, Loss, PathMtu, Probe};
use crate::probe::ask::{Depth, Question, Target, ask};
use crate::probe::load::send_load;
use crate::probe::sender::{InFlight, ProbeResult, Sender};
use crate::probe::{loss, mtu};

/// A reply on a local network takes some microseconds; a host whose CPUs are busy needs longer. Where the link is far,
/// a reply may take two round trips more.
const REPLY_WAIT: Duration = Duration::from_millis(150);
/// The first packet is repeated after this.
const FIRST_GAP: Duration = Duration::from_millis(300);
/// How long a link without any reply is tried if TCP shows that it is near.
const NEAR_WAIT: Duration = Duration::from_millis(1200);
/// The same if nothing is known of the link: ARP takes one round trip and the packet another. Enough for 2 s each: a
/// link that is too far to carry a migration is far, and not dead.
const FAR_WAIT: Duration = Duration::from_millis(4300);
/// A packet counts as lost when this many in a row had no reply.
const TRIES: usize = 3;
const ROUND_TRIPS: usize = 21;
/// A local network answers sooner; a longer round trip is measured again.
const ROUND_TRIP_LONG: Duration = Duration::from_micros(300);
/// Round trips are measured one after the other for this long, what is left of them at the same time.
const IN_TURN: Duration = Duration::from_millis(100);
/// Packets whose loss is counted: of 1 % none would be seen once in 20 000 times.
const PACKETS: u32 = 1000;
/// A packet that is later is lost. On a far link it may be two round trips later.
const LATE: Duration = Duration::from_millis(350);
/// A connection of a local network takes some milliseconds.
const TCP_WAIT: Duration = Duration::from_millis(900);
const LOSSY_TRIES: usize = 4;
/// The look at this link is over after this.
const ECHO_MS: u64 = 120_000;
/// No other try begins after this: those of a far link are long.
const TRIES_WAIT: Duration = Duration::from_secs(15);
/// Between two packets under load.
const LOADED_GAP: Duration = Duration::from_millis(2);

/// Probes the target. What fails is said in the probe.
pub fn probe(target: &Target, depth: Depth, tls: Option<&Tls>) -> Probe {
    let mut probe = Probe::new(target.from.clone(), target.to.clone());
    probe.leaves_by = other_port(target);
    let mut sender = match Sender::new(target) {
        Ok(sender) => sender,
        Err(error) => {
            probe.failure = Some(format!("no datagram socket on {}: {error}", target.from.port));
            return probe;
        }
    };
    if depth == Depth::Load {
        load(&mut sender, target, false, &mut probe, tls);
        return probe;
    }
    let by_tcp = OnceLock::new();
    let reached = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| connects(target, TCP_WAIT, &by_tcp, tls));
        let reached = reach(&mut sender, target, &by_tcp, &mut probe);
        probe.tcp_failure = connecting.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause));
        reached
    });
    probe.reachable = Some(reached);
    let round_trip = Duration::from_nanos(probe.latency.map_or(0, |latency| latency.median_ns));
    if reached {
        probe.loss = lost(&mut sender, round_trip, depth);
        probe.path_mtu = path_mtu(&mut sender, target.mtu, reply_wait(round_trip), copies(probe.loss));
        if probe.tcp_failure.is_some() {
            probe.tcp_failure = connects_after_all(target, round_trip, &probe, tls);
        }
    }
    probe.tcp = Some(probe.tcp_failure.is_none());
    let drowned = probe.loss.is_some_and(|loss| u64::from(loss.lost) * 20 > u64::from(loss.sent));
    if depth == Depth::Full && probe.tcp == Some(true) && !drowned {
        load(&mut sender, target, reached, &mut probe, tls);
    }
    probe
}

/// How long a reply may take on a link with this round trip.
fn reply_wait(round_trip: Duration) -> Duration {
    REPLY_WAIT + RoundTrip::new(round_trip).get() * 2
}

/// Why the agent's TCP port takes no connection over this link; `None` if it does. Then the round trip is known.
fn connects(
    target: &Target,
    wait: Duration,
    by_tcp: &OnceLock<Duration>,
    tls: Option<&Tls>,
) -> Option<String> {
    // The connection, TLS, HELLO, the question.
    let round_trips = if tls.is_some() { 4 } else { 3 };
    let once = || {
        let route = Route {
            local: Some(target.from.ip),
            device: Some(target.from.port.clone()),
            remote: target.agent,
        };
        let began = Instant::now();
        let answer = ask(&route, &Question::Echo { for_ms: ECHO_MS }, wait, wait, tls);
        if answer.is_ok() {
            by_tcp.get_or_init(|| began.elapsed() / round_trips);
        }
        answer.err().map(|error| error.to_string())
    };
    once().and_then(|_| once())
}

/// The same once more, where the link is one that needs more patience: it is far, or the first packets may have been
/// among those that are lost.
fn connects_after_all(
    target: &Target,
    round_trip: Duration,
    probe: &Probe,
    tls: Option<&Tls>,
) -> Option<String> {
    let wait = RoundTrip::new(round_trip).silence(TCP_WAIT);
    let is_lossy = probe.loss.is_some_and(|loss| loss.lost > 0);
    let tries = match (is_lossy, wait > TCP_WAIT) {
        (true, _) => LOSSY_TRIES,
        (false, true) => 1,
        (false, false) => 0,
    };
    let began = Instant::now();
    let mut failure = probe.tcp_failure.clone();
    for _ in 0..tries {
        if failure.is_none() || began.elapsed() > TRIES_WAIT {
            break;
        }
        failure = connects(target, wait, &OnceLock::new(), tls);
    }
    failure
}

/// How many packets are lost; where some are, again and with more patience: what is reported was seen twice.
fn lost(sender: &mut Sender, round_trip: Duration, depth: Depth) -> Option<Loss> {
    let round_trip = RoundTrip::new(round_trip).get();
    let first = loss::count(sender, PACKETS, round_trip, LATE)?;
    if first.lost == 0 {
        return Some(first);
    }
    let again = if depth == Depth::Short { PACKETS } else { PACKETS * 2 };
    loss::count(sender, again, round_trip, LATE * 2).or(Some(first))
}

/// Copies of a packet of which one arrives all but certainly.
fn copies(loss: Option<Loss>) -> usize {
    let Some(loss) = loss.filter(|loss| loss.lost > 0 && loss.sent > 0) else { return TRIES };
    // A million to one.
    let needed = 6.0 / -(f64::from(loss.lost) / f64::from(loss.sent)).log10();
    (needed.ceil().clamp(0.0, 40.0) as usize).max(TRIES)
}

/// The port that packets leave by if they are not bound to one, where it is not the target's.
fn other_port(target: &Target) -> Option<String> {
    let index = leaves_by(target.from.ip, target.to.ip).ok()??;
    let links = links::read().ok()?;
    let name = links.into_iter().find(|link| link.port.index == Some(index))?.port.name;
    (name != target.from.port).then_some(name)
}

/// Reachable, latency, clock, port of arrival.
fn reach(sender: &mut Sender, target: &Target, by_tcp: &OnceLock<Duration>, probe: &mut Probe) -> bool {
    let first = match first_answer(sender, by_tcp) {
        ProbeResult::Received { reply, round_trip, .. } => {
            probe.arrives_at = (!reply.port.is_empty() && reply.port != target.to.port).then_some(reply.port);
            round_trip
        }
        other => {
            probe.failure = Some(why_not(&other, target));
            return false;
        }
    };
    let times = Times::measure(sender, reply_wait(first));
    probe.clock_ahead_us = times.best.map(|(_, ahead)| ahead);
    probe.latency = latency(times.all);
    true
}

/// The first reply, to any packet. The first packets may wait for ARP. From the fourth on there are many of them, for a
/// path that loses most.
fn first_answer(sender: &mut Sender, by_tcp: &OnceLock<Duration>) -> ProbeResult {
    const MANY: usize = 32;
    let mut flight = InFlight::default();
    let began = Instant::now();
    for number in 0.. {
        let limit = by_tcp.get().map_or(FAR_WAIT, |near| RoundTrip::new(*near).silence(NEAR_WAIT));
        if began.elapsed() >= limit {
            break;
        }
        let copies = if number == TRIES { MANY } else { 1 };
        let answer = (0..copies).find_map(|_| flight.send(sender).err()).map_or_else(
            || flight.next(sender, FIRST_GAP),
            |result| {
                std::thread::sleep(FIRST_GAP);
                Some(result)
            },
        );
        match answer {
            // No host answers ARP so far.
            None | Some(ProbeResult::Unsendable(ErrorKind::HostUnreachable)) => {}
            Some(result) => return result,
        }
    }
    ProbeResult::Lost
}

/// Round trips, and how far the other clock was ahead in the fastest of them, microseconds.
#[derive(Default)]
struct Times {
    all: Vec<Duration>,
    best: Option<(Duration, i64)>,
}

impl Times {
    /// A busy machine has quick moments: the least of many is the link's.
    fn measure(sender: &mut Sender, wait: Duration) -> Times {
        const MOST: usize = ROUND_TRIPS * 3;
        let mut times = Times::default();
        let began = Instant::now();
        for number in 0..MOST {
            if number >= ROUND_TRIPS {
                if times.least().is_none_or(|least| least < ROUND_TRIP_LONG) {
                    break;
                }
                std::thread::sleep(LOADED_GAP);
            }
            if began.elapsed() > IN_TURN {
                let mut left = MOST - number;
                times.add_at_once(sender, wait, || left.checked_sub(1).map(|less| left = less).is_some());
                break;
            }
            times.add(sender.try_small(wait));
        }
        times
    }

    fn add(&mut self, result: ProbeResult) {
        if let ProbeResult::Received { reply, round_trip, clock } = result {
            self.all.push(round_trip);
            if self.best.is_none_or(|(least, _)| round_trip < least) {
                self.best = Some((round_trip, microseconds(reply.clock) - microseconds(clock)));
            }
        }
    }

    /// Sends packets as long as it shall, and waits for the replies of all. Gives the count of those that were sent.
    fn add_at_once(&mut self, sender: &mut Sender, wait: Duration, mut more: impl FnMut() -> bool) -> usize {
        let mut flight = InFlight::default();
        let mut sent = 0;
        while more() {
            let began = Instant::now();
            sent += 1;
            // What cannot be sent counts as lost.
            let _ = flight.send(sender);
            self.fetch(sender, &mut flight, began + LOADED_GAP);
            std::thread::sleep(LOADED_GAP.saturating_sub(began.elapsed()));
        }
        self.fetch(sender, &mut flight, Instant::now() + wait);
        sent
    }

    /// Replies that come until then.
    fn fetch(&mut self, sender: &mut Sender, flight: &mut InFlight, until: Instant) {
        while !flight.is_empty() {
            let Some(result) = flight.next(sender, until.saturating_duration_since(Instant::now())) else {
                break;
            };
            self.add(result);
        }
    }

    fn least(&self) -> Option<Duration> {
        self.best.map(|(least, _)| least)
    }
}

fn why_not(result: &ProbeResult, target: &Target) -> String {
    let (from, to, echo) = (&target.from.port, &target.to.ip, target.echo);
    match result {
        ProbeResult::Refused => {
            format!("{to} refuses datagrams at {echo}: a firewall, or another host has the address")
        }
        ProbeResult::TooLarge => format!("{from} does not even pass small packets"),
        ProbeResult::Unsendable(kind) => format!("nothing can be sent by {from}: {kind}"),
        _ => format!(
            "no reply from {echo} over {from}: wrong cable or VLAN, a firewall that drops UDP, or a wrong route back"
        ),
    }
}

fn microseconds(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

fn latency(mut times: Vec<Duration>) -> Option<Latency> {
    times.sort();
    let ns = |time: Option<&Duration>| time.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    Some(Latency {
        min_ns: ns(times.first())?,
        median_ns: ns(times.get(times.len() / 2))?,
        max_ns: ns(times.last())?,
    })
}

/// The largest packet that passes. A path is a black hole if a packet was lost without any error and smaller ones pass.
fn path_mtu(sender: &mut Sender, promised: u32, wait: Duration, copies: usize) -> Option<PathMtu> {
    let mut silent = false;
    let passed = mtu::largest(promised, |sizes| {
        // One packet says most often all there is to say.
        if sizes == [promised] && matches!(sender.try_packet(promised, wait), ProbeResult::Received { .. }) {
            return vec![true];
        }
        let results = sender.try_sizes(sizes, copies, wait);
        silent |= results.contains(&ProbeResult::Lost);
        results.iter().map(|result| matches!(result, ProbeResult::Received { .. })).collect()
    })?;
    Some(PathMtu { promised, passed, black_hole: silent && passed < promised })
}

/// TCP load, with small datagrams meanwhile.
fn load(sender: &mut Sender, target: &Target, reached: bool, probe: &mut Probe, tls: Option<&Tls>) {
    let wait = reply_wait(Duration::from_nanos(probe.latency.map_or(0, |latency| latency.median_ns)));
    let (moved, small) =
        send_load(target, tls, |over| if reached { small_ones(sender, wait, over) } else { (0, Vec::new()) });
    match moved {
        Ok(moved) => {
            probe.throughput_mbps = Some(moved.throughput_mbps);
            probe.retransmits = moved.retransmits;
            let (sent, times) = small;
            let lost = sent.saturating_sub(times.len());
            let permille = (lost * 1000).checked_div(sent);
            probe.loss_permille = permille.and_then(|permille| u32::try_from(permille).ok());
            probe.latency_loaded = latency(times);
        }
        Err(error) => {
            probe.failure.get_or_insert_with(|| format!("no load over {}: {error}", target.from.port));
        }
    }
}

/// Small datagrams until the load is over: how many were sent, and how long the replies took.
fn small_ones(sender: &mut Sender, wait: Duration, over: &AtomicBool) -> (usize, Vec<Duration>) {
    // Begins when the load has filled the queues.
    std::thread::sleep(Duration::from_millis(50));
    let mut times = Times::default();
    let sent = times.add_at_once(sender, wait, || !over.load(Ordering::Relaxed));
    (sent, times.all)
}

const GET_ROUTE: u16 = 26;
/// Length of the kernel's `struct rtmsg`.
const ROUTE_BYTES: usize = 12;
const DESTINATION: u16 = 1;
const SOURCE: u16 = 2;
const OUT_PORT: u16 = 4;

/// Number of the port by which packets from one address to another leave, if nothing binds them to a port.
pub fn leaves_by(from: IpAddr, to: IpAddr) -> Result<Option<u32>, NetlinkError> {
    let answers = Asker::open(NETLINK_ROUTE)?.ask(GET_ROUTE, 0, &route_request(from, to))?;
    let first = answers.first().and_then(|answer| answer.payload.get(ROUTE_BYTES..));
    Ok(first.and_then(|attributes| Attributes::new(attributes).u32(OUT_PORT)))
}

fn route_request(from: IpAddr, to: IpAddr) -> Vec<u8> {
    let bytes = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let (family, bits) = if to.is_ipv4() { (2, 32) } else { (10, 128) };
    let mut message = vec![family, bits, bits, 0];
    message.resize(ROUTE_BYTES, 0);
    message.extend(Writer::new().bytes(DESTINATION, &bytes(to)).bytes(SOURCE, &bytes(from)).finish());
    message
}

#[cfg(test)]
mod tests {
    mod route {
        use super::super::*;

        #[test]
        fn to_itself_a_host_sends_by_loopback() {
            let local = [127, 0, 0, 1].into();
            assert_eq!(leaves_by(local, local).unwrap(), Some(1));
        }
    }
}
