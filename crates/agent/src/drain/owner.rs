//! The owner of a drain: one thread that gives the controller its events and carries out its orders. It also keeps the
//! store, and what is shown of the drain, up to date.

mod destinations;
mod keep;
mod look;
mod places;
mod settle;
mod show;
mod split;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use linerate_api::{DrainBound, DrainGuest, DrainGuestState, DrainOrder, DrainRequest, DrainState};
use linerate_core::drain::{Asking, Controller, Event, Order, Outcome, Settings, Settling, Start, State};
use linerate_core::fleet::{GuestId, HostId};
use linerate_core::{Code, Fault, Side, Time};
use linerate_store::fleet::records::{DrainRecord, DrainState as Stored, HostRecord};
use linerate_store::fleet::{Fleet, FleetError, Ownership};

use super::hosts::{self, Destination};
use super::leaving::{self, Unseen};
use super::member::{Decided, Member, ms};
use super::rules::Rules;
use super::sessions::{End, Line, Report, Session, request};
use super::stored::{self, Unreadable};
use super::{Drain, Input, Kept};
use crate::agent::Agent;
use crate::clock::{Clock, unix_ms};
use destinations::Unusable;
pub(super) use places::{PlaceResult, register, why_nowhere};

/// Guests that are copied, and guests that are prepared, at most. One host takes 16 arrivals of another.
const COPIES_MAX: usize = 8;
/// Ports that the source has, beside its routers: they are numbered in 64 bits.
const PORTS_MAX: usize = 63;
/// How often this host is looked at for new guests, changed ports, and guests that recovery has settled.
const LOOK: Duration = Duration::from_secs(1);
/// What is shown is renewed at most so often.
const SHOW: Duration = Duration::from_millis(100);
/// The store is asked again after so long.
const STORE_AGAIN: Duration = Duration::from_secs(1);

/// What a drain begins with.
pub(super) struct Begin {
    pub drain: Arc<Drain>,
    pub fleet: Fleet,
    pub ownership: Ownership,
    pub record: DrainRecord,
    pub kept: Kept,
    pub destinations: Vec<Destination>,
    /// What could not be looked at.
    pub warnings: Vec<String>,
    pub rules: Rules,
    /// An earlier process of this agent began it.
    pub is_again: bool,
}

pub(super) struct Owner {
    agent: Arc<Agent>,
    runtime: tokio::runtime::Handle,
    drain: Arc<Drain>,
    to_self: Sender<Input>,
    fleet: Fleet,
    ownership: Ownership,
    record: DrainRecord,
    /// Guests of the record that cannot be read: they stay in it.
    unreadable: BTreeMap<String, Unreadable>,
    kept: Kept,
    clock: Clock,
    controller: Controller,
    /// By the number of the guest.
    members: Vec<Member>,
    destinations: Vec<Destination>,
    rules: Rules,
    /// This host, with the ports in the order of the controller's numbers.
    source: HostRecord,
    sessions: BTreeMap<GuestId, Session>,
    settling: BTreeMap<GuestId, Settling>,
    is_again: bool,
    /// Guests that have moved, whose hosts do not list them yet.
    arriving: BTreeSet<GuestId>,
    /// Guests whose migration has failed, and whose destination is being asked, with the number of their session.
    judging: BTreeMap<GuestId, u64>,
    next_number: u64,
    /// The last question where a guest can go, by its number. Answers to earlier ones change nothing.
    questions: BTreeMap<GuestId, u64>,
    /// Guests that were placed, until the store has given their reservation up.
    reserved: BTreeMap<GuestId, HostId>,
    warnings: BTreeSet<String>,
    looked: Instant,
    shown: Instant,
    /// What the store has, and since when it does not answer.
    saved: Option<DrainRecord>,
    away: Option<Instant>,
    /// Reservations to give up, and guests to place, when the store answers again.
    not_released: BTreeSet<GuestId>,
    not_placed: Vec<(GuestId, Vec<HostId>)>,
    /// Who is to be told that the store has the operator's order.
    steered: Vec<Sender<()>>,
    /// Guests that stayed when others of their group had left, and were tried once more.
    tried_again: BTreeSet<GuestId>,
    /// Another agent has ended the drain: why nothing is written any more.
    disowned: Option<String>,
    /// Destinations that do not answer, or are emptied themselves: as the controller was told.
    unusable: BTreeMap<HostId, Unusable>,
    /// The destinations are being looked at, since then.
    hosts_looked: Instant,
    looks_at_hosts: bool,
}

