//! A link that moves far less than one beside it.

use crate::model::{Finding, Room};

use super::Check;
use super::common::{Slow, below_sibling, by_shared_port, place};

const WHY: &str = "Links between the same hosts, of which nothing says that one is slower: a migration over both is hardly faster than over the good one alone. It was measured three times, in turn with the other link.";

const STEP: &str =
    "look for a rate limit (tc qdisc show), for a negotiated speed on the way, and what else uses this link";

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
        let title = format!(
            "moves {} Mb/s to {}, {} moves {} Mb/s",
            slow.moved,
            place(slow.way.to),
            slow.other.from.port,
            slow.faster
        );
        slow.finding(self.id(), title, WHY, STEP)
    }
}

#[cfg(test)]
mod tests {
    use super::super::common::testing::two_links as room;
    use crate::model::PortKind;
    use crate::testing::only;

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
