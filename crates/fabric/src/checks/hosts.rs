//! Hosts themselves: names, clocks, kernels, processors, memory.

use std::collections::BTreeMap;

use crate::model::{Feature, Finding, HugePages, IdleState, Inventory, Location, Probe, Severity, Survey};

use super::common::{Value, differ, finding, join};

const EQUAL_NAMES_WHY: &str = "Reports, journals and commands name hosts: of two with one name it is not \
    clear which is meant, and a guest may be looked for on the wrong one. Cloned virtual machines often \
    have one name.";

/// Several hosts that call themselves the same.
pub(super) fn equal_names(survey: &Survey) -> Vec<Finding> {
    let mut by_name: BTreeMap<&str, Vec<&Inventory>> = BTreeMap::new();
    for host in &survey.hosts {
        by_name.entry(host.calls_itself()).or_default().push(host);
    }
    by_name
        .into_iter()
        .filter(|(_, hosts)| hosts.len() > 1)
        .map(|(name, hosts)| equal_names_finding(name, &hosts))
        .collect()
}

fn equal_names_finding(name: &str, hosts: &[&Inventory]) -> Finding {
    let title = format!("{} hosts call themselves {name}", hosts.len());
    let mut finding = finding(Severity::Warning, title).why(EQUAL_NAMES_WHY);
    for host in hosts {
        let location = Location::host(&host.host);
        let addresses = host.ports.iter().flat_map(|port| &port.addresses).filter(|address| address.shared());
        let addresses: Vec<String> = addresses.map(|address| address.ip.to_string()).collect();
        finding = finding.at(location.clone()).seen(location, "addresses", addresses.join(", "));
    }
    let first = hosts.first().map(|host| Location::host(&host.host));
    finding.step(
        first,
        "give one of them another name: `hostnamectl hostname NAME`, or `name` in the \
         agent's configuration, and start its agent again",
    )
}

const CLOCK_NOT_STEERED_WHY: &str = "It will be wrong sooner or later: logs of two hosts cannot be compared, \
    and guests see their time jump when they move.";

/// A clock that nothing steers.
pub(super) fn clock_not_steered(survey: &Survey) -> Vec<Finding> {
    let finding = |host: &Inventory| {
        let location = Location::host(&host.host);
        finding(Severity::Hint, "nothing steers the clock")
            .at(location.clone())
            .seen(location.clone(), "synchronised", "no")
            .why(CLOCK_NOT_STEERED_WHY)
            .command(location, "steer it (or chrony)", "timedatectl set-ntp true")
    };
    survey.hosts.iter().filter(|host| host.time.synchronised == Some(false)).map(finding).collect()
}

const CLOCK_SKEW_WHY: &str = "Logs of both hosts cannot be put side by side, certificates may be refused, \
    and a guest that reads its time from the host sees it jump when it has moved.";

/// Far more than a steered clock is off, and enough to be seen in a guest.
const AHEAD_MIN_US: u64 = 100_000;

/// Clocks that do not agree.
pub(super) fn clock_skew(survey: &Survey) -> Vec<Finding> {
    let mut wrong: Vec<(&str, &str, i64)> = Vec::new();
    for Probe { from, to, clock_ahead_us, latency, .. } in &survey.matrix.probes {
        // Of a link whose directions differ, half of the round trip may be the way and not the clock.
        let of_the_way_us = latency.map_or(0, |latency| latency.min_ns / 2000);
        let is_apart = |ahead: &i64| ahead.unsigned_abs() >= AHEAD_MIN_US + of_the_way_us;
        let Some(ahead) = clock_ahead_us.filter(is_apart) else { continue };
        let known = |(a, b, _): &(&str, &str, i64)| {
            (*a == from.host && *b == to.host) || (*a == to.host && *b == from.host)
        };
        if !wrong.iter().any(known) {
            wrong.push((&from.host, &to.host, ahead));
        }
    }
    clock_skew_finding(&wrong).into_iter().collect()
}

