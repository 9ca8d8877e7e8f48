//! The controller: events in, orders out.

use std::collections::{BTreeMap, BTreeSet};

use super::bound::{Bound, Work};
use super::learned::Learned;
use super::reason::may_pass;
use super::{Attempt, Event, Order, Outcome, Reason, Sample, Settings, Stage, Start, State, Then};
use crate::fleet::placement::Nowhere;
use crate::fleet::{GroupId, GuestId, HostId, Obstacle};
use crate::{Code, Fault, Side, Time};

/// Where a guest goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Destination {
    pub host: HostId,
    pub ports: u64,
    pub bytes_per_s: f64,
}

/// A guest of the drain.
#[derive(Clone, Debug)]
pub(super) struct Guest {
    pub state: State,
    /// When the state began.
    pub since: Time,
    pub destination: Option<Destination>,
    pub copy_bytes: u64,
    pub memory_bytes: u64,
    pub write_bytes_per_s: f64,
    pub limit_bytes_per_s: Option<f64>,
    pub sample: Option<Sample>,
    pub sampled_at: Time,
    /// Another copy ended then that had a part of full links: this one is faster since.
    pub freed_at: Option<Time>,
    /// Its migration uses no link any more.
    pub left: bool,
    /// Copied bytes at a time: to notice a stall.
    pub mark: (u64, Time),
    /// First refusal of a busy destination, and when to ask again.
    pub busy: Option<(Time, Time)>,
    pub tries: u32,
    pub placements: u32,
    /// Hosts where a try failed that another one may not.
    pub avoid: BTreeSet<HostId>,
    /// Hosts that lack what it needs: no retry there can help.
    pub never: BTreeSet<HostId>,
    pub attempts: Vec<Attempt>,
}

impl Guest {
    fn new(start: &Start, now: Time) -> Guest {
        Guest {
            state: if start.keep { State::Ended(Outcome::Kept) } else { State::Unplaced { from: now } },
            since: now,
            destination: None,
            copy_bytes: start.copy_bytes.max(1),
            memory_bytes: start.memory_bytes.max(start.copy_bytes),
            write_bytes_per_s: start.write_bytes_per_s.max(0.0),
            limit_bytes_per_s: start.limit_bytes_per_s,
            sample: None,
            sampled_at: now,
            freed_at: None,
            left: false,
            mark: (0, now),
            busy: None,
            tries: 0,
            placements: 0,
            avoid: BTreeSet::new(),
            never: BTreeSet::new(),
            attempts: Vec::new(),
        }
    }
}

/// One drain. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Controller {
    pub(super) settings: Settings,
    pub(super) guests: BTreeMap<GuestId, Guest>,
    pub(super) learned: Learned,
    pub(super) lost: BTreeSet<HostId>,
    /// Guests that must be on one host, by their groups.
    pub(super) groups: BTreeMap<GuestId, GroupId>,
    pub(super) orders: Vec<Order>,
    /// The time of the last event.
    pub(super) now: Time,
    paused: bool,
    aborted: bool,
    store: bool,
}

impl Controller {
    /// A drain of these guests. `ports` is what each port of the source carries, in bytes per second.
    pub fn new(settings: Settings, ports: Vec<f64>, guests: &[Start], now: Time) -> Controller {
        let limits = guests.iter().filter_map(|start| start.limit_bytes_per_s);
        Controller {
            settings,
            guests: guests.iter().map(|start| (start.guest, Guest::new(start, now))).collect(),
            learned: Learned::new(ports, limits.reduce(f64::max)),
            lost: BTreeSet::new(),
            groups: BTreeMap::new(),
            orders: Vec::new(),
            now,
            paused: false,
            aborted: false,
            store: true,
        }
    }

