//! What guests need of a host: KVM, QEMU, a folder for their memory.

use std::collections::BTreeSet;

use crate::model::{Finding, Inventory, Limit, Location, RamFolder, Severity, Survey};

use super::common::{finding, join};
use super::hosts::is_short;

const KVM_MISSING_WHY: &str = "A guest that runs with KVM cannot go to a host without it: it is refused. \
    Without KVM guests are emulated, many times slower.";

pub(super) fn kvm_missing(survey: &Survey) -> Vec<Finding> {
    let without: Vec<_> = survey.hosts.iter().filter(|host| host.hypervisor.kvm == Some(false)).collect();
    if without.is_empty() {
        return Vec::new();
    }
    // Where no host has it, no host has a guest that needs it.
    let no_host = survey.hosts.iter().all(|host| host.hypervisor.kvm == Some(false));
    let (severity, title) = match no_host {
        true => (Severity::Hint, "no KVM: guests are emulated"),
        false => (Severity::Error, "no KVM, which guests of other hosts use"),
    };
    let mut finding = finding(severity, title).why(KVM_MISSING_WHY);
    for host in &survey.hosts {
        let location = Location::host(&host.host);
        if host.hypervisor.kvm == Some(false) {
            finding = finding.at(location.clone());
        }
        let usable = match host.hypervisor.kvm {
            Some(true) => "usable",
            Some(false) => "missing, or it cannot be opened",
            None => "unknown",
        };
        finding = finding.seen(location, "/dev/kvm", usable);
    }
    let first = without.first().map(|host| Location::host(&host.host));
    let finding = finding.step(
        None,
        "switch virtualisation (VT-x, AMD-V) on in the firmware; in a virtual \
         machine, let its host nest guests",
    );
    match first {
        Some(location) => vec![finding.command(
            location,
            "load the module, and see what the kernel says",
            "modprobe kvm_intel || modprobe kvm_amd; dmesg | grep -i kvm",
        )],
        None => vec![finding],
    }
}

const QEMU_MISSING_WHY: &str = "No guest can run on this host, and none can go to it.";

/// A host whose agent has no QEMU that runs.
pub(super) fn qemu_missing(survey: &Survey) -> Vec<Finding> {
    // Without an agent they were not asked for.
    let with_agent = survey.hosts.iter().filter(|host| host.agent.is_some());
    with_agent.filter_map(qemu_missing_finding).collect()
}

fn qemu_missing_finding(host: &Inventory) -> Option<Finding> {
    let all = &host.hypervisor.qemu;
    let usable = all.iter().filter(|qemu| qemu.version.is_some()).count();
    if usable > 0 && usable == all.len() {
        return None;
    }
    let location = Location::host(&host.host);
    let missing: Vec<&str> =
        all.iter().filter(|qemu| qemu.version.is_none()).map(|qemu| qemu.path.as_str()).collect();
    let (severity, title) = match (all.is_empty(), usable) {
        (true, _) => (Severity::Error, "no QEMU is configured".to_owned()),
        (false, 0) => (Severity::Error, format!("no QEMU that runs: {}", missing.join(", "))),
        (false, _) => {
            (Severity::Hint, format!("of the configured QEMUs these do not run: {}", missing.join(", ")))
        }
    };
    let mut finding = finding(severity, title).at(location.clone()).why(QEMU_MISSING_WHY);
    for qemu in all {
        finding =
            finding.seen(location.clone(), &qemu.path, qemu.version.as_deref().unwrap_or("does not answer"));
    }
    if all.is_empty() {
        finding = finding.seen(location.clone(), "QEMU", "none");
    }
    let finding = finding.step(
        Some(location.clone()),
        "install QEMU (Debian: qemu-system-x86), or correct `qemu` in the agent's configuration",
    );
    let command = missing.first().map(|path| format!("{path} --version"));
    Some(match command {
        Some(command) => finding.command(location, "try it by hand", command),
        None => finding,
    })
}

const QEMU_TOO_OLD_WHY: &str = "Migrations were never tried with a QEMU of that age: it may lack commands \
    that they need, and guests of newer QEMUs cannot go to it.";

/// Major and minor version of the oldest QEMU that migrations were tried with.
const QEMU_OLDEST: (u32, u32) = (7, 2);

