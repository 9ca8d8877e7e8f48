//! The largest packet: of ports, switches and paths.

use crate::link::RequestedSettings;
use crate::link::plan::IPV6_MTU_MIN;
use crate::model::{Finding, Location, PortKind, PortRef, Probe, Segment, Severity, Survey};

use super::common::{
    Value, carriers, differ, finding, migration_segments, odd, outward, segments, switch_side, teams,
};

/// Gives the port this MTU. One that is too small for IPv6 is for hands: the addresses that it takes away do not come
/// back with the old MTU.
fn set_mtu(finding: Finding, at: PortRef<'_>, what: &str, mtu: u32) -> Finding {
    let command = format!("ip link set dev {} mtu {mtu}", at.port.name);
    match mtu {
        0..IPV6_MTU_MIN => {
            let what = format!("{what} (IPv6 needs {IPV6_MTU_MIN}: its addresses go away for good)");
            finding.command(at.location(), &what, command)
        }
        _ => finding.fix(
            at.location(),
            what,
            command,
            RequestedSettings { mtu: Some(mtu), ..RequestedSettings::default() },
        ),
    }
}

const MTU_BETWEEN_HOSTS_WHY: &str = "The larger side sends packets that the smaller one, or the switch \
    before it, drops without any error. Small packets pass, so everything looks well: the migration \
    connects, then crawls or hangs with the first full packet.";

/// Ports on one network with different MTUs.
pub(super) fn mtu_between_hosts(survey: &Survey) -> Vec<Finding> {
    segments(survey).iter().filter_map(|segment| mtu_between_hosts_finding(survey, segment)).collect()
}

fn mtu_between_hosts_finding(survey: &Survey, segment: &Segment<'_>) -> Option<Finding> {
    let known: Vec<(PortRef<'_>, u32)> =
        segment.members.iter().filter_map(|(at, _)| Some((*at, at.port.mtu?))).collect();
    let least = known.iter().map(|(_, mtu)| *mtu).min()?;
    let most = known.iter().map(|(_, mtu)| *mtu).max()?;
    if least == most {
        return None;
    }
    let title = format!("MTU {least} and {most} on the same network {}", segment.network);
    let mut finding = finding(Severity::Error, title).why(MTU_BETWEEN_HOSTS_WHY);
    for (at, mtu) in &known {
        finding = finding.seen(at.location(), "MTU", mtu);
    }
    for (at, _) in known.iter().filter(|(_, mtu)| *mtu == least) {
        finding = finding.at(at.location());
    }
    let known_limits = known.iter().filter_map(|(at, _)| most_possible(survey, *at));
    let able = known_limits.chain(passes(survey, segment)).min();
    let wanted = able.map_or(most, |able| able.clamp(least, most));
    let what = match wanted == most {
        true => "raise it, if every switch on the way passes it",
        false => "make all alike: not every port, switch or path could have more",
    };
    for (at, _) in known.iter().filter(|(_, mtu)| *mtu != wanted) {
        finding = set_mtu(finding, *at, what, wanted);
    }
    Some(finding)
}

/// The most that adapters and switches at this end can have, as far as they say.
fn most_possible(survey: &Survey, at: PortRef<'_>) -> Option<u32> {
    let below = survey.below(at);
    let known_limits = below.iter().flat_map(|below| [below.port.mtu_max, switch_side(survey, *below).mtu()]);
    known_limits.chain([at.port.mtu_max]).flatten().filter(|most| *most > 0).min()
}

const MTU_AGAINST_SWITCH_WHY: &str = "The switch throws away what is larger than its own limit, without a \
    word. The port sends full packets into nothing: the migration connects, then hangs or crawls.";

/// A port whose switch passes less than its MTU.
pub(super) fn mtu_against_switch(survey: &Survey) -> Vec<Finding> {
    let mut findings = Vec::new();
    for at in survey.ports() {
        let switch = switch_side(survey, at);
        let (Some(mtu), Some(passes)) = (at.port.mtu, switch.mtu()) else { continue };
        if mtu <= passes {
            continue;
        }
        let name = switch.name();
        let title = format!("MTU {mtu}, but its switch port {name} passes {passes}");
        let command = format!("ip link set dev {} mtu {passes}", at.port.name);
        let finding = finding(Severity::Error, title)
            .at(at.location())
            .seen(at.location(), "MTU", mtu)
            .seen(Location::host(&name), "largest packet", passes)
            .why(MTU_AGAINST_SWITCH_WHY)
            .step(
                None,
                format!("raise the MTU of {name} to {mtu} (frames of {} bytes)", mtu.saturating_add(18)),
            )
            .command(at.location(), "or lower it here, and on every other host of the network", command);
        findings.push(finding);
    }
    findings
}

const MTU_BELOW_PORT_WHY: &str = "Packets are made for the upper port's MTU and do not fit through the one \
    below. Full packets of a migration are lost, small ones pass.";

/// A VLAN, macvlan or bridge with a larger MTU than the port that carries it.
pub(super) fn mtu_below_port(survey: &Survey) -> Vec<Finding> {
    let stacked =
        |at: &PortRef<'_>| matches!(at.port.kind, PortKind::Vlan | PortKind::Macvlan | PortKind::Bridge);
    let upper = survey.carrying_ports().filter(|at| stacked(at) && outward(survey, *at));
    upper
        .flat_map(|at| {
            survey.below(at).into_iter().filter_map(move |below| mtu_below_port_finding(at, below))
        })
        .collect()
}

fn mtu_below_port_finding(upper: PortRef<'_>, below: PortRef<'_>) -> Option<Finding> {
    let (above, carried) = (upper.port.mtu?, below.port.mtu?);
    if above <= carried || below.port.kind == PortKind::Tun {
        return None;
    }
    let title = format!("MTU {above}, but {} below it carries {carried}", below.port.name);
    let finding = finding(Severity::Error, title)
        .at(upper.location())
        .seen(upper.location(), "MTU", above)
        .seen(below.location(), "MTU", carried)
        .why(MTU_BELOW_PORT_WHY)
        .fix(
            below.location(),
            "raise it",
            format!("ip link set dev {} mtu {above}", below.port.name),
            RequestedSettings { mtu: Some(above), ..RequestedSettings::default() },
        );
    Some(finding)
}

const MTU_IN_TEAM_WHY: &str = "Which member a connection takes is decided by a hash: those on the smaller \
    member lose their full packets, the others work. Migrations hang or crawl at random, and between some \
    hosts only.";

/// Members of one team with different MTUs.
pub(super) fn mtu_in_team(survey: &Survey) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (team, members) in teams(survey) {
        let mtu = |at: &PortRef<'_>| Some((at.location(), at.port.mtu?.to_string()));
        let values: Vec<Value> = members.iter().filter_map(mtu).collect();
        let whereabouts = format!("in {}", team.location());
        let Some(mut finding) = differ(Severity::Error, "MTU", &whereabouts, &values) else {
            continue;
        };
        for (location, seen) in odd(&values).unwrap_or_default() {
            let Some(wanted) = team.port.mtu.filter(|wanted| wanted.to_string() != *seen) else {
                continue;
            };
            let command =
                format!("ip link set dev {} mtu {wanted}", location.port.as_deref().unwrap_or("PORT"));
            let requested = RequestedSettings { mtu: Some(wanted), ..RequestedSettings::default() };
            finding = finding.fix(location.clone(), "give it the team's MTU", command, requested);
        }
        findings.push(
            finding.why(MTU_IN_TEAM_WHY).step(None, "give the switch ports of all members the same MTU"),
        );
    }
    findings
}

