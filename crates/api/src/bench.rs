//! Measuring the links between two hosts: `linerate bench`.
//!
//! `POST /v1/bench` with a [`BenchRequest`] answers a stream, one [`BenchEvent`] a line. The last is
//! [`BenchEvent::Finished`]. Closing the connection stops the measurement on both hosts.

use serde::{Deserialize, Serialize};

use crate::ErrorBody;

/// A measurement between this host and another. The agent of `to` takes part in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BenchRequest {
    /// The other host, `HOST` or `HOST:PORT`.
    pub to: String,
    /// Networks in CIDR notation; only links in one of them are measured. All if empty.
    #[serde(default)]
    pub links: Vec<String>,
    /// What the measured connections run over.
    #[serde(default)]
    pub transport: BenchTransport,
    /// Connections for each link; 0: one for a ping-pong, as many as a migration would open for a stream.
    #[serde(default)]
    pub channels: u16,
    /// Where the threads run, on both hosts.
    #[serde(default)]
    pub cpu: BenchCpu,
    /// What the links carry, megabits per second, where ports do not say or say wrong.
    #[serde(default)]
    pub speed_mbps: Option<u32>,
    /// Measure although guests are being migrated, and do not give way to a migration that begins.
    #[serde(default)]
    pub force: bool,
    /// The measurement and its sizes and times.
    pub test: BenchTest,
}

/// The kinds of measurement, each with its sizes and times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case", deny_unknown_fields)]
pub enum BenchTest {
    /// Messages there and back, each link by itself.
    Pingpong {
        /// Sizes of messages, bytes, at most 4 MiB each; empty: 0 and the powers of two up to 4 MiB.
        #[serde(default)]
        sizes: Vec<u32>,
        /// Most repetitions of a size.
        repetitions: u32,
        /// How long one size may take, milliseconds.
        time_per_size_ms: u32,
    },
    /// All links at once: from here, to here, and both.
    Bandwidth {
        /// How long each of the three takes, milliseconds.
        time_ms: u32,
    },
}

/// What the measured connections run over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BenchTransport {
    /// TCP: one connection for each channel.
    #[default]
    Tcp,
    /// RDMA: an RDMA WRITE, and a message of one byte behind it.
    Rdma,
}

impl BenchTransport {
    /// The name that tables show.
    pub fn text(self) -> &'static str {
        match self {
            BenchTransport::Tcp => "TCP",
            BenchTransport::Rdma => "RDMA",
        }
    }
}

/// Where the threads run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BenchCpu {
    /// Where the kernel puts them.
    #[default]
    Any,
    /// On CPUs of the port's NUMA node.
    Near,
    /// On CPUs of another one.
    Far,
    /// All on this CPU.
    Number(u32),
}

/// What is seen of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum BenchEvent {
    /// How far it is.
    Progress {
        /// From 0 to 1.
        fraction: f64,
        /// Where it will be when what is measured now is done.
        until: f64,
        /// How long that may take, milliseconds, so that a bar can move meanwhile.
        expected_ms: u32,
        /// What is measured now.
        doing: String,
    },
    /// It is over. Always the last.
    Finished {
        /// Why not, if it did not come to its end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Box<ErrorBody>>,
        /// All figures, if it did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        report: Option<Box<BenchReport>>,
    },
    /// A kind that this client is too old to know. Never sent.
    #[serde(other)]
    Unknown,
}

/// All figures of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    /// Name of this host.
    pub from: String,
    /// Name of the other one.
    pub to: String,
    /// What the measured connections ran over.
    pub transport: BenchTransport,
    /// Where threads were to run.
    pub cpu: BenchCpu,
    /// When it began, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// What a reader must know of it, in sentences.
    pub notes: Vec<String>,
    /// The links, as they were found.
    pub links: Vec<BenchLink>,
    /// Of a ping-pong: a table for each link, in their order. Otherwise empty.
    pub pingpong: Vec<PingPong>,
    /// Of a stream: from here, to here, both. Otherwise empty.
    pub bandwidth: Vec<Bandwidth>,
}

/// A link that was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BenchLink {
    /// The port of the host that asked.
    pub source: BenchPort,
    /// The port of the other host.
    pub destination: BenchPort,
    /// What it carries, megabits per second: as asked for, or the slower port's speed; 0 if it is not known.
    pub speed_mbps: u32,
    /// Connections in use on it, in one direction.
    pub channels: u16,
}

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BenchPort {
    /// Name of the interface.
    pub interface: String,
    /// The IP address that the connections use.
    pub address: String,
    /// Largest packet of the port, bytes.
    pub mtu: u32,
    /// Megabits per second; 0 if it does not say.
    pub speed_mbps: u32,
    /// NUMA node; -1 if none is known.
    pub numa: i32,
}

/// A ping-pong over one link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PingPong {
    /// Position in [`BenchReport::links`], from 0.
    pub link: u16,
    /// One for each size.
    pub rows: Vec<PingPongRow>,
}

/// Messages of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PingPongRow {
    /// Size of a message, bytes, without headers.
    pub bytes: u32,
    /// Round trips on each channel that were measured.
    pub repetitions: u32,
    /// Half a round trip, microseconds; of the slowest channel.
    pub latency_us: f64,
    /// Of all channels: message over half a round trip, megabits per second.
    pub mbps: f64,
    /// The same in percent of the link; absent if its speed is not known.
    pub link_percent: Option<f64>,
    /// What was sent in one direction and measured, bytes, all channels.
    pub moved_bytes: u64,
}

/// Which way bytes went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BenchDirection {
    /// From here to the other host.
    Out,
    /// From the other host to here.
    In,
    /// From here and to here at the same time.
    Both,
}

/// A stream over all links at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Which hosts sent in this measurement.
    pub direction: BenchDirection,
    /// Of each link, in their order.
    pub links: Vec<LinkBandwidth>,
    /// Sum of all links' rates.
    pub sum: Rates,
    /// CPU time of the threads here, seconds for each second.
    pub source_cpu: f64,
    /// CPU time of the threads there, seconds for each second.
    pub destination_cpu: f64,
    /// CPU seconds of both hosts for each second and each Gb/s, both directions counted.
    pub cpu_s_per_gbit: f64,
}

/// One link's part of a [`Bandwidth`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkBandwidth {
    /// Position in [`BenchReport::links`], from 0.
    pub link: u16,
    /// Rates of this link alone.
    pub rates: Rates,
    /// From here, bytes that arrived in the whole phase.
    pub out_bytes: u64,
    /// To here, bytes that arrived in the whole phase.
    pub in_bytes: u64,
}

/// Rates as the receivers saw them, from a stream's first block to its last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// From here, megabits per second; 0 if nothing went that way.
    pub out_mbps: f64,
    /// To here, megabits per second; 0 if nothing went that way.
    pub in_mbps: f64,
    /// The faster of the two in percent of what is carried in one direction; absent if that is not known.
    pub link_percent: Option<f64>,
}

impl BenchEvent {
    /// The end of one that failed.
    pub fn failed(error: ErrorBody) -> BenchEvent {
        BenchEvent::Finished { error: Some(Box::new(error)), report: None }
    }
}
