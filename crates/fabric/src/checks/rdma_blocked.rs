//! RDMA that gets nothing through between ports that both have it.

use crate::model::{End, Finding, Place, Probe, Room, Severity};

use super::Check;
use super::common::{has_roce_v2, merged, roce_of};

const WHY: &str = "TCP works and RDMA does not: each migration tries RDMA on this link, loses time with it, and falls back to TCP.";

pub(super) struct RdmaBlocked;

impl Check for RdmaBlocked {
    fn id(&self) -> &'static str {
        "rdma-blocked"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let findings = room.matrix.probes.iter().filter_map(|probe| self.probe(room, probe));
        // Both directions between two ports are one fault.
        merged(findings, |one, other| one.places.iter().all(|place| other.places.contains(place)))
    }
}

/// Ports and GIDs that cannot work have findings of their own.
fn explained(room: &Room, end: &End) -> bool {
    let faulty = |rdma: &crate::model::RdmaPort| {
        let active = rdma.state.as_deref().is_none_or(|state| state.contains("ACTIVE"));
        !active || has_roce_v2(rdma) == Some(false)
    };
    room.port(&end.host, &end.port).and_then(roce_of).is_some_and(|(_, rdma)| faulty(rdma))
}

impl RdmaBlocked {
    fn probe(&self, room: &Room, probe: &Probe) -> Option<Finding> {
        let why = probe.rdma_failure.as_ref()?;
        // What TCP cannot do either is no matter of RDMA.
        probe.throughput_mbps?;
        if explained(room, &probe.from) || explained(room, &probe.to) {
            return None;
        }
        let (from, to) =
            (Place::port(&probe.from.host, &probe.from.port), Place::port(&probe.to.host, &probe.to.port));
        let finding = Finding::new(self.id(), Severity::Warning, format!("TCP reaches {to}, RDMA does not"))
            .at(from.clone())
            .at(to)
            .seen(from.clone(), "what happened", why)
            .why(WHY)
            .step(None, "let UDP port 4791 (RoCE v2) pass in firewalls and switches, both ways")
            .command(from, "try RDMA by itself", format!("rping -c -a {} -C 1 -v", probe.to.ip));
        Some(finding)
    }
}

#[cfg(test)]
mod tests {
    use super::super::common::testing::probe;
    use crate::checks::run_all;
    use crate::testing::{healthy_room, only};

    #[test]
    fn only_where_tcp_works() {
        let mut room = healthy_room();
        let mut blocked = probe();
        blocked.rdma_failure = Some("no answer".into());
        room.matrix.probes = vec![blocked];
        let finding = only(&room, "rdma-blocked");
        assert_eq!(finding.title, "TCP reaches beta ens1f0, RDMA does not");
        assert_eq!(finding.places[0].to_string(), "alpha ens1f0");
        room.matrix.probes[0].throughput_mbps = None;
        assert_eq!(run_all(&room), Vec::new());
    }

    #[test]
    fn both_directions_are_one_fault() {
        let mut room = healthy_room();
        let mut there = probe();
        there.rdma_failure = Some("no answer".into());
        let mut back = there.clone();
        (back.from, back.to) = (there.to.clone(), there.from.clone());
        room.matrix.probes = vec![there, back];
        let finding = only(&room, "rdma-blocked");
        let seen: Vec<String> = finding.seen.iter().map(|seen| seen.place.to_string()).collect();
        assert_eq!(seen, ["alpha ens1f0", "beta ens1f0"]);
        let commands = finding.fixes.iter().filter(|fix| fix.command.is_some());
        assert_eq!(
            (commands.count(), finding.fixes.len()),
            (2, 3),
            "one for each direction, and what is alike once"
        );
    }
}
