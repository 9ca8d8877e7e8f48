//! What `linerate doctor --fix` would do about findings: which settings of which ports, and in which order. Pure.
//!
//! A finding is fixed as a whole or not at all: if one of its ports cannot be set, its other ports stay as they are.

use std::cmp::Reverse;

use serde::Serialize;

use crate::link::plan::plan as port_plan;
use crate::link::{Plan, RequestedSettings};
use crate::model::{
    AutoFix, Finding, Fix, Inventory, Location, PortKind, PortRef, RdmaPort, Severity, Survey,
};
use crate::qos::intent::Intent;
use crate::qos::plan::{HostPlan, host as host_plan};

/// Stacks of ports (VLAN on bond on port) are no deeper; a file from outside may claim anything.
const DEPTH_MAX: usize = 8;

/// What can be done, and what cannot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FixPlan {
    /// Ports, in the order in which they are to be set.
    pub ports: Vec<PortFix>,
    /// Hosts that need an intent, in the survey's order.
    pub intents: Vec<HostFix>,
    /// Findings that are not fixed.
    pub unfixed: Vec<Unfixed>,
    /// Findings that shall be gone afterwards.
    #[serde(skip)]
    pub goals: Vec<Finding>,
}

impl FixPlan {
    /// There is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.intents.is_empty()
    }
}

/// A port to be set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortFix {
    /// The port that is to be set.
    pub location: Location,
    /// Ids of the findings that it is for.
    pub findings: Vec<String>,
    /// What is wanted of it.
    pub requested: RequestedSettings,
    /// What changes at this port.
    #[serde(flatten)]
    pub plan: Plan,
}

/// A host to be made as an intent says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostFix {
    /// Ids of the findings that it is for.
    pub findings: Vec<String>,
    /// What changes at the host's ports.
    #[serde(flatten)]
    pub plan: HostPlan,
}

/// A finding that is not fixed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unfixed {
    /// Id of the finding, such as `mtu-between-hosts`.
    pub finding: String,
    /// The hosts, ports and links that it is about.
    pub locations: Vec<Location>,
    /// A sentence: what keeps it from being fixed.
    pub why: String,
}

/// Settings requested of a port, and the findings that they are for.
struct Wanted<'a> {
    at: PortRef<'a>,
    requested: RequestedSettings,
    findings: Vec<usize>,
}

/// What to do about the findings; those of priorities and shares need the operator's intent.
pub fn plan_fixes(survey: &Survey, findings: &[Finding], intent: Option<&Intent>) -> FixPlan {
    let hosts = host_fixes(survey, findings, intent);
    let mut unfixed: Vec<Option<String>> =
        findings.iter().map(|one| why_not(survey, one, intent, &hosts)).collect();
    loop {
        let wanted = wanted(survey, findings, &unfixed);
        let planned: Vec<_> = wanted.iter().map(|one| port_plan(one.at.port, &one.requested)).collect();
        let refused = planned.iter().zip(&wanted).find_map(|(plan, one)| {
            let host = &one.at.host.host;
            let by_host = || survey.refuses_settings(host).then(|| refusal(host));
            let by_port = plan.as_ref().err().map(|why| format!("{host}: {why}"));
            Some((by_port.or_else(by_host)?, one))
        });
        if let Some((why, one)) = refused {
            // Without these findings others may be fixed all the same.
            for number in &one.findings {
                unfixed.get_mut(*number).into_iter().for_each(|unfixed| *unfixed = Some(why.clone()));
            }
            continue;
        }
        let plans = planned.into_iter().filter_map(Result::ok);
        let ports = wanted.iter().zip(plans).filter(|(_, plan)| !plan.steps.is_empty());
        let ports: Vec<PortFix> = ports.map(|(one, plan)| port_fix(findings, one, plan)).collect();
        let open: Vec<Finding> = findings
            .iter()
            .zip(&unfixed)
            .filter(|(_, why)| why.is_none())
            .map(|(one, _)| one.clone())
            .collect();
        let intents = apart(host_fixes(survey, &open, intent), &ports, findings, &mut unfixed);
        without_a_step(&wanted, &intents, findings, &mut unfixed);
        let goals = findings.iter().zip(&unfixed).filter(|(_, why)| why.is_none());
        return FixPlan {
            goals: goals.map(|(finding, _)| finding.clone()).collect(),
            unfixed: findings
                .iter()
                .zip(&unfixed)
                .filter_map(|(one, why)| Some(unfixed_finding(one, why.clone()?)))
                .collect(),
            ports,
            intents,
        };
    }
}

