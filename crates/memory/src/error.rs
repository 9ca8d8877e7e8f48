//! What can go wrong, one variant per cause.

use std::io;
use std::path::PathBuf;

use crate::probe::KernelUnfit;

/// Why a RAM block was not found. The process was only looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    #[error("process {pid} does not exist: the guest has ended")]
    NoProcess { pid: i32 },
    /// `/proc/PID/maps` could not be read.
    #[error("the mappings of process {pid} cannot be read: run the agent as root or with CAP_SYS_PTRACE")]
    MapsUnreadable {
        pid: i32,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// `/proc/PID/maps` has a line that is not in the documented form.
    #[error("the list of mappings of process {pid} is not in the form that Linux documents")]
    MapsMalformed { pid: i32 },
    /// The process maps no such file.
    #[error(
        "process {pid} maps no file {path:?}: give the guest memory-backend-file on a tmpfs or hugetlbfs, or a memfd"
    )]
    NotMapped {
        pid: i32,
        /// The file looked for.
        path: PathBuf,
    },
    /// Several mapped files have the name, so that none can be chosen.
    #[error(
        "{files} different files mapped by the process are called {path:?}: give each RAM block a file of its own name"
    )]
    Ambiguous {
        /// The file looked for.
        path: PathBuf,
        /// How many have the name.
        files: usize,
    },
    /// The file is mapped private, so writes never reach it.
    #[error("{path:?} is mapped private: the memory backend needs share=on")]
    NotShared { path: PathBuf },
    /// The process may not write the file.
    #[error("{path:?} is mapped read-only: RAM of a memory backend with readonly=on cannot be moved")]
    ReadOnly { path: PathBuf },
    /// The file could not be opened through `/proc`.
    #[error("{path:?} cannot be opened for reading and writing through /proc: run the agent as root")]
    Open {
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// What was opened is not what is mapped.
    #[error("{path:?} changed while it was being opened: try again")]
    Changed { path: PathBuf },
    /// The file is not in memory.
    #[error("{path:?} lies on a file system (type {magic:#x}) that is neither tmpfs nor hugetlbfs")]
    NotMemory {
        path: PathBuf,
        /// Magic number of its file system.
        magic: i64,
    },
    /// The file is empty or not a whole number of pages.
    #[error("{path:?} has {size} bytes, which is not a positive number of pages of 4096 bytes")]
    OddSize { path: PathBuf, size: u64 },
}

/// Why a process could not be attached to. It runs as before, and nothing of it is write-protected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// Memory cannot be tracked on this kernel.
    #[error(transparent)]
    KernelUnfit(#[from] KernelUnfit),
    /// The process ended before or meanwhile.
    #[error("process {pid} has ended")]
    TargetEnded { pid: i32 },
    /// We may not trace the process.
    #[error("process {pid} may not be traced: run the agent as root or with CAP_SYS_PTRACE")]
    NoPermission {
        pid: i32,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A debugger or tracer holds the thread.
    #[error("thread {thread} is already traced by process {tracer}: detach that debugger")]
    AlreadyTraced { thread: i32, tracer: i32 },
    /// Something in `/proc/PID` could not be read.
    #[error("{file} of process {pid} cannot be read")]
    Proc {
        pid: i32,
        /// Name below `/proc/PID`.
        file: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The vDSO has no system call instruction.
    #[error(
        "process {pid} has no system call instruction in its vDSO: it was started with vdso=0 or is not a 64-bit process"
    )]
    NoSyscallInstruction { pid: i32 },
    /// Every thread is one to be avoided.
    #[error("process {pid} has no thread that may be stopped: all are virtual CPUs or kernel workers")]
    NoThread { pid: i32 },
    /// The helper process could not be made.
    #[error("the helper process that stops the guest's thread cannot be started")]
    HelperStart {
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The helper ended without a report.
    #[error(
        "the helper process that stops the guest's thread was killed: look at whether the guest still runs"
    )]
    HelperLost,
    /// The helper gave no report in time; it continues by itself until the thread is as it was.
    #[error(
        "the helper process has not reported within {seconds} s: thread {thread} of the guest hangs inside the kernel"
    )]
    HelperSilent {
        thread: i32,
        /// How long was waited.
        seconds: u64,
    },
    /// The thread did not stop in time.
    #[error("thread {thread} did not stop in time: it hangs inside the kernel, look at the guest's storage")]
    ThreadNotStopping { thread: i32 },
    /// The thread ended meanwhile.
    #[error("thread {thread} ended before it could be used")]
    ThreadEnded { thread: i32 },
    /// The thread runs code that is not 64-bit.
    #[error("thread {thread} does not run 64-bit code: only 64-bit hypervisors can be moved in direct mode")]
    Not64Bit { thread: i32 },
    /// A system call filter of the process forbids userfaultfd.
    #[error(
        "the guest's sandbox (seccomp) forbids userfaultfd: give the agent CAP_SYS_ADMIN or relax the sandbox"
    )]
    Sandboxed,
    /// The injected userfaultfd call failed.
    #[error("userfaultfd failed inside the guest's process")]
    Userfaultfd {
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The descriptor could not be taken over.
    #[error("the userfaultfd could not be taken out of the guest's process")]
    TakeOver {
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The thread could not be handled while it was stopped.
    #[error("thread {thread} could not be handled while it was stopped")]
    Trace {
        thread: i32,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Another userfaultfd watches the memory.
    #[error(
        "the memory of RAM block {block} is watched by another userfaultfd: end the guest's background snapshot, post-copy or memory introspection"
    )]
    OtherUserfaultfd {
        /// Name of the RAM block.
        block: String,
    },
    /// The memory could not be registered.
    #[error("the memory of RAM block {block} cannot be registered for tracking")]
    Register {
        /// Name of the RAM block.
        block: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// Why tracking failed. What was collected before is incomplete: give up the migration, or track anew.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrackError {
    #[error("process {pid} has ended")]
    TargetEnded { pid: i32 },
    /// The memory is no longer mapped as it was when it was found.
    #[error("process {pid} has remapped RAM block {block}: writes to it may have been missed")]
    Remapped {
        pid: i32,
        /// Name of the RAM block.
        block: String,
    },
    /// Write protection could not be applied.
    #[error("guest memory cannot be write-protected")]
    Protect {
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The page tables could not be scanned.
    #[error("written pages cannot be read from the page tables")]
    Scan {
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Write protection could not be taken off piecewise; closing the descriptor took it off.
    #[error("guest memory could not be unregistered")]
    Unregister {
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}
