//! What /proc says of a process: identity that survives the reuse of pids, command line, open files.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Instant;

use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

/// Longest command line read, in bytes.
pub const CMDLINE_BYTES_MAX: u64 = 2 << 20;

/// Why a process could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// There is no such process (any more).
    #[error("there is no process {pid}: the guest has ended")]
    Gone { pid: i32 },
    /// A file of /proc could not be read.
    #[error("cannot read {path}: linerate must run as root or as the user that QEMU runs as")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A file of /proc has an unknown shape.
    #[error("{path} has not the shape that is expected of it")]
    Shape { path: PathBuf },
    /// A signal could not be sent.
    #[error("cannot send a signal to process {pid}")]
    Signal {
        pid: i32,
        #[source]
        source: io::Error,
    },
}

/// A process that can be distinguished from a later one with the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessIdentity {
    pub pid: i32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
}

struct Stat {
    state: u8,
    start_ticks: u64,
    /// Bytes of its address space, of which the kernel takes the last when the process ends.
    address_space: u64,
    /// Signals that wait for the first thread.
    pending: u64,
}

/// SIGKILL in a set of signals.
const KILL_PENDING: u64 = 1 << (9 - 1);

impl ProcessIdentity {
    /// The process that has this pid now. A zombie has ended, with its last thread: until then it has its files, and
    /// their locks.
    pub fn of(pid: i32) -> Result<ProcessIdentity, ProcessError> {
        let stat = read_stat(pid)?;
        if matches!(stat.state, b'Z' | b'X') && !has_other_threads(pid)? {
            return Err(ProcessError::Gone { pid });
        }
        Ok(ProcessIdentity { pid, start_ticks: stat.start_ticks })
    }

    /// Whether this very process still runs, as far as is known. One that cannot be looked at has not ended: what is
    /// done about a process that has ended cannot be undone.
    pub fn is_alive(self) -> bool {
        self.is_alive_by(ProcessIdentity::of(self.pid))
    }

    fn is_alive_by(self, seen: Result<ProcessIdentity, ProcessError>) -> bool {
        match seen {
            Ok(now) => now == self,
            Err(ProcessError::Gone { .. }) => false,
            Err(_) => true,
        }
    }

    /// Whether this very process can still run code of its own. One that is ending cannot, but it may have its files,
    /// and their locks, until its last thread has ended: it is alive ([`is_alive`](Self::is_alive)). KVM alone may take
    /// a tenth of a second. False if it cannot be looked at.
    pub fn can_run(self) -> bool {
        self.can_run_by(read_stat(self.pid)) == Some(true)
    }

    /// Whether it is certain that this very process runs no code of its own any more. False if it cannot be looked at.
    pub fn cannot_run(self) -> bool {
        self.can_run_by(read_stat(self.pid)) == Some(false)
    }

    /// None if it could not be looked at.
    fn can_run_by(self, seen: Result<Stat, ProcessError>) -> Option<bool> {
        match seen {
            Ok(stat) => {
                let is_ending = matches!(stat.state, b'Z' | b'X')
                    || stat.address_space == 0
                    || stat.pending & KILL_PENDING != 0;
                Some(stat.start_ticks == self.start_ticks && !is_ending)
            }
            Err(ProcessError::Gone { .. }) => Some(false),
            Err(_) => None,
        }
    }

    /// Sends a signal to this very process: a pid descriptor is taken before the identity is checked, so that the
    /// signal cannot reach a later process with the same number. One that cannot be looked at gets none.
    pub fn signal(self, signal: Signal) -> Result<(), ProcessError> {
        let gone = ProcessError::Gone { pid: self.pid };
        // The pid may come from a file: rustix takes no negative one.
        let Some(pid) = (self.pid > 0).then(|| Pid::from_raw(self.pid)).flatten() else { return Err(gone) };
        let failed = |source: rustix::io::Errno| match source {
            rustix::io::Errno::SRCH => ProcessError::Gone { pid: self.pid },
            other => ProcessError::Signal { pid: self.pid, source: other.into() },
        };
        let descriptor = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(failed)?;
        if ProcessIdentity::of(self.pid)? != self {
            return Err(gone);
        }
        rustix::process::pidfd_send_signal(descriptor, signal).map_err(failed)
    }

    /// Waits until it has ended; false when the deadline passes first.
    pub fn wait_end(self, deadline: Instant) -> bool {
        while self.is_alive() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        true
    }
}

