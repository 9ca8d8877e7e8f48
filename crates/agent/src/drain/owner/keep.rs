//! The drain in the store: written, owned again after a lease, waited for, given up.

use std::time::Instant;

use linerate_core::drain::{Event, State};
use linerate_store::fleet::FleetError;
use linerate_store::fleet::records::DrainState as Stored;

use super::{Owner, STORE_AGAIN};

impl Owner {
    pub(super) fn store_failed(&mut self, why: String) {
        // What another host has ended is not written any more.
        if self.away.is_none() && self.disowned.is_none() {
            tracing::error!(drain = self.record.id, why, "the store does not answer: nothing new is started");
            self.away = Some(Instant::now());
            self.warnings.insert(format!("the store does not answer, and nothing new is started: {why}"));
            self.handle(Event::Store(false));
        }
    }

    /// Whether the lease still lives with which this agent owns the drain: without it nothing new is started.
    pub(super) fn look_at_lease(&mut self) {
        if self.away.is_none() && self.disowned.is_none() && !self.fleet.owns(&self.ownership) {
            self.store_failed("the lease with which this agent owns the drain has ended".into());
        }
    }

    /// Writes how far the drain is, if that has changed. Orders that the store has are answered.
    pub(super) fn save(&mut self) {
        self.save_changes();
        if self.away.is_none() {
            for answer in self.steered.drain(..) {
                // Whoever asked may have gone.
                let _ = answer.send(());
            }
        }
    }

    fn save_changes(&mut self) {
        let guests = self.guests().into_iter().map(|mut guest| {
            // No progress figures.
            (guest.copied_bytes, guest.rate_bytes_per_s, guest.write_rate_bytes_per_s) = (0, 0, 0);
            (guest.uuid.clone(), serde_json::to_value(&guest).unwrap_or_default())
        });
        let unreadable = self.unreadable.iter().map(|(key, one)| (key.clone(), one.value.clone()));
        self.record.guests = unreadable.chain(guests).collect();
        let began = self.members.iter().filter(|member| member.began);
        self.kept.began = Some(began.map(|member| member.guest.key.clone()).collect());
        self.record.settings = serde_json::to_value(&self.kept).unwrap_or_default();
        if self.saved.as_ref() == Some(&self.record) && self.away.is_none() {
            return;
        }
        if self.away.is_some_and(|since| since.elapsed() < STORE_AGAIN) {
            return;
        }
        if self.disowned.is_some() {
            return;
        }
        match self.write() {
            Ok(()) => {
                self.saved = Some(self.record.clone());
                if self.away.take().is_some() {
                    tracing::info!(drain = self.record.id, "the store answers again");
                    self.warnings.retain(|text| !text.starts_with("the store does not answer"));
                    self.catch_up();
                }
            }
            Err(error @ (FleetError::Owned { .. } | FleetError::HasEnded(_) | FleetError::NoDrain(_))) => {
                self.disown(&error)
            }
            Err(error) => {
                let known = self.away.is_some();
                self.store_failed(error.to_string());
                if known {
                    self.away = Some(Instant::now());
                }
            }
        }
    }

    /// Writes the record. Ownership that ended with a lease is taken again first, unless another agent has the drain.
    fn write(&mut self) -> Result<(), FleetError> {
        // A result whose answer was lost.
        if self.record.state == Stored::Ended
            && self.fleet.drain(&self.record.id)?.as_ref() == Some(&self.record)
        {
            return Ok(());
        }
        if self.fleet.owns(&self.ownership) {
            match self.fleet.update(&self.ownership, &self.record) {
                Err(FleetError::NotOwner(_)) => {}
                written => return written,
            }
        }
        let (ownership, _) = self.fleet.take_over(&self.record.id)?;
        tracing::info!(drain = self.record.id, "owned again, with another lease");
        self.ownership = ownership;
        self.fleet.update(&self.ownership, &self.record)
    }

    /// Another agent took this host for lost, and has ended the drain, or is about to. What runs is cancelled.
    fn disown(&mut self, error: &FleetError) {
        let why = format!("another host took this one for lost and ended the drain: {error}");
        tracing::error!(drain = self.record.id, why, "the drain is aborted");
        self.warnings.retain(|text| !text.starts_with("the store does not answer"));
        self.warnings.insert(why.clone());
        (self.disowned, self.away) = (Some(why), None);
        self.record.state = Stored::Aborting;
        self.handle(Event::Abort);
    }

    /// What could not be done while the store was away is done now.
    pub(super) fn catch_up(&mut self) {
        for id in std::mem::take(&mut self.not_released) {
            self.give_reservation_up(id);
        }
        if self.away.is_some() {
            return;
        }
        let mut wanted = std::mem::take(&mut self.not_placed);
        let waits =
            |id| self.controller.guests().any(|(guest, state, _)| guest == id && *state == State::Placing);
        wanted.retain(|(id, _)| waits(*id));
        if !wanted.is_empty() {
            self.place(wanted);
        }
        self.handle(Event::Store(true));
    }
}
