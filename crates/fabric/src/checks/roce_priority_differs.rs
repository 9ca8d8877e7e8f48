//! Priorities of RoCE that differ between hosts.

use crate::model::{Finding, PortRef, Room, Segment, Severity};

use super::common::{
    RocePriority, Value, carriers, differ, migration_segments, odd, roce_of, roce_priority, suggest_intent,
    traffic_class,
};
use super::{Check, Mending};

const WHY: &str = "Switches keep a priority lossless, not a protocol. Where one side sends RoCE in another priority, its packets are lost under load, and RDMA \
     takes loss far worse than TCP.";

pub(super) struct RocePriorityDiffers;

impl Check for RocePriorityDiffers {
    fn id(&self) -> &'static str {
        "roce-priority-differs"
    }

    fn mending(&self) -> Mending {
        Mending::Intent
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        migration_segments(room).iter().filter_map(|segment| self.segment(room, segment)).collect()
    }
}

/// Priority by the application table, and traffic class of the agent's connections.
fn value(at: PortRef<'_>) -> Option<String> {
    let (_, rdma) = roce_of(at)?;
    let (named, class) = (roce_priority(at, rdma), traffic_class(at.host, rdma));
    let priority = named.and_then(RocePriority::named).map(|priority| format!("priority {priority}"));
    let class = class.filter(|class| *class != 0).map(|class| format!("traffic class {class}"));
    // Without an entry and a class, RoCE has the priority of everything else.
    let known = named.is_some() || class.is_some();
    let words: Vec<String> = [priority, class].into_iter().flatten().collect();
    known.then(|| if words.is_empty() { "none".to_owned() } else { words.join(", ") })
}

/// The priority that most ports have.
fn usual(ports: &[PortRef<'_>]) -> Option<u8> {
    let named = |at: &PortRef<'_>| roce_priority(*at, roce_of(*at)?.1)?.named();
    let all: Vec<u8> = ports.iter().filter_map(named).collect();
    let count = |one: &u8| all.iter().filter(|other| *other == one).count();
    // Of equally frequent ones the first.
    all.iter().rev().max_by_key(|one| count(one)).copied()
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
        Some(suggest_intent(finding.why(WHY), &ports, usual(&ports)))
    }
}

#[cfg(test)]
mod tests {
    use crate::checks::run_all;
    use crate::model::{Application, Room, Selector};
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

    /// Drivers mlx5_core and ice refuse an entry for a protocol: what is advised must be possible.
    #[test]
    fn the_advice_is_an_intent_that_the_driver_takes() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f1").dcb.as_mut().unwrap().applications[0].priority = 5;
        let finding = only(&room, "roce-priority-differs");
        let fixes = format!("{:?}", finding.fixes);
        assert!(fixes.contains("linerate qos apply FILE") && !fixes.contains("4791"), "{fixes}");
        assert!(fixes.contains("priority = 3") && fixes.contains("dscp = 26"), "{fixes}");
        assert!(fixes.contains("rdma_type_of_service = 104"), "{fixes}");

        for port in room.hosts.iter_mut().flat_map(|host| &mut host.ports).filter(|port| port.dcb.is_some()) {
            port.driver = Some("ice".into());
        }
        let fixes = only(&room, "roce-priority-differs").fixes;
        assert!(fixes.iter().all(|fix| fix.mend.is_none() && fix.what.contains("driver ice")), "{fixes:#?}");
        assert_eq!(fixes.len(), 3);
    }

    /// Adapters that know marks only.
    fn marked_room() -> Room {
        let mut room = healthy_room();
        for host in &mut room.hosts {
            host.agent.as_mut().unwrap().rdma_type_of_service = Some(104);
            for dcb in host.ports.iter_mut().filter_map(|port| port.dcb.as_mut()) {
                dcb.applications = vec![Application { selector: Selector::Dscp, protocol: 26, priority: 3 }];
            }
        }
        room
    }

    #[test]
    fn marks_of_the_application_table_are_understood() {
        let mut room = marked_room();
        assert_eq!(run_all(&room), Vec::new());
        host_mut(&mut room, "beta").agent.as_mut().unwrap().rdma_type_of_service = Some(96);
        let found = run_all(&room);
        assert!(found.iter().all(|finding| finding.id == "roce-priority-differs"), "{found:#?}");
        assert_eq!(
            found[0].title,
            "priority of RoCE traffic class 96 and priority 3, traffic class 104 on 10.1.0.0/24"
        );
    }

    #[test]
    fn an_unknown_mark_is_never_wrong() {
        let mut room = marked_room();
        for host in &mut room.hosts {
            host.agent.as_mut().unwrap().rdma_type_of_service = None;
        }
        port(&mut room, "beta", "ens1f1").dcb.as_mut().unwrap().applications[0].protocol = 30;
        assert_eq!(run_all(&room), Vec::new());
    }
}
