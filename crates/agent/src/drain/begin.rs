//! A drain is begun: refused, or written to the store, and given to an owner.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use linerate_api::{DrainRequest, ErrorBody};
use linerate_core::drain::Asking;
use linerate_store::StoreError;
use linerate_store::fleet::records::{Cordon, DrainRecord, DrainState as Stored, HostRecord};
use linerate_store::fleet::{Fleet, FleetError};

use super::member::Member;
use super::owner::{self, Begin};
use super::{
    Answer, Drains, Kept, Ready, SHOWN, drain_id, is_of_cordon, leaving, look, of_fleet, order, own, place,
    refused, take_up, undrain,
};
use crate::agent::Agent;
use crate::clock::unix_ms;

/// Begins a drain. `by`: the operator. Returns its name.
pub(crate) async fn begin(
    agent: &Arc<Agent>,
    drains: Arc<Drains>,
    request: DrainRequest,
    by: String,
) -> Answer<String> {
    let ready = look(agent, &request).await?;
    let runtime = tokio::runtime::Handle::current();
    let agent = agent.clone();
    let begun = tokio::task::spawn_blocking(move || begin_with(&agent, &drains, runtime, request, by, ready));
    begun.await.map_err(|error| ErrorBody::new("internal", format!("a defect in the agent: {error}")))?
}

/// Refuses a drain of which no guest can leave.
fn has_destination(ready: &mut Ready, request: &DrainRequest) -> Answer<()> {
    let planned = place(ready, request);
    let leaves =
        ready.members.iter().filter(|one| one.decided.is_none() && !request.keep.contains(&one.guest.name));
    if leaves.count() > 0 && planned == 0 {
        let why: Vec<String> = ready
            .members
            .iter()
            .filter_map(|one| Some(format!("{}: {}", one.guest.name, one.nowhere.as_ref()?)))
            .collect();
        return Err(refused(
            format!("no guest has a destination, and nothing was begun. {}", why.join(". ")),
            "name other hosts with --to; `linerate place GUEST --to HOST` shows what each lacks",
        ));
    }
    Ok(())
}

fn begin_with(
    agent: &Arc<Agent>,
    drains: &Arc<Drains>,
    runtime: tokio::runtime::Handle,
    request: DrainRequest,
    by: String,
    mut ready: Ready,
) -> Answer<String> {
    // No undrain begins before the drain is in the store.
    let _changing = drains.changing.lock();
    if undrain::goes_on(drains).is_some() {
        return Err(refused(
            "guests are coming back to this host; nothing was begun",
            "`linerate undrain` watches them",
        ));
    }
    has_destination(&mut ready, &request)?;
    let (fleet, cordon) = described(agent, &ready).map_err(|error| of_fleet(&error, agent))?;
    let (id, begun_ms) = (drain_id(), unix_ms());
    let cordoned_ms = Some(cordon.map_or(begun_ms, |cordon| cordon.since_ms));
    let last = last_order(&fleet, &agent.config.name).map_err(|error| of_fleet(&error, agent))?;
    let kept = Kept { cordoned_ms, order: last + 1, ..owner::kept(&request, &ready.unseen) };
    let record = DrainRecord {
        id: id.clone(),
        host: agent.config.name.clone(),
        by,
        state: Stored::Running,
        settings: serde_json::to_value(&kept).unwrap_or_default(),
        guests: shown(&ready),
        begun_ms,
        ended_ms: None,
    };
    let taking = drains.taking.lock();
    let ownership = match fleet.begin(&record) {
        Ok(ownership) => ownership,
        Err(error) if may_have_begun(&error, &id) => {
            look_again(agent, drains, runtime, &id);
            return Err(unsure(&error, &id));
        }
        Err(error) => return Err(of_fleet(&error, agent)),
    };
    if let Err(error) = forget_old(&fleet, &agent.config.name) {
        tracing::warn!(%error, "old drains of this host are still in the store");
    }
    // What was found out for the refusal is found out again, with a reservation.
    for member in &mut ready.members {
        (member.to, member.nowhere) = (None, None);
    }
    let Ready { mut members, destinations, rules, unsettled, warnings, .. } = ready;
    // They are waited for.
    members.extend(unsettled.iter().map(|name| Member::new(leaving::Leaving::unknown(name))));
    let begin = |drain| Begin {
        drain,
        fleet,
        ownership,
        record,
        kept,
        destinations,
        warnings,
        rules,
        is_again: false,
    };
    own(agent, drains, runtime, members, begin)?;
    drop(taking);
    Ok(id)
}

