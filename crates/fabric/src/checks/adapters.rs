//! Adapters: slots, queues, interrupts, drivers.

use std::collections::{BTreeMap, BTreeSet};

use crate::link::RequestedSettings;
use crate::model::{Finding, Location, Pcie, PcieLink, PortKind, PortRef, Severity, Survey};

use super::common::{differ, finding, migration_ports, numbers, values_of};

/// A slot of a host.
struct Slot<'a> {
    ports: Vec<PortRef<'a>>,
    /// What is known of it.
    pcie: &'a Pcie,
}

/// All slots of a survey. What virtual functions move is part of what their port moves, and so is what other functions
/// move over its cable.
fn slots(survey: &Survey) -> Vec<Slot<'_>> {
    let mut slots: BTreeMap<(&str, &str), Slot<'_>> = BTreeMap::new();
    for at in survey.ports() {
        let own = at.port.pcie.as_ref().filter(|pcie| pcie.physical_function.is_none());
        let Some(pcie) = own else { continue };
        let slot = slots.entry((at.host.host.as_str(), pcie.slot()));
        let ports = &mut slot.or_insert_with(|| Slot { ports: Vec::new(), pcie }).ports;
        if !ports.iter().any(|known| known.port.shares_its_cable(at.port)) {
            ports.push(at);
        }
    }
    slots.into_values().collect()
}

impl Slot<'_> {
    /// What its ports move together as they run, megabits per second.
    fn ports_mbps(&self) -> u64 {
        self.ports.iter().filter_map(|at| at.port.link.speed_mbps).map(u64::from).sum()
    }
}

/// `x8 at 8 GT/s (56.7 Gb/s)`.
fn link_text(link: PcieLink) -> String {
    let tenths = link.throughput_mbps() / 100;
    let (speed, half) = (link.speed_mts / 1000, if link.speed_mts % 1000 == 500 { ".5" } else { "" });
    format!("x{} at {speed}{half} GT/s ({}.{} Gb/s)", link.width, tenths / 10, tenths % 10)
}

const PCIE_BELOW_CARD_WHY: &str = "Everything that the adapter moves goes through its slot. Two 100G ports \
    in an x16 slot that was wired x8 moved not quite 70 Gb/s together, and in a full slot 115 (field \
    report with ConnectX-4, on Windows).";

/// An adapter whose slot is narrower or slower than the adapter.
pub(super) fn pcie_below_card(survey: &Survey) -> Vec<Finding> {
    slots(survey).iter().filter_map(pcie_below_card_finding).collect()
}

fn pcie_below_card_finding(slot: &Slot<'_>) -> Option<Finding> {
    let (running, able) = slot.pcie.running.zip(slot.pcie.able).filter(|_| runs_below_card(slot))?;
    let first = slot.ports.first()?;
    let bounds = running.throughput_mbps() < slot.ports_mbps();
    let severity = if bounds { Severity::Warning } else { Severity::Hint };
    let title =
        format!("slot {} runs {}, the adapter can {}", slot.pcie.slot(), link_text(running), link_text(able));
    let mut finding = finding(severity, title).why(PCIE_BELOW_CARD_WHY);
    for at in &slot.ports {
        finding = finding.at(at.location());
    }
    finding = finding
        .seen(first.location(), "slot runs", link_text(running))
        .seen(first.location(), "adapter can", link_text(able))
        .seen(first.location(), "its ports together", format!("{} Mb/s", slot.ports_mbps()));
    if let Some(slot_able) = slot.pcie.slot_able {
        finding = finding.seen(first.location(), "slot can", link_text(slot_able));
    }
    let location = Some(Location::host(&first.host.host));
    let slot_is_less =
        slot.pcie.slot_able.is_some_and(|slot| slot.width < able.width || slot.speed_mts < able.speed_mts);
    finding = match slot_is_less {
        true => finding.step(
            location,
            "put the adapter into a slot that is wired for it; a long slot may have half the lanes",
        ),
        false => finding.step(
            location,
            "seat the adapter anew, and look for the slot's width and speed in the firmware's setup",
        ),
    };
    let command = format!("lspci -vv -s {} | grep -E 'LnkCap|LnkSta'", slot.pcie.address);
    Some(finding.command(first.location(), "see it", command))
}