/// A QEMU that is older than what Linerate is made for.
pub(super) fn qemu_too_old(survey: &Survey) -> Vec<Finding> {
    let mut findings = Vec::new();
    for host in &survey.hosts {
        let location = Location::host(&host.host);
        let versions: Vec<(u32, u32)> =
            host.hypervisor.qemu.iter().filter_map(|qemu| version_number(qemu.version.as_deref()?)).collect();
        // One that is new enough takes the guests.
        let Some(newest) = versions.iter().max().filter(|newest| **newest < QEMU_OLDEST) else { continue };
        let (oldest_major, oldest_minor) = QEMU_OLDEST;
        let title = format!("QEMU {}.{} is older than {oldest_major}.{oldest_minor}", newest.0, newest.1);
        let mut finding = finding(Severity::Error, title).at(location.clone()).why(QEMU_TOO_OLD_WHY);
        for qemu in &host.hypervisor.qemu {
            finding =
                finding.seen(location.clone(), &qemu.path, qemu.version.as_deref().unwrap_or("unknown"));
        }
        findings.push(finding.step(
            Some(location),
            "install a newer QEMU, and name it in `qemu` of the agent's configuration",
        ));
    }
    findings
}

fn version_number(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.trim().parse().ok()?, parts.next().and_then(|part| part.parse().ok()).unwrap_or(0)))
}

const QEMU_MACHINE_TYPES_WHY: &str = "A guest keeps the machine type that it was started with. A host whose \
    QEMU does not know it cannot take the guest; older types run on newer QEMUs, not the other way round.";

/// Machine types that not every host's QEMU has.
pub(super) fn qemu_machine_types(survey: &Survey) -> Vec<Finding> {
    let all: Vec<(&Inventory, BTreeSet<&str>)> = survey
        .hosts
        .iter()
        .map(|host| (host, machines(host)))
        .filter(|(_, machines)| !machines.is_empty())
        .collect();
    qemu_machine_types_finding(&all).into_iter().collect()
}

fn qemu_machine_types_finding(all: &[(&Inventory, BTreeSet<&str>)]) -> Option<Finding> {
    let every: BTreeSet<&str> = all.iter().flat_map(|(_, machines)| machines.iter().copied()).collect();
    let common: Vec<&str> =
        every.iter().copied().filter(|one| all.iter().all(|(_, has)| has.contains(one))).collect();
    if common.len() == every.len() {
        return None;
    }
    let lacks = |has: &BTreeSet<&str>| -> Vec<&str> {
        every.iter().copied().filter(|one| !has.contains(one)).collect()
    };
    let (severity, title) = match common.is_empty() {
        true => (Severity::Error, "no machine type is known to the QEMUs of all hosts".to_owned()),
        false => {
            let partly = every.iter().copied().filter(|one| !common.contains(one));
            (Severity::Warning, format!("QEMU does not know {} on all hosts", join(partly, ", ")))
        }
    };
    let mut finding = finding(severity, title).why(QEMU_MACHINE_TYPES_WHY);
    for (host, has) in all.iter().filter(|(_, has)| !lacks(has).is_empty()) {
        let location = Location::host(&host.host);
        finding = finding.at(location.clone()).seen(location, "does not know", join(lacks(has), ", "));
    }
    for (host, _) in all {
        let versions = host.hypervisor.qemu.iter().filter_map(|qemu| qemu.version.as_deref());
        finding = finding.seen(Location::host(&host.host), "QEMU", join(versions, ", "));
    }
    let step = match common.is_empty() {
        true => "install the same QEMU on all hosts".to_owned(),
        false => format!(
            "start guests with a type that all know ({}), or install the same QEMU on all hosts",
            join(common, ", ")
        ),
    };
    Some(finding.step(None, step))
}

/// What all QEMUs of a host know.
fn machines(host: &Inventory) -> BTreeSet<&str> {
    host.hypervisor.qemu.iter().flat_map(|qemu| &qemu.machines).map(String::as_str).collect()
}

const RAM_FOLDER_UNFIT_WHY: &str = "The memory of guests that arrive is a file in this folder. On a disk it \
    is as slow as the disk and wears it out; without room the guest is refused.";

/// The least guests have less; what an agent keeps free for the host by default is as much.
const ROOM_MIN: u64 = 512 << 20;

/// A folder for guest memory that is no memory, or has no room.
pub(super) fn ram_folder_unfit(survey: &Survey) -> Vec<Finding> {
    let folders =
        survey.hosts.iter().flat_map(|host| host.memory.ram_folders.iter().map(move |one| (host, one)));
    folders.filter_map(|(host, folder)| ram_folder_unfit_finding(host, folder)).collect()
}

