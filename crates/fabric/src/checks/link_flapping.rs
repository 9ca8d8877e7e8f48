//! A carrier that came and went often.

use crate::model::{Finding, PortKind, Room, Severity};

use super::Check;

/// A port sees two changes with each restart of its switch. More than this in one life of a port are a fault, not maintenance.
const CHANGES_MIN: u32 = 40;

const WHY: &str = "Each time, the channels of a running migration on this link are lost, and what was under way is sent again on other links.";

pub(super) struct LinkFlapping;

impl Check for LinkFlapping {
    fn id(&self) -> &'static str {
        "link-flapping"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let mut findings = Vec::new();
        for at in room.ports().filter(|at| matches!(at.port.kind, PortKind::Physical | PortKind::Veth)) {
            let Some(changes) = at.port.carrier_changes.filter(|changes| *changes >= CHANGES_MIN) else {
                continue;
            };
            let title = format!("the link came or went {changes} times");
            let finding = Finding::new(self.id(), Severity::Warning, title)
                .at(at.place())
                .seen(at.place(), "carrier changes", changes)
                .why(WHY)
                .step(None, "change cable and transceiver, then the switch port; set speed, negotiation and FEC alike on both sides")
                .command(at.place(), "see when", format!("journalctl -k | grep {}", at.port.name));
            findings.push(finding);
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn often_is_more_than_a_restart_of_the_switch() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f1").carrier_changes = Some(12);
        assert_eq!(crate::checks::run_all(&room), Vec::new());
        port(&mut room, "beta", "ens1f1").carrier_changes = Some(412);
        let finding = only(&room, "link-flapping");
        assert_eq!(finding.title, "the link came or went 412 times");
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
    }
}
