//! What `linerate doctor --fix` would do about findings: which settings of which ports, and in which order. Pure.
//!
//! A finding is fixed as a whole or not at all: if one of its ports cannot be set, its other ports stay as they are.

use std::cmp::Reverse;

use serde::Serialize;

use crate::link::plan::plan as port_plan;
use crate::link::{Plan, Wish};
use crate::model::{AutoFix, Finding, Fix, Inventory, Place, PortKind, PortRef, RdmaPort, Room, Severity};
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
    pub left: Vec<Left>,
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
    /// Where.
    pub place: Place,
    /// Ids of the findings that it is for.
    pub findings: Vec<String>,
    /// What is wanted of it.
    pub wish: Wish,
    /// What changes.
    #[serde(flatten)]
    pub plan: Plan,
}

/// A host to be made as an intent says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostFix {
    /// Ids of the findings that it is for.
    pub findings: Vec<String>,
    /// What changes.
    #[serde(flatten)]
    pub plan: HostPlan,
}

/// A finding that is not fixed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Left {
    /// Its id.
    pub finding: String,
    /// Its places.
    pub places: Vec<Place>,
    /// Why, in words.
    pub why: String,
}

/// A wish for a port, and which of the findings have it.
struct Wanted<'a> {
    at: PortRef<'a>,
    wish: Wish,
    findings: Vec<usize>,
}

/// What to do about the findings; those of priorities and shares need the operator's intent.
pub fn mends(room: &Room, findings: &[Finding], intent: Option<&Intent>) -> FixPlan {
    let hosts = host_mends(room, findings, intent);
    let mut left: Vec<Option<String>> =
        findings.iter().map(|one| why_not(room, one, intent, &hosts)).collect();
    loop {
        let wanted = wanted(room, findings, &left);
        let planned: Vec<_> = wanted.iter().map(|one| port_plan(one.at.port, &one.wish)).collect();
        let refused = planned.iter().zip(&wanted).find_map(|(plan, one)| {
            let host = &one.at.host.host;
            let by_host = || room.refuses_settings(host).then(|| refusal(host));
            let by_port = plan.as_ref().err().map(|why| format!("{host}: {why}"));
            Some((by_port.or_else(by_host)?, one))
        });
        if let Some((why, one)) = refused {
            // Without these findings others may be fixed all the same.
            for number in &one.findings {
                left.get_mut(*number).into_iter().for_each(|left| *left = Some(why.clone()));
            }
            continue;
        }
        let plans = planned.into_iter().filter_map(Result::ok);
        let ports = wanted.iter().zip(plans).filter(|(_, plan)| !plan.steps.is_empty());
        let ports: Vec<PortFix> = ports.map(|(one, plan)| port_mend(findings, one, plan)).collect();
        let open: Vec<Finding> =
            findings.iter().zip(&left).filter(|(_, why)| why.is_none()).map(|(one, _)| one.clone()).collect();
        let intents = apart(host_mends(room, &open, intent), &ports, findings, &mut left);
        without_a_step(&wanted, &intents, findings, &mut left);
        let goals = findings.iter().zip(&left).filter(|(_, why)| why.is_none());
        return FixPlan {
            goals: goals.map(|(finding, _)| finding.clone()).collect(),
            left: findings
                .iter()
                .zip(&left)
                .filter_map(|(one, why)| Some(left_over(one, why.clone()?)))
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
    left: &mut [Option<String>],
) {
    let changes =
        |one: &&Wanted<'_>| port_plan(one.at.port, &one.wish).is_ok_and(|plan| !plan.steps.is_empty());
    for (number, (finding, why)) in findings.iter().zip(left).enumerate() {
        let by_port = wanted.iter().filter(changes).any(|one| one.findings.contains(&number));
        let by_intent = intents.iter().any(|host| intended(finding, &host.plan.host));
        if why.is_none() && !by_port && !by_intent {
            *why =
                Some("all that can be set for it is set already: see its other steps (--details)".to_owned());
        }
    }
}

/// Why a finding is not for `--fix`.
fn why_not(room: &Room, finding: &Finding, intent: Option<&Intent>, plans: &[HostFix]) -> Option<String> {
    let ways: Vec<&AutoFix> = finding.fixes.iter().filter_map(|fix| fix.mend.as_ref()).collect();
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
        || ours().find(|host| room.refuses_settings(&host.plan.host)).map(|host| refusal(&host.plan.host));
    problem.or_else(refuses).or_else(|| ours().find_map(|host| marked_otherwise(room, &host.plan)))
}

fn left_over(finding: &Finding, why: String) -> Left {
    Left { finding: finding.id.clone(), places: finding.places.clone(), why }
}

fn port_mend(findings: &[Finding], one: &Wanted<'_>, plan: Plan) -> PortFix {
    let mut ids: Vec<String> =
        one.findings.iter().filter_map(|at| Some(findings.get(*at)?.id.clone())).collect();
    ids.dedup();
    PortFix { place: one.at.place(), findings: ids, wish: one.wish.clone(), plan }
}

/// One wish for each port, in the order in which they can be done.
fn wanted<'a>(room: &'a Room, findings: &[Finding], left: &[Option<String>]) -> Vec<Wanted<'a>> {
    let mut all = Vec::new();
    for (number, finding) in findings.iter().enumerate() {
        if left.get(number).is_some_and(Option::is_some) {
            continue;
        }
        for fix in &finding.fixes {
            if let (Some(place), Some(AutoFix::Port(wish))) = (&fix.place, &fix.mend)
                && let Some(at) = place.port.as_deref().and_then(|port| room.port(&place.host, port))
            {
                want(room, &mut all, at, wish, number, DEPTH_MAX);
            }
        }
    }
    all.sort_by_cached_key(|one| {
        let (now, depth) = (one.at.port.mtu.unwrap_or(0), depth(room, one.at, DEPTH_MAX));
        match one.wish.mtu {
            // A port cannot be larger than the one that it stands on: from above when it gets smaller, from below else.
            Some(mtu) if mtu < now => (1, Reverse(depth), 0),
            _ => (0, Reverse(0), depth),
        }
    });
    all
}

