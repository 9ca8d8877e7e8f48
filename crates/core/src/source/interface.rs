//! What goes into the source's state machine and what comes out of it.

use std::time::Duration;

use crate::control::Outgoing;
use crate::journal::SourcePhase;
use crate::policy::Limits;
use crate::scheduler;
use crate::statistics::{Disks, Streamed};
use crate::{
    ChannelId, Endpoint, Extent, Fault, GuestState, LinkId, Message, Mode, Outcome, PathId, StreamSettings,
};

/// What a migration is to be like, as the source needs it.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the guest.
    pub guest: String,
    /// The guest description for the destination.
    pub description: String,
    /// What carries RAM and device state, and who decides on commit.
    pub mode: Mode,
    /// Blackout budget, rounds, throttle.
    pub limits: Limits,
    /// Settings of the extent scheduler.
    pub scheduler: scheduler::Config,
    /// Compare whole RAM while the guest is paused.
    pub verify: bool,
    /// All links may be gone this long while the guest runs.
    pub link_timeout: Duration,
    /// Any one step before the copy may take this long.
    pub step_timeout: Duration,
    /// From the guest's stop to commit, beyond the blackout that was allowed; when it is over, the guest resumes at the
    /// source.
    pub blackout_timeout: Duration,
    /// The copy begins when it is told to ([`Event::Go`]). Until then the guest is not touched.
    pub hold: bool,
    /// A pause between rounds: scanning more often is felt by the guest.
    pub round_interval_min: Duration,
}

impl Config {
    /// A configuration with the defaults of everything but the guest.
    pub fn new(guest: impl Into<String>, description: String, mode: Mode) -> Config {
        Config {
            guest: guest.into(),
            description,
            mode,
            limits: Limits::default(),
            scheduler: scheduler::Config::default(),
            verify: false,
            link_timeout: Duration::from_secs(30),
            step_timeout: Duration::from_secs(60),
            blackout_timeout: Duration::from_secs(10),
            hold: false,
            round_interval_min: Duration::ZERO,
        }
    }
}

