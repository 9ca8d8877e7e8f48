//! Which pages a process writes, seen from outside.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use linerate_core::Run;

use crate::block::{Backing, Placement, RamBlock, Segment};
use crate::error::{AttachError, TrackError};
use crate::given_back::GivenBack;
use crate::inject;
use crate::probe::{KernelUnfit, release, scan_support};
use crate::scan::{
    Job, Scans, in_parallel, jobs, pages, pieces, report_buffer, scan_job, threads_here, union,
};
use crate::sys::{self, PageRegion, ScanKind};
use crate::target::Target;

/// How an attachment went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachReport {
    /// How long one thread of the process was stopped.
    pub stopped: Duration,
    /// The thread that was stopped.
    pub thread: i32,
}

/// How a scan went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanReport {
    /// Pages of 4096 bytes found written.
    pub pages: u64,
    /// How long it took.
    pub duration: Duration,
}

/// Tracks what a process writes to some of its RAM blocks.
///
/// [`Tracker::protect`] first, then [`Tracker::scan`] as often as wanted. When the tracker is dropped, or its process
/// ends in whatever way, the kernel takes all write protection off.
#[derive(Debug)]
pub struct Tracker {
    target: Target,
    /// None once the process is let go: the kernel drops the protection then.
    uffd: Option<OwnedFd>,
    pagemap: File,
    blocks: Vec<Placement>,
    jobs: Vec<Job>,
    threads: usize,
    scans: Scans,
    given_back: GivenBack,
}

impl Tracker {
    /// Attaches to the process: one of its threads, none of `avoid_threads` (the virtual CPUs), is stopped for less
    /// than a millisecond as a rule. Tracks `blocks`, whose indices [`Tracker::scan`] reports.
    ///
    /// On `Err` the process runs as before, but for [`AttachError::HelperLost`] and [`AttachError::HelperSilent`].
    pub fn attach(
        pid: i32,
        blocks: &[RamBlock],
        avoid_threads: &[i32],
    ) -> Result<(Tracker, AttachReport), AttachError> {
        let support = scan_support()?;
        let target = Target::open(pid)?;
        let pagemap = target.open_proc("pagemap")?;
        let injected = inject::inject(&target, avoid_threads)?;
        let blocks: Vec<_> = blocks.iter().map(RamBlock::placement).collect();
        let bytes = blocks.iter().flat_map(|block| &block.segments).map(|segment| segment.length).sum();
        let jobs = jobs(numbered_segments(&blocks));
        let threads = threads_here(bytes);
        // Closing the descriptor, which every way out of here does, takes back what was registered.
        let tracker = Tracker {
            target,
            uffd: Some(injected.uffd),
            pagemap,
            blocks,
            jobs,
            threads,
            scans: support.scans,
            given_back: GivenBack::default(),
        };
        tracker.register()?;
        Ok((tracker, AttachReport { stopped: injected.stopped, thread: injected.thread }))
    }

    fn register(&self) -> Result<(), AttachError> {
        let Some(uffd) = &self.uffd else { return Ok(()) };
        sys::uffd_api(uffd).map_err(no_async_protection)?;
        for (block, segment) in numbered_segments(&self.blocks) {
            let name = || self.blocks.get(block).map(|block| block.name.clone()).unwrap_or_default();
            sys::uffd_register(uffd, segment.address, segment.length).map_err(|source| {
                match source.raw_os_error() {
                    Some(libc::ENOMEM | libc::ESRCH) if self.target.is_ending() => {
                        AttachError::TargetEnded { pid: self.target.pid }
                    }
                    Some(libc::EBUSY) => AttachError::OtherUserfaultfd { block: name() },
                    _ => AttachError::Register { block: name(), source },
                }
            })?;
        }
        Ok(())
    }

    /// How many threads scan. Chosen from size and cores; can be overridden, 0 counts as 1.
    pub fn set_threads(&mut self, threads: usize) {
        self.threads = threads.max(1);
    }

    /// Write-protects everything, page by page; what is written from the return on is seen by the next scan. What was
    /// written before the call may or may not be.
    ///
    /// Transparent huge pages are split for this, so that later scans are exact to 4 KiB; docs/memory.md compares.
    pub fn protect(&self) -> Result<Duration, TrackError> {
        let begun = Instant::now();
        let protect = |job: &Job| match &self.uffd {
            Some(uffd) => sys::uffd_write_protect(uffd, job.piece.address, job.piece.length),
            None => Ok(()),
        };
        in_parallel(&self.jobs, self.threads, || (), |(), job| protect(job))
            .map_err(|source| self.failed(source, |source| TrackError::Protect { source }))?;
        let mut buffer = report_buffer();
        for job in self.jobs.iter().filter(|job| self.is_hugetlbfs(job)) {
            self.given_back(&mut buffer, job, true)
                .map_err(|source| self.failed(source, |source| TrackError::Protect { source }))?;
        }
        Ok(begun.elapsed())
    }

