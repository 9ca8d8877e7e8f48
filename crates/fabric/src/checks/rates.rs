//! What probes measured: throughputs and round trips.

use std::collections::BTreeMap;

use crate::model::{End, Finding, Incast, Location, PortKind, PortRef, Probe, Severity, Survey};

use super::common::{Direction, Pair, by_shared_port, finding, location, merged, pairs, speed};

/// Percent of the other rate. What the same machine measures on equal links at the same time is less far apart. Less
/// was measured three times, in turn with the other one.
const RATE_PERCENT_MIN: u64 = 70;

/// A direction that is slower than another rate says it could be.
#[derive(Clone, Copy, Debug)]
struct Slow<'a> {
    pub direction: Direction<'a>,
    /// What it moves, megabits per second.
    pub moved: u64,
    /// The one to compare with.
    pub other: Direction<'a>,
    /// What that moves, megabits per second.
    pub faster: u64,
}

fn rate(direction: &Direction<'_>) -> Option<u64> {
    direction.probe?.throughput_mbps
}

fn is_less(moved: u64, other: u64) -> bool {
    moved.saturating_mul(100) < other.saturating_mul(RATE_PERCENT_MIN)
}

/// What an end promises, megabits per second: its speed, bounded by its slot. Speeds of virtual ports mean nothing.
fn promise(survey: &Survey, end: &End) -> Option<u64> {
    let host = survey.host(&end.host)?;
    let at = PortRef { host, port: host.port(&end.port)? };
    let below = survey.below(at);
    if below.iter().any(|at| at.port.kind != PortKind::Physical) {
        return None;
    }
    let slots =
        below.iter().filter_map(|at| at.port.pcie.as_ref()?.running.map(|link| link.throughput_mbps()));
    let speed = u64::from(speed(survey, at)?);
    Some(slots.min().map_or(speed, |slot| speed.min(slot)))
}

/// Directions that move far less than the other direction of the same link.
fn one_way(survey: &Survey) -> Vec<Slow<'_>> {
    let mut found = Vec::new();
    for pair in pairs(survey) {
        let [there, back] = pair.directions();
        let (Some(one), Some(other)) = (rate(&there), rate(&back)) else { continue };
        if is_less(one, other) {
            found.push(Slow { direction: there, moved: one, other: back, faster: other });
        } else if is_less(other, one) {
            found.push(Slow { direction: back, moved: other, other: there, faster: one });
        }
    }
    found
}

/// Links that move far less, both ways, than another link between the same hosts that promises the same.
fn below_sibling(survey: &Survey) -> Vec<Slow<'_>> {
    let all = pairs(survey);
    let promised = |pair: &Pair<'_>| Some(promise(survey, pair.ends[0])?.min(promise(survey, pair.ends[1])?));
    let best = |pair: &Pair<'_>, from: &str| {
        let siblings =
            all.iter().filter(|one| one.hosts() == pair.hosts() && promised(one) == promised(pair));
        let directions = siblings.flat_map(Pair::directions).filter(|direction| direction.from.host == from);
        directions.filter_map(|direction| Some((rate(&direction)?, direction))).max_by_key(|(rate, _)| *rate)
    };
    let mut found = Vec::new();
    for pair in &all {
        let measured: Vec<(Direction<'_>, u64)> = pair
            .directions()
            .into_iter()
            .filter_map(|direction| Some((direction, rate(&direction)?)))
            .collect();
        let less = measured.iter().filter_map(|(direction, moved)| {
            let (faster, other) = best(pair, &direction.from.host)?;
            is_less(*moved, faster).then_some(Slow { direction: *direction, moved: *moved, other, faster })
        });
        let less: Vec<Slow<'_>> = less.collect();
        if less.len() == measured.len() {
            found.extend(less.first().copied());
        }
    }
    found
}

/// A link with this round trip moves less than its siblings, whatever else it is. Its loads are long.
const FAR_NS: u64 = 40_000_000;

