//! Data centre bridging: priorities, shares, lossless classes.

use serde::{Deserialize, Serialize};

/// What dcbnl says of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dcb {
    /// Shares.
    pub ets: Option<Ets>,
    /// Lossless priorities.
    pub pfc: Option<Pfc>,
    /// Which traffic gets which priority.
    pub applications: Vec<Application>,
    /// Who decides.
    pub dcbx: Option<Dcbx>,
}

/// Enhanced transmission selection (IEEE 802.1Qaz).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ets {
    /// Takes the other side's settings.
    pub willing: Option<bool>,
    /// How many traffic classes the adapter has.
    pub classes_max: Option<u8>,
    /// Traffic class of each of the eight priorities.
    pub priority_class: Vec<u8>,
    /// Share of each of the eight traffic classes, percent.
    pub share_percent: Vec<u8>,
    /// How each of the eight traffic classes is served: `strict`, `ets`, `credit_shaper`, `vendor`.
    pub selection: Vec<String>,
}

/// Priority flow control (IEEE 802.1Qbb).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pfc {
    /// Takes the other side's settings.
    pub willing: Option<bool>,
    /// How many priorities can be lossless.
    pub lossless_max: Option<u8>,
    /// Priorities that are lossless.
    pub lossless: Vec<u8>,
}

/// What kind of number tells the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selector {
    /// An Ethernet type; 0 is all that nothing else says.
    EtherType,
    /// A TCP or SCTP port.
    Stream,
    /// A UDP or DCCP port; RoCE v2 is 4791.
    Datagram,
    /// Any transport's port.
    AnyPort,
    /// The DSCP of the IP header.
    Dscp,
    /// Any other.
    #[serde(other)]
    Other,
}

/// One entry of the application priority table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Application {
    /// What `protocol` is.
    pub selector: Selector,
    /// Number of the protocol.
    pub protocol: u16,
    /// Its priority.
    pub priority: u8,
}

/// Who speaks DCBX, and which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dcbx {
    /// The operating system decides (else the adapter's firmware).
    pub host: bool,
    /// The adapter's firmware speaks DCBX.
    pub firmware: bool,
    /// IEEE version.
    pub ieee: bool,
    /// Older CEE version.
    pub cee: bool,
    /// Nothing is exchanged.
    pub fixed: bool,
}
