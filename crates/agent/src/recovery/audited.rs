//! The end of each session that recovery settles or finds, in the audit log.

use linerate_api::AuditAction;
use linerate_core::journal::{DestinationPhase, SourcePhase};
use linerate_core::recovery::Phase;
use linerate_core::{GuestState, SessionId};

use super::{Machine, Sessions, Unfinished, phase_of};
use crate::journal::Record;

/// Of an arrival.
const CAME_HERE: &str = "the guest came here";

/// Of an arrival whose guest ran here when the agent ended.
pub(super) fn arrival(sessions: &Sessions, session: SessionId, record: &mut Record) {
    if phase_of(record, session) == Phase::Destination(DestinationPhase::Running) {
        close_arrival(sessions, session, record);
        sessions.audit.recovered_end(session, &record.guest, AuditAction::ArrivalEnd, true, CAME_HERE);
    }
}

/// An agent that ends before the audit log has the arrival leaves it at [`DestinationPhase::Running`], for the next
/// one.
fn close_arrival(sessions: &Sessions, session: SessionId, record: &mut Record) {
    record.set_phase(Phase::Destination(DestinationPhase::Finished));
    let _ = sessions.journal.put_end(session, record);
}

/// A session whose guest has no QEMU here any more, or has a later session that decides about it.
pub(super) fn closed(sessions: &Sessions, session: SessionId, guest: &str, phase: Phase) {
    let (action, is_where_it_was_to_go) = match phase {
        Phase::Source(phase) => (AuditAction::MigrationEnd, phase == SourcePhase::Finished),
        Phase::Destination(phase) => (AuditAction::ArrivalEnd, came_here(phase)),
    };
    let what = "its QEMU here has ended, or a later migration decides about it";
    sessions.audit.recovered_end(session, guest, action, is_where_it_was_to_go, what);
}

fn came_here(phase: DestinationPhase) -> bool {
    matches!(phase, DestinationPhase::Running | DestinationPhase::Finished)
}

impl Unfinished {
    /// Writes the session's end, once all is done and written. False before that.
    pub(super) fn audit_end(&self, sessions: &Sessions) -> bool {
        let Some((action, is_where_it_was_to_go, what)) = self.end() else { return false };
        if (action, is_where_it_was_to_go) == (AuditAction::ArrivalEnd, true) {
            // Who looks at the session does not wait for the disk.
            let mut record = self.record.lock().clone();
            close_arrival(sessions, self.session, &mut record);
            *self.record.lock() = record;
        }
        sessions.audit.recovered_end(self.session, &self.guest, action, is_where_it_was_to_go, what);
        true
    }

    /// The session's end as this host sees it, whether the guest is where it was to go, and what is known of it.
    fn end(&self) -> Option<(AuditAction, bool, &'static str)> {
        let was_paused = self.ran_at_source() == Some(false);
        match &*self.machine.lock() {
            Machine::Source(machine) => {
                let guest = match machine.is_over()? {
                    GuestState::RunsAtDestination if was_paused => GuestState::PausedAtDestination,
                    guest => guest,
                };
                let is_there =
                    matches!(guest, GuestState::RunsAtDestination | GuestState::PausedAtDestination);
                Some((AuditAction::MigrationEnd, is_there, guest.sentence()))
            }
            Machine::Destination(machine) => {
                let phase = machine.is_over()?;
                let what = match phase {
                    phase if came_here(phase) => CAME_HERE,
                    // Its QEMU has ended, or an operator gave it up.
                    DestinationPhase::Committed => "it was to run here, and its QEMU here does not run it",
                    _ => "the guest did not come here",
                };
                Some((AuditAction::ArrivalEnd, came_here(phase), what))
            }
        }
    }
}
