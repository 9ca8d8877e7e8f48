//! Virtual time: what is going to happen, in order, and the loop that lets it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use linerate_core::destination::TakeOver;
use linerate_core::{ModeTag, Outcome, Side, Time};

use crate::cases::CaseWork;
use crate::check::{Answer, Check, Options, Violation};
use crate::destination_driver::{DestinationDriver, DestinationWork, IMAGE_NAMES};
use crate::faults::FaultKind;
use crate::guest::Guest;
use crate::hosts::Host;
use crate::libvirt_model::LibvirtModel;
use crate::random::Random;
use crate::recovery::Question;
use crate::scenario::Scenario;
use crate::source_driver::{SourceDriver, SourceWork};
use crate::wire::{Connection, Link, Purpose};

/// Every run must have ended by then.
const BOUND: Duration = Duration::from_secs(400);
/// And a session of a history, in which hosts come back late.
const BOUND_OF_HISTORIES: Duration = Duration::from_secs(4 * 3600);
/// Links that did not come back by themselves are repaired by then.
const REPAIRED_BY: Duration = Duration::from_secs(60);
/// How often the agents look at their timers.
const TICK: Duration = Duration::from_millis(25);
/// Lines of trace kept.
const TRACE_LINES: usize = 60;

/// Something that is going to happen.
#[derive(Debug)]
pub enum SimEvent {
    /// Something arrives at the end of a direction of a connection.
    Arrives(u32, usize),
    /// A side learns that its connection is lost.
    Lost(u32, Side),
    /// The source tries to connect; belongs to one incarnation of its agent.
    Connects {
        /// Of the source's agent.
        incarnation: u64,
        /// Index of the link.
        link: usize,
        /// What the connection will be for.
        purpose: Purpose,
    },
    /// The source's driver has done something.
    Source {
        /// Void if the driver counts another number by then.
        operations: u64,
        /// What it has done.
        work: SourceWork,
    },
    /// The destination's driver has done something.
    Destination {
        /// Void if the driver counts another number by then.
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
        /// Not waited for if the driver counts another number by then.
        operations: u64,
    },
    /// The destination's hypervisor runs the guest as commanded.
    HypervisorRuns {
        /// The answer is not waited for if the driver counts another number by then.
        operations: u64,
        /// It ran at the source.
        ran: bool,
        /// When it first got the command.
        since: Time,
        /// What the tries before say.
        take_over: TakeOver,
    },
    /// libvirt's stream has gone through, if it could.
    OwnerLoads {
        /// In vain since then.
        since: Option<Time>,
    },
    /// libvirt gives up its migration.
    OwnerGivesUp,
    /// A question about the outcome reaches the destination.
    Asked {
        host: usize,
        incarnation: u64,
        session: u64,
        /// Index of the link.
        link: usize,
        question: Question,
    },
    /// The answer reaches the source.
    Answered {
        host: usize,
        incarnation: u64,
        session: u64,
        /// The answer, if there was one.
        outcome: Option<Outcome>,
    },
    /// Something was done for a session that is brought to its end.
    Recovers { host: usize, incarnation: u64, session: u64, work: CaseWork },
    /// The roll-back notice is sent on a connection of its own (again).
    SendRollBackNotice { host: usize, incarnation: u64, session: u64 },
    /// The roll-back notice reaches the destination.
    RollBackNoticeArrives {
        host: usize,
        incarnation: u64,
        session: u64,
        /// Index of the link.
        link: usize,
    },
    /// The answer reaches the source; none if no agent was there.
    RollBackNoticeAnswered { host: usize, incarnation: u64, session: u64, outcome: Option<Outcome> },
    /// Polls the timers of state machines, and sends keepalives.
    Tick,
    /// The guest has lived for so many milliseconds.
    GuestAlive(f64),
    /// An entry of the script.
    Fault(usize),
    /// A link works again, at its rate.
    LinkRestored(usize),
    /// The agent of a host starts.
    Restart(usize),
    /// One of two operators decides: `here` runs the guest on this host.
    OperatorDecides { host: usize, session: u64, here: bool },
}

