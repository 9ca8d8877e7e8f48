//! The loop of a session: gives events to the core and has its actions executed.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use linerate_core::control::Outgoing as Frame;
use linerate_core::destination::{Action, Event};
use linerate_core::journal::DestinationPhase;
use linerate_core::{Code, Fault, Message, Outcome, PathId, Side, Step, Time};

use super::budget::Share;
use super::worker::Worker;
use super::{Incoming, Input, Sessions};
use crate::audit;
use crate::both_hosts;
use crate::faults::{chain, fault};
use crate::journal::{IncomingRecord, Record};
use crate::recovery::STOPPED_FOR;
use crate::session::paths::Paths;

/// Where only events lead on; any length would do.
const LONG: Duration = Duration::from_secs(3600);

/// While the source is heard before an operator's decision is carried out, it is seen this often whether the process
/// was stopped.
const LISTENS_EVERY: Duration = Duration::from_secs(1);

/// Inputs that are taken before the actions that follow from them are executed. A source that never pauses would have
/// any number of actions wait.
const INPUTS_MAX: usize = 256;

/// Everything that the loop has of its own.
pub(super) struct SessionLoop {
    sessions: Arc<Sessions>,
    pub shared: Arc<Incoming>,
    pub worker: Worker,
    /// Memory that the source's bytes take in the core.
    pub held: Share,
    paths: Paths,
    over: bool,
}

impl SessionLoop {
    pub fn new(sessions: Arc<Sessions>, shared: Arc<Incoming>) -> io::Result<SessionLoop> {
        let worker = Worker::start(sessions.clone(), shared.clone())?;
        let held = Share::new(sessions.budget.clone(), &shared.opener, shared.peer);
        Ok(SessionLoop { sessions, shared, worker, held, paths: Paths::default(), over: false })
    }

    /// Runs until the core ends the session.
    pub fn run(mut self, inbox: &Receiver<Input>) {
        while !self.over {
            let (now, wait) = self.wait();
            let received = inbox.recv_timeout(wait);
            self.note_if_stopped(now + wait, self.shared.clock.now());
            match received {
                Ok(input) => self.take(input),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => self.handle(Event::Tick),
            }
            self.take_waiting(inbox);
            self.act(inbox);
        }
        if let Some(stream_transport) = self.shared.stream_transport() {
            stream_transport.end(self.shared.session);
        }
        self.shared.fences.close_all();
        self.paths.clear();
        self.worker.finish();
        self.sessions.forget(self.shared.session);
    }

    /// What time it is, and how long nothing is due.
    fn wait(&self) -> (Time, Duration) {
        let (machine, now) = (self.shared.machine(), self.shared.clock.now());
        let wait = machine.timeout().map_or(LONG, |at| at.since(now));
        let most = if machine.waiting_decision() == Some(true) { LISTENS_EVERY } else { LONG };
        (now, wait.min(most))
    }

    /// `woken_at`: when this thread was to go on at the latest. The process was stopped if it does so much later.
    fn note_if_stopped(&self, woken_at: Time, now: Time) {
        if now - woken_at > STOPPED_FOR {
            self.shared.machine().was_deaf(now);
        }
    }

    fn take_waiting(&mut self, inbox: &Receiver<Input>) {
        for input in inbox.try_iter().take(INPUTS_MAX) {
            self.take(input);
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            // Held until it is handled.
            Input::Control(event, _held) => self.take(Input::Event(event.into())),
            Input::Event(Event::PathLost(path)) => {
                self.paths.remove(path);
                self.handle(Event::PathLost(path));
            }
            Input::Event(event) => {
                if let Event::Received { path, sequence, message } = &event {
                    tracing::trace!(path, sequence, message = ?message.tag(), "received");
                }
                self.handle(event);
            }
            Input::StreamsSpeak => {
                let shared = self.shared.clone();
                let notes =
                    shared.stream_transport().map(|stream_transport| stream_transport.streams.take_notes());
                for (stream, note) in notes.unwrap_or_default() {
                    self.handle(Event::SendStreamMessage(Message::Stream { stream, note }));
                }
            }
            Input::ChannelLost(channel, error) => {
                tracing::debug!(channel, error = chain(&error), "a channel is lost");
                let shared = self.shared.clone();
                let Some(stream_transport) = shared.stream_transport() else { return };
                if stream_transport.streams.channel_gone(channel) {
                    self.handle(Event::SendStreamMessage(Message::Fence { channel }));
                }
                stream_transport.remove_pump(channel);
            }
            Input::Asked(stream, service) => self.shared.asked(stream, service),
            Input::Refused(stream) => {
                tracing::error!(stream, "a stream was refused that this side never opened");
            }
            Input::Path(path, connection) => {
                self.paths.add(path, None, connection);
                self.handle(Event::PathUp(path));
            }
        }
    }

    pub(super) fn handle(&mut self, event: Event) {
        let now = self.shared.clock.now();
        let mut machine = self.shared.machine();
        machine.handle(now, event);
        let Err(over) = self.held.set(machine.held_bytes()) else { return };
        // A guest that is complete stays: its source may have committed. Each session's own limit holds.
        if !machine.is_complete() {
            let over = fault(Code::MemoryShort, machine.step(), Side::Destination, &over);
            machine.handle(now, Event::Failed(over));
        }
    }

