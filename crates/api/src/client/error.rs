//! What can go wrong between a client and its agent.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::{ErrorBody, MigrationId};

/// Why a request has no answer, or a bad one.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum ClientError {
    /// There is no socket at that path.
    #[error("no agent: there is no socket at {}", .path.display())]
    SocketAbsent {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// There is a socket without a listener.
    #[error("no agent: nothing listens at {} (an agent ended without removing it)", .path.display())]
    NobodyListens { path: PathBuf },
    /// This user may not use the socket.
    #[error("permission denied on {}", .path.display())]
    PermissionDenied { path: PathBuf },
    /// Another user's program listens there: nothing was asked.
    #[error("a program of user {uid} listens at {}, and no agent of root; nothing was asked", .path.display())]
    OtherUsers {
        /// Path of the socket.
        path: PathBuf,
        /// The user, by the kernel's word.
        uid: u32,
    },
    /// The socket could not be connected to for another reason.
    #[error("cannot connect to {}: {source}", .path.display())]
    Connect { path: PathBuf, source: io::Error },
    /// The agent did not answer in time.
    #[error("the agent did not answer within {} s", .limit.as_secs())]
    Silent {
        /// How long it was waited for.
        limit: Duration,
    },
    /// The connection broke before the answer was complete.
    #[error("the connection to the agent broke: {0}")]
    Broken(#[source] hyper::Error),
    /// The request could not be written as HTTP.
    #[error("the request cannot be sent: {0}")]
    Unsendable(#[source] hyper::http::Error),
    /// The request could not be written as JSON.
    #[error("the request cannot be written as JSON: {0}")]
    Request(#[source] serde_json::Error),
    /// The answer is not what this version of the client expects.
    #[error("the agent's answer cannot be understood: {0}")]
    Answer(#[source] serde_json::Error),
    /// The answer is longer than any answer should be.
    #[error("the agent's answer is longer than {bytes_max} bytes")]
    AnswerTooLong { bytes_max: usize },
    /// The agent said no, or that it failed.
    #[error("{}", .body.message)]
    Agent { status: u16, body: Box<ErrorBody> },
    /// The event stream ended before the migration did. The migration continues.
    #[error("the event stream of migration {id} was cut")]
    Cut { id: MigrationId },
    /// The event stream of a measurement ended before the measurement did.
    #[error("the agent ended the measurement without a result")]
    BenchCut,
}

impl ClientError {
    /// What to do, in words.
    pub fn hint(&self) -> String {
        match self {
            ClientError::SocketAbsent { .. } | ClientError::NobodyListens { .. } => {
                "start it on this host (`systemctl start linerate-agent`, or `linerate agent`); if it listens elsewhere, give \
                 its socket with --socket PATH or LINERATE_SOCKET"
                    .to_owned()
            }
            ClientError::PermissionDenied { .. } => {
                "run this as root, or have root give this user a role in [local] of agent.toml and restart the agent"
                    .to_owned()
            }
            ClientError::OtherUsers { .. } => {
                "name the agent's own socket with --socket PATH or LINERATE_SOCKET; see who made this one".to_owned()
            }
            ClientError::Connect { .. } => "check the path given by --socket or LINERATE_SOCKET".to_owned(),
            ClientError::Silent { .. } => {
                "see whether the agent's process is stopped (state T in `ps`) and its log; what it was asked to do may \
                 have been done, or be done later: look before asking again"
                    .to_owned()
            }
            ClientError::Broken(_) => {
                "see the agent's log; what it was asked to do may have been done, so look before asking again".to_owned()
            }
            ClientError::Answer(_) => {
                "client and agent may be of different versions; compare `linerate --version` with `linerate status`"
                    .to_owned()
            }
            ClientError::Cut { id } => {
                format!(
                    "if the agent runs the migration goes on: attach again with `linerate migration attach {id}`; if it was \
                     restarted, `linerate migration list` and `linerate vm list` on both hosts show what became of the guest"
                )
            }
            ClientError::BenchCut => "see whether the agent was stopped, and its log".to_owned(),
            ClientError::Agent { body, .. } => body.hint.clone(),
            ClientError::Unsendable(_) | ClientError::Request(_) | ClientError::AnswerTooLong { .. } => {
                "this is a defect in linerate; please report it with the command that was run".to_owned()
            }
        }
    }

    /// Whether the agent could not be reached at all, so that nothing was asked of it.
    pub fn is_unreachable(&self) -> bool {
        matches!(
            self,
            ClientError::SocketAbsent { .. }
                | ClientError::NobodyListens { .. }
                | ClientError::PermissionDenied { .. }
                | ClientError::OtherUsers { .. }
                | ClientError::Connect { .. }
        )
    }
}
