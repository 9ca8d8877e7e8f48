//! The tries of a live session to run the guest that is committed to it, and what follows from each.

use crate::Time;
use crate::recovery::{RUN_AGAIN_AFTER, RUN_FOR};

/// What one try came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Try {
    /// The hypervisor confirms that it has the guest.
    Done,
    /// The hypervisor refused.
    Refused,
    /// No answer yet. It comes before that of the next try, on the same connection.
    Late,
    /// The answer is lost with its connection.
    Lost {
        /// Whether the guest has run here by now, if that is known.
        ran: Option<bool>,
    },
    /// Its process has ended.
    Ended,
}

/// What the driver does after a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterTry {
    /// It reports [`super::Event::GuestRuns`].
    Runs,
    /// It tries again at this time.
    TryAt(Time),
    /// It reports [`super::Event::CannotRun`]: the guest never ran here.
    CannotRun,
    /// It reports [`super::Event::MayHaveRun`].
    MayHaveRun,
    /// It reports [`super::Event::GuestEnded`].
    Ended,
}

/// A guest that the hypervisor refuses to run is tried for [`RUN_FOR`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakeOver {
    end: Time,
    /// A command whose answer is lost may have been carried out: a later refusal does not prove that the guest never
    /// ran.
    may_have_run: bool,
    /// The last command has no answer, so it may still be carried out.
    is_unanswered: bool,
}

impl TakeOver {
    /// The tries begin now.
    pub fn new(now: Time) -> TakeOver {
        TakeOver { end: now + RUN_FOR, may_have_run: false, is_unanswered: false }
    }

    /// An answer was lost, and nothing shows that the guest has not run.
    pub fn may_have_run(&self) -> bool {
        self.may_have_run
    }

    /// Asked before each try: what the driver does instead of one when the source has rolled back. The guest must not
    /// be let run beside its source.
    pub fn instead(&self, rolled_back: bool) -> Option<AfterTry> {
        match (rolled_back, self.may_have_run || self.is_unanswered) {
            (false, _) => None,
            (true, false) => Some(AfterTry::CannotRun),
            (true, true) => Some(AfterTry::MayHaveRun),
        }
    }

    /// A try has come to this.
    pub fn tried(&mut self, now: Time, result: Try) -> AfterTry {
        self.is_unanswered = result == Try::Late;
        match result {
            Try::Done => AfterTry::Runs,
            Try::Ended => AfterTry::Ended,
            Try::Refused if now >= self.end && self.may_have_run => AfterTry::MayHaveRun,
            Try::Refused if now >= self.end => AfterTry::CannotRun,
            Try::Lost { ran } => {
                if ran != Some(false) && !self.may_have_run {
                    // The wait for the lost answer was no refusal.
                    *self = TakeOver { end: now + RUN_FOR, may_have_run: true, is_unanswered: false };
                }
                AfterTry::TryAt(now + RUN_AGAIN_AFTER)
            }
            Try::Refused | Try::Late => AfterTry::TryAt(now + RUN_AGAIN_AFTER),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const AGAIN: AfterTry = AfterTry::TryAt(Time::ZERO);

    /// What follows from each try, `seconds` after the first command.
    fn follow(tries: &[(f64, Try)]) -> Vec<AfterTry> {
        let mut take_over = TakeOver::new(Time::ZERO);
        let mut tried = |seconds, result| {
            let now = Time::ZERO + Duration::from_secs_f64(seconds);
            match take_over.tried(now, result) {
                AfterTry::TryAt(at) => {
                    assert_eq!(at, now + RUN_AGAIN_AFTER);
                    AGAIN
                }
                other => other,
            }
        };
        tries.iter().map(|(seconds, result)| tried(*seconds, *result)).collect()
    }

    #[test]
    fn a_guest_that_is_refused_for_long_enough_never_ran() {
        use Try::*;
        assert_eq!(
            follow(&[(0.1, Refused), (1.9, Refused), (2.0, Refused)]),
            [AGAIN, AGAIN, AfterTry::CannotRun]
        );
        assert_eq!(follow(&[(1.9, Refused), (2.1, Done)]), [AGAIN, AfterTry::Runs]);
        assert_eq!(follow(&[(1.9, Late), (9.0, Late), (9.1, Refused)]), [AGAIN, AGAIN, AfterTry::CannotRun]);
        assert_eq!(follow(&[(9.0, Ended)]), [AfterTry::Ended]);
    }

    #[test]
    fn a_guest_whose_source_has_rolled_back_is_not_tried_any_more() {
        let cases = [
            (vec![], AfterTry::CannotRun),
            (vec![Try::Refused], AfterTry::CannotRun),
            (vec![Try::Lost { ran: Some(false) }], AfterTry::CannotRun),
            (vec![Try::Late, Try::Refused], AfterTry::CannotRun),
            (vec![Try::Late], AfterTry::MayHaveRun),
            (vec![Try::Lost { ran: None }], AfterTry::MayHaveRun),
            (vec![Try::Lost { ran: None }, Try::Refused], AfterTry::MayHaveRun),
        ];
        for (tries, instead) in cases {
            let mut take_over = TakeOver::new(Time::ZERO);
            for one in &tries {
                take_over.tried(Time::ZERO, *one);
            }
            assert_eq!(take_over.instead(false), None, "{tries:?}");
            assert_eq!(take_over.instead(true), Some(instead), "{tries:?}");
        }
    }

    #[test]
    fn a_lost_answer_is_no_refusal_and_what_follows_proves_nothing() {
        use Try::*;
        for ran in [None, Some(true)] {
            let tries = [(5.0, Lost { ran }), (6.9, Refused), (7.0, Refused)];
            assert_eq!(follow(&tries), [AGAIN, AGAIN, AfterTry::MayHaveRun]);
            // The time is not begun again for ever.
            let tries = [(5.0, Lost { ran }), (6.9, Lost { ran }), (7.0, Refused)];
            assert_eq!(follow(&tries), [AGAIN, AGAIN, AfterTry::MayHaveRun]);
            let tries = [(5.0, Lost { ran }), (5.2, Lost { ran: Some(false) }), (7.0, Refused)];
            assert_eq!(follow(&tries), [AGAIN, AGAIN, AfterTry::MayHaveRun], "it was not known before");
            assert_eq!(follow(&[(5.0, Lost { ran }), (7.0, Done)]), [AGAIN, AfterTry::Runs]);
        }
        let never = Lost { ran: Some(false) };
        assert_eq!(follow(&[(1.0, never), (2.0, Refused)]), [AGAIN, AfterTry::CannotRun]);
    }
}
