//! A VLAN, macvlan or bridge with a larger MTU than the port that carries it.

use crate::link::Wish;
use crate::model::{Finding, PortKind, PortRef, Room, Severity};

use super::common::outward;
use super::{Check, Mending};

const WHY: &str = "Packets are made for the upper port's MTU and do not fit through the one below. Full packets of a migration are lost, small \
     ones pass.";

pub(super) struct MtuBelowPort;

impl Check for MtuBelowPort {
    fn id(&self) -> &'static str {
        "mtu-below-port"
    }

    fn mending(&self) -> Mending {
        Mending::Port
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let stacked =
            |at: &PortRef<'_>| matches!(at.port.kind, PortKind::Vlan | PortKind::Macvlan | PortKind::Bridge);
        let upper = room.carrying_ports().filter(|at| stacked(at) && outward(room, *at));
        upper
            .flat_map(|at| room.below(at).into_iter().filter_map(move |below| self.pair(at, below)))
            .collect()
    }
}

impl MtuBelowPort {
    fn pair(&self, upper: PortRef<'_>, below: PortRef<'_>) -> Option<Finding> {
        let (above, carried) = (upper.port.mtu?, below.port.mtu?);
        if above <= carried || below.port.kind == PortKind::Tun {
            return None;
        }
        let title = format!("MTU {above}, but {} below it carries {carried}", below.port.name);
        let finding = Finding::new(self.id(), Severity::Error, title)
            .at(upper.place())
            .seen(upper.place(), "MTU", above)
            .seen(below.place(), "MTU", carried)
            .why(WHY)
            .mend(
                below.place(),
                "raise it",
                format!("ip link set dev {} mtu {above}", below.port.name),
                Wish { mtu: Some(above), ..Wish::default() },
            );
        Some(finding)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{only, port};

    #[test]
    fn both_ports_are_named() {
        let mut room = super::super::common::testing::vlan_room();
        port(&mut room, "beta", "ens1f0").mtu = Some(1500);
        let finding = only(&room, "mtu-below-port");
        assert_eq!(finding.title, "MTU 9000, but ens1f0 below it carries 1500");
        assert_eq!(finding.places[0].to_string(), "beta ens1f0.700");
        assert_eq!(finding.fixes[0].command.as_deref(), Some("ip link set dev ens1f0 mtu 9000"));
    }
}
