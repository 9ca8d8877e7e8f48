//! What can be wrong: one file for each check, with its test.
//!
//! # How to write a check
//!
//! 1. A file here, named like the check's id with `_` for `-`: `mtu_between_hosts.rs` holds `mtu-between-hosts`. In it a unit
//!    struct that implements [`Check`]. `run` is a pure function: it reads the room and gives one [`Finding`] for each thing
//!    that is wrong, not one for each port. What a host does not know (`None`) is never wrong.
//! 2. A finding names the culprits first, shows the values of all sides with [`Finding::seen`]. It says what it does to
//!    a migration and how to put it right, with a command where there is one.
//! 3. A line in [`ALL`]. The registry's tests then demand that the id is the file's name, that `docs/findings.md` has a section
//!    with the id, and that the healthy room of `testing` is silent.
//! 4. If `linerate doctor --fix` shall mend it: [`Check::mending`], the wish by [`Finding::mend`], and the section says so. The
//!    tests then demand that a room in which the wish was done is silent.
//! 5. A test in the same file that makes one fault in the healthy room and calls `testing::only(&room, "id")`: the check speaks,
//!    and **no other check does**. A fault has many effects; `effects` says which findings follow from which, and tells them
//!    under their cause.
//!
//! `common` has what several checks need: which ports migrations use, what differs between places, what a switch says.

mod common;
#[cfg(test)]
pub(crate) use common::testing as testing_rooms;

mod address_taken;
mod asymmetric_routing;
mod autonegotiation_mismatch;
mod clock_not_steered;
mod clock_skew;
mod cpu_differs;
mod cpu_governor;
mod cpu_idle_states;
mod dcb_willing;
mod dcbx_differs;
mod driver_differs;
mod drops_rising;
mod duplicate_address;
mod duplicate_mac;
mod effects;
mod equal_names;
mod errors_rising;
mod ets_differs;
mod fec_against_switch;
mod firewall_drops;
mod firmware_differs;
mod gateway_dead;
mod half_duplex;
mod huge_pages_denied;
mod huge_pages_missing;
mod incast_collapse;
mod infiniband_mode;
mod interrupts_far_node;
mod interrupts_on_one_cpu;
mod kernel_too_old;
mod kvm_missing;
mod lacp_incomplete;
mod link_down;
mod link_flapping;
mod memlock_limit;
mod memory_short;
mod migration_on_management;
mod mtu_against_switch;
mod mtu_below_port;
mod mtu_between_hosts;
mod mtu_in_team;
mod mtu_path;
mod mtu_small;
mod no_second_link;
mod packet_loss;
mod pcie_below_card;
mod pcie_below_ports;
mod pfc_differs;
mod qemu_machine_types;
mod qemu_missing;
mod qemu_too_old;
mod queues_few;
mod ram_folder_unfit;
mod rdma_blocked;
mod rdma_off;
mod rdma_one_sided;
mod rdma_port_down;
mod roce_gid_missing;
mod roce_not_lossless;
mod roce_priority_differs;
mod roce_version_differs;
mod round_trip_long;
mod speed_below_ability;
mod speed_between_hosts;
mod switch_port_slower;
mod tcp_blocked;
mod team_cannot_spread;
mod team_without_monitoring;
mod throughput_below_promise;
mod throughput_below_sibling;
mod throughput_one_way;
mod two_ports_one_network;
mod unreachable;
mod vlan_between_hosts;
mod vlan_in_team;
mod vlan_not_on_switch;

use crate::model::{Finding, Room};

/// Pairs of probes, by their numbers in the matrix, of which the first moves far less than the second. One that is to
/// be measured again beside one that it is compared with.
pub fn unequal(room: &Room) -> Vec<(usize, usize)> {
    let number = |way: &common::Way<'_>| {
        let probes = &room.matrix.probes;
        way.probe.and_then(|probe| probes.iter().position(|one| std::ptr::eq(one, probe)))
    };
    let slow = common::one_way(room).into_iter().chain(common::below_sibling(room));
    let mut pairs: Vec<(usize, usize)> =
        slow.filter_map(|slow| Some((number(&slow.way)?, number(&slow.other)?))).collect();
    pairs.sort_unstable();
    pairs.dedup_by_key(|(slow, _)| *slow);
    pairs
}

/// What `linerate doctor --fix` can do about a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mending {
    /// Nothing: hands, another system or another tool are needed.
    Hands,
    /// Settings of ports, where they are the reason.
    Port,
    /// What an intent says, if the operator gives one.
    Intent,
}

/// Something that can be wrong.
pub trait Check: Sync {
    /// Its id, as in findings and in the documentation.
    fn id(&self) -> &'static str;

    /// What `linerate doctor --fix` can do about it.
    fn mending(&self) -> Mending {
        Mending::Hands
    }

    /// Everything of its sort that is wrong in the room.
    fn run(&self, room: &Room) -> Vec<Finding>;
}