fn clock_skew_finding(wrong: &[(&str, &str, i64)]) -> Option<Finding> {
    let count = |host: &str| wrong.iter().filter(|(a, b, _)| *a == host || *b == host).count();
    let most = wrong.iter().map(|(_, _, ahead)| ahead.unsigned_abs()).max()?;
    let mut hosts: Vec<&str> = wrong.iter().flat_map(|(a, b, _)| [*a, *b]).collect();
    hosts.sort_unstable();
    hosts.dedup();
    // The clock that disagrees with most others is the wrong one.
    let top = hosts.iter().map(|host| count(host)).max()?;
    let title = format!("clocks are up to {} ms apart", most / 1000);
    let mut finding = finding(Severity::Warning, title).why(CLOCK_SKEW_WHY);
    for host in hosts.iter().filter(|host| count(host) == top) {
        finding = finding.at(Location::host(host));
    }
    for (from, to, ahead) in wrong {
        finding = finding.seen(
            Location::host(to),
            &format!("clock against {from}"),
            format!("{:+} ms", ahead / 1000),
        );
    }
    for host in hosts.iter().filter(|host| count(host) == top) {
        finding =
            finding.command(Location::host(host), "steer the clock (or chrony)", "timedatectl set-ntp true");
    }
    Some(finding)
}

const KERNEL_TOO_OLD_WHY: &str = "Guests of this host cannot be moved in direct mode: it must ask the kernel \
    which pages were written, without stopping the guest.";

/// A kernel without what direct mode needs.
pub(super) fn kernel_too_old(survey: &Survey) -> Vec<Finding> {
    let mut findings = Vec::new();
    for host in &survey.hosts {
        let location = Location::host(&host.host);
        let kernel = host.system.kernel.as_deref().unwrap_or("unknown");
        // Others, such as encryption in the kernel, are a matter of speed.
        let needed = |feature: &&Feature| feature.needed_for.contains("direct mode");
        for feature in host.system.features.iter().filter(needed).filter(|feature| !feature.present) {
            let title = format!("kernel {kernel} has no {}, needed for {}", feature.name, feature.needed_for);
            let finding = finding(Severity::Error, title)
                .at(location.clone())
                .seen(location.clone(), "kernel", kernel)
                .why(KERNEL_TOO_OLD_WHY)
                .step(
                    Some(location.clone()),
                    "boot Linux 6.7 or newer; Debian 12 has one in its backports \
                     (linux-image-amd64/bookworm-backports)",
                );
            findings.push(finding);
        }
    }
    findings
}

const CPU_DIFFERS_WHY: &str = "A guest that was started with everything its processor can (CPU model host) \
    has instructions that the other host does not know: QEMU refuses it there, or the guest dies after it \
    has moved.";

/// Processors that do not offer guests the same instructions.
pub(super) fn cpu_differs(survey: &Survey) -> Vec<Finding> {
    let arch = |host: &Inventory| Some((Location::host(&host.host), host.system.architecture.clone()?));
    let values: Vec<Value> = survey.hosts.iter().filter_map(arch).collect();
    let architectures = differ(Severity::Error, "architecture", "among these hosts", &values);
    match architectures {
        Some(finding) => {
            vec![finding.why(CPU_DIFFERS_WHY).step(None, "guests of one architecture run there only")]
        }
        None => [cpu_flags_finding(survey), cpu_models_finding(survey)].into_iter().flatten().collect(),
    }
}

/// Hosts by what they lack of what another one has.
fn lacking<'a>(all: &[(&'a Inventory, &'a [String])]) -> Vec<(&'a Inventory, Vec<&'a str>)> {
    let mut owners: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, words) in all {
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        words.sort_unstable();
        words.dedup();
        words.into_iter().for_each(|word| *owners.entry(word).or_default() += 1);
    }
    let partly: Vec<&str> =
        owners.iter().filter(|(_, count)| **count < all.len()).map(|(word, _)| *word).collect();
    let missing = |words: &[String]| -> Vec<&'a str> {
        partly.iter().filter(|word| !words.iter().any(|one| one == *word)).copied().collect()
    };
    let lacking = all.iter().map(|(host, words)| (*host, missing(words)));
    lacking.filter(|(_, missing)| !missing.is_empty()).collect()
}

