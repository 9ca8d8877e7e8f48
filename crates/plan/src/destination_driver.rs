//! The destination's driver: applies writes, fences, seals, loads and runs, with a journal.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use linerate_core::destination::{Action, AfterTry, Destination, Event, TakeOver, Try};
use linerate_core::recovery::{RUN_AGAIN_AFTER, RunResult};
use linerate_core::{Code, Extent, Fault, LastLook, ModeTag, Outcome, PAGE_BYTES, Side, Step, Time};

use crate::check::{Mutation, Property};
use crate::guest::{DEVICE, Guest, TOUCHED, digest};
use crate::source_driver::short;
use crate::wire::Packet;
use crate::world::{SimEvent, World};

/// Something that the driver does and that takes time.
#[derive(Debug)]
pub enum DestinationWork {
    /// Passes an event on to the state machine.
    Deliver(Event),
    /// The incoming QEMU waits now.
    Prepares,
    /// The incoming QEMU waits now, and listens for its streams.
    PreparesStreams,
    /// Nothing is applied from the channel from now on.
    Fences(u32),
    /// Nothing is applied at all from now on.
    Seals(bool),
    /// The hypervisor has loaded now.
    Loads,
    /// The incoming QEMU has ended now.
    TearsDown,
    /// What was set for libvirt's stream is put back now.
    Releases,
    /// What an earlier session left may be gone now.
    Admits,
}

/// So many names of images there are.
pub const IMAGE_NAMES: u64 = 100;

/// What came in on a channel.
#[derive(Debug, Default)]
pub struct Received {
    /// Everything up to here has landed.
    pub applied: u64,
    /// But for these, all that were ever damaged: an acknowledgement that reported one may have been lost.
    pub damaged: Vec<u64>,
    /// How many of them an acknowledgement reported.
    pub reported_damaged: usize,
}

/// The destination's agent, its disk, and its hypervisor.
#[derive(Debug)]
pub struct DestinationDriver {
    /// Its session, if it is active.
    pub machine: Option<Destination>,
    /// Counts what was begun; a roll-back or crash makes all that is in progress void.
    pub operations: u64,
    /// The process of the incoming QEMU was started.
    pub started: bool,
    /// What is asked next of the hypervisor fails.
    pub fails_next: bool,
    pub guest: Option<Guest>,
    /// How many actions of the core were begun.
    pub actions: u64,
    /// The guest got the command to run, ever.
    pub ran: bool,
    /// It got the command to run, and the answer is missing.
    pub unsure: bool,
    shape: Vec<usize>,
    /// Pages (region, number) that the hypervisor wrote while it started.
    pub touched: BTreeSet<(u16, u64)>,
    /// Nothing is applied any more.
    pub sealed: bool,
    /// Nothing is applied from these any more.
    pub fenced: BTreeSet<u32>,
    /// What came in, by channel.
    pub received: BTreeMap<u32, Received>,
    /// When what is in each page was read at the source.
    pub read_at: Vec<Vec<Time>>,
}

impl DestinationDriver {
    /// An agent without a session.
    pub fn new(shape: &[usize]) -> DestinationDriver {
        DestinationDriver {
            machine: None,
            operations: 0,
            started: false,
            fails_next: false,
            guest: None,
            actions: 0,
            ran: false,
            unsure: false,
            shape: shape.to_vec(),
            touched: BTreeSet::new(),
            sealed: false,
            fenced: BTreeSet::new(),
            received: BTreeMap::new(),
            read_at: shape.iter().map(|&pages| vec![Time::ZERO; pages]).collect(),
        }
    }

    /// A new session on the same host: what is left of a guest is still there.
    pub fn renew(&mut self) {
        let operations = self.operations + 1;
        *self = DestinationDriver { operations, ..DestinationDriver::new(&self.shape.clone()) };
    }

    /// Nothing is in progress.
    pub fn is_idle(&self) -> bool {
        self.machine.as_ref().is_none_or(Destination::is_ended)
    }

    /// The guest is the destination's and alive.
    pub fn owns(&self) -> bool {
        self.guest.as_ref().is_some_and(|guest| guest.owned)
    }
}

impl World {
    /// Whether a connection of the session is taken. The first makes the session; later it must exist.
    pub fn destination_accepts(&mut self) -> bool {
        let host = &self.hosts[self.at(Side::Destination)];
        if !host.up {
            return false;
        }
        let known = host.record(self.session).is_some();
        if self.destination.machine.is_none() && !known && !self.source.greeted {
            let config = self.scenario.destination();
            self.destination.machine = Some(Destination::new(self.now, config));
        }
        self.destination.machine.as_ref().is_some_and(|machine| !machine.is_ended())
    }

