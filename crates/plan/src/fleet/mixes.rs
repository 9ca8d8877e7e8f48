//! One host with a mix of guests: how long its drain takes, against the lower bound and against fixed numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use linerate_core::drain::bound::{Bound, Work};
use linerate_core::fleet::{Guest, Host, HostId, Offer, Port};

use super::check::Violation;
use super::world::{Load, Times, World};
use crate::random::Random;

const GIB: u64 = 1 << 30;
const MB: f64 = 1e6;
/// What TCP leaves of a link.
const GOODPUT: f64 = 0.94;

/// A drain that was simulated.
#[derive(Clone, Debug)]
pub struct Run {
    pub seconds: f64,
    pub bound: Bound,
    pub guests: usize,
    pub violations: Vec<Violation>,
}

impl Run {
    /// Time against the bound: 1.05 is five percent above.
    pub fn ratio(&self) -> f64 {
        self.seconds / self.bound.time().as_secs_f64()
    }

    /// The same, where the bound has what no schedule avoids: the first guest is prepared before anything is copied,
    /// and the last one is switched over after everything.
    pub fn ratio_with_ends(&self) -> f64 {
        let times = Times::default();
        let ends = times.prepare_ms.0 as f64 / 1e3 + times.begin.as_secs_f64() + times.switch.as_secs_f64();
        self.seconds / (self.bound.time().as_secs_f64() + ends)
    }
}

fn ports(random: &mut Random) -> Vec<f64> {
    let gigabits: &[f64] =
        [&[10.0, 10.0][..], &[25.0, 25.0], &[25.0, 25.0, 25.0, 25.0], &[100.0, 100.0], &[10.0, 25.0]]
            [random.below(5) as usize];
    gigabits.iter().map(|gigabits| gigabits * 1e9 / 8.0 * GOODPUT).collect()
}

pub(super) fn offer(ports: &[f64]) -> Offer {
    let port = |(n, rate): (usize, &f64)| Port { network: format!("migration{n}"), bytes_per_s: *rate };
    Offer { ports: ports.iter().enumerate().map(port).collect(), ..Offer::default() }
}

/// A guest of a random size and write rate: most are small and write little, a few write hundreds of MB/s.
pub(super) fn guest(random: &mut Random, limit: f64) -> (Guest, Load) {
    let gib = [1, 2, 2, 4, 4, 4, 8, 8, 8, 16, 16, 32, 32, 64][random.below(14) as usize];
    let copy_bytes = gib * GIB / 100 * random.between(30, 100);
    let (low, high) = match random.below(100) {
        0..60 => (0, 5),
        60..85 => (5, 50),
        85..97 => (50, 200),
        _ => (200, 500),
    };
    let load = Load {
        copy_bytes,
        write_bytes_per_s: random.between(low, high) as f64 * MB,
        working_set_bytes: copy_bytes / 100 * random.between(2, 25),
        limit_bytes_per_s: limit,
    };
    (Guest { memory_bytes: gib * GIB + (GIB >> 3), ..Guest::default() }, load)
}

/// A source with 4 to 40 guests and 2 to 8 destinations, some of which have slower ports.
fn world(seed: u64) -> (World, HostId) {
    let mut random = Random::new(seed);
    let mut world = World::new(seed, Times::default(), None);
    let source_ports = ports(&mut random);
    let host = |ports: &[f64], gib: u64| Host {
        offer: offer(ports),
        memory_bytes: gib * GIB,
        reserve_bytes: 8 * GIB,
    };
    let source = world.add_host(host(&source_ports, 4096), None);
    let limit = if random.percent(50) { random.between(1500, 8000) as f64 * MB } else { f64::INFINITY };
    let guests: Vec<_> = (0..random.between(4, 40)).map(|_| guest(&mut random, limit)).collect();
    let total: u64 = guests.iter().map(|(guest, _)| guest.memory_bytes).sum();
    let hosts = random.between(2, 8);
    for _ in 0..hosts {
        let slower = random.percent(25);
        let theirs: Vec<f64> =
            source_ports.iter().map(|rate| if slower { rate / 2.0 } else { *rate }).collect();
        let gib = 80 + total * 2 / hosts / GIB + random.below(64);
        world.add_host(host(&theirs, gib), None);
    }
    for (guest, load) in guests {
        world.add_guest(guest, source, load);
    }
    (world, source)
}

/// Drains the host of this seed: by the controller, or by a fixed number at a time.
pub fn drain(seed: u64, at_once: Option<usize>) -> Run {
    let (mut world, source) = world(seed);
    let guests: Vec<_> = world.ledger.guests_on(source).collect();
    world.drain(source, &BTreeSet::new(), at_once);
    world.run(Duration::from_secs(48 * 3600), |_| false);
    let mut rates: BTreeMap<HostId, f64> = BTreeMap::new();
    let work: Vec<Work> = guests
        .iter()
        .filter_map(|guest| {
            let host = world.ledger.host_of(*guest).filter(|host| *host != source)?;
            let links = world.ledger.links(source, host).1;
            rates.insert(host, links);
            let load = world.loads[guest.0 as usize];
            let bytes_per_s = links.min(load.limit_bytes_per_s);
            let (copy_bytes, write_bytes_per_s) = (load.copy_bytes, load.write_bytes_per_s);
            Some(Work { copy_bytes, write_bytes_per_s, bytes_per_s, host })
        })
        .collect();
    let carries = world.ledger.offer(source).map_or(1.0, Offer::bytes_per_s);
    let drain = &world.drains[0];
    Run {
        seconds: (drain.ended.unwrap_or(world.now) - drain.began).as_secs_f64(),
        bound: Bound::of(&work, carries, |host| rates[&host]),
        guests: work.len(),
        violations: world.violations,
    }
}

/// Ratios of many mixes.
#[derive(Clone, Debug, Default)]
pub struct Ratios(Vec<f64>);

impl Ratios {
    pub fn add(&mut self, ratio: f64) {
        let at = self.0.partition_point(|other| *other < ratio);
        self.0.insert(at, ratio);
    }

    /// The ratio that so many percent of the mixes do not exceed.
    pub fn percentile(&self, percent: usize) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get((last * percent).div_ceil(100)).copied().unwrap_or(f64::NAN)
    }

    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }

    /// Percent of the mixes that are within this ratio.
    pub fn within(&self, ratio: f64) -> f64 {
        100.0 * self.0.partition_point(|other| *other <= ratio) as f64 / self.0.len().max(1) as f64
    }
}
