//! A VLAN port whose VLAN the switch does not pass.

use crate::model::{Finding, Place, PortKind, PortRef, Room, Severity};

use super::Check;
use super::common::{numbers, switch_side};

const WHY: &str = "The switch throws away frames of VLANs that its port does not carry: nothing arrives, and nothing says so.";

pub(super) struct VlanNotOnSwitch;

impl Check for VlanNotOnSwitch {
    fn id(&self) -> &'static str {
        "vlan-not-on-switch"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let upper = room.carrying_ports().filter(|at| at.port.kind == PortKind::Vlan);
        upper
            .flat_map(|at| room.below(at).into_iter().filter_map(move |below| self.pair(room, at, below)))
            .collect()
    }
}

impl VlanNotOnSwitch {
    fn pair(&self, room: &Room, upper: PortRef<'_>, below: PortRef<'_>) -> Option<Finding> {
        let switch = switch_side(room, below);
        let (vlan, passed) = (upper.port.vlan?, switch.vlans()?);
        if passed.contains(&vlan) {
            return None;
        }
        let name = switch.name();
        let finding = Finding::new(
            self.id(),
            Severity::Warning,
            format!("VLAN {vlan} is not on its switch port {name}"),
        )
        .at(upper.place())
        .seen(upper.place(), "VLAN", vlan)
        .seen(Place::host(&name), "VLANs", numbers(passed))
        .why(WHY)
        .step(None, format!("add VLAN {vlan} to {name}, tagged"));
        Some(finding)
    }
}

#[cfg(test)]
mod tests {
    use super::super::common::testing::vlan_room;
    use crate::testing::{only, port};

    #[test]
    fn port_and_switch_are_named() {
        let mut room = vlan_room();
        port(&mut room, "beta", "ens1f0").neighbours[0].vlans = vec![100, 200];
        let finding = only(&room, "vlan-not-on-switch");
        assert_eq!(finding.title, "VLAN 700 is not on its switch port leaf0 Ethernet1/2");
        assert_eq!(finding.places[0].to_string(), "beta ens1f0.700");
    }
}
