//! Pairs the ports of two hosts to links. Pure: what is known of both hosts goes in.
//!
//! 1. A local address and an endpoint that are in one subnet make a link; one link per pair of ports, by IPv4 if both
//!    families lead to the same pair.
//! 2. Only if nothing pairs so, every port of the destination is taken as reachable by routing, without a source
//!    address.
//! 3. Loopback pairs with loopback only, and link-local IPv6 addresses not at all (every port has them).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use linerate_core::LinkId;
use linerate_wire::message::Endpoint;

use crate::interfaces::{Interface, InterfaceAddress};
pub use crate::network::{Network, NetworkError, parse_networks};

/// One pair of ports that can reach each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Number within the session.
    pub id: LinkId,
    /// Source address to bind to; `None` where routing chooses.
    pub local: Option<IpAddr>,
    /// Local interface; `None` where routing chooses.
    pub device: Option<String>,
    /// Name of the destination's interface.
    pub remote_interface: String,
    /// Where the destination takes connections.
    pub remote: SocketAddr,
    /// Megabits per second of the slower port; 0 if neither says.
    pub speed_mbps: u32,
    /// The smaller of the two, bytes.
    pub mtu: u32,
    /// NUMA node of the local port; -1 if none is known.
    pub numa: i32,
    /// Where the destination takes RDMA connections on this link, if it does.
    pub rdma: Option<SocketAddr>,
    /// The two ports disagree, which loses large packets on a switched network.
    pub mtu_differs: bool,
}

/// All links between this host and the endpoints that the destination offers.
///
/// With `filter` not empty, only addresses in one of its networks are used, on both sides of a link where both are
/// known.
pub fn pair(interfaces: &[Interface], endpoints: &[Endpoint], filter: &[Network]) -> Vec<Link> {
    let mut links = on_one_subnet(interfaces, endpoints, filter);
    if links.is_empty() {
        links = routed(endpoints, filter);
    }
    for (number, link) in links.iter_mut().enumerate() {
        link.id = number as LinkId;
    }
    // More links than their numbers could name are more than two hosts have ports.
    links.truncate(usize::from(LinkId::MAX));
    links
}

/// TCP connections for a link of this speed: 8 per 100 Gb/s, at least 1, at most the CPUs that may be used for it. A
/// port that does not say its speed gets 2.
pub fn channels_for(speed_mbps: u32, cpus: usize) -> usize {
    let wanted = if speed_mbps == 0 { 2 } else { (speed_mbps as usize * 8).div_ceil(100_000) };
    wanted.clamp(1, cpus.max(1))
}

/// Queue pairs for a link of this speed: 3 per 100 Gb/s, at least 1 and at most the CPUs that may be used for it. More
/// than one because payloads are summed by a thread of each.
pub fn queue_pairs_for(speed_mbps: u32, cpus: usize) -> usize {
    (speed_mbps as usize * 3).div_ceil(100_000).clamp(1, cpus.max(1))
}

/// What the ports that links may use could carry together, in megabits per second: those with an address in one of the
/// networks of `filter`, or with any where it is empty. A bond's members, a bridge's ports and taps have none.
pub fn speed_of_all(interfaces: &[Interface], filter: &[Network]) -> u64 {
    let links = |port: &&Interface| {
        port.usable() && !port.loopback && port.addresses.iter().any(|address| allowed(filter, address.ip))
    };
    interfaces.iter().filter(links).map(|port| u64::from(port.speed_mbps)).sum()
}

fn on_one_subnet(interfaces: &[Interface], endpoints: &[Endpoint], filter: &[Network]) -> Vec<Link> {
    let mut pairs: BTreeMap<(u32, &str), (usize, Link)> = BTreeMap::new();
    for interface in interfaces.iter().filter(|interface| interface.usable()) {
        for (endpoint, address) in meeting(interface, endpoints, filter) {
            let order = pairs.len();
            let link = link_between(interface, address, endpoint);
            pairs
                .entry((interface.index, &endpoint.interface))
                .and_modify(|(_, known)| {
                    if known.remote.is_ipv6() && link.remote.is_ipv4() {
                        known.clone_from(&link);
                    }
                })
                .or_insert((order, link));
        }
    }
    let mut found: Vec<_> = pairs.into_values().collect();
    found.sort_by_key(|(order, _)| *order);
    found.into_iter().map(|(_, link)| link).collect()
}

