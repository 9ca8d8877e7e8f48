//! A link that moves far less in one direction than in the other.

use crate::model::{Finding, Room};

use super::Check;
use super::common::{Slow, by_shared_port, one_way, place};

const WHY: &str = "Guests leave this host fast and come back slowly, or the other way round: one direction of a cable, a rate limit or a busy receiver. It was measured three times, in turn with the other direction.";

const STEP: &str = "look for a rate limit at the sender and at the switch (tc qdisc show), for errors of this direction, and for a busy processor at the receiver";

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
        let title =
            format!("moves {} Mb/s to {}, {} Mb/s come back", slow.moved, place(slow.way.to), slow.faster);
        slow.finding(self.id(), title, WHY, STEP)
    }
}

#[cfg(test)]
mod tests {
    use super::super::common::testing::{probe, reversed, two_links as room};
    use crate::model::Probe;
    use crate::testing::{healthy_room, only};

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
