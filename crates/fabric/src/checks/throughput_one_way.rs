//! A link that moves far less in one direction than in the other.

use crate::model::{Finding, Room, Severity};

use super::Check;
use super::common::{Slow, by_shared_port, one_way, place};

const WHY: &str = "Guests leave this host fast and come back slowly, or the other way round: one direction of a cable, a rate limit or a busy receiver. It was measured three times, in turn with the other direction.";

/// `throughput-one-way`
pub(super) struct ThroughputOneWay;

impl Check for ThroughputOneWay {
    fn id(&self) -> &'static str {
        "throughput-one-way"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        by_shared_port(one_way(room).iter().map(|slow| self.finding(slow)).collect())
    }
}

impl ThroughputOneWay {
    fn finding(&self, slow: &Slow<'_>) -> Finding {
        let [from, to] = slow.places();
        let title =
            format!("moves {} Mb/s to {}, {} Mb/s come back", slow.moved, place(slow.way.to), slow.faster);
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
        finding.step(None, "look for a rate limit at the sender and at the switch (tc qdisc show), for errors of this direction, and for a busy processor at the receiver").command(from, "rate limits and drops of the sender", command)
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
    fn the_slow_direction_is_named() {
        let finding = only(&room([(992, 992), (100, 992)]), "throughput-one-way");
        assert_eq!(finding.title, "moves 100 Mb/s to beta ens1f1, 992 Mb/s come back");
        assert_eq!(finding.places[0].to_string(), "alpha ens1f1");
        let finding = only(&room([(992, 496), (992, 992)]), "throughput-one-way");
        assert_eq!(finding.places[0].to_string(), "beta ens1f0");
    }

    #[test]
    fn what_a_busy_machine_measures_is_no_finding() {
        assert_eq!(crate::checks::run_all(&room([(14_000, 19_000), (18_000, 15_000)])), Vec::new());
    }

    #[test]
    fn what_the_port_promises_and_does_not_hold_is_said_once() {
        let mut room = healthy_room();
        let slow = Probe { throughput_mbps: Some(2400), ..probe() };
        room.matrix.probes = vec![slow, reversed(&probe())];
        only(&room, "throughput-below-promise");
    }
}