fn refusal(host: &str) -> String {
    format!(
        "{host} does not take settings from other hosts: `settings_from_agents = true` in its agent's configuration allows it, or run \
         the command there"
    )
}

/// A finding for which nothing changes would still be there afterwards, and everything else would be put back.
fn without_a_step(
    wanted: &[Wanted<'_>],
    intents: &[HostFix],
    findings: &[Finding],
    unfixed: &mut [Option<String>],
) {
    let changes =
        |one: &&Wanted<'_>| port_plan(one.at.port, &one.requested).is_ok_and(|plan| !plan.steps.is_empty());
    for (number, (finding, why)) in findings.iter().zip(unfixed).enumerate() {
        let by_port = wanted.iter().filter(changes).any(|one| one.findings.contains(&number));
        let by_intent = intents.iter().any(|host| intended(finding, &host.plan.host));
        if why.is_none() && !by_port && !by_intent {
            *why =
                Some("all that can be set for it is set already: see its other steps (--details)".to_owned());
        }
    }
}

/// Why a finding is not for `--fix`.
fn why_not(survey: &Survey, finding: &Finding, intent: Option<&Intent>, plans: &[HostFix]) -> Option<String> {
    let ways: Vec<&AutoFix> = finding.fixes.iter().filter_map(|fix| fix.auto_fix.as_ref()).collect();
    let by_intent = ways.contains(&&AutoFix::Intent);
    if ways.is_empty() {
        return Some("it needs hands, or another tool".to_owned());
    }
    if by_intent && intent.is_none() {
        return Some("it needs the intent for priorities and shares: --qos FILE".to_owned());
    }
    let ours = || plans.iter().filter(|host| by_intent && intended(finding, &host.plan.host));
    let problem = ours().flat_map(|host| &host.plan.ports).find_map(|port| port.problem.clone());
    let refuses =
        || ours().find(|host| survey.refuses_settings(&host.plan.host)).map(|host| refusal(&host.plan.host));
    problem.or_else(refuses).or_else(|| ours().find_map(|host| marked_otherwise(survey, &host.plan)))
}

fn unfixed_finding(finding: &Finding, why: String) -> Unfixed {
    Unfixed { finding: finding.id.clone(), locations: finding.locations.clone(), why }
}

fn port_fix(findings: &[Finding], one: &Wanted<'_>, plan: Plan) -> PortFix {
    let mut ids: Vec<String> =
        one.findings.iter().filter_map(|at| Some(findings.get(*at)?.id.clone())).collect();
    ids.dedup();
    PortFix { location: one.at.location(), findings: ids, requested: one.requested.clone(), plan }
}

/// One request for each port, in the order in which they can be done.
fn wanted<'a>(survey: &'a Survey, findings: &[Finding], unfixed: &[Option<String>]) -> Vec<Wanted<'a>> {
    let mut all = Vec::new();
    for (number, finding) in findings.iter().enumerate() {
        if unfixed.get(number).is_some_and(Option::is_some) {
            continue;
        }
        for fix in &finding.fixes {
            if let (Some(location), Some(AutoFix::Port(requested))) = (&fix.location, &fix.auto_fix)
                && let Some(at) = location.port.as_deref().and_then(|port| survey.port(&location.host, port))
            {
                want(survey, &mut all, at, requested, number, DEPTH_MAX);
            }
        }
    }
    all.sort_by_cached_key(|one| {
        let (now, depth) = (one.at.port.mtu.unwrap_or(0), depth(survey, one.at, DEPTH_MAX));
        match one.requested.mtu {
            // A port cannot be larger than the port below it: from above when it gets smaller, from below else.
            Some(mtu) if mtu < now => (1, Reverse(depth), 0),
            _ => (0, Reverse(0), depth),
        }
    });
    all
}

