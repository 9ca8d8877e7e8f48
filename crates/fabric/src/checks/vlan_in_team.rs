//! Members of one team whose switch ports are in different VLANs.

use crate::model::{Finding, PortRef, Room, Severity};

use super::Check;
use super::common::{Value, differ, numbers, switch_side, teams};

const WHY: &str = "Whether a connection works depends on the member that a hash chooses: some migrations run, others hang, and pings prove nothing.";

pub(super) struct VlanInTeam;

impl Check for VlanInTeam {
    fn id(&self) -> &'static str {
        "vlan-in-team"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (team, members) in teams(room) {
            let values: Vec<Value> =
                members.iter().filter_map(|at| Some((at.place(), value(room, *at)?))).collect();
            let whereabouts = format!("in {}", team.place());
            let finding = differ(self.id(), Severity::Error, "VLANs", &whereabouts, &values);
            findings.extend(finding.map(|finding| {
                finding
                    .why(WHY)
                    .step(None, "give the switch ports of all members the same untagged and tagged VLANs")
            }));
        }
        findings
    }
}

/// What the switch says of the port.
fn value(room: &Room, at: PortRef<'_>) -> Option<String> {
    let switch = switch_side(room, at);
    let untagged = switch.vlan_untagged().map(|vlan| format!("{vlan} untagged"));
    let tagged = switch.vlans().map(|vlans| {
        let mut vlans = vlans.to_vec();
        vlans.sort_unstable();
        format!("{} named", numbers(&vlans))
    });
    let words: Vec<String> = [untagged, tagged].into_iter().flatten().collect();
    (!words.is_empty()).then(|| words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::common::testing::team_room;
    use crate::testing::{only, port};

    #[test]
    fn both_members_are_shown() {
        let mut room = team_room();
        port(&mut room, "beta", "ens1f1").neighbours[0].vlan_untagged = Some(1);
        let finding = only(&room, "vlan-in-team");
        assert_eq!(finding.title, "VLANs 100 untagged and 1 untagged in beta bond0");
        assert!(finding.places.iter().any(|place| place.to_string() == "beta ens1f1"), "{finding:?}");
    }
}
