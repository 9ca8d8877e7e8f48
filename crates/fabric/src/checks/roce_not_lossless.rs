//! RoCE in a priority that is not lossless.

use crate::model::{Finding, PortRef, Room, Severity};

use super::common::{
    carriers, migration_ports, migration_segments, numbers, roce_of, roce_priority, suggest_intent,
};
use super::{Check, Mending};
use super::{pfc_differs, roce_priority_differs};

const WHY: &str = "RoCE takes a lost packet badly: everything behind it is sent again. Under load, and with several hosts that send to one, \
     throughput falls to a part of what TCP would have.";

pub(super) struct RoceNotLossless;

impl Check for RoceNotLossless {
    fn id(&self) -> &'static str {
        "roce-not-lossless"
    }

    fn mending(&self) -> Mending {
        Mending::Intent
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        // What differs on a network has a finding of its own.
        let told: Vec<PortRef<'_>> = migration_segments(room)
            .iter()
            .filter(|segment| {
                pfc_differs::differs(room, segment) || roce_priority_differs::differs(room, segment)
            })
            .flat_map(|segment| carriers(room, segment))
            .collect();
        let mut ports = migration_ports(room);
        ports.retain(|at| !told.iter().any(|one| std::ptr::eq(one.port, at.port)));
        let faulty: Vec<(PortRef<'_>, String)> =
            ports.into_iter().filter_map(|at| Some((at, seen(at)?))).collect();
        self.finding(&faulty).into_iter().collect()
    }
}

/// Priority and lossless priorities, if RoCE is not in one of them.
fn seen(at: PortRef<'_>) -> Option<String> {
    let (_, rdma) = roce_of(at)?;
    let lossless = &at.port.dcb.as_ref()?.pfc.as_ref()?.lossless;
    let stops = at.port.pause.is_some_and(|pause| pause.rx == Some(true) && pause.tx == Some(true));
    let priority = roce_priority(at, rdma)?.named().unwrap_or(0);
    let text = || format!("RoCE in priority {priority}, lossless: {}", numbers(lossless));
    (!lossless.contains(&priority) && !stops).then(text)
}

impl RoceNotLossless {
    fn finding(&self, faulty: &[(PortRef<'_>, String)]) -> Option<Finding> {
        let (_, first) = faulty.first()?;
        let mut finding = Finding::new(self.id(), Severity::Warning, first).why(WHY);
        for (at, seen) in faulty {
            finding = finding.at(at.place()).seen(at.place(), "priorities", seen);
        }
        let ports: Vec<PortRef<'_>> = faulty.iter().map(|(at, _)| *at).collect();
        let named = ports.iter().find_map(|at| roce_priority(*at, roce_of(*at)?.1)?.named());
        Some(suggest_intent(finding, &ports, named.filter(|priority| *priority > 0)))
    }
}

#[cfg(test)]
mod tests {
    use crate::model::{Application, Selector};
    use crate::testing::{healthy_room, only};

    #[test]
    fn nobody_stops_for_it() {
        let mut room = healthy_room();
        for host in &mut room.hosts {
            for port in host.ports.iter_mut().filter(|port| port.name == "ens1f1") {
                port.dcb.as_mut().unwrap().pfc.as_mut().unwrap().lossless = vec![5];
                port.neighbours[0].pfc.as_mut().unwrap().lossless = vec![5];
            }
        }
        let finding = only(&room, "roce-not-lossless");
        assert_eq!(finding.title, "RoCE in priority 3, lossless: 5");
        let places: Vec<String> = finding.places.iter().map(ToString::to_string).collect();
        assert_eq!(places, ["alpha ens1f1", "beta ens1f1", "gamma ens1f1"]);
        let fixes = format!("{:?}", finding.fixes);
        assert!(fixes.contains("linerate qos apply FILE") && fixes.contains("priority = 3"), "{fixes}");
        assert!(!fixes.contains("4791"), "an entry that drivers mlx5_core and ice refuse: {fixes}");
    }

    /// The switch keeps DSCP 26 lossless and the agents do not mark their packets.
    #[test]
    fn a_mark_that_no_packet_has() {
        let mut room = healthy_room();
        for host in &mut room.hosts {
            host.agent.as_mut().unwrap().rdma_type_of_service = Some(0);
            for dcb in host.ports.iter_mut().filter_map(|port| port.dcb.as_mut()) {
                dcb.applications = vec![Application { selector: Selector::Dscp, protocol: 26, priority: 3 }];
            }
        }
        let finding = only(&room, "roce-not-lossless");
        assert_eq!(finding.title, "RoCE in priority 0, lossless: 3");
        for host in &mut room.hosts {
            host.agent.as_mut().unwrap().rdma_type_of_service = Some(104);
        }
        assert_eq!(crate::checks::run_all(&room), Vec::new());
    }

    #[test]
    fn pause_for_everything_is_lossless_too() {
        let mut room = healthy_room();
        for host in &mut room.hosts {
            for port in host.ports.iter_mut().filter(|port| port.name == "ens1f1") {
                port.dcb.as_mut().unwrap().pfc.as_mut().unwrap().lossless.clear();
                port.neighbours[0].pfc = None;
                port.pause = Some(crate::model::Pause {
                    autonegotiation: Some(false),
                    rx: Some(true),
                    tx: Some(true),
                });
            }
        }
        assert_eq!(crate::checks::run_all(&room), Vec::new());
    }
}
