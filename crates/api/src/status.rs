//! The agent itself.

use serde::{Deserialize, Serialize};

use crate::Cordon;

/// What an agent says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Name of its host.
    pub name: String,
    /// Version of Linerate that the agent runs.
    pub version: String,
    /// Seconds since it began.
    pub uptime_s: u64,
    /// Addresses at which it takes migrations now.
    pub listen: Vec<String>,
    /// How connections with other agents are protected.
    #[serde(default)]
    pub security: SecurityState,
    /// What an operator should know about that and about `listen`, with what to do; `null` if all is well.
    #[serde(default)]
    pub security_advice: Option<String>,
    /// Who this host is to others; `null` without an identity.
    #[serde(default)]
    pub identity: Option<HostIdentity>,
    /// Why the agent does not use the identity's files as they are now; `null` if it does.
    #[serde(default)]
    pub identity_not_taken_up: Option<String>,
    /// Folder of this host's identity.
    #[serde(default)]
    pub identity_dir: String,
    /// Addresses at which hosts can join its cluster now: none unless this host has the authority, and a token can be
    /// used.
    #[serde(default)]
    pub join_listen: Vec<String>,
    /// The host takes no guests from others; `null` if it does.
    #[serde(default)]
    pub cordon: Option<Cordon>,
    /// Why it is not known whether it is cordoned: it takes no guests then. `null` if it is known.
    #[serde(default)]
    pub cordon_error: Option<String>,
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
    /// Records of the journal that cannot be read, and what to do: guests of these migrations may be here, and recovery
    /// does not know them. `null` if all can be read.
    #[serde(default)]
    pub journal_error: Option<String>,
    /// Versions of the protocol between agents that it speaks.
    pub protocol_versions: Vec<u16>,
    /// What it needs of the kernel, and whether that is there.
    pub kernel_features: Vec<KernelFeature>,
}

/// How connections between agents are protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecurityState {
    /// TLS, with this host's identity.
    Tls,
    /// TLS, and this host has no identity yet: other hosts cannot reach it.
    NoIdentity,
    /// Plain text, as the configuration says.
    #[default]
    Insecure,
}

/// Who a host is to others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostIdentity {
    /// Name of its cluster.
    pub cluster: String,
    /// Name of this host in the cluster, as its certificate has it.
    pub host: String,
    /// The end of its certificate.
    pub ends_unix_ms: u64,
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
