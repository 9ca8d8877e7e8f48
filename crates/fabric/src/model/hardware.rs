//! Slots and interrupts.

use serde::{Deserialize, Serialize};

/// One width and speed of a PCIe link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcieLink {
    /// Megatransfers per second and lane: 2500, 5000, 8000, 16000, 32000, 64000.
    pub speed_mts: u32,
    /// Lanes.
    pub width: u32,
}

impl PcieLink {
    /// What packets can move in one direction, megabits per second: the line code (8b/10b up to 5 GT/s, 128b/130b from 8 GT/s)
    /// and about a tenth for the headers of transactions of 256 bytes.
    pub fn throughput_mbps(&self) -> u64 {
        let raw = u64::from(self.speed_mts) * u64::from(self.width);
        let coded = if self.speed_mts <= 5000 { raw * 8 / 10 } else { raw * 128 / 130 };
        coded * 9 / 10
    }
}

/// The slot of an adapter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pcie {
    /// Address, such as `0000:3b:00.0`. Ports whose addresses differ in the last digit only share a slot.
    pub address: String,
    /// Vendor and device numbers, such as `15b3:1015`.
    pub id: Option<String>,
    /// What the adapter is able to.
    pub able: Option<PcieLink>,
    /// What runs now.
    pub running: Option<PcieLink>,
    /// What the slot is able to (the bridge above), if it can be asked.
    pub slot_able: Option<PcieLink>,
}

impl Pcie {
    /// The slot: the address without the function's number.
    pub fn slot(&self) -> &str {
        self.address.rsplit_once('.').map_or(self.address.as_str(), |(slot, _)| slot)
    }
}

/// An interrupt of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Irq {
    /// Its number.
    pub number: u32,
    /// Its name in the kernel, such as `mlx5_comp3@pci:0000:3b:00.0`.
    pub name: Option<String>,
    /// CPUs that may take it.
    pub cpus_allowed: Vec<u32>,
    /// CPUs that do take it.
    pub cpus: Vec<u32>,
    /// How often it came.
    pub count: Option<u64>,
}
