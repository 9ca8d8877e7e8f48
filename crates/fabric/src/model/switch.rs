//! What switches say: by LLDP to a port, or in an exported file.

use serde::{Deserialize, Serialize};

use super::{Application, Ets, Pfc};

/// Link aggregation, as a switch says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Aggregation {
    /// The port can be aggregated.
    pub able: bool,
    /// It is.
    pub on: bool,
    /// Number of the aggregate.
    pub number: Option<u32>,
}

/// What the other end of a cable says by LLDP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Neighbour {
    /// Chassis.
    pub chassis: Option<String>,
    /// Port.
    pub port: Option<String>,
    /// What the administrator wrote of the port.
    pub port_description: Option<String>,
    /// Name of the system.
    pub system: Option<String>,
    /// Its description.
    pub system_description: Option<String>,
    /// Management addresses.
    pub management: Vec<String>,
    /// Largest frame, bytes, Ethernet header and check sum counted (18 more than the MTU).
    pub frame_bytes_max: Option<u32>,
    /// VLAN of untagged frames.
    pub vlan_untagged: Option<u16>,
    /// VLANs that it names.
    pub vlans: Vec<u16>,
    /// Link aggregation.
    pub aggregation: Option<Aggregation>,
    /// It negotiates the speed.
    pub autonegotiation: Option<bool>,
    /// Its shares.
    pub ets: Option<Ets>,
    /// Its lossless priorities.
    pub pfc: Option<Pfc>,
    /// Its application priorities.
    pub applications: Vec<Application>,
}

impl Neighbour {
    /// Largest packet that it passes, bytes: the largest frame without Ethernet header and check sum.
    pub fn mtu(&self) -> Option<u32> {
        self.frame_bytes_max.map(|bytes| bytes.saturating_sub(18))
    }
}

/// A switch, from a file that was exported elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Switch {
    /// Its name, as it says by LLDP.
    pub switch: String,
    /// Its ports.
    pub ports: Vec<SwitchPort>,
}

/// A port of a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SwitchPort {
    /// Its name, as it says by LLDP.
    pub name: String,
    /// Largest packet, bytes.
    pub mtu: Option<u32>,
    /// Megabits per second, as running.
    pub speed_mbps: Option<u32>,
    /// Speed is negotiated (else forced).
    pub autonegotiation: Option<bool>,
    /// Forward error correction.
    pub fec: Option<String>,
    /// VLAN of untagged frames.
    pub vlan_untagged: Option<u16>,
    /// Tagged VLANs.
    pub vlans: Vec<u16>,
    /// Number of the aggregate that it is a member of.
    pub aggregate: Option<u32>,
    /// Lossless priorities.
    pub pfc: Option<Pfc>,
    /// Host at the other end, if known.
    pub host: Option<String>,
    /// Port of that host, if known.
    pub host_port: Option<String>,
}