/// Adds a request; a larger MTU needs one at least as large in all that is below. The worst finding's word counts.
fn want<'a>(
    survey: &'a Survey,
    all: &mut Vec<Wanted<'a>>,
    at: PortRef<'a>,
    requested: &RequestedSettings,
    finding: usize,
    deep: usize,
) {
    match all.iter_mut().find(|one| std::ptr::eq(one.at.port, at.port)) {
        Some(one) => {
            join(&mut one.requested, requested);
            one.findings.push(finding);
            one.findings.dedup();
        }
        None => all.push(Wanted { at, requested: requested.clone(), findings: vec![finding] }),
    }
    let Some(mtu) = requested.mtu.filter(|_| deep > 0) else { return };
    // Below a bridge these lead to guests, which are not asked; packets for them keep their size.
    let of_guest = |below: &PortRef<'_>| {
        at.port.kind == PortKind::Bridge && matches!(below.port.kind, PortKind::Tun | PortKind::Veth)
    };
    let smaller = |below: &PortRef<'_>| below.port.mtu.is_some_and(|now| now < mtu);
    for below in survey.directly_below(at).filter(|below| smaller(below) && !of_guest(below)) {
        let requested = RequestedSettings { mtu: Some(mtu), ..RequestedSettings::default() };
        want(survey, all, below, &requested, finding, deep - 1);
    }
}

fn join(first: &mut RequestedSettings, other: &RequestedSettings) {
    first.mtu = first.mtu.or(other.mtu);
    first.speed = first.speed.or(other.speed);
    first.fec = first.fec.take().or_else(|| other.fec.clone());
    first.pause = first.pause.or(other.pause);
    first.queues = first.queues.or(other.queues);
}

fn depth(survey: &Survey, at: PortRef<'_>, deep: usize) -> usize {
    if deep == 0 {
        return 0;
    }
    survey.directly_below(at).map(|below| 1 + depth(survey, below, deep - 1)).max().unwrap_or(0)
}

/// What the findings after a change say of it. `None`: the goals are gone, and nothing grave came. Where nothing
/// was measured or read, a goal that is gone says nothing.
pub fn verdict(before: &[Finding], goals: &[Finding], after: &[Finding]) -> Option<String> {
    let is_blind = |finding: &Finding| matches!(finding.id.as_str(), "not-measured" | "not-read");
    let grave = |finding: &&Finding| finding.severity != Severity::Hint;
    let same = |one: &Finding, other: &Finding| {
        one.id == other.id && one.locations.iter().any(|location| other.locations.contains(location))
    };
    let still: Vec<&Finding> =
        goals.iter().filter(|finding| after.iter().any(|other| same(finding, other))).collect();
    let new: Vec<&Finding> = after
        .iter()
        .filter(grave)
        .filter(|finding| !before.iter().any(|other| same(finding, other)) && !is_blind(finding))
        .collect();
    let unseen: Vec<&Finding> =
        after.iter().filter(|finding| is_blind(finding) && !before.contains(finding)).collect();
    let words = |all: &[&Finding]| {
        let one = |finding: &&Finding| format!("{} ({})", finding.title, finding.id);
        all.iter().map(one).collect::<Vec<_>>().join("; ")
    };
    match (still.is_empty(), new.is_empty()) {
        (false, _) => Some(format!("it is still there: {}", words(&still))),
        (true, false) => Some(format!("something else is wrong now: {}", words(&new))),
        (true, true) if !unseen.is_empty() => Some(format!("the effect is not known: {}", words(&unseen))),
        (true, true) => None,
    }
}