    /// The core gets an event, and what follows from it is done.
    pub fn handle_destination(&mut self, event: Event) {
        let now = self.now;
        if self.destination.machine.is_some() && !matches!(event, Event::PathAlive(_)) {
            self.note(|| format!("D <- {}", short(&event)));
        }
        if let Some(machine) = self.destination.machine.as_mut() {
            machine.handle(now, event);
        }
        self.settle_destination();
    }

    /// Time passes at the destination.
    pub fn destination_tick(&mut self) {
        let now = self.now;
        let machine = self.destination.machine.as_mut();
        if let Some(machine) = machine.filter(|machine| machine.timeout().is_some_and(|at| at <= now)) {
            machine.handle(now, Event::Tick);
        }
        self.settle_destination();
    }

    fn settle_destination(&mut self) {
        let now = self.now;
        while let Some(action) =
            self.destination.machine.as_mut().and_then(|machine| machine.poll_action(now))
        {
            self.destination_action(action);
        }
        self.answer_operators();
    }

    fn destination_action(&mut self, action: Action) {
        if let Action::Transmit(path, outgoing) = action {
            if outgoing.reports_running() {
                // As the agent: a copy is given up only for a guest that runs.
                if self.outcome_at(self.at(Side::Destination), self.session) == Outcome::Gone {
                    let fault = Fault::new(Code::GuestGone, Step::Commit, Side::Destination, "injected");
                    return self.handle_destination(Event::GuestEnded(fault));
                }
                // A repeated message is as true as the first.
                if !self.check.taken_over.contains(&self.session) {
                    self.reports_committed(self.at(Side::Destination), self.session);
                }
            }
            return self.send(path, Side::Destination, Packet::Control(outgoing));
        }
        self.note(|| format!("D -> {}", short(&action)));
        self.destination.actions += 1;
        self.action_faults(Side::Destination, self.destination.actions);
        if self.destination.machine.is_none() || self.destination_action_fails(&action) {
            return;
        }
        match action {
            Action::Transmit(..) | Action::End(_) => {}
            Action::Admit { .. } => self.admit(),
            Action::Prepare => {
                let work = match self.scenario.mode {
                    ModeTag::Direct | ModeTag::Handover => DestinationWork::Prepares,
                    ModeTag::Streams => DestinationWork::PreparesStreams,
                };
                self.destination_will(3_000, 60_000, work);
            }
            Action::DeliverStreamMessage(_) => {}
            Action::RestoreHypervisor => self.destination_will(100, 10_000, DestinationWork::Releases),
            Action::Fence(channel) => self.destination_will(0, 30_000, DestinationWork::Fences(channel)),
            Action::Seal { digest } => self.destination_will(0, 4_000, DestinationWork::Seals(digest)),
            Action::LoadDeviceState(_) => self.load_piece(),
            Action::FinishDeviceState => self.destination_will(500, 15_000, DestinationWork::Loads),
            Action::Journal(phase) => self.destination_journal(phase),
            Action::LeaveToRecovery { rolled_back, .. } => self.leave_arrival_to_recovery(rolled_back),
            Action::CheckDisks(disks) => self.check_disks(&disks),
            Action::Run { was_running: ran } => self.runs_over_here(ran),
            Action::Look => self.handle_destination(Event::Looked(LastLook::NothingWrong)),
            Action::Discard => {
                self.destination.operations += 1;
                self.destination_will(500, 30_000, DestinationWork::TearsDown);
            }
        }
    }

    fn destination_action_fails(&mut self, action: &Action) -> bool {
        let (code, fails) = match action {
            Action::Admit { .. } => (Code::MemoryShort, true),
            Action::Prepare
            | Action::Seal { .. }
            | Action::LoadDeviceState(_)
            | Action::RestoreHypervisor => (Code::HypervisorFailed, true),
            Action::FinishDeviceState => (Code::HypervisorFailed, true),
            _ => (Code::Internal, false),
        };
        if !fails || !std::mem::take(&mut self.destination.fails_next) {
            return false;
        }
        if let (Action::LoadDeviceState(_), Some(guest)) = (action, self.destination.guest.as_mut()) {
            guest.broken = true;
        }
        let step = self.destination.machine.as_ref().map_or(linerate_core::Step::Admit, Destination::step);
        let fault = Fault::new(code, step, Side::Destination, "injected");
        self.destination_will(10, 5_000, DestinationWork::Deliver(Event::Failed(fault)));
        true
    }

    /// Will do something in `low` to `high` microseconds unless it becomes void.
    pub fn destination_will(&mut self, low: u64, high: u64, work: DestinationWork) {
        let span = self.micros(low, high);
        let operations = self.destination.operations;
        self.after(span, SimEvent::Destination { operations, work });
    }

