//! An adapter whose ports move more together than its slot.

use crate::model::{Finding, Room, Severity};

use super::Check;
use super::common::{Slot, link_text, slots};
use super::pcie_below_card::below_card;

const WHY: &str = "Each port alone reaches its speed, all together do not: a migration over all of them is bounded by the slot.";

pub(super) struct PcieBelowPorts;

impl Check for PcieBelowPorts {
    fn id(&self) -> &'static str {
        "pcie-below-ports"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        // A slot that is less than its adapter has a finding of its own.
        slots(room).iter().filter(|slot| !below_card(slot)).filter_map(|slot| self.slot(slot)).collect()
    }
}

impl PcieBelowPorts {
    fn slot(&self, slot: &Slot<'_>) -> Option<Finding> {
        let running = slot.pcie.running?;
        let (carried, ports) = (running.throughput_mbps(), slot.ports_mbps());
        if carried >= ports {
            return None;
        }
        let title = format!(
            "ports of {ports} Mb/s together in slot {} that runs {}",
            slot.pcie.slot(),
            link_text(running)
        );
        let mut finding = Finding::new(self.id(), Severity::Warning, title).why(WHY);
        for at in &slot.ports {
            let speed = at.port.link.speed_mbps.map_or("unknown".to_owned(), |speed| format!("{speed} Mb/s"));
            finding = finding.at(at.place()).seen(at.place(), "speed", speed);
        }
        let first = slot.ports.first()?;
        Some(finding.seen(first.place(), "slot runs", link_text(running)).step(
            None,
            "spread the links over two adapters in two slots, or count on the slot's figure when you plan",
        ))
    }
}

#[cfg(test)]
mod tests {
    use crate::model::PcieLink;
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn two_25g_ports_on_four_lanes() {
        let mut room = healthy_room();
        for name in ["ens1f0", "ens1f1"] {
            let pcie = port(&mut room, "beta", name).pcie.as_mut().unwrap();
            let four = Some(PcieLink { speed_mts: 8000, width: 4 });
            (pcie.running, pcie.able) = (four, four);
        }
        let finding = only(&room, "pcie-below-ports");
        assert_eq!(
            finding.title,
            "ports of 50000 Mb/s together in slot 0000:3b:00 that runs x4 at 8 GT/s (28.3 Gb/s)"
        );
        assert_eq!(finding.places.len(), 2);
        assert_eq!(finding.places[0].host, "beta");
    }
}
