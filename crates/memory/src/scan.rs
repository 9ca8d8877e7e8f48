//! Walking the target's page tables, by several threads where there is much.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use linerate_core::{PAGE_BYTES, Run};

use crate::block::Segment;
use crate::holes::push_run;
use crate::sys::{PageRegion, ScanKind, pagemap_scan};

/// Entries that one call may report: 1.5 MiB of them, enough for a badly scattered 512 MiB.
const REPORTED_MAX: usize = 1 << 16;
/// Bytes of address space that one thread takes at a time. A multiple of every huge page size that is split.
pub(crate) const JOB_BYTES: u64 = 1 << 30;
/// Bytes of guest RAM for which another thread is worth its start.
const BYTES_PER_THREAD: u64 = 2 << 30;
/// More threads than this only wait for each other's locks.
const THREADS_MAX: u64 = 8;

/// A piece of one block's segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// Index of the block.
    pub(crate) block: usize,
    pub(crate) piece: Segment,
}

/// Cuts segments into jobs.
pub(crate) fn jobs(blocks: impl Iterator<Item = (usize, Segment)>) -> Vec<Job> {
    let cut = |(block, segment): (usize, Segment)| {
        pieces(segment, JOB_BYTES).map(move |piece| Job { block, piece })
    };
    blocks.flat_map(cut).collect()
}

/// A segment in pieces of at most so many bytes.
pub(crate) fn pieces(segment: Segment, bytes: u64) -> impl Iterator<Item = Segment> {
    (0..segment.length).step_by(bytes as usize).map(move |start| Segment {
        address: segment.address + start,
        length: bytes.min(segment.length - start),
        offset: segment.offset + start,
    })
}

/// A run in pieces of at most so many bytes.
pub(crate) fn cut(run: Run, bytes: u64) -> impl Iterator<Item = Run> {
    (run.offset..run.end())
        .step_by(bytes as usize)
        .map(move |offset| Run { offset, length: bytes.min(run.end() - offset) })
}

/// How many threads a guest of this size is scanned with, given the cores there are.
pub(crate) fn threads_for(bytes: u64, cores: usize) -> usize {
    (bytes / BYTES_PER_THREAD).clamp(1, THREADS_MAX).min(cores.max(1) as u64) as usize
}

/// The same on this host.
pub(crate) fn threads_here(bytes: u64) -> usize {
    threads_for(bytes, std::thread::available_parallelism().map_or(1, usize::from))
}

/// Runs `work` on every job, each thread with one state made by `make`; results come in the order of the jobs. The
/// first error ends it.
pub(crate) fn in_parallel<J: Sync, S, R: Send>(
    jobs: &[J],
    threads: usize,
    make: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, &J) -> io::Result<R> + Sync,
) -> io::Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let run = || -> io::Result<Vec<(usize, R)>> {
        let mut state = make();
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(index) else { return Ok(done) };
            done.push((index, work(&mut state, job)?));
        }
    };
    let others = threads.clamp(1, jobs.len().max(1)) - 1;
    let mut done = std::thread::scope(|scope| {
        let others: Vec<_> = (0..others).map(|_| scope.spawn(run)).collect();
        let mut done = run()?;
        for thread in others {
            done.extend(thread.join().map_err(|_| io::Error::other("a scanning thread ended early"))??);
        }
        io::Result::Ok(done)
    })?;
    done.sort_unstable_by_key(|(index, _)| *index);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

/// Room for what the kernel reports.
pub(crate) fn report_buffer() -> Vec<PageRegion> {
    vec![PageRegion { start: 0, end: 0, categories: 0 }; REPORTED_MAX]
}

/// The pages of one job that are looked for, as runs of the block.
pub(crate) fn scan_job(
    pagemap: &File,
    buffer: &mut [PageRegion],
    job: &Job,
    look: ScanKind,
) -> io::Result<Vec<Run>> {
    let piece = job.piece;
    let end = piece.address + piece.length;
    let mut runs = Vec::new();
    let mut at = piece.address;
    while at < end {
        let (count, reached) = pagemap_scan(pagemap, at, end, look, buffer)?;
        for found in buffer.iter().take(count) {
            if found.start < piece.address || found.end > end || found.start >= found.end {
                return Err(io::Error::other("the kernel reported pages outside the scanned range"));
            }
            let offset = found.start - piece.address + piece.offset;
            push_run(&mut runs, Run { offset, length: found.end - found.start });
        }
        if reached <= at {
            return Err(io::Error::other("the scan of the page tables came to a halt"));
        }
        at = reached;
    }
    Ok(runs)
}

/// How written pages are looked for: what the probe found to be enough on this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scans {
    /// One scan, for pages that were written.
    Written,
    /// A second one behind it, for pages without an entry: some kernels (6.14 and later without the fix of July 2026)
    /// leave out 2 MiB that have no page table.
    WrittenAndEmpty,
    /// A first one in front, in which kernels before 6.9 (6.8.10) do not mistake a page that is being moved for a
    /// protected one. Whether a kernel has the fix cannot be tried out: such an entry lasts for an instant.
    AnyOfAndWritten,
    #[cfg(test)]
    AnyOf,
}

impl Scans {
    /// The pages of one job that were written, in order; they are write-protected again.
    pub(crate) fn clear(self, pagemap: &File, buffer: &mut [PageRegion], job: &Job) -> io::Result<Vec<Run>> {
        self.look(pagemap, buffer, job, [ScanKind::Clear, ScanKind::ClearAnyOf])
    }

