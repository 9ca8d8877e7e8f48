//! Why a connection from another agent is not taken, and the refusal that the other agent gets.

use std::error::Error;
use std::io;

use linerate_core::Fault;
use linerate_net::bench::TestError;
use linerate_net::rdma::error::RdmaError;
use linerate_net::tcp::exchange::ExchangeError;
use linerate_wire::{VERSION_MAX, VERSION_MIN};

use crate::session::probe::OpenError;

/// Why a connection from another agent was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotTaken {
    /// The other agent has this answer.
    #[error(transparent)]
    Refused(Fault),
    /// The same, for a source that sent commit again.
    #[error("commit was sent again: {}", .0.detail)]
    CommitAgain(Fault),
    /// The same, for a source that is about to resume its guest.
    #[error("a source that is about to resume its guest: {}", .0.detail)]
    Resumes(Fault),
    /// The same, for a source that sent a roll-back notice.
    #[error("a roll-back notice: {}", .0.detail)]
    RollBackNotice(Fault),
    /// The answer could not be sent.
    #[error(transparent)]
    Answer(#[from] ExchangeError),
    /// The same over RDMA.
    #[error(transparent)]
    RdmaAnswer(#[from] RdmaError),
    /// Conversations about measurements at a time are capped. The other agent gets no answer.
    #[error("too many peers ask for measurements")]
    Conversations,
    /// A connection of a measurement was welcomed, and is of no use for a test.
    #[error(transparent)]
    TestConnection(#[from] TestError),
    /// The module that serves it says why: the doctor, the cluster, or a migration that was welcomed.
    #[error(transparent)]
    Module(Box<dyn Error + Send + Sync>),
    /// A connection of a migration was welcomed, and no guest is admitted yet, or there is no thread or socket for it.
    #[error(transparent)]
    Serve(#[from] io::Error),
    /// A connection of a tunnel was welcomed, and this host could not put it to use.
    #[error(transparent)]
    Tunnel(#[from] OpenError),
}

impl NotTaken {
    /// The module that serves the connection says why.
    pub(crate) fn by_module(error: impl Error + Send + Sync + 'static) -> NotTaken {
        NotTaken::Module(Box::new(error))
    }
}

/// Answers the other agent with `fault`, which `send` sends. Returns why the connection is not taken, for the log.
pub(crate) fn refuse<E: Into<NotTaken>>(fault: Fault, send: impl FnOnce(Fault) -> Result<(), E>) -> NotTaken {
    send(fault.clone()).map_or_else(Into::into, |()| NotTaken::Refused(fault))
}

/// The error text if the two agents speak no common version of the protocol.
pub(crate) fn no_common_version() -> String {
    format!("no common version in {VERSION_MIN} to {VERSION_MAX}")
}
