//! What may stand against a guest.

use std::path::PathBuf;

use crate::bytes::{bytes, exact_bytes};
use crate::qcow2::ReferenceError;
use crate::qmp::QemuVersion;

/// Something that is missing or differs. `is_fatal`: the guest cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The local QEMU is older.
    #[error(
        "QEMU here is {here}, the guest comes from {source_version}: an older QEMU may not understand the newer one's state"
    )]
    QemuOlder { here: QemuVersion, source_version: QemuVersion },
    /// The machine type is unknown.
    #[error("QEMU {here} here has no machine type {machine}: install the source's version of QEMU")]
    MachineUnknown { machine: String, here: QemuVersion },
    #[error("the guest runs under KVM and this host has no usable /dev/kvm")]
    KvmMissing,
    #[error("{path} is not here: share the disk, copy it along (--copy-storage all), or map its path")]
    FileMissing { path: PathBuf },
    /// A file has another size.
    #[error(
        "{path} is a disk of {} here and of {} at the source: it is not the same disk, or it was enlarged and the guest's QEMU was not notified (QMP block_resize)",
        exact_bytes(*here), exact_bytes(*there)
    )]
    FileSize { path: PathBuf, here: u64, there: u64 },
    /// A link leads out of the allowed folders.
    #[error("{path} is a link to {target}, which is in none of the folders that guests may open files in")]
    FileOutside { path: PathBuf, target: PathBuf },
    /// A file is neither a regular file nor a block device.
    #[error("{path} is neither a file nor a block device")]
    FileKind { path: PathBuf },
    /// A device where the command line wants a file, or a file where it wants a device.
    #[error(
        "{path} is {} here, and the guest's command line opens it as {} (driver=): have the same here, or start the guest with -drive file=, which takes either",
        if *as_device { "a file" } else { "a block device" }, if *as_device { "a block device" } else { "a file" }
    )]
    FileDriver {
        path: PathBuf,
        /// What the command line wants.
        as_device: bool,
    },
    /// A block device that this host itself uses.
    #[error(
        "{path} is in use on this host ({by}), and a guest that writes it would destroy what is on it: end that use, or map \
         the disk's path to the device that is the guest's"
    )]
    DeviceHeld {
        path: PathBuf,
        /// Mount points, devices on top of it, or that a program has it open exclusively.
        by: String,
    },
    /// The file system has no O_DIRECT.
    #[error(
        "{path} is on a file system without O_DIRECT, with which the guest opens it (cache=none): put it elsewhere, map its path, or start the guest with cache=writeback"
    )]
    FileBuffered { path: PathBuf },
    /// An image leads out of the allowed folders.
    #[error("the image {path} {reach}")]
    Image { path: PathBuf, reach: ReferenceError },
    #[error("the firmware {name} is in none of the data folders of this host's QEMU")]
    FirmwareMissing { name: String },
    #[error("the interface {name} is not here: create it (ip tuntap add {name} mode tap) or map its name")]
    TapMissing {
        name: String,
        /// The bridge of its counterpart, if a bridge of that name is here.
        bridge: Option<String>,
    },
    /// A tap is here but not in the bridge that its counterpart is in.
    #[error("the interface {name} is not in the bridge {bridge} as at the source")]
    TapUnbridged { name: String, bridge: String },
    #[error("the bridge {name} is not here")]
    BridgeMissing { name: String },
    #[error("the guest needs {} of memory and {} are available here", bytes(*needed), bytes(*available))]
    MemoryShort { needed: u64, available: u64 },
    /// The command line asks for more than is reserved.
    #[error(
        "the guest's command line asks for {} of memory, and its description says {}: this host reserves only what the description says",
        bytes(*asked), bytes(*described)
    )]
    MemoryDiffers { asked: u64, described: u64 },
    /// A size on the command line is not understood.
    #[error("the guest's command line has a size of memory that is not understood: {text:?}")]
    MemoryUnknown { text: String },
    /// The folder for RAM is too small, or full.
    #[error(
        "the guest needs {} of RAM in {} and {} are free there: enlarge that tmpfs (`mount -o remount,size=…`) or empty it",
        bytes(*needed), folder.display(), bytes(*available)
    )]
    RamFolderShort { folder: PathBuf, needed: u64, available: u64 },
    /// Huge pages are short.
    #[error(
        "the guest needs {} in huge pages of {} and {} are free here: raise vm.nr_hugepages",
        bytes(*needed), bytes(*page_bytes), bytes(*available)
    )]
    HugePagesShort {
        needed: u64,
        available: u64,
        /// Bytes of one page.
        page_bytes: u64,
    },
    #[error("a guest named {name} is here already")]
    NameTaken { name: String },
    #[error("a guest with UUID {uuid} is here already")]
    UuidTaken { uuid: String },
}

impl Problem {
    /// Whether the guest cannot be taken. The others are worth a warning.
    pub fn is_fatal(&self) -> bool {
        !matches!(self, Problem::QemuOlder { .. } | Problem::TapUnbridged { .. })
    }
}
