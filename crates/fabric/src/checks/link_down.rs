//! A port that has something to carry, and no link.

use crate::model::{Finding, PortRef, Room, Severity};

use super::Check;
use super::common::outward;

const WHY: &str = "Migrations do without this link. If it is the only one that two hosts share, they cannot migrate to each other at all.";

pub(super) struct LinkDown;

impl Check for LinkDown {
    fn id(&self) -> &'static str {
        "link-down"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        room.ports().filter_map(|at| self.port(room, at)).collect()
    }
}

/// Switched off or without a carrier, though it has an address or a team that counts on it.
pub(super) fn is_down(room: &Room, at: PortRef<'_>) -> bool {
    let off = at.port.up == Some(false) || (at.port.up == Some(true) && at.port.carrier == Some(false));
    let carrying = at.port.addresses.iter().any(|address| address.shared()) && outward(room, at);
    let teams = || room.teams().into_iter().flat_map(|(_, members)| members);
    off && (carrying || (at.port.master.is_some() && teams().any(|one| std::ptr::eq(one.port, at.port))))
}

impl LinkDown {
    fn port(&self, room: &Room, at: PortRef<'_>) -> Option<Finding> {
        if !is_down(room, at) {
            return None;
        }
        let carrying = !at.port.addresses.is_empty();
        let severity = if carrying { Severity::Error } else { Severity::Warning };
        let port = &at.port.name;
        if at.port.up == Some(false) {
            let finding =
                Finding::new(self.id(), severity, "switched off, though it is set up to carry something")
                    .at(at.place())
                    .seen(at.place(), "state", "down")
                    .why(WHY)
                    .command(at.place(), "switch it on", format!("ip link set dev {port} up"));
            return Some(finding);
        }
        let reason = at.port.link.down_reason.as_deref();
        let title = format!("no link{}", reason.map(|reason| format!(": {reason}")).unwrap_or_default());
        let mut finding = Finding::new(self.id(), severity, title)
            .at(at.place())
            .seen(at.place(), "carrier", "none")
            .why(WHY)
            .step(None, "look at cable, transceiver and switch port");
        if at.port.link.speed_max_mbps().is_some_and(|able| able >= 25_000) {
            let command = format!("ethtool -s {port} speed 10000 duplex full autoneg off");
            finding =
                finding.command(at.place(), "if the switch port is 10G: force both sides to it", command);
        }
        Some(finding)
    }
}

#[cfg(test)]
mod tests {
    use crate::model::Severity;
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn no_carrier() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f1").carrier = Some(false);
        port(&mut room, "beta", "ens1f1").link.down_reason = Some("no cable".into());
        let finding = only(&room, "link-down");
        assert_eq!((finding.title.as_str(), finding.severity), ("no link: no cable", Severity::Error));
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
    }

    #[test]
    fn switched_off() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f1").up = Some(false);
        let finding = only(&room, "link-down");
        assert_eq!(finding.fixes[0].command.as_deref(), Some("ip link set dev ens1f1 up"));
    }

    #[test]
    fn a_member_of_a_team_and_a_port_without_use() {
        let mut room = super::super::common::testing::team_room();
        port(&mut room, "beta", "ens1f1").carrier = Some(false);
        assert_eq!(only(&room, "link-down").severity, Severity::Warning);
        let mut room = healthy_room();
        let unused = port(&mut room, "beta", "eno1");
        unused.addresses.clear();
        unused.carrier = Some(false);
        assert_eq!(crate::checks::run_all(&room), Vec::new());
    }
}
