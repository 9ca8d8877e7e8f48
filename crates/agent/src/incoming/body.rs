//! The loop of a session: events to the brain, its actions to the hands.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use linerate_core::control::Outgoing as Frame;
use linerate_core::destination::{Action, Event};
use linerate_core::journal::DestinationPhase;
use linerate_core::{Code, Fault, Message, Outcome, PathId, Side, Step};
use linerate_guest::procfs;
use linerate_net::control::{ControlEvent, ControlOptions, ControlPath};
use linerate_net::tcp::Stream;

use super::worker::{Job, Worker};
use super::{Incoming, Input, channels};
use crate::agent::Agent;
use crate::clock::cpu_time;
use crate::control;
use crate::faults::{chain, fault};
use crate::journal::Record;

/// Everything that the loop has of its own.
pub(super) struct Body {
    agent: Arc<Agent>,
    shared: Arc<Incoming>,
    worker: Worker,
    paths: HashMap<PathId, ControlPath>,
    cpu_before: Duration,
    over: bool,
}

impl Body {
    pub fn new(agent: Arc<Agent>, shared: Arc<Incoming>) -> io::Result<Body> {
        let worker = Worker::start(agent.clone(), shared.clone())?;
        Ok(Body { agent, shared, worker, paths: HashMap::new(), cpu_before: cpu_time(), over: false })
    }

