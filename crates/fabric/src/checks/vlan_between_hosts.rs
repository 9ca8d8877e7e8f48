//! Ports of one IP network in different VLANs.

use crate::model::{Finding, PortKind, PortRef, Room, Segment, Severity};

use super::Check;
use super::common::{Value, differ, segments, switch_side};

const WHY: &str = "The addresses say one network, the cables lead into different ones: these hosts cannot reach each other over this link, or only \
     through a router.";

pub(super) struct VlanBetweenHosts;

impl Check for VlanBetweenHosts {
    fn id(&self) -> &'static str {
        "vlan-between-hosts"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        segments(room).iter().filter_map(|segment| self.segment(room, segment)).collect()
    }
}

/// The VLAN that packets of a port are in on the switch, if it is the same for all ports below.
fn vlan(room: &Room, at: PortRef<'_>) -> Option<u16> {
    if at.port.kind == PortKind::Vlan {
        return at.port.vlan;
    }
    let below = room.below(at);
    let mut vlans: Vec<u16> = below.iter().filter_map(|at| switch_side(room, *at).vlan_untagged()).collect();
    vlans.dedup();
    match vlans.as_slice() {
        [one] => Some(*one),
        _ => None,
    }
}

impl VlanBetweenHosts {
    fn segment(&self, room: &Room, segment: &Segment<'_>) -> Option<Finding> {
        let value = |at: PortRef<'_>| Some((at.place(), vlan(room, at)?.to_string()));
        let values: Vec<Value> = segment.members.iter().filter_map(|(at, _)| value(*at)).collect();
        // Numbers are local to a switch where an overlay joins them: a probe that arrived is proof.
        let here = |end: &crate::model::End| segment.network.contains(end.ip);
        let all = room.matrix.probes.iter().filter(|probe| here(&probe.from) && here(&probe.to));
        let mut reached = all.map(|probe| probe.reachable).peekable();
        if reached.peek().is_some() && reached.all(|reached| reached == Some(true)) {
            return None;
        }
        let whereabouts = format!("on the same network {}", segment.network);
        let finding = differ(self.id(), Severity::Error, "VLAN", &whereabouts, &values)?;
        Some(
            finding.why(WHY).step(None, "put the switch ports, or the hosts' VLAN ports, into the same VLAN"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::common::testing::{probe, vlan_room};
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn by_the_number_of_the_port() {
        let mut room = vlan_room();
        port(&mut room, "beta", "ens1f0").neighbours[0].vlans.push(701);
        port(&mut room, "beta", "ens1f0.700").vlan = Some(701);
        let finding = only(&room, "vlan-between-hosts");
        assert_eq!(finding.title, "VLAN 701 and 700 on the same network 10.1.0.0/24");
        assert_eq!(finding.places[0].to_string(), "beta ens1f0.700");
    }

    #[test]
    fn by_what_the_switch_says_of_untagged_frames() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f0").neighbours[0].vlan_untagged = Some(1);
        let finding = only(&room, "vlan-between-hosts");
        assert_eq!(finding.title, "VLAN 1 and 100 on the same network 10.1.0.0/24");
        room.matrix.probes = vec![probe()];
        assert_eq!(crate::checks::run_all(&room), Vec::new(), "packets arrive");
    }
}
