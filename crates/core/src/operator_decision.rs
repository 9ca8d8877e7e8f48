//! An operator's decision over a session in doubt. Four state machines keep one: the live one of each side, and the
//! recovery of each side. Each machine says itself when an operator may decide, and when a decision counts.

use std::time::Duration;

use crate::journal::Decided;
use crate::{Outcome, Time};

/// A destination that answers *Pending* has the guest, and may still return it or give it up. So a decision to give it
/// up at the source waits so long for what the destination decides. An agent's API answers after 15 s.
const PENDING_MAX: Duration = Duration::from_secs(10);

/// The last decision and what became of it. `true`: the guest runs on this host. `false`: it is given up here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OperatorDecision {
    /// The decision that does not count yet.
    waiting: Option<bool>,
    /// The last decision, whatever became of it.
    last: Option<bool>,
    /// The last decision was not followed. At a destination also: the guest is given up.
    is_void: bool,
}

impl OperatorDecision {
    /// The operator has decided. It waits from now on, and what became of an earlier decision is forgotten.
    pub fn note(&mut self, here: bool) {
        *self = OperatorDecision { waiting: Some(here), last: Some(here), is_void: false };
    }

    /// The decision that does not count yet; none if nothing waits.
    pub fn waiting(&self) -> Option<bool> {
        self.waiting
    }

    /// Whether the operator may decide so: while one decision waits, no other is taken.
    pub fn takes(&self, here: bool) -> bool {
        self.waiting.is_none_or(|waiting| waiting == here)
    }

    /// It waits no longer: it counts, or another may be taken.
    pub fn stop_waiting(&mut self) {
        self.waiting = None;
    }

    /// The guest runs here (`true`) or not (`false`), whoever decided that. A decision that waited for the opposite is
    /// not followed.
    pub fn settle(&mut self, here: bool) {
        self.is_void |= self.waiting.take() == Some(!here);
    }

    /// The decision that waits, if there is one, is not followed.
    pub fn void(&mut self) {
        self.is_void |= self.waiting.take().is_some();
    }

    /// A destination gives the guest up, whatever was decided. A decision to run it is not followed; one to give it up
    /// waits until that is done.
    pub fn give_up(&mut self) {
        self.waiting = self.waiting.filter(|here| !here);
        self.is_void = true;
    }

    /// At a source: what became of the last decision. `is_open`: only the destination or an operator decides.
    pub fn decided_at_source(&self, is_open: bool) -> Decided {
        match (self.waiting, self.is_void) {
            (Some(_), _) => Decided::Waiting,
            (None, false) => Decided::Taken,
            (None, true) if is_open => Decided::Void,
            (None, true) => Decided::Overruled,
        }
    }

    /// At a source: what became of the decision of the operator who decided `here`. A different decision is taken only
    /// once the one before is void.
    pub fn decided_at_source_for(&self, here: bool, is_open: bool) -> Decided {
        if self.last.is_some_and(|last| last != here) {
            Decided::Void
        } else {
            self.decided_at_source(is_open)
        }
    }

    /// At a destination: what became of the decision of the operator who decided `here`. `is_in_doubt`: an operator may
    /// decide, or a decision waits.
    pub fn decided_at_destination_for(&self, here: bool, is_in_doubt: bool) -> Decided {
        let is_given_up = self.is_void || self.last == Some(false);
        match here && is_given_up {
            true => Decided::GivenUp,
            false if is_in_doubt => Decided::Waiting,
            false => Decided::Taken,
        }
    }
}

/// At a source: when a decision to give the guest up counts although the destination decides nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GivingUp {
    decided: Option<Time>,
    /// The destination's last answer *Pending*.
    pending: Option<Time>,
}

/// What an answer that decides nothing means for a decision to give the guest up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undecided {
    /// The decision counts.
    Counts,
    /// The destination is asked again.
    AsksAgain,
    /// The decision is not followed: the destination has the guest, and its operator decides.
    Void,
}

impl GivingUp {
    /// The operator decides so now.
    pub fn begin(&mut self, now: Time) {
        self.decided = Some(now);
    }

