//! RDMA devices and the network ports that they belong to.

use crate::model::{GidKind, Inventory, LinkLayer, Port, PortRef, RdmaDevice, RdmaPort, Selector};

/// The RDMA port of a network port.
pub(in crate::checks) fn rdma_of<'a>(at: PortRef<'a>) -> Option<(&'a RdmaDevice, &'a RdmaPort)> {
    let ours = |port: &&RdmaPort| port.port.as_ref() == Some(&at.port.name) || gid_of(port, at.port);
    at.host.rdma.iter().flatten().find_map(|device| Some((device, device.ports.iter().find(ours)?)))
}

fn gid_of(rdma: &RdmaPort, port: &Port) -> bool {
    rdma.port.is_none() && rdma.gids.iter().any(|gid| gid.port.as_ref() == Some(&port.name))
}

/// The RDMA port of a network port, if it speaks RoCE.
pub(in crate::checks) fn roce_of<'a>(at: PortRef<'a>) -> Option<(&'a RdmaDevice, &'a RdmaPort)> {
    let roce = |(device, port): &(&RdmaDevice, &RdmaPort)| {
        device.node_type.as_deref() != Some("RNIC") && port.link_layer == Some(LinkLayer::Ethernet)
    };
    rdma_of(at).filter(roce)
}

/// Some adapter of the host is in InfiniBand mode.
pub(in crate::checks) fn has_infiniband(host: &Inventory) -> bool {
    let mut ports = host.rdma.iter().flatten().flat_map(|device| &device.ports);
    ports.any(|port| port.link_layer == Some(LinkLayer::Infiniband))
}

/// Whether the port has GIDs of RoCE v2; `None` if its table is not known.
pub(in crate::checks) fn has_roce_v2(port: &RdmaPort) -> Option<bool> {
    (!port.gids.is_empty()).then(|| port.gids.iter().any(|gid| gid.kind == GidKind::RoceV2))
}

/// Priority that RoCE has by the port's application table.
pub(in crate::checks) fn roce_priority(port: &Port) -> Option<u8> {
    let table = &port.dcb.as_ref()?.applications;
    let roce = table.iter().find(|one| match one.selector {
        Selector::Datagram | Selector::AnyPort => one.protocol == 4791,
        Selector::EtherType => one.protocol == 0x8915,
        _ => false,
    });
    roce.map(|one| one.priority)
}

/// `3, 4`, or `none`.
pub(in crate::checks) fn numbers<T: ToString>(all: &[T]) -> String {
    let words: Vec<String> = all.iter().map(ToString::to_string).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}
