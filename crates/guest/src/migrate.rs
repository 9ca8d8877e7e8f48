//! The operations of a migration on QEMU's side, each of them small. Who calls which when is the core's matter.
//!
//! ```mermaid
//! stateDiagram-v2
//!   [*] --> running
//!   running --> prepared: prepare
//!   prepared --> migrating: begin
//!   migrating --> pre_switchover: wait_pre_switchover (the guest is stopped)
//!   pre_switchover --> completed: cont_switchover, wait_completed
//!   prepared --> running: cancel
//!   migrating --> running: cancel
//!   pre_switchover --> running: cancel
//!   completed --> [*]: quit
//! ```
//!
//! `prepare` changes capabilities and parameters. `cancel` at the source and `settle` at the destination put them back,
//! so that the survivor is as it was. How it was is read before anything is changed, and kept in the agent's journal.

mod cancel_and_resume;
mod destination;
mod mirrors;
mod pause_mark;
mod plugged;
mod settings;
mod source;
mod streams;

pub use destination::{DestinationQemu, TakeOverResult};
pub use mirrors::{Export, MirrorProgress, Writes};
pub use pause_mark::PauseMark;
pub use settings::Settings;
pub use source::{PreSwitchover, SourceQemu};
pub use streams::{StreamLimits, StreamOptions, StreamProgress};

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::qmp::{Qmp, QmpError};
use crate::run_state::RunState;

/// Why an operation did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    #[error("QEMU could not be given its settings")]
    Qmp(#[from] QmpError),
    #[error("this QEMU has no migration capability {0}: QEMU 4.0 or later is needed")]
    CapabilityMissing(&'static str),
    #[error("another migration of this guest is in progress (status {0}): wait for it or cancel it")]
    Busy(String),
    #[error("QEMU's migration ended as {status}: {description}")]
    Failed {
        status: String,
        /// QEMU's sentence, or a text that there was none.
        description: String,
    },
    /// The migration was completed: the guest has left, it must not run here again.
    #[error(
        "the migration was completed already: the guest's state has left this process, it is not resumed here"
    )]
    AlreadyCompleted,
    /// A migration that another program began is in progress, or has moved the guest away.
    #[error("another program has begun a migration of this guest (status {0})")]
    Elsewhere(String),
    #[error(
        "the guest is in the state {0}: a snapshot of it is being saved or loaded, or could not be loaded. QEMU would end with the guest if it were to migrate now. Load the snapshot again or let the guest run (QMP cont), and start the migration again"
    )]
    Snapshot(RunState),
    /// A device came or went.
    #[error(
        "the guest's devices were changed during the migration: {change}. The destination was started with those of the beginning; start the migration again"
    )]
    Devices { change: String },
    /// The process ended while it loaded the state.
    #[error(
        "the incoming QEMU ended while it loaded the guest's state: see its log for the device that differs"
    )]
    LoaderEnded(#[source] QmpError),
    /// The run state is not what the operation needs.
    #[error("the guest is {found}, {wanted} was expected")]
    RunState {
        found: RunState,
        /// What the operation needs.
        wanted: RunState,
    },
    /// The disks of a guest that is not to run cannot be taken over.
    #[error("the guest's disks cannot be taken over: {why}")]
    CannotActivate { why: String },
    /// Without the mark no agent would let the guest run again if this one ended.
    #[error("the guest is not stopped for a moment, because that cannot be noted in {path}")]
    PauseMark {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A wait was ended by its caller.
    #[error("given up meanwhile")]
    GivenUp,
    /// A disk cannot be copied any more.
    #[error("the disk {disk} could not be copied: {description}")]
    Mirror {
        disk: String,
        /// QEMU's sentence, or what was seen.
        description: String,
    },
    /// The image that a disk was to go into is another process's.
    #[error(
        "{path} is open for writing already: if it is the very image that the guest uses, both hosts see the same storage and the migration needs no copy of it; else end what has it open"
    )]
    ImageInUse {
        path: PathBuf,
        #[source]
        source: QmpError,
    },
    /// The image that a disk was to go into cannot be used.
    #[error("the incoming QEMU cannot write the image {path}")]
    Image {
        path: PathBuf,
        #[source]
        source: QmpError,
    },
    /// A path that cannot be put into a QEMU address.
    #[error("the socket path {0} cannot be used in a QEMU address")]
    Path(String),
}

impl MigrateError {
    /// QEMU has not answered yet, and its connection is still good: its last command is carried out before the next.
    pub fn is_late(&self) -> bool {
        matches!(self, MigrateError::Qmp(QmpError::TimedOut { .. }))
    }

    /// QEMU refused, as another process has the lock of one of the guest's images.
    pub fn is_lock(&self) -> bool {
        matches!(self, MigrateError::Qmp(QmpError::Refused { description, .. }) if description.contains("\" lock"))
    }

    /// QEMU answered, so that its connection is still good.
    pub fn is_answer(&self) -> bool {
        match self {
            MigrateError::Qmp(error) => matches!(error, QmpError::Refused { .. }),
            MigrateError::LoaderEnded(_) => false,
            _ => true,
        }
    }
}

/// A wait for events is interrupted this often. Then the status is asked for, since an event can have been lost with an
/// earlier connection. The wait ends if it is no longer wanted.
const ASK_AFTER: Duration = Duration::from_millis(50);
/// A command is answered within this, even by a QEMU that loads a large state meanwhile. It is no part of a wait's own
/// limit: a command whose answer is not awaited makes the connection useless.
const COMMAND_WAIT: Duration = Duration::from_secs(30);

fn command_deadline() -> Instant {
    Instant::now() + COMMAND_WAIT
}

/// Until when to wait for the next event, unless the wait as a whole is over.
fn next_slice(deadline: Instant, give_up: &dyn Fn() -> bool) -> Result<Instant, MigrateError> {
    let now = Instant::now();
    if give_up() {
        Err(MigrateError::GivenUp)
    } else if now >= deadline {
        Err(QmpError::TimedOut { doing: "waiting for the migration".into() }.into())
    } else {
        Ok(deadline.min(now + ASK_AFTER))
    }
}

/// The address of a UNIX socket as QEMU writes it.
fn unix_uri(path: &Path) -> Result<Value, MigrateError> {
    match path.to_str() {
        Some(text) if !text.is_empty() && text.len() <= 107 => Ok(json!({ "uri": format!("unix:{text}") })),
        _ => Err(MigrateError::Path(path.display().to_string())),
    }
}

/// Has QEMU take the disks over without running the guest; false if it is older than 10.0 and cannot.
fn activate_disks(qmp: &mut Qmp, deadline: Instant) -> Result<bool, QmpError> {
    match qmp.execute("blockdev-set-active", json!({ "active": true }), deadline) {
        Ok(_) => Ok(true),
        Err(QmpError::Refused { class, .. }) if class == "CommandNotFound" => Ok(false),
        Err(error) => Err(error),
    }
}

// Sockets of others are worse than an error, so the two sides agree on what is at rest.
fn at_rest(status: &str) -> bool {
    matches!(status, "none" | "completed" | "failed" | "cancelled")
}
