//! The notice of a roll-back to a destination that an abort could not reach: the source's agent was killed
//! and found the session in its journal, or no control connection was left.
//!
//! A destination that is not notified keeps memory and an incoming QEMU. Before the guest is loaded it gives them up by
//! itself after its orphan time-out, so that the source need not try for longer. A loaded guest it keeps until it is
//! notified, as the source may have committed and then been lost: then the source tries until it is acknowledged.

use std::time::Duration;

use crate::destination::Config;
use crate::{Outcome, Time};

/// Wait after the first try without an answer; doubles up to [`WAIT_MAX`].
const WAIT: Duration = Duration::from_millis(250);
/// Longest wait between two tries while the destination would give up by itself.
const WAIT_MAX: Duration = Duration::from_secs(4);
/// Longest wait between two tries without an end.
const WAIT_HELD_MAX: Duration = Duration::from_secs(5);

/// What follows from a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Send the notice again at this time.
    RetryAt(Time),
    /// The destination has given the guest up, or never knew it.
    GivenUp,
    /// The destination says that it has committed: an operator let the guest run there, or a journal was lost. It may
    /// run twice.
    Committed,
    /// No answer came in time: by now the destination has given up by itself.
    NoAnswer,
    /// The destination acknowledged it, and was still ending its guest when it last answered.
    Acknowledged,
}

/// Decides how long the destination is notified of a roll-back.
#[derive(Clone, Debug)]
pub struct RollBackNotice {
    until: Time,
    /// The destination keeps the guest until it is notified.
    may_be_loaded: bool,
    acknowledged: bool,
    wait: Duration,
}

impl RollBackNotice {
    /// Begins now; the first try is due at once. `may_be_loaded`: the destination may have the guest complete.
    pub fn new(now: Time, may_be_loaded: bool) -> RollBackNotice {
        RollBackNotice {
            until: now + Config::default().orphan_timeout,
            may_be_loaded,
            acknowledged: false,
            wait: WAIT,
        }
    }

    /// A try came to its end; `None` without an answer.
    pub fn answered(&mut self, now: Time, outcome: Option<Outcome>) -> Next {
        self.acknowledged |= outcome.is_some();
        match outcome {
            Some(Outcome::Aborted | Outcome::Returned | Outcome::Unknown) => Next::GivenUp,
            Some(Outcome::Committed | Outcome::Gone) => Next::Committed,
            Some(Outcome::Pending | Outcome::NotCommitted) | None
                if now >= self.until && !self.may_be_loaded =>
            {
                if self.acknowledged {
                    Next::Acknowledged
                } else {
                    Next::NoAnswer
                }
            }
            // It has acknowledged and is ending its guest, which does not take long.
            Some(Outcome::Pending | Outcome::NotCommitted) if now < self.until => Next::RetryAt(now + WAIT),
            // Something keeps it from that, such as a record that it cannot read.
            Some(Outcome::Pending | Outcome::NotCommitted) | None => {
                let wait = self.wait;
                let longest = if now >= self.until { WAIT_HELD_MAX } else { WAIT_MAX };
                self.wait = (wait * 2).min(longest);
                Next::RetryAt(now + wait)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source_copy::HEARD_WITHIN;

    /// One attempt takes up to 6 s: 2 s each to connect, for TLS, and until the answer.
    #[test]
    fn a_destination_hears_a_notice_before_it_runs_the_guest_for_its_operator() {
        assert!(WAIT_MAX.max(WAIT_HELD_MAX) + Duration::from_secs(6) < HEARD_WITHIN);
    }

    #[test]
    fn it_ends_when_the_destination_has_given_up_or_committed() {
        let mut notice = RollBackNotice::new(Time::ZERO, false);
        assert!(matches!(notice.answered(Time::ZERO, Some(Outcome::Pending)), Next::RetryAt(_)));
        for outcome in [Outcome::Aborted, Outcome::Returned, Outcome::Unknown] {
            assert_eq!(notice.answered(Time::ZERO, Some(outcome)), Next::GivenUp);
        }
        for outcome in [Outcome::Committed, Outcome::Gone] {
            assert_eq!(notice.answered(Time::ZERO, Some(outcome)), Next::Committed);
        }
    }

    #[test]
    fn tries_are_bounded_whatever_is_answered_while_the_destination_gives_up_by_itself() {
        for (outcome, end) in [(None, Next::NoAnswer), (Some(Outcome::Pending), Next::Acknowledged)] {
            let mut notice = RollBackNotice::new(Time::ZERO, false);
            let (mut now, mut tries) = (Time::ZERO, 1);
            while let Next::RetryAt(at) = notice.answered(now, outcome) {
                assert!(at > now && at - now <= WAIT_MAX);
                (now, tries) = (at, tries + 1);
                assert!(tries < 1000, "{outcome:?}");
            }
            assert_eq!(notice.answered(now, outcome), end);
            assert!(now - Time::ZERO >= Config::default().orphan_timeout, "{outcome:?}");
        }
    }

    #[test]
    fn a_destination_with_a_loaded_guest_is_notified_however_late_it_returns() {
        let mut notice = RollBackNotice::new(Time::ZERO, true);
        let (mut now, day) = (Time::ZERO, Time::ZERO + Duration::from_secs(86_400));
        while now < day {
            let Next::RetryAt(at) = notice.answered(now, None) else { panic!("given up at {now:?}") };
            assert!(at > now && at - now <= WAIT_HELD_MAX);
            now = at;
        }
        assert_eq!(notice.answered(now, Some(Outcome::Aborted)), Next::GivenUp);
    }

    #[test]
    fn a_destination_that_cannot_end_its_guest_is_notified_ever_more_seldom() {
        let mut notice = RollBackNotice::new(Time::ZERO, true);
        let (mut now, mut waits) = (Time::ZERO, Vec::new());
        while now < Time::ZERO + Duration::from_secs(3600) {
            let next = notice.answered(now, Some(Outcome::Pending));
            let Next::RetryAt(at) = next else { panic!("given up at {now:?}: {next:?}") };
            waits.push(at - now);
            now = at;
        }
        assert_eq!((waits.first(), waits.last()), (Some(&WAIT), Some(&WAIT_HELD_MAX)));
    }
}
