//! Addresses and routes: who has which, and by which port packets leave.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::model::{
    End, Finding, Gateway, Inventory, Location, Network, PortKind, PortRef, Probe, Severity, Survey, Taken,
};

use super::common::{finding, merged, migration_ports, migration_segments, outward, segments, speed};
use super::ports::is_down;

const DUPLICATE_ADDRESS_WHY: &str = "Packets reach now one host, now the other: connections are cut at \
    random, and a migration may be offered to the wrong host.";

/// One address on two hosts.
pub(super) fn duplicate_address(survey: &Survey) -> Vec<Finding> {
    doubles(survey).into_iter().map(|(ip, ports)| duplicate_address_finding(ip, &ports)).collect()
}

fn duplicate_address_finding(ip: IpAddr, ports: &[PortRef<'_>]) -> Finding {
    let mut finding =
        finding(Severity::Error, format!("{ip} is on more than one host")).why(DUPLICATE_ADDRESS_WHY);
    for at in ports {
        let mac = at.port.mac.as_deref().unwrap_or("unknown");
        finding = finding.at(at.location()).seen(at.location(), "address", format!("{ip}, MAC {mac}"));
    }
    for at in ports {
        let prefix =
            at.port.addresses.iter().find(|address| address.ip == ip).map_or(0, |address| address.prefix);
        let command = format!("ip address del {ip}/{prefix} dev {}", at.port.name);
        finding = finding.command(
            at.location(),
            "take it away from one of them, and from its configuration",
            command,
        );
    }
    finding
}

/// Addresses that more than one host has.
fn doubles(survey: &Survey) -> BTreeMap<IpAddr, Vec<PortRef<'_>>> {
    let mut owners: BTreeMap<IpAddr, Vec<PortRef<'_>>> = BTreeMap::new();
    for at in survey.carrying_ports().filter(|at| outward(survey, *at)) {
        for address in at.port.addresses.iter().filter(|address| address.shared()) {
            owners.entry(address.ip).or_default().push(at);
        }
    }
    owners.retain(|_, ports| {
        let first = ports.first().map(|at| at.host.host.as_str());
        ports.iter().any(|at| Some(at.host.host.as_str()) != first)
    });
    owners
}

/// More than one host has this address.
fn is_double(survey: &Survey, ip: IpAddr) -> bool {
    doubles(survey).contains_key(&ip)
}

const DUPLICATE_MAC_WHY: &str = "The switch learns the address now on one port, now on another, and sends \
    packets to the wrong host. It comes from cloned virtual machines and copied configurations.";

/// One hardware address on two hosts of a network.
pub(super) fn duplicate_mac(survey: &Survey) -> Vec<Finding> {
    let mut findings = Vec::new();
    for segment in segments(survey) {
        let mut owners: BTreeMap<&str, Vec<PortRef<'_>>> = BTreeMap::new();
        for (at, _) in &segment.members {
            if let Some(mac) = at.port.mac.as_deref() {
                owners.entry(mac).or_default().push(*at);
            }
        }
        for (mac, ports) in owners {
            let first = ports.first().map(|at| at.host.host.as_str());
            if ports.iter().all(|at| Some(at.host.host.as_str()) == first) {
                continue;
            }
            let title = format!("MAC {mac} on more than one host of {}", segment.network);
            let mut finding = finding(Severity::Error, title).why(DUPLICATE_MAC_WHY);
            for at in &ports {
                finding = finding.at(at.location()).seen(at.location(), "MAC", mac);
            }
            findings.push(finding.step(
                None,
                "give one of them another address; remove a fixed one from the network configuration",
            ));
        }
    }
    findings
}

const ADDRESS_TAKEN_WHY: &str = "Packets reach now this host, now the other machine: connections are cut \
    at random, and bytes of guests go to a wrong machine.";

/// An address of a host that a machine outside of the survey has too.
pub(super) fn address_taken(survey: &Survey) -> Vec<Finding> {
    survey
        .ports()
        .flat_map(|at| at.port.taken.iter().filter_map(move |taken| address_taken_finding(survey, at, taken)))
        .collect()
}

