//! rtnetlink: ports, how they are stacked, addresses, counters.

use std::collections::BTreeMap;

use linerate_net::netlink::{NetlinkError, dump};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    BondAdInfo, BondXmitHashPolicy, InfoBond, InfoData, InfoKind, InfoVlan, LinkAttribute, LinkFlags,
    LinkInfo, LinkMessage, Stats64,
};

use crate::model::{Address, Bond, Counters, Port, PortKind};

/// A port with what is only needed while the inventory is put together.
#[derive(Clone, Debug, Default)]
pub struct Link {
    /// What netlink says of the port; collectors add the rest.
    pub port: Port,
    /// Bus and name of the device, such as `pci` and `0000:3b:00.0`.
    pub device: Option<(String, String)>,
    master: Option<u32>,
    parent: Option<u32>,
    active: Option<u32>,
}

/// All ports of the network namespace that the thread is in, by index.
pub fn read() -> Result<Vec<Link>, NetlinkError> {
    let mut links = BTreeMap::new();
    dump(RouteNetlinkMessage::GetLink(LinkMessage::default()), |entry| {
        if let RouteNetlinkMessage::NewLink(message) = entry {
            links.insert(message.header.index, link(&message));
        }
    })?;
    dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()), |entry| {
        let RouteNetlinkMessage::NewAddress(message) = entry else { return };
        if let (Some(link), Some(address)) = (links.get_mut(&message.header.index), address(&message)) {
            link.port.addresses.push(address);
        }
    })?;
    Ok(with_names(links))
}

/// Counters of all ports, by index.
pub fn counters() -> Result<BTreeMap<u32, Counters>, NetlinkError> {
    let mut all = BTreeMap::new();
    dump(RouteNetlinkMessage::GetLink(LinkMessage::default()), |entry| {
        let RouteNetlinkMessage::NewLink(message) = entry else { return };
        for attribute in &message.attributes {
            if let LinkAttribute::Stats64(stats) = attribute {
                all.insert(message.header.index, counters_of(stats));
            }
        }
    })?;
    Ok(all)
}

/// Puts names where the kernel says numbers.
fn with_names(mut links: BTreeMap<u32, Link>) -> Vec<Link> {
    let names: BTreeMap<u32, String> =
        links.iter().map(|(index, link)| (*index, link.port.name.clone())).collect();
    let name = |index: Option<u32>| index.and_then(|index| names.get(&index)).cloned();
    for link in links.values_mut() {
        link.port.master = name(link.master);
        // The other end of a veth is no port below it.
        let stacked = matches!(link.port.kind, PortKind::Vlan | PortKind::Macvlan);
        link.port.parent = name(link.parent).filter(|_| stacked);
        if let Some(bond) = &mut link.port.bond {
            bond.active = name(link.active);
        }
    }
    links.into_values().collect()
}

fn link(message: &LinkMessage) -> Link {
    let flags = message.header.flags;
    let mut link = Link::default();
    link.port.index = Some(message.header.index);
    link.port.up = Some(flags.contains(LinkFlags::Up));
    link.port.carrier = Some(flags.contains(LinkFlags::LowerUp));
    if flags.contains(LinkFlags::Loopback) {
        link.port.kind = PortKind::Loopback;
    }
    let (mut bus, mut device) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::ParentDevName(name) => device = Some(name.clone()),
            LinkAttribute::ParentDevBusName(name) => bus = Some(name.clone()),
            LinkAttribute::LinkInfo(infos) => infos.iter().for_each(|info| link_info(info, &mut link)),
            other => plain(other, &mut link),
        }
    }
    link.device = bus.zip(device);
    if link.device.is_some() && link.port.kind == PortKind::Other {
        link.port.kind = PortKind::Physical;
    }
    link
}

