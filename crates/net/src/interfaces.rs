//! What network interfaces this host has, as the kernel says over rtnetlink.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};

use crate::netlink::{NetlinkError, dump};

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The host's own address.
    pub ip: IpAddr,
    /// Length of the network prefix, bits.
    pub prefix: u8,
}

/// A network interface of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name, such as `ens1f0`.
    pub name: String,
    /// The kernel's number of it.
    pub index: u32,
    /// Brought up by the administrator.
    pub up: bool,
    /// The cable has a signal.
    pub carrier: bool,
    pub loopback: bool,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Megabits per second; 0 if the port does not say.
    pub speed_mbps: u32,
    /// NUMA node of the device; -1 if none is known.
    pub numa: i32,
    /// Addresses, in the kernel's order.
    pub addresses: Vec<InterfaceAddress>,
}

impl Interface {
    /// Up and with carrier: packets can leave.
    pub fn usable(&self) -> bool {
        self.up && self.carrier
    }
}

/// All interfaces of the network namespace that the thread is in, by index.
pub fn list() -> Result<Vec<Interface>, NetlinkError> {
    let mut interfaces = BTreeMap::new();
    dump(RouteNetlinkMessage::GetLink(LinkMessage::default()), |entry| {
        if let RouteNetlinkMessage::NewLink(link) = entry {
            interfaces.insert(link.header.index, from_link(&link));
        }
    })?;
    dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()), |entry| {
        let RouteNetlinkMessage::NewAddress(message) = entry else { return };
        if let (Some(interface), Some(address)) =
            (interfaces.get_mut(&message.header.index), address_of(&message))
        {
            interface.addresses.push(address);
        }
    })?;
    Ok(interfaces.into_values().map(with_sysfs).collect())
}

fn from_link(link: &LinkMessage) -> Interface {
    let flags = link.header.flags;
    let mut interface = Interface {
        name: String::new(),
        index: link.header.index,
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp),
        loopback: flags.contains(LinkFlags::Loopback),
        mtu: 0,
        speed_mbps: 0,
        numa: -1,
        addresses: Vec::new(),
    };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => interface.mtu = *mtu,
            _ => {}
        }
    }
    interface
}

/// On a point-to-point interface `Address` is the other end and `Local` ours; elsewhere they are the same, and IPv6 has
/// `Address` only.
fn address_of(message: &AddressMessage) -> Option<InterfaceAddress> {
    let mut address = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(ip) => address = Some(*ip),
            AddressAttribute::Address(ip) if address.is_none() => address = Some(*ip),
            _ => {}
        }
    }
    address.map(|ip| InterfaceAddress { ip, prefix: message.header.prefix_len })
}

/// Adds what rtnetlink does not carry.
fn with_sysfs(mut interface: Interface) -> Interface {
    interface.speed_mbps = sysfs_number(&interface.name, "speed").unwrap_or(0).max(0) as u32;
    interface.numa = sysfs_number(&interface.name, "device/numa_node").unwrap_or(-1).max(-1);
    interface
}

/// A number of the interface in sysfs; `None` where the driver has none (reading a speed without carrier is an error).
/// A sysfs mounted for another network namespace has no or another interface of that name. Then speed is a guess of the
/// other's port, so the mount that belongs to the namespace matters only for display and channel counts.
fn sysfs_number(name: &str, file: &str) -> Option<i32> {
    if name.is_empty() || name.contains('/') {
        return None;
    }
    fs::read_to_string(format!("/sys/class/net/{name}/{file}")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_listed_with_its_address() {
        let interfaces = list().unwrap();
        let loopback = interfaces.iter().find(|interface| interface.loopback).expect("a loopback interface");
        assert_eq!(loopback.name, "lo");
        assert!(loopback.mtu >= 1500);
        let address = InterfaceAddress { ip: [127, 0, 0, 1].into(), prefix: 8 };
        assert!(loopback.addresses.contains(&address), "{:?}", loopback.addresses);
    }

    #[test]
    fn sysfs_names_cannot_leave_their_folder() {
        assert_eq!(sysfs_number("../../kernel", "speed"), None);
        assert_eq!(sysfs_number("", "speed"), None);
    }
}