/// What the driver reports to `Source::handle`.
#[derive(Clone, Debug)]
pub enum Event {
    /// The migration was asked for; the first event.
    Start,
    /// A control connection is up.
    PathUp(PathId),
    /// A control connection is lost.
    PathLost(PathId),
    /// Anything came in on a control connection.
    PathAlive(PathId),
    /// A numbered message came in.
    Received {
        /// The control connection that it came on.
        path: PathId,
        /// Its number in the control stream, from 1.
        sequence: u64,
        /// The message, as it was decoded.
        message: Message,
    },
    /// The peer has our messages up to `through`.
    ControlAcknowledged {
        /// The control connection that it came on.
        path: PathId,
        /// Highest number received over there.
        through: u64,
    },
    /// A channel can carry work.
    ChannelUp {
        /// The channel; a number never used before.
        channel: ChannelId,
        /// The link that the channel runs over.
        link: LinkId,
    },
    /// The guest's memory can be tracked now.
    Attached,
    /// The copy need not wait any longer, see [`Config::hold`].
    Go,
    /// All RAM is write-protected: later writes are seen.
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
        /// What the last scan takes longer than this one: it also finds what has become a hole.
        last_adds: Duration,
    },
    /// Answer to [`Action::Count`].
    Counted {
        /// Written since the scan before, or since protection.
        bytes: u64,
        /// How long it took to count them.
        took: Duration,
    },
    /// How far the hypervisor is with its own streams; several times a second, or the migration is taken for stuck.
    Streamed(Streamed),
    /// How far the hypervisor is with copied disks, as often: before it copies RAM, beside that, and once more when all
    /// is over there.
    Disks(Disks),
    /// The streams say this to the other side's: Stream, Fence or Fenced.
    SendStreamMessage(Message),
    /// QEMU stopped the guest.
    GuestStopped,
    /// QEMU waits, stopped, before it writes device state.
    PreSwitchover {
        /// The guest ran until QEMU stopped it.
        was_running: bool,
        /// The disks that it has used from the beginning, for the destination to compare. Whether they are unchanged is
        /// the driver's to find before it says that [`SourcePhase::CommitSent`] is journaled.
        disks: String,
    },
    /// The digest over all regions.
    Digested(u64),
    /// A piece of device state.
    DeviceState(Vec<u8>),
    /// QEMU has written all device state and the stream ended.
    DeviceStateDone,
    /// The stream that [`Action::ReleaseStream`] released has come to its end: the guest has left this host.
    GuestLeft,
    /// [`Action::Journal`] of [`SourcePhase::CommitSent`] is on disk, and it is not known yet whether commit may be
    /// sent. Then [`Event::Journaled`] or [`Event::Failed`].
    CommitWritten,
    /// [`Action::Journal`] of this phase is on disk; that of [`SourcePhase::CommitSent`] may be acted on.
    Journaled(SourcePhase),
    /// An action failed, or QEMU or the guest did.
    Failed(Fault),
    /// The streams cannot be used any more, or the peer breaks their rules. Unlike [`Event::Failed`] it belongs to no
    /// action, so nothing is tried again.
    StreamsFailed(Fault),
    /// [`Action::RollBack`] came to its end; what the guest does now.
    RolledBack {
        /// What the guest does.
        guest: GuestState,
        /// It is as it was before. Otherwise the driver goes on trying after the session ([`crate::recovery`]), and the
        /// journal keeps saying that it has to.
        complete: bool,
    },
    /// Answer to [`Action::Query`]: what became of the session at the destination.
    Answered(Outcome),
    /// [`Action::Query`] came to its end without an answer.
    Unanswered,
    /// [`Action::Query`] was not asked: another program ran the guest here after commit.
    RanHere,
    /// The destination's agent refuses connections of this session because it does not know it (any more).
    Forgotten,
    /// [`Action::CleanUp`] is done: nothing of the migration is left here.
    CleanedUp,
    /// The operator wants it to end.
    Cancel,
    /// The operator decides a session in doubt: `true` resumes here, `false` gives the guest up.
    Resolve(bool),
    /// Only time passed: a timer may be due.
    Tick,
}

impl Event {
    /// For the detail of a fault.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Event::Start => "Start",
            Event::PathUp(_) => "PathUp",
            Event::PathLost(_) => "PathLost",
            Event::PathAlive(_) => "PathAlive",
            Event::Received { .. } => "Received",
            Event::ControlAcknowledged { .. } => "ControlAcknowledged",
            Event::ChannelUp { .. } => "ChannelUp",
            Event::Attached => "Attached",
            Event::Go => "Go",
            Event::Protected { .. } => "Protected",
            Event::Scanned { .. } => "Scanned",
            Event::Counted { .. } => "Counted",
            Event::Streamed(_) => "Streamed",
            Event::Disks(_) => "Disks",
            Event::SendStreamMessage(_) => "SendStreamMessage",
            Event::GuestStopped => "GuestStopped",
            Event::PreSwitchover { .. } => "PreSwitchover",
            Event::Digested(_) => "Digested",
            Event::DeviceState(_) => "DeviceState",
            Event::DeviceStateDone => "DeviceStateDone",
            Event::GuestLeft => "GuestLeft",
            Event::CommitWritten => "CommitWritten",
            Event::Journaled(_) => "Journaled",
            Event::Failed(_) => "Failed",
            Event::StreamsFailed(_) => "StreamsFailed",
            Event::RolledBack { .. } => "RolledBack",
            Event::Answered(_) => "Answered",
            Event::Unanswered => "Unanswered",
            Event::RanHere => "RanHere",
            Event::Forgotten => "Forgotten",
            Event::CleanedUp => "CleanedUp",
            Event::Cancel => "Cancel",
            Event::Resolve(_) => "Resolve",
            Event::Tick => "Tick",
        }
    }
}

