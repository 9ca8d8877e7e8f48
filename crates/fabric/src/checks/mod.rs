//! What can be wrong: one table of checks. Their functions are in files by subject.
//!
//! | file | subject |
//! |---|---|
//! | `hosts` | hosts themselves: names, clocks, kernels, processors, memory |
//! | `unread` | what hosts could not read of themselves |
//! | `guests` | what guests need of a host: KVM, QEMU, a folder for their memory |
//! | `ports` | ports and their cables: link, speed, error correction, counters |
//! | `mtu` | the largest packet: of ports, switches and paths |
//! | `addresses` | addresses and routes |
//! | `teams` | teams of ports, and VLANs |
//! | `adapters` | slots, queues, interrupts, drivers |
//! | `rdma` | RDMA devices and RoCE |
//! | `qos` | priorities, shares and lossless traffic |
//! | `reach` | what probes found of reachability |
//! | `rates` | what probes measured: throughputs and round trips |
//! | `common` | what several subjects need |
//! | `effects` | which findings follow from which |
//!
//! # How to write a check
//!
//! 1. Write a function in the file of its subject, named like the check's id with `_` for `-`: `mtu_between_hosts`
//!    makes the findings of `mtu-between-hosts`. It is pure: it reads the survey and returns one [`Finding`] for each
//!    thing that is wrong, not one for each port. A value that a host does not know (`None`) is never wrong.
//! 2. Begin each finding with `common::finding`. Name the culprits first, and show the values of all sides with
//!    [`Finding::seen`]. Say what it does to a migration ([`Finding::why`]) and how to put it right, with a command
//!    where there is one.
//! 3. Add a row to [`ALL`]; the table gives findings their id. The tests then demand that the function has the id's
//!    name, and that `docs/findings.md` has a section with the id. The healthy survey of `testing` must have no
//!    finding.
//! 4. If `linerate doctor --fix` can repair it: name a [`FixKind`] in the row, add the setting by [`Finding::fix`],
//!    and say so in the section. The tests then demand that a survey with that setting has no finding.
//! 5. Add a test at the end of the same file. It makes one fault in the healthy survey and calls
//!    `testing::only(&survey, "id")`: this check finds it, and **no other check does**. If other checks find the same
//!    fault, add a row to `effects`: their findings are then listed under their cause.

mod adapters;
mod addresses;
mod common;
mod effects;
mod guests;
mod hosts;
mod mtu;
mod ports;
mod qos;
mod rates;
mod rdma;
mod reach;
mod teams;
mod unread;

pub use rates::unequal;

use crate::model::{Finding, Survey};

/// What `linerate doctor --fix` can do about a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FixKind {
    /// Nothing: hands, another system or another tool are needed.
    Hands,
    /// It changes settings of ports, where they are the reason.
    Port,
    /// It does what an intent says, if the operator gives one.
    Intent,
}

/// Something that can be wrong: a row of [`ALL`].
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// As in findings and in the documentation.
    pub id: &'static str,
    /// What `linerate doctor --fix` can do about it.
    pub fix_kind: FixKind,
    /// Finds everything of its sort. The findings have no id yet.
    run: fn(&Survey) -> Vec<Finding>,
}

impl Check {
    /// Everything of its sort that is wrong in the survey.
    pub fn findings(&self, survey: &Survey) -> Vec<Finding> {
        (self.run)(survey).into_iter().map(|finding| finding.of_check(self.id)).collect()
    }
}

