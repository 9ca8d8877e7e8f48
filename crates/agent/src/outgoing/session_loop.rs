//! The loop of a migration: gives events to the core and has its actions executed.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use linerate_api::CpuTime;
use linerate_core::control::Outgoing as Frame;
use linerate_core::journal::{Decided, SourcePhase};
use linerate_core::source::{Action, Ending, Event};
use linerate_core::{Code, Endpoint, Fault, GuestState, Message, PathId, Side, Step};
use linerate_guest::run_state::RunState;

use super::links;
use super::progress::{self, ReportedSteps};
use super::rejoin::rejoin;
use super::worker::Worker;
use super::{Input, News, Outgoing, Sessions};
use crate::both_hosts;
use crate::clock::cpu_time;
use crate::faults::{chain, fault};
use crate::journal::{Record, Role};
use crate::ran_here::{RanHere, Sighting};
use crate::recovery;
use crate::session::links::Links;
use crate::session::paths::Paths;

/// Progress is published this often.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// A rate that was measured for a shorter time says little.
const FIRST_SAMPLE: Duration = Duration::from_millis(250);

/// Between two looks whether the destination has answered the notice of a roll-back.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Everything that the loop has of its own.
pub(super) struct SessionLoop {
    pub shared: Arc<Outgoing>,
    pub worker: Worker,
    pub sessions: Arc<Sessions>,
    pub record: Record,
    paths: Paths,
    pub links: Option<Links<Outgoing>>,
    reported: ReportedSteps,
    progress_at: Instant,
    cpu_before: Duration,
    pub ending: Option<Ending>,
    /// When the first byte of RAM had arrived, and the round of the last sample for the observer.
    sampled: Option<(Instant, u32)>,
    /// The destination is to be asked when it is known that the source's guest is intact; whether the operator gives
    /// the copy here up.
    asks: Option<bool>,
}

impl SessionLoop {
    /// A loop that has not begun.
    pub fn new(
        shared: Arc<Outgoing>,
        worker: Worker,
        sessions: Arc<Sessions>,
        record: Record,
    ) -> SessionLoop {
        SessionLoop {
            shared,
            worker,
            sessions,
            record,
            paths: Paths::default(),
            links: None,
            reported: ReportedSteps::default(),
            progress_at: Instant::now(),
            cpu_before: cpu_time(),
            ending: None,
            sampled: None,
            asks: None,
        }
    }

    /// Runs until the core ends the session.
    pub fn run(mut self, inbox: &Receiver<Input>) {
        while self.ending.is_none() {
            self.wait(inbox);
            self.act();
            self.reported.publish(&self.shared);
            let is_time = self.progress_at.elapsed() >= PROGRESS_EVERY;
            self.sample(is_time);
            if is_time {
                self.progress_at = Instant::now();
                let progress = progress::progress(&self.shared);
                self.shared.event_log.publish(linerate_api::EventKind::Progress(Box::new(progress)));
            }
        }
        self.end();
    }

    /// Tells the observer how far the copy is: from a quarter of a second after its first byte on, and at the end of
    /// each round.
    fn sample(&mut self, is_time: bool) {
        if self.shared.observer.is_none() {
            return;
        }
        let round = self.shared.machine().round();
        if !is_time && self.sampled.is_none_or(|(_, last)| last == round) {
            return;
        }
        let Some(sample) = progress::sample(&self.shared) else { return };
        let first = self.sampled.map_or_else(Instant::now, |(first, _)| first);
        self.sampled = Some((first, round));
        if first.elapsed() >= FIRST_SAMPLE {
            self.shared.notify(News::Sample(sample));
        }
    }

    /// Takes what is in the inbox, or lets time pass.
    fn wait(&mut self, inbox: &Receiver<Input>) {
        let now = self.shared.clock.now();
        let shows = PROGRESS_EVERY.saturating_sub(self.progress_at.elapsed());
        let wait = self.shared.machine().timeout().map_or(shows, |at| at.since(now).min(shows));
        match inbox.recv_timeout(wait) {
            Ok(input) => self.take(input),
            Err(RecvTimeoutError::Timeout) => self.handle(Event::Tick),
            // Cannot be: we hold a sender.
            Err(RecvTimeoutError::Disconnected) => {}
        }
        while let Ok(input) = inbox.try_recv() {
            self.take(input);
        }
    }

