//! From an intent and an inventory: what changes on each port, what undoes it, what speaks against it. Pure.

use serde::Serialize;

use super::able::{able, found};
use super::impossible::Impossible;
use super::intent::{Class, Intent, Roce};
use super::{DcbSettings, RoceDefault, ports};
use crate::link::Plan;
use crate::link::plan::{pause, step};
use crate::model::{Application, Dcb, Dcbx, Ets, Inventory, Pfc, Port, Selector};

/// Priorities of Ethernet, and most traffic classes of an adapter.
pub(super) const PRIORITIES: u8 = 8;
/// UDP port of RoCE v2.
const ROCE_V2: u16 = 4791;
/// Ethernet type of RoCE v1.
const ROCE_V1: u16 = 0x8915;

/// What an intent means for one port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortPlan {
    /// Name of the port.
    pub port: String,
    /// What changes at this port.
    #[serde(flatten)]
    pub plan: Plan,
    /// Why it cannot be; nothing changes then.
    pub problem: Option<String>,
}

/// What an intent means for one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostPlan {
    /// Name of the host.
    pub host: String,
    /// Each port of the intent.
    pub ports: Vec<PortPlan>,
    /// Migrations' share of all ports together, bytes per second: what `linerate migrate --bandwidth` takes.
    pub migration_bytes_per_s: Option<u64>,
    /// Type of service with the DSCP of migrations: `rdma_type_of_service` of the agent's configuration.
    pub type_of_service: Option<u8>,
}

impl HostPlan {
    /// Everything is as the intent says.
    pub fn matches(&self) -> bool {
        self.ports.iter().all(|port| port.plan.steps.is_empty() && port.problem.is_none())
    }
}

/// All ports of the intent on one host.
pub fn host(host: &Inventory, intent: &Intent) -> HostPlan {
    let one = |name: &String| {
        let (plan, problem) = match found(host, name).and_then(|port| port_plan(host, port, intent)) {
            Ok(plan) => (plan, None),
            Err(error) => (Plan::default(), Some(error.to_string())),
        };
        PortPlan { port: name.clone(), plan, problem }
    };
    let speed = |name: &String| host.port(name)?.link.speed_mbps.filter(|mbps| *mbps > 0).map(u64::from);
    let mbps: Option<u64> = intent.ports.iter().map(speed).sum();
    HostPlan {
        host: host.host.clone(),
        ports: intent.ports.iter().map(one).collect(),
        // Percent of megabits, in bytes: 1 000 000 / 8 / 100.
        migration_bytes_per_s: mbps.map(|mbps| mbps * u64::from(intent.migration.share_percent) * 1250),
        type_of_service: intent.migration.dscp.map(|dscp| dscp << 2),
    }
}

/// What the intent changes at one port of a host.
pub fn port_plan(host: &Inventory, port: &Port, intent: &Intent) -> Result<Plan, Impossible> {
    let (dcb, now, pfc) = able(host, port, intent)?;
    let mut plan = Plan::default();
    let (mut set, mut undo) = (DcbSettings::default(), DcbSettings::default());
    dcbx(dcb, &mut plan, &mut set, &mut undo);
    classes(now, intent, &mut plan, &mut set, &mut undo);
    lossless(port, pfc, intent, &mut plan, &mut set, &mut undo);
    if set.ets.is_some() || set.lossless.is_some() {
        plan.warnings.push("the link may go down for a moment while the adapter takes this".into());
    }
    applications(dcb, intent, &mut plan, &mut set, &mut undo);
    contradictions(dcb, intent, &mut plan, &mut set, &mut undo);
    roce(host, port, intent, &mut plan, &mut set, &mut undo);
    if set != DcbSettings::default() {
        (plan.settings.dcb, plan.undo.dcb) = (Some(set), Some(undo));
    }
    Ok(plan)
}

/// The host decides, by the IEEE version.
fn dcbx(dcb: &Dcb, plan: &mut Plan, set: &mut DcbSettings, undo: &mut DcbSettings) {
    let Some(now) = dcb.dcbx.filter(|now| !(now.host && now.ieee)) else { return };
    let from = match now {
        Dcbx { host: true, .. } => "by the host, without the IEEE version",
        _ => "by the adapter",
    };
    step(plan, "DCBX", Some(from.to_owned()), "by the host, IEEE version");
    set.dcbx = Some(Dcbx { host: true, ieee: true, ..Dcbx::default() });
    undo.dcbx = Some(now);
}

