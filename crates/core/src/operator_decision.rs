//! An operator's decision over a session in doubt. Four state machines keep one: the live one of each side, and the
//! recovery of each side. Each machine says itself when an operator may decide, and when a decision counts.

use std::time::Duration;

use crate::journal::Decided;
use crate::{Outcome, Time};

/// A destination that answers *Pending* has the guest, and may still run it, return it or give it up. So a decision at
/// the source waits so long for what the destination decides. An agent's API answers after 25 s.
const PENDING_MAX: Duration = Duration::from_secs(10);

/// The last decision and what became of it. `true`: the guest runs on this host. `false`: it is given up here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OperatorDecision {
    /// The decision that is not carried out yet.
    waiting: Option<bool>,
    /// The last decision, whatever became of it.
    last: Option<bool>,
    /// Where the guest is in the end: on this host, or not. None before that is carried out.
    settled: Option<bool>,
}

impl OperatorDecision {
    /// The operator has decided. It waits from now on, and what became of an earlier decision is forgotten.
    pub fn note(&mut self, here: bool) {
        *self = OperatorDecision { waiting: Some(here), last: Some(here), settled: None };
    }

    /// The decision that is not carried out yet; none if nothing waits.
    pub fn waiting(&self) -> Option<bool> {
        self.waiting
    }

    /// Whether the operator may decide so: while one decision waits, no other is taken.
    pub fn takes(&self, here: bool) -> bool {
        self.waiting.is_none_or(|waiting| waiting == here)
    }

    /// It is carried out that the guest is here (`true`) or not (`false`), whoever decided that.
    pub fn settle(&mut self, here: bool) {
        (self.waiting, self.settled) = (None, Some(here));
    }

    /// It is certain that the guest will not be `here`. A decision for that is not followed. One for the opposite waits
    /// until that is carried out.
    pub fn rule_out(&mut self, here: bool) {
        if self.waiting == Some(here) {
            self.settle(!here);
        }
    }

    /// The decision that waits, if there is one, is not followed, and another may be taken.
    pub fn void(&mut self) {
        self.waiting = None;
    }

    /// What became of the last decision; none before there is one.
    pub fn decided(&self) -> Option<Decided> {
        self.last.map(|here| self.decided_for(here))
    }

    /// What became of the decision of the operator who decided `here`. Another one is taken only once that is void.
    pub fn decided_for(&self, here: bool) -> Decided {
        match (self.settled, self.waiting) {
            (Some(settled), _) if settled == here => Decided::Taken,
            (Some(_), _) if self.last == Some(here) => Decided::Overruled,
            (None, Some(waiting)) if waiting == here => Decided::Waiting,
            _ => Decided::Void,
        }
    }

    /// The same at a destination. `rolled_back`: its source has its guest back.
    pub fn decided_at_destination_for(&self, run: bool, rolled_back: bool) -> Decided {
        match self.decided_for(run) {
            Decided::Taken if run && rolled_back => Decided::AlsoAtSource,
            decided => decided,
        }
    }
}

/// At a source: when a decision is carried out although the destination decides nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GivingUp {
    decided: Option<Time>,
    /// The destination's last answer *Pending*.
    pending: Option<Time>,
}

/// What an answer that decides nothing means for the operator's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undecided {
    /// The destination was silent for long enough: the decision is carried out.
    Counts,
    /// The destination is asked again.
    AsksAgain,
    /// It is not followed: the destination has the guest, and its operator decides.
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
        assert!(
            none.takes(true) && none.takes(false) && none.waiting().is_none() && none.decided().is_none()
        );
        for here in [true, false] {
            let mut decision = noted(here);
            assert_eq!((decision.waiting(), decision.decided()), (Some(here), Some(Decided::Waiting)));
            assert!(decision.takes(here) && !decision.takes(!here), "{here}");
            decision.void();
            assert!(decision.takes(!here), "{here}");
        }
    }

    #[test]
    fn a_decision_that_was_followed_is_told_from_one_that_was_not() {
        for here in [true, false] {
            let mut decision = noted(here);
            assert_eq!(decision.decided_for(here), Decided::Waiting, "{here}");
            decision.settle(here);
            assert_eq!(decision.decided_for(here), Decided::Taken, "{here}");
            let mut decision = noted(here);
            decision.settle(!here);
            assert_eq!(decision.decided_for(here), Decided::Overruled, "{here}");
        }
    }

    /// The session ends before the operator's question is answered.
    #[test]
    fn a_decision_that_was_void_is_judged_by_how_the_session_ends() {
        for here in [true, false] {
            let mut decision = noted(here);
            decision.void();
            assert_eq!(decision.decided_for(here), Decided::Void, "{here}");
            decision.settle(here);
            assert_eq!(decision.decided_for(here), Decided::Taken, "{here}");
            decision.settle(!here);
            assert_eq!(decision.decided_for(here), Decided::Overruled, "{here}");
        }
    }

    #[test]
    fn only_a_decision_for_what_is_ruled_out_is_not_followed() {
        for here in [true, false] {
            let mut decision = noted(here);
            decision.rule_out(!here);
            assert_eq!(decision, noted(here), "it waits until it is carried out");
            decision.rule_out(here);
            assert_eq!((decision.decided_for(here), decision.waiting()), (Decided::Overruled, None));
        }
        let mut none = OperatorDecision::default();
        none.rule_out(true);
        none.void();
        assert_eq!(none, OperatorDecision::default());
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
    fn each_operator_is_told_of_their_own_decision() {
        let mut decision = noted(true);
        decision.void();
        decision.note(false);
        let fates = [true, false].map(|here| decision.decided_for(here));
        assert_eq!(fates, [Decided::Void, Decided::Waiting]);
        decision.settle(false);
        let fates = [true, false].map(|here| decision.decided_for(here));
        assert_eq!(fates, [Decided::Void, Decided::Taken]);
        // Nothing was decided: no operator is told that it was done.
        assert_eq!(OperatorDecision::default().decided_for(true), Decided::Void);
    }
}
