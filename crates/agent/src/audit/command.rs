//! What the commands that change membership of a cluster write down. They work with or without a running agent, and so
//! not through it.

use std::error::Error;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use linerate_api::{AuditAction, AuditCaller, AuditEntry, AuditResult};
use linerate_trust::files::{self, FileError};
use nix::unistd::{Uid, User};

use super::log::{Files, Lines, Log};
use super::{entry, shorten};
use crate::config::Config;
use crate::faults::chain;

/// Another command writes its line for no longer.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// Where their lines are: no other process writes to the agent's own files.
pub(super) fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("audit-commands.jsonl")
}

/// Writes a line of a command, of the user that runs it. `done` is what was done, or why it was not.
pub(crate) fn record(
    config: &Config,
    action: AuditAction,
    to: Option<String>,
    done: Result<String, &(dyn Error + 'static)>,
) {
    let uid = Uid::current();
    let user = User::from_uid(uid).ok().flatten().map(|user| user.name);
    let pid = i32::try_from(std::process::id()).ok();
    let caller = AuditCaller::Local { uid: uid.as_raw(), user, pid };
    let (result, reason) = match done {
        Ok(text) => (AuditResult::Done, text),
        Err(error) => (AuditResult::Failed, chain(error)),
    };
    let mut line = AuditEntry { to, reason: Some(reason), ..entry(action, result, caller) };
    for text in [&mut line.to, &mut line.reason] {
        text.iter_mut().for_each(shorten);
    }
    // What was done is done.
    if let Err(error) = append(&config.state_dir, &line) {
        tracing::error!(error = chain(&error), action = action.name(), "the audit log was not written");
    }
}

fn append(state_dir: &Path, line: &AuditEntry) -> io::Result<()> {
    let path = file(state_dir);
    files::make_folder(state_dir).map_err(io::Error::other)?;
    let lock = lock(&path).map_err(io::Error::other)?;
    let _alone = lock.ok_or_else(|| io::Error::other("another command writes to it"))?;
    Log::open(&path)?.append(line)
}

/// Their lines so far. A line that a command is just writing is waited for: half of it would be taken for a damaged
/// one. What holds the lock for longer keeps nobody from reading.
pub(super) fn lines(files: &Files) -> io::Result<Lines> {
    let _alone = lock(files.written()).ok().flatten();
    files.lines()
}

/// None if another process writes to the file for long.
pub(super) fn lock(path: &Path) -> Result<Option<File>, FileError> {
    files::lock_within(&path.with_extension("jsonl.lock"), LOCK_WAIT)
}