/// Which class each priority belongs to, and the share of each; which number a class has does not matter.
fn classes(now: &Ets, intent: &Intent, plan: &mut Plan, set: &mut DcbSettings, undo: &mut DcbSettings) {
    let willing = now.willing == Some(true);
    if willing {
        step(plan, "takes shares from the switch", Some("yes".to_owned()), "no");
    }
    let wanted = wanted(now, intent);
    let (from, to) = (described(now), described(&wanted));
    let changes = step(plan, "shares", Some(from), to);
    if willing || changes {
        set.ets = Some(Ets { willing: Some(false), ..if changes { wanted } else { now.clone() } });
        undo.ets = Some(now.clone());
    }
}

/// Class 0 is everything else, the next ones are the intent's.
fn wanted(now: &Ets, intent: &Intent) -> Ets {
    let all = || intent.classes().zip(1u8..);
    let class_of =
        |priority| all().find(|(class, _)| class.priority == priority).map_or(0, |(_, number)| number);
    let share_of = |number| match number {
        0 => intent.other_percent,
        _ => all().find(|(_, one)| *one == number).map_or(0, |(class, _)| class.share_percent),
    };
    let shares: Vec<u8> = (0..PRIORITIES).map(share_of).collect();
    Ets {
        willing: Some(false),
        classes_max: now.classes_max,
        priority_class: (0..PRIORITIES).map(class_of).collect(),
        selection: shares.iter().map(|share| if *share > 0 { "ets" } else { "strict" }.to_owned()).collect(),
        share_percent: shares,
    }
}

/// `0-2,4-7 50 %; 3 50 %`: priorities of each class that has some, the class with the lowest priority first.
fn described(ets: &Ets) -> String {
    let priorities = |class: u8| -> Vec<u8> {
        let of = ets.priority_class.iter().zip(0u8..);
        of.filter(|(one, _)| **one == class).map(|(_, priority)| priority).collect()
    };
    let mut used: Vec<(Vec<u8>, u8)> = (0..PRIORITIES).map(|class| (priorities(class), class)).collect();
    used.retain(|(priorities, _)| !priorities.is_empty());
    used.sort();
    let word = |(priorities, class): &(Vec<u8>, u8)| {
        let at = usize::from(*class);
        let share = match ets.selection.get(at).map_or("", String::as_str) {
            "ets" => format!("{} %", ets.share_percent.get(at).copied().unwrap_or(0)),
            other => other.to_owned(),
        };
        format!("{} {share}", ranges(priorities))
    };
    used.iter().map(word).collect::<Vec<_>>().join("; ")
}

/// `0-2,4`; nothing is `none`.
fn ranges(numbers: &[u8]) -> String {
    let mut runs: Vec<(u8, u8)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let word = |(first, last): &(u8, u8)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    if runs.is_empty() { "none".to_owned() } else { runs.iter().map(word).collect::<Vec<_>>().join(",") }
}

fn lossless(
    port: &Port,
    now: &Pfc,
    intent: &Intent,
    plan: &mut Plan,
    set: &mut DcbSettings,
    undo: &mut DcbSettings,
) {
    let wanted = intent.lossless();
    let mut before = now.lossless.clone();
    before.sort_unstable();
    if step(plan, "lossless priorities", Some(ranges(&before)), ranges(&wanted)) {
        set.lossless = Some(wanted.clone());
        undo.lossless = Some(before);
    }
    let paused = port.pause.is_some_and(|pause| pause.rx == Some(true) || pause.tx == Some(true));
    if !wanted.is_empty() && paused {
        // Pause frames stop everything, and most adapters have them or lossless priorities, not both.
        let _ = pause(port, false, plan);
    }
    for neighbour in &port.neighbours {
        let name = neighbour.system.as_deref().unwrap_or("the switch");
        if let Some(theirs) = neighbour.pfc.as_ref().map(|pfc| ranges(&pfc.lossless))
            && theirs != ranges(&wanted)
        {
            plan.warnings.push(format!(
                "{name} reports that lossless priorities of its port are {theirs}: `linerate qos switch` writes its side"
            ));
        }
    }
}

