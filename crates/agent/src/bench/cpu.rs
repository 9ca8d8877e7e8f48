//! On which CPU the thread of a connection runs.

use std::fs;
use std::path::Path;

use linerate_api::BenchCpu;
use rustix::thread::{CpuSet, sched_getaffinity};

use super::BenchError;

const NODES: &str = "/sys/devices/system/node";

/// The NUMA nodes of this host, each with the CPUs that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus(Vec<(i32, Vec<usize>)>);

/// The CPU of a thread, and a note about it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CpuChoice {
    /// The only CPU, if it is to have one.
    pub cpu: Option<usize>,
    /// Why not as asked.
    pub note: Option<&'static str>,
}

impl Cpus {
    /// As sysfs and the scheduler report.
    pub fn read() -> Cpus {
        Cpus(read_nodes(Path::new(NODES), &allowed()))
    }

    /// For the `number`th thread of a connection on a port of this node.
    pub fn choose(&self, wanted: BenchCpu, port: i32, number: usize) -> Result<CpuChoice, BenchError> {
        let near = |(node, _): &&(i32, Vec<usize>)| *node == port;
        let node = match (wanted, self.0.as_slice()) {
            (BenchCpu::Any, _) => return Ok(CpuChoice::default()),
            (BenchCpu::Number(cpu), nodes) => {
                let there = nodes.iter().any(|(_, cpus)| cpus.contains(&(cpu as usize)));
                let chosen = CpuChoice { cpu: Some(cpu as usize), note: None };
                return if there { Ok(chosen) } else { Err(BenchError::Cpu { cpu }) };
            }
            (BenchCpu::Near, [only]) => Some(only),
            (BenchCpu::Far, [_]) => {
                return Ok(not_pinned("there is one NUMA node, so no CPU is far: not pinned"));
            }
            (_, nodes) if !nodes.iter().any(|node| near(&node)) => {
                return Ok(not_pinned("the NUMA node of a port is not known: not pinned"));
            }
            (BenchCpu::Near, nodes) => nodes.iter().find(near),
            (BenchCpu::Far, nodes) => nodes.iter().find(|node| !near(node)),
        };
        let cpus = node.map(|(_, cpus)| cpus.as_slice()).unwrap_or_default();
        let cpu = cpus.get(number.checked_rem(cpus.len()).unwrap_or(0)).copied();
        let note = (self.0.len() == 1).then_some("there is one NUMA node, so every CPU is near");
        Ok(CpuChoice { cpu, note })
    }
}

fn not_pinned(note: &'static str) -> CpuChoice {
    CpuChoice { cpu: None, note: Some(note) }
}

fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Nodes without a CPU to use are left out: memory alone runs nothing. Without NUMA in the kernel all CPUs are one
/// node.
fn read_nodes(folder: &Path, allowed: &[usize]) -> Vec<(i32, Vec<usize>)> {
    let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let online = list(&text(&folder.join("online")));
    let cpus = |node: usize| {
        let mut cpus = list(&text(&folder.join(format!("node{node}/cpulist"))));
        cpus.retain(|cpu| allowed.contains(cpu));
        Some((i32::try_from(node).ok()?, cpus)).filter(|(_, cpus)| !cpus.is_empty())
    };
    let nodes: Vec<_> = online.into_iter().filter_map(cpus).collect();
    if nodes.is_empty() { vec![(0, allowed.to_vec())] } else { nodes }
}

/// Numbers of a CPU list such as `0-2,7`.
fn list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        (last < CpuSet::MAX_CPU).then_some(first..=last)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Cpus {
        Cpus(vec![(0, vec![0, 1]), (1, vec![2, 3])])
    }

    fn cpu(cpus: &Cpus, wanted: BenchCpu, port: i32, number: usize) -> Option<usize> {
        cpus.choose(wanted, port, number).unwrap().cpu
    }

    #[test]
    fn near_and_far_are_seen_from_the_port() {
        assert_eq!(
            [0, 1, 2].map(|number| cpu(&two(), BenchCpu::Near, 1, number)),
            [Some(2), Some(3), Some(2)]
        );
        assert_eq!([0, 1].map(|number| cpu(&two(), BenchCpu::Far, 1, number)), [Some(0), Some(1)]);
        assert_eq!(cpu(&two(), BenchCpu::Any, 1, 0), None);
        assert_eq!(cpu(&two(), BenchCpu::Number(3), -1, 5), Some(3));
    }

    #[test]
    fn what_cannot_be_done_is_reported_and_never_called_far() {
        let one = Cpus(vec![(0, vec![0, 1])]);
        let far = one.choose(BenchCpu::Far, 0, 0).unwrap();
        assert!(far.cpu.is_none() && far.note.unwrap().contains("one NUMA node"));
        let near = one.choose(BenchCpu::Near, -1, 1).unwrap();
        assert!(near.cpu == Some(1) && near.note.unwrap().contains("one NUMA node"));
        assert!(two().choose(BenchCpu::Near, -1, 0).unwrap().note.unwrap().contains("not known"));
        assert!(matches!(one.choose(BenchCpu::Number(7), 0, 0), Err(BenchError::Cpu { cpu: 7 })));
    }

    #[test]
    fn nodes_are_read_from_sysfs_as_far_as_they_may_be_used() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("online", "0-2\n");
        write("node0/cpulist", "0-1,4\n");
        write("node1/cpulist", "2-3\n");
        write("node2/cpulist", "\n");
        let nodes = read_nodes(folder.path(), &[0, 1, 2, 4]);
        assert_eq!(nodes, [(0, vec![0, 1, 4]), (1, vec![2])]);
        assert_eq!(read_nodes(Path::new("/nonexistent"), &[0, 5]), [(0, vec![0, 5])]);
        assert_eq!(list("9999999999"), Vec::<usize>::new());
    }
}
