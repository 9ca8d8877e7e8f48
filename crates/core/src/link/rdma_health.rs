//! Whether a link may use RDMA, after it failed there.
//!
//! A link that is cut and works again at once looks as if RDMA alone had failed. So RDMA is tried again, and given up
//! for the rest of the migration only when it has failed some times.

use std::time::Duration;

use crate::Time;

/// Failures after which the link uses TCP for good. Two can be two cuts of the link.
const FAILURES_MAX: u32 = 3;
/// RDMA that could not be opened is tried again after this long. Often enough for an adapter that works again; a try
/// can take some seconds.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Whether a link may use RDMA.
#[derive(Clone, Debug, Default)]
pub struct RdmaHealth {
    failures: u32,
    /// When it failed last, and why, if it has not connected since.
    last: Option<(Time, String)>,
    /// The failure was reported.
    reported: bool,
}

impl RdmaHealth {
    /// It failed while the link may have worked.
    pub fn failed(&mut self, now: Time, reason: &str) {
        self.failures += 1;
        self.last = Some((now, reason.to_owned()));
    }

    /// The link itself had failed.
    pub fn was_not_rdma(&mut self) {
        if self.last.take().is_some() {
            self.failures -= 1;
        }
    }

    /// It carries again. What failed before is not forgotten: it may fail again as soon as it is used.
    pub fn connected(&mut self) {
        self.last = None;
        self.reported = false;
    }

    /// Whether the link uses TCP for the rest of the migration.
    pub fn is_lost(&self) -> bool {
        self.failures >= FAILURES_MAX
    }

    /// Whether it is time to try it again while TCP is used.
    pub fn may_try(&self, now: Time) -> bool {
        let waited = self.last.as_ref().is_some_and(|(at, _)| now - *at >= TRY_AGAIN_AFTER);
        waited && !self.is_lost()
    }

    /// Why the link uses TCP, once.
    pub fn take_reason(&mut self) -> Option<String> {
        let (_, reason) = self.last.as_ref().filter(|_| !self.reported)?;
        self.reported = true;
        Some(reason.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rdma_is_tried_again_until_it_has_failed_some_times() {
        let (mut health, begun) = (RdmaHealth::default(), Time(7));
        assert!(!health.may_try(begun + TRY_AGAIN_AFTER), "it has not failed");
        for failure in 1..FAILURES_MAX {
            health.failed(begun, "broken");
            assert!(!health.is_lost(), "{failure}");
            assert!(!health.may_try(Time(begun.0 + 4_999_999_999)), "it is tried without a pause");
            assert!(health.may_try(begun + TRY_AGAIN_AFTER));
            assert_eq!(health.take_reason().as_deref(), Some("broken"));
            assert_eq!(health.take_reason(), None, "it is reported once");
            health.connected();
            assert_eq!(health.take_reason(), None);
        }
        health.failed(begun, "broken");
        assert!(health.is_lost() && !health.may_try(begun + TRY_AGAIN_AFTER));
    }

    #[test]
    fn a_link_that_is_cut_is_no_rdma_failure() {
        let mut health = RdmaHealth::default();
        for _ in 0..2 * FAILURES_MAX {
            health.failed(Time::ZERO, "silent");
            health.was_not_rdma();
            // The link is tried again, and is not there.
            health.was_not_rdma();
        }
        assert!(!health.is_lost());
        assert_eq!(health.take_reason(), None);
    }
}
