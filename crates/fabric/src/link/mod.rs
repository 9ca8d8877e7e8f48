//! Changes the settings of a port: what would change, doing it, undoing it.
//!
//! * here: requested settings, and what they change. * [`plan`]: request and port make steps, warnings or a refusal
//!   (pure).
//! * [`apply`]: settings go to the kernel.

pub mod apply;
pub mod plan;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::Pause;
use crate::qos::DcbSettings;

/// What an operator wants of a port. What is `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RequestedSettings {
    /// Largest packet (MTU), bytes.
    pub mtu: Option<u32>,
    /// Negotiated, or forced to a speed.
    pub speed: Option<Speed>,
    /// Forward error correction: `auto`, `off`, `rs`, `baser`, `llrs`.
    pub fec: Option<String>,
    /// Pause frames in both directions.
    pub pause: Option<bool>,
    /// Number of queues for both directions.
    pub queues: Option<u32>,
}

/// How fast, and who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speed {
    /// Negotiated, everything that the port can do is offered.
    Auto,
    /// Forced, megabits per second, full duplex. The other side must be forced too.
    Forced(u32),
}

/// Settings as they go to the kernel; also what undoes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Largest packet (MTU), bytes.
    pub mtu: Option<u32>,
    /// Speed is negotiated; otherwise it is forced to `speed_mbps`.
    pub autonegotiation: Option<bool>,
    /// Forced speed, megabits per second.
    pub speed_mbps: Option<u32>,
    /// Link modes, offered or not.
    pub modes: BTreeMap<String, bool>,
    /// FEC modes by the kernel's names, such as `RS`; the adapter chooses among them.
    pub fec: Option<Vec<String>>,
    /// The adapter chooses the FEC.
    pub fec_auto: Option<bool>,
    /// Whether pause frames are negotiated, obeyed and sent.
    pub pause: Option<Pause>,
    /// Queues for both directions.
    pub queues_combined: Option<u32>,
    /// Number of queues that only receive.
    pub queues_rx: Option<u32>,
    /// Number of queues that only send.
    pub queues_tx: Option<u32>,
    /// Priorities, shares, lossless traffic.
    pub dcb: Option<DcbSettings>,
}

/// One setting that changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStep {
    /// Name of the setting, such as `MTU`.
    pub what: String,
    /// Its value before the change.
    pub from: String,
    /// As it shall be.
    pub to: String,
}

/// What requested settings change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// One by one; empty if all is as requested.
    pub steps: Vec<PortStep>,
    /// What may go wrong, by what is known of the other side.
    pub warnings: Vec<String>,
    /// What goes to the kernel.
    pub settings: Settings,
    /// What puts it back.
    pub undo: Settings,
}