/// Every check there is, by id.
#[rustfmt::skip]
pub const ALL: &[Check] = &[
    Check { id: "address-taken", fix_kind: FixKind::Hands, run: addresses::address_taken },
    Check { id: "asymmetric-routing", fix_kind: FixKind::Hands, run: addresses::asymmetric_routing },
    Check { id: "autonegotiation-mismatch", fix_kind: FixKind::Port, run: ports::autonegotiation_mismatch },
    Check { id: "clock-not-steered", fix_kind: FixKind::Hands, run: hosts::clock_not_steered },
    Check { id: "clock-skew", fix_kind: FixKind::Hands, run: hosts::clock_skew },
    Check { id: "cpu-differs", fix_kind: FixKind::Hands, run: hosts::cpu_differs },
    Check { id: "cpu-governor", fix_kind: FixKind::Hands, run: hosts::cpu_governor },
    Check { id: "cpu-idle-states", fix_kind: FixKind::Hands, run: hosts::cpu_idle_states },
    Check { id: "dcb-willing", fix_kind: FixKind::Hands, run: qos::dcb_willing },
    Check { id: "dcbx-differs", fix_kind: FixKind::Hands, run: qos::dcbx_differs },
    Check { id: "driver-differs", fix_kind: FixKind::Hands, run: adapters::driver_differs },
    Check { id: "drops-rising", fix_kind: FixKind::Hands, run: ports::drops_rising },
    Check { id: "duplicate-address", fix_kind: FixKind::Hands, run: addresses::duplicate_address },
    Check { id: "duplicate-mac", fix_kind: FixKind::Hands, run: addresses::duplicate_mac },
    Check { id: "equal-names", fix_kind: FixKind::Hands, run: hosts::equal_names },
    Check { id: "errors-rising", fix_kind: FixKind::Hands, run: ports::errors_rising },
    Check { id: "ets-differs", fix_kind: FixKind::Intent, run: qos::ets_differs },
    Check { id: "fec-against-switch", fix_kind: FixKind::Port, run: ports::fec_against_switch },
    Check { id: "firewall-drops", fix_kind: FixKind::Hands, run: reach::firewall_drops },
    Check { id: "firmware-differs", fix_kind: FixKind::Hands, run: adapters::firmware_differs },
    Check { id: "gateway-dead", fix_kind: FixKind::Hands, run: addresses::gateway_dead },
    Check { id: "half-duplex", fix_kind: FixKind::Port, run: ports::half_duplex },
    Check { id: "huge-pages-denied", fix_kind: FixKind::Hands, run: hosts::huge_pages_denied },
    Check { id: "huge-pages-missing", fix_kind: FixKind::Hands, run: hosts::huge_pages_missing },
    Check { id: "incast-collapse", fix_kind: FixKind::Hands, run: rates::incast_collapse },
    Check { id: "infiniband-mode", fix_kind: FixKind::Hands, run: rdma::infiniband_mode },
    Check { id: "interrupts-far-node", fix_kind: FixKind::Hands, run: adapters::interrupts_far_node },
    Check { id: "interrupts-on-one-cpu", fix_kind: FixKind::Hands, run: adapters::interrupts_on_one_cpu },
    Check { id: "kernel-too-old", fix_kind: FixKind::Hands, run: hosts::kernel_too_old },
    Check { id: "kvm-missing", fix_kind: FixKind::Hands, run: guests::kvm_missing },
    Check { id: "lacp-incomplete", fix_kind: FixKind::Hands, run: teams::lacp_incomplete },
    Check { id: "link-down", fix_kind: FixKind::Hands, run: ports::link_down },
    Check { id: "link-flapping", fix_kind: FixKind::Hands, run: ports::link_flapping },
    Check { id: "load-fails", fix_kind: FixKind::Hands, run: reach::load_fails },
    Check { id: "memlock-limit", fix_kind: FixKind::Hands, run: guests::memlock_limit },
    Check { id: "memory-short", fix_kind: FixKind::Hands, run: hosts::memory_short },
    Check { id: "migration-on-management", fix_kind: FixKind::Hands, run: addresses::migration_on_management },
    Check { id: "mtu-against-switch", fix_kind: FixKind::Hands, run: mtu::mtu_against_switch },
    Check { id: "mtu-below-port", fix_kind: FixKind::Port, run: mtu::mtu_below_port },
    Check { id: "mtu-between-hosts", fix_kind: FixKind::Port, run: mtu::mtu_between_hosts },
    Check { id: "mtu-in-team", fix_kind: FixKind::Port, run: mtu::mtu_in_team },
    Check { id: "mtu-path", fix_kind: FixKind::Port, run: mtu::mtu_path },
    Check { id: "mtu-small", fix_kind: FixKind::Port, run: mtu::mtu_small },
    Check { id: "no-second-link", fix_kind: FixKind::Hands, run: addresses::no_second_link },
    Check { id: "not-measured", fix_kind: FixKind::Hands, run: reach::not_measured },
    Check { id: "not-read", fix_kind: FixKind::Hands, run: unread::not_read },
    Check { id: "offloads-off", fix_kind: FixKind::Hands, run: adapters::offloads_off },
    Check { id: "packet-loss", fix_kind: FixKind::Hands, run: reach::packet_loss },
    Check { id: "pcie-below-card", fix_kind: FixKind::Hands, run: adapters::pcie_below_card },
    Check { id: "pcie-below-ports", fix_kind: FixKind::Hands, run: adapters::pcie_below_ports },
    Check { id: "pfc-differs", fix_kind: FixKind::Intent, run: qos::pfc_differs },
    Check { id: "qemu-machine-types", fix_kind: FixKind::Hands, run: guests::qemu_machine_types },
    Check { id: "qemu-missing", fix_kind: FixKind::Hands, run: guests::qemu_missing },
    Check { id: "qemu-too-old", fix_kind: FixKind::Hands, run: guests::qemu_too_old },
    Check { id: "queues-few", fix_kind: FixKind::Port, run: adapters::queues_few },
    Check { id: "ram-folder-unfit", fix_kind: FixKind::Hands, run: guests::ram_folder_unfit },
    Check { id: "rdma-below-promise", fix_kind: FixKind::Hands, run: rates::rdma_below_promise },
    Check { id: "rdma-blocked", fix_kind: FixKind::Hands, run: rdma::rdma_blocked },
    Check { id: "rdma-off", fix_kind: FixKind::Hands, run: rdma::rdma_off },
    Check { id: "rdma-one-sided", fix_kind: FixKind::Hands, run: rdma::rdma_one_sided },
    Check { id: "rdma-port-down", fix_kind: FixKind::Hands, run: rdma::rdma_port_down },
    Check { id: "roce-gid-missing", fix_kind: FixKind::Hands, run: rdma::roce_gid_missing },
    Check { id: "roce-not-lossless", fix_kind: FixKind::Intent, run: qos::roce_not_lossless },
    Check { id: "roce-priority-differs", fix_kind: FixKind::Intent, run: qos::roce_priority_differs },
    Check { id: "roce-version-differs", fix_kind: FixKind::Intent, run: rdma::roce_version_differs },
    Check { id: "round-trip-long", fix_kind: FixKind::Hands, run: rates::round_trip_long },
    Check { id: "speed-below-ability", fix_kind: FixKind::Port, run: ports::speed_below_ability },
    Check { id: "speed-between-hosts", fix_kind: FixKind::Hands, run: ports::speed_between_hosts },
    Check { id: "switch-port-slower", fix_kind: FixKind::Hands, run: ports::switch_port_slower },
    Check { id: "tcp-blocked", fix_kind: FixKind::Hands, run: reach::tcp_blocked },
    Check { id: "team-cannot-spread", fix_kind: FixKind::Hands, run: teams::team_cannot_spread },
    Check { id: "team-without-monitoring", fix_kind: FixKind::Hands, run: teams::team_without_monitoring },
    Check { id: "throughput-below-promise", fix_kind: FixKind::Hands, run: rates::throughput_below_promise },
    Check { id: "throughput-below-sibling", fix_kind: FixKind::Hands, run: rates::throughput_below_sibling },
    Check { id: "throughput-one-way", fix_kind: FixKind::Hands, run: rates::throughput_one_way },
    Check { id: "two-ports-one-network", fix_kind: FixKind::Hands, run: addresses::two_ports_one_network },
    Check { id: "unreachable", fix_kind: FixKind::Hands, run: reach::unreachable },
    Check { id: "vlan-between-hosts", fix_kind: FixKind::Hands, run: teams::vlan_between_hosts },
    Check { id: "vlan-in-team", fix_kind: FixKind::Hands, run: teams::vlan_in_team },
    Check { id: "vlan-not-on-switch", fix_kind: FixKind::Hands, run: teams::vlan_not_on_switch },
];

