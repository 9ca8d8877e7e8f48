//! A default gateway that does not answer.

use crate::model::{Finding, Gateway, Inventory, Place, PortRef, Room, Severity};

use super::Check;
use super::link_down::is_down;

const WHY: &str = "Nothing of this host reaches other networks: time servers, package mirrors, management. Migrations whose agents are in other networks do not \
     begin.";

pub(super) struct GatewayDead;

impl Check for GatewayDead {
    fn id(&self) -> &'static str {
        "gateway-dead"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        room.hosts
            .iter()
            .flat_map(|host| host.gateways.iter().filter_map(move |one| self.gateway(room, host, one)))
            .collect()
    }
}

impl GatewayDead {
    fn gateway(&self, room: &Room, host: &Inventory, gateway: &Gateway) -> Option<Finding> {
        let at = host.port(&gateway.port).map(|port| PortRef { host, port });
        if gateway.answers != Some(false) || at.is_some_and(|at| is_down(room, at)) {
            return None;
        }
        let place = Place::port(&host.host, &gateway.port);
        let (ip, port) = (gateway.ip, &gateway.port);
        let finding =
            Finding::new(self.id(), Severity::Warning, format!("the default gateway {ip} does not answer"))
                .at(place.clone())
                .seen(place.clone(), "default route", format!("via {ip} dev {port}"))
                .seen(place.clone(), "ARP requests", "no answer")
                .why(WHY)
                .command(
                    place.clone(),
                    "try it by hand",
                    format!("arping -c 3 -I {port} {ip}; ip neighbour show {ip}"),
                )
                .step(Some(place), "correct the route, or look whether the router is up and in this VLAN");
        Some(finding)
    }
}

#[cfg(test)]
mod tests {
    use crate::model::Gateway;
    use crate::testing::{healthy_room, host_mut, only};

    #[test]
    fn host_port_and_address_are_named() {
        let mut room = healthy_room();
        let mut gateway = Gateway { ip: [192, 168, 0, 254].into(), port: "eno1".into(), answers: Some(true) };
        host_mut(&mut room, "beta").gateways = vec![gateway.clone()];
        assert_eq!(crate::checks::run_all(&room), Vec::new());
        gateway.answers = Some(false);
        host_mut(&mut room, "beta").gateways = vec![gateway];
        let finding = only(&room, "gateway-dead");
        assert_eq!(finding.title, "the default gateway 192.168.0.254 does not answer");
        assert_eq!(finding.places[0].to_string(), "beta eno1");
    }
}
