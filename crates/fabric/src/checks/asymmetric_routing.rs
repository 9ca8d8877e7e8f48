//! Packets that leave or arrive by another port than the link's.

use crate::model::{Finding, Place, Probe, Room, Severity};

use super::Check;
use super::common::merged;
use super::two_ports_one_network::shares;

const WHY: &str = "The wrong network, silently: traffic meant for the fast link takes another, often the management network, and two links share one cable \
     unseen. With a strict reverse path filter the packets are thrown away.";

pub(super) struct AsymmetricRouting;

impl Check for AsymmetricRouting {
    fn id(&self) -> &'static str {
        "asymmetric-routing"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        // Two ports of a host in one network are the cause, and have a finding of their own.
        let own = |probe: &&Probe| !shares(room, &probe.from) && !shares(room, &probe.to);
        let findings = room.matrix.probes.iter().filter(own).flat_map(|probe| self.probe(room, probe));
        // The same port towards several hosts is one fault.
        merged(findings, |one, other| one.places.first() == other.places.first() && one.title == other.title)
    }
}

impl AsymmetricRouting {
    fn probe(&self, room: &Room, probe: &Probe) -> Vec<Finding> {
        let (from, to) =
            (Place::port(&probe.from.host, &probe.from.port), Place::port(&probe.to.host, &probe.to.port));
        let mut findings = Vec::new();
        if let Some(other) = &probe.leaves_by {
            let title =
                format!("packets to {} leave by {other}, not by {}", network(room, probe), probe.from.port);
            let finding = Finding::new(self.id(), Severity::Warning, title)
                .at(from.clone())
                .seen(from.clone(), &format!("way to {}", probe.to.ip), format!("by {other}"))
                .why(WHY)
                .command(
                    from.clone(),
                    "see the route, and remove or change it",
                    format!("ip route get {}", probe.to.ip),
                );
            findings.push(finding);
        }
        if let Some(other) = &probe.arrives_at {
            let title = format!("packets for {} arrive at {other}", probe.to.port);
            let filter = room.host(&probe.to.host).and_then(|host| host.port(other)?.reverse_path_filter);
            let mut finding = Finding::new(self.id(), Severity::Warning, title)
                .at(to.clone())
                .seen(to.clone(), &format!("from {}", probe.from.ip), format!("at {other}"))
                .why(WHY)
                .command(
                    to.clone(),
                    "let each port answer for its own addresses only",
                    "sysctl net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2",
                )
                .step(None, "look whether both ports hang on one switch without a VLAN between them");
            if let Some(filter) = filter {
                finding = finding.seen(Place::port(&probe.to.host, other), "rp_filter", filter);
            }
            findings.push(finding);
        }
        findings
    }
}

/// The network of the far end, or its address.
fn network(room: &Room, probe: &Probe) -> String {
    let from = room.port(&probe.from.host, &probe.from.port);
    let mut networks = from.into_iter().flat_map(|at| &at.port.addresses).map(|address| address.network());
    networks
        .find(|network| network.contains(probe.to.ip))
        .map_or(probe.to.ip.to_string(), |network| network.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::common::testing::probe;
    use crate::testing::{healthy_room, only};

    #[test]
    fn leaving_by_the_management_port() {
        let mut room = healthy_room();
        let mut faulty = probe();
        faulty.leaves_by = Some("eno1".into());
        let mut again = faulty.clone();
        (again.to.host, again.to.ip) = ("gamma".into(), [10, 1, 0, 3].into());
        room.matrix.probes = vec![faulty, again];
        let finding = only(&room, "asymmetric-routing");
        assert_eq!(finding.title, "packets to 10.1.0.0/24 leave by eno1, not by ens1f0");
        assert_eq!(finding.places[0].to_string(), "alpha ens1f0");
        assert_eq!(finding.seen.len(), 2, "one fault towards two hosts");
    }

    #[test]
    fn arriving_at_another_port() {
        let mut room = healthy_room();
        let mut faulty = probe();
        faulty.arrives_at = Some("ens1f1".into());
        room.matrix.probes = vec![faulty];
        let finding = only(&room, "asymmetric-routing");
        assert_eq!(finding.title, "packets for ens1f0 arrive at ens1f1");
        assert_eq!(finding.places[0].to_string(), "beta ens1f0");
    }
}
