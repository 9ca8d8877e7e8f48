//! A port that runs slower than it could.

use crate::link::{Speed, Wish};
use crate::model::{Finding, PortRef, Room, Severity};

use super::autonegotiation_mismatch::mismatch;
use super::common::migration_ports;
use super::{Check, Mending};

const WHY: &str = "The link works and moves a part of what was paid for; a migration takes as much longer. Ports that negotiate 1 Gb/s instead of 10 \
     are known of 25G adapters at 10G switch ports: there, both sides must be forced to 10 Gb/s.";

pub(super) struct SpeedBelowAbility;

impl Check for SpeedBelowAbility {
    fn id(&self) -> &'static str {
        "speed-below-ability"
    }

    fn mending(&self) -> Mending {
        Mending::Port
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        migration_ports(room).into_iter().filter_map(|at| self.port(room, at)).collect()
    }
}

/// Speed as running and as able, if a port is slower than it could be and nothing else explains it.
pub(super) fn below(room: &Room, at: PortRef<'_>) -> Option<(u32, u32)> {
    let link = &at.port.link;
    let (speed, able) = (link.speed_mbps.filter(|speed| *speed > 0)?, link.speed_max_mbps()?);
    let slower = speed < able && at.port.carrier != Some(false);
    // Both are told as what they are: `switch-port-slower`, `autonegotiation-mismatch`.
    let peer_slower = link.peer_speed_max_mbps().is_some_and(|peer| peer <= speed);
    (slower && !peer_slower && mismatch(room, at).is_none()).then_some((speed, able))
}

impl SpeedBelowAbility {
    fn port(&self, room: &Room, at: PortRef<'_>) -> Option<Finding> {
        let (speed, able) = below(room, at)?;
        let forced = at.port.link.autonegotiation == Some(false);
        let how = if forced { "forced to" } else { "runs at" };
        let title = format!("{how} {speed} Mb/s, could run at {able} Mb/s");
        let name = &at.port.name;
        let mut finding = Finding::new(self.id(), Severity::Warning, title)
            .at(at.place())
            .seen(at.place(), "speed", format!("{speed} Mb/s"))
            .seen(at.place(), "fastest mode of the adapter", format!("{able} Mb/s"))
            .why(WHY);
        if let Some(peer) = at.port.link.peer_speed_max_mbps() {
            finding = finding.seen(at.place(), "fastest mode of the other side", format!("{peer} Mb/s"));
        }
        if forced {
            let wish = Wish { speed: Some(Speed::Auto), ..Wish::default() };
            finding = finding.mend(at.place(), "negotiate", format!("ethtool -s {name} autoneg on"), wish);
        }
        let command = format!("ethtool -s {name} speed {able} duplex full autoneg off");
        Some(finding.step(None, "look at cable and transceiver: they bound the speed as well").command(
            at.place(),
            "or force both sides, the switch port too, to one speed",
            command,
        ))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn one_gigabit_instead_of_25_is_named_once() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f1").link.speed_mbps = Some(1000);
        let finding = only(&room, "speed-below-ability");
        assert_eq!(finding.title, "runs at 1000 Mb/s, could run at 25000 Mb/s");
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
    }

    #[test]
    fn a_forced_port_can_be_told_to_negotiate() {
        let mut room = healthy_room();
        let link = &mut port(&mut room, "beta", "ens1f1").link;
        (link.autonegotiation, link.speed_mbps) = (Some(false), Some(10_000));
        port(&mut room, "beta", "ens1f1").neighbours[0].autonegotiation = None;
        let fixes = only(&room, "speed-below-ability").fixes;
        let wish = crate::link::Wish { speed: Some(crate::link::Speed::Auto), ..Default::default() };
        assert_eq!(fixes[0].mend, Some(crate::model::Mend::Port(wish)));
    }

    #[test]
    fn ports_that_migrations_do_not_use_are_left_alone() {
        let mut room = healthy_room();
        port(&mut room, "beta", "eno1").link.speed_mbps = Some(100);
        assert_eq!(crate::checks::run_all(&room), Vec::new());
    }
}