/// Runs every check. One cause is one finding: what follows from it is listed under it. The worst come first; among
/// equals the order of [`ALL`] is kept.
pub fn run_all(survey: &Survey) -> Vec<Finding> {
    if !survey.has_unique_names() {
        let mut survey = survey.clone();
        survey.make_names_unique();
        return run_all(&survey);
    }
    let all: Vec<Finding> = ALL.iter().flat_map(|check| check.findings(survey)).collect();
    let mut findings = effects::under_their_causes(survey, all);
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::healthy_survey;

    #[test]
    fn a_healthy_survey_is_silent() {
        assert_eq!(run_all(&healthy_survey()), Vec::new());
    }

    #[test]
    fn an_empty_survey_is_silent() {
        assert_eq!(run_all(&Survey::default()), Vec::new());
    }

    #[test]
    fn hosts_that_know_nothing_are_silent() {
        use crate::model::Inventory;
        let survey = Survey::of(vec![Inventory::new("alpha"), Inventory::new("beta")]);
        assert_eq!(run_all(&survey), Vec::new());
    }

    #[test]
    fn every_check_has_its_own_function_and_section() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/checks/");
        let files = std::fs::read_dir(folder).unwrap();
        let code: String = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect();
        let functions = |name: &str| {
            code.matches(&format!("pub(super) fn {name}(survey: &Survey) -> Vec<Finding>")).count()
        };
        let page = include_str!("../../../../docs/findings.md");
        let mut ids: Vec<&str> = ALL.iter().map(|check| check.id).collect();
        for id in &ids {
            assert_eq!(functions(&id.replace('-', "_")), 1, "{id}");
            assert!(page.contains(&format!("## {id}\n")), "docs/findings.md has no section {id}");
        }
        for check in ALL {
            let section = page.split_once(&format!("## {}\n", check.id)).unwrap().1;
            let section = section.split("\n## ").next().unwrap().trim_end();
            let last = section.split("\n\n").last().unwrap();
            let fix_text = last.strip_prefix("`--fix`: ").unwrap_or_else(|| panic!("{}: {last}", check.id));
            let declared = match check.fix_kind {
                FixKind::Hands => fix_text == "no.",
                FixKind::Port => fix_text != "no." && !fix_text.contains("--qos"),
                FixKind::Intent => fix_text == "with `--qos FILE`.",
            };
            assert!(declared, "{}: {:?} is written as {fix_text:?}", check.id, check.fix_kind);
        }
        let written = code.lines().filter(|line| {
            line.starts_with("pub(super) fn ") && line.ends_with("(survey: &Survey) -> Vec<Finding> {")
        });
        let sections = page.lines().filter_map(|line| line.strip_prefix("## "));
        assert_eq!(sections.collect::<Vec<_>>(), ids, "sections of docs/findings.md, in the order of ids");
        assert_eq!(written.count(), ids.len(), "a function of this folder is not in the table");
        let before = ids.clone();
        ids.sort();
        ids.dedup();
        assert_eq!(before, ids, "the table is in the order of ids");
    }
}
