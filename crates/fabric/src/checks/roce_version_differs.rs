//! Default versions of RoCE that differ.

use crate::model::{Finding, PortRef, Room, Segment, Severity};

use super::common::{Value, advise_intent, carriers, differ, migration_segments, roce_of};
use super::{Check, Mending};

const WHY: &str = "RoCE v1 and v2 do not understand each other: connections that do not name a version fail, and migrations fall back to TCP.";

pub(super) struct RoceVersionDiffers;

impl Check for RoceVersionDiffers {
    fn id(&self) -> &'static str {
        "roce-version-differs"
    }

    fn mending(&self) -> Mending {
        Mending::Intent
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        migration_segments(room).iter().filter_map(|segment| self.segment(room, segment)).collect()
    }
}

/// Default version of a port, as sysfs writes it.
fn value(at: PortRef<'_>) -> Option<String> {
    roce_of(at)?.1.default_roce.clone()
}

impl RoceVersionDiffers {
    fn segment(&self, room: &Room, segment: &Segment<'_>) -> Option<Finding> {
        let ports = carriers(room, segment);
        let values: Vec<Value> = ports.iter().filter_map(|at| Some((at.place(), value(*at)?))).collect();
        let whereabouts = format!("on {}", segment.network);
        let finding = differ(self.id(), Severity::Warning, "default RoCE version", &whereabouts, &values)?;
        let step = "or by hand: cma_roce_mode -d DEVICE -p PORT -m 2 (package rdma-core or the vendor's)";
        Some(advise_intent(finding.why(WHY), &ports).step(None, step))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, host_mut, only};

    #[test]
    fn the_other_version_is_named() {
        let mut room = healthy_room();
        host_mut(&mut room, "beta").rdma.as_mut().unwrap()[1].ports[0].default_roce =
            Some("IB/RoCE v1".into());
        let finding = only(&room, "roce-version-differs");
        assert_eq!(finding.title, "default RoCE version IB/RoCE v1 and RoCE v2 on 10.1.1.0/24");
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
    }
}