    pub(super) fn take(&mut self, input: Input) {
        match input {
            // Held until it is handled.
            Input::Control(event, _held) => self.take(Input::Event(event.into())),
            Input::Event(Event::PathLost(path)) => {
                if let Some(link) = self.paths.remove(path) {
                    self.shared.losses.path_lost(link, path, "its control connection is closed");
                }
                self.handle(Event::PathLost(path));
                if self.links.is_none() {
                    rejoin(&self.shared, links::peers(&self.shared, &self.record));
                }
            }
            // What it did here after commit makes the destination's copy an old one: that is to be given up.
            Input::Event(event @ Event::RolledBack { guest: GuestState::Gone, .. })
                if self.record.ran_here() == RanHere::Yes =>
            {
                self.notice_due(true);
                self.handle(event);
            }
            Input::Event(event) => self.handle(event),
            Input::PriorRunState(state) => self.note_prior_run_state(state),
            Input::EventAt(at, event) => self.shared.machine().handle(at, event),
            Input::Path(id, link, path) => {
                self.paths.add(id, link, path);
                self.handle(Event::PathUp(id));
            }
            Input::LinkLost(link) => {
                for path in self.paths.of_link(link) {
                    self.paths.remove(path);
                    self.handle(Event::PathLost(path));
                }
            }
            Input::SourceUnchanged if self.shared.machine().is_to_commit() => {
                self.write_journal(SourcePhase::CommitSent);
            }
            // It was given up meanwhile.
            Input::SourceUnchanged => {}
            Input::SourceSeen(seen) => self.source_seen(seen),
            Input::RanHereToo => {
                self.note_ran_here(RanHere::Yes);
                self.note_if_it_ran_here();
            }
            Input::HypervisorRestored => {
                if let Role::Handover { over, .. } = &mut self.record.role {
                    *over = true;
                }
            }
            Input::Wake => self.handle(Event::Tick),
            Input::StreamsSpeak => {
                let notes = self.shared.stream_transport().map(|transport| transport.streams.take_notes());
                for (stream, note) in notes.unwrap_or_default() {
                    self.handle(Event::SendStreamMessage(Message::Stream { stream, note }));
                }
            }
            Input::ChannelLost(channel, error) => {
                let now = self.shared.clock.now();
                self.shared.machine().channel_lost(now, channel);
                if let Some(transport) = self.shared.stream_transport() {
                    transport.streams.channel_gone(channel);
                }
                self.shared.losses.channel_lost(channel, &error);
            }
        }
    }

    /// An operator or an I/O error paused the guest during the copy: no agent resumes it, a later one neither. The
    /// guest does not run, so nothing waits while this is written.
    fn note_prior_run_state(&mut self, state: Option<RunState>) {
        let Role::Source { ran, run_state_before, .. } = &mut self.record.role else { return };
        if *run_state_before == state && *ran == state.is_none() {
            return;
        }
        (*ran, *run_state_before) = (state.is_none(), state);
        if let Err(error) = self.sessions.journal.put(self.shared.session, &self.record) {
            tracing::warn!(session = %self.shared.session, error = chain(&error), "a later agent would put the guest into the run state that it had when the migration began: it was paused or resumed since");
        }
    }

