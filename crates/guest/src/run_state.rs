//! QEMU's run state, and what follows from it for a migration.

use std::fmt;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::qmp::{Qmp, QmpError};

/// QEMU's `RunState`, with its names in QMP (`qapi/run-state.json`). It is kept and sent under those names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum RunState {
    /// `running`: the virtual CPUs run.
    Running,
    /// `paused`: stopped by the QMP command `stop`.
    Paused,
    /// `prelaunch`: started with `-S`, or reset while it was stopped.
    PreLaunch,
    /// `inmigrate`: waits for an incoming migration, or loads one.
    InMigrate,
    /// `finish-migrate`: QEMU has stopped it to end its migration.
    FinishMigrate,
    /// `postmigrate`: its state has been written. QEMU before 8.0 leaves a stopped guest in it after a cancel too.
    PostMigrate,
    /// `colo`: stopped for a checkpoint of QEMU's COLO.
    Colo,
    /// `suspended`: asleep (ACPI S3), and runs as soon as it wakes up.
    Suspended,
    /// `shutdown`: shut down under `-no-shutdown`.
    Shutdown,
    /// `io-error`: a disk failed, and is configured to stop the guest then.
    IoError,
    /// `internal-error`: the virtual CPU cannot go on.
    InternalError,
    /// `watchdog`: its watchdog has expired, and is configured to stop the guest then.
    Watchdog,
    /// `guest-panicked`: its kernel has panicked.
    GuestPanicked,
    /// `debug`: stopped at a break point.
    Debug,
    /// `save-vm`: stopped while a snapshot is saved.
    SaveVm,
    /// `restore-vm`: stopped while a snapshot is loaded. A `loadvm` that failed leaves the guest in it.
    RestoreVm,
    /// A name that is not in the table, as QEMU said it. It never counts as running, nor as safe to resume.
    Unknown(String),
}

/// Every state but the unknown, with its name in QMP.
const NAMES: [(RunState, &str); 16] = [
    (RunState::Running, "running"),
    (RunState::Paused, "paused"),
    (RunState::PreLaunch, "prelaunch"),
    (RunState::InMigrate, "inmigrate"),
    (RunState::FinishMigrate, "finish-migrate"),
    (RunState::PostMigrate, "postmigrate"),
    (RunState::Colo, "colo"),
    (RunState::Suspended, "suspended"),
    (RunState::Shutdown, "shutdown"),
    (RunState::IoError, "io-error"),
    (RunState::InternalError, "internal-error"),
    (RunState::Watchdog, "watchdog"),
    (RunState::GuestPanicked, "guest-panicked"),
    (RunState::Debug, "debug"),
    (RunState::SaveVm, "save-vm"),
    (RunState::RestoreVm, "restore-vm"),
];

impl RunState {
    /// Asks QEMU for it (`query-status`).
    pub fn ask(qmp: &mut Qmp, deadline: Instant) -> Result<RunState, QmpError> {
        let answer = qmp.execute("query-status", json!({}), deadline)?;
        let name = answer.get("status").and_then(Value::as_str);
        name.map(RunState::from).ok_or(QmpError::Malformed { what: "query-status names no status" })
    }

    /// Its name in QMP.
    pub fn name(&self) -> &str {
        match self {
            RunState::Unknown(name) => name,
            known => NAMES.iter().find(|(state, _)| state == known).map_or("", |(_, name)| name),
        }
    }

    /// Virtual CPUs run, or do as soon as the guest wakes up.
    pub fn is_live(&self) -> bool {
        matches!(self, RunState::Running | RunState::Suspended)
    }

    /// The operator keeps it from running.
    pub fn is_paused(&self) -> bool {
        matches!(self, RunState::Paused | RunState::PreLaunch)
    }

    /// The guest itself or an operator stopped it: a migration neither causes these states nor ends them. A client that
    /// wants the guest to run sends QEMU the command (`cont`, after a reset where QEMU asks for one).
    pub fn stopped_by_itself(&self) -> bool {
        matches!(
            self,
            RunState::IoError
                | RunState::Watchdog
                | RunState::GuestPanicked
                | RunState::InternalError
                | RunState::Shutdown
                | RunState::Suspended
                | RunState::Debug
                | RunState::RestoreVm
                | RunState::SaveVm
        )
    }

    /// QEMU cannot go from here to the states of a migration: it aborts, and the guest is lost.
    pub(crate) fn aborts_migration(&self) -> bool {
        matches!(self, RunState::RestoreVm | RunState::SaveVm)
    }
}

impl From<&str> for RunState {
    fn from(name: &str) -> RunState {
        let known = NAMES.iter().find(|(_, known)| *known == name).map(|(state, _)| state.clone());
        known.unwrap_or_else(|| RunState::Unknown(name.to_owned()))
    }
}

impl From<String> for RunState {
    fn from(name: String) -> RunState {
        RunState::from(name.as_str())
    }
}

impl From<RunState> for String {
    fn from(state: RunState) -> String {
        state.name().to_owned()
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `RunState` of QEMU 10.0's `qapi/run-state.json`, in its order.
    const QEMU: [&str; 16] = [
        "debug",
        "inmigrate",
        "internal-error",
        "io-error",
        "paused",
        "postmigrate",
        "prelaunch",
        "finish-migrate",
        "restore-vm",
        "running",
        "save-vm",
        "shutdown",
        "suspended",
        "watchdog",
        "guest-panicked",
        "colo",
    ];

    #[test]
    fn every_state_of_qemu_is_known_and_keeps_its_name() {
        for name in QEMU {
            let state = RunState::from(name);
            assert!(!matches!(state, RunState::Unknown(_)), "{name}");
            assert_eq!((state.name(), state.to_string().as_str()), (name, name));
            let json = serde_json::to_string(&state).unwrap();
            assert_eq!(json, format!("\"{name}\""), "records and peers have QEMU's name");
            assert_eq!(serde_json::from_str::<RunState>(&json).unwrap(), state);
        }
        let mut named: Vec<_> = NAMES.iter().map(|(_, name)| *name).collect();
        named.sort_unstable();
        named.dedup();
        assert_eq!(named.len(), QEMU.len());
    }

    #[test]
    fn unknown_state_stays_visible_and_counts_as_nothing() {
        for name in ["preconfig", "", "Running", "running "] {
            let state = RunState::from(name);
            assert_eq!(state, RunState::Unknown(name.into()));
            assert_eq!(state.to_string(), name);
            let classes =
                [state.is_live(), state.is_paused(), state.stopped_by_itself(), state.aborts_migration()];
            assert_eq!(classes, [false; 4], "{name:?}");
        }
    }

    #[test]
    fn each_class_has_the_states_that_it_names() {
        let of = |class: fn(&RunState) -> bool| -> Vec<&str> {
            QEMU.into_iter().filter(|name| class(&RunState::from(*name))).collect()
        };
        assert_eq!(of(RunState::is_live), ["running", "suspended"]);
        assert_eq!(of(RunState::is_paused), ["paused", "prelaunch"]);
        assert_eq!(of(RunState::aborts_migration), ["restore-vm", "save-vm"]);
        assert_eq!(
            of(RunState::stopped_by_itself),
            [
                "debug",
                "internal-error",
                "io-error",
                "restore-vm",
                "save-vm",
                "shutdown",
                "suspended",
                "watchdog",
                "guest-panicked"
            ]
        );
    }
}
