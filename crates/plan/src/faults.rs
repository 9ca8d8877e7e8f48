//! What can go wrong, and when.

use std::time::Duration;

use linerate_core::Side;

use crate::random::Random;

#[derive(Clone, Debug)]
pub enum FaultKind {
    /// Both ends are notified at once.
    LinkReset(usize),
    /// It carries nothing any more, and neither end is notified.
    LinkSilent(usize),
    /// Nothing goes in one direction, without any notice.
    LinkOneWay(usize, Side),
    /// Every link goes silent.
    AllSilent,
    /// Nothing moves for a while, nothing is lost.
    LinkStalls(usize, Duration),
    AllStall(Duration),
    /// It carries this many percent of its rate.
    LinkSlows(usize, u64),
    /// One control connection breaks, its link works.
    PathBreaks,
    /// One channel breaks, its link works.
    ChannelBreaks,
    /// The agent's process ends; its hypervisor stays.
    AgentCrashes(Side),
    /// The whole host fails.
    HostCrashes(Side),
    /// The next writes of the journal fail.
    JournalFails(Side, u64),
    /// What the hypervisor or tracker is asked next fails.
    ActionFails(Side),
    /// An operator has had enough.
    Cancelled(Side),
    /// The disk of the journal is full for so long.
    JournalFull(Side, Duration),
    /// The guest's disks cannot be activated on this host for so long.
    DisksAway(Side, Duration),
    /// No hypervisor of this host answers for so long.
    HypervisorsAway(Side, Duration),
    /// The hypervisor ends by itself.
    HypervisorDies(Side),
    /// A snapshot is taken or a medium changed.
    DiskChanges,
    /// The clock of a host is set, by so many seconds.
    ClockSteps(Side, i64),
    /// An operator pauses the guest, wherever it runs.
    Paused,
}

impl FaultKind {
    /// Kinds in the order of [`FaultKind::kind`].
    pub const NAMES: [&'static str; 21] = [
        "link reset",
        "link silent",
        "link one-way",
        "all links silent",
        "link stalls",
        "link slows",
        "path breaks",
        "channel breaks",
        "agent crashes",
        "host crashes",
        "journal fails",
        "action fails",
        "cancelled",
        "all links stall",
        "journal full",
        "disks away",
        "hypervisors away",
        "hypervisor dies",
        "disk changes",
        "clock steps",
        "guest paused",
    ];

    /// Index of its kind.
    pub fn kind(&self) -> usize {
        match self {
            FaultKind::LinkReset(_) => 0,
            FaultKind::LinkSilent(_) => 1,
            FaultKind::LinkOneWay(..) => 2,
            FaultKind::AllSilent => 3,
            FaultKind::LinkStalls(..) => 4,
            FaultKind::LinkSlows(..) => 5,
            FaultKind::PathBreaks => 6,
            FaultKind::ChannelBreaks => 7,
            FaultKind::AgentCrashes(_) => 8,
            FaultKind::HostCrashes(_) => 9,
            FaultKind::JournalFails(..) => 10,
            FaultKind::ActionFails(_) => 11,
            FaultKind::Cancelled(_) => 12,
            FaultKind::AllStall(_) => 13,
            FaultKind::JournalFull(..) => 14,
            FaultKind::DisksAway(..) => 15,
            FaultKind::HypervisorsAway(..) => 16,
            FaultKind::HypervisorDies(_) => 17,
            FaultKind::DiskChanges => 18,
            FaultKind::ClockSteps(..) => 19,
            FaultKind::Paused => 20,
        }
    }
}

#[derive(Clone, Debug)]
pub enum Trigger {
    /// This long after the start.
    At(Duration),
    /// When a link has carried this number of bytes.
    Carried(usize, u64),
    /// This long after a side began its n-th action (`Duration::ZERO`: before it is executed).
    Action(Side, u64, Duration),
    /// This long after the source asked its hypervisor to switch over.
    Blackout(Duration),
    /// This long after the source journaled that commit is sent (`Duration::ZERO`: at once, before it is sent).
    Commit(Duration),
    /// This long after the destination journaled that the guest is committed (`Duration::ZERO`: before it runs).
    Committed(Duration),
    /// This long after recovery began its n-th action (`Duration::ZERO`: before it is executed).
    Recovery(u64, Duration),
}

