//! Interrupts of a port on processors of another NUMA node than the adapter's.

use crate::model::{Finding, PortRef, Room, Severity};

use super::Check;
use super::common::{migration_ports, numbers};
use super::interrupts_on_one_cpu::{only_one, taken_by};

const WHY: &str = "Every packet crosses from one processor socket to the other and back: more delay, and less throughput under load. Threads near the \
     adapter brought the delay of an RDMA link from 1.9 to 1.4 µs in a published comparison.";

pub(super) struct InterruptsFarNode;

impl Check for InterruptsFarNode {
    fn id(&self) -> &'static str {
        "interrupts-far-node"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        migration_ports(room).into_iter().filter_map(|at| self.port(at)).collect()
    }
}

impl InterruptsFarNode {
    fn port(&self, at: PortRef<'_>) -> Option<Finding> {
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
        let finding = Finding::new(self.id(), Severity::Warning, format!("on NUMA node {number}, all interrupts on CPUs of another"))
            .at(at.place())
            .seen(at.place(), "NUMA node", number)
            .seen(at.place(), "CPUs of this node", numbers(near))
            .seen(at.place(), "interrupts taken by CPUs", numbers(&taken))
            .why(WHY)
            .step(Some(at.place()), format!("write CPUs of node {number} into /proc/irq/NUMBER/smp_affinity_list of each interrupt of {name}"))
            .step(Some(at.place()), "if irqbalance runs: see that it is not told to keep away from this node (IRQBALANCE_BANNED_CPULIST)");
        Some(finding)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn node_and_processors_are_named() {
        let mut room = healthy_room();
        for (number, irq) in (8..).zip(&mut port(&mut room, "beta", "ens1f1").irqs) {
            irq.cpus = vec![number];
        }
        let finding = only(&room, "interrupts-far-node");
        assert_eq!(finding.title, "on NUMA node 0, all interrupts on CPUs of another");
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
        assert_eq!(finding.seen[2].value, "8, 9, 10, 11, 12, 13, 14, 15");
    }
}
