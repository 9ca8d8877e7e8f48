//! The fleet, for people.

use std::collections::BTreeSet;

use linerate_api::{FleetCount, FleetDrain, FleetHost, FleetStatus};
use linerate_store::fleet::records::DrainState as Stored;
use linerate_store::fleet::{FleetError, HostView, View};

use super::{Answer, of_fleet, stored};
use crate::agent::Agent;
use crate::fleet::shown_cordon;

/// Hosts that this host's store knows.
pub(crate) fn hosts(agent: &Agent) -> Answer<Vec<FleetHost>> {
    let view = renewed(agent).map_err(|error| of_fleet(&error, agent))?;
    let hosts = view.hosts.into_values().map(|host| FleetHost {
        host: host.record.name.clone(),
        addresses: host.record.addresses.clone(),
        alive: host.alive,
        cordon: host.cordon.clone().map(shown_cordon),
        drain: host.drain.clone(),
        memory_bytes: host.record.memory_bytes,
        free_bytes: host.free_bytes(),
        reserved_bytes: host.reserved_bytes,
        guests: u32::try_from(host.record.guests.len()).unwrap_or(u32::MAX),
        ports_bytes_per_s: host.record.ports.iter().map(|port| port.bytes_per_s).sum(),
    });
    Ok(hosts.collect())
}

/// This host as it is; others as they were when a drain asked them last. In a fleet that shares a store each host
/// describes itself there.
fn renewed(agent: &Agent) -> Result<View, FleetError> {
    let fleet = agent.fleet.fleet()?;
    if agent.fleet.shared().is_none() {
        fleet.register(&agent.describer.describe())?;
    }
    fleet.view()
}

/// The fleet, and this host's part in it.
pub(crate) fn status(agent: &Agent) -> FleetStatus {
    let (view, failed) = match renewed(agent) {
        Ok(view) => (Some(view), None),
        Err(error) => (None, Some(error.to_string())),
    };
    FleetStatus {
        host: agent.config.name.clone(),
        store: agent.fleet.place(),
        shared: agent.fleet.shared().is_some(),
        error: failed.or_else(|| agent.fleet.trouble()),
        hosts: view.as_ref().map(count),
        drains: view.as_ref().map(drains).unwrap_or_default(),
        warnings: view.as_ref().map(warnings).unwrap_or_default(),
    }
}

fn count(view: &View) -> FleetCount {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let alive: Vec<&HostView> = view.hosts.values().filter(|host| host.alive).collect();
    let takes = |host: &&&HostView| host.cordon.is_none();
    FleetCount {
        known: number(view.hosts.len()),
        answer: number(alive.len()),
        cordoned: number(view.hosts.values().filter(|host| host.cordon.is_some()).count()),
        guests: view.hosts.values().map(|host| host.record.guests.len() as u64).sum(),
        memory_bytes: alive.iter().map(|host| host.record.memory_bytes).fold(0, u64::saturating_add),
        free_bytes: alive.iter().filter(takes).map(|host| host.free_bytes()).fold(0, u64::saturating_add),
        reserved_bytes: view.hosts.values().map(|host| host.reserved_bytes).fold(0, u64::saturating_add),
    }
}

fn drains(view: &View) -> Vec<FleetDrain> {
    let open = view.drains.values().filter(|drain| drain.record.state != Stored::Ended);
    let moved = |value: &&serde_json::Value| value["state"] == "moved";
    open.map(|drain| FleetDrain {
        id: drain.record.id.clone(),
        host: drain.record.host.clone(),
        owner: drain.owner.as_ref().map(|owner| owner.host.clone()),
        state: stored::state(drain.record.state),
        guests: u32::try_from(drain.record.guests.len()).unwrap_or(u32::MAX),
        moved: u32::try_from(drain.record.guests.values().filter(moved).count()).unwrap_or(u32::MAX),
    })
    .collect()
}

fn warnings(view: &View) -> Vec<String> {
    let mut found = Vec::new();
    for (name, host) in &view.hosts {
        if !host.alive {
            let text =
                format!("host {name} does not answer; `linerate fleet forget {name}` if it never will");
            found.push(text);
        }
    }
    for (id, drain) in &view.drains {
        if drain.record.state != Stored::Ended && drain.owner.is_none() {
            found.push(format!("drain {id} of host {} waits for its agent", drain.record.host));
        }
    }
    // Of guests in doubt, until their destination knows.
    let open: BTreeSet<&str> = view
        .drains
        .iter()
        .filter(|(_, drain)| drain.record.state != Stored::Ended)
        .map(|(id, _)| id.as_str())
        .collect();
    for (guest, one) in view.reservations.iter().filter(|(_, one)| !open.contains(one.drain.as_str())) {
        found.push(format!("guest {guest} may still arrive at host {}: its memory is kept there", one.host));
    }
    found
}
