//! Sessions: one guest on its way, as a few numbers.

use std::time::Duration;

use linerate_core::drain::{Event, Sample};
use linerate_core::fleet::{GuestId, HostId};
use linerate_core::{Code, Fault, Side, Step, Time};

use super::check::{Defect, Rule};
use super::flows::FlowId;
use super::world::{What, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Preparing,
    Prepared,
    Beginning,
    Copying,
    Switching,
}

/// One guest on its way.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub drain: usize,
    pub source: HostId,
    pub host: HostId,
    pub number: u64,
    /// Steps that were planned before the last change of its rate are void.
    pub version: u64,
    pub phase: Phase,
    /// Its destination is dead: nothing happens any more.
    pub dead: bool,
    flow: Option<FlowId>,
    rate: f64,
    round: u32,
    left: f64,
    dirty: f64,
    copied: f64,
    before: f64,
    last: Time,
}

impl Session {
    pub fn new(drain: usize, source: HostId, host: HostId, number: u64) -> Session {
        Session {
            drain,
            source,
            host,
            number,
            version: 0,
            phase: Phase::Preparing,
            dead: false,
            flow: None,
            rate: 0.0,
            round: 0,
            left: 0.0,
            dirty: 0.0,
            copied: 0.0,
            before: f64::INFINITY,
            last: Time::ZERO,
        }
    }
}

const NEVER: Duration = Duration::from_secs(3600);

impl World {
    /// Brings what was copied and written up to now.
    fn advance(&mut self, guest: GuestId) {
        let load = self.loads[guest.0 as usize];
        let Some(session) = self.sessions.get_mut(&guest) else { return };
        let seconds = (self.now - session.last).as_secs_f64();
        let bytes = (session.rate * seconds).min(session.left);
        session.copied += bytes;
        session.left -= bytes;
        session.dirty = (session.dirty + load.write_bytes_per_s * seconds).min(load.working_set_bytes as f64);
        session.last = self.now;
    }

    fn rates_changed(&mut self, changed: Vec<(u32, f64)>) {
        for (owner, rate) in changed {
            let guest = GuestId(owner);
            self.advance(guest);
            let Some(session) = self.sessions.get_mut(&guest) else { continue };
            session.rate = rate;
            session.version += 1;
            let (number, version) = (session.number, session.version);
            if session.phase == Phase::Copying {
                let time = if rate > 0.0 { Duration::from_secs_f64(session.left / rate) } else { NEVER };
                self.after(time + Duration::from_nanos(1), What::Step(guest, number, version));
            }
        }
    }

    /// The next step of a session.
    pub(super) fn step(&mut self, guest: GuestId, number: u64, version: u64) {
        let Some(session) = self.sessions.get_mut(&guest) else { return };
        if (session.number, session.version) != (number, version) || session.dead {
            return;
        }
        let drain = session.drain;
        match session.phase {
            Phase::Preparing => {
                session.phase = Phase::Prepared;
                if self.defect == Some(Defect::ReleasedEarly) {
                    self.ledger.release(guest);
                }
                if self.defect == Some(Defect::CopiedUnasked) {
                    let host = session.host;
                    self.order_copy_unasked(guest, host);
                }
                self.tell(drain, Event::Prepared { guest });
            }
            Phase::Prepared => {}
            Phase::Beginning => self.begin_copy(guest),
            Phase::Copying => self.round_ends(guest),
            Phase::Switching => self.arrives(guest),
        }
    }

    fn begin_copy(&mut self, guest: GuestId) {
        let load = self.loads[guest.0 as usize];
        let Some(session) = self.sessions.get_mut(&guest) else { return };
        session.phase = Phase::Copying;
        session.last = self.now;
        session.left = load.copy_bytes as f64;
        let (source, host, number) = (session.source, session.host, session.number);
        let path = self.out[source.0 as usize].iter().chain(&self.into[host.0 as usize]).copied().collect();
        let links = self.ledger.links(source, host).1;
        let (flow, changed) = self.flows.begin(guest.0, path, load.limit_bytes_per_s.min(links));
        if let Some(session) = self.sessions.get_mut(&guest) {
            session.flow = Some(flow);
        }
        self.rates_changed(changed);
        self.after(Duration::from_millis(250), What::Second(guest, number));
    }

    fn round_ends(&mut self, guest: GuestId) {
        self.advance(guest);
        let Some(session) = self.sessions.get_mut(&guest) else { return };
        let dirty = std::mem::take(&mut session.dirty);
        session.left = dirty;
        session.round += 1;
        let improves = dirty < session.before * 0.75;
        session.before = dirty;
        let seconds = dirty / session.rate.max(1.0);
        let fits = seconds + self.times.switch.as_secs_f64() <= self.times.blackout_max.as_secs_f64();
        let drain = session.drain;
        if fits && (seconds < 0.002 || !improves || session.round > 3) {
            session.phase = Phase::Switching;
            session.version += 1;
            let (number, version) = (session.number, session.version);
            self.report(guest);
            self.end_flow(guest);
            let time = self.times.switch + Duration::from_secs_f64(seconds);
            self.after(time, What::Step(guest, number, version));
        } else if session.round >= self.times.rounds_max {
            self.remove(guest);
            let fault = Fault::new(Code::NotConverging, Step::Copy, Side::Source, "");
            self.tell(drain, Event::Failed { guest, fault });
        } else {
            session.version += 1;
            let (number, version, rate) = (session.number, session.version, session.rate);
            self.after(Duration::from_secs_f64(dirty / rate.max(1.0)), What::Step(guest, number, version));
            self.report(guest);
        }
    }