/// Endpoints that share a subnet with one of the interface's addresses, with that address.
fn meeting<'a>(
    interface: &'a Interface,
    endpoints: &'a [Endpoint],
    filter: &'a [Network],
) -> impl Iterator<Item = (&'a Endpoint, InterfaceAddress)> {
    let usable = endpoints.iter().filter(|endpoint| endpoint.up && allowed(filter, endpoint.address.ip()));
    usable.flat_map(move |endpoint| {
        let addresses = interface.addresses.iter().copied();
        let near = addresses.filter(move |address| {
            allowed(filter, address.ip) && same_subnet(*address, endpoint.address.ip(), endpoint.prefix)
        });
        near.take(1).map(move |address| (endpoint, address))
    })
}

fn link_between(interface: &Interface, address: InterfaceAddress, endpoint: &Endpoint) -> Link {
    Link {
        id: 0,
        local: Some(address.ip),
        device: Some(interface.name.clone()),
        remote_interface: endpoint.interface.clone(),
        remote: endpoint.address,
        speed_mbps: slower(interface.speed_mbps, endpoint.speed_mbps),
        mtu: interface.mtu.min(endpoint.mtu),
        numa: interface.numa,
        rdma: rdma_at(endpoint),
        mtu_differs: interface.mtu != endpoint.mtu,
    }
}

fn routed(endpoints: &[Endpoint], filter: &[Network]) -> Vec<Link> {
    let mut links: Vec<Link> = Vec::new();
    for endpoint in endpoints {
        let ip = endpoint.address.ip();
        if !endpoint.up || ip.is_loopback() || !allowed(filter, ip) {
            continue;
        }
        match links.iter_mut().find(|link| link.remote_interface == endpoint.interface) {
            Some(known) if known.remote.is_ipv6() && ip.is_ipv4() => known.remote = endpoint.address,
            Some(_) => {}
            None => links.push(routed_link(endpoint)),
        }
    }
    links
}

fn routed_link(endpoint: &Endpoint) -> Link {
    Link {
        id: 0,
        local: None,
        device: None,
        remote_interface: endpoint.interface.clone(),
        remote: endpoint.address,
        speed_mbps: endpoint.speed_mbps,
        mtu: endpoint.mtu,
        numa: -1,
        // Without a source address nothing says which adapter it would be.
        rdma: None,
        mtu_differs: false,
    }
}

fn rdma_at(endpoint: &Endpoint) -> Option<SocketAddr> {
    (endpoint.rdma_port != 0).then(|| SocketAddr::new(endpoint.address.ip(), endpoint.rdma_port))
}

fn allowed(filter: &[Network], ip: IpAddr) -> bool {
    !is_link_local_v6(ip) && (filter.is_empty() || filter.iter().any(|network| names(network, ip)))
}

/// A network names loopback addresses only if it is a loopback network itself: `0.0.0.0/0` does not mean them.
fn names(network: &Network, ip: IpAddr) -> bool {
    network.contains(ip) && (!ip.is_loopback() || network.address().is_loopback())
}

fn is_link_local_v6(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Both sides must see the other in their own subnet, or one would answer through a router.
fn same_subnet(local: InterfaceAddress, remote: IpAddr, remote_prefix: u8) -> bool {
    let sees = |own, prefix, other| Network::new(own, prefix).is_ok_and(|network| network.contains(other));
    local.ip.is_loopback() == remote.is_loopback()
        && sees(local.ip, local.prefix, remote)
        && sees(remote, remote_prefix, local.ip)
}

fn slower(one: u32, other: u32) -> u32 {
    match (one, other) {
        (0, known) | (known, 0) => known,
        _ => one.min(other),
    }
}

#[cfg(test)]
mod tests;
