//! All probes for one pair of ports in one direction.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::ask::{Depth, Target};
use super::load::send_load;
use super::route::leaves_by;
use super::sender::{Fate, Sender};
use super::{mtu, sender};
use crate::collect::kernel::links;
use crate::model::{Latency, PathMtu, Probe};

/// A reply on a local network takes some microseconds; a host whose CPUs are busy needs longer.
const REPLY_WAIT: Duration = Duration::from_millis(150);
/// A packet counts as lost when this many in a row had no reply.
const TRIES: usize = 3;
const ROUND_TRIPS: usize = 21;
/// Between two packets under load.
const LOADED_GAP: Duration = Duration::from_millis(2);

/// Probes the target. What fails is said in the probe.
pub fn probe(target: &Target, depth: Depth) -> Probe {
    let mut probe = Probe::new(target.from.clone(), target.to.clone());
    probe.leaves_by = other_port(target);
    let mut sender = match Sender::new(target) {
        Ok(sender) => sender,
        Err(error) => {
            probe.failure = Some(format!("no datagram socket on {}: {error}", target.from.port));
            return probe;
        }
    };
    let reached = depth != Depth::Load && reach(&mut sender, target, &mut probe);
    if depth != Depth::Load {
        probe.reachable = Some(reached);
    }
    if reached {
        probe.path_mtu = path_mtu(&mut sender, target.mtu);
    }
    if depth != Depth::Short {
        load(&mut sender, target, reached, &mut probe);
    }
    probe
}

/// The port that packets leave by if they are not bound to one, where it is not the target's.
fn other_port(target: &Target) -> Option<String> {
    let index = leaves_by(target.from.ip, target.to.ip).ok()??;
    let links = links::read().ok()?;
    let name = links.into_iter().find(|link| link.port.index == Some(index))?.port.name;
    (name != target.from.port).then_some(name)
}

/// Reachable, latency, clock, port of arrival.
fn reach(sender: &mut Sender, target: &Target, probe: &mut Probe) -> bool {
    // The first ones wait for ARP.
    let first = (0..TRIES).map(|_| sender.try_small(REPLY_WAIT * 2)).find(|fate| !matches!(fate, Fate::Lost));
    match first {
        Some(Fate::Came { reply, .. }) => {
            probe.arrives_at = (!reply.port.is_empty() && reply.port != target.to.port).then_some(reply.port);
        }
        other => {
            probe.failure = Some(why_not(other.as_ref(), target));
            return false;
        }
    }
    let mut times = Vec::new();
    let mut best: Option<(Duration, i64)> = None;
    for _ in 0..ROUND_TRIPS {
        if let Fate::Came { reply, round_trip, clock } = sender.try_small(REPLY_WAIT) {
            times.push(round_trip);
            if best.is_none_or(|(least, _)| round_trip < least) {
                best = Some((round_trip, microseconds(reply.clock) - microseconds(clock)));
            }
        }
    }
    probe.latency = latency(times);
    probe.clock_ahead_us = best.map(|(_, ahead)| ahead);
    true
}

fn why_not(fate: Option<&Fate>, target: &Target) -> String {
    let (from, to, echo) = (&target.from.port, &target.to.ip, target.echo);
    match fate {
        Some(Fate::Refused) => {
            format!("{to} refuses datagrams at {echo}: a firewall, or another host has the address")
        }
        Some(Fate::TooLarge) => format!("{from} does not even pass small packets"),
        Some(Fate::Unsendable(kind)) => format!("nothing can be sent by {from}: {kind}"),
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

/// The largest packet that passes. A path is a black hole if a packet was lost without a word and smaller ones pass.
fn path_mtu(sender: &mut Sender, promised: u32) -> Option<PathMtu> {
    let mut silent = false;
    let passed = mtu::largest(promised, |size| {
        for _ in 0..TRIES {
            match sender.try_packet(size, REPLY_WAIT) {
                sender::Fate::Came { .. } => return true,
                sender::Fate::Lost => {}
                _ => return false,
            }
        }
        silent = true;
        false
    })?;
    Some(PathMtu { promised, passed, black_hole: silent && passed < promised })
}

/// TCP load, with small datagrams meanwhile.
fn load(sender: &mut Sender, target: &Target, reached: bool, probe: &mut Probe) {
    let (moved, small) =
        send_load(target, |over| if reached { small_ones(sender, over) } else { (0, Vec::new()) });
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
fn small_ones(sender: &mut Sender, over: &AtomicBool) -> (usize, Vec<Duration>) {
    // Begins when the load has filled the queues.
    std::thread::sleep(Duration::from_millis(50));
    let mut times = Vec::new();
    let mut sent = 0;
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        sent += 1;
        if let Fate::Came { round_trip, .. } = sender.try_small(REPLY_WAIT) {
            times.push(round_trip);
        }
        std::thread::sleep(LOADED_GAP.saturating_sub(began.elapsed()));
    }
    (sent, times)
}
