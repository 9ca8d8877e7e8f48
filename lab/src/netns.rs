//! Network namespaces: made, listed, emptied and removed.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::io_error;
use crate::files::{entries, unless_gone};
use crate::{LabError, tool, wait};

/// Where `ip netns` keeps its namespaces.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from("/run/netns").join(name)
}

/// Makes a namespace with its loopback up.
pub fn create(name: &str) -> Result<(), LabError> {
    tool::run("ip", &["netns", "add", name])?;
    tool::ip(name, &["link", "set", "lo", "up"]).map(drop)
}

/// Files that programs in the namespace find in /etc instead of the machine's, by `ip netns exec`.
fn own_etc(name: &str) -> PathBuf {
    PathBuf::from("/etc/netns").join(name)
}

/// Lets QEMU's bridge helper, in programs started from now on, plug guests into this bridge. Needs a folder /etc/qemu,
/// over which the namespace's own is laid.
pub fn allow_bridge(name: &str, bridge: &str) -> Result<(), LabError> {
    let machine = PathBuf::from("/etc/qemu");
    if !machine.is_dir() {
        return Err(LabError::Missing { path: machine });
    }
    let folder = own_etc(name).join("qemu");
    std::fs::create_dir_all(&folder).map_err(io_error("create", &folder))?;
    let path = folder.join("bridge.conf");
    std::fs::write(&path, format!("allow {bridge}\n")).map_err(io_error("write", &path))
}

/// All namespaces of this machine that `ip netns` knows.
pub fn list() -> Result<Vec<String>, LabError> {
    entries("/run/netns".as_ref())
}

/// Processes that run in the namespace.
pub fn processes(name: &str) -> Result<Vec<Pid>, LabError> {
    let text = tool::run("ip", &["netns", "pids", name])?;
    Ok(text.lines().filter_map(|line| line.trim().parse().ok()).filter_map(Pid::from_raw).collect())
}

/// Kills what runs in the namespace and removes it. A namespace that does not exist any more is no error.
/// Threads of this process inside of it do not count: they leave by themselves.
pub fn remove(name: &str) -> Result<(), LabError> {
    if !path(name).exists() {
        return Ok(());
    }
    let own = rustix::process::getpid();
    wait::until(
        &format!("the end of all processes in {name}"),
        Duration::from_secs(10),
        String::new,
        || {
            let found = unless_gone(&path(name), processes(name))?;
            let others: Vec<Pid> = found.into_iter().filter(|pid| *pid != own).collect();
            for pid in &others {
                // It may have ended by itself since the listing.
                let _ = kill_process(*pid, Signal::KILL);
            }
            Ok(others.iter().all(|pid| is_zombie(*pid)).then_some(()))
        },
    )?;
    unless_gone(&path(name), tool::run("ip", &["netns", "del", name]))?;
    let own = own_etc(name);
    match std::fs::remove_dir_all(&own) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io_error("remove", &own)(error)),
        _ => Ok(()),
    }
}

// A killed process stays listed until its parent reaps it; it holds nothing any more.
fn is_zombie(pid: Pid) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
        .map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')))
}

/// Runs `body` on a thread of its own inside the namespace. Sockets that it makes stay in that namespace for good.
pub fn inside<T: Send>(name: &str, body: impl FnOnce() -> Result<T, LabError> + Send) -> Result<T, LabError> {
    let path = path(name);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let file = File::open(&path).map_err(io_error("open", &path))?;
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|error| io_error("enter", &path)(error.into()))?;
            body()
        });
        thread.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause))
    })
}
