//! RDMA devices.

use serde::{Deserialize, Serialize};

/// What an RDMA port runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkLayer {
    /// Ethernet: RoCE or iWARP.
    Ethernet,
    /// InfiniBand, not Ethernet.
    Infiniband,
    /// A layer that this version does not know.
    #[serde(other)]
    Other,
}

/// What an entry of the GID table is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GidKind {
    /// InfiniBand, or RoCE v1: the sysfs type `IB/RoCE v1`.
    RoceV1,
    /// RoCE v2, over UDP.
    RoceV2,
    /// A kind that this version does not know.
    #[serde(other)]
    Other,
}

/// An entry of the GID table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    /// Place in the table.
    pub index: u32,
    /// Its sixteen bytes, as sysfs writes them.
    pub gid: String,
    /// What it is for.
    pub kind: GidKind,
    /// The network port that it belongs to.
    #[serde(default)]
    pub port: Option<String>,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RdmaPort {
    /// Its number, from 1.
    pub number: u32,
    /// Such as `ACTIVE` or `DOWN`.
    pub state: Option<String>,
    /// What it runs on.
    pub link_layer: Option<LinkLayer>,
    /// Speed as running, megabits per second.
    pub speed_mbps: Option<u32>,
    /// The network port that it belongs to.
    pub port: Option<String>,
    /// GIDs that are not empty.
    pub gids: Vec<Gid>,
    /// RoCE version that connections get that do not say: `IB/RoCE v1`, `RoCE v2`.
    pub default_roce: Option<String>,
    /// Traffic class that connections get that do not say.
    pub default_traffic_class: Option<u8>,
}

/// An RDMA device with its ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RdmaDevice {
    /// The kernel's name, such as `mlx5_0`.
    pub name: String,
    /// Sort of node: `CA` for RoCE and InfiniBand, `RNIC` for iWARP.
    pub node_type: Option<String>,
    /// Version of its firmware.
    pub firmware: Option<String>,
    /// PCIe address, such as `0000:3b:00.0`.
    pub pcie_address: Option<String>,
    /// Ports of the adapter, each with its state.
    pub ports: Vec<RdmaPort>,
}
