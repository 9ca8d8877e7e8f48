//! Teams of ports, and VLANs.

use crate::model::{Bond, End, Finding, Location, PortKind, PortRef, Segment, Severity, Survey};

use super::common::{Value, differ, finding, migration_ports, numbers, segments, switch_side, teams};
use super::ports::is_down;

const LACP_INCOMPLETE_WHY: &str = "Members that are not aggregated carry nothing, although their links are \
    up: the team is slower than it looks, and without a spare.";

/// A team by LACP that the switch aggregates only in part.
pub(super) fn lacp_incomplete(survey: &Survey) -> Vec<Finding> {
    teams(survey)
        .iter()
        .filter_map(|(team, members)| lacp_incomplete_finding(survey, *team, members))
        .collect()
}

fn lacp_incomplete_finding(survey: &Survey, team: PortRef<'_>, members: &[PortRef<'_>]) -> Option<Finding> {
    let bond =
        team.port.bond.as_ref().filter(|bond| matches!(bond.mode.as_deref(), Some("802.3ad" | "lacp")))?;
    let off: Vec<&PortRef<'_>> =
        members.iter().filter(|at| switch_side(survey, **at).aggregated() == Some(false)).collect();
    // Members without a link have a finding of their own.
    let up = members.iter().filter(|at| !is_down(survey, **at)).count();
    let aggregated = bond.aggregated.map(|count| count as usize);
    if off.is_empty() && aggregated.is_none_or(|count| count >= up) {
        return None;
    }
    let count = aggregated.unwrap_or(up).min(members.len() - off.len());
    let title = format!("the switch aggregates {count} of {up} members");
    let mut finding = finding(Severity::Warning, title)
        .at(team.location())
        .seen(team.location(), "members", members.len())
        .why(LACP_INCOMPLETE_WHY);
    if let Some(count) = aggregated {
        finding = finding.seen(team.location(), "aggregated", count);
    }
    for at in off {
        let name = switch_side(survey, *at).name();
        finding = finding.at(at.location()).seen(at.location(), "not aggregated by", name);
    }
    let command = format!("cat /proc/net/bonding/{}", team.port.name);
    Some(
        finding
            .step(
                None,
                "put the switch ports of all members into one aggregate with LACP; two switches \
                 need MLAG between them",
            )
            .command(team.location(), "see the partner of each member", command),
    )
}

const TEAM_CANNOT_SPREAD_WHY: &str = "A migration is many connections between the same two hosts. This team \
    puts all of them on one member, the others are idle: it is as fast as one port. Ports without a team, \
    each with an address of its own, are used all at once.";

/// A team that sends one migration over one of its members only.
pub(super) fn team_cannot_spread(survey: &Survey) -> Vec<Finding> {
    let carrying = migration_ports(survey);
    let carries = |members: &[PortRef<'_>]| {
        members.iter().any(|member| carrying.iter().any(|at| std::ptr::eq(at.port, member.port)))
    };
    let wanted = teams(survey).into_iter().filter(|(_, members)| carries(members));
    wanted.filter_map(|(team, members)| team_cannot_spread_finding(team, members.len())).collect()
}

fn team_cannot_spread_finding(at: PortRef<'_>, members: usize) -> Option<Finding> {
    let bond = at.port.bond.as_ref()?;
    let (severity, title) = obstacle(bond)?;
    let name = &at.port.name;
    let mut finding = finding(severity, title)
        .at(at.location())
        .seen(at.location(), "members", members)
        .seen(at.location(), "mode", bond.mode.as_deref().unwrap_or("unknown"))
        .why(TEAM_CANNOT_SPREAD_WHY);
    if let Some(hash) = &bond.hash {
        finding = finding.seen(at.location(), "hash", hash);
    }
    if severity == Severity::Warning {
        let command = format!("ip link set dev {name} type bond xmit_hash_policy layer3+4");
        finding = finding.command(at.location(), "hash by address and port, and on the switch too", command);
    }
    Some(finding.step(
        Some(at.location()),
        "or dissolve the team and give each port an address in a network of its own",
    ))
}

