//! Hosts with one cable for migrations.

use crate::model::{Finding, Inventory, PortKind, PortRef, Room, Severity};

use super::Check;
use super::common::{migration_ports, migration_segments};

const WHY: &str = "When this cable, its port or its switch fails, a running migration stands still until it is back, or fails. A second link also makes \
     migrations faster: all are used at once.";

pub(super) struct NoSecondLink;

impl Check for NoSecondLink {
    fn id(&self) -> &'static str {
        "no-second-link"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let ports = migration_ports(room);
        let joined = |host: &Inventory| {
            let on = |(at, _): &(PortRef<'_>, _)| at.host.host == host.host;
            migration_segments(room).iter().any(|segment| segment.members.iter().any(on))
        };
        let mut lonely: Vec<PortRef<'_>> = Vec::new();
        for host in &room.hosts {
            let mut own =
                ports.iter().filter(|at| at.host.host == host.host && at.port.kind != PortKind::Loopback);
            if let (Some(only), None) = (own.next(), own.next())
                && joined(host)
            {
                lonely.push(*only);
            }
        }
        self.finding(&lonely).into_iter().collect()
    }
}

impl NoSecondLink {
    fn finding(&self, lonely: &[PortRef<'_>]) -> Option<Finding> {
        lonely.first()?;
        let mut finding = Finding::new(self.id(), Severity::Hint, "the only port for migrations").why(WHY);
        for at in lonely {
            finding = finding.at(at.place()).seen(at.place(), "ports for migrations", 1);
        }
        Some(finding.step(None, "cable a second port to another switch, in a network of its own, and add its address to listen in the agent's configuration"))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, host_mut, only};

    #[test]
    fn the_host_with_one_port_is_named() {
        let mut room = healthy_room();
        host_mut(&mut room, "beta").agent.as_mut().unwrap().listen.truncate(1);
        let finding = only(&room, "no-second-link");
        assert_eq!(finding.places.len(), 1);
        assert_eq!(finding.places[0].to_string(), "beta ens1f0");
    }

    #[test]
    fn a_team_of_two_is_two() {
        assert_eq!(crate::checks::run_all(&super::super::common::testing::team_room()), Vec::new());
        assert_eq!(crate::checks::run_all(&super::super::common::testing::vlan_room()), Vec::new());
    }
}
