//! What is shown of the drain.

use std::collections::BTreeMap;
use std::time::Instant;

use linerate_api::{
    AuditAction, AuditCaller, AuditEntry, AuditResult, DrainBound, DrainDetail, DrainGuest,
    DrainGuestState as Shown,
};
use linerate_core::drain::{Attempt, State};
use linerate_core::fleet::GuestId;
use linerate_store::fleet::records::DrainState as Stored;

use super::Owner;
use crate::audit;
use crate::drain::stored::state;
use crate::drain::{hosts, sorted};

impl Owner {
    pub(super) fn guests(&self) -> Vec<DrainGuest> {
        let states: BTreeMap<GuestId, (&State, &[Attempt])> =
            self.controller.guests().map(|(id, state, attempts)| (id, (state, attempts))).collect();
        let all = self.members.iter().zip(0..);
        all.map(|(member, n)| member.show(states.get(&GuestId(n)).copied(), &self.destinations)).collect()
    }

    /// Why there may be guests that the drain does not know. One that cannot be read may have been found here.
    pub(super) fn unseen(&self) -> Vec<String> {
        let is_found = |key: &String| self.members.iter().any(|member| member.guest.key == *key);
        let others = self.unreadable.iter().filter(|(key, _)| !is_found(key));
        self.kept.unseen.texts().into_iter().chain(others.map(|(_, one)| one.text.clone())).collect()
    }

    pub(super) fn show(&mut self) {
        self.shown = Instant::now();
        let detail = self.detail();
        *self.drain.detail.lock() = detail;
    }

    pub(super) fn detail(&mut self) -> DrainDetail {
        let now = self.clock.now();
        let guests = self.guests();
        let bound = self.controller.bound(now);
        let links = self.controller.carries();
        let left: u64 = guests
            .iter()
            .filter(|guest| !guest.state.is_over())
            .map(|guest| guest.copy_bytes.saturating_sub(guest.copied_bytes))
            .fold(0, u64::saturating_add);
        let bound_ms = |seconds: f64| (seconds * 1e3).min(1e15) as u64;
        let bound = DrainBound {
            source_ms: bound_ms(bound.source_s),
            destination_ms: bound_ms(bound.destination_s),
            guest_ms: bound_ms(bound.guest_s),
        };
        // A guest that stays leaves the bound. One that has moved does not, but after a restart of the agent.
        if bound.longest_ms() > 0 && (!self.is_again || bound.longest_ms() > self.kept.bound.longest_ms()) {
            self.kept.bound = bound;
        }
        self.kept.links_bytes_per_s = links as u64;
        for (host, rate) in self.controller.measured_takes() {
            let Some(one) = self.destinations.get(hosts::index(host)) else { continue };
            let known = self.kept.takes.entry(one.name().to_owned()).or_default();
            // Not a write for each sample.
            if (rate - *known as f64).abs() > 0.05 * rate {
                *known = rate as u64;
            }
        }
        let mut warnings: Vec<String> = self.warnings.iter().cloned().collect();
        for one in &self.destinations {
            if let Some(lost) = &one.lost {
                warnings.push(format!("{} does not answer: {lost}", one.name()));
            }
        }
        let waits = self.record.state == Stored::Running;
        for one in
            self.agent.incoming_live().iter().filter(|one| waits && !one.is_arrived() && !one.is_held())
        {
            let guest = one.guest();
            let guest = if guest.is_empty() { "a guest" } else { &guest };
            warnings.push(format!("waits for {guest}, which is arriving: see `linerate migration list`"));
        }
        DrainDetail {
            id: self.record.id.clone(),
            host: self.record.host.clone(),
            by: self.record.by.clone(),
            state: state(self.record.state),
            begun_unix_ms: self.record.begun_ms,
            ended_unix_ms: self.record.ended_ms,
            rate_bytes_per_s: guests.iter().map(|guest| guest.rate_bytes_per_s).sum(),
            guests: sorted(guests),
            links_bytes_per_s: self.kept.links_bytes_per_s,
            left_ms: (self.record.ended_ms.is_none() && links > 1.0)
                .then(|| (left as f64 / links * 1e3) as u64),
            bound: self.kept.bound,
            unseen: self.unseen(),
            split: self.kept.split.clone(),
            warnings,
        }
    }

    /// Its result in the audit log. `left`: guests that are here, or may be.
    pub(super) fn audit(&self, detail: &DrainDetail, left: usize) {
        let count = |state: Shown| {
            detail.guests.iter().filter(|guest| guest.state == state && guest.reason.is_some()).count()
        };
        let (with_fault, ended) = (count(Shown::Moved), count(Shown::Gone));
        let mut why = self.unseen();
        why.extend((ended > 0).then(|| format!("{ended} guests ended while they were moved")));
        why.extend((left > 0).then(|| format!("{left} guests are left")));
        why.extend((with_fault > 0).then(|| format!("{with_fault} guests were moved with a fault")));
        why.extend(detail.split_texts());
        let result = if why.is_empty() { AuditResult::Done } else { AuditResult::Failed };
        let reason = (!why.is_empty()).then(|| why.join("; "));
        self.agent.audit.record(AuditEntry {
            session: Some(self.record.id.clone()),
            reason,
            ..audit::entry(AuditAction::Drain, result, AuditCaller::Agent)
        });
    }
}
