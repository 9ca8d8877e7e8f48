//! What goes into the destination's state machine and what comes out of it.

use std::time::Duration;

use crate::control::Outgoing;
use crate::journal::DestinationPhase;
use crate::{
    ChannelId, Endpoint, Extent, Fault, LastLook, Message, Mode, PathId, RegionInfo, StreamSettings,
};

/// Time limits of a destination.
#[derive(Clone, Debug)]
pub struct Config {
    /// Without a control connection for this long, the session is given up, unless the guest is loaded: then the source
    /// may have committed. Longer than the source's own limit, so that the source decides first.
    pub orphan_timeout: Duration,
    /// The source's last message is waited for this long after the guest runs; then the session is forgotten in memory
    /// (the journal keeps it).
    pub finish_timeout: Duration,
    /// The peer is notified of a fault, and its answer is waited for this long.
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

/// What the driver reports to `Destination::handle`.
#[derive(Clone, Debug)]
pub enum Event {
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
    /// [`Action::Admit`] is done: checked and reserved. The addresses at which the source may connect.
    Admitted(Vec<Endpoint>),
    /// The incoming QEMU waits.
    Prepared {
        /// RAM blocks that the source may write.
        regions: Vec<RegionInfo>,
        /// What its hypervisor may have written while it started.
        touched: Vec<Extent>,
    },
    /// The incoming QEMU waits for the hypervisor's own streams; how both hypervisors are to be set.
    StreamsPrepared(StreamSettings),
    /// The streams say this to the other side's: Stream or Fence.
    SendStreamMessage(Message),
    /// [`Action::Fence`] is done: nothing more is applied from the channel.
    Fenced {
        /// The channel of the action.
        channel: ChannelId,
        /// Everything up to here was applied.
        applied: u64,
        /// Frames up to `applied` that arrived damaged and must be sent again.
        damaged: Vec<u64>,
    },
    /// No write will be applied any more; the digest if one was asked for.
    Sealed(Option<u64>),
    /// The hypervisor has loaded all device state, or taken its own streams to their end.
    DeviceStateLoaded,
    /// [`Action::CheckDisks`] found the disks of the incoming QEMU to be those of the source.
    DisksChecked,
    /// [`Action::Journal`] of this phase is on disk.
    Journaled(DestinationPhase),
    /// [`Action::RestoreHypervisor`] is done: its settings are as before.
    HypervisorRestored,
    /// [`Action::Run`] is done: the guest runs here.
    GuestRuns {
        /// How long that took.
        took: Duration,
        /// CPU time that the agent spent on the session so far.
        cpu: Duration,
    },
    /// [`Action::Run`] came to nothing: the hypervisor refused for as long as was waited, and the guest has not run.
    CannotRun(Fault),
    /// The same, but an answer of the hypervisor was lost before: whether the guest has run is not known.
    MayHaveRun(Fault),
    /// The hypervisor of a committed guest has ended; whether the guest ran is not known.
    GuestEnded(Fault),
    /// An action failed, or the hypervisor did.
    Failed(Fault),
    /// Receiving failed: memory here does not take the bytes, or the peer breaks the rules of the streams. Unlike
    /// [`Event::Failed`] it is not tied to an action: nothing is retried.
    ReceivingFailed(Fault),
    /// [`Action::Look`] is done.
    Looked(LastLook),
    /// [`Action::Discard`] is done: the incoming QEMU has ended and nothing is left of it.
    Discarded,
    /// The operator of this host wants it to end.
    Cancel,
    /// The source has rolled back and says so on a connection of its own ([`crate::roll_back_notice`]).
    RolledBackAtSource,
    /// The source has committed, and says so on a connection of its own.
    CommitAgain {
        /// Its own hypervisor runs: it can have the guest back.
        copy: bool,
    },
    /// The source is about to let its own copy run, and asks on a connection of its own whether this one runs.
    SourceResumes,
    /// The operator of this host decides over a loaded guest whose source does not answer: `true` runs it here.
    Resolve(bool),
    /// Only time passed: a timer may be due.
    Tick,
}

/// What the driver is to do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Put this on a control connection; if that is closed, drop it.
    Transmit(PathId, Outgoing),
    /// Check and reserve. Then [`Event::Admitted`].
    Admit {
        /// Name of the guest.
        guest: String,
        /// The source's description of the guest, JSON.
        description: String,
        /// What carries RAM and device state, and who decides on commit.
        mode: Mode,
    },
    /// Start the incoming QEMU, for the mode that was admitted. Then [`Event::Prepared`]. In mode Streams
    /// [`Event::StreamsPrepared`], and when all streams were taken [`Event::DeviceStateLoaded`].
    Prepare,
    /// The other side's streams say this: Stream or Fenced.
    DeliverStreamMessage(Message),
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
    /// Compare the disks that the source's guest uses with those of the incoming QEMU. Then [`Event::DisksChecked`].
    CheckDisks(String),
    /// Put the phase on disk and flush. Then [`Event::Journaled`] or [`Event::Failed`]. An end of the session (Running,
    /// Finished, Aborted, Returned) is written until the disk takes it, after the session if need be.
    Journal(DestinationPhase),
    /// Take the guest over: let it run, or only take its disks over if it did not run at the source. Then
    /// [`Event::GuestRuns`], [`Event::CannotRun`], [`Event::MayHaveRun`] or [`Event::GuestEnded`].
    Run {
        /// The guest ran at the source until it was stopped.
        was_running: bool,
    },
    /// Look once whether the guest that was let run has stopped by itself. Then [`Event::Looked`].
    Look,
    /// libvirt runs the guest: put back what was set for its RAM, and keep nothing. Then [`Event::HypervisorRestored`].
    RestoreHypervisor,
    /// End the incoming QEMU and remove what is left. Then [`Event::Discarded`].
    Discard,
    /// The session is over, and its guest is committed, paused, and may have run: recovery inspects it and holds it for
    /// an operator ([`crate::recovery::DestinationRecovery::inspect`]). Nothing of it is removed.
    LeaveToRecovery {
        /// Why it could not be run.
        fault: Fault,
        /// Its source has rolled back meanwhile, and lets its own copy run.
        rolled_back: bool,
    },
    /// It is over: `None` means that the guest is ours.
    End(Option<Fault>),
}
