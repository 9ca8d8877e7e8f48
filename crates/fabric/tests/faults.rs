//! Every finding with the faulty set-up that provokes it: the doctor names it and nothing else.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Tests say what they expect.

mod fixed;
mod survey;

use linerate_fabric::checks::{ALL, FixKind, run_all};
use linerate_fabric::model::*;
use survey::{bonded, healthy, measured, tagged};

type Fault = (&'static str, fn() -> Survey, fn(&mut Survey));

fn beta(survey: &mut Survey) -> &mut Inventory {
    &mut survey.hosts[1]
}

/// The second link's port at beta.
fn l1(survey: &mut Survey) -> &mut Port {
    &mut beta(survey).ports[1]
}

fn named<'a>(survey: &'a mut Survey, name: &str) -> &'a mut Port {
    beta(survey).ports.iter_mut().find(|port| port.name == name).unwrap()
}

fn dcb(survey: &mut Survey) -> &mut Dcb {
    l1(survey).dcb.as_mut().unwrap()
}

fn rdma(survey: &mut Survey) -> &mut RdmaPort {
    &mut beta(survey).rdma.as_mut().unwrap()[1].ports[0]
}

fn gained(survey: &mut Survey) -> &mut Counters {
    &mut l1(survey).counters_change.as_mut().unwrap().gained
}

/// The probe over the second link to beta.
fn probe(survey: &mut Survey) -> &mut Probe {
    &mut survey.matrix.probes[2]
}

/// Packets of 2000 that are lost on the way of a probe and back, seen from both sides.
fn losing(survey: &mut Survey, number: usize, there: u32, back: u32) {
    let loss =
        |there, back| Loss { sent: 2000, lost_there: Some(there), lost_back: Some(back), lost: there + back };
    survey.matrix.probes[number].loss = Some(loss(there, back));
    survey.matrix.probes[number ^ 1].loss = Some(loss(back, there));
}

