//! ptrace requests as raw system calls: async-signal-safe, errors as numbers.

use std::time::Duration;

/// The kernel's error number.
pub(super) type Errno = i32;

/// Signals of a thread as the kernel keeps them: bit `n - 1` for signal `n`.
pub(super) type SignalMask = u64;

fn errno() -> Errno {
    // SAFETY: glibc and musl give the address of the calling thread's own `errno`.
    unsafe { *libc::__errno_location() }
}

/// # Safety
/// `address` and `data` must be what the request wants: for requests that read or write our memory, addresses valid for
/// it.
unsafe fn ptrace(request: u32, thread: i32, address: usize, data: usize) -> Result<(), Errno> {
    // SAFETY: the caller guarantees the addresses.
    let result = unsafe { libc::syscall(libc::SYS_ptrace, request as libc::c_long, thread, address, data) };
    if result < 0 { Err(errno()) } else { Ok(()) }
}

/// A stop of the thread, as `wait4` reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// A signal is about to be delivered.
    Signal(i32),
    /// The stop that was asked for, or a group stop.
    Event,
}

/// A thread that the calling process traces.
#[derive(Clone, Copy)]
pub(super) struct Tracee(pub(super) i32);

impl Tracee {
    /// Seizes the thread, with its system call filter suspended where we may do that.
    pub(super) fn seize(self) -> Result<(), Errno> {
        let options = libc::PTRACE_O_SUSPEND_SECCOMP as usize;
        // SAFETY: PTRACE_SEIZE takes no address of ours.
        unsafe {
            ptrace(libc::PTRACE_SEIZE, self.0, 0, options)
                .or_else(|_| ptrace(libc::PTRACE_SEIZE, self.0, 0, 0))
        }
    }

    pub(super) fn interrupt(self) -> Result<(), Errno> {
        // SAFETY: PTRACE_INTERRUPT takes no address of ours.
        unsafe { ptrace(libc::PTRACE_INTERRUPT, self.0, 0, 0) }
    }

    /// Lets the thread execute one instruction. A signal that stopped it is swallowed; `signal` is delivered, 0 for
    /// none.
    pub(super) fn step(self, signal: i32) -> Result<(), Errno> {
        // SAFETY: PTRACE_SINGLESTEP takes no address of ours.
        unsafe { ptrace(libc::PTRACE_SINGLESTEP, self.0, 0, signal as usize) }
    }

    /// Releases the thread and delivers the signal, 0 for none.
    pub(super) fn detach(self, signal: i32) -> Result<(), Errno> {
        // SAFETY: PTRACE_DETACH takes no address of ours.
        unsafe { ptrace(libc::PTRACE_DETACH, self.0, 0, signal as usize) }
    }

    pub(super) fn registers(self) -> Result<libc::user_regs_struct, Errno> {
        // SAFETY: registers are plain numbers; the kernel writes exactly this structure to the live address.
        unsafe {
            let mut registers: libc::user_regs_struct = std::mem::zeroed();
            ptrace(libc::PTRACE_GETREGS, self.0, 0, &raw mut registers as usize)?;
            Ok(registers)
        }
    }

    pub(super) fn set_registers(self, registers: &libc::user_regs_struct) -> Result<(), Errno> {
        // SAFETY: the kernel reads exactly this structure from the live address.
        unsafe { ptrace(libc::PTRACE_SETREGS, self.0, 0, registers as *const _ as usize) }
    }

    pub(super) fn signal_mask(self) -> Result<SignalMask, Errno> {
        let mut mask: SignalMask = 0;
        // SAFETY: `address` is the mask's size in bytes, as the request wants it; the kernel writes it to the live
        // address.
        unsafe {
            ptrace(libc::PTRACE_GETSIGMASK, self.0, size_of::<SignalMask>(), &raw mut mask as usize)?;
        }
        Ok(mask)
    }

    pub(super) fn set_signal_mask(self, mask: SignalMask) -> Result<(), Errno> {
        // SAFETY: as above, read instead of written.
        unsafe { ptrace(libc::PTRACE_SETSIGMASK, self.0, size_of::<SignalMask>(), &raw const mask as usize) }
    }

    pub(super) fn signal_info(self) -> Result<libc::siginfo_t, Errno> {
        // SAFETY: all zero is a valid `siginfo_t`; the kernel writes exactly this structure.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            ptrace(libc::PTRACE_GETSIGINFO, self.0, 0, &raw mut info as usize)?;
            Ok(info)
        }
    }

    pub(super) fn set_signal_info(self, info: &libc::siginfo_t) -> Result<(), Errno> {
        // SAFETY: the kernel reads exactly this structure from the live address.
        unsafe { ptrace(libc::PTRACE_SETSIGINFO, self.0, 0, info as *const _ as usize) }
    }

    /// The next stop. `Ok(None)` if there was none within the limit; without a limit it waits until the thread stops or
    /// ends. `Err(ESRCH)` if it ended.
    pub(super) fn wait(self, limit: Option<Duration>) -> Result<Option<Stop>, Errno> {
        let flags = libc::__WALL | if limit.is_some() { libc::WNOHANG } else { 0 };
        let deadline_ns = limit.map(|limit| now_ns().saturating_add(limit.as_nanos() as u64));
        let mut looks = 0u32;
        loop {
            let mut status = 0;
            // SAFETY: `status` is live; the last argument, resource usage, may be null.
            let who = unsafe { libc::syscall(libc::SYS_wait4, self.0, &mut status, flags, 0usize) };
            match who {
                0 if deadline_ns.is_some_and(|deadline_ns| now_ns() > deadline_ns) => return Ok(None),
                0 => pause(looks),
                who if who == i64::from(self.0) => return stop_of(status).map(Some).ok_or(libc::ESRCH),
                _ if errno() == libc::EINTR => {}
                _ => return Err(errno()),
            }
            looks = looks.saturating_add(1);
        }
    }
}

fn stop_of(status: i32) -> Option<Stop> {
    if !libc::WIFSTOPPED(status) {
        return None;
    }
    Some(if status >> 16 == libc::PTRACE_EVENT_STOP {
        Stop::Event
    } else {
        Stop::Signal(libc::WSTOPSIG(status))
    })
}

/// A thread stops within microseconds as a rule: look often at first, then rarely.
fn pause(looks: u32) {
    let nap = libc::timespec { tv_sec: 0, tv_nsec: 100_000 };
    // SAFETY: `nap` is live; the remainder may be null.
    unsafe {
        if looks < 200 {
            libc::syscall(libc::SYS_sched_yield);
        } else {
            libc::syscall(libc::SYS_nanosleep, &nap, 0usize);
        }
    }
}

/// Nanoseconds of the monotonic clock.
pub(super) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is live; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}