    /// Runs until the brain says that it is over.
    pub fn run(mut self, inbox: &Receiver<Input>) {
        while !self.over {
            let now = self.shared.clock.now();
            let until = self.shared.brain().timeout(now).unwrap_or(now);
            match inbox.recv_timeout(until.since(now)) {
                Ok(input) => self.take(input),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => self.handle(Event::Tick),
            }
            while let Ok(input) = inbox.try_recv() {
                self.take(input);
            }
            self.act();
        }
        if let Some(carriage) = self.shared.carriage.get() {
            carriage.end(self.shared.session);
        }
        self.shared.channels.close_all();
        self.paths.clear();
        self.worker.finish();
        self.agent.forget_incoming(self.shared.session);
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Event(Event::PathLost(path)) => {
                self.paths.remove(&path);
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
                let notes = shared.carriage.get().map(|carriage| carriage.streams.take_notes());
                for (stream, note) in notes.unwrap_or_default() {
                    self.handle(Event::Carriage(Message::Stream { stream, note }));
                }
            }
            Input::ChannelLost(channel, error) => {
                tracing::debug!(channel, error = chain(&error), "a channel is lost");
                let shared = self.shared.clone();
                let Some(carriage) = shared.carriage.get() else { return };
                if carriage.streams.channel_gone(channel) {
                    self.handle(Event::Carriage(Message::Fence { channel }));
                }
                carriage.remove_pump(channel);
            }
            Input::Asked(stream, service) => self.shared.asked(stream, service),
            Input::Path(path, connection) => {
                self.paths.insert(path, connection);
                self.handle(Event::PathUp(path));
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.shared.clock.now();
        self.shared.brain().handle(now, event);
    }

    fn act(&mut self) {
        loop {
            let now = self.shared.clock.now();
            let Some(action) = self.shared.brain().poll_action(now) else { return };
            self.execute(action);
        }
    }

    fn execute(&mut self, action: Action) {
        match action {
            // A copy is given up only for a guest that runs.
            Action::Transmit(_, frame) if frame.says_running() && self.is_gone() => {
                let detail = "its QEMU ended after it was committed";
                let gone = Fault::new(Code::GuestGone, Step::Commit, Side::Destination, detail);
                self.handle(Event::GuestEnded(gone));
            }
            Action::Transmit(path, frame) => self.transmit(path, frame),
            Action::Admit { guest, description, mode } => {
                tracing::info!(session = %self.shared.session, guest, mode = %mode.tag(), peer = %self.shared.peer, "a guest is offered");
                self.worker.ask(Job::Admit { guest, description, mode });
            }
            Action::Prepare => self.worker.ask(Job::Prepare),
            Action::Carriage(message) => self.shared.heard(message),
            Action::Fence(channel) => channels::fence(&self.shared, channel),
            Action::Seal { digest } => self.worker.ask(Job::Seal { digest }),
            Action::LoadDeviceState(bytes) => self.worker.ask(Job::LoadDeviceState(bytes)),
            Action::FinishDeviceState => self.worker.ask(Job::FinishDeviceState),
            Action::Journal(phase) => self.write_journal(phase),
            Action::CheckDisks(disks) => self.worker.ask(Job::CheckDisks(disks)),
            Action::Run { ran } => self.worker.ask(Job::Run { ran, cpu_before: self.cpu_before }),
            Action::Release => self.worker.ask(Job::Release),
            Action::TearDown => {
                // First: a QEMU that waits for its streams may not answer.
                if let Some(carriage) = self.shared.carriage.get() {
                    carriage.streams.fail_all();
                }
                self.worker.ask(Job::TearDown);
            }
            Action::End(fault) => {
                match fault {
                    None => {
                        tracing::info!(session = %self.shared.session, guest = self.shared.guest(), "the guest is here")
                    }
                    Some(fault) => {
                        tracing::warn!(session = %self.shared.session, %fault, "the guest did not come")
                    }
                }
                self.over = true;
            }
        }
    }

    fn transmit(&mut self, path: PathId, frame: Frame) {
        let Some(target) = self.paths.get(&path) else { return };
        tracing::trace!(path, what = control::variant(&frame), "transmit");
        if let Err(error) = control::send(target, frame) {
            tracing::debug!(path, %error, "a control connection takes nothing more");
            self.take(Input::Event(Event::PathLost(path)));
        }
    }

    /// Whether the guest's process here has ended or is ending, if it is known.
    fn has_ended(&self) -> bool {
        self.worker.waiting().qemu.is_some_and(|qemu| !qemu.can_run())
    }

    /// Whether a guest that was committed has ended or is ending, and has not moved on.
    fn is_gone(&self) -> bool {
        self.has_ended()
            && matches!(self.agent.outcome(self.shared.session), Outcome::Gone | Outcome::Pending)
    }

    fn write_journal(&mut self, phase: DestinationPhase) {
        let name = self.shared.brain().guest().to_owned();
        *self.shared.guest.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = name;
        let mut waiting = self.worker.waiting();
        let brain = self.shared.brain();
        (waiting.ran, waiting.mode) = (brain.ran(), brain.mode());
        drop(brain);
        if phase == DestinationPhase::Committed && self.has_ended() {
            let detail = "its QEMU ended before it was handed over";
            return self.handle(Event::Failed(Fault::new(
                Code::GuestGone,
                Step::Commit,
                Side::Destination,
                detail,
            )));
        }
        if phase == DestinationPhase::Committed {
            let pid = waiting.qemu.as_ref().map(|qemu| qemu.process.pid);
            waiting.cpu_run_ns = pid.and_then(|pid| procfs::run_time_ns(pid, &waiting.cpu_threads));
            self.worker.note_run_time(waiting.cpu_run_ns);
        }
        let record = Record::new(&self.shared.guest(), self.shared.order, waiting.role(phase));
        let (journal, session) = (&self.agent.journal, self.shared.session);
        let put = match phase {
            DestinationPhase::Started | DestinationPhase::Loaded | DestinationPhase::Committed => {
                journal.put(session, &record)
            }
            _ => journal.put_end(session, &record),
        };
        match put {
            Ok(()) => self.handle(Event::Journaled(phase)),
            Err(error) => {
                let step = self.shared.brain().step();
                self.handle(Event::Failed(fault(Code::JournalFailed, step, Side::Destination, &error)));
            }
        }
    }
}

/// Reads a control connection in threads of `linerate-net`. The path is given to the loop, which owns it from then on.
pub(super) fn attach_path(shared: &Arc<Incoming>, stream: Stream) -> io::Result<()> {
    let number = shared.next_path.fetch_add(1, Ordering::Relaxed);
    let path = u16::try_from(number).map_err(io::Error::other)?;
    let started = ControlPath::start(path, stream, ControlOptions::default(), shared.control.clone());
    let _ = shared.inbox.send(Input::Path(number, started.map_err(io::Error::other)?));
    Ok(())
}

/// What came over a control path, for the brain.
pub(super) fn control_event(event: ControlEvent) -> Event {
    match event {
        ControlEvent::Message { path, sequence, message } => {
            Event::Received { path: path.into(), sequence, message }
        }
        ControlEvent::Acknowledged { path, through } => {
            Event::ControlAcknowledged { path: path.into(), through }
        }
        ControlEvent::Keepalive { path } => Event::Heard(path.into()),
        ControlEvent::Lost { path, error } => {
            tracing::debug!(path, error = chain(&error), "a control connection is gone");
            Event::PathLost(path.into())
        }
    }
}

#[cfg(test)]
mod tests;