/// What the driver is to do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Put this on a control connection; if that is closed, drop it (it is sent again).
    Transmit(PathId, Outgoing),
    /// Pair links with these endpoints, probe them, open channels and paths, and do so again whenever one is lost.
    OpenLinks(Vec<Endpoint>),
    /// Take hold of the guest's memory. Then [`Event::Attached`].
    Attach,
    /// With [`Config::hold`]: the incoming QEMU waits, links carry, and the copy can begin. Then [`Event::Go`] or
    /// [`Event::Cancel`], some time.
    Ready,
    /// Write-protect everything, block I/O drained where rule 6 asks for it. Then [`Event::Protected`].
    Protect,
    /// Find and protect again what was written. `last`: the guest is stopped; also find what became a hole.
    /// Then [`Event::Scanned`].
    Scan {
        /// The guest is stopped and stays so.
        last: bool,
        /// Sent although no scan names them: the last scan names what of them has become a hole.
        also: Vec<Extent>,
    },
    /// Count what was written, and leave it as it is. Then [`Event::Counted`], unless it cannot be counted.
    Count,
    /// Slow the guest down.
    Throttle(u8),
    /// Let the hypervisor begin its own streams, set like this. Then [`Event::Disks`]… if disks are copied,
    /// [`Event::Streamed`]…, [`Event::GuestStopped`] and [`Event::PreSwitchover`].
    BeginStreams(StreamSettings),
    /// The other side's streams say this: Stream, Fence or Fenced.
    DeliverStreamMessage(Message),
    /// Have QEMU stop the guest and hold. Then [`Event::GuestStopped`] and [`Event::PreSwitchover`].
    SwitchOver,
    /// Digest of all regions. Then [`Event::Digested`].
    Digest,
    /// Have copied disks completed, then let QEMU write device state. Then [`Event::DeviceState`]… and
    /// [`Event::DeviceStateDone`].
    WriteDeviceState,
    /// Release the hypervisor's stream that was held back, once, and see what becomes of the guest. Then
    /// [`Event::GuestLeft`], or [`Event::Failed`] if it did not leave.
    ReleaseStream,
    /// Put the phase on disk and flush. Then [`Event::Journaled`] or [`Event::Failed`].
    Journal(SourcePhase),
    /// Undo everything; the guest is to do what it did before. Then [`Event::RolledBack`].
    RollBack,
    /// Whether a later agent has to notify the destination of the roll-back, as the destination may have the guest
    /// complete. `true` comes before the record of the roll-back and goes to disk with it; `false` comes when the
    /// destination has answered.
    NoticeDue(bool),
    /// Send commit once more on a connection of its own, and ask for the state of the session: the destination's agent
    /// may have been started again before the message reached it, and holds the loaded guest then. Then
    /// [`Event::Answered`] or [`Event::Unanswered`].
    Query {
        /// The operator has decided to end the copy here. The question says that there is no copy, so that the
        /// destination cannot return the guest to it.
        gives_up: bool,
    },
    /// The roll-back could not be sent: send the notice on a connection of its own ([`crate::roll_back_notice`]).
    /// Nothing waits for it.
    NotifyRollBack {
        /// The destination may have the guest complete and keeps it until it is notified.
        may_be_loaded: bool,
    },
    /// The guest is the destination's: end the source's QEMU and remove what is left. Then [`Event::CleanedUp`].
    CleanUp,
    /// The migration is over, with this outcome.
    End(Ending),
}

/// How a migration ended: where the guest is, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// `None`: the guest moved.
    pub fault: Option<Fault>,
    /// What the guest does.
    pub guest: GuestState,
    /// Something is left to do that the session could not do: [`crate::recovery`] goes on with it.
    pub unfinished: bool,
}