/// The slot runs below what its adapter can do.
fn runs_below_card(slot: &Slot<'_>) -> bool {
    let pair = slot.pcie.running.zip(slot.pcie.able);
    pair.is_some_and(|(running, able)| running.width < able.width || running.speed_mts < able.speed_mts)
}

const PCIE_BELOW_PORTS_WHY: &str = "Each port alone reaches its speed, all together do not: a migration over \
    all of them is bounded by the slot.";

/// An adapter whose ports move more together than its slot.
pub(super) fn pcie_below_ports(survey: &Survey) -> Vec<Finding> {
    // A slot that is less than its adapter has a finding of its own.
    slots(survey).iter().filter(|slot| !runs_below_card(slot)).filter_map(pcie_below_ports_finding).collect()
}

fn pcie_below_ports_finding(slot: &Slot<'_>) -> Option<Finding> {
    let running = slot.pcie.running?;
    let (carried, ports) = (running.throughput_mbps(), slot.ports_mbps());
    if carried >= ports {
        return None;
    }
    let title = format!(
        "ports of {ports} Mb/s together in slot {} that runs {}",
        slot.pcie.slot(),
        link_text(running)
    );
    let mut finding = finding(Severity::Warning, title).why(PCIE_BELOW_PORTS_WHY);
    for at in &slot.ports {
        let speed = at.port.link.speed_mbps.map_or("unknown".to_owned(), |speed| format!("{speed} Mb/s"));
        finding = finding.at(at.location()).seen(at.location(), "speed", speed);
    }
    let first = slot.ports.first()?;
    Some(finding.seen(first.location(), "slot runs", link_text(running)).step(
        None,
        "spread the links over two adapters in two slots, or count on the slot's figure when you plan",
    ))
}

const INTERRUPTS_ON_ONE_CPU_WHY: &str = "One processor fetches the packets of all queues; when it is busy, \
    the port waits. It shows as a migration that stays far below the link's speed with one core at its \
    limit.";

/// All interrupts of a port on one processor.
pub(super) fn interrupts_on_one_cpu(survey: &Survey) -> Vec<Finding> {
    migration_ports(survey).into_iter().filter_map(interrupts_on_one_cpu_finding).collect()
}

fn interrupts_on_one_cpu_finding(at: PortRef<'_>) -> Option<Finding> {
    let cpu = only_one(at)?;
    let count = at.port.irqs.len();
    let finding = finding(Severity::Warning, format!("all {count} interrupts on CPU {cpu}"))
        .at(at.location())
        .seen(at.location(), "interrupts", count)
        .seen(at.location(), "taken by CPUs", cpu)
        .why(INTERRUPTS_ON_ONE_CPU_WHY)
        .command(at.location(), "let a daemon spread them", "systemctl enable --now irqbalance")
        .step(
            Some(at.location()),
            "or write one CPU of the adapter's NUMA node into /proc/irq/NUMBER/smp_affinity_list of each",
        );
    Some(finding)
}

/// The processors that take a port's interrupts, if those of all of them are known.
fn taken_by(at: PortRef<'_>) -> Option<BTreeSet<u32>> {
    let known = at.port.irqs.len() > 1 && at.port.irqs.iter().all(|irq| !irq.cpus.is_empty());
    known.then(|| at.port.irqs.iter().flat_map(|irq| irq.cpus.iter().copied()).collect())
}

/// The only processor that takes them, though there are several queues and processors.
fn only_one(at: PortRef<'_>) -> Option<u32> {
    let several = at.port.queues.is_none_or(|queues| queues.receiving() > 1)
        && at.host.cpu.online.is_none_or(|count| count > 1);
    let cpus = taken_by(at).filter(|cpus| several && cpus.len() == 1)?;
    cpus.first().copied()
}

