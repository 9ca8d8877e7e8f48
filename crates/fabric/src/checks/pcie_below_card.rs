//! An adapter whose slot is narrower or slower than the adapter.

use crate::model::{Finding, Room, Severity};

use super::Check;
use super::common::{Slot, link_text, slots};

const WHY: &str = "Everything that the adapter moves goes through its slot. Two 100G ports in an x16 slot that was wired x8 moved not quite \
     70 Gb/s together, and in a full slot 115 (field report with ConnectX-4, on Windows).";

pub(super) struct PcieBelowCard;

impl Check for PcieBelowCard {
    fn id(&self) -> &'static str {
        "pcie-below-card"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        slots(room).iter().filter_map(|slot| self.slot(slot)).collect()
    }
}

/// The slot runs below what its adapter can do.
pub(super) fn below_card(slot: &Slot<'_>) -> bool {
    let pair = slot.pcie.running.zip(slot.pcie.able);
    pair.is_some_and(|(running, able)| running.width < able.width || running.speed_mts < able.speed_mts)
}

impl PcieBelowCard {
    fn slot(&self, slot: &Slot<'_>) -> Option<Finding> {
        let (running, able) = slot.pcie.running.zip(slot.pcie.able).filter(|_| below_card(slot))?;
        let first = slot.ports.first()?;
        let bounds = running.throughput_mbps() < slot.ports_mbps();
        let severity = if bounds { Severity::Warning } else { Severity::Hint };
        let title = format!(
            "slot {} runs {}, the adapter can {}",
            slot.pcie.slot(),
            link_text(running),
            link_text(able)
        );
        let mut finding = Finding::new(self.id(), severity, title).why(WHY);
        for at in &slot.ports {
            finding = finding.at(at.place());
        }
        finding = finding
            .seen(first.place(), "slot runs", link_text(running))
            .seen(first.place(), "adapter can", link_text(able))
            .seen(first.place(), "its ports together", format!("{} Mb/s", slot.ports_mbps()));
        if let Some(slot_able) = slot.pcie.slot_able {
            finding = finding.seen(first.place(), "slot can", link_text(slot_able));
        }
        let place = Some(crate::model::Place::host(&first.host.host));
        let slot_is_less = slot
            .pcie
            .slot_able
            .is_some_and(|slot| slot.width < able.width || slot.speed_mts < able.speed_mts);
        finding = match slot_is_less {
            true => finding.step(
                place,
                "put the adapter into a slot that is wired for it; a long slot may have half the lanes",
            ),
            false => finding.step(
                place,
                "seat the adapter anew, and look for the slot's width and speed in the firmware's setup",
            ),
        };
        let command = format!("lspci -vv -s {} | grep -E 'LnkCap|LnkSta'", slot.pcie.address);
        Some(finding.command(first.place(), "see it", command))
    }
}

#[cfg(test)]
mod tests {
    use crate::model::{PcieLink, Severity};
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn a_slot_with_half_the_lanes() {
        let mut room = healthy_room();
        for name in ["ens1f0", "ens1f1"] {
            port(&mut room, "beta", name).pcie.as_mut().unwrap().running =
                Some(PcieLink { speed_mts: 8000, width: 4 });
        }
        let finding = only(&room, "pcie-below-card");
        assert_eq!(finding.severity, Severity::Warning);
        assert_eq!(
            finding.title,
            "slot 0000:3b:00 runs x4 at 8 GT/s (28.3 Gb/s), the adapter can x8 at 8 GT/s (56.7 Gb/s)"
        );
        let places: Vec<String> = finding.places.iter().map(ToString::to_string).collect();
        assert_eq!(places, ["beta ens1f0", "beta ens1f1"], "one finding for the slot");
    }

    #[test]
    fn a_slot_that_is_enough_all_the_same_is_a_hint() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f0").pcie.as_mut().unwrap().able =
            Some(PcieLink { speed_mts: 16_000, width: 8 });
        assert_eq!(only(&room, "pcie-below-card").severity, Severity::Hint);
    }
}
