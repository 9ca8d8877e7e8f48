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

/// Bytes that are asked for first when the end of data is looked for.
const FIRST_PIECE: u64 = 16 * PAGE_BYTES;

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
fn next_hole(file: &File, data: u64, end: u64) -> io::Result<u64> {
    let first = first_missing(data, end, |at, length| {
        sys::pages_cached(file, at, length) == Some(length.div_ceil(PAGE_BYTES))
    });
    if first == end {
        return Ok(end);
    }
    let hole = seek(file, SeekFrom::Hole(first))?;
    // A hole at `data` itself can only be one that was punched since it was found to hold data. Go on behind it.
    Ok(hole.clamp(data.saturating_add(PAGE_BYTES).min(end), end))
}

/// Where to look for a hole with SEEK_HOLE, which knows no limit and walks page by page to the next one, be it
/// gigabytes away. The start of the first piece that `whole` does not call populated, `end` if there is none. Pieces
/// begin small and double. So at most three times the way to the hole is asked for, in a file of a million holes too.
fn first_missing(data: u64, end: u64, whole: impl Fn(u64, u64) -> bool) -> u64 {
    let (mut at, mut piece) = (data, FIRST_PIECE);
    while at < end {
        let length = piece.min(end - at);
        if !whole(at, length) {
            return at;
        }
        at += length;
        piece = piece.saturating_mul(2);
    }
    end
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_is_asked_for_grows_with_the_file_and_not_with_its_holes() {
        // Every second page of 1 GiB is a hole: each data page asks for its own neighbourhood, not for all that
        // follows.
        let (end, asked) = (1u64 << 30, Cell::new(0));
        for data in (0..end).step_by(2 * PAGE_BYTES as usize) {
            let first = first_missing(data, end, |_, length| {
                asked.set(asked.get() + length);
                length <= PAGE_BYTES
            });
            assert_eq!(first, data);
        }
        assert!(asked.get() <= 16 * end, "{} bytes were asked for", asked.get());
    }

    #[test]
    fn the_piece_with_the_hole_is_found_and_the_end_if_there_is_none() {
        let hole = 777 * PAGE_BYTES;
        for end in [PAGE_BYTES, 777 * PAGE_BYTES, 778 * PAGE_BYTES, 5000 * PAGE_BYTES] {
            let asked = Cell::new(0);
            let first = first_missing(0, end, |at, length| {
                asked.set(asked.get() + length);
                !(at..at + length).contains(&hole)
            });
            if end <= hole {
                assert_eq!((first, asked.get()), (end, end));
            } else {
                assert!(first <= hole && asked.get() <= 3 * hole + FIRST_PIECE, "{first} {}", asked.get());
            }
        }
    }
}