const INTERRUPTS_FAR_NODE_WHY: &str = "Every packet crosses from one processor socket to the other and back: \
    more delay, and less throughput under load. Threads near the adapter brought the delay of an RDMA link \
    from 1.9 to 1.4 µs in a published comparison.";

/// Interrupts of a port on processors of another NUMA node than the adapter's.
pub(super) fn interrupts_far_node(survey: &Survey) -> Vec<Finding> {
    migration_ports(survey).into_iter().filter_map(interrupts_far_node_finding).collect()
}

fn interrupts_far_node_finding(at: PortRef<'_>) -> Option<Finding> {
    let number = at.port.numa_node?;
    let near = &at.host.cpu.nodes.iter().find(|node| node.number == number)?.cpus;
    let cpus = taken_by(at).filter(|_| only_one(at).is_none())?;
    let far = cpus.iter().filter(|cpu| !near.contains(cpu)).count();
    // Some spread over both is what irqbalance does, and no fault.
    if near.is_empty() || far < cpus.len() {
        return None;
    }
    let taken: Vec<u32> = cpus.into_iter().collect();
    let name = &at.port.name;
    let finding = finding(
        Severity::Warning,
        format!("on NUMA node {number}, all interrupts on CPUs of another"),
    )
    .at(at.location())
    .seen(at.location(), "NUMA node", number)
    .seen(at.location(), "CPUs of this node", numbers(near))
    .seen(at.location(), "interrupts taken by CPUs", numbers(&taken))
    .why(INTERRUPTS_FAR_NODE_WHY)
    .step(
        Some(at.location()),
        format!(
            "write CPUs of node {number} into /proc/irq/NUMBER/smp_affinity_list of each interrupt of {name}"
        ),
    )
    .step(
        Some(at.location()),
        "if irqbalance runs: see that it is not set to avoid this node (IRQBALANCE_BANNED_CPULIST)",
    );
    Some(finding)
}

const QUEUES_FEW_WHY: &str = "Each queue is fetched by one core. With too few of them a core is busy with \
    receiving while others wait, and the port never reaches its speed.";

/// Below it, one core fetches everything.
const SPEED_MIN_MBPS: u32 = 10_000;

/// More than these are no gain for migrations: a link has at most eight connections for each 100 Gb/s.
const QUEUES_ENOUGH: u32 = 8;

/// A fast port with fewer queues than there are cores for it.
pub(super) fn queues_few(survey: &Survey) -> Vec<Finding> {
    migration_ports(survey).into_iter().filter_map(queues_few_finding).collect()
}

fn queues_few_finding(at: PortRef<'_>) -> Option<Finding> {
    // Speeds of virtual ports mean nothing.
    let physical = at.port.kind == PortKind::Physical;
    let speed = at.port.link.speed_mbps.filter(|speed| physical && *speed >= SPEED_MIN_MBPS)?;
    let queues = at.port.queues.filter(|queues| queues.receiving() > 0)?;
    let cores = at.host.cpu.cores.or(at.host.cpu.online)?;
    let (now, wanted) = (queues.receiving(), cores.min(queues.receiving_max()).min(QUEUES_ENOUGH));
    if now >= wanted {
        return None;
    }
    let severity = if now == 1 { Severity::Warning } else { Severity::Hint };
    let kind = if queues.combined_max.unwrap_or(0) > 0 { "combined" } else { "rx" };
    let finding = finding(severity, format!("{now} receive queues at {speed} Mb/s, {wanted} are of use"))
        .at(at.location())
        .seen(at.location(), "receive queues", now)
        .seen(at.location(), "most that the adapter can", queues.receiving_max())
        .seen(at.location(), "cores", cores)
        .why(QUEUES_FEW_WHY)
        .fix(
            at.location(),
            "more queues",
            format!("ethtool -L {} {kind} {wanted}", at.port.name),
            RequestedSettings { queues: Some(wanted), ..RequestedSettings::default() },
        );
    Some(finding)
}

const OFFLOADS_OFF_WHY: &str = "The adapter or the kernel could do this for many packets at once. Without it \
    processors cut, join and sum every packet: they are busy with it, or the port does not reach its speed.";

