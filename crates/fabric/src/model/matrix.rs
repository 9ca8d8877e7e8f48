//! What probes between hosts measured.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// One end of a probe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct End {
    /// Name of the host, as its inventory has it.
    pub host: String,
    /// Name of the port, such as `ens1f0`.
    pub port: String,
    /// The port's IP address that the probe uses.
    pub ip: IpAddr,
}

/// How large packets pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathMtu {
    /// What the sending port's MTU promises, bytes.
    pub promised: u32,
    /// Largest packet that arrived, bytes, IP header counted.
    pub passed: u32,
    /// Larger packets are lost without any error: connections hang.
    pub black_hole: bool,
}

/// Time from sending to the echo, over a link without load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// The smallest round trip, nanoseconds.
    #[serde(rename = "min_us", with = "as_us")]
    pub min_ns: u64,
    /// Half of the round trips are faster, nanoseconds.
    #[serde(rename = "median_us", with = "as_us")]
    pub median_ns: u64,
    /// The largest round trip, nanoseconds.
    #[serde(rename = "max_us", with = "as_us")]
    pub max_ns: u64,
}

/// Nanoseconds as a number of microseconds with three decimals, in documents.
mod as_us {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(ns: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(*ns as f64 / 1e3)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        Ok((f64::deserialize(deserializer)? * 1e3).round() as u64)
    }
}

/// Small packets on a link without load: how many were lost, and where. Measured again before it is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Loss {
    /// Packets that were sent.
    pub sent: u32,
    /// Those that did not arrive; `None` if the receiver does not count.
    pub lost_there: Option<u32>,
    /// Replies that did not arrive; `None` if the receiver does not count.
    pub lost_back: Option<u32>,
    /// Packets without a reply.
    pub lost: u32,
}

/// One direction between one port of one host and one port of another. What was not measured is left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// The port that sends probes.
    pub from: End,
    /// The port that receives and answers them.
    pub to: End,
    /// A packet that had to leave by the port arrived.
    #[serde(default)]
    pub reachable: Option<bool>,
    /// Packets did arrive, whatever became of the replies; present where no reply came.
    #[serde(default)]
    pub received: Option<bool>,
    /// The agent's TCP port takes connections over this link.
    #[serde(default)]
    pub tcp: Option<bool>,
    /// Why it does not.
    #[serde(default)]
    pub tcp_failure: Option<String>,
    /// Small packets that were lost without load.
    #[serde(default)]
    pub loss: Option<Loss>,
    /// Packets that were bound to the address only leave by this other port.
    #[serde(default)]
    pub leaves_by: Option<String>,
    /// Packets arrive at this other port of the receiver.
    #[serde(default)]
    pub arrives_at: Option<String>,
    /// How large packets pass.
    #[serde(default)]
    pub path_mtu: Option<PathMtu>,
    /// Time from sending to the echo.
    #[serde(default)]
    pub latency: Option<Latency>,
    /// The same under load.
    #[serde(default)]
    pub latency_loaded: Option<Latency>,
    /// TCP throughput with as many connections as a migration would have, megabits per second.
    #[serde(default)]
    pub throughput_mbps: Option<u64>,
    /// Packets of a thousand that were lost under load.
    #[serde(default)]
    pub loss_permille: Option<u32>,
    /// TCP segments that had to be sent again during the throughput probe.
    #[serde(default)]
    pub retransmits: Option<u64>,
    /// RDMA throughput with as many queue pairs as a migration would have, megabits per second; where both ends have
    /// RDMA.
    #[serde(default)]
    pub rdma_mbps: Option<u64>,
    /// Why nothing was moved by RDMA although both ends have it.
    #[serde(default)]
    pub rdma_failure: Option<String>,
    /// Why RDMA was not measured although both ends have it, by no fault of the link.
    #[serde(default)]
    pub rdma_not_measured: Option<String>,
    /// The receiver's clock minus the sender's, microseconds, by half the least round trip.
    #[serde(default)]
    pub clock_ahead_us: Option<i64>,
    /// Why nothing more could be measured.
    #[serde(default)]
    pub failure: Option<String>,
}

impl Probe {
    /// A probe in which nothing is measured yet.
    pub fn new(from: End, to: End) -> Probe {
        Probe {
            from,
            to,
            reachable: None,
            received: None,
            tcp: None,
            tcp_failure: None,
            loss: None,
            leaves_by: None,
            arrives_at: None,
            path_mtu: None,
            latency: None,
            latency_loaded: None,
            throughput_mbps: None,
            loss_permille: None,
            retransmits: None,
            rdma_mbps: None,
            rdma_failure: None,
            rdma_not_measured: None,
            clock_ahead_us: None,
            failure: None,
        }
    }
}

/// Several hosts that send to one at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incast {
    /// The ports that send at the same time.
    pub from: Vec<End>,
    /// The port that receives from all of them.
    pub to: End,
    /// What each got, megabits per second, in the order of `from`.
    pub throughput_mbps: Vec<u64>,
    /// What the fastest of them gets alone, megabits per second.
    #[serde(default)]
    pub alone_mbps: Option<u64>,
    /// Ports whose load did not come to its end meanwhile. They are not in `from`.
    #[serde(default)]
    pub failed: Vec<FailedLoad>,
}

/// A load that did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedLoad {
    /// The port that sent.
    pub from: End,
    /// A sentence: what caused it.
    pub why: String,
}

/// All that probes measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Matrix {
    /// Every pair of hosts was to be measured: what is not there was not measured.
    pub probed: bool,
    /// One for each pair of ports and direction.
    pub probes: Vec<Probe>,
    /// One for each port that several hosts sent to at once.
    pub incasts: Vec<Incast>,
}
