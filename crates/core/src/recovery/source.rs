//! A session at the source that is to be brought to its end.

use std::time::Duration;

use super::RETRY_AFTER;
use crate::journal::{Decided, SourcePhase, Verdict, verdict};
use crate::operator_decision::{GivingUp, OperatorDecision, Undecided};
use crate::{GuestState, Outcome, Time};

/// A guest that is to be resumed here waits so long for a destination that does not answer. Its agent may be starting.
const SILENCE: Duration = Duration::from_secs(10);

/// What the driver reports to `SourceRecovery::handle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceEvent {
    /// [`SourceAction::Look`] came to an end.
    Looked(Look),
    /// [`SourceAction::ResumeHere`] came to an end: what the guest does now, or none if it has to be tried again.
    ResumedHere(Option<GuestState>),
    /// [`SourceAction::ResumeHere`] came to an end without success: another process has the guest's disks.
    DisksAreHeld,
    /// [`SourceAction::ReleaseDisks`] came to an end, with an answer or without one.
    DisksReleased,
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

/// What is found before the guest is resumed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It runs here, or its process has ended: nothing was asked.
    NotPaused,
    /// It is paused here, or its hypervisor does not answer. What the destination answers; none without an answer.
    Paused(Option<Outcome>),
    /// It ran here after commit, or may have run, and the destination answers that it runs there.
    OnBothHosts,
}

/// What the driver is to do; each is answered by one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceAction {
    /// Find out whether the guest is still paused here. If so, ask the destination whether it runs there. That question
    /// commits nothing.
    Look,
    /// Cancel what was begun in the hypervisor and let the guest do what it did before.
    ResumeHere,
    /// Notify the destination once that the session is rolled back, although the guest is not back yet.
    ReleaseDisks,
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
    /// Before each try to resume it: an operator of the destination may have let the guest run there meanwhile.
    Looking,
    ResumingHere,
    /// The destination's hypervisor may have the disks of a guest that did not run when it was sent: it takes them when
    /// it has loaded the guest, and keeps them until that copy is given up. The copy here is complete, and does not run
    /// meanwhile.
    ReleasingDisks,
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
    /// The last answer when the operator's decision was taken.
    decided_on: Option<Outcome>,
    giving_up: GivingUp,
    /// A destination that never answered until then is not waited for.
    silent_until: Time,
    /// The last question said that there is no copy here any more.
    query_gives_up: bool,
    /// The guest is not resumed for want of an answer to the question of the last [`SourceAction::Look`].
    only_asks: bool,
    /// The operator ended the copy here, and the destination has not said that it runs the guest.
    given_up: bool,
    /// The last question was answered: the destination has not committed the guest. Its operator may decide before the
    /// next one.
    is_not_committed: bool,
}