/// What every adapter of this speed can do, by the kernel's names. One that is on is enough. The last word is that of
/// `ethtool -K`.
const OFFLOADS: [(&str, &[&str], &str); 4] = [
    ("TSO", &["tx-tcp-segmentation", "tx-tcp6-segmentation"], "tso"),
    ("GRO", &["rx-gro"], "gro"),
    ("checksums of what is sent", &["tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"], "tx"),
    ("checksums of what is received", &["rx-checksum"], "rx"),
];

/// A fast port whose offloads are switched off.
pub(super) fn offloads_off(survey: &Survey) -> Vec<Finding> {
    migration_ports(survey).into_iter().filter_map(offloads_off_finding).collect()
}

fn offloads_off_finding(at: PortRef<'_>) -> Option<Finding> {
    // Speeds of virtual ports mean nothing.
    let physical = at.port.kind == PortKind::Physical;
    let speed = at.port.link.speed_mbps.filter(|speed| physical && *speed >= SPEED_MIN_MBPS)?;
    let (mut names, mut words) = (Vec::new(), String::new());
    for (name, features, word) in OFFLOADS {
        // Features that the adapter does not have are not there.
        let known: Vec<bool> =
            features.iter().filter_map(|feature| at.port.offloads.get(*feature).copied()).collect();
        if !known.is_empty() && !known.contains(&true) {
            names.push(name);
            words += &format!(" {word} on");
        }
    }
    names.first()?;
    let title = format!("switched off at {speed} Mb/s: {}", names.join(", "));
    let mut finding = finding(Severity::Hint, title).at(at.location()).why(OFFLOADS_OFF_WHY);
    for name in names {
        finding = finding.seen(at.location(), name, "off");
    }
    Some(finding.command(at.location(), "switch it on", format!("ethtool -K {}{words}", at.port.name)))
}

const DRIVER_DIFFERS_WHY: &str = "The kernel's driver and the vendor's have other defaults for queues, \
    offloads and DCB: equal hosts are no longer equal.";

/// Equal adapters with different drivers.
pub(super) fn driver_differs(survey: &Survey) -> Vec<Finding> {
    let models = equals(survey);
    models.iter().filter_map(|(model, ports)| driver_differs_finding(model, ports)).collect()
}

