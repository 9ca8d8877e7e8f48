//! Migrations over the management network.

use crate::model::{Finding, Inventory, Place, PortRef, Room, Severity};

use super::Check;
use super::common::{migration_segments, speed};

const WHY: &str = "A migration takes all that a link has, and the hosts' control traffic is on it: logins hang, cluster heartbeats are late, and the migration \
     is as slow as the management port.";

pub(super) struct MigrationOnManagement;

impl Check for MigrationOnManagement {
    fn id(&self) -> &'static str {
        "migration-on-management"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let segments = migration_segments(room);
        let mut findings = Vec::new();
        for segment in &segments {
            // Without an agent it is not known what migrations use.
            let managing =
                |(at, _): &&(PortRef<'_>, _)| at.host.agent.is_some() && manages(at.host, &at.port.name);
            let ports: Vec<PortRef<'_>> =
                segment.members.iter().filter(managing).map(|(at, _)| *at).collect();
            if ports.is_empty() {
                continue;
            }
            let (severity, how) = match segments.len() {
                1 => (Severity::Warning, "the management network is the only one for migrations"),
                _ => (Severity::Hint, "the management network is used for migrations too"),
            };
            let mut finding =
                Finding::new(self.id(), severity, format!("{how}: {}", segment.network)).why(WHY);
            for at in ports {
                let rate = speed(room, at).map_or("unknown".to_owned(), |rate| format!("{rate} Mb/s"));
                finding = finding.at(at.place()).seen(at.place(), "default route, speed", rate);
                let step = format!(
                    "leave this address out of listen in the agent's configuration, or bound migrations with --links (not {})",
                    segment.network
                );
                finding = finding.step(Some(Place::host(&at.host.host)), step);
            }
            findings.push(finding);
        }
        findings
    }
}

/// The default route goes by this port.
fn manages(host: &Inventory, port: &str) -> bool {
    let defaults = host.routes.iter().filter(|route| route.destination.is_none() && route.gateway.is_some());
    defaults.min_by_key(|route| route.metric).is_some_and(|route| route.port == port)
}

#[cfg(test)]
mod tests {
    use crate::model::Severity;
    use crate::testing::healthy_room;
    use crate::testing::only;

    #[test]
    fn beside_others_it_is_a_hint_and_alone_a_warning() {
        let mut room = healthy_room();
        for (number, host) in (1..).zip(&mut room.hosts) {
            host.agent.as_mut().unwrap().listen.push(format!("192.168.0.{number}:7979"));
        }
        let finding = only(&room, "migration-on-management");
        assert_eq!(finding.severity, Severity::Hint);
        assert_eq!(finding.title, "the management network is used for migrations too: 192.168.0.0/24");
        assert_eq!(finding.places[1].to_string(), "beta eno1");

        for host in &mut room.hosts {
            host.agent.as_mut().unwrap().listen.drain(..2);
        }
        let findings = crate::checks::run_all(&room);
        let found = findings.iter().find(|finding| finding.id == "migration-on-management").unwrap();
        assert_eq!(found.severity, Severity::Warning, "it is the only one");
    }
}
