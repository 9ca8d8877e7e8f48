//! Quality of service from one intent: which traffic is lossless, and who gets which share of a port.
//!
//! * [`intent`]: the file, and what is wrong with it.
//! * [`plan`]: intent and inventory make what changes on each port (pure), or what is [`impossible`] there.
//! * [`apply`]: it goes to the kernel.
//! * [`switch`]: the switch's side as text. * [`windows`]: a Windows host's side as PowerShell.

mod able;
pub mod apply;
pub mod impossible;
pub mod intent;
pub mod plan;
mod ports;
pub mod switch;
pub mod windows;

use serde::{Deserialize, Serialize};

use crate::model::{Application, Dcbx, Ets};

/// DCB settings as they go to the kernel; also what undoes them. What is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DcbSettings {
    /// Who exchanges settings with the switch.
    pub dcbx: Option<Dcbx>,
    /// Traffic classes of priorities, and their shares.
    pub ets: Option<Ets>,
    /// Priorities that are lossless; all others are not.
    pub lossless: Option<Vec<u8>>,
    /// Entries of the application table that go.
    pub remove: Vec<Application>,
    /// Entries of the application table that are added.
    pub add: Vec<Application>,
    /// What RDMA connections get that do not say.
    pub roce: Vec<RoceDefault>,
}

/// What RDMA connections of a port get that do not say (configfs, `rdma_cm`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoceDefault {
    /// Name of the RDMA device, such as `mlx5_0`.
    pub device: String,
    /// Its port, from 1.
    pub port: u32,
    /// `IB/RoCE v1` or `RoCE v2`.
    pub version: Option<String>,
    /// Traffic class: the byte with the DSCP in its upper six bits.
    pub traffic_class: Option<u8>,
}