fn has_other_threads(pid: i32) -> Result<bool, ProcessError> {
    let path = proc_path(pid, "task");
    let failed = |source| read_error(pid, path.clone(), source);
    for thread in fs::read_dir(&path).map_err(failed)? {
        if thread.map_err(failed)?.file_name().to_string_lossy() != pid.to_string() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The user whose rights a process has.
pub fn user_of(pid: i32) -> Result<u32, ProcessError> {
    let path = PathBuf::from(format!("/proc/{pid}/status"));
    let text =
        fs::read_to_string(&path).map_err(|source| ProcessError::Read { path: path.clone(), source })?;
    // Real, effective, saved, of files.
    let line = text.lines().find_map(|line| line.strip_prefix("Uid:"));
    let effective = line.and_then(|line| line.split_whitespace().nth(1)).and_then(|uid| uid.parse().ok());
    effective.ok_or(ProcessError::Shape { path })
}

/// Names this boot of the host: pids and start times of another boot mean nothing. Once it was read it is known.
pub fn boot_id() -> Result<String, ProcessError> {
    static KNOWN: OnceLock<String> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(known.clone());
    }
    let path = PathBuf::from("/proc/sys/kernel/random/boot_id");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(KNOWN.get_or_init(|| text.trim().to_owned()).clone()),
        Err(source) => Err(ProcessError::Read { path, source }),
    }
}

/// Whether this is another boot than that of this name. False if this boot's name cannot be read.
pub fn is_other_boot(boot: &str) -> bool {
    boot_id().is_ok_and(|now| now != boot)
}

/// For how long threads of a process have run on a CPU since they were started, nanoseconds in all. None if one of them
/// has ended or the kernel keeps no account (`CONFIG_SCHED_INFO`).
pub fn run_time_ns(pid: i32, threads: &[i32]) -> Option<u64> {
    threads.iter().try_fold(0_u64, |sum, thread| {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")).ok()?;
        sum.checked_add(text.split_whitespace().next()?.parse().ok()?)
    })
}

/// The arguments of a process, the program's name first.
pub fn command_line(pid: i32) -> Result<Vec<String>, ProcessError> {
    let path = proc_path(pid, "cmdline");
    let mut bytes = Vec::new();
    fs::File::open(&path)
        .and_then(|file| file.take(CMDLINE_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(|source| read_error(pid, path.clone(), source))?;
    if bytes.len() as u64 >= CMDLINE_BYTES_MAX {
        return Err(ProcessError::Shape { path });
    }
    bytes.pop_if(|last| *last == 0);
    let text = String::from_utf8(bytes).map_err(|_| ProcessError::Shape { path: path.clone() })?;
    if text.is_empty() {
        return Err(ProcessError::Gone { pid });
    }
    Ok(text.split('\0').map(str::to_owned).collect())
}

/// The program that a process runs.
pub fn executable(pid: i32) -> Result<PathBuf, ProcessError> {
    let path = proc_path(pid, "exe");
    fs::read_link(&path).map_err(|source| read_error(pid, path, source))
}

/// Open descriptors and what they point to.
pub fn open_files(pid: i32) -> Result<Vec<(i32, PathBuf)>, ProcessError> {
    let path = proc_path(pid, "fd");
    let entries = fs::read_dir(&path).map_err(|source| read_error(pid, path, source))?;
    // One that vanishes while we look is not of interest.
    Ok(entries
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            Some((number, fs::read_link(entry.path()).ok()?))
        })
        .collect())
}

/// Whether a process holds a lock on a file, by any of its descriptors of it (`lock:` lines of /proc/PID/fdinfo).
pub fn holds_locks(pid: i32, file: &Path) -> bool {
    let wanted = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let descriptors = open_files(pid).unwrap_or_default();
    descriptors.iter().filter(|(_, path)| *path == wanted).any(|(number, _)| {
        let facts = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
        facts.lines().any(|line| line.starts_with("lock:"))
    })
}

/// The interface behind a descriptor of /dev/net/tun.
pub fn tap_of_descriptor(pid: i32, descriptor: i32) -> Option<String> {
    let text = fs::read_to_string(proc_path(pid, &format!("fdinfo/{descriptor}"))).ok()?;
    text.lines().find_map(|line| line.strip_prefix("iff:")).map(|name| name.trim().to_owned())
}

/// Release of the running kernel as (major, minor).
pub fn kernel_release() -> Option<(u32, u32)> {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let mut parts = text.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// A file of a process in /proc.
pub fn proc_path(pid: i32, file: &str) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join(file)
}

fn read_stat(pid: i32) -> Result<Stat, ProcessError> {
    let path = proc_path(pid, "stat");
    let text = fs::read_to_string(&path).map_err(|source| read_error(pid, path.clone(), source))?;
    parse_stat(&text).ok_or(ProcessError::Shape { path })
}

