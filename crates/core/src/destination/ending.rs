//! Faults, the end of the incoming QEMU, and what happens when the source is lost.

use super::{Action, Destination, State};
use crate::journal::DestinationPhase;
use crate::recovery::RETRY_AFTER;
use crate::source_copy::HEARD_WITHIN;
use crate::{Code, Fault, Message, Outcome, Side, Time};

impl Destination {
    /// The hypervisor cannot run the committed guest and never did: the source is to have it back. The order is that of
    /// [`Destination::give_up`]. If the source does not answer, the guest cannot return: then it is tried again.
    pub(super) fn cannot_run(&mut self, now: Time, fault: Fault) {
        let has_copy = self.has_copy_at_source(now);
        let State::Resuming { retry_at } = &mut self.state else { return };
        if !has_copy {
            *retry_at = Some(now + RETRY_AFTER);
        } else {
            self.give_back(fault);
        }
    }

    /// It is run, unless its source has rolled back meanwhile, and lets its own copy run.
    pub(super) fn commit_written(&mut self) {
        self.committed = true;
        self.state = State::Resuming { retry_at: None };
        if self.rolled_back {
            self.give_back(self.source_rolled_back());
        } else {
            self.actions.push_back(Action::Run { was_running: self.was_running.unwrap_or(true) });
        }
    }

    fn source_rolled_back(&self) -> Fault {
        Fault::new(Code::Cancelled, self.state.step(), Side::Source, "the source has rolled back")
    }

    /// It could not be run here, and never will be: a decision of the operator to run it is not followed.
    fn give_back(&mut self, fault: Fault) {
        self.operator_decision.rule_out(true);
        (self.committed, self.returned) = (false, true);
        self.end_guest(DestinationPhase::Returned, fault);
    }

    /// It may have run, so that it cannot return; and it is not run again without a question. Only an operator decides,
    /// for whom recovery holds it. The source learns what becomes of it by its next question.
    pub(super) fn may_have_run(&mut self, fault: Fault) {
        if matches!(self.state, State::Resuming { .. }) {
            self.operator_decision.void();
            self.left_to_recovery = true;
            self.state = State::Ended;
            let rolled_back = self.rolled_back;
            self.actions.push_back(Action::LeaveToRecovery { fault, rolled_back });
        }
    }

    /// Whether the guest ran is not known, or it did: it may not be resumed without a question, so the source learns
    /// that by its next question. That it runs is not reported any more.
    pub(super) fn guest_ended(&mut self, fault: Fault) {
        if matches!(self.state, State::Resuming { .. } | State::Running { .. }) {
            if matches!(self.state, State::Running { .. }) {
                self.actions.push_back(Action::Journal(DestinationPhase::Finished));
            }
            self.gone = true;
            self.operator_decision.settle(false);
            self.state = State::Ended;
            self.actions.push_back(Action::End(Some(fault)));
        }
    }

    /// The source has just said that it is about to let its own copy run: a guest that is not committed is not run
    /// beside it.
    pub fn source_resumes(&self, now: Time) -> bool {
        self.source_copy.is_resumed(now)
    }

    /// The answer to a source that is about to resume.
    pub fn outcome_for_resuming(&self) -> Outcome {
        let is_open = self.outcome() == Outcome::Pending && !self.is_committed() && !self.left_to_recovery;
        // One that was returned may still be committed on disk, and a later agent would run it.
        if is_open && !self.returned { Outcome::NotCommitted } else { self.outcome() }
    }

    /// It is connected again and decides itself, or it lets its own copy run: a decision to run this one, which is not
    /// carried out yet, is not followed.
    pub(super) fn source_is_heard(&mut self) {
        if self.runs_at.take().is_some() && self.state == State::Loaded {
            self.operator_decision.void();
        }
    }

    /// Until now no source could be heard: the process was stopped. What a source has sent meanwhile comes now.
    pub fn was_deaf(&mut self, now: Time) {
        self.runs_at = self.runs_at.map(|_| now + HEARD_WITHIN);
    }