impl Owner {
    pub fn new(
        agent: Arc<Agent>,
        runtime: tokio::runtime::Handle,
        to_self: Sender<Input>,
        begin: Begin,
    ) -> Owner {
        let Begin { drain, fleet, ownership, record, kept, destinations, warnings, rules, is_again } = begin;
        let clock = Clock::start();
        let source = agent.describer.describe();
        let settings = Settings { copies_max: COPIES_MAX, prepared_max: COPIES_MAX, ..Settings::default() };
        let ports = hosts::port_rates(&source, &destinations);
        let controller = Controller::new(settings, ports, &[], clock.now());
        let unreadable = stored::unreadable(&record);
        Owner {
            agent,
            runtime,
            drain,
            to_self,
            fleet,
            ownership,
            record,
            unreadable,
            kept,
            clock,
            controller,
            members: Vec::new(),
            destinations,
            rules,
            source,
            sessions: BTreeMap::new(),
            settling: BTreeMap::new(),
            is_again,
            arriving: BTreeSet::new(),
            judging: BTreeMap::new(),
            next_number: 0,
            questions: BTreeMap::new(),
            reserved: BTreeMap::new(),
            warnings: warnings.into_iter().collect(),
            looked: Instant::now(),
            shown: Instant::now(),
            saved: None,
            away: None,
            not_released: BTreeSet::new(),
            not_placed: Vec::new(),
            steered: Vec::new(),
            tried_again: BTreeSet::new(),
            disowned: None,
            unusable: BTreeMap::new(),
            hosts_looked: Instant::now(),
            looks_at_hosts: false,
        }
    }

    /// Begins with all guests together: they are placed together. One whose place is not known waits until it is.
    fn begin(&mut self, members: Vec<Member>) {
        let starts: Vec<Start> = members.into_iter().filter_map(|member| self.add(member)).collect();
        let now = self.clock.now();
        let settings = self.controller.settings().clone();
        let ports = hosts::port_rates(&self.source, &self.destinations);
        self.controller = Controller::new(settings, ports, &starts, now);
        self.tell_groups();
        for (number, one) in (1..).zip(&self.destinations) {
            if let Some(rate) = one.measured {
                self.controller.remember(HostId(number), rate as f64, now);
            }
        }
        if self.away.is_some() {
            self.handle(Event::Store(false));
        }
        match self.record.state {
            Stored::Paused => self.handle(Event::Pause),
            Stored::Aborting => self.handle(Event::Abort),
            Stored::Running | Stored::Ended => self.handle(Event::Tick),
        }
    }

    /// Takes a guest into the drain; if it is here and nothing else has it, the controller is to have it.
    fn add(&mut self, member: Member) -> Option<Start> {
        let id = GuestId(u32::try_from(self.members.len()).unwrap_or(u32::MAX));
        let (guest, known) = (member.guest.clone(), member.decided.is_some());
        self.members.push(member);
        if known {
            return None;
        }
        // A domain of an earlier process of this agent may be anywhere.
        let is_known = if guest.domain { !self.is_again } else { self.is_free(&guest.name) };
        if !is_known || !self.look_at(id) {
            if self.kept.request.keep.contains(&guest.name) {
                // It stays, wherever its other migration leaves it.
                let kept = Decided { state: DrainGuestState::Kept, reason: None, hint: String::new() };
                self.members[id.0 as usize].decided = Some(kept);
                return None;
            }
            let since = self.clock.now();
            self.settling.insert(id, Settling::new(since, None));
            return None;
        }
        self.start(id)
    }

