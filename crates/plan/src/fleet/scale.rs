//! Rolling drains of a large fleet: every host is emptied once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use linerate_core::fleet::{Host, HostId, Needs};

use super::check::{Defect, Violation};
use super::mixes;
use super::world::{Times, World};
use crate::random::Random;

const GIB: u64 = 1 << 30;
/// Hosts in a rack.
const RACK: u32 = 40;
/// 2 × 25 Gb/s, what TCP leaves of it.
const PORT: f64 = 25e9 / 8.0 * 0.94;
/// A rack's uplink carries a quarter of what its hosts' ports do.
const OVERSUBSCRIBED: f64 = 4.0;

/// A fleet to be drained host by host.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    pub hosts: u32,
    pub guests_per_host: u32,
    /// Hosts that are drained at the same time.
    pub at_once: usize,
    /// Hosts that die on the way.
    pub deaths: u32,
    pub seed: u64,
    pub defect: Option<Defect>,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub drains: usize,
    pub outcomes: BTreeMap<&'static str, u32>,
    pub retries: u32,
    pub virtual_s: f64,
    pub events: u64,
    pub overfilled: usize,
    pub violations: Vec<Violation>,
    /// Guests on a host whose drain is over and that is still cordoned.
    pub left_behind: u32,
}

fn world(fleet: &Fleet) -> World {
    let mut random = Random::new(fleet.seed);
    let mut world = World::new(fleet.seed, Times::default(), fleet.defect);
    world.uncordon_after = Some(Duration::from_secs(300));
    let mut rack = None;
    for number in 0..fleet.hosts {
        if number.is_multiple_of(RACK) {
            rack = Some(world.add_rack(2.0 * PORT * f64::from(RACK) / OVERSUBSCRIBED));
        }
        let mut offer = mixes::offer(&[PORT, PORT]);
        // Four storage clusters, each reached by a part of the hosts; newer CPUs in every third rack.
        let pod = number * 4 / fleet.hosts.max(1);
        offer.storage.insert(format!("pool{pod}"));
        offer.cpu_models.insert("base".into());
        if (number / RACK).is_multiple_of(3) {
            offer.cpu_models.insert("new".into());
        }
        world.add_host(Host { offer, memory_bytes: 512 * GIB, reserve_bytes: 16 * GIB }, rack);
    }
    for number in 0..fleet.hosts {
        let pod = number * 4 / fleet.hosts.max(1);
        let new = (number / RACK).is_multiple_of(3);
        let mut left = 496 * GIB * 85 / 100;
        for _ in 0..fleet.guests_per_host {
            let (mut guest, load) = mixes::guest(&mut random, 4e9);
            if guest.memory_bytes > left {
                continue;
            }
            left -= guest.memory_bytes;
            let cpu_model = Some(if new && random.percent(50) { "new" } else { "base" }.to_string());
            let storage = BTreeSet::from([format!("pool{pod}")]);
            guest.needs = Needs { cpu_model, storage, ..Needs::default() };
            world.add_guest(guest, HostId(number), load);
        }
    }
    world
}

/// Drains every host once, in an order that spreads over the racks.
pub fn roll(fleet: &Fleet) -> Report {
    let mut world = world(fleet);
    let mut random = Random::new(fleet.seed ^ 0x5eed);
    // Hosts per second at which the fleet is emptied, roughly: for when hosts die.
    let lasts_s = 45 * u64::from(fleet.hosts) / fleet.at_once.max(1) as u64;
    for _ in 0..fleet.deaths {
        let host = HostId(random.below(u64::from(fleet.hosts)) as u32);
        world.host_dies_in(
            random.micros(1_000_000, (lasts_s.max(10)) * 800_000),
            host,
            Duration::from_secs(600),
        );
    }
    world.store_is_away(Duration::from_secs(60), Duration::from_secs(90));
    let stride =
        (0..).map(|n| fleet.hosts * 5 / 8 + n).find(|stride| gcd(*stride, fleet.hosts) == 1).unwrap_or(1);
    let mut order = (0..fleet.hosts)
        .map(move |n| HostId((u64::from(n) * u64::from(stride) % u64::from(fleet.hosts)) as u32));
    world.run(Duration::from_secs(30 * 24 * 3600), |world| {
        if world.running.len() >= fleet.at_once {
            return false;
        }
        let Some(host) = order.next() else { return false };
        world.drain(host, &BTreeSet::new(), None);
        true
    });
    let mut report = Report { drains: world.drains.len(), events: world.events, ..Report::default() };
    report.virtual_s = (world.now - linerate_core::Time::ZERO).as_secs_f64();
    for drain in &world.drains {
        report.retries += drain.retries;
        drain.outcomes.iter().for_each(|(name, count)| *report.outcomes.entry(name).or_default() += count);
    }
    report.overfilled = world.ledger.overfilled().len();
    let over: BTreeSet<HostId> = world.drains.iter().map(|drain| drain.source).collect();
    let stays = |name: &str| report.outcomes.get(name).copied().unwrap_or(0);
    let still = over.iter().filter(|host| world.cordoned.contains(host));
    let left: usize = still.map(|host| world.ledger.guests_on(*host).count()).sum();
    report.left_behind = (left as u32).saturating_sub(stays("failed"));
    report.violations = world.violations;
    report
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