/// Everything that there is.
#[derive(Debug)]
pub struct World {
    /// Time of the simulation.
    pub now: Time,
    /// When this session began.
    pub began: Time,
    /// The only chance there is.
    pub random: Random,
    /// What the seed decided.
    pub scenario: Scenario,
    /// The guest at the source.
    pub guest: Guest,
    pub source: SourceDriver,
    pub destination: DestinationDriver,
    /// Whose guest it is, where it is not the agents'.
    pub libvirt: LibvirtModel,
    pub links: Vec<Link>,
    /// Every connection of the session, dead ones too.
    pub connections: BTreeMap<u32, Connection>,
    /// Number of the next connection.
    pub next_connection: u32,
    /// Checks every promise after each event.
    pub check: Check,
    /// How the run is made.
    pub options: Options,
    /// Entries of the script that have happened.
    pub fired: Vec<bool>,
    pub hosts: [Host; 2],
    /// Which of them is the source, the destination, of the session.
    pub roles: [usize; 2],
    /// Number of the session.
    pub session: u64,
    /// Processes of earlier sessions.
    pub parked: Vec<Guest>,
    /// The operator wants the guest to run.
    pub wanted: bool,
    /// The operator has paused or resumed it in this session.
    pub paused_since: bool,
    /// The hosts could not talk or work then.
    pub troubled_at: Time,
    /// Something is in doubt since then.
    pub in_doubt_since: Option<Time>,
    /// The image on top of the guest's disk.
    pub image: u64,
    /// And when the session began.
    pub offered_image: u64,
    /// Actions of recovery begun.
    pub case_actions: u64,
    /// Every session is waited for until nothing is left of it.
    pub patient: bool,
    next_pid: u64,
    /// Faults that happened, by [`FaultKind::kind`].
    pub happened: [u64; FaultKind::NAMES.len()],
    /// How often operators were answered so, by [`Answer`].
    pub answers: [u64; Answer::NAMES.len()],
    /// The script is over: this is the retry.
    pub retrying: bool,
    /// How many events the simulation went through.
    pub events: u64,
    pub(crate) seed: u64,
    pub(crate) queue: BTreeMap<(Time, u64), SimEvent>,
    queued: u64,
    ticks: u64,
    trace: VecDeque<String>,
}

