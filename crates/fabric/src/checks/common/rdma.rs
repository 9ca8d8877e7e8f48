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

/// Which priority RoCE has on a port, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::checks) enum RocePriority {
    /// The application table names its protocol.
    ByProtocol(u8),
    /// The application table names the mark that its packets have.
    ByDscp(u8),
    /// Nothing names it: it has the priority of everything else.
    Unmarked,
}

impl RocePriority {
    /// Its number, if something names it.
    pub(in crate::checks) fn named(self) -> Option<u8> {
        match self {
            RocePriority::ByProtocol(priority) | RocePriority::ByDscp(priority) => Some(priority),
            RocePriority::Unmarked => None,
        }
    }
}

/// Priority that RoCE has by the port's application table. `None` if the table is not known, or gives priorities to
/// marks and it is not known which mark RoCE has.
pub(in crate::checks) fn roce_priority(at: PortRef<'_>, rdma: &RdmaPort) -> Option<RocePriority> {
    let table = &at.port.dcb.as_ref()?.applications;
    let protocol = table.iter().find(|one| match one.selector {
        Selector::Datagram | Selector::AnyPort => one.protocol == 4791,
        Selector::EtherType => one.protocol == 0x8915,
        _ => false,
    });
    if let Some(one) = protocol {
        return Some(RocePriority::ByProtocol(one.priority));
    }
    if !table.iter().any(|one| one.selector == Selector::Dscp) {
        return Some(RocePriority::Unmarked);
    }
    let dscp = u16::from(traffic_class(at.host, rdma)? >> 2);
    let mark = table.iter().find(|one| one.selector == Selector::Dscp && one.protocol == dscp);
    Some(mark.map_or(RocePriority::Unmarked, |one| RocePriority::ByDscp(one.priority)))
}

/// Traffic class of the agent's RDMA connections: its own, else the system's for connections that say none.
pub(in crate::checks) fn traffic_class(host: &Inventory, rdma: &RdmaPort) -> Option<u8> {
    match host.agent.as_ref().and_then(|agent| agent.rdma_type_of_service) {
        Some(0) => Some(rdma.default_traffic_class.unwrap_or(0)),
        Some(own) => Some(own),
        None => rdma.default_traffic_class,
    }
}

/// `3, 4`, or `none`.
pub(in crate::checks) fn numbers<T: ToString>(all: &[T]) -> String {
    let words: Vec<String> = all.iter().map(ToString::to_string).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}
