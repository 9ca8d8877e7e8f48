//! RDMA devices and RoCE.

use std::net::{IpAddr, Ipv6Addr};

use crate::model::{
    End, Finding, Gid, GidKind, Inventory, LinkLayer, Location, Port, PortRef, Probe, RdmaDevice, RdmaPort,
    Segment, Selector, Severity, Survey,
};

use super::common::{carriers, differ, finding, merged, migration_ports, migration_segments, values_of};
use super::qos::advise_intent;

/// The RDMA port of a network port.
fn rdma_of<'a>(at: PortRef<'a>) -> Option<(&'a RdmaDevice, &'a RdmaPort)> {
    let ours = |port: &&RdmaPort| port.port.as_ref() == Some(&at.port.name) || gid_of(port, at.port);
    at.host.rdma.iter().flatten().find_map(|device| Some((device, device.ports.iter().find(ours)?)))
}

fn gid_of(rdma: &RdmaPort, port: &Port) -> bool {
    rdma.port.is_none() && rdma.gids.iter().any(|gid| gid.port.as_ref() == Some(&port.name))
}

/// The RDMA port of a network port, if it speaks RoCE.
pub(super) fn roce_of<'a>(at: PortRef<'a>) -> Option<(&'a RdmaDevice, &'a RdmaPort)> {
    let roce = |(device, port): &(&RdmaDevice, &RdmaPort)| {
        device.node_type.as_deref() != Some("RNIC") && port.link_layer == Some(LinkLayer::Ethernet)
    };
    rdma_of(at).filter(roce)
}

/// Some adapter of the host is in InfiniBand mode.
fn has_infiniband(host: &Inventory) -> bool {
    let mut ports = host.rdma.iter().flatten().flat_map(|device| &device.ports);
    ports.any(|port| port.link_layer == Some(LinkLayer::Infiniband))
}

/// Whether the port has GIDs of RoCE v2; `None` if its table is not known.
fn has_roce_v2(port: &RdmaPort) -> Option<bool> {
    (!port.gids.is_empty()).then(|| port.gids.iter().any(|gid| gid.kind == GidKind::RoceV2))
}

/// Which priority RoCE has on a port, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RocePriority {
    /// The application table names its protocol.
    ByProtocol(u8),
    /// The application table names the mark that its packets have.
    ByDscp(u8),
    /// Nothing names it: it has the priority of everything else.
    Unmarked,
}

impl RocePriority {
    /// Its number, if something names it.
    pub(super) fn named(self) -> Option<u8> {
        match self {
            RocePriority::ByProtocol(priority) | RocePriority::ByDscp(priority) => Some(priority),
            RocePriority::Unmarked => None,
        }
    }
}

/// Priority that RoCE has by the port's application table. `None` if the table is not known, or gives priorities to
/// marks and it is not known which mark RoCE has.
pub(super) fn roce_priority(at: PortRef<'_>, rdma: &RdmaPort) -> Option<RocePriority> {
    let table = &at.port.dcb.as_ref()?.applications;
    let protocol = table.iter().find(|one| match one.selector {
        Selector::Datagram | Selector::AnyPort => one.protocol == 4791,
        Selector::EtherType => one.protocol == 0x8915,
        _ => false,
    });
    if let Some(one) = protocol {
        return Some(RocePriority::ByProtocol(one.priority));
    }
    if !table.iter().any(|one| one.selector == Selector::Dscp) {
        return Some(RocePriority::Unmarked);
    }
    let dscp = u16::from(traffic_class(at.host, rdma)? >> 2);
    let mark = table.iter().find(|one| one.selector == Selector::Dscp && one.protocol == dscp);
    Some(mark.map_or(RocePriority::Unmarked, |one| RocePriority::ByDscp(one.priority)))
}

