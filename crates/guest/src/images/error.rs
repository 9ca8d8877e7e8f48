//! Why images cannot take what is to be copied into them.

use std::io;
use std::path::PathBuf;

use crate::bytes::exact_bytes;
use crate::description::ImageFormat;

/// Why an image cannot take a disk. What was made before stays listed: [`super::discard`] removes it.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The disk is not one of the command line's.
    #[error(
        "the disk {disk} ({path}) is not among the files of the guest's command line, so it has no place here"
    )]
    Unknown {
        disk: String,
        /// The image at the source.
        path: String,
    },
    /// The guest would open it in another format than it is copied in.
    #[error(
        "the disk {disk} is copied as a {} image, and the guest's command line opens {path} as {}: what the guest wrote into it would be taken for an image's header", copied.name(), opened.map_or("an unknown format", ImageFormat::name)
    )]
    OpenedAs {
        disk: String,
        path: PathBuf,
        /// Format of the copy.
        copied: ImageFormat,
        /// Format on the command line, if it is one.
        opened: Option<ImageFormat>,
    },
    /// Its size cannot be a disk's.
    #[error("the source reports {size} bytes for the disk {disk}, which no disk has")]
    Size { disk: String, size: u64 },
    /// The folder is missing, or elsewhere than it seems.
    #[error(
        "the image {0} cannot be made: its folder is not here, or leads out of the folders that guests may open files in. Create it, or map the disk's path (paths in the configuration)"
    )]
    Folder(PathBuf),
    /// The image cannot be made or looked at.
    #[error("the image {path} cannot be used")]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "qemu-img could not make {path}: {output}. It makes qcow2 images (Debian: qemu-utils); an image that is there already needs none"
    )]
    QemuImg { path: PathBuf, output: String },
    /// What is there is what the source has.
    #[error(
        "{0} is the very disk that the guest uses: both hosts see the same storage, and the migration needs no copy of it (no --copy-storage)"
    )]
    Same(PathBuf),
    /// It is not known whether they are one.
    #[error(
        "{0} and the source's disk may be the same storage, and nothing is copied: they are block devices of which at least one has no name that distinguishes it from all others (wwid, device mapper's UUID), or files of one inode number of which at least one is on a file system that hosts can share. Give the device a serial number, or have the image made under another name (paths in the configuration)"
    )]
    Nameless(PathBuf),
    /// Block devices are not made.
    #[error(
        "the block device {0} is not here, and devices are not made: make it (for LVM: lvcreate), as large as at the source, or map the disk's path to an image file (paths in the configuration)"
    )]
    NoDevice(PathBuf),
    /// Something on this host has the device for its own.
    #[error(
        "the block device {0} is in use on this host: it, or a part of it, is mounted, swap, or belongs to LVM, RAID or multipath. Nothing was written to it. Free it, or map the disk's path (paths in the configuration)"
    )]
    Held(PathBuf),
    /// Something on this host uses the image.
    #[error(transparent)]
    InUse(#[from] crate::in_use::InUse),
    /// Another guest that arrives copies into it.
    #[error("{0} is where another guest that is just arriving copies a disk to")]
    Claimed(PathBuf),
    /// What is there leads elsewhere, or is neither a file nor a block device.
    #[error("{0} is no file or block device in the folders that guests may open files in")]
    Outside(PathBuf),
    /// What is there is not an image of that format.
    #[error("{path} is here already and is no {} image as at the source: remove it, or map the disk's path", format.name())]
    Format {
        path: PathBuf,
        /// As at the source.
        format: ImageFormat,
    },
    /// What is there has its data elsewhere.
    #[error(
        "{path} is here already and has its data in another file, {data} (data_file): nothing is copied into that one. \
         Remove {path}, or map the disk's path (paths in the configuration)"
    )]
    DataFile {
        path: PathBuf,
        /// The file with the data.
        data: PathBuf,
    },
    /// What is there holds another disk.
    #[error(
        "{path} is here already with a disk of {}, the guest's has {}: remove it, make it as large, or map the disk's path",
        exact_bytes(*here), exact_bytes(*there)
    )]
    Other {
        path: PathBuf,
        /// Bytes of the disk in it.
        here: u64,
        /// Bytes of the guest's disk.
        there: u64,
    },
    /// The list of what was made cannot be kept.
    #[error("the list of images {path} cannot be written")]
    List {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}
