//! The side that the guest leaves.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::pause_mark::PauseMark;
use super::settings::{self, Settings};
use super::{MigrateError, activate_disks, at_rest, command_deadline, next_slice, unix_uri};
use crate::qmp::{Event, Qmp, QmpError};

/// How long a cancel may take before QEMU is nudged.
const NUDGE_AFTER: Duration = Duration::from_millis(100);
/// QEMU carries what it has of RAM itself (a display adapter's memory) while the guest runs, until the rest takes no longer
/// than this at the rate that it measures. Without such RAM nothing is left from the beginning, and it stops the guest at once.
const LIVE_LIMIT: Duration = Duration::from_millis(5);
/// A display that is written faster than it can be carried never gets there: after this long QEMU is to stop the guest
/// whatever is left.
const LIVE_MAX: Duration = Duration::from_secs(1);
/// Longest downtime limit that QEMU takes is 2000 s; this is more than anything left can need.
const ANY_LIMIT: Duration = Duration::from_secs(300);
/// Pause between two questions where no event tells.
const POLL: Duration = Duration::from_millis(2);

/// Run states in which a guest stands that nobody but itself or an operator stopped: a migration neither caused them nor ends
/// them. Whoever wants it to run tells QEMU to (`cont`, after a reset where QEMU asks for one).
const STOPPED_BY_ITSELF: &[&str] =
    &["io-error", "watchdog", "guest-panicked", "internal-error", "shutdown", "suspended", "debug"];

/// Run states of a guest that its operator keeps from running.
const PAUSED: &[&str] = &["paused", "prelaunch"];

/// The moment in which QEMU has stopped the guest and waits.
#[derive(Clone, Copy, Debug)]
pub struct PreSwitchover {
    /// The guest ran until QEMU stopped it.
    pub ran: bool,
    /// When QEMU stopped the guest (its wall clock); none if it did not run before.
    pub stopped: Option<Duration>,
    /// When QEMU began to wait (its wall clock); none if the event was not seen.
    pub waiting: Option<Duration>,
    /// When the stop was read here.
    pub stopped_at: Instant,
}

/// The source's QEMU.
#[derive(Debug)]
pub struct SourceQemu {
    pub(super) qmp: Qmp,
    /// How it was set at the beginning; none if that is not known.
    found: Option<Settings>,
    /// The guest ran when this began, or when QEMU stopped it, and must run again if it comes to nothing.
    ran: bool,
    /// [`SourceQemu::pause`] stopped the guest, and nobody has let it run since. If that is not known, it may have.
    paused_here: bool,
    /// Where [`SourceQemu::pause`] is noted for the next agent.
    mark: Option<PauseMark>,
    /// The guest's run state if it stands, and neither [`SourceQemu::pause`] nor QEMU's migration stopped it.
    stands: Option<String>,
    /// Drives that are being mirrored to the destination, in order.
    pub(super) copied: Vec<String>,
}

impl SourceQemu {
    /// Takes a connection over; asks whether the guest runs and how it is set.
    pub fn new(mut qmp: Qmp, deadline: Instant) -> Result<SourceQemu, MigrateError> {
        let state = run_state(&mut qmp, deadline)?;
        let ran = state == "running";
        let found = Some(Settings::read(&mut qmp, deadline)?);
        let stands = (!ran).then_some(state);
        Ok(SourceQemu { qmp, found, ran, paused_here: false, mark: None, stands, copied: Vec::new() })
    }

    /// For a guest that was left in the middle by an earlier agent, which may have stopped it for a moment: how it was at the
    /// beginning comes from the journal.
    ///
    /// `paused_here`: that agent had stopped the guest itself. Otherwise a guest that stands was paused by somebody else,
    /// whose business it is to let it run again.
    pub fn recovered(qmp: Qmp, ran: bool, found: Option<Settings>, paused_here: bool) -> SourceQemu {
        SourceQemu { qmp, found, ran, paused_here, mark: None, stands: None, copied: Vec::new() }
    }

    /// Has its own pauses noted there.
    pub fn mark_pauses(&mut self, mark: PauseMark) {
        self.mark = Some(mark);
    }

    fn unmark(&self) {
        self.mark.iter().for_each(PauseMark::clear);
    }

