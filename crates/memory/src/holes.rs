//! Holes of the block's file: where it holds nothing. Asking never fills them.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use linerate_core::{PAGE_BYTES, Run};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::block::Backing;
use crate::region::Mapping;
use crate::sys;

/// Appends a run, joined to the last one where it continues it.
pub(crate) fn push_run(out: &mut Vec<Run>, run: Run) {
    match out.last_mut() {
        Some(last) if last.end() == run.offset => last.length += run.length,
        _ => out.push(run),
    }
}

impl Mapping {
    /// Everything that the file holds, in order, found without touching holes. On hugetlbfs the whole file, since the
    /// kernel does not say there.
    pub fn populated(&self) -> io::Result<Vec<Run>> {
        let mut runs = Vec::new();
        self.walk(Run { offset: 0, length: self.size() }, |run, holds_data| {
            if holds_data {
                push_run(&mut runs, run);
            }
            Ok(())
        })?;
        Ok(runs)
    }

    /// Bytes of memory that the file occupies.
    pub fn resident_bytes(&self) -> io::Result<u64> {
        Ok(self.file().metadata()?.blocks().saturating_mul(512))
    }

    /// The parts of `runs` that are holes, in order, neighbours joined.
    pub fn holes_among(&self, runs: &[Run]) -> io::Result<Vec<Run>> {
        let mut holes = Vec::new();
        for run in runs {
            self.check(*run)?;
            self.walk(*run, |part, holds_data| {
                if !holds_data {
                    push_run(&mut holes, part);
                }
                Ok(())
            })?;
        }
        Ok(holes)
    }

    /// Cuts `run` (inside the file) into parts that hold data and parts that do not.
    pub(crate) fn walk(&self, run: Run, mut part: impl FnMut(Run, bool) -> io::Result<()>) -> io::Result<()> {
        if self.backing() == Backing::Hugetlbfs {
            return part(run, true);
        }
        let mut at = run.offset;
        while at < run.end() {
            let data = next_data(self.file(), at, run.end())?;
            if data > at {
                part(Run { offset: at, length: data - at }, false)?;
            }
            if data == run.end() {
                break;
            }
            at = next_hole(self.file(), data, run.end())?;
            part(Run { offset: data, length: at - data }, true)?;
        }
        Ok(())
    }
}

/// First byte from `at` on that holds data; `end` if there is none before it.
pub(crate) fn next_data(file: &File, at: u64, end: u64) -> io::Result<u64> {
    match seek(file, SeekFrom::Data(at)) {
        Ok(data) => Ok(data.clamp(at, end)),
        Err(Errno::NXIO) => Ok(end),
        Err(errno) => Err(errno.into()),
    }
}

/// First byte behind `data` that holds nothing; `end` if there is none before it.
///
/// SEEK_HOLE knows no limit: it walks page by page to the next hole, be it gigabytes away. `cachestat` is asked first
/// whether everything up to `end` is there, so the walk is only made where it ends before `end`.
fn next_hole(file: &File, data: u64, end: u64) -> io::Result<u64> {
    let length = end - data;
    if length <= PAGE_BYTES || sys::pages_cached(file, data, length) == Some(length.div_ceil(PAGE_BYTES)) {
        return Ok(end);
    }
    let hole = seek(file, SeekFrom::Hole(data))?;
    // A hole at `data` itself can only be one that was punched since it was found to hold data. Go on behind it.
    Ok(hole.clamp(data.saturating_add(PAGE_BYTES).min(end), end))
}
