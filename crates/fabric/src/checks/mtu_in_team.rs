//! Members of one team with different MTUs.

use crate::link::Wish;
use crate::model::{Finding, Room, Severity};

use super::common::{Value, differ, odd, teams};
use super::{Check, Mending};

const WHY: &str = "Which member a connection takes is decided by a hash: those on the smaller member lose their full packets, the others \
     work. Migrations hang or crawl at random, and between some hosts only.";

pub(super) struct MtuInTeam;

impl Check for MtuInTeam {
    fn id(&self) -> &'static str {
        "mtu-in-team"
    }

    fn mending(&self) -> Mending {
        Mending::Port
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (team, members) in teams(room) {
            let mtu = |at: &crate::model::PortRef<'_>| Some((at.place(), at.port.mtu?.to_string()));
            let values: Vec<Value> = members.iter().filter_map(mtu).collect();
            let whereabouts = format!("in {}", team.place());
            let Some(mut finding) = differ(self.id(), Severity::Error, "MTU", &whereabouts, &values) else {
                continue;
            };
            for (place, seen) in odd(&values).unwrap_or_default() {
                let Some(wanted) = team.port.mtu.filter(|wanted| wanted.to_string() != *seen) else {
                    continue;
                };
                let command =
                    format!("ip link set dev {} mtu {wanted}", place.port.as_deref().unwrap_or("PORT"));
                let wish = Wish { mtu: Some(wanted), ..Wish::default() };
                finding = finding.mend(place.clone(), "give it the team's MTU", command, wish);
            }
            findings.push(finding.why(WHY).step(None, "give the switch ports of all members the same MTU"));
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{only, port};

    #[test]
    fn the_member_is_named() {
        let mut room = super::super::common::testing::team_room();
        port(&mut room, "beta", "ens1f1").mtu = Some(1500);
        let finding = only(&room, "mtu-in-team");
        assert_eq!(finding.title, "MTU 9000 and 1500 in beta bond0");
        assert!(finding.places.iter().any(|place| place.to_string() == "beta ens1f1"));
        assert_eq!(finding.fixes[0].command.as_deref(), Some("ip link set dev ens1f1 mtu 9000"));
    }
}
