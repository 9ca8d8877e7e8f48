//! Ports of one network with different speeds.

use crate::model::{Finding, Room, Segment, Severity};

use super::Check;
use super::autonegotiation_mismatch::mismatch;
use super::common::{Value, differ, migration_segments, speed};
use super::speed_below_ability::below;
use super::switch_port_slower::slower;

const WHY: &str = "A link is as fast as its slower end. The faster end sends bursts that the switch must hold back or throw away, and migrations \
     to and from the slower host take longer.";

pub(super) struct SpeedBetweenHosts;

impl Check for SpeedBetweenHosts {
    fn id(&self) -> &'static str {
        "speed-between-hosts"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        migration_segments(room).iter().filter_map(|segment| self.segment(room, segment)).collect()
    }
}

impl SpeedBetweenHosts {
    fn segment(&self, room: &Room, segment: &Segment<'_>) -> Option<Finding> {
        let mut values: Vec<Value> = Vec::new();
        for (at, _) in &segment.members {
            let ports = room.below(*at);
            // A port that runs below its ability has a finding of its own, and so has one whose link is down.
            let told = ports.iter().any(|one| {
                let down = one.port.carrier == Some(false);
                down || below(room, *one).is_some()
                    || slower(*one).is_some()
                    || mismatch(room, *one).is_some()
            });
            if let Some(speed) = speed(room, *at).filter(|_| !told) {
                values.push((at.place(), format!("{speed} Mb/s")));
            }
        }
        let whereabouts = format!("on the same network {}", segment.network);
        let finding = differ(self.id(), Severity::Warning, "speed", &whereabouts, &values)?;
        Some(finding.why(WHY).step(
            None,
            "use equal ports on all hosts, or put the slower host's link into a network of its own",
        ))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn a_10g_card_among_25g_cards() {
        let mut room = healthy_room();
        let slow = port(&mut room, "beta", "ens1f1");
        slow.link.speed_mbps = Some(10_000);
        slow.link.supported = vec!["10000baseCR/Full".into()];
        let finding = only(&room, "speed-between-hosts");
        assert_eq!(finding.title, "speed 10000 Mb/s and 25000 Mb/s on the same network 10.1.1.0/24");
        assert_eq!(finding.places.len(), 1);
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
    }
}