    /// The pages of one job that were written, in order.
    pub(crate) fn peek(self, pagemap: &File, buffer: &mut [PageRegion], job: &Job) -> io::Result<Vec<Run>> {
        self.look(pagemap, buffer, job, [ScanKind::Peek, ScanKind::PeekAnyOf])
    }

    fn look(
        self,
        pagemap: &File,
        buffer: &mut [PageRegion],
        job: &Job,
        [written, any_of]: [ScanKind; 2],
    ) -> io::Result<Vec<Run>> {
        let (first, second) = match self {
            Scans::Written => (written, None),
            Scans::WrittenAndEmpty => (written, Some(ScanKind::Empty)),
            Scans::AnyOfAndWritten => (any_of, Some(written)),
            #[cfg(test)]
            Scans::AnyOf => (any_of, None),
        };
        let found = scan_job(pagemap, buffer, job, first)?;
        match second {
            Some(second) => Ok(union(found, scan_job(pagemap, buffer, job, second)?)),
            None => Ok(found),
        }
    }
}

/// The pages that are in one of two lists, in order, neighbours joined.
pub(crate) fn union(mut runs: Vec<Run>, more: Vec<Run>) -> Vec<Run> {
    runs.extend(more);
    runs.sort_unstable();
    let mut joined: Vec<Run> = Vec::with_capacity(runs.len());
    for run in runs {
        match joined.last_mut() {
            Some(last) if run.offset <= last.end() => last.length = last.length.max(run.end() - last.offset),
            _ => joined.push(run),
        }
    }
    joined
}

/// What of `runs` is in none of `others`; both are in order.
pub(crate) fn without(runs: &[Run], others: &[Run]) -> Vec<Run> {
    let mut left = Vec::new();
    let mut others = others.iter().peekable();
    for run in runs {
        let mut at = run.offset;
        while let Some(&other) = others.peek()
            && other.offset < run.end()
        {
            if other.offset > at {
                left.push(Run { offset: at, length: other.offset - at });
            }
            at = at.max(other.end());
            // One that reaches further is looked at for the next run too.
            if other.end() > run.end() {
                break;
            }
            others.next();
        }
        if at < run.end() {
            left.push(Run { offset: at, length: run.end() - at });
        }
    }
    left
}

/// Pages in the runs.
pub(crate) fn pages(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.length / PAGE_BYTES).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_cover_every_segment_once() {
        let segments = [
            Segment { address: 0x1000, length: (5 << 30) + 4096, offset: 8192 },
            Segment { address: 9 << 40, length: 4096, offset: 0 },
        ];
        let jobs = jobs(segments.into_iter().enumerate());
        assert_eq!(jobs.len(), 7);
        let total: u64 = jobs.iter().map(|job| job.piece.length).sum();
        assert_eq!(total, (5 << 30) + 8192);
        assert_eq!(jobs[5].piece.offset, 8192 + (5 << 30));
        assert_eq!((jobs[6].block, jobs[6].piece.address), (1, 9 << 40));
    }

    #[test]
    fn results_keep_the_order_of_jobs_and_errors_come_through() {
        let jobs = jobs([(0, Segment { address: 0, length: 40 << 30, offset: 0 })].into_iter());
        let offsets = in_parallel(&jobs, 4, || (), |(), job| Ok(job.piece.offset)).unwrap();
        assert!(offsets.is_sorted() && offsets.len() == 40);
        let failed = in_parallel(
            &jobs,
            4,
            || (),
            |(), job| {
                if job.piece.offset == 7 << 30 { Err(io::Error::other("x")) } else { Ok(()) }
            },
        );
        assert!(failed.is_err());
    }

    #[test]
    fn pages_of_two_scans_are_reported_once() {
        let run = |offset, length| Run { offset, length };
        let first = vec![run(0, 2), run(10, 5), run(30, 1)];
        let second = vec![run(1, 3), run(12, 1), run(15, 2), run(40, 1)];
        assert_eq!(union(first, second), [run(0, 4), run(10, 7), run(30, 1), run(40, 1)]);
    }

    #[test]
    fn what_is_in_none_of_the_others_is_left() {
        let run = |offset, length| Run { offset, length };
        let runs = [run(0, 10), run(20, 10), run(40, 10), run(60, 1)];
        assert_eq!(without(&runs, &[]), runs);
        // A hole in the middle, one end, one that reaches over two runs, and one that is in another.
        let others = [run(2, 3), run(9, 15), run(26, 19), run(28, 1)];
        assert_eq!(without(&runs, &others), [run(0, 2), run(5, 4), run(24, 2), run(45, 5), run(60, 1)]);
        assert_eq!(without(&runs, &[run(0, 100)]), []);
    }

    #[test]
    fn pieces_are_no_longer_than_was_asked_for() {
        let run = Run { offset: 4096, length: (2 << 30) + 8192 };
        let pieces: Vec<Run> = cut(run, JOB_BYTES).collect();
        assert_eq!(pieces.len(), 3);
        assert!(pieces.iter().all(|piece| piece.length <= JOB_BYTES));
        assert_eq!(union(pieces, Vec::new()), [run]);
    }

    #[test]
    fn threads_follow_size_and_cores() {
        assert_eq!(threads_for(512 << 20, 64), 1);
        assert_eq!(threads_for(8 << 30, 64), 4);
        assert_eq!(threads_for(1 << 40, 64), 8);
        assert_eq!(threads_for(1 << 40, 2), 2);
    }
}