/// One entry of the script.
#[derive(Clone, Debug)]
pub struct Fault {
    pub trigger: Trigger,
    pub kind: FaultKind,
    /// A link comes back, a crashed agent or host starts again, after this long.
    pub back_after: Duration,
    /// A link comes back at all.
    pub comes_back: bool,
}

impl Trigger {
    /// Kinds in the order of [`Trigger::kind`].
    pub const NAMES: [&'static str; 7] =
        ["time", "carried", "action", "blackout", "commit", "committed", "recovery"];

    /// Index of its kind.
    pub fn kind(&self) -> usize {
        match self {
            Trigger::At(_) => 0,
            Trigger::Carried(..) => 1,
            Trigger::Action(..) => 2,
            Trigger::Blackout(_) => 3,
            Trigger::Commit(_) => 4,
            Trigger::Committed(_) => 5,
            Trigger::Recovery(..) => 6,
        }
    }
}

/// What is looked at more closely: most faults are of these kinds, and come at these moments. Empty: all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Focus {
    /// One bit for each [`FaultKind::kind`].
    faults: u64,
    /// One bit for each [`Trigger::kind`].
    moments: u64,
}

impl Focus {
    /// Percent of the faults that it is about.
    const SHARE: u64 = 75;

    /// Also on what has this name in [`FaultKind::NAMES`] or [`Trigger::NAMES`]; none if nothing has.
    #[must_use]
    pub fn on(mut self, name: &str) -> Option<Focus> {
        if let Some(kind) = FaultKind::NAMES.iter().position(|known| *known == name) {
            self.faults |= 1 << kind;
        } else {
            self.moments |= 1 << Trigger::NAMES.iter().position(|known| *known == name)?;
        }
        Some(self)
    }

    /// On what has these names, as [`Focus::on`] takes them; none if one of them is unknown.
    #[must_use]
    pub fn on_all(names: &[&str]) -> Option<Focus> {
        names.iter().try_fold(Focus::default(), |focus, name| focus.on(name))
    }

    /// Draws until it is one of these, most of the time.
    fn draw<T>(random: &mut Random, among: u64, draw: impl Fn(&mut Random) -> T, kind: fn(&T) -> usize) -> T {
        if among == 0 || !random.percent(Focus::SHARE) {
            return draw(random);
        }
        loop {
            let drawn = draw(random);
            if among & (1 << kind(&drawn)) != 0 {
                return drawn;
            }
        }
    }
}

impl std::fmt::Display for Focus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named = |bits: u64, names: &'static [&'static str]| {
            names.iter().enumerate().filter(move |(kind, _)| bits & (1 << kind) != 0)
        };
        let mut all = named(self.faults, &FaultKind::NAMES).chain(named(self.moments, &Trigger::NAMES));
        all.try_for_each(|(_, name)| write!(f, " --often '{name}'"))
    }
}

/// A script; empty for one run in eight.
pub fn draw(random: &mut Random, links: usize, focus: Focus) -> Vec<Fault> {
    let count = [0, 1, 1, 1, 2, 2, 3, 5][random.below(8) as usize];
    // What is looked at closely may need several faults.
    let count = if focus == Focus::default() { count } else { count + 1 };
    (0..count).map(|_| one(random, links, focus)).collect()
}

fn one(random: &mut Random, links: usize, focus: Focus) -> Fault {
    let back_within = [100_000, 2_000_000, 20_000_000][random.below(3) as usize];
    Fault {
        trigger: Focus::draw(random, focus.moments, |random| trigger(random, links), Trigger::kind),
        kind: Focus::draw(random, focus.faults, |random| fault_kind(random, links), FaultKind::kind),
        back_after: random.micros(1_000, back_within),
        comes_back: random.percent(70),
    }
}