/// A link whose packets take longer, there and back together, microseconds.
fn slow(survey: &mut Survey, link: usize, more_us: u64) {
    for probe in &mut survey.matrix.probes[link * 2..link * 2 + 2] {
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
fn both(survey: &mut Survey, fault: fn(&mut Port)) {
    survey.hosts.iter_mut().for_each(|host| fault(&mut host.ports[1]));
}

fn pool(total: u64) -> Vec<HugePages> {
    vec![HugePages { size_bytes: 2 << 20, total, free: 0 }]
}

const FAULTS: &[Fault] = &[
    ("address-taken", healthy, |survey| {
        l1(survey).taken = vec![Taken { ip: [10, 2, 1, 2].into(), mac: "02:de:ad:00:00:01".into() }];
    }),
    ("asymmetric-routing", measured, |survey| probe(survey).leaves_by = Some("eno1".into())),
    ("autonegotiation-mismatch", healthy, |survey| l1(survey).neighbours[0].autonegotiation = Some(false)),
    ("clock-not-steered", healthy, |survey| beta(survey).time.synchronised = Some(false)),
    ("clock-skew", measured, |survey| probe(survey).clock_ahead_us = Some(-3_000_000)),
    ("cpu-differs", healthy, |survey| beta(survey).cpu.flags.truncate(1)),
    ("cpu-governor", healthy, |survey| beta(survey).cpu.governors[0].name = "powersave".into()),
    ("cpu-idle-states", healthy, |survey| {
        beta(survey).cpu.idle_states = vec![IdleState { name: "C6".into(), latency_us: 170, enabled: true }];
    }),
    ("dcb-willing", healthy, |survey| dcb(survey).ets.as_mut().unwrap().willing = Some(true)),
    ("dcbx-differs", healthy, |survey| dcb(survey).dcbx.as_mut().unwrap().cee = true),
    ("driver-differs", healthy, |survey| l1(survey).driver_version = Some("24.10-0.7.0".into())),
    ("drops-rising", healthy, |survey| gained(survey).rx_missed = 40),
    ("duplicate-address", healthy, |survey| named(survey, "eno1").addresses[0].ip = [192, 168, 0, 1].into()),
    ("duplicate-mac", healthy, |survey| l1(survey).mac = Some("02:00:00:00:01:01".into())),
    ("equal-names", healthy, |survey| beta(survey).host = "alpha".into()),
    ("errors-rising", healthy, |survey| gained(survey).rx_crc_errors = 3),
    ("ets-differs", healthy, |survey| {
        dcb(survey).ets.as_mut().unwrap().share_percent = vec![90, 10, 0, 0, 0, 0, 0, 0]
    }),
    ("fec-against-switch", healthy, |survey| {
        let port =
            SwitchPort { name: "Ethernet1/2".into(), fec: Some("baser".into()), ..SwitchPort::default() };
        survey.switches = vec![Switch { switch: "leaf1".into(), ports: vec![port] }];
    }),
    ("firewall-drops", measured, |survey| {
        let chain = FirewallChain {
            table: "inet filter".into(),
            name: "input".into(),
            drops: true,
            ..FirewallChain::default()
        };
        beta(survey).firewall = Some(Firewall { input: vec![chain] });
        probe(survey).reachable = Some(false);
    }),
    ("firmware-differs", healthy, |survey| l1(survey).firmware = Some("14.20.1010".into())),
    ("gateway-dead", healthy, |survey| beta(survey).gateways[0].answers = Some(false)),
    ("half-duplex", healthy, |survey| l1(survey).link.duplex = Some(Duplex::Half)),
    ("huge-pages-denied", healthy, |survey| {
        beta(survey).memory.transparent_huge_pages_shared = Some("deny".into())
    }),
    ("huge-pages-missing", healthy, |survey| survey.hosts[0].memory.huge_pages = pool(512)),
    ("incast-collapse", measured, |survey| {
        let (from, to) = (probe(survey).from.clone(), probe(survey).to.clone());
        let (throughput_mbps, alone_mbps) = (vec![900], Some(22_000));
        survey.matrix.incasts =
            vec![Incast { from: vec![from], to, throughput_mbps, alone_mbps, failed: Vec::new() }];
    }),
    ("infiniband-mode", healthy, |survey| {
        rdma(survey).link_layer = Some(LinkLayer::Infiniband);
        rdma(survey).state = Some("DOWN".into());
    }),
    ("interrupts-far-node", healthy, |survey| {
        (8..).zip(&mut l1(survey).irqs).for_each(|(cpu, irq)| irq.cpus = vec![cpu]);
    }),
    ("interrupts-on-one-cpu", healthy, |survey| {
        l1(survey).irqs.iter_mut().for_each(|irq| irq.cpus = vec![9])
    }),
    ("kernel-too-old", healthy, |survey| beta(survey).system.features[0].present = false),
    ("kvm-missing", healthy, |survey| beta(survey).hypervisor.kvm = Some(false)),
    ("lacp-incomplete", bonded, |survey| named(survey, "bond0").bond.as_mut().unwrap().aggregated = Some(1)),
    ("link-down", healthy, |survey| l1(survey).carrier = Some(false)),
    ("link-flapping", healthy, |survey| l1(survey).carrier_changes = Some(300)),
    ("load-fails", measured, |survey| {
        let probe = probe(survey);
        (probe.throughput_mbps, probe.failure) = (None, Some("no load over l1: it was cut".into()));
    }),
    ("memlock-limit", healthy, |survey| beta(survey).memory.memlock = Some(Limit::Bytes(8 << 20))),
    ("memory-short", healthy, |survey| beta(survey).memory.available_bytes = Some(200 << 20)),
    ("migration-on-management", healthy, |survey| {
        for (number, host) in (1..).zip(&mut survey.hosts) {
            host.agent.as_mut().unwrap().listen.push(format!("192.168.0.{number}:7979"));
        }
    }),
    ("mtu-against-switch", healthy, |survey| l1(survey).neighbours[0].frame_bytes_max = Some(1518)),
    ("mtu-below-port", tagged, |survey| named(survey, "l0").mtu = Some(1500)),
    ("mtu-between-hosts", healthy, |survey| l1(survey).mtu = Some(1500)),
    ("mtu-in-team", bonded, |survey| named(survey, "l3").mtu = Some(1500)),
    ("mtu-path", measured, |survey| {
        probe(survey).path_mtu = Some(PathMtu { promised: 9000, passed: 1500, black_hole: true })
    }),
    ("mtu-small", healthy, |survey| both(survey, |port| port.mtu = Some(1500))),
    ("no-second-link", healthy, |survey| beta(survey).agent.as_mut().unwrap().listen.truncate(1)),
    ("not-measured", measured, |survey| {
        let probe = probe(survey);
        *probe = Probe::new(probe.from.clone(), probe.to.clone());
        probe.failure = Some("this host probes for another host; try again in some seconds".into());
    }),
    ("not-read", healthy, |survey| beta(survey).note("ethtool: FEC", "no answer")),
    ("offloads-off", healthy, |survey| l1(survey).offloads = [("rx-gro".to_owned(), false)].into()),
    ("packet-loss", measured, |survey| losing(survey, 2, 10, 0)),
    ("pcie-below-card", healthy, |survey| {
        for port in &mut beta(survey).ports[..2] {
            four_lanes(port.pcie.as_mut().unwrap());
        }
    }),
    ("pcie-below-ports", healthy, |survey| {
        for port in &mut beta(survey).ports[..2] {
            let pcie = port.pcie.as_mut().unwrap();
            four_lanes(pcie);
            pcie.able = pcie.running;
        }
    }),
    ("pfc-differs", healthy, |survey| dcb(survey).pfc.as_mut().unwrap().lossless.clear()),
    ("qemu-machine-types", healthy, |survey| drop(beta(survey).hypervisor.qemu[0].machines.remove(0))),
    ("qemu-missing", healthy, |survey| {
        let qemu = &mut beta(survey).hypervisor.qemu[0];
        (qemu.version, qemu.machines) = (None, Vec::new());
    }),
    ("qemu-too-old", healthy, |survey| beta(survey).hypervisor.qemu[0].version = Some("6.2.0".into())),
    ("queues-few", healthy, |survey| l1(survey).queues.as_mut().unwrap().combined = Some(2)),
    ("ram-folder-unfit", healthy, |survey| {
        beta(survey).memory.ram_folders[0].filesystem = Some("ext4".into())
    }),
    ("rdma-below-promise", measured, |survey| probe(survey).rdma_mbps = Some(2400)),
    ("rdma-blocked", measured, |survey| probe(survey).rdma_failure = Some("no answer".into())),
    ("rdma-off", healthy, |survey| {
        survey.hosts.iter_mut().for_each(|host| drop(host.rdma.as_mut().unwrap().remove(1)))
    }),
    ("rdma-one-sided", healthy, |survey| drop(beta(survey).rdma.as_mut().unwrap().remove(1))),
    ("rdma-port-down", healthy, |survey| rdma(survey).state = Some("DOWN".into())),
    ("roce-gid-missing", healthy, |survey| rdma(survey).gids.truncate(1)),
    ("roce-not-lossless", healthy, |survey| {
        both(survey, |port| {
            port.dcb.as_mut().unwrap().pfc.as_mut().unwrap().lossless.clear();
            port.neighbours[0].pfc = None;
        });
    }),
    ("roce-priority-differs", healthy, |survey| dcb(survey).applications[0].priority = 5),
    ("roce-version-differs", healthy, |survey| rdma(survey).default_roce = Some("IB/RoCE v1".into())),
    ("round-trip-long", measured, |survey| slow(survey, 1, 50_000)),
    ("speed-below-ability", healthy, |survey| l1(survey).link.speed_mbps = Some(1000)),
    ("speed-between-hosts", healthy, |survey| {
        l1(survey).link.speed_mbps = Some(10_000);
        l1(survey).link.supported = vec!["10000baseSR/Full".into()];
    }),
    ("switch-port-slower", healthy, |survey| {
        l1(survey).link.speed_mbps = Some(10_000);
        l1(survey).link.peer = vec!["10000baseSR/Full".into()];
    }),
    ("tcp-blocked", measured, |survey| {
        (probe(survey).tcp, probe(survey).throughput_mbps) = (Some(false), None);
    }),
    ("team-cannot-spread", bonded, |survey| {
        named(survey, "bond0").bond.as_mut().unwrap().hash = Some("layer2".into())
    }),
    ("team-without-monitoring", bonded, |survey| {
        named(survey, "bond0").bond.as_mut().unwrap().monitor_interval_ms = Some(0)
    }),
    ("throughput-below-promise", measured, |survey| probe(survey).throughput_mbps = Some(2400)),
    ("throughput-below-sibling", measured, |survey| {
        (probe(survey).throughput_mbps, survey.matrix.probes[3].throughput_mbps) =
            (Some(13_000), Some(13_100));
    }),
    ("throughput-one-way", measured, |survey| probe(survey).throughput_mbps = Some(13_000)),
    ("two-ports-one-network", healthy, |survey| {
        l1(survey).addresses.push(Address { ip: [192, 168, 0, 77].into(), prefix: 24 });
        survey.hosts.iter_mut().for_each(|host| host.ports[1].neighbours.clear());
        both(survey, |port| port.mtu_max = None);
        named(survey, "eno1").mtu = Some(9000);
        survey.hosts[0].ports[4].mtu = Some(9000);
    }),
    ("unreachable", measured, |survey| {
        probe(survey).reachable = Some(false);
        (probe(survey).tcp, probe(survey).throughput_mbps) = (Some(false), None);
    }),
    ("vlan-between-hosts", healthy, |survey| l1(survey).neighbours[0].vlan_untagged = Some(1)),
    ("vlan-in-team", bonded, |survey| named(survey, "l3").neighbours[0].vlan_untagged = Some(1)),
    ("vlan-not-on-switch", tagged, |survey| named(survey, "l0").neighbours[0].vlans = vec![200]),
];

fn ids(survey: &Survey) -> Vec<String> {
    run_all(survey).into_iter().map(|finding| finding.id).collect()
}

#[test]
fn two_healthy_hosts_with_four_links_are_silent() {
    for survey in [healthy(), bonded(), tagged(), measured()] {
        assert_eq!(run_all(&survey), Vec::new());
    }
}

#[test]
fn each_host_alone_is_silent() {
    for survey in [healthy(), bonded(), tagged()] {
        for host in survey.hosts {
            assert_eq!(run_all(&Survey::of(vec![host])), Vec::new());
        }
    }
}

#[test]
fn every_fault_is_named_and_nothing_else() {
    let mut wrong = Vec::new();
    for (id, healthy, fault) in FAULTS {
        let mut survey = healthy();
        fault(&mut survey);
        if ids(&survey) != [*id] {
            wrong.push(format!("{id}: {:?}", ids(&survey)));
        }
        for finding in run_all(&survey) {
            assert!(
                !finding.locations.is_empty() && !finding.seen.is_empty(),
                "{id} names location and values"
            );
            assert!(!finding.why.is_empty() && !finding.fixes.is_empty(), "{id} says why and what to do");
            assert_eq!(finding.page, format!("docs/findings.md#{id}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Each finding that `--fix` says it fixes is absent after its plan was carried out, and nothing else comes.
#[test]
fn what_fix_plans_removes_the_finding() {
    let mut wrong = Vec::new();
    for ((id, healthy, fault), check) in FAULTS.iter().zip(ALL) {
        let mut survey = healthy();
        fault(&mut survey);
        for change in fixed::CIRCUMSTANCES.iter().filter(|(of, _)| of == id) {
            (change.1)(&mut survey);
        }
        let before = run_all(&survey);
        assert_eq!(before.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), [*id]);
        let offered = fixed::offered(&before[0]);
        if offered != check.fix_kind {
            wrong.push(format!("{id}: declared {:?}, offered {offered:?}", check.fix_kind));
        }
        if offered == FixKind::Hands {
            continue;
        }
        let after = fixed::done(&mut survey, &before);
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
fn the_documentation_has_every_fault() {
    let mut table = String::from(
        "| finding | severity | what is said, with the fault in a healthy survey |\n|---|---|---|\n",
    );
    for (id, healthy, fault) in FAULTS {
        let mut survey = healthy();
        fault(&mut survey);
        let finding = run_all(&survey).remove(0);
        let locations: Vec<String> = finding.locations.iter().map(Location::to_string).collect();
        let severity = format!("{:?}", finding.severity).to_lowercase();
        table += &format!("| [{id}](#{id}) | {severity} | {}: {} |\n", locations.join(", "), finding.title);
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
    let hosts = (1..=64).map(|number| survey::host(number, &format!("host{number}"))).collect();
    assert_eq!(run_all(&Survey::of(hosts)), Vec::new());
}

/// A fault of links: what it is called, what it does, what must be named, and where it is.
type LinkFault = (&'static str, fn(&mut Survey), &'static str, &'static [&'static str]);

const BOTH: &[&str] = &["alpha l1", "beta l1"];

fn lossy(survey: &mut Survey, percent: u32, ways: [bool; 2]) {
    let lost = ways.map(|bad| if bad { percent * 20 } else { 0 });
    losing(survey, 2, lost[0], lost[1]);
    // What TCP makes of it.
    for number in [2, 3] {
        survey.matrix.probes[number].throughput_mbps = if percent > 5 { None } else { Some(900) };
        survey.matrix.probes[number].tcp = Some(percent < 30);
    }
}

/// The clocks' difference shows the direction.
fn late(survey: &mut Survey, ms: i64, there: bool) {
    far(survey, if there { [ms, 0] } else { [0, ms] });
}

/// The same with milliseconds for each direction.
fn far(survey: &mut Survey, [there, back]: [i64; 2]) {
    slow(survey, 1, (there + back) as u64 * 1000);
    let ahead = (there - back) * 500;
    for (number, sign) in [(2, 1), (3, -1)] {
        survey.matrix.probes[number].clock_ahead_us = Some(80 + ahead * sign);
        // One window of TCP in each round trip.
        survey.matrix.probes[number].throughput_mbps = Some(2000);
    }
}

fn wall(survey: &mut Survey) {
    let chain = FirewallChain {
        table: "inet f".into(),
        name: "in".into(),
        hook: "input".into(),
        drops: true,
        rules: 2,
    };
    beta(survey).firewall = Some(Firewall { input: vec![chain] });
}

/// Datagrams do not pass to beta: replies to it neither.
fn deaf(survey: &mut Survey, tcp: bool) {
    for (number, received) in [(2, false), (3, true)] {
        let probe = &mut survey.matrix.probes[number];
        (probe.reachable, probe.received, probe.tcp) = (Some(false), Some(received), Some(tcp));
        (probe.path_mtu, probe.latency, probe.loss) = (None, None, None);
        if !tcp {
            probe.throughput_mbps = None;
        }
    }
}

const LINK_FAULTS: &[LinkFault] = &[
    ("1 % there", |survey| lossy(survey, 1, [true, false]), "packet-loss", BOTH),
    ("1 % back", |survey| lossy(survey, 1, [false, true]), "packet-loss", BOTH),
    ("1 % both ways", |survey| lossy(survey, 1, [true, true]), "packet-loss", BOTH),
    ("5 % there", |survey| lossy(survey, 5, [true, false]), "packet-loss", BOTH),
    ("5 % back", |survey| lossy(survey, 5, [false, true]), "packet-loss", BOTH),
    ("5 % both ways", |survey| lossy(survey, 5, [true, true]), "packet-loss", BOTH),
    ("30 % there", |survey| lossy(survey, 30, [true, false]), "packet-loss", BOTH),
    ("30 % back", |survey| lossy(survey, 30, [false, true]), "packet-loss", BOTH),
    ("30 % both ways", |survey| lossy(survey, 30, [true, true]), "packet-loss", BOTH),
    (
        "loss and the drops of a port",
        |survey| {
            lossy(survey, 5, [true, false]);
            gained(survey).rx_dropped = 900;
        },
        "packet-loss",
        BOTH,
    ),
    ("1 ms there", |survey| late(survey, 1, true), "round-trip-long", BOTH),
    ("1 ms back", |survey| late(survey, 1, false), "round-trip-long", BOTH),
    ("10 ms there", |survey| late(survey, 10, true), "round-trip-long", BOTH),
    ("10 ms back", |survey| late(survey, 10, false), "round-trip-long", BOTH),
    ("50 ms there", |survey| late(survey, 50, true), "round-trip-long", BOTH),
    ("50 ms back", |survey| late(survey, 50, false), "round-trip-long", BOTH),
    ("200 ms there and back", |survey| far(survey, [100, 100]), "round-trip-long", BOTH),
    ("400 ms there and back", |survey| far(survey, [200, 200]), "round-trip-long", BOTH),
    ("600 ms there and back", |survey| far(survey, [300, 300]), "round-trip-long", BOTH),
    ("1000 ms there and back", |survey| far(survey, [500, 500]), "round-trip-long", BOTH),
    ("600 ms there", |survey| late(survey, 600, true), "round-trip-long", BOTH),
    (
        "half there",
        |survey| survey.matrix.probes[2].throughput_mbps = Some(11_000),
        "throughput-below-promise",
        BOTH,
    ),
    (
        "half of what a virtual port moves, there",
        |survey| virtual_ports(survey, [500, 1000]),
        "throughput-one-way",
        BOTH,
    ),
    (
        "half of what a virtual port moves, back",
        |survey| virtual_ports(survey, [1000, 500]),
        "throughput-one-way",
        BOTH,
    ),
    ("half, both ways", |survey| virtual_ports(survey, [500, 500]), "throughput-below-sibling", BOTH),
    ("a tenth, both ways", |survey| virtual_ports(survey, [100, 100]), "throughput-below-sibling", BOTH),
    ("UDP blocked", |survey| deaf(survey, true), "firewall-drops", &["beta l1"]),
    (
        "UDP blocked, seen",
        |survey| {
            wall(survey);
            deaf(survey, true);
        },
        "firewall-drops",
        &["beta l1"],
    ),
    (
        "all blocked by a firewall",
        |survey| {
            wall(survey);
            deaf(survey, false);
        },
        "firewall-drops",
        &["beta l1"],
    ),
    ("all blocked on the way", |survey| deaf(survey, false), "unreachable", BOTH),
    (
        "TCP blocked",
        |survey| (survey.matrix.probes[2].tcp, survey.matrix.probes[2].throughput_mbps) = (Some(false), None),
        "tcp-blocked",
        &["beta l1"],
    ),
    (
        "TCP blocked both ways by beta",
        |survey| {
            wall(survey);
            for number in [2, 3] {
                (survey.matrix.probes[number].tcp, survey.matrix.probes[number].throughput_mbps) =
                    (Some(false), None);
            }
        },
        "tcp-blocked",
        &["beta l1"],
    ),
    (
        "a wrong route and nothing arrives",
        |survey| {
            deaf(survey, false);
            survey.matrix.probes[3].leaves_by = Some("eno1".into());
        },
        "asymmetric-routing",
        &["beta l1"],
    ),
    (
        "one MAC twice and nothing arrives",
        |survey| {
            deaf(survey, false);
            l1(survey).mac = Some("02:00:00:00:01:01".into());
        },
        "duplicate-mac",
        BOTH,
    ),
    (
        "no signal",
        |survey| {
            deaf(survey, false);
            l1(survey).carrier = Some(false);
        },
        "link-down",
        &["beta l1"],
    ),
    (
        "a small MTU and the drops of it",
        |survey| {
            l1(survey).mtu = Some(1500);
            gained(survey).rx_dropped = 4000;
            survey.matrix.probes[2].throughput_mbps = Some(40);
        },
        "mtu-between-hosts",
        &["beta l1"],
    ),
    (
        "a stranger has an address",
        |survey| {
            l1(survey).taken = vec![Taken { ip: [10, 2, 1, 2].into(), mac: "02:de:ad:00:00:01".into() }];
            deaf(survey, false);
        },
        "address-taken",
        &["beta l1"],
    ),
    ("no QEMU", |survey| beta(survey).hypervisor.qemu.clear(), "qemu-missing", &["beta"]),
    ("no KVM", |survey| beta(survey).hypervisor.kvm = Some(false), "kvm-missing", &["beta"]),
    (
        "little memory",
        |survey| beta(survey).memory.available_bytes = Some(200 << 20),
        "memory-short",
        &["beta"],
    ),
    (
        "ram_dir on a disk",
        |survey| beta(survey).memory.ram_folders[0].filesystem = Some("xfs".into()),
        "ram-folder-unfit",
        &["beta"],
    ),
    (
        "ram_dir too small",
        |survey| beta(survey).memory.ram_folders[0].available_bytes = Some(64 << 20),
        "ram-folder-unfit",
        &["beta"],
    ),
    (
        "a dead gateway",
        |survey| beta(survey).gateways[0].answers = Some(false),
        "gateway-dead",
        &["beta eno1"],
    ),
    ("one name twice", |survey| beta(survey).host = "alpha".into(), "equal-names", &["alpha", "alpha (2)"]),
];

/// All ports are virtual, whose speed means nothing; the second link moves this there and back.
fn virtual_ports(survey: &mut Survey, rates: [u64; 2]) {
    survey.hosts.iter_mut().flat_map(|host| &mut host.ports).for_each(|port| port.kind = PortKind::Veth);
    survey.matrix.probes.iter_mut().for_each(|probe| probe.throughput_mbps = Some(1000));
    for (number, rate) in [2, 3].into_iter().zip(rates) {
        survey.matrix.probes[number].throughput_mbps = Some(rate);
    }
}

/// The measured survey with its first two links only.
fn with_two_links() -> Survey {
    let mut survey = measured();
    survey.matrix.probes.truncate(4);
    for host in &mut survey.hosts {
        host.ports.retain(|port| !["l2", "l3"].contains(&port.name.as_str()));
        host.rdma.as_mut().unwrap().truncate(2);
        host.agent.as_mut().unwrap().listen.truncate(2);
    }
    survey
}

#[test]
fn faults_of_links_are_named_exactly_with_two_links_and_with_four() {
    let mut wrong = Vec::new();
    for (links, healthy) in [(2, with_two_links as fn() -> Survey), (4, measured)] {
        assert_eq!(run_all(&healthy()), Vec::new());
        for (what, fault, id, locations) in LINK_FAULTS {
            let mut survey = healthy();
            fault(&mut survey);
            let found = run_all(&survey);
            let mut at: Vec<String> =
                found.iter().flat_map(|one| &one.locations).map(Location::to_string).collect();
            at.sort();
            if ids(&survey) != [*id] || at != *locations {
                wrong.push(format!("{links} links, {what}: {:?} at {at:?}", ids(&survey)));
            }
        }
    }
    assert!(LINK_FAULTS.len() >= 30);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_far_link_that_loses_packets_has_both_findings_and_no_other() {
    let mut survey = measured();
    far(&mut survey, [300, 300]);
    losing(&mut survey, 2, 100, 100);
    let mut found = ids(&survey);
    found.sort_unstable();
    assert_eq!(found, ["packet-loss", "round-trip-long"]);
}

/// Rates, least round trips in microseconds, and replies of 2000 that were too late, as close to a finding as they may
/// be.
const BUSY: [(u64, u64, u32); 8] = [
    (1000, 60, 0),
    (720, 300, 3),
    (810, 420, 1),
    (930, 430, 0),
    (760, 190, 2),
    (990, 200, 3),
    (700, 410, 0),
    (880, 405, 3),
];

#[test]
fn values_just_below_the_limits_are_no_finding() {
    for healthy in [with_two_links as fn() -> Survey, measured] {
        let mut survey = healthy();
        virtual_ports(&mut survey, [1000, 1000]);
        for (probe, (rate, least_us, late)) in survey.matrix.probes.iter_mut().zip(BUSY) {
            let latency = Latency { min_ns: least_us * 1000, median_ns: 30_000_000, max_ns: 340_000_000 };
            (probe.latency, probe.latency_loaded) = (Some(latency), Some(latency));
            probe.throughput_mbps = Some(rate);
            probe.loss = Some(Loss { sent: 2000, lost_there: Some(0), lost_back: Some(late), lost: late });
            (probe.loss_permille, probe.clock_ahead_us) = (Some(300), Some(90_000));
        }
        assert_eq!(run_all(&survey), Vec::new());
    }
}
