//! One hardware address on two hosts of a network.

use std::collections::BTreeMap;

use crate::model::{Finding, PortRef, Room, Severity};

use super::Check;
use super::common::segments;

const WHY: &str = "The switch learns the address now on one port, now on another, and sends packets to the wrong host. It comes from cloned virtual machines \
     and copied configurations.";

pub(super) struct DuplicateMac;

impl Check for DuplicateMac {
    fn id(&self) -> &'static str {
        "duplicate-mac"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let mut findings = Vec::new();
        for segment in segments(room) {
            let mut owners: BTreeMap<&str, Vec<PortRef<'_>>> = BTreeMap::new();
            for (at, _) in &segment.members {
                if let Some(mac) = at.port.mac.as_deref() {
                    owners.entry(mac).or_default().push(*at);
                }
            }
            for (mac, ports) in owners {
                let first = ports.first().map(|at| at.host.host.as_str());
                if ports.iter().all(|at| Some(at.host.host.as_str()) == first) {
                    continue;
                }
                let title = format!("MAC {mac} on more than one host of {}", segment.network);
                let mut finding = Finding::new(self.id(), Severity::Error, title).why(WHY);
                for at in &ports {
                    finding = finding.at(at.place()).seen(at.place(), "MAC", mac);
                }
                findings.push(finding.step(
                    None,
                    "give one of them another address; remove a fixed one from the network configuration",
                ));
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn both_owners_are_named() {
        let mut room = healthy_room();
        let mac = port(&mut room, "alpha", "ens1f1").mac.clone();
        port(&mut room, "beta", "ens1f1").mac = mac;
        let finding = only(&room, "duplicate-mac");
        assert_eq!(finding.title, "MAC 02:00:00:00:02:01 on more than one host of 10.1.1.0/24");
        assert_eq!(finding.places.len(), 2);
    }
}
