//! Findings that the operator's intent mends: which hosts become as it says, and what speaks against it.

use super::{HostMend, PortMend};
use crate::model::{Finding, Fix, Inventory, Mend, RdmaPort, Room};
use crate::qos::intent::Intent;
use crate::qos::plan::{HostPlan, host as host_plan};

/// Hosts that findings name, as the intent wants them.
pub(super) fn intents(room: &Room, findings: &[Finding], intent: Option<&Intent>) -> Vec<HostMend> {
    let Some(intent) = intent else { return Vec::new() };
    let of = |host: &str| -> Vec<String> {
        let ids = findings.iter().filter(|finding| intended(finding, host));
        let mut ids: Vec<String> = ids.map(|finding| finding.id.clone()).collect();
        ids.dedup();
        ids
    };
    let host = |host: &Inventory| HostMend { findings: of(&host.host), plan: host_plan(host, intent) };
    room.hosts.iter().map(host).filter(|host| !host.findings.is_empty()).collect()
}

/// Hosts whose ports are not on trial for another finding already: a port has one trial at a time.
pub(super) fn apart(
    hosts: Vec<HostMend>,
    ports: &[PortMend],
    findings: &[Finding],
    left: &mut [Option<String>],
) -> Vec<HostMend> {
    let changing = |host: &HostMend| host.plan.ports.iter().any(|port| !port.plan.steps.is_empty());
    let twice = |host: &HostMend| {
        let names: Vec<&str> = host.plan.ports.iter().map(|port| port.port.as_str()).collect();
        let both = |one: &PortMend| one.place.port.as_deref().is_some_and(|port| names.contains(&port));
        ports.iter().any(|one| one.place.host == host.plan.host && both(one))
    };
    if !hosts.iter().any(|host| changing(host) && twice(host)) {
        return hosts.into_iter().filter(changing).collect();
    }
    let later = |finding: &Finding| finding.fixes.iter().any(|fix| fix.mend == Some(Mend::Intent));
    for (_, why) in findings.iter().zip(left).filter(|(finding, why)| why.is_none() && later(finding)) {
        *why = Some("its ports are set for other findings first: run it once more".to_owned());
    }
    Vec::new()
}

/// The agent gives its RDMA connections another mark than the intent's class has: they would not be in it, and only the agent's
/// configuration can change that.
pub(super) fn marked_otherwise(room: &Room, plan: &HostPlan) -> Option<String> {
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
pub(super) fn intended(finding: &Finding, host: &str) -> bool {
    let here = |fix: &Fix| {
        fix.mend == Some(Mend::Intent) && fix.place.as_ref().is_some_and(|place| place.host == host)
    };
    finding.fixes.iter().any(here)
}