    /// Appends the pages written since the last clearing scan to `out`, as (index of the block, run). With `clear` they
    /// are write-protected again in the same step, so that no write falls between.
    ///
    /// On `Err` pages may have been cleared without being reported: give up the migration or [`Tracker::protect`] and
    /// copy everything anew.
    pub fn scan(&self, clear: bool, out: &mut Vec<(usize, Run)>) -> Result<ScanReport, TrackError> {
        let begun = Instant::now();
        let found = in_parallel(&self.jobs, self.threads, report_buffer, |buffer, job| {
            self.scan_job(buffer, job, clear)
        })
        .map_err(|source| self.failed(source, |source| TrackError::Scan { source }))?;
        // The page tables of a process that ended are empty, which would look like "nothing written".
        if self.target.ended() {
            return Err(TrackError::TargetEnded { pid: self.target.pid });
        }
        let total = found.iter().map(|runs| pages(runs)).sum();
        for (job, runs) in self.jobs.iter().zip(found) {
            out.extend(runs.into_iter().map(|run| (job.block, run)));
        }
        Ok(ScanReport { pages: total, duration: begun.elapsed() })
    }

    fn scan_job(&self, buffer: &mut [PageRegion], job: &Job, clear: bool) -> io::Result<Vec<Run>> {
        let hugetlbfs = self.is_hugetlbfs(job);
        // A written page that was given back has no entry; all others have one, because protection made it.
        let scans = if hugetlbfs { Scans::WrittenAndEmpty } else { self.scans };
        let found = match clear {
            true => scans.clear(&self.pagemap, buffer, job)?,
            false => scans.peek(&self.pagemap, buffer, job)?,
        };
        if !hugetlbfs {
            return Ok(found);
        }
        Ok(union(found, self.given_back(buffer, job, clear)?))
    }

    fn given_back(&self, buffer: &mut [PageRegion], job: &Job, keep: bool) -> io::Result<Vec<Run>> {
        let now = scan_job(&self.pagemap, buffer, job, ScanKind::Present)?;
        Ok(self.given_back.since(job.piece.address, now, keep))
    }

    fn is_hugetlbfs(&self, job: &Job) -> bool {
        self.blocks.get(job.block).is_some_and(|block| block.backing == Backing::Hugetlbfs)
    }

    /// Whether the process still maps every block where it did when it was found. A piece that was mapped anew is
    /// neither protected nor reported by scans, so ask this before the last scan's result is trusted.
    pub fn check_mapped(&self) -> Result<(), TrackError> {
        let pid = self.target.pid;
        for block in &self.blocks {
            match block.segments_now() {
                Ok(segments) if segments == block.segments => {}
                _ if self.target.ended() => return Err(TrackError::TargetEnded { pid }),
                _ => return Err(TrackError::Remapped { pid, block: block.name.clone() }),
            }
        }
        Ok(())
    }

    /// Takes off all write protection and gives the descriptor back. Nothing is left even on `Err`: closing the
    /// descriptor does the rest.
    pub fn detach(mut self) -> Result<(), TrackError> {
        self.unregister().map_err(|source| TrackError::Unregister { source })
    }

    fn unregister(&mut self) -> io::Result<()> {
        let Some(uffd) = self.uffd.take() else { return Ok(()) };
        let mut result = Ok(());
        for block in &self.blocks {
            for piece in block.segments.iter().flat_map(|segment| released(*segment, block.backing)) {
                let done = sys::uffd_unregister(&uffd, piece.address, piece.length);
                result = result.and(done);
            }
        }
        match result {
            Err(_) if self.target.is_ending() => Ok(()),
            other => other,
        }
    }

    fn failed(&self, source: io::Error, otherwise: impl Fn(io::Error) -> TrackError) -> TrackError {
        if self.target.is_ending() {
            TrackError::TargetEnded { pid: self.target.pid }
        } else {
            otherwise(source)
        }
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        if let Err(error) = self.unregister() {
            tracing::debug!(%error, pid = self.target.pid, "unregistering failed; closing the descriptor does it");
        }
    }
}

/// The kernel keeps page faults of the process waiting while it takes protection off a piece: of this many bytes some
/// 3 ms, in 4 KiB pages.
const RELEASED_BYTES: u64 = 64 << 20;

/// The pieces in which a segment is given back. A mapping of hugetlbfs stays as it is: it has few entries, and its
/// pieces would not become one again.
fn released(segment: Segment, backing: Backing) -> impl Iterator<Item = Segment> {
    let bytes = match backing {
        Backing::Tmpfs => RELEASED_BYTES,
        Backing::Hugetlbfs => segment.length.max(1),
    };
    pieces(segment, bytes)
}

fn numbered_segments(blocks: &[Placement]) -> impl Iterator<Item = (usize, Segment)> {
    blocks
        .iter()
        .enumerate()
        .flat_map(|(index, block)| block.segments.iter().map(move |segment| (index, *segment)))
}

fn no_async_protection(_: io::Error) -> AttachError {
    AttachError::KernelUnfit(KernelUnfit::TooOld {
        release: release(),
        missing: "asynchronous userfaultfd write protection",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protection_is_taken_off_in_pieces_between_which_page_faults_go_on() {
        let segment = Segment { address: 1 << 40, length: (1 << 30) + 8192, offset: 4096 };
        let pieces: Vec<Segment> = released(segment, Backing::Tmpfs).collect();
        assert!(pieces.iter().all(|piece| piece.length <= RELEASED_BYTES));
        assert!(pieces.windows(2).all(|two| two[0].address + two[0].length == two[1].address));
        assert_eq!(pieces.iter().map(|piece| piece.length).sum::<u64>(), segment.length);
        assert_eq!(pieces[0].address, segment.address);
        assert_eq!(released(segment, Backing::Hugetlbfs).collect::<Vec<_>>(), [segment]);
    }
}