fn ram_folder_unfit_finding(host: &Inventory, folder: &RamFolder) -> Option<Finding> {
    let (severity, title) = ram_folder_fault(host, folder)?;
    let location = Location::host(&host.host);
    let mib = |bytes: Option<u64>| {
        bytes.map_or_else(|| "unknown".to_owned(), |bytes| format!("{} MiB", bytes >> 20))
    };
    let key = if folder.huge_pages { "huge_ram_dir" } else { "ram_dir" };
    let finding = finding(severity, title)
        .at(location.clone())
        .seen(location.clone(), key, &folder.path)
        .seen(location.clone(), "file system", folder.filesystem.as_deref().unwrap_or("unknown"))
        .seen(location.clone(), "size", mib(folder.size_bytes))
        .seen(location.clone(), "available", mib(folder.available_bytes))
        .seen(location.clone(), "memory available", mib(host.memory.available_bytes))
        .why(RAM_FOLDER_UNFIT_WHY);
    let command = match (folder.huge_pages, severity) {
        (true, _) => format!("mount -t hugetlbfs hugetlbfs {}", folder.path),
        (false, Severity::Error) => {
            format!("mkdir -p {0} && mount -t tmpfs -o huge=advise,mode=0711 tmpfs {0}", folder.path)
        }
        (false, _) => format!("mount -o remount,size=80% {}", folder.path),
    };
    Some(finding.command(
        location,
        &format!("mount memory there, and keep it in /etc/fstab; or name another folder as `{key}`"),
        command,
    ))
}

/// What is wrong with it.
fn ram_folder_fault(host: &Inventory, folder: &RamFolder) -> Option<(Severity, String)> {
    let kind = folder.filesystem.as_deref();
    let wanted: &[&str] = if folder.huge_pages { &["hugetlbfs"] } else { &["tmpfs", "hugetlbfs", "ramfs"] };
    match kind {
        None => return Some((Severity::Error, format!("{} is not there, or cannot be read", folder.path))),
        Some(kind) if !wanted.contains(&kind) => {
            return Some((
                Severity::Error,
                format!("{} is on {kind}, not on {}", folder.path, wanted.first()?),
            ));
        }
        Some(_) => {}
    }
    // Guests that are there use it up; where memory itself is short, that is the finding. Pools of huge pages have
    // one of their own.
    let available = folder.available_bytes.filter(|_| kind == Some("tmpfs") && !is_short(host))?;
    let size = folder.size_bytes.unwrap_or(0);
    let short = available < ROOM_MIN;
    short.then(|| {
        (
            Severity::Warning,
            format!("{} has room for {} MiB more (of {} MiB)", folder.path, available >> 20, size >> 20),
        )
    })
}

const MEMLOCK_LIMIT_WHY: &str = "RDMA moves memory that stays where it is: the agent must lock a guest's \
    whole memory. It may not, so RDMA is refused and migrations fall back to TCP.";

/// An agent that may not lock the memory that RDMA needs.
pub(super) fn memlock_limit(survey: &Survey) -> Vec<Finding> {
    let mut findings = Vec::new();
    for host in &survey.hosts {
        let (Some(Limit::Bytes(limit)), Some(total)) = (host.memory.memlock, host.memory.total_bytes) else {
            continue;
        };
        let has_rdma = host.rdma.as_ref().is_some_and(|devices| !devices.is_empty());
        // Half of all memory is more than most guests have.
        if !has_rdma || limit >= total / 2 {
            continue;
        }
        let location = Location::host(&host.host);
        let finding = finding(Severity::Warning, format!("the agent may lock {} MiB of memory", limit >> 20))
            .at(location.clone())
            .seen(location.clone(), "may lock", format!("{} MiB", limit >> 20))
            .seen(location.clone(), "memory", format!("{} MiB", total >> 20))
            .why(MEMLOCK_LIMIT_WHY)
            .command(
                location,
                "add LimitMEMLOCK=infinity to [Service] and restart the agent",
                "systemctl edit linerate-agent",
            );
        findings.push(finding);
    }
    findings
}

#[cfg(test)]
mod tests {
    mod kvm_missing {
        use crate::model::Severity;
        use crate::testing::{healthy_survey, host_mut, only};

        #[test]
        fn the_host_without_it_is_named() {
            let mut survey = healthy_survey();
            host_mut(&mut survey, "beta").hypervisor.kvm = Some(false);
            let finding = only(&survey, "kvm-missing");
            assert_eq!((finding.locations.len(), finding.locations[0].to_string().as_str()), (1, "beta"));
            assert_eq!(finding.severity, Severity::Error);
            survey.hosts.iter_mut().for_each(|host| host.hypervisor.kvm = Some(false));
            let finding = only(&survey, "kvm-missing");
            assert_eq!((finding.locations.len(), finding.severity), (3, Severity::Hint));
        }
    }

