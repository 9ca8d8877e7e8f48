//! The side that the guest leaves.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::pause_mark::PauseMark;
use super::plugged;
use super::settings::{self, Settings, UNLIMITED};
use super::{MigrateError, at_rest, command_deadline, next_slice, unix_uri};
use crate::qmp::{Event, Qmp, QmpError};
use crate::run_state::RunState;

/// QEMU carries what it has of RAM itself (a display adapter's memory) while the guest runs. It goes on until the rest
/// takes no longer than this at the rate that it measures. Without such RAM nothing is left from the beginning, and it
/// stops the guest at once.
const LIVE_LIMIT: Duration = Duration::from_millis(5);
/// A display that is written faster than it can be carried never gets there: after this long QEMU is to stop the guest
/// whatever is left.
const LIVE_MAX: Duration = Duration::from_secs(1);
/// Longest downtime limit that QEMU takes is 2000 s; this is more than anything left can need.
const ANY_LIMIT: Duration = Duration::from_secs(300);
/// Capabilities of direct mode.
const DIRECT: &[&str] = &["x-ignore-shared", "events", "pause-before-switchover"];
/// Pause between two queries where there is no event.
const POLL: Duration = Duration::from_millis(2);

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

#[derive(Debug)]
pub struct SourceQemu {
    pub(super) qmp: Qmp,
    /// How it was set at the beginning; none if that is not known.
    pub(super) found: Option<Settings>,
    /// The guest ran when this began, or when QEMU stopped it, and must run again if it comes to nothing.
    pub(super) ran: bool,
    /// [`SourceQemu::pause`] stopped the guest, and it has not run since. If that is not known, it may have.
    pub(super) paused_here: bool,
    /// Where [`SourceQemu::pause`] is noted for the next agent.
    mark: Option<PauseMark>,
    /// The guest's run state if it does not run, and neither [`SourceQemu::pause`] nor QEMU's migration stopped it.
    pub(super) run_state_before: Option<RunState>,
    /// This session has sent QEMU the command to migrate; none if that is not known.
    pub(super) begun: Option<bool>,
    /// Devices that it had at the beginning; none if that is not known.
    devices: Option<Vec<String>>,
    /// How QEMU is set when it gets the command to migrate; none if it is set already.
    to_set: Option<Value>,
    /// Drives that are being mirrored to the destination, in order.
    pub(super) copied: Vec<String>,
}

impl SourceQemu {
    /// Takes a connection over; asks whether the guest runs and how it is set.
    pub fn new(mut qmp: Qmp, deadline: Instant) -> Result<SourceQemu, MigrateError> {
        let state = RunState::ask(&mut qmp, deadline)?;
        check_state(&state)?;
        let ran = state == RunState::Running;
        let found = Some(Settings::read(&mut qmp, deadline)?);
        let (begun, run_state_before) = (Some(false), (!ran).then_some(state));
        let devices = Some(plugged::devices(&mut qmp, deadline)?);
        Ok(SourceQemu { begun, run_state_before, devices, ..SourceQemu::recovered(qmp, ran, found, false) })
    }

    /// For a guest that was left in the middle by an earlier agent, which may have stopped it for a moment: how it was
    /// at the beginning comes from the journal.
    ///
    /// `paused_here`: that agent had stopped the guest itself. Otherwise another client paused a paused guest,
    /// and that client has to let it run again.
    pub fn recovered(qmp: Qmp, ran: bool, found: Option<Settings>, paused_here: bool) -> SourceQemu {
        SourceQemu {
            qmp,
            found,
            ran,
            paused_here,
            mark: None,
            run_state_before: None,
            begun: None,
            devices: None,
            to_set: None,
            copied: Vec::new(),
        }
    }

    /// Has its own pauses noted there.
    pub fn mark_pauses(&mut self, mark: PauseMark) {
        self.mark = Some(mark);
    }

    pub(super) fn unmark(&self) {
        self.mark.iter().for_each(PauseMark::clear);
    }

