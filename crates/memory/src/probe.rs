//! Whether the scans of this kernel report every page that was written, tried out on memory of our own.
//!
//! A kernel may empty the page-table entry of a page whose content stays. When a huge page is taken apart, when small
//! pages become a huge one, under memory pressure, when the page moves to another node. A page that was written before
//! must be reported all the same. Whether it is depends on the kernel and on how it is asked.

mod memory;

use std::fmt;
use std::io;
use std::sync::OnceLock;

use crate::scan::Scans;
use crate::sys;
use memory::{PAGES, ProbeMemory};

/// Pages that are written before their entries are emptied: in the first part and the last part of a huge page.
const WRITTEN: [u64; 2] = [7, 300];
/// A page near them that is given back.
const GIVEN_BACK: u64 = 100;

/// What happens to written pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// Nothing: a protected page that was not touched must not be reported.
    Untouched,
    /// A hole is punched next to them, into their huge page.
    HoleInHugePage,
    /// Small pages become a huge one (khugepaged, MADV_COLLAPSE).
    Collapse,
    /// All 2 MiB are given back, come again as a huge page, and a hole is punched into that.
    Refill,
    /// Their mapping is taken away to free memory (swap-out, MADV_PAGEOUT).
    Reclaim,
    /// They move to another NUMA node.
    Move,
}

const CASES: [Case; 6] =
    [Case::Untouched, Case::HoleInHugePage, Case::Collapse, Case::Refill, Case::Reclaim, Case::Move];

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Case::Untouched => "the protection of absent pages is not recognised",
            Case::HoleInHugePage => "a written page is missed after a hole in its huge page",
            Case::Collapse => "a written page is missed after it became part of a huge page",
            Case::Refill => {
                "a written page is missed where a huge page came back after memory was given back"
            }
            Case::Reclaim => "a written page is missed after its mapping was reclaimed",
            Case::Move => "a written page is missed after it moved to another NUMA node",
        })
    }
}

/// What a case showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Every written page was reported.
    Reported,
    /// A written page was not reported.
    Missed,
    /// This machine could not be brought to do it: no huge pages, one NUMA node.
    NotProbed,
}

/// What the kernel was found to do.
#[derive(Clone, Debug)]
pub struct ScanSupport {
    /// The cases, as they went with the scans that are used.
    pub cases: Vec<(Case, Finding)>,
    pub(crate) scans: Scans,
}

/// Why memory cannot be tracked on this kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelUnfit {
    /// The kernel lacks PAGEMAP_SCAN or asynchronous write protection.
    #[error("this kernel ({release}) lacks {missing}: direct mode needs Linux 6.7 or newer, use stream mode")]
    TooOld { release: String, missing: &'static str },
    /// A written page was missed.
    #[error("this kernel ({release}) loses written pages ({case}): use stream mode, or a newer kernel")]
    LosesWrites { release: String, case: Case },
    /// The probe could not be made.
    #[error("whether this kernel ({release}) loses written pages cannot be probed: use stream mode")]
    Unprobed {
        release: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// What this kernel's scans are good for. The first call tries it out on 2 MiB of our own memory, for some
/// milliseconds. Later calls repeat the answer, unless the probe could not be made.
pub fn scan_support() -> Result<&'static ScanSupport, KernelUnfit> {
    static FOUND: OnceLock<Result<ScanSupport, Case>> = OnceLock::new();
    let found = match FOUND.get() {
        Some(found) => found,
        None => {
            let found = probe()?;
            FOUND.get_or_init(|| found)
        }
    };
    found.as_ref().map_err(|case| KernelUnfit::LosesWrites { release: release(), case: *case })
}

/// The kernel's release, as `uname -r` says.
pub fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

fn probe() -> Result<Result<ScanSupport, Case>, KernelUnfit> {
    check_calls()?;
    let unprobed = |source| KernelUnfit::Unprobed { release: release(), source };
    let mut missed = None;
    let first = if moves_are_mistaken(&release()) { Scans::AnyOfAndWritten } else { Scans::Written };
    for scans in [first, Scans::WrittenAndEmpty] {
        let cases = all_cases(scans).map_err(unprobed)?;
        tracing::debug!(?scans, ?cases, "probed the scans of page tables");
        missed = cases.iter().find(|(_, finding)| *finding == Finding::Missed).map(|(case, _)| *case);
        match missed {
            None => return Ok(Ok(ScanSupport { cases, scans })),
            // A second scan for empty entries finds what the first one misses there, and nothing else.
            Some(Case::Untouched) => break,
            Some(_) if first != Scans::Written => break,
            Some(_) => {}
        }
    }
    Ok(Err(missed.unwrap_or(Case::Untouched)))
}

/// Linux 6.7 and 6.8 may not have the fix of 6.8.10; distributions that took it keep the number.
fn moves_are_mistaken(release: &str) -> bool {
    release.starts_with("6.7.") || release.starts_with("6.8.")
}

/// Whether the kernel has the calls at all.
fn check_calls() -> Result<(), KernelUnfit> {
    let too_old = |missing| KernelUnfit::TooOld { release: release(), missing };
    let uffd = sys::userfaultfd().map_err(|_| too_old("userfaultfd"))?;
    sys::uffd_api(&uffd).map_err(|_| too_old("asynchronous userfaultfd write protection"))?;
    let pagemap = memory::pagemap().map_err(|source| KernelUnfit::Unprobed { release: release(), source })?;
    match sys::pagemap_scan(&pagemap, 0, 0, sys::ScanKind::Peek, &mut []) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => Err(too_old("PAGEMAP_SCAN")),
        _ => Ok(()),
    }
}

fn all_cases(scans: Scans) -> io::Result<Vec<(Case, Finding)>> {
    CASES.into_iter().map(|case| Ok((case, try_case(case, scans)?))).collect()
}