/// How many connections between two hosts are spread, if they are not.
fn obstacle(bond: &Bond) -> Option<(Severity, String)> {
    let hash = bond.hash.as_deref();
    match bond.mode.as_deref()? {
        "active-backup" => Some((Severity::Hint, "active-backup uses one member at a time".into())),
        "switch-independent" => Some((Severity::Hint, "switch-independent receives on one member".into())),
        "balance-alb" | "balance-tlb" => {
            Some((Severity::Hint, "one host is always sent to over one member".into()))
        }
        mode @ ("802.3ad" | "balance-xor" | "lacp" | "static") => {
            let hash = hash.filter(|hash| matches!(*hash, "layer2" | "layer2+3" | "vlan+srcmac"))?;
            Some((Severity::Warning, format!("{mode} with hash {hash} puts two hosts on one member")))
        }
        _ => None,
    }
}

const TEAM_WITHOUT_MONITORING_WHY: &str = "A member whose cable is pulled goes on being used: part of the \
    connections hang until the team is repaired.";

/// A team that does not look whether its members have a link.
pub(super) fn team_without_monitoring(survey: &Survey) -> Vec<Finding> {
    let blind = |at: &PortRef<'_>| {
        at.port.kind == PortKind::Bond
            && at.port.bond.as_ref().is_some_and(|bond| bond.monitor_interval_ms == Some(0))
    };
    let finding = |at: PortRef<'_>| {
        let command = format!("ip link set dev {} type bond miimon 100", at.port.name);
        finding(Severity::Warning, "the links of its members are never looked at (miimon 0)")
            .at(at.location())
            .seen(at.location(), "miimon", "0 ms")
            .why(TEAM_WITHOUT_MONITORING_WHY)
            .command(at.location(), "look ten times a second", command)
    };
    teams(survey).into_iter().map(|(at, _)| at).filter(blind).map(finding).collect()
}

const VLAN_BETWEEN_HOSTS_WHY: &str = "The addresses say one network, the cables lead into different ones: \
    these hosts cannot reach each other over this link, or only through a router.";

/// Ports of one IP network in different VLANs.
pub(super) fn vlan_between_hosts(survey: &Survey) -> Vec<Finding> {
    segments(survey).iter().filter_map(|segment| vlan_between_hosts_finding(survey, segment)).collect()
}

fn vlan_between_hosts_finding(survey: &Survey, segment: &Segment<'_>) -> Option<Finding> {
    let value = |at: PortRef<'_>| Some((at.location(), vlan_of(survey, at)?.to_string()));
    let values: Vec<Value> = segment.members.iter().filter_map(|(at, _)| value(*at)).collect();
    // Numbers are local to a switch where an overlay joins them: a probe that arrived is proof.
    let here = |end: &End| segment.network.contains(end.ip);
    let all = survey.matrix.probes.iter().filter(|probe| here(&probe.from) && here(&probe.to));
    let mut reached = all.map(|probe| probe.reachable).peekable();
    if reached.peek().is_some() && reached.all(|reached| reached == Some(true)) {
        return None;
    }
    let whereabouts = format!("on the same network {}", segment.network);
    let finding = differ(Severity::Error, "VLAN", &whereabouts, &values)?;
    Some(
        finding
            .why(VLAN_BETWEEN_HOSTS_WHY)
            .step(None, "put the switch ports, or the hosts' VLAN ports, into the same VLAN"),
    )
}

/// The VLAN that packets of a port are in on the switch, if it is the same for all ports below.
fn vlan_of(survey: &Survey, at: PortRef<'_>) -> Option<u16> {
    if at.port.kind == PortKind::Vlan {
        return at.port.vlan;
    }
    let below = survey.below(at);
    let mut vlans: Vec<u16> =
        below.iter().filter_map(|at| switch_side(survey, *at).vlan_untagged()).collect();
    vlans.dedup();
    match vlans.as_slice() {
        [one] => Some(*one),
        _ => None,
    }
}