    /// Whether a guest of the agent is here, and nothing else has it.
    fn is_free(&self, name: &str) -> bool {
        leaving::is_here(&self.agent, name) && leaving::is_settled(&self.agent, name)
    }

    /// Looks at a guest of which only the name is known. False if it cannot be looked at now.
    fn look_at(&mut self, id: GuestId) -> bool {
        let Some(member) = self.members.get_mut(id.0 as usize) else { return false };
        if member.guest.looked || member.guest.domain {
            return true;
        }
        let Some(found) = leaving::look_at(&self.agent, &member.guest.name, self.kept.request.mode) else {
            return false;
        };
        let fresh = Member::new(found);
        (member.guest, member.decided) = (fresh.guest, fresh.decided);
        true
    }

    /// The guest is here, and nothing else has it.
    ///
    /// `None` if it cannot move.
    fn start(&mut self, id: GuestId) -> Option<Start> {
        self.give_reservation_up(id);
        let Member { guest, decided, .. } = self.members.get(id.0 as usize)?;
        decided.is_none().then(|| Start {
            guest: id,
            copy_bytes: guest.copy_bytes,
            memory_bytes: guest.memory_bytes,
            write_bytes_per_s: 0.0,
            limit_bytes_per_s: None,
            keep: self.kept.request.keep.contains(&guest.name),
        })
    }

    /// Runs until the drain is over and the store has its result.
    pub fn run(mut self, members: Vec<Member>, inbox: &Receiver<Input>) {
        tracing::info!(
            drain = self.record.id,
            host = self.record.host,
            guests = members.len(),
            "drain begins"
        );
        self.begin(members);
        self.settle();
        self.save();
        self.show();
        loop {
            // Without its store the drain goes on until the result can be written: guests may be started meanwhile.
            if self.is_over() && self.away.is_none() {
                // Guests that came or were started since the last look leave too. libvirt may take long to answer.
                self.look_for_domains();
                self.look();
                if self.is_over() {
                    self.try_split_again();
                }
                if self.is_over() && self.has_store() {
                    break;
                }
            }
            self.wait(inbox);
            if self.looked.elapsed() >= LOOK {
                self.look();
            }
            self.save();
            if self.shown.elapsed() >= SHOW {
                self.show();
            }
        }
        self.end(inbox);
    }

    /// What was saved last may be long ago.
    fn has_store(&mut self) -> bool {
        self.saved = None;
        self.save();
        self.away.is_none()
    }

    fn is_over(&self) -> bool {
        // A guest that arrives is a guest of this drain. One that is held arrives only if somebody decides.
        let arriving = |one: &Arc<crate::incoming::Incoming>| !one.is_arrived() && !one.is_held();
        let in_doubt = |id: &GuestId| {
            let state = self.controller.guests().find(|(guest, ..)| guest == id).map(|(_, state, _)| state);
            matches!(state, Some(State::Ended(Outcome::Failed { in_doubt: true, .. })))
        };
        self.controller.is_over()
            // A session that says nothing any more does not hold the others: its guest is in doubt.
            && self.sessions.keys().all(in_doubt)
            // What is judged may be the late end of such a session: it is known then where its guest is.
            && self.judging.is_empty()
            && self.settling.is_empty()
            && self.arriving.is_empty()
            && (self.is_aborting() || !self.agent.incoming_live().iter().any(arriving))
    }

    fn is_aborting(&self) -> bool {
        self.record.state == Stored::Aborting
    }