    /// The driver has done something.
    pub fn destination_done(&mut self, operations: u64, work: DestinationWork) {
        if operations != self.destination.operations || !self.hosts[self.at(Side::Destination)].up {
            return;
        }
        match work {
            DestinationWork::Deliver(event) => self.handle_destination(event),
            DestinationWork::Prepares => self.prepares(),
            DestinationWork::PreparesStreams => self.prepares_streams(),
            DestinationWork::Fences(channel) => self.fences(channel),
            DestinationWork::Seals(wanted) => self.seals(wanted),
            // The failure was reported when it came.
            DestinationWork::Loads if self.destination.guest.as_ref().is_none_or(|guest| guest.broken) => {}
            DestinationWork::Loads => {
                if let Some(guest) = self.destination.guest.as_mut() {
                    guest.loaded = true;
                }
                self.handle_destination(Event::DeviceStateLoaded);
            }
            DestinationWork::TearsDown | DestinationWork::Releases if !self.libvirt_is_settled() => {
                self.destination_will(1_000, 5_000, work);
            }
            DestinationWork::Releases => self.restores_hypervisor(),
            DestinationWork::TearsDown => {
                self.discard_incoming();
                self.handle_destination(Event::Discarded);
            }
            DestinationWork::Admits => self.admit(),
        }
    }

    /// libvirt's hypervisor is as it was before, and the journal says so.
    fn restores_hypervisor(&mut self) {
        self.put_back(Side::Destination);
        let (now, host, session) = (self.now, self.at(Side::Destination), self.session);
        if !self.hosts[host].note_put_back(now, session) {
            let fault = Fault::new(Code::JournalFailed, Step::CleanUp, Side::Destination, "injected");
            return self.handle_destination(Event::Failed(fault));
        }
        self.handle_destination(Event::HypervisorRestored);
    }

    fn runs_over_here(&mut self, ran: bool) {
        let span = self.micros(50, 8_000);
        let (operations, since) = (self.destination.operations, self.now);
        let take_over = TakeOver::new(since);
        self.after(span, SimEvent::HypervisorRuns { operations, ran, since, take_over });
    }

    /// The hypervisor got the command to take the guest over, and does, whether or not the agent still runs. It
    /// gets it again while it refuses.
    pub fn hypervisor_runs(&mut self, operations: u64, ran: bool, since: Time, mut take_over: TakeOver) {
        let is_current = operations == self.destination.operations;
        // A try after a refusal is the agent's: one that has ended makes none.
        if !is_current && self.now - since >= RUN_AGAIN_AFTER {
            return;
        }
        let rolled_back = self.destination.machine.as_ref().is_some_and(|one| one.is_rolled_back_at_source());
        let is_retry = is_current && self.now - since >= RUN_AGAIN_AFTER;
        if is_retry && let Some(instead) = take_over.instead(rolled_back) {
            return self.after_try(instead, operations, ran, since, take_over);
        }
        let refuses = is_current && std::mem::take(&mut self.destination.fails_next);
        let result = match self.destination.guest.as_ref().map(|guest| guest.pid) {
            None => RunResult::Ended,
            Some(_) if refuses => RunResult::Refused,
            Some(pid) => self.try_to_run(pid, ran),
        };
        if !is_current || !self.hosts[self.at(Side::Destination)].up {
            return;
        }
        let after = take_over.tried(
            self.now,
            match result {
                RunResult::Runs => Try::Done,
                RunResult::Refused => Try::Refused,
                RunResult::Ended => Try::Ended,
                RunResult::Unknown => Try::Lost { ran: None },
            },
        );
        let is_known = matches!(result, RunResult::Runs | RunResult::Ended);
        self.destination.unsure = take_over.may_have_run() && !is_known;
        self.after_try(after, operations, ran, since, take_over);
    }

    fn after_try(&mut self, after: AfterTry, operations: u64, ran: bool, since: Time, take_over: TakeOver) {
        let step = linerate_core::Step::Commit;
        let fault = |code| Fault::new(code, step, Side::Destination, "injected");
        match after {
            AfterTry::Runs => self.handle_destination(Event::GuestRuns {
                took: std::time::Duration::from_millis(1),
                cpu: std::time::Duration::ZERO,
            }),
            AfterTry::Ended => self.handle_destination(Event::GuestEnded(fault(Code::GuestGone))),
            AfterTry::CannotRun => {
                self.handle_destination(Event::CannotRun(fault(Code::HypervisorFailed)));
            }
            AfterTry::MayHaveRun => {
                self.handle_destination(Event::MayHaveRun(fault(Code::HypervisorFailed)));
            }
            AfterTry::TryAt(at) => {
                self.after(at - self.now, SimEvent::HypervisorRuns { operations, ran, since, take_over });
            }
        }
    }

