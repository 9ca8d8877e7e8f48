//! Addresses at which this host takes connections, with what is known of the ports behind them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use linerate_core::{Code, Fault, Side, Step};
use linerate_lock::RwLock;
use linerate_net::interfaces::{self, Interface, InterfaceAddress};
use linerate_wire::message::Endpoint;

use crate::faults::fault;

/// Where RDMA connections are taken now: one list for all that offer them. Devices are added and removed at run time.
#[derive(Clone, Debug, Default)]
pub(crate) struct RdmaPorts(Arc<RwLock<Vec<SocketAddr>>>);

impl RdmaPorts {
    /// RDMA connections are taken at these addresses from now on. `true` if the list has changed.
    pub fn set(&self, addresses: &[SocketAddr]) -> bool {
        let mut known = self.0.write();
        let new = *known != addresses;
        addresses.clone_into(&mut known);
        new
    }

    /// The port at an address; 0 if there is none.
    fn at(&self, ip: IpAddr) -> u16 {
        let addresses = self.0.read();
        addresses.iter().find(|address| address.ip() == ip).map_or(0, SocketAddr::port)
    }
}

/// The interface that has an address.
pub(crate) fn interface(interfaces: &[Interface], ip: IpAddr) -> Option<(&Interface, InterfaceAddress)> {
    let mut all = interfaces.iter().flat_map(|one| one.addresses.iter().map(move |own| (one, *own)));
    all.find(|(one, own)| own.ip == ip || (one.loopback && ip.is_loopback() && own.ip.is_loopback()))
}

/// Addresses that are listened on, with what is known of their ports; those that no port has any more are left out.
pub(crate) fn endpoints(interfaces: &[Interface], listen: &[SocketAddr], rdma: &RdmaPorts) -> Vec<Endpoint> {
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

/// The same with the ports that this host has now, for a session.
pub(crate) fn offered(listen: &[SocketAddr], rdma: &RdmaPorts) -> Result<Vec<Endpoint>, Fault> {
    let interfaces =
        interfaces::list().map_err(|error| fault(Code::NoLink, Step::Admit, Side::Destination, &error))?;
    Ok(endpoints(&interfaces, listen, rdma))
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
        rdma.set(&[([127, 0, 0, 2], 1).into(), ([127, 0, 0, 1], 7400).into()]);
        assert_eq!((offered(&bench), offered(&migrations)), (7400, 7400));
        assert!(rdma.set(&[]) && !rdma.set(&[]));
        assert_eq!((offered(&bench), offered(&migrations)), (0, 0));
    }
}