    mod qemu_missing {
        use crate::model::Severity;
        use crate::testing::{healthy_survey, host_mut, only};

        #[test]
        fn host_and_program_are_named() {
            let mut survey = healthy_survey();
            let qemu = &mut host_mut(&mut survey, "beta").hypervisor.qemu;
            (qemu[0].version, qemu[0].machines) = (None, Vec::new());
            let finding = only(&survey, "qemu-missing");
            assert_eq!(finding.title, "no QEMU that runs: /usr/bin/qemu-system-x86_64");
            assert_eq!(
                (finding.locations[0].to_string().as_str(), finding.severity),
                ("beta", Severity::Error)
            );
            host_mut(&mut survey, "beta").hypervisor.qemu.clear();
            assert_eq!(only(&survey, "qemu-missing").title, "no QEMU is configured");
        }
    }

    mod qemu_too_old {
        use crate::testing::{healthy_survey, host_mut, only};

        #[test]
        fn host_and_version_are_named() {
            let mut survey = healthy_survey();
            host_mut(&mut survey, "beta").hypervisor.qemu[0].version = Some("6.2.0".into());
            let finding = only(&survey, "qemu-too-old");
            assert_eq!(finding.title, "QEMU 6.2 is older than 7.2");
            assert_eq!(finding.locations[0].to_string(), "beta");
            host_mut(&mut survey, "beta").hypervisor.qemu[0].version = Some("7.2.15".into());
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
        }
    }

    mod qemu_machine_types {
        use crate::model::Severity;
        use crate::testing::{healthy_survey, host_mut, only};

        #[test]
        fn an_older_qemu() {
            let mut survey = healthy_survey();
            host_mut(&mut survey, "beta").hypervisor.qemu[0].machines = vec!["pc-q35-9.2".into()];
            let finding = only(&survey, "qemu-machine-types");
            assert_eq!(finding.title, "QEMU does not know pc-q35-10.0 on all hosts");
            assert_eq!((finding.locations.len(), finding.locations[0].to_string().as_str()), (1, "beta"));
            host_mut(&mut survey, "beta").hypervisor.qemu[0].machines = vec!["pc-q35-7.2".into()];
            assert_eq!(only(&survey, "qemu-machine-types").severity, Severity::Error);
        }
    }

    mod ram_folder_unfit {
        use crate::model::{RamFolder, Severity, Survey};
        use crate::testing::{healthy_survey, host_mut, only};

        fn survey(filesystem: Option<&str>, available_mib: u64) -> Survey {
            let mut survey = healthy_survey();
            let filesystem = filesystem.map(str::to_owned);
            host_mut(&mut survey, "beta").memory.ram_folders = vec![RamFolder {
                path: "/srv/ram".into(),
                filesystem,
                size_bytes: Some(1 << 40),
                available_bytes: Some(available_mib << 20),
                huge_pages: false,
            }];
            survey
        }

        #[test]
        fn a_folder_on_a_disk_and_one_that_is_not_there() {
            let finding = only(&survey(Some("ext4"), 9000), "ram-folder-unfit");
            assert_eq!(
                (finding.title.as_str(), finding.severity),
                ("/srv/ram is on ext4, not on tmpfs", Severity::Error)
            );
            assert_eq!(finding.locations[0].to_string(), "beta");
            assert_eq!(
                only(&survey(None, 0), "ram-folder-unfit").title,
                "/srv/ram is not there, or cannot be read"
            );
        }

        #[test]
        fn a_folder_without_room() {
            let finding = only(&survey(Some("tmpfs"), 64), "ram-folder-unfit");
            assert_eq!(finding.title, "/srv/ram has room for 64 MiB more (of 1048576 MiB)");
            assert_eq!(crate::checks::run_all(&survey(Some("tmpfs"), 8192)), Vec::new());
            assert_eq!(crate::checks::run_all(&survey(Some("hugetlbfs"), 0)), Vec::new());
        }
    }

    mod memlock_limit {
        use crate::model::Limit;
        use crate::testing::{healthy_survey, host_mut, only};

        #[test]
        fn the_default_of_8_mib() {
            let mut survey = healthy_survey();
            host_mut(&mut survey, "beta").memory.memlock = Some(Limit::Bytes(8 << 20));
            let finding = only(&survey, "memlock-limit");
            assert_eq!(finding.title, "the agent may lock 8 MiB of memory");
            assert_eq!(finding.locations[0].to_string(), "beta");
            for host in ["alpha", "beta", "gamma"] {
                host_mut(&mut survey, host).rdma = None;
            }
            assert_eq!(crate::checks::run_all(&survey), Vec::new(), "TCP locks nothing");
        }
    }
}