const MTU_PATH_WHY: &str = "Something on the way has a smaller MTU than both ends. If it says so, \
    connections slow down until they have learnt it; if it is silent, they hang with their first full \
    packet.";

/// A path that passes less than the ports at both its ends.
pub(super) fn mtu_path(survey: &Survey) -> Vec<Finding> {
    survey.matrix.probes.iter().filter_map(|probe| mtu_path_finding(survey, probe)).collect()
}

fn mtu_path_finding(survey: &Survey, probe: &Probe) -> Option<Finding> {
    let path = probe.path_mtu?;
    if !is_narrow(survey, probe) {
        return None;
    }
    let (severity, how) = match path.black_hole {
        true => (Severity::Error, "silently"),
        false => (Severity::Warning, "and something on the way says so"),
    };
    let (from, to) =
        (Location::port(&probe.from.host, &probe.from.port), Location::port(&probe.to.host, &probe.to.port));
    let title = format!("of packets of {} bytes to {to} only {} pass, {how}", path.promised, path.passed);
    let mut finding = finding(severity, title)
        .at(from.clone())
        .at(to.clone())
        .seen(from, "MTU", path.promised)
        .seen(to, "largest packet that arrived", path.passed)
        .why(MTU_PATH_WHY)
        .step(
            None,
            format!("raise the MTU of every switch, bridge and tunnel on the way to {}", path.promised),
        );
    let ours = |segment: &Segment<'_>| sends(segment, probe);
    for segment in survey.segments().iter().filter(|segment| ours(segment)) {
        // One MTU for all of them, whichever path is the narrowest.
        let passed = passes(survey, segment).unwrap_or(path.passed);
        let larger = |at: &PortRef<'_>| at.port.mtu.is_some_and(|mtu| mtu > passed);
        for at in segment.members.iter().map(|(at, _)| *at).filter(larger) {
            finding = set_mtu(finding, at, "or lower it on all hosts of the network", passed);
        }
    }
    Some(finding)
}

