//! What an agent leaves that dies while it starts a QEMU: a process without a record, its RAM file, images, its folder.
//!
//! Before RAM is made and QEMU is started, `start.json` in the guest's folder says what will be made. A folder with
//! that and without a record is a start that will not be finished: the restarted agent ends what it finds of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::images;
use crate::process::GuestError;
use crate::procfs::{ProcessError, ProcessIdentity, command_line};
use crate::registry::{Registry, RegistryError, remove_file};

/// Name of the file.
const START: &str = "start.json";
/// In the environment of a QEMU that is being started, so that it is known from one of another start with its pid file.
pub(crate) const START_VARIABLE: &str = "LINERATE_START";
/// Longest one read, in bytes.
const START_BYTES_MAX: u64 = 1 << 20;
/// A killed process ends as soon as the kernel lets it.
const END_WAIT: Duration = Duration::from_secs(30);
/// A QEMU that detaches is two processes for a moment, and the second may come while the first is looked at.
const LOOKS_MAX: usize = 10;

/// What is about to be made.
#[derive(Debug, Serialize, Deserialize)]
struct Start {
    /// Named on QEMU's command line, which distinguishes its processes from all others.
    pid_file: PathBuf,
    /// To be removed with it.
    ram_files: Vec<PathBuf>,
}

impl Start {
    /// Puts it on disk.
    fn write(&self, folder: &Path) -> Result<(), GuestError> {
        let path = folder.join(START);
        let written = serde_json::to_vec(self).map_err(std::io::Error::other);
        written.and_then(|text| fs::write(&path, text)).map_err(|source| GuestError::File { path, source })
    }

    fn read(folder: &Path) -> Option<Start> {
        let path = folder.join(START);
        let known = fs::metadata(&path).is_ok_and(|facts| facts.len() <= START_BYTES_MAX);
        known.then(|| fs::read(path).ok()).flatten().and_then(|text| serde_json::from_slice(&text).ok())
    }
}

/// Says in the folder of a reserved guest what is about to be made for it: the process with this pid file, and RAM
/// files.
pub fn announce(folder: &Path, pid_file: &Path, ram_files: &[PathBuf]) -> Result<(), GuestError> {
    Start { pid_file: pid_file.to_owned(), ram_files: ram_files.to_vec() }.write(folder)
}

/// The guest has a record, which describes it from now on: if that is removed, this is not a start to be ended.
pub fn finished(folder: &Path) -> Result<(), RegistryError> {
    remove_file(&folder.join(START))
}

