//! A healthy survey for the tests of checks: three hosts, two 25G ports each for migration, one 1G port for management,
//! a switch that speaks LLDP, RoCE with one lossless priority. Tests make one fault in it. And others made of it.

use std::net::IpAddr;

use crate::checks::run_all;
use crate::model::*;

/// Three equal hosts, all well.
pub(crate) fn healthy_survey() -> Survey {
    Survey::of((1..=3).zip(["alpha", "beta", "gamma"]).map(|(number, name)| host(number, name)).collect())
}

/// The one finding of a survey with one fault: the check speaks, once, and no other does.
pub(crate) fn only(survey: &Survey, id: &str) -> Finding {
    let mut findings = run_all(survey);
    let ids: Vec<&str> = findings.iter().map(|finding| finding.id.as_str()).collect();
    assert_eq!(ids, [id], "{findings:#?}");
    findings.remove(0)
}

/// A host of the survey, to make a fault in.
pub(crate) fn host_mut<'a>(survey: &'a mut Survey, name: &str) -> &'a mut Inventory {
    survey.hosts.iter_mut().find(|host| host.host == name).expect("a host of the healthy survey")
}

/// A port of the survey, to make a fault in.
pub(crate) fn port<'a>(survey: &'a mut Survey, host: &str, port: &str) -> &'a mut Port {
    let ports = &mut host_mut(survey, host).ports;
    ports.iter_mut().find(|one| one.name == port).expect("a port of the healthy survey")
}

