//! What `--fix` plans, done to a survey instead of a kernel.

use linerate_fabric::checks::{FixKind, run_all};
use linerate_fabric::fix::plan_fixes;
use linerate_fabric::link::Settings;
use linerate_fabric::model::*;
use linerate_fabric::qos::intent::parse;

/// What else is so in a survey with this fault.
type Circumstance = (&'static str, fn(&mut Survey));

/// Faults that can be fixed under more circumstances than they can be seen.
pub const CIRCUMSTANCES: &[Circumstance] = &[
    ("half-duplex", |survey| survey.hosts[1].ports[1].link.autonegotiation = Some(false)),
    ("half-duplex", |survey| survey.hosts[1].ports[1].neighbours[0].autonegotiation = None),
    ("autonegotiation-mismatch", |survey| {
        survey.hosts[1].ports[1].link.autonegotiation = Some(false);
        survey.hosts[1].ports[1].neighbours[0].autonegotiation = Some(true);
    }),
    ("speed-below-ability", |survey| {
        survey.hosts[1].ports[1].link.autonegotiation = Some(false);
        survey.hosts[1].ports[1].neighbours[0].autonegotiation = None;
    }),
];

/// As the hosts of the healthy survey are.
const INTENT: &str = "ports = [\"l0\", \"l1\", \"l2\", \"l3\"]\nroce = \"v2\"\n\
                      [migration]\npriority = 3\nshare = 50\nlossless = true\ndscp = 26\n";

/// What the finding offers.
pub fn offered(finding: &Finding) -> FixKind {
    let ways: Vec<&AutoFix> = finding.fixes.iter().filter_map(|fix| fix.auto_fix.as_ref()).collect();
    match ways.first() {
        None => FixKind::Hands,
        Some(AutoFix::Port(_)) => FixKind::Port,
        Some(AutoFix::Intent) => FixKind::Intent,
    }
}

/// Does all that is planned, and gives back what is wrong then. Hints do not count unless they were to be fixed: hosts
/// that were lowered could have more by what they say themselves.
pub fn done(survey: &mut Survey, findings: &[Finding]) -> Vec<Finding> {
    let intent = parse(INTENT).unwrap();
    let plan = plan_fixes(survey, findings, Some(&intent));
    assert_eq!(plan.goals.len(), findings.len(), "{:?}", plan.unfixed);
    assert!(!plan.is_empty());
    for one in &plan.ports {
        set(port(survey, &one.location.host, one.location.port.as_deref().unwrap()), &one.plan.settings);
    }
    let by_intent = !plan.intents.is_empty();
    for host in &plan.intents {
        for one in &host.plan.ports {
            set(port(survey, &host.plan.host, &one.port), &one.plan.settings);
            roce(survey, &host.plan.host, &one.plan.settings);
        }
    }
    // The switch's side is the operator's.
    for host in survey.hosts.iter_mut().filter(|_| by_intent) {
        for neighbour in host.ports.iter_mut().flat_map(|port| &mut port.neighbours) {
            neighbour.pfc.iter_mut().for_each(|pfc| pfc.lossless = vec![3]);
        }
    }
    // Probes measure what is there now.
    for probe in &mut survey.matrix.probes {
        let mtu =
            survey.hosts.iter().find(|host| host.host == probe.from.host).unwrap().port(&probe.from.port);
        let promised = mtu.unwrap().mtu.unwrap();
        probe.path_mtu = probe.path_mtu.map(|path| PathMtu {
            promised,
            passed: path.passed.min(promised),
            black_hole: path.passed < promised,
        });
    }
    let fixed = |id: &str| findings.iter().any(|finding| finding.id == id);
    let after = run_all(survey).into_iter();
    after.filter(|finding| finding.severity != Severity::Hint || fixed(&finding.id)).collect()
}

fn port<'a>(survey: &'a mut Survey, host: &str, port: &str) -> &'a mut Port {
    let host = survey.hosts.iter_mut().find(|one| one.host == host).unwrap();
    host.ports.iter_mut().find(|one| one.name == port).unwrap()
}

fn set(port: &mut Port, settings: &Settings) {
    port.mtu = settings.mtu.or(port.mtu);
    if settings.autonegotiation == Some(true) {
        port.link.autonegotiation = Some(true);
        port.link.speed_mbps = port.link.speed_max_mbps();
        port.link.duplex = Some(Duplex::Full);
    }
    if let Some(names) = &settings.fec {
        let fec = port.fec.as_mut().unwrap();
        fec.active = Some(names[0].to_lowercase());
    }
    if let Some(count) = settings.queues_combined {
        port.queues.as_mut().unwrap().combined = Some(count);
    }
    port.pause = settings.pause.or(port.pause);
    let (Some(set), Some(dcb)) = (&settings.dcb, &mut port.dcb) else { return };
    dcb.ets = set.ets.clone().or(dcb.ets.take());
    dcb.dcbx = set.dcbx.or(dcb.dcbx);
    dcb.applications.retain(|one| !set.remove.contains(one));
    dcb.applications.extend(&set.add);
    if let (Some(lossless), Some(pfc)) = (&set.lossless, &mut dcb.pfc) {
        pfc.lossless = lossless.clone();
    }
}

fn roce(survey: &mut Survey, host: &str, settings: &Settings) {
    let host = survey.hosts.iter_mut().find(|one| one.host == host).unwrap();
    for default in settings.dcb.iter().flat_map(|set| &set.roce) {
        let devices = host.rdma.iter_mut().flatten().filter(|device| device.name == default.device);
        for port in devices.flat_map(|device| &mut device.ports) {
            port.default_roce = default.version.clone().or(port.default_roce.take());
        }
    }
}