/// Pairs of probes, by their numbers in the matrix, of which the first moves far less than the second. One that is to
/// be measured again beside one that it is compared with. Far links are left out.
pub fn unequal(survey: &Survey) -> Vec<(usize, usize)> {
    let number = |direction: &Direction<'_>| {
        let probes = &survey.matrix.probes;
        direction.probe.and_then(|probe| probes.iter().position(|one| std::ptr::eq(one, probe)))
    };
    let is_far = |direction: &Direction<'_>| {
        direction.probe.and_then(|probe| probe.latency).is_some_and(|one| one.min_ns >= FAR_NS)
    };
    let slow =
        one_way(survey).into_iter().chain(below_sibling(survey)).filter(|slow| !is_far(&slow.direction));
    let mut pairs: Vec<(usize, usize)> =
        slow.filter_map(|slow| Some((number(&slow.direction)?, number(&slow.other)?))).collect();
    pairs.sort_unstable();
    pairs.dedup_by_key(|(slow, _)| *slow);
    pairs
}

impl Slow<'_> {
    /// With both rates, and where the sender looks first.
    fn finding(&self, title: String, why: &'static str, step: &str) -> Finding {
        let [from, to] = [location(self.direction.from), location(self.direction.to)];
        let mut finding = finding(Severity::Warning, title)
            .at(from.clone())
            .at(to.clone())
            .seen(from.clone(), &format!("arrives at {to}"), format!("{} Mb/s", self.moved))
            .seen(
                location(self.other.from),
                &format!("arrives at {}", location(self.other.to)),
                format!("{} Mb/s", self.faster),
            )
            .why(why);
        if let Some(again) = self.direction.probe.and_then(|probe| probe.retransmits) {
            finding = finding.seen(from.clone(), "segments sent again", again);
        }
        let command = format!("tc -s qdisc show dev {}", self.direction.from.port);
        finding.step(None, step).command(from, "rate limits and drops of the sender", command)
    }
}

const THROUGHPUT_BELOW_PROMISE_WHY: &str = "Ports and switches say that all is well, and the bytes do not \
    move: a migration over this link takes as many times longer. What moves is the measure, not what is \
    negotiated.";

/// Percent of the promise. One connection or a busy host may miss some; less than half is a fault.
const PROMISE_PERCENT_MIN: u64 = 50;

/// A link that moves far less than its ports promise.
pub(super) fn throughput_below_promise(survey: &Survey) -> Vec<Finding> {
    survey.matrix.probes.iter().filter_map(|probe| throughput_below_promise_finding(survey, probe)).collect()
}

fn throughput_below_promise_finding(survey: &Survey, probe: &Probe) -> Option<Finding> {
    let moved = probe.throughput_mbps?;
    let promised = promise(survey, &probe.from)?.min(promise(survey, &probe.to)?);
    // A path that loses full packets has a finding of its own.
    let hole = probe.path_mtu.is_some_and(|path| path.passed < path.promised);
    if hole || moved.saturating_mul(100) >= promised.saturating_mul(PROMISE_PERCENT_MIN) {
        return None;
    }
    let (from, to) =
        (Location::port(&probe.from.host, &probe.from.port), Location::port(&probe.to.host, &probe.to.port));
    let mut finding = finding(Severity::Warning, format!("moves {moved} of {promised} Mb/s to {to}"))
        .at(from.clone())
        .at(to.clone())
        .seen(from.clone(), "promised", format!("{promised} Mb/s"))
        .seen(to, "arrived", format!("{moved} Mb/s"))
        .why(THROUGHPUT_BELOW_PROMISE_WHY);
    if let Some(again) = probe.retransmits {
        finding = finding.seen(from.clone(), "segments sent again", again);
    }
    Some(
        finding
            .step(
                None,
                "segments sent again: look for loss at cables, transceivers and switch ports (errors, drops)",
            )
            .command(from, "none sent again: a core is busy, look which", "mpstat -P ALL 1"),
    )
}

