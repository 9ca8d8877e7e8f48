//! What is noted in the newest record of a session, whatever phase that has.

use linerate_core::SessionId;
use linerate_core::journal::SourcePhase;

use super::{Journal, JournalError, Record, Role};
use crate::faults::chain;
use crate::ran_here::RanHere;

impl Journal {
    /// Changes the newest record of a session. `change`: false if there is nothing to write.
    fn change(&self, session: SessionId, change: impl FnOnce(&mut Role) -> bool) -> Result<(), JournalError> {
        let mut unwritten = self.unwritten.lock();
        let Some(mut record) = self.newest(&unwritten, session)? else { return Ok(()) };
        if !change(&mut record.role) {
            return Ok(());
        }
        self.put_newest(&mut unwritten, session, &record)
    }

    /// A guest that was paused when it was to leave was seen to run here since.
    pub fn note_ran_since(&self, session: SessionId) {
        let done = self.change(session, |role| {
            let Role::Source { ran, .. } = role else { return false };
            !std::mem::replace(ran, true)
        });
        if let Err(error) = done {
            tracing::warn!(%session, error = chain(&error), "the journal does not have that the guest ran here since: if its QEMU has ended by the next start of the agent, the destination is not notified");
        }
    }

    /// Whether the guest ran here after commit was sent, as it is known now. `record` says so from now on, whatever the
    /// disk does; called again it tries the disk again.
    pub(crate) fn note_ran_here(&self, session: SessionId, record: &mut Record, now: RanHere) {
        let before = record.ran_here();
        if before.is_no() && now.is_no() {
            return;
        }
        let note = |role: &mut Role| {
            let Role::Source { ran_here, .. } = role else { return false };
            std::mem::replace(ran_here, now) != now
        };
        if note(&mut record.role) {
            let guest = &record.guest;
            match now.describe() {
                Some(what) => tracing::error!(%session, guest, "{what}"),
                None => {
                    tracing::info!(%session, guest, "QEMU says that the guest has not run here: the destination is asked again")
                }
            }
        }
        if let Err(error) = self.change(session, note) {
            tracing::warn!(%session, error = chain(&error), "the journal does not have whether the guest ran here after commit. If its QEMU has ended by the next start of the agent, that may ask the destination, which may run memory that is older than the disks; or ask nothing, and leave the guest to an operator");
        }
    }

    /// The destination knows of a roll-back: a later agent need not notify it again.
    pub fn note_notified(&self, session: SessionId) {
        if let Err(error) = self.record_notified(session) {
            tracing::warn!(%session, error = chain(&error), "the next start of the agent notifies the destination again");
        }
    }

    /// The destination knows that the session was rolled back.
    pub fn record_notified(&self, session: SessionId) -> Result<(), JournalError> {
        self.change(session, |role| match role {
            Role::Source { phase: SourcePhase::RolledBack, notice_due, .. } => {
                std::mem::replace(notice_due, false)
            }
            _ => false,
        })
    }
}
