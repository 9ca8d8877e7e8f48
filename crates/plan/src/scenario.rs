//! What a seed decides before anything happens: the guest, the links, the limits.

use std::time::Duration;

use linerate_core::policy::Limits;
use linerate_core::{Mode, ModeTag, PAGE_BYTES, RegionInfo, destination, scheduler, source};

use crate::faults::{self, Fault, Focus};
use crate::guest::Workload;
use crate::random::Random;
use crate::streams::CHANNELS;
use crate::wire::Link;

#[derive(Clone, Debug)]
pub struct Scenario {
    /// Pages of each region.
    pub shape: Vec<usize>,
    /// What the guest does.
    pub habits: Workload,
    /// Percent of pages populated at the start.
    pub populated: u64,
    /// Whether it runs when the migration begins.
    pub runs: bool,
    pub links: Vec<Link>,
    /// Channels on each link.
    pub channels: usize,
    /// Percent of writes that are torn while the guest runs.
    pub torn: u64,
    /// Both sides compare digests of all RAM in the blackout.
    pub verify: bool,
    /// All limits that the core keeps to.
    pub limits: Limits,
    /// How long all links may be away.
    pub link_timeout: Duration,
    /// A connection that is silent this long is taken for lost.
    pub silence: Duration,
    /// Packets that outlive their link come at most this much later.
    pub late_max: Duration,
    /// How long the core waits between two rounds.
    pub round_interval: Duration,
    /// How the guest moves.
    pub mode: ModeTag,
    /// The destination has an image of the same name that is another one.
    pub stale: bool,
    pub faults: Vec<Fault>,
    /// The copy waits for so long when all is prepared.
    pub held: Option<Duration>,
}

impl Scenario {
    /// The scenario of a seed.
    pub fn draw(random: &mut Random, focus: Focus) -> Scenario {
        let shape: Vec<usize> = (0..random.between(1, 3)).map(|_| random.between(8, 240) as usize).collect();
        let links: Vec<Link> = (0..random.between(1, 4)).map(|_| link(random)).collect();
        let rate: f64 = links.iter().map(|link| link.rate).sum();
        let max_blackout = Duration::from_millis(random.between(15, 400));
        Scenario {
            habits: habits(random, rate),
            populated: [0, 5, 50, 100][random.below(4) as usize],
            runs: !random.percent(7),
            channels: random.between(1, 3) as usize,
            torn: if random.percent(50) { 0 } else { random.between(1, 12) },
            verify: random.percent(30),
            limits: Limits { max_blackout, rounds_max: 40, throttle: random.percent(30) },
            link_timeout: Duration::from_millis(random.between(1_000, 8_000)),
            silence: Duration::from_millis(random.between(300, 2_000)),
            late_max: Duration::from_millis([5, 300, 4_000][random.below(3) as usize]),
            round_interval: Duration::from_millis([0, 0, 50][random.below(3) as usize]),
            mode: ModeTag::Direct,
            faults: faults::draw(random, links.len(), focus),
            stale: random.percent(4),
            links,
            shape,
            held: random.percent(15).then(|| Duration::from_millis(random.below(3_000))),
        }
    }

    /// Whether only faults can prevent success: what is written over and over is copied well within the
    /// blackout budget, even at a third of the rate (round trips cost, too).
    pub fn converges(&self) -> bool {
        let pages = self.shape.iter().map(|&pages| self.habits.working_set.min(pages)).sum::<usize>();
        let stray = self.habits.writes_per_ms * self.habits.stray_permille as f64 / 1000.0 * 100.0;
        let bytes = (pages as f64 + stray) * PAGE_BYTES as f64;
        let rate: f64 = self.links.iter().map(|link| link.rate).sum();
        let latency = self.links.iter().map(|link| link.latency).max().unwrap_or_default();
        Duration::from_secs_f64(3.0 * bytes / rate) + 4 * latency + Duration::from_millis(30)
            < self.limits.max_blackout
    }

    /// The core's configuration at the source.
    pub fn source(&self) -> source::Config {
        let mode = match self.mode {
            ModeTag::Direct => Mode::Direct { regions: self.regions() },
            ModeTag::Streams => Mode::Streams { channels: CHANNELS },
            ModeTag::Handover => Mode::Handover { regions: self.regions() },
        };
        let mut config = source::Config::new("guest", String::from("{}"), mode);
        config.limits = self.limits.clone();
        config.verify = self.verify && !self.mode.carries_streams();
        config.link_timeout = self.link_timeout;
        config.step_timeout = 2 * self.link_timeout + Duration::from_secs(2);
        config.round_interval_min = self.round_interval;
        config.hold = self.held.is_some();
        config.scheduler = scheduler::Config {
            write_bytes_max: 16 * PAGE_BYTES,
            write_bytes_min: 2 * PAGE_BYTES,
            write_runs_max: 8,
            window_bytes_min: 24 * PAGE_BYTES,
            ..scheduler::Config::default()
        };
        config
    }

    /// The core's configuration at the destination.
    pub fn destination(&self) -> destination::Config {
        destination::Config { orphan_timeout: 2 * self.link_timeout, ..destination::Config::default() }
    }

    /// The regions as the core sees them.
    pub fn regions(&self) -> Vec<RegionInfo> {
        let region = |(id, &pages): (usize, &usize)| RegionInfo {
            id: id as u16,
            name: format!("ram{id}"),
            size: pages as u64 * PAGE_BYTES,
        };
        self.shape.iter().enumerate().map(region).collect()
    }
}

/// 2 to 60 MB/s: a page takes 0.07 to 2 ms, so that a small guest takes long enough for things to happen.
fn link(random: &mut Random) -> Link {
    let latency_max = if random.percent(20) { 15_000 } else { 800 };
    Link::new(random.between(2, 60) as f64 * 1e6, random.micros(20, latency_max))
}

fn habits(random: &mut Random, rate: f64) -> Workload {
    let pages_per_ms = rate / PAGE_BYTES as f64 / 1000.0;
    let busy = [0.0, 0.05, 0.3, 0.8, 2.0][random.below(5) as usize];
    Workload {
        writes_per_ms: pages_per_ms * busy,
        working_set: [2, 6, 12, 240][random.below(4) as usize],
        stray_permille: random.below(20),
        punch_permille: if random.percent(50) { 0 } else { random.between(5, 100) },
    }
}
