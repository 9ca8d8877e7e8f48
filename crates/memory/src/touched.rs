//! What a process has touched of a block since it mapped it: its page tables say so.

use std::fs::File;
use std::io;

use linerate_core::Run;

use crate::block::{RamBlock, Segment};
use crate::holes::push_run;
use crate::scan::{Job, report_buffer, scan_job};
use crate::sys::Look;

impl RamBlock {
    /// All pages that the process has in its page tables, as runs of the block in order: those that it read or wrote, and
    /// neighbours that the kernel mapped along (up to 16 pages around a read, a whole huge page). A page that it never
    /// touched is not among them, whoever else filled it.
    ///
    /// A kernel without PAGEMAP_SCAN (before Linux 6.7) does not tell: then it is the whole block.
    pub fn touched(&self) -> io::Result<Vec<Run>> {
        let pagemap = File::open(format!("/proc/{}/pagemap", self.pid()))?;
        let mut buffer = report_buffer();
        let mut runs = Vec::new();
        for &piece in self.segments() {
            match scan_job(&pagemap, &mut buffer, &Job { block: 0, piece }, Look::Mapped) {
                Ok(found) => runs.extend(found),
                Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => runs.push(whole(piece)),
                Err(error) => return Err(error),
            }
        }
        runs.sort_unstable();
        let mut joined = Vec::with_capacity(runs.len());
        runs.into_iter().for_each(|run| push_run(&mut joined, run));
        Ok(joined)
    }
}

fn whole(piece: Segment) -> Run {
    Run { offset: piece.offset, length: piece.length }
}