    /// Takes an event and returns what is to be done. Time never goes back. Events that do not fit a guest's state are
    /// late answers and change nothing, but that reservations made meanwhile are given up.
    pub fn handle(&mut self, now: Time, event: Event) -> Vec<Order> {
        self.now = now;
        match event {
            Event::Tick => {}
            Event::Pause => self.paused = true,
            Event::Resume => self.paused = false,
            Event::Store(answers) => self.store = answers,
            Event::Abort => self.abort(now),
            Event::Ports(ports) => self.learned.changed(ports),
            Event::HostLost(host) => self.leave_host(host, &Reason::HostLost(host), now),
            Event::HostDrained(host) => self.leave_host(host, &Reason::HostDrained(host), now),
            Event::HostFound(host) => drop(self.lost.remove(&host)),
            Event::Added(start) => self.added(&start, now),
            Event::Placed { guest, host, ports, bytes_per_s } => {
                self.placed(guest, Destination { host, ports, bytes_per_s }, now);
            }
            Event::NoPlace { guest, why } => self.no_place(guest, why, now),
            Event::Prepared { guest } => self.prepared(guest, now),
            Event::Busy { guest } => self.busy(guest, now),
            Event::Held { guest } => self.held(guest, now),
            Event::Progress { guest, sample } => self.progress(guest, sample, now),
            Event::Left { guest } => self.left(guest, now),
            Event::Moved { guest } => self.moved(guest, now),
            Event::Failed { guest, fault } => self.failed(guest, fault, now),
            Event::Cancelled { guest } => self.cancelled(guest, now),
            Event::Gone { guest } => self.gone(guest, now),
            Event::Taken { guest } => self.taken(guest, now),
            Event::Again(guests) => guests.into_iter().for_each(|guest| self.again(guest, now)),
        }
        self.expire(now);
        if !self.paused && !self.aborted && self.store {
            self.order_places(now);
            self.admit(now);
            self.prepare(now);
        }
        std::mem::take(&mut self.orders)
    }

    /// The limits that it keeps.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether every guest's part is over.
    pub fn is_over(&self) -> bool {
        self.guests.values().all(|guest| matches!(guest.state, State::Ended(_)))
    }

    /// What each guest does, and its tries that did not succeed.
    pub fn guests(&self) -> impl Iterator<Item = (GuestId, &State, &[Attempt])> {
        self.guests.iter().map(|(id, guest)| (*id, &guest.state, guest.attempts.as_slice()))
    }

    /// The lower bound of the guests that have a destination, by what was measured last.
    pub fn bound(&self, now: Time) -> Bound {
        let mut rates: BTreeMap<HostId, f64> = BTreeMap::new();
        let work: Vec<Work> = self
            .guests
            .values()
            .filter_map(|guest| {
                let to = guest.destination?;
                rates.insert(to.host, self.learned.last(to.host, to.bytes_per_s).1);
                let (copy_bytes, write_bytes_per_s) = (guest.copy_bytes, guest.write_bytes_per_s);
                let bytes_per_s = self.reaches(guest, now);
                Some(Work { copy_bytes, write_bytes_per_s, bytes_per_s, host: to.host })
            })
            .collect();
        Bound::of(&work, self.carries(), |host| rates.get(&host).copied().unwrap_or(1.0))
    }

    /// Bytes per second that the links carry: as the ports of the source and of the destinations say, or less where
    /// that was measured.
    pub fn carries(&self) -> f64 {
        let mut at: BTreeMap<HostId, f64> = BTreeMap::new();
        let mut carries = self.learned.last(HostId(0), 0.0).0;
        for to in self.guests.values().filter_map(|guest| guest.destination) {
            at.insert(to.host, self.learned.last(to.host, to.bytes_per_s).1);
        }
        if !at.is_empty() {
            carries = carries.min(at.values().sum());
        }
        carries
    }

    /// An earlier drain found that this destination takes this rate, in bytes per second, less than its ports say.
    pub fn remember(&mut self, host: HostId, bytes_per_s: f64, now: Time) {
        self.learned.remember(host, bytes_per_s, now);
    }

