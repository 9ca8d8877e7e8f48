//! A link over which nothing arrives.

use crate::model::{Finding, Room, Severity};

use super::Check;
use super::common::{Way, by_shared_port, pairs, place};
use super::firewall_drops::{is_dead, suspects};

const WHY: &str = "Both hosts say that they are on one network, and packets do not arrive. Migrations lose time with trying, and go over what is left.";

pub(super) struct Unreachable;

impl Check for Unreachable {
    fn id(&self) -> &'static str {
        "unreachable"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let mut findings = Vec::new();
        for pair in pairs(room) {
            let dead: Vec<Way<'_>> = pair.ways().into_iter().filter(|way| is_dead(way)).collect();
            // A firewall of one end explains the link.
            if dead.iter().any(|way| suspects(room, way)) {
                continue;
            }
            if let Some(first) = dead.first() {
                findings.push(self.link(first, dead.len() > 1));
            }
        }
        by_shared_port(findings)
    }
}

impl Unreachable {
    fn link(&self, way: &Way<'_>, both: bool) -> Finding {
        let (from, to) = (place(way.from), place(way.to));
        let heard =
            way.reverse.is_some_and(|probe| probe.reachable == Some(true) || probe.heard == Some(true));
        let title = match (both, heard) {
            (true, _) => format!("no packet arrives at {to} ({}), nor the other way", way.to.ip),
            (false, true) => format!("no packet arrives at {to} ({}); the other way they do", way.to.ip),
            (false, false) => format!("no packet arrives at {to} ({})", way.to.ip),
        };
        let mut finding = Finding::new(self.id(), Severity::Error, title)
            .at(from.clone())
            .at(to.clone())
            .seen(from.clone(), "sent from", way.from.ip)
            .seen(to, "did not arrive at", way.to.ip)
            .why(WHY);
        if let Some(failure) = way.probe.and_then(|probe| probe.failure.as_ref()) {
            finding = finding.seen(from.clone(), "what happened", failure);
        }
        let ping = format!("ping -c 3 -I {} {}", way.from.port, way.to.ip);
        finding
            .step(None, "look at the switch: VLANs of both ports, port isolation, and whether both cables go where you think")
            .command(from, "try it by hand", ping)
    }
}

#[cfg(test)]
mod tests {
    use super::super::common::testing::{probe, reversed};
    use crate::checks::run_all;
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn both_ends_are_named() {
        let mut room = healthy_room();
        let mut lost = probe();
        (lost.reachable, lost.path_mtu, lost.throughput_mbps) = (Some(false), None, None);
        room.matrix.probes = vec![lost];
        let finding = only(&room, "unreachable");
        assert_eq!(finding.title, "no packet arrives at beta ens1f0 (10.1.0.2)");
        assert_eq!(finding.places[0].to_string(), "alpha ens1f0");
        let there = room.matrix.probes[0].clone();
        room.matrix.probes.push(reversed(&there));
        let finding = only(&room, "unreachable");
        assert!(finding.title.ends_with("nor the other way"), "{}", finding.title);
        port(&mut room, "beta", "ens1f0").carrier = Some(false);
        let ids: Vec<String> = run_all(&room).into_iter().map(|finding| finding.id).collect();
        assert_eq!(ids, ["link-down"], "the cause is said, not what follows");
    }
}
