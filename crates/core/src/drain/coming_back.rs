//! A guest that a drain has moved comes back (`linerate undrain`): how long it is waited for.

use std::time::Duration;

use crate::Time;

/// A host that does not answer for so long is given up, with all guests that it has.
pub const SILENT_MAX: Duration = Duration::from_secs(60);
/// A guest that was moved is here, and free, within this.
const ARRIVE_MAX: Duration = Duration::from_secs(30);

/// A guest that another host was asked to send back.
#[derive(Clone, Copy, Debug)]
pub struct ComingBack {
    /// When its host answered last, or said that it has moved the guest.
    since: Time,
    silent_max: Duration,
    was_moved: bool,
}

impl ComingBack {
    /// Its host is asked from now on, and given up when it is silent for `silent_max`.
    pub fn new(now: Time, silent_max: Duration) -> ComingBack {
        ComingBack { since: now, silent_max, was_moved: false }
    }

    /// Its host says that it is moving the guest, which may take as long as it likes.
    pub fn is_moving(&mut self, now: Time) {
        self.since = now;
    }

    /// Its host says that it has moved the guest.
    pub fn was_moved(&mut self, now: Time) {
        *self = ComingBack { since: now, was_moved: true, ..*self };
    }

    /// Whether it is waited for no longer: its host is silent, or the guest that was moved does not show here.
    pub fn is_over(&self, now: Time) -> bool {
        now - self.since >= if self.was_moved { ARRIVE_MAX } else { self.silent_max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    #[test]
    fn a_silent_host_is_given_up_and_one_that_moves_the_guest_is_not() {
        let mut coming = ComingBack::new(s(0), SILENT_MAX);
        for second in (0..600).step_by(59) {
            assert!(!coming.is_over(s(second)), "after {second} s");
            coming.is_moving(s(second));
        }
        // It was last heard of after 590 s.
        assert!(!coming.is_over(s(649)));
        assert!(coming.is_over(s(650)), "a silent host is waited for without an end");
    }

    #[test]
    fn a_guest_that_was_moved_is_here_soon_or_is_not_waited_for() {
        let mut coming = ComingBack::new(s(0), SILENT_MAX);
        coming.was_moved(s(100));
        assert!(!coming.is_over(s(129)));
        assert!(coming.is_over(s(130)), "a guest that does not come is waited for without an end");
    }
}
