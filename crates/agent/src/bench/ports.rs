//! What is known of the ports behind addresses.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};

use linerate_api::BenchPort;
use linerate_net::interfaces::{Interface, InterfaceAddress};
use linerate_wire::message::Endpoint;

/// Where RDMA connections are taken now: one list for all that offer them. Devices come and go.
#[derive(Clone, Debug, Default)]
pub struct RdmaPorts(Arc<RwLock<Vec<SocketAddr>>>);

impl RdmaPorts {
    /// They are taken here from now on. Says whether that is new.
    pub fn tell(&self, addresses: &[SocketAddr]) -> bool {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let new = *known != addresses;
        addresses.clone_into(&mut known);
        new
    }

    /// The port at an address; 0 if there is none.
    fn at(&self, ip: IpAddr) -> u16 {
        let addresses = self.0.read().unwrap_or_else(PoisonError::into_inner);
        addresses.iter().find(|address| address.ip() == ip).map_or(0, SocketAddr::port)
    }
}

/// The interface that has an address.
fn interface(interfaces: &[Interface], ip: IpAddr) -> Option<(&Interface, InterfaceAddress)> {
    let mut all = interfaces.iter().flat_map(|one| one.addresses.iter().map(move |own| (one, *own)));
    all.find(|(one, own)| own.ip == ip || (one.loopback && ip.is_loopback() && own.ip.is_loopback()))
}

/// Addresses that are listened on, with what is known of their ports; those that no port has any more are left out.
pub fn endpoints(interfaces: &[Interface], listen: &[SocketAddr], rdma: &RdmaPorts) -> Vec<Endpoint> {
    let endpoint = |address: &SocketAddr| {
        let (port, own) = interface(interfaces, address.ip())?;
        Some(Endpoint {
            interface: port.name.clone(),
            address: *address,
            prefix: own.prefix,
            speed_mbps: port.speed_mbps,
            mtu: port.mtu,
            numa: port.numa,
            up: port.usable(),
            rdma_port: rdma.at(address.ip()),
        })
    };
    listen.iter().filter_map(endpoint).collect()
}

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

/// What a link of these two carries, megabits per second: the slower port's word, or the only one there is.
pub fn speed(source: &BenchPort, destination: &BenchPort) -> u32 {
    match (source.speed_mbps, destination.speed_mbps) {
        (0, known) | (known, 0) => known,
        (one, other) => one.min(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_offered_with_its_rdma_port_while_there_is_one() {
        let interfaces = linerate_net::interfaces::list().unwrap();
        let listen: [SocketAddr; 1] = [([127, 0, 0, 1], 7979).into()];
        let rdma = RdmaPorts::default();
        let offered = |rdma: &RdmaPorts| endpoints(&interfaces, &listen, rdma)[0].rdma_port;
        let (bench, migrations) = (rdma.clone(), rdma.clone());
        assert_eq!(offered(&migrations), 0);
        rdma.tell(&[([127, 0, 0, 2], 1).into(), ([127, 0, 0, 1], 7400).into()]);
        assert_eq!((offered(&bench), offered(&migrations)), (7400, 7400));
        assert!(rdma.tell(&[]) && !rdma.tell(&[]));
        assert_eq!((offered(&bench), offered(&migrations)), (0, 0));
    }
}
