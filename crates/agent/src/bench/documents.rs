//! The messages between the two sides of a measurement: JSON, unknown fields refused, every number within a cap.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use linerate_api::{BenchCpu, BenchTransport};
use linerate_net::bench::document_channel::DocumentChannel;
use linerate_net::bench::role::{TestResult, TestRole};
use linerate_net::bench::{BLOCK_BYTES, MESSAGE_BYTES_MAX};
use linerate_net::rdma::test_connection::MEMORY_BYTES;
use linerate_wire::message::{ENDPOINTS_MAX, Endpoint};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::BenchError;

/// Connections of one measurement.
pub const CONNECTIONS_MAX: usize = 128;
/// Memory for messages of all connections that are used at a time: each needs one to send and one to receive.
pub const MEMORY_BYTES_MAX: usize = 256 << 20;
/// Connections of one measurement over RDMA: all that there is memory for.
pub const QUEUE_PAIRS_MAX: usize = MEMORY_BYTES_MAX / MEMORY_BYTES;
/// Repetitions of one size.
pub const REPETITIONS_MAX: u32 = 100_000;
/// A stream in one direction, milliseconds.
pub const STREAM_MS_MAX: u32 = 300_000;
/// All that is played at a time, milliseconds.
pub const LIMIT_MS_MAX: u32 = 900_000;
/// Most bytes of a peer's sentence that are shown.
const MESSAGE_SHOWN_BYTES: usize = 1024;
/// How long an answer may take that needs no measuring.
pub const ANSWER_WAIT: Duration = Duration::from_secs(10);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case", deny_unknown_fields)]
pub enum PeerRequest {
    Open {
        /// Also during a migration.
        force: bool,
    },
    /// All of these at once.
    Play {
        /// Parts of the answering side.
        parts: Vec<ChannelPart>,
        /// Where its threads run.
        cpu: BenchCpu,
        /// When it is to be given up, milliseconds.
        limit_ms: u32,
    },
}

/// What is to be done on a channel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelPart {
    pub channel: u32,
    pub part: PeerPart,
}

/// A part that can be asked of the answering side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PeerPart {
    /// Answers each message with one of the same size.
    Answer { bytes: u32, repetitions: u32 },
    Send {
        /// For so many milliseconds.
        ms: u32,
    },
    /// Takes blocks until the last.
    Receive {},
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case", deny_unknown_fields)]
pub enum PeerReply {
    Ready {
        /// Name of its host.
        name: String,
        /// Where it takes connections.
        ports: Vec<Port>,
    },
    /// To [`PeerRequest::Play`]: it begins.
    Playing {},
    TestResult {
        /// Of each channel, as asked.
        channels: Vec<ChannelPlayed>,
        /// CPU time of its threads.
        cpu_us: u64,
        /// What a reader of the figures must know.
        notes: Vec<String>,
    },
    /// No, or not any more.
    Refused { code: String, message: String },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    interface: String,
    address: SocketAddr,
    prefix: u8,
    speed_mbps: u32,
    mtu: u32,
    numa: i32,
    up: bool,
    /// Where RDMA connections are taken at this address; 0 if they are not.
    #[serde(default)]
    rdma_port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelPlayed {
    sent_bytes: u64,
    received_bytes: u64,
    timed_bytes: u64,
    elapsed_ns: u64,
}

impl PeerRequest {
    pub fn name(&self) -> &'static str {
        match self {
            PeerRequest::Open { .. } => "open",
            PeerRequest::Play { .. } => "play",
        }
    }
}

impl PeerReply {
    pub fn name(&self) -> &'static str {
        match self {
            PeerReply::Ready { .. } => "ready",
            PeerReply::Playing {} => "playing",
            PeerReply::TestResult { .. } => "played",
            PeerReply::Refused { .. } => "refused",
        }
    }

    /// A refusal of the other side becomes an error of that host.
    pub fn into_result(self, host: &str) -> Result<PeerReply, BenchError> {
        let PeerReply::Refused { code, message } = self else { return Ok(self) };
        let plain = code.len() <= 40 && code.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        let code = if plain { code } else { linerate_api::code::BENCH_FAILED.to_owned() };
        let message = cut(&message).to_owned();
        Err(BenchError::Peer { host: host.to_owned(), code, message })
    }
}

