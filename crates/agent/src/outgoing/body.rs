//! The loop of a migration: events to the brain, its actions to the hands.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use linerate_api::CpuTime;
use linerate_core::control::Outgoing as Frame;
use linerate_core::journal::SourcePhase;
use linerate_core::source::{Action, Ending, Event};
use linerate_core::{Code, Fault, LinkId, Message, PathId, Side, Step};
use linerate_net::control::ControlPath;

use super::domain::Leaving;
use super::links::{self, Links};
use super::progress::{self, Told};
use super::rejoin::rejoin;
use super::worker::{Job, Worker};
use super::{Input, Outgoing};
use crate::agent::Agent;
use crate::clock::cpu_time;
use crate::control;
use crate::faults::{chain, fault};
use crate::journal::{Record, Role};
use crate::recovery;

/// Progress is told this often.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

struct Path {
    path: ControlPath,
    link: Option<LinkId>,
}

/// Everything that the loop has of its own.
pub(super) struct Body {
    pub shared: Arc<Outgoing>,
    pub worker: Worker,
    pub agent: Arc<Agent>,
    pub record: Record,
    paths: HashMap<PathId, Path>,
    links: Option<Links>,
    told: Told,
    progress_at: Instant,
    cpu_before: Duration,
    ending: Option<Ending>,
    /// The destination is to be asked when it is known that the guest stands here.
    asks: bool,
}

impl Body {
    /// A body that has not begun.
    pub fn new(shared: Arc<Outgoing>, worker: Worker, agent: Arc<Agent>, record: Record) -> Body {
        Body {
            shared,
            worker,
            agent,
            record,
            paths: HashMap::new(),
            links: None,
            told: Told::default(),
            progress_at: Instant::now(),
            cpu_before: cpu_time(),
            ending: None,
            asks: false,
        }
    }

    /// Runs until the brain says that it is over.
    pub fn run(mut self, inbox: &Receiver<Input>) {
        while self.ending.is_none() {
            self.wait(inbox);
            self.act();
            self.told.steps(&self.shared);
            if self.progress_at.elapsed() >= PROGRESS_EVERY {
                self.progress_at = Instant::now();
                let progress = progress::progress(&self.shared);
                self.shared.hub.publish(linerate_api::EventKind::Progress(Box::new(progress)));
            }
        }
        self.end();
    }

    /// Takes what is in the inbox, or lets time pass.
    fn wait(&mut self, inbox: &Receiver<Input>) {
        let now = self.shared.clock.now();
        let until = self.shared.brain().timeout(now).unwrap_or(now);
        match inbox.recv_timeout(until.since(now)) {
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
            Input::Event(Event::PathLost(path)) => {
                let link = self.paths.remove(&path).and_then(|path| path.link);
                if let Some(link) = link {
                    self.shared.board.path_lost(link, "its control connection is gone");
                }
                self.handle(Event::PathLost(path));
                if self.links.is_none() {
                    rejoin(&self.shared, links::peers(&self.shared, &self.record));
                }
            }
            Input::Event(event) => self.handle(event),
            Input::Stood(state) => self.note_stood(state),
            Input::EventAt(at, event) => self.shared.brain().handle(at, event),
            Input::Path(id, link, path) => {
                self.paths.insert(id, Path { path, link });
                self.handle(Event::PathUp(id));
            }
            Input::LinkLost(link) => {
                let of_link = self.paths.iter().filter(|(_, path)| path.link == Some(link));
                let gone: Vec<PathId> = of_link.map(|(&id, _)| id).collect();
                for id in gone {
                    self.paths.remove(&id);
                    self.handle(Event::PathLost(id));
                }
            }
            Input::Stands(stands) => self.stands(stands),
            Input::Wake => self.handle(Event::Tick),
            Input::StreamsSpeak => {
                let notes = self.shared.carriage().map(|carriage| carriage.streams.take_notes());
                for (stream, note) in notes.unwrap_or_default() {
                    self.handle(Event::Carriage(Message::Stream { stream, note }));
                }
            }
            Input::ChannelLost(channel, error) => {
                let now = self.shared.clock.now();
                self.shared.brain().channel_lost(now, channel);
                if let Some(carriage) = self.shared.carriage() {
                    carriage.streams.channel_gone(channel);
                }
                self.shared.board.channel_lost(channel, &error);
            }
        }
    }

