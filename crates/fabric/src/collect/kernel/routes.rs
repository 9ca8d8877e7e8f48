//! rtnetlink: routes of the main table.

use std::collections::BTreeMap;
use std::net::IpAddr;

use linerate_net::netlink::{NetlinkError, dump};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::model::{Network, Port, Route};

/// A host that speaks BGP has a million; what matters to migrations is near the top.
const ROUTES_MAX: usize = 4096;

/// Routes over these ports.
pub fn read(ports: &[Port]) -> Result<Vec<Route>, NetlinkError> {
    let names: BTreeMap<u32, &str> =
        ports.iter().filter_map(|port| Some((port.index?, port.name.as_str()))).collect();
    let mut routes = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut request = RouteMessage::default();
        request.header.address_family = family;
        dump(RouteNetlinkMessage::GetRoute(request), |entry| {
            let RouteNetlinkMessage::NewRoute(message) = entry else { return };
            if routes.len() < ROUTES_MAX {
                routes.extend(route(&message, &names));
            }
        })?;
    }
    Ok(routes)
}

fn route(message: &RouteMessage, names: &BTreeMap<u32, &str>) -> Option<Route> {
    let header = &message.header;
    let unspecified: IpAddr =
        if header.address_family == AddressFamily::Inet { [0; 4].into() } else { [0u16; 8].into() };
    let mut destination = unspecified;
    let mut route =
        Route { destination: None, gateway: None, port: String::new(), source: None, metric: 0, mtu: None };
    let mut table = u32::from(header.table);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => destination = ip(address)?,
            RouteAttribute::Gateway(address) => route.gateway = ip(address),
            RouteAttribute::PrefSource(address) => route.source = ip(address),
            RouteAttribute::Oif(index) => route.port = (*names.get(index)?).to_owned(),
            RouteAttribute::Priority(metric) => route.metric = *metric,
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Metrics(all) => route.mtu = all.iter().find_map(mtu),
            _ => {}
        }
    }
    if header.destination_prefix_length > 0 {
        route.destination = Some(Network::of(destination, header.destination_prefix_length));
    }
    let wanted = table == u32::from(RouteHeader::RT_TABLE_MAIN) && !route.port.is_empty();
    wanted.then_some(route)
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some((*ip).into()),
        RouteAddress::Inet6(ip) => Some((*ip).into()),
        _ => None,
    }
}

fn mtu(metric: &RouteMetric) -> Option<u32> {
    if let RouteMetric::Mtu(bytes) = metric { Some(*bytes) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(table: u8, prefix: u8, attributes: Vec<RouteAttribute>) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.table = table;
        message.header.destination_prefix_length = prefix;
        message.attributes = attributes;
        message
    }

    #[test]
    fn a_network_and_the_default() {
        let names = BTreeMap::from([(3, "ens1f0")]);
        let connected = message(
            254,
            24,
            vec![
                RouteAttribute::Destination(RouteAddress::Inet([10, 1, 0, 0].into())),
                RouteAttribute::Oif(3),
                RouteAttribute::Metrics(vec![RouteMetric::Mtu(1400)]),
            ],
        );
        let route_to = route(&connected, &names).unwrap();
        assert_eq!(route_to.destination.unwrap().to_string(), "10.1.0.0/24");
        assert_eq!((route_to.port.as_str(), route_to.mtu), ("ens1f0", Some(1400)));
        let gateway = RouteAttribute::Gateway(RouteAddress::Inet([10, 1, 0, 254].into()));
        let default = route(&message(254, 0, vec![gateway, RouteAttribute::Oif(3)]), &names).unwrap();
        assert_eq!((default.destination, default.gateway), (None, Some([10, 1, 0, 254].into())));
    }

    #[test]
    fn other_tables_and_ports_do_not_count() {
        let names = BTreeMap::from([(3, "ens1f0")]);
        assert_eq!(route(&message(255, 0, vec![RouteAttribute::Oif(3)]), &names), None);
        assert_eq!(route(&message(254, 0, vec![RouteAttribute::Oif(9)]), &names), None);
    }
}
