//! The destination's state machine.
//!
//! ```mermaid
//! stateDiagram-v2
//!   [*] --> Waiting
//!   Waiting --> Admitting: Offer / check and reserve
//!   Admitting --> Admitted: Admitted
//!   Admitted --> Preparing: Prepare / start the incoming QEMU
//!   Preparing --> Receiving: Prepared
//!   Preparing --> Streaming: StreamsPrepared
//!   Receiving --> Sealing: RamComplete / refuse further writes
//!   Sealing --> Loading: Sealed, digests agree / RamSealed
//!   Loading --> JournalingLoaded: the hypervisor loaded its state, and the disks are those of Stopped / journal Loaded
//!   Streaming --> JournalingLoaded
//!   JournalingLoaded --> Loaded: Journaled / Loaded
//!   Loading --> RestoringHypervisor: Finished, in mode Handover / put the capability back
//!   RestoringHypervisor --> [*]: HypervisorRestored
//!   Loaded --> Journaling: Commit, or Finished / journal Committed
//!   Journaling --> Resuming: Journaled / run
//!   Resuming --> Running: the guest runs / journal Running, Running
//!   Resuming --> Discarding: it cannot be run and never ran, and the source has its copy / journal Returned, end it
//!   Resuming --> Resuming: it cannot be run, and cannot return / run
//!   Resuming --> [*]: its hypervisor has ended
//!   Resuming --> [*]: it cannot be run, and may have run / leave it to recovery
//!   Running --> Running: it has run for a moment / look at it, LastLook
//!   Running --> [*]: Finished, and LastLook is acknowledged
//!   Waiting --> Discarding: any fault before Loaded / journal Aborted, then end the guest
//!   Loaded --> Discarding: the source or an operator decides so
//!   Discarding --> Closing: Discarded / notify the source
//!   Closing --> [*]: it is acknowledged, or not waited for any longer
//! ```
//!
//! The guarantees: the guest runs only after [`DestinationPhase::Committed`] is on disk, and it never runs after
//! [`DestinationPhase::Aborted`] or [`DestinationPhase::Returned`] is (rule 1). From [`DestinationPhase::Loaded`] on
//! the source may have committed, and its host may be lost: the guest is kept, however long there is no answer (rule
//! 12).
//!
//! Writes are applied from `Admitted` to `Sealing` (rule 5), while the incoming QEMU still starts. What it touched
//! meanwhile is reported to the source, which copies it again. In mode Streams no write is applied to RAM at all.

mod device_state;
mod ending;
mod interface;
mod look;
mod names;
mod take_over;
mod timers;

pub use take_over::{AfterTry, TakeOver, Try};

use std::collections::VecDeque;
use std::time::Duration;

use self::device_state::DeviceState;
pub use self::device_state::piece_weight;
pub use self::interface::{Action, Config, Event};
use self::look::Look;
use crate::control::Control;
use crate::journal::{Decided, DestinationPhase};
use crate::operator_decision::OperatorDecision;
use crate::source_copy::SourceCopy;
use crate::{Code, Fault, Message, Mode, ModeTag, Outcome, PathId, Side, Step, Time, UnknownMode};

#[derive(Clone, Debug, PartialEq)]
enum State {
    Waiting,
    Admitting,
    Admitted,
    Preparing,
    Receiving,
    /// The hypervisor takes its own streams.
    Streaming,
    Sealing {
        digest: Option<u64>,
    },
    Loading,
    /// Loaded and checked; the journal does not have it yet.
    JournalingLoaded,
    Loaded,
    /// libvirt runs the guest.
    RestoringHypervisor,
    /// `retry_at`: the disk did not take it; it is written again then.
    Journaling {
        retry_at: Option<Time>,
    },
    /// `retry_at`: it could not be run, and cannot return to the source; it is tried again then.
    Resuming {
        retry_at: Option<Time>,
    },
    Running {
        until: Time,
    },
    Discarding {
        fault: Fault,
    },
    Closing {
        fault: Fault,
        until: Time,
    },
    Ended,
}

