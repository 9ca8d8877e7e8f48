//! Plans against the healthy survey: silent where it matches, and one difference is named as that and nothing else.

use super::super::intent::parse;
use super::super::intent::tests::{FULL, HEALTHY, UNMARKED};
use super::*;
use crate::link::PortStep;
use crate::model::{LinkLayer, Pause, PortKind, Survey};
use crate::testing::{self, host_mut, port};

/// The healthy survey, whose adapters (mlx5) classify migrations by DSCP: they know nothing else.
fn healthy_survey() -> Survey {
    let mut survey = testing::healthy_survey();
    for dcb in survey.hosts.iter_mut().flat_map(|host| &mut host.ports).filter_map(|port| port.dcb.as_mut()) {
        dcb.applications = vec![Application { selector: Selector::Dscp, protocol: 26, priority: 3 }];
    }
    survey
}

fn of(survey: &Survey, text: &str) -> HostPlan {
    host(&survey.hosts[0], &parse(text).unwrap())
}

fn dcb_mut(survey: &mut Survey) -> &mut Dcb {
    port(survey, "alpha", "ens1f1").dcb.as_mut().unwrap()
}

fn steps(plan: &Plan) -> Vec<String> {
    plan.steps.iter().map(|PortStep { what, from, to }| format!("{what}: {from} → {to}")).collect()
}

/// The plan of the one port that differs.
fn only(survey: &Survey, text: &str) -> Plan {
    let plan = of(survey, text);
    assert_eq!(plan.ports[0].plan, Plan::default(), "the other port is as it was");
    assert_eq!(plan.ports[1].problem, None);
    plan.ports[1].plan.clone()
}

/// Why the port cannot have it.
fn problem(survey: &Survey) -> String {
    let plan = of(survey, HEALTHY);
    assert_eq!(plan.ports[0].problem, None);
    assert_eq!(plan.ports[1].plan, Plan::default(), "nothing changes where something cannot be");
    plan.ports[1].problem.clone().expect("a problem")
}

#[test]
fn a_survey_that_matches_is_silent() {
    let survey = healthy_survey();
    for inventory in &survey.hosts {
        let plan = host(inventory, &parse(HEALTHY).unwrap());
        assert!(plan.matches(), "{plan:#?}");
        assert!(plan.ports.iter().all(|port| port.plan == Plan::default()), "{plan:#?}");
    }
}

#[test]
fn numbers_of_classes_do_not_matter() {
    let mut survey = healthy_survey();
    let ets = dcb_mut(&mut survey).ets.as_mut().unwrap();
    ets.priority_class = vec![0, 0, 0, 5, 0, 0, 0, 0];
    ets.share_percent = vec![50, 0, 0, 0, 0, 50, 0, 0];
    ets.selection[5] = "ets".into();
    assert!(of(&survey, HEALTHY).matches());
}

#[test]
fn another_lossless_priority() {
    let mut survey = healthy_survey();
    dcb_mut(&mut survey).pfc.as_mut().unwrap().lossless = vec![5];
    let plan = only(&survey, HEALTHY);
    assert_eq!(steps(&plan), ["lossless priorities: 5 → 3"]);
    let (set, undo) = (plan.settings.dcb.unwrap(), plan.undo.dcb.unwrap());
    assert_eq!(set, DcbSettings { lossless: Some(vec![3]), ..DcbSettings::default() });
    assert_eq!(undo, DcbSettings { lossless: Some(vec![5]), ..DcbSettings::default() });
}

