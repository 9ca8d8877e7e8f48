//! Processors, NUMA nodes, frequency governors, idle states.

use std::collections::{BTreeMap, BTreeSet};

use crate::collect::root::{Root, number_list};
use crate::model::{Cpu, Governor, IdleState, NumaNode};

const CPUS: &str = "sys/devices/system/cpu";

/// Reads them.
pub fn read(root: &Root) -> Cpu {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::fixture::files;

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
        let cpu = read(&root);
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
        assert_eq!(read(&root), Cpu::default());
    }
}