/// What classifies packets, by the application table; nothing for RoCE of another version.
fn mark(class: &Class, roce: Roce) -> Option<(Selector, u16, String)> {
    match (class.dscp, roce) {
        (Some(dscp), _) => Some((Selector::Dscp, dscp.into(), format!("priority of DSCP {dscp}"))),
        (None, Roce::V2) => Some((Selector::Datagram, ROCE_V2, "priority of RoCE v2".to_owned())),
        (None, Roce::V1) => Some((Selector::EtherType, ROCE_V1, "priority of RoCE v1".to_owned())),
        (None, Roce::None) => None,
    }
}

fn applications(dcb: &Dcb, intent: &Intent, plan: &mut Plan, set: &mut DcbSettings, undo: &mut DcbSettings) {
    for class in intent.classes() {
        let Some((selector, protocol, what)) = mark(class, intent.roce) else { continue };
        let same = |one: &&Application| (one.selector, one.protocol) == (selector, protocol);
        let now: Vec<Application> = dcb.applications.iter().filter(same).copied().collect();
        let mut priorities: Vec<u8> = now.iter().map(|one| one.priority).collect();
        priorities.sort_unstable();
        if !step(plan, &what, Some(ranges(&priorities)), class.priority) {
            continue;
        }
        let (keep, remove): (Vec<_>, Vec<_>) =
            now.into_iter().partition(|one| one.priority == class.priority);
        undo.add.extend(&remove);
        set.remove.extend(remove);
        if keep.is_empty() {
            let new = Application { selector, protocol, priority: class.priority };
            set.add.push(new);
            undo.remove.push(new);
        }
    }
}

/// An entry that gives RoCE by its own protocol another priority than the intent, which classifies it by a mark.
fn contradictions(
    dcb: &Dcb,
    intent: &Intent,
    plan: &mut Plan,
    set: &mut DcbSettings,
    undo: &mut DcbSettings,
) {
    let migration = &intent.migration;
    if migration.dscp.is_none() || intent.roce == Roce::None {
        return;
    }
    let against = |one: &&Application| {
        let roce = matches!(one.selector, Selector::Datagram | Selector::AnyPort) && one.protocol == ROCE_V2;
        roce && one.priority != migration.priority
    };
    let found: Vec<Application> = dcb.applications.iter().filter(against).copied().collect();
    let priorities: Vec<u8> = found.iter().map(|one| one.priority).collect();
    if step(plan, "priority of RoCE v2 by its port", Some(ranges(&priorities)), "none") {
        undo.add.extend(&found);
        set.remove.extend(found);
    }
}

/// What connections get that do not set it; known only where the folder in configfs exists.
fn roce(
    host: &Inventory,
    port: &Port,
    intent: &Intent,
    plan: &mut Plan,
    set: &mut DcbSettings,
    undo: &mut DcbSettings,
) {
    let version = match intent.roce {
        Roce::None => return,
        // As the kernel spells it.
        Roce::V1 => "IB/RoCE v1",
        Roce::V2 => "RoCE v2",
    };
    let Some((device, rdma)) = ports::rdma(host, port) else { return };
    let named = || RoceDefault { device: device.name.clone(), port: rdma.number, ..RoceDefault::default() };
    let (mut new, mut old) = (named(), named());
    if let Some(now) = &rdma.default_roce
        && step(plan, "RoCE of connections that set none", Some(now.clone()), version)
    {
        (new.version, old.version) = (Some(version.to_owned()), Some(now.clone()));
    }
    if let (Some(now), Some(dscp)) = (rdma.default_traffic_class, intent.migration.dscp)
        && step(plan, "traffic class of RDMA connections that set none", Some(now.to_string()), dscp << 2)
    {
        (new.traffic_class, old.traffic_class) = (Some(dscp << 2), Some(now));
    }
    if new != named() {
        set.roce.push(new);
        undo.roce.push(old);
    }
}

#[cfg(test)]
mod tests;
