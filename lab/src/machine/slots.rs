//! PCIe slots with network cards, as real adapters are: with a driver of Linux's, ethtool, and a link to the slot.

use std::process::Command;

/// A root port with a card in it whose ports share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// What the slot can do, as QEMU writes GT/s: `2_5`, `5`, `8`, `16`.
    pub speed: &'static str,
    /// Lanes of the slot: 1, 2, 4, 8, 16.
    pub width: u8,
    /// Gigabit ports of the card, whose own link is one lane of 2.5 GT/s: QEMU's `e1000e` has no other.
    pub ports: u8,
}

impl Slot {
    /// Adds slot and card. All cards' ports are on one hub, so that they have a link.
    pub(super) fn add(self, command: &mut Command, number: usize) {
        let Slot { speed, width, ports } = self;
        let chassis = number + 1;
        let slot =
            format!("pcie-root-port,id=slot{number},chassis={chassis},x-speed={speed},x-width={width}");
        command.args(["-device", &slot]);
        for port in 0..ports {
            let id = format!("slot{number}p{port}");
            command.args(["-netdev", &format!("hubport,id={id},hubid=0")]);
            let card = format!(
                "e1000e,bus=slot{number},addr=0.{port},multifunction=on,netdev={id},mac=52:54:00:0a:{number:02x}:{port:02x},romfile="
            );
            command.args(["-device", &card]);
        }
    }
}
