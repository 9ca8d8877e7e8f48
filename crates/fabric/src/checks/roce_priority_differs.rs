//! Priorities of RoCE that differ between hosts.

use crate::model::{Finding, PortRef, Room, Segment, Severity};

use super::Check;
use super::common::{Value, carriers, differ, migration_segments, odd, roce_of, roce_priority};

const WHY: &str = "Switches keep a priority lossless, not a protocol. Where one side sends RoCE in another priority, its packets are lost under load, and RDMA \
     takes loss far worse than TCP.";

/// `roce-priority-differs`
pub(super) struct RocePriorityDiffers;

impl Check for RocePriorityDiffers {
    fn id(&self) -> &'static str {
        "roce-priority-differs"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        migration_segments(room).iter().filter_map(|segment| self.segment(room, segment)).collect()
    }
}

/// Priority by the application table, and traffic class of connections that say none.
fn value(at: PortRef<'_>) -> Option<String> {
    let (_, rdma) = roce_of(at)?;
    let priority = roce_priority(at.port).map(|priority| format!("priority {priority}"));
    let class = rdma.default_traffic_class.map(|class| format!("traffic class {class}"));
    // Without a table or a class, RoCE has the priority of everything else.
    let known = at.port.dcb.is_some() || class.is_some();
    let words: Vec<String> = [priority, class].into_iter().flatten().collect();
    known.then(|| if words.is_empty() { "none".to_owned() } else { words.join(", ") })
}

/// The priorities differ somewhere on this network.
pub(super) fn differs(room: &Room, segment: &Segment<'_>) -> bool {
    let ports = carriers(room, segment);
    let values: Vec<Value> = ports.iter().filter_map(|at| Some((at.place(), value(*at)?))).collect();
    odd(&values).is_some()
}

impl RocePriorityDiffers {
    fn segment(&self, room: &Room, segment: &Segment<'_>) -> Option<Finding> {
        let ports = carriers(room, segment);
        let values: Vec<Value> = ports.iter().filter_map(|at| Some((at.place(), value(*at)?))).collect();
        let whereabouts = format!("on {}", segment.network);
        let finding = differ(self.id(), Severity::Warning, "priority of RoCE", &whereabouts, &values)?;
        Some(finding.why(WHY).step(None, "give RoCE the same priority on all hosts and switches, for instance: dcb app add dev PORT dgram-prio 4791:3"))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, host_mut, only, port};

    #[test]
    fn by_the_application_table() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f1").dcb.as_mut().unwrap().applications.clear();
        let finding = only(&room, "roce-priority-differs");
        assert_eq!(finding.title, "priority of RoCE none and priority 3 on 10.1.1.0/24");
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
    }

    #[test]
    fn by_the_default_traffic_class() {
        let mut room = healthy_room();
        host_mut(&mut room, "beta").rdma.as_mut().unwrap()[1].ports[0].default_traffic_class = Some(106);
        let finding = only(&room, "roce-priority-differs");
        assert!(finding.title.contains("traffic class 106"), "{finding:?}");
    }
}
