//! Interrupts of an adapter, and which CPUs take them.

use std::collections::BTreeMap;

use super::pci;
use crate::collect::root::{Root, number_list};
use crate::model::Irq;

/// No adapter has more.
const IRQS_MAX: usize = 4096;

/// /proc/interrupts: number of each interrupt, how often it came, its name.
#[derive(Clone, Debug, Default)]
pub struct Interrupts(BTreeMap<u32, (u64, String)>);

impl Interrupts {
    /// Reads the table once for all ports.
    pub fn read(root: &Root) -> Interrupts {
        Interrupts::parse(&root.text("proc/interrupts").unwrap_or_default())
    }

    fn parse(text: &str) -> Interrupts {
        let mut lines = text.lines();
        let cpus = lines.next().map_or(0, |header| header.split_whitespace().count());
        Interrupts(lines.filter_map(|line| entry(line, cpus)).collect())
    }

    /// Interrupts of the adapter.
    pub fn of(&self, root: &Root, address: &str) -> Vec<Irq> {
        let numbers = root.names(pci::folder(address).join("msi_irqs"));
        numbers
            .iter()
            .filter_map(|number| number.parse().ok())
            .take(IRQS_MAX)
            .map(|number| self.irq(root, number))
            .collect()
    }

    fn irq(&self, root: &Root, number: u32) -> Irq {
        let list =
            |file: &str| number_list(&root.text(format!("proc/irq/{number}/{file}")).unwrap_or_default());
        let known = self.0.get(&number);
        Irq {
            number,
            name: known.map(|(_, name)| name.clone()),
            cpus_allowed: list("smp_affinity_list"),
            cpus: list("effective_affinity_list"),
            count: known.map(|(count, _)| *count),
        }
    }
}

fn entry(line: &str, cpus: usize) -> Option<(u32, (u64, String))> {
    let (number, rest) = line.split_once(':')?;
    let mut words = rest.split_whitespace();
    let counts: Vec<u64> = words.by_ref().take(cpus).map_while(|word| word.parse().ok()).collect();
    let name = words.next_back().unwrap_or_default().to_owned();
    let count = counts.iter().fold(0u64, |sum, one| sum.saturating_add(*one));
    Some((number.trim().parse().ok()?, (count, name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::fixture::files;

    #[test]
    fn interrupts_of_a_fixture() {
        let (_folder, root) = files(&[
            (
                "proc/interrupts",
                "           CPU0       CPU1\n  9:          1          2   IO-APIC   9-fasteoi   acpi\n\
                 101:         10         20  IR-PCI-MSIX-0000:3b:00.0    0-edge      mlx5_comp0@pci:0000:3b:00.0\nNMI:   1  1  Non-maskable\n",
            ),
            ("sys/bus/pci/devices/0000:3b:00.0/msi_irqs/101", "msix"),
            ("sys/bus/pci/devices/0000:3b:00.0/msi_irqs/102", "msix"),
            ("proc/irq/101/smp_affinity_list", "0-1"),
            ("proc/irq/101/effective_affinity_list", "1"),
        ]);
        let irqs = Interrupts::read(&root).of(&root, "0000:3b:00.0");
        assert_eq!(irqs.len(), 2);
        assert_eq!(irqs[0].name.as_deref(), Some("mlx5_comp0@pci:0000:3b:00.0"));
        assert_eq!((irqs[0].count, &irqs[0].cpus_allowed, &irqs[0].cpus), (Some(30), &vec![0, 1], &vec![1]));
        assert_eq!(irqs[1], Irq { number: 102, ..Irq::default() });
    }
}
