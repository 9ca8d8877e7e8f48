//! An adapter in InfiniBand mode where all others speak Ethernet.

use crate::model::{Finding, Inventory, LinkLayer, Place, RdmaDevice, RdmaPort, Room, Severity};

use super::Check;
use super::common::has_infiniband;

const WHY: &str = "The adapter can do both and waits for an InfiniBand switch: at an Ethernet switch it finds no link and shows no network port, so \
     migrations go over whatever else there is.";

pub(super) struct InfinibandMode;

impl Check for InfinibandMode {
    fn id(&self) -> &'static str {
        "infiniband-mode"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let mut findings = Vec::new();
        let ethernet_plan = room.hosts.iter().any(|host| host.rdma.is_some() && !has_infiniband(host));
        for host in &room.hosts {
            for device in host.rdma.iter().flatten() {
                let lost = |port: &&RdmaPort| {
                    let down = port.state.as_deref().is_some_and(|state| !state.contains("ACTIVE"));
                    port.link_layer == Some(LinkLayer::Infiniband) && (ethernet_plan || down)
                };
                let ports: Vec<&RdmaPort> = device.ports.iter().filter(lost).collect();
                if !ports.is_empty() {
                    findings.push(self.device(host, device, &ports));
                }
            }
        }
        findings
    }
}

impl InfinibandMode {
    fn device(&self, host: &Inventory, device: &RdmaDevice, ports: &[&RdmaPort]) -> Finding {
        let place = Place::port(&host.host, &device.name);
        let title = "in InfiniBand mode, while other hosts speak Ethernet or no InfiniBand switch answers";
        let mut finding = Finding::new(self.id(), Severity::Error, title).at(place.clone()).why(WHY);
        for port in ports {
            let state = port.state.as_deref().unwrap_or("unknown");
            let what = format!("port {}", port.number);
            finding = finding.seen(place.clone(), &what, format!("InfiniBand, state {state}"));
        }
        if host.system.secure_boot == Some(true) {
            let step = "Secure Boot is on, and firmware tools do not see the adapter then: switch it off for the change";
            finding =
                finding.seen(Place::host(&host.host), "Secure Boot", "on").step(Some(place.clone()), step);
        }
        let address = device.pcie_address.as_deref().unwrap_or("ADDRESS");
        let types: Vec<String> = ports.iter().map(|port| format!("LINK_TYPE_P{}=2", port.number)).collect();
        let command = format!("mstconfig -d {address} set {}", types.join(" "));
        finding
            .command(
                place.clone(),
                "change the adapter to Ethernet (package mstflint; mlxconfig of the vendor does the same)",
                command,
            )
            .step(Some(place), "restart the host")
    }
}

#[cfg(test)]
mod tests {
    use crate::model::{LinkLayer, Room};
    use crate::testing::{healthy_room, host_mut, only};

    fn turned(room: &mut Room, host: &str) {
        let host = host_mut(room, host);
        host.system.secure_boot = Some(true);
        let port = &mut host.rdma.as_mut().unwrap()[1].ports[0];
        port.link_layer = Some(LinkLayer::Infiniband);
        port.state = Some("DOWN".into());
        port.gids.clear();
    }

    #[test]
    fn adapter_command_and_secure_boot_are_named() {
        let mut room = healthy_room();
        turned(&mut room, "beta");
        let finding = only(&room, "infiniband-mode");
        assert_eq!(finding.places[0].to_string(), "beta mlx5_1");
        assert!(finding.fixes[0].what.contains("Secure Boot is on"), "{finding:?}");
        assert_eq!(finding.fixes[1].command.as_deref(), Some("mstconfig -d 0000:3b:00.1 set LINK_TYPE_P1=2"));
    }

    #[test]
    fn a_room_that_runs_infiniband_is_no_fault() {
        let mut room = healthy_room();
        for host in ["alpha", "beta", "gamma"] {
            turned(&mut room, host);
            host_mut(&mut room, host).rdma.as_mut().unwrap()[1].ports[0].state = Some("ACTIVE".into());
        }
        assert_eq!(crate::checks::run_all(&room), Vec::new());
    }
}
