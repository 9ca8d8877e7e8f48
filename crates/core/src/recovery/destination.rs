//! A session at the destination that is to be brought to its end.

use std::time::Duration;

use super::RETRY_AFTER;
use crate::journal::{Decided, DestinationPhase};
use crate::operator_decision::OperatorDecision;
use crate::source_copy::{HEARD_WITHIN, RESUMES_FOR, SourceCopy};
use crate::{Outcome, Time};

/// A committed guest that the hypervisor refuses to run is tried for so long, then returned if the source can have it
/// back. A lock that the source still holds for a moment, or a server that comes back, is waited for.
pub const RUN_FOR: Duration = Duration::from_secs(2);
/// Between two looks at a guest that waits for its source or an operator: another program may let it run meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Between two tries to run it.
pub const RUN_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// What was found of a committed guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inspection {
    /// The hypervisor confirms that it runs.
    Runs,
    /// It is paused, and no virtual CPU has executed anything since it was committed.
    NeverRan,
    /// It is paused, and may have run before.
    MayHaveRun,
    /// Its process has ended.
    Ended,
    /// Its hypervisor does not answer.
    Unknown,
}

/// What became of the command to run the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunResult {
    /// The hypervisor confirms it.
    Runs,
    /// The hypervisor refused, and the guest has not run.
    Refused,
    /// Its process has ended.
    Ended,
    /// The hypervisor does not answer.
    Unknown,
}

/// What the driver reports to `DestinationRecovery::handle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DestinationEvent {
    /// [`DestinationAction::Discard`] came to an end: whether nothing is left of the guest.
    Discarded(bool),
    /// [`DestinationAction::Inspect`] came to an end.
    Inspected(Inspection),
    /// [`DestinationAction::Run`] came to an end.
    Ran(RunResult),
    /// [`DestinationAction::Write`] came to an end: whether it is on disk.
    Written(bool),
    /// The source has committed, and says so on a connection of its own.
    CommitAgain {
        /// Its own process is alive: it can have the guest back.
        copy: bool,
    },
    /// The source has rolled back.
    RolledBackAtSource,
    /// The source is about to let its own copy run, and asks whether this one runs.
    SourceResumes,
    /// The same question from a source that knows that this host has committed the guest: it keeps its own copy paused.
    SourceWaits,
    /// Its process has ended. Reported before a commit, before a decision to run it, and before that is carried out:
    /// nothing comes of it then.
    ProcessEnded,
    /// The operator decides: `true` runs the guest here, `false` gives it up.
    Resolve(bool),
    /// Only time passed: a timer may be due.
    Tick,
}

/// What the driver is to do; each is answered by one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DestinationAction {
    /// End the guest's process and remove what was made for it.
    Discard,
    /// Find out whether the guest runs, or ever ran.
    Inspect,
    /// Let the guest run (or take its disks over, if it did not run at the source).
    Run,
    /// Put the phase on disk.
    Write(DestinationPhase),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is complete here; the source or an operator decides. An operator's decision to run it counts when the source
    /// had time to say that it has its guest back.
    Waiting,
    Inspecting,
    /// It is committed and never ran here, and the agent has just started: the source may have its guest back.
    Hearing,
    Committing,
    Running {
        since: Time,
    },
    /// It may have run: an operator decides.
    Holding,
    /// It will never run here; this is written first.
    Returning,
    Discarding(DestinationPhase),
    Writing(DestinationPhase),
    Over(DestinationPhase),
}

/// Brings one session of a restarted destination to its end.
#[derive(Clone, Debug)]
pub struct DestinationRecovery {
    state: State,
    due: Option<Time>,
    /// While it waits: an operator's decision to run it is carried out then.
    runs_at: Option<Time>,
    source_copy: SourceCopy,
    /// The agent started then, and has not heard since that the source keeps its own copy paused.
    started: Option<Time>,
    /// It may have run here before: a refusal of the hypervisor does not say that it never did.
    may_have_run: bool,
    /// The source has said that it has its guest back.
    rolled_back: bool,
    /// The operator's decision. It waits until it is carried out: the guest runs here, or nothing is left of it.
    operator_decision: OperatorDecision,
}

