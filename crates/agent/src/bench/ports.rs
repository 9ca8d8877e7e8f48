//! What is known of the ports behind addresses.

use std::net::{IpAddr, SocketAddr};

use linerate_api::BenchPort;
use linerate_net::interfaces::Interface;
use linerate_wire::message::Endpoint;

use crate::session::offer::interface;

/// The port of this host that a connection uses.
pub fn own(interfaces: &[Interface], ip: IpAddr) -> BenchPort {
    let found = interface(interfaces, ip).map(|(port, _)| port);
    BenchPort {
        interface: found.map_or_else(|| "?".to_owned(), |port| port.name.clone()),
        address: ip.to_string(),
        mtu: found.map_or(0, |port| port.mtu),
        speed_mbps: found.map_or(0, |port| port.speed_mbps),
        numa: found.map_or(-1, |port| port.numa),
    }
}

/// The port of the other host behind an address.
pub fn other(endpoints: &[Endpoint], address: SocketAddr) -> BenchPort {
    let found = endpoints.iter().find(|endpoint| endpoint.address == address);
    BenchPort {
        interface: found.map_or_else(|| "?".to_owned(), |endpoint| endpoint.interface.clone()),
        address: address.ip().to_string(),
        mtu: found.map_or(0, |endpoint| endpoint.mtu),
        speed_mbps: found.map_or(0, |endpoint| endpoint.speed_mbps),
        numa: found.map_or(-1, |endpoint| endpoint.numa),
    }
}

/// What a link of these two carries, megabits per second: the slower port's speed, or the only one that is known.
pub fn speed(source: &BenchPort, destination: &BenchPort) -> u32 {
    match (source.speed_mbps, destination.speed_mbps) {
        (0, known) | (known, 0) => known,
        (one, other) => one.min(other),
    }
}
