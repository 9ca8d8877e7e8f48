//! Huge pages of hugetlbfs that were given back (by a balloon, by virtio-mem).
//!
//! On tmpfs the file says that there is a hole. On hugetlbfs nothing says so: the file reads as zero, the kernel does
//! not call the page written, and where it was clean its protection stays. But nothing else takes a huge page out of
//! the page tables for good. So a page that was in them and is not any more was given back.

use std::collections::BTreeMap;

use linerate_core::Run;
use linerate_lock::Mutex;

use crate::holes::push_run;

/// The pages that were in the page tables when they were last looked at, by the address where a job begins.
#[derive(Debug, Default)]
pub(crate) struct GivenBack {
    there: Mutex<BTreeMap<u64, Vec<Run>>>,
}

impl GivenBack {
    /// The pages of a job that were there and are not any more. With `keep`, what is there `now` is what counts next
    /// time.
    pub(crate) fn since(&self, job: u64, now: Vec<Run>, keep: bool) -> Vec<Run> {
        let mut there = self.there.lock();
        let gone = there.get(&job).map(|before| without(before, &now)).unwrap_or_default();
        if keep {
            there.insert(job, now);
        }
        gone
    }
}

/// What is in `runs` and not in `others`; both are in order.
fn without(runs: &[Run], others: &[Run]) -> Vec<Run> {
    let mut left = Vec::new();
    let mut others = others.iter().peekable();
    for run in runs {
        let mut at = run.offset;
        while let Some(other) = others.peek() {
            if other.offset >= run.end() {
                break;
            }
            if other.offset > at {
                push_run(&mut left, Run { offset: at, length: other.offset - at });
            }
            at = at.max(other.end());
            if other.end() > run.end() {
                break;
            }
            others.next();
        }
        if at < run.end() {
            push_run(&mut left, Run { offset: at, length: run.end() - at });
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(offset: u64, length: u64) -> Run {
        Run { offset, length }
    }

    #[test]
    fn what_is_not_there_any_more_is_reported_until_it_is_kept() {
        let pages = GivenBack::default();
        assert_eq!(pages.since(0, vec![run(0, 10), run(20, 10)], true), []);
        for keep in [false, true] {
            assert_eq!(pages.since(0, vec![run(0, 2), run(4, 6)], keep), [run(2, 2), run(20, 10)]);
        }
        assert_eq!(pages.since(0, vec![run(0, 10)], true), []);
    }

    #[test]
    fn runs_are_taken_out_of_runs() {
        let all = [run(0, 10), run(20, 10), run(40, 10)];
        assert_eq!(without(&all, &[]), all);
        assert_eq!(without(&all, &[run(0, 100)]), []);
        assert_eq!(
            without(&all, &[run(5, 20), run(28, 1), run(45, 1)]),
            [run(0, 5), run(25, 3), run(29, 1), run(40, 5), run(46, 4)]
        );
        assert_eq!(without(&all, &[run(10, 10), run(30, 10)]), all);
    }
}