    fn wait(&mut self, inbox: &Receiver<Input>) {
        let until = |at: Time| at.since(self.clock.now());
        let timer = self.controller.next_timer().map_or(LOOK, until).min(LOOK);
        match inbox.recv_timeout(timer.max(Duration::from_millis(1))) {
            Ok(input) => self.take(input),
            Err(RecvTimeoutError::Timeout) => self.handle(Event::Tick),
            // Cannot be: we hold a sender.
            Err(RecvTimeoutError::Disconnected) => {}
        }
        while let Ok(input) = inbox.try_recv() {
            self.take(input);
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Steer(order, answer) => {
                self.steer(order);
                self.show();
                self.steered.push(answer);
                self.save();
            }
            Input::Begun(id, number, outgoing) => {
                if let Some(session) = self.sessions.get_mut(&id).filter(|one| one.number == number) {
                    let name = outgoing.session.to_string();
                    session.begun(outgoing);
                    self.members[id.0 as usize].migration = Some(name);
                } else {
                    outgoing.cancel();
                }
            }
            Input::DomainBegun(id, number, moving) => {
                if let Some(session) = self.sessions.get_mut(&id).filter(|one| one.number == number) {
                    session.domain_begun(moving);
                } else {
                    let _ = moving.cancel();
                }
            }
            Input::Session(id, number, report) => self.report(id, number, report),
            Input::Placed(number, destinations, results) => {
                self.hosts_are(destinations);
                results.into_iter().for_each(|(id, result)| self.placed(id, number, result));
            }
            Input::Arrived(id, destinations) => {
                self.arriving.remove(&id);
                if let Some(destinations) = destinations {
                    self.hosts_are(destinations);
                }
            }
            Input::Hosts(destinations) => {
                self.looks_at_hosts = false;
                if let Some(destinations) = destinations {
                    self.hosts_are(destinations);
                }
            }
            Input::Judged(id, number, judging, destination) => self.judged(id, number, judging, *destination),
            Input::NotPlaced(number, mut wanted, why) => {
                wanted.retain(|(id, _)| self.questions.get(id) == Some(&number));
                self.not_placed.extend(wanted);
                self.store_failed(why);
            }
            Input::Found(id, moved) => self.found(id, moved),
        }
    }

    fn steer(&mut self, order: DrainOrder) {
        let (state, event) = match (order, self.record.state) {
            // An abort is final.
            (_, Stored::Aborting | Stored::Ended) => return,
            (DrainOrder::Pause, _) => (Stored::Paused, Event::Pause),
            (DrainOrder::Resume, _) => (Stored::Running, Event::Resume),
            (DrainOrder::Abort, _) => (Stored::Aborting, Event::Abort),
        };
        tracing::info!(drain = self.record.id, ?order, "drain");
        self.record.state = state;
        self.handle(event);
    }

    /// Gives the controller an event, and has its orders carried out.
    fn handle(&mut self, event: Event) {
        // This process may have been stopped for longer than its lease.
        if !matches!(event, Event::Store(_)) {
            self.look_at_lease();
        }
        let now = self.clock.now();
        let orders = self.controller.handle(now, event);
        for order in orders {
            tracing::debug!(?order, "order");
            self.order(order);
        }
    }

    fn order(&mut self, order: Order) {
        match order {
            Order::Place(wanted) => self.place(wanted),
            Order::Release { guest } => self.release(guest),
            Order::Prepare { guest, host } => self.prepare(guest, host),
            Order::Copy { guest, .. } => self.copy(guest),
            Order::Cancel { guest } => {
                let line = self.line(guest);
                if let (Some(session), Some(line)) = (self.sessions.get_mut(&guest), line) {
                    session.cancel(&line);
                }
            }
        }
    }

    /// Has the guest copied, once the store has that: whoever goes on with the drain, or ends it, must know that the
    /// guest may be elsewhere. While the store is away the guest stays prepared.
    fn copy(&mut self, id: GuestId) {
        let (now, line) = (self.clock.now(), self.line(id));
        let Some(member) = self.members.get_mut(id.0 as usize) else { return };
        member.begins(now);
        member.began = true;
        self.save();
        if self.away.is_some() || self.disowned.is_some() {
            let member = &mut self.members[id.0 as usize];
            (member.began, member.copy_began) = (false, None);
            return self.handle(Event::Held { guest: id });
        }
        if let (Some(session), Some(line)) = (self.sessions.get_mut(&id), line) {
            session.copy(&self.agent, &self.runtime, line);
        }
    }

    fn line(&self, guest: GuestId) -> Option<Line> {
        let number = self.sessions.get(&guest)?.number;
        Some(Line { to: self.to_self.clone(), guest, number })
    }

