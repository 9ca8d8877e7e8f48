//! The agent itself.

use serde::{Deserialize, Serialize};

/// What an agent says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Name of its host.
    pub name: String,
    /// Version of Linerate that the agent runs.
    pub version: String,
    /// Seconds since it began.
    pub uptime_s: u64,
    /// Addresses at which it takes migrations.
    pub listen: Vec<String>,
    /// How many guests it knows.
    pub guests: u32,
    /// How many migrations are in progress, outgoing and incoming.
    pub migrations: u32,
    /// How many sessions wait for the other host or an operator to decide.
    pub in_doubt: u32,
    /// How many sessions of earlier migrations are being brought to their end, those in doubt among them.
    #[serde(default)]
    pub unfinished: u32,
    /// How many ends of sessions the journal has not taken yet, because its disk is full or fails.
    #[serde(default)]
    pub unwritten: u32,
    /// Versions of the protocol between agents that it speaks.
    pub protocol_versions: Vec<u16>,
    /// What it needs of the kernel, and whether that is there.
    pub kernel_features: Vec<KernelFeature>,
}

/// Something that an agent needs of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelFeature {
    /// Its name, such as `pagemap_scan`.
    pub name: String,
    /// This kernel has it.
    pub present: bool,
    /// What cannot be done without it.
    pub needed_for: String,
}
