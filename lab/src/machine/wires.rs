//! Links between two machines: network cards that are joined by datagram sockets in a folder, one pair for each link.
//! Neither machine has to be there first; what is sent to one that is not there is lost, as on a cable.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Second byte of the links' addresses.
pub(crate) const OCTET: u8 = 9;

/// Which end of the links a machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// 10.9.N.1
    A,
    /// 10.9.N.2
    B,
}

impl Side {
    /// As in file names and for `lab/rdma/rdma-ends`.
    pub fn name(self) -> &'static str {
        match self {
            Side::A => "a",
            Side::B => "b",
        }
    }

    fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }

    /// Last byte of the addresses, and part of the cards' hardware addresses.
    fn number(self) -> u8 {
        match self {
            Side::A => 1,
            Side::B => 2,
        }
    }
}

/// A machine's ends of the links.
#[derive(Debug, Clone)]
pub(super) struct Wires {
    pub(super) folder: PathBuf,
    pub(super) side: Side,
}

impl Wires {
    /// Adds the card of a link.
    pub(super) fn add(&self, command: &mut Command, link: u32, mtu: u32) {
        let socket = |side: Side| comma(&self.folder.join(format!("l{link}.{}", side.name())));
        let (local, remote) = (socket(self.side), socket(self.side.other()));
        let netdev = format!(
            "dgram,id=l{link},local.type=unix,local.path={local},remote.type=unix,remote.path={remote}"
        );
        let mac = format!("52:54:00:09:{:02x}:{link:02x}", self.side.number());
        let card = format!("virtio-net-pci,netdev=l{link},mac={mac},host_mtu={mtu},romfile=");
        command.args(["-netdev", &netdev, "-device", &card]);
    }
}

/// A path as QEMU reads it: a comma would end the option's value, two are one.
pub(super) fn comma(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}
