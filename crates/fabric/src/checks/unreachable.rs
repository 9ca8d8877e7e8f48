//! A link over which nothing arrives.

use crate::model::{End, Finding, Place, PortRef, Probe, Room, Severity};

use super::Check;
use super::common::segments;
use super::link_down::is_down;
use super::{duplicate_address, firewall_drops, vlan_between_hosts};

const WHY: &str = "Both hosts say that they are on one network, and packets do not arrive. Migrations lose time with trying, and go over what is left.";

pub(super) struct Unreachable;

impl Check for Unreachable {
    fn id(&self) -> &'static str {
        "unreachable"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let unexplained = |probe: &&Probe| !explained(room, probe);
        room.matrix.probes.iter().filter(unexplained).map(|probe| self.probe(probe)).collect()
    }
}

/// It arrived, or another check says why not.
fn explained(room: &Room, probe: &Probe) -> bool {
    let down = |end: &End| {
        let host = room.host(&end.host);
        let at = host.and_then(|host| Some(PortRef { host, port: host.port(&end.port)? }));
        at.is_some_and(|at| is_down(room, at) || room.below(at).iter().all(|below| is_down(room, *below)))
    };
    let split = || {
        let here = |segment: &&crate::model::Segment<'_>| segment.network.contains(probe.to.ip);
        segments(room).iter().filter(here).any(|segment| vlan_between_hosts::differs(room, segment))
    };
    probe.reachable != Some(false)
        || firewall_drops::suspects(room, probe)
        || down(&probe.from)
        || down(&probe.to)
        || duplicate_address::is_double(room, probe.to.ip)
        || split()
}

impl Unreachable {
    fn probe(&self, probe: &Probe) -> Finding {
        let (from, to) =
            (Place::port(&probe.from.host, &probe.from.port), Place::port(&probe.to.host, &probe.to.port));
        let mut finding =
            Finding::new(self.id(), Severity::Error, format!("no packet arrives at {to} ({})", probe.to.ip))
                .at(from.clone())
                .at(to.clone())
                .seen(from.clone(), "sent from", probe.from.ip)
                .seen(to, "did not arrive at", probe.to.ip)
                .why(WHY);
        if let Some(failure) = &probe.failure {
            finding = finding.seen(from.clone(), "what happened", failure);
        }
        let ping = format!("ping -c 3 -I {} {}", probe.from.port, probe.to.ip);
        finding
            .step(None, "look at the switch: VLANs of both ports, port isolation, and whether both cables go where you think")
            .command(from, "try it by hand", ping)
    }
}

#[cfg(test)]
mod tests {
    use super::super::common::testing::probe;
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
        port(&mut room, "beta", "ens1f0").carrier = Some(false);
        let ids: Vec<String> = run_all(&room).into_iter().map(|finding| finding.id).collect();
        assert_eq!(ids, ["link-down"], "the cause is said, not what follows");
    }
}
