//! Where the time went: kept by the source's state machine, shown by displays and the report.

use std::time::Duration;

use crate::{Step, Time};

/// One pass over RAM.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Round {
    /// 0 is the first pass.
    pub number: u32,
    /// Bytes that it had to carry.
    pub bytes: u64,
    /// From its first write to its last acknowledgement; `None` if it was never done.
    pub took: Option<Duration>,
    /// Bytes written by the guest meanwhile, as the scan behind it found; `None` if there was no such scan.
    pub dirty_bytes_after: Option<u64>,
    /// Length of that scan.
    pub scan: Duration,
}

/// Moments of the blackout. `None` where it was not reached.
#[derive(Clone, Copy, Debug, Default)]
pub struct Blackout {
    /// QEMU was asked to switch; the guest still runs.
    pub asked: Option<Time>,
    /// The guest executed its last instruction at the source.
    pub stopped: Option<Time>,
    /// QEMU holds at pre-switchover.
    pub pre_switchover: Option<Time>,
    /// The last scan ended.
    pub scanned: Option<Time>,
    /// All RAM is acknowledged.
    pub copied: Option<Time>,
    /// The digest was computed (only with verification).
    pub digested: Option<Time>,
    /// The destination sealed its RAM.
    pub sealed: Option<Time>,
    /// QEMU wrote all device state.
    pub state_written: Option<Time>,
    /// The destination loaded it.
    pub loaded: Option<Time>,
    /// The commit is in the journal.
    pub journaled: Option<Time>,
    /// The destination says that the guest runs.
    pub running: Option<Time>,
    /// Bytes of RAM in the last copy.
    pub last_copy_bytes: u64,
    /// Bytes of device state.
    pub device_state_bytes: u64,
    /// From the reading of commit to the guest's resumption, as the destination saw it.
    pub resume: Duration,
}

impl Blackout {
    /// From the guest's stop to the confirmation that it runs.
    pub fn total(&self) -> Option<Duration> {
        Some(self.running? - self.stopped?)
    }
}

/// What a hypervisor says of copying RAM in its own streams.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Streamed {
    /// Passes over what was written, 0 for the first one over all RAM.
    pub round: u32,
    /// Size of what is copied.
    pub total_bytes: u64,
    /// What is left of this pass.
    pub remaining_bytes: u64,
    /// Pages of zeros, which it did not send.
    pub zero_bytes: u64,
    /// How fast the guest writes.
    pub dirty_bytes_per_s: f64,
    /// Expected downtime if the guest were stopped now.
    pub expected_downtime: Option<Duration>,
    /// Percent by which it slows the guest down.
    pub throttle_percent: u8,
    /// Bytes of all streams that the destination has.
    pub carried_bytes: u64,
    /// How fast the links carry them.
    pub bytes_per_s: f64,
}

/// What a hypervisor says of copying disks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Disks {
    /// Bytes to look at, with what the guest wrote meanwhile.
    pub total_bytes: u64,
    /// Bytes that are the same over there, or were when they were looked at.
    pub done_bytes: u64,
    /// Bytes of all streams that the destination has.
    pub carried_bytes: u64,
    /// How fast the links carry them.
    pub bytes_per_s: f64,
    /// Of some disk the hypervisor still looks for what is in use, in which nothing moves.
    pub scanning_allocation: bool,
}

impl Disks {
    /// Bytes that are still to be looked at.
    pub fn left_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.done_bytes)
    }
}

/// Begin and end of a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    /// `None`: the step has not begun.
    pub began: Option<Time>,
    /// `None`: the step has not ended.
    pub ended: Option<Time>,
}

/// Times and amounts of one migration, for events and the report.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// When the migration was asked for.
    pub started: Time,
    /// End of the migration; `None` while it is in progress.
    pub ended: Option<Time>,
    spans: [Span; 10],
    /// The passes so far.
    pub rounds: Vec<Round>,
    /// Moments and amounts of the blackout.
    pub blackout: Blackout,
    /// Bytes that were populated when tracking began.
    pub populated_bytes: u64,
    /// How long the guest was stopped before the blackout, for drained write protection.
    pub pauses: Duration,
    /// CPU time of the destination's agent.
    pub destination_cpu: Duration,
    /// Bytes per second that the guest last wrote.
    pub dirty_bytes_per_s: f64,
    /// What it wrote since the first pass began, counted while that goes on.
    pub counted_bytes: Option<u64>,
    /// Predicted length of the last copy if it began now.
    pub predicted_blackout: Option<Duration>,
    /// The hypervisor's own last word, where RAM goes in its streams.
    pub streamed: Streamed,
    /// The same of copied disks; none if there are none.
    pub disks: Option<Disks>,
    /// How long those were copied before the RAM was begun.
    pub disks_only_phase: Duration,
    /// Passes over what the guest wrote to them meanwhile, 0 for the first one over all of them.
    pub disk_pass: u32,
    /// How fast it writes to what is the same over there; none before a second of a pass.
    pub disk_write_bytes_per_s: Option<f64>,
}

impl Statistics {
    /// A step begins (the first time counts).
    pub fn begin(&mut self, now: Time, step: Step) {
        self.spans[step as usize - 1].began.get_or_insert(now);
    }

    /// A step ends (the first time counts).
    pub fn end(&mut self, now: Time, step: Step) {
        let span = &mut self.spans[step as usize - 1];
        span.began.get_or_insert(now);
        span.ended.get_or_insert(now);
    }

    /// Begin and end of a step.
    pub fn span(&self, step: Step) -> Span {
        self.spans[step as usize - 1]
    }
}
