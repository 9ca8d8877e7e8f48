//! The helper process: stops the thread, borrows it for two system calls, puts it back.
//!
//! Everything here runs in a fork of a process with threads: no allocation, no lock, no output, no panic.

use std::os::fd::RawFd;
use std::time::Duration;

use super::report::{self, Failure, Report};
use super::step::{Failed, Stopped, traced};
use super::trace::{Stop, Tracee, now_ns};
use crate::sys::USERFAULTFD_FLAGS;

/// How long the thread may take to stop. Only this wait has a limit: nothing has been changed yet.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// All that the helper needs, prepared before the fork.
pub(super) struct Plan {
    pub(super) thread: i32,
    /// Address of a `syscall` instruction in the target.
    pub(super) instruction: u64,
    pub(super) pidfd: RawFd,
    /// Where the report goes.
    pub(super) socket: RawFd,
}

/// The helper's main function, from its start to its end.
pub(super) fn run(plan: &Plan) -> ! {
    // SAFETY: both calls take no address. A session of its own: a signal to the agent's process group or terminal does
    // not reach the helper.
    unsafe { libc::syscall(libc::SYS_setsid) };
    close_others(plan);
    let (report, descriptor) = borrow(plan);
    report::send(plan.socket, &report, descriptor);
    // SAFETY: ends this process without running anything that the agent registered to run at exit.
    unsafe { libc::_exit(0) }
}

/// Closes what the agent had open, so that a helper that hangs holds no socket of it.
fn close_others(plan: &Plan) {
    let low = plan.pidfd.min(plan.socket) as u32;
    let high = plan.pidfd.max(plan.socket) as u32;
    for (first, last) in [
        (0, low.wrapping_sub(1)),
        (low.wrapping_add(1), high.wrapping_sub(1)),
        (high.wrapping_add(1), u32::MAX),
    ] {
        // Descriptor 0 wraps its (empty) range to u32::MAX, hence the second condition.
        if first <= last && !(first == 0 && low == 0) {
            // SAFETY: takes three numbers; the descriptors belong to this process's own copy of the table.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
}

fn borrow(plan: &Plan) -> (Report, Option<RawFd>) {
    let thread = Tracee(plan.thread);
    let mut begun_ns = now_ns();
    let result = thread.seize().map_err(|errno| (Failure::Seize, errno)).and_then(|()| {
        begun_ns = now_ns();
        stop(thread).and_then(|stop| with_stopped(plan, thread, stop))
    });
    let stopped_ns = now_ns().saturating_sub(begun_ns);
    match result {
        Ok(descriptor) => (Report { failure: None, errno: 0, stopped_ns }, Some(descriptor)),
        Err((failure, errno)) => (Report { failure: Some(failure), errno, stopped_ns }, None),
    }
}

/// A thread that does not stop in time is let go by the kernel when the helper ends.
fn stop(thread: Tracee) -> Result<Stop, Failed> {
    thread.interrupt().map_err(traced)?;
    thread.wait(Some(STOP_LIMIT)).map_err(traced)?.ok_or((Failure::NotStopping, 0))
}

fn with_stopped(plan: &Plan, thread: Tracee, stop: Stop) -> Result<RawFd, Failed> {
    let mut stopped = match Stopped::save(thread, stop) {
        Ok(stopped) => stopped,
        Err(failed) => {
            let signal = if let Stop::Signal(signal) = stop { signal } else { 0 };
            let _ = thread.detach(signal);
            return Err(failed);
        }
    };
    let taken = stopped.block_signals().and_then(|()| take_userfaultfd(plan, &mut stopped));
    let released = stopped.release();
    let descriptor = taken?;
    // The thread ended in the stop: the descriptor is of no use, and this process's end closes it.
    released.map(|()| descriptor)
}

/// Makes the descriptor in the target, copies it out, and closes the target's.
fn take_userfaultfd(plan: &Plan, stopped: &mut Stopped) -> Result<RawFd, Failed> {
    let made = stopped.call(plan.instruction, libc::SYS_userfaultfd, USERFAULTFD_FLAGS as u64)?;
    if made < 0 {
        return Err((Failure::Userfaultfd, i32::try_from(-made).unwrap_or(0)));
    }
    // SAFETY: takes three numbers.
    let taken = unsafe { libc::syscall(libc::SYS_pidfd_getfd, plan.pidfd, made, 0) };
    // SAFETY: the address of this thread's own `errno`.
    let errno = unsafe { *libc::__errno_location() };
    stopped.call(plan.instruction, libc::SYS_close, made as u64)?;
    if taken < 0 { Err((Failure::TakeOver, errno)) } else { Ok(taken as RawFd) }
}
