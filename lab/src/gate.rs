//! Stops an agent exactly where its journal is written, or lets the disk be full there: `gate.c`, loaded before the
//! agent.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

use crate::error::io_error;
use crate::{Host, LabError, tool, wait};

/// Of one host's agent. A place is a side and a phase, such as `source.commit_sent`.
#[derive(Debug, Clone)]
pub struct Gate {
    library: PathBuf,
    folder: PathBuf,
}

impl Gate {
    /// Builds what is loaded before the agent.
    pub fn new(host: &Host) -> Result<Gate, LabError> {
        let folder = host.directory().join("gate");
        std::fs::create_dir_all(&folder).map_err(io_error("create", &folder))?;
        // The library is in QEMU as well, which runs as another user and reports a refused write there.
        let anybody = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&folder, anybody).map_err(io_error("change", &folder))?;
        let (source, library) = (folder.join("gate.c"), folder.join("gate.so"));
        std::fs::write(&source, include_str!("gate.c")).map_err(io_error("write", &source))?;
        let (from, to) = (source.to_string_lossy(), library.to_string_lossy());
        tool::run("cc", &["-O1", "-shared", "-fPIC", "-o", &to, &from, "-ldl"])?;
        Ok(Gate { library, folder })
    }

    /// For the agent's environment.
    pub fn environment(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        vec![("LD_PRELOAD".into(), text(&self.library)), ("LINERATE_LAB_GATE".into(), text(&self.folder))]
    }

    /// The agent stops before this record is on disk.
    pub fn hold_before(&self, place: &str) -> Result<Held<'_>, LabError> {
        self.hold(place, "before")
    }

    /// The agent stops when this record is on disk, before anything follows from it.
    pub fn hold_after(&self, place: &str) -> Result<Held<'_>, LabError> {
        self.hold(place, "after")
    }

    fn hold(&self, place: &str, how: &str) -> Result<Held<'_>, LabError> {
        let path = self.folder.join(format!("{place}.{how}"));
        let _ = std::fs::remove_file(path.with_extension(format!("{how}.held")));
        std::fs::write(&path, "").map_err(io_error("write", &path))?;
        Ok(Held { _gate: self, path })
    }

    /// From now on the disk is full for this record (`disk`: for the guest's image), or is not any more.
    pub fn fill(&self, place: &str, full: bool) -> Result<(), LabError> {
        self.refuse(place, full.then_some(Refusal::Full))
    }

    /// From now on the disk refuses this record (`disk`: the guest's image) in this way; `None`: it takes everything.
    pub fn refuse(&self, place: &str, how: Option<Refusal>) -> Result<(), LabError> {
        for ending in ["full", "full.met", "unsynced"] {
            let path = self.folder.join(format!("{place}.{ending}"));
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(io_error("remove", &path)(error));
                }
                _ => {}
            }
        }
        let (ending, error) = match how {
            None => return Ok(()),
            Some(Refusal::Full) => ("full", Errno::NOSPC),
            Some(Refusal::ReadOnly) => ("full", Errno::ROFS),
            Some(Refusal::Unsynced) => ("unsynced", Errno::IO),
        };
        let path = self.folder.join(format!("{place}.{ending}"));
        std::fs::write(&path, error.raw_os_error().to_string()).map_err(io_error("write", &path))
    }
}

impl Gate {
    /// Until the disk has refused a write to the guest's image since it is full.
    pub fn wait_refused(&self, limit: Duration) -> Result<(), LabError> {
        let met = self.folder.join("disk.full.met");
        wait::until("a write that is refused", limit, String::new, || Ok(met.exists().then_some(())))
    }

    /// The wall clock of agents that are started from now on is so many seconds ahead; back if that is negative.
    pub fn set_clock_ahead(&self, seconds: i64) -> Result<(), LabError> {
        let path = self.folder.join("clock.ahead");
        std::fs::write(&path, seconds.to_string()).map_err(io_error("write", &path))
    }
}

/// How a disk refuses a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// ENOSPC from the write.
    Full,
    /// EROFS from the write: the kernel has made the file system read-only after an error.
    ReadOnly,
    /// The write succeeds, and fsync fails with EIO: readers may see what a crash takes away.
    Unsynced,
}

/// An agent that stops, or will; goes on when this is dropped.
#[derive(Debug)]
pub struct Held<'a> {
    _gate: &'a Gate,
    path: PathBuf,
}

impl Held<'_> {
    /// Waits until the agent has stopped there.
    pub fn wait(&self, limit: Duration) -> Result<(), LabError> {
        let mut held = self.path.clone().into_os_string();
        held.push(".held");
        let held = PathBuf::from(held);
        let what = format!("the agent at {}", self.path.display());
        wait::until(&what, limit, String::new, || Ok(held.exists().then_some(())))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
