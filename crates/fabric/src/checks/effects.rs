//! One cause is one finding. A fault has many effects, and many of them look like faults of their own: what follows
//! from a finding on the same ports is listed under it.

use crate::model::{Effect, Finding, Location, Survey};

const SLOW: &[&str] = &[
    "drops-rising",
    "incast-collapse",
    "rdma-below-promise",
    "throughput-below-promise",
    "throughput-below-sibling",
    "throughput-one-way",
];
/// Some packets are lost, and connections fail.
const BROKEN: &[&str] = &["load-fails", "packet-loss", "rdma-blocked", "tcp-blocked"];
/// Nothing arrives, or only after a long time.
const ASTRAY: &[&str] = &["firewall-drops", "round-trip-long", "unreachable"];
const DAMAGED: &[&str] = &["errors-rising"];
/// Large packets do not pass.
const NARROW: &[&str] = &["mtu-path"];
/// Nothing can be sent from the port.
const UNSEEN: &[&str] = &["not-measured"];
/// Packets take another way.
const DETOUR: &[&str] = &["asymmetric-routing"];

/// Causes, and what follows from each on the same ports. The deepest causes come first: an effect of two causes is
/// listed under the first of them.
#[rustfmt::skip]
const CAUSES: &[(&str, &[&[&str]])] = &[
    ("link-down",                &[SLOW, BROKEN, DAMAGED, NARROW, ASTRAY, DETOUR, UNSEEN]),
    ("duplicate-address",        &[SLOW, BROKEN, DAMAGED, NARROW, ASTRAY, DETOUR]),
    ("address-taken",            &[SLOW, BROKEN, DAMAGED, NARROW, ASTRAY, DETOUR]),
    ("duplicate-mac",            &[SLOW, BROKEN, DAMAGED, NARROW, ASTRAY, DETOUR]),
    ("vlan-between-hosts",       &[SLOW, BROKEN, DAMAGED, NARROW, ASTRAY, DETOUR]),
    ("vlan-in-team",             &[SLOW, BROKEN, DAMAGED, NARROW, ASTRAY, DETOUR]),
    ("vlan-not-on-switch",       &[SLOW, BROKEN, DAMAGED, NARROW, ASTRAY, DETOUR]),
    ("two-ports-one-network",    &[SLOW, BROKEN, DAMAGED, NARROW, ASTRAY, DETOUR]),
    ("mtu-between-hosts",        &[SLOW, BROKEN, DAMAGED]),
    ("mtu-against-switch",       &[SLOW, BROKEN, DAMAGED]),
    ("mtu-below-port",           &[SLOW, BROKEN, DAMAGED]),
    ("mtu-in-team",              &[SLOW, BROKEN, DAMAGED]),
    ("half-duplex",              &[SLOW, BROKEN, DAMAGED]),
    ("autonegotiation-mismatch", &[SLOW, BROKEN, DAMAGED]),
    ("link-flapping",            &[SLOW, BROKEN, NARROW]),
    ("lacp-incomplete",          &[SLOW]),
    ("pfc-differs",              &[&["rdma-below-promise"]]),
    ("roce-not-lossless",        &[&["rdma-below-promise"]]),
    ("roce-priority-differs",    &[&["rdma-below-promise"]]),
    ("asymmetric-routing",       &[SLOW, &["load-fails", "packet-loss", "tcp-blocked"], ASTRAY]),
    ("firewall-drops",           &[SLOW, BROKEN, NARROW]),
    ("unreachable",              &[SLOW, BROKEN, NARROW]),
    ("mtu-path",                 &[SLOW, BROKEN, DAMAGED]),
    ("errors-rising",            &[SLOW, BROKEN, NARROW]),
    ("packet-loss",              &[SLOW, BROKEN, NARROW]),
    ("tcp-blocked",              &[SLOW]),
    ("load-fails",               &[SLOW]),
    ("round-trip-long",          &[SLOW]),
    ("pcie-below-card",          &[SLOW]),
    ("pcie-below-ports",         &[SLOW]),
    ("offloads-off",             &[SLOW]),
    ("speed-below-ability",      &[SLOW]),
    ("speed-between-hosts",      &[SLOW]),
    ("switch-port-slower",       &[SLOW]),
    ("throughput-below-promise", &[SLOW]),
    ("throughput-one-way",       &[SLOW]),
    ("throughput-below-sibling", &[SLOW]),
    ("qemu-missing",             &[&["qemu-machine-types", "qemu-too-old"]]),
    ("qemu-too-old",             &[&["qemu-machine-types"]]),
];