    /// In which run state the guest stood before QEMU's migration stopped it, if it did. If that is not known, a guest that did not
    /// run stays as QEMU leaves it.
    pub fn stood(mut self, state: Option<String>) -> SourceQemu {
        self.stands = state;
        self
    }

    /// The run state of a guest that stood before QEMU stopped it.
    pub fn stands(&self) -> Option<&str> {
        self.stands.as_deref()
    }

    /// Goes on with another connection in place of one that broke.
    pub fn reconnect(&mut self, qmp: Qmp) {
        self.qmp = qmp;
    }

    /// How QEMU was set at the beginning.
    pub fn found(&self) -> Option<&Settings> {
        self.found.as_ref()
    }

    /// The connection, for what is not of a migration.
    pub fn qmp(&mut self) -> &mut Qmp {
        &mut self.qmp
    }

    /// Whether the guest ran at the beginning, or until QEMU stopped it.
    pub fn ran(&self) -> bool {
        self.ran
    }

    /// QEMU's run state (`running`, `paused`, …).
    pub fn status(&mut self, deadline: Instant) -> Result<String, MigrateError> {
        run_state(&mut self.qmp, deadline)
    }

    /// Sets capabilities and parameters for direct mode. Nothing moves yet.
    pub fn prepare(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        let status = self.migration_status(deadline)?;
        if !at_rest(&status) {
            return Err(MigrateError::Busy(status));
        }
        let wanted = ["x-ignore-shared", "events", "pause-before-switchover"];
        let parameters =
            json!({ "max-bandwidth": 1_u64 << 40, "downtime-limit": LIVE_LIMIT.as_millis() as u64 });
        settings::set(&mut self.qmp, &wanted, parameters, deadline)
    }

    /// Starts QEMU's migration to a UNIX socket on which somebody listens already.
    pub fn begin(&mut self, socket: &Path, deadline: Instant) -> Result<(), MigrateError> {
        self.qmp.clear_events()?;
        let state = self.status(deadline)?;
        let runs = state == "running" || (state == "suspended" && self.counts_suspended_as_running());
        self.stands = (!runs).then_some(state);
        self.qmp.execute("migrate", unix_uri(socket)?, deadline)?;
        Ok(())
    }

    /// Waits until QEMU has stopped the guest and waits for us.
    pub fn wait_pre_switchover(
        &mut self,
        deadline: Instant,
        give_up: &dyn Fn() -> bool,
    ) -> Result<PreSwitchover, MigrateError> {
        let mut patience = Some(Instant::now() + LIVE_MAX);
        let mut until = |qemu: &mut SourceQemu| {
            if patience.is_some_and(|end| Instant::now() >= end) {
                patience = None;
                qemu.set_downtime_limit(ANY_LIMIT, command_deadline())?;
            }
            next_slice(deadline, give_up)
        };
        self.wait_held(&mut until, &mut |qemu| qemu.migration_status(command_deadline()))
    }

    /// The same for any way of copying: `until` says how long to wait for the next event, and `asked` what QEMU's status is where
    /// none came.
    pub(super) fn wait_held(
        &mut self,
        until: &mut dyn FnMut(&mut SourceQemu) -> Result<Instant, MigrateError>,
        asked: &mut dyn FnMut(&mut SourceQemu) -> Result<String, MigrateError>,
    ) -> Result<PreSwitchover, MigrateError> {
        let mut stop: Option<Event> = None;
        loop {
            let until = until(self)?;
            let wanted = |event: &Event| matches!(event.name.as_str(), "STOP" | "RESUME" | "MIGRATION");
            let status = match self.qmp.wait_event(wanted, until) {
                Ok(event) if event.name == "STOP" => {
                    // An operator's, or an I/O error's, is not QEMU's own for the migration: the guest does not run then.
                    let state = self.status(command_deadline())?;
                    let by_qemu = matches!(state.as_str(), "running" | "finish-migrate" | "postmigrate");
                    (self.stands, stop) = if by_qemu { (None, Some(event)) } else { (Some(state), None) };
                    continue;
                }
                Ok(event) if event.name == "RESUME" => {
                    (self.stands, stop) = (None, None);
                    continue;
                }
                Ok(event) if event.is_migration("pre-switchover") => {
                    return Ok(self.pre_switchover(stop, Some(event)));
                }
                Ok(event) => event.migration_status().unwrap_or_default().to_owned(),
                Err(QmpError::TimedOut { .. }) => asked(self)?,
                Err(error) => return Err(error.into()),
            };
            match status.as_str() {
                "pre-switchover" => {
                    // The answer may have come before its events were looked at.
                    let queued = self.qmp.wait_event(|event| event.name == "STOP", Instant::now()).ok();
                    return Ok(self.pre_switchover(stop.or(queued), None));
                }
                "failed" | "cancelled" | "cancelling" | "completed" => {
                    return Err(self.failed(&status, command_deadline()));
                }
                _ => {}
            }
        }
    }