impl DestinationRecovery {
    /// The guest was not complete, or was given up: nothing may be left of it.
    pub fn discard(now: Time, phase: DestinationPhase) -> DestinationRecovery {
        let end = match phase {
            DestinationPhase::Returned => DestinationPhase::Returned,
            _ => DestinationPhase::Aborted,
        };
        DestinationRecovery::new(State::Discarding(end), Some(now))
    }

    /// The guest is complete and the source may have committed. It is not looked at.
    pub fn wait() -> DestinationRecovery {
        DestinationRecovery::new(State::Waiting, None)
    }

    /// The same when an agent has just started: its source may have asked the one before whether it may resume. The
    /// guest is looked at now and then.
    pub fn wait_after_start(now: Time) -> DestinationRecovery {
        let due = Some(now + LOOK_EVERY);
        DestinationRecovery { started: Some(now), due, ..DestinationRecovery::wait() }
    }

    /// The guest is committed.
    pub fn inspect(now: Time) -> DestinationRecovery {
        DestinationRecovery::new(State::Inspecting, Some(now))
    }

    /// The same when an agent has just started: its source may have its guest back since, by its operator's decision or
    /// by itself. So a guest that never ran here is not run before the source is heard.
    pub fn inspect_after_start(now: Time) -> DestinationRecovery {
        DestinationRecovery { started: Some(now), ..DestinationRecovery::inspect(now) }
    }

    fn new(state: State, due: Option<Time>) -> DestinationRecovery {
        DestinationRecovery {
            state,
            due,
            runs_at: None,
            source_copy: SourceCopy::default(),
            started: None,
            may_have_run: false,
            rolled_back: false,
            operator_decision: OperatorDecision::default(),
        }
    }

    /// The phase once all is done and written.
    pub fn is_over(&self) -> Option<DestinationPhase> {
        if let State::Over(phase) = self.state { Some(phase) } else { None }
    }

    /// It is complete, and waits for the source or an operator.
    pub fn is_waiting(&self) -> bool {
        self.state == State::Waiting
    }

    /// It was committed and may have run: only an operator decides.
    pub fn is_held(&self) -> bool {
        self.state == State::Holding
    }

    /// It never ran here and is about to: its source is heard first.
    pub fn hears_source(&self) -> bool {
        self.state == State::Hearing
    }

    /// An operator may decide, or has decided and that does not count yet. So it is as long as a source that is heard
    /// says that it has its own copy: of one that ran there after commit it does so for good.
    pub fn is_in_doubt(&self) -> bool {
        let is_disputed = self.hears_source() && self.source_copy.has_resumed();
        is_disputed || self.is_waiting() || self.is_held() || self.operator_decision.waiting().is_some()
    }

    /// The operator's decision that is not carried out yet.
    pub fn waiting_decision(&self) -> Option<bool> {
        self.operator_decision.waiting()
    }

    /// An operator wants a guest that waits to run here, and the source is heard first. The driver reports the end of
    /// its process before it asks for the next action.
    pub fn is_about_to_run(&self) -> bool {
        self.is_waiting() && self.waiting_decision() == Some(true)
    }

    /// Whether the operator may decide so: while one decision waits, no other is taken.
    pub fn takes(&self, run: bool) -> bool {
        self.is_in_doubt() && self.operator_decision.takes(run)
    }

    /// What became of the operator's decision for `run`.
    pub fn decided_for(&self, run: bool) -> Decided {
        self.operator_decision.decided_at_destination_for(run, self.rolled_back)
    }

    /// Whether a guest that is held, or whose source is heard, may be given up: the source has just reported its own
    /// copy, or lets it run. Otherwise this copy may be the only one.
    pub fn may_be_given_up(&self, now: Time) -> bool {
        self.rolled_back || self.source_copy.is_there(now)
    }

    /// The source has just said that it is about to let its own copy run, or does: this one is not run beside it.
    pub fn source_resumes(&self, now: Time) -> bool {
        self.source_copy.is_resumed(now)
    }

