//! Every finding with the faulty set-up that provokes it: the doctor names it and nothing else.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Tests say what they expect.

mod mended;
mod room;

use linerate_fabric::checks::{ALL, FixKind, run_all};
use linerate_fabric::model::*;
use room::{bonded, healthy, measured, tagged};

type Fault = (&'static str, fn() -> Room, fn(&mut Room));

fn beta(room: &mut Room) -> &mut Inventory {
    &mut room.hosts[1]
}

/// The second link's port at beta.
fn l1(room: &mut Room) -> &mut Port {
    &mut beta(room).ports[1]
}

fn named<'a>(room: &'a mut Room, name: &str) -> &'a mut Port {
    beta(room).ports.iter_mut().find(|port| port.name == name).unwrap()
}

fn dcb(room: &mut Room) -> &mut Dcb {
    l1(room).dcb.as_mut().unwrap()
}

fn rdma(room: &mut Room) -> &mut RdmaPort {
    &mut beta(room).rdma.as_mut().unwrap()[1].ports[0]
}

fn gained(room: &mut Room) -> &mut Counters {
    &mut l1(room).counters_change.as_mut().unwrap().gained
}

/// The probe over the second link to beta.
fn probe(room: &mut Room) -> &mut Probe {
    &mut room.matrix.probes[2]
}

/// Packets of 2000 that are lost on the way of a probe and back, seen from both sides.
fn losing(room: &mut Room, number: usize, there: u32, back: u32) {
    let loss =
        |there, back| Loss { sent: 2000, lost_there: Some(there), lost_back: Some(back), lost: there + back };
    room.matrix.probes[number].loss = Some(loss(there, back));
    room.matrix.probes[number ^ 1].loss = Some(loss(back, there));
}

/// A link whose packets take longer, there and back together, microseconds.
fn slow(room: &mut Room, link: usize, more_us: u64) {
    for probe in &mut room.matrix.probes[link * 2..link * 2 + 2] {
        let latency = probe.latency.as_mut().unwrap();
        for time in [&mut latency.min_ns, &mut latency.median_ns, &mut latency.max_ns] {
            *time += more_us * 1000;
        }
    }
}

fn four_lanes(pcie: &mut Pcie) {
    pcie.running = Some(PcieLink { speed_mts: 8000, width: 4 });
}

/// All ports of the second link.
fn both(room: &mut Room, fault: fn(&mut Port)) {
    room.hosts.iter_mut().for_each(|host| fault(&mut host.ports[1]));
}

fn pool(total: u64) -> Vec<HugePages> {
    vec![HugePages { size_bytes: 2 << 20, total, free: 0 }]
}

