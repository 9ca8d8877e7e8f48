//! Hosts that take no guests from others.

use serde::{Deserialize, Serialize};

/// A host takes no guests from others until it is released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cordon {
    /// The user who asked for it.
    pub by: String,
    /// When that was.
    pub since_unix_ms: u64,
    /// An operator asked for it, and not a drain alone: `linerate drain --each` does not lift it.
    #[serde(default)]
    pub by_hand: bool,
}

/// Asks that a host takes no guests, or takes them again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CordonRequest {
    /// Name of the host; the agent's own if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// How a host is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CordonAnswer {
    /// Name of the host.
    pub host: String,
    /// It takes no guests; `null` if it does.
    pub cordon: Option<Cordon>,
    /// That is new.
    pub changed: bool,
}