const RDMA_BELOW_PROMISE_WHY: &str = "RDMA connects, and moves a part of what the ports promise: a migration by RDMA \
    takes as many times longer. Few lost packets are enough for that.";

/// A link over which RDMA moves far less than its ports promise.
pub(super) fn rdma_below_promise(survey: &Survey) -> Vec<Finding> {
    let findings = survey.matrix.probes.iter().filter_map(|probe| rdma_below_promise_finding(survey, probe));
    // Both directions between two ports are one fault.
    merged(findings, |one, other| one.locations.iter().all(|location| other.locations.contains(location)))
}

fn rdma_below_promise_finding(survey: &Survey, probe: &Probe) -> Option<Finding> {
    let moved = probe.rdma_mbps?;
    let promised = promise(survey, &probe.from)?.min(promise(survey, &probe.to)?);
    if moved.saturating_mul(100) >= promised.saturating_mul(PROMISE_PERCENT_MIN) {
        return None;
    }
    let (from, to) = (location(&probe.from), location(&probe.to));
    let mut finding = finding(Severity::Warning, format!("RDMA moves {moved} of {promised} Mb/s to {to}"))
        .at(from.clone())
        .at(to.clone())
        .seen(from.clone(), "promised", format!("{promised} Mb/s"))
        .seen(to.clone(), "arrived by RDMA", format!("{moved} Mb/s"))
        .why(RDMA_BELOW_PROMISE_WHY);
    if let Some(tcp) = probe.throughput_mbps {
        finding = finding.seen(to, "arrived by TCP", format!("{tcp} Mb/s"));
    }
    let command =
        format!("ethtool -S {} | grep -iE 'discard|pause|cnp|ecn'", from.port.as_deref().unwrap_or("PORT"));
    Some(
        finding
            .step(
                None,
                "make the priority of RDMA lossless on all ports and switches of the way (docs/qos.md)",
            )
            .command(from, "look for discards and pause frames that rise", command),
    )
}

const THROUGHPUT_ONE_WAY_WHY: &str = "Guests leave this host fast and come back slowly, or the other way \
    round: one direction of a cable, a rate limit or a busy receiver. It was measured three times, in turn \
    with the other direction.";

const ONE_WAY_STEP: &str = "look for a rate limit at the sender and at the switch (tc qdisc show), for \
    errors of this direction, and for a busy processor at the receiver";

/// A link that moves far less in one direction than in the other.
pub(super) fn throughput_one_way(survey: &Survey) -> Vec<Finding> {
    by_shared_port(one_way(survey).iter().map(throughput_one_way_finding).collect())
}

fn throughput_one_way_finding(slow: &Slow<'_>) -> Finding {
    let title = format!(
        "moves {} Mb/s to {}, {} Mb/s come back",
        slow.moved,
        location(slow.direction.to),
        slow.faster
    );
    slow.finding(title, THROUGHPUT_ONE_WAY_WHY, ONE_WAY_STEP)
}

const THROUGHPUT_BELOW_SIBLING_WHY: &str = "Links between the same hosts, of which nothing says that one is \
    slower: a migration over both is hardly faster than over the good one alone. It was measured three \
    times, in turn with the other link.";

const SIBLING_STEP: &str = "look for a rate limit (tc qdisc show), for a negotiated speed on the way, and \
    what else uses this link";

/// A link that moves far less than one beside it.
pub(super) fn throughput_below_sibling(survey: &Survey) -> Vec<Finding> {
    by_shared_port(below_sibling(survey).iter().map(throughput_below_sibling_finding).collect())
}

fn throughput_below_sibling_finding(slow: &Slow<'_>) -> Finding {
    let title = format!(
        "moves {} Mb/s to {}, {} moves {} Mb/s",
        slow.moved,
        location(slow.direction.to),
        slow.other.from.port,
        slow.faster
    );
    slow.finding(title, THROUGHPUT_BELOW_SIBLING_WHY, SIBLING_STEP)
}

