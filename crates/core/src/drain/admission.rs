//! Which guest copies next, and which are prepared for it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::controller::{Controller, Destination, Guest};
use super::learned::{Copy, MEASURED_AFTER, REACHES};
use super::{Order, Sample, State};
use crate::Time;
use crate::fleet::{GuestId, HostId};

/// Another guest copies if at least this part of what the links carry is not used.
const SPARE: f64 = 0.1;
/// It must be able to use this part of them.
const USES: f64 = 0.05;
/// The next guest begins so much before the gap, in seconds: two guests share the links for a moment, which costs less.
const OVERLAP_S: f64 = 0.03;
/// If the first pass of a guest lasts so many times longer than it would alone, much was written meanwhile. That is not
/// known before the pass ends.
const SHARED: f64 = 1.4;
/// Guests are prepared ahead for this many times the time that preparing takes.
const AHEAD: f64 = 1.5;
/// Before one was prepared, as many at a time at each destination: more hypervisors that start there at once delay the
/// first of them.
const FIRST: usize = 2;
/// Before any goodput was measured, a guest is taken to use so many bytes per second: 16 Gb/s. One that is prepared too
/// early only waits; fast links stay empty for as long as preparing takes if too few are.
const ASSUMED: f64 = 2e9;

/// A guest that could be copied.
struct Candidate {
    id: GuestId,
    to: Destination,
    alone: bool,
    seconds: f64,
}

impl Controller {
    /// What a guest can be copied at if nothing else is copied.
    pub(super) fn reaches(&self, guest: &Guest, now: Time) -> f64 {
        let links = guest.destination.map_or(f64::INFINITY, |to| {
            self.learned.takes(to.host, to.bytes_per_s, now).min(self.learned.of_ports(to.ports))
        });
        let limit = guest.limit_bytes_per_s.or(self.learned.guest_limit).unwrap_or(f64::INFINITY);
        links.min(limit).min(self.learned.carries(now)).max(1.0)
    }

    /// Whether others would slow it down so much that it might not converge.
    fn is_alone(&self, guest: &Guest, now: Time) -> bool {
        let rate = self.reaches(guest, now);
        let shares = rate > 0.5 * self.learned.carries(now);
        shares && guest.write_bytes_per_s > self.settings.alone_share * rate
    }

    fn seconds(&self, guest: &Guest, now: Time) -> f64 {
        let rate = self.reaches(guest, now);
        guest.copy_bytes as f64 / (rate - guest.write_bytes_per_s).max(0.1 * rate)
    }

    /// When a guest that copies has nothing left to send, less the time that the next guest needs to begin.
    pub(super) fn gap_at(&self, guest: &Guest) -> Time {
        let (left, from, rate) = match guest.sample {
            Some(sample) => (sample.left_bytes, guest.sampled_at, sample.bytes_per_s),
            None => (guest.copy_bytes, guest.since, self.reaches(guest, guest.since)),
        };
        // The order of the guest itself took as long to begin as that of the next one will.
        let begin_s = if guest.sample.is_some() { self.learned.begin_s } else { 0.0 };
        // What it writes meanwhile is sent too.
        let falls = (rate - guest.write_bytes_per_s).max(0.1 * rate).max(1.0);
        let seconds = left as f64 / falls - begin_s - OVERLAP_S;
        from + Duration::from_secs_f64(seconds.clamp(0.0, 1e6))
    }

    /// Whether much may have been written that no sample has shown yet: the first pass takes far longer than it would
    /// alone.
    fn writes_unseen(&self, guest: &Guest, now: Time) -> bool {
        let unknown =
            guest.sample.is_none_or(|sample| sample.round == 0 && sample.write_bytes_per_s.is_none());
        let alone_s = guest.copy_bytes as f64 / self.reaches(guest, now);
        unknown && (now - guest.since).as_secs_f64() > SHARED * alone_s
    }

    /// Guests that copy, with what they use.
    pub(super) fn copies(&self, now: Time) -> Vec<Copy> {
        let copying = self.guests.iter().filter(|(_, guest)| guest.state == State::Copying && !guest.left);
        copying
            .filter_map(|(id, guest)| {
                let reaches = self.reaches(guest, now);
                // One that has all that it can be copied at is not faster with what another one had.
                let has_all = guest.sample.is_some_and(|sample| sample.bytes_per_s >= REACHES * reaches);
                let since = guest.freed_at.filter(|_| !has_all).unwrap_or(guest.since);
                let new = |_: &Sample| {
                    now - since >= MEASURED_AFTER && guest.sampled_at >= since + MEASURED_AFTER / 2
                };
                let measured = guest.sample.filter(new);
                let known = guest.sample.is_some() || self.learned.has_measured;
                let finishing = known && !self.writes_unseen(guest, now) && self.gap_at(guest) <= now;
                Some(Copy {
                    guest: *id,
                    host: guest.destination?.host,
                    since: guest.since,
                    bytes_per_s: measured.map_or(reaches, |sample| sample.bytes_per_s),
                    finishing,
                    measured: measured.is_some(),
                })
            })
            .collect()
    }

