//! Priorities, shares and lossless traffic (DCB).

use crate::model::{Ets, Finding, Location, PortRef, Segment, Selector, Severity, Survey};
use crate::qos::intent::parse;
use crate::qos::plan::port_plan;

use super::common::{
    Value, carriers, differ, finding, join, migration_ports, migration_segments, numbers, odd, switch_side,
    values_of,
};
use super::rdma::{RocePriority, roce_of, roce_priority, traffic_class};

/// What switches and adapters usually have for RoCE.
const USUAL_PRIORITY: u8 = 3;
const USUAL_DSCP: u8 = 26;

/// One file for all hosts, whatever it says.
pub(super) fn advise_intent(mut finding: Finding, ports: &[PortRef<'_>]) -> Finding {
    let mut hosts: Vec<&str> = ports.iter().map(|at| at.host.host.as_str()).collect();
    hosts.dedup();
    for host in hosts {
        finding = finding.by_intent(host, "make all hosts as one file says (docs/qos.md)");
    }
    finding.step(None, "and every switch port of the network: `linerate qos switch FILE` writes its side")
}

/// The same with the file: RoCE lossless in the priority that most of the ports have. A port that cannot have it says
/// why.
fn suggest_intent(finding: Finding, ports: &[PortRef<'_>], priority: Option<u8>) -> Finding {
    let (priority, dscp) = (priority.unwrap_or(USUAL_PRIORITY), mark(ports));
    let mut names: Vec<&str> = ports.iter().map(|at| at.port.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let class = format!("[migration]\npriority = {priority}\nshare = 50\nlossless = true\ndscp = {dscp}");
    let text = format!("ports = {names:?}\nroce = \"v2\"\n{class}");
    let Ok(intent) = parse(&text) else { return advise_intent(finding, ports) };
    let (mut able, mut unable) = (Vec::new(), Vec::new());
    for at in ports {
        match port_plan(at.host, at.port, &intent) {
            Ok(_) => able.push(*at),
            Err(why) => unable.push((at.location(), why.to_string())),
        }
    }
    let mut finding = finding;
    if !able.is_empty() {
        let words = text.replace('\n', "; ");
        let file = format!("a file for it, with the share that migrations shall have: {words}");
        let marked =
            format!("`rdma_type_of_service = {}` for the agents, so that their RDMA has the mark", dscp << 2);
        finding = advise_intent(finding.step(None, file), &able).step(None, marked);
    }
    unable.into_iter().fold(finding, |finding, (location, why)| finding.step(Some(location), why))
}

/// The mark that RoCE has already, or that some port gives a priority to.
fn mark(ports: &[PortRef<'_>]) -> u8 {
    let own = |at: &PortRef<'_>| {
        let class = traffic_class(at.host, roce_of(*at)?.1)?;
        Some(class >> 2).filter(|dscp| *dscp > 0)
    };
    let marked = |at: &PortRef<'_>| {
        let table = &at.port.dcb.as_ref()?.applications;
        let one =
            table.iter().find(|one| one.selector == Selector::Dscp && (1..64).contains(&one.protocol))?;
        u8::try_from(one.protocol).ok()
    };
    ports.iter().find_map(own).or_else(|| ports.iter().find_map(marked)).unwrap_or(USUAL_DSCP)
}

const PFC_DIFFERS_WHY: &str = "A priority is lossless only if every port on the way stops for it. Where one \
    does not, RDMA loses packets under load: throughput falls to a part, and connections may break.";

/// Lossless priorities that differ between hosts, or from the switch.
pub(super) fn pfc_differs(survey: &Survey) -> Vec<Finding> {
    migration_segments(survey).iter().filter_map(|segment| pfc_differs_finding(survey, segment)).collect()
}

fn pfc_differs_finding(survey: &Survey, segment: &Segment<'_>) -> Option<Finding> {
    let ports = carriers(survey, segment);
    let mut values = values_of(&ports, lossless_text);
    values.extend(lossless_of_switches(survey, &ports));
    let whereabouts = format!("on {}", segment.network);
    let finding = differ(Severity::Warning, "lossless priorities", &whereabouts, &values)?;
    Some(advise_intent(finding.why(PFC_DIFFERS_WHY), &ports))
}

fn lossless_text(at: PortRef<'_>) -> Option<String> {
    Some(numbers(&at.port.dcb.as_ref()?.pfc.as_ref()?.lossless))
}

/// What the switch ports say.
fn lossless_of_switches(survey: &Survey, ports: &[PortRef<'_>]) -> Vec<Value> {
    let reported = ports.iter().filter_map(|at| {
        let switch = switch_side(survey, *at);
        Some((Location::host(&switch.name()), numbers(&switch.pfc()?.lossless)))
    });
    reported.collect()
}

/// The priorities differ somewhere on this network.
fn lossless_differ(survey: &Survey, segment: &Segment<'_>) -> bool {
    let ports = carriers(survey, segment);
    let mut values = values_of(&ports, lossless_text);
    values.extend(lossless_of_switches(survey, &ports));
    odd(&values).is_some()
}

const ETS_DIFFERS_WHY: &str = "Each side gives traffic classes other shares: under load, migrations get less \
    in one direction than was planned, or take from storage.";

/// Bandwidth shares that differ between hosts, or from the switch.
pub(super) fn ets_differs(survey: &Survey) -> Vec<Finding> {
    migration_segments(survey).iter().filter_map(|segment| ets_differs_finding(survey, segment)).collect()
}

fn ets_differs_finding(survey: &Survey, segment: &Segment<'_>) -> Option<Finding> {
    let ports = carriers(survey, segment);
    let mut values = values_of(&ports, port_ets);
    values.extend(ets_of_switches(survey, &ports));
    let whereabouts = format!("on {}", segment.network);
    let finding = differ(Severity::Warning, "shares (ETS)", &whereabouts, &values)?;
    Some(advise_intent(finding.why(ETS_DIFFERS_WHY), &ports))
}

/// Shares of the classes and which priority is in which.
fn ets_text(ets: &Ets) -> Option<String> {
    let known = !ets.priority_class.is_empty() || !ets.share_percent.is_empty();
    let (classes, shares) = (numbers(&ets.priority_class), numbers(&ets.share_percent));
    known.then(|| {
        format!(
            "{shares} %, classes of priorities {classes}, {}",
            join(ets.selection.iter().map(String::as_str), "/")
        )
    })
}

fn port_ets(at: PortRef<'_>) -> Option<String> {
    ets_text(at.port.dcb.as_ref()?.ets.as_ref()?)
}

/// What the switch ports say.
fn ets_of_switches(survey: &Survey, ports: &[PortRef<'_>]) -> Vec<Value> {
    let reported = ports.iter().filter_map(|at| {
        let switch = switch_side(survey, *at);
        Some((Location::host(&switch.name()), ets_text(switch.ets()?)?))
    });
    reported.collect()
}

const DCB_WILLING_WHY: &str = "A willing side takes over whatever the switch says, the other keeps its own: \
    the same switch gives two hosts different lossless priorities and shares.";

/// Some hosts take DCB settings from the switch, others do not.
pub(super) fn dcb_willing(survey: &Survey) -> Vec<Finding> {
    migration_segments(survey).iter().filter_map(|segment| dcb_willing_finding(survey, segment)).collect()
}

fn dcb_willing_finding(survey: &Survey, segment: &Segment<'_>) -> Option<Finding> {
    let ports = carriers(survey, segment);
    let values = values_of(&ports, willing_text);
    let whereabouts = format!("on {}", segment.network);
    let finding = differ(Severity::Warning, "takes settings from the switch:", &whereabouts, &values)?;
    Some(finding.why(DCB_WILLING_WHY).step(
        None,
        "set all hosts alike, for instance not willing: dcb pfc \
         set dev PORT willing off; dcb ets set dev PORT willing off",
    ))
}

fn willing_text(at: PortRef<'_>) -> Option<String> {
    let dcb = at.port.dcb.as_ref()?;
    let pfc = dcb.pfc.as_ref().and_then(|pfc| pfc.willing).map(|willing| ("PFC", willing));
    let ets = dcb.ets.as_ref().and_then(|ets| ets.willing).map(|willing| ("ETS", willing));
    let word = |(what, willing)| format!("{what} {}", if willing { "yes" } else { "no" });
    let words: Vec<String> = [pfc, ets].into_iter().flatten().map(word).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

const DCBX_DIFFERS_WHY: &str = "One side takes its settings from the network and another from a file, or \
    they speak versions that do not understand each other: what was set once changes on some hosts when a \
    switch changes.";

/// DCBX in different modes.
pub(super) fn dcbx_differs(survey: &Survey) -> Vec<Finding> {
    migration_segments(survey).iter().filter_map(|segment| dcbx_differs_finding(survey, segment)).collect()
}

fn dcbx_differs_finding(survey: &Survey, segment: &Segment<'_>) -> Option<Finding> {
    let ports = carriers(survey, segment);
    let values = values_of(&ports, dcbx_text);
    let whereabouts = format!("on {}", segment.network);
    let finding = differ(Severity::Warning, "DCBX", &whereabouts, &values)?;
    Some(
        finding
            .why(DCBX_DIFFERS_WHY)
            .step(None, "choose one mode for all hosts, for instance: dcb dcbx set dev PORT host ieee"),
    )
}

fn dcbx_text(at: PortRef<'_>) -> Option<String> {
    let dcbx = at.port.dcb.as_ref()?.dcbx?;
    let modes = [
        (dcbx.host, "by the host"),
        (dcbx.firmware, "by the firmware"),
        (dcbx.ieee, "IEEE"),
        (dcbx.cee, "CEE"),
        (dcbx.fixed, "nothing exchanged"),
    ];
    let words: Vec<&str> = modes.into_iter().filter(|(on, _)| *on).map(|(_, word)| word).collect();
    Some(if words.is_empty() { "off".to_owned() } else { words.join(", ") })
}

const ROCE_PRIORITY_DIFFERS_WHY: &str = "Switches keep a priority lossless, not a protocol. Where one side \
    sends RoCE in another priority, its packets are lost under load, and RDMA takes loss far worse than \
    TCP.";

/// Priorities of RoCE that differ between hosts.
pub(super) fn roce_priority_differs(survey: &Survey) -> Vec<Finding> {
    migration_segments(survey)
        .iter()
        .filter_map(|segment| roce_priority_differs_finding(survey, segment))
        .collect()
}

fn roce_priority_differs_finding(survey: &Survey, segment: &Segment<'_>) -> Option<Finding> {
    let ports = carriers(survey, segment);
    let values = values_of(&ports, roce_priority_text);
    let whereabouts = format!("on {}", segment.network);
    let finding = differ(Severity::Warning, "priority of RoCE", &whereabouts, &values)?;
    Some(suggest_intent(finding.why(ROCE_PRIORITY_DIFFERS_WHY), &ports, usual_priority(&ports)))
}

/// Priority by the application table, and traffic class of the agent's connections.
fn roce_priority_text(at: PortRef<'_>) -> Option<String> {
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
fn usual_priority(ports: &[PortRef<'_>]) -> Option<u8> {
    let named = |at: &PortRef<'_>| roce_priority(*at, roce_of(*at)?.1)?.named();
    let all: Vec<u8> = ports.iter().filter_map(named).collect();
    let count = |one: &u8| all.iter().filter(|other| *other == one).count();
    // Of equally frequent ones the first.
    all.iter().rev().max_by_key(|one| count(one)).copied()
}

/// The priorities differ somewhere on this network.
fn roce_priorities_differ(survey: &Survey, segment: &Segment<'_>) -> bool {
    let ports = carriers(survey, segment);
    let values = values_of(&ports, roce_priority_text);
    odd(&values).is_some()
}

const ROCE_NOT_LOSSLESS_WHY: &str = "RoCE takes a lost packet badly: everything behind it is sent again. \
    Under load, and with several hosts that send to one, throughput falls to a part of what TCP would \
    have.";

/// RoCE in a priority that is not lossless.
pub(super) fn roce_not_lossless(survey: &Survey) -> Vec<Finding> {
    // What differs on a network has a finding of its own.
    let with_finding: Vec<PortRef<'_>> = migration_segments(survey)
        .iter()
        .filter(|segment| lossless_differ(survey, segment) || roce_priorities_differ(survey, segment))
        .flat_map(|segment| carriers(survey, segment))
        .collect();
    let mut ports = migration_ports(survey);
    ports.retain(|at| !with_finding.iter().any(|one| std::ptr::eq(one.port, at.port)));
    let faulty: Vec<(PortRef<'_>, String)> =
        ports.into_iter().filter_map(|at| Some((at, not_lossless_text(at)?))).collect();
    roce_not_lossless_finding(&faulty).into_iter().collect()
}

fn roce_not_lossless_finding(faulty: &[(PortRef<'_>, String)]) -> Option<Finding> {
    let (_, first) = faulty.first()?;
    let mut finding = finding(Severity::Warning, first).why(ROCE_NOT_LOSSLESS_WHY);
    for (at, seen) in faulty {
        finding = finding.at(at.location()).seen(at.location(), "priorities", seen);
    }
    let ports: Vec<PortRef<'_>> = faulty.iter().map(|(at, _)| *at).collect();
    let named = ports.iter().find_map(|at| roce_priority(*at, roce_of(*at)?.1)?.named());
    Some(suggest_intent(finding, &ports, named.filter(|priority| *priority > 0)))
}

/// Priority and lossless priorities, if RoCE is not in one of them.
fn not_lossless_text(at: PortRef<'_>) -> Option<String> {
    let (_, rdma) = roce_of(at)?;
    let lossless = &at.port.dcb.as_ref()?.pfc.as_ref()?.lossless;
    let stops = at.port.pause.is_some_and(|pause| pause.rx == Some(true) && pause.tx == Some(true));
    let priority = roce_priority(at, rdma)?.named().unwrap_or(0);
    let text = || format!("RoCE in priority {priority}, lossless: {}", numbers(lossless));
    (!lossless.contains(&priority) && !stops).then(text)
}

#[cfg(test)]
mod tests {
    mod pfc_differs {
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn a_host_without() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f1").dcb.as_mut().unwrap().pfc.as_mut().unwrap().lossless.clear();
            let finding = only(&survey, "pfc-differs");
            assert_eq!(finding.title, "lossless priorities none and 3 on 10.1.1.0/24");
            assert_eq!(finding.locations.len(), 1);
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
        }

        #[test]
        fn a_switch_port_with_another() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f1").neighbours[0].pfc.as_mut().unwrap().lossless = vec![5];
            let finding = only(&survey, "pfc-differs");
            assert_eq!(finding.locations[0].to_string(), "leaf1 Ethernet1/2");
        }
    }

    mod ets_differs {
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn other_shares_on_one_host() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f1").dcb.as_mut().unwrap().ets.as_mut().unwrap().share_percent =
                vec![90, 10, 0, 0, 0, 0, 0, 0];
            let finding = only(&survey, "ets-differs");
            assert!(
                finding.title.contains("90, 10, 0") && finding.title.contains("50, 50, 0"),
                "{finding:?}"
            );
            assert_eq!(finding.locations.len(), 1);
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
        }

        #[test]
        fn other_shares_on_the_switch() {
            let mut survey = healthy_survey();
            let faulty = port(&mut survey, "beta", "ens1f1");
            let mut ets = faulty.dcb.as_ref().unwrap().ets.clone().unwrap();
            ets.share_percent = vec![100, 0, 0, 0, 0, 0, 0, 0];
            faulty.neighbours[0].ets = Some(ets);
            let finding = only(&survey, "ets-differs");
            assert_eq!(finding.locations[0].to_string(), "leaf1 Ethernet1/2");
        }
    }

    mod dcb_willing {
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn dcb_is_willing_on_one_port_only() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f1").dcb.as_mut().unwrap().pfc.as_mut().unwrap().willing =
                Some(true);
            let finding = only(&survey, "dcb-willing");
            assert_eq!(
                finding.title,
                "takes settings from the switch: PFC yes, ETS no and PFC no, ETS no on 10.1.1.0/24"
            );
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
        }
    }

    mod dcbx_differs {
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn the_firmware_decides_on_one_host() {
            let mut survey = healthy_survey();
            let dcbx = port(&mut survey, "beta", "ens1f1").dcb.as_mut().unwrap().dcbx.as_mut().unwrap();
            (dcbx.host, dcbx.firmware) = (false, true);
            let finding = only(&survey, "dcbx-differs");
            assert_eq!(finding.title, "DCBX by the firmware, IEEE and by the host, IEEE on 10.1.1.0/24");
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
        }
    }

    mod roce_priority_differs {
        use crate::checks::run_all;
        use crate::model::{Application, Selector, Survey};
        use crate::testing::{healthy_survey, host_mut, only, port};

        #[test]
        fn by_the_application_table() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f1").dcb.as_mut().unwrap().applications.clear();
            let finding = only(&survey, "roce-priority-differs");
            assert_eq!(finding.title, "priority of RoCE none and priority 3 on 10.1.1.0/24");
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
        }

        #[test]
        fn by_the_default_traffic_class() {
            let mut survey = healthy_survey();
            host_mut(&mut survey, "beta").rdma.as_mut().unwrap()[1].ports[0].default_traffic_class =
                Some(106);
            let finding = only(&survey, "roce-priority-differs");
            assert!(finding.title.contains("traffic class 106"), "{finding:?}");
        }

        /// Drivers mlx5_core and ice refuse an entry for a protocol: what is advised must be possible.
        #[test]
        fn the_advice_is_an_intent_that_the_driver_takes() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f1").dcb.as_mut().unwrap().applications[0].priority = 5;
            let finding = only(&survey, "roce-priority-differs");
            let fixes = format!("{:?}", finding.fixes);
            assert!(fixes.contains("linerate qos apply FILE") && !fixes.contains("4791"), "{fixes}");
            assert!(fixes.contains("priority = 3") && fixes.contains("dscp = 26"), "{fixes}");
            assert!(fixes.contains("rdma_type_of_service = 104"), "{fixes}");

            for port in
                survey.hosts.iter_mut().flat_map(|host| &mut host.ports).filter(|port| port.dcb.is_some())
            {
                port.driver = Some("ice".into());
            }
            let fixes = only(&survey, "roce-priority-differs").fixes;
            assert!(
                fixes.iter().all(|fix| fix.auto_fix.is_none() && fix.what.contains("driver ice")),
                "{fixes:#?}"
            );
            assert_eq!(fixes.len(), 3);
        }

        /// Adapters that know marks only.
        fn marked_survey() -> Survey {
            let mut survey = healthy_survey();
            for host in &mut survey.hosts {
                host.agent.as_mut().unwrap().rdma_type_of_service = Some(104);
                for dcb in host.ports.iter_mut().filter_map(|port| port.dcb.as_mut()) {
                    dcb.applications =
                        vec![Application { selector: Selector::Dscp, protocol: 26, priority: 3 }];
                }
            }
            survey
        }

        #[test]
        fn marks_of_the_application_table_are_parsed() {
            let mut survey = marked_survey();
            assert_eq!(run_all(&survey), Vec::new());
            host_mut(&mut survey, "beta").agent.as_mut().unwrap().rdma_type_of_service = Some(96);
            let found = run_all(&survey);
            assert!(found.iter().all(|finding| finding.id == "roce-priority-differs"), "{found:#?}");
            assert_eq!(
                found[0].title,
                "priority of RoCE traffic class 96 and priority 3, traffic class 104 on 10.1.0.0/24"
            );
        }

        #[test]
        fn an_unknown_mark_is_never_wrong() {
            let mut survey = marked_survey();
            for host in &mut survey.hosts {
                host.agent.as_mut().unwrap().rdma_type_of_service = None;
            }
            port(&mut survey, "beta", "ens1f1").dcb.as_mut().unwrap().applications[0].protocol = 30;
            assert_eq!(run_all(&survey), Vec::new());
        }
    }

    mod roce_not_lossless {
        use crate::model::{Application, Selector};
        use crate::testing::{healthy_survey, only};

        #[test]
        fn roce_in_a_priority_that_is_not_lossless() {
            let mut survey = healthy_survey();
            for host in &mut survey.hosts {
                for port in host.ports.iter_mut().filter(|port| port.name == "ens1f1") {
                    port.dcb.as_mut().unwrap().pfc.as_mut().unwrap().lossless = vec![5];
                    port.neighbours[0].pfc.as_mut().unwrap().lossless = vec![5];
                }
            }
            let finding = only(&survey, "roce-not-lossless");
            assert_eq!(finding.title, "RoCE in priority 3, lossless: 5");
            let locations: Vec<String> = finding.locations.iter().map(ToString::to_string).collect();
            assert_eq!(locations, ["alpha ens1f1", "beta ens1f1", "gamma ens1f1"]);
            let fixes = format!("{:?}", finding.fixes);
            assert!(fixes.contains("linerate qos apply FILE") && fixes.contains("priority = 3"), "{fixes}");
            assert!(!fixes.contains("4791"), "an entry that drivers mlx5_core and ice refuse: {fixes}");
        }

        /// The switch keeps DSCP 26 lossless and the agents do not mark their packets.
        #[test]
        fn a_mark_that_no_packet_has() {
            let mut survey = healthy_survey();
            for host in &mut survey.hosts {
                host.agent.as_mut().unwrap().rdma_type_of_service = Some(0);
                for dcb in host.ports.iter_mut().filter_map(|port| port.dcb.as_mut()) {
                    dcb.applications =
                        vec![Application { selector: Selector::Dscp, protocol: 26, priority: 3 }];
                }
            }
            let finding = only(&survey, "roce-not-lossless");
            assert_eq!(finding.title, "RoCE in priority 0, lossless: 3");
            for host in &mut survey.hosts {
                host.agent.as_mut().unwrap().rdma_type_of_service = Some(104);
            }
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
        }

        #[test]
        fn pause_for_everything_is_lossless_too() {
            let mut survey = healthy_survey();
            for host in &mut survey.hosts {
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
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
        }
    }
}
