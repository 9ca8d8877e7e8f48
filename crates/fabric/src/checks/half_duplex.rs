//! A port that sends or receives, not both at once.

use crate::link::{Speed, Wish};
use crate::model::{Duplex, Finding, Room, Severity};

use super::{Check, Mending};

const WHY: &str = "One direction at a time, and collisions with the other side if that runs full duplex: a migration's data and its \
     acknowledgements stand in each other's way. It is what is left of a failed negotiation.";

pub(super) struct HalfDuplex;

impl Check for HalfDuplex {
    fn id(&self) -> &'static str {
        "half-duplex"
    }

    fn mending(&self) -> Mending {
        Mending::Port
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let half = room
            .ports()
            .filter(|at| at.port.link.duplex == Some(Duplex::Half) && at.port.carrier != Some(false));
        let finding = |at: crate::model::PortRef<'_>| {
            let speed = at.port.link.speed_mbps.map(|speed| format!(" at {speed} Mb/s")).unwrap_or_default();
            Finding::new(self.id(), Severity::Warning, format!("half duplex{speed}"))
                .at(at.place())
                .seen(at.place(), "duplex", "half")
                .why(WHY)
                .step(
                    None,
                    "set the switch port to negotiate, or both sides to the same speed and full duplex",
                )
        };
        let finding = |at: crate::model::PortRef<'_>| {
            let (place, command) = (at.place(), format!("ethtool -s {} autoneg on", at.port.name));
            let wish = Wish { speed: Some(Speed::Auto), ..Wish::default() };
            match at.port.link.autonegotiation {
                Some(false) => finding(at).mend(place, "negotiate", command, wish),
                _ => finding(at).command(place, "negotiate", command),
            }
        };
        half.map(finding).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::model::Duplex;
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn named_with_host_and_port() {
        let mut room = healthy_room();
        port(&mut room, "beta", "eno1").link.duplex = Some(Duplex::Half);
        let finding = only(&room, "half-duplex");
        assert_eq!(finding.title, "half duplex at 1000 Mb/s");
        assert_eq!(finding.places[0].to_string(), "beta eno1");
    }
}
