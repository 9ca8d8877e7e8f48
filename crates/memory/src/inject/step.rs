//! One system call made by a stopped thread, and the thread as it was before.

use super::report::Failure;
use super::trace::{Errno, SignalMask, Stop, Tracee};

#[cfg(not(target_arch = "x86_64"))]
compile_error!("direct mode knows the registers of x86-64 only");

/// Code segment of 64-bit user code on Linux.
const USER_CODE_64: u64 = 0x33;
/// Length of the `syscall` instruction.
const INSTRUCTION_BYTES: u64 = 2;
/// Stops that are no end of the step (group stops, stray signals) are passed over at most this often. If the
/// instruction has not been executed by then, the step is given up. Only a storm of SIGSTOP and SIGCONT gets there.
const STOPS_MAX: usize = 1000;
/// Signals kept while the thread is stopped. The mask holds all others back.
const KEPT_MAX: usize = 8;

/// Signals that the kernel raises for what the thread itself does. If they were blocked, the kernel would reset their
/// handlers; the step's own SIGTRAP is one of them.
const NEVER_BLOCKED: [i32; 6] =
    [libc::SIGTRAP, libc::SIGSYS, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

/// What failed, and the kernel's error number.
pub(super) type Failed = (Failure, Errno);

/// How a failed ptrace request is reported: a thread that has ended is not a defect.
pub(super) fn traced(errno: Errno) -> Failed {
    (if errno == libc::ESRCH { Failure::Ended } else { Failure::Trace }, errno)
}

/// A thread in its stop, with what is needed to put it back.
pub(super) struct Stopped {
    thread: Tracee,
    registers: libc::user_regs_struct,
    mask: SignalMask,
    info: Option<libc::siginfo_t>,
    kept: [i32; KEPT_MAX],
    kept_count: usize,
    /// SIGSTOP cannot be held back or kept, since a SIGCONT that comes meanwhile must undo it. It is delivered with the
    /// next step, which stops the whole process as it should and is repeated.
    deliver: i32,
}

impl Stopped {
    /// Takes note of everything and holds further signals back. `stop` is how the thread stopped.
    pub(super) fn save(thread: Tracee, stop: Stop) -> Result<Stopped, Failed> {
        let info = match stop {
            Stop::Signal(_) => Some(thread.signal_info().map_err(traced)?),
            Stop::Event => None,
        };
        let registers = thread.registers().map_err(traced)?;
        let mask = thread.signal_mask().map_err(traced)?;
        let mut stopped =
            Stopped { thread, registers, mask, info, kept: [0; KEPT_MAX], kept_count: 0, deliver: 0 };
        if let Stop::Signal(signal) = stop {
            stopped.keep(signal);
        }
        Ok(stopped)
    }

    /// Holds signals back until [`Stopped::release`].
    pub(super) fn block_signals(&self) -> Result<(), Failed> {
        if self.registers.cs != USER_CODE_64 {
            return Err((Failure::Not64Bit, 0));
        }
        let blocked = NEVER_BLOCKED.iter().fold(SignalMask::MAX, |mask, signal| mask & !(1 << (signal - 1)));
        self.thread.set_signal_mask(blocked).map_err(traced)
    }

    /// Has the thread make one system call with one argument. Gives what the call returned.
    pub(super) fn call(&mut self, instruction: u64, number: i64, argument: u64) -> Result<i64, Failed> {
        let mut registers = self.registers;
        registers.rip = instruction;
        registers.rax = number as u64;
        // Not in a system call: otherwise the kernel would rewind the instruction to restart the interrupted one.
        registers.orig_rax = u64::MAX;
        registers.rdi = argument;
        (registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9) = (0, 0, 0, 0, 0);
        self.thread.set_registers(&registers).map_err(traced)?;
        let after = instruction.wrapping_add(INSTRUCTION_BYTES);
        let mut filtered = false;
        for stops in 0.. {
            self.thread.step(std::mem::take(&mut self.deliver)).map_err(traced)?;
            // No limit from here on: to leave now would leave the thread with foreign registers.
            match self.thread.wait(None).map_err(traced)? {
                Some(Stop::Signal(libc::SIGSYS)) => filtered = true,
                // The step's trap may still be pending behind an event stop, so only the trap itself is the end.
                Some(Stop::Signal(libc::SIGTRAP)) => {
                    let registers = self.thread.registers().map_err(traced)?;
                    if registers.rip == after {
                        return if filtered {
                            Err((Failure::Sandboxed, 0))
                        } else {
                            Ok(registers.rax as i64)
                        };
                    }
                }
                Some(Stop::Signal(signal)) => self.keep(signal),
                Some(Stop::Event) | None => {}
            }
            if stops >= STOPS_MAX && self.thread.registers().map_err(traced)?.rip == instruction {
                break;
            }
        }
        Err((Failure::Trace, libc::EBUSY))
    }

    fn keep(&mut self, signal: i32) {
        if signal == libc::SIGSTOP {
            self.deliver = signal;
        } else if let Some(place) = self.kept.get_mut(self.kept_count) {
            *place = signal;
            self.kept_count += 1;
        }
    }

    /// Puts registers and mask back and lets the thread go. The first signal that was caught is delivered with its own
    /// details, any other is sent again. Each step is done whatever became of the one before.
    pub(super) fn release(self) -> Result<(), Failed> {
        let thread = self.thread;
        let registers = thread.set_registers(&self.registers);
        let mask = thread.set_signal_mask(self.mask);
        let [first, others @ ..] = self.kept;
        if let Some(info) = self.info.filter(|info| info.si_signo == first) {
            // Fails only if the thread has ended; then the detach fails too.
            let _ = thread.set_signal_info(&info);
        }
        let detached = thread.detach(if first == 0 { self.deliver } else { first });
        for signal in others.into_iter().filter(|signal| *signal != 0) {
            // SAFETY: `tkill` takes two numbers.
            unsafe { libc::syscall(libc::SYS_tkill, thread.0, signal) };
        }
        registers.and(mask).and(detached).map_err(traced)
    }
}