    pub(super) fn second(&mut self, guest: GuestId, number: u64) {
        if self
            .sessions
            .get(&guest)
            .is_some_and(|session| session.number == number && session.phase == Phase::Copying)
        {
            self.advance(guest);
            self.report(guest);
            self.after(Duration::from_secs(1), What::Second(guest, number));
        }
    }

    fn report(&mut self, guest: GuestId) {
        let load = self.loads[guest.0 as usize];
        let Some(session) = self.sessions.get(&guest).filter(|session| !session.dead) else { return };
        let sample = Sample {
            round: session.round,
            copied_bytes: session.copied as u64,
            left_bytes: (session.left + session.dirty) as u64,
            bytes_per_s: session.rate,
            write_bytes_per_s: Some(load.write_bytes_per_s),
        };
        self.tell(session.drain, Event::Progress { guest, sample });
    }

    fn end_flow(&mut self, guest: GuestId) {
        let flow = self.sessions.get_mut(&guest).and_then(|session| session.flow.take());
        if let Some(flow) = flow {
            let changed = self.flows.end(flow);
            self.rates_changed(changed);
        }
    }

    fn arrives(&mut self, guest: GuestId) {
        let Some(session) = self.sessions.get(&guest) else { return };
        let (drain, source, host) = (session.drain, session.source, session.host);
        if self.ledger.reserved_at(guest) != Some(host) {
            self.broken(Rule::Admitted, Some(guest), Some(host), "a guest arrives without a reservation");
        }
        if self.drains[drain].kept.contains(&guest) {
            self.broken(Rule::Kept, Some(guest), Some(host), "a guest arrives that the operator keeps");
        }
        let bytes = self.ledger.memory_of(guest);
        self.remove(guest);
        self.memory[source.0 as usize].0 -= bytes;
        self.memory[host.0 as usize].0 += bytes;
        self.ledger.arrived(guest);
        if self.defect != Some(Defect::MovedNotReported) {
            self.tell(drain, Event::Moved { guest });
        }
        // It was under way when the drain of its destination began.
        let other = self.running.iter().copied().find(|number| self.drains[*number].source == host);
        if let Some(other) = other {
            let start = self.start(guest, false);
            self.tell(other, Event::Added(start));
        }
    }

    /// Takes a session away, with its incoming QEMU.
    pub(super) fn remove(&mut self, guest: GuestId) -> Option<Session> {
        self.end_flow(guest);
        let session = self.sessions.remove(&guest)?;
        if !session.dead {
            self.memory[session.host.0 as usize].0 -= self.ledger.memory_of(guest);
        }
        if !matches!(session.phase, Phase::Preparing | Phase::Prepared) {
            self.arrivals[session.host.0 as usize] -= 1;
        }
        Some(session)
    }

    pub(super) fn cancelled(&mut self, guest: GuestId, number: u64) {
        let Some(session) = self.sessions.get(&guest).filter(|session| session.number == number) else {
            return;
        };
        let drain = session.drain;
        if self.defect != Some(Defect::CancelLies) {
            self.remove(guest);
        }
        self.tell(drain, Event::Cancelled { guest });
    }

    pub(super) fn fails(&mut self, guest: GuestId) {
        let Some(session) = self.remove(guest) else { return };
        let fault = Fault::new(Code::PeerLost, Step::Copy, Side::Source, "");
        self.tell(session.drain, Event::Failed { guest, fault });
    }

    pub(super) fn dies(&mut self, host: HostId) {
        self.dead.insert(host);
        let lost: Vec<GuestId> = self.ledger.guests_on(host).collect();
        for guest in lost {
            let session = self.remove(guest);
            self.memory[host.0 as usize].0 -= self.ledger.memory_of(guest);
            self.ledger.ended(guest);
            let drain = session.map(|session| session.drain);
            let by_source =
                || self.running.iter().copied().find(|number| self.drains[*number].source == host);
            if let Some(drain) = drain.or_else(by_source) {
                self.tell(drain, Event::Gone { guest });
            }
        }
        let there = |session: &Session| session.host == host;
        let stuck: Vec<GuestId> =
            self.sessions.iter().filter(|(_, session)| there(session)).map(|(guest, _)| *guest).collect();
        for guest in stuck {
            self.end_flow(guest);
            self.memory[host.0 as usize].0 -= self.ledger.memory_of(guest);
            if let Some(session) = self.sessions.get_mut(&guest) {
                session.dead = true;
                session.version += 1;
            }
        }
        self.after(self.times.notice, What::DeathKnown(host));
    }

    pub(super) fn death_known(&mut self, host: HostId) {
        self.ledger.lose(host, true);
        if self.defect == Some(Defect::LossBlamedOnGuest) {
            let stuck: Vec<(GuestId, usize)> = self
                .sessions
                .iter()
                .filter(|(_, session)| session.dead)
                .map(|(guest, session)| (*guest, session.drain))
                .collect();
            for (guest, drain) in stuck {
                self.remove(guest);
                let fault = Fault::new(Code::NotMigratable, Step::Copy, Side::Source, "");
                self.tell(drain, Event::Failed { guest, fault });
            }
        }
        for number in self.running.clone() {
            self.tell(number, Event::HostLost(host));
        }
    }

    pub(super) fn returns(&mut self, host: HostId) {
        self.dead.remove(&host);
        self.ledger.lose(host, false);
        for number in self.running.clone() {
            self.tell(number, Event::HostFound(host));
        }
    }
}
