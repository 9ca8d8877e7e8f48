//! Rolls the source's guest back: cancels what was begun, and restores the guest's run state.
//!
//! Another client may have begun a migration of the same guest over another monitor. That one is neither cancelled nor
//! undone: a guest that it has moved away runs elsewhere.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::settings::{self, Settings};
use super::source::SourceQemu;
use super::{MigrateError, activate_disks, at_rest};
use crate::qmp::QmpError;
use crate::run_state::RunState;

/// How long a cancel may take before QEMU is nudged.
const NUDGE_AFTER: Duration = Duration::from_millis(100);
/// The locks of a process go with the last of its threads, a moment after it counts as ended.
const LOCKS_WAIT: Duration = Duration::from_millis(200);

impl SourceQemu {
    /// Ends the migration in whatever phase it is and puts everything back: on `Ok` the guest does what it did before.
    /// After completion it refuses: the guest's state is elsewhere.
    pub fn cancel(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        self.cancel_migration(deadline)?;
        self.as_before(false, deadline)
    }

    /// Undoes a migration that the destination will never complete, in whatever phase it is: also after QEMU has
    /// written all of its state, as long as it is certain that the guest will not run elsewhere. On `Ok` the guest does
    /// what it did before.
    pub fn cancel_and_resume(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        match self.cancel_migration(deadline) {
            Ok(()) => self.as_before(false, deadline),
            Err(MigrateError::AlreadyCompleted) => self.as_before(true, deadline),
            Err(MigrateError::Elsewhere(status)) => {
                tracing::warn!(
                    status,
                    "another program has begun a migration of this guest: it is left alone"
                );
                self.tidy_mirrors(deadline);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// QEMU takes its disks back before it lets the guest run. The process that had them may be ending at this moment.
    fn run_again(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        let patience = Instant::now() + LOCKS_WAIT;
        loop {
            match self.qmp.execute("cont", json!({}), deadline) {
                Ok(_) => return self.expect_status(RunState::Running, deadline),
                Err(QmpError::Refused { .. }) if Instant::now() < patience => {
                    self.pause_between(deadline, "waiting for the guest's disks")?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn as_before(&mut self, completed: bool, deadline: Instant) -> Result<(), MigrateError> {
        self.tidy_mirrors(deadline);
        if !self.ran || self.run_state_before.is_some() {
            self.stand_again(deadline)?;
        } else if completed {
            self.run_again(deadline)?;
        } else {
            self.resume_again(deadline)?;
        }
        // Last: by its settings the next agent knows the migration for its own, if this one ends in the middle.
        self.release(deadline)?;
        self.unmark();
        Ok(())
    }

    /// QEMU leaves a guest that was paused in "postmigrate": always after it has written its state, before version 8.0
    /// also after a cancel. It refuses to migrate it from there, its disks may be without an owner, and the only way
    /// out is to let it run. So a guest that its operator paused is let run and stopped in one go: it runs for less
    /// than a millisecond. Any other stays as it is, because QEMU would run it as if nothing had stopped it.
    fn stand_again(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        loop {
            match self.status(deadline)? {
                RunState::PostMigrate => break,
                RunState::FinishMigrate => {
                    self.pause_between(deadline, "waiting for the guest's run state")?
                }
                _ => return Ok(()),
            }
        }
        if self.run_state_before.as_ref().is_some_and(RunState::is_paused) {
            // One write: QEMU has `stop` before it begins with `cont`.
            self.qmp.execute_all([("cont", Value::Null), ("stop", Value::Null)], deadline)?;
            return Ok(());
        }
        activate_disks(&mut self.qmp, deadline)?;
        let before = self.run_state_before.as_ref().map_or("not running", RunState::name);
        tracing::warn!(
            before,
            "the guest is here again, in QEMU's state postmigrate: it can be migrated when it has run (QMP: cont)"
        );
        Ok(())
    }

    /// What of it cannot be tidied away does not keep the guest from running.
    fn tidy_mirrors(&mut self, deadline: Instant) {
        if let Err(error) = self.drop_mirrors(deadline) {
            tracing::warn!(%error, "what copied the guest's disks could not be removed from its QEMU: query-jobs and query-named-block-nodes list it as linerate-disk-N");
        }
    }

    fn cancel_migration(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        let mut logged = false;
        let mut nudge_at = Instant::now() + NUDGE_AFTER;
        loop {
            let status = self.migration_status(deadline)?;
            let run_state = if status == "completed" { Some(self.status(deadline)?) } else { None };
            // It says that it is completed a moment before the run state does.
            if run_state == Some(RunState::FinishMigrate) {
                self.pause_between(deadline, "waiting for the guest's run state")?;
                continue;
            }
            let has_left = run_state == Some(RunState::PostMigrate);
            if (has_left || !at_rest(&status)) && !self.is_ours(deadline)? {
                return Err(MigrateError::Elsewhere(status));
            }
            match status.as_str() {
                _ if has_left => return Err(MigrateError::AlreadyCompleted),
                status if at_rest(status) => return Ok(()),
                "cancelling" if Instant::now() >= nudge_at => {
                    self.nudge(deadline)?;
                    nudge_at = Instant::now() + NUDGE_AFTER;
                }
                "cancelling" => {}
                _ if logged => {}
                _ => {
                    self.qmp.execute("migrate_cancel", json!({}), deadline)?;
                    logged = true;
                }
            }
            self.pause_between(deadline, "waiting for the migration to be cancelled")?;
        }
    }

    /// Whether QEMU's last migration is the one that this session began. Where that is not known, its settings
    /// show it: QEMU changes no capability while it migrates, and keeps them afterwards.
    fn is_ours(&mut self, deadline: Instant) -> Result<bool, MigrateError> {
        if let Some(begun) = self.begun {
            return Ok(begun);
        }
        let ours = settings::are_ours(&mut self.qmp, deadline)?;
        self.begun = Some(ours);
        Ok(ours)
    }

    // A cancel that comes just before QEMU enters pre-switchover is overlooked by its migration thread, which then
    // waits for a continue for ever. A continue in the state "cancelling" wakes it up, and it sees that it was
    // cancelled.
    fn nudge(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        match self.qmp.execute("migrate-continue", json!({ "state": "cancelling" }), deadline) {
            Ok(_) | Err(QmpError::Refused { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    // "completed" may be what an earlier migration left: of this one only if the guest is in the state after it.
    pub(super) fn has_left(&mut self, deadline: Instant) -> Result<bool, MigrateError> {
        Ok(self.status(deadline)? == RunState::PostMigrate)
    }

    /// This session's migration stopped the guest, and is over.
    fn was_completed(&mut self, deadline: Instant) -> Result<bool, MigrateError> {
        Ok(self.migration_status(deadline)? == "completed"
            && self.is_ours(deadline)?
            && self.run_state_before.is_none())
    }

    // The status says that a migration has failed as soon as one of its threads knows. The others still run by the
    // settings, and a QEMU whose settings change under them dies with its guest. After its threads have ended, a
    // migration at last leaves the list of what can be yanked (QEMU 6.0 and later, docs/stream-mode.md).
    fn is_cleaning_up(&mut self, deadline: Instant) -> Result<bool, MigrateError> {
        match self.qmp.execute("query-yank", json!({}), deadline) {
            Ok(listed) => {
                Ok(listed.as_array().into_iter().flatten().any(|entry| entry["type"] == "migration"))
            }
            Err(QmpError::Refused { class, .. }) if class == "CommandNotFound" => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    // QEMU resumes the guest by itself when its migration thread ends, a moment after the status says so.
    fn resume_again(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        loop {
            let found = self.status(deadline)?;
            match found {
                RunState::Running => return Ok(()),
                RunState::FinishMigrate | RunState::Colo => {}
                ref state if state.stopped_by_itself() => return Ok(()),
                // An operator's pause is the operator's to end, also after a reset of the guest.
                RunState::Paused if !self.paused_here => return Ok(()),
                RunState::PreLaunch if !self.paused_here && !self.was_completed(deadline)? => return Ok(()),
                ref state if self.can_continue(state, deadline)? => {
                    match self.qmp.execute("cont", json!({}), deadline) {
                        Ok(_) | Err(QmpError::Refused { .. }) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                RunState::PostMigrate => return Err(MigrateError::AlreadyCompleted),
                _ => return Err(MigrateError::RunState { found, wanted: RunState::Running }),
            }
            self.pause_between(deadline, "waiting for the guest to run again")?;
        }
    }

    /// After completion: whether the guest was neither let run again nor reset. QEMU reports that a migration is
    /// completed a moment before the run state does.
    pub fn is_still_stopped(&mut self, deadline: Instant) -> Result<bool, MigrateError> {
        Ok(matches!(self.status(deadline)?, RunState::PostMigrate | RunState::FinishMigrate))
    }

    /// Puts capabilities and parameters back. `cancel` does it.
    fn release(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        while self.is_cleaning_up(deadline)? {
            self.pause_between(deadline, "waiting for the migration to be cleaned up")?;
        }
        Settings::put_back(self.found.as_ref(), &mut self.qmp, deadline)
    }
}
