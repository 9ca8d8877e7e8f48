//! Virtual time: what is going to happen, in order, and the loop that lets it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use linerate_core::{Outcome, Side, Time};

use crate::check::{Check, Options, Property, Violation, Way};
use crate::destination_body::{DestinationBody, DestinationWork};
use crate::guest::Guest;
use crate::owner::Owner;
use crate::random::Random;
use crate::scenario::Scenario;
use crate::source_body::{SourceBody, SourceWork};
use crate::wire::{Connection, Link, Purpose};

/// Every run must have ended by then.
const BOUND: Duration = Duration::from_secs(400);
/// Links that did not come back by themselves are mended by then.
const MENDED_BY: Duration = Duration::from_secs(60);
/// How often the agents look at their timers.
const TICK: Duration = Duration::from_millis(25);
/// Lines of trace kept.
const TRACE_LINES: usize = 60;

/// Something that is going to happen.
#[derive(Debug)]
pub enum Happening {
    /// Something arrives at the end of a direction of a connection.
    Arrives(u32, usize),
    /// A side is told that its connection is gone.
    Lost(u32, Side),
    /// The source tries to connect; belongs to one life of its agent.
    Connects {
        /// Of the source's agent.
        life: u64,
        /// Index of the link.
        link: usize,
        /// What the connection will be for.
        purpose: Purpose,
    },
    /// The source's body has done something.
    Source {
        /// Void if the body counts another number by then.
        operations: u64,
        /// What it has done.
        work: SourceWork,
    },
    /// The destination's body has done something.
    Destination {
        /// Void if the body counts another number by then.
        operations: u64,
        /// What it has done.
        work: DestinationWork,
    },
    /// The source's hypervisor stops the guest that it was asked to send.
    HypervisorStops {
        /// Which time it was asked to.
        asked: u64,
    },
    /// The destination's hypervisor has taken its streams.
    StreamsTaken {
        /// Nobody waits for it if the body counts another number by then.
        operations: u64,
    },
    /// The destination's hypervisor runs the guest that it was told to run.
    HypervisorRuns {
        /// Nobody waits for the answer if the body counts another number by then.
        operations: u64,
    },
    /// Somebody else's stream has gone through, if it could.
    OwnerLoads {
        /// In vain since then.
        since: Option<Time>,
    },
    /// Somebody else gives up his migration.
    OwnerGivesUp,
    /// A question about the outcome reaches the destination.
    Asked {
        /// Of the source's agent.
        life: u64,
        /// Index of the link.
        link: usize,
    },
    /// The answer reaches the source.
    Answered {
        /// Of the source's agent.
        life: u64,
        /// The answer.
        outcome: Outcome,
    },
    /// The word that the source rolled back reaches the destination.
    Withdrawn {
        /// Of the source's agent.
        life: u64,
        /// Index of the link.
        link: usize,
    },
    /// The answer reaches the source; none if nobody was there.
    WithdrawalAnswered {
        /// Of the source's agent.
        life: u64,
        /// The answer.
        outcome: Option<Outcome>,
    },
    /// Timers and signs of life.
    Tick,
    /// The guest has lived for so many milliseconds.
    GuestLives(f64),
    /// An entry of the script.
    Fault(usize),
    /// A link works again, at its rate.
    LinkBack(usize),
    /// An agent starts.
    Restart(Side),
}

/// Everything that there is.
#[derive(Debug)]
pub struct World {
    /// Virtual time.
    pub now: Time,
    /// When this session began.
    pub began: Time,
    /// The only chance there is.
    pub random: Random,
    /// What the seed decided.
    pub scenario: Scenario,
    /// The guest at the source.
    pub guest: Guest,
    /// The source's agent.
    pub source: SourceBody,
    /// The destination's agent.
    pub destination: DestinationBody,
    /// Whose guest it is, where it is not the agents'.
    pub owner: Owner,
    /// The links.
    pub links: Vec<Link>,
    /// Every connection of the session, dead ones too.
    pub connections: BTreeMap<u32, Connection>,
    /// Number of the next connection.
    pub next_connection: u32,
    /// The watcher.
    pub check: Check,
    /// How the run is made.
    pub options: Options,
    /// Entries of the script that have happened.
    pub fired: Vec<bool>,
    /// Whether the source's, the destination's host crashed.
    pub host_crashed: [bool; 2],
    /// The script is over: this is the retry.
    pub retrying: bool,
    /// Things that happened.
    pub events: u64,
    seed: u64,
    queue: BTreeMap<(Time, u64), Happening>,
    queued: u64,
    ticks: u64,
    trace: VecDeque<String>,
}

impl World {
    /// The world of a seed.
    pub fn new(seed: u64, options: Options) -> World {
        let mut random = Random::new(seed);
        let mut scenario = Scenario::draw(&mut random);
        if options.faultless {
            scenario.faults.clear();
        }
        scenario.way = options.way;
        // A domain that does not run is not taken, and none is slowed down.
        scenario.runs |= options.way == Way::HandedOver;
        scenario.limits.throttle &= options.way != Way::HandedOver;
        let populated = scenario.populated;
        let guest =
            Guest::new(&scenario.shape, scenario.habits.clone(), scenario.runs, || random.percent(populated));
        World {
            now: Time::ZERO,
            began: Time::ZERO,
            guest,
            source: SourceBody::new(scenario.source()),
            destination: DestinationBody::new(&scenario.shape),
            owner: Owner::default(),
            links: scenario.links.clone(),
            connections: BTreeMap::new(),
            next_connection: 0,
            check: Check { only: options.only, ..Check::default() },
            fired: vec![false; scenario.faults.len()],
            host_crashed: [false; 2],
            retrying: false,
            events: 0,
            random,
            scenario,
            options,
            seed,
            queue: BTreeMap::new(),
            queued: 0,
            ticks: 0,
            trace: VecDeque::new(),
        }
    }