    fn pre_switchover(&mut self, stop: Option<Event>, waiting: Option<Event>) -> PreSwitchover {
        self.ran = self.stands.is_none();
        let stop = stop.filter(|_| self.ran);
        let stopped_at = stop.as_ref().or(waiting.as_ref()).map_or_else(Instant::now, |event| event.read_at);
        PreSwitchover {
            ran: self.ran,
            stopped: stop.map(|event| event.emitted),
            waiting: waiting.map(|event| event.emitted),
            stopped_at,
        }
    }

    /// From QEMU 9.0 on a suspended guest is stopped and resumed as a running one is.
    fn counts_suspended_as_running(&self) -> bool {
        self.qmp.version().major >= 9
    }

    fn set_downtime_limit(&mut self, limit: Duration, deadline: Instant) -> Result<(), MigrateError> {
        let parameters = json!({ "downtime-limit": limit.as_millis() as u64 });
        self.qmp.execute("migrate-set-parameters", parameters, deadline)?;
        Ok(())
    }

    /// Lets QEMU write its device state.
    pub fn cont_switchover(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        self.qmp.execute("migrate-continue", json!({ "state": "pre-switchover" }), deadline)?;
        Ok(())
    }

    /// Waits until QEMU has written all of its state.
    pub fn wait_completed(
        &mut self,
        deadline: Instant,
        give_up: &dyn Fn() -> bool,
    ) -> Result<(), MigrateError> {
        loop {
            let slice = next_slice(deadline, give_up)?;
            let status = match self.qmp.wait_event(|event| event.name == "MIGRATION", slice) {
                Ok(event) => event.migration_status().unwrap_or_default().to_owned(),
                Err(QmpError::TimedOut { .. }) => self.migration_status(command_deadline())?,
                Err(error) => return Err(error.into()),
            };
            match status.as_str() {
                "completed" => return Ok(()),
                "failed" | "cancelled" | "cancelling" => return Err(self.failed(&status, command_deadline())),
                _ => {}
            }
        }
    }

    /// The downtime that QEMU itself counted, in milliseconds; it lacks what the destination needs to load and run.
    pub fn downtime_ms(&mut self, deadline: Instant) -> Result<Option<u64>, MigrateError> {
        let answer = self.qmp.execute("query-migrate", json!({}), deadline)?;
        Ok(answer.get("downtime").and_then(Value::as_u64))
    }

    /// Ends the migration in whatever phase it is and puts everything back: on `Ok` the guest does what it did before.
    /// After completion it refuses: the guest's state is elsewhere.
    pub fn cancel(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        self.cancel_migration(deadline)?;
        self.put_back(false, deadline)
    }

    /// Undoes a migration that the destination will never complete, in whatever phase it is: also after QEMU has written all
    /// of its state, as long as it is certain that the guest will not run elsewhere. On `Ok` the guest does what it did
    /// before.
    pub fn take_back(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        let completed = match self.cancel_migration(deadline) {
            Ok(()) => false,
            Err(MigrateError::AlreadyCompleted) => true,
            Err(error) => return Err(error),
        };
        self.put_back(completed, deadline)
    }

    fn put_back(&mut self, completed: bool, deadline: Instant) -> Result<(), MigrateError> {
        self.tidy_mirrors(deadline);
        self.release(deadline)?;
        if !self.ran || self.stands.is_some() {
            self.stand_again(deadline)?;
        } else if completed {
            // QEMU takes its disks back before it lets the guest run.
            self.qmp.execute("cont", json!({}), deadline)?;
            self.expect_status("running", deadline)?;
        } else {
            self.resume_again(deadline)?;
        }
        self.unmark();
        Ok(())
    }

