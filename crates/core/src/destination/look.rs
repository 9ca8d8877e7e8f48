//! The last look at a guest that was let run: whether it still does. Nothing but the source's report waits for it.

use std::time::Duration;

use super::{Action, Destination, State};
use crate::{LastLook, Message, Time};

/// A guest whose disk fails, or whose virtual CPU cannot go on, has mostly stopped within this.
const LOOK_AFTER: Duration = Duration::from_millis(300);
/// Once the source has finished, the look and its acknowledgement are waited for no longer than this. The source itself
/// waits for less.
const REPORTED_WITHIN: Duration = Duration::from_secs(2);

/// Where the last look is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Look {
    /// The guest does not run here yet.
    #[default]
    NotDue,
    DueAt(Time),
    InProgress,
    Reported,
}

impl Destination {
    /// The guest was taken over. One that is not to run cannot stop by itself.
    pub(super) fn plan_look(&mut self, now: Time) {
        match self.was_running.unwrap_or(true) {
            true => self.look = Look::DueAt(now + LOOK_AFTER),
            false => self.looked(now, LastLook::NothingWrong),
        }
    }

    /// When the guest is to be looked at.
    pub(super) fn looks_at(&self) -> Option<Time> {
        match self.look {
            Look::DueAt(at) => Some(at),
            Look::NotDue | Look::InProgress | Look::Reported => None,
        }
    }

    pub(super) fn begin_look(&mut self) {
        self.look = Look::InProgress;
        self.actions.push_back(Action::Look);
    }

    /// The source learns what was seen.
    pub(super) fn looked(&mut self, now: Time, seen: LastLook) {
        self.look = Look::Reported;
        self.control.send(now, Message::LastLook(seen));
    }

    /// The source has ended its copy, and waits for what was seen.
    pub(super) fn source_finished(&mut self, now: Time) {
        if let State::Running { until } = &mut self.state {
            *until = (*until).min(now + REPORTED_WITHIN);
            self.is_source_finished = true;
        }
    }

    /// Nobody waits for the session any more.
    pub(super) fn finish_when_reported(&mut self) {
        let has_arrived = self.look == Look::Reported && self.control.unacknowledged() == 0;
        let is_over = self.is_source_finished && (has_arrived || self.control.paths() == 0);
        if is_over && matches!(self.state, State::Running { .. }) {
            self.finished();
        }
    }
}
