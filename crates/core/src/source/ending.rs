//! Faults, roll-back, time-outs, and the time after commit when the answer is missing.

use std::time::Duration;

use super::{Action, Ending, Source, State};
use crate::journal::{SourcePhase, Verdict, verdict};
use crate::operator_decision::Undecided;
use crate::{Code, Fault, GuestState, Message, Outcome, Side, Step, Time};

/// The destination's confirmation that it gave up too is waited for this long.
const PEER_ABORTS_WITHIN: Duration = Duration::from_secs(2);
/// A destination whose hypervisor hung up is given so long to say why.
pub(super) const PEER_EXPLAINS_WITHIN: Duration = Duration::from_secs(1);
/// A clean-up that failed is tried again after this long.
const CLEAN_UP_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// What the disk has refused is written again after this long.
const WRITE_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// After this long without an answer to commit, the operator sees that it is in doubt.
pub(super) const IN_DOUBT_AFTER: Duration = Duration::from_secs(3);

const RESUMES_HERE: Action = Action::Journal(SourcePhase::ResumingHere);

#[derive(Clone, Debug, PartialEq)]
pub(super) struct RollBack {
    fault: Fault,
    guest: Option<GuestState>,
    peer_done: bool,
    /// The destination is notified then, if it still has to be.
    notify_at: Option<Time>,
    /// The fault may only be what the destination's cause looks like from here.
    unexplained: bool,
    /// The destination may have the guest complete: it is notified when the guest is back here, and not if it does not
    /// come back.
    may_be_loaded: bool,
    /// The disk still says that commit was sent: the guest stays paused until it says that it is resumed here.
    unwritten: bool,
    /// The disk has refused that; it is tried again then.
    write_at: Option<Time>,
    until: Time,
}

impl RollBack {
    /// The guest must be back here first if the destination may have it complete.
    fn may_notify(&self) -> bool {
        !self.peer_done && (!self.may_be_loaded || self.guest.is_some())
    }

    pub(super) fn notifies_at(&self) -> Option<Time> {
        self.notify_at.filter(|_| self.may_notify())
    }

    pub(super) fn writes_at(&self) -> Option<Time> {
        self.write_at
    }

    /// The guest is back, and the destination is waited for until then.
    pub(super) fn ends_at(&self) -> Option<Time> {
        self.guest.map(|_| self.until)
    }

    #[cfg(test)]
    pub(super) fn fault(&self) -> &Fault {
        &self.fault
    }
}

impl Source {
    /// Any fault. Before commit: roll back. From the journal's CommitSent on, only the destination's answer decides.
    pub(super) fn fail(&mut self, now: Time, fault: Fault) {
        if self.can_fail() {
            self.roll_back(now, fault, true);
        }
    }

    /// Whether a fault ends it.
    pub(super) fn can_fail(&self) -> bool {
        match &self.state {
            State::RollingBack(_) | State::Ended | State::Closing { .. } => false,
            State::Committing { .. } | State::CleaningUp { .. } => false,
            // A released stream goes on whatever becomes of this session.
            State::AwaitingOwner => false,
            _ => true,
        }
    }

    /// An action failed. The clean-up is tried again: the guest has moved, and its process here must go.
    pub(super) fn action_failed(&mut self, now: Time, fault: Fault) {
        match &mut self.state {
            State::CleaningUp { retry_at } => {
                retry_at.get_or_insert(now + CLEAN_UP_AGAIN_AFTER);
            }
            // Nothing of it is needed here any more, and the destination may have the only complete copy. It says so,
            // or fails, or the step's time is over.
            State::Sealing | State::Journaling
                if fault.code == Code::GuestGone && self.config.mode.tag().commits() =>
            {
                self.source_copy_lost = true;
            }
            State::Loading { written, .. } if fault.code == Code::GuestGone => {
                *written = true;
                self.source_copy_lost = true;
                self.journal_when_loaded(now);
            }
            // It may be full for long, and an operator of the destination may decide meanwhile: it is asked again.
            State::Committing { .. } if fault.code == Code::JournalFailed => self.resuming = false,
            State::RollingBack(roll_back) if roll_back.unwritten && fault.code == Code::JournalFailed => {
                roll_back.write_at.get_or_insert(now + WRITE_AGAIN_AFTER);
            }
            // Letting through, of which it is the end.
            State::AwaitingOwner => self.roll_back(now, fault, true),
            _ => self.fail(now, fault),
        }
    }