const VLAN_IN_TEAM_WHY: &str = "Whether a connection works depends on the member that a hash chooses: some \
    migrations run, others hang, and pings prove nothing.";

/// Members of one team whose switch ports are in different VLANs.
pub(super) fn vlan_in_team(survey: &Survey) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (team, members) in teams(survey) {
        let values: Vec<Value> =
            members.iter().filter_map(|at| Some((at.location(), vlans_text(survey, *at)?))).collect();
        let whereabouts = format!("in {}", team.location());
        let finding = differ(Severity::Error, "VLANs", &whereabouts, &values);
        findings.extend(finding.map(|finding| {
            finding
                .why(VLAN_IN_TEAM_WHY)
                .step(None, "give the switch ports of all members the same untagged and tagged VLANs")
        }));
    }
    findings
}

/// What the switch says of the port.
fn vlans_text(survey: &Survey, at: PortRef<'_>) -> Option<String> {
    let switch = switch_side(survey, at);
    let untagged = switch.vlan_untagged().map(|vlan| format!("{vlan} untagged"));
    let tagged = switch.vlans().map(|vlans| {
        let mut vlans = vlans.to_vec();
        vlans.sort_unstable();
        format!("{} named", numbers(&vlans))
    });
    let words: Vec<String> = [untagged, tagged].into_iter().flatten().collect();
    (!words.is_empty()).then(|| words.join(", "))
}

const VLAN_NOT_ON_SWITCH_WHY: &str = "The switch throws away frames of VLANs that its port does not carry: \
    nothing arrives, and nothing says so.";

/// A VLAN port whose VLAN the switch does not pass.
pub(super) fn vlan_not_on_switch(survey: &Survey) -> Vec<Finding> {
    let upper = survey.carrying_ports().filter(|at| at.port.kind == PortKind::Vlan);
    upper
        .flat_map(|at| {
            survey
                .below(at)
                .into_iter()
                .filter_map(move |below| vlan_not_on_switch_finding(survey, at, below))
        })
        .collect()
}

fn vlan_not_on_switch_finding(survey: &Survey, upper: PortRef<'_>, below: PortRef<'_>) -> Option<Finding> {
    let switch = switch_side(survey, below);
    let (vlan, passed) = (upper.port.vlan?, switch.vlans()?);
    if passed.contains(&vlan) {
        return None;
    }
    let name = switch.name();
    let finding = finding(Severity::Warning, format!("VLAN {vlan} is not on its switch port {name}"))
        .at(upper.location())
        .seen(upper.location(), "VLAN", vlan)
        .seen(Location::host(&name), "VLANs", numbers(passed))
        .why(VLAN_NOT_ON_SWITCH_WHY)
        .step(None, format!("add VLAN {vlan} to {name}, tagged"));
    Some(finding)
}

#[cfg(test)]
mod tests {
    mod lacp_incomplete {
        use crate::testing::team_survey;
        use crate::testing::{only, port};

        #[test]
        fn incomplete_lacp_is_seen_in_the_bonds_count() {
            let mut survey = team_survey();
            port(&mut survey, "beta", "bond0").bond.as_mut().unwrap().aggregated = Some(1);
            let finding = only(&survey, "lacp-incomplete");
            assert_eq!(finding.title, "the switch aggregates 1 of 2 members");
            assert_eq!(finding.locations[0].to_string(), "beta bond0");
        }

        #[test]
        fn by_what_the_switch_reports() {
            let mut survey = team_survey();
            port(&mut survey, "beta", "ens1f1").neighbours[0].aggregation.as_mut().unwrap().on = false;
            let finding = only(&survey, "lacp-incomplete");
            assert_eq!(finding.locations[1].to_string(), "beta ens1f1");
        }
    }