    /// Whether the source may have asked the agent before this one, and be about to let its own copy run.
    pub fn has_just_started(&self, now: Time) -> bool {
        self.started.is_some_and(|at| now - at <= RESUMES_FOR)
    }

    /// Until now no source could be heard: no connection was taken yet, or the process was stopped. What a source has
    /// sent meanwhile comes now.
    pub fn was_deaf(&mut self, now: Time) {
        self.started = self.started.map(|_| now);
        self.runs_at = self.runs_at.map(|_| now + HEARD_WITHIN);
    }

    /// The answer to a source that is about to resume; none if the journal knows.
    pub fn outcome_for_resuming(&self) -> Option<Outcome> {
        if self.is_not_committed() { Some(Outcome::NotCommitted) } else { self.outcome() }
    }

    /// One that was returned may still be committed on disk, and a later agent would run it.
    fn is_not_committed(&self) -> bool {
        matches!(self.state, State::Waiting | State::Discarding(DestinationPhase::Aborted))
    }

    /// The source lets its own copy run: this one must not run beside it.
    pub fn is_rolled_back_at_source(&self) -> bool {
        self.rolled_back
    }

    /// The answer to the source meanwhile; none if the journal knows.
    pub fn outcome(&self) -> Option<Outcome> {
        match self.state {
            State::Over(_) => None,
            // It runs; only the record is missing.
            State::Writing(DestinationPhase::Running | DestinationPhase::Finished) => {
                Some(Outcome::Committed)
            }
            // Nothing is left of it; only the record is missing.
            State::Writing(DestinationPhase::Aborted) => Some(Outcome::Aborted),
            State::Writing(DestinationPhase::Returned) => Some(Outcome::Returned),
            _ => Some(Outcome::Pending),
        }
    }

    /// When to look again at the latest; none if an action is in progress, libvirt decides, or all is over.
    pub fn timeout(&self) -> Option<Time> {
        self.due.into_iter().chain(self.runs_at).min()
    }

    /// The next thing to do.
    pub fn poll_action(&mut self, now: Time) -> Option<DestinationAction> {
        if self.runs_at.is_some_and(|at| at <= now) {
            self.enter(now, State::Committing);
        }
        self.due.take_if(|due| *due <= now)?;
        match self.state {
            State::Over(_) => None,
            State::Waiting | State::Inspecting | State::Hearing | State::Holding => {
                Some(DestinationAction::Inspect)
            }
            State::Committing => Some(DestinationAction::Write(DestinationPhase::Committed)),
            State::Running { .. } => Some(DestinationAction::Run),
            State::Returning => Some(DestinationAction::Write(DestinationPhase::Returned)),
            State::Discarding(_) => Some(DestinationAction::Discard),
            State::Writing(phase) => Some(DestinationAction::Write(phase)),
        }
    }

