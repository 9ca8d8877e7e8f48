//! A guest that may run on both hosts, with the same disks: each host has let it run since commit, or is about to.
//! Each host shows that as a session in doubt until the guest's QEMU on it has ended, or an operator settles it.

use std::sync::Arc;
use std::time::Duration;

use linerate_api::{
    AuditAction, Direction, ErrorBody, GuestState, MigrationId, MigrationState, MigrationSummary, Step, code,
};
use linerate_core::SessionId;
use linerate_core::journal::SourcePhase;
use linerate_guest::registry::GuestRecord;

use crate::audit::Audit;
use crate::journal::{Journal, Record, Role};

/// The destination's answer to the notice of a roll-back is waited for this long. Then the report says that the guest
/// runs at its source alone.
pub(crate) const NOTICE_WAIT: Duration = Duration::from_secs(2);

/// What an operator reads.
pub(crate) const NOTE: &str = "the guest may run on both hosts, with the same disks: each host has let it run. Look on both hosts (`linerate vm list`), and end one copy at once (`linerate vm stop NAME --force`). Then say so at the other host: `linerate resolve ID --resume-here`";

/// And at a source that was told that the guest runs at the destination. It is ending its own copy, or an operator is
/// to decide that.
const ENDING: &str = "another program let the guest run on this host after commit, and it runs at the destination too, with the same disks: they may be damaged. Look on both hosts (`linerate vm list`), and keep the one at the destination. The copy here is being ended, or waits for you: `linerate resolve ID --give-up` ends it";

/// The same when the copy has ended: whoever watches the migration reads it in place of a good end.
pub(crate) const ENDED: &str = "another program let the guest run on this host after commit, and it ran at the destination too. The copy here has ended, and what its guest did since commit is lost. Both copies may have written to the same disks: have the guest check its file systems, or go back to a backup";

/// Notes it for this session, in the journal, in the audit log and in the agent's.
pub(crate) fn note(journal: &Journal, audit: &Audit, session: SessionId) {
    let Some(record) = journal.note_on_both_hosts(session) else { return };
    tracing::error!(%session, guest = record.guest, "{}", note_of(&record));
    let action = match direction(&record) {
        Direction::Outgoing => AuditAction::MigrationEnd,
        Direction::Incoming => AuditAction::ArrivalEnd,
    };
    audit.on_both_hosts(session, &record.guest, action);
}

/// What is done when the answer to a roll-back notice is known, or none is waited for any more. It is told whether the
/// destination has run the guest.
pub(crate) fn notice_done(
    journal: &Arc<Journal>,
    audit: &Arc<Audit>,
    session: SessionId,
) -> impl FnOnce(bool) + Send + use<> {
    let (journal, audit) = (journal.clone(), audit.clone());
    move |has_run_it| {
        // First: when no notice is due any more, an operator's decision is answered.
        if has_run_it {
            note(&journal, &audit, session);
        }
        journal.note_notified(session);
    }
}

/// A line about each such guest whose QEMU on this host may run.
pub(crate) fn summaries(journal: &Journal) -> Vec<MigrationSummary> {
    alive(journal).iter().map(|(session, record)| summary(*session, record)).collect()
}

/// Whether the guest of this migration is among them.
pub(crate) fn has(journal: &Journal, id: &str) -> bool {
    alive(journal).iter().any(|(session, _)| session.to_string() == id)
}

/// What becomes of an operator's decision about such a guest; none if it is not one of them. That it stays here says
/// that one copy is left, and that this is it.
pub(crate) fn resolve(
    journal: &Journal,
    id: &str,
    stays_here: bool,
) -> Option<Result<MigrationSummary, ErrorBody>> {
    let (session, record) = alive(journal).into_iter().find(|(session, _)| session.to_string() == id)?;
    if !stays_here || is_ending(&record) {
        return Some(Err(refused(note_of(&record))));
    }
    journal.settle_on_both_hosts(session);
    tracing::info!(%session, guest = record.guest, "an operator has settled that the guest runs here only");
    let state = match direction(&record) {
        Direction::Outgoing => MigrationState::Cancelled,
        Direction::Incoming => MigrationState::Completed,
    };
    Some(Ok(MigrationSummary { state, note: None, ..summary(session, &record) }))
}

/// What is answered to whoever asks for the end of such a session.
pub(crate) fn refusal() -> ErrorBody {
    refused(NOTE)
}

fn refused(note: &str) -> ErrorBody {
    let hint = "`linerate migration list` and `linerate vm list` on both hosts";
    let body = ErrorBody::new(code::TOO_LATE, note).with_hint(hint);
    ErrorBody { guest_state: Some(GuestState::InDoubt), ..body }
}

/// The source has its destination's word that the guest runs there. It ends the process here, or is in doubt: then the
/// session takes an operator's decision, and no note is settled.
fn is_ending(record: &Record) -> bool {
    matches!(&record.role, Role::Source { phase: SourcePhase::CommitSent | SourcePhase::Finished, .. })
}

fn note_of(record: &Record) -> &'static str {
    if is_ending(record) { ENDING } else { NOTE }
}

/// Sessions whose guest has a process on this host.
fn alive(journal: &Journal) -> Vec<(SessionId, Record)> {
    let noted = journal.on_both_hosts().into_iter();
    noted.filter(|(_, record)| qemu(record).is_some_and(GuestRecord::is_alive)).collect()
}

fn qemu(record: &Record) -> Option<&GuestRecord> {
    match &record.role {
        Role::Source { qemu, .. } => Some(qemu),
        Role::Destination { incoming, .. } => incoming.qemu.as_ref(),
        Role::Handover { .. } | Role::Libvirt { .. } => None,
    }
}

fn direction(record: &Record) -> Direction {
    match &record.role {
        Role::Source { .. } => Direction::Outgoing,
        Role::Destination { .. } | Role::Handover { .. } | Role::Libvirt { .. } => Direction::Incoming,
    }
}

fn summary(session: SessionId, record: &Record) -> MigrationSummary {
    let address = match &record.role {
        Role::Source { peers, .. } => peers.first().map(ToString::to_string),
        _ => None,
    };
    let name = record.peer().map(|name| name.to_string());
    MigrationSummary {
        id: MigrationId(session.to_string()),
        guest: record.guest.clone(),
        direction: direction(record),
        peer: address.or(name).unwrap_or_default(),
        state: MigrationState::InDoubt,
        step: Step::Commit,
        started_unix_ms: record.changed_unix_ms,
        sent_bytes: 0,
        note: Some(note_of(record).to_owned()),
    }
}

#[cfg(test)]
mod tests;