    /// The destination may have the guest complete: it may run there if its operator decides so.
    pub fn may_be_loaded(&self) -> bool {
        self.may_be_loaded && self.mode().commits()
    }

    pub(super) fn cancel(&mut self, now: Time) {
        // Once the commit is on its way to the journal it is too late; the report will say that the guest moved. So it
        // is where libvirt decides.
        if !matches!(self.state, State::Journaling | State::AwaitingOwner) {
            self.fail(now, Fault::new(Code::Cancelled, self.step, Side::Source, ""));
        }
    }

    pub(super) fn roll_back(&mut self, now: Time, fault: Fault, notify_peer: bool) {
        self.scheduler.stop();
        self.step_deadline = None;
        self.scan_at = None;
        // A destination that has the guest complete keeps it for its operator: there is no other copy.
        let notify_peer = notify_peer && !self.source_copy_lost;
        // What was not begun is not begun any more, a journal entry that says commit least of all.
        self.actions.clear();
        // All that a hypervisor knows whose peer hung up is a broken pipe.
        let unexplained = notify_peer
            && self.peer_hung_up
            && (fault.code, fault.side) == (Code::HypervisorFailed, Side::Source);
        let notify_at = if unexplained { now + PEER_EXPLAINS_WITHIN } else { now };
        let unwritten = std::mem::take(&mut self.commit_written);
        // The destination has given the guest up. A later agent would take the guest that runs here for one that
        // another program has resumed. No question can commit it any more: it does not wait for a disk that is full.
        if !notify_peer && matches!(self.state, State::Committing { .. } | State::CleaningUp { .. }) {
            self.actions.push_back(RESUMES_HERE);
        }
        self.actions.push_back(if unwritten { RESUMES_HERE } else { Action::RollBack });
        self.state = State::RollingBack(RollBack {
            fault,
            guest: None,
            peer_done: !notify_peer,
            notify_at: notify_peer.then_some(notify_at),
            unexplained,
            may_be_loaded: self.may_be_loaded(),
            unwritten,
            write_at: None,
            until: notify_at + PEER_ABORTS_WITHIN,
        });
        self.notify_when_due(now);
    }

    /// A later agent would commit from here on, although the guest had run again: see [`Self::roll_back`].
    pub(super) fn commit_written(&mut self) {
        match &mut self.state {
            State::Journaling => self.commit_written = true,
            // It began while the disk wrote, and the driver has not seen it.
            State::RollingBack(roll_back) => {
                if let Some(begins) = self.actions.iter_mut().find(|action| **action == Action::RollBack) {
                    *begins = RESUMES_HERE;
                    roll_back.unwritten = true;
                }
            }
            _ => {}
        }
    }

    pub(super) fn write_roll_back_again(&mut self) {
        if let State::RollingBack(roll_back) = &mut self.state {
            roll_back.write_at = None;
            self.actions.push_back(RESUMES_HERE);
        }
    }

    /// No later agent asks the destination, which would be a commit.
    pub(super) fn roll_back_written(&mut self) {
        if let State::RollingBack(roll_back) = &mut self.state
            && std::mem::take(&mut roll_back.unwritten)
        {
            self.actions.push_back(Action::RollBack);
        }
    }

    /// The guest is back where it has to be first, and the destination has not explained itself.
    pub(super) fn notify_when_due(&mut self, now: Time) {
        let State::RollingBack(roll_back) = &mut self.state else { return };
        if roll_back.notifies_at().is_some_and(|at| at <= now) {
            roll_back.notify_at = None;
            roll_back.until = now + PEER_ABORTS_WITHIN;
            self.control.send(now, Message::Abort(roll_back.fault.clone()));
        }
    }

    pub(super) fn peer_aborted(&mut self, now: Time, fault: Fault) {
        match self.state {
            // It could not commit: it has ended its guest before it said so.
            State::Committing { .. } => self.roll_back(now, fault, false),
            // The operator's decision counts when the process here has ended. This copy is the last one.
            State::CleaningUp { .. } if self.given_up => self.roll_back(now, fault, false),
            State::CleaningUp { .. } | State::Closing { .. } => {}
            // It has released its part, and decides nothing.
            State::AwaitingOwner => self.control.send(now, Message::Aborted),
            _ => {
                self.control.send(now, Message::Aborted);
                self.roll_back(now, fault, false);
            }
        }
    }

