//! What a migration was, once it is over.

use serde::{Deserialize, Serialize};

use crate::{MigrationId, MigrationOutcome, Step};

/// All figures of a migration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Random id of the migration; the same on both hosts.
    pub id: MigrationId,
    /// Name of the guest that moved.
    pub guest: String,
    /// The host it left.
    pub from: String,
    /// The host it went to.
    pub to: String,
    /// How its RAM was moved.
    pub mode: Mode,
    /// Why it was not direct, where that was left to the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode_reason: Option<String>,
    /// Parallel channels that the hypervisor used beside its main one; absent in direct mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_channels: Option<u16>,
    /// Where the guest is now, and in which state.
    pub outcome: MigrationOutcome,
    /// The guest has arrived and does not run there, as it did not run at the source when it was stopped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub arrived_paused: bool,
    /// From the request to the end of the last step.
    pub total_us: u64,
    /// The steps that were begun, in order.
    pub steps: Vec<StepTime>,
    /// The first pass and the rounds after it, while the guest ran. The last copy is part of the blackout.
    pub rounds: Vec<RoundTotals>,
    /// What became of the guest's RAM.
    pub ram: RamTotals,
    /// Disks that went along; absent if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disks: Option<DiskTotals>,
    /// Disks that were not copied and that both hosts share by the operator's assertion alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared_by_assertion: Vec<String>,
    /// Guest RAM sent, over the time that the copy step took without that of the disks alone.
    pub goodput_bytes_per_s: u64,
    /// Every link that was used.
    pub links: Vec<LinkTotals>,
    /// CPU time that the agents spent on it.
    pub cpu: CpuTime,
    /// The parts of the blackout; absent if the guest was never stopped.
    pub blackout: Option<BlackoutSplit>,
    /// How long the guest was stopped *before* the blackout, so that its disks were drained while write protection was
    /// applied. All such pauses together.
    pub pauses_us: u64,
    /// Size of the hypervisor's device state.
    pub device_state_bytes: u64,
    /// Whether guest RAM was the same on both sides; absent if it was not compared.
    pub verified: Option<bool>,
    /// Writes whose checksum did not match at the destination and which were sent again. While the guest runs that is
    /// nearly always the guest itself, which wrote a page between its checksum and its sending.
    pub damaged_writes: u64,
}

/// How a guest's RAM is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// From RAM to RAM, past the hypervisor.
    Direct,
    /// The hypervisor's own migration stream.
    Stream,
}

/// How long a step took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTime {
    /// The step that was measured.
    pub step: Step,
    /// Time from its begin to its end, microseconds; steps may overlap.
    pub duration_us: u64,
}

/// A round, in figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundTotals {
    /// 0 is the first pass.
    pub number: u32,
    /// What it had to carry.
    pub bytes: u64,
    /// How long it took; absent if the migration ended before the round did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    /// What the guest had written by its end; absent if no scan followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty_bytes_after: Option<u64>,
}

/// What became of the guest's RAM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RamTotals {
    /// Size of guest RAM, bytes, in use or not.
    pub total_bytes: u64,
    /// Sent, over all rounds: a page that was written during the migration counts each time.
    pub sent_bytes: u64,
    /// Populated, but all zero: not sent.
    pub zero_bytes: u64,
    /// Never touched or given back: neither read nor sent.
    pub hole_bytes: u64,
}

/// What became of disks that went along, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskTotals {
    /// Number of disks that were copied.
    pub count: u32,
    /// Copied: what they held, and what the guest wrote meanwhile.
    pub copied_bytes: u64,
    /// What that cost on the links: zeros and holes cost next to nothing.
    pub sent_bytes: u64,
    /// How long they were copied before RAM was begun.
    pub alone_us: u64,
}

/// A link, in figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkTotals {
    /// Name of the source's interface.
    pub name: String,
    /// Address at the source.
    pub local: String,
    /// Address at the destination.
    pub remote: String,
    /// Speed of the slower of the two ports; 0 if neither says.
    pub speed_mbps: u32,
    /// Bytes of placed writes that the link carried.
    pub sent_bytes: u64,
    /// What it carried over the time that it was there during the copy step.
    pub rate_bytes_per_s: u64,
    /// How often it was lost.
    pub lost_count: u32,
    /// Segments that TCP sent again, or packets that an RDMA adapter did, where it counts them.
    pub retransmits: u64,
    /// It carried over RDMA, at least for a time.
    #[serde(default)]
    pub rdma: bool,
    /// Why it carried over TCP although both ends have RDMA; absent if it did not come to that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
    /// Why it did not carry when the migration ended: it could not be opened, or was lost and did not come back. Absent
    /// if it carried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// What the RDMA port counted meanwhile, that of other users of the port included; absent where it was not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma_port: Option<RdmaPortTotals>,
}

/// What an RDMA port of the source counted during a migration. A counter that the driver does not have is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaPortTotals {
    /// Device and number of the port, such as `mlx5_0/1`.
    pub port: String,
    /// Bytes sent, headers included.
    pub sent_bytes: Option<u64>,
    /// Packets that the port sent; absent if the adapter does not count them.
    pub sent_packets: Option<u64>,
    /// Packets that the port sent again; absent if the adapter does not count them.
    pub retransmits: Option<u64>,
    /// Packets marked as congested by switches, and notices of it.
    pub congestion_marks: Option<u64>,
    /// Pauses that the link's partner asked for.
    pub pauses: Option<u64>,
}

/// CPU time, user and system together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTime {
    /// Of the source's agent.
    pub source_agent_us: u64,
    /// Of the destination's agent.
    pub destination_agent_us: u64,
}

/// The parts of the blackout, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlackoutSplit {
    /// From the last instruction at the source to the first at the destination, as the source's clock saw it.
    pub total_us: u64,
    /// The hypervisor stops the guest.
    pub stop_us: u64,
    /// The last scan for written pages, and for what the guest gave back since it was sent.
    pub scan_us: u64,
    /// The last round is copied, while the guest is stopped.
    pub last_copy_us: u64,
    /// Guest RAM is compared; 0 without `verify`.
    pub verify_us: u64,
    /// The device state is saved, carried and loaded.
    pub device_state_us: u64,
    /// The source writes its commit to the journal.
    pub journal_us: u64,
    /// The destination starts the guest.
    pub resume_us: u64,
    /// The down-time that QEMU itself reports.
    pub qemu_downtime_us: Option<u64>,
}

impl BlackoutSplit {
    /// The parts in order, each with its name for reading.
    pub fn parts(&self) -> [(&'static str, u64); 7] {
        [
            ("stop the guest", self.stop_us),
            ("last scan", self.scan_us),
            ("last copy", self.last_copy_us),
            ("verify", self.verify_us),
            ("device state", self.device_state_us),
            ("journal", self.journal_us),
            ("resume", self.resume_us),
        ]
    }
}