    /// QEMU leaves a guest that stood in "postmigrate": always after it has written its state, before version 8.0 also after a cancel.
    /// It refuses to migrate it from there, its disks may be without an owner, and the only way out is to let it run. So a guest that
    /// its operator paused is let run and stopped in one go: it runs for less than a millisecond. Any other stays as it is, because
    /// QEMU would run it as if nothing had stopped it.
    fn stand_again(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        loop {
            match self.status(deadline)?.as_str() {
                "postmigrate" => break,
                "finish-migrate" => self.pause_between(deadline, "waiting for the guest's run state")?,
                _ => return Ok(()),
            }
        }
        if self.stands.as_deref().is_some_and(|state| PAUSED.contains(&state)) {
            return self.qmp.execute_both("cont", "stop", deadline).map_err(MigrateError::from);
        }
        activate_disks(&mut self.qmp, deadline)?;
        let stood = self.stands.as_deref().unwrap_or("not running");
        tracing::warn!(
            stood,
            "the guest is here again and stands in QEMU's state postmigrate: it can be migrated when it has run (QMP: cont)"
        );
        Ok(())
    }

    /// Whether the guest runs, now that it was taken back: an operator or an I/O error may have stopped it on the way.
    pub fn runs(&mut self, deadline: Instant) -> Result<bool, MigrateError> {
        Ok(self.status(deadline)? == "running")
    }

    /// What of it cannot be tidied away does not keep the guest from running.
    fn tidy_mirrors(&mut self, deadline: Instant) {
        if let Err(error) = self.drop_mirrors(deadline) {
            tracing::warn!(%error, "what copied the guest's disks could not be removed from its QEMU: query-jobs and query-named-block-nodes list it as linerate-disk-N");
        }
    }

    fn cancel_migration(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        let mut told = false;
        let mut nudge_at = Instant::now() + NUDGE_AFTER;
        loop {
            let status = self.migration_status(deadline)?;
            match status.as_str() {
                "completed" if self.has_left(deadline)? => return Err(MigrateError::AlreadyCompleted),
                status if at_rest(status) => return Ok(()),
                "cancelling" if Instant::now() >= nudge_at => {
                    self.nudge(deadline)?;
                    nudge_at = Instant::now() + NUDGE_AFTER;
                }
                "cancelling" => {}
                _ if told => {}
                _ => {
                    self.qmp.execute("migrate_cancel", json!({}), deadline)?;
                    told = true;
                }
            }
            self.pause_between(deadline, "waiting for the migration to be cancelled")?;
        }
    }

