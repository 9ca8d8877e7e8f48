//! The driver: what a drain orders, and its answers.

use std::collections::BTreeMap;
use std::time::Duration;

use linerate_core::drain::Event;
use linerate_core::fleet::placement::Nowhere;
use linerate_core::fleet::{DrainId, GuestId, HostId, Request};

use super::check::{Defect, Rule};
use super::sessions::{Phase, Session};
use super::world::{What, World};

impl World {
    fn check_quiet(&mut self, number: usize, guest: GuestId) {
        let drain = &self.drains[number];
        if drain.quiet || drain.aborted || !self.store {
            self.broken(Rule::Quiet, Some(guest), None, "started while paused, aborted or without a store");
        }
    }

    pub(super) fn order_place(&mut self, number: usize, guests: Vec<(GuestId, Vec<HostId>)>) {
        self.drains[number].placing.extend(guests.iter().map(|(guest, _)| *guest));
        self.after(self.times.store, What::Place(number, guests));
    }

    pub(super) fn place(&mut self, number: usize, guests: Vec<(GuestId, Vec<HostId>)>) {
        if !self.store {
            return self.after(Duration::from_secs(1), What::Place(number, guests));
        }
        let asked: Vec<_> =
            guests.into_iter().filter(|(guest, _)| self.drains[number].placing.contains(guest)).collect();
        let request = Request {
            guests: asked.iter().map(|(guest, _)| *guest).collect(),
            only: None,
            avoid: asked
                .into_iter()
                .map(|(guest, avoid)| (guest, avoid.into_iter().collect()))
                .collect::<BTreeMap<_, _>>(),
        };
        let source = self.drains[number].source;
        for (guest, found) in self.ledger.place(&request) {
            self.drains[number].placing.remove(&guest);
            let event = match found {
                Ok(host) => self.reserve(number, guest, source, host),
                Err(why) => Event::NoPlace { guest, why },
            };
            self.tell(number, event);
        }
    }

    fn reserve(&mut self, number: usize, guest: GuestId, source: HostId, host: HostId) -> Event {
        if self.cordoned.contains(&host) {
            self.broken(Rule::Cordon, Some(guest), Some(host), "memory is reserved on a cordoned host");
        }
        let reserves = self.defect != Some(Defect::NotReserved);
        if reserves && self.ledger.reserve(DrainId(number as u32), guest, host).is_err() {
            return Event::NoPlace { guest, why: Nowhere::default() };
        }
        let (ports, bytes_per_s) = self.ledger.links(source, host);
        Event::Placed { guest, host, ports, bytes_per_s }
    }

    pub(super) fn order_release(&mut self, number: usize, guest: GuestId) {
        self.drains[number].placing.remove(&guest);
        if self.defect != Some(Defect::ReleaseLost) {
            self.ledger.release(guest);
        }
    }

    pub(super) fn order_prepare(&mut self, number: usize, guest: GuestId, host: HostId) {
        self.check_quiet(number, guest);
        if self.sessions.contains_key(&guest) {
            return self.broken(Rule::OneSession, Some(guest), Some(host), "a second session begins");
        }
        self.events += 1;
        let session_number = self.events;
        self.sessions.insert(guest, Session::new(number, self.drains[number].source, host, session_number));
        let (used, cap) = &mut self.memory[host.0 as usize];
        *used += self.ledger.memory_of(guest);
        if *used > *cap {
            self.broken(Rule::MemoryCap, Some(guest), Some(host), "an incoming QEMU does not fit");
        }
        if self.dead.contains(&host) {
            // Known in a moment; until then nothing answers.
            self.memory[host.0 as usize].0 -= self.ledger.memory_of(guest);
            if let Some(session) = self.sessions.get_mut(&guest) {
                session.dead = true;
            }
            return;
        }
        let (low, high) = self.times.prepare_ms;
        let time = self.random.micros(low * 1000, high * 1000);
        self.after(time, What::Step(guest, session_number, 0));
    }

    pub(super) fn order_copy(&mut self, number: usize, guest: GuestId, host: HostId, ports: u64) {
        self.check_quiet(number, guest);
        let reserved = self.ledger.reserved_at(guest);
        let Some(session) = self.sessions.get_mut(&guest).filter(|session| session.host == host) else {
            return self.broken(Rule::Admitted, Some(guest), Some(host), "copied without a session");
        };
        if session.dead {
            return;
        }
        if session.phase != Phase::Prepared || ports == 0 {
            return self.broken(Rule::Admitted, Some(guest), Some(host), "copied before it was prepared");
        }
        if reserved != Some(host) {
            self.broken(Rule::Admitted, Some(guest), Some(host), "copied without a reservation");
        }
        if self.arrivals[host.0 as usize] >= self.times.arrivals_max {
            return self.after(Duration::from_millis(10), What::Tell(number, Event::Busy { guest }));
        }
        let Some(session) = self.sessions.get_mut(&guest) else { return };
        session.phase = Phase::Beginning;
        session.version += 1;
        self.arrivals[host.0 as usize] += 1;
        let (session_number, version) = (session.number, session.version);
        self.after(self.times.begin, What::Step(guest, session_number, version));
    }

    /// A defect: the driver copies by itself.
    pub(super) fn order_copy_unasked(&mut self, guest: GuestId, host: HostId) {
        let Some(session) = self.sessions.get_mut(&guest) else { return };
        session.phase = Phase::Beginning;
        session.version += 1;
        self.arrivals[host.0 as usize] += 1;
        let (number, version) = (session.number, session.version);
        self.after(self.times.begin, What::Step(guest, number, version));
    }

    pub(super) fn order_cancel(&mut self, _number: usize, guest: GuestId) {
        let Some(session) = self.sessions.get(&guest) else { return };
        let number = session.number;
        self.after(Duration::from_millis(100), What::Cancel(guest, number));
    }
}