fn address_taken_finding(survey: &Survey, at: PortRef<'_>, taken: &Taken) -> Option<Finding> {
    // Two hosts of the survey have a finding that names both.
    let ours = survey
        .ports()
        .any(|one| one.port.mac.as_ref().is_some_and(|mac| mac.eq_ignore_ascii_case(&taken.mac)));
    if ours || is_double(survey, taken.ip) {
        return None;
    }
    let (ip, mac) = (taken.ip, &taken.mac);
    let title = format!("{ip} is answered by another machine too, {mac}");
    let own = at.port.mac.as_deref().unwrap_or("unknown");
    let command = format!("arping -D -c 3 -I {} {ip}", at.port.name);
    let finding = finding(Severity::Error, title)
        .at(at.location())
        .seen(at.location(), "own MAC", own)
        .seen(at.location(), &format!("who answers for {ip}"), mac)
        .why(ADDRESS_TAKEN_WHY)
        .command(at.location(), "see who answers", command)
        .step(
            None,
            "find the machine by its MAC in the switch's table, and give one of the two another address",
        );
    Some(finding)
}

const TWO_PORTS_ONE_NETWORK_WHY: &str = "The kernel sends everything for this network by one of the ports \
    and answers for both addresses on either: the second cable stays idle, or traffic arrives where it is \
    not expected.";

/// Two ports of one host in the same network.
pub(super) fn two_ports_one_network(survey: &Survey) -> Vec<Finding> {
    survey.hosts.iter().flat_map(|host| two_ports_one_network_findings(survey, host)).collect()
}

fn two_ports_one_network_findings(survey: &Survey, host: &Inventory) -> Vec<Finding> {
    let finding = |(network, ports): (Network, Vec<PortRef<'_>>)| {
        let names: Vec<&str> = ports.iter().map(|at| at.port.name.as_str()).collect();
        let title = format!("{} in one network {network}", names.join(" and "));
        let mut finding = finding(Severity::Warning, title).why(TWO_PORTS_ONE_NETWORK_WHY);
        for at in &ports {
            let ips = at.port.addresses.iter().filter(|address| address.network() == network);
            let ips: Vec<String> = ips.map(|address| address.ip.to_string()).collect();
            finding = finding.at(at.location()).seen(at.location(), "address", ips.join(", "));
        }
        finding.step(
            Some(Location::host(&host.host)),
            "give each port a network of its own, or make one team of them",
        )
    };
    shared_networks(survey, host).into_iter().map(finding).collect()
}

/// The ports of a host by network.
fn shared_networks<'a>(survey: &'a Survey, host: &'a Inventory) -> BTreeMap<Network, Vec<PortRef<'a>>> {
    let mut networks: BTreeMap<Network, Vec<PortRef<'a>>> = BTreeMap::new();
    for port in &host.ports {
        let at = PortRef { host, port };
        for address in port.addresses.iter().filter(|address| address.shared()) {
            let ports = networks.entry(address.network()).or_default();
            if !ports.iter().any(|one| one.port.name == port.name) && outward(survey, at) {
                ports.push(at);
            }
        }
    }
    networks.retain(|_, ports| ports.len() > 1);
    networks
}

/// The host of this end has two ports in the end's network.
fn shares_network(survey: &Survey, end: &End) -> bool {
    let host = survey.host(&end.host);
    host.is_some_and(|host| shared_networks(survey, host).keys().any(|network| network.contains(end.ip)))
}

const ASYMMETRIC_ROUTING_WHY: &str = "The wrong network, silently: traffic meant for the fast link takes \
    another, often the management network, and two links share one cable unseen. With a strict reverse \
    path filter the packets are thrown away.";

