//! Plans of `--fix` against rooms with one fault.

use super::*;
use crate::checks::run_all;
use crate::model::{PathMtu, PortKind};
use crate::qos::intent::parse;
use crate::qos::intent::tests::HEALTHY;
use crate::testing::{healthy_room, port};

fn of(room: &Room) -> Mends {
    mends(room, &run_all(room), None)
}

fn lines(mends: &Mends) -> Vec<String> {
    let steps = |one: &PortMend| {
        let step =
            |step: &crate::link::Step| format!("{}: {} {} → {}", one.place, step.what, step.from, step.to);
        one.plan.steps.iter().map(step).collect::<Vec<_>>().join(", ")
    };
    mends.ports.iter().map(steps).collect()
}

#[test]
fn a_port_with_a_smaller_mtu_is_raised() {
    let mut room = healthy_room();
    port(&mut room, "beta", "ens1f1").mtu = Some(1500);
    let mends = of(&room);
    assert_eq!(lines(&mends), ["beta ens1f1: MTU 1500 → 9000"]);
    assert_eq!(mends.ports[0].findings, ["mtu-between-hosts"]);
    assert_eq!((mends.intents, mends.left, mends.goals.len()), (vec![], vec![], 1));
}

#[test]
fn what_is_below_is_raised_first() {
    let mut room = crate::checks::testing_rooms::vlan_room();
    for name in ["ens1f0.700", "ens1f0"] {
        port(&mut room, "beta", name).mtu = Some(1500);
    }
    assert_eq!(lines(&of(&room)), ["beta ens1f0: MTU 1500 → 9000", "beta ens1f0.700: MTU 1500 → 9000"]);
}

#[test]
fn a_path_that_passes_less_lowers_all_hosts_of_the_network() {
    let mut room = healthy_room();
    let mut small = crate::checks::testing_rooms::probe();
    small.path_mtu = Some(PathMtu { promised: 9000, passed: 1500, black_hole: true });
    room.matrix.probes = vec![small];
    let wanted = ["alpha", "beta", "gamma"].map(|host| format!("{host} ens1f0: MTU 9000 → 1500"));
    assert_eq!(lines(&of(&room)), wanted);
}

#[test]
fn what_one_port_cannot_have_leaves_the_others_alone() {
    let mut room = healthy_room();
    let findings = |room: &Room| run_all(room);
    port(&mut room, "beta", "ens1f1").mtu = Some(1500);
    let told = findings(&room);
    port(&mut room, "beta", "ens1f0").mtu = Some(1500);
    let mut both = told.clone();
    let mut other =
        findings(&room).into_iter().filter(|one| one.title.contains("10.1.0.0")).collect::<Vec<_>>();
    both.append(&mut other);
    // What the adapter says of itself has changed since.
    port(&mut room, "beta", "ens1f1").mtu_max = Some(1500);
    let mends = mends(&room, &both, None);
    assert_eq!(lines(&mends), ["beta ens1f0: MTU 1500 → 9000"]);
    assert_eq!(mends.left.len(), 1);
    assert_eq!(mends.left[0].why, "beta: ens1f1 takes an MTU of at most 1500, not 9000");
}

#[test]
fn a_finding_for_hands_is_left() {
    let mut room = healthy_room();
    port(&mut room, "beta", "ens1f1").carrier = Some(false);
    let mends = of(&room);
    assert_eq!(mends.ports, []);
    assert_eq!(mends.left[0].finding, "link-down");
}

#[test]
fn lossless_priorities_need_an_intent_on_each_host_that_differs() {
    let mut room = healthy_room();
    port(&mut room, "beta", "ens1f1").dcb.as_mut().unwrap().pfc.as_mut().unwrap().lossless = vec![5];
    let without = of(&room);
    assert!(without.is_empty() && without.left[0].why.contains("--qos FILE"), "{without:?}");
    let intent = parse(HEALTHY).unwrap();
    let mends = mends(&room, &run_all(&room), Some(&intent));
    // The healthy room tells RoCE by its protocol, the intent by a mark: every host changes.
    let hosts: Vec<&str> = mends.intents.iter().map(|one| one.plan.host.as_str()).collect();
    assert_eq!(hosts, ["alpha", "beta", "gamma"]);
    assert_eq!(mends.intents[0].findings, ["pfc-differs"]);
    assert_eq!((mends.left.len(), mends.goals.len()), (0, 1));
    port(&mut room, "gamma", "ens1f0").dcb = None;
    let refused = super::mends(&room, &run_all(&room), Some(&intent));
    assert!(refused.left.iter().any(|left| left.why.contains("ens1f0 of gamma")), "{:?}", refused.left);
    assert_eq!(refused.goals.len(), 0);
}

#[test]
fn ports_below_themselves_come_to_an_end() {
    let mut room = healthy_room();
    for (name, below) in [("ens1f0", "ens1f1"), ("ens1f1", "ens1f0")] {
        let one = port(&mut room, "beta", name);
        (one.mtu, one.kind, one.parent) = (Some(1500), PortKind::Vlan, Some(below.into()));
    }
    of(&room);
}

#[test]
fn the_check_afterwards_sees_what_stayed_and_what_came() {
    let mut room = healthy_room();
    port(&mut room, "beta", "ens1f1").mtu = Some(1500);
    let before = run_all(&room);
    let goals = before.clone();
    assert_eq!(verdict(&before, &goals, &[]), None);
    assert_eq!(verdict(&before, &[], &before), None, "what was not to be mended may stay");
    let still = verdict(&before, &goals, &before).unwrap();
    assert!(still.contains("still there: MTU 1500 and 9000"), "{still}");
    let mut down = healthy_room();
    port(&mut down, "alpha", "ens1f1").carrier = Some(false);
    let new = verdict(&before, &goals, &run_all(&down)).unwrap();
    assert!(new.contains("something else is wrong now") && new.contains("link-down"), "{new}");
}
