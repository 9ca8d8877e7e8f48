//! A child process that never outlives its handle.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::error::io_error;
use crate::{LabError, wait};

const TAIL_LINES: usize = 30;

/// A child whose output goes to a log file. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts the command with its output appended to `log`; `name` is for messages.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Result<Process, LabError> {
        let file = File::options().create(true).append(true).open(log).map_err(io_error("open", log))?;
        let errors = file.try_clone().map_err(io_error("open", log))?;
        let child = command.stdin(Stdio::null()).stdout(file).stderr(errors).spawn().map_err(|source| {
            LabError::Spawn { program: command.get_program().to_string_lossy().into_owned(), source }
        })?;
        Ok(Process { name: name.to_owned(), log: log.to_owned(), child })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where its output goes.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The last lines of its log, as they are put behind an error's sentence.
    pub fn tail(&self) -> String {
        tail(&self.log)
    }

    /// How it ended, or None while it runs.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, LabError> {
        self.child.try_wait().map_err(io_error("wait for", &self.name))
    }

    /// An error when it has ended.
    pub fn must_run(&mut self) -> Result<(), LabError> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => Err(LabError::Ended { name: self.name.clone(), status, tail: self.tail() }),
        }
    }

    /// Sends a signal; nothing happens when it has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<(), LabError> {
        if self.ended()?.is_some() {
            return Ok(());
        }
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        pid.map_or(Ok(()), |pid| kill_process(pid, signal))
            .map_err(|error| io_error("signal", &self.name)(error.into()))
    }

    /// SIGKILL, as a crash.
    pub fn kill(&mut self) -> Result<ExitStatus, LabError> {
        self.signal(Signal::KILL)?;
        self.wait(Duration::from_secs(30))
    }

    /// SIGTERM, and the time to obey. A stopped process is woken, or it could not.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus, LabError> {
        self.signal(Signal::TERM)?;
        self.signal(Signal::CONT)?;
        self.wait(limit)
    }

    /// Waits for its end.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus, LabError> {
        let (what, log) = (format!("the end of {}", self.name), self.log.clone());
        wait::until(&what, limit, move || tail(&log), || self.ended())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors mean that it has ended already, as intended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.iter().skip(lines.len().saturating_sub(TAIL_LINES));
    let last: Vec<&str> = last.copied().collect();
    if last.is_empty() { String::new() } else { format!("; {} ends:\n{}", log.display(), last.join("\n")) }
}