/// Every check there is, by id.
pub const ALL: &[&dyn Check] = &[
    &address_taken::AddressTaken,
    &asymmetric_routing::AsymmetricRouting,
    &autonegotiation_mismatch::AutonegotiationMismatch,
    &clock_not_steered::ClockNotSteered,
    &clock_skew::ClockSkew,
    &cpu_differs::CpuDiffers,
    &cpu_governor::CpuGovernor,
    &cpu_idle_states::CpuIdleStates,
    &dcb_willing::DcbWilling,
    &dcbx_differs::DcbxDiffers,
    &driver_differs::DriverDiffers,
    &drops_rising::DropsRising,
    &duplicate_address::DuplicateAddress,
    &duplicate_mac::DuplicateMac,
    &equal_names::EqualNames,
    &errors_rising::ErrorsRising,
    &ets_differs::EtsDiffers,
    &fec_against_switch::FecAgainstSwitch,
    &firewall_drops::FirewallDrops,
    &firmware_differs::FirmwareDiffers,
    &gateway_dead::GatewayDead,
    &half_duplex::HalfDuplex,
    &huge_pages_denied::HugePagesDenied,
    &huge_pages_missing::HugePagesMissing,
    &incast_collapse::IncastCollapse,
    &infiniband_mode::InfinibandMode,
    &interrupts_far_node::InterruptsFarNode,
    &interrupts_on_one_cpu::InterruptsOnOneCpu,
    &kernel_too_old::KernelTooOld,
    &kvm_missing::KvmMissing,
    &lacp_incomplete::LacpIncomplete,
    &link_down::LinkDown,
    &link_flapping::LinkFlapping,
    &memlock_limit::MemlockLimit,
    &memory_short::MemoryShort,
    &migration_on_management::MigrationOnManagement,
    &mtu_against_switch::MtuAgainstSwitch,
    &mtu_below_port::MtuBelowPort,
    &mtu_between_hosts::MtuBetweenHosts,
    &mtu_in_team::MtuInTeam,
    &mtu_path::MtuPath,
    &mtu_small::MtuSmall,
    &no_second_link::NoSecondLink,
    &packet_loss::PacketLoss,
    &pcie_below_card::PcieBelowCard,
    &pcie_below_ports::PcieBelowPorts,
    &pfc_differs::PfcDiffers,
    &qemu_machine_types::QemuMachineTypes,
    &qemu_missing::QemuMissing,
    &qemu_too_old::QemuTooOld,
    &queues_few::QueuesFew,
    &ram_folder_unfit::RamFolderUnfit,
    &rdma_blocked::RdmaBlocked,
    &rdma_off::RdmaOff,
    &rdma_one_sided::RdmaOneSided,
    &rdma_port_down::RdmaPortDown,
    &roce_gid_missing::RoceGidMissing,
    &roce_not_lossless::RoceNotLossless,
    &roce_priority_differs::RocePriorityDiffers,
    &roce_version_differs::RoceVersionDiffers,
    &round_trip_long::RoundTripLong,
    &speed_below_ability::SpeedBelowAbility,
    &speed_between_hosts::SpeedBetweenHosts,
    &switch_port_slower::SwitchPortSlower,
    &tcp_blocked::TcpBlocked,
    &team_cannot_spread::TeamCannotSpread,
    &team_without_monitoring::TeamWithoutMonitoring,
    &throughput_below_promise::ThroughputBelowPromise,
    &throughput_below_sibling::ThroughputBelowSibling,
    &throughput_one_way::ThroughputOneWay,
    &two_ports_one_network::TwoPortsOneNetwork,
    &unreachable::Unreachable,
    &vlan_between_hosts::VlanBetweenHosts,
    &vlan_in_team::VlanInTeam,
    &vlan_not_on_switch::VlanNotOnSwitch,
];

/// Runs every check. One cause is one finding: what follows from it is told under it. The worst come first; among equals the order
/// of [`ALL`] is kept.
pub fn run_all(room: &Room) -> Vec<Finding> {
    if !room.is_told_apart() {
        let mut room = room.clone();
        room.tell_apart();
        return run_all(&room);
    }
    let all: Vec<Finding> = ALL.iter().flat_map(|check| check.run(room)).collect();
    let mut findings = effects::under_their_causes(room, all);
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::healthy_room;

    #[test]
    fn a_healthy_room_is_silent() {
        assert_eq!(run_all(&healthy_room()), Vec::new());
    }

    #[test]
    fn an_empty_room_is_silent() {
        assert_eq!(run_all(&Room::default()), Vec::new());
    }

    #[test]
    fn hosts_that_know_nothing_are_silent() {
        use crate::model::Inventory;
        let room = Room::of(vec![Inventory::new("alpha"), Inventory::new("beta")]);
        assert_eq!(run_all(&room), Vec::new());
    }

    #[test]
    fn every_check_has_its_own_file_and_section() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/checks/");
        let page = include_str!("../../../../docs/findings.md");
        let mut ids: Vec<&str> = ALL.iter().map(|check| check.id()).collect();
        for id in &ids {
            let file = format!("{folder}{}.rs", id.replace('-', "_"));
            assert!(std::path::Path::new(&file).is_file(), "{file}");
            assert!(page.contains(&format!("## {id}\n")), "docs/findings.md has no section {id}");
        }
        for check in ALL {
            let section = page.split_once(&format!("## {}\n", check.id())).unwrap().1;
            let section = section.split("\n## ").next().unwrap().trim_end();
            let last = section.lines().last().unwrap();
            let said = last.strip_prefix("`--fix`: ").unwrap_or_else(|| panic!("{}: {last}", check.id()));
            let declared = match check.mending() {
                Mending::Hands => said == "no.",
                Mending::Port => said != "no." && !said.contains("--qos"),
                Mending::Intent => said == "with `--qos FILE`.",
            };
            assert!(declared, "{}: {:?} is written as {said:?}", check.id(), check.mending());
        }
        let written = std::fs::read_dir(folder).unwrap().count();
        let sections = page.lines().filter_map(|line| line.strip_prefix("## "));
        assert_eq!(sections.collect::<Vec<_>>(), ids, "sections of docs/findings.md, in the order of ids");
        // This file, `effects` and the folder `common`.
        assert_eq!(written, ids.len() + 3, "a file of this folder is not in the registry");
        let before = ids.clone();
        ids.sort();
        ids.dedup();
        assert_eq!(before, ids, "the registry is in the order of ids");
    }
}
