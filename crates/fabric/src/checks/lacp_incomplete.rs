//! A team by LACP that the switch aggregates only in part.

use crate::model::{Finding, PortRef, Room, Severity};

use super::Check;
use super::common::{switch_side, teams};
use super::link_down::is_down;

const WHY: &str = "Members that are not aggregated carry nothing, although their links are up: the team is slower than it looks, and without a spare.";

pub(super) struct LacpIncomplete;

impl Check for LacpIncomplete {
    fn id(&self) -> &'static str {
        "lacp-incomplete"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        teams(room).iter().filter_map(|(team, members)| self.team(room, *team, members)).collect()
    }
}

impl LacpIncomplete {
    fn team(&self, room: &Room, team: PortRef<'_>, members: &[PortRef<'_>]) -> Option<Finding> {
        let bond = team
            .port
            .bond
            .as_ref()
            .filter(|bond| matches!(bond.mode.as_deref(), Some("802.3ad" | "lacp")))?;
        let off: Vec<&PortRef<'_>> =
            members.iter().filter(|at| switch_side(room, **at).aggregated() == Some(false)).collect();
        // Members without a link have a finding of their own.
        let up = members.iter().filter(|at| !is_down(room, **at)).count();
        let aggregated = bond.aggregated.map(|count| count as usize);
        if off.is_empty() && aggregated.is_none_or(|count| count >= up) {
            return None;
        }
        let count = aggregated.unwrap_or(up).min(members.len() - off.len());
        let title = format!("the switch aggregates {count} of {up} members");
        let mut finding = Finding::new(self.id(), Severity::Warning, title)
            .at(team.place())
            .seen(team.place(), "members", members.len())
            .why(WHY);
        if let Some(count) = aggregated {
            finding = finding.seen(team.place(), "aggregated", count);
        }
        for at in off {
            let name = switch_side(room, *at).name();
            finding = finding.at(at.place()).seen(at.place(), "not aggregated by", name);
        }
        let command = format!("cat /proc/net/bonding/{}", team.port.name);
        Some(
            finding
                .step(None, "put the switch ports of all members into one aggregate with LACP; two switches need MLAG between them")
                .command(team.place(), "see the partner of each member", command),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::common::testing::team_room;
    use crate::testing::{only, port};

    #[test]
    fn by_the_count_of_the_bond() {
        let mut room = team_room();
        port(&mut room, "beta", "bond0").bond.as_mut().unwrap().aggregated = Some(1);
        let finding = only(&room, "lacp-incomplete");
        assert_eq!(finding.title, "the switch aggregates 1 of 2 members");
        assert_eq!(finding.places[0].to_string(), "beta bond0");
    }

    #[test]
    fn by_what_the_switch_says() {
        let mut room = team_room();
        port(&mut room, "beta", "ens1f1").neighbours[0].aggregation.as_mut().unwrap().on = false;
        let finding = only(&room, "lacp-incomplete");
        assert_eq!(finding.places[1].to_string(), "beta ens1f1");
    }
}
