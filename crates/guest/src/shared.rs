//! Whether both hosts use the same storage for a disk that is not copied. A path proves nothing: the file there may
//! be the copy that an earlier move left behind. docs/shared-storage.md says how it is proved and what was decided
//! against.
//!
//! - [`describe`] runs at the source: it marks every image that the guest's QEMU has open and says what it is.
//! - [`check()`] runs at the destination: it looks for each mark in its own file, or compares what names the storage.
//! - [`Marks::recheck`] and [`recheck()`] repeat it cheaply, in the blackout.

mod check;
mod device;
mod error;
mod mark;
mod mounts;
pub(crate) mod open_files;
mod source;

use serde::{Deserialize, Serialize};

pub(crate) use check::is_same;
pub use check::{NotShared, Proof, Proved, check, recheck};
pub use error::RecheckError;
pub use mark::Marks;
pub(crate) use source::check_names;
pub use source::{DescribeError, describe};

/// Files for reading only may lie on both hosts, if they hold the same bytes. Larger ones are not read for that.
pub const COMPARED_BYTES_MAX: u64 = 64 << 20;

/// What the source says of the storage under the guest's disks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageFacts {
    /// Boot id of the source's kernel: device numbers mean nothing under another.
    pub boot: String,
    /// The source's agent, which has the images open as well.
    pub agent: u32,
    pub images: Vec<ImageFacts>,
    /// Disks that are shared because the operator says so (`--shared-storage`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asserted_shared: Vec<String>,
}

/// One image that the source's QEMU has open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageFacts {
    /// Name of the drive or block node.
    pub disk: String,
    /// As QEMU names it.
    pub path: String,
    /// The guest only reads it.
    pub read_only: bool,
    /// QEMU migrates its content.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub flash: bool,
    /// Bytes of the file or device.
    pub size: u64,
    /// Of a small file that is only read: a checksum (CRC-64/NVME) of all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<u64>,
    /// Where it is stored.
    pub storage: Storage,
    /// Why it could not be looked at or marked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Where an image is stored, as one host sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    File(FileFacts),
    Device(DeviceFacts),
    /// Nothing could be found out.
    Unknown,
}

/// A file as one host sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileFacts {
    /// Number of the file system's type (`statfs`).
    pub magic: u64,
    /// Its name and what is mounted, such as `nfs4` and `nas:/export`.
    pub system: String,
    /// Kind of mount, as `system`.
    pub mounted: String,
    /// Number of the file system on that host.
    pub device: u64,
    /// Number of the file.
    pub inode: u64,
    /// Where the mark is: the first byte of a lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<i64>,
}

/// A block device as one host sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceFacts {
    /// Its number on that host.
    pub number: u64,
    /// A name that no other storage in the world has; none if it has no such name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique: Option<String>,
}

impl std::fmt::Display for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Storage::File(file) => {
                write!(f, "file {} on {} from {}", file.inode, file.system, file.mounted)
            }
            Storage::Device(DeviceFacts { unique: Some(name), .. }) => write!(f, "block device {name}"),
            Storage::Device(device) => {
                let (major, minor) = (rustix::fs::major(device.number), rustix::fs::minor(device.number));
                write!(f, "block device {major}:{minor} without a unique name")
            }
            Storage::Unknown => write!(f, "nothing is known of it"),
        }
    }
}
