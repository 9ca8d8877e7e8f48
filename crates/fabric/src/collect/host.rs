//! Files of the kernel about the host: processors, NUMA nodes, frequency governors, idle states; memory, huge pages,
//! limits; kernel, distribution, firmware, clock.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use crate::collect::root::{Root, number_list};
use crate::model::{
    Cpu, Feature, Governor, HugePages, IdleState, Limit, Memory, NumaNode, RamFolder, System, Time,
};

const CPUS: &str = "sys/devices/system/cpu";

/// Reads processors and power saving from /proc and /sys; what cannot be read is left out.
pub fn cpu(root: &Root) -> Cpu {
    let online = root.text(format!("{CPUS}/online")).map(|text| number_list(&text));
    let cpus = online.clone().unwrap_or_default();
    let mut cpu = Cpu {
        online: online.map(|cpus| cpus.len() as u32),
        cores: cores(root, &cpus),
        nodes: nodes(root),
        governors: governors(root, &cpus),
        frequency_driver: root.text(format!("{CPUS}/cpu0/cpufreq/scaling_driver")),
        idle_states: idle_states(root),
        ..Cpu::default()
    };
    from_cpuinfo(&root.text("proc/cpuinfo").unwrap_or_default(), &mut cpu);
    cpu
}

fn from_cpuinfo(text: &str, cpu: &mut Cpu) {
    // All processors of a host are alike: the first block says it.
    for line in text.lines().take_while(|line| !line.trim().is_empty()) {
        let Some((key, value)) = line.split_once(':') else { continue };
        match key.trim() {
            "model name" => cpu.model = Some(value.trim().to_owned()),
            "flags" | "Features" => cpu.flags = value.split_whitespace().map(str::to_owned).collect(),
            _ => {}
        }
    }
}

fn cores(root: &Root, cpus: &[u32]) -> Option<u32> {
    let core = |cpu: &u32| {
        let folder = format!("{CPUS}/cpu{cpu}/topology");
        Some((
            root.number::<i64>(format!("{folder}/physical_package_id"))?,
            root.number::<i64>(format!("{folder}/core_id"))?,
        ))
    };
    let cores: BTreeSet<_> = cpus.iter().filter_map(core).collect();
    (!cores.is_empty()).then_some(cores.len() as u32)
}

fn nodes(root: &Root) -> Vec<NumaNode> {
    let folder = "sys/devices/system/node";
    let mut nodes: Vec<NumaNode> = Vec::new();
    for name in root.names(folder) {
        let Some(number) = name.strip_prefix("node").and_then(|number| number.parse().ok()) else { continue };
        let cpus = root.text(format!("{folder}/{name}/cpulist")).unwrap_or_default();
        nodes.push(NumaNode { number, cpus: number_list(&cpus) });
    }
    nodes.sort_by_key(|node| node.number);
    nodes
}

fn governors(root: &Root, cpus: &[u32]) -> Vec<Governor> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for cpu in cpus {
        if let Some(name) = root.text(format!("{CPUS}/cpu{cpu}/cpufreq/scaling_governor")) {
            *counts.entry(name).or_default() += 1;
        }
    }
    counts.into_iter().map(|(name, cpus)| Governor { name, cpus }).collect()
}

fn idle_states(root: &Root) -> Vec<IdleState> {
    let folder = format!("{CPUS}/cpu0/cpuidle");
    let state = |name: String| {
        Some(IdleState {
            name: root.text(format!("{folder}/{name}/name"))?,
            latency_us: root.number(format!("{folder}/{name}/latency"))?,
            enabled: root.number::<u32>(format!("{folder}/{name}/disable")).unwrap_or(0) == 0,
        })
    };
    root.names(&folder).into_iter().filter_map(state).collect()
}

/// Reads it. The limit is that of this process.
pub fn memory(root: &Root) -> Memory {
    let text = root.text("proc/meminfo").unwrap_or_default();
    Memory {
        total_bytes: meminfo_bytes(&text, "MemTotal"),
        available_bytes: meminfo_bytes(&text, "MemAvailable"),
        huge_pages: huge_pages(root),
        transparent_huge_pages: chosen(root, "sys/kernel/mm/transparent_hugepage/enabled"),
        transparent_huge_pages_shared: chosen(root, "sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        memlock: Some(getrlimit(Resource::Memlock).current.map_or(Limit::Unlimited, Limit::Bytes)),
        ram_folders: Vec::new(),
    }
}

/// Numbers of file systems, as in <linux/magic.h>.
const FILE_SYSTEMS: [(u32, &str); 9] = [
    (0x0102_1994, "tmpfs"),
    (0x9584_58f6, "hugetlbfs"),
    (0x8584_58f6, "ramfs"),
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x2fc1_2fc1, "zfs"),
    (0x6969, "nfs"),
    (0x794c_7630, "overlayfs"),
];

