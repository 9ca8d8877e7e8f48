//! Speed forced on one side of a cable and negotiated on the other.

use crate::link::{Speed, Wish};
use crate::model::{Finding, Place, PortRef, Room, Severity};

use super::common::switch_side;
use super::{Check, Mending};

const WHY: &str = "A side that negotiates with one that does not falls back to a slow or half-duplex mode, or finds no link: a 25G adapter came up at \
     1 Gb/s at a 10G switch port, and not at all, until both sides were forced (field report on ConnectX-4 Lx).";

pub(super) struct AutonegotiationMismatch;

impl Check for AutonegotiationMismatch {
    fn id(&self) -> &'static str {
        "autonegotiation-mismatch"
    }

    fn mending(&self) -> Mending {
        Mending::Port
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        room.ports().filter_map(|at| self.port(room, at)).collect()
    }
}

/// Whether the port and the switch negotiate, if only one of them does.
pub(super) fn mismatch(room: &Room, at: PortRef<'_>) -> Option<(bool, bool)> {
    let both = at.port.link.autonegotiation.zip(switch_side(room, at).autonegotiation());
    both.filter(|(ours, theirs)| ours != theirs)
}

impl AutonegotiationMismatch {
    fn port(&self, room: &Room, at: PortRef<'_>) -> Option<Finding> {
        let (ours, theirs) = mismatch(room, at)?;
        let switch = switch_side(room, at);
        let word = |auto| if auto { "negotiated" } else { "forced" };
        let name = switch.name();
        let speed = at.port.link.speed_mbps.filter(|speed| *speed > 0);
        let title = format!("speed {} here and {} on {name}", word(ours), word(theirs));
        let mut finding = Finding::new(self.id(), Severity::Warning, title)
            .at(at.place())
            .seen(at.place(), "speed is", word(ours))
            .seen(Place::host(&name), "speed is", word(theirs))
            .why(WHY);
        if let Some(speed) = speed {
            finding = finding.seen(at.place(), "speed", format!("{speed} Mb/s"));
        }
        let port = &at.port.name;
        let fastest =
            at.port.link.speed_max_mbps().or(speed).map_or("SPEED".to_owned(), |speed| speed.to_string());
        let (place, what) = (at.place(), "do as the switch port does (its speed, if it is forced)");
        let negotiate = Wish { speed: Some(Speed::Auto), ..Wish::default() };
        Some(match ours {
            // Nobody says to which speed the switch is forced.
            true => finding.command(
                place,
                what,
                format!("ethtool -s {port} speed {fastest} duplex full autoneg off"),
            ),
            false => finding.mend(place, what, format!("ethtool -s {port} autoneg on"), negotiate),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn negotiated_against_forced_and_only_a_tenth_of_the_speed() {
        let mut room = healthy_room();
        let faulty = port(&mut room, "beta", "ens1f1");
        faulty.neighbours[0].autonegotiation = Some(false);
        faulty.link.speed_mbps = Some(1000);
        let finding = only(&room, "autonegotiation-mismatch");
        assert_eq!(finding.title, "speed negotiated here and forced on leaf1 Ethernet1/2");
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
    }

    #[test]
    fn forced_here() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f1").link.autonegotiation = Some(false);
        let finding = only(&room, "autonegotiation-mismatch");
        assert_eq!(finding.fixes[0].command.as_deref(), Some("ethtool -s ens1f1 autoneg on"));
    }
}