    fn act(&mut self, inbox: &Receiver<Input>) {
        loop {
            let now = self.shared.clock.now();
            let Some(action) = self.shared.machine().poll_action(now) else { return };
            let commits = action == Action::Journal(DestinationPhase::Committed);
            self.execute(action);
            // Its source may have rolled back while the disk was slow: then it is not run.
            while commits && let Ok(input) = inbox.try_recv() {
                self.take(input);
            }
        }
    }

    /// A copy is given up only for a guest that runs: the message that it runs is held back if its QEMU is ending.
    pub(super) fn transmit(&mut self, path: PathId, frame: Frame) {
        if frame.reports_running() && self.is_gone() {
            let detail = "its QEMU ended after it was committed";
            let gone = Fault::new(Code::GuestGone, Step::Commit, Side::Destination, detail);
            self.handle(Event::GuestEnded(gone));
        } else if !self.paths.send(path, frame) {
            self.take(Input::Event(Event::PathLost(path)));
        }
    }

    pub(super) fn discard(&self) {
        // First: a QEMU that waits for its streams may not answer.
        if let Some(stream_transport) = self.shared.stream_transport() {
            stream_transport.streams.fail_all();
        }
        self.worker.discard();
    }

    /// Recovery has the guest before this session is over: at every moment it is known to one of them.
    pub(super) fn leave_to_recovery(&mut self, fault: &Fault, rolled_back: bool) {
        let (session, guest) = (self.shared.session, self.shared.guest());
        let role = self.incoming_record().role(DestinationPhase::Committed);
        let record = Record::new(&guest, self.shared.order, role);
        // Recovery's line comes behind it.
        self.audit_end(Some(fault));
        self.sessions.leave_to_recovery(session, record, rolled_back);
        tracing::error!(
            %session,
            guest,
            %fault,
            "the guest was committed to this host and cannot be run; it may have run already, as an answer of its QEMU was lost: it is looked at, and stays paused if an operator has to decide (`linerate resolve`)"
        );
        self.over = true;
    }

    fn audit_end(&self, fault: Option<&Fault>) {
        let from = audit::host(&self.shared.opener, self.shared.peer, None);
        self.sessions.audit.arrival_end(self.shared.session, &self.shared.guest(), from, fault);
    }

    pub(super) fn end(&mut self, fault: Option<Fault>) {
        let session = self.shared.session;
        self.audit_end(fault.as_ref());
        match fault {
            None => tracing::info!(%session, guest = self.shared.guest(), "the guest is here"),
            Some(fault) => tracing::warn!(%session, %fault, "the guest did not arrive"),
        }
        self.over = true;
    }

    /// Whether the guest's process here has ended or is ending, if it is known.
    fn has_ended(&self) -> bool {
        self.worker.record().qemu.is_some_and(|qemu| qemu.cannot_run())
    }

    /// Whether a guest that was committed has ended or is ending, and has not moved on.
    fn is_gone(&self) -> bool {
        self.has_ended()
            && matches!(self.sessions.outcome(self.shared.session), Outcome::Gone | Outcome::Pending)
    }

    /// What the journal has of the incoming QEMU.
    fn incoming_record(&self) -> IncomingRecord {
        let mut record = self.worker.record();
        let machine = self.shared.machine();
        (record.ran, record.mode) = (machine.was_running(), machine.mode());
        record
    }

    pub(super) fn write_journal(&mut self, phase: DestinationPhase) {
        let name = self.shared.machine().guest().to_owned();
        *self.shared.guest.lock() = name;
        let mut record = self.incoming_record();
        if phase == DestinationPhase::Committed && self.has_ended() {
            let detail = "its QEMU ended before it was committed";
            return self.handle(Event::Failed(Fault::new(
                Code::GuestGone,
                Step::Commit,
                Side::Destination,
                detail,
            )));
        }
        if phase == DestinationPhase::Committed {
            if let Some(qemu) = &record.qemu {
                record.vcpu_time.count(qemu.process.pid);
            }
            self.worker.note_vcpu_time(record.vcpu_time.clone());
        }
        let record = Record::new(&self.shared.guest(), self.shared.order, record.role(phase));
        let (journal, session) = (&self.sessions.journal, self.shared.session);
        let put = match phase {
            DestinationPhase::Started | DestinationPhase::Loaded | DestinationPhase::Committed => {
                journal.put(session, &record)
            }
            _ => journal.put_end(session, &record),
        };
        self.shared.journal_trouble.note(session, &put);
        // A command that QEMU had already could not be called back.
        if phase == DestinationPhase::Running && self.shared.is_rolled_back_at_source() {
            both_hosts::note(journal, &self.sessions.audit, session);
        }
        match put {
            Ok(()) => self.handle(Event::Journaled(phase)),
            Err(error) => {
                let step = self.shared.machine().step();
                self.handle(Event::Failed(fault(Code::JournalFailed, step, Side::Destination, &error)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
