//! What a guest is: everything that its incoming QEMU on another host must agree in, and what decides whether it can be
//! moved.

use serde::{Deserialize, Serialize};

use crate::graph::{DiskGraph, FormError};
use crate::processor::Processor;
use crate::qmp::QemuVersion;
use crate::run_state::RunState;
use crate::shared::StorageFacts;

/// The version of [`GuestDescription`]'s form.
pub const SCHEMA: u32 = 1;
/// Longest description in JSON, in bytes (the same cap as on the wire).
pub const JSON_BYTES_MAX: usize = 1 << 20;
/// Most arguments of a command line.
pub const ARGUMENTS_MAX: usize = 2048;
/// Most RAM blocks that direct mode moves (the same cap as on the wire).
pub const REGIONS_MAX: usize = 64;
/// Most copied disks: their connections and those of the memory share one session.
pub const COPIED_MAX: usize = 24;
/// Longest argument, in bytes: the kernel's own limit (MAX_ARG_STRLEN).
pub const ARGUMENT_BYTES_MAX: usize = 128 << 10;

/// A running guest as its QEMU and the kernel describe it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestDescription {
    pub schema: u32,
    /// Name, as given to QEMU; made from the UUID or the pid where none was given.
    pub name: String,
    /// UUID, if one was given.
    pub uuid: Option<String>,
    /// The versioned machine type (`pc-i440fx-7.2`), never an alias.
    pub machine: String,
    /// The CPU as on the command line (`host,migratable=on`), or the CPU's type where none was given.
    pub cpu: String,
    /// The processor that the guest sees; none where QEMU does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<Processor>,
    /// `kvm` or `tcg`.
    pub accelerator: String,
    /// Size of the guest's RAM in bytes.
    pub memory_bytes: u64,
    /// Number of virtual CPUs.
    pub vcpus: u32,
    /// Version of the QEMU that it runs in.
    pub qemu: QemuVersion,
    /// Command line without the program's name.
    pub arguments: Vec<String>,
    /// RAM blocks in QEMU's order.
    pub ram: Vec<RamBlock>,
    /// Files and devices opened as disks, backing files included.
    pub disks: Vec<Disk>,
    pub nics: Vec<Nic>,
    /// What decides about direct mode.
    pub traits: Traits,
    /// What the guest did when this was read.
    pub run_state: RunState,
    /// Process and threads at the source.
    pub process: ProcessFacts,
    /// Disks whose content is copied, because the hosts do not share them; empty where they do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copied: Vec<CopiedDisk>,
    /// What the other disks are stored on ([`crate::shared`]); none for domains of libvirt, which looks after that
    /// itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageFacts>,
    /// It is a domain of libvirt, which starts it at the destination and drives its migration: there it waits already,
    /// and is found by its name.
    #[serde(default, skip_serializing_if = "is_no")]
    pub domain: bool,
    /// The disks as the guest uses them when its migration begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph: Option<DiskGraph>,
}

fn is_no(it: &bool) -> bool {
    !it
}

/// A copied disk: what the guest sees of it, whatever its image looks like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopiedDisk {
    /// Name of the drive, or of the block node where the drive has none.
    pub id: String,
    /// The image at the source.
    pub path: String,
    /// Its format, the same at the destination.
    pub format: ImageFormat,
    /// Bytes that the guest sees.
    pub size: u64,
    /// What distinguishes its image from all others on every host ([`crate::identity`]), where something does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
}

/// Formats of images that can be made at a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageFormat {
    /// The disk, byte for byte.
    Raw,
    Qcow2,
}

