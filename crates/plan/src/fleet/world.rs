//! Hosts, guests and drains in virtual time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use linerate_core::Time;
use linerate_core::drain::{Controller, Event, Order, Outcome, Settings, Start, State};
use linerate_core::fleet::{DrainId, Guest, GuestId, Host, HostId, Ledger};

use super::check::{Defect, Rule, Violation};
use super::fixed::Fixed;
use super::flows::{Flows, ResourceId};
use super::sessions::Session;
use crate::random::Random;

/// How a guest behaves while it is copied.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes in use, copied in the first pass.
    pub copy_bytes: u64,
    pub write_bytes_per_s: f64,
    /// Bytes that it writes into again and again.
    pub working_set_bytes: u64,
    /// No faster than this, whatever the links carry.
    pub limit_bytes_per_s: f64,
}

/// Times that everything takes, and what destinations refuse.
#[derive(Clone, Debug)]
pub struct Times {
    /// Preparing, shortest and longest, in milliseconds.
    pub prepare_ms: (u64, u64),
    /// From the order to the first byte.
    pub begin: Duration,
    /// The blackout without its copy.
    pub switch: Duration,
    pub blackout_max: Duration,
    pub rounds_max: u32,
    /// How long a store takes to answer.
    pub store: Duration,
    /// From a host's death until all know it.
    pub notice: Duration,
    /// A destination takes so many copies at a time.
    pub arrivals_max: u32,
}

impl Default for Times {
    fn default() -> Times {
        Times {
            prepare_ms: (600, 2000),
            begin: Duration::from_millis(50),
            switch: Duration::from_millis(150),
            blackout_max: Duration::from_millis(300),
            rounds_max: 30,
            store: Duration::from_millis(10),
            notice: Duration::from_secs(3),
            arrivals_max: 16,
        }
    }
}

/// Who decides which guests copy, and when.
#[derive(Clone, Debug)]
pub(super) enum Brain {
    Controller(Box<Controller>),
    Fixed(Fixed),
}

/// A drain as the driver sees it.
#[derive(Clone, Debug)]
pub struct Drain {
    pub(super) brain: Brain,
    pub source: HostId,
    pub began: Time,
    pub ended: Option<Time>,
    pub(super) placing: BTreeSet<GuestId>,
    pub(super) kept: BTreeSet<GuestId>,
    pub(super) quiet: bool,
    pub(super) aborted: bool,
    timer: Option<Time>,
    /// How many ended how.
    pub outcomes: BTreeMap<&'static str, u32>,
    pub retries: u32,
}

/// What is going to happen.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// A timer that the drain asked for; void if it has asked for another since.
    Tick(usize, Time),
    Tell(usize, Event),
    Place(usize, Vec<(GuestId, Vec<HostId>)>),
    /// A session's next step, by its number and its version.
    Step(GuestId, u64, u64),
    Second(GuestId, u64),
    Cancel(GuestId, u64),
    Dies(HostId),
    DeathKnown(HostId),
    Returns(HostId),
    Store(bool),
    Uncordon(HostId),
    /// The migration of the guest, if it has one.
    Fails(GuestId),
}

pub(super) struct Queued(pub Time, pub u64, pub What);

