//! The source's state machine.
//!
//! ```mermaid
//! stateDiagram-v2
//!   [*] --> Offered: Start / Send Offer
//!   Offered --> Preparing: Admitted / Prepare, open links, attach
//!   Preparing --> Protecting: Attached + a channel
//!   Protecting --> Copying: Protected / round 0
//!   Copying --> Scanning: drained, and Prepared has come
//!   Preparing --> Streaming: StreamsPrepared + a channel / begin the hypervisor's streams
//!   Streaming --> Loading: the hypervisor holds, guest stopped / let it go on
//!   Scanning --> Copying: Scanned, another round
//!   Scanning --> Switching: Scanned, it fits / ask QEMU
//!   Switching --> LastScan: QEMU holds, guest stopped
//!   LastScan --> LastCopy: Scanned
//!   LastCopy --> Sealing: drained / RamComplete (after the digest, with verification)
//!   Sealing --> Loading: RamSealed / let QEMU go on
//!   Loading --> Journaling: Loaded + QEMU completed / journal CommitSent
//!   Journaling --> Committing: Journaled / Send Commit
//!   Committing --> CleaningUp: Running, or the journal over there says so
//!   CleaningUp --> CleaningUp: it failed / again
//!   CleaningUp --> [*]
//!   Offered --> RollingBack: any fault before commit
//!   RollingBack --> [*]: the guest runs at the source
//!   Committing --> RollingBack: only if the destination says that it gave up
//! ```
//!
//! The first pass does not wait for the destination's hypervisor: it fills the RAM that was made when the guest was admitted
//! while the waiting guest still starts. `Prepared` names what that hypervisor may have written meanwhile, which is copied
//! again in the next round; nothing is scanned, and the guest not stopped, before it has come.
//!
//! Where RAM goes in the hypervisor's own streams ([`Config::stream_channels`]), the states from Protecting to Sealing are one,
//! Streaming: the bytes are [`crate::stream::Streams`]' matter, whose messages go through this object's control stream
//! ([`Event::Carriage`], [`Action::Carriage`]). Everything from the guest's stop on is the same.
//!
//! The guarantee: if it ends with a fault, the guest runs at the source as before (or is still paused there if it was
//! paused before), unless the fault says otherwise in words. From [`Action::Journal`] of
//! [`SourcePhase::CommitSent`] on it never resumes by itself (rule 1).
//!
//! The body calls [`Source::handle`] with events, then [`Source::poll_action`] until it gives none, and
//! [`Source::next_work`] and its fellows from the channels.

mod blackout;
mod ending;
mod rounds;
#[cfg(test)]
mod stream_tests;
mod streams;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::control::{Control, Outgoing};
use crate::journal::SourcePhase;
use crate::policy::{Limits, Policy};
use crate::scheduler::{self, Next, Scheduler};
use crate::statistics::{Statistics, Streamed};
use crate::{
    ChannelId, Code, Endpoint, Extent, Fault, GuestState, LinkId, Message, Outcome, PathId, RegionInfo, Run,
    Side, Step, StreamSettings, Time,
};

/// What a migration is to be like, as the source needs it.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the guest.
    pub guest: String,
    /// The guest description for the destination.
    pub description: String,
    /// RAM blocks that are moved by placed writes.
    pub regions: Vec<RegionInfo>,
    /// RAM goes in the hypervisor's own streams, of which it would use so many parallel ones; then there are no regions.
    pub stream_channels: Option<u16>,
    /// Blackout budget, rounds, throttle.
    pub limits: Limits,
    /// The scheduler's knobs.
    pub scheduler: scheduler::Config,
    /// Compare whole RAM while the guest is paused.
    pub verify: bool,
    /// All links may be gone this long while the guest runs.
    pub link_timeout: Duration,
    /// Any one step before the copy may take this long.
    pub step_timeout: Duration,
    /// From the guest's stop to commit; when it is over, the guest resumes at the source.
    pub blackout_timeout: Duration,
    /// A pause between rounds: scanning more often is felt by the guest.
    pub round_interval_min: Duration,
}

