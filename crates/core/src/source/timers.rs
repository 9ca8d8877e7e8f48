//! What the source waits for: one table of timers. A timer is due at a time that follows from the state.

use super::blackout::ASK_AFTER;
use super::ending::IN_DOUBT_AFTER;
use super::{Action, Preparation, Source, State};
use crate::{Code, Fault, Side, Step, Time};

/// Something that happens because time passed. The order is that in which timers due at one moment are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    /// The pause between two rounds is over.
    Scan,
    /// What was written in the first pass is counted.
    Count,
    /// The step takes too long.
    Step,
    /// The incoming QEMU does not come up.
    Preparation,
    Unreachable,
    NoChannel,
    /// Nothing that was sent is acknowledged or taken.
    NoProgress,
    /// The destination is asked how the commit ended.
    Ask,
    /// The clean-up is tried again.
    CleanUp,
    /// The roll-back is written again, which the disk has refused.
    WriteRollBack,
    /// The destination is notified of the roll-back.
    Notify,
    /// The destination's answer to the roll-back is not waited for any longer.
    RolledBack,
    /// The last acknowledgement is not waited for any longer.
    Closed,
}

impl Timer {
    const ALL: [Timer; 13] = [
        Timer::Scan,
        Timer::Count,
        Timer::Step,
        Timer::Preparation,
        Timer::Unreachable,
        Timer::NoChannel,
        Timer::NoProgress,
        Timer::Ask,
        Timer::CleanUp,
        Timer::WriteRollBack,
        Timer::Notify,
        Timer::RolledBack,
        Timer::Closed,
    ];
}

impl Source {
    /// When [`super::Event::Tick`] is wanted at the latest; `None` if only events lead on. Asked anew after every event
    /// and every change by a channel.
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
        // Both may be reached without a timer: the peer has answered, or does not answer any more.
        self.end_when_rolled_back(now);
        self.close_when_acknowledged(now);
    }

    fn due(&self, timer: Timer) -> Option<Time> {
        let limit = self.config.link_timeout;
        match timer {
            Timer::Scan => self.scan_at.filter(|_| self.may_scan()),
            Timer::Count => self.count_at.filter(|_| self.may_count()),
            Timer::Step => self.step_deadline,
            Timer::Preparation => match self.preparation {
                Preparation::InProgress { until } => Some(until),
                Preparation::NotBegun | Preparation::Done { .. } => None,
            },
            Timer::Unreachable if self.can_fail() => self.control.unreachable_since().map(|at| at + limit),
            Timer::NoChannel if self.can_fail() => self.no_channel_since.map(|at| at + limit),
            Timer::NoProgress if self.moves() => Some(self.last_progress + limit),
            Timer::Unreachable | Timer::NoChannel | Timer::NoProgress => None,
            Timer::Ask => match self.state {
                State::Committing { ask_at, .. } => Some(ask_at),
                _ => None,
            },
            Timer::CleanUp => match self.state {
                State::CleaningUp { retry_at } => retry_at,
                _ => None,
            },
            Timer::WriteRollBack => match &self.state {
                State::RollingBack(roll_back) => roll_back.writes_at(),
                _ => None,
            },
            Timer::Notify => match &self.state {
                State::RollingBack(roll_back) => roll_back.notifies_at(),
                _ => None,
            },
            Timer::RolledBack => match &self.state {
                State::RollingBack(roll_back) => roll_back.ends_at(),
                _ => None,
            },
            Timer::Closed => match self.state {
                State::Closing { until } => Some(until),
                _ => None,
            },
        }
    }

    fn fire(&mut self, now: Time, timer: Timer) {
        match timer {
            Timer::Scan => self.scan_when_due(now),
            Timer::Count => {
                self.count_at = None;
                self.actions.push_back(Action::Count);
            }
            Timer::Step => self.step_is_over(now),
            Timer::Preparation => self.preparation_is_over(now),
            Timer::Unreachable => self.lost(now, Code::PeerLost, "no control connection"),
            Timer::NoChannel => self.lost(now, Code::NoLink, "no data channel"),
            Timer::NoProgress => {
                let streams = matches!(self.state, State::Streaming { .. });
                let what =
                    if streams { "nothing of QEMU's streams was taken" } else { "nothing was acknowledged" };
                self.lost(now, Code::PeerLost, what);
            }
            Timer::Ask => self.ask(now),
            Timer::CleanUp => {
                self.state = State::CleaningUp { retry_at: None };
                self.actions.push_back(Action::CleanUp);
            }
            Timer::WriteRollBack => self.write_roll_back_again(),
            Timer::Notify => self.notify_when_due(now),
            Timer::RolledBack => self.end_when_rolled_back(now),
            Timer::Closed => self.close_when_acknowledged(now),
        }
    }

    /// Something must arrive for this state to end.
    fn moves(&self) -> bool {
        match self.state {
            State::Copying { .. } | State::LastCopy { .. } => !self.scheduler.is_drained(),
            State::Streaming { .. } => true,
            _ => false,
        }
    }

    fn step_is_over(&mut self, now: Time) {
        self.step_deadline = None;
        let detail = format!("while {}", self.state.name());
        let fault = Fault::new(Code::TimedOut, self.step, Side::Source, detail);
        if matches!(self.state, State::CleaningUp { .. }) {
            // The journal still says that commit was sent: recovery asks once more and cleans up.
            self.unfinished = true;
            self.end(now, Some(fault), self.left_to());
        } else if self.state == State::AwaitingOwner {
            self.roll_back(now, fault, true);
        } else {
            self.fail(now, fault);
        }
    }

    fn preparation_is_over(&mut self, now: Time) {
        self.preparation = Preparation::NotBegun;
        let detail = "the incoming QEMU did not come up";
        self.fail(now, Fault::new(Code::TimedOut, Step::Prepare, Side::Destination, detail));
    }

    /// The guest runs on while links are away. When they stay away, the migration is given up.
    fn lost(&mut self, now: Time, code: Code, what: &str) {
        let detail = format!("{what} for {} s", self.config.link_timeout.as_secs());
        self.fail(now, Fault::new(code, self.step, Side::Source, detail));
    }

    pub(super) fn ask(&mut self, now: Time) {
        let journaled = self.statistics.blackout.journaled;
        let State::Committing { ask_at, in_doubt } = &mut self.state else { return };
        *ask_at = now + ASK_AFTER;
        *in_doubt |= journaled.is_some_and(|at| now - at >= IN_DOUBT_AFTER);
        // The decision to resume here is just being written.
        if !self.resuming && !self.querying {
            let gives_up = self.operator_decision.waiting() == Some(false);
            (self.querying, self.query_gives_up) = (true, gives_up);
            self.actions.push_back(Action::Query { gives_up });
        }
    }
}
