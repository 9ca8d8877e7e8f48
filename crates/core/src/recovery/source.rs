//! A session at the source that is to be brought to its end.

use super::RETRY_AFTER;
use crate::journal::{Decided, SourcePhase, Verdict, verdict};
use crate::operator_decision::{GivingUp, OperatorDecision, Undecided};
use crate::{GuestState, Outcome, Time};

/// What the driver reports to `SourceRecovery::handle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceEvent {
    /// [`SourceAction::ResumeHere`] came to an end: what the guest does now, or none if it has to be tried again.
    ResumedHere(Option<GuestState>),
    /// [`SourceAction::EndSource`] came to an end: whether the process has ended.
    SourceEnded(bool),
    /// [`SourceAction::Query`] came to an end; none without an answer.
    Answered(Option<Outcome>),
    /// [`SourceAction::Write`] came to an end: whether it is on disk.
    Written(bool),
    /// The operator decides: `true` runs the guest here, `false` gives it up.
    Resolve(bool),
    /// Only time passed: a timer may be due.
    Tick,
}

/// What the driver is to do; each is answered by one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceAction {
    /// Cancel what was begun in the hypervisor and let the guest do what it did before.
    ResumeHere,
    /// End the guest's process here: it runs at the destination.
    EndSource,
    /// Send commit once more on a connection of its own, and ask how the session ended. Whether the process here is
    /// alive or not: the message may never have arrived, and a destination that holds the loaded guest never gives it
    /// up by itself.
    Query {
        /// The operator has decided to end the copy here. The question says that there is no copy, so that the
        /// destination cannot return the guest to it.
        gives_up: bool,
    },
    /// Put the phase on disk.
    Write(SourcePhase),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Querying,
    /// The operator's decision to run the guest here, not on disk yet.
    Deciding,
    /// The destination has given the guest up. That is written once before it is resumed: a later agent would take the
    /// guest for one that another program has resumed.
    TakingBack,
    ResumingHere,
    EndingSource,
    Writing(SourcePhase, GuestState),
    Over(GuestState),
}

/// Brings one session of a restarted source to its end.
#[derive(Clone, Debug)]
pub struct SourceRecovery {
    state: State,
    /// The action of the state is due then; none while it is in progress.
    due: Option<Time>,
    answer: Option<Outcome>,
    /// The operator's decision. It waits until it is carried out: the guest does here what it did before, or the copy
    /// that is given up has ended.
    operator_decision: OperatorDecision,
    giving_up: GivingUp,
    /// The last question said that there is no copy here any more.
    query_gives_up: bool,
    /// The operator ended the copy here, and the destination has not said that it runs the guest.
    given_up: bool,
}

impl SourceRecovery {
    /// Commit was not sent, or the destination will never run the guest: it runs here again.
    pub fn resume_here(now: Time) -> SourceRecovery {
        SourceRecovery::new(now, State::ResumingHere)
    }

    /// Commit was sent: only the destination or an operator decides.
    pub fn query(now: Time) -> SourceRecovery {
        SourceRecovery::new(now, State::Querying)
    }

    /// The operator of a live session has given the copy here up, and it has not ended: the destination is asked once
    /// more before it is.
    pub fn give_up(now: Time) -> SourceRecovery {
        let mut recovery = SourceRecovery::query(now);
        recovery.resolve(now, false);
        recovery
    }

    fn new(now: Time, state: State) -> SourceRecovery {
        SourceRecovery {
            state,
            due: Some(now),
            answer: None,
            operator_decision: OperatorDecision::default(),
            giving_up: GivingUp::default(),
            query_gives_up: false,
            given_up: false,
        }
    }

    /// The guest's state once all is done and written.
    pub fn is_over(&self) -> Option<GuestState> {
        if let State::Over(guest) = self.state { Some(guest) } else { None }
    }

    /// Commit was sent and nothing is decided. A decision to resume here that is not on disk yet changes nothing of
    /// that: a later agent would ask again, which is a commit.
    pub fn is_in_doubt(&self) -> bool {
        matches!(self.state, State::Querying | State::Deciding)
    }

    /// Whether the operator may decide so: while one decision waits, no other is taken.
    pub fn takes(&self, resume: bool) -> bool {
        self.is_in_doubt() && self.operator_decision.takes(resume)
    }

    /// What became of the operator's last decision; none before there is one.
    pub fn decided(&self) -> Option<Decided> {
        self.operator_decision.decided()
    }

    /// What became of the operator's decision for `resume`.
    pub fn decided_for(&self, resume: bool) -> Decided {
        self.operator_decision.decided_for(resume)
    }

    /// The guest is being resumed here.
    pub fn resumes_here(&self) -> bool {
        matches!(self.state, State::TakingBack | State::ResumingHere)
    }