    /// The disks that the source's guest uses, against those of the incoming QEMU.
    fn check_disks(&mut self, disks: &str) {
        let ours = self.destination.guest.as_ref().map(|guest| guest.image);
        let theirs = disks.parse().ok();
        let same = match self.options.mutation {
            Some(Mutation::GraphNotCompared) => true,
            // The lower digits are an image's name, the others distinguish it from all others of that name.
            Some(Mutation::StaleDiskTaken) => {
                ours.map(|image| image % IMAGE_NAMES) == theirs.map(|image: u64| image % IMAGE_NAMES)
            }
            _ => ours == theirs,
        };
        let event = if same {
            Event::DisksChecked
        } else {
            let step = linerate_core::Step::Blackout;
            Event::Failed(Fault::new(Code::GuestDiffers, step, Side::Destination, "another image"))
        };
        self.destination_will(50, 5_000, DestinationWork::Deliver(event));
    }

    /// The journal does not take the process of the incoming QEMU.
    pub fn cannot_note(&mut self) {
        let step = linerate_core::Step::Prepare;
        let fault = Fault::new(Code::JournalFailed, step, Side::Destination, "injected");
        self.handle_destination(Event::Failed(fault));
    }

    fn admit(&mut self) {
        let host = self.at(Side::Destination);
        let left = self.all().any(|guest| guest.host == host);
        let event = if self.scenario.mode == ModeTag::Handover {
            self.find_waiting()
        } else if left && !self.hosts[host].cases.is_empty() && self.now - self.began < Duration::from_secs(5)
        {
            return self.destination_will(40_000, 60_000, DestinationWork::Admits);
        } else if left {
            let fault =
                Fault::new(Code::GuestExists, linerate_core::Step::Admit, Side::Destination, "left over");
            Event::Failed(fault)
        } else {
            // Its RAM is made now, so that it can be filled while the hypervisor still starts.
            let (habits, pid) = (self.scenario.habits.clone(), self.new_pid());
            let mut waiting = Guest::waiting(&self.scenario.shape, habits, pid, host);
            waiting.made_for = self.session;
            waiting.image = self.image_at(host);
            // QEMU before 10.0, if it was prepared for a guest that does not run.
            waiting.locks_when_loaded = !self.scenario.runs && self.seed.is_multiple_of(2);
            self.destination.guest = Some(waiting);
            Event::Admitted(Vec::new())
        };
        self.destination_will(500, 15_000, DestinationWork::Deliver(event));
    }

    fn prepares(&mut self) {
        if !self.note_waiting() {
            return self.cannot_note();
        }
        let touched = self.hypervisor_touches();
        self.set_hypervisor(Side::Destination);
        let touched =
            if self.options.mutation == Some(Mutation::TouchedForgotten) { Vec::new() } else { touched };
        let regions = self.scenario.regions();
        self.handle_destination(Event::Prepared { regions, touched });
    }

    /// The hypervisor writes to some pages while it starts.
    fn hypervisor_touches(&mut self) -> Vec<Extent> {
        let mut touched = Vec::new();
        for (region, pages) in (0..).zip(self.scenario.shape.clone()) {
            let page = self.random.between(0, 2 * pages as u64);
            let ram =
                self.destination.guest.as_mut().and_then(|guest| guest.ram.get_mut(usize::from(region)));
            if let Some(content) = ram.and_then(|ram| ram.get_mut(page as usize)) {
                *content = TOUCHED;
                self.destination.touched.insert((region, page));
                touched.push(Extent::new(region, page * PAGE_BYTES, PAGE_BYTES));
            }
        }
        touched
    }

    fn fences(&mut self, channel: u32) {
        self.destination.fenced.insert(channel);
        self.check.reported_fenced.insert(channel);
        let received = self.destination.received.entry(channel).or_default();
        let first = if self.options.mutation == Some(Mutation::FenceForgetsRefused) {
            received.reported_damaged
        } else {
            0
        };
        let damaged = received.damaged.get(first..).unwrap_or_default().to_vec();
        let event = Event::Fenced { channel, applied: received.applied, damaged };
        self.handle_destination(event);
    }

    fn seals(&mut self, wanted: bool) {
        self.destination.sealed = true;
        self.check.reported_sealed = true;
        let digest = self.destination.guest.as_ref().filter(|_| wanted).map(|guest| digest(&guest.ram));
        self.handle_destination(Event::Sealed(digest));
    }

    /// The hypervisor writes a page of RAM itself while it loads.
    fn load_piece(&mut self) {
        self.check.that(self.check.reported_sealed, Property::SealedAndFenced, || {
            String::from("device state is loaded before RAM is sealed")
        });
        if let Some(page) =
            self.destination.guest.as_mut().and_then(|guest| guest.ram.first_mut()?.first_mut())
        {
            *page = DEVICE;
        }
        if self.options.mutation == Some(Mutation::WriteAfterSeal)
            && let Some((write, channel)) = self.source.take_stray()
        {
            self.land(channel, &write, false);
        }
    }
}
