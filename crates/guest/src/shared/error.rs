//! What is wrong with an image that was, or is to be, on shared storage.

use std::io;
use std::path::PathBuf;

/// An image is not what was proved when the migration began.
#[derive(Debug, thiserror::Error)]
pub enum RecheckError {
    /// The descriptors of a QEMU.
    #[error("the files that process {pid} has open cannot be listed")]
    OpenFiles {
        pid: i32,
        #[source]
        source: io::Error,
    },
    /// It cannot be opened or looked at any more.
    #[error("the disk {disk}: {} was lost since the migration began", path.display())]
    Lost {
        /// Name of the drive.
        disk: String,
        /// The image on this host.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Another file has its path.
    #[error("the disk {disk}: {} was removed, or replaced by another file, since the migration began", path.display())]
    Replaced {
        /// Name of the drive.
        disk: String,
        /// The image on this host.
        path: PathBuf,
    },
    #[error("the disk {disk}: {} was closed by the guest's QEMU since the migration began", path.display())]
    Closed {
        /// Name of the drive.
        disk: String,
        /// The image on this host.
        path: PathBuf,
    },
    #[error("the disk {disk}: the incoming QEMU has opened {} under another name, or not at all", path.display())]
    NotOpened {
        /// Name of the drive.
        disk: String,
        /// The image on this host.
        path: PathBuf,
    },
    /// The disk is opened with `cache=unsafe`.
    #[error(
        "the disk {disk}: QEMU never flushes {} (cache=unsafe), and the agent could not do it in its place: the \
         destination would read older data. See what is wrong with the storage, and start the migration again",
        path.display()
    )]
    NotFlushed {
        /// Name of the drive.
        disk: String,
        /// The image on this host.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The source has given up or its agent has ended, or the storage does not carry its lock any more.
    #[error("the disk {disk}: {} is no longer marked by the source", path.display())]
    Unmarked {
        /// Name of the drive.
        disk: String,
        /// The image on this host.
        path: PathBuf,
    },
}

/// The file that the guest's QEMU has open as an image cannot be opened, so that nothing is known of it.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error("{} cannot be looked at any more ({cause})", path.display())]
    Gone { path: PathBuf, cause: io::Error },
    #[error("{} is not the file that the guest's QEMU has open: it was replaced since", path.display())]
    NotQemus { path: PathBuf },
    #[error("{} cannot be opened ({cause})", path.display())]
    Open { path: PathBuf, cause: io::Error },
    #[error("{} was just replaced", path.display())]
    JustReplaced { path: PathBuf },
}
