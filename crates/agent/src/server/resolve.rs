//! An operator's decision over a session in doubt: given to the session's state machine, waited for, and answered.

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use linerate_api::{Decision, ErrorBody, GuestState, MigrationState, MigrationSummary, ResolveRequest, code};
use linerate_core::journal::Decided;

use super::{Refusal, Shared, find, parse};
use crate::decision::NotDecided;

const DECISION_LOOK: Duration = Duration::from_millis(50);

/// What this host is in the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Source {
        /// The guest ran until it was stopped for the migration.
        ran: bool,
    },
    Destination,
}

/// `POST /migrations/{id}/resolve`: answers when the decision is carried out, or is not followed, or after the agent's
/// `decision_wait`.
pub(super) async fn resolve(
    State(agent): Shared,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<MigrationSummary>, Refusal> {
    let request: ResolveRequest = parse(&body)?;
    let here = request.decision == Decision::ResumeHere;
    let refused = |why: NotDecided| Refusal(ErrorBody::new(code::TOO_LATE, format!("migration {id} {why}")));
    if let Some(unfinished) = agent.unfinished().into_iter().find(|one| one.session.to_string() == id) {
        unfinished.resolve(here).map_err(refused)?;
        let decided = wait(agent.decision_wait, || unfinished.decided(here)).await;
        let place = unfinished.ran_at_source().map_or(Place::Destination, |ran| Place::Source { ran });
        let done = judge(decided, here, place, unfinished.process_is_alive())?;
        return Ok(Json(answer(unfinished.summary(), done)));
    }
    if let Some(incoming) = agent.incoming_live().into_iter().find(|one| one.session.to_string() == id) {
        incoming.resolve(here).map_err(refused)?;
        let decided = wait(agent.decision_wait, || incoming.decided_for(here)).await;
        let done = judge(decided, here, Place::Destination, incoming.qemu_is_alive())?;
        return Ok(Json(answer(incoming.summary(), done)));
    }
    if agent.moves.by_id(&id).is_some() {
        let text = format!(
            "migration {id} moves a domain of libvirt, which alone decides where it runs: nothing was decided"
        );
        let hint =
            "see `virsh domstate` on both hosts, and `linerate migration list` for what is known of it";
        return Err(Refusal(ErrorBody::new(code::TOO_LATE, text).with_hint(hint)));
    }
    if agent.past_incoming().iter().any(|one| one.id.0 == id) {
        return Err(Refusal(ErrorBody::new(code::TOO_LATE, format!("migration {id} is over"))));
    }
    let outgoing = find(&agent, &id)?;
    outgoing.resolve(here).map_err(refused)?;
    let decided = wait(agent.decision_wait, || outgoing.decided_for(here)).await;
    let done = judge(decided, here, Place::Source { ran: outgoing.ran() }, outgoing.qemu_is_alive())?;
    Ok(Json(answer(outgoing.summary(), done)))
}

/// Waits, at most this long, until the decision does not wait any more. An operator who is not told that it was not
/// followed would act as if it were.
async fn wait(longest: Duration, decided: impl Fn() -> Decided) -> Decided {
    let end = tokio::time::Instant::now() + longest;
    while decided() == Decided::Waiting && tokio::time::Instant::now() < end {
        tokio::time::sleep(DECISION_LOOK).await;
    }
    decided()
}

/// Whether the decision for `here` is carried out; `false` if it still waits. `is_alive`: the guest's QEMU on this
/// host.
///
/// # Errors
/// It was not followed, or the guest has ended since.
pub(super) fn judge(decided: Decided, here: bool, place: Place, is_alive: bool) -> Result<bool, Refusal> {
    let (text, guest) = match (decided, place, here) {
        (Decided::Waiting, ..) => return Ok(false),
        (Decided::Taken, _, true) if !is_alive => return Err(gone()),
        (Decided::Taken, ..) => return Ok(true),
        (Decided::Void, Place::Source { .. }, true) => (
            "the destination holds the guest, so it was not resumed here; decide there",
            Some(GuestState::InDoubt),
        ),
        (Decided::Void, Place::Source { .. }, false) => (
            "the destination has the guest and has not confirmed that it runs, so the copy here is kept; decide there",
            Some(GuestState::InDoubt),
        ),
        (Decided::Void, Place::Destination, _) => (
            "the decision was not followed: QEMU has not run the guest here, or another operator has decided since. A guest that may have run here is paused until you decide again",
            Some(GuestState::InDoubt),
        ),
        (Decided::Overruled, Place::Source { ran: true }, true) => (
            "the guest runs at the destination, so it was not resumed here",
            Some(GuestState::RunsAtDestination),
        ),
        (Decided::Overruled, Place::Source { ran: false }, true) => (
            "the guest is at the destination, paused as it was here, so it was not kept here",
            Some(GuestState::PausedAtDestination),
        ),
        (Decided::Overruled, Place::Source { .. }, false) if !is_alive => return Err(gone()),
        (Decided::Overruled, Place::Source { .. }, false) => (
            "the destination gave the guest up, so it does here what it did before, and is not ended",
            Some(GuestState::RunsAtSource),
        ),
        (Decided::Overruled, Place::Destination, _) => (
            "the guest does not run here: its source has it back, another operator has given it up, or its QEMU on this host has ended",
            None,
        ),
        (Decided::AlsoAtSource, ..) => (
            "QEMU ran the guest here before it was known that its source had rolled back: it may run on both hosts, with the same disks. Look on both hosts, and end one copy at once",
            Some(GuestState::InDoubt),
        ),
    };
    let body = ErrorBody::new(code::TOO_LATE, text).with_hint("`linerate migration list` on both hosts");
    Err(Refusal(ErrorBody { guest_state: guest, ..body }))
}

/// A guest that is to be here needs a QEMU here. It may have ended before the decision or since.
fn gone() -> Refusal {
    let text = "it is decided, but the guest's QEMU on this host has ended: the guest does not run here";
    let hint = "`linerate migration list` on both hosts shows whether another copy is left";
    let body = ErrorBody::new("guest_gone", text).with_hint(hint);
    Refusal(ErrorBody { guest_state: Some(GuestState::Gone), ..body })
}

/// The answer to an operator. A session whose decision still waits is in doubt, whatever it does meanwhile.
fn answer(summary: MigrationSummary, is_done: bool) -> MigrationSummary {
    if is_done {
        return summary;
    }
    let waits = "the decision waits for the other host, for the disk, or for QEMU";
    let note = summary.note.clone().unwrap_or_else(|| waits.to_owned());
    MigrationSummary { state: MigrationState::InDoubt, note: Some(note), ..summary }
}
