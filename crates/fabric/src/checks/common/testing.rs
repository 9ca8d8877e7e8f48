//! Other healthy rooms for tests, made of [`crate::testing::healthy_room`].

use crate::model::{Aggregation, Bond, Gid, Network, Port, PortKind, Probe, Room};
use crate::testing::healthy_room;

/// The two fast ports of each host are members of `bond0`, by LACP.
pub(crate) fn team_room() -> Room {
    let mut room = healthy_room();
    for host in &mut room.hosts {
        let mut addresses = Vec::new();
        for port in host.ports.iter_mut().filter(|port| port.name.starts_with("ens1")) {
            addresses.append(&mut port.addresses);
            port.master = Some("bond0".into());
            for neighbour in &mut port.neighbours {
                neighbour.vlan_untagged = Some(100);
                neighbour.aggregation = Some(Aggregation { able: true, on: true, number: Some(1) });
            }
        }
        addresses.truncate(1);
        host.ports.push(Port {
            name: "bond0".into(),
            kind: PortKind::Bond,
            up: Some(true),
            carrier: Some(true),
            mtu: Some(9000),
            addresses,
            bond: Some(Bond {
                mode: Some("802.3ad".into()),
                hash: Some("layer3+4".into()),
                monitor_interval_ms: Some(100),
                aggregated: Some(2),
                active: None,
            }),
            ..Port::default()
        });
        for device in host.rdma.iter_mut().flatten() {
            let gids: &mut Vec<Gid> = &mut device.ports[0].gids;
            for gid in gids {
                gid.gid = format!("0000:0000:0000:0000:0000:ffff:0a01:00{}", &gid.gid[gid.gid.len() - 2..]);
            }
        }
        host.agent.iter_mut().for_each(|agent| agent.listen.truncate(1));
        host.routes.retain(|route| route.port != "ens1f1");
        host.routes
            .iter_mut()
            .filter(|route| route.port == "ens1f0")
            .for_each(|route| route.port = "bond0".into());
    }
    room
}

/// The first fast port of each host carries its address in VLAN 700.
pub(crate) fn vlan_room() -> Room {
    let mut room = healthy_room();
    for host in &mut room.hosts {
        let below = host.ports.iter_mut().find(|port| port.name == "ens1f0").unwrap();
        below.neighbours[0].vlans = vec![100, 700];
        let addresses = std::mem::take(&mut below.addresses);
        host.ports.push(Port {
            name: "ens1f0.700".into(),
            kind: PortKind::Vlan,
            up: Some(true),
            carrier: Some(true),
            mtu: Some(9000),
            parent: Some("ens1f0".into()),
            vlan: Some(700),
            addresses,
            ..Port::default()
        });
        let ours = Network::of([10, 1, 0, 0].into(), 24);
        for route in host.routes.iter_mut().filter(|route| route.destination == Some(ours)) {
            route.port = "ens1f0.700".into();
        }
    }
    room
}

/// A probe between the first fast ports of alpha and beta, as it should be.
pub(crate) fn probe() -> crate::model::Probe {
    let end = |host: &str, last| crate::model::End {
        host: host.into(),
        port: "ens1f0".into(),
        ip: [10, 1, 0, last].into(),
    };
    let mut probe = crate::model::Probe::new(end("alpha", 1), end("beta", 2));
    probe.reachable = Some(true);
    probe.path_mtu = Some(crate::model::PathMtu { promised: 9000, passed: 9000, black_hole: false });
    probe.throughput_mbps = Some(23_000);
    probe.clock_ahead_us = Some(120);
    probe
}

/// The same the other way.
pub(crate) fn reversed(probe: &crate::model::Probe) -> crate::model::Probe {
    crate::model::Probe { from: probe.to.clone(), to: probe.from.clone(), ..probe.clone() }
}

/// Another kernel on a host, its drivers with it.
pub(crate) fn kernel(room: &mut Room, host: &str, release: &str) {
    let host = crate::testing::host_mut(room, host);
    host.system.kernel = Some(release.into());
    host.ports.iter_mut().filter(|port| port.driver_version.is_some()).for_each(|port| {
        port.driver_version = Some(release.into());
    });
}

/// Rates of two links between alpha and beta, there and back, over ports whose speed means nothing.
pub(crate) fn two_links(rates: [(u64, u64); 2]) -> Room {
    let mut room = healthy_room();
    room.hosts.iter_mut().flat_map(|host| &mut host.ports).for_each(|port| port.kind = PortKind::Veth);
    for (link, (there, back)) in (0u8..).zip(rates) {
        let mut one = Probe { throughput_mbps: Some(there), ..probe() };
        for (end, host) in [(&mut one.from, 1), (&mut one.to, 2)] {
            (end.port, end.ip) = (format!("ens1f{link}"), [10, 1, link, host].into());
        }
        let other = Probe { throughput_mbps: Some(back), ..reversed(&one) };
        room.matrix.probes.extend([one, other]);
    }
    room
}