fn cpu_flags_finding(survey: &Survey) -> Option<Finding> {
    let hosts = survey.hosts.iter().filter(|host| !host.cpu.flags.is_empty());
    let all: Vec<(&Inventory, &[String])> = hosts.map(|host| (host, host.cpu.flags.as_slice())).collect();
    let lacking = lacking(&all);
    let title = format!(
        "processors lack {} that others have",
        join(lacking.iter().flat_map(|(_, words)| words.iter().copied()), ", ")
    );
    let mut finding = finding(Severity::Warning, title).why(CPU_DIFFERS_WHY);
    for (host, words) in &lacking {
        let location = Location::host(&host.host);
        finding = finding.at(location.clone()).seen(location, "lacks", join(words.iter().copied(), ", "));
    }
    for (host, _) in &all {
        finding = finding.seen(
            Location::host(&host.host),
            "processor",
            host.cpu.model.as_deref().unwrap_or("unknown"),
        );
    }
    let finding = finding
        .step(
            None,
            "start guests with a CPU model that all hosts can: linerate vm show prints which one a guest has",
        )
        .step(None, "bring BIOS settings and microcode of equal processors to the same state");
    (!lacking.is_empty()).then_some(finding)
}

fn cpu_models_finding(survey: &Survey) -> Option<Finding> {
    let hosts = survey.hosts.iter().filter(|host| !host.hypervisor.cpu_models.is_empty());
    let all: Vec<(&Inventory, &[String])> =
        hosts.map(|host| (host, host.hypervisor.cpu_models.as_slice())).collect();
    let lacking = lacking(&all);
    let title = format!(
        "CPU models that run on some hosts only: {}",
        join(lacking.iter().flat_map(|(_, words)| words.iter().copied()), ", ")
    );
    let mut finding = finding(Severity::Warning, title).why(CPU_DIFFERS_WHY);
    for (host, words) in &lacking {
        let location = Location::host(&host.host);
        finding =
            finding.at(location.clone()).seen(location, "cannot run", join(words.iter().copied(), ", "));
    }
    (!lacking.is_empty()).then(|| finding.step(None, "start guests with a CPU model that all hosts can"))
}

const CPU_GOVERNOR_WHY: &str = "Clocks that follow the load come too late for bursts of packets: throughput \
    is lower and uneven, the blackout longer. On Windows the balanced plan held 10 Gb/s ports at 16 % \
    (field report).";

/// Processors that save power while packets wait.
pub(super) fn cpu_governor(survey: &Survey) -> Vec<Finding> {
    survey.hosts.iter().filter_map(cpu_governor_finding).collect()
}

fn cpu_governor_finding(host: &Inventory) -> Option<Finding> {
    let saving: Vec<(&str, u32, Severity)> = host
        .cpu
        .governors
        .iter()
        .filter_map(|governor| {
            Some((governor.name.as_str(), governor.cpus, governor_severity(&governor.name)?))
        })
        .collect();
    let worst = saving.iter().map(|(_, _, severity)| *severity).max()?;
    let (name, _, _) = saving.first()?;
    let location = Location::host(&host.host);
    let cpus: u32 = saving.iter().map(|(_, cpus, _)| cpus).sum();
    let title = format!("power saving: governor {name} on {cpus} CPUs");
    let mut finding = finding(worst, title).at(location.clone()).why(CPU_GOVERNOR_WHY);
    for governor in &host.cpu.governors {
        finding = finding.seen(location.clone(), &format!("CPUs with {}", governor.name), governor.cpus);
    }
    Some(if host.system.os.as_deref() == Some("windows") {
        finding.command(location, "plan for high performance", "powercfg /setactive SCHEME_MIN")
    } else {
        finding.command(
            location,
            "full speed (package linux-cpupower)",
            "cpupower frequency-set -g performance",
        )
    })
}