    fn prepare(&mut self, id: GuestId, host: HostId) {
        let Some(member) = self.members.get_mut(id.0 as usize) else { return };
        let Some(to) = self.destinations.get(hosts::index(host)) else { return };
        self.next_number += 1;
        let line = Line { to: self.to_self.clone(), guest: id, number: self.next_number };
        (member.to, member.sample, member.copy_began) = (Some(host), None, None);
        let asked = request(&member.guest, &to.at, &self.kept.request);
        self.sessions.insert(id, Session::prepare(&self.agent, line, asked, member.guest.process));
    }

    fn report(&mut self, id: GuestId, number: u64, report: Report) {
        if self.sessions.get(&id).is_none_or(|session| session.number != number) {
            return;
        }
        let now = self.clock.now();
        let Some(member) = self.members.get_mut(id.0 as usize) else { return };
        match report {
            Report::Named(name) => member.migration = Some(name),
            Report::Ready => self.handle(Event::Prepared { guest: id }),
            Report::Sample(sample) => {
                member.sample = Some(sample);
                self.handle(Event::Progress { guest: id, sample });
            }
            Report::Left => self.handle(Event::Left { guest: id }),
            Report::Ended(end) => {
                let session = self.sessions.remove(&id);
                self.ended(id, end, session.as_ref().and_then(Session::downtime_us), now);
            }
        }
    }

    fn ended(&mut self, id: GuestId, end: End, downtime_us: Option<u64>, now: Time) {
        let mut had_begun = false;
        if let Some(member) = self.members.get_mut(id.0 as usize) {
            had_begun = member.began;
            member.began &= matches!(end, End::Unknown(_));
        }
        match end {
            End::Moved => self.moved(id, downtime_us, now),
            End::MovedWithFault(fault) => {
                if let Some(member) = self.members.get_mut(id.0 as usize) {
                    member.fault = Some(fault);
                }
                self.moved(id, downtime_us, now);
            }
            End::Gone(fault) => {
                // One that was only prepared was not touched: it ended as it would have without the drain.
                if let Some(member) = self.members.get_mut(id.0 as usize) {
                    member.fault = fault.filter(|_| had_begun);
                }
                self.handle(Event::Gone { guest: id });
            }
            End::Stays(fault) if fault.code == Code::Cancelled => {
                let event = self.cancelled(id, fault);
                self.handle(event);
            }
            End::Stays(fault) if is_taken(&fault) => self.wait_for_another(id, &fault, now),
            End::Stays(fault) if fault.code.retry_can_help() => self.judge(id, fault),
            End::Stays(fault) => self.handle(Event::Failed { guest: id, fault }),
            End::Unknown(fault) => {
                self.settling.insert(id, Settling::new(now, Some(fault)));
            }
        }
    }

    /// Another migration has the guest: it is waited for, and then the guest is looked for.
    fn wait_for_another(&mut self, id: GuestId, fault: &Fault, now: Time) {
        tracing::info!(guest = id.0, %fault, "another migration has it: that is waited for");
        let attempts = self.controller.guests().find(|(guest, ..)| *guest == id);
        let attempts = attempts.map(|(.., attempts)| attempts.to_vec()).unwrap_or_default();
        self.handle(Event::Taken { guest: id });
        let Some(member) = self.members.get_mut(id.0 as usize) else { return };
        (member.to, member.sample) = (None, None);
        // An abort ends its part at once, and the controller keeps it.
        if self.controller.guests().all(|(guest, ..)| guest != id) {
            member.earlier = member.tries(&attempts, &self.destinations);
            self.settling.insert(id, Settling::taken(now));
        }
    }

    /// A session that was cancelled by this drain, or by somebody else.
    fn cancelled(&self, id: GuestId, fault: Fault) -> Event {
        let state = self.controller.guests().find(|(guest, ..)| *guest == id).map(|(_, state, _)| state);
        match state {
            Some(State::Cancelling(_) | State::Ended(Outcome::Failed { in_doubt: true, .. })) => {
                Event::Cancelled { guest: id }
            }
            _ => Event::Failed { guest: id, fault },
        }
    }

