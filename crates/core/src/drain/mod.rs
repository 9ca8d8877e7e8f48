//! A drain: all guests of one host leave it.
//!
//! [`Controller`] decides which guest copies, which are prepared and which wait. Events with the time in them go in,
//! orders come out. The agent and the simulator run the same object. docs/drain.md has the reasons.
//!
//! ```mermaid
//! stateDiagram-v2
//!     [*] --> Unplaced
//!     Unplaced --> Placing: Place
//!     Placing --> Placed: reserved
//!     Placing --> Unplaced: no host, tried again later
//!     Placed --> Preparing: Prepare
//!     Preparing --> Prepared
//!     Prepared --> Copying: Copy
//!     Copying --> Ended: moved
//!     Preparing --> Cancelling: no answer, lost destination, abort
//!     Prepared --> Cancelling: lost destination, abort
//!     Copying --> Cancelling: stalled, lost destination, abort
//!     Cancelling --> Unplaced: tried again
//!     Cancelling --> Ended
//!     Unplaced --> Ended: failed, aborted
//!     Ended --> Unplaced: in doubt, and the session's end is reported late
//! ```
//!
//! One guest copies over all links and the next is prepared meanwhile. Another one copies too only while measured
//! goodput stays below what the links carry: one guest cannot fill them, its destination is slower, or it is nearly
//! done. Invariants (property tests):
//! * `Copy` is ordered only for a guest that was reserved and prepared, and never for one that the operator keeps;
//! * a guest has at most one session: it is prepared again only after the end of the one before was reported;
//! * while the drain is paused, aborted or without its store, nothing new is started;
//! * every guest ends: moved, kept, aborted, gone, or failed with a reason. Every wait has a limit.
//!
//! Beside the controller are waits for guests that it does not have or cannot judge: [`Settling`], [`Judging`] and
//! [`ComingBack`]; and [`Asking`], for questions that are asked more than once.

mod admission;
mod asking;
pub mod bound;
mod coming_back;
mod controller;
mod deadlines;
mod groups;
mod judging;
mod learned;
#[cfg(test)]
mod properties;
mod reason;
mod settling;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::fleet::placement::Nowhere;
use crate::fleet::{GuestId, HostId};
use crate::{Fault, Time};

pub use asking::Asking;
pub use coming_back::{ComingBack, SILENT_MAX};
pub use controller::Controller;
pub use judging::Judging;
pub use reason::{Reason, Stage};
pub use settling::{Answers, DomainHere, Look, Seen, Settling, Whereabouts};

/// Limits of a drain.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Guests that copy at the same time at most, whatever the links carry.
    pub copies_max: usize,
    /// Guests that are being prepared or wait prepared at most. Each holds an incoming QEMU at its destination.
    pub prepared_max: usize,
    /// Tries of a guest. A destination that is lost is no try.
    pub tries_max: u32,
    /// Destinations that are reserved for a guest, one after another, at most.
    pub placements_max: u32,
    /// Time before a guest's second try. It doubles with each further one.
    pub retry_after: Duration,
    /// The driver answers `Place`, `Prepare` and `Cancel` within this time.
    pub answer_max: Duration,
    /// A guest that copies less than a thousandth of its memory in this time is stalled.
    pub stall_max: Duration,
    /// A guest that has copied its memory so many times over does not converge.
    pub copied_times_max: u64,
    /// A prepared guest is refused by a busy destination for this long at most.
    pub busy_max: Duration,
    /// A guest that writes more than this part of what it copies at is copied alone.
    pub alone_share: f64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            copies_max: 16,
            prepared_max: 16,
            tries_max: 3,
            placements_max: 16,
            retry_after: Duration::from_secs(10),
            answer_max: Duration::from_secs(120),
            stall_max: Duration::from_secs(300),
            copied_times_max: 30,
            busy_max: Duration::from_secs(1800),
            alone_share: 0.1,
        }
    }
}

/// A guest as the drain finds it.
#[derive(Clone, Debug)]
pub struct Start {
    /// Its number in the ledger.
    pub guest: GuestId,
    /// Bytes to copy at first: RAM in use, and copied disks.
    pub copy_bytes: u64,
    /// Bytes of memory that it has. When it is copied it may use all of them: it may have been started just now.
    pub memory_bytes: u64,
    /// Bytes per second that it writes, 0 if nothing is known.
    pub write_bytes_per_s: f64,
    /// Bytes per second that one guest of this host can be copied at, where earlier drains showed it.
    pub limit_bytes_per_s: Option<f64>,
    /// The operator keeps it: it gets no order.
    pub keep: bool,
}

