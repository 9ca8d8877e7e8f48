//! The side that the guest comes to.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::settings::{self, Settings};
use super::source::quit;
use super::{MigrateError, activate_disks, command_deadline, next_slice, unix_uri};
use crate::procfs;
use crate::qmp::{Qmp, QmpError};
use crate::run_state::RunState;

/// The destination's QEMU, started with `-incoming defer -S`.
#[derive(Debug)]
pub struct DestinationQemu {
    pub(super) qmp: Qmp,
    /// How it was set at the beginning; none if that is not known.
    pub(super) found: Option<Settings>,
    /// Images that it offers for copied disks.
    pub(super) exports: usize,
    /// Disks are taken over when the guest is let run, and not when its state is loaded.
    pub(super) activates_late: bool,
    /// QEMU has just said that the loaded guest is paused, so the first `cont` needs no look before it.
    just_loaded: bool,
    has_run: RunEvidence,
}

/// What is known of a guest that got the command to run, where the answer is lost.
#[derive(Debug, Default)]
struct RunEvidence {
    /// QEMU's RESUME event has come.
    resumed: bool,
    /// Its virtual CPUs have used time since it was committed. A little of that may be QEMU's own work.
    cpus_worked: bool,
}

/// What became of taking the guest over.
#[derive(Debug)]
pub enum TakeOverResult {
    /// It runs, or its disks were taken over if it was not to run.
    Done,
    /// QEMU refused, and the guest has not run here.
    Refused(MigrateError),
    /// QEMU did not answer, or its answer is lost: whether the guest runs is not known.
    Unknown(MigrateError),
}

impl DestinationQemu {
    /// Takes a connection over.
    pub fn new(qmp: Qmp) -> DestinationQemu {
        DestinationQemu::recovered(qmp, None)
    }

    /// For a guest that an earlier agent left in the middle: how it was set comes from the journal.
    pub fn recovered(qmp: Qmp, found: Option<Settings>) -> DestinationQemu {
        DestinationQemu {
            qmp,
            found,
            exports: 0,
            activates_late: true,
            just_loaded: false,
            has_run: RunEvidence::default(),
        }
    }

    /// Takes another connection in place of one that was lost. `cpus_worked`: the virtual CPUs have used time since
    /// the guest was committed. A connection on which an answer is only late is kept: the next answer comes behind it,
    /// with the events.
    pub fn reconnect(&mut self, qmp: Qmp, cpus_worked: bool) {
        self.qmp = qmp;
        self.has_run.cpus_worked = cpus_worked;
    }

    /// How QEMU was set before it was prepared.
    pub fn found(&self) -> Option<&Settings> {
        self.found.as_ref()
    }

    /// The connection, for what is not of a migration.
    pub fn qmp(&mut self) -> &mut Qmp {
        &mut self.qmp
    }

    /// Asks QEMU for the guest's run state.
    pub fn status(&mut self, deadline: Instant) -> Result<RunState, MigrateError> {
        Ok(RunState::ask(&mut self.qmp, deadline)?)
    }

    /// Sets capabilities for direct mode. The announcement that QEMU makes by itself when it has loaded is put off:
    /// switches must not learn the new port before the guest is committed. So are its disks (QEMU 3.0 and later):
    /// holding an image's lock while it waits would keep the guest from running at the source again. `runs`: the guest
    /// runs at the source. One that does not is not let run here, and QEMU before 10.0 takes disks over only then or
    /// when it has loaded the state.
    pub fn prepare(&mut self, runs: bool, deadline: Instant) -> Result<(), MigrateError> {
        let found = self.status(deadline)?;
        if found != RunState::InMigrate {
            return Err(MigrateError::RunState { found, wanted: RunState::InMigrate });
        }
        self.activates_late = runs;
        let wanted = ["x-ignore-shared", "events", "late-block-activate"];
        let wanted = if runs { &wanted[..] } else { &wanted[..2] };
        self.found = Some(Settings::read(&mut self.qmp, deadline)?);
        settings::set(&mut self.qmp, wanted, json!({ "announce-rounds": 0 }), deadline)
    }

    /// Listens on a UNIX socket for the source's state.
    pub fn incoming(&mut self, socket: &Path, deadline: Instant) -> Result<(), MigrateError> {
        self.qmp.execute("migrate-incoming", unix_uri(socket)?, deadline)?;
        Ok(())
    }

    /// Waits until the state is loaded and the guest could run. A state that does not fit ends the process.
    pub fn wait_loaded(&mut self, deadline: Instant, give_up: &dyn Fn() -> bool) -> Result<(), MigrateError> {
        loop {
            let slice = next_slice(deadline, give_up)?;
            let status = match self.qmp.wait_event(|event| event.name == "MIGRATION", slice) {
                Ok(event) => event.migration_status().unwrap_or_default().to_owned(),
                Err(QmpError::TimedOut { .. }) => self.asked_status(command_deadline())?,
                Err(error) => return Err(ended(error)),
            };
            match status.as_str() {
                "completed" => return self.wait_paused(command_deadline()),
                "failed" => return Err(self.failed(command_deadline())),
                _ => {}
            }
        }
    }

    /// Commits: runs the guest, or only takes its disks over if it did not run (`ran`) at the source.
    /// [`DestinationQemu::settle`] comes after it, when no caller waits any more.
    pub fn take_over(&mut self, ran: bool, deadline: Instant) -> TakeOverResult {
        let done = if ran { self.run(deadline) } else { self.activate(deadline) };
        match done {
            Ok(()) => TakeOverResult::Done,
            Err(
                error @ (MigrateError::Qmp(QmpError::Refused { .. }) | MigrateError::CannotActivate { .. }),
            ) => match self.status(deadline) {
                // Another client let it run meanwhile.
                Ok(status) if status.is_live() => TakeOverResult::Done,
                Ok(_) => TakeOverResult::Refused(error),
                Err(error) => TakeOverResult::Unknown(error),
            },
            Err(error) => TakeOverResult::Unknown(error),
        }
    }

