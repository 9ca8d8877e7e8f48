//! A link over which packets take long.

use std::collections::BTreeMap;

use crate::model::{Finding, Room, Severity};

use super::Check;
use super::common::{Pair, by_shared_port, pairs, place};

/// Hosts of one room answer within 20 to 200 µs, also where both are busy: the least of some twenty is judged. 100 km of fibre are 1 ms.
const LONG_NS: u64 = 500_000;
/// Against the fastest link between the same hosts: so many times its round trip, and as much more.
const TIMES: u64 = 3;
const MORE_NS: u64 = 250_000;

const WHY: &str = "What the source asks while the guest stands still is answered later by as much, and one TCP connection moves no more than its window in \
     each round trip. The least round trip of many is told: a busy host does not make it long.";

pub(super) struct RoundTripLong;

impl Check for RoundTripLong {
    fn id(&self) -> &'static str {
        "round-trip-long"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let mut between: BTreeMap<(&str, &str), Vec<(Pair<'_>, u64)>> = BTreeMap::new();
        for pair in pairs(room) {
            if let Some(least) = least(&pair) {
                between.entry(pair.hosts()).or_default().push((pair, least));
            }
        }
        by_shared_port(between.values().flat_map(|links| self.links(links)).collect())
    }
}

/// The least round trip of a link, nanoseconds.
fn least(pair: &Pair<'_>) -> Option<u64> {
    pair.probes().filter_map(|probe| Some(probe.latency?.min_ns)).filter(|least| *least > 0).min()
}

impl RoundTripLong {
    /// The links between two hosts.
    fn links(&self, links: &[(Pair<'_>, u64)]) -> Vec<Finding> {
        let Some(best) = links.iter().min_by_key(|(_, least)| *least) else { return Vec::new() };
        let like_the_best = |least: u64| least <= best.1.saturating_mul(TIMES).saturating_add(MORE_NS);
        if best.1 >= LONG_NS && links.iter().all(|(_, least)| like_the_best(*least)) {
            return self.far(links).into_iter().collect();
        }
        let long = |least: u64| least >= LONG_NS || !like_the_best(least);
        links.iter().filter(|(_, least)| long(*least)).map(|one| self.link(one, best)).collect()
    }

    /// All links are alike: it is the way between the hosts.
    fn far(&self, links: &[(Pair<'_>, u64)]) -> Option<Finding> {
        let least = links.iter().map(|(_, least)| *least).min()?;
        let (_, other) = links.first()?.0.hosts();
        let over = if links.len() == 1 { "the only link" } else { "every link" };
        let title = format!("the round trip to {other} over {over} is {}", time(least));
        let mut finding = Finding::new(self.id(), Severity::Warning, title).why(WHY);
        for (pair, least) in links {
            for end in pair.ends {
                finding = finding.at(place(end));
            }
            finding = finding.seen(place(pair.ends[0]), "least round trip", time(*least));
        }
        Some(finding.step(None, "look what is between the hosts: a tunnel, a router, a shaper, another site"))
    }

    fn link(&self, (pair, least): &(Pair<'_>, u64), best: &(Pair<'_>, u64)) -> Finding {
        let [from, to] = pair.ends;
        let mut title = format!("the round trip to {} is {}", place(to), time(*least));
        if best.1 < *least {
            title += &format!(", over {} {}", best.0.ends[0].port, time(best.1));
        }
        title += &direction(pair, &best.0, least - best.1);
        Finding::new(self.id(), Severity::Warning, title)
            .at(place(from))
            .at(place(to))
            .seen(place(from), "least round trip", time(*least))
            .seen(place(best.0.ends[0]), "least round trip", time(best.1))
            .why(WHY)
            .step(
                None,
                "look what is on this way and not on the other: a tunnel, a router, a shaper, a long detour",
            )
            .command(place(from), "try it by hand", format!("ping -c 20 -i 0.2 -I {} {}", from.port, to.ip))
    }
}

/// Which direction is the slow one, where another link between the same clocks tells.
fn direction(pair: &Pair<'_>, best: &Pair<'_>, more_ns: u64) -> String {
    let ahead = |pair: &Pair<'_>, from: &str| {
        let to = |probe: &&crate::model::Probe| probe.from.host == from;
        pair.probes().find(to).and_then(|probe| probe.clock_ahead_us)
    };
    let from = pair.ends[0].host.as_str();
    let apart = ahead(pair, from).zip(ahead(best, from)).map(|(here, there)| here.saturating_sub(there));
    // Half of what one direction takes longer goes into the clocks' difference.
    let Some(apart_ns) = apart.map(|apart| apart.saturating_mul(2000)) else { return String::new() };
    if apart_ns.unsigned_abs() < more_ns.saturating_mul(3) / 5 || more_ns == 0 {
        return String::new();
    }
    let slow = if apart_ns > 0 { pair.ends[1] } else { pair.ends[0] };
    format!("; the way to {} is the slow one", slow.host)
}

/// `50.3 ms`, `820 µs`.
fn time(ns: u64) -> String {
    if ns < 1_000_000 {
        format!("{} µs", ns / 1000)
    } else {
        format!("{}.{} ms", ns / 1_000_000, ns / 100_000 % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::super::common::testing::{probe, reversed};
    use crate::model::{Latency, Probe, Room};
    use crate::testing::{healthy_room, only};

    /// Round trips of the two links between alpha and beta.
    fn room(first_us: u64, second_us: u64) -> Room {
        let mut room = healthy_room();
        for (link, least) in [(0u8, first_us), (1, second_us)] {
            let latency = Latency { min_ns: least * 1000, median_ns: least * 1500, max_ns: least * 9000 };
            let mut one = Probe { latency: Some(latency), ..probe() };
            for (end, host) in [(&mut one.from, 1), (&mut one.to, 2)] {
                (end.port, end.ip) = (format!("ens1f{link}"), [10, 1, link, host].into());
            }
            room.matrix.probes.extend([reversed(&one), one]);
        }
        room
    }

    #[test]
    fn the_slow_link_is_named_beside_the_fast_one() {
        let finding = only(&room(70, 50_300), "round-trip-long");
        assert_eq!(finding.title, "the round trip to alpha ens1f1 is 50.3 ms, over ens1f0 70 µs");
        assert_eq!(only(&room(1100, 80), "round-trip-long").places[0].to_string(), "beta ens1f0");
        assert!(only(&room(60, 450), "round-trip-long").title.contains("450 µs, over ens1f0 60 µs"));
    }

    #[test]
    fn the_slow_direction_is_named_where_the_clocks_tell() {
        for (ahead, slow) in [(25_000 + 120, "alpha"), (-25_000 + 120, "beta")] {
            let mut room = room(70, 50_070);
            room.matrix.probes[2].clock_ahead_us = Some(ahead);
            let finding = only(&room, "round-trip-long");
            assert!(
                finding.title.ends_with(&format!("; the way to {slow} is the slow one")),
                "{}",
                finding.title
            );
        }
    }

    #[test]
    fn hosts_that_are_far_apart_are_one_finding() {
        let finding = only(&room(10_000, 10_400), "round-trip-long");
        assert_eq!(finding.title, "the round trip to beta over every link is 10.0 ms");
        assert_eq!(finding.places.len(), 4);
    }

    #[test]
    fn busy_hosts_are_no_finding() {
        assert_eq!(crate::checks::run_all(&room(190, 420)), Vec::new());
    }
}