/// The largest packet that passes everywhere between the hosts of a network, where it is smaller than what the ends
/// of a path say themselves.
pub(super) fn passes(survey: &Survey, segment: &Segment<'_>) -> Option<u32> {
    let ours = survey.matrix.probes.iter().filter(|probe| sends(segment, probe));
    ours.filter(|probe| is_narrow(survey, probe)).filter_map(|probe| Some(probe.path_mtu?.passed)).min()
}

fn sends(segment: &Segment<'_>, probe: &Probe) -> bool {
    segment.members.iter().any(|(_, ip)| *ip == probe.from.ip)
}

/// Less passes than is promised, and neither end is the reason: ports and switches that say a smaller MTU have a
/// finding of their own.
fn is_narrow(survey: &Survey, probe: &Probe) -> bool {
    let Some(path) = probe.path_mtu else { return false };
    let ends = [&probe.from, &probe.to].map(|end| survey.port(&end.host, &end.port));
    let is_known = |at: PortRef<'_>| smallest(survey, at).is_some_and(|mtu| mtu <= path.passed);
    path.passed < path.promised && !ends.into_iter().flatten().any(is_known)
}

/// The smallest MTU that is known at this end.
fn smallest(survey: &Survey, at: PortRef<'_>) -> Option<u32> {
    let below = survey.below(at);
    let ports = below.iter().flat_map(|below| [below.port.mtu, switch_side(survey, *below).mtu()]);
    ports.chain([at.port.mtu]).flatten().min()
}

const MTU_SMALL_WHY: &str = "Each packet costs processor time, and six times as many are needed. On Windows, \
    jumbo frames gave a live migration another 15 to 20 % (a field report on Hyper-V over 10 Gb/s; not \
    measured with Linerate).";

/// Below it, packets are few enough.
const SPEED_MIN_MBPS: u32 = 10_000;

/// What adapters and switches are usually set to.
const LARGE_MTU: u32 = 9000;

/// A fast network on which every port could have a larger MTU.
pub(super) fn mtu_small(survey: &Survey) -> Vec<Finding> {
    migration_segments(survey).iter().filter_map(|segment| mtu_small_finding(survey, segment)).collect()
}

fn mtu_small_finding(survey: &Survey, segment: &Segment<'_>) -> Option<Finding> {
    let ports = carriers(survey, segment);
    let could = |at: &PortRef<'_>| {
        at.port.kind == PortKind::Physical
            && at.port.mtu.is_some_and(|mtu| mtu <= 1500)
            && at.port.mtu_max.is_some_and(|max| max >= LARGE_MTU)
            && at.port.link.speed_mbps.is_some_and(|speed| speed >= SPEED_MIN_MBPS)
            && switch_side(survey, *at).mtu().is_none_or(|mtu| mtu >= LARGE_MTU)
    };
    if ports.is_empty() || !ports.iter().all(could) {
        return None;
    }
    let title =
        format!("MTU 1500 on the fast network {}; every port could have {LARGE_MTU}", segment.network);
    let mut finding = finding(Severity::Hint, title).why(MTU_SMALL_WHY);
    for at in &ports {
        finding = finding.at(at.location()).seen(at.location(), "MTU", at.port.mtu.unwrap_or_default());
    }
    finding =
        finding.step(None, format!("first set every switch port on the way to MTU {LARGE_MTU} or more"));
    for at in &ports {
        let command = format!("ip link set dev {} mtu {LARGE_MTU}", at.port.name);
        let requested = RequestedSettings { mtu: Some(LARGE_MTU), ..RequestedSettings::default() };
        finding = finding.fix(at.location(), "then raise it on all hosts", command, requested);
    }
    Some(finding)
}

#[cfg(test)]
mod tests {
    mod mtu_between_hosts {
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn named_with_host_port_and_value() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f1").mtu = Some(1500);
            let finding = only(&survey, "mtu-between-hosts");
            assert_eq!(finding.title, "MTU 1500 and 9000 on the same network 10.1.1.0/24");
            assert_eq!(finding.locations.len(), 1);
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
            assert_eq!(finding.fixes[0].command.as_deref(), Some("ip link set dev ens1f1 mtu 9000"));
        }