    // A cancel that comes just before QEMU enters pre-switchover is overlooked by its migration thread, which then waits for a
    // continue for ever. A continue in the state "cancelling" wakes it up, and it sees that it was cancelled.
    fn nudge(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        match self.qmp.execute("migrate-continue", json!({ "state": "cancelling" }), deadline) {
            Ok(_) | Err(QmpError::Refused { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    // "completed" may be what an earlier migration left: of this one only if the guest is in the state after it.
    fn has_left(&mut self, deadline: Instant) -> Result<bool, MigrateError> {
        Ok(self.status(deadline)? == "postmigrate")
    }

    // The status says that a migration has failed as soon as one of its threads knows. The others still run by the settings, and a
    // QEMU whose settings change under them dies with its guest. The last thing that a migration does when all of it is gone is to
    // leave the list of what can be yanked (QEMU 6.0 and later; docs/stream-mode.md).
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
            match found.as_str() {
                "running" => return Ok(()),
                "finish-migrate" | "colo" => {}
                state if STOPPED_BY_ITSELF.contains(&state) => return Ok(()),
                // An operator's pause is the operator's to end.
                "paused" if !self.paused_here => return Ok(()),
                state if self.can_continue(state, deadline)? => {
                    match self.qmp.execute("cont", json!({}), deadline) {
                        Ok(_) | Err(QmpError::Refused { .. }) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                "postmigrate" => return Err(MigrateError::AlreadyCompleted),
                _ => return Err(MigrateError::RunState { found, wanted: "running" }),
            }
            self.pause_between(deadline, "waiting for the guest to run again")?;
        }
    }

    /// Puts capabilities and parameters back. `cancel` does it.
    fn release(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        while self.is_cleaning_up(deadline)? {
            self.pause_between(deadline, "waiting for the migration to be cleaned up")?;
        }
        Settings::put_back(self.found.as_ref(), &mut self.qmp, deadline)
    }

    /// Stops a running guest, block I/O drained: protection is applied while it stands. False if somebody else has stopped it before,
    /// whose business it is to let it run again.
    pub fn pause(&mut self, deadline: Instant) -> Result<bool, MigrateError> {
        let found = self.status(deadline)?;
        match found.as_str() {
            "running" => {
                if let Some(mark) = &self.mark {
                    mark.set()
                        .map_err(|source| MigrateError::PauseMark { path: mark.path().into(), source })?;
                }
                self.paused_here = true;
                self.qmp.execute("stop", json!({}), deadline)?;
                self.expect_status("paused", deadline).map(|()| true)
            }
            state if STOPPED_BY_ITSELF.contains(&state) => Ok(false),
            state if self.can_continue(state, deadline)? => Ok(false),
            _ => Err(MigrateError::RunState { found, wanted: "running" }),
        }
    }

    /// Lets a guest run again that [`SourceQemu::pause`] stopped.
    pub fn resume(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        let found = self.status(deadline)?;
        match found.as_str() {
            "running" => {}
            state if STOPPED_BY_ITSELF.contains(&state) => return Ok(()),
            state if self.can_continue(state, deadline)? => {
                self.qmp.execute("cont", json!({}), deadline)?;
            }
            _ => return Err(MigrateError::RunState { found, wanted: "paused" }),
        }
        self.paused_here = false;
        self.unmark();
        if found == "running" { Ok(()) } else { self.expect_status("running", deadline) }
    }

    /// Ends the process. QEMU may close the connection before it answers.
    pub fn quit(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        quit(&mut self.qmp, deadline)
    }

    // Older QEMUs leave a guest that was paused in "postmigrate" even after a cancelled migration: its state is still here.
    fn can_continue(&mut self, state: &str, deadline: Instant) -> Result<bool, MigrateError> {
        match state {
            "paused" => Ok(true),
            "postmigrate" => Ok(matches!(self.migration_status(deadline)?.as_str(), "cancelled" | "failed")),
            _ => Ok(false),
        }
    }

    fn expect_status(&mut self, wanted: &'static str, deadline: Instant) -> Result<(), MigrateError> {
        let found = self.status(deadline)?;
        if found == wanted { Ok(()) } else { Err(MigrateError::RunState { found, wanted }) }
    }

    /// QEMU's migration status; `none` if there never was one.
    pub fn migration_status(&mut self, deadline: Instant) -> Result<String, MigrateError> {
        let answer = self.qmp.execute("query-migrate", json!({}), deadline)?;
        Ok(answer.get("status").and_then(Value::as_str).unwrap_or("none").to_owned())
    }

    fn failed(&mut self, status: &str, deadline: Instant) -> MigrateError {
        let answer = self.qmp.execute("query-migrate", json!({}), deadline).unwrap_or_default();
        let said = answer.get("error-desc").and_then(Value::as_str);
        let description = said.unwrap_or("QEMU gives no reason, the other side's log may").to_owned();
        MigrateError::Failed { status: status.to_owned(), description }
    }

    fn pause_between(&self, deadline: Instant, doing: &str) -> Result<(), MigrateError> {
        if Instant::now() >= deadline {
            return Err(QmpError::TimedOut { doing: doing.into() }.into());
        }
        std::thread::sleep(POLL);
        Ok(())
    }
}

pub(crate) fn run_state(qmp: &mut Qmp, deadline: Instant) -> Result<String, MigrateError> {
    let answer = qmp.execute("query-status", json!({}), deadline)?;
    Ok(answer.get("status").and_then(Value::as_str).unwrap_or("unknown").to_owned())
}

pub(super) fn quit(qmp: &mut Qmp, deadline: Instant) -> Result<(), MigrateError> {
    match qmp.execute("quit", json!({}), deadline) {
        Ok(_) | Err(QmpError::Closed { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
