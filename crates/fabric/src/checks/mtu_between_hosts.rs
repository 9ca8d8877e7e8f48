//! Ports on one network with different MTUs.

use crate::model::{Finding, PortRef, Room, Segment, Severity};

use super::common::{segments, set_mtu, switch_side};
use super::mtu_path::passes;
use super::{Check, Mending};

const WHY: &str = "The larger side sends packets that the smaller one, or the switch before it, throws away without a word. Small packets \
     pass, so everything looks well: the migration connects, then crawls or hangs with the first full packet.";

pub(super) struct MtuBetweenHosts;

impl Check for MtuBetweenHosts {
    fn id(&self) -> &'static str {
        "mtu-between-hosts"
    }

    fn mending(&self) -> Mending {
        Mending::Port
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        segments(room).iter().filter_map(|segment| self.segment(room, segment)).collect()
    }
}

impl MtuBetweenHosts {
    fn segment(&self, room: &Room, segment: &Segment<'_>) -> Option<Finding> {
        let known: Vec<(PortRef<'_>, u32)> =
            segment.members.iter().filter_map(|(at, _)| Some((*at, at.port.mtu?))).collect();
        let least = known.iter().map(|(_, mtu)| *mtu).min()?;
        let most = known.iter().map(|(_, mtu)| *mtu).max()?;
        if least == most {
            return None;
        }
        let title = format!("MTU {least} and {most} on the same network {}", segment.network);
        let mut finding = Finding::new(self.id(), Severity::Error, title).why(WHY);
        for (at, mtu) in &known {
            finding = finding.seen(at.place(), "MTU", mtu);
        }
        for (at, _) in known.iter().filter(|(_, mtu)| *mtu == least) {
            finding = finding.at(at.place());
        }
        let says = known.iter().filter_map(|(at, _)| able(room, *at));
        let able = says.chain(passes(room, segment)).min();
        let wanted = able.map_or(most, |able| able.clamp(least, most));
        let what = match wanted == most {
            true => "raise it, if every switch on the way passes it",
            false => "make all alike: not every port, switch or path could have more",
        };
        for (at, _) in known.iter().filter(|(_, mtu)| *mtu != wanted) {
            finding = set_mtu(finding, *at, what, wanted);
        }
        Some(finding)
    }
}

/// The most that adapters and switches at this end can have, as far as they say.
fn able(room: &Room, at: PortRef<'_>) -> Option<u32> {
    let below = room.below(at);
    let says = below.iter().flat_map(|below| [below.port.mtu_max, switch_side(room, *below).mtu()]);
    says.chain([at.port.mtu_max]).flatten().filter(|most| *most > 0).min()
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn named_with_host_port_and_value() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f1").mtu = Some(1500);
        let finding = only(&room, "mtu-between-hosts");
        assert_eq!(finding.title, "MTU 1500 and 9000 on the same network 10.1.1.0/24");
        assert_eq!(finding.places.len(), 1);
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
        assert_eq!(finding.fixes[0].command.as_deref(), Some("ip link set dev ens1f1 mtu 9000"));
    }

    #[test]
    fn where_one_cannot_have_more_the_others_come_down() {
        let mut room = healthy_room();
        let small = port(&mut room, "beta", "ens1f1");
        (small.mtu, small.mtu_max) = (Some(1500), Some(1500));
        let finding = only(&room, "mtu-between-hosts");
        let places: Vec<String> =
            finding.fixes.iter().map(|fix| fix.place.as_ref().unwrap().to_string()).collect();
        assert_eq!(places, ["alpha ens1f1", "gamma ens1f1"]);
        assert_eq!(finding.fixes[0].command.as_deref(), Some("ip link set dev ens1f1 mtu 1500"));
    }
}
