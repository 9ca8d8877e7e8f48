//! The destination's state machine.
//!
//! ```mermaid
//! stateDiagram-v2
//!   [*] --> Waiting
//!   Waiting --> Admitting: Offer / check and reserve
//!   Admitting --> Admitted: Admitted
//!   Admitted --> Preparing: Prepare / start the waiting guest
//!   Preparing --> Receiving: Prepared
//!   Preparing --> Streaming: StreamsPrepared
//!   Streaming --> Loaded: the hypervisor has taken its streams
//!   Receiving --> Sealing: RamComplete / refuse further writes
//!   Sealing --> Loading: Sealed, digests agree / RamSealed
//!   Loading --> Loaded: the hypervisor loaded its state
//!   Loading --> Releasing: Finished, and no device state has come / let the hypervisor go
//!   Releasing --> [*]: Released
//!   Loaded --> Journaling: Commit / journal Committed
//!   Journaling --> Resuming: Journaled / run
//!   Resuming --> Resuming: it failed / run again, for nobody else has the guest
//!   Resuming --> Running: Running
//!   Running --> [*]: Finished
//!   Waiting --> TearingDown: any fault before commit, or withdrawn / journal Aborted, then end the guest
//!   TearingDown --> [*]
//! ```
//!
//! The guarantees: the guest runs only after [`DestinationPhase::Committed`] is on disk, and it never runs after
//! [`DestinationPhase::Aborted`] is (rule 1). Writes are applied from `Admitted` on, while the waiting guest still starts, and no
//! more after `Sealing` (rule 5), and where an offer without regions says that RAM comes in the hypervisor's own streams, not at all; what its hypervisor touched meanwhile is told to the source, which copies it again.

mod ending;

use std::collections::VecDeque;
use std::time::Duration;

use crate::control::{Control, Outgoing};
use crate::journal::DestinationPhase;
use crate::{
    ChannelId, Code, Endpoint, Extent, Fault, Message, Outcome, PathId, RegionInfo, Side, Step,
    StreamSettings, Time,
};

/// A committed guest that could not be run is tried again after this long.
const RUN_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Time limits of a destination.
#[derive(Clone, Debug)]
pub struct Config {
    /// Without a control connection for this long, the session is given up (unless it is committed). Longer than the
    /// source's own limit, so that the source decides first.
    pub orphan_timeout: Duration,
    /// The source's last word is waited for this long after the guest runs; then the session is forgotten in memory
    /// (the journal keeps it).
    pub finish_timeout: Duration,
    /// The peer is told about a fault and its word waited for this long.
    pub abort_timeout: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            orphan_timeout: Duration::from_secs(60),
            finish_timeout: Duration::from_secs(60),
            abort_timeout: Duration::from_secs(2),
        }
    }
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A control connection is up.
    PathUp(PathId),
    /// A control connection is gone.
    PathLost(PathId),
    /// Anything came in on a control connection.
    Heard(PathId),
    /// A numbered message came in.
    Received {
        /// The control connection.
        path: PathId,
        /// Its number.
        sequence: u64,
        /// The message.
        message: Message,
    },
    /// The peer has our messages up to `through`.
    ControlAcknowledged {
        /// The control connection.
        path: PathId,
        /// Highest number received over there.
        through: u64,
    },
    /// Checked and reserved.
    Admitted(Vec<Endpoint>),
    /// The waiting guest stands.
    Prepared {
        /// Its RAM blocks.
        regions: Vec<RegionInfo>,
        /// What its hypervisor may have written while it started.
        touched: Vec<Extent>,
    },
    /// The guest stands that waits for the hypervisor's own streams, and how both hypervisors are to be set.
    StreamsPrepared(StreamSettings),
    /// The streams say this to the other side's: Stream or Fence.
    Carriage(Message),
    /// [`Action::Fence`] is done.
    Fenced {
        /// The channel.
        channel: ChannelId,
        /// Everything up to here was applied.
        applied: u64,
        /// Except these.
        refused: Vec<u64>,
    },
    /// No write will be applied any more; the digest if one was asked for.
    Sealed(Option<u64>),
    /// The hypervisor has loaded all device state, or taken its own streams to their end.
    DeviceStateLoaded,
    /// [`Action::Journal`] of this phase is on disk.
    Journaled(DestinationPhase),
    /// [`Action::Release`] is done.
    Released,
    /// The guest runs.
    GuestRuns {
        /// How long that took.
        took: Duration,
        /// CPU time that the agent spent on the session so far.
        cpu: Duration,
    },
    /// An action failed, or the hypervisor did.
    Failed(Fault),
    /// What comes is of no more use: memory here does not take it, or the peer breaks the rules of the streams. Unlike
    /// [`Event::Failed`] it is of no action, and none is tried again for it.
    ReceivingFailed(Fault),
    /// [`Action::TearDown`] is done: the waiting guest has ended and nothing is left of it.
    TornDown,
    /// The operator of this host wants it to end.
    Cancel,
    /// The source has rolled back and says so on a connection of its own ([`crate::withdrawal`]).
    Withdrawn,
    /// Time passed.
    Tick,
}

