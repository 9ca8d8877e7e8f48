//! What the destination waits for: one table of timers. A timer is due at a time that follows from the state.

use super::{Action, Destination, State};
use crate::journal::DestinationPhase;
use crate::{Code, Time};

/// Something that happens because time passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    /// The source's last message is not waited for any longer.
    Finish,
    /// The operator's decision to run the guest is carried out.
    Decided,
    /// The commit is written again.
    Journal,
    /// The guest is run again.
    Run,
    /// The guest that runs is looked at.
    Look,
    /// Nothing was received for so long that the source must have given up.
    Orphaned,
    /// The answer to an abort is not waited for any longer.
    Closed,
}

impl Timer {
    const ALL: [Timer; 7] = [
        Timer::Finish,
        Timer::Decided,
        Timer::Journal,
        Timer::Run,
        Timer::Look,
        Timer::Orphaned,
        Timer::Closed,
    ];
}

impl Destination {
    /// When [`super::Event::Tick`] is wanted at the latest; `None` if only events lead on.
    pub fn timeout(&self) -> Option<Time> {
        if self.state == State::Ended {
            return None;
        }
        let due = Timer::ALL.into_iter().filter_map(|timer| self.due(timer));
        due.chain(self.control.timeout()).min()
    }

    pub(super) fn check_timers(&mut self, now: Time) {
        for timer in Timer::ALL {
            if self.due(timer).is_some_and(|at| at <= now) {
                self.fire(now, timer);
            }
        }
        self.finish_when_reported();
        if self.control.paths() == 0 {
            self.closed();
        }
    }

    fn due(&self, timer: Timer) -> Option<Time> {
        match (timer, &self.state) {
            (Timer::Finish, State::Running { until }) => Some(*until),
            (Timer::Decided, State::Loaded) => self.runs_at,
            (Timer::Journal, State::Journaling { retry_at }) => *retry_at,
            (Timer::Run, State::Resuming { retry_at }) => *retry_at,
            (Timer::Look, State::Running { .. }) => self.looks_at(),
            (Timer::Orphaned, state) if state.may_be_orphaned() => {
                self.alone_since().map(|since| since + self.config.orphan_timeout)
            }
            (Timer::Closed, State::Closing { until, .. }) => Some(*until),
            _ => None,
        }
    }

    fn fire(&mut self, now: Time, timer: Timer) {
        match timer {
            Timer::Finish => self.finished(),
            Timer::Decided => self.run_as_decided(),
            Timer::Journal => {
                self.state = State::Journaling { retry_at: None };
                self.actions.push_back(Action::Journal(DestinationPhase::Committed));
            }
            Timer::Run => {
                self.state = State::Resuming { retry_at: None };
                self.actions.push_back(Action::Run { was_running: self.was_running.unwrap_or(true) });
            }
            Timer::Look => self.begin_look(),
            Timer::Orphaned => {
                let seconds = self.config.orphan_timeout.as_secs();
                let detail = format!("no control connection from the source for {seconds} s");
                self.fail(now, self.fault(Code::PeerLost, &detail));
            }
            Timer::Closed => self.closed(),
        }
    }

    /// The source is notified, or cannot be.
    fn closed(&mut self) {
        if let State::Closing { fault, .. } = &self.state {
            let fault = fault.clone();
            self.state = State::Ended;
            self.actions.push_back(Action::End(Some(fault)));
        }
    }

    fn alone_since(&self) -> Option<Time> {
        let before_the_first = || (self.control.paths() == 0).then_some(self.started);
        self.control.unreachable_since().or_else(before_the_first)
    }
}

impl State {
    /// The source gives up by itself when it receives nothing for so long. A guest that is loaded is kept: the source
    /// may have committed, and its host may be lost with its own copy.
    fn may_be_orphaned(&self) -> bool {
        match self {
            State::Waiting
            | State::Admitting
            | State::Admitted
            | State::Preparing
            | State::Receiving
            | State::Streaming
            | State::Sealing { .. }
            | State::Loading
            | State::RestoringHypervisor => true,
            State::JournalingLoaded
            | State::Loaded
            | State::Journaling { .. }
            | State::Resuming { .. }
            | State::Running { .. }
            | State::Discarding { .. }
            | State::Closing { .. }
            | State::Ended => false,
        }
    }
}