    /// The operator's decision over a loaded guest whose source does not answer. A source that is there has some time
    /// to say that it has its guest back.
    pub(super) fn resolve(&mut self, now: Time, run: bool) {
        let waits = self.operator_decision.waiting().is_some();
        if !self.is_held() || waits || run && self.source_resumes(now) {
            return;
        }
        self.operator_decision.note(run);
        if run {
            self.runs_at = Some(now + HEARD_WITHIN);
        } else {
            let detail = "the operator of the destination gave the guest up";
            self.give_up(Fault::new(Code::Cancelled, self.state.step(), Side::Destination, detail));
        }
    }

    /// The operator's decision to run the guest is carried out.
    pub(super) fn run_as_decided(&mut self) {
        self.runs_at = None;
        self.commit();
    }

    /// Any fault. Before commit: give up. After it the guest is ours and stays ours, whatever happens.
    pub(super) fn fail(&mut self, now: Time, fault: Fault) {
        match &self.state {
            // Discarding: the guest is ended before any report, also if the journal did not take it. After a crash the
            // journal then still says that nothing was committed, which is as good.
            State::Discarding { .. } | State::Closing { .. } | State::Ended => {}
            _ if self.committed => {}
            // The source may have committed, and is not there to have the guest back: only the source gives it up, or
            // an operator.
            State::Loaded if fault.code != Code::Cancelled && self.control.paths() == 0 => {}
            // The driver has the commit and it may be on disk: only its own failure can stop it.
            State::Journaling { retry_at: None }
                if !matches!(fault.code, Code::JournalFailed | Code::GuestGone)
                    && !self.actions.contains(&Action::Journal(DestinationPhase::Committed)) => {}
            // A source that answers has its copy, and resumes on our message. Otherwise this one may be the only one.
            State::Journaling { .. }
                if fault.code == Code::JournalFailed && !self.has_copy_at_source(now) =>
            {
                self.state = State::Journaling { retry_at: Some(now + RETRY_AFTER) };
            }
            _ => self.give_up(fault),
        }
    }

    /// First the journal, then the end of the guest, and only then the message to the source (which may resume on it).
    /// What was not begun is not begun any more, a commit not yet written least of all.
    pub(super) fn give_up(&mut self, fault: Fault) {
        self.operator_decision.rule_out(true);
        self.end_guest(DestinationPhase::Aborted, fault);
    }

    fn end_guest(&mut self, phase: DestinationPhase, fault: Fault) {
        self.actions.clear();
        self.device_state.forget();
        self.actions.push_back(Action::Journal(phase));
        self.actions.push_back(Action::Discard);
        self.state = State::Discarding { fault };
    }

    pub(super) fn close(&mut self, now: Time, fault: Fault) {
        self.control.send(now, Message::Abort(fault.clone()));
        self.state = State::Closing { fault, until: now + self.config.abort_timeout };
    }

    pub(super) fn peer_aborted(&mut self, now: Time, fault: Fault) {
        match &self.state {
            State::Discarding { .. } | State::Closing { .. } | State::Ended => {
                self.message_after_abort(now, Message::Aborted)
            }
            State::Loaded => self.give_up(fault),
            _ => self.revoked(now, fault),
        }
    }

    /// As good as an abort: the source will not send commit any more, and if it has, the journal decides.
    pub(super) fn rolled_back_at_source(&mut self, now: Time) {
        self.revoked(now, self.source_rolled_back());
    }

    /// The source lets its own copy run.
    fn revoked(&mut self, now: Time, fault: Fault) {
        let is_ordered = |action: &Action| matches!(action, Action::Run { .. });
        match self.state {
            // It waits for the next try, which would run it although its source does. Or the driver has not begun.
            State::Resuming { retry_at } if retry_at.is_some() || self.actions.iter().any(is_ordered) => {
                self.give_back(fault);
            }
            _ => {
                // A command that the hypervisor has cannot be called back. The driver gives it no further one.
                self.rolled_back |=
                    matches!(self.state, State::Journaling { retry_at: None } | State::Resuming { .. });
                self.fail(now, fault);
            }
        }
    }

    /// The source has said so within the last seconds, or lets its copy run.
    fn has_copy_at_source(&self, now: Time) -> bool {
        self.rolled_back || self.source_has_copy(now)
    }

    pub(super) fn finished(&mut self) {
        self.actions.push_back(Action::Journal(DestinationPhase::Finished));
        self.actions.push_back(Action::End(None));
        self.state = State::Ended;
    }
}
