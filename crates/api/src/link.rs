//! Settings of a port.

use serde::{Deserialize, Serialize};

/// What to set; what is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkRequest {
    /// Name of the port.
    pub port: String,
    /// The host, `HOST` or `HOST:PORT` of its agent; `None` is this one. Another host's agent must allow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Largest packet (MTU), bytes; absent: unchanged.
    #[serde(default)]
    pub mtu: Option<u32>,
    /// Speed to force, megabits per second; 0 negotiates.
    #[serde(default)]
    pub speed_mbps: Option<u32>,
    /// Forward error correction: `auto`, `off`, `rs`, `baser`, `llrs`.
    #[serde(default)]
    pub fec: Option<String>,
    /// Pause frames in both directions.
    #[serde(default)]
    pub pause: Option<bool>,
    /// Number of queues for both directions; absent: unchanged.
    #[serde(default)]
    pub queues: Option<u32>,
    /// Say what would change and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// Everything is put back unless it is confirmed within this many seconds; 1 to 3600.
    pub confirm_within_s: u32,
}

/// Which port's new settings are to stay, or to be put back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfirm {
    /// Name of the port.
    pub port: String,
    /// The host, as in [`LinkRequest`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// One setting that changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStep {
    /// Name of the setting, such as `MTU`.
    pub what: String,
    /// Its value before the change.
    pub from: String,
    /// As it is now, or would be.
    pub to: String,
}

/// What was or would be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkAnswer {
    /// Name of the port.
    pub port: String,
    /// One by one; empty if all was as requested.
    pub steps: Vec<LinkStep>,
    /// What may go wrong, by what is known of the other side.
    pub warnings: Vec<String>,
    /// It was done; else it was a dry run, or nothing was to be done.
    pub applied: bool,
    /// It is put back unless confirmed within this many seconds.
    pub confirm_within_s: Option<u32>,
}
