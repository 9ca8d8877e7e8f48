//! A team that sends one migration over one of its members only.

use crate::model::{Bond, Finding, PortRef, Room, Severity};

use super::Check;
use super::common::{migration_ports, teams};

const WHY: &str = "A migration is many connections between the same two hosts. This team puts all of them on one member, the others stand by: it is as \
     fast as one port. Ports without a team, each with an address of its own, are used all at once.";

pub(super) struct TeamCannotSpread;

impl Check for TeamCannotSpread {
    fn id(&self) -> &'static str {
        "team-cannot-spread"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let carrying = migration_ports(room);
        let carries = |members: &[PortRef<'_>]| {
            members.iter().any(|member| carrying.iter().any(|at| std::ptr::eq(at.port, member.port)))
        };
        let wanted = teams(room).into_iter().filter(|(_, members)| carries(members));
        wanted.filter_map(|(team, members)| self.team(team, members.len())).collect()
    }
}

/// How many connections between two hosts are spread, if they are not.
fn obstacle(bond: &Bond) -> Option<(Severity, String)> {
    let hash = bond.hash.as_deref();
    match bond.mode.as_deref()? {
        "active-backup" => Some((Severity::Hint, "active-backup uses one member at a time".into())),
        "switch-independent" => Some((Severity::Hint, "switch-independent receives on one member".into())),
        "balance-alb" | "balance-tlb" => {
            Some((Severity::Hint, "one host is always sent to over one member".into()))
        }
        mode @ ("802.3ad" | "balance-xor" | "lacp" | "static") => {
            let hash = hash.filter(|hash| matches!(*hash, "layer2" | "layer2+3" | "vlan+srcmac"))?;
            Some((Severity::Warning, format!("{mode} with hash {hash} puts two hosts on one member")))
        }
        _ => None,
    }
}

impl TeamCannotSpread {
    fn team(&self, at: PortRef<'_>, members: usize) -> Option<Finding> {
        let bond = at.port.bond.as_ref()?;
        let (severity, title) = obstacle(bond)?;
        let name = &at.port.name;
        let mut finding = Finding::new(self.id(), severity, title)
            .at(at.place())
            .seen(at.place(), "members", members)
            .seen(at.place(), "mode", bond.mode.as_deref().unwrap_or("unknown"))
            .why(WHY);
        if let Some(hash) = &bond.hash {
            finding = finding.seen(at.place(), "hash", hash);
        }
        if severity == Severity::Warning {
            let command = format!("ip link set dev {name} type bond xmit_hash_policy layer3+4");
            finding = finding.command(at.place(), "hash by address and port, and on the switch too", command);
        }
        Some(finding.step(
            Some(at.place()),
            "or dissolve the team and give each port an address in a network of its own",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::common::testing::team_room;
    use crate::model::Severity;
    use crate::testing::{only, port};

    #[test]
    fn a_hash_that_knows_hosts_only() {
        let mut room = team_room();
        port(&mut room, "beta", "bond0").bond.as_mut().unwrap().hash = Some("layer2".into());
        let finding = only(&room, "team-cannot-spread");
        assert_eq!(finding.title, "802.3ad with hash layer2 puts two hosts on one member");
        assert_eq!(
            (finding.places[0].to_string().as_str(), finding.severity),
            ("beta bond0", Severity::Warning)
        );
        assert_eq!(
            finding.fixes[0].command.as_deref(),
            Some("ip link set dev bond0 type bond xmit_hash_policy layer3+4")
        );
    }

    #[test]
    fn a_mode_with_a_spare() {
        let mut room = team_room();
        port(&mut room, "beta", "bond0").bond.as_mut().unwrap().mode = Some("active-backup".into());
        assert_eq!(only(&room, "team-cannot-spread").severity, Severity::Hint);
    }
}
