//! Which ports probe which: those that a migration would pair, on networks that two hosts share.

use std::net::{IpAddr, SocketAddr};

use linerate_fabric::model::{End, Inventory, Network, Port, RdmaPort};
use linerate_fabric::probe::{Echoing, Target};

/// Targets from one host to another, one for each network that both agents listen on.
pub fn targets(from: &Inventory, to: &Inventory, echoing: &Echoing) -> Vec<Target> {
    let mut targets = Vec::new();
    let mut networks: Vec<Network> = Vec::new();
    for (port, own, network) in listening(from) {
        for (far_port, far, far_network) in listening(to) {
            let echo = echoing.addresses.iter().find(|address| address.ip() == far.ip());
            let (true, false, Some(echo)) = (network == far_network, networks.contains(&network), echo)
            else {
                continue;
            };
            networks.push(network);
            targets.push(Target {
                from: end(from, port, own.ip()),
                to: end(to, far_port, far.ip()),
                mtu: port.mtu.unwrap_or(1500),
                speed_mbps: port.link.speed_mbps.unwrap_or(0),
                echo: *echo,
                token: echoing.token,
                agent: far,
                rdma: has_rdma(from, port) && has_rdma(to, far_port),
            });
        }
    }
    targets
}

fn has_rdma(host: &Inventory, port: &Port) -> bool {
    let active = |rdma: &RdmaPort| rdma.state.as_deref().is_some_and(|state| state.contains("ACTIVE"));
    let ours = |rdma: &RdmaPort| rdma.port.as_ref() == Some(&port.name) && active(rdma);
    host.rdma.iter().flatten().flat_map(|device| &device.ports).any(ours)
}

fn end(host: &Inventory, port: &Port, ip: IpAddr) -> End {
    End { host: host.host.clone(), port: port.name.clone(), ip }
}

/// Addresses that the host's agent listens at, with their ports and networks.
fn listening(host: &Inventory) -> Vec<(&Port, SocketAddr, Network)> {
    let listen: Vec<SocketAddr> =
        host.agent.iter().flat_map(|agent| &agent.listen).filter_map(|text| text.parse().ok()).collect();
    let found = |address: SocketAddr| {
        let of = |port: &Port| port.addresses.iter().find(|one| one.ip == address.ip()).copied();
        let (port, own) = host.ports.iter().find_map(|port| Some((port, of(port)?)))?;
        own.shared().then(|| (port, address, own.network()))
    };
    listen.into_iter().filter_map(found).collect()
}

#[cfg(test)]
mod tests {
    use linerate_fabric::model::{Address, Agent, RdmaDevice};

    use super::*;

    fn host(name: &str, addresses: &[[u8; 4]]) -> Inventory {
        let mut host = Inventory::new(name);
        for (number, ip) in addresses.iter().enumerate() {
            host.ports.push(Port {
                name: format!("l{number}"),
                mtu: Some(9000),
                addresses: vec![Address { ip: (*ip).into(), prefix: 24 }],
                ..Port::default()
            });
        }
        let listen = addresses.iter().map(|ip| SocketAddr::from((*ip, 7979)).to_string()).collect();
        host.agent = Some(Agent { listen, ..Agent::default() });
        host
    }

    fn echoing(addresses: &[[u8; 4]]) -> Echoing {
        let addresses = addresses.iter().map(|ip| SocketAddr::from((*ip, 9))).collect();
        Echoing { token: [1; 16], addresses, sources: Vec::new() }
    }

    #[test]
    fn one_target_for_each_shared_network() {
        let alpha = host("alpha", &[[10, 0, 0, 1], [10, 0, 1, 1], [10, 0, 2, 1]]);
        let beta_addresses = [[10, 0, 1, 2], [10, 0, 0, 2], [10, 0, 9, 2]];
        let beta = host("beta", &beta_addresses);
        let targets = targets(&alpha, &beta, &echoing(&beta_addresses));
        let ends: Vec<(&str, &str)> =
            targets.iter().map(|target| (target.from.port.as_str(), target.to.port.as_str())).collect();
        assert_eq!(ends, [("l0", "l1"), ("l1", "l0")]);
        assert_eq!(targets[0].agent, SocketAddr::from(([10, 0, 0, 2], 7979)));
        assert_eq!(targets[0].echo.port(), 9);
    }

    #[test]
    fn rdma_is_measured_where_both_ends_have_it_active() {
        let (mut alpha, mut beta) = (host("alpha", &[[10, 0, 0, 1]]), host("beta", &[[10, 0, 0, 2]]));
        let device = |state: &str| {
            let (port, state) = (Some("l0".to_owned()), Some(state.to_owned()));
            let ports = vec![RdmaPort { port, state, ..RdmaPort::default() }];
            Some(vec![RdmaDevice { ports, ..RdmaDevice::default() }])
        };
        let measured = |alpha: &Inventory, beta: &Inventory| {
            targets(alpha, beta, &echoing(&[[10, 0, 0, 2]]))
                .iter()
                .map(|target| target.rdma)
                .collect::<Vec<_>>()
        };
        assert_eq!(measured(&alpha, &beta), [false]);
        (alpha.rdma, beta.rdma) = (device("ACTIVE"), device("ACTIVE"));
        assert_eq!(measured(&alpha, &beta), [true]);
        beta.rdma = device("DOWN");
        assert_eq!(measured(&alpha, &beta), [false]);
    }

    #[test]
    fn what_does_not_echo_is_no_target() {
        let alpha = host("alpha", &[[10, 0, 0, 1]]);
        let beta = host("beta", &[[10, 0, 0, 2]]);
        assert_eq!(targets(&alpha, &beta, &echoing(&[])), Vec::new());
    }
}
