//! Files of the kernel about adapters: what the card, the link and the slot can do; interrupts, and which CPUs take
//! them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::collect::root::{Root, number_list};
use crate::model::{Irq, Pcie, PcieLink};

/// A device by its bus and name, as rtnetlink says: `pci` and `0000:3b:00.0`, or `virtio` and `virtio0`, whose
/// adapter is further up the device's real path.
pub fn read(root: &Root, bus: &str, device: &str) -> Option<Pcie> {
    if device.contains('/') || bus.contains('/') {
        return None;
    }
    let folders = root.real_folders(format!("sys/bus/{bus}/devices/{device}"));
    let mut on_the_way = folders.iter().filter(|name| is_address(name));
    let address = on_the_way.next()?.clone();
    let folder = folder(&address);
    let slot = on_the_way.next().and_then(|bridge| link(root, &self::folder(bridge), "max"));
    Some(Pcie {
        id: id(root, &folder),
        able: link(root, &folder, "max"),
        running: link(root, &folder, "current"),
        slot_able: slot,
        physical_function: root.link_name(folder.join("physfn")).filter(|name| is_address(name)),
        address,
    })
}

/// NUMA node of an adapter.
pub fn numa_node(root: &Root, address: &str) -> Option<u32> {
    root.number::<i64>(folder(address).join("numa_node")).and_then(|node| u32::try_from(node).ok())
}

/// Where the adapter's files are.
pub fn folder(address: &str) -> PathBuf {
    PathBuf::from("sys/bus/pci/devices").join(address)
}

/// Has the form `0000:3b:00.0`.
fn is_address(name: &str) -> bool {
    let parts: Vec<&str> = name.split([':', '.']).collect();
    parts.len() == 4
        && name.matches(':').count() == 2
        && parts.iter().all(|part| u32::from_str_radix(part, 16).is_ok())
}

fn id(root: &Root, folder: &std::path::Path) -> Option<String> {
    let number = |file: &str| Some(root.text(folder.join(file))?.trim_start_matches("0x").to_owned());
    Some(format!("{}:{}", number("vendor")?, number("device")?))
}

/// A device that is no PCIe (a virtual machine's) says `Unknown` and a width of 0 or 255.
fn link(root: &Root, folder: &std::path::Path, which: &str) -> Option<PcieLink> {
    let speed = root.text(folder.join(format!("{which}_link_speed")))?;
    let width: u32 = root.number(folder.join(format!("{which}_link_width")))?;
    let (whole, tenths) = speed.split_whitespace().next()?.split_once('.')?;
    let speed_mts = whole.parse::<u32>().ok()? * 1000 + tenths.get(..1)?.parse::<u32>().ok()? * 100;
    ((1..=32).contains(&width) && speed_mts > 0).then_some(PcieLink { speed_mts, width })
}

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
        let numbers = root.names(folder(address).join("msi_irqs"));
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
    mod pci {
        use super::super::*;
        use crate::collect::root::fixture::{files, link as symlink};

        const BRIDGE: &str = "sys/devices/pci0000:3a/0000:3a:00.0";

        fn fixture(speed: &str, width: &str) -> (tempfile::TempDir, Root) {
            let card = format!("{BRIDGE}/0000:3b:00.1");
            let (folder, root) = files(&[
                (format!("{BRIDGE}/max_link_speed"), "8.0 GT/s PCIe".to_owned()),
                (format!("{BRIDGE}/max_link_width"), "16".to_owned()),
                (format!("{card}/max_link_speed"), "16.0 GT/s PCIe".to_owned()),
                (format!("{card}/max_link_width"), "16".to_owned()),
                (format!("{card}/current_link_speed"), speed.to_owned()),
                (format!("{card}/current_link_width"), width.to_owned()),
                (format!("{card}/vendor"), "0x15b3".to_owned()),
                (format!("{card}/device"), "0x1015".to_owned()),
                (format!("{card}/numa_node"), "1".to_owned()),
                (format!("{card}/virtio3/features"), "0".to_owned()),
            ]);
            symlink(&root, "sys/bus/pci/devices/0000:3b:00.1", &card);
            symlink(&root, "sys/bus/pci/devices/0000:3a:00.0", BRIDGE);
            symlink(&root, "sys/bus/virtio/devices/virtio3", &format!("{card}/virtio3"));
            (folder, root)
        }

        #[test]
        fn a_card_of_x16_that_runs_at_x8() {
            let (_folder, root) = fixture("8.0 GT/s PCIe", "8");
            let slot = read(&root, "pci", "0000:3b:00.1").unwrap();
            assert_eq!(slot.address, "0000:3b:00.1");
            assert_eq!(slot.slot(), "0000:3b:00");
            assert_eq!(slot.id.as_deref(), Some("15b3:1015"));
            assert_eq!(slot.able, Some(PcieLink { speed_mts: 16_000, width: 16 }));
            assert_eq!(slot.running, Some(PcieLink { speed_mts: 8000, width: 8 }));
            assert_eq!(slot.slot_able, Some(PcieLink { speed_mts: 8000, width: 16 }));
            assert_eq!(numa_node(&root, "0000:3b:00.1"), Some(1));
            assert_eq!(slot.physical_function, None);
        }

        #[test]
        fn a_virtual_function_names_the_one_whose_cable_it_uses() {
            let (_folder, root) = fixture("8.0 GT/s PCIe", "8");
            let virtual_one = format!("{BRIDGE}/0000:3b:00.2");
            std::fs::create_dir_all(root.path(&virtual_one)).unwrap();
            symlink(&root, "sys/bus/pci/devices/0000:3b:00.2", &virtual_one);
            symlink(&root, &format!("{virtual_one}/physfn"), &format!("{BRIDGE}/0000:3b:00.1"));
            let slot = read(&root, "pci", "0000:3b:00.2").unwrap();
            assert_eq!(slot.physical_function.as_deref(), Some("0000:3b:00.1"));
            assert_eq!(slot.function_with_cable(), "0000:3b:00.1");
        }

        #[test]
        fn a_virtio_port_has_the_slot_of_its_adapter() {
            let (_folder, root) = fixture("2.5 GT/s PCIe", "1");
            let slot = read(&root, "virtio", "virtio3").unwrap();
            assert_eq!(slot.address, "0000:3b:00.1");
            assert_eq!(slot.running, Some(PcieLink { speed_mts: 2500, width: 1 }));
        }

        #[test]
        fn unknown_widths_are_not_known() {
            let (_folder, root) = fixture("Unknown", "255");
            assert_eq!(read(&root, "pci", "0000:3b:00.1").unwrap().running, None);
            assert_eq!(read(&root, "pci", "../../etc"), None);
            assert_eq!(read(&root, "pci", "0000:ff:00.0"), None);
        }
    }

    mod interrupts {
        use super::super::*;
        use crate::collect::root::fixture::files;

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
            assert_eq!(
                (irqs[0].count, &irqs[0].cpus_allowed, &irqs[0].cpus),
                (Some(30), &vec![0, 1], &vec![1])
            );
            assert_eq!(irqs[1], Irq { number: 102, ..Irq::default() });
        }
    }
}