    /// A copy ends. If it had a part of full links, the others get it; what was measured of them before is too little.
    pub(super) fn free_links_of(&mut self, id: GuestId, now: Time) {
        let copies = self.copies(now);
        let Some(ends) = copies.iter().find(|copy| copy.guest == id) else { return };
        if self.learned.proven(now) >= copies.len() {
            return;
        }
        let sum = |of: &dyn Fn(&&Copy) -> bool| -> f64 {
            copies.iter().filter(of).map(|copy| copy.bytes_per_s).sum()
        };
        let at = |guest: &Guest| guest.destination.filter(|to| to.host == ends.host);
        let takes = self
            .guests
            .get(&id)
            .and_then(at)
            .map_or(f64::INFINITY, |to| self.learned.takes(to.host, to.bytes_per_s, now));
        let links_full = sum(&|_| true) >= REACHES * self.learned.carries(now);
        let host_full = sum(&|copy| copy.host == ends.host) >= REACHES * takes;
        for copy in copies.iter().filter(|copy| copy.guest != id) {
            if let Some(guest) = self.guests.get_mut(&copy.guest)
                && (links_full || (host_full && copy.host == ends.host))
            {
                guest.freed_at = Some(now);
            }
        }
    }

    /// Lets guests copy, while the links carry more.
    pub(super) fn admit(&mut self, now: Time) {
        while let Some((id, to)) = self.next_copy(now) {
            let copies = self.copies(now);
            self.learned.begun(id, to.host, &copies);
            self.set(id, State::Copying, now);
            if let Some(guest) = self.guests.get_mut(&id) {
                (guest.sample, guest.mark) = (None, (0, now));
            }
            self.orders.push(Order::Copy { guest: id, host: to.host, ports: to.ports });
        }
    }

    fn next_copy(&self, now: Time) -> Option<(GuestId, Destination)> {
        let copies = self.copies(now);
        let alone = |copy: &Copy| {
            let guest = self.guests.get(&copy.guest).filter(|_| !copy.finishing);
            guest.is_some_and(|guest| self.is_alone(guest, now))
        };
        if copies.len() >= self.settings.copies_max || copies.iter().any(alone) {
            return None;
        }
        let ready = |guest: &Guest| {
            guest.state == State::Prepared && guest.busy.is_none_or(|(_, again)| again <= now)
        };
        let first = self.candidates(ready, now).into_iter().find(|candidate| {
            copies.is_empty() || (!candidate.alone && self.helps(candidate, &copies, now))
        })?;
        Some((first.id, first.to))
    }

    /// Whether one more copy is carried without taking from the others. Those that are nearly done count as done.
    fn helps(&self, candidate: &Candidate, copies: &[Copy], now: Time) -> bool {
        let carries = self.learned.carries(now);
        let going: Vec<&Copy> = copies.iter().filter(|copy| !copy.finishing).collect();
        let spare = carries - going.iter().map(|copy| copy.bytes_per_s).sum::<f64>();
        let there: f64 =
            going.iter().filter(|copy| copy.host == candidate.to.host).map(|copy| copy.bytes_per_s).sum();
        let takes = self.learned.takes(candidate.to.host, candidate.to.bytes_per_s, now);
        let uses = (takes - there).min(self.ports_spare(candidate.to.ports, &going));
        let fits = spare >= SPARE * carries && uses >= USES * carries;
        going.is_empty() || (fits && self.learned.may_begin(copies, now))
    }

    /// What the ports of the mask still carry. A copy uses its ports in proportion to what they carry.
    fn ports_spare(&self, mask: u64, copies: &[&Copy]) -> f64 {
        let mut ports = self.learned.ports.clone();
        for copy in copies {
            let Some(to) = self.guests.get(&copy.guest).and_then(|guest| guest.destination) else { continue };
            let part = copy.bytes_per_s / self.learned.of_ports(to.ports).max(1.0);
            let used = ports.iter_mut().zip(&self.learned.ports).enumerate();
            used.filter(|(n, _)| *n < 64 && to.ports >> n & 1 == 1)
                .for_each(|(_, (left, all))| *left -= part * all);
        }
        let of_mask = ports.iter().take(64).enumerate().filter(|(n, _)| mask >> n & 1 == 1);
        of_mask.map(|(_, left)| left.max(0.0)).sum()
    }