    /// What destinations take, in bytes per second, where it was found that that is less than their ports say.
    pub fn measured_takes(&self) -> impl Iterator<Item = (HostId, f64)> {
        self.learned.measured_takes()
    }

    /// The driver could not find out in time where the guest is. Its part is over, and its reservation stays.
    pub fn leave_in_doubt(&mut self, id: GuestId, fault: Fault, now: Time) {
        if self.state(id).is_some_and(|state| !matches!(state, State::Ended(_))) {
            let reason = Reason::Fault(fault);
            self.note(id, &reason, now);
            self.set(id, State::Ended(Outcome::Failed { reason, in_doubt: true }), now);
        }
    }

    pub(super) fn set(&mut self, id: GuestId, state: State, now: Time) {
        // A busy destination has taken no copy.
        if self.state(id) == Some(&State::Copying) && !matches!(state, State::Copying | State::Prepared) {
            self.free_links_of(id, now);
        }
        if let Some(guest) = self.guests.get_mut(&id) {
            (guest.state, guest.since, guest.freed_at, guest.left) = (state, now, None, false);
        }
    }

    fn state(&self, id: GuestId) -> Option<&State> {
        self.guests.get(&id).map(|guest| &guest.state)
    }

    fn order_places(&mut self, now: Time) {
        let due = |guest: &Guest| matches!(guest.state, State::Unplaced { from } if from <= now);
        let due = self.guests.iter().filter(|(_, guest)| due(guest)).map(|(id, _)| *id);
        let due: Vec<GuestId> = due.filter(|id| !self.waits_for_group(*id, now)).collect();
        let mut places = Vec::new();
        for id in due {
            self.set(id, State::Placing, now);
            let Some(guest) = self.guests.get(&id) else { continue };
            let hosts: BTreeSet<HostId> =
                guest.avoid.union(&guest.never).chain(&self.lost).copied().collect();
            places.push((id, hosts.into_iter().collect()));
        }
        if !places.is_empty() {
            self.orders.push(Order::Place(places));
        }
    }

    fn placed(&mut self, id: GuestId, to: Destination, now: Time) {
        let waits = self.guests.get(&id).is_some_and(|guest| guest.state == State::Placing);
        let Some(guest) = self.guests.get_mut(&id).filter(|_| waits) else {
            if self.guests.get(&id).is_none_or(|guest| guest.destination.is_none()) {
                self.orders.push(Order::Release { guest: id });
            }
            return;
        };
        guest.destination = Some(to);
        guest.placements += 1;
        self.set(id, State::Placed, now);
        if self.lost.contains(&to.host) {
            self.lose_destination(id, &Reason::HostLost(to.host), now);
        }
    }

    fn added(&mut self, start: &Start, now: Time) {
        let over = self.guests.get(&start.guest).is_none_or(|guest| matches!(guest.state, State::Ended(_)));
        if over {
            let mut guest = Guest::new(start, now);
            if self.aborted {
                guest.state = State::Ended(Outcome::Aborted);
            }
            self.guests.insert(start.guest, guest);
        }
    }

    fn no_place(&mut self, id: GuestId, why: Nowhere, now: Time) {
        if self.state(id) != Some(&State::Placing) {
            return;
        }
        let Some(guest) = self.guests.get_mut(&id) else { return };
        let tried = Obstacle::Forbidden.name();
        let is_tried = |(what, _): &(&str, u32)| *what == tried || *what == Obstacle::IsThere.name();
        if !guest.never.is_empty()
            && guest.avoid.is_empty()
            && self.lost.is_empty()
            && why.0.iter().all(is_tried)
        {
            // Every host lacks something: what the last one lacks is the reason.
            if let Some(Attempt { reason, .. }) = guest.attempts.last().cloned() {
                return self.end(id, Outcome::Failed { reason, in_doubt: false }, now);
            }
        }
        // Hosts where a try failed are better than none. Nothing was tried now.
        if !std::mem::take(&mut guest.avoid).is_empty() {
            return self.set(id, State::Unplaced { from: now }, now);
        }
        self.try_failed(id, Reason::Nowhere(why), true, now);
    }

