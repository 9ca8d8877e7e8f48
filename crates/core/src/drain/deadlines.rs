//! Every wait has a limit.

use super::controller::{Controller, Guest};
use super::{Reason, Stage, State, Then};
use crate::Time;

impl Controller {
    /// When to call again with [`super::Event::Tick`] if nothing happens before.
    pub fn next_timer(&self) -> Option<Time> {
        self.guests.values().filter_map(|guest| self.deadline(guest)).min()
    }

    fn deadline(&self, guest: &Guest) -> Option<Time> {
        let settings = &self.settings;
        match &guest.state {
            State::Unplaced { from } => Some(*from),
            State::Placing | State::Preparing | State::Cancelling(_) => {
                Some(guest.since + settings.answer_max)
            }
            State::Copying => Some(guest.mark.1 + settings.stall_max),
            State::Prepared => {
                guest.busy.map(|(first, again)| again.max(guest.since).min(first + settings.busy_max))
            }
            State::Placed | State::Ended(_) => None,
        }
    }

    /// Ends what has waited too long.
    pub(super) fn expire(&mut self, now: Time) {
        let late = |guest: &Guest| match guest.state {
            State::Unplaced { .. } => false,
            State::Prepared => guest.busy.is_some_and(|(first, _)| first + self.settings.busy_max <= now),
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