    fn moved(&mut self, id: GuestId, downtime_us: Option<u64>, now: Time) {
        let Some(member) = self.members.get_mut(id.0 as usize) else { return };
        member.took_ms = member.copy_began.map(|began| ms(now - began));
        member.blackout_us = downtime_us;
        let key = member.guest.key.clone();
        self.handle(Event::Moved { guest: id });
        // Its memory is never free in between: the reservation stays until its host lists it.
        let (fleet, ownership, agent) = (self.fleet.clone(), self.ownership.clone(), self.agent.clone());
        let (source, to_self) = (self.source.clone(), self.to_self.clone());
        // In a fleet that shares a store its host says there that it has come.
        let mut destinations = agent.fleet.shared().is_none().then(|| self.destinations.clone());
        std::thread::spawn(move || {
            let mut asking = Asking::arrival();
            loop {
                let asked = destinations.as_deref_mut().map_or(Ok(()), |destinations| {
                    hosts::renew(&agent, destinations, Some(ownership.drain()))?;
                    register(&agent, &fleet, &source, destinations)
                });
                let done = asked.and_then(|()| fleet.arrived(&ownership, &key));
                match done {
                    Err(FleetError::Place { .. }) if asking.not_yet() => std::thread::sleep(asking.pause()),
                    Err(error) => {
                        tracing::warn!(%error, guest = key, "its reservation stays for now");
                        break;
                    }
                    Ok(()) => break,
                }
            }
            let _ = to_self.send(Input::Arrived(id, destinations));
        });
        self.reserved.remove(&id);
        self.arriving.insert(id);
    }

    /// Writes the result. The store is asked until it takes it: what is shown says that it does not.
    fn end(mut self, inbox: &Receiver<Input>) {
        self.look_for_stopped();
        if self.disowned.is_none() {
            self.give_all_up();
        }
        self.kept.split = self.split_groups();
        self.record.state = Stored::Ended;
        self.record.ended_ms = Some(unix_ms());
        let detail = self.detail();
        let left = detail.guests.iter().filter(|guest| !is_well(guest.state)).count();
        self.audit(&detail, left);
        tracing::info!(drain = self.record.id, left, "drain ends");
        let steered = std::mem::take(&mut self.steered);
        loop {
            self.save();
            if self.away.is_none() {
                break;
            }
            let mut detail = self.detail();
            detail.state = DrainState::Running;
            detail.ended_unix_ms = None;
            *self.drain.detail.lock() = detail;
            while let Ok(input) = inbox.recv_timeout(STORE_AGAIN) {
                // Nothing of it changes anything now.
                if let Input::Steer(_, answer) = input {
                    let _ = answer.send(());
                }
            }
        }
        *self.drain.detail.lock() = detail;
        for answer in steered {
            let _ = answer.send(());
        }
    }
}

/// Whether a migration did not begin since another one has the guest.
fn is_taken(fault: &Fault) -> bool {
    fault.code == Code::GuestBusy && fault.side == Side::Source
}

/// The operator has nothing to do about it. One of its name that is here is another one. What is left of a guest that
/// was moved with a fault is no guest to move.
fn has_left(guest: &DrainGuest) -> bool {
    match guest.state {
        DrainGuestState::Moved => guest.reason.is_none(),
        state => state == DrainGuestState::Gone,
    }
}

fn is_well(state: DrainGuestState) -> bool {
    matches!(state, DrainGuestState::Moved | DrainGuestState::Kept | DrainGuestState::Gone)
}

/// Kept in the store besides the guests.
pub(super) fn kept(request: &DrainRequest, unseen: &Unseen) -> Kept {
    Kept {
        request: request.clone(),
        bound: DrainBound::default(),
        links_bytes_per_s: 0,
        takes: BTreeMap::new(),
        unseen: unseen.clone(),
        split: Vec::new(),
        cordoned_ms: None,
        order: 0,
        began: None,
    }
}

#[cfg(test)]
mod tests;
