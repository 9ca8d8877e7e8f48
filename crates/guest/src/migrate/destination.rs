//! The side that the guest comes to.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::settings::{self, Settings};
use super::source::{quit, run_state};
use super::{MigrateError, command_deadline, next_slice, unix_uri};
use crate::qmp::{Qmp, QmpError};

/// The destination's QEMU, started with `-incoming defer -S`.
#[derive(Debug)]
pub struct DestinationQemu {
    pub(super) qmp: Qmp,
    /// How it was set at the beginning; none if that is not known.
    pub(super) found: Option<Settings>,
    /// Images that it offers for disks that go along.
    pub(super) exports: usize,
}

impl DestinationQemu {
    /// Takes a connection over.
    pub fn new(qmp: Qmp) -> DestinationQemu {
        DestinationQemu { qmp, found: None, exports: 0 }
    }

    /// For a guest that an earlier agent left in the middle: how it was set comes from the journal.
    pub fn recovered(qmp: Qmp, found: Option<Settings>) -> DestinationQemu {
        DestinationQemu { qmp, found, exports: 0 }
    }

    /// How QEMU was set before it was prepared.
    pub fn found(&self) -> Option<&Settings> {
        self.found.as_ref()
    }

    /// The connection, for what is not of a migration.
    pub fn qmp(&mut self) -> &mut Qmp {
        &mut self.qmp
    }

    /// QEMU's run state (`inmigrate`, `paused`, `running`).
    pub fn status(&mut self, deadline: Instant) -> Result<String, MigrateError> {
        run_state(&mut self.qmp, deadline)
    }

    /// Sets capabilities for direct mode. The announcement that QEMU makes by itself when it has loaded is put off: switches
    /// must not learn the new port before the guest is committed. So are its disks (QEMU 3.0 and later): whoever holds an image's
    /// lock while it waits keeps the guest from running at the source again.
    pub fn prepare(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        let found = self.status(deadline)?;
        if found != "inmigrate" {
            return Err(MigrateError::RunState { found, wanted: "inmigrate" });
        }
        let wanted = ["x-ignore-shared", "events", "late-block-activate"];
        self.found = Some(Settings::read(&mut self.qmp, deadline)?);
        settings::set(&mut self.qmp, &wanted, json!({ "announce-rounds": 0 }), deadline)
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

    /// Commits: runs the guest. [`DestinationQemu::settle`] comes after it, when nobody waits any more.
    pub fn resume(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        if self.status(deadline)? != "running" {
            self.qmp.execute("cont", json!({}), deadline)?;
        }
        Ok(())
    }

    /// Lets QEMU announce the guest's addresses and puts the settings back. The guest runs: what fails here is only told.
    pub fn settle(&mut self, deadline: Instant) {
        let rounds = json!({ "initial": 50, "max": 550, "rounds": 5, "step": 100 });
        if let Err(error) = self.qmp.execute("announce-self", rounds, deadline) {
            tracing::warn!(%error, "the guest's addresses could not be announced");
        }
        if let Err(error) = self.release(deadline) {
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
            match found.as_str() {
                "inmigrate" => std::thread::sleep(Duration::from_micros(200)),
                "paused" | "running" | "prelaunch" => return Ok(()),
                _ => return Err(MigrateError::RunState { found, wanted: "paused" }),
            }
            if Instant::now() >= deadline {
                return Err(QmpError::TimedOut { doing: "waiting for the loaded guest".into() }.into());
            }
        }
    }

    fn release(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        Settings::put_back(self.found.as_ref(), &mut self.qmp, deadline)
    }

    fn asked_status(&mut self, deadline: Instant) -> Result<String, MigrateError> {
        let answer = self.qmp.execute("query-migrate", json!({}), deadline).map_err(ended)?;
        Ok(answer.get("status").and_then(Value::as_str).unwrap_or("none").to_owned())
    }

    pub(super) fn failed(&mut self, deadline: Instant) -> MigrateError {
        match self.qmp.execute("query-migrate", json!({}), deadline) {
            Ok(answer) => {
                let said = answer.get("error-desc").and_then(Value::as_str);
                let description = said.unwrap_or("QEMU gives no reason, see its log").to_owned();
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
