//! What a process has touched of a block since it mapped it, by its page tables.

use std::io;

use linerate_core::Run;

use crate::block::{Backing, RamBlock};
use crate::holes::push_run;
use crate::region::Mapping;
use crate::scan::{JOB_BYTES, cut, in_parallel, jobs, report_buffer, scan_job, threads_here, union, without};
use crate::sys::ScanKind;

impl RamBlock {
    /// All pages that the process has in its page tables, as runs of the block in order: those that it read or wrote,
    /// and neighbours that the kernel mapped along (up to 16 pages around a read, a whole huge page). A page that it
    /// never touched is not among them, even if another process filled it.
    ///
    /// It is the whole block if the process has ended, and on a kernel without PAGEMAP_SCAN (before Linux 6.7).
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
        let gaps = without(&[Run { offset: 0, length: mapping.size() }], &present);
        let filled = ask_file(&gaps, |gap| {
            let mut filled = Vec::new();
            mapping.walk(gap, |part, holds_data| {
                if holds_data {
                    push_run(&mut filled, part);
                }
                Ok(())
            })?;
            Ok(filled)
        })?;
        Ok(union(present, filled))
    }

    /// The parts of `runs`, which are in order, that are holes of the block's file: the same as
    /// [`Mapping::holes_among`]. It is found as [`RamBlock::populated`] is, so it is fast where that is.
    pub fn holes_among(&self, mapping: &Mapping, runs: &[Run]) -> io::Result<Vec<Run>> {
        if self.backing() == Backing::Hugetlbfs {
            return mapping.holes_among(runs);
        }
        let present = self.in_page_tables(ScanKind::Present)?.unwrap_or_default();
        ask_file(&without(runs, &present), |gap| mapping.holes_among(&[gap]))
    }

    /// The pages looked for, as runs of the block in order; `None` if the kernel cannot report them, or the process has
    /// ended.
    fn in_page_tables(&self, look: ScanKind) -> io::Result<Option<Vec<Run>>> {
        let Some(pagemap) = self.pagemap() else { return Ok(None) };
        let jobs = jobs(self.segments().iter().map(|&piece| (0, piece)));
        let bytes = self.segments().iter().map(|segment| segment.length).sum();
        let found = in_parallel(&jobs, threads_here(bytes), report_buffer, |buffer, job| {
            scan_job(pagemap, buffer, job, look)
        });
        let mut runs: Vec<Run> = match found {
            Ok(found) => found.into_iter().flatten().collect(),
            // ESRCH: the process has ended, and its page tables with it.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::ESRCH)) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        runs.sort_unstable();
        let mut joined = Vec::with_capacity(runs.len());
        runs.into_iter().for_each(|run| push_run(&mut joined, run));
        Ok(Some(joined))
    }
}

/// Shares of the work for each thread: some are done much faster than others.
const SHARES_PER_THREAD: usize = 64;

/// What `ask` finds in the runs, in their order, neighbours joined. Several threads ask where there is much.
fn ask_file(runs: &[Run], ask: impl Fn(Run) -> io::Result<Vec<Run>> + Sync) -> io::Result<Vec<Run>> {
    let threads = threads_here(runs.iter().map(|run| run.length).sum());
    let pieces: Vec<Run> = runs.iter().flat_map(|run| cut(*run, JOB_BYTES)).collect();
    let shares: Vec<&[Run]> =
        pieces.chunks(pieces.len().div_ceil(threads * SHARES_PER_THREAD).max(1)).collect();
    let answers = in_parallel(
        &shares,
        threads,
        || (),
        |(), share| {
            let mut found = Vec::new();
            for piece in share.iter() {
                ask(*piece)?.into_iter().for_each(|run| push_run(&mut found, run));
            }
            Ok(found)
        },
    )?;
    let mut joined = Vec::new();
    answers.into_iter().flatten().for_each(|run| push_run(&mut joined, run));
    Ok(joined)
}