    // QEMU takes the disks over first and starts no virtual CPU if it cannot.
    fn run(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        // This is part of the blackout: the first try asks for nothing that is known.
        let status = match std::mem::take(&mut self.just_loaded) {
            true => RunState::Paused,
            false => self.status(deadline)?,
        };
        if status.is_live() {
            return Ok(());
        }
        if self.has_run(deadline) {
            tracing::warn!(%status, "the guest was paused since it ran here: it stays paused");
            return Ok(());
        }
        self.qmp.execute("cont", json!({}), deadline)?;
        Ok(())
    }

    /// It has run here, and whatever keeps it from running now is its operator's business. QEMU takes the disks over
    /// before it lets a guest run: without them its virtual CPUs have done nothing of the guest's.
    fn has_run(&mut self, deadline: Instant) -> bool {
        self.has_run.resumed |= self.qmp.wait_event(|event| event.name == "RESUME", Instant::now()).is_ok();
        self.has_run.resumed || (self.has_run.cpus_worked && self.check_active(deadline).is_ok())
    }

    /// Takes the disks over without letting the guest run.
    fn activate(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        if self.status(deadline)? == RunState::Running {
            return Ok(());
        }
        if activate_disks(&mut self.qmp, deadline)? { Ok(()) } else { self.check_active(deadline) }
    }

    /// Before QEMU 10.0 only the locks on its images show whether it has taken them over.
    fn check_active(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        let pid = self.qmp.peer_pid()?;
        let nodes = self.qmp.execute("query-named-block-nodes", json!({ "flat": true }), deadline)?;
        let unlocked = nodes.as_array().into_iter().flatten().find_map(|node| {
            let writes = node["ro"] == false && matches!(node["drv"].as_str(), Some("file" | "host_device"));
            let file = node["file"].as_str().filter(|_| writes)?;
            let locked = procfs::holds_locks(pid, Path::new(file));
            (!locked).then(|| file.to_owned())
        });
        let Some(file) = unlocked else { return Ok(()) };
        let why = if self.activates_late {
            "the guest was paused while it was moved, and this QEMU takes disks over only when a guest runs; start the migration again".into()
        } else {
            format!("QEMU holds no lock on {file}: another process has it, or it cannot be written")
        };
        Err(MigrateError::CannotActivate { why })
    }

    /// Lets QEMU announce the guest's addresses and puts the settings back. The guest runs: what fails here is only
    /// logged.
    pub fn settle(&mut self, deadline: Instant) {
        let rounds = json!({ "initial": 50, "max": 550, "rounds": 5, "step": 100 });
        if let Err(error) = self.qmp.execute("announce-self", rounds, deadline) {
            tracing::warn!(%error, "the guest's addresses could not be announced");
        }
        self.put_back(deadline);
    }

    /// Has QEMU save RAM again. When the state is loaded nothing needs that setting any more; of a guest that runs, a
    /// snapshot or another migration would leave RAM out. All settings are put back when no caller waits
    /// ([`DestinationQemu::settle`]).
    pub fn save_ram_again(&mut self, deadline: Instant) {
        if let Err(error) = settings::set_capabilities(&mut self.qmp, &[("x-ignore-shared", false)], deadline)
        {
            tracing::warn!(%error, "the incoming QEMU could not be set to save RAM again");
        }
    }

    /// Puts all settings back.
    pub fn put_back(&mut self, deadline: Instant) {
        if let Err(error) = Settings::put_back(self.found.as_ref(), &mut self.qmp, deadline) {
            tracing::warn!(%error, "migration settings could not be put back");
        }
    }

    /// Ends the process: the guest was given up here before it ran.
    pub fn quit(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        quit(&mut self.qmp, deadline)
    }

    /// Gives the connection back.
    pub fn into_qmp(self) -> Qmp {
        self.qmp
    }

    // The event comes a moment before the run state changes; "cont" in between would be undone.
    pub(super) fn wait_paused(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        loop {
            let found = self.status(deadline).map_err(|error| match error {
                MigrateError::Qmp(error) => ended(error),
                other => other,
            })?;
            match found {
                RunState::InMigrate => std::thread::sleep(Duration::from_micros(200)),
                // A guest that did not run at the source is in the state that it had there.
                status => {
                    self.just_loaded = status == RunState::Paused;
                    return Ok(());
                }
            }
            if Instant::now() >= deadline {
                return Err(QmpError::TimedOut { doing: "waiting for the loaded guest".into() }.into());
            }
        }
    }

    fn asked_status(&mut self, deadline: Instant) -> Result<String, MigrateError> {
        let answer = self.qmp.execute("query-migrate", json!({}), deadline).map_err(ended)?;
        Ok(answer.get("status").and_then(Value::as_str).unwrap_or("none").to_owned())
    }

    pub(super) fn failed(&mut self, deadline: Instant) -> MigrateError {
        match self.qmp.execute("query-migrate", json!({}), deadline) {
            Ok(answer) => {
                let description = answer.get("error-desc").and_then(Value::as_str);
                let description = description.unwrap_or("QEMU gives no reason, see its log").to_owned();
                MigrateError::Failed { status: "failed".into(), description }
            }
            Err(error) => ended(error),
        }
    }
}

pub(super) fn ended(error: QmpError) -> MigrateError {
    match error {
        QmpError::Closed { .. } | QmpError::Broken => MigrateError::LoaderEnded(error),
        other => MigrateError::Qmp(other),
    }
}
