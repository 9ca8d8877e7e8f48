//! Every decision of a migration, without I/O, clock or threads.
//!
//! Events with the time in them go in, actions come out. The agent is one driver, the simulator in `linerate-plan` the
//! other.
//!
//! * [`source::Source`] and [`destination::Destination`]: the two state machines.
//! * [`scheduler::Scheduler`]: which channel carries which extent next; what is in flight; fencing before requeue.
//! * [`policy`]: another round, switch over, throttle or give up.
//! * [`control::Control`]: control messages numbered, acknowledged and sent again over any link that works.
//! * [`stream::Streams`]: byte streams over placed writes: order, credits, a fair queue, retransmission.
//! * [`tunnel`]: when a tunnel ends by itself.
//! * [`link`]: when a link is opened again, and whether it may use RDMA.
//! * [`journal`]: what is on disk, and what another host is answered from it.
//! * [`recovery`]: sessions that were not brought to their end: after a crash, or where a hypervisor does not answer.
//! * [`fleet`]: many hosts: what is reserved on them, and where a guest can go.
//! * [`drain`]: the guests of one host: which one copies, which are prepared, which wait.
//! * [`roll_back_notice`]: telling a destination of a roll-back that an abort could not reach.

pub mod control;
pub mod destination;
pub mod drain;
pub mod extent;
pub mod fleet;
pub mod journal;
pub mod link;
mod operator_decision;
pub mod policy;
pub mod rate;
pub mod recovery;
pub mod roll_back_notice;
pub mod scheduler;
pub mod source;
mod source_copy;
pub mod statistics;
pub mod stream;
pub mod time;
pub mod tunnel;

pub use extent::Extent;
pub use linerate_wire::fault::{Code, Fault, GuestState, Side, Step};
pub use linerate_wire::message::{
    Endpoint, LastLook, Message, Mode, ModeTag, Outcome, RegionInfo, Run, SessionId, StreamNote,
    StreamSettings, Token, UnknownMode,
};
pub use time::Time;

/// Number of a channel within a session, from 0, never given twice.
pub type ChannelId = u32;
/// Number of a link within a session, from 0.
pub type LinkId = u16;
/// Number of a region within a session.
pub type RegionId = u16;
/// Number of a control connection within a session, never given twice.
pub type PathId = u32;

/// Bytes in a page of guest RAM as tracked.
pub const PAGE_BYTES: u64 = 4096;