/// Ends and removes what was made for a reserved guest that never came to have a record; one that has is left alone.
pub fn remove_reserved(registry: &Registry, name: &str) -> Result<(), GuestError> {
    match registry.get(name) {
        Err(RegistryError::Unknown(_)) => clear(registry, name, &registry.folder(name)?).map(drop),
        Ok(_) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Ends and removes every start that was not finished; gives the guests' names. Only while no guest is being started:
/// when the agent itself starts.
pub fn clear_unfinished(registry: &Registry) -> Result<Vec<String>, GuestError> {
    let mut cleared = Vec::new();
    for (name, folder) in registry.without_record()? {
        if clear(registry, &name, &folder)? {
            cleared.push(name);
        }
    }
    Ok(cleared)
}

/// Whether there was an announced start in the folder, which is removed now.
fn clear(registry: &Registry, name: &str, folder: &Path) -> Result<bool, GuestError> {
    let Some(start) = Start::read(folder) else { return Ok(false) };
    end_all(&start.pid_file)?;
    for path in &start.ram_files {
        remove_file(path)?;
    }
    images::discard(&images::made(folder));
    registry.remove_all(name, folder)?;
    Ok(true)
}

/// Ends every process that was started with this pid file.
fn end_all(pid_file: &Path) -> Result<(), GuestError> {
    end(|| started_with(pid_file))
}

/// Ends the processes with this pid file that this start has made, and no other guest's.
pub(crate) fn end_own(pid_file: &Path, start: &str) -> Result<(), GuestError> {
    let own = |process: &ProcessIdentity| is_of(process.pid, start);
    end(|| started_with(pid_file).into_iter().filter(own).collect())
}

fn is_of(pid: i32, start: &str) -> bool {
    let wanted = format!("{START_VARIABLE}={start}");
    let all = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    all.split(|byte| *byte == 0).any(|one| one == wanted.as_bytes())
}

fn end(look: impl Fn() -> Vec<ProcessIdentity>) -> Result<(), GuestError> {
    for _ in 0..LOOKS_MAX {
        let found = look();
        if found.is_empty() {
            return Ok(());
        }
        for process in found {
            match process.signal(Signal::KILL) {
                Ok(()) | Err(ProcessError::Gone { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            if !process.wait_end(Instant::now() + END_WAIT) {
                return Err(GuestError::Unkillable(process.pid));
            }
        }
    }
    Ok(())
}

/// Processes with the option to write their process id there.
fn started_with(pid_file: &Path) -> Vec<ProcessIdentity> {
    let wanted = pid_file.to_string_lossy();
    let is_ours = |arguments: &[String]| {
        arguments.windows(2).any(|pair| matches!(pair, [flag, path] if flag == "-pidfile" && *path == wanted))
    };
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    numbers
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: i32| {
            let process = ProcessIdentity::of(pid).ok()?;
            is_ours(&command_line(pid).ok()?).then_some(process)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{GuestRecord, Origin};
    use std::process::{Child, Command};

    /// A process that looks as if it had been started for the guest.
    fn stand_in(pid_file: &Path) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do sleep 1; done", "qemu", "-pidfile"]).arg(pid_file).spawn().unwrap()
    }

    #[test]
    fn an_unfinished_start_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        let folder = registry.reserve("a").unwrap();
        let ram = dir.path().join("ram");
        fs::write(&ram, "x").unwrap();
        let pid_file = folder.join("pid");
        Start { pid_file: pid_file.clone(), ram_files: vec![ram.clone()] }.write(&folder).unwrap();
        let mut process = stand_in(&pid_file);
        // Someone has to take its end, or it stays as a zombie that still looks alive.
        let waiter = std::thread::spawn(move || process.wait().unwrap());
        assert_eq!(clear_unfinished(&registry).unwrap(), ["a"]);
        assert!(!waiter.join().unwrap().success());
        assert!(!ram.exists() && !folder.exists());
        assert!(clear_unfinished(&registry).unwrap().is_empty());
    }

    #[test]
    fn a_reserved_guest_is_given_up_with_its_ram_and_one_with_a_record_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        let ram = dir.path().join("ram");
        let make = || {
            let folder = registry.folder("a").unwrap();
            fs::write(&ram, "x").unwrap();
            announce(&folder, &folder.join("pid"), std::slice::from_ref(&ram)).unwrap();
        };
        let folder = registry.reserve("a").unwrap();
        make();
        remove_reserved(&registry, "a").unwrap();
        assert!(!ram.exists() && !folder.exists());

        registry.reserve("a").unwrap();
        make();
        let own = i32::try_from(std::process::id()).unwrap();
        registry
            .put(&GuestRecord::new("a", Origin::Started, own, folder.join("qmp"), vec![]).unwrap())
            .unwrap();
        remove_reserved(&registry, "a").unwrap();
        assert!(ram.exists() && registry.get("a").is_ok());
    }

    #[test]
    fn a_guest_with_a_record_and_other_folders_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        let folder = registry.reserve("a").unwrap();
        Start { pid_file: folder.join("pid"), ram_files: vec![] }.write(&folder).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let record = GuestRecord::new("a", Origin::Started, own, folder.join("qmp"), vec![]).unwrap();
        registry.put(&record).unwrap();
        let other = registry.reserve("b").unwrap();
        assert!(clear_unfinished(&registry).unwrap().is_empty());
        assert!(folder.exists() && other.exists());
    }
}