impl SourceRecovery {
    /// Commit was not sent, or it was decided that the guest runs here: it does, unless it runs at the destination.
    pub fn resume_here(now: Time) -> SourceRecovery {
        SourceRecovery::new(now, State::Looking)
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
            decided_on: None,
            giving_up: GivingUp::default(),
            silent_until: now + SILENCE,
            query_gives_up: false,
            only_asks: false,
            given_up: false,
            is_not_committed: false,
        }
    }

    /// The guest's state once all is done and written.
    pub fn is_over(&self) -> Option<GuestState> {
        if let State::Over(guest) = self.state { Some(guest) } else { None }
    }

    /// Commit was sent and nothing is decided. A decision to resume here that is not on disk yet changes nothing of
    /// that: a later agent would ask again, which is a commit. Or the guest was to be resumed here, and the destination
    /// has it.
    pub fn is_in_doubt(&self) -> bool {
        match self.state {
            State::Querying | State::Deciding => true,
            State::Looking => self.is_there(),
            _ => false,
        }
    }

    /// By its last answer the destination has committed the guest, or it has ended there after that.
    fn is_there(&self) -> bool {
        matches!(self.answer, Some(Outcome::Pending | Outcome::Gone | Outcome::Committed))
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
        let looks = self.state == State::Looking && !self.is_there();
        looks || matches!(self.state, State::TakingBack | State::ResumingHere | State::ReleasingDisks)
    }

    /// Whether the question of this [`SourceAction::Look`] says that the guest here stays paused: the destination has
    /// answered that it has the guest, and no operator has decided since. Otherwise that one keeps its copy from
    /// running as long as it is asked.
    pub fn only_asks(&self) -> bool {
        self.only_asks
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
            State::Looking => {
                self.only_asks = self.is_there() && self.operator_decision.waiting().is_none();
                Some(SourceAction::Look)
            }
            State::ResumingHere => Some(SourceAction::ResumeHere),
            State::ReleasingDisks => Some(SourceAction::ReleaseDisks),
            State::EndingSource => Some(SourceAction::EndSource),
            State::Writing(phase, _) => Some(SourceAction::Write(phase)),
            State::Over(_) => None,
        }
    }

    /// Takes one event; the actions that follow are queued for the driver.
    pub fn handle(&mut self, now: Time, event: SourceEvent) {
        match (self.state, event) {
            (State::Querying, SourceEvent::Answered(answer)) => self.answered(now, answer),
            (State::Deciding, SourceEvent::Written(true)) => self.enter(now, State::Looking),
            (State::Looking, SourceEvent::Looked(look)) => self.looked(now, look),
            // The operator has decided meanwhile: the next question is another one.
            (State::Querying, SourceEvent::Looked(_)) => self.due = Some(now),
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
            (State::ResumingHere, SourceEvent::DisksAreHeld) if self.is_not_committed => {
                self.enter(now, State::ReleasingDisks);
            }
            (State::ResumingHere, SourceEvent::ResumedHere(None) | SourceEvent::DisksAreHeld)
            | (State::ReleasingDisks, SourceEvent::DisksReleased) => {
                (self.state, self.due) = (State::Looking, Some(now + RETRY_AFTER));
            }
            (State::EndingSource, SourceEvent::SourceEnded(false))
            | (State::Writing(..), SourceEvent::Written(false)) => self.due = Some(now + RETRY_AFTER),
            (State::Querying | State::Looking, SourceEvent::Resolve(resume)) if self.takes(resume) => {
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
        (self.answer, self.is_not_committed) = (answer.or(self.answer), false);
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

    /// The guest is not resumed beside one that runs at the destination, nor with memory that is older than its disks.
    /// A destination that has committed it is waited for, and one that has lost it needs an operator who knows that.
    fn looked(&mut self, now: Time, look: Look) {
        let is_decided = self.operator_decision.waiting() == Some(true);
        self.is_not_committed = look == Look::Paused(Some(Outcome::NotCommitted));
        let answer = match look {
            Look::NotPaused => return self.enter(now, State::ResumingHere),
            Look::Paused(answer) => answer,
            // Neither is older than the other. Only an operator who knows that decides.
            Look::OnBothHosts if is_decided && self.decided_on == Some(Outcome::Committed) => {
                return self.enter(now, State::ResumingHere);
            }
            Look::OnBothHosts => {
                self.answer = Some(Outcome::Committed);
                self.operator_decision.void();
                self.due = Some(now + RETRY_AFTER);
                return;
            }
        };
        self.answer = answer.or(self.answer);
        let undecided = self.giving_up.answered(now, answer);
        match answer {
            Some(Outcome::Committed) => {
                self.operator_decision.rule_out(true);
                self.enter(now, State::EndingSource);
            }
            Some(Outcome::Gone) if is_decided && self.decided_on == Some(Outcome::Gone) => {
                self.enter(now, State::ResumingHere);
            }
            Some(Outcome::Pending | Outcome::Gone) => {
                if undecided != Undecided::AsksAgain {
                    self.operator_decision.void();
                }
                self.due = Some(now + RETRY_AFTER);
            }
            // The operator has decided meanwhile: the next question is another one.
            None if is_decided && self.only_asks => self.due = Some(now),
            None if is_decided && undecided == Undecided::Counts => self.enter(now, State::ResumingHere),
            None if is_decided || self.is_there() || now < self.silent_until => {
                self.due = Some(now + RETRY_AFTER);
            }
            // It has no record of the guest, has given it up, has not committed it, or is silent.
            _ => self.enter(now, State::ResumingHere),
        }
    }

    /// The destination is asked once more before an operator's decision counts.
    fn resolve(&mut self, now: Time, resume: bool) {
        self.operator_decision.note(resume);
        self.decided_on = self.answer;
        if !resume {
            self.state = State::Querying;
        }
        self.giving_up.begin(now);
        self.due = self.due.map(|due| due.min(now));
    }

    fn decide(&mut self, now: Time, resume: bool) {
        self.given_up = !resume;
        self.decided_on = self.answer;
        self.enter(now, if resume { State::Deciding } else { State::EndingSource });
    }

    fn enter(&mut self, now: Time, state: State) {
        (self.state, self.due) = (state, Some(now));
    }
}
