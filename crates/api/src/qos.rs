//! Quality of service: priorities, shares and lossless traffic of ports.

use serde::{Deserialize, Serialize};

use crate::LinkAnswer;

/// Sets a host's ports as an intent says, on trial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QosRequest {
    /// The intent: the text of its TOML file.
    pub intent: String,
    /// The host, `HOST` or `HOST:PORT` of its agent; `None` is this one. Another host's agent must allow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Say what would change and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// Everything is put back unless it is confirmed, port by port, within this many seconds; 1 to 3600.
    pub confirm_within_s: u32,
}

/// What was or would be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QosAnswer {
    /// Each port of the intent. A port that changed is confirmed like one of `linerate link`.
    pub ports: Vec<LinkAnswer>,
}
