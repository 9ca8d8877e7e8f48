//! One `userfaultfd` call made by the target, and its descriptor taken out.
//!
//! ```mermaid
//! sequenceDiagram
//!     participant A as agent
//!     participant H as helper (fork, own session, all signals blocked)
//!     participant T as thread of the guest's process
//!     A->>H: fork, with everything prepared
//!     H->>T: PTRACE_SEIZE, PTRACE_INTERRUPT
//!     T-->>H: stopped (a signal that came first is kept)
//!     Note over H,T: the window: from here to DETACH only the helper's death harms the target
//!     H->>T: save registers and signal mask, block signals
//!     H->>T: registers for userfaultfd(), one step
//!     H->>H: pidfd_getfd
//!     H->>T: registers for close(), one step
//!     H->>T: restore mask and registers, PTRACE_DETACH (with the kept signal)
//!     H-->>A: report and descriptor (SCM_RIGHTS)
//! ```
//!
//! The helper makes no allocation, takes no lock and prints nothing: it is a fork of a process with threads. It goes on
//! if the agent dies. Whatever fails after the stop, the thread is restored and released.

mod helper;
mod report;
mod step;
mod trace;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::error::AttachError;
use crate::probe::{KernelUnfit, release};
use crate::target::{Target, tracer_of};
use report::{Failure, Report};

/// How long the helper may take before the agent stops waiting for it.
const HELPER_WAIT: Duration = Duration::from_secs(10);
/// How many threads are tried when one does not stop or ends.
const THREADS_TRIED_MAX: usize = 3;

/// What an injection gave.
#[derive(Debug)]
pub(crate) struct Injected {
    /// The userfaultfd, not yet initialised.
    pub(crate) uffd: OwnedFd,
    /// How long the thread was stopped.
    pub(crate) stopped: Duration,
    pub(crate) thread: i32,
}

/// Has one thread of the target, none of `avoid`, make a userfaultfd, and takes it over.
pub(crate) fn inject(target: &Target, avoid: &[i32]) -> Result<Injected, AttachError> {
    let instruction = target.syscall_instruction()?;
    let mut last = AttachError::NoThread { pid: target.pid };
    for thread in target.candidates(avoid)?.into_iter().take(THREADS_TRIED_MAX) {
        match inject_into(target, thread, instruction) {
            Err(error @ (AttachError::ThreadNotStopping { .. } | AttachError::ThreadEnded { .. })) => {
                last = error;
            }
            other => return other,
        }
    }
    let pid = target.pid;
    Err(if target.ended() { AttachError::TargetEnded { pid } } else { last })
}

fn inject_into(target: &Target, thread: i32, instruction: u64) -> Result<Injected, AttachError> {
    let start = |source| AttachError::HelperStart { source };
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|errno| start(errno.into()))?;
    let plan =
        helper::Plan { thread, instruction, pidfd: target.pidfd.as_raw_fd(), socket: theirs.as_raw_fd() };
    let child = fork_helper(&plan).map_err(start)?;
    drop(theirs);
    let received = receive(&ours, thread);
    reap(child, matches!(received, Err(AttachError::HelperSilent { .. })));
    let (report, uffd) = received?;
    tracing::debug!(
        pid = target.pid,
        thread,
        stopped_us = report.stopped_ns / 1000,
        failure = ?report.failure,
        "userfaultfd injected"
    );
    let stopped = Duration::from_nanos(report.stopped_ns);
    match (report.failure, uffd) {
        (None, Some(uffd)) => Ok(Injected { uffd, stopped, thread }),
        (None, None) => Err(AttachError::HelperLost),
        (Some(failure), _) => Err(explain(failure, report.errno, target, thread)),
    }
}

/// Forks with all signals blocked, so that the helper is never without the block.
fn fork_helper(plan: &helper::Plan) -> io::Result<libc::pid_t> {
    // SAFETY: the sets are initialised before use. The child of `fork` runs `helper::run` only, which makes system
    // calls on prepared memory and ends with `_exit`: nothing that a lock held by another thread could block. Our own
    // mappings of guest RAM are not inherited (MADV_DONTFORK).
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        let blocked = libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        if blocked != 0 {
            return Err(io::Error::from_raw_os_error(blocked));
        }
        let child = libc::fork();
        if child == 0 {
            helper::run(plan);
        }
        let result = if child < 0 { Err(io::Error::last_os_error()) } else { Ok(child) };
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}

fn receive(socket: &OwnedFd, thread: i32) -> Result<(Report, Option<OwnedFd>), AttachError> {
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
    let deadline = std::time::Instant::now() + HELPER_WAIT;
    loop {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        let left =
            rustix::time::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut fds, Some(&left)) {
            Ok(0) => return Err(AttachError::HelperSilent { thread, seconds: HELPER_WAIT.as_secs() }),
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(AttachError::HelperStart { source: errno.into() }),
        }
    }
    report::receive(socket).ok_or(AttachError::HelperLost)
}

/// The helper ends right after its report. One that is stuck is left to a thread of its own, so that it leaves no
/// zombie.
fn reap(child: libc::pid_t, stuck: bool) {
    let wait = move || {
        let mut status = 0;
        // SAFETY: `child` is our own child and not waited for elsewhere; `status` is live.
        while unsafe { libc::waitpid(child, &mut status, 0) } < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    };
    if !stuck {
        wait();
    } else if let Err(error) = std::thread::Builder::new().name("reap-helper".into()).spawn(wait) {
        tracing::warn!(%error, child, "the stuck helper process will stay as a zombie");
    }
}

fn explain(failure: Failure, errno: i32, target: &Target, thread: i32) -> AttachError {
    let pid = target.pid;
    let source = io::Error::from_raw_os_error(errno);
    match failure {
        _ if target.ended() => AttachError::TargetEnded { pid },
        Failure::Seize if errno == libc::EPERM => match tracer_of(thread) {
            Some(tracer) => AttachError::AlreadyTraced { thread, tracer },
            None => AttachError::NoPermission { pid, source },
        },
        Failure::Seize if errno == libc::ESRCH => AttachError::ThreadEnded { thread },
        Failure::NotStopping => AttachError::ThreadNotStopping { thread },
        Failure::Ended => AttachError::ThreadEnded { thread },
        Failure::Not64Bit => AttachError::Not64Bit { thread },
        Failure::Sandboxed => AttachError::Sandboxed,
        Failure::Userfaultfd if errno == libc::ENOSYS => {
            AttachError::KernelUnfit(KernelUnfit::TooOld { release: release(), missing: "userfaultfd" })
        }
        Failure::Userfaultfd => AttachError::Userfaultfd { source },
        Failure::TakeOver => AttachError::TakeOver { source },
        Failure::Seize | Failure::Trace => AttachError::Trace { thread, source },
    }
}