// The name is in parentheses and may hold anything, parentheses and spaces too: what counts begins behind the last one.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    // The state was field 3 of the file (proc_pid_stat(5)); these are 22, 23 and 31.
    let start_ticks = fields.nth(18)?.parse().ok()?;
    let address_space = fields.next()?.parse().ok()?;
    let pending = fields.nth(7)?.parse().ok()?;
    Some(Stat { state, start_ticks, address_space, pending })
}

fn read_error(pid: i32, path: PathBuf, source: io::Error) -> ProcessError {
    let gone = source.kind() == io::ErrorKind::NotFound || source.raw_os_error() == Some(3);
    if gone { ProcessError::Gone { pid } } else { ProcessError::Read { path, source } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_of_an_awkward_name_is_parsed() {
        let text = "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 81 9 1 2 3 4 5 6 256 0";
        let stat = parse_stat(text).unwrap();
        assert_eq!((stat.state, stat.start_ticks), (b'S', 4242));
        assert_eq!((stat.address_space, stat.pending), (81, KILL_PENDING));
        assert!(parse_stat("7 (a) S 1 2").is_none());
        assert!(parse_stat("").is_none());
    }

    #[test]
    fn another_start_time_is_another_process() {
        let me = ProcessIdentity::of(std::process::id() as i32).unwrap();
        assert!(me.is_alive() && me.can_run());
        let other = ProcessIdentity { start_ticks: me.start_ticks + 1, ..me };
        assert!(!other.is_alive() && !other.can_run());
        assert!(matches!(other.signal(Signal::KILL), Err(ProcessError::Gone { .. })));
        assert!(matches!(
            ProcessIdentity { pid: -1, start_ticks: 0 }.signal(Signal::KILL),
            Err(ProcessError::Gone { .. })
        ));
    }

    #[test]
    fn a_process_that_cannot_be_looked_at_has_not_ended() {
        let me = ProcessIdentity::of(std::process::id() as i32).unwrap();
        // Too many files are open in the system.
        let unreadable = || read_error(me.pid, proc_path(me.pid, "stat"), io::Error::from_raw_os_error(23));
        assert!(matches!(unreadable(), ProcessError::Read { .. }));
        assert!(me.is_alive_by(Err(unreadable())));
        assert!(me.is_alive_by(Err(ProcessError::Shape { path: proc_path(me.pid, "stat") })));
        assert_eq!(me.can_run_by(Err(unreadable())), None, "neither is certain");
        for ended in [2, 3] {
            let ended = || read_error(me.pid, proc_path(me.pid, "stat"), io::Error::from_raw_os_error(ended));
            assert!(!me.is_alive_by(Err(ended())));
            assert_eq!(me.can_run_by(Err(ended())), Some(false));
        }
        let other = ProcessIdentity { start_ticks: me.start_ticks + 1, ..me };
        assert!(!me.is_alive_by(Ok(other)) && me.is_alive_by(Ok(me)));
        assert!(!me.cannot_run() && other.cannot_run());
    }

    /// The first thread of a process may end before the others.
    #[test]
    fn a_process_has_ended_with_its_last_thread() {
        let dir = tempfile::tempdir().unwrap();
        let (source, program) = (dir.path().join("two.c"), dir.path().join("two"));
        let text = "#include <pthread.h>\n#include <unistd.h>\nvoid *stay(void *x) { pause(); return x; }\n\
                    int main(void) { pthread_t t; pthread_create(&t, 0, stay, 0); pthread_exit(0); }\n";
        fs::write(&source, text).unwrap();
        let mut compile = std::process::Command::new("cc");
        assert!(compile.args(["-pthread", "-o"]).args([&program, &source]).status().unwrap().success());
        let mut child = std::process::Command::new(program).spawn().unwrap();
        let pid = child.id() as i32;
        while read_stat(pid).unwrap().state != b'Z' {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let identity = ProcessIdentity::of(pid).unwrap();
        assert!(identity.is_alive() && !identity.can_run());
        identity.signal(Signal::KILL).unwrap();
        assert!(identity.wait_end(Instant::now() + std::time::Duration::from_secs(60)));
        child.wait().unwrap();
    }

    #[test]
    fn a_zombie_counts_as_dead() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let identity = ProcessIdentity::of(child.id() as i32).unwrap();
        identity.signal(Signal::KILL).unwrap();
        assert!(
            identity.wait_end(Instant::now() + std::time::Duration::from_secs(60)),
            "not reaped, yet dead"
        );
        child.wait().unwrap();
    }
}