#[test]
fn a_changed_share_is_planned() {
    let mut survey = healthy_survey();
    let before = dcb_mut(&mut survey).ets.clone().unwrap();
    let ets = dcb_mut(&mut survey).ets.as_mut().unwrap();
    ets.share_percent = vec![70, 30, 0, 0, 0, 0, 0, 0];
    let plan = only(&survey, HEALTHY);
    assert_eq!(steps(&plan), ["shares: 0-2,4-7 70 %; 3 30 % → 0-2,4-7 50 %; 3 50 %"]);
    assert_eq!(plan.settings.dcb.unwrap().ets, Some(before));
    assert_eq!(plan.undo.dcb.unwrap().ets.unwrap().share_percent, [70, 30, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn strict_classes_are_no_shares() {
    let mut survey = healthy_survey();
    dcb_mut(&mut survey).ets.as_mut().unwrap().selection[1] = "strict".into();
    assert_eq!(steps(&only(&survey, HEALTHY)), ["shares: 0-2,4-7 50 %; 3 strict → 0-2,4-7 50 %; 3 50 %"]);
}

#[test]
fn another_application_priority() {
    let mut survey = healthy_survey();
    dcb_mut(&mut survey).applications[0].priority = 4;
    let plan = only(&survey, HEALTHY);
    assert_eq!(steps(&plan), ["priority of DSCP 26: 4 → 3"]);
    let (set, undo) = (plan.settings.dcb.unwrap(), plan.undo.dcb.unwrap());
    assert_eq!((set.remove[0].priority, set.add[0].priority), (4, 3));
    assert_eq!((undo.remove, undo.add), (set.add, set.remove));
}

#[test]
fn a_second_priority_for_the_same_traffic_goes() {
    let mut survey = healthy_survey();
    let second = Application { priority: 6, ..dcb_mut(&mut survey).applications[0] };
    dcb_mut(&mut survey).applications.push(second);
    let plan = only(&survey, HEALTHY);
    assert_eq!(steps(&plan), ["priority of DSCP 26: 3,6 → 3"]);
    assert_eq!(plan.settings.dcb.unwrap().remove, [second]);
}

#[test]
fn a_contradicting_entry_for_the_protocol_is_removed() {
    let mut survey = healthy_survey();
    let entry = |priority| Application { selector: Selector::Datagram, protocol: 4791, priority };
    dcb_mut(&mut survey).applications.push(entry(3));
    assert!(of(&survey, HEALTHY).matches(), "one that says the same may stay");
    dcb_mut(&mut survey).applications.push(entry(5));
    let plan = only(&survey, HEALTHY);
    assert_eq!(steps(&plan), ["priority of RoCE v2 by its port: 5 → none"]);
    assert_eq!(plan.settings.dcb.unwrap().remove, [entry(5)]);
    assert_eq!(plan.undo.dcb.unwrap().add, [entry(5)]);
}

#[test]
fn willing_and_nothing_else() {
    let mut survey = healthy_survey();
    dcb_mut(&mut survey).ets.as_mut().unwrap().willing = Some(true);
    let plan = only(&survey, HEALTHY);
    assert_eq!(steps(&plan), ["takes shares from the switch: yes → no"]);
    assert_eq!(plan.settings.dcb.unwrap().ets.unwrap().willing, Some(false));
}

#[test]
fn an_adapter_that_decides_by_itself_hands_over() {
    let mut survey = healthy_survey();
    dcb_mut(&mut survey).dcbx = Some(Dcbx { ieee: true, cee: true, ..Dcbx::default() });
    let plan = only(&survey, HEALTHY);
    assert_eq!(steps(&plan), ["DCBX: by the adapter → by the host, IEEE version"]);
    assert!(plan.settings.dcb.unwrap().dcbx.unwrap().host);
}

#[test]
fn pause_frames_give_way_to_lossless_priorities() {
    let mut survey = healthy_survey();
    port(&mut survey, "alpha", "ens1f1").pause =
        Some(Pause { autonegotiation: Some(false), rx: Some(true), tx: Some(true) });
    let plan = only(&survey, HEALTHY);
    assert_eq!(steps(&plan), ["pause: receive on, send on → receive off, send off"]);
    assert!(plan.settings.pause.is_some() && plan.settings.dcb.is_none());
}

#[test]
fn roce_default_of_connections() {
    let mut survey = healthy_survey();
    host_mut(&mut survey, "alpha").rdma.as_mut().unwrap()[1].ports[0].default_roce =
        Some("IB/RoCE v1".into());
    let plan = only(&survey, HEALTHY);
    assert_eq!(steps(&plan), ["RoCE of connections that set none: IB/RoCE v1 → RoCE v2"]);
    let default = plan.settings.dcb.unwrap().roce.remove(0);
    assert_eq!((default.device.as_str(), default.traffic_class), ("mlx5_1", None));
}

/// On an adapter whose driver takes more than DSCP: by the protocol, and by the kernel's name of the version.
#[test]
fn roce_without_a_dscp_gets_the_default() {
    let mut survey = healthy_survey();
    for name in ["ens1f0", "ens1f1"] {
        let port = port(&mut survey, "alpha", name);
        port.driver = Some("bnxt_en".into());
        port.dcb.as_mut().unwrap().applications.clear();
    }
    let plan = of(&survey, UNMARKED);
    assert_eq!(steps(&plan.ports[1].plan), ["priority of RoCE v2: none → 3"]);
    let plan = of(&survey, &UNMARKED.replace("v2", "v1"));
    assert_eq!(
        steps(&plan.ports[1].plan),
        ["priority of RoCE v1: none → 3", "RoCE of connections that set none: RoCE v2 → IB/RoCE v1"]
    );
    for rdma in host_mut(&mut survey, "alpha").rdma.as_mut().unwrap() {
        rdma.ports[0].default_roce = Some("IB/RoCE v1".into());
    }
    let plan = of(&survey, &UNMARKED.replace("v2", "v1"));
    assert_eq!(steps(&plan.ports[1].plan), ["priority of RoCE v1: none → 3"]);
}

#[test]
fn drivers_that_take_no_such_mark() {
    let mut survey = healthy_survey();
    for text in [UNMARKED, &UNMARKED.replace("v2", "v1")] {
        let plan = of(&survey, text);
        let message = plan.ports[1].problem.as_ref().expect(text);
        assert!(
            message.contains("mlx5_core takes a priority by DSCP only, and [migration] has none"),
            "{message}"
        );
        assert_eq!(plan.ports[1].plan, Plan::default());
    }
    // Whatever speaks DCBX: to free it from the firmware would not help.
    port(&mut survey, "alpha", "ens1f1").driver = Some("ice".into());
    assert!(problem(&survey).contains("driver ice takes a priority by DSCP only"));
    dcb_mut(&mut survey).dcbx = Some(Dcbx { firmware: true, ieee: true, ..Dcbx::default() });
    assert!(problem(&survey).contains("driver ice takes a priority by DSCP only"));
}

#[test]
fn numbers_that_mean_nothing_are_shown_as_they_are() {
    let mut survey = healthy_survey();
    dcb_mut(&mut survey).pfc.as_mut().unwrap().lossless = vec![255, 254, 255];
    assert_eq!(steps(&only(&survey, HEALTHY)), ["lossless priorities: 254-255,255 → 3"]);
}

#[test]
fn what_the_switch_reports_is_a_warning() {
    let mut survey = healthy_survey();
    port(&mut survey, "alpha", "ens1f1").neighbours[0].pfc.as_mut().unwrap().lossless = vec![4];
    let plan = only(&survey, HEALTHY);
    assert_eq!(plan.steps, []);
    assert_eq!(
        plan.warnings,
        ["leaf1 reports that lossless priorities of its port are 4: `linerate qos switch` writes its side"]
    );
}

#[test]
fn a_full_intent_on_ports_that_have_another() {
    let plan = of(&healthy_survey(), FULL);
    for port in &plan.ports {
        assert_eq!(
            steps(&port.plan),
            ["shares: 0-2,4-7 50 %; 3 50 % → 0-2,5-7 20 %; 3 50 %; 4 30 %", "priority of DSCP 34: none → 4",]
        );
        let ets = port.plan.settings.dcb.clone().unwrap().ets.unwrap();
        assert_eq!(ets.share_percent, [20, 50, 30, 0, 0, 0, 0, 0]);
        assert_eq!(ets.priority_class, [0, 0, 0, 1, 2, 0, 0, 0]);
    }
    // Half of 2x25 Gb/s; DSCP 26 in the upper six bits.
    assert_eq!((plan.migration_bytes_per_s, plan.type_of_service), (Some(3_125_000_000), Some(104)));
}

/// What was planned, done: the survey then matches.
#[test]
fn a_plan_that_was_done_leaves_nothing() {
    let mut survey = healthy_survey();
    let intent = parse(FULL).unwrap();
    for name in ["ens1f0", "ens1f1"] {
        let inventory = survey.hosts[0].clone();
        let set =
            port_plan(&inventory, inventory.port(name).unwrap(), &intent).unwrap().settings.dcb.unwrap();
        let dcb = port(&mut survey, "alpha", name).dcb.as_mut().unwrap();
        dcb.ets = set.ets;
        dcb.applications.extend(set.add);
    }
    assert!(host(&survey.hosts[0], &intent).matches());
}

#[test]
fn a_port_without_dcb() {
    let mut survey = healthy_survey();
    port(&mut survey, "alpha", "ens1f1").dcb = None;
    let message = problem(&survey);
    assert!(message.starts_with("ens1f1 of alpha (driver mlx5_core) has no DCB"), "{message}");
    port(&mut survey, "alpha", "ens1f1").kind = PortKind::Veth;
    assert!(problem(&survey).contains("(a veth)"));
    // A bond of that name, with two members.
    port(&mut survey, "alpha", "ens1f1").kind = PortKind::Bond;
    port(&mut survey, "alpha", "eno1").master = Some("ens1f1".into());
    let message = problem(&survey);
    assert!(message.contains("put the ports below it into `ports` instead, eno1"), "{message}");
}

#[test]
fn firmware_that_speaks_dcbx() {
    let mut survey = healthy_survey();
    dcb_mut(&mut survey).dcbx = Some(Dcbx { firmware: true, ieee: true, ..Dcbx::default() });
    for (driver, command) in [
        ("mlx5_core", "on alpha: mstconfig -d 0000:3b:00.1 set LLDP_NB_DCBX_P1=FALSE"),
        ("mlx5_core", "(and the same with _P2 on an adapter with two ports), then restart"),
        ("i40e", "on alpha: ethtool --set-priv-flags ens1f1 disable-fw-lldp on"),
        ("bnxt_en", "the tool of the adapter's maker"),
    ] {
        port(&mut survey, "alpha", "ens1f1").driver = Some(driver.into());
        let message = problem(&survey);
        assert!(message.contains(command), "{message}");
    }
}

#[test]
fn adapters_that_have_too_little() {
    let mut survey = healthy_survey();
    dcb_mut(&mut survey).ets.as_mut().unwrap().classes_max = Some(1);
    assert!(problem(&survey).contains("has 1 traffic classes, the intent needs 2"));
    let mut survey = healthy_survey();
    dcb_mut(&mut survey).pfc.as_mut().unwrap().lossless_max = Some(0);
    assert!(problem(&survey).contains("can have 0 lossless priorities, the intent has 1"));
    let mut survey = healthy_survey();
    dcb_mut(&mut survey).pfc = None;
    assert!(problem(&survey).contains("reports nothing of its lossless priorities (PFC)"));
    let mut survey = healthy_survey();
    dcb_mut(&mut survey).ets.as_mut().unwrap().share_percent.pop();
    assert!(problem(&survey).contains("reports nothing of its shares (ETS)"));
}

#[test]
fn adapters_without_roce() {
    let mut survey = healthy_survey();
    host_mut(&mut survey, "alpha").rdma.as_mut().unwrap()[1].node_type = Some("RNIC".into());
    assert!(problem(&survey).contains("devlink dev param set pci/0000:3b:00.1 name enable_roce value true"));
    host_mut(&mut survey, "alpha").rdma.as_mut().unwrap().pop();
    assert!(problem(&survey).contains("ens1f1 of alpha has no RDMA device"));
    host_mut(&mut survey, "alpha").rdma = None;
    assert!(of(&survey, HEALTHY).matches(), "not known is not absent");
}

#[test]
fn an_adapter_in_infiniband_mode_has_no_port() {
    let mut survey = healthy_survey();
    host_mut(&mut survey, "alpha").ports.pop();
    assert!(problem(&survey).contains("alpha has no port ens1f1: `ports` must be"));
    let rdma = &mut host_mut(&mut survey, "alpha").rdma.as_mut().unwrap()[1];
    rdma.ports[0].link_layer = Some(LinkLayer::Infiniband);
    let message = problem(&survey);
    // The name may be wrong as well.
    assert!(message.contains("check the name with `linerate link show`"), "{message}");
    assert!(message.contains("if it is a port of mlx5_1, which is in InfiniBand mode"), "{message}");
    assert!(message.contains("mstconfig -d 0000:3b:00.1 set LINK_TYPE_P1=2, then restart"), "{message}");
}

#[test]
fn windows_is_set_elsewhere() {
    let mut survey = healthy_survey();
    host_mut(&mut survey, "alpha").system.os = Some("windows".into());
    let plan = of(&survey, HEALTHY);
    assert!(plan.ports[0].problem.as_ref().unwrap().contains("linerate qos windows"));
    assert!(!plan.matches());
}