    mod team_cannot_spread {
        use crate::model::Severity;
        use crate::testing::team_survey;
        use crate::testing::{only, port};

        #[test]
        fn a_hash_that_knows_hosts_only() {
            let mut survey = team_survey();
            port(&mut survey, "beta", "bond0").bond.as_mut().unwrap().hash = Some("layer2".into());
            let finding = only(&survey, "team-cannot-spread");
            assert_eq!(finding.title, "802.3ad with hash layer2 puts two hosts on one member");
            assert_eq!(
                (finding.locations[0].to_string().as_str(), finding.severity),
                ("beta bond0", Severity::Warning)
            );
            assert_eq!(
                finding.fixes[0].command.as_deref(),
                Some("ip link set dev bond0 type bond xmit_hash_policy layer3+4")
            );
        }

        #[test]
        fn a_mode_with_a_spare() {
            let mut survey = team_survey();
            port(&mut survey, "beta", "bond0").bond.as_mut().unwrap().mode = Some("active-backup".into());
            assert_eq!(only(&survey, "team-cannot-spread").severity, Severity::Hint);
        }
    }

    mod team_without_monitoring {
        use crate::testing::team_survey;
        use crate::testing::{only, port};

        #[test]
        fn named_with_host_and_team() {
            let mut survey = team_survey();
            port(&mut survey, "beta", "bond0").bond.as_mut().unwrap().monitor_interval_ms = Some(0);
            let finding = only(&survey, "team-without-monitoring");
            assert_eq!(finding.locations[0].to_string(), "beta bond0");
        }
    }

    mod vlan_between_hosts {
        use crate::testing::{healthy_survey, only, port};
        use crate::testing::{probe, vlan_survey};

        #[test]
        fn by_the_number_of_the_port() {
            let mut survey = vlan_survey();
            port(&mut survey, "beta", "ens1f0").neighbours[0].vlans.push(701);
            port(&mut survey, "beta", "ens1f0.700").vlan = Some(701);
            let finding = only(&survey, "vlan-between-hosts");
            assert_eq!(finding.title, "VLAN 701 and 700 on the same network 10.1.0.0/24");
            assert_eq!(finding.locations[0].to_string(), "beta ens1f0.700");
        }

        #[test]
        fn by_what_the_switch_reports_of_untagged_frames() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f0").neighbours[0].vlan_untagged = Some(1);
            let finding = only(&survey, "vlan-between-hosts");
            assert_eq!(finding.title, "VLAN 1 and 100 on the same network 10.1.0.0/24");
            survey.matrix.probes = vec![probe()];
            assert_eq!(crate::checks::run_all(&survey), Vec::new(), "packets arrive");
        }
    }

    mod vlan_in_team {
        use crate::testing::team_survey;
        use crate::testing::{only, port};

        #[test]
        fn both_members_are_shown() {
            let mut survey = team_survey();
            port(&mut survey, "beta", "ens1f1").neighbours[0].vlan_untagged = Some(1);
            let finding = only(&survey, "vlan-in-team");
            assert_eq!(finding.title, "VLANs 100 untagged and 1 untagged in beta bond0");
            assert!(
                finding.locations.iter().any(|location| location.to_string() == "beta ens1f1"),
                "{finding:?}"
            );
        }
    }

    mod vlan_not_on_switch {
        use crate::testing::vlan_survey;
        use crate::testing::{only, port};

        #[test]
        fn port_and_switch_are_named() {
            let mut survey = vlan_survey();
            port(&mut survey, "beta", "ens1f0").neighbours[0].vlans = vec![100, 200];
            let finding = only(&survey, "vlan-not-on-switch");
            assert_eq!(finding.title, "VLAN 700 is not on its switch port leaf0 Ethernet1/2");
            assert_eq!(finding.locations[0].to_string(), "beta ens1f0.700");
        }
    }
}