/// How bad a governor or a power plan is, by its name.
fn governor_severity(name: &str) -> Option<Severity> {
    match name.to_ascii_lowercase().as_str() {
        "performance" | "high performance" | "ultimate performance" | "userspace" => None,
        "schedutil" | "ondemand" => Some(Severity::Hint),
        _ => Some(Severity::Warning),
    }
}

const CPU_IDLE_STATES_WHY: &str = "A processor that sleeps deeply wakes after the packet has waited. Round \
    trips become longer and uneven, most of all in the blackout, where little is in flight and each step \
    waits for the one before.";

/// As long as a good network's round trip.
const LATENCY_MIN_US: u32 = 100;

/// Idle states that take long to leave.
pub(super) fn cpu_idle_states(survey: &Survey) -> Vec<Finding> {
    survey.hosts.iter().filter_map(cpu_idle_states_finding).collect()
}

fn cpu_idle_states_finding(host: &Inventory) -> Option<Finding> {
    let deep = |state: &&IdleState| state.enabled && state.latency_us >= LATENCY_MIN_US;
    let deepest = host.cpu.idle_states.iter().filter(deep).max_by_key(|state| state.latency_us)?;
    let location = Location::host(&host.host);
    let title = format!("idle state {} takes {} µs to leave", deepest.name, deepest.latency_us);
    let mut finding = finding(Severity::Hint, title).at(location.clone()).why(CPU_IDLE_STATES_WHY);
    for state in &host.cpu.idle_states {
        let may = if state.enabled { "" } else { ", not used" };
        finding = finding.seen(
            location.clone(),
            &format!("idle state {}", state.name),
            format!("{} µs{may}", state.latency_us),
        );
    }
    let command = format!("cpupower idle-set -D {}", LATENCY_MIN_US - 1);
    Some(finding.command(location, "leave out the deep ones (package linux-cpupower)", command))
}

const MEMORY_SHORT_WHY: &str = "No guest can go to this host: it is refused for want of memory. Agent and \
    QEMU may be killed by the kernel when the rest is gone.";

/// What an agent keeps free for the host by default (`memory_reserve_mib`): with less, no guest is admitted.
const AVAILABLE_MIN: u64 = 512 << 20;

/// And so many times less than all of it.
const PART_MIN: u64 = 100;

/// A host whose memory is all but used up.
pub(super) fn memory_short(survey: &Survey) -> Vec<Finding> {
    survey.hosts.iter().filter_map(memory_short_finding).collect()
}

fn memory_short_finding(host: &Inventory) -> Option<Finding> {
    let available = host.memory.available_bytes.filter(|_| is_short(host))?;
    let location = Location::host(&host.host);
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let total = host.memory.total_bytes.map_or_else(|| "unknown".into(), mib);
    let title = format!("{} of memory are available", mib(available));
    let finding = finding(Severity::Warning, title)
        .at(location.clone())
        .seen(location.clone(), "available", mib(available))
        .seen(location.clone(), "in all", total)
        .why(MEMORY_SHORT_WHY)
        .step(
            Some(location.clone()),
            "move guests away, or stop what does not belong here; huge pages that \
             are set aside and not used count as used",
        )
        .command(
            location,
            "see what has it",
            "ps -eo rss,comm --sort -rss | head; grep -i huge /proc/meminfo; \
             df -h -t tmpfs",
        );
    Some(finding)
}

/// Hardly anything is left.
pub(super) fn is_short(host: &Inventory) -> bool {
    let least = AVAILABLE_MIN.max(host.memory.total_bytes.unwrap_or(0) / PART_MIN);
    host.memory.available_bytes.is_some_and(|available| available < least)
}