    /// The guest's run state before QEMU's migration stopped it, if it did not run. If that is not known, a guest that
    /// did not run stays as QEMU leaves it.
    pub fn with_run_state_before(mut self, state: Option<RunState>) -> SourceQemu {
        self.run_state_before = state;
        self
    }

    /// The run state of a guest that did not run before QEMU stopped it.
    pub fn run_state_before(&self) -> Option<&RunState> {
        self.run_state_before.as_ref()
    }

    /// Takes another connection in place of one that was lost.
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

    /// Whether it has the devices that it had at the beginning, with which the destination was started.
    pub fn check_devices(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        let Some(before) = &self.devices else { return Ok(()) };
        let now = plugged::devices(&mut self.qmp, deadline)?;
        match plugged::change(before, &now) {
            Some(change) => Err(MigrateError::Devices { change }),
            None => Ok(()),
        }
    }

    /// Asks QEMU for the guest's run state.
    pub fn status(&mut self, deadline: Instant) -> Result<RunState, MigrateError> {
        Ok(RunState::ask(&mut self.qmp, deadline)?)
    }

    /// Chooses capabilities and parameters for direct mode. They are set when QEMU gets the command to migrate, and not
    /// before: a snapshot or another migration that another client asks for meanwhile would leave the guest's RAM out.
    pub fn prepare(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        self.check_at_rest(deadline)?;
        settings::check(&mut self.qmp, DIRECT, deadline)?;
        self.to_set =
            Some(json!({ "max-bandwidth": UNLIMITED, "downtime-limit": LIVE_LIMIT.as_millis() as u64 }));
        Ok(())
    }

    /// No migration of this guest is in progress, and none has moved it away.
    pub(super) fn check_at_rest(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        let status = self.migration_status(deadline)?;
        match status.as_str() {
            "completed" if self.has_left(deadline)? => Err(MigrateError::AlreadyCompleted),
            status if at_rest(status) => Ok(()),
            _ => Err(MigrateError::Busy(status)),
        }
    }