    /// Guests in a state, the next first: those that copy alone; then those to a destination that takes longer than the
    /// source needs for all; then the longest.
    fn candidates(&self, which: impl Fn(&Guest) -> bool, now: Time) -> Vec<Candidate> {
        let mut at: BTreeMap<HostId, f64> = BTreeMap::new();
        let mut source_s = 0.0;
        let waiting =
            |guest: &&Guest| matches!(guest.state, State::Placed | State::Preparing | State::Prepared);
        for guest in self.guests.values().filter(waiting) {
            let Some(to) = guest.destination else { continue };
            let takes = self.learned.takes(to.host, to.bytes_per_s, now).max(1.0);
            *at.entry(to.host).or_default() += guest.copy_bytes as f64 / takes;
            source_s += guest.copy_bytes as f64 / self.learned.carries(now);
        }
        let mut candidates: Vec<Candidate> = self
            .guests
            .iter()
            .filter(|(_, guest)| which(guest))
            .filter_map(|(id, guest)| {
                let (alone, seconds) = (self.is_alone(guest, now), self.seconds(guest, now));
                Some(Candidate { id: *id, to: guest.destination?, alone, seconds })
            })
            .collect();
        let critical = |candidate: &Candidate| {
            let needs = at.get(&candidate.to.host).copied().unwrap_or(0.0);
            if needs > source_s { needs } else { 0.0 }
        };
        candidates.sort_by(|a, b| {
            let order = b.alone.cmp(&a.alone).then(critical(b).total_cmp(&critical(a)));
            order.then(b.seconds.total_cmp(&a.seconds)).then(a.id.cmp(&b.id))
        });
        candidates
    }

    /// Prepares guests, so that one is ready whenever the links have room.
    pub(super) fn prepare(&mut self, now: Time) {
        while let Some((id, host)) = self.next_prepared(now) {
            self.set(id, State::Preparing, now);
            self.orders.push(Order::Prepare { guest: id, host });
        }
    }

    fn next_prepared(&self, now: Time) -> Option<(GuestId, HostId)> {
        let is_ahead = |guest: &&Guest| matches!(guest.state, State::Preparing | State::Prepared);
        let ahead: Vec<&Guest> = self.guests.values().filter(is_ahead).collect();
        if ahead.len() >= self.settings.prepared_max || self.is_placing(now) {
            return None;
        }
        let mut at: BTreeMap<HostId, f64> = BTreeMap::new();
        for guest in &ahead {
            let Some(to) = guest.destination else { continue };
            let reaches = self.reaches(guest, now);
            let uses = if self.learned.has_measured { reaches } else { reaches.min(ASSUMED) };
            *at.entry(to.host).or_default() += uses;
        }
        let full =
            |to: &Destination, used: f64| used >= 0.9 * self.learned.takes(to.host, to.bytes_per_s, now);
        let carries = self.learned.carries(now);
        // A guest that takes long to prepare may never be ready: it does not keep others from being prepared.
        let in_time: Vec<&&Guest> = ahead.iter().filter(|guest| !self.is_late(guest, now)).collect();
        let bytes: u64 = in_time.iter().map(|guest| guest.copy_bytes).sum();
        let used: f64 = in_time
            .iter()
            .filter_map(|guest| guest.destination)
            .map(|to| (to.host, to))
            .collect::<BTreeMap<_, _>>()
            .values()
            .map(|to| at.get(&to.host).copied().unwrap_or(0.0).min(to.bytes_per_s))
            .sum();
        let enough = !in_time.is_empty()
            && bytes as f64 >= carries * self.learned.prepare_s() * AHEAD
            && used >= (1.0 - SPARE) * carries;
        if enough {
            return None;
        }
        let mut candidates = self.candidates(|guest| guest.state == State::Placed, now);
        if !self.learned.has_prepared() {
            let hosts: Vec<HostId> =
                in_time.iter().filter_map(|guest| Some(guest.destination?.host)).collect();
            let there = |host: HostId| hosts.iter().filter(|other| **other == host).count();
            candidates.retain(|candidate| there(candidate.to.host) < FIRST);
        }
        let other = |candidate: &&Candidate| {
            at.get(&candidate.to.host).is_none_or(|used| !full(&candidate.to, *used))
        };
        let next = candidates.iter().find(other).or(candidates.first())?;
        Some((next.id, next.to.host))
    }
}
