//! Lossless priorities that differ between hosts, or from the switch.

use crate::model::{Finding, Place, PortRef, Room, Segment, Severity};

use super::common::{Value, advise_intent, carriers, differ, migration_segments, numbers, odd, switch_side};
use super::{Check, Mending};

const WHY: &str = "A priority is lossless only if every port on the way stops for it. Where one does not, RDMA loses packets under load: throughput falls to a part, \
     and connections may break.";

pub(super) struct PfcDiffers;

impl Check for PfcDiffers {
    fn id(&self) -> &'static str {
        "pfc-differs"
    }

    fn mending(&self) -> Mending {
        Mending::Intent
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        migration_segments(room).iter().filter_map(|segment| self.segment(room, segment)).collect()
    }
}

fn value(at: PortRef<'_>) -> Option<String> {
    Some(numbers(&at.port.dcb.as_ref()?.pfc.as_ref()?.lossless))
}

/// What the switch ports say.
fn switches(room: &Room, ports: &[PortRef<'_>]) -> Vec<Value> {
    let said = ports.iter().filter_map(|at| {
        let switch = switch_side(room, *at);
        Some((Place::host(&switch.name()), numbers(&switch.pfc()?.lossless)))
    });
    said.collect()
}

/// The priorities differ somewhere on this network.
pub(super) fn differs(room: &Room, segment: &Segment<'_>) -> bool {
    let ports = carriers(room, segment);
    let mut values: Vec<Value> = ports.iter().filter_map(|at| Some((at.place(), value(*at)?))).collect();
    values.extend(switches(room, &ports));
    odd(&values).is_some()
}

impl PfcDiffers {
    fn segment(&self, room: &Room, segment: &Segment<'_>) -> Option<Finding> {
        let ports = carriers(room, segment);
        let mut values: Vec<Value> = ports.iter().filter_map(|at| Some((at.place(), value(*at)?))).collect();
        values.extend(switches(room, &ports));
        let whereabouts = format!("on {}", segment.network);
        let finding = differ(self.id(), Severity::Warning, "lossless priorities", &whereabouts, &values)?;
        Some(advise_intent(finding.why(WHY), &ports))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn a_host_without() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f1").dcb.as_mut().unwrap().pfc.as_mut().unwrap().lossless.clear();
        let finding = only(&room, "pfc-differs");
        assert_eq!(finding.title, "lossless priorities none and 3 on 10.1.1.0/24");
        assert_eq!(finding.places.len(), 1);
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
    }

    #[test]
    fn a_switch_port_with_another() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f1").neighbours[0].pfc.as_mut().unwrap().lossless = vec![5];
        let finding = only(&room, "pfc-differs");
        assert_eq!(finding.places[0].to_string(), "leaf1 Ethernet1/2");
    }
}