impl State {
    fn step(&self) -> Step {
        match self {
            State::Waiting | State::Admitting | State::Admitted => Step::Admit,
            State::Preparing => Step::Prepare,
            State::Receiving | State::Streaming => Step::Copy,
            State::Sealing { .. } | State::Loading | State::JournalingLoaded => Step::Blackout,
            State::Loaded | State::Journaling { .. } | State::Resuming { .. } => Step::Commit,
            State::Running { .. }
            | State::RestoringHypervisor
            | State::Discarding { .. }
            | State::Closing { .. }
            | State::Ended => Step::CleanUp,
        }
    }
}

/// The destination's state machine; the module's page has its diagram.
#[derive(Debug)]
pub struct Destination {
    config: Config,
    state: State,
    control: Control,
    actions: VecDeque<Action>,
    started: Time,
    guest: String,
    committed: bool,
    source_copy: SourceCopy,
    /// Committed, and it could not be run.
    returned: bool,
    /// Committed, and its hypervisor has ended.
    gone: bool,
    /// Committed, and recovery has it.
    left_to_recovery: bool,
    /// The source's roll-back notice came while commit was being written, or while the guest was just being run.
    rolled_back: bool,
    /// The operator's decision. It waits until it is carried out: the guest runs here, or nothing is left of it.
    operator_decision: OperatorDecision,
    /// An operator wants the guest to run here: then that is carried out, if the source has not been heard before.
    runs_at: Option<Time>,
    /// The source's message that its guest has stopped; whether it ran until then.
    was_running: Option<bool>,
    disks_checked: bool,
    state_loaded: bool,
    /// How the guest moves; `None` before a mode that this agent knows was offered.
    mode: Option<ModeTag>,
    device_state: DeviceState,
    look: Look,
    /// The source has ended its copy of a guest that runs here.
    is_source_finished: bool,
}

impl Destination {
    /// A destination that waits for an offer.
    pub fn new(now: Time, config: Config) -> Destination {
        Destination {
            config,
            state: State::Waiting,
            control: Control::default(),
            actions: VecDeque::new(),
            started: now,
            guest: String::new(),
            committed: false,
            source_copy: SourceCopy::default(),
            returned: false,
            gone: false,
            left_to_recovery: false,
            rolled_back: false,
            operator_decision: OperatorDecision::default(),
            runs_at: None,
            was_running: None,
            disks_checked: false,
            state_loaded: false,
            mode: None,
            device_state: DeviceState::default(),
            look: Look::default(),
            is_source_finished: false,
        }
    }

    /// Takes one event; the actions that follow are queued for the driver.
    pub fn handle(&mut self, now: Time, event: Event) {
        match event {
            Event::PathUp(path) => {
                self.control.path_up(now, path);
                self.source_is_heard();
            }
            Event::PathLost(path) => self.control.path_lost(now, path),
            Event::PathAlive(path) => self.control.note_activity(now, path),
            Event::ControlAcknowledged { path, through } => self.control.acknowledged(now, path, through),
            Event::Received { path, sequence, message } => self.received(now, path, sequence, message),
            Event::Fenced { channel, applied, damaged } => {
                self.control.send(now, Message::Fenced { channel, applied, damaged });
            }
            Event::SendStreamMessage(message) => self.control.send(now, message),
            Event::Failed(fault) => self.fail(now, fault),
            Event::ReceivingFailed(fault) => self.fail(now, fault),
            Event::Cancel if !self.is_complete() => {
                self.fail(now, self.fault(Code::Cancelled, "by the destination's operator"));
            }
            // The source's copy may be lost: see `resolve`.
            Event::Cancel => {}
            Event::RolledBackAtSource => self.rolled_back_at_source(now),
            Event::CommitAgain { copy } => self.commit_aside(now, copy),
            Event::SourceResumes => {
                self.source_copy.note_resumes(now);
                self.source_is_heard();
            }
            Event::Resolve(run) => self.resolve(now, run),
            Event::CannotRun(fault) => self.cannot_run(now, fault),
            Event::MayHaveRun(fault) => self.may_have_run(fault),
            Event::GuestEnded(fault) => self.guest_ended(fault),
            Event::Tick => {}
            event => self.driver_event(now, event),
        }
        self.check_timers(now);
    }