/// The guests, as the store has them.
fn shown(ready: &Ready) -> BTreeMap<String, serde_json::Value> {
    let show = |one: &Member| {
        let shown = one.show(None, &ready.destinations);
        (one.guest.key.clone(), serde_json::to_value(shown).unwrap_or_default())
    };
    ready.members.iter().map(show).collect()
}

/// The store has not said whether it wrote the drain, or has written it with a lease that has ended since.
pub(super) fn may_have_begun(error: &FleetError, id: &str) -> bool {
    match error {
        FleetError::Store(StoreError::Unknown(_)) | FleetError::NotOwner(_) => true,
        FleetError::Draining { drain, .. } => drain == id,
        _ => false,
    }
}

pub(super) fn unsure(error: &FleetError, id: &str) -> ErrorBody {
    let text = format!(
        "the store fails: {error}. Drain {id} may have begun: if the store has it, this agent goes on with it"
    );
    let hint = format!(
        "`linerate drain status` shows it when the store answers; `linerate drain abort {id}` ends it"
    );
    ErrorBody::new("journal_failed", text).with_hint(hint)
}

/// A drain that may have begun is looked for. If the store has it, this agent goes on with it.
pub(super) fn look_again(
    agent: &Arc<Agent>,
    drains: &Arc<Drains>,
    runtime: tokio::runtime::Handle,
    id: &str,
) {
    let (agent, drains, id) = (agent.clone(), drains.clone(), id.to_owned());
    let run = move || {
        let mut asking = Asking::begun();
        loop {
            std::thread::sleep(asking.pause());
            match agent.fleet.fleet().and_then(|fleet| fleet.drain(&id)) {
                Ok(None) if asking.not_yet() => {}
                Ok(None) => return,
                Ok(Some(record)) if record.state == Stored::Ended => return,
                Ok(Some(_)) => match take_up(&agent, &drains, runtime.clone(), &id) {
                    Ok(()) => return,
                    Err(error) => tracing::warn!(drain = id, error = error.message, "it is not taken up yet"),
                },
                Err(error) => tracing::debug!(drain = id, %error, "whether it has begun is not known"),
            }
        }
    };
    let _ = std::thread::Builder::new().name("drain-begun".into()).spawn(run);
}

/// The store, with the hosts as they are now, and this host's cordon.
fn described(agent: &Agent, ready: &Ready) -> Result<(Fleet, Option<Cordon>), FleetError> {
    let fleet = agent.fleet.fleet_to_change()?;
    owner::register(agent, &fleet, &ready.source, &ready.destinations)?;
    if agent.fleet.shared().is_none() {
        settle_known(&fleet, ready)?;
    }
    let cordon = fleet.cordon_of(&agent.config.name)?;
    Ok((fleet, cordon))
}

/// Gives up what ended drains have reserved for guests in doubt, where it is known by now where these are. In a fleet
/// that shares a store their destinations do that.
pub(super) fn settle_known(fleet: &Fleet, ready: &Ready) -> Result<(), FleetError> {
    for (guest, by) in fleet.view()?.reservations {
        let lists = |record: &HostRecord| {
            let has = record.guests.contains_key(&guest) || record.domains.contains_key(&guest);
            has && record.name == by.host
        };
        let is_there = ready.destinations.iter().filter_map(|one| one.record.as_ref()).any(lists);
        // A domain that is paused here may run there.
        let is_here = ready.members.iter().any(|one| one.guest.key == guest && !one.guest.domain);
        if !is_there && !is_here {
            continue;
        }
        match fleet.settle(&guest) {
            Ok(()) => {
                tracing::info!(guest, host = by.host, "it is known where it is: its memory is free there")
            }
            Err(FleetError::Draining { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn last_order(fleet: &Fleet, host: &str) -> Result<u64, FleetError> {
    let view = fleet.view()?;
    let own = view.drains.values().filter(|drain| drain.record.host == host);
    Ok(own.map(|drain| order(&drain.record).0).max().unwrap_or_default())
}

/// Forgets drains of this host that nobody asks for any more: those beyond the newest that are shown, but for those
/// that an undrain would look at.
pub(super) fn forget_old(fleet: &Fleet, host: &str) -> Result<(), FleetError> {
    let view = fleet.view()?;
    let cordoned = view.hosts.get(host).and_then(|host| host.cordon.as_ref()).map(|cordon| cordon.since_ms);
    let mut own: Vec<&DrainRecord> = view.drains.values().map(|drain| &drain.record).collect();
    own.retain(|drain| drain.host == host && drain.state == Stored::Ended);
    own.sort_by_key(|drain| Reverse(order(drain)));
    let old = own.into_iter().skip(SHOWN);
    for drain in old.filter(|drain| cordoned.is_some_and(|since| !is_of_cordon(drain, since))) {
        fleet.forget(&drain.id)?;
    }
    Ok(())
}
