//! A healthy survey of two hosts with four links, for tests from outside.

use linerate_fabric::model::*;

pub const LINKS: u8 = 4;

pub fn healthy() -> Survey {
    Survey::of(vec![host(1, "alpha"), host(2, "beta")])
}

pub fn host(number: u8, name: &str) -> Inventory {
    let mut host = Inventory::new(name);
    host.system.os = Some("linux".into());
    host.system.architecture = Some("x86_64".into());
    host.system.kernel = Some("6.12.9-amd64".into());
    host.system.secure_boot = Some(true);
    let feature =
        |name: &str, needed: &str| Feature { name: name.into(), present: true, needed_for: needed.into() };
    host.system.features = vec![
        feature("pagemap_scan", "direct mode, at the source"),
        feature("kernel_tls", "encryption in the kernel"),
    ];
    host.cpu.cores = Some(8);
    host.cpu.online = Some(16);
    host.cpu.flags = vec!["avx2".into(), "avx512f".into()];
    host.cpu.nodes =
        (0..2).map(|number| NumaNode { number, cpus: (number * 8..number * 8 + 8).collect() }).collect();
    host.cpu.governors = vec![Governor { name: "performance".into(), cpus: 16 }];
    host.memory.total_bytes = Some(256 << 30);
    host.memory.available_bytes = Some(200 << 30);
    host.memory.ram_folders = vec![RamFolder {
        path: "/dev/shm/linerate".into(),
        filesystem: Some("tmpfs".into()),
        size_bytes: Some(128 << 30),
        available_bytes: Some(128 << 30),
        huge_pages: false,
    }];
    host.hypervisor.kvm = Some(true);
    host.gateways = vec![Gateway { ip: [192, 168, 0, 254].into(), port: "eno1".into(), answers: Some(true) }];
    host.memory.memlock = Some(Limit::Unlimited);
    host.hypervisor.qemu = vec![Qemu {
        path: "/usr/bin/qemu-system-x86_64".into(),
        version: Some("10.0.2".into()),
        machines: vec!["pc-q35-10.0".into(), "pc-q35-9.2".into()],
    }];
    host.time.synchronised = Some(true);
    host.ports = (0..LINKS).map(|link| port(number, link)).collect();
    host.ports.push(management(number));
    host.routes = vec![Route {
        destination: None,
        gateway: Some([192, 168, 0, 254].into()),
        port: "eno1".into(),
        source: None,
        metric: 0,
        mtu: None,
    }];
    host.rdma = Some((0..LINKS).map(|link| rdma(number, link)).collect());
    host.firewall = Some(Firewall::default());
    host.agent = Some(Agent {
        version: "0.1.0".into(),
        listen: (0..LINKS).map(|link| format!("10.2.{link}.{number}:7979")).collect(),
        links: Vec::new(),
        rdma_type_of_service: Some(104),
        instance: Some(format!("{number:032x}")),
        settings_from_agents: Some(true),
    });
    host
}

fn management(number: u8) -> Port {
    Port {
        name: "eno1".into(),
        kind: PortKind::Physical,
        mac: Some(format!("02:00:00:00:ff:{number:02x}")),
        up: Some(true),
        carrier: Some(true),
        mtu: Some(1500),
        addresses: vec![Address { ip: [192, 168, 0, number].into(), prefix: 24 }],
        link: LinkSettings { speed_mbps: Some(1000), duplex: Some(Duplex::Full), ..LinkSettings::default() },
        ..Port::default()
    }
}

fn port(number: u8, link: u8) -> Port {
    let modes = || vec!["10000baseSR/Full".to_owned(), "25000baseSR/Full".to_owned()];
    let lanes = Some(PcieLink { speed_mts: 8000, width: 8 });
    Port {
        name: format!("l{link}"),
        kind: PortKind::Physical,
        mac: Some(format!("02:00:00:00:{link:02x}:{number:02x}")),
        up: Some(true),
        carrier: Some(true),
        carrier_changes: Some(1),
        mtu: Some(9000),
        mtu_max: Some(9978),
        addresses: vec![Address { ip: [10, 2, link, number].into(), prefix: 24 }],
        link: LinkSettings {
            speed_mbps: Some(25_000),
            duplex: Some(Duplex::Full),
            autonegotiation: Some(true),
            supported: modes(),
            advertised: modes(),
            peer: modes(),
            ..LinkSettings::default()
        },
        fec: Some(Fec { active: Some("rs".into()), ..Fec::default() }),
        driver: Some("mlx5_core".into()),
        driver_version: Some("6.12.9-amd64".into()),
        firmware: Some("14.32.1900".into()),
        queues: Some(Queues { combined: Some(8), combined_max: Some(16), ..Queues::default() }),
        rings: Some(Rings { rx: Some(1024), rx_max: Some(8192), tx: Some(1024), tx_max: Some(8192) }),
        irqs: (0..8)
            .map(|queue| Irq {
                number: queue,
                cpus_allowed: vec![queue],
                cpus: vec![queue],
                ..Irq::default()
            })
            .collect(),
        counters_change: Some(CountersChange {
            over_ms: 1000,
            gained: Counters { rx_packets: 9000, ..Counters::default() },
        }),
        pcie: Some(Pcie {
            address: format!("0000:{}b:00.{}", 3 + link / 2, link % 2),
            id: Some("15b3:1015".into()),
            able: lanes,
            running: lanes,
            slot_able: lanes,
            physical_function: None,
        }),
        numa_node: Some(0),
        dcb: Some(dcb()),
        neighbours: vec![leaf(number, link)],
        ..Port::default()
    }
}