const INCAST_COLLAPSE_WHY: &str = "When a host is filled from several others, the switch's buffer for its \
    port runs over, everybody loses packets and waits: emptying two hosts at once takes longer than one \
    after the other.";

/// Percent of what one gets alone; less than this is loss, not sharing.
const INCAST_PERCENT_MIN: u64 = 60;

/// Several hosts that send to one get less together than one of them alone, or some get nothing through.
pub(super) fn incast_collapse(survey: &Survey) -> Vec<Finding> {
    survey.matrix.incasts.iter().filter_map(incast_collapse_finding).collect()
}

fn incast_collapse_finding(incast: &Incast) -> Option<Finding> {
    let alone = incast.alone_mbps?;
    let together: u64 = incast.throughput_mbps.iter().sum();
    let collapsed = together.saturating_mul(100) < alone.saturating_mul(INCAST_PERCENT_MIN);
    let to = Location::port(&incast.to.host, &incast.to.port);
    let (moved, failed) = (incast.from.len(), incast.failed.len());
    let title = match (failed, collapsed) {
        (0, false) => return None,
        (0, true) => format!("{moved} hosts at once move {together} Mb/s to it, one alone {alone} Mb/s"),
        _ => format!("the loads of {failed} of {} hosts that send to it at once do not pass", failed + moved),
    };
    let mut finding = finding(Severity::Warning, title).at(to.clone()).why(INCAST_COLLAPSE_WHY);
    for (from, rate) in incast.from.iter().zip(&incast.throughput_mbps) {
        finding = finding.seen(Location::port(&from.host, &from.port), "sent", format!("{rate} Mb/s"));
    }
    for one in &incast.failed {
        finding = finding.seen(Location::port(&one.from.host, &one.from.port), "its load failed", &one.why);
    }
    Some(
        finding
            .step(None, "on the switch: ECN, PFC for the migrations' class, or more buffer for the port")
            .step(
                Some(to),
                "until then migrate to this host one after the other, or bound each with --bandwidth",
            ),
    )
}

const ROUND_TRIP_LONG_WHY: &str = "What the source asks during the blackout is answered later by as \
    much, and one TCP connection moves no more than its window in each round trip. The least round trip of \
    many is reported: a busy host does not make it long.";

/// Hosts in one machine room answer within 20 to 200 µs, also where both are busy: the least of some twenty is judged.
/// 100 km of fibre are 1 ms.
const LONG_NS: u64 = 500_000;

/// Against the fastest link between the same hosts: so many times its round trip, and as much more.
const LONG_TIMES: u64 = 3;

const LONG_MORE_NS: u64 = 250_000;