fn driver_differs_finding(model: &str, ports: &[PortRef<'_>]) -> Option<Finding> {
    let values = values_of(ports, driver_text);
    let finding = differ(Severity::Hint, "driver", &format!("on equal adapters ({model})"), &values)?;
    Some(finding.why(DRIVER_DIFFERS_WHY).step(
        None,
        "install the same driver on all hosts; the kernel's own is the one that is kept up with it",
    ))
}

/// Name, and version if it is not the kernel's own.
fn driver_text(at: PortRef<'_>) -> Option<String> {
    let driver = at.port.driver.as_ref()?;
    let own =
        at.port.driver_version.as_ref().filter(|version| at.host.system.kernel.as_ref() != Some(*version));
    Some(own.map_or_else(|| driver.clone(), |version| format!("{driver} {version}")))
}

const FIRMWARE_DIFFERS_WHY: &str = "Faults and defaults change with the firmware: what works between two \
    hosts fails between two others, and this is rarely suspected.";

/// Equal adapters with different firmware.
pub(super) fn firmware_differs(survey: &Survey) -> Vec<Finding> {
    let models = equals(survey);
    models.iter().filter_map(|(model, ports)| firmware_differs_finding(model, ports)).collect()
}

fn firmware_differs_finding(model: &str, ports: &[PortRef<'_>]) -> Option<Finding> {
    let values = values_of(ports, firmware_text);
    let finding = differ(Severity::Hint, "firmware", &format!("on equal adapters ({model})"), &values)?;
    Some(finding.why(FIRMWARE_DIFFERS_WHY).step(
        None,
        "bring all to the newest that the vendor recommends: \
         fwupdmgr update, or the vendor's tool (mstfwmanager)",
    ))
}

fn firmware_text(at: PortRef<'_>) -> Option<String> {
    at.port.firmware.clone()
}

/// Ports of the survey by the model of their adapter, where there are at least two.
fn equals(survey: &Survey) -> BTreeMap<&str, Vec<PortRef<'_>>> {
    let mut models: BTreeMap<&str, Vec<PortRef<'_>>> = BTreeMap::new();
    for at in survey.ports() {
        if let Some(id) = at.port.pcie.as_ref().and_then(|pcie| pcie.id.as_deref()) {
            models.entry(id).or_default().push(at);
        }
    }
    models.retain(|_, ports| ports.len() > 1);
    models
}

#[cfg(test)]
mod tests {
    mod pcie_below_card {
        use crate::model::{PcieLink, Severity};
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn a_slot_with_half_the_lanes() {
            let mut survey = healthy_survey();
            for name in ["ens1f0", "ens1f1"] {
                port(&mut survey, "beta", name).pcie.as_mut().unwrap().running =
                    Some(PcieLink { speed_mts: 8000, width: 4 });
            }
            let finding = only(&survey, "pcie-below-card");
            assert_eq!(finding.severity, Severity::Warning);
            assert_eq!(
                finding.title,
                "slot 0000:3b:00 runs x4 at 8 GT/s (28.3 Gb/s), the adapter can x8 at 8 GT/s (56.7 Gb/s)"
            );
            let locations: Vec<String> = finding.locations.iter().map(ToString::to_string).collect();
            assert_eq!(locations, ["beta ens1f0", "beta ens1f1"], "one finding for the slot");
        }

        #[test]
        fn a_slot_that_is_enough_all_the_same_is_a_hint() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f0").pcie.as_mut().unwrap().able =
                Some(PcieLink { speed_mts: 16_000, width: 8 });
            assert_eq!(only(&survey, "pcie-below-card").severity, Severity::Hint);
        }
    }

    mod pcie_below_ports {
        use crate::model::PcieLink;
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn two_25g_ports_on_four_lanes() {
            let mut survey = healthy_survey();
            for name in ["ens1f0", "ens1f1"] {
                let pcie = port(&mut survey, "beta", name).pcie.as_mut().unwrap();
                let four = Some(PcieLink { speed_mts: 8000, width: 4 });
                (pcie.running, pcie.able) = (four, four);
            }
            let finding = only(&survey, "pcie-below-ports");
            assert_eq!(
                finding.title,
                "ports of 50000 Mb/s together in slot 0000:3b:00 that runs x4 at 8 GT/s (28.3 Gb/s)"
            );
            assert_eq!(finding.locations.len(), 2);
            assert_eq!(finding.locations[0].host, "beta");
        }

        #[test]
        fn virtual_functions_move_nothing_beside_their_port() {
            let mut survey = healthy_survey();
            let host = crate::testing::host_mut(&mut survey, "beta");
            let first = host.ports.iter().find(|port| port.name == "ens1f0").cloned().unwrap();
            for number in 0..4 {
                let mut one = first.clone();
                (one.name, one.mac, one.addresses) = (format!("ens1f0v{number}"), None, Vec::new());
                let pcie = one.pcie.as_mut().unwrap();
                let address = std::mem::replace(&mut pcie.address, format!("0000:3b:00.{}", number + 2));
                pcie.physical_function = Some(address);
                host.ports.push(one);
            }
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
        }
    }

    mod functions_of_one_cable {
        use crate::testing::{healthy_survey, host_mut};

        /// Four partitions (NPAR) say the speed of the cable each.
        #[test]
        fn they_move_what_the_cable_carries() {
            let mut survey = healthy_survey();
            let host = host_mut(&mut survey, "beta");
            let first = host.ports.iter_mut().find(|port| port.name == "ens1f0").unwrap();
            first.physical_port = Some("0c42a1000000".into());
            let first = first.clone();
            for number in 2..5 {
                let mut one = first.clone();
                (one.name, one.mac, one.addresses) = (format!("ens1f{number}"), None, Vec::new());
                one.pcie.as_mut().unwrap().address = format!("0000:3b:00.{number}");
                host.ports.push(one);
            }
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
        }
    }

    mod interrupts_on_one_cpu {
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn the_processor_is_named() {
            let mut survey = healthy_survey();
            for irq in &mut port(&mut survey, "beta", "ens1f1").irqs {
                irq.cpus = vec![0];
            }
            let finding = only(&survey, "interrupts-on-one-cpu");
            assert_eq!(finding.title, "all 8 interrupts on CPU 0");
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
        }
    }

    mod interrupts_far_node {
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn node_and_processors_are_named() {
            let mut survey = healthy_survey();
            for (number, irq) in (8..).zip(&mut port(&mut survey, "beta", "ens1f1").irqs) {
                irq.cpus = vec![number];
            }
            let finding = only(&survey, "interrupts-far-node");
            assert_eq!(finding.title, "on NUMA node 0, all interrupts on CPUs of another");
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
            assert_eq!(finding.seen[2].value, "8, 9, 10, 11, 12, 13, 14, 15");
        }
    }

    mod queues_few {
        use crate::model::Severity;
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn one_queue_for_25_gigabits() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f1").queues.as_mut().unwrap().combined = Some(1);
            let finding = only(&survey, "queues-few");
            assert_eq!(finding.title, "1 receive queues at 25000 Mb/s, 8 are of use");
            assert_eq!(
                (finding.locations[0].to_string().as_str(), finding.severity),
                ("beta ens1f1", Severity::Warning)
            );
            assert_eq!(finding.fixes[0].command.as_deref(), Some("ethtool -L ens1f1 combined 8"));
        }
    }

    mod offloads_off {
        use crate::testing::{healthy_survey, only, port, probe};

        #[test]
        fn what_the_adapter_has_and_does_not_use_is_named() {
            let mut survey = healthy_survey();
            let offloads = &mut port(&mut survey, "beta", "ens1f1").offloads;
            offloads.insert("tx-tcp-segmentation".into(), false);
            offloads.insert("rx-gro".into(), false);
            // One of two that do the same is on, and nobody can switch the other.
            offloads.insert("tx-checksum-ipv4".into(), false);
            offloads.remove("rx-checksum");
            let finding = only(&survey, "offloads-off");
            assert_eq!(finding.title, "switched off at 25000 Mb/s: TSO, GRO");
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
            assert_eq!(finding.fixes[0].command.as_deref(), Some("ethtool -K ens1f1 tso on gro on"));
            // Migrations do not need it at 1 Gb/s.
            port(&mut survey, "beta", "ens1f1").offloads.clear();
            port(&mut survey, "beta", "eno1").offloads.insert("rx-gro".into(), false);
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
        }

        #[test]
        fn a_port_that_moves_little_without_them_is_one_finding() {
            use crate::model::Severity;
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f0").offloads.insert("rx-gro".into(), false);
            let mut slow = probe();
            slow.throughput_mbps = Some(9000);
            survey.matrix.probes = vec![slow];
            let finding = only(&survey, "offloads-off");
            assert_eq!(finding.effects[0].id, "throughput-below-promise");
            assert_eq!(finding.severity, Severity::Warning);
        }
    }

    mod driver_differs {
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn a_vendors_driver_among_kernel_drivers_is_reported() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f1").driver_version = Some("5.8-1.1.2".into());
            let finding = only(&survey, "driver-differs");
            assert_eq!(
                finding.title,
                "driver mlx5_core 5.8-1.1.2 and mlx5_core on equal adapters (15b3:1015)"
            );
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
        }

        #[test]
        fn another_kernel_is_no_other_driver() {
            let mut survey = healthy_survey();
            crate::testing::kernel(&mut survey, "beta", "6.12.30-amd64");
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
        }
    }

    mod firmware_differs {
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn an_adapter_with_older_firmware_is_reported() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f1").firmware = Some("14.20.1010".into());
            let finding = only(&survey, "firmware-differs");
            assert_eq!(finding.title, "firmware 14.20.1010 and 14.32.1900 on equal adapters (15b3:1015)");
            assert_eq!(finding.locations.len(), 1);
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
        }
    }
}
