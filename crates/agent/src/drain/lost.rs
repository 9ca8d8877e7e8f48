//! Drains of hosts that are lost. The agent of a host owns its drain, and nobody else can move its guests. When it is
//! gone for long, another host ends the drain: what it had reserved is free again, and the result says what is known.

use std::time::Duration;

use linerate_api::{AuditAction, AuditCaller, AuditEntry, AuditResult, DrainGuest, DrainGuestState};
use linerate_store::fleet::records::{DrainRecord, DrainState};
use linerate_store::fleet::{Fleet, FleetError, View};

use super::hosts::{self, Destination};
use crate::agent::Agent;
use crate::audit;
use crate::clock::unix_ms;

/// How long the host is waited for, at each of its addresses.
const ASK_WAIT: Duration = Duration::from_secs(10);

/// Ends the drain of a host that the store has not heard of, unless its agent answers this one: it may only have lost
/// the way to the store. Returns whether the drain was ended.
///
/// # Errors
/// Those of the store. [`FleetError::Owned`] and [`FleetError::HasEnded`] if the host is back, or another one was
/// faster.
pub(crate) fn end(
    agent: &Agent,
    fleet: &Fleet,
    (id, host): (&str, &str),
    silent_s: u64,
) -> Result<bool, FleetError> {
    let view = fleet.view()?;
    let one = Destination::of(host, &view, None);
    // What this agent has taken over before, and could not end, the host cannot end either.
    let owner = view.drains.get(id).and_then(|drain| drain.owner.as_ref());
    let is_taken = owner.is_some_and(|owner| owner.host == agent.config.name);
    if !is_taken && one.is_some_and(|one| hosts::is_running(&one, &agent.security, ASK_WAIT)) {
        return Ok(false);
    }
    let own = &agent.config.name;
    let why = format!("host {host} has not answered for {silent_s} s, and {own} ended its drain");
    end_open(agent, fleet, id, &view, why)?;
    Ok(true)
}

/// Ends an open drain that nobody carries on. What it has reserved for guests that are not in doubt is given up.
///
/// # Errors
/// [`FleetError::Owned`] and [`FleetError::HasEnded`] if another agent was faster; those of the store.
pub(super) fn end_open(
    agent: &Agent,
    fleet: &Fleet,
    id: &str,
    view: &View,
    why: String,
) -> Result<(), FleetError> {
    let (ownership, record) = fleet.take_over(id)?;
    let (record, given_up) = judged(record, view, &why);
    for guest in &given_up {
        match fleet.release(&ownership, guest) {
            // A guest that has moved may be on its way again, by a drain of its present host.
            Ok(()) | Err(FleetError::Reserved { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    fleet.end(&ownership, &record)?;
    tracing::warn!(drain = id, host = record.host, why, "a drain that nobody carried on was ended");
    agent.audit.record(AuditEntry {
        session: Some(id.to_owned()),
        reason: Some(why),
        ..audit::entry(AuditAction::Drain, AuditResult::Failed, AuditCaller::Agent)
    });
    Ok(())
}

/// What became of each guest, and those whose reservation is given up. A guest that was being moved may still arrive:
/// its host gives the reservation up when it knows.
fn judged(mut record: DrainRecord, view: &View, why: &str) -> (DrainRecord, Vec<String>) {
    use DrainGuestState as S;
    let mut given_up = Vec::new();
    for (key, value) in &mut record.guests {
        let Ok(mut guest) = serde_json::from_value::<DrainGuest>(value.clone()) else { continue };
        let to = guest.to.as_ref().and_then(|host| view.hosts.get(host));
        let is_there = to.is_some_and(|host| host.record.guests.contains_key(key));
        if guest.state.is_over() {
            if guest.state != S::InDoubt || is_there {
                given_up.push(key.clone());
            }
            continue;
        }
        let moves = matches!(guest.state, S::Copying | S::Cancelling | S::Recovering);
        guest.state = match (is_there, moves) {
            (true, _) => S::Moved,
            (false, true) => S::InDoubt,
            (false, false) => S::Failed,
        };
        if guest.state != S::InDoubt {
            given_up.push(key.clone());
        }
        if guest.state != S::Moved {
            guest.reason = Some(why.to_owned());
            guest.hint = "see `linerate vm list` on both hosts when they answer".into();
        }
        *value = serde_json::to_value(guest).unwrap_or_default();
    }
    (record.state, record.ended_ms) = (DrainState::Ended, Some(unix_ms()));
    (record, given_up)
}

#[cfg(test)]
mod tests {
    use linerate_store::fleet::HostView;
    use linerate_store::fleet::records::GuestRecord;
    use serde_json::json;

    use super::*;
    use crate::drain::tests::guest;

    #[test]
    fn a_guest_that_was_being_moved_is_in_doubt_unless_its_host_lists_it() {
        let states = [
            ("waits", "waiting", "failed"),
            ("prepared", "prepared", "failed"),
            ("copied", "copying", "in_doubt"),
            ("came", "copying", "moved"),
            ("doubted", "in_doubt", "in_doubt"),
            ("came-too", "in_doubt", "in_doubt"),
            ("moved", "moved", "moved"),
            ("kept", "kept", "kept"),
        ];
        let record = DrainRecord {
            id: "1".into(),
            host: "a".into(),
            by: "root".into(),
            state: DrainState::Running,
            settings: json!(null),
            guests: states
                .iter()
                .map(|(name, state, _)| ((*name).to_owned(), guest(name, name, state, Some("b"))))
                .collect(),
            begun_ms: 1,
            ended_ms: None,
        };
        let mut there = HostView::default();
        for name in ["came", "came-too"] {
            there.record.guests.insert(name.into(), GuestRecord::default());
        }
        let view = View { hosts: [("b".to_owned(), there)].into(), ..View::default() };
        let (ended, given_up) = judged(record, &view, "it is lost");
        for (name, _, wanted) in states {
            assert_eq!(ended.guests[name]["state"], wanted, "{name}");
        }
        assert_eq!(given_up, ["came", "came-too", "kept", "moved", "prepared", "waits"]);
        assert_eq!(ended.guests["copied"]["reason"], "it is lost");
        assert!(ended.state == DrainState::Ended && ended.ended_ms.is_some());
    }
}
