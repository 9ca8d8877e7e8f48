//! Slots with the ports that share them.

use std::collections::BTreeMap;

use crate::model::{Pcie, PortRef, Room};

/// A slot of a host.
pub(in crate::checks) struct Slot<'a> {
    pub(in crate::checks) ports: Vec<PortRef<'a>>,
    /// What is known of it.
    pub(in crate::checks) pcie: &'a Pcie,
}

/// All slots of a room.
pub(in crate::checks) fn slots(room: &Room) -> Vec<Slot<'_>> {
    let mut slots: BTreeMap<(&str, &str), Slot<'_>> = BTreeMap::new();
    for at in room.ports() {
        let Some(pcie) = &at.port.pcie else { continue };
        let slot = slots.entry((at.host.host.as_str(), pcie.slot()));
        slot.or_insert_with(|| Slot { ports: Vec::new(), pcie }).ports.push(at);
    }
    slots.into_values().collect()
}

impl Slot<'_> {
    /// What its ports move together as they run, megabits per second.
    pub(in crate::checks) fn ports_mbps(&self) -> u64 {
        self.ports.iter().filter_map(|at| at.port.link.speed_mbps).map(u64::from).sum()
    }
}

/// `x8 at 8 GT/s (56.7 Gb/s)`.
pub(in crate::checks) fn link_text(link: crate::model::PcieLink) -> String {
    let tenths = link.throughput_mbps() / 100;
    let (speed, half) = (link.speed_mts / 1000, if link.speed_mts % 1000 == 500 { ".5" } else { "" });
    format!("x{} at {speed}{half} GT/s ({}.{} Gb/s)", link.width, tenths / 10, tenths % 10)
}