/// Packets that leave or arrive by another port than the link's.
pub(super) fn asymmetric_routing(survey: &Survey) -> Vec<Finding> {
    // Two ports of a host in one network are the cause, and have a finding of their own.
    let own = |probe: &&Probe| !shares_network(survey, &probe.from) && !shares_network(survey, &probe.to);
    let findings =
        survey.matrix.probes.iter().filter(own).flat_map(|probe| asymmetric_routing_findings(survey, probe));
    // The same port towards several hosts is one fault.
    merged(findings, |one, other| {
        one.locations.first() == other.locations.first() && one.title == other.title
    })
}

fn asymmetric_routing_findings(survey: &Survey, probe: &Probe) -> Vec<Finding> {
    let (from, to) =
        (Location::port(&probe.from.host, &probe.from.port), Location::port(&probe.to.host, &probe.to.port));
    let mut findings = Vec::new();
    if let Some(other) = &probe.leaves_by {
        let title =
            format!("packets to {} leave by {other}, not by {}", far_network(survey, probe), probe.from.port);
        let finding = finding(Severity::Warning, title)
            .at(from.clone())
            .seen(from.clone(), &format!("way to {}", probe.to.ip), format!("by {other}"))
            .why(ASYMMETRIC_ROUTING_WHY)
            .command(
                from.clone(),
                "see the route, and remove or change it",
                format!("ip route get {}", probe.to.ip),
            );
        findings.push(finding);
    }
    if let Some(other) = &probe.arrives_at {
        let title = format!("packets for {} arrive at {other}", probe.to.port);
        let filter = survey.host(&probe.to.host).and_then(|host| host.port(other)?.reverse_path_filter);
        let mut finding = finding(Severity::Warning, title)
            .at(to.clone())
            .seen(to.clone(), &format!("from {}", probe.from.ip), format!("at {other}"))
            .why(ASYMMETRIC_ROUTING_WHY)
            .command(
                to.clone(),
                "let each port answer for its own addresses only",
                "sysctl net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2",
            )
            .step(None, "look whether both ports hang on one switch without a VLAN between them");
        if let Some(filter) = filter {
            finding = finding.seen(Location::port(&probe.to.host, other), "rp_filter", filter);
        }
        findings.push(finding);
    }
    findings
}

/// The network of the far end, or its address.
fn far_network(survey: &Survey, probe: &Probe) -> String {
    let from = survey.port(&probe.from.host, &probe.from.port);
    let mut networks = from.into_iter().flat_map(|at| &at.port.addresses).map(|address| address.network());
    networks
        .find(|network| network.contains(probe.to.ip))
        .map_or(probe.to.ip.to_string(), |network| network.to_string())
}

const GATEWAY_DEAD_WHY: &str = "Nothing of this host reaches other networks: time servers, package mirrors, \
    management. Migrations whose agents are in other networks do not begin.";

/// A default gateway that does not answer.
pub(super) fn gateway_dead(survey: &Survey) -> Vec<Finding> {
    survey
        .hosts
        .iter()
        .flat_map(|host| host.gateways.iter().filter_map(move |one| gateway_dead_finding(survey, host, one)))
        .collect()
}

fn gateway_dead_finding(survey: &Survey, host: &Inventory, gateway: &Gateway) -> Option<Finding> {
    let at = host.port(&gateway.port).map(|port| PortRef { host, port });
    if gateway.answers != Some(false) || at.is_some_and(|at| is_down(survey, at)) {
        return None;
    }
    let location = Location::port(&host.host, &gateway.port);
    let (ip, port) = (gateway.ip, &gateway.port);
    let finding = finding(Severity::Warning, format!("the default gateway {ip} does not answer"))
        .at(location.clone())
        .seen(location.clone(), "default route", format!("via {ip} dev {port}"))
        .seen(location.clone(), "ARP requests", "no answer")
        .why(GATEWAY_DEAD_WHY)
        .command(
            location.clone(),
            "try it by hand",
            format!("arping -c 3 -I {port} {ip}; ip neighbour show {ip}"),
        )
        .step(Some(location), "correct the route, or look whether the router is up and in this VLAN");
    Some(finding)
}