const HUGE_PAGES_DENIED_WHY: &str = "Guests' memory lies in shared memory for direct mode. With 4 KiB pages \
    everywhere, the guest itself is slower, and so are scans for what was written.";

/// Transparent huge pages that are forbidden for shared memory.
pub(super) fn huge_pages_denied(survey: &Survey) -> Vec<Finding> {
    let denied = survey
        .hosts
        .iter()
        .filter(|host| host.memory.transparent_huge_pages_shared.as_deref() == Some("deny"));
    let finding = |host: &Inventory| {
        let location = Location::host(&host.host);
        finding(Severity::Hint, "transparent huge pages are denied for shared memory")
            .at(location.clone())
            .seen(location.clone(), "shmem_enabled", "deny")
            .why(HUGE_PAGES_DENIED_WHY)
            .command(
                location,
                "allow them where they are asked for",
                "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
            )
    };
    denied.map(finding).collect()
}

const HUGE_PAGES_MISSING_WHY: &str = "A guest whose memory is made of huge pages needs as many of them at \
    the destination, free, before it is started there. Without them the migration ends before it began.";

/// Huge pages that guests use on one host and that another does not have.
pub(super) fn huge_pages_missing(survey: &Survey) -> Vec<Finding> {
    let mut used: BTreeMap<u64, u64> = BTreeMap::new();
    for pool in survey.hosts.iter().flat_map(|host| &host.memory.huge_pages) {
        let most = used.entry(pool.size_bytes).or_default();
        *most = (*most).max(pages_in_use(pool));
    }
    used.retain(|_, pages| *pages > 0);
    used.into_keys().filter_map(|size| huge_pages_missing_finding(survey, size)).collect()
}

/// Hosts that have no page of this size, while others use it.
fn huge_pages_missing_finding(survey: &Survey, size_bytes: u64) -> Option<Finding> {
    let size_kib = size_bytes / 1024;
    let pool =
        |host: &Inventory| host.memory.huge_pages.iter().find(|pool| pool.size_bytes == size_bytes).copied();
    // A host of which nothing about memory is known says nothing.
    let known: Vec<&Inventory> =
        survey.hosts.iter().filter(|host| host.memory.total_bytes.is_some()).collect();
    let total = |host: &Inventory| pool(host).map_or(0, |pool| pool.total);
    let without: Vec<&&Inventory> = known.iter().filter(|host| total(host) == 0).collect();
    if without.is_empty() {
        return None;
    }
    let mut finding = finding(
        Severity::Warning,
        format!("no huge pages of {size_kib} KiB, which guests of other hosts use"),
    );
    for host in &without {
        finding = finding.at(Location::host(&host.host));
    }
    let mut most = 0;
    for host in &known {
        let pool = pool(host).unwrap_or_default();
        most = most.max(pages_in_use(&pool));
        finding = finding.seen(
            Location::host(&host.host),
            &format!("pages of {size_kib} KiB"),
            format!("{} of {} free", pool.free, pool.total),
        );
    }
    for host in &without {
        let command = format!("echo {most} > /sys/kernel/mm/hugepages/hugepages-{size_kib}kB/nr_hugepages");
        finding =
            finding.command(Location::host(&host.host), "reserve them, best at boot (hugepages=)", command);
    }
    Some(finding.why(HUGE_PAGES_MISSING_WHY))
}

fn pages_in_use(pool: &HugePages) -> u64 {
    pool.total.saturating_sub(pool.free)
}

#[cfg(test)]
mod tests {
    mod equal_names {
        use crate::model::Survey;
        use crate::testing::{healthy_survey, host_mut, only};

        #[test]
        fn both_are_there_and_named() {
            let mut survey = healthy_survey();
            host_mut(&mut survey, "beta").host = "alpha".into();
            let finding = only(&survey, "equal-names");
            assert_eq!(finding.title, "2 hosts call themselves alpha");
            assert_eq!(
                finding.locations.iter().map(ToString::to_string).collect::<Vec<_>>(),
                ["alpha", "alpha (2)"]
            );
        }

