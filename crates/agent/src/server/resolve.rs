//! An operator's decision over a session in doubt: given to the session's state machine, waited for, and answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use linerate_api::{Decision, ErrorBody, GuestState, MigrationState, MigrationSummary, ResolveRequest, code};
use linerate_core::SessionId;
use linerate_core::journal::Decided;

use super::{Refusal, Shared, blocking, find, parse};
use crate::agent::Agent;
use crate::both_hosts;
use crate::decision::NotDecided;
use crate::incoming::Incoming;
use crate::outgoing::Outgoing;
use crate::recovery::Unfinished;

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

/// The session that takes a decision.
pub(super) enum Decider {
    Recovery(Arc<Unfinished>),
    Incoming(Arc<Incoming>),
    Outgoing(Arc<Outgoing>),
}

impl Decider {
    /// The one that has the session now: a live session gives it to recovery before it ends.
    fn find(agent: &Agent, id: &str) -> Result<Decider, Refusal> {
        let recovering = || agent.unfinished().into_iter().find(|one| one.session.to_string() == id);
        if let Some(unfinished) = recovering() {
            return Ok(Decider::Recovery(unfinished));
        }
        if let Some(incoming) = agent.incoming_live().into_iter().find(|one| one.session.to_string() == id) {
            return Ok(Decider::Incoming(incoming));
        }
        if agent.moves.by_id(id).is_some() {
            let text = format!(
                "migration {id} moves a domain of libvirt, which alone decides where it runs: nothing was decided"
            );
            let hint =
                "see `virsh domstate` on both hosts, and `linerate migration list` for what is known of it";
            return Err(Refusal(ErrorBody::new(code::TOO_LATE, text).with_hint(hint)));
        }
        // The live session may have ended between the two looks.
        if let Some(unfinished) = recovering() {
            return Ok(Decider::Recovery(unfinished));
        }
        if agent.past_incoming().iter().any(|one| one.id.0 == id) {
            return Err(Refusal(ErrorBody::new(code::TOO_LATE, format!("migration {id} is over"))));
        }
        Ok(Decider::Outgoing(find(agent, id)?))
    }

    fn resolve(&self, here: bool) -> Result<(), NotDecided> {
        match self {
            Decider::Recovery(one) => one.resolve(here),
            Decider::Incoming(one) => one.resolve(here),
            Decider::Outgoing(one) => one.resolve(here),
        }
    }

    /// Whether it may be in doubt in a moment: the guest is looked at or let run, or recovery is about to have it.
    fn is_looked_at(&self) -> bool {
        match self {
            Decider::Recovery(one) => one.is_looked_at(),
            Decider::Incoming(one) => one.is_looked_at(),
            Decider::Outgoing(one) => one.is_at_its_end(),
        }
    }

    fn decided(&self, here: bool) -> Decided {
        match self {
            Decider::Recovery(one) => one.decided(here),
            Decider::Incoming(one) => one.decided_for(here),
            Decider::Outgoing(one) => one.decided_for(here),
        }
    }

    fn place(&self) -> Place {
        match self {
            Decider::Recovery(one) => {
                one.ran_at_source().map_or(Place::Destination, |ran| Place::Source { ran })
            }
            Decider::Incoming(_) => Place::Destination,
            Decider::Outgoing(one) => Place::Source { ran: one.ran() },
        }
    }

    fn session(&self) -> SessionId {
        match self {
            Decider::Recovery(one) => one.session,
            Decider::Incoming(one) => one.session,
            Decider::Outgoing(one) => one.session,
        }
    }

    /// Whether the guest's QEMU is alive here.
    fn is_alive(&self) -> bool {
        match self {
            Decider::Recovery(one) => one.process_is_alive(),
            Decider::Incoming(one) => one.qemu_is_alive(),
            Decider::Outgoing(one) => one.qemu_is_alive(),
        }
    }

    fn summary(&self) -> MigrationSummary {
        match self {
            Decider::Recovery(one) => one.summary(),
            Decider::Incoming(one) => one.summary(),
            Decider::Outgoing(one) => one.summary(),
        }
    }
}