impl ImageFormat {
    /// QEMU's name of its driver.
    pub fn name(self) -> &'static str {
        match self {
            ImageFormat::Raw => "raw",
            ImageFormat::Qcow2 => "qcow2",
        }
    }

    /// The format of that name.
    pub fn from_name(name: &str) -> Option<ImageFormat> {
        [ImageFormat::Raw, ImageFormat::Qcow2].into_iter().find(|format| format.name() == name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RamBlock {
    /// QEMU's name of the block.
    pub id: String,
    /// Bytes in use now.
    pub size: u64,
    /// Bytes of a page of the memory behind it.
    pub page_bytes: u64,
    /// What is behind it.
    pub backend: Backend,
    /// `share=on`: another process that maps the file sees what the guest writes.
    pub share: bool,
    /// The file's name, if the back end is a file.
    pub path: Option<String>,
    /// The source process's descriptor of the file or memfd: `/proc/PID/fd/N` opens the very memory, whatever its name
    /// is now.
    pub descriptor: Option<i32>,
    /// QEMU leaves it out of its stream under `x-ignore-shared`: it must be moved by Linerate.
    pub ignored_when_shared: bool,
}

/// What is behind a RAM block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// `memory-backend-file`.
    File,
    /// `memory-backend-memfd`.
    Memfd,
    /// `memory-backend-ram`: anonymous memory.
    Anonymous,
    /// Memory that belongs to QEMU or a device (ROM, video RAM, ACPI tables): always in QEMU's own stream.
    Internal,
}

/// One file or device that QEMU has open as a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Name of the drive or block node.
    pub id: String,
    /// File name, absolute in any guest that can be moved.
    pub path: String,
    /// Image format on top of the file (`raw`, `qcow2`).
    pub format: String,
    /// `file`, `host_device`, or a network protocol.
    pub protocol: String,
    /// Opened for reading only.
    pub read_only: bool,
    /// Page cache bypassed (O_DIRECT): write protection must be applied while block I/O is drained.
    pub direct: bool,
    /// `threads`, `native` or `io_uring`, if the command line says so.
    pub aio: Option<String>,
    /// The host's page cache is dropped when the guest arrives (QEMU's default).
    pub drop_cache: bool,
    /// Bytes of the file or device.
    pub size: u64,
    /// A flash device: QEMU migrates all of its content, and writes it into the file at the destination.
    #[serde(default, skip_serializing_if = "is_no")]
    pub flash: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// QEMU's name of the port.
    pub id: String,
    pub model: String,
    pub mac: String,
    /// Name of the network back end.
    pub netdev: Option<String>,
    /// Kind of the back end (`tap`, `user`, `vhost-user`).
    pub kind: Option<String>,
    /// Interface at the source.
    pub tap: Option<String>,
    /// Bridge that the interface belonged to at the source.
    pub bridge: Option<String>,
}

/// What decides about direct mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traits {
    /// Devices whose back end is another process that maps the guest's RAM.
    pub vhost_user: Vec<String>,
    /// Devices that write RAM by DMA (VFIO, vDPA).
    pub vfio: Vec<String>,
    /// Devices that share memory with other machines or keep it on a medium (ivshmem, NVDIMM, virtio-pmem).
    pub foreign_memory: Vec<String>,
    /// RAM may be given back at any time (balloon, free page reporting, virtio-mem).
    pub may_discard: bool,
    /// It has run virtual machines of its own under KVM. Only its host asks, so it is sent to no other.
    #[serde(skip)]
    pub nested: bool,
    /// A TPM: its state is outside QEMU.
    pub tpm: bool,
    /// Devices plugged or unplugged since the start: the command line no longer describes the guest.
    pub hot_plugged: Vec<String>,
    /// Migration capabilities that this QEMU has.
    pub capabilities: Vec<String>,
    /// Why QEMU itself refuses to migrate.
    pub blocked: Vec<String>,
    /// Status of the last or present migration, if there was one.
    pub migration: Option<String>,
}

/// Facts about the source's process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessFacts {
    pub pid: i32,
    /// Threads that run virtual CPUs.
    pub vcpu_threads: Vec<i32>,
    /// The program, as the kernel names it.
    pub executable: String,
}

