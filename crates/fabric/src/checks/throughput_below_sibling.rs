//! A link that moves far less than one beside it.

use crate::model::{Finding, Room, Severity};

use super::Check;
use super::common::{Slow, below_sibling, by_shared_port, place};

const WHY: &str = "Links between the same hosts, of which nothing says that one is slower: a migration over both is hardly faster than over the good one alone. It was measured three times, in turn with the other link.";

/// `throughput-below-sibling`
pub(super) struct ThroughputBelowSibling;

impl Check for ThroughputBelowSibling {
    fn id(&self) -> &'static str {
        "throughput-below-sibling"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        by_shared_port(below_sibling(room).iter().map(|slow| self.finding(slow)).collect())
    }
}

impl ThroughputBelowSibling {
    fn finding(&self, slow: &Slow<'_>) -> Finding {
        let [from, to] = slow.places();
        let title = format!(
            "moves {} Mb/s to {}, {} moves {} Mb/s",
            slow.moved,
            place(slow.way.to),
            slow.other.from.port,
            slow.faster
        );
        let mut finding = Finding::new(self.id(), Severity::Warning, title)
            .at(from.clone())
            .at(to.clone())
            .seen(from.clone(), &format!("arrives at {to}"), format!("{} Mb/s", slow.moved))
            .seen(
                place(slow.other.from),
                &format!("arrives at {}", place(slow.other.to)),
                format!("{} Mb/s", slow.faster),
            )
            .why(WHY);
        if let Some(again) = slow.way.probe.and_then(|probe| probe.retransmits) {
            finding = finding.seen(from.clone(), "segments sent again", again);
        }
        let command = format!("tc -s qdisc show dev {}", slow.way.from.port);
        finding.step(None, "look for a rate limit (tc qdisc show), for a negotiated speed on the way, and what else uses this link").command(from, "rate limits and drops of the sender", command)
    }
}

#[cfg(test)]
mod tests {
    use super::super::common::testing::{probe, reversed};
    use crate::model::{PortKind, Probe, Room};
    use crate::testing::{healthy_room, only};

    /// Rates of two links between alpha and beta, there and back, over ports whose speed means nothing.
    fn room(rates: [(u64, u64); 2]) -> Room {
        let mut room = healthy_room();
        room.hosts.iter_mut().flat_map(|host| &mut host.ports).for_each(|port| port.kind = PortKind::Veth);
        for (link, (there, back)) in (0u8..).zip(rates) {
            let mut one = Probe { throughput_mbps: Some(there), ..probe() };
            for (end, host) in [(&mut one.from, 1), (&mut one.to, 2)] {
                (end.port, end.ip) = (format!("ens1f{link}"), [10, 1, link, host].into());
            }
            let other = Probe { throughput_mbps: Some(back), ..reversed(&one) };
            room.matrix.probes.extend([one, other]);
        }
        room
    }

    #[test]
    fn the_slow_link_is_named_beside_the_fast_one() {
        let finding = only(&room([(992, 990), (100, 101)]), "throughput-below-sibling");
        assert_eq!(finding.title, "moves 100 Mb/s to beta ens1f1, ens1f0 moves 992 Mb/s");
        assert_eq!(finding.places[0].to_string(), "alpha ens1f1");
    }

    #[test]
    fn links_that_promise_different_rates_are_not_compared() {
        let mut room = room([(22_000, 22_000), (9400, 9400)]);
        for port in room.hosts.iter_mut().flat_map(|host| &mut host.ports) {
            port.kind = PortKind::Physical;
            if port.name == "ens1f1" {
                port.link.speed_mbps = Some(10_000);
                port.link.supported = vec!["10000baseCR/Full".into()];
            }
        }
        assert_eq!(crate::checks::run_all(&room), Vec::new());
    }
}