    fn prepared(&mut self, id: GuestId, now: Time) {
        let Some(guest) = self.guests.get(&id).filter(|guest| guest.state == State::Preparing) else {
            return;
        };
        self.learned.prepared_in(now - guest.since);
        self.set(id, State::Prepared, now);
    }

    fn busy(&mut self, id: GuestId, now: Time) {
        let again = now + self.settings.retry_after / 10;
        let Some(guest) = self.guests.get_mut(&id).filter(|guest| guest.state == State::Copying) else {
            return;
        };
        let first = guest.busy.map_or(now, |(first, _)| first);
        (guest.busy, guest.sample) = (Some((first, again)), None);
        self.set(id, State::Prepared, now);
    }

    /// Unlike a busy destination, the store is waited for without a limit.
    fn held(&mut self, id: GuestId, now: Time) {
        if self.state(id) == Some(&State::Copying) {
            self.set(id, State::Prepared, now);
        }
    }

    fn progress(&mut self, id: GuestId, sample: Sample, now: Time) {
        let Some(guest) = self.guests.get_mut(&id).filter(|guest| guest.state == State::Copying) else {
            return;
        };
        if guest.sample.is_none() {
            self.learned.began(now - guest.since, sample.copied_bytes, sample.bytes_per_s);
        }
        (guest.sample, guest.sampled_at) = (Some(sample), now);
        guest.busy = None;
        if let Some(known) = sample.write_bytes_per_s {
            guest.write_bytes_per_s = known.max(0.0);
        }
        if sample.copied_bytes >= guest.mark.0 + (guest.copy_bytes / 1000).max(1) {
            guest.mark = (sample.copied_bytes, now);
        }
        let writes = guest.write_bytes_per_s;
        let most = guest.memory_bytes.saturating_mul(self.settings.copied_times_max);
        let links = guest.destination.map_or(1.0, |to| to.bytes_per_s);
        let copies = self.copies(now);
        let limit = self.learned.measured(id, sample.round, links, now, &copies);
        if let (Some(limit), Some(guest)) = (limit, self.guests.get_mut(&id)) {
            guest.limit_bytes_per_s = Some(limit);
        }
        if sample.copied_bytes > most {
            let reason = Reason::WritesTooFast { writes, copied: sample.bytes_per_s };
            self.cancel(id, Then::Retry(reason), now);
        }
    }

    fn left(&mut self, id: GuestId, now: Time) {
        if self.state(id) == Some(&State::Copying) {
            self.free_links_of(id, now);
            if let Some(guest) = self.guests.get_mut(&id) {
                guest.left = true;
            }
        }
    }

    fn moved(&mut self, id: GuestId, now: Time) {
        let Some(guest) = self.guests.get(&id) else { return };
        let in_session = matches!(guest.state, State::Copying | State::Cancelling(_));
        let doubtful = matches!(guest.state, State::Ended(Outcome::Failed { in_doubt: true, .. }));
        if let Some(to) = guest.destination.filter(|_| in_session || doubtful) {
            self.set(id, State::Ended(Outcome::Moved(to.host)), now);
        }
    }