    /// Starts QEMU's migration to a UNIX socket that has a listener already.
    pub fn begin(&mut self, socket: &Path, deadline: Instant) -> Result<(), MigrateError> {
        self.qmp.clear_events()?;
        self.check_at_rest(deadline)?;
        if let Some(parameters) = self.to_set.take() {
            settings::set(&mut self.qmp, DIRECT, parameters, deadline)?;
        }
        let state = self.status(deadline)?;
        check_state(&state)?;
        let runs = state == RunState::Running
            || (state == RunState::Suspended && self.counts_suspended_as_running());
        self.run_state_before = (!runs).then_some(state);
        let answer = self.qmp.execute("migrate", unix_uri(socket)?, deadline);
        // Without an answer it may have been carried out.
        self.begun = match &answer {
            Err(QmpError::Refused { .. }) => Some(false),
            Err(_) => None,
            Ok(_) => Some(true),
        };
        answer.map(drop).map_err(MigrateError::from)
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

    /// The same for any way of copying: `until` says how long to wait for the next event, and `asked` what QEMU's
    /// status is where none came.
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
                    // An operator's, or an I/O error's, is not QEMU's own for the migration: the guest does not run
                    // then.
                    let state = self.status(command_deadline())?;
                    check_state(&state)?;
                    let by_qemu =
                        matches!(state, RunState::Running | RunState::FinishMigrate | RunState::PostMigrate);
                    (self.run_state_before, stop) =
                        if by_qemu { (None, Some(event)) } else { (Some(state), None) };
                    continue;
                }
                Ok(event) if event.name == "RESUME" => {
                    (self.run_state_before, stop) = (None, None);
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
        self.ran = self.run_state_before.is_none();
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

    /// Whether the guest runs, after the roll-back: an operator or an I/O error may have stopped it on the way.
    pub fn runs(&mut self, deadline: Instant) -> Result<bool, MigrateError> {
        Ok(self.status(deadline)? == RunState::Running)
    }

    /// Stops a running guest, block I/O drained: protection is applied while it is paused. False if another program has
    /// stopped it before, and that client has to let it run again.
    pub fn pause(&mut self, deadline: Instant) -> Result<bool, MigrateError> {
        let found = self.status(deadline)?;
        while self.has_resumed() {}
        match found {
            RunState::Running => {
                if let Some(mark) = &self.mark {
                    mark.set()
                        .map_err(|source| MigrateError::PauseMark { path: mark.path().into(), source })?;
                }
                self.paused_here = true;
                self.qmp.execute("stop", json!({}), deadline)?;
                self.expect_status(RunState::Paused, deadline).map(|()| true)
            }
            ref state if state.stopped_by_itself() => Ok(false),
            ref state if self.can_continue(state, deadline)? => Ok(false),
            _ => Err(MigrateError::RunState { found, wanted: RunState::Running }),
        }
    }

    /// Whether a guest that [`SourceQemu::pause`] found paused has been paused ever since.
    pub fn has_stayed_paused(&mut self, deadline: Instant) -> Result<bool, MigrateError> {
        let is_paused = self.status(deadline)? != RunState::Running;
        Ok(!self.has_resumed() && is_paused)
    }

    /// Takes the next RESUME event. Before QEMU gets the command to migrate no other code waits for it.
    fn has_resumed(&mut self) -> bool {
        self.qmp.wait_event(|event| event.name == "RESUME", Instant::now()).is_ok()
    }

    /// Lets a guest run again that [`SourceQemu::pause`] stopped.
    pub fn resume(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        let found = self.status(deadline)?;
        match found {
            RunState::Running => {}
            ref state if state.stopped_by_itself() => return Ok(()),
            ref state if self.can_continue(state, deadline)? => {
                self.qmp.execute("cont", json!({}), deadline)?;
            }
            _ => return Err(MigrateError::RunState { found, wanted: RunState::Paused }),
        }
        self.paused_here = false;
        self.unmark();
        if found == RunState::Running { Ok(()) } else { self.expect_status(RunState::Running, deadline) }
    }

    /// Ends the process. QEMU may close the connection before it answers.
    pub fn quit(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        quit(&mut self.qmp, deadline)
    }

    // Older QEMUs leave a guest that was paused in "postmigrate" even after a cancelled migration: its state is still
    // here.
    pub(super) fn can_continue(&mut self, state: &RunState, deadline: Instant) -> Result<bool, MigrateError> {
        match state {
            // A guest that is reset while it is paused.
            RunState::Paused | RunState::PreLaunch => Ok(true),
            RunState::PostMigrate => {
                Ok(matches!(self.migration_status(deadline)?.as_str(), "cancelled" | "failed"))
            }
            _ => Ok(false),
        }
    }

    pub(super) fn expect_status(&mut self, wanted: RunState, deadline: Instant) -> Result<(), MigrateError> {
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
        let description = answer.get("error-desc").and_then(Value::as_str);
        let description = description.unwrap_or("QEMU gives no reason, the other side's log may").to_owned();
        MigrateError::Failed { status: status.to_owned(), description }
    }

    pub(super) fn pause_between(&self, deadline: Instant, doing: &str) -> Result<(), MigrateError> {
        if Instant::now() >= deadline {
            return Err(QmpError::TimedOut { doing: doing.into() }.into());
        }
        std::thread::sleep(POLL);
        Ok(())
    }
}

/// Whether QEMU can migrate a guest in this run state.
fn check_state(state: &RunState) -> Result<(), MigrateError> {
    if state.aborts_migration() { Err(MigrateError::Snapshot(state.clone())) } else { Ok(()) }
}

pub(super) fn quit(qmp: &mut Qmp, deadline: Instant) -> Result<(), MigrateError> {
    match qmp.execute("quit", json!({}), deadline) {
        Ok(_) | Err(QmpError::Closed { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
