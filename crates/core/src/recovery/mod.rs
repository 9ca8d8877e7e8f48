//! What a host does about sessions that were not brought to their end. They are found in the journal when the agent
//! starts. Or a running session could not end itself: its hypervisor does not answer, or its disk is full.
//!
//! | file | what it has |
//! |---|---|
//! | here | what a journal as a whole says: which record decides about which process |
//! | `source` | one session at the source, until its guest runs here or has left |
//! | `destination` | one session at the destination, until its guest runs here or has ended |
//! | `domain` | one domain that libvirt moves, until it is known where it is |
//! | `setting` | a capability of a domain's QEMU, until it is off again |
//! | `ends` | ends of sessions that the disk has not taken yet |
//!
//! The rules (13): a record decides about the process that it names and about no other; of several records that name
//! one process the newest decides, by the journal's own order and never by a clock; an end is written until the disk
//! has it.
//! Everything here is pure: the agent and the simulator carry out the same actions.

mod destination;
mod domain;
mod ends;
mod setting;
mod source;

pub use destination::{
    DestinationAction, DestinationEvent, DestinationRecovery, Inspection, RUN_AGAIN_AFTER, RUN_FOR, RunResult,
};
pub use domain::{
    DomainAction, DomainDoubt, DomainEnd, DomainEvent, DomainRecovery, DomainState, SourceAnswer,
};
pub use ends::UnwrittenEnds;
pub use setting::{PUT_BACK_FOR, SettingAction, SettingRecovery};
pub use source::{Look, SourceAction, SourceEvent, SourceRecovery};

use std::time::Duration;

use crate::SessionId;
use crate::journal::{DestinationPhase, ProcessFate, SourcePhase};

/// A driver may take so long for one try to resume a guest. A destination that was asked before keeps its copy from
/// running for longer.
pub const RESUME_MAX: Duration = Duration::from_secs(10);
/// The destination's answer that it has not committed the guest counts for so long after the question. A source that
/// was stopped meanwhile asks again.
pub const ANSWER_COUNTS_FOR: Duration = Duration::from_secs(10);
/// Between two tries of anything that failed, and between two questions.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A hypervisor's process, so that no other is taken for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// The boot that it belongs to.
    pub boot: String,
    /// Process id, which the kernel may use again: the start time distinguishes two.
    pub pid: i32,
    /// When it was started, in clock ticks since the boot.
    pub start_ticks: u64,
}

/// A session's phase, and thereby its side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The guest leaves this host.
    Source(SourcePhase),
    /// The guest comes to this host.
    Destination(DestinationPhase),
}

/// A record of the journal, as far as recovery depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The session that the record belongs to.
    pub session: SessionId,
    /// Its place in the order in which sessions began on this host.
    pub order: u64,
    /// How far it got.
    pub phase: Phase,
    /// The guest's hypervisor on this host; none if it was not started yet.
    pub process: Option<Process>,
}

/// What is to be done about a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Source: let the guest run as before, write that, and notify the destination ([`SourceRecovery::resume_here`]).
    RollBack,
    /// Source: ask until the outcome is known ([`SourceRecovery::query`]). The guest stays paused.
    Query,
    /// Destination: end the incoming QEMU and write that ([`DestinationRecovery::discard`]).
    Discard,
    /// Destination: keep the complete guest until the source or an operator decides ([`DestinationRecovery::wait`]).
    Wait,
    /// Destination: find out whether the guest runs ([`DestinationRecovery::inspect`]).
    Inspect,
    /// Source: commit was not sent, and its process has ended with the host or by itself: only write that it was rolled
    /// back. The destination is not notified: if it has the guest complete, that copy is the only one, and an operator
    /// decides about it.
    RecordLoss,
    /// The process is none of this session's business any more: only write this phase.
    RecordEnd(Phase),
    /// The session is at its end: there is nothing to do.
    Nothing,
}

/// What is to be done about `entry`, given all records of the host and whether a process is alive.
pub fn plan(entry: &Entry, all: &[Entry], is_alive: impl Fn(&Process) -> bool) -> Plan {
    use DestinationPhase as To;
    use SourcePhase as From;
    let superseded = is_superseded(entry, all);
    let alive = !superseded && entry.process.as_ref().is_some_and(is_alive);
    match entry.phase {
        Phase::Source(From::Started | From::ResumingHere) if alive => Plan::RollBack,
        Phase::Source(From::Started | From::ResumingHere) if !superseded => Plan::RecordLoss,
        // A newer session of the same process began, so this one was rolled back: the guest ran here again.
        Phase::Source(From::Started | From::ResumingHere | From::CommitSent) if superseded => {
            Plan::RecordEnd(Phase::Source(From::RolledBack))
        }
        Phase::Source(From::Started | From::ResumingHere | From::CommitSent) => Plan::Query,
        Phase::Source(From::Finished | From::RolledBack) => Plan::Nothing,
        // Also with the process gone: files that were made for it may be left.
        Phase::Destination(To::Started | To::Aborted | To::Returned) if !superseded => Plan::Discard,
        Phase::Destination(To::Loaded) if alive => Plan::Wait,
        Phase::Destination(To::Loaded) if !superseded => Plan::Discard,
        Phase::Destination(To::Committed) if alive => Plan::Inspect,
        // It has been leaving since, so it ran here.
        Phase::Destination(To::Started | To::Loaded | To::Committed | To::Running) if superseded => {
            Plan::RecordEnd(Phase::Destination(To::Finished))
        }
        Phase::Destination(_) => Plan::Nothing,
    }
}

/// Whether a newer record names the same process: then this one decides nothing about it.
fn is_superseded(entry: &Entry, all: &[Entry]) -> bool {
    entry.process.is_some() && all.iter().any(|one| one.order > entry.order && one.process == entry.process)
}

/// What became of a destination's process.
pub fn process_fate(entry: &Entry, all: &[Entry], is_alive: impl Fn(&Process) -> bool) -> ProcessFate {
    let left = |one: &Entry| {
        one.order > entry.order
            && one.process == entry.process
            && one.phase == Phase::Source(SourcePhase::Finished)
    };
    match &entry.process {
        Some(process) if is_alive(process) => ProcessFate::Alive,
        Some(_) if all.iter().any(left) => ProcessFate::MovedOn,
        _ => ProcessFate::Ended,
    }
}

/// What a source does now about a roll-back notice that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeStep {
    /// Send it.
    Send,
    /// Look again later: whether it may be sent is not known yet.
    Wait,
    /// Never send it: what the destination has may be the only copy, and is its operator's.
    Withdraw,
}

/// Asked before each try to send a notice. `ran`: the guest ran when it was stopped to leave, or was seen to run here
/// since. What the destination has of such a guest is old. One that was paused, and has ended here with its process, is
/// complete at the destination alone, unless a newer session has moved it on.
pub fn notice_step(
    ran: bool,
    entry: &Entry,
    all: &[Entry],
    is_alive: impl Fn(&Process) -> bool,
) -> NoticeStep {
    use SourcePhase::{CommitSent, ResumingHere, Started};
    let leaves = |one: &Entry| {
        let open = matches!(one.phase, Phase::Source(Started | CommitSent | ResumingHere));
        open && one.order > entry.order && one.process == entry.process
    };
    match process_fate(entry, all, is_alive) {
        ProcessFate::Ended if !ran && all.iter().any(leaves) => NoticeStep::Wait,
        ProcessFate::Ended if !ran => NoticeStep::Withdraw,
        _ => NoticeStep::Send,
    }
}

#[cfg(test)]
mod tests;
