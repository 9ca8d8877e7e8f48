//! Plans of `--fix` against surveys with one fault.

use super::*;
use crate::checks::run_all;
use crate::model::{PathMtu, Port, PortKind};
use crate::qos::intent::parse;
use crate::qos::intent::tests::HEALTHY;
use crate::testing::{healthy_survey, port};

fn of(survey: &Survey) -> FixPlan {
    plan_fixes(survey, &run_all(survey), None)
}

fn lines(fixes: &FixPlan) -> Vec<String> {
    let steps = |one: &PortFix| {
        let step = |step: &crate::link::PortStep| {
            format!("{}: {} {} → {}", one.location, step.what, step.from, step.to)
        };
        one.plan.steps.iter().map(step).collect::<Vec<_>>().join(", ")
    };
    fixes.ports.iter().map(steps).collect()
}

#[test]
fn a_port_with_a_smaller_mtu_is_raised() {
    let mut survey = healthy_survey();
    port(&mut survey, "beta", "ens1f1").mtu = Some(1500);
    let fixes = of(&survey);
    assert_eq!(lines(&fixes), ["beta ens1f1: MTU 1500 → 9000"]);
    assert_eq!(fixes.ports[0].findings, ["mtu-between-hosts"]);
    assert_eq!((fixes.intents, fixes.unfixed, fixes.goals.len()), (vec![], vec![], 1));
}

#[test]
fn what_is_below_is_raised_first() {
    let mut survey = crate::testing::vlan_survey();
    for name in ["ens1f0.700", "ens1f0"] {
        port(&mut survey, "beta", name).mtu = Some(1500);
    }
    assert_eq!(lines(&of(&survey)), ["beta ens1f0: MTU 1500 → 9000", "beta ens1f0.700: MTU 1500 → 9000"]);
}

#[test]
fn a_path_that_passes_less_lowers_all_hosts_of_the_network() {
    let mut survey = healthy_survey();
    let mut small = crate::testing::probe();
    small.path_mtu = Some(PathMtu { promised: 9000, passed: 1500, black_hole: true });
    survey.matrix.probes = vec![small];
    let wanted = ["alpha", "beta", "gamma"].map(|host| format!("{host} ens1f0: MTU 9000 → 1500"));
    assert_eq!(lines(&of(&survey)), wanted);
}

#[test]
fn what_one_port_cannot_have_leaves_the_others_alone() {
    let mut survey = healthy_survey();
    let findings = |survey: &Survey| run_all(survey);
    port(&mut survey, "beta", "ens1f1").mtu = Some(1500);
    let found = findings(&survey);
    port(&mut survey, "beta", "ens1f0").mtu = Some(1500);
    let mut both = found.clone();
    let mut other =
        findings(&survey).into_iter().filter(|one| one.title.contains("10.1.0.0")).collect::<Vec<_>>();
    both.append(&mut other);
    // What the adapter says of itself has changed since.
    port(&mut survey, "beta", "ens1f1").mtu_max = Some(1500);
    let fixes = plan_fixes(&survey, &both, None);
    assert_eq!(lines(&fixes), ["beta ens1f0: MTU 1500 → 9000"]);
    assert_eq!(fixes.unfixed.len(), 1);
    assert_eq!(fixes.unfixed[0].why, "beta: ens1f1 takes an MTU of 68 to 1500, not 9000");
}

#[test]
fn a_finding_without_automatic_fix_is_left() {
    let mut survey = healthy_survey();
    port(&mut survey, "beta", "ens1f1").carrier = Some(false);
    let fixes = of(&survey);
    assert_eq!(fixes.ports, []);
    assert_eq!(fixes.unfixed[0].finding, "link-down");
}