/// At most so much as is shown, at a character's end.
pub fn cut(text: &str) -> &str {
    let end = (0..=MESSAGE_SHOWN_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or(0)).unwrap_or_default()
}

impl PeerPart {
    /// The part, if it is one that this side takes.
    pub fn checked(self) -> Result<TestRole, BenchError> {
        match self {
            PeerPart::Answer { bytes, repetitions } => {
                check_message(bytes, repetitions)?;
                Ok(TestRole::Answer { bytes: bytes as usize, repetitions })
            }
            PeerPart::Send { ms } => {
                check_time(ms)?;
                Ok(TestRole::Send { time: Duration::from_millis(ms.into()) })
            }
            PeerPart::Receive {} => Ok(TestRole::Receive),
        }
    }
}

/// Whether all these may be played at a time.
pub fn check_team(parts: &[PeerPart]) -> Result<(), BenchError> {
    if parts.is_empty() || parts.len() > CONNECTIONS_MAX {
        return Err(BenchError::Channels { connections: parts.len() });
    }
    let message = |part: &PeerPart| match part {
        PeerPart::Answer { bytes, .. } => *bytes as usize,
        PeerPart::Send { .. } | PeerPart::Receive {} => BLOCK_BYTES,
    };
    let bytes =
        parts.iter().map(message).fold(0, |sum: usize, one| sum.saturating_add(one.saturating_mul(2)));
    if bytes > MEMORY_BYTES_MAX { Err(BenchError::Memory { bytes }) } else { Ok(()) }
}

/// Whether a measurement may have so many connections. A queue pair's messages have memory as long as it is there.
pub fn check_connections(transport: BenchTransport, connections: usize) -> Result<(), BenchError> {
    match transport {
        _ if connections > CONNECTIONS_MAX => Err(BenchError::Channels { connections }),
        BenchTransport::Rdma if connections > QUEUE_PAIRS_MAX => Err(BenchError::QueuePairs { connections }),
        BenchTransport::Tcp | BenchTransport::Rdma => Ok(()),
    }
}

/// Whether a ping-pong of this size may be.
pub fn check_message(bytes: u32, repetitions: u32) -> Result<(), BenchError> {
    if bytes as usize > MESSAGE_BYTES_MAX {
        return Err(BenchError::Size { bytes: bytes.into() });
    }
    if !(1..=REPETITIONS_MAX).contains(&repetitions) {
        return Err(BenchError::Repetitions { count: repetitions });
    }
    Ok(())
}

/// Whether a stream may last so long.
pub fn check_time(ms: u32) -> Result<(), BenchError> {
    if (1..=STREAM_MS_MAX).contains(&ms) { Ok(()) } else { Err(BenchError::Time { ms }) }
}

impl From<&Endpoint> for Port {
    fn from(endpoint: &Endpoint) -> Port {
        Port {
            interface: endpoint.interface.clone(),
            address: endpoint.address,
            prefix: endpoint.prefix,
            speed_mbps: endpoint.speed_mbps,
            mtu: endpoint.mtu,
            numa: endpoint.numa,
            up: endpoint.up,
            rdma_port: endpoint.rdma_port,
        }
    }
}

/// The peer's ports as the pairing wants them; prefixes that no address has are left out with their port.
pub fn endpoints(ports: Vec<Port>) -> Vec<Endpoint> {
    let fits = |port: &Port| port.prefix <= if port.address.is_ipv4() { 32 } else { 128 };
    let endpoint = |port: Port| Endpoint {
        interface: cut(&port.interface).to_owned(),
        address: port.address,
        prefix: port.prefix,
        speed_mbps: port.speed_mbps,
        mtu: port.mtu,
        numa: port.numa,
        up: port.up,
        rdma_port: port.rdma_port,
    };
    ports.into_iter().filter(fits).take(ENDPOINTS_MAX).map(endpoint).collect()
}