    /// The destination's last answer.
    pub fn answer(&self) -> Option<Outcome> {
        self.answer
    }

    /// When to look again at the latest; none if an action is in progress or all is over.
    pub fn timeout(&self) -> Option<Time> {
        self.due
    }

    /// The next thing to do.
    pub fn poll_action(&mut self, now: Time) -> Option<SourceAction> {
        self.due.take_if(|due| *due <= now)?;
        match self.state {
            State::Querying => {
                self.query_gives_up = self.operator_decision.waiting() == Some(false);
                Some(SourceAction::Query { gives_up: self.query_gives_up })
            }
            State::Deciding | State::TakingBack => Some(SourceAction::Write(SourcePhase::ResumingHere)),
            State::ResumingHere => Some(SourceAction::ResumeHere),
            State::EndingSource => Some(SourceAction::EndSource),
            State::Writing(phase, _) => Some(SourceAction::Write(phase)),
            State::Over(_) => None,
        }
    }

    /// Takes one event; the actions that follow are queued for the driver.
    pub fn handle(&mut self, now: Time, event: SourceEvent) {
        match (self.state, event) {
            (State::Querying, SourceEvent::Answered(answer)) => self.answered(now, answer),
            (State::Deciding, SourceEvent::Written(true)) => self.enter(now, State::ResumingHere),
            // On disk or not: no question can commit the guest any more.
            (State::TakingBack, SourceEvent::Written(_)) => self.enter(now, State::ResumingHere),
            (State::ResumingHere, SourceEvent::ResumedHere(Some(guest))) => {
                self.operator_decision.settle(true);
                self.enter(now, State::Writing(SourcePhase::RolledBack, guest));
            }
            (State::EndingSource, SourceEvent::SourceEnded(true)) => {
                self.operator_decision.settle(false);
                let guest = if self.given_up { GuestState::Unknown } else { GuestState::RunsAtDestination };
                self.enter(now, State::Writing(SourcePhase::Finished, guest));
            }
            (State::Writing(_, guest), SourceEvent::Written(true)) => {
                (self.state, self.due) = (State::Over(guest), None);
            }
            // The disk may be full for long; an operator of the destination may decide meanwhile: it is asked again.
            (State::Deciding, SourceEvent::Written(false)) => {
                (self.state, self.due) = (State::Querying, Some(now + RETRY_AFTER));
            }
            (State::ResumingHere, SourceEvent::ResumedHere(None))
            | (State::EndingSource, SourceEvent::SourceEnded(false))
            | (State::Writing(..), SourceEvent::Written(false)) => self.due = Some(now + RETRY_AFTER),
            (State::Querying, SourceEvent::Resolve(resume)) if self.takes(resume) => {
                self.resolve(now, resume)
            }
            _ => {}
        }
    }

    /// An answer that decides weighs more than an operator's decision that came while the question was in flight: the
    /// destination knows what an operator may only guess. One that holds the guest takes the question for a commit, so
    /// that the decision that the guest runs here is void. It may also return the guest or give it up, so that the copy
    /// here is not ended either.
    fn answered(&mut self, now: Time, answer: Option<Outcome>) {
        self.answer = answer.or(self.answer);
        let undecided = self.giving_up.answered(now, answer);
        match (answer.map(verdict), self.operator_decision.waiting()) {
            (Some(Verdict::EndSource), _) => {
                self.operator_decision.rule_out(true);
                self.enter(now, State::EndingSource);
            }
            (Some(Verdict::Resume), _) => self.enter(now, State::TakingBack),
            // The destination may still return the guest to the copy that is to be ended.
            (_, Some(false)) if !self.query_gives_up => self.due = Some(now),
            (_, Some(false)) | (None, Some(true)) if undecided == Undecided::AsksAgain => {
                self.due = Some(now + RETRY_AFTER);
            }
            (_, Some(false)) if undecided == Undecided::Counts => self.decide(now, false),
            (_, Some(true)) if answer != Some(Outcome::Pending) => self.decide(now, true),
            (Some(Verdict::QueryAgain) | None, _) => {
                self.operator_decision.void();
                self.due = Some(now + RETRY_AFTER);
            }
        }
    }

    /// The destination is asked once more before an operator's decision counts.
    fn resolve(&mut self, now: Time, resume: bool) {
        self.operator_decision.note(resume);
        self.giving_up.begin(now);
        self.due = self.due.map(|due| due.min(now));
    }

    fn decide(&mut self, now: Time, resume: bool) {
        self.given_up = !resume;
        self.enter(now, if resume { State::Deciding } else { State::EndingSource });
    }

    fn enter(&mut self, now: Time, state: State) {
        (self.state, self.due) = (state, Some(now));
    }
}