/// Takes effects out of the findings and lists them under their causes.
pub(super) fn under_their_causes(survey: &Survey, findings: Vec<Finding>) -> Vec<Finding> {
    let mut left: Vec<Option<Finding>> = findings.into_iter().map(Some).collect();
    for (cause, effects) in CAUSES {
        for at in 0..left.len() {
            let is_cause = left.get(at).and_then(Option::as_ref).is_some_and(|one| one.id == *cause);
            let Some(mut root) = left.get_mut(at).filter(|_| is_cause).and_then(Option::take) else {
                continue;
            };
            let mut ports = lowest(survey, &root);
            while let Some(effect) = next_effect(survey, &root, effects, &ports, &mut left) {
                ports.extend(lowest(survey, &effect));
                add_effect(&mut root, effect);
            }
            if let Some(slot) = left.get_mut(at) {
                *slot = Some(root);
            }
        }
    }
    left.into_iter().flatten().collect()
}

/// An effect on one of these ports, taken out of the findings.
fn next_effect(
    survey: &Survey,
    root: &Finding,
    effects: &[&[&str]],
    ports: &[Location],
    left: &mut [Option<Finding>],
) -> Option<Finding> {
    let follows = |one: &Finding| {
        let touches = || lowest(survey, one).iter().any(|location| ports.contains(location));
        effects.concat().contains(&one.id.as_str()) && one.id != root.id && touches()
    };
    left.iter_mut().find(|one| one.as_ref().is_some_and(follows))?.take()
}

/// What it leads to is as bad as that.
fn add_effect(root: &mut Finding, effect: Finding) {
    root.severity = root.severity.max(effect.severity);
    let Finding { id, title, locations, effects, .. } = effect;
    root.effects.push(Effect { id, title, locations });
    root.effects.extend(effects);
}

/// Locations of a finding; of ports that stand on others, those.
fn lowest(survey: &Survey, finding: &Finding) -> Vec<Location> {
    let below = |location: &Location| match location
        .port
        .as_deref()
        .and_then(|port| survey.port(&location.host, port))
    {
        Some(at) => survey.below(at).iter().map(|at| at.location()).chain([location.clone()]).collect(),
        None => vec![location.clone()],
    };
    finding.locations.iter().flat_map(below).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::ALL;
    use crate::model::Severity;
    use crate::testing::{healthy_survey, only, port, probe, reversed};

    #[test]
    fn every_name_in_the_table_is_a_check() {
        for id in CAUSES.iter().flat_map(|(cause, effects)| effects.concat().into_iter().chain([*cause])) {
            assert!(ALL.iter().any(|check| check.id == id), "{id}");
        }
    }

    #[test]
    fn effects_are_listed_under_their_cause_and_raise_its_severity() {
        let mut survey = healthy_survey();
        let mut lost = probe();
        (lost.reachable, lost.tcp, lost.throughput_mbps, lost.path_mtu) =
            (Some(false), Some(false), None, None);
        lost.leaves_by = Some("eno1".into());
        survey.matrix.probes = vec![lost.clone(), reversed(&probe())];
        port(&mut survey, "beta", "ens1f0").counters_change.as_mut().unwrap().gained.rx_missed = 400;
        let finding = only(&survey, "asymmetric-routing");
        assert_eq!(finding.severity, Severity::Error);
        let effects: Vec<&str> = finding.effects.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(effects, ["unreachable", "drops-rising"]);
    }

    #[test]
    fn a_fault_of_another_port_stays_a_finding() {
        let mut survey = healthy_survey();
        port(&mut survey, "beta", "ens1f1").carrier = Some(false);
        let mut lost = probe();
        (lost.reachable, lost.throughput_mbps, lost.path_mtu) = (Some(false), None, None);
        survey.matrix.probes = vec![lost];
        let ids: Vec<String> = crate::checks::run_all(&survey).into_iter().map(|one| one.id).collect();
        assert_eq!(ids, ["link-down", "unreachable"]);
    }
}