impl From<&TestResult> for ChannelPlayed {
    fn from(played: &TestResult) -> ChannelPlayed {
        ChannelPlayed {
            sent_bytes: played.sent_bytes,
            received_bytes: played.received_bytes,
            timed_bytes: played.timed_bytes,
            elapsed_ns: u64::try_from(played.elapsed.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

impl From<&ChannelPlayed> for TestResult {
    fn from(played: &ChannelPlayed) -> TestResult {
        TestResult {
            sent_bytes: played.sent_bytes,
            received_bytes: played.received_bytes,
            timed_bytes: played.timed_bytes,
            elapsed: Duration::from_nanos(played.elapsed_ns),
        }
    }
}

pub fn send(talk: &DocumentChannel, document: &impl Serialize) -> Result<(), BenchError> {
    let bytes = serde_json::to_vec(document)?;
    Ok(talk.send(&bytes, Instant::now() + ANSWER_WAIT)?)
}

pub fn receive<T: DeserializeOwned>(talk: &DocumentChannel, wait: Duration) -> Result<T, BenchError> {
    let bytes = talk.receive(Instant::now() + wait)?;
    Ok(serde_json::from_slice(&bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_has_the_form_of_the_protocol_page() {
        let text = r#"{"say":"play","parts":[{"channel":3,"part":{"answer":{"bytes":4,"repetitions":10}}},
            {"channel":4,"part":{"send":{"ms":500}}},{"channel":5,"part":{"receive":{}}}],"cpu":"near","limit_ms":30000}"#;
        let PeerRequest::Play { parts, cpu, limit_ms } = serde_json::from_str(text).unwrap() else {
            panic!()
        };
        assert_eq!((parts.len(), cpu, limit_ms), (3, BenchCpu::Near, 30_000));
        assert_eq!(parts[0].part, PeerPart::Answer { bytes: 4, repetitions: 10 });
        for bad in [r#"{"say":"open"}"#, r#"{"say":"open","force":false,"fast":true}"#, r#"{"say":"jump"}"#] {
            assert!(serde_json::from_str::<PeerRequest>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn absurd_parts_are_refused() {
        let refused = |part: PeerPart| part.checked().is_err();
        assert!(refused(PeerPart::Answer { bytes: (4 << 20) + 1, repetitions: 1 }));
        assert!(refused(PeerPart::Answer { bytes: u32::MAX, repetitions: 1 }));
        assert!(refused(PeerPart::Answer { bytes: 1, repetitions: 0 }));
        assert!(refused(PeerPart::Answer { bytes: 1, repetitions: REPETITIONS_MAX + 1 }));
        assert!(refused(PeerPart::Send { ms: 0 }));
        assert!(refused(PeerPart::Send { ms: STREAM_MS_MAX + 1 }));
        let largest = PeerPart::Answer { bytes: 4 << 20, repetitions: REPETITIONS_MAX };
        assert!(!refused(largest));
        assert!(check_team(&[largest; 32]).is_ok());
        assert!(matches!(check_team(&[largest; 33]), Err(BenchError::Memory { .. })));
        assert!(check_team(&[PeerPart::Receive {}; CONNECTIONS_MAX]).is_ok());
        assert!(
            check_team(&[PeerPart::Receive {}; CONNECTIONS_MAX + 1]).is_err() && check_team(&[]).is_err()
        );
    }

    #[test]
    fn queue_pairs_are_as_many_as_there_is_memory_for() {
        let check = check_connections;
        assert!(check(BenchTransport::Rdma, 32).is_ok() && check(BenchTransport::Tcp, 128).is_ok());
        let error = check(BenchTransport::Rdma, 33).unwrap_err();
        assert_eq!(error.code(), linerate_api::code::BAD_REQUEST);
        assert!(error.to_string().starts_with("33 queue pairs, "), "{error}");
        assert!(matches!(check(BenchTransport::Tcp, 129), Err(BenchError::Channels { .. })));
    }

    #[test]
    fn a_refusal_keeps_to_what_can_be_shown() {
        let refused =
            |code: &str, message: &str| PeerReply::Refused { code: code.into(), message: message.into() };
        let error = refused("bench_busy", "busy").into_result("beta").unwrap_err();
        assert_eq!((error.code(), error.to_string().as_str()), ("bench_busy", "beta: busy"));
        let error = refused("\x1b[2J", &"ü".repeat(5000)).into_result("beta").unwrap_err();
        assert_eq!(error.code(), "bench_failed");
        assert!(error.to_string().len() < 1100);
    }
}