    /// Takes one event; the actions that follow are queued for the driver.
    pub fn handle(&mut self, now: Time, event: DestinationEvent) {
        use DestinationEvent as E;
        self.hear_of_copy(now, event);
        match (self.state, event) {
            (_, E::Resolve(run)) => self.resolve(now, run),
            // An earlier question that arrives late.
            (State::Waiting, E::CommitAgain { .. }) if self.source_resumes(now) => {}
            (State::Waiting, E::CommitAgain { .. }) => self.enter(now, State::Committing),
            // A process that ended while it waited never ran the guest, and cannot be committed any more.
            (State::Waiting, E::RolledBackAtSource | E::ProcessEnded) => {
                self.operator_decision.rule_out(true);
                self.enter(now, State::Discarding(DestinationPhase::Aborted));
            }
            // Another program has let it run.
            (State::Waiting, E::Inspected(Inspection::Runs)) => self.runs(now),
            (State::Waiting, E::Inspected(_)) => self.due = Some(now + LOOK_EVERY),
            (State::Holding, E::Inspected(found)) => self.looked_again(now, found),
            (State::Hearing, E::RolledBackAtSource) => self.look_now(now),
            (State::Discarding(DestinationPhase::Committed), E::Discarded(true)) => self.ended(),
            // It is not on disk, and the source that sent commit revokes it.
            (State::Committing, E::RolledBackAtSource) if self.due.is_some() => {
                self.operator_decision.settle(false);
                self.enter(now, State::Discarding(DestinationPhase::Aborted));
            }
            // It could not be run and waits for the next try: the source runs it, by its operator's decision.
            (State::Running { .. }, E::RolledBackAtSource) if self.due.is_some() && !self.may_have_run => {
                self.give_back(now);
            }
            // It may have run, and an operator wanted it to run on: not beside its source.
            (State::Running { .. }, E::RolledBackAtSource) if self.due.is_some() => self.hold(now),
            // The notice came while it was being written: its source runs it.
            (State::Committing, E::Written(true)) if self.rolled_back => self.give_back(now),
            // A decision to run it waits on: the hypervisor may refuse, and then the guest may go back.
            (State::Committing, E::Written(true)) => self.enter(now, State::Running { since: now }),
            (State::Inspecting | State::Hearing, E::Inspected(found)) => self.inspected(now, found),
            (State::Running { since }, E::Ran(result)) => self.ran(now, since, result),
            // Whether it is on disk or not: it must not stay here.
            (State::Returning, E::Written(_)) => {
                self.enter(now, State::Discarding(DestinationPhase::Returned));
            }
            // A later agent finds that its process has ended, and writes the same.
            (State::Discarding(end), E::Discarded(true)) => {
                self.operator_decision.settle(false);
                self.enter(now, State::Writing(end));
            }
            (State::Writing(end), E::Written(true)) => (self.state, self.due) = (State::Over(end), None),
            (State::Committing, E::Written(false)) if self.rolled_back => {
                self.operator_decision.settle(false);
                self.enter(now, State::Discarding(DestinationPhase::Aborted));
            }
            (State::Committing | State::Writing(_), E::Written(false))
            | (State::Discarding(_), E::Discarded(false)) => self.due = Some(now + RETRY_AFTER),
            _ => {}
        }
    }

    /// What the source says of its own copy.
    fn hear_of_copy(&mut self, now: Time, event: DestinationEvent) {
        use DestinationEvent as E;
        match event {
            E::CommitAgain { copy } => {
                self.source_copy.note(now, copy);
                // An earlier question that arrives late says nothing.
                if !self.source_resumes(now) {
                    self.source_keeps_paused(now);
                }
            }
            E::SourceWaits if !self.is_not_committed() => {
                self.source_copy.note_waits(now);
                self.source_keeps_paused(now);
            }
            // The answer lets the source resume.
            E::SourceResumes | E::SourceWaits => {
                self.source_copy.note_resumes(now);
                self.source_is_heard();
            }
            E::RolledBackAtSource => self.rolled_back = true,
            _ => {}
        }
    }

    /// While one decision waits, no other is taken.
    fn resolve(&mut self, now: Time, run: bool) {
        let next = match (self.state, run) {
            _ if self.operator_decision.waiting().is_some() => return,
            (State::Waiting | State::Holding, true)
                if self.source_resumes(now) || self.has_just_started(now) =>
            {
                return;
            }
            (State::Waiting, true) => {
                self.operator_decision.note(true);
                self.runs_at = Some(now + HEARD_WITHIN);
                return;
            }
            (State::Waiting, false) => State::Discarding(DestinationPhase::Aborted),
            // The source's commit is not on disk. A driver that asks `takes` first does not decide here.
            (State::Committing, false) if self.due.is_some() => State::Discarding(DestinationPhase::Aborted),
            (State::Holding, true) if !self.rolled_back => State::Running { since: now },
            // It never ran here.
            (State::Hearing, false) if self.may_be_given_up(now) => State::Returning,
            // It may have run: the source must not take it for one that never did, and keeps its copy for its operator.
            (State::Holding, false) if self.may_be_given_up(now) => {
                State::Discarding(DestinationPhase::Committed)
            }
            _ => return,
        };
        self.operator_decision.note(run);
        self.enter(now, next);
    }

