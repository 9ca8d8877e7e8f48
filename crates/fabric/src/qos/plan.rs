//! From an intent and an inventory: what changes on each port, what undoes it, what speaks against it. Pure.

use serde::Serialize;
use thiserror::Error;

use super::intent::{Class, Intent, Roce};
use super::{DcbSettings, RoceDefault, ports};
use crate::link::Plan;
use crate::link::plan::{pause, step};
use crate::model::{Application, Dcb, Dcbx, Ets, Inventory, Pfc, Port, Selector};

const PRIORITIES: u8 = 8;
/// UDP port of RoCE v2.
const ROCE_V2: u16 = 4791;
/// Ethernet type of RoCE v1.
const ROCE_V1: u16 = 0x8915;

/// What a port cannot have, with what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Impossible {
    /// No such port.
    #[error("{host} has no port {port}: `ports` must be as `linerate link show` names them on this host")]
    NoPort {
        /// The host.
        host: String,
        /// The port.
        port: String,
    },
    /// No such port, and an adapter that could have it is in the other mode.
    #[error(
        "{host} has no port {port}, but {device} is in InfiniBand mode, where an adapter has no network port; on {host}: \
         {command}, then restart the host"
    )]
    Infiniband {
        /// The host.
        host: String,
        /// The port.
        port: String,
        /// The RDMA device.
        device: String,
        /// What changes it.
        command: String,
    },
    /// Windows is not set from here.
    #[error(
        "{host} runs Windows, which is not set from here: `linerate qos windows FILE` writes the PowerShell for it"
    )]
    Windows {
        /// The host.
        host: String,
    },
    /// Nothing to set.
    #[error(
        "{port} of {host} ({kind}) has no DCB: no shares and no lossless priority can be set on it; migrations over TCP work \
         without, lossless RoCE needs an adapter whose driver has DCB. Take it out of `ports`"
    )]
    NoDcb {
        /// The host.
        host: String,
        /// The port.
        port: String,
        /// What it is.
        kind: String,
    },
    /// DCB belongs to what is below.
    #[error(
        "{port} of {host} ({kind}) has no DCB of its own: put the ports below it into `ports` instead, {below}"
    )]
    Upper {
        /// The host.
        host: String,
        /// The port.
        port: String,
        /// What it is.
        kind: String,
        /// The ports below it.
        below: String,
    },
    /// A part of DCB is missing.
    #[error(
        "{port} of {host} says nothing of its {what}: its driver has DCB only in part, or an older protocol (CEE); a newer driver \
         may help, else take it out of `ports`"
    )]
    Part {
        /// The host.
        host: String,
        /// The port.
        port: String,
        /// What is missing.
        what: &'static str,
    },
    /// The firmware would overwrite whatever is set.
    #[error(
        "DCBX of {port} of {host} is spoken by the adapter's firmware, which takes what the switch says and overwrites what is set \
         here; on {host}: {command}"
    )]
    Firmware {
        /// The host.
        host: String,
        /// The port.
        port: String,
        /// What frees it.
        command: String,
    },
    /// The intent has more classes than the adapter.
    #[error("{port} of {host} has {most} traffic classes, the intent needs {wanted}: leave [storage] away")]
    Classes {
        /// The host.
        host: String,
        /// The port.
        port: String,
        /// How many it has.
        most: u8,
        /// How many are wanted.
        wanted: u8,
    },
    /// More lossless priorities than the adapter can hold buffers for.
    #[error(
        "{port} of {host} can have {most} lossless priorities, the intent has {wanted}: make fewer classes lossless"
    )]
    Lossless {
        /// The host.
        host: String,
        /// The port.
        port: String,
        /// How many it can have.
        most: u8,
        /// How many are wanted.
        wanted: u8,
    },
    /// RoCE without RDMA.
    #[error(
        "{port} of {host} has no RDMA device, but the intent has RoCE: load the RDMA driver of {kind}, or say roce = \"none\" and \
         give [migration] a dscp"
    )]
    NoRdma {
        /// The host.
        host: String,
        /// The port.
        port: String,
        /// What it is.
        kind: String,
    },
    /// The other RDMA over Ethernet.
    #[error(
        "{device}, the RDMA device of {port} of {host}, speaks iWARP, not RoCE; adapters that do both (driver ice) are turned on {host} by: \
         devlink dev param set pci/{address} name enable_iwarp value false cmode runtime && \
         devlink dev param set pci/{address} name enable_roce value true cmode runtime"
    )]
    Iwarp {
        /// The host.
        host: String,
        /// The port.
        port: String,
        /// The RDMA device.
        device: String,
        /// Its PCIe address.
        address: String,
    },
}

/// What an intent means for one port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortPlan {
    /// Name of the port.
    pub port: String,
    /// What changes.
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

fn found<'a>(host: &'a Inventory, name: &str) -> Result<&'a Port, Impossible> {
    let (at, port) = (host.host.clone(), name.to_owned());
    if host.system.os.as_deref() == Some("windows") {
        return Err(Impossible::Windows { host: at });
    }
    host.port(name).ok_or_else(|| match ports::infiniband(host) {
        Some(device) => Impossible::Infiniband {
            host: at,
            port,
            device: device.name.clone(),
            command: ports::to_ethernet(device),
        },
        None => Impossible::NoPort { host: at, port },
    })
}