    /// The next thing to do.
    pub fn poll_action(&mut self, now: Time) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            if let Action::LoadDeviceState(bytes) = &action {
                self.device_state.taken(bytes);
            }
            return Some(action);
        }
        self.control.poll_outgoing(now).map(|(path, outgoing)| Action::Transmit(path, outgoing))
    }

    /// The answer to a source that asks.
    pub fn outcome(&self) -> Outcome {
        match &self.state {
            _ if self.gone => Outcome::Gone,
            _ if self.left_to_recovery => Outcome::Pending,
            State::Running { .. } => Outcome::Committed,
            State::Ended if self.committed => Outcome::Committed,
            State::Closing { .. } | State::Ended if self.returned => Outcome::Returned,
            State::Closing { .. } | State::Ended => Outcome::Aborted,
            _ => Outcome::Pending,
        }
    }

    /// The guest may have got the command to run: it is not given up by itself any more.
    pub fn is_committed(&self) -> bool {
        self.committed || matches!(self.state, State::Journaling { .. })
    }

    /// The guest is complete and the source, which may have committed, does not answer: an operator may decide.
    pub fn is_held(&self) -> bool {
        matches!(self.state, State::Loaded) && self.control.paths() == 0
    }

    /// An operator may decide, or has decided and that does not count yet.
    pub fn is_in_doubt(&self) -> bool {
        self.is_held() || self.operator_decision.waiting().is_some()
    }

    /// The operator's decision that is not carried out yet.
    pub fn waiting_decision(&self) -> Option<bool> {
        self.operator_decision.waiting()
    }

    /// Whether the operator may decide so: while one decision waits, no other is taken.
    pub fn takes(&self, run: bool) -> bool {
        self.is_in_doubt() && self.operator_decision.takes(run)
    }

    /// What became of the operator's decision for `run`.
    pub fn decided_for(&self, run: bool) -> Decided {
        self.operator_decision.decided_at_destination_for(run, self.rolled_back)
    }

    /// The source has rolled back after commit: the guest is not to be let run here any more.
    pub fn is_rolled_back_at_source(&self) -> bool {
        self.rolled_back
    }

    /// The guest is complete here, and this copy may be the only one: it is too late to cancel.
    pub fn is_complete(&self) -> bool {
        matches!(
            self.state,
            State::JournalingLoaded
                | State::Loaded
                | State::Journaling { .. }
                | State::Resuming { .. }
                | State::Running { .. }
        )
    }

    /// Whether the guest ran at the source when it was stopped, once the source has said it.
    pub fn was_running(&self) -> Option<bool> {
        self.was_running
    }

    /// Whether it is over.
    pub fn is_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// The step that is in progress.
    pub fn step(&self) -> Step {
        self.state.step()
    }

    /// Name of the guest that was offered; empty before. Known before [`Action::Journal`] of the first phase is asked
    /// for: a record without it cannot be recovered from.
    pub fn guest(&self) -> &str {
        &self.guest
    }

    /// How the guest moves; `None` before a mode that this agent knows was offered.
    pub fn mode(&self) -> Option<ModeTag> {
        self.mode
    }

    /// Number of control connections that are up.
    pub fn paths(&self) -> usize {
        self.control.paths()
    }

    /// Highest control message received without a gap.
    pub fn received_through(&self) -> u64 {
        self.control.received_through()
    }

    fn received(&mut self, now: Time, path: PathId, sequence: u64, message: Message) {
        if !self.control.received(now, path, sequence, message) {
            self.fail(now, self.fault(Code::ProtocolViolation, "a control message far ahead of its turn"));
        }
        while let Some(message) = self.control.poll_delivered() {
            self.message(now, message);
        }
    }

    fn message(&mut self, now: Time, message: Message) {
        match (&self.state, message) {
            (_, Message::Fence { channel }) => self.actions.push_back(Action::Fence(channel)),
            (_, Message::RoundMark { .. }) => {}
            (_, Message::Abort(fault)) => self.peer_aborted(now, fault),
            (State::Discarding { .. } | State::Closing { .. } | State::Ended, message) => {
                self.message_after_abort(now, message);
            }
            (State::Waiting, Message::Offer { guest, description, mode }) => {
                self.guest.clone_from(&guest);
                self.offered(now, guest, description, mode);
            }
            (_, message @ (Message::Stream { .. } | Message::Fenced { .. })) if self.carries_streams() => {
                self.actions.push_back(Action::DeliverStreamMessage(message));
            }
            (State::Admitted, Message::Prepare) => {
                self.state = State::Preparing;
                self.actions.push_back(Action::Prepare);
            }
            (State::Receiving, Message::RamComplete { digest }) => {
                self.state = State::Sealing { digest };
                self.actions.push_back(Action::Seal { digest: digest.is_some() });
            }
            (State::Receiving | State::Sealing { .. } | State::Loading, Message::DeviceState { bytes })
                if self.takes_device_state() =>
            {
                self.receive_device_state(now, bytes)
            }
            (
                State::Receiving | State::Sealing { .. } | State::Loading,
                Message::DeviceStateEnd { total },
            ) if self.has_all_device_state(total) => self.end_device_state(),
            (State::Receiving | State::Streaming, Message::Stopped { was_running, disks })
                if self.was_running.is_none() && self.commits() =>
            {
                self.was_running = Some(was_running);
                self.actions.push_back(Action::CheckDisks(disks));
            }
            (State::Loading, Message::Finished) if !self.commits() => {
                self.state = State::RestoringHypervisor;
                self.actions.push_back(Action::RestoreHypervisor);
            }
            // It arrives late.
            (State::Loaded, Message::Commit) if self.source_resumes(now) => {}
            (State::Loaded, Message::Commit) => self.commit(),
            // It was said on a connection of its own before.
            (State::Journaling { .. } | State::Resuming { .. } | State::Running { .. }, Message::Commit) => {}
            (State::Running { .. }, Message::Finished) => self.source_finished(now),
            // Its operator has ended the copy there before the guest was confirmed: the one here is the only one.
            (State::Loaded | State::Journaling { .. } | State::Resuming { .. }, Message::Finished)
                if self.commits() =>
            {
                self.source_copy.note(now, false);
                self.commit();
            }
            (_, message) => self.violation(now, &message),
        }
    }

    fn offered(&mut self, now: Time, guest: String, description: String, mode: Result<Mode, UnknownMode>) {
        match mode {
            Ok(mode) => {
                self.state = State::Admitting;
                self.mode = Some(mode.tag());
                self.actions.push_back(Action::Journal(DestinationPhase::Started));
                self.actions.push_back(Action::Admit { guest, description, mode });
            }
            Err(unknown) => {
                let detail = unknown.to_string();
                self.fail(now, Fault::new(Code::NotMigratable, Step::Admit, Side::Destination, detail));
            }
        }
    }

    fn carries_streams(&self) -> bool {
        self.mode.is_some_and(ModeTag::carries_streams)
    }

    fn commits(&self) -> bool {
        self.mode.is_some_and(ModeTag::commits)
    }

    /// The source waits for Loaded; it must be on disk first, for from then on the source may commit.
    fn note_when_loaded(&mut self) {
        let loads = matches!(self.state, State::Loading | State::Streaming);
        if loads && self.state_loaded && self.disks_checked {
            self.state = State::JournalingLoaded;
            self.actions.push_back(Action::Journal(DestinationPhase::Loaded));
        }
    }

    pub(super) fn commit(&mut self) {
        if self.state == State::Loaded {
            self.state = State::Journaling { retry_at: None };
            self.actions.push_back(Action::Journal(DestinationPhase::Committed));
        }
    }

    /// Not by the session.
    pub(super) fn commit_aside(&mut self, now: Time, copy: bool) {
        self.source_copy.note(now, copy);
        if !self.source_resumes(now) {
            self.commit();
        }
    }

    /// Whether the guest can return. Otherwise the copy here may be the only one.
    pub(super) fn source_has_copy(&self, now: Time) -> bool {
        self.source_copy.is_there(now)
    }

    /// The source cannot know yet that we gave up; the abort is on its way or will be found by asking.
    fn message_after_abort(&mut self, now: Time, message: Message) {
        if let (State::Closing { until, .. }, Message::Aborted) = (&mut self.state, message) {
            *until = now;
        }
    }

    fn violation(&mut self, now: Time, message: &Message) {
        let (what, state) = (message.name(), self.state.name());
        let detail = format!("the source sent {what} while the destination was {state}");
        self.fail(now, Fault::new(Code::ProtocolViolation, self.state.step(), Side::Source, detail));
    }

    fn driver_event(&mut self, now: Time, event: Event) {
        match (&self.state, event) {
            (State::Admitting, Event::Admitted(endpoints)) => {
                self.state = State::Admitted;
                self.control.send(now, Message::Admitted { endpoints });
            }
            (State::Preparing, Event::Prepared { regions, touched }) if !self.carries_streams() => {
                self.state = State::Receiving;
                self.control.send(now, Message::Prepared { regions, touched });
            }
            (State::Preparing, Event::StreamsPrepared(settings)) if self.carries_streams() => {
                self.state = State::Streaming;
                self.control.send(now, Message::StreamsPrepared(settings));
            }
            (State::Sealing { digest }, Event::Sealed(ours)) => {
                if *digest == ours {
                    self.state = State::Loading;
                    self.control.send(now, Message::RamSealed);
                    self.load_held_device_state();
                } else {
                    self.fail(now, self.fault(Code::VerifyMismatch, "the digests of guest RAM differ"));
                }
            }
            (State::Loading, Event::DeviceStateLoaded) if self.device_state.is_complete() => {
                self.state_loaded = true;
                self.note_when_loaded();
            }
            (State::Streaming, Event::DeviceStateLoaded) => {
                self.state_loaded = true;
                self.note_when_loaded();
            }
            (_, Event::DisksChecked) if self.was_running.is_some() => {
                self.disks_checked = true;
                self.note_when_loaded();
            }
            (State::JournalingLoaded, Event::Journaled(DestinationPhase::Loaded)) => {
                self.state = State::Loaded;
                self.control.send(now, Message::Loaded);
            }
            (State::Journaling { .. }, Event::Journaled(DestinationPhase::Committed)) => {
                self.commit_written();
            }
            (State::Resuming { .. }, Event::GuestRuns { took, cpu }) => {
                self.operator_decision.settle(true);
                self.state = State::Running { until: now + self.config.finish_timeout };
                let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
                self.control.send(now, Message::TakenOver { resume_us: us(took), cpu_us: us(cpu) });
                self.plan_look(now);
                self.actions.push_back(Action::Journal(DestinationPhase::Running));
            }
            (State::Running { .. }, Event::Looked(seen)) => self.looked(now, seen),
            (State::RestoringHypervisor, Event::HypervisorRestored) => self.finished(),
            (State::Discarding { fault }, Event::Discarded) => {
                let fault = fault.clone();
                self.operator_decision.settle(false);
                self.close(now, fault);
            }
            (_, Event::Journaled(_)) => {}
            (State::Discarding { .. } | State::Closing { .. } | State::Ended, _) => {}
            (state, event) => {
                let detail = format!("{} while {}", event.name(), state.name());
                self.fail(now, self.fault(Code::Internal, &detail));
            }
        }
    }

    fn fault(&self, code: Code, detail: &str) -> Fault {
        Fault::new(code, self.state.step(), Side::Destination, detail)
    }
}

#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod tests;