/// What the body is to do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Put this on a control connection; if it is gone, drop it.
    Transmit(PathId, Outgoing),
    /// Check and reserve. Then [`Event::Admitted`].
    Admit {
        /// Name of the guest.
        guest: String,
        /// Its description.
        description: String,
        /// RAM blocks that placed writes will fill.
        regions: Vec<RegionInfo>,
    },
    /// Start the waiting guest. Then [`Event::Prepared`].
    Prepare,
    /// Start a guest that waits for the hypervisor's own streams, so many parallel ones at most. Then
    /// [`Event::StreamsPrepared`], and when all of them were taken [`Event::DeviceStateLoaded`].
    PrepareStreams(u16),
    /// The other side's streams say this: Stream or Fenced.
    Carriage(Message),
    /// Apply nothing more from the channel. Then [`Event::Fenced`].
    Fence(ChannelId),
    /// Refuse every further write; digest of all regions if `digest`. Then [`Event::Sealed`].
    Seal {
        /// Whether a digest is wanted.
        digest: bool,
    },
    /// Give these bytes to the hypervisor.
    LoadDeviceState(Vec<u8>),
    /// The stream is complete. Then [`Event::DeviceStateLoaded`].
    FinishDeviceState,
    /// Put the phase on disk and flush. Then [`Event::Journaled`] or [`Event::Failed`].
    Journal(DestinationPhase),
    /// Let the guest run. Then [`Event::GuestRuns`].
    Run,
    /// Somebody else's hypervisor has the guest: put back what was set for its RAM, and keep nothing. Then [`Event::Released`].
    Release,
    /// End the waiting guest and remove what is left. Then [`Event::TornDown`].
    TearDown,
    /// It is over: `None` means that the guest is ours.
    End(Option<Fault>),
}

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
    Loading {
        ended: bool,
    },
    Loaded,
    /// Somebody else runs the guest.
    Releasing,
    Journaling,
    /// `again`: running it failed and is tried again then. `finished`: the source, which asked the journal, is done already.
    Resuming {
        again: Option<Time>,
        finished: bool,
    },
    Running {
        until: Option<Time>,
    },
    TearingDown {
        fault: Fault,
    },
    Parting {
        fault: Fault,
        until: Time,
    },
    Ended,
}