fn plain(attribute: &LinkAttribute, link: &mut Link) {
    let port = &mut link.port;
    match attribute {
        LinkAttribute::IfName(name) => port.name.clone_from(name),
        LinkAttribute::Address(bytes) if bytes.len() == 6 => port.mac = Some(mac(bytes)),
        LinkAttribute::Mtu(mtu) => port.mtu = Some(*mtu),
        // 0 is a driver that does not say.
        LinkAttribute::MaxMtu(mtu) => port.mtu_max = Some(*mtu).filter(|mtu| *mtu > 0),
        LinkAttribute::CarrierChanges(count) => port.carrier_changes = Some(*count),
        LinkAttribute::Qdisc(name) => port.qdisc = Some(name.clone()),
        LinkAttribute::Stats64(stats) => port.counters = Some(counters_of(stats)),
        LinkAttribute::Controller(index) => link.master = Some(*index),
        LinkAttribute::Link(index) => link.parent = Some(*index),
        _ => {}
    }
}

fn link_info(info: &LinkInfo, link: &mut Link) {
    match info {
        LinkInfo::Kind(kind) => link.port.kind = kind_of(kind),
        LinkInfo::Data(InfoData::Vlan(all)) => {
            link.port.vlan =
                all.iter().find_map(|one| if let InfoVlan::Id(id) = one { Some(*id) } else { None });
        }
        LinkInfo::Data(InfoData::Bond(all)) => {
            let mut bond = Bond::default();
            all.iter().for_each(|one| bond_info(one, &mut bond, &mut link.active));
            link.port.bond = Some(bond);
        }
        _ => {}
    }
}

fn kind_of(kind: &InfoKind) -> PortKind {
    match kind {
        InfoKind::Bond => PortKind::Bond,
        InfoKind::Team => PortKind::Team,
        InfoKind::Vlan => PortKind::Vlan,
        InfoKind::Bridge => PortKind::Bridge,
        InfoKind::Veth => PortKind::Veth,
        InfoKind::MacVlan => PortKind::Macvlan,
        InfoKind::Tun => PortKind::Tun,
        _ => PortKind::Other,
    }
}

fn bond_info(info: &InfoBond, bond: &mut Bond, active: &mut Option<u32>) {
    match info {
        InfoBond::Mode(mode) => bond.mode = Some(mode.to_string()),
        InfoBond::XmitHashPolicy(policy) => bond.hash = Some(hash(policy).to_owned()),
        InfoBond::MiiMon(milliseconds) => bond.monitor_interval_ms = Some(*milliseconds),
        InfoBond::ActivePort(index) => *active = Some(*index),
        InfoBond::AdInfo(all) => {
            let ports =
                |one: &BondAdInfo| if let BondAdInfo::NumPorts(count) = one { Some(*count) } else { None };
            bond.aggregated = all.iter().find_map(ports).map(u32::from);
        }
        _ => {}
    }
}

fn hash(policy: &BondXmitHashPolicy) -> &'static str {
    match policy {
        BondXmitHashPolicy::Layer2 => "layer2",
        BondXmitHashPolicy::Layer34 => "layer3+4",
        BondXmitHashPolicy::Layer23 => "layer2+3",
        BondXmitHashPolicy::Encap23 => "encap2+3",
        BondXmitHashPolicy::Encap34 => "encap3+4",
        BondXmitHashPolicy::VlanSrcMac => "vlan+srcmac",
        _ => "unknown",
    }
}

fn mac(bytes: &[u8]) -> String {
    let parts: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    parts.join(":")
}

/// On a point-to-point port `Address` is the other end and `Local` ours; IPv6 has `Address` only.
fn address(message: &AddressMessage) -> Option<Address> {
    let mut ip = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(own) => ip = Some(*own),
            AddressAttribute::Address(any) if ip.is_none() => ip = Some(*any),
            _ => {}
        }
    }
    ip.map(|ip| Address { ip, prefix: message.header.prefix_len })
}

fn counters_of(stats: &Stats64) -> Counters {
    Counters {
        rx_bytes: stats.rx_bytes,
        tx_bytes: stats.tx_bytes,
        rx_packets: stats.rx_packets,
        tx_packets: stats.tx_packets,
        rx_errors: stats.rx_errors,
        tx_errors: stats.tx_errors,
        rx_dropped: stats.rx_dropped,
        tx_dropped: stats.tx_dropped,
        rx_missed: stats.rx_missed_errors,
        rx_crc_errors: stats.rx_crc_errors,
        collisions: stats.collisions,
    }
}