        #[test]
        fn what_the_second_one_has_is_found_at_the_second_one() {
            let mut survey = healthy_survey();
            host_mut(&mut survey, "beta").ports[1].carrier = Some(false);
            host_mut(&mut survey, "beta").host = "alpha".into();
            let findings = crate::checks::run_all(&Survey::of(survey.hosts));
            assert_eq!(
                findings.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(),
                ["link-down", "equal-names"]
            );
            assert_eq!(findings[0].locations[0].to_string(), "alpha (2) ens1f0");
        }
    }

    mod clock_not_steered {
        use crate::testing::{healthy_survey, host_mut, only};

        #[test]
        fn the_host_is_named() {
            let mut survey = healthy_survey();
            host_mut(&mut survey, "beta").time.synchronised = Some(false);
            assert_eq!(only(&survey, "clock-not-steered").locations[0].to_string(), "beta");
        }
    }

    mod clock_skew {
        use crate::testing::probe;
        use crate::testing::{healthy_survey, only};

        #[test]
        fn the_clock_that_disagrees_with_all_is_named() {
            let mut survey = healthy_survey();
            let mut near = probe();
            near.clock_ahead_us = Some(2_500_000);
            let mut far = near.clone();
            far.from.host = "gamma".into();
            survey.matrix.probes = vec![near, far];
            let finding = only(&survey, "clock-skew");
            assert_eq!(finding.title, "clocks are up to 2500 ms apart");
            assert_eq!(finding.locations.len(), 1);
            assert_eq!(finding.locations[0].to_string(), "beta");
        }

        #[test]
        fn a_way_that_is_longer_than_the_way_back_is_no_clock() {
            use crate::model::Latency;
            let (round_trip, ahead) = (600_000_000, 300_100);
            let mut survey = healthy_survey();
            let mut far = probe();
            far.latency = Some(Latency { min_ns: round_trip, median_ns: round_trip, max_ns: round_trip });
            far.clock_ahead_us = Some(ahead);
            survey.matrix.probes = vec![far];
            only(&survey, "round-trip-long");
            survey.matrix.probes[0].clock_ahead_us = Some(ahead + 100_000);
            let ids = crate::checks::run_all(&survey).into_iter().map(|finding| finding.id);
            assert_eq!(ids.collect::<Vec<_>>(), ["clock-skew", "round-trip-long"]);
        }
    }

    mod kernel_too_old {
        use crate::testing::{healthy_survey, host_mut, only};

        #[test]
        fn host_and_kernel_are_named() {
            let mut survey = healthy_survey();
            crate::testing::kernel(&mut survey, "beta", "6.1.0-18-amd64");
            host_mut(&mut survey, "beta").system.features[0].present = false;
            let finding = only(&survey, "kernel-too-old");
            assert_eq!(finding.title, "kernel 6.1.0-18-amd64 has no pagemap_scan, needed for direct mode");
            assert_eq!(finding.locations[0].to_string(), "beta");
        }
    }

    mod cpu_differs {
        use crate::model::Severity;
        use crate::testing::{healthy_survey, host_mut, only};

        #[test]
        fn missing_cpu_flags_are_named() {
            let mut survey = healthy_survey();
            host_mut(&mut survey, "beta").cpu.flags.retain(|flag| flag != "avx2");
            let finding = only(&survey, "cpu-differs");
            assert_eq!(finding.title, "processors lack avx2 that others have");
            assert_eq!(finding.locations.len(), 1);
            assert_eq!(finding.locations[0].to_string(), "beta");
        }