/// Adds a wish; a larger MTU needs one at least as large in all that is below. The worst finding's word counts.
fn want<'a>(
    room: &'a Room,
    all: &mut Vec<Wanted<'a>>,
    at: PortRef<'a>,
    wish: &Wish,
    finding: usize,
    deep: usize,
) {
    match all.iter_mut().find(|one| std::ptr::eq(one.at.port, at.port)) {
        Some(one) => {
            join(&mut one.wish, wish);
            one.findings.push(finding);
            one.findings.dedup();
        }
        None => all.push(Wanted { at, wish: wish.clone(), findings: vec![finding] }),
    }
    let Some(mtu) = wish.mtu.filter(|_| deep > 0) else { return };
    // Below a bridge these lead to guests, which are not asked; packets for them keep their size.
    let of_guest = |below: &PortRef<'_>| {
        at.port.kind == PortKind::Bridge && matches!(below.port.kind, PortKind::Tun | PortKind::Veth)
    };
    let smaller = |below: &PortRef<'_>| below.port.mtu.is_some_and(|now| now < mtu);
    for below in room.directly_below(at).filter(|below| smaller(below) && !of_guest(below)) {
        let wish = Wish { mtu: Some(mtu), ..Wish::default() };
        want(room, all, below, &wish, finding, deep - 1);
    }
}

fn join(first: &mut Wish, other: &Wish) {
    first.mtu = first.mtu.or(other.mtu);
    first.speed = first.speed.or(other.speed);
    first.fec = first.fec.take().or_else(|| other.fec.clone());
    first.pause = first.pause.or(other.pause);
    first.queues = first.queues.or(other.queues);
}

fn depth(room: &Room, at: PortRef<'_>, deep: usize) -> usize {
    if deep == 0 {
        return 0;
    }
    room.directly_below(at).map(|below| 1 + depth(room, below, deep - 1)).max().unwrap_or(0)
}

/// What the findings after a change say of it. `None`: the goals are gone, and nothing grave came.
pub fn verdict(before: &[Finding], goals: &[Finding], after: &[Finding]) -> Option<String> {
    let grave = |finding: &&Finding| finding.severity != Severity::Hint;
    let same = |one: &Finding, other: &Finding| {
        one.id == other.id && one.places.iter().any(|place| other.places.contains(place))
    };
    let still: Vec<&Finding> =
        goals.iter().filter(|finding| after.iter().any(|other| same(finding, other))).collect();
    let new: Vec<&Finding> = after
        .iter()
        .filter(grave)
        .filter(|finding| !before.iter().any(|other| same(finding, other)))
        .collect();
    let words = |all: &[&Finding]| {
        let one = |finding: &&Finding| format!("{} ({})", finding.title, finding.id);
        all.iter().map(one).collect::<Vec<_>>().join("; ")
    };
    match (still.is_empty(), new.is_empty()) {
        (true, true) => None,
        (false, _) => Some(format!("it is still there: {}", words(&still))),
        (true, false) => Some(format!("something else is wrong now: {}", words(&new))),
    }
}

/// Hosts that findings name, as the intent wants them.
fn host_mends(room: &Room, findings: &[Finding], intent: Option<&Intent>) -> Vec<HostFix> {
    let Some(intent) = intent else { return Vec::new() };
    let of = |host: &str| -> Vec<String> {
        let ids = findings.iter().filter(|finding| intended(finding, host));
        let mut ids: Vec<String> = ids.map(|finding| finding.id.clone()).collect();
        ids.dedup();
        ids
    };
    let host = |host: &Inventory| HostFix { findings: of(&host.host), plan: host_plan(host, intent) };
    room.hosts.iter().map(host).filter(|host| !host.findings.is_empty()).collect()
}

/// Hosts whose ports are not on trial for another finding already: a port has one trial at a time.
fn apart(
    hosts: Vec<HostFix>,
    ports: &[PortFix],
    findings: &[Finding],
    left: &mut [Option<String>],
) -> Vec<HostFix> {
    let changing = |host: &HostFix| host.plan.ports.iter().any(|port| !port.plan.steps.is_empty());
    let twice = |host: &HostFix| {
        let names: Vec<&str> = host.plan.ports.iter().map(|port| port.port.as_str()).collect();
        let both = |one: &PortFix| one.place.port.as_deref().is_some_and(|port| names.contains(&port));
        ports.iter().any(|one| one.place.host == host.plan.host && both(one))
    };
    if !hosts.iter().any(|host| changing(host) && twice(host)) {
        return hosts.into_iter().filter(changing).collect();
    }
    let later = |finding: &Finding| finding.fixes.iter().any(|fix| fix.mend == Some(AutoFix::Intent));
    for (_, why) in findings.iter().zip(left).filter(|(finding, why)| why.is_none() && later(finding)) {
        *why = Some("its ports are set for other findings first: run it once more".to_owned());
    }
    Vec::new()
}

/// The agent gives its RDMA connections another mark than the intent's class has: they would not be in it, and only
/// the agent's configuration can change that.
fn marked_otherwise(room: &Room, plan: &HostPlan) -> Option<String> {
    let (host, wanted) = (room.host(&plan.host)?, plan.type_of_service?);
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
        fix.mend == Some(AutoFix::Intent) && fix.place.as_ref().is_some_and(|place| place.host == host)
    };
    finding.fixes.iter().any(here)
}

#[cfg(test)]
mod tests;
