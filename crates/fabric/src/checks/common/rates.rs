//! Throughputs that do not fit each other: against the other direction, and against a link beside it.

use crate::model::{End, Finding, PortKind, PortRef, Room, Severity};

use super::{Pair, Way, pairs, place, speed};

/// Percent of the other rate. What the same machine measures on equal links at the same time is less far apart. Less
/// was measured three times, in turn with the other one.
const PERCENT_MIN: u64 = 70;

/// A direction that is slower than another rate says it could be.
#[derive(Clone, Copy, Debug)]
pub(in crate::checks) struct Slow<'a> {
    /// The slow one.
    pub way: Way<'a>,
    /// What it moves, megabits per second.
    pub moved: u64,
    /// The one to compare with.
    pub other: Way<'a>,
    /// What that moves, megabits per second.
    pub faster: u64,
}

fn rate(way: &Way<'_>) -> Option<u64> {
    way.probe?.throughput_mbps
}

fn is_less(moved: u64, other: u64) -> bool {
    moved.saturating_mul(100) < other.saturating_mul(PERCENT_MIN)
}

/// What an end promises, megabits per second: its speed, bounded by its slot. Speeds of virtual ports mean nothing.
pub(in crate::checks) fn promise(room: &Room, end: &End) -> Option<u64> {
    let host = room.host(&end.host)?;
    let at = PortRef { host, port: host.port(&end.port)? };
    let below = room.below(at);
    if below.iter().any(|at| at.port.kind != PortKind::Physical) {
        return None;
    }
    let slots =
        below.iter().filter_map(|at| at.port.pcie.as_ref()?.running.map(|link| link.throughput_mbps()));
    let speed = u64::from(speed(room, at)?);
    Some(slots.min().map_or(speed, |slot| speed.min(slot)))
}

/// Directions that move far less than the other direction of the same link.
pub(in crate::checks) fn one_way(room: &Room) -> Vec<Slow<'_>> {
    let mut found = Vec::new();
    for pair in pairs(room) {
        let [there, back] = pair.ways();
        let (Some(one), Some(other)) = (rate(&there), rate(&back)) else { continue };
        if is_less(one, other) {
            found.push(Slow { way: there, moved: one, other: back, faster: other });
        } else if is_less(other, one) {
            found.push(Slow { way: back, moved: other, other: there, faster: one });
        }
    }
    found
}

/// Links that move far less, both ways, than another link between the same hosts that promises the same.
pub(in crate::checks) fn below_sibling(room: &Room) -> Vec<Slow<'_>> {
    let all = pairs(room);
    let promised = |pair: &Pair<'_>| Some(promise(room, pair.ends[0])?.min(promise(room, pair.ends[1])?));
    let best = |pair: &Pair<'_>, from: &str| {
        let siblings =
            all.iter().filter(|one| one.hosts() == pair.hosts() && promised(one) == promised(pair));
        let ways = siblings.flat_map(Pair::ways).filter(|way| way.from.host == from);
        ways.filter_map(|way| Some((rate(&way)?, way))).max_by_key(|(rate, _)| *rate)
    };
    let mut found = Vec::new();
    for pair in &all {
        let measured: Vec<(Way<'_>, u64)> =
            pair.ways().into_iter().filter_map(|way| Some((way, rate(&way)?))).collect();
        let less = measured.iter().filter_map(|(way, moved)| {
            let (faster, other) = best(pair, &way.from.host)?;
            is_less(*moved, faster).then_some(Slow { way: *way, moved: *moved, other, faster })
        });
        let less: Vec<Slow<'_>> = less.collect();
        if less.len() == measured.len() {
            found.extend(less.first().copied());
        }
    }
    found
}

impl Slow<'_> {
    /// With both rates, and where the sender looks first.
    pub(in crate::checks) fn finding(
        &self,
        id: &'static str,
        title: String,
        why: &'static str,
        step: &str,
    ) -> Finding {
        let [from, to] = [place(self.way.from), place(self.way.to)];
        let mut finding = Finding::new(id, Severity::Warning, title)
            .at(from.clone())
            .at(to.clone())
            .seen(from.clone(), &format!("arrives at {to}"), format!("{} Mb/s", self.moved))
            .seen(
                place(self.other.from),
                &format!("arrives at {}", place(self.other.to)),
                format!("{} Mb/s", self.faster),
            )
            .why(why);
        if let Some(again) = self.way.probe.and_then(|probe| probe.retransmits) {
            finding = finding.seen(from.clone(), "segments sent again", again);
        }
        let command = format!("tc -s qdisc show dev {}", self.way.from.port);
        finding.step(None, step).command(from, "rate limits and drops of the sender", command)
    }
}
