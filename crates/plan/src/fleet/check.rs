//! What must hold in every drain, and defects that must be noticed.

use std::fmt;

use linerate_core::fleet::{GuestId, HostId};

/// A rule of drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Guests and incoming QEMUs on a host need no more memory than it has for guests.
    MemoryCap,
    /// A guest is copied only where it is reserved and prepared.
    Admitted,
    /// A guest has one session at a time.
    OneSession,
    /// A guest that the operator keeps gets no session.
    Kept,
    /// A cordoned host gets no guest.
    Cordon,
    /// Nothing is started while the drain is paused or aborted, or the store is away.
    Quiet,
    /// Every drain ends, and every guest has an outcome that is true.
    Ends,
    /// No session and no reservation is left of a drain that is over.
    NothingLeft,
    /// A guest stays only if nothing could be done: tries used up, no host, kept, aborted.
    LeftForAReason,
}

/// A rule that was broken, and by which guest or host.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    pub rule: Rule,
    pub guest: Option<GuestId>,
    pub host: Option<HostId>,
    pub what: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {} (guest {:?}, host {:?})", self.rule, self.what, self.guest, self.host)
    }
}

/// A defect in the driver: each must be noticed by the rule that it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Destinations are taken by best fit, and nothing is reserved.
    NotReserved,
    /// A reservation is given up when the guest is prepared.
    ReleasedEarly,
    /// A guest is copied as soon as it is prepared, without an order.
    CopiedUnasked,
    /// A cancelled session goes on, although its end is reported.
    CancelLies,
    /// Guests that the operator keeps are handed to the controller like the others.
    KeepForgotten,
    /// Cordons are not in the ledger.
    CordonForgotten,
    /// A pause does not reach the controller.
    PauseLost,
    /// A store that is away is not reported.
    StoreLossNotReported,
    /// A guest that has arrived is not reported, nor is anything else of it.
    MovedNotReported,
    /// Releases are not carried out.
    ReleaseLost,
    /// A lost destination is reported as a fault of the guest that no retry can help.
    LossBlamedOnGuest,
}

impl Defect {
    pub const ALL: [Defect; 11] = [
        Defect::NotReserved,
        Defect::ReleasedEarly,
        Defect::CopiedUnasked,
        Defect::CancelLies,
        Defect::KeepForgotten,
        Defect::CordonForgotten,
        Defect::PauseLost,
        Defect::StoreLossNotReported,
        Defect::MovedNotReported,
        Defect::ReleaseLost,
        Defect::LossBlamedOnGuest,
    ];
}