    fn failed(&mut self, id: GuestId, fault: Fault, now: Time) {
        let is_final = fault.side == Side::Source && !may_pass(&fault);
        match self.state(id) {
            Some(State::Preparing | State::Prepared | State::Copying) => {}
            // Its session was to end, and did by something that no other destination can help.
            Some(State::Cancelling(_)) if is_final => {}
            // The end of its session is reported late: it is known where the guest is.
            Some(State::Ended(Outcome::Failed { in_doubt: true, .. })) if is_final || !self.aborted => {}
            _ => return self.cancelled(id, now),
        }
        if fault.code == Code::GuestGone && fault.side == Side::Source {
            return self.gone(id, now);
        }
        let elsewhere = fault.side == Side::Destination;
        let retry = may_pass(&fault);
        if let Some(guest) = self.guests.get_mut(&id).filter(|_| elsewhere) {
            // A cordon may be lifted while the drain goes on.
            let may_return = fault.code.retry_can_help() || fault.code == Code::Cordoned;
            let hosts = if may_return { &mut guest.avoid } else { &mut guest.never };
            hosts.extend(guest.destination.map(|to| to.host));
            if !fault.code.retry_can_help() {
                return self.lacks(id, Reason::Fault(fault), now);
            }
        }
        self.try_failed(id, Reason::Fault(fault), retry, now);
    }

    fn cancelled(&mut self, id: GuestId, now: Time) {
        let then = match self.state(id) {
            Some(State::Cancelling(then)) => then.clone(),
            // Reported late.
            Some(State::Ended(Outcome::Failed { in_doubt: true, .. })) if self.aborted => Then::Abort,
            Some(State::Ended(Outcome::Failed { in_doubt: true, reason })) => Then::Retry(reason.clone()),
            _ => return,
        };
        match then {
            Then::Retry(reason) => self.try_failed(id, reason, true, now),
            Then::Elsewhere(reason) => self.another_destination(id, reason, now),
            Then::Abort => self.end(id, Outcome::Aborted, now),
        }
    }

    fn gone(&mut self, id: GuestId, now: Time) {
        let is_open = |state: &State| match state {
            State::Ended(outcome) => matches!(outcome, Outcome::Failed { in_doubt: true, .. }),
            _ => true,
        };
        if self.state(id).is_some_and(is_open) {
            self.end(id, Outcome::Gone, now);
        }
    }

    fn taken(&mut self, id: GuestId, now: Time) {
        match self.state(id) {
            Some(State::Cancelling(Then::Abort)) => self.cancelled(id, now),
            Some(State::Preparing | State::Prepared | State::Copying | State::Cancelling(_)) => {
                self.give_up_destination(id, now);
                self.guests.remove(&id);
            }
            _ => {}
        }
    }

    /// What failed before stays among its attempts.
    fn again(&mut self, id: GuestId, now: Time) {
        let has_failed =
            matches!(self.state(id), Some(State::Ended(Outcome::Failed { in_doubt: false, .. })));
        if self.aborted || !has_failed {
            return;
        }
        if let Some(guest) = self.guests.get_mut(&id) {
            (guest.tries, guest.placements) = (0, 0);
            guest.avoid.clear();
            guest.never.clear();
        }
        self.set(id, State::Unplaced { from: now }, now);
    }