/// Why a description that came from elsewhere is not taken.
#[derive(Debug, thiserror::Error)]
pub enum DescriptionError {
    #[error("the guest description has {0} bytes, at most {JSON_BYTES_MAX} are taken")]
    TooLong(usize),
    /// Not JSON, or not of this form.
    #[error("the guest description cannot be read: the two agents may be of different versions")]
    Form(#[source] serde_json::Error),
    /// Written by a later version.
    #[error("the guest description has schema {0}, this agent knows {SCHEMA}: update the older agent")]
    Schema(u32),
    /// Too many or too long arguments, or one with a NUL.
    #[error("the guest description's command line is too long or not printable")]
    Arguments,
    /// Too many disks to copy.
    #[error("{0} disks are to be copied, at most {COPIED_MAX} can be")]
    Copied(usize),
    /// The disk graph cannot be used.
    #[error(transparent)]
    Graph(#[from] FormError),
    /// The name cannot be a folder's name.
    #[error(
        "the guest name {0:?} cannot be used: 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit"
    )]
    Name(String),
}

impl GuestDescription {
    /// The description as JSON.
    pub fn to_json(&self) -> Result<String, DescriptionError> {
        serde_json::to_string(self).map_err(DescriptionError::Form)
    }

    /// Reads a description that another host wrote. Its lengths are checked, its content is not trusted: see
    /// `incoming_qemu`.
    pub fn from_json(text: &str) -> Result<GuestDescription, DescriptionError> {
        if text.len() > JSON_BYTES_MAX {
            return Err(DescriptionError::TooLong(text.len()));
        }
        #[derive(Deserialize)]
        struct Head {
            schema: u32,
        }
        let head: Head = serde_json::from_str(text).map_err(DescriptionError::Form)?;
        if head.schema != SCHEMA {
            return Err(DescriptionError::Schema(head.schema));
        }
        let description: GuestDescription = serde_json::from_str(text).map_err(DescriptionError::Form)?;
        let bad = |argument: &String| argument.len() > ARGUMENT_BYTES_MAX || argument.contains('\0');
        if description.arguments.len() > ARGUMENTS_MAX || description.arguments.iter().any(bad) {
            return Err(DescriptionError::Arguments);
        }
        check_name(&description.name)?;
        description.check_copied()?;
        description.graph.as_ref().map_or(Ok(()), DiskGraph::check)?;
        Ok(description)
    }

    /// The blocks that Linerate moves itself in direct mode.
    pub fn regions(&self) -> impl Iterator<Item = &RamBlock> {
        self.ram.iter().filter(|block| block.ignored_when_shared)
    }

    /// Whether no more disks are copied than possible.
    pub fn check_copied(&self) -> Result<(), DescriptionError> {
        let count = self.copied.len();
        if count > COPIED_MAX { Err(DescriptionError::Copied(count)) } else { Ok(()) }
    }

    /// Whether the guest was running.
    pub fn is_running(&self) -> bool {
        self.run_state == RunState::Running
    }
}

/// Whether a guest's name can be used as the name of a folder and in a command line.
pub fn check_name(name: &str) -> Result<(), DescriptionError> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins && name.len() <= 64 && name.chars().all(legal) {
        Ok(())
    } else {
        Err(DescriptionError::Name(name.chars().take(80).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_out_of_a_folder_are_refused() {
        for name in ["", ".", "..", "../x", "a/b", "a b", "-x", "a\0", &"a".repeat(65)] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        for name in ["a", "web-1.example", "100"] {
            check_name(name).unwrap();
        }
    }

    #[test]
    fn another_schema_and_unknown_fields_are_refused() {
        assert!(matches!(GuestDescription::from_json(r#"{"schema":2}"#), Err(DescriptionError::Schema(2))));
        assert!(matches!(GuestDescription::from_json(r#"{"schema":1}"#), Err(DescriptionError::Form(_))));
        assert!(matches!(GuestDescription::from_json("x"), Err(DescriptionError::Form(_))));
        let long = " ".repeat(JSON_BYTES_MAX + 1);
        assert!(matches!(GuestDescription::from_json(&long), Err(DescriptionError::TooLong(_))));
    }
}