/// What a folder for the memory of guests is on.
pub fn ram_folder(path: &Path, huge_pages: bool) -> RamFolder {
    let named = RamFolder { path: path.display().to_string(), huge_pages, ..RamFolder::default() };
    let Some(found) = rustix::fs::statfs(path).ok() else { return named };
    // The kernel's numbers have 32 bits, whatever the field has.
    let number = found.f_type as u32;
    let known = FILE_SYSTEMS.iter().find(|(known, _)| *known == number).map(|(_, name)| (*name).to_owned());
    let bytes = |blocks: u64| blocks.saturating_mul(u64::try_from(found.f_bsize).unwrap_or(0));
    RamFolder {
        filesystem: Some(known.unwrap_or_else(|| format!("file system {number:#x}"))),
        size_bytes: Some(bytes(found.f_blocks)).filter(|size| *size > 0),
        available_bytes: Some(bytes(found.f_bavail)).filter(|_| found.f_blocks > 0),
        ..named
    }
}

fn meminfo_bytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

fn huge_pages(root: &Root) -> Vec<HugePages> {
    let folder = "sys/kernel/mm/hugepages";
    let pool = |name: String| {
        let size_kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let size_bytes = size_kib.checked_mul(1024)?;
        let number = |file: &str| root.number(format!("{folder}/{name}/{file}"));
        Some(HugePages { size_bytes, total: number("nr_hugepages")?, free: number("free_hugepages")? })
    };
    let mut pools: Vec<HugePages> = root.names(folder).into_iter().filter_map(pool).collect();
    pools.sort_by_key(|pool| pool.size_bytes);
    pools
}

/// The word in brackets: `always [madvise] never`.
fn chosen(root: &Root, path: &str) -> Option<String> {
    let text = root.text(path)?;
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

/// Whether /dev/kvm can be opened: in a virtual machine it may be there without a hypervisor below. Unknown without
/// the right to try.
pub fn kvm(root: &Root) -> Option<bool> {
    match std::fs::File::options().read(true).write(true).open(root.path("dev/kvm")) {
        Ok(_) => Some(true),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => None,
        Err(_) => Some(false),
    }
}

/// Reads the system from /proc, /sys and /etc; what cannot be read is left out.
pub fn system(root: &Root) -> System {
    let kernel = root.text("proc/sys/kernel/osrelease");
    System {
        os: Some("linux".to_owned()),
        distribution: distribution(root),
        features: features(root, kernel.as_deref()),
        kernel,
        architecture: Some(std::env::consts::ARCH.to_owned()),
        secure_boot: secure_boot(root),
    }
}

/// Whether the clock is steered: only systemd-timesyncd leaves a file; whether chrony does is not known.
pub fn time(root: &Root) -> Time {
    Time {
        synchronised: root.exists("run/systemd/timesync/synchronized").then_some(true),
        error_max_us: None,
    }
}

fn distribution(root: &Root) -> Option<String> {
    let text = root.text("etc/os-release")?;
    let value = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim_matches('"').to_owned())
}

/// A host without EFI has no Secure Boot. The variable is four bytes of attributes and one that says on or off.
fn secure_boot(root: &Root) -> Option<bool> {
    if !root.exists("sys/firmware") {
        return None;
    }
    if !root.exists("sys/firmware/efi") {
        return Some(false);
    }
    let bytes = root.bytes("sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c")?;
    bytes.get(4).map(|on| *on == 1)
}

fn features(root: &Root, kernel: Option<&str>) -> Vec<Feature> {
    let feature = |name: &str, present: bool, needed_for: &str| Feature {
        name: name.to_owned(),
        present,
        needed_for: needed_for.to_owned(),
    };
    let mut features = Vec::new();
    if let Some(release) = kernel.and_then(release) {
        features.push(feature("pagemap_scan", release >= (6, 7), "direct mode, at the source"));
    }
    if let Some(protocols) = root.text("proc/sys/net/ipv4/tcp_available_ulp") {
        let present = protocols.split_whitespace().any(|one| one == "tls");
        features.push(feature("kernel_tls", present, "encryption in the kernel"));
    }
    features
}

