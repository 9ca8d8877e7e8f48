//! Two ports of one host in the same network.

use std::collections::BTreeMap;

use crate::model::{End, Finding, Inventory, Network, Place, PortRef, Room, Severity};

use super::Check;
use super::common::outward;

const WHY: &str = "The kernel sends everything for this network by one of the ports and answers for both addresses on either: the second cable stays idle, \
     or traffic arrives where it is not expected.";

pub(super) struct TwoPortsOneNetwork;

impl Check for TwoPortsOneNetwork {
    fn id(&self) -> &'static str {
        "two-ports-one-network"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        room.hosts.iter().flat_map(|host| self.host(room, host)).collect()
    }
}

/// The ports of a host by network.
fn networks<'a>(room: &'a Room, host: &'a Inventory) -> BTreeMap<Network, Vec<PortRef<'a>>> {
    let mut networks: BTreeMap<Network, Vec<PortRef<'a>>> = BTreeMap::new();
    for port in &host.ports {
        let at = PortRef { host, port };
        for address in port.addresses.iter().filter(|address| address.shared()) {
            let ports = networks.entry(address.network()).or_default();
            if !ports.iter().any(|one| one.port.name == port.name) && outward(room, at) {
                ports.push(at);
            }
        }
    }
    networks.retain(|_, ports| ports.len() > 1);
    networks
}

/// The host of this end has two ports in the end's network.
pub(super) fn shares(room: &Room, end: &End) -> bool {
    let host = room.host(&end.host);
    host.is_some_and(|host| networks(room, host).keys().any(|network| network.contains(end.ip)))
}

impl TwoPortsOneNetwork {
    fn host(&self, room: &Room, host: &Inventory) -> Vec<Finding> {
        let finding = |(network, ports): (Network, Vec<PortRef<'_>>)| {
            let names: Vec<&str> = ports.iter().map(|at| at.port.name.as_str()).collect();
            let title = format!("{} in one network {network}", names.join(" and "));
            let mut finding = Finding::new(self.id(), Severity::Warning, title).why(WHY);
            for at in &ports {
                let ips = at.port.addresses.iter().filter(|address| address.network() == network);
                let ips: Vec<String> = ips.map(|address| address.ip.to_string()).collect();
                finding = finding.at(at.place()).seen(at.place(), "address", ips.join(", "));
            }
            finding.step(
                Some(Place::host(&host.host)),
                "give each port a network of its own, or make one team of them",
            )
        };
        networks(room, host).into_iter().map(finding).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::common::testing::probe;
    use crate::model::Address;
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn both_ports_are_named_and_what_follows_is_not_said_twice() {
        let mut room = healthy_room();
        let more = Address { ip: [10, 1, 0, 22].into(), prefix: 24 };
        let second = port(&mut room, "beta", "ens1f1");
        second.addresses.push(more);
        second.neighbours[0].vlan_untagged = None;
        let mut astray = probe();
        astray.arrives_at = Some("ens1f1".into());
        room.matrix.probes = vec![astray];
        let finding = only(&room, "two-ports-one-network");
        assert_eq!(finding.title, "ens1f0 and ens1f1 in one network 10.1.0.0/24");
        let places: Vec<String> = finding.places.iter().map(ToString::to_string).collect();
        assert_eq!(places, ["beta ens1f0", "beta ens1f1"]);
    }
}