        #[test]
        fn models_by_qemu_and_architectures() {
            let mut survey = healthy_survey();
            for (host, models) in [("alpha", vec!["Haswell", "Skylake-Server"]), ("beta", vec!["Haswell"])] {
                host_mut(&mut survey, host).hypervisor.cpu_models =
                    models.into_iter().map(String::from).collect();
            }
            assert_eq!(
                only(&survey, "cpu-differs").title,
                "CPU models that run on some hosts only: Skylake-Server"
            );
            host_mut(&mut survey, "beta").system.architecture = Some("aarch64".into());
            assert_eq!(only(&survey, "cpu-differs").severity, Severity::Error);
        }
    }

    mod cpu_governor {
        use crate::model::Severity;
        use crate::testing::{healthy_survey, host_mut, only};

        #[test]
        fn host_and_governor_are_named() {
            for (name, severity) in [
                ("powersave", Severity::Warning),
                ("schedutil", Severity::Hint),
                ("Balanced", Severity::Warning),
            ] {
                let mut survey = healthy_survey();
                host_mut(&mut survey, "beta").cpu.governors[0].name = name.into();
                let finding = only(&survey, "cpu-governor");
                assert_eq!(finding.title, format!("power saving: governor {name} on 16 CPUs"));
                assert_eq!((finding.locations[0].to_string().as_str(), finding.severity), ("beta", severity));
            }
        }
    }

    mod cpu_idle_states {
        use crate::model::IdleState;
        use crate::testing::{healthy_survey, host_mut, only};

        #[test]
        fn the_deepest_is_named_unless_it_is_not_used() {
            let mut survey = healthy_survey();
            let deep = IdleState { name: "C6".into(), latency_us: 133, enabled: true };
            host_mut(&mut survey, "beta").cpu.idle_states.push(deep);
            let finding = only(&survey, "cpu-idle-states");
            assert_eq!(finding.title, "idle state C6 takes 133 µs to leave");
            assert_eq!(finding.locations[0].to_string(), "beta");
            host_mut(&mut survey, "beta").cpu.idle_states[2].enabled = false;
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
        }
    }

    mod memory_short {
        use crate::testing::{healthy_survey, host_mut, only};

        #[test]
        fn host_and_rest_are_named() {
            let mut survey = healthy_survey();
            let memory = &mut host_mut(&mut survey, "beta").memory;
            (memory.total_bytes, memory.available_bytes) = (Some(8 << 30), Some(200 << 20));
            let finding = only(&survey, "memory-short");
            assert_eq!(finding.title, "200 MiB of memory are available");
            assert_eq!(finding.locations[0].to_string(), "beta");
            host_mut(&mut survey, "beta").memory.available_bytes = Some(900 << 20);
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
        }
    }

    mod huge_pages_denied {
        use crate::testing::{healthy_survey, host_mut, only};

        #[test]
        fn the_host_is_named() {
            let mut survey = healthy_survey();
            host_mut(&mut survey, "beta").memory.transparent_huge_pages_shared = Some("deny".into());
            assert_eq!(only(&survey, "huge-pages-denied").locations[0].to_string(), "beta");
        }
    }

    mod huge_pages_missing {
        use crate::model::HugePages;
        use crate::testing::{healthy_survey, host_mut, only};

        #[test]
        fn size_and_hosts_are_named() {
            let mut survey = healthy_survey();
            for host in ["alpha", "gamma"] {
                host_mut(&mut survey, host).memory.huge_pages =
                    vec![HugePages { size_bytes: 2 << 20, total: 4096, free: 0 }];
            }
            let finding = only(&survey, "huge-pages-missing");
            assert_eq!(finding.title, "no huge pages of 2048 KiB, which guests of other hosts use");
            assert_eq!(finding.locations.len(), 1);
            assert_eq!(finding.locations[0].to_string(), "beta");
        }

        #[test]
        fn unused_pools_are_no_finding() {
            let mut survey = healthy_survey();
            host_mut(&mut survey, "alpha").memory.huge_pages =
                vec![HugePages { size_bytes: 2 << 20, total: 64, free: 64 }];
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
        }
    }
}
