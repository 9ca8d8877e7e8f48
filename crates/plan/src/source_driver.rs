//! The source's driver: does what the core says with the virtual guest, tracker and journal.

use std::time::Duration;

use linerate_core::source::{Action, Config, Ending, Event, Source};
use linerate_core::{Code, Extent, Fault, GuestState, ModeTag, Side, Step};

use crate::check::Mutation;
use crate::guest::digest;
use crate::recovery::Question;
use crate::wire::{Packet, Purpose, Write};
use crate::world::{SimEvent, World};

/// Something that the driver does and that takes time.
#[derive(Debug)]
pub enum SourceWork {
    /// Passes an event on to the state machine.
    Deliver(Event),
    /// All pages are protected now.
    Protects,
    /// The scan looks now.
    Scans(bool),
    Counts,
    /// The hypervisor copies in its own streams.
    Streams {
        /// So many pieces are left.
        left: u64,
        /// So many have been carried.
        carried: u64,
    },
    /// The hypervisor writes device state; so many pieces are left.
    Writes(u64),
    /// Everything is undone now.
    RollsBack,
    /// The hypervisor tells whether the guest is as it was when it was stopped.
    ChecksIntact,
    /// The guest is ended now.
    CleansUp,
}

/// The source's agent, and its disk.
#[derive(Debug)]
pub struct SourceDriver {
    /// Its session, if it is active.
    pub machine: Option<Source>,
    /// Counts the incarnations of the process.
    pub incarnation: u64,
    /// Counts what was begun; a roll-back or crash makes all that is in progress void.
    pub operations: u64,
    /// Whether the guest ran when it was stopped, or when the session began; as the agent has it in its record.
    pub ran: Option<bool>,
    /// It once said that commit was sent.
    pub commit_journaled: bool,
    /// What is asked next of hypervisor or tracker fails.
    pub fails_next: bool,
    /// The destination's interfaces are known.
    pub links_open: bool,
    /// The destination knows the session.
    pub greeted: bool,
    /// How many actions of the core were begun.
    pub actions: u64,
    /// The hypervisor has written device state: RAM is scanned once more.
    pub written: bool,
    /// How the session ended, if it ended alive.
    pub ending: Option<Ending>,
    /// It is known here where the guest is.
    pub decided: Option<GuestState>,
    /// Times that the hypervisor was asked to send the guest.
    pub switch_overs: u64,
    /// With [`Mutation::WriteAfterSeal`]: a write that will come once more.
    pub stray: Option<(Write, u32)>,
}

impl SourceDriver {
    /// An agent with a session that has not begun.
    pub fn new(config: Config) -> SourceDriver {
        SourceDriver {
            machine: Some(Source::new(config)),
            incarnation: 0,
            operations: 0,
            ran: None,
            commit_journaled: false,
            fails_next: false,
            links_open: false,
            greeted: false,
            actions: 0,
            written: false,
            ending: None,
            decided: None,
            switch_overs: 0,
            stray: None,
        }
    }

    /// The write that comes once more.
    pub fn take_stray(&mut self) -> Option<(Write, u32)> {
        self.stray.take()
    }

    /// A new session on the same host.
    pub fn renew(&mut self, config: Config) {
        let (incarnation, operations) = (self.incarnation + 1, self.operations + 1);
        let switch_overs = self.switch_overs;
        *self = SourceDriver { incarnation, operations, switch_overs, ..SourceDriver::new(config) };
    }
}

impl World {
    /// The operator says go.
    pub fn start_source(&mut self) {
        self.will_connect(0, Purpose::Path, Duration::from_micros(300));
        self.handle_source(Event::Start);
    }

    /// The core gets an event, and what follows from it is done.
    pub fn handle_source(&mut self, event: Event) {
        let now = self.now;
        if self.source.machine.is_some() && !matches!(event, Event::PathAlive(_)) {
            self.note(|| format!("S <- {}", short(&event)));
        }
        if let Some(machine) = self.source.machine.as_mut() {
            machine.handle(now, event);
        }
        self.settle_source();
    }

