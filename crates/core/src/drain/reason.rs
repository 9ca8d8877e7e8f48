//! Why a guest's try failed.

use std::fmt;

use crate::fleet::HostId;
use crate::fleet::placement::Nowhere;
use crate::{Code, Fault, Side};

/// Why a try of a guest did not succeed.
#[allow(missing_docs, reason = "the variant says what its fields are")]
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// No host can take it.
    Nowhere(Nowhere),
    /// The migration failed.
    Fault(Fault),
    /// Its destination does not answer.
    HostLost(HostId),
    /// Its destination is being emptied.
    HostDrained(HostId),
    /// The agent did not answer.
    NoAnswer(Stage),
    /// Hardly anything was copied for too long.
    Stalled,
    /// It writes faster than the links carry: bytes per second written, and copied.
    WritesTooFast { writes: f64, copied: f64 },
    /// The destination took no copy for too long.
    Busy(HostId),
}

impl Reason {
    /// Whether another try may succeed, here or with another destination.
    pub fn may_pass(&self) -> bool {
        match self {
            Reason::Fault(fault) => may_pass(fault),
            _ => true,
        }
    }
}

/// What somebody has cancelled is not tried again.
pub(super) fn may_pass(fault: &Fault) -> bool {
    fault.code != Code::Cancelled && (fault.side == Side::Destination || fault.code.retry_can_help())
}

/// What was asked of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A destination.
    Place,
    /// An incoming QEMU.
    Prepare,
    /// The end of a session.
    Cancel,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: &f64| bytes / f64::from(1 << 20);
        match self {
            Reason::Nowhere(why) => write!(f, "{why}"),
            Reason::Fault(fault) => write!(f, "{fault}"),
            Reason::HostLost(host) => write!(f, "the destination, host {}, does not answer", host.0),
            Reason::HostDrained(host) => {
                write!(f, "the destination, host {}, is being drained itself", host.0)
            }
            Reason::NoAnswer(Stage::Place) => {
                write!(f, "no destination was reserved in time: does the store answer?")
            }
            Reason::NoAnswer(Stage::Prepare) => write!(f, "the destination's QEMU was not ready in time"),
            Reason::NoAnswer(Stage::Cancel) => {
                write!(
                    f,
                    "the migration was cancelled and its end was not reported: see `linerate migration list`"
                )
            }
            Reason::Stalled => write!(f, "the copy stalled: see the links with `linerate doctor`"),
            Reason::WritesTooFast { writes, copied } => write!(
                f,
                "the guest writes {:.0} MiB/s and was copied at {:.0} MiB/s: allow a longer blackout or throttling",
                mib(writes),
                mib(copied)
            ),
            Reason::Busy(host) => write!(f, "the destination, host {}, had no time for the copy", host.0),
        }
    }
}