        #[test]
        fn where_one_cannot_have_more_the_others_come_down() {
            let mut survey = healthy_survey();
            let small = port(&mut survey, "beta", "ens1f1");
            (small.mtu, small.mtu_max) = (Some(1500), Some(1500));
            let finding = only(&survey, "mtu-between-hosts");
            let locations: Vec<String> =
                finding.fixes.iter().map(|fix| fix.location.as_ref().unwrap().to_string()).collect();
            assert_eq!(locations, ["alpha ens1f1", "gamma ens1f1"]);
            assert_eq!(finding.fixes[0].command.as_deref(), Some("ip link set dev ens1f1 mtu 1500"));
        }
    }

    mod mtu_against_switch {
        use crate::model::{Switch, SwitchPort};
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn what_the_switch_reports_by_lldp() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f1").neighbours[0].frame_bytes_max = Some(1518);
            let finding = only(&survey, "mtu-against-switch");
            assert_eq!(finding.title, "MTU 9000, but its switch port leaf1 Ethernet1/2 passes 1500");
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
        }

        #[test]
        fn the_mtu_of_a_switch_export_is_used() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f1").neighbours[0].frame_bytes_max = None;
            let exported =
                SwitchPort { name: "Ethernet1/2".into(), mtu: Some(1500), ..SwitchPort::default() };
            survey.switches = vec![Switch { switch: "leaf1".into(), ports: vec![exported] }];
            only(&survey, "mtu-against-switch");
        }
    }

    mod mtu_below_port {
        use crate::testing::{only, port};

        #[test]
        fn both_ports_are_named() {
            let mut survey = crate::testing::vlan_survey();
            port(&mut survey, "beta", "ens1f0").mtu = Some(1500);
            let finding = only(&survey, "mtu-below-port");
            assert_eq!(finding.title, "MTU 9000, but ens1f0 below it carries 1500");
            assert_eq!(finding.locations[0].to_string(), "beta ens1f0.700");
            assert_eq!(finding.fixes[0].command.as_deref(), Some("ip link set dev ens1f0 mtu 9000"));
        }
    }

    mod mtu_in_team {
        use crate::testing::{only, port};

        #[test]
        fn the_member_is_named() {
            let mut survey = crate::testing::team_survey();
            port(&mut survey, "beta", "ens1f1").mtu = Some(1500);
            let finding = only(&survey, "mtu-in-team");
            assert_eq!(finding.title, "MTU 9000 and 1500 in beta bond0");
            assert!(finding.locations.iter().any(|location| location.to_string() == "beta ens1f1"));
            assert_eq!(finding.fixes[0].command.as_deref(), Some("ip link set dev ens1f1 mtu 9000"));
        }
    }

    mod mtu_path {
        use crate::checks::run_all;
        use crate::model::{PathMtu, Severity};
        use crate::testing::probe;
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn a_black_hole_is_worse_than_a_router_that_speaks() {
            for (black_hole, severity) in [(true, Severity::Error), (false, Severity::Warning)] {
                let mut survey = healthy_survey();
                let mut small = probe();
                small.path_mtu = Some(PathMtu { promised: 9000, passed: 1500, black_hole });
                survey.matrix.probes = vec![probe(), small];
                let finding = only(&survey, "mtu-path");
                assert_eq!(finding.severity, severity);
                assert_eq!(finding.locations[0].to_string(), "alpha ens1f0");
                assert!(finding.title.starts_with("of packets of 9000 bytes to beta ens1f0 only 1500 pass"));
            }
        }

        /// IPv6 addresses that go with a small MTU do not come back.
        #[test]
        fn too_small_for_ipv6_is_for_hands() {
            for (passed, by_fix) in [(1280, true), (1279, false)] {
                let mut survey = healthy_survey();
                let mut small = probe();
                small.path_mtu = Some(PathMtu { promised: 9000, passed, black_hole: true });
                survey.matrix.probes = vec![small];
                let finding = only(&survey, "mtu-path");
                let commands: Vec<_> = finding.fixes.iter().filter(|fix| fix.command.is_some()).collect();
                assert_eq!(commands.len(), 3);
                assert!(commands.iter().all(|fix| fix.auto_fix.is_some() == by_fix), "{commands:#?}");
                assert_eq!(commands[0].what.contains("IPv6"), !by_fix);
            }
        }

        #[test]
        fn what_a_port_reports_itself_is_not_repeated() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f0").mtu = Some(1500);
            let mut small = probe();
            small.path_mtu = Some(PathMtu { promised: 9000, passed: 1500, black_hole: true });
            survey.matrix.probes = vec![small];
            let ids: Vec<String> = run_all(&survey).into_iter().map(|finding| finding.id).collect();
            assert_eq!(ids, ["mtu-between-hosts"]);
        }
    }

    mod mtu_small {
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn reported_only_if_every_port_supports_9000() {
            let mut survey = healthy_survey();
            for host in ["alpha", "beta", "gamma"] {
                port(&mut survey, host, "ens1f0").mtu = Some(1500);
            }
            let finding = only(&survey, "mtu-small");
            assert_eq!(finding.title, "MTU 1500 on the fast network 10.1.0.0/24; every port could have 9000");
            port(&mut survey, "gamma", "ens1f0").mtu_max = Some(1500);
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
        }
    }
}
