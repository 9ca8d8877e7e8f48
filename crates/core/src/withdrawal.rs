//! The word of a source that rolled back to a destination that could not be told by an abort: the source's agent was killed
//! and found the session in its journal, or no control connection was left.
//!
//! Without it the destination keeps memory and a waiting guest for its orphan time-out. It is a courtesy: a source that
//! rolls back has not sent commit, so nothing that the destination does or leaves can put the guest into danger. So it is
//! tried for as long as the destination would wait by itself, and no longer.

use std::time::Duration;

use crate::destination::Config;
use crate::{Outcome, Time};

/// Wait after the first try that nobody answered; doubles up to [`WAIT_MAX`].
const WAIT: Duration = Duration::from_millis(250);
/// Longest wait between two tries.
const WAIT_MAX: Duration = Duration::from_secs(4);

/// What follows from a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Try again then.
    Again(Time),
    /// The destination has given the guest up, or never knew it.
    GivenUp,
    /// The destination says that it has committed. Cannot be unless a journal was lost: the guest may run twice.
    Committed,
    /// Nobody answered in time: by now the destination has given up by itself.
    Unheard,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Withdrawal {
    until: Time,
    wait: Duration,
}

impl Withdrawal {
    /// Begins now; the first try is due at once.
    pub fn new(now: Time) -> Withdrawal {
        Withdrawal { until: now + Config::default().orphan_timeout, wait: WAIT }
    }

    /// A try came to its end; `None` if nobody answered.
    pub fn answered(&mut self, now: Time, outcome: Option<Outcome>) -> Next {
        match outcome {
            Some(Outcome::Aborted | Outcome::Unknown) => Next::GivenUp,
            Some(Outcome::Committed) => Next::Committed,
            Some(Outcome::Pending) | None if now >= self.until => Next::Unheard,
            // It has heard and is ending its guest, which does not take long.
            Some(Outcome::Pending) => Next::Again(now + WAIT),
            None => {
                let wait = self.wait;
                self.wait = (wait * 2).min(WAIT_MAX);
                Next::Again(now + wait)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_when_the_destination_has_given_up_or_committed() {
        let mut withdrawal = Withdrawal::new(Time::ZERO);
        assert!(matches!(withdrawal.answered(Time::ZERO, Some(Outcome::Pending)), Next::Again(_)));
        assert_eq!(withdrawal.answered(Time::ZERO, Some(Outcome::Aborted)), Next::GivenUp);
        assert_eq!(withdrawal.answered(Time::ZERO, Some(Outcome::Unknown)), Next::GivenUp);
        assert_eq!(withdrawal.answered(Time::ZERO, Some(Outcome::Committed)), Next::Committed);
    }

    #[test]
    fn tries_are_bounded_whatever_is_answered() {
        for outcome in [None, Some(Outcome::Pending)] {
            let mut withdrawal = Withdrawal::new(Time::ZERO);
            let (mut now, mut tries) = (Time::ZERO, 1);
            while let Next::Again(at) = withdrawal.answered(now, outcome) {
                assert!(at > now && at - now <= WAIT_MAX);
                (now, tries) = (at, tries + 1);
                assert!(tries < 1000, "{outcome:?}");
            }
            assert_eq!(withdrawal.answered(now, outcome), Next::Unheard);
            assert!(now - Time::ZERO >= Config::default().orphan_timeout, "{outcome:?}");
        }
    }
}