#[test]
fn lossless_priorities_need_an_intent_on_each_host_that_differs() {
    let mut survey = healthy_survey();
    port(&mut survey, "beta", "ens1f1").dcb.as_mut().unwrap().pfc.as_mut().unwrap().lossless = vec![5];
    let without = of(&survey);
    assert!(without.is_empty() && without.unfixed[0].why.contains("--qos FILE"), "{without:?}");
    let intent = parse(HEALTHY).unwrap();
    let fixes = plan_fixes(&survey, &run_all(&survey), Some(&intent));
    // The healthy survey classifies RoCE by its protocol, the intent by a mark: every host changes.
    let hosts: Vec<&str> = fixes.intents.iter().map(|one| one.plan.host.as_str()).collect();
    assert_eq!(hosts, ["alpha", "beta", "gamma"]);
    assert_eq!(fixes.intents[0].findings, ["pfc-differs"]);
    assert_eq!((fixes.unfixed.len(), fixes.goals.len()), (0, 1));
    port(&mut survey, "gamma", "ens1f0").dcb = None;
    let refused = super::plan_fixes(&survey, &run_all(&survey), Some(&intent));
    assert!(
        refused.unfixed.iter().any(|unfixed| unfixed.why.contains("ens1f0 of gamma")),
        "{:?}",
        refused.unfixed
    );
    assert_eq!((refused.goals.len(), refused.intents), (0, vec![]), "what is left is not set either");
}

/// What no intent can change: the mark that the agent's configuration has.
#[test]
fn connections_that_would_not_be_in_the_intents_class_are_left() {
    let intent = parse(HEALTHY).unwrap();
    let planned = |own: u8, systems: Option<u8>| {
        let mut survey = healthy_survey();
        port(&mut survey, "beta", "ens1f1").dcb.as_mut().unwrap().pfc.as_mut().unwrap().lossless = vec![5];
        for host in &mut survey.hosts {
            host.agent.as_mut().unwrap().rdma_type_of_service = Some(own);
            let rdma = host.rdma.iter_mut().flatten().flat_map(|device| &mut device.ports);
            rdma.for_each(|port| port.default_traffic_class = systems);
        }
        plan_fixes(&survey, &run_all(&survey), Some(&intent))
    };
    for own in [0, 96] {
        let fixes = planned(own, None);
        assert!(fixes.is_empty() && fixes.goals.is_empty(), "{fixes:?}");
        let why = format!(
            "the agent of alpha marks RDMA with the type of service {own}, the intent's is 104: first `rdma"
        );
        assert!(fixes.unfixed[0].why.starts_with(&why), "{:?}", fixes.unfixed);
    }
    // The same mark, whatever its ECN bits; and one that the intent sets for connections that set none.
    for (own, systems) in [(104, None), (106, None), (0, Some(0))] {
        let fixes = planned(own, systems);
        assert_eq!((fixes.goals.len(), fixes.intents.len()), (1, 3), "{own}: {:?}", fixes.unfixed);
    }
}

#[test]
fn a_finding_for_which_nothing_changes_is_left() {
    let mut survey = healthy_survey();
    port(&mut survey, "beta", "ens1f1").mtu = Some(1500);
    let mut findings = run_all(&survey);
    let as_it_is = RequestedSettings { mtu: Some(9000), ..RequestedSettings::default() };
    for (id, at) in [("as-requested", "ens1f0"), ("gone", "no-such-port")] {
        let location = Location::port("beta", at);
        let finding = crate::model::Finding::new(id, Severity::Error, "x").at(location.clone());
        findings.push(finding.fix(location, "set it", "ip link", as_it_is.clone()));
    }
    let fixes = plan_fixes(&survey, &findings, None);
    assert_eq!(lines(&fixes), ["beta ens1f1: MTU 1500 → 9000"]);
    let goals: Vec<&str> = fixes.goals.iter().map(|goal| goal.id.as_str()).collect();
    let unfixed: Vec<&str> = fixes.unfixed.iter().map(|unfixed| unfixed.finding.as_str()).collect();
    assert_eq!((goals, unfixed), (vec!["mtu-between-hosts"], vec!["as-requested", "gone"]));
    assert!(fixes.unfixed[0].why.contains("is set already"), "{:?}", fixes.unfixed);
}