fn side(random: &mut Random) -> Side {
    if random.percent(50) { Side::Source } else { Side::Destination }
}

fn soon(random: &mut Random) -> Duration {
    if random.percent(30) { Duration::ZERO } else { random.micros(0, 30_000) }
}

fn trigger(random: &mut Random, links: usize) -> Trigger {
    match random.below(15) {
        12 => Trigger::Committed(soon(random)),
        13 | 14 => Trigger::Recovery(random.between(1, 6), soon(random)),
        0 => Trigger::At(random.micros(0, 600_000)),
        1..=4 => Trigger::Carried(random.below(links as u64) as usize, random.below(400 << 10)),
        5..=7 => Trigger::Action(side(random), random.below(30), soon(random)),
        8 | 9 => Trigger::Blackout(random.micros(0, 150_000)),
        _ => Trigger::Commit(soon(random)),
    }
}

/// For a while, or for so long that no time-out waits for it.
fn span(random: &mut Random) -> Duration {
    let most = [500_000, 5_000_000, 50_000_000][random.below(3) as usize];
    random.micros(1_000, most)
}

/// One that comes while operators decide. The caller knows when.
pub fn between_decisions(random: &mut Random, links: usize, focus: Focus) -> Fault {
    let kind = match focus.faults {
        0 => severe(random, links),
        among => Focus::draw(random, among, |random| fault_kind(random, links), FaultKind::kind),
    };
    now(random, kind)
}

/// An agent crashes when an operator has just been answered.
pub fn agent_crashes(random: &mut Random, side: Side) -> Fault {
    now(random, FaultKind::AgentCrashes(side))
}

fn now(random: &mut Random, kind: FaultKind) -> Fault {
    let trigger = Trigger::At(Duration::ZERO);
    Fault { trigger, kind, back_after: random.micros(1_000, 5_000_000), comes_back: random.percent(70) }
}

fn severe(random: &mut Random, links: usize) -> FaultKind {
    match random.below(10) {
        0..=2 => FaultKind::AgentCrashes(side(random)),
        3 => FaultKind::HostCrashes(side(random)),
        4 => FaultKind::AllSilent,
        5 => FaultKind::LinkReset(random.below(links as u64) as usize),
        6 => FaultKind::JournalFails(side(random), random.between(1, 3)),
        7 => FaultKind::JournalFull(side(random), span(random)),
        8 => FaultKind::DisksAway(side(random), span(random)),
        _ => FaultKind::HypervisorsAway(side(random), span(random)),
    }
}

fn fault_kind(random: &mut Random, links: usize) -> FaultKind {
    let link = random.below(links as u64) as usize;
    match random.below(28) {
        21 => FaultKind::JournalFull(side(random), span(random)),
        22 => FaultKind::DisksAway(side(random), span(random)),
        23 => FaultKind::HypervisorsAway(side(random), span(random)),
        24 => FaultKind::HypervisorDies(side(random)),
        25 => FaultKind::DiskChanges,
        26 => FaultKind::ClockSteps(side(random), random.below(7200) as i64 - 3600),
        27 => FaultKind::Paused,
        20 => FaultKind::AllStall(random.micros(500_000, 5_000_000)),
        0 | 1 => FaultKind::LinkReset(link),
        2 | 3 => FaultKind::LinkSilent(link),
        4 | 5 => FaultKind::LinkOneWay(link, side(random)),
        6 => FaultKind::AllSilent,
        7 => FaultKind::LinkStalls(link, random.micros(1_000, 3_000_000)),
        8 => FaultKind::LinkSlows(link, random.between(2, 50)),
        9 => FaultKind::PathBreaks,
        10 | 11 => FaultKind::ChannelBreaks,
        12..=14 => FaultKind::AgentCrashes(side(random)),
        15 => FaultKind::HostCrashes(side(random)),
        16 => FaultKind::JournalFails(side(random), random.between(1, 3)),
        17 | 18 => FaultKind::ActionFails(side(random)),
        _ => FaultKind::Cancelled(side(random)),
    }
}
