//! One address on two hosts.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::model::{Finding, PortRef, Room, Severity};

use super::Check;
use super::common::outward;

const WHY: &str = "Packets reach now one host, now the other: connections break off at random, and a migration may be offered to the wrong host.";

pub(super) struct DuplicateAddress;

impl Check for DuplicateAddress {
    fn id(&self) -> &'static str {
        "duplicate-address"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        doubles(room).into_iter().map(|(ip, ports)| self.finding(ip, &ports)).collect()
    }
}

/// Addresses that more than one host has.
fn doubles(room: &Room) -> BTreeMap<IpAddr, Vec<PortRef<'_>>> {
    let mut owners: BTreeMap<IpAddr, Vec<PortRef<'_>>> = BTreeMap::new();
    for at in room.carrying_ports().filter(|at| outward(room, *at)) {
        for address in at.port.addresses.iter().filter(|address| address.shared()) {
            owners.entry(address.ip).or_default().push(at);
        }
    }
    owners.retain(|_, ports| {
        let first = ports.first().map(|at| at.host.host.as_str());
        ports.iter().any(|at| Some(at.host.host.as_str()) != first)
    });
    owners
}

/// More than one host has this address.
pub(super) fn is_double(room: &Room, ip: IpAddr) -> bool {
    doubles(room).contains_key(&ip)
}

impl DuplicateAddress {
    fn finding(&self, ip: IpAddr, ports: &[PortRef<'_>]) -> Finding {
        let mut finding =
            Finding::new(self.id(), Severity::Error, format!("{ip} is on more than one host")).why(WHY);
        for at in ports {
            let mac = at.port.mac.as_deref().unwrap_or("unknown");
            finding = finding.at(at.place()).seen(at.place(), "address", format!("{ip}, MAC {mac}"));
        }
        for at in ports {
            let prefix =
                at.port.addresses.iter().find(|address| address.ip == ip).map_or(0, |address| address.prefix);
            let command = format!("ip address del {ip}/{prefix} dev {}", at.port.name);
            finding = finding.command(
                at.place(),
                "take it away from one of them, and from its configuration",
                command,
            );
        }
        finding
    }
}

#[cfg(test)]
mod tests {
    use crate::model::{Address, Port, PortKind};
    use crate::testing::{healthy_room, host_mut, only, port};

    #[test]
    fn both_owners_are_named() {
        let mut room = healthy_room();
        port(&mut room, "beta", "eno1").addresses[0].ip = [192, 168, 0, 1].into();
        let finding = only(&room, "duplicate-address");
        assert_eq!(finding.title, "192.168.0.1 is on more than one host");
        let places: Vec<String> = finding.places.iter().map(ToString::to_string).collect();
        assert_eq!(places, ["alpha eno1", "beta eno1"]);
    }

    #[test]
    fn a_bridge_for_guests_has_the_same_address_everywhere() {
        let mut room = healthy_room();
        for host in ["alpha", "beta", "gamma"] {
            host_mut(&mut room, host).ports.push(Port {
                name: "virbr0".into(),
                kind: PortKind::Bridge,
                addresses: vec![Address { ip: [192, 168, 122, 1].into(), prefix: 24 }],
                ..Port::default()
            });
        }
        assert_eq!(crate::checks::run_all(&room), Vec::new());
    }
}