impl State {
    fn name(&self) -> &'static str {
        match self {
            State::Waiting => "waiting",
            State::Admitting => "admitting",
            State::Admitted => "admitted",
            State::Preparing => "preparing",
            State::Receiving => "receiving",
            State::Streaming => "streaming",
            State::Sealing { .. } => "sealing",
            State::Loading { .. } => "loading",
            State::Loaded => "loaded",
            State::Releasing => "releasing",
            State::Journaling => "journaling",
            State::Resuming { .. } => "resuming",
            State::Running { .. } => "running",
            State::TearingDown { .. } => "tearing down",
            State::Parting { .. } => "parting",
            State::Ended => "ended",
        }
    }

    fn step(&self) -> Step {
        match self {
            State::Waiting | State::Admitting | State::Admitted => Step::Admit,
            State::Preparing => Step::Prepare,
            State::Receiving | State::Streaming => Step::Copy,
            State::Sealing { .. } | State::Loading { .. } => Step::Blackout,
            State::Loaded | State::Journaling | State::Resuming { .. } => Step::Commit,
            State::Running { .. }
            | State::Releasing
            | State::TearingDown { .. }
            | State::Parting { .. }
            | State::Ended => Step::CleanUp,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Destination {
    config: Config,
    state: State,
    control: Control,
    actions: VecDeque<Action>,
    started: Time,
    guest: String,
    committed: bool,
    /// RAM comes in the hypervisor's own streams.
    streams: bool,
    /// Device state that came before RAM was sealed.
    held_device_state: Vec<Vec<u8>>,
    device_state_bytes: u64,
}

/// Most bytes of device state. A machine with a large display adapter has some tens of MiB.
const DEVICE_STATE_BYTES_MAX: u64 = 512 << 20;

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
            streams: false,
            held_device_state: Vec::new(),
            device_state_bytes: 0,
        }
    }

    /// Takes an event.
    pub fn handle(&mut self, now: Time, event: Event) {
        match event {
            Event::PathUp(path) => self.control.path_up(now, path),
            Event::PathLost(path) => self.control.path_lost(now, path),
            Event::Heard(path) => self.control.heard(now, path),
            Event::ControlAcknowledged { path, through } => self.control.acknowledged(now, path, through),
            Event::Received { path, sequence, message } => self.received(now, path, sequence, message),
            Event::Fenced { channel, applied, refused } => {
                self.control.send(now, Message::Fenced { channel, applied, refused });
            }
            Event::Carriage(message) => self.control.send(now, message),
            Event::Failed(fault) => self.action_failed(now, fault),
            Event::ReceivingFailed(fault) => self.fail(fault),
            Event::Cancel => self.fail(self.fault(Code::Cancelled, "by the destination's operator")),
            Event::Withdrawn => self.withdrawn(),
            Event::Tick => {}
            event => self.body_event(now, event),
        }
        self.check_timers(now);
    }

    /// The next thing to do.
    pub fn poll_action(&mut self, now: Time) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        self.control.poll_outgoing(now).map(|(path, outgoing)| Action::Transmit(path, outgoing))
    }

    /// When [`Event::Tick`] is wanted at the latest.
    pub fn timeout(&self, now: Time) -> Option<Time> {
        if self.state == State::Ended {
            return None;
        }
        let housekeeping = now + Duration::from_millis(100);
        [self.control.timeout(), Some(housekeeping)].into_iter().flatten().min()
    }

    /// What a source that asks is told.
    pub fn outcome(&self) -> Outcome {
        match &self.state {
            _ if self.committed => Outcome::Committed,
            State::Parting { .. } | State::Ended => Outcome::Aborted,
            _ => Outcome::Pending,
        }
    }

    /// Whether it is over.
    pub fn is_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// The step that is under way.
    pub fn step(&self) -> Step {
        self.state.step()
    }

    /// Name of the guest that was offered; empty before. Known before [`Action::Journal`] of the first phase is asked for: a
    /// record without it cannot be recovered from.
    pub fn guest(&self) -> &str {
        &self.guest
    }

    /// Living control connections.
    pub fn paths(&self) -> usize {
        self.control.paths()
    }

    /// Highest control message received without a gap.
    pub fn received_through(&self) -> u64 {
        self.control.received_through()
    }

    fn received(&mut self, now: Time, path: PathId, sequence: u64, message: Message) {
        if !self.control.received(now, path, sequence, message) {
            self.fail(self.fault(Code::ProtocolViolation, "a control message far ahead of its turn"));
        }
        while let Some(message) = self.control.poll_delivered() {
            self.message(now, message);
        }
    }

    fn message(&mut self, now: Time, message: Message) {
        match (&mut self.state, message) {
            (_, Message::Fence { channel }) => self.actions.push_back(Action::Fence(channel)),
            (_, Message::RoundMark { .. }) => {}
            (_, Message::Abort(fault)) => self.peer_aborted(now, fault),
            (State::TearingDown { .. } | State::Parting { .. } | State::Ended, message) => {
                self.message_after_abort(now, message);
            }
            (State::Waiting, Message::Offer { guest, description, regions }) => {
                self.state = State::Admitting;
                self.streams = regions.is_empty();
                self.guest.clone_from(&guest);
                self.actions.push_back(Action::Journal(DestinationPhase::Started));
                self.actions.push_back(Action::Admit { guest, description, regions });
            }
            (State::Admitted, Message::PrepareStreams { channels }) if self.streams => {
                self.state = State::Preparing;
                self.actions.push_back(Action::PrepareStreams(channels));
            }
            (_, message @ (Message::Stream { .. } | Message::Fenced { .. })) if self.streams => {
                self.actions.push_back(Action::Carriage(message));
            }
            (State::Admitted, Message::Prepare) if !self.streams => {
                self.state = State::Preparing;
                self.actions.push_back(Action::Prepare);
            }
            (State::Receiving, Message::RamComplete { digest }) => {
                self.state = State::Sealing { digest };
                self.actions.push_back(Action::Seal { digest: digest.is_some() });
            }
            (
                State::Receiving | State::Sealing { .. } | State::Loading { ended: false },
                Message::DeviceState { bytes },
            ) => self.device_state(bytes),
            (State::Loading { ended }, Message::DeviceStateEnd { total })
                if self.device_state_bytes == total =>
            {
                *ended = true;
                self.actions.push_back(Action::FinishDeviceState);
            }
            // Where somebody else's stream brings the device state, the session never sees any.
            (State::Loading { ended: false }, Message::Finished) if self.device_state_bytes == 0 => {
                self.state = State::Releasing;
                self.actions.push_back(Action::Release);
            }
            (State::Loaded, Message::Commit) => {
                self.state = State::Journaling;
                self.actions.push_back(Action::Journal(DestinationPhase::Committed));
            }
            (State::Resuming { finished, .. }, Message::Finished) => *finished = true,
            (State::Running { .. }, Message::Finished) => self.finished(),
            (_, message) => self.violation(&message),
        }
    }

    /// Rule 5: what comes before RAM is sealed (QEMU's set-up and ROMs) is held until it is.
    fn device_state(&mut self, bytes: Vec<u8>) {
        self.device_state_bytes += bytes.len() as u64;
        if self.device_state_bytes > DEVICE_STATE_BYTES_MAX {
            let detail = format!("more than {} MiB of device state", DEVICE_STATE_BYTES_MAX >> 20);
            self.fail(self.fault(Code::ProtocolViolation, &detail));
        } else if matches!(self.state, State::Loading { .. }) {
            self.actions.push_back(Action::LoadDeviceState(bytes));
        } else {
            self.held_device_state.push(bytes);
        }
    }

    /// The source cannot know yet that we gave up; the abort is on its way or will be found by asking.
    fn message_after_abort(&mut self, now: Time, message: Message) {
        if let (State::Parting { until, .. }, Message::Aborted) = (&mut self.state, message) {
            *until = now;
        }
    }

    fn violation(&mut self, message: &Message) {
        let what = format!("{message:?}");
        let what = what.split([' ', '{', '(']).next().unwrap_or_default();
        let detail = format!("the source sent {what} while the destination was {}", self.state.name());
        self.fail(Fault::new(Code::ProtocolViolation, self.state.step(), Side::Source, detail));
    }

    fn body_event(&mut self, now: Time, event: Event) {
        match (&mut self.state, event) {
            (State::Admitting, Event::Admitted(endpoints)) => {
                self.state = State::Admitted;
                self.control.send(now, Message::Admitted { endpoints });
            }
            (State::Preparing, Event::Prepared { regions, touched }) if !self.streams => {
                self.state = State::Receiving;
                self.control.send(now, Message::Prepared { regions, touched });
            }
            (State::Preparing, Event::StreamsPrepared(settings)) if self.streams => {
                self.state = State::Streaming;
                self.control.send(now, Message::StreamsPrepared(settings));
            }
            (State::Streaming, Event::DeviceStateLoaded) => {
                self.state = State::Loaded;
                self.control.send(now, Message::Loaded);
            }
            (State::Sealing { digest }, Event::Sealed(ours)) => {
                if *digest == ours {
                    self.state = State::Loading { ended: false };
                    self.control.send(now, Message::RamSealed);
                    let held = std::mem::take(&mut self.held_device_state);
                    self.actions.extend(held.into_iter().map(Action::LoadDeviceState));
                } else {
                    self.fail(self.fault(Code::VerifyMismatch, "the digests of guest RAM differ"));
                }
            }
            (State::Loading { ended: true }, Event::DeviceStateLoaded) => {
                self.state = State::Loaded;
                self.control.send(now, Message::Loaded);
            }
            (State::Journaling, Event::Journaled(DestinationPhase::Committed)) => {
                self.committed = true;
                self.state = State::Resuming { again: None, finished: false };
                self.actions.push_back(Action::Run);
            }
            (State::Resuming { finished, .. }, Event::GuestRuns { took, cpu }) => {
                let finished = *finished;
                self.state = State::Running { until: None };
                let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
                self.control.send(now, Message::Running { resume_us: us(took), cpu_us: us(cpu) });
                if finished {
                    self.finished();
                }
            }
            (State::Releasing, Event::Released) => self.finished(),
            (State::TearingDown { fault }, Event::TornDown) => {
                let fault = fault.clone();
                self.part(now, fault);
            }
            (_, Event::Journaled(_)) => {}
            (State::TearingDown { .. } | State::Parting { .. } | State::Ended, _) => {}
            (state, event) => {
                let what = format!("{event:?}");
                let what = what.split([' ', '{', '(']).next().unwrap_or_default();
                let detail = format!("{what} while {}", state.name());
                self.fail(self.fault(Code::Internal, &detail));
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
