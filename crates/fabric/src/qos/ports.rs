//! What a plan must know of ports beside DCB: their RDMA side, the ports below them, and the tools of their makers.

use crate::model::{Inventory, LinkLayer, Port, PortKind, RdmaDevice, RdmaPort};

/// The RDMA side of a port.
pub(super) fn rdma<'a>(host: &'a Inventory, port: &Port) -> Option<(&'a RdmaDevice, &'a RdmaPort)> {
    let ours = |one: &&RdmaPort| match &one.port {
        Some(name) => *name == port.name,
        None => one.gids.iter().any(|gid| gid.port.as_ref() == Some(&port.name)),
    };
    host.rdma.iter().flatten().find_map(|device| Some((device, device.ports.iter().find(ours)?)))
}

/// A device that is in InfiniBand mode, so that it has no network port.
pub(super) fn infiniband(host: &Inventory) -> Option<&RdmaDevice> {
    let turned =
        |device: &&RdmaDevice| device.ports.iter().any(|port| port.link_layer == Some(LinkLayer::Infiniband));
    host.rdma.iter().flatten().find(turned)
}

/// The command that turns its ports to Ethernet.
pub(super) fn to_ethernet(device: &RdmaDevice) -> String {
    let types = device
        .ports
        .iter()
        .filter(|port| port.link_layer == Some(LinkLayer::Infiniband))
        .map(|port| format!(" LINK_TYPE_P{}=2", port.number));
    let address = device.pcie_address.as_deref().unwrap_or("PCI-ADDRESS");
    format!("mstconfig -d {address} set{}", types.collect::<String>())
}

/// Ports below a bond, VLAN or bridge.
pub(super) fn below<'a>(host: &'a Inventory, port: &Port) -> Vec<&'a str> {
    let is_below =
        |one: &&Port| one.master.as_ref() == Some(&port.name) || port.parent.as_ref() == Some(&one.name);
    host.ports.iter().filter(is_below).map(|one| one.name.as_str()).collect()
}

/// What it is, for a sentence: `a veth`, `driver tg3`.
pub(super) fn kind(port: &Port) -> String {
    let word = match port.kind {
        PortKind::Physical => {
            let driver = port.driver.as_ref().map(|driver| format!("driver {driver}"));
            return driver.unwrap_or_else(|| "no driver known".to_owned());
        }
        PortKind::Bond => "a bond",
        PortKind::Team => "a team",
        PortKind::Vlan => "a VLAN",
        PortKind::Bridge => "a bridge",
        PortKind::Veth => "a veth",
        PortKind::Macvlan => "a macvlan",
        PortKind::Tun => "a tap",
        PortKind::Loopback => "the loopback",
        PortKind::Other => "no adapter",
    };
    word.to_owned()
}

/// What takes DCBX from the adapter's firmware, so that the host can decide. By the documents of each driver.
pub(super) fn free_from_firmware(port: &Port) -> String {
    let name = &port.name;
    let address = port.pcie.as_ref().map_or("PCI-ADDRESS", |slot| slot.address.as_str());
    match port.driver.as_deref() {
        Some("i40e") => format!("ethtool --set-priv-flags {name} disable-fw-lldp on"),
        Some("mlx5_core") => {
            // The tool names both ports of a card whichever function it is given.
            format!(
                "mstconfig -d {address} set LLDP_NB_DCBX_P1=FALSE LLDP_NB_RX_MODE_P1=0 LLDP_NB_TX_MODE_P1=0 (and the same with _P2 on \
                 an adapter with two ports), then restart the host"
            )
        }
        _ => "the tool of the adapter's maker, or its page in the firmware set-up: turn DCBX (LLDP of the adapter) off"
            .to_owned(),
    }
}