    /// The destination's agent was restarted, or gave up while no link could carry its message. A guest that may be
    /// complete over there is in its journal, and kept until the roll-back notice arrives on a connection of its own.
    /// After commit this is no answer: its journal is asked.
    pub(super) fn forgotten(&mut self, now: Time) {
        match &mut self.state {
            State::RollingBack(roll_back) => {
                if roll_back.may_be_loaded {
                    roll_back.until = now; // An abort is not answered any more.
                } else {
                    roll_back.peer_done = true;
                }
                self.end_when_rolled_back(now);
            }
            State::Committing { .. } | State::CleaningUp { .. } | State::Closing { .. } | State::Ended => {}
            State::AwaitingOwner => {}
            _ => {
                let detail = "it does not know this migration any more";
                let fault = Fault::new(Code::AgentRestarted, self.step, Side::Destination, detail);
                self.roll_back(now, fault, self.may_be_loaded());
            }
        }
    }

    pub(super) fn message_while_ending(&mut self, now: Time, message: Message) {
        let State::RollingBack(roll_back) = &mut self.state else { return };
        match message {
            Message::Aborted => {}
            Message::Abort(fault) => {
                if roll_back.notify_at.take().is_some() {
                    if roll_back.unexplained {
                        roll_back.fault = fault;
                    }
                    self.control.send(now, Message::Aborted);
                }
            }
            _ => return,
        }
        if roll_back.may_be_loaded && roll_back.guest.is_some() && !roll_back.peer_done {
            self.actions.push_back(Action::NoticeDue(false));
        }
        roll_back.peer_done = true;
        self.end_when_rolled_back(now);
    }

    pub(super) fn rolled_back(&mut self, now: Time, guest: GuestState, complete: bool) {
        if let State::RollingBack(roll_back) = &mut self.state {
            roll_back.guest = Some(guest);
            // What the destination has may be all that is left: it keeps that for its operator, or until recovery has
            // the guest back here and notifies it.
            let back = complete && guest != GuestState::Gone;
            roll_back.peer_done |= !back && roll_back.may_be_loaded && roll_back.notify_at.is_some();
            if complete {
                self.operator_decision.settle(true);
                if roll_back.may_be_loaded && !roll_back.peer_done {
                    self.actions.push_back(Action::NoticeDue(true));
                }
                self.actions.push_back(Action::Journal(SourcePhase::RolledBack));
            }
            self.unfinished = !complete;
            self.notify_when_due(now);
            self.end_when_rolled_back(now);
        }
    }

    pub(super) fn end_when_rolled_back(&mut self, now: Time) {
        let State::RollingBack(roll_back) = &self.state else { return };
        let Some(guest) = roll_back.guest else { return };
        if roll_back.peer_done || now >= roll_back.until || self.control.paths() == 0 {
            let fault = roll_back.fault.clone();
            if !roll_back.peer_done {
                self.actions.push_back(Action::NotifyRollBack { may_be_loaded: self.may_be_loaded });
            }
            self.end(now, Some(fault), guest);
        }
    }

    pub(super) fn end(&mut self, now: Time, fault: Option<Fault>, guest: GuestState) {
        self.statistics.ended.get_or_insert(now);
        self.state = State::Ended;
        self.actions.push_back(Action::End(Ending { fault, guest, unfinished: self.unfinished }));
    }

    /// What the guest does at the destination, once that has taken it over.
    pub(super) fn arrived(&self) -> GuestState {
        if self.was_running { GuestState::RunsAtDestination } else { GuestState::PausedAtDestination }
    }

    /// The same, of a copy that was not kept. Only the destination's word says that the guest runs there.
    pub(super) fn left_to(&self) -> GuestState {
        if self.given_up { GuestState::Unknown } else { self.arrived() }
    }

