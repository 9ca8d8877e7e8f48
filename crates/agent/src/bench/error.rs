//! Why a measurement failed.

use linerate_api::{ErrorBody, code};
use linerate_net::bench::document_channel::DocumentError;
use linerate_net::bench::{MESSAGE_BYTES_MAX, TestError};
use linerate_net::links::NetworkError;
use linerate_net::netlink::NetlinkError;
use linerate_net::rdma;
use linerate_net::tcp::connect::ConnectError;
use linerate_net::tcp::listen::ListenError;

use super::documents::{CONNECTIONS_MAX, MEMORY_BYTES_MAX, QUEUE_PAIRS_MAX, REPETITIONS_MAX, STREAM_MS_MAX};
use crate::faults::chain;
use crate::security::REVOKED;

/// Why a measurement failed or was refused.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A message that is too long.
    #[error("messages of {bytes} bytes; at most {MESSAGE_BYTES_MAX} are sent")]
    Size {
        /// Bytes of a message that was asked for.
        bytes: u64,
    },
    /// No or too many repetitions.
    #[error("{count} repetitions; between 1 and {REPETITIONS_MAX} can be asked for")]
    Repetitions {
        /// Repetitions that were asked for.
        count: u32,
    },
    /// No or too much time.
    #[error("{ms} ms; between 1 ms and {} s can be asked for", STREAM_MS_MAX / 1000)]
    Time {
        /// Time that was asked for, milliseconds.
        ms: u32,
    },
    /// No or too many connections.
    #[error("{connections} connections; between 1 and {CONNECTIONS_MAX} can be used")]
    Channels {
        /// Connections that were asked for.
        connections: usize,
    },
    /// Too many connections with messages so long.
    #[error(
        "messages of all channels need {} MiB; at most {} MiB are given to it: ask for fewer channels or shorter messages",
        bytes >> 20, MEMORY_BYTES_MAX >> 20
    )]
    Memory {
        /// Bytes that all messages need together.
        bytes: usize,
    },
    /// Too many connections by RDMA.
    #[error(
        "{connections} queue pairs, each with {} MiB of memory: at most {QUEUE_PAIRS_MAX} can be used; ask for fewer channels",
        rdma::test_connection::MEMORY_BYTES >> 20
    )]
    QueuePairs {
        /// Connections that were asked for.
        connections: usize,
    },
    /// `--links` cannot be read.
    #[error(transparent)]
    Networks(#[from] NetworkError),
    /// The host's name leads nowhere.
    #[error("cannot find the host {host}: {source}")]
    Host {
        /// Name of the host that the error concerns.
        host: String,
        /// Cause of the failed name lookup.
        source: std::io::Error,
    },
    /// One at a time.
    #[error("a measurement is in progress on {host}; there is one at a time")]
    Busy {
        /// Name of the host that the error concerns.
        host: String,
    },
    /// It would slow a guest down.
    #[error("a guest is being migrated from or to {host}, and a measurement would take its links")]
    Migration {
        /// Name of the host that the error concerns.
        host: String,
    },
    /// A host that only looks asks for `--force`, which takes the links of guests that move.
    #[error(
        "this host does not let the asking host measure with --force: that needs the permission \"send\""
    )]
    Force,
    /// The operator, or a client that went away.
    #[error("the measurement was cancelled")]
    Cancelled,
    /// Nothing more is sent to it, nor taken from it.
    #[error("the measurement was ended: {REVOKED}")]
    Revoked,
    /// The other agent cannot be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// An address of this host cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The conversation was cut.
    #[error("the conversation with the other agent failed: {0}")]
    DocumentChannel(#[from] DocumentError),
    /// Its message cannot be understood.
    #[error("the other agent's message cannot be understood; are both of the same version? {0}")]
    Document(#[from] serde_json::Error),
    /// Its message is not allowed, or not now.
    #[error("the other agent answered {got} to {asked}")]
    Unexpected {
        /// Name of the request.
        asked: &'static str,
        /// Name of the reply, or what was wrong with it.
        got: &'static str,
    },
    /// It refuses, or has failed.
    #[error("{host}: {message}")]
    Peer {
        /// Its name, or its address.
        host: String,
        /// The error code of the other side.
        code: String,
        /// The other side's sentence for the operator.
        message: String,
    },
    /// The ports of this host cannot be listed.
    #[error("the ports of this host cannot be listed: {0}")]
    Ports(#[from] NetlinkError),
    /// No address of the other host pairs with a port of this one.
    #[error("no link: the other host listens on {offered}; none of it pairs with a port of this host")]
    NoLink {
        /// Addresses at which the other host listens.
        offered: String,
    },
    /// RDMA was asked for.
    #[error("{link}: RDMA was asked for, and the other host's port has none")]
    NoRdma {
        /// Name of the link, as the report shows it.
        link: String,
    },
    /// RDMA was asked for and cannot be had here.
    #[error(transparent)]
    Rdma(rdma::error::RdmaError),
    /// A link cannot be connected over by RDMA.
    #[error(transparent)]
    ConnectRdma(#[from] rdma::connect::ConnectError),
    /// A connection failed while it was measured.
    #[error("{link}: {source}")]
    TestConnection {
        /// Name of the link, as the report shows it.
        link: String,
        /// Failure of the connection.
        source: TestError,
    },
    /// A link failed whose ports differ.
    #[error("{source}; {mtus}")]
    LongPackets {
        /// Of which link, and what they are.
        mtus: String,
        /// Failure of the attempt over RDMA.
        source: Box<BenchError>,
    },
    /// The two sides counted different numbers of bytes.
    #[error("{link}: {sent} bytes were sent and {received} arrived")]
    Lost {
        /// Name of the link, as the report shows it.
        link: String,
        /// Bytes by the sender's count.
        sent: u64,
        /// Bytes by the receiver's count.
        received: u64,
    },
    /// A thread cannot run on the CPU that was asked for.
    #[error("CPU {cpu} is not there, or not for this process to use")]
    Cpu {
        /// Number of the CPU.
        cpu: u32,
    },
    /// The kernel gave no random number for the session.
    #[error("the kernel gave no random numbers: {0}")]
    Random(getrandom::Error),
}

impl BenchError {
    pub(super) fn code(&self) -> &str {
        match self {
            BenchError::Size { .. }
            | BenchError::Repetitions { .. }
            | BenchError::Time { .. }
            | BenchError::Channels { .. }
            | BenchError::Memory { .. }
            | BenchError::QueuePairs { .. }
            | BenchError::Cpu { .. }
            | BenchError::Networks(_) => code::BAD_REQUEST,
            BenchError::Busy { .. } => code::BENCH_BUSY,
            BenchError::Migration { .. } => code::MIGRATION_IN_PROGRESS,
            BenchError::Force => "not_authorised",
            BenchError::Cancelled => "cancelled",
            BenchError::Revoked => "peer_lost",
            BenchError::Connect(_)
            | BenchError::ConnectRdma(_)
            | BenchError::Host { .. }
            | BenchError::NoLink { .. }
            | BenchError::NoRdma { .. }
            | BenchError::Rdma(_) => "no_link",
            BenchError::Document(_) | BenchError::Unexpected { .. } => "protocol_violation",
            BenchError::Peer { code, .. } => code,
            BenchError::LongPackets { source, .. } => source.code(),
            BenchError::Random(_) => "internal",
            BenchError::Listen(_)
            | BenchError::DocumentChannel(_)
            | BenchError::Ports(_)
            | BenchError::TestConnection { .. }
            | BenchError::Lost { .. } => code::BENCH_FAILED,
        }
    }
}

impl BenchError {
    /// The same with this text, if it is of a link.
    pub(super) fn of_links_with(self, mtus: Option<String>) -> BenchError {
        match (self, mtus) {
            (source @ (BenchError::TestConnection { .. } | BenchError::Peer { .. }), Some(mtus)) => {
                BenchError::LongPackets { mtus, source: Box::new(source) }
            }
            (other, _) => other,
        }
    }
}

impl From<&BenchError> for ErrorBody {
    fn from(error: &BenchError) -> ErrorBody {
        let hint = match error.code() {
            code::BENCH_BUSY => "wait until it is over",
            code::MIGRATION_IN_PROGRESS => "wait for the migration, or measure during it with --force",
            "no_link" => "check cables, switch ports and `listen` of both agents",
            code::BENCH_FAILED => "read the log of the other host's agent, then try again",
            "not_authorised" => {
                "measure without --force, or give the asking host a role that may send guests"
            }
            "protocol_violation" => "install the same version of linerate on both hosts",
            _ => "",
        };
        let retry =
            matches!(error.code(), code::BENCH_BUSY | code::MIGRATION_IN_PROGRESS | code::BENCH_FAILED);
        let body = ErrorBody::new(error.code(), chain(error)).with_hint(hint);
        ErrorBody { retry_can_help: retry, ..body }
    }
}
