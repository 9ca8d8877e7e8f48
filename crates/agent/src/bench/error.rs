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

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A message that is too long.
    #[error("messages of {bytes} bytes; at most {MESSAGE_BYTES_MAX} are sent")]
    Size {
        /// As asked for.
        bytes: u64,
    },
    /// No or too many repetitions.
    #[error("{count} repetitions; between 1 and {REPETITIONS_MAX} can be asked for")]
    Repetitions {
        /// As asked for.
        count: u32,
    },
    /// No or too much time.
    #[error("{ms} ms; between 1 ms and {} s can be asked for", STREAM_MS_MAX / 1000)]
    Time {
        /// As asked for.
        ms: u32,
    },
    /// No or too many connections.
    #[error("{connections} connections; between 1 and {CONNECTIONS_MAX} can be used")]
    Channels {
        /// As asked for.
        connections: usize,
    },
    /// Too many connections with messages so long.
    #[error(
        "messages of all channels need {} MiB; at most {} MiB are given to it: ask for fewer channels or shorter messages",
        bytes >> 20, MEMORY_BYTES_MAX >> 20
    )]
    Memory {
        /// In all.
        bytes: usize,
    },
    /// Too many connections by RDMA.
    #[error(
        "{connections} queue pairs, each with {} MiB of memory: at most {QUEUE_PAIRS_MAX} can be used; ask for fewer channels",
        rdma::test_connection::MEMORY_BYTES >> 20
    )]
    QueuePairs {
        /// As asked for.
        connections: usize,
    },
    /// `--links` cannot be read.
    #[error(transparent)]
    Networks(#[from] NetworkError),
    /// The host's name leads nowhere.
    #[error("cannot find the host {host}: {source}")]
    Host {
        /// As asked for.
        host: String,
        /// Why.
        source: std::io::Error,
    },
    /// One at a time.
    #[error("a measurement is in progress on {host}; there is one at a time")]
    Busy {
        /// Which host.
        host: String,
    },
    /// It would slow a guest down.
    #[error("a guest is being migrated from or to {host}, and a measurement would take its links")]
    Migration {
        /// Which host.
        host: String,
    },
    /// The operator, or a client that went away.
    #[error("the measurement was cancelled")]
    Cancelled,
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
        /// What was asked.
        asked: &'static str,
        /// What was received.
        got: &'static str,
    },
    /// It refuses, or has failed.
    #[error("{host}: {message}")]
    Peer {
        /// Its name, or its address.
        host: String,
        /// For programs.
        code: String,
        /// For people.
        message: String,
    },
    /// The ports of this host cannot be listed.
    #[error("the ports of this host cannot be listed: {0}")]
    Ports(#[from] NetlinkError),
    /// Nothing pairs.
    #[error("no link: the other host listens on {offered}; none of it pairs with a port of this host")]
    NoLink {
        /// Where it listens.
        offered: String,
    },
    /// RDMA was asked for.
    #[error("{link}: RDMA was asked for, and the other host's port has none")]
    NoRdma {
        /// Which.
        link: String,
    },
    /// RDMA was asked for and cannot be had here.
    #[error(transparent)]
    Rdma(rdma::error::RdmaError),
    /// A link cannot be connected over by RDMA.
    #[error(transparent)]
    ConnectRdma(#[from] rdma::connect::ConnectError),
    /// A link failed.
    #[error("{link}: {source}")]
    TestConnection {
        /// Which.
        link: String,
        /// Why.
        source: TestError,
    },
    /// A link failed whose ports differ.
    #[error("{source}; {mtus}")]
    LongPackets {
        /// Of which link, and what they are.
        mtus: String,
        /// How it failed.
        source: Box<BenchError>,
    },
    /// Both sides count.
    #[error("{link}: {sent} bytes were sent and {received} arrived")]
    Lost {
        /// Which link.
        link: String,
        /// Bytes.
        sent: u64,
        /// Bytes.
        received: u64,
    },
    /// No such CPU.
    #[error("CPU {cpu} is not there, or not for this process to use")]
    Cpu {
        /// Which.
        cpu: u32,
    },
    /// No session number.
    #[error("no random numbers: {0}")]
    Random(getrandom::Error),
}

impl BenchError {
    /// For programs.
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
            BenchError::Migration { .. } => code::MIGRATION_UNDER_WAY,
            BenchError::Cancelled => "cancelled",
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
            code::MIGRATION_UNDER_WAY => "wait for the migration, or measure during it with --force",
            "no_link" => "check cables, switch ports and `listen` of both agents",
            code::BENCH_FAILED => "read the log of the other host's agent, then try again",
            "protocol_violation" => "install the same version of linerate on both hosts",
            _ => "",
        };
        let retry = matches!(error.code(), code::BENCH_BUSY | code::MIGRATION_UNDER_WAY | code::BENCH_FAILED);
        let body = ErrorBody::new(error.code(), chain(error)).with_hint(hint);
        ErrorBody { retry_can_help: retry, ..body }
    }
}