    /// Time passes at the source.
    pub fn source_tick(&mut self) {
        let now = self.now;
        let machine = self.source.machine.as_mut();
        // As the agent: a moment that the core does not name is not one for it.
        if let Some(machine) = machine.filter(|machine| machine.timeout().is_some_and(|at| at <= now)) {
            machine.handle(now, Event::Tick);
        }
        self.settle_source();
    }

    /// Does everything that the core wants done.
    pub fn settle_source(&mut self) {
        let now = self.now;
        while let Some(action) = self.source.machine.as_mut().and_then(|machine| machine.poll_action(now)) {
            self.source_action(action);
        }
        self.pump();
        self.answer_operators();
        if self.source.machine.as_ref().is_some_and(Source::is_ended) {
            self.source.machine = None;
        }
    }

    fn source_action(&mut self, action: Action) {
        if let Action::Transmit(path, outgoing) = action {
            return self.send(path, Side::Source, Packet::Control(outgoing));
        }
        self.note(|| format!("S -> {}", short(&action)));
        self.source.actions += 1;
        self.action_faults(Side::Source, self.source.actions);
        if self.source.machine.is_none() {
            return;
        }
        if self.source_action_fails(&action) {
            return;
        }
        match action {
            Action::Transmit(..) => {}
            Action::OpenLinks(_) => self.open_links(),
            Action::Attach => self.source_will(1_000, 40_000, SourceWork::Deliver(Event::Attached)),
            Action::Protect => self.source_will(100, 5_000, SourceWork::Protects),
            Action::Scan { last, also } => {
                self.guest.name(&also);
                self.source_will(50, 3_000, SourceWork::Scans(last));
            }
            Action::Count => self.source_will(20, 2_000, SourceWork::Counts),
            Action::Ready => {
                let held = self.scenario.held.unwrap_or_default();
                let micros = u64::try_from(held.as_micros()).unwrap_or_default();
                self.source_will(micros, micros + 1, SourceWork::Deliver(Event::Go));
            }
            Action::Throttle(percent) => self.guest.throttle = percent,
            Action::SwitchOver => self.switch_over(),
            Action::BeginStreams(_) => self.begin_streams(),
            Action::DeliverStreamMessage(_) => {}
            Action::ReleaseStream => self.release_stream(),
            Action::Digest => {
                let digest = digest(&self.guest.ram);
                self.source_will(500, 10_000, SourceWork::Deliver(Event::Digested(digest)));
            }
            Action::WriteDeviceState => self.write_device_state(),
            Action::Journal(phase) => self.source_journal(phase),
            Action::RollBack => {
                self.source.operations += 1;
                self.shut_gate();
                self.source_will(100, 20_000, SourceWork::RollsBack);
            }
            Action::NoticeDue(is) => self.notice_due(is),
            Action::Query { gives_up } => {
                self.ask(self.at(Side::Source), self.session, Question::Commits { gives_up })
            }
            Action::NotifyRollBack { may_be_loaded } => {
                self.begin_roll_back_notice(self.at(Side::Source), self.session, may_be_loaded)
            }
            Action::CleanUp => self.source_will(500, 10_000, SourceWork::CleansUp),
            Action::End(ending) => self.source_ended(ending),
        }
    }

    fn source_action_fails(&mut self, action: &Action) -> bool {
        let can = matches!(
            action,
            Action::Attach
                | Action::Protect
                | Action::Scan { .. }
                | Action::SwitchOver
                | Action::BeginStreams(_)
                | Action::Digest
                | Action::WriteDeviceState
                | Action::ReleaseStream
                | Action::CleanUp
        );
        if !can || !std::mem::take(&mut self.source.fails_next) {
            return false;
        }
        let step = self.source.machine.as_ref().map_or(Step::Copy, Source::step);
        let fault = Fault::new(Code::HypervisorFailed, step, Side::Source, "injected");
        self.source_will(10, 5_000, SourceWork::Deliver(Event::Failed(fault)));
        true
    }

    /// Will do something in `low` to `high` microseconds unless it becomes void.
    pub fn source_will(&mut self, low: u64, high: u64, work: SourceWork) {
        let span = self.micros(low, high);
        let operations = self.source.operations;
        self.after(span, SimEvent::Source { operations, work });
    }