fn release(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    mod cpu {
        use super::super::*;
        use crate::collect::root::fixture::files;

        #[test]
        fn processors_of_a_fixture() {
            let mut all = vec![
                (format!("{CPUS}/online"), "0-3".to_owned()),
                (format!("{CPUS}/cpu0/cpufreq/scaling_driver"), "intel_pstate\n".to_owned()),
                (format!("{CPUS}/cpu0/cpuidle/state0/name"), "POLL".to_owned()),
                (format!("{CPUS}/cpu0/cpuidle/state0/latency"), "0".to_owned()),
                (format!("{CPUS}/cpu0/cpuidle/state1/name"), "C6".to_owned()),
                (format!("{CPUS}/cpu0/cpuidle/state1/latency"), "133".to_owned()),
                (format!("{CPUS}/cpu0/cpuidle/state1/disable"), "1".to_owned()),
                ("sys/devices/system/node/node0/cpulist".to_owned(), "0,2\n".to_owned()),
                ("sys/devices/system/node/node1/cpulist".to_owned(), "1,3\n".to_owned()),
                (
                    "proc/cpuinfo".to_owned(),
                    "model name\t: Fast One\nflags\t\t: sse avx2\n\nmodel name\t: Other\n".to_owned(),
                ),
            ];
            for cpu in 0..4 {
                let governor = if cpu == 3 { "powersave" } else { "performance" };
                all.push((format!("{CPUS}/cpu{cpu}/cpufreq/scaling_governor"), governor.to_owned()));
                all.push((format!("{CPUS}/cpu{cpu}/topology/physical_package_id"), "0".to_owned()));
                all.push((format!("{CPUS}/cpu{cpu}/topology/core_id"), (cpu / 2).to_string()));
            }
            let (_folder, root) = files(&all);
            let cpu = cpu(&root);
            assert_eq!((cpu.online, cpu.cores), (Some(4), Some(2)));
            assert_eq!(cpu.model.as_deref(), Some("Fast One"));
            assert_eq!(cpu.flags, ["sse", "avx2"]);
            assert_eq!(cpu.nodes[1], NumaNode { number: 1, cpus: vec![1, 3] });
            let governor = |name: &str, cpus| Governor { name: name.into(), cpus };
            assert_eq!(cpu.governors, [governor("performance", 3), governor("powersave", 1)]);
            assert_eq!(cpu.idle_states[1], IdleState { name: "C6".into(), latency_us: 133, enabled: false });
            assert_eq!(cpu.frequency_driver.as_deref(), Some("intel_pstate"));
        }

        #[test]
        fn a_kernel_without_any_of_it_gives_nothing() {
            let (_folder, root) = files::<&str, &str>(&[]);
            assert_eq!(cpu(&root), Cpu::default());
        }
    }

    mod memory {
        use super::super::*;
        use crate::collect::root::fixture::files;

        #[test]
        fn folders_in_memory_and_on_disk_are_distinguished() {
            let shared = ram_folder(Path::new("/dev/shm"), false);
            assert_eq!(shared.filesystem.as_deref(), Some("tmpfs"));
            assert!(shared.size_bytes > Some(0) && shared.available_bytes <= shared.size_bytes, "{shared:?}");
            let other = ram_folder(Path::new("/proc"), false);
            assert!(other.filesystem.is_some_and(|name| name.starts_with("file system 0x")));
            assert_eq!(ram_folder(Path::new("/no/such/folder"), true).filesystem, None);
        }

        #[test]
        fn memory_of_a_fixture() {
            let (_folder, root) = files(&[
                ("proc/meminfo", "MemTotal:       32768 kB\nMemFree: 7 kB\nMemAvailable:   16384 kB\n"),
                ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "2"),
                ("sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "1"),
                ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512"),
                ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "512"),
                ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
                (
                    "sys/kernel/mm/transparent_hugepage/shmem_enabled",
                    "always within_size advise [never] deny force",
                ),
            ]);
            let memory = memory(&root);
            assert_eq!((memory.total_bytes, memory.available_bytes), (Some(32 << 20), Some(16 << 20)));
            assert_eq!(memory.huge_pages[0], HugePages { size_bytes: 2 << 20, total: 512, free: 512 });
            assert_eq!(memory.huge_pages[1], HugePages { size_bytes: 1 << 30, total: 2, free: 1 });
            assert_eq!(memory.transparent_huge_pages.as_deref(), Some("madvise"));
            assert_eq!(memory.transparent_huge_pages_shared.as_deref(), Some("never"));
            assert!(memory.memlock.is_some());
        }
    }

    mod system {
        use super::super::*;
        use crate::collect::root::fixture::files;

        #[test]
        fn facts_of_a_system_are_read_from_fixture_files() {
            let variable = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
            let (_folder, root) = files(&[
                ("proc/sys/kernel/osrelease", "6.1.0-30-amd64\n"),
                ("etc/os-release", "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n"),
                (variable, "\x06\0\0\0\x01"),
                ("proc/sys/net/ipv4/tcp_available_ulp", "espintcp mptcp tls"),
            ]);
            let system = system(&root);
            assert_eq!(system.kernel.as_deref(), Some("6.1.0-30-amd64"));
            assert_eq!(system.distribution.as_deref(), Some("Debian GNU/Linux 12 (bookworm)"));
            assert_eq!(system.secure_boot, Some(true));
            let present: Vec<bool> = system.features.iter().map(|feature| feature.present).collect();
            assert_eq!(present, [false, true]);
        }

        #[test]
        fn direct_mode_needs_a_kernel_of_6_7() {
            for (text, expected) in [("6.7.0", (6, 7)), ("6.12.9-amd64", (6, 12)), ("10.0-rc1", (10, 0))] {
                assert_eq!(release(text), Some(expected));
            }
            assert_eq!(release("six"), None);
            assert!((6, 12) >= (6, 7) && (10, 0) >= (6, 7) && (6, 1) < (6, 7));
        }

        #[test]
        fn secure_boot_is_not_known_without_sysfs_and_off_without_efi() {
            let (_folder, root) = files::<&str, &str>(&[]);
            assert_eq!(secure_boot(&root), None);
            let (_folder, root) = files(&[("sys/firmware/acpi/x", "")]);
            assert_eq!(secure_boot(&root), Some(false));
        }
    }
}