fn try_case(case: Case, scans: Scans) -> io::Result<Finding> {
    let mut memory = ProbeMemory::new(scans)?;
    match case {
        Case::Untouched => {
            memory.protect()?;
            let confused = !memory.written()?.is_empty();
            return Ok(if confused { Finding::Missed } else { Finding::Reported });
        }
        Case::HoleInHugePage => {
            memory.fill();
            let huge = memory.collapse();
            memory.protect()?;
            memory.write(&WRITTEN);
            memory.punch(GIVEN_BACK, 1)?;
            if !huge {
                return Ok(Finding::NotProbed);
            }
        }
        Case::Collapse => {
            memory.fill();
            memory.protect()?;
            memory.write(&WRITTEN);
            memory.collapse();
        }
        Case::Refill => {
            memory.protect()?;
            memory.fill();
            memory.give_back()?;
            let huge = memory.fill_elsewhere()?;
            memory.write(&WRITTEN);
            memory.punch(GIVEN_BACK, 1)?;
            if !huge {
                return Ok(Finding::NotProbed);
            }
        }
        Case::Reclaim => {
            memory.fill();
            memory.protect()?;
            memory.write(&WRITTEN);
            memory.reclaim();
        }
        Case::Move => {
            memory.fill();
            memory.protect()?;
            memory.write(&WRITTEN);
            if !memory.move_away(&WRITTEN) {
                return Ok(Finding::NotProbed);
            }
        }
    }
    judge(&mut memory, case)
}

/// Whether scans report what was written, clearing or not, and what is written after that.
fn judge(memory: &mut ProbeMemory, case: Case) -> io::Result<Finding> {
    let emptied = memory.empty()?.iter().any(|page| WRITTEN.contains(page));
    let holds = |found: &[u64]| WRITTEN.iter().all(|page| found.contains(page));
    if !holds(&memory.written()?) || !holds(&memory.clear()?) {
        return Ok(Finding::Missed);
    }
    memory.write(&WRITTEN);
    memory.write(&[PAGES - 1]);
    let again = memory.written()?;
    if !holds(&again) || !again.contains(&(PAGES - 1)) {
        return Ok(Finding::Missed);
    }
    Ok(if emptied || case == Case::Move { Finding::Reported } else { Finding::NotProbed })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(cases: &[(Case, Finding)], wanted: Case) -> Finding {
        cases.iter().find(|(case, _)| *case == wanted).unwrap().1
    }

    #[test]
    fn every_written_page_is_reported_by_this_kernel_and_nothing_is_left() {
        let began = std::time::Instant::now();
        let support = scan_support().unwrap();
        println!("kernel {}: {:?} in {:?}", release(), support, began.elapsed());
        assert!(support.cases.iter().all(|(_, finding)| *finding != Finding::Missed));
        assert_eq!(finding(&support.cases, Case::Untouched), Finding::Reported);
        assert!(std::ptr::eq(support, scan_support().unwrap()), "probed once");
        // Other tests of this program probe at the same time, and end.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while is_left() {
            assert!(std::time::Instant::now() < end, "a mapping or a descriptor is left");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    fn is_left() -> bool {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let mut links = open.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        links.any(|link| link.to_string_lossy().contains(memory::NAME))
            || std::fs::read_to_string("/proc/self/maps").unwrap().contains(memory::NAME)
    }

    /// Two scans are for kernels that this machine has not; here they must change nothing.
    #[test]
    fn two_scans_report_the_same_as_one() {
        for scans in [Scans::WrittenAndEmpty, Scans::AnyOfAndWritten] {
            let cases = all_cases(scans).unwrap();
            assert!(cases.iter().all(|(_, finding)| *finding != Finding::Missed), "{scans:?}: {cases:?}");
        }
    }

    #[test]
    fn kernels_that_may_mistake_a_moving_page_are_known() {
        for (release, mistaken) in [
            ("6.7.12", true),
            ("6.8.0-45-generic", true),
            ("6.8.12-4-pve", true),
            ("6.9.0", false),
            ("6.12.95", false),
        ] {
            assert_eq!(moves_are_mistaken(release), mistaken, "{release}");
        }
    }

    /// For machines with the kernel of Debian 12's backports: lab/tests/rdma.rs runs it there.
    #[test]
    #[ignore = "fails on kernels that have the fix of July 2026"]
    fn the_probe_finds_written_pages_that_another_query_misses() {
        let missed = all_cases(Scans::AnyOf).unwrap();
        println!("kernel {}: {missed:?}", release());
        assert_eq!(finding(&missed, Case::HoleInHugePage), Finding::Missed);
        assert_eq!(finding(&missed, Case::Collapse), Finding::Missed);
        assert_eq!(finding(&missed, Case::Reclaim), Finding::Missed);
        let found = all_cases(Scans::Written).unwrap();
        println!("kernel {}: {found:?}", release());
        assert!(found.iter().all(|(_, finding)| *finding != Finding::Missed));
        assert_eq!(finding(&found, Case::HoleInHugePage), Finding::Reported);
        for scans in [Scans::WrittenAndEmpty, Scans::AnyOfAndWritten] {
            let found = all_cases(scans).unwrap();
            assert!(found.iter().all(|(_, finding)| *finding != Finding::Missed), "{scans:?}: {found:?}");
        }
    }

    /// For machines with the kernel of Debian 12.
    #[test]
    #[ignore = "needs a kernel before Linux 6.7"]
    fn a_kernel_that_is_too_old_is_named() {
        let error = scan_support().unwrap_err();
        println!("{error}");
        assert!(matches!(error, KernelUnfit::TooOld { .. }));
        assert!(error.to_string().contains(&release()));
    }
}