impl World {
    /// The world of a seed.
    pub fn new(seed: u64, options: Options) -> World {
        let mut random = Random::new(seed);
        let mut scenario = Scenario::draw(&mut random, options.focus);
        if options.faultless {
            scenario.faults.clear();
            scenario.stale = false;
        }
        scenario.mode = options.mode;
        // A domain that does not run is not taken, and none is slowed down.
        scenario.runs |= options.mode == ModeTag::Handover;
        scenario.limits.throttle &= options.mode != ModeTag::Handover;
        let populated = scenario.populated;
        let guest =
            Guest::new(&scenario.shape, scenario.habits.clone(), scenario.runs, || random.percent(populated));
        World {
            now: Time::ZERO,
            began: Time::ZERO,
            guest,
            source: SourceDriver::new(scenario.source()),
            destination: DestinationDriver::new(&scenario.shape),
            libvirt: LibvirtModel::default(),
            links: scenario.links.clone(),
            connections: BTreeMap::new(),
            next_connection: 0,
            check: Check { only: options.only, ..Check::default() },
            fired: vec![false; scenario.faults.len()],
            hosts: [Host::new(), Host::new()],
            roles: [0, 1],
            session: 1,
            parked: Vec::new(),
            wanted: scenario.runs,
            paused_since: false,
            troubled_at: Time::ZERO,
            in_doubt_since: None,
            image: 0,
            offered_image: 0,
            case_actions: 0,
            patient: true,
            next_pid: 1,
            happened: [0; FaultKind::NAMES.len()],
            answers: [0; Answer::NAMES.len()],
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
        self.continue_run()
    }

    /// Goes on until it is over.
    pub fn continue_run(&mut self) -> Result<(), Box<Violation>> {
        let bound = if self.is_history() { BOUND_OF_HISTORIES } else { BOUND };
        while !self.is_over() && !self.goes_on() && !self.stops() {
            let next = self.queue.pop_first();
            let Some(((at, _), happening)) = next.filter(|((at, _), _)| *at - self.began < bound) else {
                self.does_not_end(bound);
                break;
            };
            self.now = at;
            self.events += 1;
            self.happen(happening);
        }
        if !self.stops() && self.is_over() {
            self.check_end();
        }
        self.verdict()
    }

    /// Nothing that follows tells anything.
    fn stops(&self) -> bool {
        self.check.broken.is_some() || self.check.is_split
    }

    fn verdict(&mut self) -> Result<(), Box<Violation>> {
        let Some((property, what)) = self.check.broken.take() else { return Ok(()) };
        let trace = std::mem::take(&mut self.trace).into();
        Err(Box::new(Violation {
            seed: self.seed,
            mode: self.options.mode,
            histories: self.options.histories,
            focus: self.options.focus,
            property,
            what,
            at: self.now,
            trace,
        }))
    }

    fn begin(&mut self) {
        self.began = self.now;
        self.offered_image = self.guest.image;
        self.after(Duration::ZERO, SimEvent::Tick);
        self.after(Duration::ZERO, SimEvent::GuestAlive(0.0));
        self.schedule_faults();
        if self.owner_begins() {
            self.start_source();
        }
    }

    /// A second session with the same guest and sound links; what the first left on the hosts is still there.
    pub fn retry(&mut self) -> Result<(), Box<Violation>> {
        self.queue.clear();
        self.connections.clear();
        self.without_faults();
        self.renew();
        self.note(|| String::from("---- retry without faults"));
        self.run()
    }

    /// A new session of the same guest between the same hosts.
    pub fn renew(&mut self) {
        self.answer_operators();
        self.session += 1;
        self.check.reported_fenced.clear();
        self.check.reported_sealed = false;
        (self.paused_since, self.in_doubt_since) = (false, None);
        self.hosts.iter_mut().for_each(|host| host.crashed = false);
        self.source.renew(self.scenario.source());
        self.destination.renew();
    }

    /// Whatever is broken on the hosts works again.
    pub fn repair_all(&mut self) {
        let now = self.now;
        for host in &mut self.hosts {
            host.journal_fails = 0;
            for until in
                [&mut host.journal_full_until, &mut host.disks_away_until, &mut host.hypervisors_away_until]
            {
                *until = now;
            }
        }
    }

    /// A process that was never there before.
    pub fn new_pid(&mut self) -> u64 {
        self.next_pid += 1;
        self.next_pid
    }

    /// The image that an incoming QEMU finds by the name that the source offered.
    pub fn image_at(&self, _host: usize) -> u64 {
        let stale = self.offered_image % IMAGE_NAMES + 7 * IMAGE_NAMES;
        if self.scenario.stale { stale } else { self.offered_image }
    }

    /// Puts an event into the queue.
    pub fn after(&mut self, span: Duration, happening: SimEvent) {
        self.at_time(self.now + span, happening);
    }

    /// Something will happen then.
    pub fn at_time(&mut self, at: Time, happening: SimEvent) {
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

    fn happen(&mut self, happening: SimEvent) {
        match happening {
            SimEvent::Arrives(id, direction) => self.arrives(id, direction),
            SimEvent::Lost(id, side) => self.connection_lost(id, side),
            SimEvent::Connects { incarnation, link, purpose } => self.connects(incarnation, link, purpose),
            SimEvent::Source { operations, work } => self.source_done(operations, work),
            SimEvent::Destination { operations, work } => self.destination_done(operations, work),
            SimEvent::HypervisorStops { asked } => self.hypervisor_stops(asked),
            SimEvent::StreamsTaken { operations } => self.streams_taken(operations),
            SimEvent::HypervisorRuns { operations, ran, since, take_over } => {
                self.hypervisor_runs(operations, ran, since, take_over);
            }
            SimEvent::OwnerLoads { since } => self.owner_loads(since),
            SimEvent::OwnerGivesUp => self.owner_gives_up(),
            SimEvent::Asked { host, incarnation, session, link, question } => {
                self.asked(host, incarnation, session, link, question)
            }
            SimEvent::Answered { host, incarnation, session, outcome } => {
                self.answered(host, incarnation, session, outcome);
            }
            SimEvent::Recovers { host, incarnation, session, work } => {
                self.recovers(host, incarnation, session, work)
            }
            SimEvent::SendRollBackNotice { host, incarnation, session } => {
                self.send_roll_back_notice(host, incarnation, session)
            }
            SimEvent::RollBackNoticeArrives { host, incarnation, session, link } => {
                self.roll_back_notice_arrives(host, incarnation, session, link)
            }
            SimEvent::RollBackNoticeAnswered { host, incarnation, session, outcome } => {
                self.roll_back_notice_answered(host, incarnation, session, outcome);
            }
            SimEvent::Tick => self.tick(),
            SimEvent::GuestAlive(ms) => self.guest_is_alive(ms),
            SimEvent::Fault(entry) => self.inject_fault(entry),
            SimEvent::LinkRestored(link) => self.link_restored(link),
            SimEvent::Restart(host) => self.restart(host),
            SimEvent::OperatorDecides { host, session, here } => self.operator_decides(host, session, here),
        }
    }

    fn tick(&mut self) {
        self.ticks += 1;
        // Where no session is active there is little to look at.
        let quiet = self.source.machine.is_none() && self.destination.is_idle();
        self.after(if quiet { 20 * TICK } else { TICK }, SimEvent::Tick);
        if self.now - self.began >= REPAIRED_BY {
            (0..self.links.len()).for_each(|link| self.link_restored(link));
        }
        if self.ticks.is_multiple_of(4) {
            self.heartbeats();
        }
        self.find_silent();
        self.source_tick();
        self.destination_tick();
        if self.is_troubled() {
            self.troubled_at = self.now;
        }
        for host in 0..2 {
            if self.hosts[host].up {
                let (now, mutation) = (self.now, self.options.mutation);
                self.hosts[host].write_due_ends(now, mutation);
            }
            if self.case_is_due(host) {
                self.poll_cases(host);
            }
        }
        self.answer_operators();
        if quiet || self.ticks.is_multiple_of(40) {
            self.forget_dead();
            self.operator_looks();
        }
    }

    /// Something keeps the hosts from bringing their sessions to an end.
    fn is_troubled(&self) -> bool {
        let now = self.now;
        let host = |host: &Host| {
            !host.up
                || host.journal_fails > 0
                || host.journal_full_until > now
                || host.disks_away_until > now
                || host.hypervisors_away_until > now
        };
        self.hosts.iter().any(host) || !self.links.iter().any(Link::connects)
    }

    /// In small steps while there is something to see.
    fn guest_is_alive(&mut self, ms: f64) {
        self.guest.live(&mut self.random, ms);
        let session = self.source.machine.is_some();
        let micros = match self.now - self.began < Duration::from_secs(4) {
            true => 1_500,
            false if session => 20_000,
            false => 1_000_000,
        };
        let span = self.micros(micros / 2, micros);
        self.after(span, SimEvent::GuestAlive(span.as_secs_f64() * 1e3));
    }

    fn is_over(&self) -> bool {
        let settled = |host: &Host| host.up && host.cases.is_empty() && host.unwritten.is_empty();
        self.source.decided.is_some()
            && self.source.machine.is_none()
            && self.destination.is_idle()
            && self.libvirt_is_settled()
            && self.hosts.iter().all(settled)
    }
}

#[cfg(test)]
mod tests {
    use linerate_core::destination::Try;
    use linerate_core::recovery::{DestinationEvent, Inspection, RUN_FOR};

    use super::*;
    use crate::hosts::Machine;

    /// The answer to the command is lost, and the disks stay away.
    #[test]
    fn a_guest_that_may_have_run_and_is_refused_is_held_for_an_operator() {
        let mut held = 0;
        for seed in 0..20 {
            let mut world = World::new(seed, Options { faultless: true, ..Options::default() });
            world.begin();
            let commits =
                |world: &World| world.destination.machine.as_ref().is_some_and(|one| one.is_committed());
            while !commits(&world) && !world.is_over() {
                let ((at, _), happening) = world.queue.pop_first().unwrap();
                world.now = at;
                world.happen(happening);
            }
            if !commits(&world) {
                continue;
            }
            let (operations, since) = (world.destination.operations, world.now);
            let mut take_over = TakeOver::new(since);
            take_over.tried(since, Try::Lost { ran: None });
            world.now = since + RUN_FOR;
            world.hosts[1].disks_away_until = world.now + BOUND;
            world.hypervisor_runs(operations, true, since, take_over);
            assert!(world.destination.machine.is_none(), "seed {seed}: nobody can decide about it");
            world.handle_destination_case(1, 1, DestinationEvent::Inspected(Inspection::MayHaveRun));
            let case = world.hosts[1].cases.get(&1).map(|case| &case.machine);
            assert!(matches!(case, Some(Machine::Destination(machine)) if machine.is_held()), "{case:?}");
            assert_eq!(world.outcome_at(1, 1), Outcome::Pending);
            held += 1;
        }
        assert!(held > 0, "no session gets so far");
    }
}