impl Config {
    /// A configuration with the defaults of everything but the guest.
    pub fn new(guest: impl Into<String>, description: String, regions: Vec<RegionInfo>) -> Config {
        Config {
            guest: guest.into(),
            description,
            regions,
            stream_channels: None,
            limits: Limits::default(),
            scheduler: scheduler::Config::default(),
            verify: false,
            link_timeout: Duration::from_secs(30),
            step_timeout: Duration::from_secs(60),
            blackout_timeout: Duration::from_secs(10),
            round_interval_min: Duration::ZERO,
        }
    }
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// Begin.
    Start,
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
    /// A channel can carry work.
    ChannelUp {
        /// The channel; a number never used before.
        channel: ChannelId,
        /// Its link.
        link: LinkId,
    },
    /// The guest's memory can be tracked now.
    Attached,
    /// Everything is write-protected.
    Protected {
        /// What was populated at that moment or later.
        populated: Vec<Extent>,
        /// How long the guest was stopped for it.
        paused: Duration,
    },
    /// A scan ended; what it found is protected again.
    Scanned {
        /// What was written since the one before, and in the last scan what has become a hole.
        dirty: Vec<Extent>,
        /// How long it took.
        took: Duration,
        /// How long the guest was stopped for it.
        paused: Duration,
    },
    /// How far the hypervisor is with its own streams; several times a second, or the migration is taken for stuck.
    Streamed(Streamed),
    /// The streams say this to the other side's: Stream, Fence or Fenced.
    Carriage(Message),
    /// QEMU stopped the guest.
    GuestStopped,
    /// QEMU waits, stopped, before it writes device state.
    Holding,
    /// The digest over all regions.
    Digested(u64),
    /// A piece of device state.
    DeviceState(Vec<u8>),
    /// QEMU has written all device state and the stream ended.
    DeviceStateDone,
    /// [`Action::Journal`] of this phase is on disk.
    Journaled(SourcePhase),
    /// An action failed, or QEMU or the guest did.
    Failed(Fault),
    /// The streams are of no more use, or the peer breaks their rules. Unlike [`Event::Failed`] it is of no action, and none is tried
    /// again for it.
    StreamsFailed(Fault),
    /// [`Action::RollBack`] is done; what the guest does now.
    RolledBack(GuestState),
    /// Answer to [`Action::Query`].
    Answered(Outcome),
    /// The destination's agent refuses connections of this session because it does not know it (any more).
    Forgotten,
    /// [`Action::CleanUp`] is done.
    CleanedUp,
    /// The operator wants it to end.
    Cancel,
    /// The operator decides an undecided session: `true` resumes here, `false` gives the guest up.
    Resolve(bool),
    /// Time passed.
    Tick,
}

/// What the body is to do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Put this on a control connection; if it is gone, drop it (it is sent again).
    Transmit(PathId, Outgoing),
    /// Pair links with these endpoints, probe them, open channels and paths, and do so again whenever one is lost.
    OpenLinks(Vec<Endpoint>),
    /// Take hold of the guest's memory. Then [`Event::Attached`].
    Attach,
    /// Write-protect everything, block I/O drained where rule 6 asks for it. Then [`Event::Protected`].
    Protect,
    /// Find and protect again what was written. `last`: the guest is stopped; also find what became a hole.
    /// Then [`Event::Scanned`].
    Scan {
        /// The guest is stopped and stays so.
        last: bool,
    },
    /// Slow the guest down.
    Throttle(u8),
    /// Let the hypervisor begin its own streams, set like this. Then [`Event::Streamed`]…, [`Event::GuestStopped`] and
    /// [`Event::Holding`].
    BeginStreams(StreamSettings),
    /// The other side's streams say this: Stream, Fence or Fenced.
    Carriage(Message),
    /// Have QEMU stop the guest and hold. Then [`Event::GuestStopped`] and [`Event::Holding`].
    SwitchOver,
    /// Digest of all regions. Then [`Event::Digested`].
    Digest,
    /// Let QEMU write device state. Then [`Event::DeviceState`]… and [`Event::DeviceStateDone`].
    WriteDeviceState,
    /// Put the phase on disk and flush. Then [`Event::Journaled`] or [`Event::Failed`].
    Journal(SourcePhase),
    /// Undo everything; the guest is to do what it did before. Then [`Event::RolledBack`].
    RollBack,
    /// Ask the destination's journal. Then perhaps [`Event::Answered`].
    Query,
    /// The roll-back could not be told: tell it beside the session ([`crate::withdrawal`]). Nothing waits for it.
    Withdraw,
    /// The guest is the destination's: end the source's QEMU and remove what is left. Then [`Event::CleanedUp`].
    CleanUp,
    /// It is over.
    End(Ending),
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// `None`: the guest moved.
    pub fault: Option<Fault>,
    /// What the guest does.
    pub guest: GuestState,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Idle,
    Offered,
    /// `ready`: the guest's memory is held, or the hypervisor that takes its streams waits.
    Preparing {
        ready: bool,
    },
    Protecting,
    Copying {
        began: Time,
    },
    Scanning,
    /// The hypervisor copies RAM in its own streams.
    Streaming {
        round_began: Time,
    },
    Switching {
        holding: bool,
    },
    LastScan {
        dirty: Option<Vec<Extent>>,
    },
    LastCopy {
        repeats: u32,
    },
    Digesting,
    Sealing,
    Loading {
        written: bool,
        loaded: bool,
    },
    Journaling,
    Committing {
        ask_at: Time,
        undecided: bool,
    },
    /// `again`: it failed and is tried again then.
    CleaningUp {
        again: Option<Time>,
    },
    Parting {
        until: Time,
    },
    RollingBack(ending::RollBack),
    Ended,
}

