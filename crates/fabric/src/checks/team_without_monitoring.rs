//! A team that does not look whether its members have a link.

use crate::model::{Finding, PortKind, Room, Severity};

use super::Check;
use super::common::teams;

const WHY: &str =
    "A member whose cable is pulled goes on being used: part of the connections hang until somebody looks.";

pub(super) struct TeamWithoutMonitoring;

impl Check for TeamWithoutMonitoring {
    fn id(&self) -> &'static str {
        "team-without-monitoring"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let blind = |at: &crate::model::PortRef<'_>| {
            at.port.kind == PortKind::Bond
                && at.port.bond.as_ref().is_some_and(|bond| bond.monitor_interval_ms == Some(0))
        };
        let finding = |at: crate::model::PortRef<'_>| {
            let command = format!("ip link set dev {} type bond miimon 100", at.port.name);
            Finding::new(
                self.id(),
                Severity::Warning,
                "the links of its members are never looked at (miimon 0)",
            )
            .at(at.place())
            .seen(at.place(), "miimon", "0 ms")
            .why(WHY)
            .command(at.place(), "look ten times a second", command)
        };
        teams(room).into_iter().map(|(at, _)| at).filter(blind).map(finding).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::common::testing::team_room;
    use crate::testing::{only, port};

    #[test]
    fn named_with_host_and_team() {
        let mut room = team_room();
        port(&mut room, "beta", "bond0").bond.as_mut().unwrap().monitor_interval_ms = Some(0);
        let finding = only(&room, "team-without-monitoring");
        assert_eq!(finding.places[0].to_string(), "beta bond0");
    }
}