fn dcb() -> Dcb {
    Dcb {
        ets: Some(Ets {
            willing: Some(false),
            classes_max: Some(8),
            priority_class: vec![0, 0, 0, 1, 0, 0, 0, 0],
            share_percent: vec![50, 50, 0, 0, 0, 0, 0, 0],
            selection: (0..8).map(|class| if class < 2 { "ets" } else { "strict" }.to_owned()).collect(),
        }),
        pfc: Some(Pfc { willing: Some(false), lossless_max: Some(8), lossless: vec![3] }),
        applications: vec![Application { selector: Selector::Datagram, protocol: 4791, priority: 3 }],
        dcbx: Some(Dcbx { host: true, ieee: true, ..Dcbx::default() }),
    }
}

/// The switch that a port is connected to.
fn leaf(number: u8, link: u8) -> Neighbour {
    Neighbour {
        system: Some(format!("leaf{link}")),
        port: Some(format!("Ethernet1/{number}")),
        frame_bytes_max: Some(9234),
        vlan_untagged: Some(200 + u16::from(link)),
        vlans: vec![200 + u16::from(link), 700],
        autonegotiation: Some(true),
        aggregation: Some(Aggregation { able: true, on: false, number: None }),
        pfc: Some(Pfc { willing: Some(false), lossless_max: Some(8), lossless: vec![3] }),
        ..Neighbour::default()
    }
}

fn rdma(number: u8, link: u8) -> RdmaDevice {
    let gid = |index, kind| Gid {
        index,
        kind,
        gid: format!("::ffff:10.2.{link}.{number}"),
        port: Some(format!("l{link}")),
    };
    RdmaDevice {
        name: format!("mlx5_{link}"),
        node_type: Some("CA".into()),
        pcie_address: Some(format!("0000:{}b:00.{}", 3 + link / 2, link % 2)),
        ports: vec![RdmaPort {
            number: 1,
            state: Some("ACTIVE".into()),
            link_layer: Some(LinkLayer::Ethernet),
            speed_mbps: Some(25_000),
            port: Some(format!("l{link}")),
            gids: vec![gid(0, GidKind::RoceV1), gid(1, GidKind::RoceV2)],
            default_roce: Some("RoCE v2".into()),
            default_traffic_class: None,
        }],
        ..RdmaDevice::default()
    }
}

/// Links l2 and l3 of each host as members of `bond0`.
pub fn bonded() -> Survey {
    let mut survey = healthy();
    for (number, host) in (1..).zip(&mut survey.hosts) {
        for port in host.ports.iter_mut().filter(|port| port.name == "l2" || port.name == "l3") {
            port.addresses.clear();
            port.master = Some("bond0".into());
            port.neighbours[0].vlan_untagged = Some(202);
            port.neighbours[0].vlans = vec![202];
            port.neighbours[0].aggregation = Some(Aggregation { able: true, on: true, number: Some(1) });
        }
        for device in host.rdma.iter_mut().flatten().filter(|device| device.name == "mlx5_3") {
            device.ports[0].gids.iter_mut().for_each(|gid| gid.gid = format!("::ffff:10.2.2.{number}"));
        }
        host.agent.as_mut().unwrap().listen.pop();
        host.ports.push(Port {
            name: "bond0".into(),
            kind: PortKind::Bond,
            up: Some(true),
            carrier: Some(true),
            mtu: Some(9000),
            addresses: vec![Address { ip: [10, 2, 2, number].into(), prefix: 24 }],
            bond: Some(Bond {
                mode: Some("802.3ad".into()),
                hash: Some("layer3+4".into()),
                monitor_interval_ms: Some(100),
                aggregated: Some(2),
                active: None,
            }),
            ..Port::default()
        });
    }
    survey
}

/// Link l0 of each host in VLAN 700.
pub fn tagged() -> Survey {
    let mut survey = healthy();
    for host in &mut survey.hosts {
        let addresses = std::mem::take(&mut host.ports[0].addresses);
        host.ports.push(Port {
            name: "l0.700".into(),
            kind: PortKind::Vlan,
            mtu: Some(9000),
            parent: Some("l0".into()),
            vlan: Some(700),
            addresses,
            ..Port::default()
        });
    }
    survey
}

/// Probes over every link, both directions, as they should be.
pub fn measured() -> Survey {
    let mut survey = healthy();
    for link in 0..LINKS {
        let end = |host: &str, number| End {
            host: host.into(),
            port: format!("l{link}"),
            ip: [10, 2, link, number].into(),
        };
        for (from, to) in [(end("alpha", 1), end("beta", 2)), (end("beta", 2), end("alpha", 1))] {
            let mut probe = Probe::new(from, to);
            probe.reachable = Some(true);
            probe.path_mtu = Some(PathMtu { promised: 9000, passed: 9000, black_hole: false });
            probe.tcp = Some(true);
            probe.loss = Some(Loss { sent: 1000, lost_there: Some(0), lost_back: Some(0), lost: 0 });
            probe.latency = Some(Latency { min_ns: 41_000, median_ns: 70_000, max_ns: 900_000 });
            probe.throughput_mbps = Some(22_000);
            probe.clock_ahead_us = Some(80);
            survey.matrix.probes.push(probe);
        }
    }
    survey
}
