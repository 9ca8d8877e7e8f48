//! What can go wrong in a lab.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// Why a lab could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// No certificate could be made.
    #[error("no certificate for a host of the lab: {source}")]
    Trust {
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A program could not be started at all.
    #[error("cannot start {program}: {source}; run lab/install.sh")]
    Spawn {
        program: String,
        #[source]
        source: io::Error,
    },
    /// A set-up command ended with an error.
    #[error("`{command}` failed ({status}): {stderr}")]
    Command {
        /// The whole command line.
        command: String,
        status: ExitStatus,
        stderr: String,
    },
    /// A file or socket operation failed.
    #[error("cannot {what} {path}: {source}", path = path.display())]
    Io {
        /// The attempt, as a verb.
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Something did not happen in time.
    #[error("{what} did not happen within {waited:?}{tail}")]
    Deadline {
        what: String,
        /// How long was waited.
        waited: Duration,
        /// The end of the log that may say why, or nothing.
        tail: String,
    },
    /// A process ended that should have gone on.
    #[error("{name} ended early ({status}){tail}")]
    Ended {
        name: String,
        status: ExitStatus,
        /// The end of its log.
        tail: String,
    },
    /// A prerequisite of the lab is not in place.
    #[error("{path} is missing: run lab/install.sh", path = path.display())]
    Missing { path: PathBuf },
    /// The agent's binary was not found.
    #[error("no linerate binary: build it, or set LINERATE_BIN")]
    NoLinerate,
    /// All address ranges are taken by other labs.
    #[error("too many labs at once: every address range is taken; run `linerate-lab sweep`")]
    NoAddressRange,
    /// A host, link or lab that does not exist.
    #[error("no such {kind}: {name}")]
    Unknown {
        /// What was looked for.
        kind: &'static str,
        name: String,
    },
    /// A link list or rate that cannot be read.
    #[error("'{text}' is not a list of link rates in Mb/s such as 2x2500, 2500,1000 or 2500/1000")]
    LinkSpec { text: String },
    /// A number of hosts that a lab cannot have.
    #[error("a lab has 2 to 20 hosts and 1 to 100 links, not {hosts} and {links}")]
    Size { hosts: usize, links: usize },
    /// QEMU refused a command.
    #[error("QEMU refused {command}: {answer}")]
    Qmp { command: String, answer: String },
    /// A JSON document could not be read or written.
    #[error("{what} is not what was expected: {source}")]
    Json {
        what: String,
        #[source]
        source: serde_json::Error,
    },
    /// A configuration file could not be rendered.
    #[error("cannot render {what}: {source}")]
    Toml {
        what: &'static str,
        #[source]
        source: toml::ser::Error,
    },
}

/// Adds the operation and the path to an I/O error.
pub(crate) fn io_error<'a>(
    what: &'static str,
    path: impl Into<PathBuf> + 'a,
) -> impl FnOnce(io::Error) -> LabError + 'a {
    move |source| LabError::Io { what, path: path.into(), source }
}
