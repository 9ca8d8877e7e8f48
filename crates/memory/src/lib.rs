//! Guest RAM from outside: find it in a running process, map it, see what is written to it, copy it without touching
//! holes.
//!
//! * [`RamBlock`]: a block of RAM that a process maps shared from a named file or a memfd, found through `/proc`.
//! * [`Mapping`]: our own mapping of that file: gathered send, scattered receive, checksum, zero pages, holes, digest.
//! * [`RamBlock::touched`]: which pages it has touched since it mapped the block.
//! * [`scan_support`]: whether this kernel's scans report every page that was written.
//! * [`Tracker`]: which pages the process has written since the last look, without its help.
//!
//! Invariants:
//! * The target is changed only in the window that [`Tracker::attach`] documents, by a helper process that always puts
//!   the stopped thread back as it was. On `Err` of any function here the target runs as before, without write
//!   protection.
//! * Memory that another process writes is never seen as a Rust slice unless the comment at the spot argues for it.
//! * A hole of the file is never read through a mapping, because that would allocate it.
//!
//! `docs/memory.md` has the figures behind the choices, and what the tracker cannot see.

#![allow(missing_docs, reason = "a name that says everything has no comment")]

#[cfg(not(target_os = "linux"))]
compile_error!("linerate-memory works on Linux only");

mod block;
mod digest;
mod error;
mod gather;
mod given_back;
mod holes;
mod inject;
mod maps;
mod probe;
mod region;
mod scan;
mod sum;
mod sys;
mod target;
mod touched;
mod track;
mod zero;

pub use block::{Backing, RamBlock, Segment};
pub use error::{AttachError, FindError, TrackError};
pub use probe::{Case, Finding, KernelUnfit, ScanSupport, release, scan_support};
pub use region::Mapping;
pub use track::{AttachReport, ScanReport, Tracker};