    /// Runs the session to its end.
    pub fn run(&mut self) -> Result<(), Box<Violation>> {
        self.begin();
        while !self.is_over() && self.check.broken.is_none() {
            let next = self.queue.pop_first();
            let Some(((at, _), happening)) = next.filter(|((at, _), _)| *at - self.began < BOUND) else {
                let state = self.describe();
                self.check.that(false, Property::Ends, || format!("not over after {BOUND:?}: {state}"));
                break;
            };
            self.now = at;
            self.events += 1;
            self.happen(happening);
        }
        if self.check.broken.is_none() {
            self.check_end();
        }
        self.verdict()
    }

    fn verdict(&mut self) -> Result<(), Box<Violation>> {
        let Some((property, what)) = self.check.broken.take() else { return Ok(()) };
        let trace = std::mem::take(&mut self.trace).into();
        Err(Box::new(Violation {
            seed: self.seed,
            way: self.options.way,
            property,
            what,
            at: self.now,
            trace,
        }))
    }

    fn begin(&mut self) {
        self.began = self.now;
        self.after(Duration::ZERO, Happening::Tick);
        self.after(Duration::ZERO, Happening::GuestLives(0.0));
        self.schedule_faults();
        self.owner_begins();
        self.start_source();
    }

    /// A second session with the same guest and sound links; what the first left on the hosts is still there.
    pub fn retry(&mut self) -> Result<(), Box<Violation>> {
        self.queue.clear();
        self.connections.clear();
        self.links = self.scenario.links.clone();
        self.scenario.faults.clear();
        self.fired.clear();
        self.retrying = true;
        self.check = Check { only: self.options.only, ..Check::default() };
        self.source.renew(self.scenario.source());
        self.destination.renew();
        self.note(|| String::from("---- retry without faults"));
        self.run()
    }

    /// Something will happen.
    pub fn after(&mut self, span: Duration, happening: Happening) {
        self.at(self.now + span, happening);
    }

    /// Something will happen then.
    pub fn at(&mut self, at: Time, happening: Happening) {
        self.queued += 1;
        self.queue.insert((at, self.queued), happening);
    }

    /// A random time from `low` to `high` microseconds.
    pub fn micros(&mut self, low: u64, high: u64) -> Duration {
        self.random.micros(low, high)
    }

    /// Writes a line of trace, if anybody wants it.
    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if self.options.trace {
            let line = format!("{:>13.6} ms  {}", self.now.0 as f64 / 1e6, line());
            if self.trace.len() == TRACE_LINES {
                self.trace.pop_front();
            }
            self.trace.push_back(line);
        }
    }

    /// The last lines of trace.
    pub fn trace(&self) -> impl Iterator<Item = &String> {
        self.trace.iter()
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Arrives(id, direction) => self.arrives(id, direction),
            Happening::Lost(id, side) => self.connection_lost(id, side),
            Happening::Connects { life, link, purpose } => self.connects(life, link, purpose),
            Happening::Source { operations, work } => self.source_done(operations, work),
            Happening::Destination { operations, work } => self.destination_done(operations, work),
            Happening::HypervisorStops { asked } => self.hypervisor_stops(asked),
            Happening::StreamsTaken { operations } => self.streams_taken(operations),
            Happening::HypervisorRuns { operations } => self.hypervisor_runs(operations),
            Happening::OwnerLoads { since } => self.owner_loads(since),
            Happening::OwnerGivesUp => self.owner_gives_up(),
            Happening::Asked { life, link } => self.asked(life, link),
            Happening::Answered { life, outcome } => self.answered(life, outcome),
            Happening::Withdrawn { life, link } => self.withdrawn(life, link),
            Happening::WithdrawalAnswered { life, outcome } => self.withdrawal_answered(life, outcome),
            Happening::Tick => self.tick(),
            Happening::GuestLives(ms) => self.guest_lives(ms),
            Happening::Fault(entry) => self.mishap(entry),
            Happening::LinkBack(link) => self.link_back(link),
            Happening::Restart(side) => self.restart(side),
        }
    }

    fn tick(&mut self) {
        self.ticks += 1;
        self.after(TICK, Happening::Tick);
        if self.now - self.began >= MENDED_BY {
            (0..self.links.len()).for_each(|link| self.link_back(link));
        }
        if self.ticks.is_multiple_of(4) {
            self.heartbeats();
        }
        self.find_silent();
        self.source_tick();
        self.destination_tick();
    }

    /// In small steps while there is something to see.
    fn guest_lives(&mut self, ms: f64) {
        self.guest.live(&mut self.random, ms);
        let micros = if self.now - self.began < Duration::from_secs(4) { 1_500 } else { 20_000 };
        let span = self.micros(micros / 2, micros);
        self.after(span, Happening::GuestLives(span.as_secs_f64() * 1e3));
    }

    fn is_over(&self) -> bool {
        self.source.up
            && self.destination.up
            && self.source.decided.is_some()
            && self.destination.is_idle()
            && self.owner_is_settled()
    }

    /// For the report of a run that does not end.
    fn describe(&self) -> String {
        let source =
            self.source.brain.as_ref().map(|brain| (brain.step(), brain.can_resume(), brain.is_ended()));
        let destination = self.destination.brain.as_ref().map(|brain| (brain.step(), brain.outcome()));
        format!(
            "source {source:?}, journal {:?}, asking {}; destination {destination:?}, journal {:?}, idle {}",
            self.source.journal,
            self.source.asking,
            self.destination.journal,
            self.destination.is_idle()
        )
    }
}