impl State {
    fn name(&self) -> &'static str {
        match self {
            State::Idle => "idle",
            State::Offered => "offered",
            State::Preparing { .. } => "preparing",
            State::Protecting => "protecting",
            State::Copying { .. } => "copying",
            State::Scanning => "scanning",
            State::Streaming { .. } => "streaming",
            State::Switching { .. } => "switching",
            State::LastScan { .. } => "last scan",
            State::LastCopy { .. } => "last copy",
            State::Digesting => "digesting",
            State::Sealing => "sealing",
            State::Loading { .. } => "loading",
            State::Journaling => "journaling",
            State::Committing { .. } => "committing",
            State::CleaningUp { .. } => "cleaning up",
            State::Parting { .. } => "parting",
            State::RollingBack(_) => "rolling back",
            State::Ended => "ended",
        }
    }
}

/// How far the waiting guest is.
#[derive(Debug)]
enum Preparation {
    /// Not asked for.
    NotBegun,
    /// It starts; it must stand by then.
    Under { until: Time },
    /// It stands. These were touched while it started and are copied again.
    Done { touched: Vec<Extent> },
}

/// Pieces of the hypervisor's stream under way at a time while the guest runs: 1 MiB, some milliseconds at 1 Gb/s.
const LIVE_PIECES_MAX: usize = 4;

/// See the module.
#[derive(Debug)]
pub struct Source {
    config: Config,
    state: State,
    control: Control,
    scheduler: Scheduler,
    policy: Policy,
    statistics: Statistics,
    actions: std::collections::VecDeque<Action>,
    step: Step,
    step_deadline: Option<Time>,
    preparation: Preparation,
    /// How the hypervisors' streams are set, once that is known.
    streams: Option<StreamSettings>,
    round: u32,
    last_scan_at: Time,
    last_scan_took: Duration,
    scan_at: Option<Time>,
    no_channel_since: Option<Time>,
    last_progress: Time,
}

impl Source {
    /// A source that waits for [`Event::Start`].
    pub fn new(config: Config) -> Source {
        Source {
            state: State::Idle,
            control: Control::default(),
            scheduler: Scheduler::new(config.scheduler.clone()),
            policy: Policy::new(config.limits.clone()),
            statistics: Statistics::default(),
            actions: Default::default(),
            step: Step::Resolve,
            step_deadline: None,
            preparation: Preparation::NotBegun,
            streams: None,
            round: 0,
            last_scan_at: Time::ZERO,
            last_scan_took: Duration::ZERO,
            scan_at: None,
            no_channel_since: None,
            last_progress: Time::ZERO,
            config,
        }
    }

    /// Takes an event.
    pub fn handle(&mut self, now: Time, event: Event) {
        match event {
            Event::Start => self.start(now),
            Event::PathUp(path) => self.control.path_up(now, path),
            Event::PathLost(path) => self.control.path_lost(now, path),
            Event::Heard(path) => self.control.heard(now, path),
            Event::ControlAcknowledged { path, through } => self.control.acknowledged(now, path, through),
            Event::Received { path, sequence, message } => self.received(now, path, sequence, message),
            Event::ChannelUp { channel, link } => self.channel_up(now, channel, link),
            Event::Cancel => self.cancel(now),
            Event::Failed(fault) => self.action_failed(now, fault),
            Event::StreamsFailed(fault) => self.fail(now, fault),
            Event::RolledBack(guest) => self.rolled_back(now, guest),
            Event::Answered(outcome) => self.answered(now, outcome),
            Event::Forgotten => self.forgotten(now),
            Event::Resolve(resume) => self.resolve(now, resume),
            Event::Carriage(message) => self.say(now, message),
            Event::Streamed(streamed) => self.streamed(now, streamed),
            Event::Tick => {}
            event => self.body_event(now, event),
        }
        self.check_timers(now);
    }

