//! The process that is attached to: its threads, its system call instruction, whether it still runs.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::AttachError;
use crate::maps;

/// Cap of the vDSO bytes looked at; it has two to four pages.
const VDSO_BYTES_MAX: u64 = 256 << 10;
/// `syscall` on x86-64.
const SYSCALL_INSTRUCTION: [u8; 2] = [0x0f, 0x05];

/// A process held by a descriptor, so that its number cannot come to mean another.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
}

impl Target {
    pub(crate) fn open(pid: i32) -> Result<Target, AttachError> {
        let ended = AttachError::TargetEnded { pid };
        // `from_raw` panics on a negative number.
        let Some(number) = (pid > 0).then(|| Pid::from_raw(pid)).flatten() else { return Err(ended) };
        match pidfd_open(number, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Target { pid, pidfd }),
            Err(rustix::io::Errno::SRCH) => Err(ended),
            Err(errno) => Err(AttachError::Proc { pid, file: "pidfd", source: errno.into() }),
        }
    }

    /// A pidfd becomes readable when the process has ended.
    pub(crate) fn ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let none = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut fds, Some(&none)), Ok(ready) if ready > 0)
    }

    /// The same, but waits a little: memory of a process that is killed goes away before the process does.
    pub(crate) fn is_ending(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let wait = Duration::from_millis(500);
        let wait = rustix::time::Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
        matches!(poll(&mut fds, Some(&wait)), Ok(ready) if ready > 0)
    }

    fn proc_error(&self, file: &'static str, source: io::Error) -> AttachError {
        let pid = self.pid;
        match source.raw_os_error() {
            _ if self.ended() => AttachError::TargetEnded { pid },
            Some(libc::ENOENT | libc::ESRCH) => AttachError::TargetEnded { pid },
            Some(libc::EACCES | libc::EPERM) => AttachError::NoPermission { pid, source },
            _ => AttachError::Proc { pid, file, source },
        }
    }

    /// Opens a file below `/proc/PID`.
    pub(crate) fn open_proc(&self, file: &'static str) -> Result<std::fs::File, AttachError> {
        std::fs::File::open(format!("/proc/{}/{file}", self.pid))
            .map_err(|source| self.proc_error(file, source))
    }

    /// Address of a system call instruction that is mapped executable in every 64-bit process: one in the vDSO.
    pub(crate) fn syscall_instruction(&self) -> Result<u64, AttachError> {
        let pid = self.pid;
        let missing = AttachError::NoSyscallInstruction { pid };
        let text = std::fs::read(format!("/proc/{pid}/maps")).map_err(|e| self.proc_error("maps", e))?;
        let entries = maps::parse(&text).unwrap_or_default();
        let Some(vdso) = entries.iter().find(|entry| entry.path == "[vdso]") else {
            return Err(if self.ended() { AttachError::TargetEnded { pid } } else { missing });
        };
        let mut code = vec![0; (vdso.end - vdso.start).min(VDSO_BYTES_MAX) as usize];
        let memory = self.open_proc("mem")?;
        memory.read_exact_at(&mut code, vdso.start).map_err(|e| self.proc_error("mem", e))?;
        let at = code.windows(2).position(|bytes| bytes == SYSCALL_INSTRUCTION);
        at.map(|at| vdso.start + at as u64).ok_or(missing)
    }

    /// Threads that may be stopped, the least noticeable first.
    pub(crate) fn candidates(&self, avoid: &[i32]) -> Result<Vec<i32>, AttachError> {
        let listing = std::fs::read_dir(format!("/proc/{}/task", self.pid))
            .map_err(|source| self.proc_error("task", source))?;
        let mut ranked: Vec<(Rank, i32)> = listing
            .flatten()
            .filter_map(|item| item.file_name().to_str()?.parse().ok())
            .filter(|thread| !avoid.contains(thread))
            .filter_map(|thread| Some((self.rank(thread)?, thread)))
            .collect();
        ranked.sort_unstable();
        if ranked.is_empty() {
            let pid = self.pid;
            return Err(if self.ended() {
                AttachError::TargetEnded { pid }
            } else {
                AttachError::NoThread { pid }
            });
        }
        Ok(ranked.into_iter().map(|(_, thread)| thread).collect())
    }

    fn rank(&self, thread: i32) -> Option<Rank> {
        let call = std::fs::read_to_string(format!("/proc/{}/task/{thread}/syscall", self.pid)).ok()?;
        Rank::of(call.trim())
    }
}

/// How well a thread suits, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// A worker that waits for work.
    Futex,
    /// A thread that waits for events, often the main loop.
    Poll,
    /// In any other system call.
    Call,
    /// Not in a system call at this moment.
    Running,
}

impl Rank {
    /// From a line of `/proc/PID/task/TID/syscall`. `None` for kernel workers that share the process (io_uring, vhost),
    /// which have no user stack.
    fn of(line: &str) -> Option<Rank> {
        if line == "running" {
            return Some(Rank::Running);
        }
        let number: i64 = line.split(' ').next()?.parse().ok()?;
        let stack = line.rsplit(' ').nth(1)?;
        if matches!(stack, "0x0" | "0") {
            return None;
        }
        Some(match number {
            libc::SYS_futex => Rank::Futex,
            libc::SYS_poll | libc::SYS_ppoll | libc::SYS_epoll_wait | libc::SYS_epoll_pwait => Rank::Poll,
            _ => Rank::Call,
        })
    }
}

/// Who traces the thread, if anybody does.
pub(crate) fn tracer_of(thread: i32) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()?;
    (tracer != 0).then_some(tracer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_threads_by_how_they_wait() {
        assert_eq!(Rank::of("running"), Some(Rank::Running));
        assert_eq!(Rank::of("202 0x1 0x2 0x0 0x0 0x0 0x0 0x7ffe01 0x7f01"), Some(Rank::Futex));
        assert_eq!(Rank::of("271 0x1 0x2 0x0 0x0 0x0 0x0 0x7ffe01 0x7f01"), Some(Rank::Poll));
        assert_eq!(Rank::of("16 0x1 0x2 0x0 0x0 0x0 0x0 0x7ffe01 0x7f01"), Some(Rank::Call));
        assert_eq!(Rank::of("202 0x1 0x2 0x0 0x0 0x0 0x0 0x0 0x0"), None);
        assert_eq!(Rank::of(""), None);
    }

    #[test]
    fn a_process_that_never_was_has_ended() {
        for pid in [-1, 0, i32::MAX] {
            assert!(matches!(Target::open(pid), Err(AttachError::TargetEnded { .. })));
        }
    }

    #[test]
    fn finds_the_instruction_in_its_own_vdso() {
        let target = Target::open(std::process::id() as i32).unwrap();
        assert!(target.syscall_instruction().unwrap() > 0 && !target.ended());
    }
}
