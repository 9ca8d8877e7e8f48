//! Finds the QMP socket of a QEMU process, and the process of a QMP socket.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::argv::{Argument, split_loose};
use crate::options::Options;
use crate::procfs::{self, ProcessError};
use crate::qmp::{Qmp, QmpError};
use crate::read::parsed;

/// Why a guest cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    #[error("the process could not be looked at")]
    Process(#[from] ProcessError),
    /// No QMP socket on the command line.
    #[error(
        "process {pid} has no QMP socket on its command line: give the path of one (--qmp), or start QEMU with -qmp unix:PATH,server=on,wait=off"
    )]
    NoSocket { pid: i32 },
    /// None of the sockets could be used.
    #[error("none of the QMP sockets of process {pid} could be used")]
    Unusable {
        pid: i32,
        /// Error of the last one.
        #[source]
        source: QmpError,
    },
    /// The socket belongs to another process.
    #[error("the QMP socket {path} belongs to process {found}, not to {pid}")]
    OtherProcess {
        path: PathBuf,
        /// The process that was asked for.
        pid: i32,
        /// The process that listens.
        found: i32,
    },
    /// The given socket could not be used.
    #[error("the QMP socket could not be used")]
    Qmp(#[from] QmpError),
}

/// A guest that was found.
#[derive(Debug)]
pub struct Found {
    pub pid: i32,
    pub socket: PathBuf,
    pub qmp: Qmp,
}

/// Connects to the QMP socket of a process.
pub fn by_pid(pid: i32, deadline: Instant) -> Result<Found, DiscoverError> {
    let command_line = procfs::command_line(pid)?;
    let base = std::fs::read_link(procfs::proc_path(pid, "cwd")).unwrap_or_else(|_| PathBuf::from("/"));
    let sockets = qmp_sockets(command_line.get(1..).unwrap_or_default());
    let mut last = DiscoverError::NoSocket { pid };
    // One that another client holds never sends a greeting: each gets its share of the time, so that the next is tried
    // too.
    let count = u32::try_from(sockets.len()).unwrap_or(1).max(1);
    let share = deadline.saturating_duration_since(Instant::now()) / count;
    for socket in sockets {
        let socket = base.join(socket);
        match Qmp::connect(&socket, Instant::now() + share) {
            Ok(qmp) => {
                let found = qmp.peer_pid()?;
                if found == pid {
                    return Ok(Found { pid, socket, qmp });
                }
                last = DiscoverError::OtherProcess { path: socket, pid, found };
            }
            Err(source) => last = DiscoverError::Unusable { pid, source },
        }
    }
    Err(last)
}

/// Connects to a QMP socket and finds the process behind it.
pub fn by_socket(socket: &Path, deadline: Instant) -> Result<Found, DiscoverError> {
    let qmp = Qmp::connect(socket, deadline)?;
    Ok(Found { pid: qmp.peer_pid()?, socket: socket.to_owned(), qmp })
}

/// UNIX sockets that a command line offers QMP on, in order: `-qmp unix:…`, and `-mon mode=control` on a `-chardev
/// socket`.
pub fn qmp_sockets(arguments: &[String]) -> Vec<PathBuf> {
    let options = split_loose(arguments);
    let short = options
        .iter()
        .filter(|option| matches!(option.name.as_str(), "qmp" | "qmp-pretty"))
        .filter_map(|option| option.value.as_deref()?.strip_prefix("unix:"))
        .filter_map(|text| Some(Options::parse(text, Some("path")).ok()?.get("path")?.into()));
    let long = parsed(&options, "mon", Some("chardev"))
        .filter(|mon| mon.get("mode") == Some("control"))
        .filter_map(|mon| chardev_path(&options, mon.get("chardev")?));
    short.chain(long).collect()
}

// A chardev that was passed as a descriptor has no path; a client has one that leads elsewhere.
fn chardev_path(options: &[Argument], id: &str) -> Option<PathBuf> {
    let chardev =
        parsed(options, "chardev", Some("backend")).find(|chardev| chardev.get("id") == Some(id))?;
    let serves = chardev.is_on("server") && chardev.get("backend") == Some("socket");
    chardev.get("path").filter(|_| serves).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_styles_are_found() {
        let line = "-qmp unix:/a,server,nowait -chardev socket,id=m,path=/b,server=on -mon chardev=m,mode=control -chardev socket,id=c,path=/c,reconnect=5 -mon chardev=c,mode=control -mon chardev=m,mode=readline -monitor unix:/d,server";
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        assert_eq!(qmp_sockets(&words), [PathBuf::from("/a"), PathBuf::from("/b")]);
    }
}
