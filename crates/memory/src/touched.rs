//! What a process has touched of a block since it mapped it, by its page tables.

use std::fs::File;
use std::io;

use linerate_core::Run;

use crate::block::{Backing, RamBlock};
use crate::holes::push_run;
use crate::region::Mapping;
use crate::scan::{Job, report_buffer, scan_job};
use crate::sys::ScanKind;

impl RamBlock {
    /// All pages that the process has in its page tables, as runs of the block in order: those that it read or wrote,
    /// and neighbours that the kernel mapped along (up to 16 pages around a read, a whole huge page). A page that it
    /// never touched is not among them, even if another process filled it.
    ///
    /// A kernel without PAGEMAP_SCAN (before Linux 6.7) does not report this: then it is the whole block.
    pub fn touched(&self) -> io::Result<Vec<Run>> {
        Ok(self
            .in_page_tables(ScanKind::Mapped)?
            .unwrap_or_else(|| vec![Run { offset: 0, length: self.size() }]))
    }

    /// Everything that the block's file, mapped as `mapping`, holds: the same as [`Mapping::populated`], and on 4 KiB
    /// pages many times faster. What the process has in its page tables is there for sure and is found by walking them.
    /// The file is asked about the gaps only, page by page where others filled them.
    pub fn populated(&self, mapping: &Mapping) -> io::Result<Vec<Run>> {
        if self.backing() == Backing::Hugetlbfs {
            return mapping.populated();
        }
        let Some(present) = self.in_page_tables(ScanKind::Present)? else { return mapping.populated() };
        let mut found = Vec::new();
        let mut at = 0;
        let end = Run { offset: mapping.size(), length: 0 };
        for run in present.into_iter().chain([end]) {
            let gap = Run { offset: at, length: run.offset.saturating_sub(at) };
            mapping.walk(gap, |part, holds_data| {
                if holds_data {
                    push_run(&mut found, part);
                }
                Ok(())
            })?;
            at = at.max(run.end());
            if run.length > 0 {
                push_run(&mut found, run);
            }
        }
        Ok(found)
    }

    /// The pages looked for, as runs of the block in order; `None` if the kernel cannot report them.
    fn in_page_tables(&self, look: ScanKind) -> io::Result<Option<Vec<Run>>> {
        let pagemap = File::open(format!("/proc/{}/pagemap", self.pid()))?;
        let mut buffer = report_buffer();
        let mut runs = Vec::new();
        for &piece in self.segments() {
            match scan_job(&pagemap, &mut buffer, &Job { block: 0, piece }, look) {
                Ok(found) => runs.extend(found),
                Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        runs.sort_unstable();
        let mut joined = Vec::with_capacity(runs.len());
        runs.into_iter().for_each(|run| push_run(&mut joined, run));
        Ok(Some(joined))
    }
}