    /// The next thing to do. Call until it gives `None` after each [`Source::handle`] and each change by a channel.
    pub fn poll_action(&mut self, now: Time) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        self.control.poll_outgoing(now).map(|(path, outgoing)| Action::Transmit(path, outgoing))
    }

    /// Whether a channel's call left something to do, so that the body should poll now and not at the next event.
    pub fn wants_attention(&self) -> bool {
        !self.actions.is_empty() || self.control.has_outgoing() || self.scan_at.is_some()
    }

    /// When [`Event::Tick`] is wanted at the latest.
    pub fn timeout(&self, now: Time) -> Option<Time> {
        if self.state == State::Ended {
            return None;
        }
        let housekeeping = now + Duration::from_millis(100);
        let prepare = match self.preparation {
            Preparation::Under { until } => Some(until),
            Preparation::NotBegun | Preparation::Done { .. } => None,
        };
        let timers = [self.control.timeout(), self.step_deadline, prepare, self.scan_at, Some(housekeeping)];
        timers.into_iter().flatten().min()
    }

    fn start(&mut self, now: Time) {
        if self.state != State::Idle {
            return;
        }
        self.statistics.started = now;
        self.last_progress = now;
        for step in [Step::Resolve, Step::Authorise] {
            self.statistics.end(now, step);
        }
        self.enter_step(now, Step::Admit, self.config.step_timeout);
        self.actions.push_back(Action::Journal(SourcePhase::Started));
        self.state = State::Offered;
        let offer = Message::Offer {
            guest: self.config.guest.clone(),
            description: self.config.description.clone(),
            regions: self.config.regions.clone(),
        };
        self.control.send(now, offer);
    }

    fn enter_step(&mut self, now: Time, step: Step, limit: Duration) {
        self.step = step;
        self.statistics.begin(now, step);
        self.step_deadline = Some(now + limit);
    }

    fn received(&mut self, now: Time, path: PathId, sequence: u64, message: Message) {
        if !self.control.received(now, path, sequence, message) {
            self.violation(now, "a control message far ahead of its turn");
        }
        while let Some(message) = self.control.poll_delivered() {
            self.message(now, message);
        }
    }

    fn message(&mut self, now: Time, message: Message) {
        match (&self.state, message) {
            (State::RollingBack(_) | State::Ended, message) => self.message_while_ending(now, message),
            (_, Message::Fenced { channel, applied, refused }) => {
                self.scheduler.fenced(now, channel, applied, &refused);
                self.progress(now);
                if self.carries_streams() {
                    let fenced = Message::Fenced { channel, applied, refused };
                    self.actions.push_back(Action::Carriage(fenced));
                }
            }
            (_, message @ (Message::Stream { .. } | Message::Fence { .. })) if self.carries_streams() => {
                self.actions.push_back(Action::Carriage(message));
            }
            (_, Message::Abort(fault)) => self.peer_aborted(now, fault),
            (State::Offered, Message::Admitted { endpoints }) => self.admitted(now, endpoints),
            (
                State::Preparing { .. } | State::Protecting | State::Copying { .. },
                Message::Prepared { regions, touched },
            ) if matches!(self.preparation, Preparation::Under { .. }) && !self.carries_streams() => {
                self.prepared(now, &regions, touched);
            }
            (State::Preparing { .. }, Message::StreamsPrepared(settings)) if self.may_be_set(settings) => {
                self.streams_prepared(now, settings);
            }
            (State::Sealing, Message::RamSealed) => self.sealed(now),
            (State::Loading { .. }, Message::Loaded) => self.loaded(now),
            (State::Committing { .. }, Message::Running { resume_us, cpu_us }) => {
                self.statistics.blackout.resume = Duration::from_micros(resume_us);
                self.statistics.destination_cpu = Duration::from_micros(cpu_us);
                self.running(now);
            }
            (State::CleaningUp { .. } | State::Parting { .. }, Message::Running { .. }) => {}
            (_, message) => {
                let what = format!("{message:?}");
                self.violation(now, what.split([' ', '{', '(']).next().unwrap_or_default());
            }
        }
    }

    fn violation(&mut self, now: Time, what: &str) {
        let detail = format!("the destination sent {what} while the source was {}", self.state.name());
        self.fail(now, Fault::new(Code::ProtocolViolation, self.step, Side::Destination, detail));
    }

    fn admitted(&mut self, now: Time, endpoints: Vec<Endpoint>) {
        self.statistics.end(now, Step::Admit);
        self.enter_step(now, Step::Prepare, self.config.step_timeout);
        self.statistics.begin(now, Step::Connect);
        self.no_channel_since = Some(now);
        self.preparation = Preparation::Under { until: now + self.config.step_timeout };
        self.state = State::Preparing { ready: false };
        self.actions.push_back(Action::OpenLinks(endpoints));
        match self.config.stream_channels {
            Some(channels) => self.control.send(now, Message::PrepareStreams { channels }),
            None => {
                self.control.send(now, Message::Prepare);
                self.actions.push_back(Action::Attach);
            }
        }
    }

    fn prepared(&mut self, now: Time, regions: &[RegionInfo], touched: Vec<Extent>) {
        if let Some(difference) = difference(&self.config.regions, regions) {
            return self
                .fail(now, Fault::new(Code::GuestDiffers, Step::Prepare, Side::Destination, difference));
        }
        if !touched.iter().all(|extent| self.names_pages(extent)) {
            return self.violation(now, "Prepared with memory that the guest does not have");
        }
        self.statistics.end(now, Step::Prepare);
        self.preparation = Preparation::Done { touched };
        self.progress(now);
    }

    /// Whether the extent is whole pages inside its region.
    fn names_pages(&self, extent: &Extent) -> bool {
        let Run { offset, length } = extent.run;
        let inside = |region: &RegionInfo| extent.run.end() <= region.size;
        let region = self.config.regions.iter().find(|region| region.id == extent.region);
        region.is_some_and(inside)
            && offset.is_multiple_of(crate::PAGE_BYTES)
            && length.is_multiple_of(crate::PAGE_BYTES)
    }

    fn channel_up(&mut self, now: Time, channel: ChannelId, link: LinkId) {
        self.scheduler.add_channel(now, channel, link);
        self.no_channel_since = None;
        self.statistics.end(now, Step::Connect);
        self.copy_when_ready(now);
    }

    /// Copying begins when the guest's RAM is held, or its streams are awaited, and there is a channel.
    fn copy_when_ready(&mut self, now: Time) {
        if self.state != (State::Preparing { ready: true }) || self.scheduler.living_channels() == 0 {
            return;
        }
        if let Some(settings) = self.streams {
            self.begin_streams(now, settings);
        } else {
            self.enter_step(now, Step::Track, self.config.step_timeout);
            self.state = State::Protecting;
            self.actions.push_back(Action::Protect);
        }
    }

    /// Events that belong to one state; elsewhere they come late (a roll-back has begun) or are a defect of the body.
    fn body_event(&mut self, now: Time, event: Event) {
        match (&mut self.state, event) {
            (State::RollingBack(_) | State::Ended | State::Parting { .. }, _) => {}
            (State::Preparing { ready }, Event::Attached) if self.config.stream_channels.is_none() => {
                *ready = true;
                self.copy_when_ready(now);
            }
            (State::Protecting, Event::Protected { populated, paused }) => {
                self.protected(now, populated, paused)
            }
            (State::Scanning, Event::Scanned { dirty, took, paused }) => {
                self.scanned(now, dirty, took, paused)
            }
            (State::Streaming { .. } | State::Switching { .. }, Event::GuestStopped) => {
                self.guest_stopped(now)
            }
            (State::Streaming { .. }, Event::Holding) => self.streams_holding(now),
            (State::Switching { .. }, Event::Holding) => self.holding(now),
            (State::LastScan { .. }, Event::Scanned { dirty, .. }) => self.last_scanned(now, dirty),
            (State::Digesting, Event::Digested(digest)) => self.seal(now, Some(digest)),
            (State::Loading { .. }, Event::DeviceState(bytes)) => self.device_state(now, bytes),
            (
                State::Switching { .. } | State::LastScan { .. } | State::LastCopy { .. },
                Event::DeviceState(bytes),
            )
            | (State::Digesting | State::Sealing, Event::DeviceState(bytes)) => self.device_state(now, bytes),
            (State::Loading { .. }, Event::DeviceStateDone) => self.device_state_done(now),
            (State::Journaling, Event::Journaled(SourcePhase::CommitSent)) => self.commit(now),
            (_, Event::Journaled(_)) => {}
            (State::CleaningUp { .. }, Event::CleanedUp) => self.cleaned_up(now),
            (state, event) => {
                let what = format!("{event:?}");
                let what = what.split([' ', '{', '(']).next().unwrap_or_default();
                let detail = format!("{what} while {}", state.name());
                self.fail(now, Fault::new(Code::Internal, self.step, Side::Source, detail));
            }
        }
    }

    // ---- channels ----

    /// What the channel is to do next.
    pub fn next_work(&mut self, now: Time, channel: ChannelId) -> Next {
        self.scheduler.next(now, channel)
    }

    /// The channel gave a write to its carrier; `wire_bytes` is what it cost.
    pub fn work_sent(&mut self, channel: ChannelId, sequence: u64, wire_bytes: u64) {
        self.scheduler.sent(channel, sequence, wire_bytes);
    }

    /// The destination applied everything on the channel up to `through`, except `refused`.
    pub fn acknowledged(&mut self, now: Time, channel: ChannelId, through: u64, refused: &[u64]) {
        let before = self.scheduler.acknowledged_bytes();
        self.scheduler.acknowledged(now, channel, through, refused);
        if self.scheduler.acknowledged_bytes() != before {
            self.last_progress = now;
        }
        self.progress(now);
    }

    /// The channel is gone: the destination is told to fence it.
    pub fn channel_lost(&mut self, now: Time, channel: ChannelId) {
        if !self.scheduler.lost(channel) {
            return;
        }
        if self.scheduler.living_channels() == 0 {
            self.no_channel_since.get_or_insert(now);
        }
        self.control.send(now, Message::Fence { channel });
    }

    /// All of a link is gone.
    pub fn link_lost(&mut self, now: Time, link: LinkId) {
        for channel in self.scheduler.channels_of(link) {
            self.channel_lost(now, channel);
        }
    }

    // ---- views ----

    /// The scheduler, to look at.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Where the time went.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// The step that is under way.
    pub fn step(&self) -> Step {
        self.step
    }

    /// Number of the round under way.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Parallel channels of the hypervisor's streams; none in direct mode and before that is known.
    pub fn stream_channels(&self) -> Option<u16> {
        self.streams.map(|settings| settings.channels)
    }

    /// Percent by which the guest is slowed down.
    pub fn throttle_percent(&self) -> u8 {
        self.policy.throttle_percent().max(self.statistics.streamed.throttle_percent)
    }

    /// Commit was sent and the answer is missing for so long that the operator should know.
    pub fn is_undecided(&self) -> bool {
        matches!(self.state, State::Committing { undecided: true, .. })
    }

    /// The guest is the destination's: links have nothing to carry any more but the last word.
    pub fn is_leaving(&self) -> bool {
        matches!(self.state, State::CleaningUp { .. } | State::Parting { .. } | State::Ended)
    }

    /// Whether it is over.
    pub fn is_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Whether the source may still resume the guest by itself.
    pub fn can_resume(&self) -> bool {
        !matches!(
            self.state,
            State::Committing { .. } | State::CleaningUp { .. } | State::Parting { .. } | State::Ended
        )
    }

    /// Living control connections.
    pub fn paths(&self) -> usize {
        self.control.paths()
    }

    /// Whether the hypervisor's stream is not to be read on for now. While the guest still runs it carries what the hypervisor has
    /// of RAM itself, a display adapter's memory: read no faster than the destination takes it, it is over there when the guest
    /// stops. Once the guest stands nothing is held back.
    pub fn holds_stream_back(&self) -> bool {
        matches!(self.state, State::Switching { .. }) && self.control.unacknowledged() >= LIVE_PIECES_MAX
    }
}

/// In words, how the destination's RAM blocks differ from ours.
fn difference(ours: &[RegionInfo], theirs: &[RegionInfo]) -> Option<String> {
    for region in ours {
        match theirs.iter().find(|other| other.id == region.id) {
            None => return Some(format!("RAM block {} is missing", region.name)),
            Some(other) if other.name != region.name || other.size != region.size => {
                return Some(format!(
                    "RAM block {} has {} bytes at the source, {} has {} at the destination",
                    region.name, region.size, other.name, other.size
                ));
            }
            Some(_) => {}
        }
    }
    (theirs.len() != ours.len()).then(|| format!("{} RAM blocks here, {} there", ours.len(), theirs.len()))
}