const FAULTS: &[Fault] = &[
    ("address-taken", healthy, |room| {
        l1(room).taken = vec![Taken { ip: [10, 2, 1, 2].into(), mac: "02:de:ad:00:00:01".into() }];
    }),
    ("asymmetric-routing", measured, |room| probe(room).leaves_by = Some("eno1".into())),
    ("autonegotiation-mismatch", healthy, |room| l1(room).neighbours[0].autonegotiation = Some(false)),
    ("clock-not-steered", healthy, |room| beta(room).time.synchronised = Some(false)),
    ("clock-skew", measured, |room| probe(room).clock_ahead_us = Some(-3_000_000)),
    ("cpu-differs", healthy, |room| beta(room).cpu.flags.truncate(1)),
    ("cpu-governor", healthy, |room| beta(room).cpu.governors[0].name = "powersave".into()),
    ("cpu-idle-states", healthy, |room| {
        beta(room).cpu.idle_states = vec![IdleState { name: "C6".into(), latency_us: 170, enabled: true }];
    }),
    ("dcb-willing", healthy, |room| dcb(room).ets.as_mut().unwrap().willing = Some(true)),
    ("dcbx-differs", healthy, |room| dcb(room).dcbx.as_mut().unwrap().cee = true),
    ("driver-differs", healthy, |room| l1(room).driver_version = Some("24.10-0.7.0".into())),
    ("drops-rising", healthy, |room| gained(room).rx_missed = 40),
    ("duplicate-address", healthy, |room| named(room, "eno1").addresses[0].ip = [192, 168, 0, 1].into()),
    ("duplicate-mac", healthy, |room| l1(room).mac = Some("02:00:00:00:01:01".into())),
    ("equal-names", healthy, |room| beta(room).host = "alpha".into()),
    ("errors-rising", healthy, |room| gained(room).rx_crc_errors = 3),
    ("ets-differs", healthy, |room| {
        dcb(room).ets.as_mut().unwrap().share_percent = vec![90, 10, 0, 0, 0, 0, 0, 0]
    }),
    ("fec-against-switch", healthy, |room| {
        let port =
            SwitchPort { name: "Ethernet1/2".into(), fec: Some("baser".into()), ..SwitchPort::default() };
        room.switches = vec![Switch { switch: "leaf1".into(), ports: vec![port] }];
    }),
    ("firewall-drops", measured, |room| {
        let chain = FirewallChain {
            table: "inet filter".into(),
            name: "input".into(),
            drops: true,
            ..FirewallChain::default()
        };
        beta(room).firewall = Some(Firewall { input: vec![chain] });
        probe(room).reachable = Some(false);
    }),
    ("firmware-differs", healthy, |room| l1(room).firmware = Some("14.20.1010".into())),
    ("gateway-dead", healthy, |room| beta(room).gateways[0].answers = Some(false)),
    ("half-duplex", healthy, |room| l1(room).link.duplex = Some(Duplex::Half)),
    ("huge-pages-denied", healthy, |room| {
        beta(room).memory.transparent_huge_pages_shared = Some("deny".into())
    }),
    ("huge-pages-missing", healthy, |room| room.hosts[0].memory.huge_pages = pool(512)),
    ("incast-collapse", measured, |room| {
        let (from, to) = (probe(room).from.clone(), probe(room).to.clone());
        room.matrix.incasts =
            vec![Incast { from: vec![from], to, throughput_mbps: vec![900], alone_mbps: Some(22_000) }];
    }),
    ("infiniband-mode", healthy, |room| {
        rdma(room).link_layer = Some(LinkLayer::Infiniband);
        rdma(room).state = Some("DOWN".into());
    }),
    ("interrupts-far-node", healthy, |room| {
        (8..).zip(&mut l1(room).irqs).for_each(|(cpu, irq)| irq.cpus = vec![cpu]);
    }),
    ("interrupts-on-one-cpu", healthy, |room| l1(room).irqs.iter_mut().for_each(|irq| irq.cpus = vec![9])),
    ("kernel-too-old", healthy, |room| beta(room).system.features[0].present = false),
    ("kvm-missing", healthy, |room| beta(room).hypervisor.kvm = Some(false)),
    ("lacp-incomplete", bonded, |room| named(room, "bond0").bond.as_mut().unwrap().aggregated = Some(1)),
    ("link-down", healthy, |room| l1(room).carrier = Some(false)),
    ("link-flapping", healthy, |room| l1(room).carrier_changes = Some(300)),
    ("memlock-limit", healthy, |room| beta(room).memory.memlock = Some(Limit::Bytes(8 << 20))),
    ("memory-short", healthy, |room| beta(room).memory.available_bytes = Some(200 << 20)),
    ("migration-on-management", healthy, |room| {
        for (number, host) in (1..).zip(&mut room.hosts) {
            host.agent.as_mut().unwrap().listen.push(format!("192.168.0.{number}:7979"));
        }
    }),
    ("mtu-against-switch", healthy, |room| l1(room).neighbours[0].frame_bytes_max = Some(1518)),
    ("mtu-below-port", tagged, |room| named(room, "l0").mtu = Some(1500)),
    ("mtu-between-hosts", healthy, |room| l1(room).mtu = Some(1500)),
    ("mtu-in-team", bonded, |room| named(room, "l3").mtu = Some(1500)),
    ("mtu-path", measured, |room| {
        probe(room).path_mtu = Some(PathMtu { promised: 9000, passed: 1500, black_hole: true })
    }),
    ("mtu-small", healthy, |room| both(room, |port| port.mtu = Some(1500))),
    ("no-second-link", healthy, |room| beta(room).agent.as_mut().unwrap().listen.truncate(1)),
    ("packet-loss", measured, |room| losing(room, 2, 10, 0)),
    ("pcie-below-card", healthy, |room| {
        for port in &mut beta(room).ports[..2] {
            four_lanes(port.pcie.as_mut().unwrap());
        }
    }),
    ("pcie-below-ports", healthy, |room| {
        for port in &mut beta(room).ports[..2] {
            let pcie = port.pcie.as_mut().unwrap();
            four_lanes(pcie);
            pcie.able = pcie.running;
        }
    }),
    ("pfc-differs", healthy, |room| dcb(room).pfc.as_mut().unwrap().lossless.clear()),
    ("qemu-machine-types", healthy, |room| drop(beta(room).hypervisor.qemu[0].machines.remove(0))),
    ("qemu-missing", healthy, |room| {
        let qemu = &mut beta(room).hypervisor.qemu[0];
        (qemu.version, qemu.machines) = (None, Vec::new());
    }),
    ("qemu-too-old", healthy, |room| beta(room).hypervisor.qemu[0].version = Some("6.2.0".into())),
    ("queues-few", healthy, |room| l1(room).queues.as_mut().unwrap().combined = Some(2)),
    ("ram-folder-unfit", healthy, |room| beta(room).memory.ram_folders[0].filesystem = Some("ext4".into())),
    ("rdma-blocked", measured, |room| probe(room).rdma_failure = Some("no answer".into())),
    ("rdma-off", healthy, |room| {
        room.hosts.iter_mut().for_each(|host| drop(host.rdma.as_mut().unwrap().remove(1)))
    }),
    ("rdma-one-sided", healthy, |room| drop(beta(room).rdma.as_mut().unwrap().remove(1))),
    ("rdma-port-down", healthy, |room| rdma(room).state = Some("DOWN".into())),
    ("roce-gid-missing", healthy, |room| rdma(room).gids.truncate(1)),
    ("roce-not-lossless", healthy, |room| {
        both(room, |port| {
            port.dcb.as_mut().unwrap().pfc.as_mut().unwrap().lossless.clear();
            port.neighbours[0].pfc = None;
        });
    }),
    ("roce-priority-differs", healthy, |room| dcb(room).applications[0].priority = 5),
    ("roce-version-differs", healthy, |room| rdma(room).default_roce = Some("IB/RoCE v1".into())),
    ("round-trip-long", measured, |room| slow(room, 1, 50_000)),
    ("speed-below-ability", healthy, |room| l1(room).link.speed_mbps = Some(1000)),
    ("speed-between-hosts", healthy, |room| {
        l1(room).link.speed_mbps = Some(10_000);
        l1(room).link.supported = vec!["10000baseSR/Full".into()];
    }),
    ("switch-port-slower", healthy, |room| {
        l1(room).link.speed_mbps = Some(10_000);
        l1(room).link.peer = vec!["10000baseSR/Full".into()];
    }),
    ("tcp-blocked", measured, |room| {
        (probe(room).tcp, probe(room).throughput_mbps) = (Some(false), None);
    }),
    ("team-cannot-spread", bonded, |room| {
        named(room, "bond0").bond.as_mut().unwrap().hash = Some("layer2".into())
    }),
    ("team-without-monitoring", bonded, |room| {
        named(room, "bond0").bond.as_mut().unwrap().monitor_interval_ms = Some(0)
    }),
    ("throughput-below-promise", measured, |room| probe(room).throughput_mbps = Some(2400)),
    ("throughput-below-sibling", measured, |room| {
        (probe(room).throughput_mbps, room.matrix.probes[3].throughput_mbps) = (Some(13_000), Some(13_100));
    }),
    ("throughput-one-way", measured, |room| probe(room).throughput_mbps = Some(13_000)),
    ("two-ports-one-network", healthy, |room| {
        l1(room).addresses.push(Address { ip: [192, 168, 0, 77].into(), prefix: 24 });
        room.hosts.iter_mut().for_each(|host| host.ports[1].neighbours.clear());
        both(room, |port| port.mtu_max = None);
        named(room, "eno1").mtu = Some(9000);
        room.hosts[0].ports[4].mtu = Some(9000);
    }),
    ("unreachable", measured, |room| {
        probe(room).reachable = Some(false);
        (probe(room).tcp, probe(room).throughput_mbps) = (Some(false), None);
    }),
    ("vlan-between-hosts", healthy, |room| l1(room).neighbours[0].vlan_untagged = Some(1)),
    ("vlan-in-team", bonded, |room| named(room, "l3").neighbours[0].vlan_untagged = Some(1)),
    ("vlan-not-on-switch", tagged, |room| named(room, "l0").neighbours[0].vlans = vec![200]),
];