    /// No guest goes to this host any more.
    fn leave_host(&mut self, host: HostId, reason: &Reason, now: Time) {
        self.lost.insert(host);
        let there = |guest: &Guest| guest.destination.is_some_and(|to| to.host == host);
        let ids: Vec<_> = self.guests.iter().filter(|(_, guest)| there(guest)).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.lose_destination(id, reason, now));
    }

    fn lose_destination(&mut self, id: GuestId, reason: &Reason, now: Time) {
        match self.state(id) {
            Some(State::Placed) => self.another_destination(id, reason.clone(), now),
            Some(State::Preparing | State::Prepared | State::Copying) => {
                self.cancel(id, Then::Elsewhere(reason.clone()), now);
            }
            _ => {}
        }
    }

    /// What runs is cancelled first: the store takes its time for each reservation that is given up, and a guest that
    /// is copied meanwhile may leave.
    fn abort(&mut self, now: Time) {
        self.aborted = true;
        let (mut runs, mut waits) = (Vec::new(), Vec::new());
        for (id, guest) in &self.guests {
            match guest.state {
                State::Unplaced { .. } | State::Placing | State::Placed => waits.push(*id),
                State::Preparing | State::Prepared | State::Copying | State::Cancelling(_) => runs.push(*id),
                State::Ended(_) => {}
            }
        }
        runs.into_iter().for_each(|id| self.cancel(id, Then::Abort, now));
        waits.into_iter().for_each(|id| self.end(id, Outcome::Aborted, now));
    }

    /// Ends the session of a guest. One that is being ended already gets no second order.
    pub(super) fn cancel(&mut self, id: GuestId, then: Then, now: Time) {
        let Some(guest) = self.guests.get_mut(&id) else { return };
        if let State::Cancelling(before) = &mut guest.state {
            *before = then;
            return;
        }
        self.set(id, State::Cancelling(then), now);
        self.orders.push(Order::Cancel { guest: id });
    }

    fn end(&mut self, id: GuestId, outcome: Outcome, now: Time) {
        self.give_up_destination(id, now);
        self.set(id, State::Ended(outcome), now);
    }

    /// No session is left. Its reservation is given up.
    fn give_up_destination(&mut self, id: GuestId, now: Time) {
        if self.state(id) == Some(&State::Copying) {
            self.free_links_of(id, now);
        }
        let Some(guest) = self.guests.get_mut(&id) else { return };
        let reserved = guest.destination.take().is_some() || guest.state == State::Placing;
        (guest.sample, guest.busy) = (None, None);
        if reserved {
            self.orders.push(Order::Release { guest: id });
        }
    }

    fn note(&mut self, id: GuestId, reason: &Reason, now: Time) {
        if let Some(guest) = self.guests.get_mut(&id) {
            let host = guest.destination.map(|to| to.host);
            guest.attempts.push(Attempt { at: now, host, reason: reason.clone() });
        }
    }

    /// A try is over without success and no session is left: another one later, if there may be.
    pub(super) fn try_failed(&mut self, id: GuestId, reason: Reason, retry: bool, now: Time) {
        self.note(id, &reason, now);
        let Some(guest) = self.guests.get_mut(&id) else { return };
        guest.tries += 1;
        let (tries, placements) = (guest.tries, guest.placements);
        let again = retry && !self.aborted && tries < self.settings.tries_max;
        if !again || placements >= self.settings.placements_max {
            return self.end(id, Outcome::Failed { reason, in_doubt: false }, now);
        }
        self.give_up_destination(id, now);
        let wait = self.settings.retry_after * (1 << (tries - 1).min(10));
        self.set(id, State::Unplaced { from: now + wait }, now);
    }

    /// The destination lacks something that the guest needs, and no session is left: another one at once, if there is
    /// one.
    fn lacks(&mut self, id: GuestId, reason: Reason, now: Time) {
        if self.aborted {
            self.note(id, &reason, now);
            return self.end(id, Outcome::Failed { reason, in_doubt: false }, now);
        }
        self.another_destination(id, reason, now);
    }

    /// The destination is lost and no session is left: another one at once.
    fn another_destination(&mut self, id: GuestId, reason: Reason, now: Time) {
        self.note(id, &reason, now);
        if self.guests.get(&id).is_none_or(|guest| guest.placements >= self.settings.placements_max) {
            return self.end(id, Outcome::Failed { reason, in_doubt: false }, now);
        }
        self.give_up_destination(id, now);
        self.set(id, State::Unplaced { from: now }, now);
    }

    /// The end of a cancelled session was not reported. The reservation stays: the guest may be there.
    pub(super) fn doubtful(&mut self, id: GuestId, now: Time) {
        let reason = Reason::NoAnswer(Stage::Cancel);
        self.note(id, &reason, now);
        self.set(id, State::Ended(Outcome::Failed { reason, in_doubt: true }), now);
    }

    pub(super) fn place_unanswered(&mut self, id: GuestId, now: Time) {
        self.try_failed(id, Reason::NoAnswer(Stage::Place), true, now);
    }
}