    /// An operator or an I/O error stopped the guest on the way: nobody lets it run again by himself, a later agent neither.
    /// It stands, so that nobody waits while this is written.
    fn note_stood(&mut self, state: Option<String>) {
        let Role::Source { ran, stood, .. } = &mut self.record.role else { return };
        if *stood == state && *ran == state.is_none() {
            return;
        }
        (*ran, *stood) = (state.is_none(), state);
        if let Err(error) = self.agent.journal.put(self.shared.session, &self.record) {
            tracing::warn!(session = %self.shared.session, error = chain(&error), "a later agent would let the guest do what it did when the migration began: it was paused or resumed since");
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.shared.clock.now();
        self.shared.brain().handle(now, event);
    }

    fn act(&mut self) {
        loop {
            let now = self.shared.clock.now();
            let Some(action) = self.shared.brain().poll_action(now) else { break };
            if !matches!(action, Action::Transmit(..)) {
                tracing::debug!(?action, "action");
            }
            self.execute(action);
        }
        // New work, a stop, or a fence that gave extents back: whoever waits looks.
        self.shared.work.notify_all();
    }

    pub(super) fn execute(&mut self, action: Action) {
        match action {
            Action::Transmit(path, frame) => self.transmit(path, frame),
            Action::OpenLinks(endpoints) => self.links = Some(Links::open(&self.shared, &endpoints)),
            Action::Attach => self.worker.ask(Job::Attach),
            Action::Protect => self.worker.ask(Job::Protect),
            Action::Scan { last, also } => self.worker.ask(Job::Scan { last, also }),
            Action::Throttle(percent) => self.worker.ask(Job::Throttle(percent)),
            Action::SwitchOver => self.worker.ask(Job::SwitchOver),
            Action::Digest => self.worker.ask(Job::Digest),
            Action::WriteDeviceState => self.worker.ask(Job::WriteDeviceState),
            Action::LetThrough => self.worker.ask(Job::LetThrough),
            Action::BeginStreams(settings) => self.worker.ask(Job::BeginStreams(settings)),
            Action::Carriage(message) => self.shared.heard(message),
            Action::RollBack => {
                // First: a QEMU whose connections nobody reads may not answer, and holds its guest.
                if let Some(carriage) = self.shared.carriage() {
                    carriage.streams.fail_all();
                }
                self.worker.ask(Job::RollBack);
            }
            Action::CleanUp => self.worker.ask(Job::CleanUp),
            Action::Journal(phase) => self.write_journal(phase),
            Action::Query if !self.asks => {
                self.asks = true;
                self.worker.ask(Job::CheckStands);
            }
            Action::Query => {}
            Action::Untold(is) => self.untold(is),
            // The destination does not know of the roll-back.
            Action::Withdraw { held } => {
                links::withdraw(&self.shared, &self.agent.journal, &self.record, held);
            }
            Action::End(ending) => self.ending = Some(ending),
        }
    }

    /// What was to be done if the guest stands here as it was left: commit, or the question that says commit again.
    fn stands(&mut self, stands: bool) {
        let asks = std::mem::take(&mut self.asks);
        let commits = self.shared.brain().is_to_commit();
        match stands {
            true if commits => self.handle(Event::Journaled(SourcePhase::CommitSent)),
            true if asks => links::query(&self.shared, &self.record),
            true => {}
            false if commits => {
                let detail =
                    "somebody let the guest run again, or reset it, at the source before it was committed";
                let fault = Fault::new(Code::GuestDiffers, Step::Commit, Side::Source, detail);
                self.handle(Event::Failed(fault));
            }
            false => {
                tracing::error!(
                    session = %self.shared.session,
                    "the guest's migration is not decided, and somebody lets it run here: the destination is not asked any more, which would let it run there too; `linerate resolve` decides"
                );
                if asks {
                    self.handle(Event::Unanswered);
                }
            }
        }
    }

    fn transmit(&mut self, path: PathId, frame: Frame) {
        let Some(target) = self.paths.get(&path) else { return };
        tracing::trace!(path, what = control::variant(&frame), "transmit");
        let began = Instant::now();
        let sent = control::send(&target.path, frame);
        if began.elapsed() > Duration::from_millis(5) {
            tracing::debug!(path, took = ?began.elapsed(), "a control connection was slow to take a frame");
        }
        if let Err(error) = sent {
            tracing::debug!(path, %error, "a control connection takes nothing more");
            self.take(Input::Event(Event::PathLost(path)));
        }
    }

    /// Whether a later agent is to tell the destination of the roll-back.
    fn untold(&mut self, is: bool) {
        if let Role::Source { untold, .. } = &mut self.record.role {
            *untold = is;
        }
        if !is {
            super::is_told(&self.agent.journal, self.shared.session);
        }
    }

    fn write_journal(&mut self, new: SourcePhase) {
        let reachable = links::peers(&self.shared, &self.record);
        let mut record = self.record.clone();
        match &mut record.role {
            Role::Source { phase, peers, .. } => (*phase, *peers) = (new, reachable),
            Role::Handover { over, .. } => {
                *over = self.shared.domain.as_ref().is_some_and(Leaving::is_put_back)
            }
            Role::Destination { .. } => {}
        }
        record.changed_unix_ms = crate::clock::unix_ms();
        let (journal, session) = (&self.agent.journal, self.shared.session);
        let is_end = matches!(new, SourcePhase::Finished | SourcePhase::RolledBack);
        let put = if is_end { journal.put_end(session, &record) } else { journal.put(session, &record) };
        // What the disk did not take is not so, but for an end, which is written until it does.
        if put.is_ok() || is_end {
            self.record = record;
        }
        match put {
            // Said when it is known that the guest still stands here.
            Ok(()) if new == SourcePhase::CommitSent => self.worker.ask(Job::CheckStands),
            Ok(()) => self.handle(Event::Journaled(new)),
            Err(error) => {
                let step = self.shared.brain().step();
                self.handle(Event::Failed(fault(Code::JournalFailed, step, Side::Source, &error)));
            }
        }
    }

    fn end(mut self) {
        self.shared.work.notify_all();
        self.act();
        let Some(ending) = self.ending.take() else { return };
        drop(self.links.take());
        if let Some(carriage) = self.shared.carriage() {
            carriage.end(self.shared.session);
        }
        if ending.unfinished {
            recovery::hand_over(&self.agent, self.shared.session, self.record.clone(), ending.guest);
        }
        self.paths.clear();
        let downtime = self.worker.qemu_downtime_ms.clone();
        self.worker.finish();
        let downtime_ms = *downtime.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let destination = self.shared.brain().statistics().destination_cpu;
        let cpu = CpuTime {
            source_agent_us: progress::us(cpu_time().saturating_sub(self.cpu_before)),
            destination_agent_us: progress::us(destination),
        };
        match &ending.fault {
            None => {
                tracing::info!(session = %self.shared.session, guest = self.shared.request.guest, "moved")
            }
            Some(fault) => {
                let guest = ending.guest.sentence();
                tracing::warn!(session = %self.shared.session, guest = self.shared.request.guest, %fault, guest_state = guest, "not moved");
            }
        }
        self.told.steps(&self.shared);
        let finished = progress::finished(&self.shared, &ending, cpu, downtime_ms);
        self.shared.release();
        self.shared.hub.publish(finished);
    }
}
