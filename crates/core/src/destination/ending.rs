//! Faults, the end of the waiting guest, and what happens when the source is gone.

use super::{Action, Destination, RUN_AGAIN_AFTER, State};
use crate::journal::DestinationPhase;
use crate::{Code, Fault, Message, Side, Time};

impl Destination {
    /// An action failed. A committed guest must run here, for nobody else has it: that is tried again.
    pub(super) fn action_failed(&mut self, now: Time, fault: Fault) {
        if let State::Resuming { again, .. } = &mut self.state {
            again.get_or_insert(now + RUN_AGAIN_AFTER);
        } else {
            self.fail(fault);
        }
    }

    /// Any fault. Before commit: give up. After it the guest is ours and stays ours, whatever happens.
    pub(super) fn fail(&mut self, fault: Fault) {
        match &self.state {
            // Tearing down: if the journal did not take it, the guest is ended all the same before anybody is told, and
            // after a crash the journal still says that nothing was committed, which is as good.
            State::TearingDown { .. } | State::Parting { .. } | State::Ended => {}
            _ if self.committed => {}
            // The body has the commit in its hands and it may be on disk: only its own failure can stop it.
            State::Journaling
                if fault.code != Code::JournalFailed
                    && !self.actions.contains(&Action::Journal(DestinationPhase::Committed)) => {}
            _ => self.give_up(fault),
        }
    }

    /// First the journal, then the end of the guest, and only then the word to the source (which may resume on it). What
    /// was not begun is not begun any more, a commit not yet written least of all.
    pub(super) fn give_up(&mut self, fault: Fault) {
        self.actions.clear();
        self.actions.push_back(Action::Journal(DestinationPhase::Aborted));
        self.actions.push_back(Action::TearDown);
        self.state = State::TearingDown { fault };
    }

    pub(super) fn part(&mut self, now: Time, fault: Fault) {
        self.control.send(now, Message::Abort(fault.clone()));
        self.state = State::Parting { fault, until: now + self.config.abort_timeout };
    }

    pub(super) fn peer_aborted(&mut self, now: Time, fault: Fault) {
        match &self.state {
            State::TearingDown { .. } | State::Parting { .. } | State::Ended => {
                self.message_after_abort(now, Message::Aborted)
            }
            _ => self.fail(fault),
        }
    }

    /// As good as an abort: the source will not send commit any more, and if it has, the journal decides.
    pub(super) fn withdrawn(&mut self) {
        let detail = "the source has rolled back and withdrawn the guest";
        self.fail(Fault::new(Code::Cancelled, self.state.step(), Side::Source, detail));
    }

    pub(super) fn finished(&mut self) {
        self.actions.push_back(Action::Journal(DestinationPhase::Finished));
        self.actions.push_back(Action::End(None));
        self.state = State::Ended;
    }

    pub(super) fn check_timers(&mut self, now: Time) {
        match &mut self.state {
            State::Parting { fault, until } if *until <= now || self.control.paths() == 0 => {
                let fault = fault.clone();
                self.state = State::Ended;
                self.actions.push_back(Action::End(Some(fault)));
            }
            State::Resuming { again, .. } if again.is_some_and(|at| at <= now) => {
                *again = None;
                self.actions.push_back(Action::Run);
            }
            State::Running { until } => {
                let until = *until.get_or_insert(now + self.config.finish_timeout);
                if until <= now {
                    self.finished();
                }
            }
            _ => self.check_orphaned(now),
        }
    }

    /// Nobody asked for this guest for so long that the source must have given up; if it has not, it will ask.
    pub(super) fn check_orphaned(&mut self, now: Time) {
        let alone_since = match self.control.unreachable_since() {
            Some(since) => Some(since),
            None if self.control.paths() == 0 => Some(self.started),
            None => None,
        };
        if alone_since.is_some_and(|since| now - since >= self.config.orphan_timeout) {
            let seconds = self.config.orphan_timeout.as_secs();
            let detail = format!("no control connection from the source for {seconds} s");
            self.fail(self.fault(Code::PeerLost, &detail));
        }
    }
}