/// The two fast ports of each host are members of `bond0`, by LACP.
pub(crate) fn team_survey() -> Survey {
    let mut survey = healthy_survey();
    for host in &mut survey.hosts {
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
    survey
}

/// The address of a host's second fast port is on a virtual function of its first one: `ens1f0v0`.
pub(crate) fn virtual_function_survey(host: &str) -> Survey {
    let mut survey = healthy_survey();
    let first = port(&mut survey, host, "ens1f0").pcie.clone().expect("a slot");
    let second = port(&mut survey, host, "ens1f1");
    (second.name, second.neighbours) = ("ens1f0v0".into(), Vec::new());
    second.pcie = Some(Pcie {
        address: "0000:3b:00.2".into(),
        id: Some("15b3:1016".into()),
        physical_function: Some(first.address),
        ..Pcie::default()
    });
    for device in host_mut(&mut survey, host).rdma.iter_mut().flatten() {
        for one in device.ports.iter_mut().filter(|one| one.port.as_deref() == Some("ens1f1")) {
            one.port = Some("ens1f0v0".into());
        }
    }
    survey
}

/// The first fast port of each host carries its address in VLAN 700.
pub(crate) fn vlan_survey() -> Survey {
    let mut survey = healthy_survey();
    for host in &mut survey.hosts {
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
    survey
}

/// A probe between the first fast ports of alpha and beta, as it should be.
pub(crate) fn probe() -> Probe {
    let end =
        |host: &str, last| End { host: host.into(), port: "ens1f0".into(), ip: [10, 1, 0, last].into() };
    let mut probe = Probe::new(end("alpha", 1), end("beta", 2));
    probe.reachable = Some(true);
    probe.path_mtu = Some(PathMtu { promised: 9000, passed: 9000, black_hole: false });
    probe.throughput_mbps = Some(23_000);
    probe.clock_ahead_us = Some(120);
    probe
}

/// The same the other way.
pub(crate) fn reversed(probe: &Probe) -> Probe {
    Probe { from: probe.to.clone(), to: probe.from.clone(), ..probe.clone() }
}

/// Another kernel on a host, its drivers with it.
pub(crate) fn kernel(survey: &mut Survey, host: &str, release: &str) {
    let host = host_mut(survey, host);
    host.system.kernel = Some(release.into());
    host.ports.iter_mut().filter(|port| port.driver_version.is_some()).for_each(|port| {
        port.driver_version = Some(release.into());
    });
}

/// Rates of two links between alpha and beta, there and back, over ports whose speed means nothing.
pub(crate) fn two_links(rates: [(u64, u64); 2]) -> Survey {
    let mut survey = healthy_survey();
    survey.hosts.iter_mut().flat_map(|host| &mut host.ports).for_each(|port| port.kind = PortKind::Veth);
    for (link, (there, back)) in (0u8..).zip(rates) {
        let mut one = Probe { throughput_mbps: Some(there), ..probe() };
        for (end, host) in [(&mut one.from, 1), (&mut one.to, 2)] {
            (end.port, end.ip) = (format!("ens1f{link}"), [10, 1, link, host].into());
        }
        let other = Probe { throughput_mbps: Some(back), ..reversed(&one) };
        survey.matrix.probes.extend([one, other]);
    }
    survey
}

fn host(number: u8, name: &str) -> Inventory {
    let mut host = Inventory::new(name);
    host.collected_unix_ms = Some(1_800_000_000_000);
    host.collector = Some("linerate 0.1.0".into());
    host.system = System {
        os: Some("linux".into()),
        distribution: Some("Debian GNU/Linux 13 (trixie)".into()),
        kernel: Some("6.12.9-amd64".into()),
        architecture: Some("x86_64".into()),
        secure_boot: Some(false),
        features: vec![Feature {
            name: "pagemap_scan".into(),
            present: true,
            needed_for: "direct mode".into(),
        }],
    };
    host.cpu = cpu();
    host.memory = Memory {
        total_bytes: Some(256 << 30),
        available_bytes: Some(128 << 30),
        huge_pages: Vec::new(),
        transparent_huge_pages: Some("madvise".into()),
        transparent_huge_pages_shared: Some("advise".into()),
        memlock: Some(Limit::Unlimited),
        ram_folders: vec![RamFolder {
            path: "/dev/shm/linerate".into(),
            filesystem: Some("tmpfs".into()),
            size_bytes: Some(128 << 30),
            available_bytes: Some(100 << 30),
            huge_pages: false,
        }],
    };
    host.hypervisor = Hypervisor {
        kvm: Some(true),
        qemu: vec![Qemu {
            path: "/usr/bin/qemu-system-x86_64".into(),
            version: Some("10.0.2".into()),
            machines: vec!["pc-q35-10.0".into(), "pc-q35-9.2".into()],
        }],
        cpu_models: Vec::new(),
    };
    host.time = Time { synchronised: Some(true), error_max_us: Some(2000) };
    host.ports = vec![management(number), fast(number, 0), fast(number, 1)];
    host.routes = routes(number);
    host.names = vec![Resolved { name: name.into(), addresses: vec![[192, 168, 0, number].into()] }];
    host.rdma = Some((0..2).map(|at| rdma(number, at)).collect());
    host.firewall = Some(Firewall::default());
    host.agent = Some(Agent {
        version: "0.1.0".into(),
        listen: (0..2).map(|link| format!("10.1.{link}.{number}:7979")).collect(),
        links: Vec::new(),
        rdma_type_of_service: None,
        instance: Some(format!("{number:032x}")),
        settings_from_agents: None,
    });
    host
}

fn cpu() -> Cpu {
    Cpu {
        model: Some("Intel(R) Xeon(R) Gold 6142".into()),
        online: Some(16),
        cores: Some(8),
        flags: vec!["avx2".into(), "sse4_2".into()],
        nodes: vec![
            NumaNode { number: 0, cpus: (0..8).collect() },
            NumaNode { number: 1, cpus: (8..16).collect() },
        ],
        governors: vec![Governor { name: "performance".into(), cpus: 16 }],
        frequency_driver: Some("intel_pstate".into()),
        idle_states: vec![
            IdleState { name: "POLL".into(), latency_us: 0, enabled: true },
            IdleState { name: "C1".into(), latency_us: 2, enabled: true },
        ],
    }
}

fn management(number: u8) -> Port {
    Port {
        name: "eno1".into(),
        index: Some(2),
        kind: PortKind::Physical,
        mac: Some(format!("02:00:00:00:00:{number:02x}")),
        up: Some(true),
        carrier: Some(true),
        carrier_changes: Some(2),
        mtu: Some(1500),
        mtu_max: Some(9000),
        addresses: vec![address([192, 168, 0, number])],
        link: LinkSettings {
            speed_mbps: Some(1000),
            duplex: Some(Duplex::Full),
            autonegotiation: Some(true),
            connector: Some("twisted_pair".into()),
            supported: vec!["100baseT/Full".into(), "1000baseT/Full".into()],
            advertised: vec!["100baseT/Full".into(), "1000baseT/Full".into()],
            peer: vec!["1000baseT/Full".into()],
            down_reason: None,
        },
        driver: Some("tg3".into()),
        numa_node: Some(0),
        ..Port::default()
    }
}

fn fast(number: u8, at: u8) -> Port {
    let modes = || vec!["10000baseCR/Full".to_owned(), "25000baseCR/Full".to_owned()];
    Port {
        name: format!("ens1f{at}"),
        index: Some(3 + u32::from(at)),
        kind: PortKind::Physical,
        mac: Some(format!("02:00:00:00:{:02x}:{number:02x}", at + 1)),
        up: Some(true),
        carrier: Some(true),
        carrier_changes: Some(2),
        mtu: Some(9000),
        mtu_max: Some(9978),
        addresses: vec![address([10, 1, at, number])],
        link: LinkSettings {
            speed_mbps: Some(25_000),
            duplex: Some(Duplex::Full),
            autonegotiation: Some(true),
            connector: Some("direct_attach".into()),
            supported: modes(),
            advertised: modes(),
            peer: modes(),
            down_reason: None,
        },
        fec: Some(Fec { active: Some("rs".into()), configured: vec!["rs".into()], auto: Some(true) }),
        pause: Some(Pause { autonegotiation: Some(false), rx: Some(false), tx: Some(false) }),
        driver: Some("mlx5_core".into()),
        driver_version: Some("6.12.9-amd64".into()),
        firmware: Some("14.32.1900".into()),
        queues: Some(Queues { combined: Some(8), combined_max: Some(16), ..Queues::default() }),
        rings: Some(Rings { rx: Some(1024), rx_max: Some(8192), tx: Some(1024), tx_max: Some(8192) }),
        irqs: (0..8).map(|queue| irq(at, queue)).collect(),
        offloads: ["tx-tcp-segmentation", "rx-gro", "tx-checksum-ip-generic", "rx-checksum"]
            .into_iter()
            .map(|name| (name.to_owned(), true))
            .collect(),
        counters: Some(Counters { rx_packets: 1_000_000, tx_packets: 1_000_000, ..Counters::default() }),
        counters_change: Some(CountersChange { over_ms: 300, gained: Counters::default() }),
        pcie: Some(Pcie {
            address: format!("0000:3b:00.{at}"),
            id: Some("15b3:1015".into()),
            able: Some(PcieLink { speed_mts: 8000, width: 8 }),
            running: Some(PcieLink { speed_mts: 8000, width: 8 }),
            slot_able: Some(PcieLink { speed_mts: 8000, width: 16 }),
            physical_function: None,
        }),
        numa_node: Some(0),
        dcb: Some(dcb()),
        neighbours: vec![neighbour(number, at)],
        reverse_path_filter: Some(2),
        qdisc: Some("mq".into()),
        ..Port::default()
    }
}

fn irq(at: u8, queue: u32) -> Irq {
    let number = 100 + 10 * u32::from(at) + queue;
    let name = Some(format!("mlx5_comp{queue}@pci:0000:3b:00.{at}"));
    Irq { number, name, cpus_allowed: vec![queue], cpus: vec![queue], count: Some(1000) }
}

fn dcb() -> Dcb {
    Dcb {
        ets: Some(Ets {
            willing: Some(false),
            classes_max: Some(8),
            priority_class: vec![0, 0, 0, 1, 0, 0, 0, 0],
            share_percent: vec![50, 50, 0, 0, 0, 0, 0, 0],
            selection: ["ets", "ets", "strict", "strict", "strict", "strict", "strict", "strict"]
                .map(String::from)
                .to_vec(),
        }),
        pfc: Some(Pfc { willing: Some(false), lossless_max: Some(8), lossless: vec![3] }),
        applications: vec![Application { selector: Selector::Datagram, protocol: 4791, priority: 3 }],
        dcbx: Some(Dcbx { host: true, ieee: true, ..Dcbx::default() }),
    }
}

fn neighbour(number: u8, at: u8) -> Neighbour {
    Neighbour {
        chassis: Some(format!("02:ff:00:00:00:0{at}")),
        port: Some(format!("Ethernet1/{number}")),
        system: Some(format!("leaf{at}")),
        frame_bytes_max: Some(9216 + 18),
        vlan_untagged: Some(100 + u16::from(at)),
        aggregation: Some(Aggregation { able: true, on: false, number: None }),
        autonegotiation: Some(true),
        pfc: Some(Pfc { willing: Some(false), lossless_max: Some(8), lossless: vec![3] }),
        ..Neighbour::default()
    }
}

fn rdma(number: u8, at: u8) -> RdmaDevice {
    let port = format!("ens1f{at}");
    let gid = |index, kind| Gid {
        index,
        gid: format!("0000:0000:0000:0000:0000:ffff:0a01:{at:02x}{number:02x}"),
        kind,
        port: Some(port.clone()),
    };
    RdmaDevice {
        name: format!("mlx5_{at}"),
        node_type: Some("CA".into()),
        firmware: Some("14.32.1900".into()),
        pcie_address: Some(format!("0000:3b:00.{at}")),
        ports: vec![RdmaPort {
            number: 1,
            state: Some("ACTIVE".into()),
            link_layer: Some(LinkLayer::Ethernet),
            speed_mbps: Some(25_000),
            gids: vec![gid(0, GidKind::RoceV1), gid(1, GidKind::RoceV2)],
            port: Some(port),
            default_roce: Some("RoCE v2".into()),
            default_traffic_class: None,
        }],
    }
}

fn routes(number: u8) -> Vec<Route> {
    let connected = |network: [u8; 4], port: &str, source: [u8; 4]| Route {
        destination: Some(Network::of(network.into(), 24)),
        gateway: None,
        port: port.into(),
        source: Some(source.into()),
        metric: 0,
        mtu: None,
    };
    vec![
        Route {
            destination: None,
            gateway: Some([192, 168, 0, 254].into()),
            port: "eno1".into(),
            source: None,
            metric: 0,
            mtu: None,
        },
        connected([192, 168, 0, 0], "eno1", [192, 168, 0, number]),
        connected([10, 1, 0, 0], "ens1f0", [10, 1, 0, number]),
        connected([10, 1, 1, 0], "ens1f1", [10, 1, 1, number]),
    ]
}

fn address(ip: [u8; 4]) -> Address {
    Address { ip: IpAddr::from(ip), prefix: 24 }
}