    /// The driver has done something.
    pub fn source_done(&mut self, operations: u64, work: SourceWork) {
        if operations != self.source.operations || !self.hosts[self.at(Side::Source)].up {
            return;
        }
        match work {
            SourceWork::Deliver(event) => {
                if let Event::PreSwitchover { was_running, .. } = event {
                    self.note_ran(was_running);
                }
                self.handle_source(event);
            }
            SourceWork::Protects => {
                let populated = self.guest.protect();
                let event = Event::Protected { populated, paused: Duration::ZERO };
                self.source_will(0, 2_000, SourceWork::Deliver(event));
            }
            SourceWork::Scans(last) => self.scan(last),
            SourceWork::Counts => {
                let bytes = self.guest.written_bytes();
                self.handle_source(Event::Counted { bytes, took: Duration::from_millis(1) });
            }
            SourceWork::Streams { left, carried } => self.stream_piece(left, carried),
            SourceWork::Writes(left) if self.scenario.mode == ModeTag::Streams => self.rest_of_streams(left),
            SourceWork::Writes(left) => self.device_state_piece(left),
            SourceWork::RollsBack if !self.libvirt_is_settled() => {
                self.source_will(1_000, 5_000, SourceWork::RollsBack);
            }
            SourceWork::RollsBack => {
                let (guest, complete) = match self.may_run_there() {
                    true => (GuestState::PausedAtSource, false),
                    false => self.undo(),
                };
                self.handle_source(Event::RolledBack { guest, complete });
            }
            SourceWork::ChecksIntact => self.source_checks_intact(),
            SourceWork::CleansUp => {
                self.give_up(self.guest.pid, self.session);
                // The setting has ended with its process.
                self.put_back(Side::Source);
                self.handle_source(Event::CleanedUp);
            }
        }
    }

    fn scan(&mut self, last: bool) {
        // The page tables of a process that ended are empty: the tracker says so instead of *nothing written*.
        if self.guest.gone {
            let fault = Fault::new(Code::GuestGone, Step::Copy, Side::Source, "scanned");
            return self.handle_source(Event::Failed(fault));
        }
        let forgets = self.options.mutation == Some(Mutation::ScanForgets);
        let misses = self.options.mutation == Some(Mutation::EmptiedMissed);
        let (guest, random) = (&mut self.guest, &mut self.random);
        let mut dirty: Vec<Extent> = guest.scan(last, misses, || forgets && random.percent(10));
        if self.source.written && self.options.mutation == Some(Mutation::NotScannedAgain) {
            dirty.clear();
        }
        let took = self.micros(0, 2_000);
        let event = Event::Scanned { dirty, took, paused: Duration::ZERO, last_adds: Duration::ZERO };
        let operations = self.source.operations;
        self.after(took, SimEvent::Source { operations, work: SourceWork::Deliver(event) });
    }

    fn open_links(&mut self) {
        self.source.links_open = true;
        for link in 0..self.links.len() {
            let has_path = self.connections.values().any(|c| c.link == link && c.open[0]);
            if !has_path {
                let span = self.micros(500, 10_000);
                self.will_connect(link, Purpose::Path, span);
            }
            for _ in 0..self.scenario.channels {
                let span = self.micros(1_000, 40_000);
                self.will_connect(link, Purpose::Channel, span);
            }
        }
    }

    fn source_ended(&mut self, ending: Ending) {
        self.note(|| format!("the source ended: {ending:?}"));
        let (guest, unfinished) = (ending.guest, ending.unfinished);
        self.source.ending = Some(ending);
        self.hang_up(Side::Source, false);
        if self.scenario.mode == ModeTag::Handover {
            self.domain_ended();
        }
        if unfinished {
            self.leave_to_recovery(guest);
        } else {
            self.source.decided = Some(guest);
        }
    }
}

/// A line for the trace, cut where it gets long.
pub fn short(thing: &impl std::fmt::Debug) -> String {
    let mut line = format!("{thing:?}");
    if line.len() > 150 {
        let end = (0..=150).rev().find(|&at| line.is_char_boundary(at)).unwrap_or(0);
        line.truncate(end);
        line.push('…');
    }
    line
}