impl PartialEq for Queued {
    fn eq(&self, other: &Queued) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Queued {}
impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Queued) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Queued {
    fn cmp(&self, other: &Queued) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// The world. See [`World::run`].
pub struct World {
    pub now: Time,
    pub ledger: Ledger,
    pub(super) flows: Flows,
    pub(super) times: Times,
    pub(super) loads: Vec<Load>,
    /// What each host sends through, and receives through: its ports, then its rack.
    pub(super) out: Vec<Vec<ResourceId>>,
    pub(super) into: Vec<Vec<ResourceId>>,
    /// Bytes that guests and incoming QEMUs take, counted apart from the ledger.
    pub(super) memory: Vec<(u64, u64)>,
    pub(super) arrivals: Vec<u32>,
    pub(super) dead: BTreeSet<HostId>,
    pub(super) cordoned: BTreeSet<HostId>,
    pub(super) sessions: BTreeMap<GuestId, Session>,
    pub drains: Vec<Drain>,
    pub(super) running: BTreeSet<usize>,
    pub(super) random: Random,
    pub(super) defect: Option<Defect>,
    pub(super) store: bool,
    pub violations: Vec<Violation>,
    /// Hosts take guests again so long after their drain.
    pub uncordon_after: Option<Duration>,
    pub events: u64,
    queue: BinaryHeap<Reverse<Queued>>,
    numbers: u64,
}

impl World {
    pub fn new(seed: u64, times: Times, defect: Option<Defect>) -> World {
        World {
            now: Time::ZERO,
            ledger: Ledger::new(),
            flows: Flows::default(),
            times,
            loads: Vec::new(),
            out: Vec::new(),
            into: Vec::new(),
            memory: Vec::new(),
            arrivals: Vec::new(),
            dead: BTreeSet::new(),
            cordoned: BTreeSet::new(),
            sessions: BTreeMap::new(),
            drains: Vec::new(),
            running: BTreeSet::new(),
            random: Random::new(seed),
            defect,
            store: true,
            violations: Vec::new(),
            uncordon_after: None,
            events: 0,
            queue: BinaryHeap::new(),
            numbers: 0,
        }
    }

    /// A host; `rack` is what it sends through and receives through besides its ports.
    pub fn add_host(&mut self, host: Host, rack: Option<(ResourceId, ResourceId)>) -> HostId {
        let rate = host.offer.bytes_per_s();
        let cap = host.memory_bytes.saturating_sub(host.reserve_bytes);
        self.out
            .push(std::iter::once(self.flows.add_resource(rate)).chain(rack.map(|rack| rack.0)).collect());
        self.into
            .push(std::iter::once(self.flows.add_resource(rate)).chain(rack.map(|rack| rack.1)).collect());
        self.memory.push((0, cap));
        self.arrivals.push(0);
        self.ledger.add_host(host)
    }

    /// The uplink of a rack: what it sends through and receives through.
    pub fn add_rack(&mut self, bytes_per_s: f64) -> (ResourceId, ResourceId) {
        (self.flows.add_resource(bytes_per_s), self.flows.add_resource(bytes_per_s))
    }

    pub fn add_guest(&mut self, guest: Guest, host: HostId, load: Load) -> GuestId {
        self.memory[host.0 as usize].0 += guest.memory_bytes;
        self.loads.push(load);
        self.ledger.add_guest(guest, host)
    }

    pub fn cordon(&mut self, host: HostId, cordoned: bool) {
        if cordoned {
            self.cordoned.insert(host)
        } else {
            self.cordoned.remove(&host)
        };
        if self.defect != Some(Defect::CordonForgotten) {
            self.ledger.cordon(host, cordoned);
        }
    }

    /// Begins to drain a host. `at_once`: by a fixed number instead of the controller.
    pub fn drain(&mut self, source: HostId, keep: &BTreeSet<GuestId>, at_once: Option<usize>) -> usize {
        self.cordon(source, true);
        let guests: Vec<GuestId> = self.ledger.guests_on(source).collect();
        let forgotten = self.defect == Some(Defect::KeepForgotten);
        let starts: Vec<Start> =
            guests.iter().map(|guest| self.start(*guest, keep.contains(guest) && !forgotten)).collect();
        let ports =
            self.ledger.offer(source).map(|offer| offer.ports.iter().map(|port| port.bytes_per_s).collect());
        let brain = match at_once {
            Some(count) => Brain::Fixed(Fixed::new(count, &starts)),
            None => {
                let (settings, ports) = (Settings::default(), ports.unwrap_or_default());
                let mut controller = Controller::new(settings, ports, &starts, self.now);
                let group = |guest: &GuestId| Some((*guest, self.ledger.together_of(*guest)?));
                controller.keep_together(guests.iter().filter_map(group).collect());
                Brain::Controller(Box::new(controller))
            }
        };
        self.drains.push(Drain {
            brain,
            source,
            began: self.now,
            ended: None,
            placing: BTreeSet::new(),
            kept: keep.clone(),
            quiet: false,
            aborted: false,
            timer: None,
            outcomes: BTreeMap::new(),
            retries: 0,
        });
        let number = self.drains.len() - 1;
        for other in self.running.clone() {
            self.tell(other, Event::HostDrained(source));
        }
        self.running.insert(number);
        self.tell(number, Event::Tick);
        number
    }

    pub(super) fn start(&self, guest: GuestId, keep: bool) -> Start {
        let load = self.loads[guest.0 as usize];
        Start {
            guest,
            copy_bytes: load.copy_bytes,
            // It does not grow.
            memory_bytes: load.copy_bytes,
            // Nobody knows before its first copy.
            write_bytes_per_s: 0.0,
            limit_bytes_per_s: None,
            keep,
        }
    }

    pub(super) fn after(&mut self, time: Duration, what: What) {
        self.numbers += 1;
        self.queue.push(Reverse(Queued(self.now + time, self.numbers, what)));
    }

    pub fn host_dies_in(&mut self, time: Duration, host: HostId, returns: Duration) {
        self.after(time, What::Dies(host));
        self.after(time + returns, What::Returns(host));
    }

    pub fn store_is_away(&mut self, from: Duration, until: Duration) {
        self.after(from, What::Store(false));
        self.after(until, What::Store(true));
    }

    /// The migration that a guest has then fails, and the guest stays.
    pub fn migration_fails_in(&mut self, time: Duration, guest: GuestId) {
        self.after(time, What::Fails(guest));
    }

    /// An event for a drain, after a time.
    pub fn tell_in(&mut self, time: Duration, drain: usize, event: Event) {
        self.after(time, What::Tell(drain, event));
    }

    pub(super) fn broken(
        &mut self,
        rule: Rule,
        guest: Option<GuestId>,
        host: Option<HostId>,
        what: &'static str,
    ) {
        if self.violations.len() < 100 {
            self.violations.push(Violation { rule, guest, host, what });
        }
    }

    pub(super) fn tell(&mut self, number: usize, event: Event) {
        self.events += 1;
        match event {
            Event::Pause => self.drains[number].quiet = true,
            Event::Resume => self.drains[number].quiet = false,
            Event::Abort => self.drains[number].aborted = true,
            _ => {}
        }
        if matches!(event, Event::Pause | Event::Abort) && self.defect == Some(Defect::PauseLost) {
            return;
        }
        let now = self.now;
        let drain = &mut self.drains[number];
        let orders = match &mut drain.brain {
            Brain::Fixed(fixed) => fixed.handle(now, &event),
            Brain::Controller(controller) => controller.handle(now, event),
        };
        self.carry_out(number, orders);
        let drain = &mut self.drains[number];
        let (over, timer) = match &drain.brain {
            Brain::Fixed(fixed) => (fixed.is_over(), None),
            Brain::Controller(controller) => (controller.is_over(), controller.next_timer()),
        };
        if over {
            self.over(number);
        } else if let Some(timer) =
            timer.filter(|timer| drain.timer.is_none_or(|set| *timer < set || set <= now))
        {
            drain.timer = Some(timer);
            self.after(timer - now, What::Tick(number, timer));
        }
    }

    /// Carries out what the orders say, in order.
    fn carry_out(&mut self, number: usize, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Place(guests) => self.order_place(number, guests),
                Order::Release { guest } => self.order_release(number, guest),
                Order::Prepare { guest, host } => self.order_prepare(number, guest, host),
                Order::Copy { guest, host, ports } => self.order_copy(number, guest, host, ports),
                Order::Cancel { guest } => self.order_cancel(number, guest),
            }
        }
    }

    fn over(&mut self, number: usize) {
        if !self.running.remove(&number) {
            return;
        }
        let drain = &mut self.drains[number];
        drain.ended = Some(self.now);
        let source = drain.source;
        self.check_end(number);
        if let Some(after) = self.uncordon_after {
            self.after(after, What::Uncordon(source));
        }
        // Nothing of it is needed any more but the figures.
        let drain = &mut self.drains[number];
        (drain.kept, drain.placing) = (BTreeSet::new(), BTreeSet::new());
        drain.brain = Brain::Fixed(Fixed::new(0, &[]));
    }

    fn check_end(&mut self, number: usize) {
        let drain = self.drains[number].clone();
        let Brain::Controller(controller) = &drain.brain else { return };
        for (guest, state, attempts) in controller.guests() {
            let State::Ended(outcome) = state else { continue };
            let is_at = self.ledger.host_of(guest);
            let doubtful = matches!(outcome, Outcome::Failed { in_doubt: true, .. });
            let own = self.sessions.get(&guest).is_some_and(|session| session.drain == number)
                || self.ledger.reserved_by(guest) == Some(DrainId(number as u32));
            if !doubtful && own {
                self.broken(Rule::NothingLeft, Some(guest), None, "a session or a reservation is left");
            }
            let kept = drain.kept.contains(&guest);
            let (name, sound) = match outcome {
                // It may have left its destination again, or have died with it.
                Outcome::Moved(_) => ("moved", !kept && is_at != Some(drain.source)),
                Outcome::Kept => ("kept", kept && is_at == Some(drain.source)),
                Outcome::Failed { .. } => ("failed", !attempts.is_empty() && is_at == Some(drain.source)),
                Outcome::Aborted => ("aborted", drain.aborted && is_at == Some(drain.source)),
                Outcome::Gone => ("gone", is_at.is_none()),
            };
            if !sound {
                self.broken(Rule::Ends, Some(guest), is_at, "the outcome is not true");
            }
            if let Outcome::Failed { in_doubt, .. } = outcome {
                let tries = Settings::default();
                let used_up = attempts.len() as u32 >= tries.tries_max.min(tries.placements_max);
                if !used_up || *in_doubt {
                    self.broken(Rule::LeftForAReason, Some(guest), is_at, "left with tries to go");
                }
            }
            let drain = &mut self.drains[number];
            *drain.outcomes.entry(name).or_default() += 1;
            drain.retries += attempts.len() as u32;
        }
    }

    /// Runs until all drains are over. When one ends, `next` may begin others: it returns whether it did. Virtual time
    /// is bounded by `longest`.
    pub fn run(&mut self, longest: Duration, mut next: impl FnMut(&mut World) -> bool) {
        let end = self.now + longest;
        let mut known_over = self.drains.len() - self.running.len();
        loop {
            let over = self.drains.len() - self.running.len();
            if over > known_over || self.drains.is_empty() {
                known_over = over;
                while next(self) {}
            }
            if self.running.is_empty() {
                return;
            }
            let Some(Reverse(Queued(at, _, what))) = self.queue.pop() else { break };
            if at > end {
                break;
            }
            self.now = at;
            self.happen(what);
        }
        for number in self.running.clone() {
            let source = self.drains[number].source;
            self.broken(Rule::Ends, None, Some(source), "the drain does not end");
        }
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Tick(number, timer) => {
                if self.running.contains(&number) && self.drains[number].timer == Some(timer) {
                    self.tell(number, Event::Tick);
                }
            }
            What::Tell(number, event) => {
                if self.running.contains(&number) {
                    self.tell(number, event);
                }
            }
            What::Place(number, guests) => self.place(number, guests),
            What::Step(guest, number, version) => self.step(guest, number, version),
            What::Second(guest, number) => self.second(guest, number),
            What::Cancel(guest, number) => self.cancelled(guest, number),
            What::Fails(guest) => self.fails(guest),
            What::Dies(host) => self.dies(host),
            What::DeathKnown(host) => self.death_known(host),
            What::Returns(host) => self.returns(host),
            What::Store(answers) => self.store_changes(answers),
            What::Uncordon(host) => {
                self.cordon(host, false);
                for number in self.running.clone() {
                    self.tell(number, Event::HostFound(host));
                }
            }
        }
    }

    fn store_changes(&mut self, answers: bool) {
        self.store = answers;
        if self.defect != Some(Defect::StoreLossNotReported) {
            for number in self.running.clone() {
                self.tell(number, Event::Store(answers));
            }
        }
    }
}
