//! Rule 6: write protection is applied only while block I/O is drained where a disk reads into pinned pages.
//!
//! The kernel writes what such a disk reads (`pinned` finds which ones do) into pages that it pinned when the read
//! began. Protection that is applied meanwhile does not see that write, and the page would be lost. QMP's `stop`
//! answers when all block I/O is done. [`DrainingTracker`] protects only for a caller that shows an [`IoDrained`], and
//! only this module makes one.

use std::time::{Duration, Instant};

use linerate_core::{PAGE_BYTES, Run};
use linerate_memory::{TrackError, Tracker};

/// Proof that no read from a disk is in flight that protection would not see.
pub(super) struct IoDrained(());

/// What can be paused for a moment.
pub(super) trait Pausable {
    /// Why it could not be paused or resumed.
    type Error;

    /// Whether it has a disk that must be drained. An operator may resume a paused guest at any time.
    fn must_pause(&self) -> bool;
    /// Returns when all block I/O is done. False if it was paused already: then it is not ours to resume.
    fn pause(&mut self) -> Result<bool, Self::Error>;
    fn resume(&mut self) -> Result<(), Self::Error>;
    /// Whether one that was paused already has been paused ever since.
    fn stayed_paused(&mut self) -> Result<bool, Self::Error>;
}

/// Runs `work` while no block I/O is in flight. Returns how long the guest was paused for it. The guest is resumed, if
/// it ran before, also if the work fails. If its operator resumes it meanwhile, the work is done once more.
pub(super) fn with_io_drained<G: Pausable>(
    guest: &mut G,
    mut work: impl FnMut(&mut G, &IoDrained) -> Result<(), G::Error>,
) -> Result<Duration, G::Error> {
    if !guest.must_pause() {
        return work(guest, &IoDrained(())).map(|()| Duration::ZERO);
    }
    loop {
        let began = Instant::now();
        let ran = guest.pause()?;
        let done = work(guest, &IoDrained(()));
        let resumed = if ran { guest.resume() } else { Ok(()) };
        let paused = began.elapsed();
        done?;
        resumed?;
        if ran || guest.stayed_paused()? {
            return Ok(paused);
        }
    }
}

/// QEMU is in pre-switchover: the guest is stopped, and its block I/O is drained.
pub(super) fn held() -> IoDrained {
    IoDrained(())
}

/// A tracker that protects only while block I/O is drained.
pub(super) struct DrainingTracker(Tracker);

impl DrainingTracker {
    /// Nothing is protected yet.
    pub fn new(tracker: Tracker) -> DrainingTracker {
        DrainingTracker(tracker)
    }

    pub fn protect(&self, _: &IoDrained) -> Result<Duration, TrackError> {
        self.0.protect()
    }

    /// What was written since; it is protected again.
    pub fn scan(&self, _: &IoDrained) -> Result<Vec<(usize, Run)>, TrackError> {
        let mut found = Vec::new();
        self.0.scan(true, &mut found)?;
        Ok(found)
    }

    /// Bytes that were written since the last scan, and how long it took to count them. Nothing is protected.
    pub fn count(&self) -> Result<(u64, Duration), TrackError> {
        let report = self.0.scan(false, &mut Vec::new())?;
        Ok((report.pages * PAGE_BYTES, report.duration))
    }

    pub fn check_mapped(&self) -> Result<(), TrackError> {
        self.0.check_mapped()
    }

    /// Takes the protection off.
    pub fn detach(self) -> Result<(), TrackError> {
        self.0.detach()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest whose disk reads until it is stopped.
    struct Reading {
        direct: bool,
        suspended: bool,
        /// Its operator lets it run while it is worked on.
        let_run: bool,
        in_flight: bool,
        refuses: bool,
        seen: Vec<&'static str>,
    }

    impl Pausable for Reading {
        type Error = &'static str;

        fn must_pause(&self) -> bool {
            self.direct
        }

        fn pause(&mut self) -> Result<bool, &'static str> {
            if self.refuses {
                return Err("QEMU does not answer");
            }
            self.in_flight = false;
            self.seen.push("stop");
            Ok(!self.suspended)
        }

        fn resume(&mut self) -> Result<(), &'static str> {
            self.in_flight = true;
            self.seen.push("resume");
            Ok(())
        }

        fn stayed_paused(&mut self) -> Result<bool, &'static str> {
            self.suspended &= !self.let_run;
            Ok(!std::mem::take(&mut self.let_run))
        }
    }

    fn reading(direct: bool, refuses: bool) -> Reading {
        Reading { direct, suspended: false, let_run: false, in_flight: true, refuses, seen: Vec::new() }
    }

    fn protect(guest: &mut Reading, _: &IoDrained) -> Result<(), &'static str> {
        guest.seen.push("protect");
        Ok(())
    }

    #[test]
    fn protection_is_applied_between_the_stop_and_the_resume() {
        let mut guest = reading(true, false);
        let work = |guest: &mut Reading, still: &IoDrained| {
            assert!(!guest.in_flight, "a read is in flight while protection is applied");
            protect(guest, still)
        };
        with_io_drained(&mut guest, work).unwrap();
        assert_eq!(guest.seen, ["stop", "protect", "resume"]);
    }

    #[test]
    fn without_the_answer_to_stop_nothing_is_protected() {
        let mut guest = reading(true, true);
        assert!(with_io_drained(&mut guest, protect).is_err());
        assert!(guest.seen.is_empty(), "{:?}", guest.seen);
    }

    #[test]
    fn a_guest_is_resumed_although_protecting_failed() {
        let mut guest = reading(true, false);
        let failed = with_io_drained(&mut guest, |_, _| Err("no memory"));
        assert_eq!(failed.unwrap_err(), "no memory");
        assert_eq!(guest.seen, ["stop", "resume"]);
    }

    #[test]
    fn a_guest_that_an_operator_suspended_is_not_resumed() {
        let mut guest = Reading { suspended: true, ..reading(true, false) };
        with_io_drained(&mut guest, protect).unwrap();
        assert_eq!(guest.seen, ["stop", "protect"]);
    }

    #[test]
    fn a_guest_that_its_operator_resumes_meanwhile_is_drained_and_protected_again() {
        let mut guest = Reading { suspended: true, let_run: true, ..reading(true, false) };
        with_io_drained(&mut guest, protect).unwrap();
        assert_eq!(guest.seen, ["stop", "protect", "stop", "protect", "resume"]);
    }

    #[test]
    fn a_guest_whose_disks_need_no_drain_is_not_stopped() {
        let mut guest = reading(false, false);
        with_io_drained(&mut guest, protect).unwrap();
        assert_eq!(guest.seen, ["protect"]);
    }
}