/// Traffic class of the agent's RDMA connections: its own, else the system's for connections that set none.
pub(super) fn traffic_class(host: &Inventory, rdma: &RdmaPort) -> Option<u8> {
    match host.agent.as_ref().and_then(|agent| agent.rdma_type_of_service) {
        Some(0) => Some(rdma.default_traffic_class.unwrap_or(0)),
        Some(own) => Some(own),
        None => rdma.default_traffic_class,
    }
}

const INFINIBAND_MODE_WHY: &str = "The adapter can do both and waits for an InfiniBand switch: at an \
    Ethernet switch it finds no link and shows no network port, so migrations go over whatever else there \
    is.";

/// An adapter in InfiniBand mode where all others speak Ethernet.
pub(super) fn infiniband_mode(survey: &Survey) -> Vec<Finding> {
    let mut findings = Vec::new();
    let ethernet_plan = survey.hosts.iter().any(|host| host.rdma.is_some() && !has_infiniband(host));
    for host in &survey.hosts {
        for device in host.rdma.iter().flatten() {
            let lost = |port: &&RdmaPort| {
                let down = port.state.as_deref().is_some_and(|state| !state.contains("ACTIVE"));
                port.link_layer == Some(LinkLayer::Infiniband) && (ethernet_plan || down)
            };
            let ports: Vec<&RdmaPort> = device.ports.iter().filter(lost).collect();
            if !ports.is_empty() {
                findings.push(infiniband_mode_finding(host, device, &ports));
            }
        }
    }
    findings
}

fn infiniband_mode_finding(host: &Inventory, device: &RdmaDevice, ports: &[&RdmaPort]) -> Finding {
    let location = Location::port(&host.host, &device.name);
    let title = "in InfiniBand mode, while other hosts speak Ethernet or no InfiniBand switch answers";
    let mut finding = finding(Severity::Error, title).at(location.clone()).why(INFINIBAND_MODE_WHY);
    for port in ports {
        let state = port.state.as_deref().unwrap_or("unknown");
        let what = format!("port {}", port.number);
        finding = finding.seen(location.clone(), &what, format!("InfiniBand, state {state}"));
    }
    if host.system.secure_boot == Some(true) {
        let step =
            "Secure Boot is on, and firmware tools do not see the adapter then: switch it off for the change";
        finding =
            finding.seen(Location::host(&host.host), "Secure Boot", "on").step(Some(location.clone()), step);
    }
    let address = device.pcie_address.as_deref().unwrap_or("ADDRESS");
    let types: Vec<String> = ports.iter().map(|port| format!("LINK_TYPE_P{}=2", port.number)).collect();
    let command = format!("mstconfig -d {address} set {}", types.join(" "));
    finding
        .command(
            location.clone(),
            "change the adapter to Ethernet (package mstflint; mlxconfig of the vendor does the same)",
            command,
        )
        .step(Some(location), "restart the host")
}

const RDMA_OFF_WHY: &str = "RDMA moves memory without the processors of both hosts; it is there and not \
    used. TCP works meanwhile, and costs processor time.";

/// Drivers whose adapters all speak RDMA, with the module that does it.
const RDMA_MODULES: [(&str, &str); 6] = [
    ("mlx5_core", "mlx5_ib"),
    ("mlx4_en", "mlx4_ib"),
    ("bnxt_en", "bnxt_re"),
    ("ice", "irdma"),
    ("qede", "qedr"),
    ("cxgb4", "iw_cxgb4"),
];

/// Adapters that could do RDMA on a network where no host does.
pub(super) fn rdma_off(survey: &Survey) -> Vec<Finding> {
    migration_segments(survey).iter().filter_map(|segment| rdma_off_finding(survey, segment)).collect()
}

