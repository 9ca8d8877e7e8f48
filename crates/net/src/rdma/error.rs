//! What can go wrong with RDMA, in sentences.

use linerate_core::Fault;
use rustix::io::Errno;
use thiserror::Error;

use super::library::LibraryError;

/// Why an RDMA channel is of no use. TCP on the same link can carry its work.
#[derive(Clone, Debug, Error)]
pub enum RdmaError {
    #[error("{0}")]
    Library(#[source] &'static LibraryError),
    /// The kernel has no RDMA connection manager for us, or there is no device.
    #[error(
        "no RDMA: this host has no device, or the module rdma_ucm is not loaded ({0}); `rdma link` shows devices"
    )]
    NoDevice(#[source] Errno),
    /// A call of a library failed.
    #[error("{what} failed: {source}")]
    Call {
        what: &'static str,
        /// What the system said.
        #[source]
        source: Errno,
    },
    /// Memory could not be registered.
    #[error(
        "{bytes} bytes of memory cannot be registered with the adapter: {source}; registered memory is locked, so raise the limit (LimitMEMLOCK=infinity, or CAP_IPC_LOCK)"
    )]
    Register {
        bytes: u64,
        /// What the system said.
        #[source]
        source: Errno,
    },
    /// A region that no adapter can write to.
    #[error("region {region} is not in memory that an adapter can be given")]
    NotMapped { region: u16 },
    /// The other side's memory refused a write.
    #[error("the destination's adapter refused a write: the key or the address is wrong, or no longer good")]
    RemoteAccess,
    #[error("the peer's adapter does not answer any more ({retries})")]
    Silent { retries: String },
    /// An operation failed otherwise.
    #[error("{what} failed: {status} (vendor's code {vendor:#x})")]
    Completion {
        /// The operation that failed.
        what: &'static str,
        status: String,
        /// The adapter's own code.
        vendor: u32,
    },
    /// The peer said why it ends the channel.
    #[error("the peer ends the channel: {0}")]
    Refused(#[source] Fault),
    /// The peer has ended, or closed the connection.
    #[error("the peer closed the channel")]
    PeerClosed,
    /// This side closed it.
    #[error("the channel was closed on this side")]
    ClosedHere,
    /// This side closed it because the host of the peer was revoked.
    #[error("the other host was revoked")]
    Revoked,
    /// The device was removed, or the address has moved to a port of another.
    #[error("the RDMA device was taken away, or its address has moved to another port")]
    DeviceGone,
    /// An answer did not come.
    #[error("the peer did not answer within {milliseconds} ms: {what}")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        milliseconds: u64,
    },
    /// A message that is longer than what was made ready for it, or more of them than were allowed.
    #[error("the peer broke the rules of RDMA channels: {0}")]
    Rules(&'static str),
}

/// The system's number for what just failed.
pub(super) fn last_errno() -> Errno {
    errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// A library's number, whatever its sign. What is none of the system's becomes an input/output error.
pub(super) fn errno(number: i32) -> Errno {
    match number.unsigned_abs() {
        known @ 1..4096 => Errno::from_raw_os_error(known as i32),
        _ => Errno::IO,
    }
}

/// A call that answers 0 or -1.
pub(super) fn check(what: &'static str, answer: i32) -> Result<(), RdmaError> {
    match answer {
        0 => Ok(()),
        _ => Err(RdmaError::Call { what, source: last_errno() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_a_library_is_an_error_of_the_system() {
        assert_eq!((errno(-19), errno(19)), (Errno::NODEV, Errno::NODEV));
        assert!([0, 4096, i32::MAX, i32::MIN].into_iter().all(|number| errno(number) == Errno::IO));
    }
}