/// One port.
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
    applications(port, dcb, intent, &mut plan, &mut set, &mut undo);
    roce(host, port, intent, &mut plan, &mut set, &mut undo);
    if set != DcbSettings::default() {
        (plan.settings.dcb, plan.undo.dcb) = (Some(set), Some(undo));
    }
    Ok(plan)
}

/// The port's DCB, if the intent can be had on it.
fn able<'a>(
    host: &Inventory,
    port: &'a Port,
    intent: &Intent,
) -> Result<(&'a Dcb, &'a Ets, &'a Pfc), Impossible> {
    let (at, name) = (host.host.clone(), port.name.clone());
    let Some(dcb) = &port.dcb else { return Err(without_dcb(host, port)) };
    if dcb.dcbx.is_some_and(|mode| mode.firmware && !mode.host) {
        return Err(Impossible::Firmware { host: at, port: name, command: ports::free_from_firmware(port) });
    }
    let Some(ets) = dcb.ets.as_ref().filter(|ets| complete(ets)) else {
        return Err(Impossible::Part { host: at, port: name, what: "shares (ETS)" });
    };
    let Some(pfc) = &dcb.pfc else {
        return Err(Impossible::Part { host: at, port: name, what: "lossless priorities (PFC)" });
    };
    let wanted = u8::try_from(intent.classes().count() + 1).unwrap_or(u8::MAX);
    if let Some(most) = ets.classes_max.filter(|most| *most > 0 && *most < wanted) {
        return Err(Impossible::Classes { host: at, port: name, most, wanted });
    }
    let wanted = u8::try_from(intent.lossless().len()).unwrap_or(u8::MAX);
    if let Some(most) = pfc.lossless_max.filter(|most| *most < wanted) {
        return Err(Impossible::Lossless { host: at, port: name, most, wanted });
    }
    if intent.roce != Roce::None {
        has_roce(host, port)?;
    }
    Ok((dcb, ets, pfc))
}

/// Saved inventories may say anything.
fn complete(ets: &Ets) -> bool {
    let eight = usize::from(PRIORITIES);
    [ets.priority_class.len(), ets.share_percent.len(), ets.selection.len()] == [eight; 3]
        && ets.priority_class.iter().all(|class| *class < PRIORITIES)
}

fn without_dcb(host: &Inventory, port: &Port) -> Impossible {
    let (at, name, kind) = (host.host.clone(), port.name.clone(), ports::kind(port));
    match ports::below(host, port).join(", ") {
        below if below.is_empty() => Impossible::NoDcb { host: at, port: name, kind },
        below => Impossible::Upper { host: at, port: name, kind, below },
    }
}

fn has_roce(host: &Inventory, port: &Port) -> Result<(), Impossible> {
    let (at, name) = (host.host.clone(), port.name.clone());
    match ports::rdma(host, port) {
        // Not known is not absent.
        None if host.rdma.is_none() => Ok(()),
        None => Err(Impossible::NoRdma { host: at, port: name, kind: ports::kind(port) }),
        Some((device, _)) if device.node_type.as_deref() == Some("RNIC") => Err(Impossible::Iwarp {
            host: at,
            port: name,
            device: device.name.clone(),
            address: device.pcie_address.clone().unwrap_or_else(|| "ADDRESS".to_owned()),
        }),
        Some(_) => Ok(()),
    }
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
            Some((_, last)) if *last + 1 == *number => *last = *number,
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
                "{name} says that lossless priorities of its port are {theirs}: `linerate qos switch` writes its side"
            ));
        }
    }
}

/// What tells a class, by the application table; nothing for RoCE of another version.
fn mark(class: &Class, roce: Roce) -> Option<(Selector, u16, String)> {
    match (class.dscp, roce) {
        (Some(dscp), _) => Some((Selector::Dscp, dscp.into(), format!("priority of DSCP {dscp}"))),
        (None, Roce::V2) => Some((Selector::Datagram, ROCE_V2, "priority of RoCE v2".to_owned())),
        (None, Roce::V1) => Some((Selector::EtherType, ROCE_V1, "priority of RoCE v1".to_owned())),
        (None, Roce::None) => None,
    }
}

fn applications(
    port: &Port,
    dcb: &Dcb,
    intent: &Intent,
    plan: &mut Plan,
    set: &mut DcbSettings,
    undo: &mut DcbSettings,
) {
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
            if selector != Selector::Dscp && port.driver.as_deref() == Some("mlx5_core") {
                plan.warnings.push(format!(
                    "mlx5 adapters take a priority by DSCP only and may refuse this: give [{}] a dscp",
                    class.name
                ));
            }
        }
    }
}

/// What connections get that do not say; known only where somebody made the folder in configfs.
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
        Roce::V1 => "RoCE v1",
        Roce::V2 => "RoCE v2",
    };
    let Some((device, rdma)) = ports::rdma(host, port) else { return };
    let named = || RoceDefault { device: device.name.clone(), port: rdma.number, ..RoceDefault::default() };
    let (mut new, mut old) = (named(), named());
    if let Some(now) = &rdma.default_roce
        && step(plan, "RoCE of connections that say none", Some(now.clone()), version)
    {
        (new.version, old.version) = (Some(version.to_owned()), Some(now.clone()));
    }
    if let (Some(now), Some(dscp)) = (rdma.default_traffic_class, intent.migration.dscp)
        && step(plan, "traffic class of RDMA connections that say none", Some(now.to_string()), dscp << 2)
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