/// A link over which packets take long.
pub(super) fn round_trip_long(survey: &Survey) -> Vec<Finding> {
    let mut between: BTreeMap<(&str, &str), Vec<(Pair<'_>, u64)>> = BTreeMap::new();
    for pair in pairs(survey) {
        if let Some(least) = least_round_trip(&pair) {
            between.entry(pair.hosts()).or_default().push((pair, least));
        }
    }
    by_shared_port(between.values().flat_map(|links| long_round_trips(links)).collect())
}

/// The links between two hosts.
fn long_round_trips(links: &[(Pair<'_>, u64)]) -> Vec<Finding> {
    let Some(best) = links.iter().min_by_key(|(_, least)| *least) else { return Vec::new() };
    let like_the_best = |least: u64| least <= best.1.saturating_mul(LONG_TIMES).saturating_add(LONG_MORE_NS);
    if best.1 >= LONG_NS && links.iter().all(|(_, least)| like_the_best(*least)) {
        return far_hosts_finding(links).into_iter().collect();
    }
    let long = |least: u64| least >= LONG_NS || !like_the_best(least);
    links.iter().filter(|(_, least)| long(*least)).map(|one| long_round_trip_finding(one, best)).collect()
}

/// All links are alike: it is the way between the hosts.
fn far_hosts_finding(links: &[(Pair<'_>, u64)]) -> Option<Finding> {
    let least = links.iter().map(|(_, least)| *least).min()?;
    let (_, other) = links.first()?.0.hosts();
    let over = if links.len() == 1 { "the only link" } else { "every link" };
    let title = format!("the round trip to {other} over {over} is {}", time_text(least));
    let mut finding = finding(Severity::Warning, title).why(ROUND_TRIP_LONG_WHY);
    for (pair, least) in links {
        for end in pair.ends {
            finding = finding.at(location(end));
        }
        finding = finding.seen(location(pair.ends[0]), "least round trip", time_text(*least));
    }
    Some(finding.step(None, "look what is between the hosts: a tunnel, a router, a shaper, another site"))
}

fn long_round_trip_finding((pair, least): &(Pair<'_>, u64), best: &(Pair<'_>, u64)) -> Finding {
    let [from, to] = pair.ends;
    let mut title = format!("the round trip to {} is {}", location(to), time_text(*least));
    if best.1 < *least {
        title += &format!(", over {} {}", best.0.ends[0].port, time_text(best.1));
    }
    title += &slow_direction(pair, &best.0, least - best.1);
    finding(Severity::Warning, title)
        .at(location(from))
        .at(location(to))
        .seen(location(from), "least round trip", time_text(*least))
        .seen(location(best.0.ends[0]), "least round trip", time_text(best.1))
        .why(ROUND_TRIP_LONG_WHY)
        .step(
            None,
            "look what is on this way and not on the other: a tunnel, a router, a shaper, a long detour",
        )
        .command(location(from), "try it by hand", format!("ping -c 20 -i 0.2 -I {} {}", from.port, to.ip))
}

/// The least round trip of a link, nanoseconds.
fn least_round_trip(pair: &Pair<'_>) -> Option<u64> {
    pair.probes().filter_map(|probe| Some(probe.latency?.min_ns)).filter(|least| *least > 0).min()
}

/// Which direction is the slow one, where another link between the same clocks shows it.
fn slow_direction(pair: &Pair<'_>, best: &Pair<'_>, more_ns: u64) -> String {
    let ahead = |pair: &Pair<'_>, from: &str| {
        let to = |probe: &&Probe| probe.from.host == from;
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
fn time_text(ns: u64) -> String {
    if ns < 1_000_000 {
        format!("{} µs", ns / 1000)
    } else {
        format!("{}.{} ms", ns / 1_000_000, ns / 100_000 % 10)
    }
}

#[cfg(test)]
mod tests {
    mod throughput_below_promise {
        use crate::testing::probe;
        use crate::testing::{healthy_survey, only};

        #[test]
        fn a_wire_that_moves_a_tenth() {
            let mut survey = healthy_survey();
            survey.matrix.probes = vec![probe()];
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
            survey.matrix.probes[0].throughput_mbps = Some(2400);
            let finding = only(&survey, "throughput-below-promise");
            assert_eq!(finding.title, "moves 2400 of 25000 Mb/s to beta ens1f0");
            assert_eq!(finding.locations[0].to_string(), "alpha ens1f0");
        }
    }

    mod rdma_below_promise {
        use crate::model::PortKind;
        use crate::testing::{healthy_survey, only, port, probe, reversed};

        #[test]
        fn rdma_that_moves_a_tenth_is_named_once_for_both_directions() {
            let mut survey = healthy_survey();
            let mut slow = probe();
            slow.rdma_mbps = Some(12_600);
            survey.matrix.probes = vec![slow.clone()];
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
            slow.rdma_mbps = Some(2400);
            survey.matrix.probes = vec![slow.clone(), reversed(&slow)];
            let finding = only(&survey, "rdma-below-promise");
            assert_eq!(finding.title, "RDMA moves 2400 of 25000 Mb/s to beta ens1f0");
            assert_eq!(finding.locations[0].to_string(), "alpha ens1f0");
            // Speeds of virtual ports mean nothing.
            port(&mut survey, "alpha", "ens1f0").kind = PortKind::Veth;
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
        }

        #[test]
        fn a_port_that_moves_little_by_tcp_too_is_one_finding() {
            let mut survey = healthy_survey();
            let mut slow = probe();
            (slow.throughput_mbps, slow.rdma_mbps) = (Some(2400), Some(2500));
            survey.matrix.probes = vec![slow];
            assert_eq!(only(&survey, "throughput-below-promise").effects[0].id, "rdma-below-promise");
        }
    }

    mod throughput_one_way {
        use crate::model::Probe;
        use crate::testing::{healthy_survey, only};
        use crate::testing::{probe, reversed, two_links as survey};

        #[test]
        fn the_slow_direction_is_named() {
            let finding = only(&survey([(992, 992), (100, 992)]), "throughput-one-way");
            assert_eq!(finding.title, "moves 100 Mb/s to beta ens1f1, 992 Mb/s come back");
            assert_eq!(finding.locations[0].to_string(), "alpha ens1f1");
            let finding = only(&survey([(992, 496), (992, 992)]), "throughput-one-way");
            assert_eq!(finding.locations[0].to_string(), "beta ens1f0");
        }

        #[test]
        fn what_a_busy_machine_measures_is_no_finding() {
            assert_eq!(crate::checks::run_all(&survey([(14_000, 19_000), (18_000, 15_000)])), Vec::new());
        }

        #[test]
        fn a_broken_promise_of_a_port_is_reported_once() {
            let mut survey = healthy_survey();
            let slow = Probe { throughput_mbps: Some(2400), ..probe() };
            survey.matrix.probes = vec![slow, reversed(&probe())];
            only(&survey, "throughput-below-promise");
        }
    }

    mod throughput_below_sibling {
        use crate::model::PortKind;
        use crate::testing::only;
        use crate::testing::two_links as survey;

        #[test]
        fn the_slow_link_is_named_beside_the_fast_one() {
            let finding = only(&survey([(992, 990), (100, 101)]), "throughput-below-sibling");
            assert_eq!(finding.title, "moves 100 Mb/s to beta ens1f1, ens1f0 moves 992 Mb/s");
            assert_eq!(finding.locations[0].to_string(), "alpha ens1f1");
        }

        #[test]
        fn links_that_promise_different_rates_are_not_compared() {
            let mut survey = survey([(22_000, 22_000), (9400, 9400)]);
            for port in survey.hosts.iter_mut().flat_map(|host| &mut host.ports) {
                port.kind = PortKind::Physical;
                if port.name == "ens1f1" {
                    port.link.speed_mbps = Some(10_000);
                    port.link.supported = vec!["10000baseCR/Full".into()];
                }
            }
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
        }
    }

    mod incast_collapse {
        use crate::model::{End, FailedLoad, Incast};
        use crate::testing::{healthy_survey, only};

        #[test]
        fn the_receiver_is_named() {
            let end = |host: &str, last| End {
                host: host.into(),
                port: "ens1f0".into(),
                ip: [10, 1, 0, last].into(),
            };
            let mut incast = Incast {
                from: vec![end("alpha", 1), end("gamma", 3)],
                to: end("beta", 2),
                throughput_mbps: vec![12_000, 11_000],
                alone_mbps: Some(23_500),
                failed: Vec::new(),
            };
            let mut survey = healthy_survey();
            survey.matrix.incasts = vec![incast.clone()];
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
            incast.throughput_mbps = vec![3000, 2000];
            survey.matrix.incasts = vec![incast];
            let finding = only(&survey, "incast-collapse");
            assert_eq!(finding.title, "2 hosts at once move 5000 Mb/s to it, one alone 23500 Mb/s");
            assert_eq!(finding.locations[0].to_string(), "beta ens1f0");
        }

        #[test]
        fn a_host_that_the_others_push_aside_is_named() {
            let end = |host: &str, last| End {
                host: host.into(),
                port: "ens1f0".into(),
                ip: [10, 1, 0, last].into(),
            };
            let mut survey = healthy_survey();
            survey.matrix.incasts = vec![Incast {
                from: vec![end("alpha", 1)],
                to: end("beta", 2),
                throughput_mbps: vec![23_000],
                alone_mbps: Some(23_500),
                failed: vec![FailedLoad { from: end("gamma", 3), why: "it was cut".into() }],
            }];
            let finding = only(&survey, "incast-collapse");
            assert_eq!(finding.title, "the loads of 1 of 2 hosts that send to it at once do not pass");
            assert_eq!(finding.seen[1].location.to_string(), "gamma ens1f0");
            assert_eq!(finding.seen[1].value, "it was cut");
        }
    }

    mod round_trip_long {
        use crate::model::{Latency, Probe, Survey};
        use crate::testing::{healthy_survey, only};
        use crate::testing::{probe, reversed};

        /// Round trips of the two links between alpha and beta.
        fn survey(first_us: u64, second_us: u64) -> Survey {
            let mut survey = healthy_survey();
            for (link, least) in [(0u8, first_us), (1, second_us)] {
                let latency = Latency { min_ns: least * 1000, median_ns: least * 1500, max_ns: least * 9000 };
                let mut one = Probe { latency: Some(latency), ..probe() };
                for (end, host) in [(&mut one.from, 1), (&mut one.to, 2)] {
                    (end.port, end.ip) = (format!("ens1f{link}"), [10, 1, link, host].into());
                }
                survey.matrix.probes.extend([reversed(&one), one]);
            }
            survey
        }

        #[test]
        fn the_slow_link_is_named_beside_the_fast_one() {
            let finding = only(&survey(70, 50_300), "round-trip-long");
            assert_eq!(finding.title, "the round trip to alpha ens1f1 is 50.3 ms, over ens1f0 70 µs");
            assert_eq!(only(&survey(1100, 80), "round-trip-long").locations[0].to_string(), "beta ens1f0");
            assert!(only(&survey(60, 450), "round-trip-long").title.contains("450 µs, over ens1f0 60 µs"));
        }

        #[test]
        fn the_slow_direction_is_named_where_clock_offsets_show_it() {
            for (ahead, slow) in [(25_000 + 120, "alpha"), (-25_000 + 120, "beta")] {
                let mut survey = survey(70, 50_070);
                survey.matrix.probes[2].clock_ahead_us = Some(ahead);
                let finding = only(&survey, "round-trip-long");
                assert!(
                    finding.title.ends_with(&format!("; the way to {slow} is the slow one")),
                    "{}",
                    finding.title
                );
            }
        }

        #[test]
        fn hosts_that_are_far_apart_are_one_finding() {
            let finding = only(&survey(10_000, 10_400), "round-trip-long");
            assert_eq!(finding.title, "the round trip to beta over every link is 10.0 ms");
            assert_eq!(finding.locations.len(), 4);
        }

        #[test]
        fn the_rate_of_a_far_link_is_an_effect_of_its_round_trip() {
            let mut survey = survey(70, 50_000);
            for probe in &mut survey.matrix.probes {
                let far = probe.latency.is_some_and(|latency| latency.min_ns > 70_000);
                probe.throughput_mbps = Some(if far { 14_000 } else { 24_000 });
            }
            let finding = only(&survey, "round-trip-long");
            assert_eq!(finding.effects[0].id, "throughput-below-sibling");
            assert_eq!(crate::checks::unequal(&survey), Vec::new());
            for latency in survey.matrix.probes.iter_mut().filter_map(|probe| probe.latency.as_mut()) {
                latency.min_ns = latency.min_ns.min(30_000_000);
            }
            assert!(!crate::checks::unequal(&survey).is_empty());
        }

        #[test]
        fn busy_hosts_are_no_finding() {
            assert_eq!(crate::checks::run_all(&survey(190, 420)), Vec::new());
        }
    }
}
