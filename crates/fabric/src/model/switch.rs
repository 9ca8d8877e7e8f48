//! What switches say: by LLDP to a port, or in an exported file.

use serde::{Deserialize, Serialize};

use super::{Application, Ets, Pfc};

/// Link aggregation, as a switch says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Aggregation {
    /// The port can be aggregated.
    pub able: bool,
    /// The port is in an aggregate now.
    pub on: bool,
    /// Number of the aggregate.
    pub number: Option<u32>,
}

/// What the other end of a cable says by LLDP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Neighbour {
    /// Chassis id: most often the switch's MAC address.
    pub chassis: Option<String>,
    /// Port id: the switch's name of its port.
    pub port: Option<String>,
    /// What the administrator wrote of the port.
    pub port_description: Option<String>,
    /// Name of the system.
    pub system: Option<String>,
    /// What the system says of itself: product and version.
    pub system_description: Option<String>,
    /// Addresses at which the switch can be administered.
    pub management: Vec<String>,
    /// Largest frame, bytes, Ethernet header and check sum counted (18 more than the MTU).
    pub frame_bytes_max: Option<u32>,
    /// VLAN of untagged frames.
    pub vlan_untagged: Option<u16>,
    /// VLANs that it names.
    pub vlans: Vec<u16>,
    /// Link aggregation; absent if it is not advertised.
    pub aggregation: Option<Aggregation>,
    /// It negotiates the speed.
    pub autonegotiation: Option<bool>,
    /// Traffic classes and shares that it advertises.
    pub ets: Option<Ets>,
    /// Lossless priorities that it advertises.
    pub pfc: Option<Pfc>,
    /// Which traffic gets which priority, as it advertises.
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
    /// Ports that the file names, in its order.
    pub ports: Vec<SwitchPort>,
}

/// A port of a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SwitchPort {
    /// Its name, as it says by LLDP.
    pub name: String,
    /// Largest packet (MTU), bytes.
    pub mtu: Option<u32>,
    /// Megabits per second, as running.
    pub speed_mbps: Option<u32>,
    /// Speed is negotiated (else forced).
    pub autonegotiation: Option<bool>,
    /// Forward error correction, by the switch's name of it.
    pub fec: Option<String>,
    /// VLAN of untagged frames.
    pub vlan_untagged: Option<u16>,
    /// VLANs of tagged frames.
    pub vlans: Vec<u16>,
    /// Number of the aggregate that it is a member of.
    pub aggregate: Option<u32>,
    /// Which priorities are lossless.
    pub pfc: Option<Pfc>,
    /// Host at the other end, if known.
    pub host: Option<String>,
    /// Port of that host, if known.
    pub host_port: Option<String>,
}