fn ids(room: &Room) -> Vec<String> {
    run_all(room).into_iter().map(|finding| finding.id).collect()
}

#[test]
fn two_healthy_hosts_with_four_links_are_silent() {
    for room in [healthy(), bonded(), tagged(), measured()] {
        assert_eq!(run_all(&room), Vec::new());
    }
}

#[test]
fn each_host_alone_is_silent() {
    for room in [healthy(), bonded(), tagged()] {
        for host in room.hosts {
            assert_eq!(run_all(&Room::of(vec![host])), Vec::new());
        }
    }
}

#[test]
fn every_fault_is_named_and_nothing_else() {
    let mut wrong = Vec::new();
    for (id, healthy, fault) in FAULTS {
        let mut room = healthy();
        fault(&mut room);
        if ids(&room) != [*id] {
            wrong.push(format!("{id}: {:?}", ids(&room)));
        }
        for finding in run_all(&room) {
            assert!(!finding.places.is_empty() && !finding.seen.is_empty(), "{id} names place and values");
            assert!(!finding.why.is_empty() && !finding.fixes.is_empty(), "{id} says why and what to do");
            assert_eq!(finding.page, format!("docs/findings.md#{id}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Each finding that `--fix` says it fixes is gone when what it plans was done, and nothing else comes.
#[test]
fn what_fix_plans_mends_the_finding() {
    let mut wrong = Vec::new();
    for ((id, healthy, fault), check) in FAULTS.iter().zip(ALL) {
        let mut room = healthy();
        fault(&mut room);
        for change in mended::CIRCUMSTANCES.iter().filter(|(of, _)| of == id) {
            (change.1)(&mut room);
        }
        let before = run_all(&room);
        assert_eq!(before.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), [*id]);
        let offered = mended::offered(&before[0]);
        if offered != check.mending {
            wrong.push(format!("{id}: declared {:?}, offered {offered:?}", check.mending));
        }
        if offered == FixKind::Hands {
            continue;
        }
        let after = mended::done(&mut room, &before);
        if !after.is_empty() {
            wrong.push(format!("{id}: {after:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_table_holds_every_check() {
    let table: Vec<&str> = FAULTS.iter().map(|(id, _, _)| *id).collect();
    let all: Vec<&str> = ALL.iter().map(|check| check.id).collect();
    assert_eq!(table, all);
}

/// `UPDATE_GOLDEN=1` writes it anew.
#[test]
fn the_documentation_has_what_is_said_of_every_fault() {
    let mut table = String::from(
        "| finding | severity | what is said, with the fault in a healthy room |\n|---|---|---|\n",
    );
    for (id, healthy, fault) in FAULTS {
        let mut room = healthy();
        fault(&mut room);
        let finding = run_all(&room).remove(0);
        let places: Vec<String> = finding.places.iter().map(Place::to_string).collect();
        let severity = format!("{:?}", finding.severity).to_lowercase();
        table += &format!("| [{id}](#{id}) | {severity} | {}: {} |\n", places.join(", "), finding.title);
    }
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/findings.md");
    let text = std::fs::read_to_string(page).unwrap();
    let (head, rest) = text.split_once("<!-- table -->\n").unwrap();
    let (shown, tail) = rest.split_once("<!-- end of the table -->\n").unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(page, format!("{head}<!-- table -->\n{table}<!-- end of the table -->\n{tail}"))
            .unwrap();
        return;
    }
    assert_eq!(shown, table, "run it with UPDATE_GOLDEN=1 and look at what changed");
}

#[test]
fn sixty_four_hosts_are_compared_pair_by_pair_without_a_finding() {
    let hosts = (1..=64).map(|number| room::host(number, &format!("host{number}"))).collect();
    assert_eq!(run_all(&Room::of(hosts)), Vec::new());
}

/// A fault of links: what it is called, what it does, what must be named, and where it is.
type LinkFault = (&'static str, fn(&mut Room), &'static str, &'static [&'static str]);

const BOTH: &[&str] = &["alpha l1", "beta l1"];

fn lossy(room: &mut Room, percent: u32, ways: [bool; 2]) {
    let lost = ways.map(|bad| if bad { percent * 20 } else { 0 });
    losing(room, 2, lost[0], lost[1]);
    // What TCP makes of it.
    for number in [2, 3] {
        room.matrix.probes[number].throughput_mbps = if percent > 5 { None } else { Some(900) };
        room.matrix.probes[number].tcp = Some(percent < 30);
    }
}

/// The clocks' difference tells the direction.
fn late(room: &mut Room, ms: i64, there: bool) {
    slow(room, 1, ms as u64 * 1000);
    let ahead = if there { ms * 500 } else { -ms * 500 };
    for (number, sign) in [(2, 1), (3, -1)] {
        room.matrix.probes[number].clock_ahead_us = Some(80 + ahead * sign);
        // One window of TCP in each round trip.
        room.matrix.probes[number].throughput_mbps = Some(2000);
    }
}

fn wall(room: &mut Room) {
    let chain = FirewallChain {
        table: "inet f".into(),
        name: "in".into(),
        hook: "input".into(),
        drops: true,
        rules: 2,
    };
    beta(room).firewall = Some(Firewall { input: vec![chain] });
}

/// Datagrams do not pass to beta: replies to it neither.
fn deaf(room: &mut Room, tcp: bool) {
    for (number, heard) in [(2, false), (3, true)] {
        let probe = &mut room.matrix.probes[number];
        (probe.reachable, probe.heard, probe.tcp) = (Some(false), Some(heard), Some(tcp));
        (probe.path_mtu, probe.latency, probe.loss) = (None, None, None);
        if !tcp {
            probe.throughput_mbps = None;
        }
    }
}

const LINK_FAULTS: &[LinkFault] = &[
    ("1 % there", |room| lossy(room, 1, [true, false]), "packet-loss", BOTH),
    ("1 % back", |room| lossy(room, 1, [false, true]), "packet-loss", BOTH),
    ("1 % both ways", |room| lossy(room, 1, [true, true]), "packet-loss", BOTH),
    ("5 % there", |room| lossy(room, 5, [true, false]), "packet-loss", BOTH),
    ("5 % back", |room| lossy(room, 5, [false, true]), "packet-loss", BOTH),
    ("5 % both ways", |room| lossy(room, 5, [true, true]), "packet-loss", BOTH),
    ("30 % there", |room| lossy(room, 30, [true, false]), "packet-loss", BOTH),
    ("30 % back", |room| lossy(room, 30, [false, true]), "packet-loss", BOTH),
    ("30 % both ways", |room| lossy(room, 30, [true, true]), "packet-loss", BOTH),
    (
        "loss and the drops of a port",
        |room| {
            lossy(room, 5, [true, false]);
            gained(room).rx_dropped = 900;
        },
        "packet-loss",
        BOTH,
    ),
    ("1 ms there", |room| late(room, 1, true), "round-trip-long", BOTH),
    ("1 ms back", |room| late(room, 1, false), "round-trip-long", BOTH),
    ("10 ms there", |room| late(room, 10, true), "round-trip-long", BOTH),
    ("10 ms back", |room| late(room, 10, false), "round-trip-long", BOTH),
    ("50 ms there", |room| late(room, 50, true), "round-trip-long", BOTH),
    ("50 ms back", |room| late(room, 50, false), "round-trip-long", BOTH),
    (
        "half there",
        |room| room.matrix.probes[2].throughput_mbps = Some(11_000),
        "throughput-below-promise",
        BOTH,
    ),
    (
        "half of what a virtual port moves, there",
        |room| virtual_ports(room, [500, 1000]),
        "throughput-one-way",
        BOTH,
    ),
    (
        "half of what a virtual port moves, back",
        |room| virtual_ports(room, [1000, 500]),
        "throughput-one-way",
        BOTH,
    ),
    ("half, both ways", |room| virtual_ports(room, [500, 500]), "throughput-below-sibling", BOTH),
    ("a tenth, both ways", |room| virtual_ports(room, [100, 100]), "throughput-below-sibling", BOTH),
    ("UDP blocked", |room| deaf(room, true), "firewall-drops", &["beta l1"]),
    (
        "UDP blocked, seen",
        |room| {
            wall(room);
            deaf(room, true);
        },
        "firewall-drops",
        &["beta l1"],
    ),
    (
        "all blocked by a firewall",
        |room| {
            wall(room);
            deaf(room, false);
        },
        "firewall-drops",
        &["beta l1"],
    ),
    ("all blocked on the way", |room| deaf(room, false), "unreachable", BOTH),
    (
        "TCP blocked",
        |room| (room.matrix.probes[2].tcp, room.matrix.probes[2].throughput_mbps) = (Some(false), None),
        "tcp-blocked",
        &["beta l1"],
    ),
    (
        "TCP blocked both ways by beta",
        |room| {
            wall(room);
            for number in [2, 3] {
                (room.matrix.probes[number].tcp, room.matrix.probes[number].throughput_mbps) =
                    (Some(false), None);
            }
        },
        "tcp-blocked",
        &["beta l1"],
    ),
    (
        "a wrong route and nothing arrives",
        |room| {
            deaf(room, false);
            room.matrix.probes[3].leaves_by = Some("eno1".into());
        },
        "asymmetric-routing",
        &["beta l1"],
    ),
    (
        "one MAC twice and nothing arrives",
        |room| {
            deaf(room, false);
            l1(room).mac = Some("02:00:00:00:01:01".into());
        },
        "duplicate-mac",
        BOTH,
    ),
    (
        "no signal",
        |room| {
            deaf(room, false);
            l1(room).carrier = Some(false);
        },
        "link-down",
        &["beta l1"],
    ),
    (
        "a small MTU and the drops of it",
        |room| {
            l1(room).mtu = Some(1500);
            gained(room).rx_dropped = 4000;
            room.matrix.probes[2].throughput_mbps = Some(40);
        },
        "mtu-between-hosts",
        &["beta l1"],
    ),
    (
        "a stranger has an address",
        |room| {
            l1(room).taken = vec![Taken { ip: [10, 2, 1, 2].into(), mac: "02:de:ad:00:00:01".into() }];
            deaf(room, false);
        },
        "address-taken",
        &["beta l1"],
    ),
    ("no QEMU", |room| beta(room).hypervisor.qemu.clear(), "qemu-missing", &["beta"]),
    ("no KVM", |room| beta(room).hypervisor.kvm = Some(false), "kvm-missing", &["beta"]),
    ("little memory", |room| beta(room).memory.available_bytes = Some(200 << 20), "memory-short", &["beta"]),
    (
        "ram_dir on a disk",
        |room| beta(room).memory.ram_folders[0].filesystem = Some("xfs".into()),
        "ram-folder-unfit",
        &["beta"],
    ),
    (
        "ram_dir too small",
        |room| beta(room).memory.ram_folders[0].available_bytes = Some(64 << 20),
        "ram-folder-unfit",
        &["beta"],
    ),
    ("a dead gateway", |room| beta(room).gateways[0].answers = Some(false), "gateway-dead", &["beta eno1"]),
    ("one name twice", |room| beta(room).host = "alpha".into(), "equal-names", &["alpha", "alpha (2)"]),
];

/// All ports are virtual, whose speed means nothing; the second link moves this there and back.
fn virtual_ports(room: &mut Room, rates: [u64; 2]) {
    room.hosts.iter_mut().flat_map(|host| &mut host.ports).for_each(|port| port.kind = PortKind::Veth);
    room.matrix.probes.iter_mut().for_each(|probe| probe.throughput_mbps = Some(1000));
    for (number, rate) in [2, 3].into_iter().zip(rates) {
        room.matrix.probes[number].throughput_mbps = Some(rate);
    }
}

/// The measured room with its first two links only.
fn with_two_links() -> Room {
    let mut room = measured();
    room.matrix.probes.truncate(4);
    for host in &mut room.hosts {
        host.ports.retain(|port| !["l2", "l3"].contains(&port.name.as_str()));
        host.rdma.as_mut().unwrap().truncate(2);
        host.agent.as_mut().unwrap().listen.truncate(2);
    }
    room
}

#[test]
fn faults_of_links_are_named_exactly_with_two_links_and_with_four() {
    let mut wrong = Vec::new();
    for (links, healthy) in [(2, with_two_links as fn() -> Room), (4, measured)] {
        assert_eq!(run_all(&healthy()), Vec::new());
        for (what, fault, id, places) in LINK_FAULTS {
            let mut room = healthy();
            fault(&mut room);
            let found = run_all(&room);
            let mut at: Vec<String> =
                found.iter().flat_map(|one| &one.places).map(Place::to_string).collect();
            at.sort();
            if ids(&room) != [*id] || at != *places {
                wrong.push(format!("{links} links, {what}: {:?} at {at:?}", ids(&room)));
            }
        }
    }
    assert!(LINK_FAULTS.len() >= 30);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
