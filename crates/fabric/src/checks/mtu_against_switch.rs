//! A port whose switch passes less than its MTU.

use crate::model::{Finding, Place, Room, Severity};

use super::Check;
use super::common::switch_side;

const WHY: &str = "The switch throws away what is larger than its own limit, without a word. The port sends full packets into nothing: the \
     migration connects, then hangs or crawls.";

pub(super) struct MtuAgainstSwitch;

impl Check for MtuAgainstSwitch {
    fn id(&self) -> &'static str {
        "mtu-against-switch"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let mut findings = Vec::new();
        for at in room.ports() {
            let switch = switch_side(room, at);
            let (Some(mtu), Some(passes)) = (at.port.mtu, switch.mtu()) else { continue };
            if mtu <= passes {
                continue;
            }
            let name = switch.name();
            let title = format!("MTU {mtu}, but its switch port {name} passes {passes}");
            let command = format!("ip link set dev {} mtu {passes}", at.port.name);
            let finding = Finding::new(self.id(), Severity::Error, title)
                .at(at.place())
                .seen(at.place(), "MTU", mtu)
                .seen(Place::host(&name), "largest packet", passes)
                .why(WHY)
                .step(
                    None,
                    format!("raise the MTU of {name} to {mtu} (frames of {} bytes)", mtu.saturating_add(18)),
                )
                .command(at.place(), "or lower it here, and on every other host of the network", command);
            findings.push(finding);
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use crate::model::{Switch, SwitchPort};
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn what_the_switch_says_by_lldp() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f1").neighbours[0].frame_bytes_max = Some(1518);
        let finding = only(&room, "mtu-against-switch");
        assert_eq!(finding.title, "MTU 9000, but its switch port leaf1 Ethernet1/2 passes 1500");
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
    }

    #[test]
    fn what_was_exported_of_it() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f1").neighbours[0].frame_bytes_max = None;
        let exported = SwitchPort { name: "Ethernet1/2".into(), mtu: Some(1500), ..SwitchPort::default() };
        room.switches = vec![Switch { switch: "leaf1".into(), ports: vec![exported] }];
        only(&room, "mtu-against-switch");
    }
}