impl Counters {
    /// What was gained since an earlier look.
    pub fn since(&self, earlier: &Counters) -> Counters {
        Counters {
            rx_bytes: self.rx_bytes.saturating_sub(earlier.rx_bytes),
            tx_bytes: self.tx_bytes.saturating_sub(earlier.tx_bytes),
            rx_packets: self.rx_packets.saturating_sub(earlier.rx_packets),
            tx_packets: self.tx_packets.saturating_sub(earlier.tx_packets),
            rx_errors: self.rx_errors.saturating_sub(earlier.rx_errors),
            tx_errors: self.tx_errors.saturating_sub(earlier.tx_errors),
            rx_dropped: self.rx_dropped.saturating_sub(earlier.rx_dropped),
            tx_dropped: self.tx_dropped.saturating_sub(earlier.tx_dropped),
            rx_missed: self.rx_missed.saturating_sub(earlier.rx_missed),
            rx_crc_errors: self.rx_crc_errors.saturating_sub(earlier.rx_crc_errors),
            collisions: self.collisions.saturating_sub(earlier.collisions),
        }
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::BondMode;

    use super::*;

    fn message(index: u32, attributes: Vec<LinkAttribute>) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up | LinkFlags::LowerUp;
        message.attributes = attributes;
        message
    }

    #[test]
    fn members_and_vlans_are_listed_by_name() {
        let bond = vec![
            InfoBond::Mode(BondMode::Ieee8023Ad),
            InfoBond::XmitHashPolicy(BondXmitHashPolicy::Layer34),
            InfoBond::MiiMon(100),
            InfoBond::ActivePort(2),
            InfoBond::AdInfo(vec![BondAdInfo::NumPorts(2)]),
        ];
        let messages = [
            message(
                2,
                vec![
                    LinkAttribute::IfName("ens1f0".into()),
                    LinkAttribute::Controller(4),
                    LinkAttribute::ParentDevName("0000:3b:00.0".into()),
                    LinkAttribute::ParentDevBusName("pci".into()),
                    LinkAttribute::Address(vec![2, 0, 0, 0, 0, 0x1f]),
                ],
            ),
            message(
                4,
                vec![
                    LinkAttribute::IfName("bond0".into()),
                    LinkAttribute::LinkInfo(vec![
                        LinkInfo::Kind(InfoKind::Bond),
                        LinkInfo::Data(InfoData::Bond(bond)),
                    ]),
                ],
            ),
            message(
                5,
                vec![
                    LinkAttribute::IfName("bond0.7".into()),
                    LinkAttribute::Link(4),
                    LinkAttribute::LinkInfo(vec![
                        LinkInfo::Kind(InfoKind::Vlan),
                        LinkInfo::Data(InfoData::Vlan(vec![InfoVlan::Id(7)])),
                    ]),
                ],
            ),
        ];
        let links = with_names(messages.iter().map(|one| (one.header.index, link(one))).collect());
        let (member, bond, vlan) = (&links[0].port, &links[1].port, &links[2].port);
        assert_eq!((member.kind, member.master.as_deref()), (PortKind::Physical, Some("bond0")));
        assert_eq!(member.mac.as_deref(), Some("02:00:00:00:00:1f"));
        assert_eq!(links[0].device, Some(("pci".into(), "0000:3b:00.0".into())));
        let expected = Bond {
            mode: Some("802.3ad".into()),
            hash: Some("layer3+4".into()),
            active: Some("ens1f0".into()),
            monitor_interval_ms: Some(100),
            aggregated: Some(2),
        };
        assert_eq!(bond.bond.as_ref(), Some(&expected));
        assert_eq!((vlan.vlan, vlan.parent.as_deref()), (Some(7), Some("bond0")));
    }

    #[test]
    fn loopback_is_here_with_its_address() {
        let links = read().unwrap();
        let loopback =
            links.iter().find(|link| link.port.kind == PortKind::Loopback).expect("a loopback port");
        assert_eq!(loopback.port.name, "lo");
        assert!(loopback.port.addresses.contains(&Address { ip: [127, 0, 0, 1].into(), prefix: 8 }));
        assert!(counters().unwrap().contains_key(&loopback.port.index.unwrap()));
    }
}