/// Hosts that findings name, as the intent wants them.
fn host_fixes(survey: &Survey, findings: &[Finding], intent: Option<&Intent>) -> Vec<HostFix> {
    let Some(intent) = intent else { return Vec::new() };
    let of = |host: &str| -> Vec<String> {
        let ids = findings.iter().filter(|finding| intended(finding, host));
        let mut ids: Vec<String> = ids.map(|finding| finding.id.clone()).collect();
        ids.dedup();
        ids
    };
    let host = |host: &Inventory| HostFix { findings: of(&host.host), plan: host_plan(host, intent) };
    survey.hosts.iter().map(host).filter(|host| !host.findings.is_empty()).collect()
}

/// Hosts whose ports are not on trial for another finding already: a port has one trial at a time.
fn apart(
    hosts: Vec<HostFix>,
    ports: &[PortFix],
    findings: &[Finding],
    unfixed: &mut [Option<String>],
) -> Vec<HostFix> {
    let changing = |host: &HostFix| host.plan.ports.iter().any(|port| !port.plan.steps.is_empty());
    let twice = |host: &HostFix| {
        let names: Vec<&str> = host.plan.ports.iter().map(|port| port.port.as_str()).collect();
        let both = |one: &PortFix| one.location.port.as_deref().is_some_and(|port| names.contains(&port));
        ports.iter().any(|one| one.location.host == host.plan.host && both(one))
    };
    if !hosts.iter().any(|host| changing(host) && twice(host)) {
        return hosts.into_iter().filter(changing).collect();
    }
    let later = |finding: &Finding| finding.fixes.iter().any(|fix| fix.auto_fix == Some(AutoFix::Intent));
    for (_, why) in findings.iter().zip(unfixed).filter(|(finding, why)| why.is_none() && later(finding)) {
        *why = Some("its ports are set for other findings first: run it once more".to_owned());
    }
    Vec::new()
}

/// The agent gives its RDMA connections another mark than the intent's class has: they would not be in it, and only
/// the agent's configuration can change that.
fn marked_otherwise(survey: &Survey, plan: &HostPlan) -> Option<String> {
    let (host, wanted) = (survey.host(&plan.host)?, plan.type_of_service?);
    let own = host.agent.as_ref()?.rdma_type_of_service?;
    let ours = |rdma: &&RdmaPort| plan.ports.iter().any(|one| rdma.port.as_ref() == Some(&one.port));
    // Connections without a mark of the agent's get the system's, which the plan may set.
    let set = |rdma: &RdmaPort| {
        let ours = plan.ports.iter().filter(|one| rdma.port.as_ref() == Some(&one.port));
        let mut defaults = ours.flat_map(|one| &one.plan.settings.dcb).flat_map(|dcb| &dcb.roce);
        defaults.find_map(|default| default.traffic_class)
    };
    let other = |rdma: &RdmaPort| {
        let class = match own {
            0 => set(rdma).or(rdma.default_traffic_class).unwrap_or(0),
            _ => own,
        };
        class >> 2 != wanted >> 2
    };
    let mut rdma = host.rdma.iter().flatten().flat_map(|device| &device.ports).filter(ours);
    rdma.any(other).then(|| {
        let name = &plan.host;
        format!(
            "the agent of {name} marks RDMA with the type of service {own}, the intent's is {wanted}: first \
             `rdma_type_of_service = {wanted}` in its configuration"
        )
    })
}

/// The finding asks for the intent at this host.
fn intended(finding: &Finding, host: &str) -> bool {
    let here = |fix: &Fix| {
        fix.auto_fix == Some(AutoFix::Intent)
            && fix.location.as_ref().is_some_and(|location| location.host == host)
    };
    finding.fixes.iter().any(here)
}

#[cfg(test)]
mod tests;