/// One host is small and so is the path between the others: all become as small, none is raised.
#[test]
fn a_small_path_and_a_small_host_ask_for_the_same() {
    let mut survey = healthy_survey();
    port(&mut survey, "gamma", "ens1f0").mtu = Some(1500);
    let probe = |from: (&str, u8), to: (&str, u8), promised| {
        let mut probe = crate::testing::probe();
        for (end, (host, last)) in [(&mut probe.from, from), (&mut probe.to, to)] {
            (end.host, end.ip) = (host.to_owned(), [10, 1, 0, last].into());
        }
        probe.path_mtu = Some(PathMtu { promised, passed: 1500, black_hole: promised > 1500 });
        probe
    };
    let (alpha, beta, gamma) = (("alpha", 1), ("beta", 2), ("gamma", 3));
    survey.matrix.probes = vec![
        probe(alpha, beta, 9000),
        probe(beta, alpha, 9000),
        probe(alpha, gamma, 9000),
        probe(gamma, alpha, 1500),
    ];
    let fixes = of(&survey);
    assert_eq!(lines(&fixes), ["alpha ens1f0: MTU 9000 → 1500", "beta ens1f0: MTU 9000 → 1500"]);
    assert_eq!(fixes.goals.len(), 3, "two directions, and the hosts: {:?}", fixes.unfixed);

    // Where only the small host's own path is small, the host is the reason: it is raised.
    survey.matrix.probes.drain(..2);
    assert_eq!(lines(&of(&survey)), ["gamma ens1f0: MTU 1500 → 9000"]);
}

#[test]
fn below_a_bridge_the_guests_stay_as_they_are() {
    let mut survey = healthy_survey();
    let below = port(&mut survey, "beta", "ens1f0");
    let addresses = std::mem::take(&mut below.addresses);
    (below.mtu, below.master) = (Some(1500), Some("br0".into()));
    let beta = crate::testing::host_mut(&mut survey, "beta");
    let new = |name: &str, kind: PortKind, master: Option<&str>| Port {
        name: name.into(),
        kind,
        mtu: Some(1500),
        master: master.map(str::to_owned),
        ..Port::default()
    };
    beta.ports.push(Port { addresses, ..new("br0", PortKind::Bridge, None) });
    beta.ports.push(new("tap0", PortKind::Tun, Some("br0")));
    beta.ports.push(new("veth0", PortKind::Veth, Some("br0")));
    assert_eq!(lines(&of(&survey)), ["beta ens1f0: MTU 1500 → 9000", "beta br0: MTU 1500 → 9000"]);
}

#[test]
fn ports_below_themselves_come_to_an_end() {
    let mut survey = healthy_survey();
    for (name, below) in [("ens1f0", "ens1f1"), ("ens1f1", "ens1f0")] {
        let one = port(&mut survey, "beta", name);
        (one.mtu, one.kind, one.parent) = (Some(1500), PortKind::Vlan, Some(below.into()));
    }
    let mut lines = lines(&of(&survey));
    lines.sort();
    assert_eq!(lines, ["beta ens1f0: MTU 1500 → 9000", "beta ens1f1: MTU 1500 → 9000"]);
}

#[test]
fn the_check_afterwards_sees_what_stayed_and_what_came() {
    let mut survey = healthy_survey();
    port(&mut survey, "beta", "ens1f1").mtu = Some(1500);
    let before = run_all(&survey);
    let goals = before.clone();
    assert_eq!(verdict(&before, &goals, &[]), None);
    assert_eq!(verdict(&before, &[], &before), None, "what was not to be fixed may stay");
    let still = verdict(&before, &goals, &before).unwrap();
    assert!(still.contains("still there: MTU 1500 and 9000"), "{still}");
    let mut down = healthy_survey();
    port(&mut down, "alpha", "ens1f1").carrier = Some(false);
    let new = verdict(&before, &goals, &run_all(&down)).unwrap();
    assert!(new.contains("something else is wrong now") && new.contains("link-down"), "{new}");
}
