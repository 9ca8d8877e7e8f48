//! Why no incoming QEMU can be made: of the guest itself, or of this host.

use std::path::PathBuf;

use crate::argv::ArgvError;
use crate::description::DescriptionError;
use crate::options::OptionsError;

/// Why no incoming QEMU can be made.
#[derive(Debug, thiserror::Error)]
pub enum IncomingError {
    /// The command line has something that is not taken over.
    #[error(transparent)]
    Argv(#[from] ArgvError),
    /// A name that cannot be used.
    #[error(transparent)]
    Name(#[from] DescriptionError),
    /// An option string that cannot be read.
    #[error("the value of -{option} cannot be read")]
    Value {
        option: String,
        #[source]
        source: OptionsError,
    },
    /// Something that is not taken over from another host.
    #[error("-{option} {what}: another host does not take this over: {why}")]
    Refused {
        option: String,
        /// The part of it.
        what: String,
        why: &'static str,
    },
    /// An option that no host takes over.
    #[error("-{option}: another host does not take this over: {why}")]
    Option {
        option: String,
        /// Why, and what to do.
        why: &'static str,
    },
    /// A name that is not the whole path of a file.
    #[error(
        "-{option} names {path:?}, which is not the full path of a local file or device: network disks, protocols and names that count from QEMU's folder mean nothing on another host"
    )]
    NotAPath { option: String, path: String },
    /// A RAM block that would have no file.
    #[error(
        "RAM block {block} has no file of its own at the destination: give the guest one memory back end for each block"
    )]
    NoRamFile { block: String },
    /// A file outside of the folders that guests may use.
    #[error(
        "-{option} names {path}, which is in none of the folders that guests may open files in: add its folder to file_roots or map the path"
    )]
    OutsideRoots { option: String, path: String },
    #[error(
        "RAM block {block} is in huge pages and this host has no folder on a hugetlbfs configured: set huge_ram_dir there"
    )]
    NoHugePages { block: String },
    #[error(
        "the guest uses QEMU's user-mode network, which this host does not allow for guests from elsewhere"
    )]
    UserNetwork,
    /// Devices were plugged or unplugged since the start.
    #[error(
        "devices were plugged or unplugged since the guest started ({0}), so its command line no longer describes it: undo that, or restart the guest"
    )]
    HotPlugged(String),
    /// A path that the kernel does not take for a socket.
    #[error("the socket path {0} is too long (107 bytes at most): use a shorter run-time folder")]
    SocketPath(PathBuf),
}

impl IncomingError {
    /// Whether it is a matter of this host's configuration: another host may take the guest.
    pub fn is_of_host(&self) -> bool {
        matches!(
            self,
            IncomingError::OutsideRoots { .. }
                | IncomingError::NoHugePages { .. }
                | IncomingError::UserNetwork
                | IncomingError::SocketPath(_)
        )
    }
}