const MIGRATION_ON_MANAGEMENT_WHY: &str = "A migration takes all that a link has, and the hosts' control \
    traffic is on it: logins hang, cluster heartbeats are late, and the migration is as slow as the \
    management port.";

/// Migrations over the management network.
pub(super) fn migration_on_management(survey: &Survey) -> Vec<Finding> {
    let segments = migration_segments(survey);
    let mut findings = Vec::new();
    for segment in &segments {
        // Without an agent it is not known what migrations use.
        let managing =
            |(at, _): &&(PortRef<'_>, _)| at.host.agent.is_some() && manages(at.host, &at.port.name);
        let ports: Vec<PortRef<'_>> = segment.members.iter().filter(managing).map(|(at, _)| *at).collect();
        if ports.is_empty() {
            continue;
        }
        let (severity, how) = match segments.len() {
            1 => (Severity::Warning, "the management network is the only one for migrations"),
            _ => (Severity::Hint, "the management network is used for migrations too"),
        };
        let mut finding =
            finding(severity, format!("{how}: {}", segment.network)).why(MIGRATION_ON_MANAGEMENT_WHY);
        for at in ports {
            let rate = speed(survey, at).map_or("unknown".to_owned(), |rate| format!("{rate} Mb/s"));
            finding = finding.at(at.location()).seen(at.location(), "default route, speed", rate);
            let step = format!(
                "leave this address out of listen in the agent's configuration, or bound migrations with \
                     --links (not {})",
                segment.network
            );
            finding = finding.step(Some(Location::host(&at.host.host)), step);
        }
        findings.push(finding);
    }
    findings
}

/// The default route goes by this port.
fn manages(host: &Inventory, port: &str) -> bool {
    let defaults = host.routes.iter().filter(|route| route.destination.is_none() && route.gateway.is_some());
    defaults.min_by_key(|route| route.metric).is_some_and(|route| route.port == port)
}

const NO_SECOND_LINK_WHY: &str = "When this cable, its port or its switch fails, a running migration \
    stalls until it is back, or fails. A second link also makes migrations faster: all are used at once.";

/// Hosts with one cable for migrations.
pub(super) fn no_second_link(survey: &Survey) -> Vec<Finding> {
    let ports = migration_ports(survey);
    let joined = |host: &Inventory| {
        let on = |(at, _): &(PortRef<'_>, _)| at.host.host == host.host;
        migration_segments(survey).iter().any(|segment| segment.members.iter().any(on))
    };
    let mut lonely: Vec<PortRef<'_>> = Vec::new();
    for host in &survey.hosts {
        let own: Vec<PortRef<'_>> = ports
            .iter()
            .copied()
            .filter(|at| at.host.host == host.host && at.port.kind != PortKind::Loopback)
            .collect();
        if own.first().is_some_and(|first| own.iter().skip(1).all(|at| first.port.shares_its_cable(at.port)))
            && joined(host)
        {
            lonely.extend(own);
        }
    }
    no_second_link_finding(&lonely).into_iter().collect()
}

fn no_second_link_finding(lonely: &[PortRef<'_>]) -> Option<Finding> {
    lonely.first()?;
    let mut finding = finding(Severity::Hint, "the only port for migrations").why(NO_SECOND_LINK_WHY);
    for at in lonely {
        finding = finding.at(at.location());
        let function = at.port.pcie.as_ref().and_then(|pcie| pcie.physical_function.as_ref());
        finding = match function {
            Some(address) => finding.seen(at.location(), "virtual function of", address),
            None => finding.seen(at.location(), "ports for migrations", 1),
        };
    }
    Some(finding.step(
        None,
        "cable a second port to another switch, in a network of its own, and add its \
         address to listen in the agent's configuration",
    ))
}

#[cfg(test)]
mod tests {
    mod duplicate_address {
        use crate::model::{Address, Port, PortKind};
        use crate::testing::{healthy_survey, host_mut, only, port};

        #[test]
        fn both_owners_are_named() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "eno1").addresses[0].ip = [192, 168, 0, 1].into();
            let finding = only(&survey, "duplicate-address");
            assert_eq!(finding.title, "192.168.0.1 is on more than one host");
            let locations: Vec<String> = finding.locations.iter().map(ToString::to_string).collect();
            assert_eq!(locations, ["alpha eno1", "beta eno1"]);
        }

        #[test]
        fn a_bridge_for_guests_has_the_same_address_everywhere() {
            let mut survey = healthy_survey();
            for host in ["alpha", "beta", "gamma"] {
                host_mut(&mut survey, host).ports.push(Port {
                    name: "virbr0".into(),
                    kind: PortKind::Bridge,
                    addresses: vec![Address { ip: [192, 168, 122, 1].into(), prefix: 24 }],
                    ..Port::default()
                });
            }
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
        }
    }

    mod duplicate_mac {
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn both_owners_are_named() {
            let mut survey = healthy_survey();
            let mac = port(&mut survey, "alpha", "ens1f1").mac.clone();
            port(&mut survey, "beta", "ens1f1").mac = mac;
            let finding = only(&survey, "duplicate-mac");
            assert_eq!(finding.title, "MAC 02:00:00:00:02:01 on more than one host of 10.1.1.0/24");
            assert_eq!(finding.locations.len(), 2);
        }
    }

    mod address_taken {
        use crate::model::Taken;
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn host_address_and_stranger_are_named() {
            let mut survey = healthy_survey();
            let taken = Taken { ip: [10, 1, 0, 2].into(), mac: "02:de:ad:00:00:01".into() };
            port(&mut survey, "beta", "ens1f0").taken = vec![taken];
            let finding = only(&survey, "address-taken");
            assert_eq!(finding.title, "10.1.0.2 is answered by another machine too, 02:de:ad:00:00:01");
            assert_eq!(finding.locations[0].to_string(), "beta ens1f0");
        }

        #[test]
        fn two_hosts_of_the_survey_are_named_by_another_check() {
            let mut survey = healthy_survey();
            let mac = port(&mut survey, "alpha", "eno1").mac.clone().unwrap();
            let double = port(&mut survey, "beta", "eno1");
            double.addresses[0].ip = [192, 168, 0, 1].into();
            double.taken = vec![Taken { ip: [192, 168, 0, 1].into(), mac }];
            only(&survey, "duplicate-address");
        }
    }

    mod two_ports_one_network {
        use crate::model::Address;
        use crate::testing::probe;
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn both_ports_are_named_and_effects_are_not_repeated() {
            let mut survey = healthy_survey();
            let more = Address { ip: [10, 1, 0, 22].into(), prefix: 24 };
            let second = port(&mut survey, "beta", "ens1f1");
            second.addresses.push(more);
            second.neighbours[0].vlan_untagged = None;
            let mut astray = probe();
            astray.arrives_at = Some("ens1f1".into());
            survey.matrix.probes = vec![astray];
            let finding = only(&survey, "two-ports-one-network");
            assert_eq!(finding.title, "ens1f0 and ens1f1 in one network 10.1.0.0/24");
            let locations: Vec<String> = finding.locations.iter().map(ToString::to_string).collect();
            assert_eq!(locations, ["beta ens1f0", "beta ens1f1"]);
        }
    }

    mod asymmetric_routing {
        use crate::testing::probe;
        use crate::testing::{healthy_survey, only};

        #[test]
        fn leaving_by_the_management_port() {
            let mut survey = healthy_survey();
            let mut faulty = probe();
            faulty.leaves_by = Some("eno1".into());
            let mut again = faulty.clone();
            (again.to.host, again.to.ip) = ("gamma".into(), [10, 1, 0, 3].into());
            survey.matrix.probes = vec![faulty, again];
            let finding = only(&survey, "asymmetric-routing");
            assert_eq!(finding.title, "packets to 10.1.0.0/24 leave by eno1, not by ens1f0");
            assert_eq!(finding.locations[0].to_string(), "alpha ens1f0");
            assert_eq!(finding.seen.len(), 2, "one fault towards two hosts");
        }

        #[test]
        fn arriving_at_another_port() {
            let mut survey = healthy_survey();
            let mut faulty = probe();
            faulty.arrives_at = Some("ens1f1".into());
            survey.matrix.probes = vec![faulty];
            let finding = only(&survey, "asymmetric-routing");
            assert_eq!(finding.title, "packets for ens1f0 arrive at ens1f1");
            assert_eq!(finding.locations[0].to_string(), "beta ens1f0");
        }
    }

    mod gateway_dead {
        use crate::model::Gateway;
        use crate::testing::{healthy_survey, host_mut, only};

        #[test]
        fn host_port_and_address_are_named() {
            let mut survey = healthy_survey();
            let mut gateway =
                Gateway { ip: [192, 168, 0, 254].into(), port: "eno1".into(), answers: Some(true) };
            host_mut(&mut survey, "beta").gateways = vec![gateway.clone()];
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
            gateway.answers = Some(false);
            host_mut(&mut survey, "beta").gateways = vec![gateway];
            let finding = only(&survey, "gateway-dead");
            assert_eq!(finding.title, "the default gateway 192.168.0.254 does not answer");
            assert_eq!(finding.locations[0].to_string(), "beta eno1");
        }
    }

    mod migration_on_management {
        use crate::model::Severity;
        use crate::testing::healthy_survey;
        use crate::testing::only;

        #[test]
        fn beside_others_it_is_a_hint_and_alone_a_warning() {
            let mut survey = healthy_survey();
            for (number, host) in (1..).zip(&mut survey.hosts) {
                host.agent.as_mut().unwrap().listen.push(format!("192.168.0.{number}:7979"));
            }
            let finding = only(&survey, "migration-on-management");
            assert_eq!(finding.severity, Severity::Hint);
            assert_eq!(finding.title, "the management network is used for migrations too: 192.168.0.0/24");
            assert_eq!(finding.locations[1].to_string(), "beta eno1");

            for host in &mut survey.hosts {
                host.agent.as_mut().unwrap().listen.drain(..2);
            }
            let findings = crate::checks::run_all(&survey);
            let found = findings.iter().find(|finding| finding.id == "migration-on-management").unwrap();
            assert_eq!(found.severity, Severity::Warning, "it is the only one");
        }
    }

    mod no_second_link {
        use crate::testing::{healthy_survey, host_mut, only, port};

        #[test]
        fn the_host_with_one_port_is_named() {
            let mut survey = healthy_survey();
            host_mut(&mut survey, "beta").agent.as_mut().unwrap().listen.truncate(1);
            let finding = only(&survey, "no-second-link");
            assert_eq!(finding.locations.len(), 1);
            assert_eq!(finding.locations[0].to_string(), "beta ens1f0");
        }

        #[test]
        fn a_port_and_a_virtual_function_of_it_are_one() {
            let survey = crate::testing::virtual_function_survey("beta");
            let finding = only(&survey, "no-second-link");
            let locations: Vec<String> = finding.locations.iter().map(ToString::to_string).collect();
            assert_eq!(locations, ["beta ens1f0", "beta ens1f0v0"]);
            assert_eq!(finding.seen[1].value, "0000:3b:00.0");
        }

        #[test]
        fn two_functions_of_one_cable_are_one() {
            let mut survey = healthy_survey();
            for name in ["ens1f0", "ens1f1"] {
                port(&mut survey, "beta", name).physical_port = Some("0c42a1000000".into());
            }
            assert_eq!(only(&survey, "no-second-link").locations.len(), 2);
        }

        #[test]
        fn a_team_of_two_is_two() {
            assert_eq!(crate::checks::run_all(&crate::testing::team_survey()), Vec::new());
            assert_eq!(crate::checks::run_all(&crate::testing::vlan_survey()), Vec::new());
        }
    }
}
