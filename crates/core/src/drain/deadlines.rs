//! Every wait has a limit.

use std::time::Duration;

use super::controller::{Controller, Guest};
use super::{Reason, Stage, State, Then};
use crate::Time;

/// Guests that are ordered together are placed within this time, as a rule.
const PLACED_TOGETHER: Duration = Duration::from_secs(2);

/// A guest that is not prepared within twice the time that preparing takes is late, but not before this time.
const LATE: Duration = Duration::from_secs(2);

impl Controller {
    /// When to call again with [`super::Event::Tick`] if nothing happens before. Always after the last event.
    pub fn next_timer(&self) -> Option<Time> {
        let timers = self.guests.values().flat_map(|guest| [self.deadline(guest), self.step(guest)]);
        timers.flatten().filter(|at| *at > self.now).min()
    }

    /// When something else can be done with the guest, before its deadline.
    fn step(&self, guest: &Guest) -> Option<Time> {
        match &guest.state {
            State::Placing => Some(guest.since + PLACED_TOGETHER),
            State::Preparing => Some(self.late_at(guest)),
            State::Prepared => guest.busy.map(|(_, again)| again),
            State::Copying => Some(self.gap_at(guest)),
            _ => None,
        }
    }

    /// Whether more guests will be placed in a moment. What is prepared first is chosen among all of them.
    pub(super) fn is_placing(&self, now: Time) -> bool {
        let recent = |guest: &Guest| guest.state == State::Placing && now < guest.since + PLACED_TOGETHER;
        self.guests.values().any(recent)
    }

    /// Whether the guest takes so long to be prepared that others are prepared in its place.
    pub(super) fn is_late(&self, guest: &Guest, now: Time) -> bool {
        guest.state == State::Preparing && now >= self.late_at(guest)
    }

    fn late_at(&self, guest: &Guest) -> Time {
        guest.since + LATE.max(Duration::from_secs_f64(2.0 * self.learned.prepare_s()))
    }

    fn deadline(&self, guest: &Guest) -> Option<Time> {
        let settings = &self.settings;
        match &guest.state {
            State::Unplaced { from } => Some(*from),
            State::Placing | State::Preparing | State::Cancelling(_) => {
                Some(guest.since + settings.answer_max)
            }
            State::Copying => Some(guest.mark.1 + settings.stall_max),
            State::Prepared => guest.busy.map(|(first, _)| first + settings.busy_max),
            State::Placed | State::Ended(_) => None,
        }
    }

    /// Ends what has waited too long.
    pub(super) fn expire(&mut self, now: Time) {
        let late = |guest: &Guest| match guest.state {
            State::Unplaced { .. } => false,
            _ => self.deadline(guest).is_some_and(|deadline| deadline <= now),
        };
        let late: Vec<_> = self.guests.iter().filter(|(_, guest)| late(guest)).map(|(id, _)| *id).collect();
        for id in late {
            let Some(guest) = self.guests.get(&id) else { continue };
            let host = guest.destination.map(|to| to.host);
            match (&guest.state, host) {
                (State::Placing, _) => self.place_unanswered(id, now),
                (State::Preparing, _) => self.cancel(id, Then::Retry(Reason::NoAnswer(Stage::Prepare)), now),
                (State::Copying, _) => self.cancel(id, Then::Retry(Reason::Stalled), now),
                (State::Prepared, Some(host)) => self.cancel(id, Then::Retry(Reason::Busy(host)), now),
                (State::Cancelling(_), _) => self.doubtful(id, now),
                _ => {}
            }
        }
    }
}