    /// An answer that decides weighs more than an operator's decision that came while the question was in flight. A
    /// destination that holds the guest takes the question for a commit, so that the decision to run the guest here is
    /// void. It may also return the guest or give it up, so that the copy here is not ended either.
    pub(super) fn answered(&mut self, now: Time, answer: Option<Outcome>) {
        self.querying = false;
        if !self.is_open() {
            self.given_up &= answer != Some(Outcome::Committed);
            return;
        }
        let decides = answer.is_some_and(|outcome| verdict(outcome) != Verdict::QueryAgain);
        if self.resuming && !decides {
            return;
        }
        let undecided = self.giving_up.answered(now, answer);
        match (answer, self.operator_decision.waiting()) {
            // The destination may still return the guest to the copy that is to be ended.
            (_, Some(false)) if !decides && !self.query_gives_up => self.ask(now),
            // The next question is asked when it is due.
            (_, Some(false)) | (None, Some(true)) if !decides && undecided == Undecided::AsksAgain => {}
            (_, Some(false)) if !decides && undecided == Undecided::Counts => self.decide(now, false),
            (_, Some(true)) if !decides && answer != Some(Outcome::Pending) => self.decide(now, true),
            (Some(outcome), _) => self.decided_by_peer(now, outcome),
            (None, _) => {}
        }
    }

    /// Another program ran the guest here after commit. Neither the question nor the message is repeated, over a link
    /// that comes back: each is a commit, and the destination's copy is older than the guest's disks.
    pub(super) fn ran_here(&mut self, now: Time) {
        if self.is_open() {
            self.control.replace_unacknowledged(now, &Message::Commit);
        }
        self.ran_here = true;
        self.answered(now, None);
    }

    /// A question came to its end; none without an answer.
    pub(super) fn was_asked(&mut self, now: Time, answer: Option<Outcome>) {
        self.ran_here = false;
        self.answered(now, answer);
    }

    fn decided_by_peer(&mut self, now: Time, outcome: Outcome) {
        match verdict(outcome) {
            Verdict::EndSource => self.running(now),
            Verdict::Resume => {
                let (code, detail) = match outcome {
                    Outcome::Returned => (Code::HypervisorFailed, "the destination could not run the guest"),
                    _ => (Code::PeerLost, "the destination gave up before the commit reached it"),
                };
                self.roll_back(now, Fault::new(code, Step::Commit, Side::Destination, detail), false);
            }
            Verdict::QueryAgain => {
                self.operator_decision.void();
                self.only_the_operator_decides(now, outcome);
            }
        }
    }

    /// The destination has answered and cannot decide: the session ends, and recovery keeps the guest paused for
    /// the operator.
    fn only_the_operator_decides(&mut self, now: Time, outcome: Outcome) {
        let (code, detail) = match outcome {
            Outcome::Gone => (
                Code::GuestGone,
                "the destination took the guest over, and its QEMU has ended there; the copy at the source is kept",
            ),
            Outcome::Unknown => (
                Code::SessionUnknown,
                "the destination has no record of the commit; the copy at the source is kept",
            ),
            _ => return,
        };
        self.unfinished = true;
        let fault = Fault::new(code, Step::Commit, Side::Destination, detail);
        self.end(now, Some(fault), GuestState::InDoubt);
    }

    /// The operator knows better: the destination's host is lost for good, or the guest is known to run there. The
    /// destination is asked once more before that counts: it may answer, and then it decides.
    pub(super) fn resolve(&mut self, now: Time, resume_here: bool) {
        if !self.takes(resume_here) || self.resuming {
            return;
        }
        self.operator_decision.note(resume_here);
        self.giving_up.begin(now);
        self.ask(now);
    }

    fn decide(&mut self, now: Time, resume_here: bool) {
        if resume_here {
            // Nor is the message itself repeated over a link that comes back.
            self.control.replace_unacknowledged(now, &Message::Commit);
            // On disk first: a question that a later agent asks is a commit to a destination that holds the guest.
            self.resuming = true;
            self.actions.push_back(Action::Journal(SourcePhase::ResumingHere));
        } else {
            self.given_up = true;
            self.running(now);
        }
    }

    /// The operator's decision is on disk. A destination that was only out of reach may hold the guest complete: it
    /// must be notified that it is not wanted.
    pub(super) fn resume_here(&mut self, now: Time) {
        let detail = "the operator decided that the guest stays at the source";
        self.roll_back(now, Fault::new(Code::Cancelled, Step::Commit, Side::Source, detail), true);
    }
}