    /// A later agent asks and notifies the destination at the addresses of the links too. They are on disk before
    /// anything is copied, while the guest runs.
    pub(super) fn open_links(&mut self, endpoints: &[Endpoint]) {
        self.links = Some(links::open(&self.shared, endpoints));
        let reachable = links::peers(&self.shared, &self.record);
        let Role::Source { peers, .. } = &mut self.record.role else { return };
        if *peers == reachable {
            return;
        }
        *peers = reachable;
        if let Err(error) = self.sessions.journal.put(self.shared.session, &self.record) {
            tracing::warn!(session = %self.shared.session, error = chain(&error), "a later agent would reach the destination only at the addresses by which this one did first");
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.shared.clock.now();
        self.shared.machine().handle(now, event);
    }

    fn act(&mut self) {
        loop {
            let now = self.shared.clock.now();
            let Some(action) = self.shared.machine().poll_action(now) else { break };
            if !matches!(action, Action::Transmit(..)) {
                tracing::debug!(?action, "action");
            }
            self.execute(action);
        }
        // New work, a stop, or a fence that returned extents: waiting threads check.
        self.shared.work.notify_all();
    }

    /// Asks when it is known that the source's guest is intact. `gives_up`: the operator ends the copy here.
    pub(super) fn ask_destination(&mut self, gives_up: bool) {
        if self.asks.replace(gives_up).is_none() {
            self.worker.submit("check source intact", |guest| guest.check_source_intact());
        }
    }

    pub(super) fn roll_back(&self) {
        // First: a QEMU whose connections are not read may not answer, and holds its guest.
        if let Some(transport) = self.shared.stream_transport() {
            transport.streams.fail_all();
        }
        self.worker.roll_back();
    }

    /// What was to be done if the source's paused guest is as it was: commit, or the question that is commit again.
    fn source_seen(&mut self, seen: Sighting) {
        let asks = self.asks.take();
        if self.shared.machine().is_to_commit() {
            return self.commit_if_intact(seen);
        }
        // A roll-back has begun meanwhile.
        let Some(gives_up) = asks else { return };
        let now = self.record.ran_here().after(seen);
        self.note_ran_here(now);
        match now {
            RanHere::No => links::query(&self.shared, &self.record, gives_up),
            RanHere::Maybe | RanHere::Yes => {
                links::say_that_it_is_here(&self.shared, &self.sessions, &self.record, gives_up);
                self.handle(Event::RanHere);
            }
        }
    }

    fn note_ran_here(&mut self, now: RanHere) {
        self.sessions.journal.note_ran_here(self.shared.session, &mut self.record, now);
        *self.shared.ran_here.lock() = now;
    }

    fn commit_if_intact(&mut self, seen: Sighting) {
        let detail = match seen {
            Sighting::Stopped | Sighting::Nothing => {
                return self.handle(Event::Journaled(SourcePhase::CommitSent));
            }
            Sighting::Resumed => {
                "the guest was resumed or reset at the source by another program before it was committed"
            }
            Sighting::Unclear => {
                "the guest may have been resumed at the source by another program before it was committed: its QEMU does not answer, and its virtual CPUs have used CPU time"
            }
        };
        self.handle(Event::Failed(Fault::new(Code::GuestDiffers, Step::Commit, Side::Source, detail)));
    }

    /// A commit was on its way when another program let the guest run here, and the destination has run it. If an
    /// operator gives the copy here up, the destination may not have said that.
    pub(super) fn note_if_it_ran_here(&self) {
        let is_given_up = self.shared.decided_for(false) == Decided::Waiting;
        if self.record.ran_here() == RanHere::Yes && !is_given_up {
            both_hosts::note(&self.sessions.journal, &self.sessions.audit, self.shared.session);
        }
    }

    pub(super) fn transmit(&mut self, path: PathId, frame: Frame) {
        if !self.paths.send(path, frame) {
            self.take(Input::Event(Event::PathLost(path)));
        }
    }

    /// Whether a later agent is to send the destination the roll-back notice.
    pub(super) fn notice_due(&mut self, is: bool) {
        if let Role::Source { notice_due, .. } = &mut self.record.role {
            *notice_due = is;
        }
        if !is {
            self.sessions.journal.note_notified(self.shared.session);
        }
    }

    pub(super) fn write_journal(&mut self, new: SourcePhase) {
        if new == SourcePhase::Finished {
            self.shared.notify(News::Left);
        }
        let reachable = links::peers(&self.shared, &self.record);
        let mut record = self.record.clone();
        match &mut record.role {
            Role::Source { phase, peers, qemu, vcpu_time, .. } => {
                (*phase, *peers) = (new, reachable);
                if new == SourcePhase::CommitSent {
                    vcpu_time.count(qemu.process.pid);
                }
            }
            Role::Handover { .. } | Role::Destination { .. } | Role::Libvirt { .. } => {}
        }
        record.changed_unix_ms = crate::clock::unix_ms();
        let (journal, session) = (&self.sessions.journal, self.shared.session);
        let is_end = matches!(new, SourcePhase::Finished | SourcePhase::RolledBack);
        let put = if is_end { journal.put_end(session, &record) } else { journal.put(session, &record) };
        self.shared.journal_trouble.note(session, &put);
        // What the disk did not take is not so, but for an end, which is written until it does.
        if put.is_ok() || is_end {
            self.record = record;
        }
        match put {
            // The core commits when it is known that the source's guest is intact.
            Ok(()) if new == SourcePhase::CommitSent => {
                self.handle(Event::CommitWritten);
                self.worker.submit("check source intact", |guest| guest.check_source_intact());
            }
            Ok(()) => self.handle(Event::Journaled(new)),
            Err(error) => {
                let step = self.shared.machine().step();
                self.handle(Event::Failed(fault(Code::JournalFailed, step, Side::Source, &error)));
            }
        }
    }

    /// An operator has let the guest run here after commit was sent. If the destination runs it too, its answer to the
    /// notice says so.
    fn look_at_both_hosts(&self, ending: Ending) -> Ending {
        let (journal, session) = (&self.sessions.journal, self.shared.session);
        if ending.unfinished || self.shared.decided_for(true) != Decided::Taken {
            return ending;
        }
        let is_due = || matches!(journal.get(session), Ok(Some(record)) if record.is_notice_due());
        let end = Instant::now() + both_hosts::NOTICE_WAIT;
        while is_due() && Instant::now() < end {
            std::thread::sleep(LOOK_EVERY);
        }
        if !both_hosts::has(journal, &session.to_string()) {
            return ending;
        }
        let fault = Fault::new(Code::Cancelled, Step::Commit, Side::Source, both_hosts::NOTE);
        Ending { fault: Some(fault), guest: GuestState::Unknown, ..ending }
    }

    /// The guest has left, and another program ran it here after commit: neither an operator nor a drain takes that for
    /// a good end.
    fn tell_that_both_ran(&self, ending: Ending) -> Ending {
        if ending.fault.is_some() || self.record.ran_here() != RanHere::Yes {
            return ending;
        }
        let fault = Fault::new(Code::GuestDiffers, Step::Commit, Side::Source, both_hosts::ENDED);
        Ending { fault: Some(fault), ..ending }
    }

    fn end(mut self) {
        self.shared.work.notify_all();
        self.act();
        let Some(ending) = self.ending.take() else { return };
        drop(self.links.take());
        if let Some(transport) = self.shared.stream_transport() {
            transport.end(self.shared.session);
        }
        if ending.unfinished {
            recovery::continue_session(
                &self.sessions.recovery,
                self.shared.session,
                self.record.clone(),
                ending.guest,
            );
        } else if ending.guest == GuestState::Gone && self.record.ran_here() == RanHere::Yes {
            links::send_roll_back_notice(&self.shared, &self.sessions, &self.record, true);
        }
        self.paths.clear();
        let ending = self.tell_that_both_ran(self.look_at_both_hosts(ending));
        let downtime_ms = self.worker.finish();
        let destination = self.shared.machine().statistics().destination_cpu;
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
        self.reported.publish(&self.shared);
        let finished = progress::finished(&self.shared, &ending, cpu, downtime_ms);
        self.shared.release();
        let request = &self.shared.request;
        // The end of a domain's migration is recorded where libvirt's part of it ends.
        if !matches!(self.record.role, Role::Handover { .. }) {
            self.sessions.audit.migration_end(
                &self.shared.session.to_string(),
                &request.guest,
                &request.to,
                self.shared.dialler.identity.cipher(),
                &finished,
            );
        }
        self.shared.event_log.publish(finished);
        self.shared.notify(News::Ended(ending));
    }
}
