//! RDMA that gets nothing through between ports that both have it.

use crate::model::{End, Finding, Place, PortRef, Probe, Room, Severity};

use super::Check;
use super::common::{has_roce_v2, roce_of};

const WHY: &str = "TCP works and RDMA does not: each migration tries RDMA on this link, loses time with it, and falls back to TCP.";

/// `rdma-blocked`
pub(super) struct RdmaBlocked;

impl Check for RdmaBlocked {
    fn id(&self) -> &'static str {
        "rdma-blocked"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        room.matrix.probes.iter().filter_map(|probe| self.probe(room, probe)).collect()
    }
}

/// Ports and GIDs that cannot work have findings of their own.
fn explained(room: &Room, end: &End) -> bool {
    let port = room.host(&end.host).and_then(|host| Some(PortRef { host, port: host.port(&end.port)? }));
    let faulty = |rdma: &crate::model::RdmaPort| {
        let active = rdma.state.as_deref().is_none_or(|state| state.contains("ACTIVE"));
        !active || has_roce_v2(rdma) == Some(false)
    };
    port.and_then(roce_of).is_some_and(|(_, rdma)| faulty(rdma))
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
}