    /// It is about to let its own copy run: a decision to run this one, which is not carried out yet, is not followed.
    fn source_is_heard(&mut self) {
        if self.state == State::Waiting {
            self.operator_decision.void();
            self.runs_at = None;
        }
    }

    /// It has committed, or knows that this host has, and waits for what becomes of the guest here.
    fn source_keeps_paused(&mut self, now: Time) {
        self.started = None;
        if self.state == State::Hearing {
            self.look_now(now);
        }
    }

    /// Not a second time beside a look that is in progress.
    fn look_now(&mut self, now: Time) {
        self.due = self.due.map(|due| due.min(now));
    }

    /// The agent has just started and has not heard its source, or that one says that it has its guest.
    fn must_hear(&self, now: Time) -> bool {
        self.started.is_some_and(|at| now - at < HEARD_WITHIN || self.source_resumes(now))
    }

    /// Another program may let the guest run meanwhile.
    fn hear(&mut self, now: Time) {
        let end = self.started.map(|at| at + HEARD_WITHIN).filter(|end| *end > now);
        let next = now + LOOK_EVERY;
        (self.state, self.due) = (State::Hearing, Some(end.map_or(next, |end| end.min(next))));
    }

    fn inspected(&mut self, now: Time, found: Inspection) {
        match found {
            Inspection::Runs => self.runs(now),
            // Its source runs it.
            Inspection::NeverRan if self.rolled_back => self.give_back(now),
            Inspection::NeverRan if self.must_hear(now) => self.hear(now),
            Inspection::NeverRan => self.enter(now, State::Running { since: now }),
            Inspection::MayHaveRun => self.hold(now),
            Inspection::Ended => self.ended(),
            Inspection::Unknown => self.due = Some(now + RETRY_AFTER),
        }
    }

    /// It never ran here, and its source has it: an operator's decision to run it here is not followed.
    fn give_back(&mut self, now: Time) {
        self.operator_decision.rule_out(true);
        self.enter(now, State::Returning);
    }

    fn ran(&mut self, now: Time, since: Time, result: RunResult) {
        let for_long = now - since >= RUN_FOR;
        match result {
            RunResult::Runs => self.runs(now),
            // The notice came while it was just being run: the next try could run it beside its source.
            RunResult::Refused if self.may_have_run && (self.rolled_back || for_long) => self.hold(now),
            RunResult::Refused if self.rolled_back => self.give_back(now),
            RunResult::Refused if for_long && self.source_copy.is_there(now) => self.give_back(now),
            // No source has confirmed that it can resume: this copy may be the only one.
            RunResult::Refused if for_long => self.due = Some(now + RETRY_AFTER),
            RunResult::Refused => self.due = Some(now + RUN_AGAIN_AFTER),
            RunResult::Ended => self.ended(),
            RunResult::Unknown => {
                (self.state, self.due) = (State::Inspecting, Some(now + RETRY_AFTER));
            }
        }
    }

    /// A later agent finds that too.
    fn runs(&mut self, now: Time) {
        self.operator_decision.settle(true);
        self.enter(now, State::Writing(DestinationPhase::Running));
    }

    /// An operator decides, here or by letting the guest run himself: it is looked at now and then.
    fn hold(&mut self, now: Time) {
        self.may_have_run = true;
        if self.rolled_back {
            self.operator_decision.rule_out(true);
        }
        self.operator_decision.void();
        (self.state, self.due) = (State::Holding, Some(now + LOOK_EVERY));
    }

    fn looked_again(&mut self, now: Time, found: Inspection) {
        match found {
            Inspection::Runs => self.runs(now),
            Inspection::Ended => self.ended(),
            _ => self.due = Some(now + LOOK_EVERY),
        }
    }

    /// The record stays: as its process has ended, it says that the guest was committed and has ended.
    fn ended(&mut self) {
        // An operator who wanted it to run here reads that it does not.
        self.operator_decision.settle(false);
        (self.state, self.due) = (State::Over(DestinationPhase::Committed), None);
    }

    fn enter(&mut self, now: Time, state: State) {
        (self.state, self.due, self.runs_at) = (state, Some(now), None);
    }
}