/// `POST /migrations/{id}/resolve`: answers when the decision is carried out, or is not followed, or after
/// the agent's `decision_wait`.
pub(super) async fn resolve(
    State(agent): Shared,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<MigrationSummary>, Refusal> {
    let request: ResolveRequest = parse(&body)?;
    let here = request.decision == Decision::ResumeHere;
    // What is left to do of a session counts first.
    let is_left = agent.unfinished().iter().any(|one| one.session.to_string() == id);
    if !is_left && agent.outgoing_by_id(&id).is_none_or(|one| one.is_over()) {
        let (asked, name) = (agent.clone(), id.clone());
        let settled = blocking(move || both_hosts::resolve(&asked.journal, &name, here).transpose()).await?;
        if let Some(summary) = settled {
            return Ok(Json(summary));
        }
    }
    let decider = give(&agent, &id, here, agent.decision_wait).await?;
    Ok(Json(carried_out(&agent, &decider, here).await?))
}

/// Waits for the decision that the session has, at most for the agent's `decision_wait`, and answers what became of it.
///
/// # Errors
/// It was not followed, or the guest has ended since, or may run on both hosts.
pub(super) async fn carried_out(
    agent: &Arc<Agent>,
    decider: &Decider,
    here: bool,
) -> Result<MigrationSummary, Refusal> {
    let decided = wait(agent.decision_wait, || decider.decided(here)).await;
    let done = judge(decided, here, decider.place(), decider.is_alive())?;
    // A decision that waits for the disk is not to wait for it here too.
    if done {
        check_other_host(agent, decider.session()).await?;
    }
    Ok(answer(decider.summary(), done))
}

/// Gives the decision to the session. One that is looked at may be in doubt in a moment: it is waited for so long.
pub(super) async fn give(
    agent: &Agent,
    id: &str,
    here: bool,
    patience: Duration,
) -> Result<Decider, Refusal> {
    let end = tokio::time::Instant::now() + patience;
    let mut is_known = false;
    loop {
        let decider = Decider::find(agent, id)
            .map_err(|Refusal(body)| Refusal(if is_known { ended_meanwhile(id) } else { body }))?;
        is_known = true;
        // Before and after: it may begin or end while it is asked.
        let was_looked_at = decider.is_looked_at();
        match decider.resolve(here) {
            Ok(()) => return Ok(decider),
            Err(NotDecided::NotInDoubt) if was_looked_at || decider.is_looked_at() => {}
            Err(why) => return Err(Refusal(not_decided(id, why))),
        }
        if tokio::time::Instant::now() >= end {
            let body = not_decided(id, NotDecided::LookedAt)
                .with_hint("`linerate migration list` shows what is known of it");
            let guest_state = Some(GuestState::InDoubt);
            return Err(Refusal(ErrorBody { retry_can_help: true, guest_state, ..body }));
        }
        tokio::time::sleep(DECISION_LOOK).await;
    }
}

/// A guest that was looked at, and runs, needs no decision.
fn ended_meanwhile(id: &str) -> ErrorBody {
    let text = format!("migration {id} has come to its end meanwhile, so nothing was decided");
    ErrorBody::new(code::TOO_LATE, text)
        .with_hint("`linerate vm list` on both hosts shows where the guest runs")
}

fn not_decided(id: &str, why: NotDecided) -> ErrorBody {
    ErrorBody::new(code::TOO_LATE, format!("migration {id} {why}"))
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

/// Whether the other host has said meanwhile that it runs the guest too: a source by its roll-back notice, a
/// destination by its answer to that. It was not asked about a guest that ran here after commit: that answer is its
/// first.
async fn check_other_host(agent: &Arc<Agent>, session: SessionId) -> Result<(), Refusal> {
    let agent = agent.clone();
    let look = move || {
        let is_due = || match agent.journal.get(session) {
            Ok(Some(record)) => !record.ran_here().is_no() && record.is_notice_due(),
            Ok(None) | Err(_) => false,
        };
        let end = Instant::now() + both_hosts::NOTICE_WAIT;
        while is_due() && Instant::now() < end {
            std::thread::sleep(DECISION_LOOK);
        }
        match both_hosts::has(&agent.journal, &session.to_string()) {
            true => Err(both_hosts::refusal()),
            false => Ok(()),
        }
    };
    blocking(look).await
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
            "the destination holds the guest, so it was not resumed here; look there: `linerate migration list` on the destination says what it waits for, and whether an operator may decide there",
            Some(GuestState::InDoubt),
        ),
        (Decided::Void, Place::Source { .. }, false) => (
            "the destination has the guest and has not confirmed that it runs, so the copy here is kept; look there: `linerate migration list` on the destination says what it waits for, and whether an operator may decide there",
            Some(GuestState::InDoubt),
        ),
        (Decided::Void, Place::Destination, _) => (
            "the decision was not followed. The source has sent a message meanwhile: it is connected again, or runs the guest, or is about to. Or QEMU has not run the guest here, or another operator has decided since. `linerate migration list` shows what the guest waits for now",
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