/// What a session reports: a quarter of a second after its first byte, then each second, and at the end of each round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// 0 is the first pass.
    pub round: u32,
    /// Bytes copied by this session so far.
    pub copied_bytes: u64,
    /// Bytes that are known to be left to copy, with what is known to be written meanwhile.
    pub left_bytes: u64,
    /// Bytes per second over the last second or the last round.
    pub bytes_per_s: f64,
    /// Bytes per second that the guest writes, once that is known.
    pub write_bytes_per_s: Option<f64>,
}

/// What happened.
#[allow(missing_docs, reason = "the variant says what its fields are")]
#[derive(Clone, Debug)]
pub enum Event {
    /// Time has passed; see [`Controller::next_timer`].
    Tick,
    /// A destination is reserved. `ports` has a bit for each port of the source with a link there.
    Placed { guest: GuestId, host: HostId, ports: u64, bytes_per_s: f64 },
    /// There is none for it now.
    NoPlace { guest: GuestId, why: Nowhere },
    /// The incoming QEMU waits and the links are open.
    Prepared { guest: GuestId },
    /// The destination takes no copy for now. The guest stays prepared.
    Busy { guest: GuestId },
    /// The copy was not begun: the store did not take that it begins. The guest stays prepared.
    Held { guest: GuestId },
    /// A guest is being copied.
    Progress { guest: GuestId, sample: Sample },
    /// The guest runs at its destination, and its migration uses no link any more. It is looked at there once more:
    /// `Moved` follows.
    Left { guest: GuestId },
    /// The guest runs at its destination.
    Moved { guest: GuestId },
    /// The session ended and the guest is at the source.
    Failed { guest: GuestId, fault: Fault },
    /// A cancelled session has ended and the guest is at the source.
    Cancelled { guest: GuestId },
    /// The guest has ended, or somebody else moved it.
    Gone { guest: GuestId },
    /// Another migration has the guest, so that no session began. It is no try. If it stays here, it is `Added` again.
    Taken { guest: GuestId },
    /// Guests that have failed get all their tries once more, together: others of their group have left.
    Again(Vec<GuestId>),
    /// A host does not answer.
    HostLost(HostId),
    /// A host is being emptied itself: guests on their way there go elsewhere.
    HostDrained(HostId),
    /// A host answers again, or takes guests again.
    HostFound(HostId),
    /// A guest that was under way when the drain began has arrived at the source.
    Added(Start),
    /// What each port of the source carries now, in bytes per second; 0 for a lost one.
    Ports(Vec<f64>),
    /// Whether the store answers.
    Store(bool),
    /// Start nothing new.
    Pause,
    /// Go on.
    Resume,
    /// Cancel what runs, and start nothing any more.
    Abort,
}

/// What the driver does next. It carries out the orders of one guest one after another.
#[allow(missing_docs, reason = "the variant says what its fields are")]
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Find and reserve a destination for each guest, none of the hosts with it. Answers: `Placed`, `NoPlace`.
    Place(Vec<(GuestId, Vec<HostId>)>),
    /// Give the guest's reservation up; a `Place` without an answer is void.
    Release { guest: GuestId },
    /// Start the incoming QEMU and open the links. Answers: `Prepared`, `Failed`.
    Prepare { guest: GuestId, host: HostId },
    /// Copy and switch over, over these ports. Answers: `Progress`, `Moved`, `Failed`, `Busy`, `Held`.
    Copy { guest: GuestId, host: HostId, ports: u64 },
    /// End the session. Answers: `Cancelled`, `Failed`, or `Moved` if it was too late.
    Cancel { guest: GuestId },
}

/// How a guest's part of the drain ended.
#[allow(missing_docs, reason = "the variant says what its fields are")]
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It runs there.
    Moved(HostId),
    /// The operator kept it.
    Kept,
    /// It is where it was, or nobody knows if `in_doubt`.
    Failed { reason: Reason, in_doubt: bool },
    /// The operator aborted the drain.
    Aborted,
    /// It ended, or somebody else moved it.
    Gone,
}

/// A try that did not succeed.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// When it ended.
    pub at: Time,
    /// The destination, if there was one.
    pub host: Option<HostId>,
    /// Why.
    pub reason: Reason,
}

/// What a guest does.
#[allow(missing_docs, reason = "the variant says what its fields are")]
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// It has no destination; one is looked for at this time.
    Unplaced { from: Time },
    /// The driver looks for a destination.
    Placing,
    /// It has a destination and waits for its turn.
    Placed,
    /// Its incoming QEMU is being started.
    Preparing,
    /// It waits for its turn to copy.
    Prepared,
    /// It is copied.
    Copying,
    /// Its session is being ended.
    Cancelling(Then),
    /// Its part is over.
    Ended(Outcome),
}

/// What follows a cancelled session.
#[derive(Clone, Debug, PartialEq)]
pub enum Then {
    /// Another try, perhaps elsewhere.
    Retry(Reason),
    /// Another destination; not a try.
    Elsewhere(Reason),
    /// Nothing.
    Abort,
}
