//! All interrupts of a port on one processor.

use std::collections::BTreeSet;

use crate::model::{Finding, PortRef, Room, Severity};

use super::Check;
use super::common::migration_ports;

const WHY: &str = "One processor fetches the packets of all queues; when it is busy, the port waits. It shows as a migration that stays far below the \
     link's speed with one core at its limit.";

pub(super) struct InterruptsOnOneCpu;

impl Check for InterruptsOnOneCpu {
    fn id(&self) -> &'static str {
        "interrupts-on-one-cpu"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        migration_ports(room).into_iter().filter_map(|at| self.port(at)).collect()
    }
}

/// The processors that take a port's interrupts, if those of all of them are known.
pub(super) fn taken_by(at: PortRef<'_>) -> Option<BTreeSet<u32>> {
    let known = at.port.irqs.len() > 1 && at.port.irqs.iter().all(|irq| !irq.cpus.is_empty());
    known.then(|| at.port.irqs.iter().flat_map(|irq| irq.cpus.iter().copied()).collect())
}

/// The only processor that takes them, though there are several queues and processors.
pub(super) fn only_one(at: PortRef<'_>) -> Option<u32> {
    let several = at.port.queues.is_none_or(|queues| queues.receiving() > 1)
        && at.host.cpu.online.is_none_or(|count| count > 1);
    let cpus = taken_by(at).filter(|cpus| several && cpus.len() == 1)?;
    cpus.first().copied()
}

impl InterruptsOnOneCpu {
    fn port(&self, at: PortRef<'_>) -> Option<Finding> {
        let cpu = only_one(at)?;
        let count = at.port.irqs.len();
        let finding = Finding::new(
            self.id(),
            Severity::Warning,
            format!("all {count} interrupts on CPU {cpu}"),
        )
        .at(at.place())
        .seen(at.place(), "interrupts", count)
        .seen(at.place(), "taken by CPUs", cpu)
        .why(WHY)
        .command(at.place(), "let a daemon spread them", "systemctl enable --now irqbalance")
        .step(
            Some(at.place()),
            "or write one CPU of the adapter's NUMA node into /proc/irq/NUMBER/smp_affinity_list of each",
        );
        Some(finding)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn the_processor_is_named() {
        let mut room = healthy_room();
        for irq in &mut port(&mut room, "beta", "ens1f1").irqs {
            irq.cpus = vec![0];
        }
        let finding = only(&room, "interrupts-on-one-cpu");
        assert_eq!(finding.title, "all 8 interrupts on CPU 0");
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
    }
}