    /// Takes each answer that decides nothing, whether an operator has decided or not.
    pub fn answered(&mut self, now: Time, answer: Option<Outcome>) -> Undecided {
        let is_recent = |at: Option<Time>| at.is_some_and(|at| now - at < PENDING_MAX);
        let was_there = is_recent(self.pending);
        match answer {
            Some(Outcome::Pending) => {
                self.pending = Some(now);
                if is_recent(self.decided) { Undecided::AsksAgain } else { Undecided::Void }
            }
            None if was_there => Undecided::AsksAgain,
            _ => Undecided::Counts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(here: bool) -> OperatorDecision {
        let mut decision = OperatorDecision::default();
        decision.note(here);
        decision
    }

    #[test]
    fn while_one_decision_waits_no_other_is_taken() {
        let none = OperatorDecision::default();
        assert!(none.takes(true) && none.takes(false) && none.waiting().is_none());
        for here in [true, false] {
            let mut decision = noted(here);
            assert_eq!(decision.waiting(), Some(here));
            assert!(decision.takes(here) && !decision.takes(!here), "{here}");
            decision.stop_waiting();
            assert!(decision.takes(!here), "{here}");
        }
    }

    #[test]
    fn a_source_tells_a_decision_that_was_followed_from_one_that_was_not() {
        for here in [true, false] {
            let mut decision = noted(here);
            assert_eq!(decision.decided_at_source(true), Decided::Waiting, "{here}");
            decision.settle(here);
            assert_eq!(decision.decided_at_source(false), Decided::Taken, "{here}");
            let mut decision = noted(here);
            decision.settle(!here);
            assert_eq!(decision.decided_at_source(true), Decided::Void, "{here}");
            assert_eq!(decision.decided_at_source(false), Decided::Overruled, "{here}");
        }
    }

    #[test]
    fn the_copy_of_a_guest_that_the_destination_has_is_given_up_only_after_a_silence() {
        let s = |seconds: u64| Time(seconds * 1_000_000_000);
        let pending = Some(Outcome::Pending);
        let mut giving_up = GivingUp::default();
        giving_up.begin(s(0));
        assert_eq!(giving_up.answered(s(1), None), Undecided::Counts, "nobody has answered before");
        giving_up.answered(s(2), pending);
        giving_up.begin(s(3));
        assert_eq!(giving_up.answered(s(4), None), Undecided::AsksAgain, "it has just answered");
        assert_eq!(giving_up.answered(s(11), None), Undecided::AsksAgain);
        assert_eq!(giving_up.answered(s(12), None), Undecided::Counts);
        giving_up.begin(s(20));
        assert_eq!(giving_up.answered(s(21), pending), Undecided::AsksAgain);
        assert_eq!(giving_up.answered(s(29), pending), Undecided::AsksAgain);
        assert_eq!(giving_up.answered(s(30), pending), Undecided::Void);
        for answer in [Outcome::Gone, Outcome::Unknown] {
            assert_eq!(giving_up.answered(s(31), Some(answer)), Undecided::Counts, "{answer:?}");
        }
    }

    #[test]
    fn nothing_is_void_where_nothing_waited() {
        let mut decision = OperatorDecision::default();
        decision.void();
        decision.settle(true);
        decision.settle(false);
        assert_eq!(decision, OperatorDecision::default());
        assert_eq!(decision.decided_at_source(false), Decided::Taken);
    }

    #[test]
    fn each_operator_at_a_source_is_told_of_their_own_decision() {
        let mut decision = noted(true);
        decision.void();
        assert_eq!(decision.decided_at_source_for(true, true), Decided::Void);
        decision.note(false);
        let fates = [true, false].map(|here| decision.decided_at_source_for(here, true));
        assert_eq!(fates, [Decided::Void, Decided::Waiting]);
    }

    #[test]
    fn a_guest_that_is_given_up_at_a_destination_does_not_run_for_any_operator() {
        // Another operator has decided so.
        assert_eq!(noted(false).decided_at_destination_for(true, true), Decided::GivenUp);
        assert_eq!(noted(false).decided_at_destination_for(false, true), Decided::Waiting);
        // Its source has it, or its process has ended.
        let mut settled = noted(true);
        settled.settle(false);
        assert_eq!(settled.decided_at_destination_for(true, false), Decided::GivenUp);
        // For any other reason.
        for here in [true, false] {
            let mut decision = noted(here);
            decision.give_up();
            assert_eq!(decision.waiting(), (!here).then_some(false));
            assert_eq!(decision.decided_at_destination_for(true, !here), Decided::GivenUp);
        }
        // One that came to nothing is not void.
        let mut held = noted(true);
        held.stop_waiting();
        assert_eq!(held.decided_at_destination_for(true, true), Decided::Waiting);
        assert_eq!(held.decided_at_destination_for(true, false), Decided::Taken);
    }
}