fn rdma_off_finding(survey: &Survey, segment: &Segment<'_>) -> Option<Finding> {
    let ports = carriers(survey, segment);
    let off = |at: &PortRef<'_>| at.host.rdma.is_some() && rdma_of(*at).is_none() && !has_infiniband(at.host);
    // On one side only is `rdma-one-sided`.
    if ports.is_empty() || !ports.iter().all(|at| off(at) && rdma_module(at).is_some()) {
        return None;
    }
    let title = format!("no RDMA on {}, though all adapters can", segment.network);
    let mut finding = finding(Severity::Hint, title).why(RDMA_OFF_WHY);
    for at in &ports {
        finding = finding.at(at.location()).seen(at.location(), "RDMA device", "none");
    }
    for at in &ports {
        let command = format!("modprobe {}", rdma_module(at).unwrap_or("MODULE"));
        finding =
            finding.command(at.location(), "load the adapter's RDMA module (package rdma-core)", command);
    }
    Some(finding)
}

/// The RDMA module of the adapter's driver.
fn rdma_module(at: &PortRef<'_>) -> Option<&'static str> {
    let driver = at.port.driver.as_deref()?;
    RDMA_MODULES.iter().find(|(name, _)| *name == driver).map(|(_, module)| *module)
}

const RDMA_ONE_SIDED_WHY: &str = "RDMA needs both ends: migrations between these hosts fall back to TCP \
    without any error, slower and with more processor time. In a published comparison on busy Windows hosts \
    with 25 Gb/s, migrations took 60 % less time with RDMA.";

/// RDMA on some hosts of a network and not on others.
pub(super) fn rdma_one_sided(survey: &Survey) -> Vec<Finding> {
    migration_segments(survey).iter().filter_map(|segment| rdma_one_sided_finding(survey, segment)).collect()
}

fn rdma_one_sided_finding(survey: &Survey, segment: &Segment<'_>) -> Option<Finding> {
    // An adapter in InfiniBand mode has a finding of its own.
    let known = |at: &PortRef<'_>| at.host.rdma.is_some() && !has_infiniband(at.host);
    let ports: Vec<PortRef<'_>> = carriers(survey, segment).into_iter().filter(known).collect();
    let (with, without): (Vec<&PortRef<'_>>, Vec<&PortRef<'_>>) =
        ports.iter().partition(|at| rdma_of(**at).is_some());
    if with.is_empty() || without.is_empty() {
        return None;
    }
    let title = format!("no RDMA here, but on {} other ports of {}", with.len(), segment.network);
    let mut finding = finding(Severity::Warning, title).why(RDMA_ONE_SIDED_WHY);
    for at in &without {
        finding = finding.at(at.location()).seen(at.location(), "RDMA device", "none");
    }
    for at in &with {
        let device = rdma_of(**at).map_or("", |(device, _)| device.name.as_str());
        finding = finding.seen(at.location(), "RDMA device", device);
    }
    for at in &without {
        finding = finding.command(
            at.location(),
            "see which RDMA devices there are (package iproute2)",
            "rdma link show",
        );
    }
    Some(finding.step(
        None,
        "load the adapter's RDMA module (mlx5_ib, bnxt_re, irdma), and look whether its firmware allows RoCE",
    ))
}

const RDMA_PORT_DOWN_WHY: &str = "The network port works, so everything looks well; RDMA connections over it \
    fail, and migrations fall back to TCP.";

/// An RDMA port that is down while its network port has a link.
pub(super) fn rdma_port_down(survey: &Survey) -> Vec<Finding> {
    migration_ports(survey).into_iter().filter_map(rdma_port_down_finding).collect()
}

fn rdma_port_down_finding(at: PortRef<'_>) -> Option<Finding> {
    let (device, port) = roce_of(at)?;
    let state = port.state.as_deref()?;
    if state.contains("ACTIVE") || at.port.up == Some(false) || at.port.carrier != Some(true) {
        return None;
    }
    let name = &device.name;
    let finding = finding(Severity::Warning, format!("the link is up, but RDMA device {name} is {state}"))
        .at(at.location())
        .seen(at.location(), "carrier", "there")
        .seen(at.location(), &format!("state of {name}"), state)
        .why(RDMA_PORT_DOWN_WHY)
        .command(at.location(), "see what the device says", format!("rdma link show {name}/{}", port.number))
        .step(None, "load the driver's RDMA module anew; look into the kernel's log for the device");
    Some(finding)
}

const RDMA_BLOCKED_WHY: &str = "TCP works and RDMA does not: each migration tries RDMA on this link, loses \
    time with it, and falls back to TCP.";

/// RDMA that gets nothing through between ports that both have it.
pub(super) fn rdma_blocked(survey: &Survey) -> Vec<Finding> {
    let findings = survey.matrix.probes.iter().filter_map(|probe| rdma_blocked_finding(survey, probe));
    // Both directions between two ports are one fault.
    merged(findings, |one, other| one.locations.iter().all(|location| other.locations.contains(location)))
}

fn rdma_blocked_finding(survey: &Survey, probe: &Probe) -> Option<Finding> {
    let why = probe.rdma_failure.as_ref()?;
    // What TCP cannot do either is no matter of RDMA.
    probe.throughput_mbps?;
    if is_explained(survey, &probe.from) || is_explained(survey, &probe.to) {
        return None;
    }
    let (from, to) =
        (Location::port(&probe.from.host, &probe.from.port), Location::port(&probe.to.host, &probe.to.port));
    let finding = finding(Severity::Warning, format!("TCP reaches {to}, RDMA does not"))
        .at(from.clone())
        .at(to)
        .seen(from.clone(), "what happened", why)
        .why(RDMA_BLOCKED_WHY)
        .step(None, "let UDP port 4791 (RoCE v2) pass in firewalls and switches, both ways")
        .command(from, "try RDMA by itself", format!("rping -c -a {} -C 1 -v", probe.to.ip));
    Some(finding)
}

/// Ports and GIDs that cannot work have findings of their own.
fn is_explained(survey: &Survey, end: &End) -> bool {
    let faulty = |rdma: &RdmaPort| {
        let active = rdma.state.as_deref().is_none_or(|state| state.contains("ACTIVE"));
        !active || has_roce_v2(rdma) == Some(false)
    };
    survey.port(&end.host, &end.port).and_then(roce_of).is_some_and(|(_, rdma)| faulty(rdma))
}

const ROCE_GID_MISSING_WHY: &str = "RoCE finds the other side by the GID that belongs to its address. \
    Without one, RDMA connections to this address fail, and migrations fall back to TCP.";

/// An RDMA port without a GID of RoCE v2 for its address.
pub(super) fn roce_gid_missing(survey: &Survey) -> Vec<Finding> {
    let mut findings = Vec::new();
    for segment in migration_segments(survey) {
        for (at, ip) in &segment.members {
            for below in survey.below(*at) {
                let Some((device, port)) = roce_of(below) else { continue };
                if has_gid_of(port, *ip) == Some(false) {
                    findings.push(roce_gid_missing_finding(at.location(), &device.name, port, *ip));
                }
            }
        }
    }
    findings
}

fn roce_gid_missing_finding(location: Location, device: &str, port: &RdmaPort, ip: IpAddr) -> Finding {
    let title = format!("RDMA device {device} has no GID of RoCE v2 for {ip}");
    let mut finding =
        finding(Severity::Warning, title).at(location.clone()).seen(location.clone(), "address", ip);
    for gid in &port.gids {
        let kind = if gid.kind == GidKind::RoceV2 { "RoCE v2" } else { "RoCE v1" };
        finding =
            finding.seen(location.clone(), &format!("GID {}", gid.index), format!("{kind} {}", gid.gid));
    }
    finding
        .why(ROCE_GID_MISSING_WHY)
        .step(
            Some(location.clone()),
            "allow RoCE v2 in the adapter's firmware (mstconfig: ROCE_CONTROL), or \
             use an adapter that speaks it",
        )
        .command(
            location,
            "see the table",
            format!(
                "grep . \
             /sys/class/infiniband/{device}/ports/{}/gid_attrs/types/*",
                port.number
            ),
        )
}

/// Whether the table has the address for RoCE v2; `None` if the table is not known.
fn has_gid_of(port: &RdmaPort, ip: IpAddr) -> Option<bool> {
    let wanted = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let is =
        |gid: &Gid| gid.kind == GidKind::RoceV2 && gid.gid.parse::<Ipv6Addr>().is_ok_and(|gid| gid == wanted);
    has_roce_v2(port).map(|any| any && port.gids.iter().any(is))
}

const ROCE_VERSION_DIFFERS_WHY: &str = "RoCE v1 and v2 do not understand each other: connections that do not \
    name a version fail, and migrations fall back to TCP.";

/// Default versions of RoCE that differ.
pub(super) fn roce_version_differs(survey: &Survey) -> Vec<Finding> {
    migration_segments(survey)
        .iter()
        .filter_map(|segment| roce_version_differs_finding(survey, segment))
        .collect()
}

fn roce_version_differs_finding(survey: &Survey, segment: &Segment<'_>) -> Option<Finding> {
    let ports = carriers(survey, segment);
    let values = values_of(&ports, roce_version_text);
    let whereabouts = format!("on {}", segment.network);
    let finding = differ(Severity::Warning, "default RoCE version", &whereabouts, &values)?;
    let step = "or by hand: cma_roce_mode -d DEVICE -p PORT -m 2 (package rdma-core or the vendor's)";
    Some(advise_intent(finding.why(ROCE_VERSION_DIFFERS_WHY), &ports).step(None, step))
}

/// Default version of a port, as sysfs writes it.
fn roce_version_text(at: PortRef<'_>) -> Option<String> {
    roce_of(at)?.1.default_roce.clone()
}

#[cfg(test)]
mod tests {
    mod infiniband_mode {
        use crate::model::{LinkLayer, Survey};
        use crate::testing::{healthy_survey, host_mut, only};

        fn turned(survey: &mut Survey, host: &str) {
            let host = host_mut(survey, host);
            host.system.secure_boot = Some(true);
            let port = &mut host.rdma.as_mut().unwrap()[1].ports[0];
            port.link_layer = Some(LinkLayer::Infiniband);
            port.state = Some("DOWN".into());
            port.gids.clear();
        }

        #[test]
        fn adapter_command_and_secure_boot_are_named() {
            let mut survey = healthy_survey();
            turned(&mut survey, "beta");
            let finding = only(&survey, "infiniband-mode");
            assert_eq!(finding.locations[0].to_string(), "beta mlx5_1");
            assert!(finding.fixes[0].what.contains("Secure Boot is on"), "{finding:?}");
            assert_eq!(
                finding.fixes[1].command.as_deref(),
                Some("mstconfig -d 0000:3b:00.1 set LINK_TYPE_P1=2")
            );
        }

        #[test]
        fn a_survey_that_runs_infiniband_is_no_fault() {
            let mut survey = healthy_survey();
            for host in ["alpha", "beta", "gamma"] {
                turned(&mut survey, host);
                host_mut(&mut survey, host).rdma.as_mut().unwrap()[1].ports[0].state = Some("ACTIVE".into());
            }
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
        }
    }

    mod rdma_off {
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn all_can_and_none_does() {
            let mut survey = healthy_survey();
            for host in &mut survey.hosts {
                host.rdma.as_mut().unwrap().remove(1);
            }
            let finding = only(&survey, "rdma-off");
            assert_eq!(finding.title, "no RDMA on 10.1.1.0/24, though all adapters can");
            assert_eq!(finding.fixes[0].command.as_deref(), Some("modprobe mlx5_ib"));
            for host in ["alpha", "beta", "gamma"] {
                let other = port(&mut survey, host, "ens1f1");
                (other.driver, other.pcie) = (Some("e1000e".into()), None);
            }
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
        }
    }

    mod rdma_one_sided {
        use crate::testing::{healthy_survey, host_mut, only};

        #[test]
        fn the_side_without_is_named() {
            let mut survey = healthy_survey();
            host_mut(&mut survey, "beta").rdma.as_mut().unwrap().remove(1);
            let finding = only(&survey, "rdma-one-sided");
            assert_eq!(finding.title, "no RDMA here, but on 2 other ports of 10.1.1.0/24");
            assert_eq!(finding.locations.len(), 1);
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
        }

        #[test]
        fn a_host_with_unknown_state_is_no_finding() {
            let mut survey = healthy_survey();
            host_mut(&mut survey, "beta").rdma = None;
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
        }
    }

    mod rdma_port_down {
        use crate::testing::{healthy_survey, host_mut, only};

        #[test]
        fn device_and_state_are_named() {
            let mut survey = healthy_survey();
            host_mut(&mut survey, "beta").rdma.as_mut().unwrap()[1].ports[0].state = Some("DOWN".into());
            let finding = only(&survey, "rdma-port-down");
            assert_eq!(finding.title, "the link is up, but RDMA device mlx5_1 is DOWN");
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
        }
    }

    mod rdma_blocked {
        use crate::checks::run_all;
        use crate::testing::probe;
        use crate::testing::{healthy_survey, only};

        #[test]
        fn only_where_tcp_works() {
            let mut survey = healthy_survey();
            let mut blocked = probe();
            blocked.rdma_failure = Some("no answer".into());
            survey.matrix.probes = vec![blocked];
            let finding = only(&survey, "rdma-blocked");
            assert_eq!(finding.title, "TCP reaches beta ens1f0, RDMA does not");
            assert_eq!(finding.locations[0].to_string(), "alpha ens1f0");
            survey.matrix.probes[0].throughput_mbps = None;
            assert_eq!(run_all(&survey), Vec::new());
        }

        #[test]
        fn both_directions_are_one_fault() {
            let mut survey = healthy_survey();
            let mut there = probe();
            there.rdma_failure = Some("no answer".into());
            let mut back = there.clone();
            (back.from, back.to) = (there.to.clone(), there.from.clone());
            survey.matrix.probes = vec![there, back];
            let finding = only(&survey, "rdma-blocked");
            let seen: Vec<String> = finding.seen.iter().map(|seen| seen.location.to_string()).collect();
            assert_eq!(seen, ["alpha ens1f0", "beta ens1f0"]);
            let commands = finding.fixes.iter().filter(|fix| fix.command.is_some());
            assert_eq!(
                (commands.count(), finding.fixes.len()),
                (2, 3),
                "one for each direction, and what is alike once"
            );
        }
    }

    mod roce_gid_missing {
        use crate::model::GidKind;
        use crate::testing::{healthy_survey, host_mut, only};

        #[test]
        fn only_version_1() {
            let mut survey = healthy_survey();
            let port = &mut host_mut(&mut survey, "beta").rdma.as_mut().unwrap()[1].ports[0];
            port.gids.retain(|gid| gid.kind == GidKind::RoceV1);
            let finding = only(&survey, "roce-gid-missing");
            assert_eq!(finding.title, "RDMA device mlx5_1 has no GID of RoCE v2 for 10.1.1.2");
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
        }

        #[test]
        fn a_gid_of_another_address() {
            let mut survey = healthy_survey();
            let port = &mut host_mut(&mut survey, "beta").rdma.as_mut().unwrap()[1].ports[0];
            port.gids[1].gid = "0000:0000:0000:0000:0000:ffff:0a01:0163".into();
            only(&survey, "roce-gid-missing");
        }
    }

    mod roce_version_differs {
        use crate::testing::{healthy_survey, host_mut, only};

        #[test]
        fn the_other_version_is_named() {
            let mut survey = healthy_survey();
            host_mut(&mut survey, "beta").rdma.as_mut().unwrap()[1].ports[0].default_roce =
                Some("IB/RoCE v1".into());
            let finding = only(&survey, "roce-version-differs");
            assert_eq!(finding.title, "default RoCE version IB/RoCE v1 and RoCE v2 on 10.1.1.0/24");
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
        }
    }
}
