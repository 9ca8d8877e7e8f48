//! At the source: what the guest's disks are stored on.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crc_fast::{CrcAlgorithm, Digest};

use super::error::OpenError;
use super::mark::{Marked, Unflushed, put};
use super::mounts::mount_of;
use super::open_files::{OpenFile, metadata_in, open_files, path_in};
use super::{COMPARED_BYTES_MAX, DeviceFacts, FileFacts, ImageFacts, Marks, Storage, StorageFacts, device};
use crate::description::{Disk, GuestDescription};
use crate::plain_file;
use crate::procfs;

/// Drivers that open a file or device of this host.
const LOCAL_DRIVERS: [&str; 3] = ["file", "host_device", "host_cdrom"];

/// Why nothing can be said of the guest's disks.
#[derive(Debug, thiserror::Error)]
pub enum DescribeError {
    /// The operator named a disk that the guest does not have.
    #[error("{flag} names {name}, and the guest has no such disk; it has {}", known.join(", "))]
    NoDisk {
        flag: &'static str,
        name: String,
        /// Disks that it has.
        known: Vec<String>,
    },
    /// This host's boot id.
    #[error("the kernel does not report which boot this is")]
    Boot(#[from] procfs::ProcessError),
    #[error("the files that the guest's QEMU has open cannot be listed")]
    OpenFiles(#[source] io::Error),
    /// Nobody could flush it before the guest leaves.
    #[error(
        "the disk {disk} is opened with cache=unsafe, so this agent must flush it when the guest is stopped, and it \
         cannot: {why}. Copy the disk (--copy-disks {disk}), or restart the guest with another cache mode"
    )]
    Unflushable {
        disk: String,
        /// Why it cannot be opened.
        why: String,
    },
}

/// Refuses names of disks that the guest does not have.
pub(crate) fn check_names<'a>(
    flag: &'static str,
    named: &[String],
    known: impl Iterator<Item = &'a str>,
) -> Result<(), DescribeError> {
    let mut known: Vec<String> = known.map(str::to_owned).collect();
    known.sort();
    known.dedup();
    match named.iter().find(|name| !known.contains(name)) {
        Some(name) => Err(DescribeError::NoDisk { flag, name: name.clone(), known }),
        None => Ok(()),
    }
}

/// Describes every image, also those that are copied, lest they be copied onto themselves; and marks those that can
/// be marked. The marks stay as long as what is returned.
pub fn describe(
    guest: &GuestDescription,
    asserted_shared: &[String],
) -> Result<(StorageFacts, Marks), DescribeError> {
    check_names("--shared-storage", asserted_shared, guest.disks.iter().map(|disk| disk.id.as_str()))?;
    let mut facts = StorageFacts {
        boot: procfs::boot_id()?,
        agent: std::process::id(),
        images: Vec::new(),
        asserted_shared: asserted_shared.to_vec(),
    };
    let mut marks = Marks::default();
    let pid = guest.process.pid;
    let local = |disk: &&Disk| LOCAL_DRIVERS.contains(&disk.protocol.as_str());
    let disks: Vec<&Disk> = guest.disks.iter().filter(local).collect();
    if disks.is_empty() {
        return Ok((facts, marks));
    }
    let open = open_files(pid).map_err(DescribeError::OpenFiles)?;
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    for disk in disks {
        let (image, marked) = look(disk, pid, &open, &mounts);
        facts.images.push(image);
        marks.marked.extend(marked);
        if is_never_flushed(guest, disk) {
            marks.unflushed.push(to_flush(disk, pid, &open)?);
        }
    }
    Ok((facts, marks))
}

/// Whether what QEMU writes to a shared disk may stay in the page cache of this host.
fn is_never_flushed(guest: &GuestDescription, disk: &Disk) -> bool {
    let is_copied = guest.copied.iter().any(|copied| copied.path == disk.path);
    let graph = guest.graph.as_ref();
    !disk.read_only && !is_copied && graph.is_some_and(|graph| graph.is_never_flushed(&disk.path))
}

fn to_flush(disk: &Disk, pid: i32, open: &[OpenFile]) -> Result<Unflushed, DescribeError> {
    let path = PathBuf::from(&disk.path);
    match opened(pid, &path, open) {
        Ok((file, _)) => Ok(Unflushed { file, disk: disk.id.clone(), path }),
        Err(error) => Err(DescribeError::Unflushable { disk: disk.id.clone(), why: error.to_string() }),
    }
}

fn look(disk: &Disk, pid: i32, open: &[OpenFile], mounts: &str) -> (ImageFacts, Option<Marked>) {
    let mut image = ImageFacts {
        disk: disk.id.clone(),
        path: disk.path.clone(),
        read_only: disk.read_only,
        flash: disk.flash,
        size: 0,
        checksum: None,
        storage: Storage::Unknown,
        problem: None,
    };
    let path = PathBuf::from(&disk.path);
    match opened(pid, &path, open) {
        Err(problem) => image.problem = Some(problem.to_string()),
        Ok((file, facts)) if facts.file_type().is_block_device() => {
            let number = facts.rdev();
            image.size = end_of(&file).unwrap_or(0);
            image.storage = Storage::Device(DeviceFacts { number, unique: device::unique(number) });
        }
        Ok((file, facts)) => {
            image.size = facts.len();
            image.checksum = disk.read_only.then(|| checksum(&file, facts.len())).flatten();
            let mark = put(&file).inspect_err(|error| {
                image.problem = Some(format!("its file system does not lock files ({error})"));
            });
            let named = fs::canonicalize(&path).unwrap_or(path.clone());
            image.storage = file_facts(&file, &facts, &named, mounts, mark.ok());
            return (image, Some(Marked { file, disk: disk.id.clone(), path }));
        }
    }
    (image, None)
}

/// The file that QEMU has open, if that is what is at the path too.
fn opened(pid: i32, path: &Path, open: &[OpenFile]) -> Result<(File, Metadata), OpenError> {
    let at_path = metadata_in(pid, path).map_err(|cause| OpenError::Gone { path: path.to_owned(), cause })?;
    let Some(qemus) = open.iter().find(|file| file.is(&at_path)) else {
        return Err(OpenError::NotQemus { path: path.to_owned() });
    };
    let failed = |cause: io::Error| OpenError::Open { path: path.to_owned(), cause };
    let file =
        plain_file::open(&qemus.link).or_else(|_| plain_file::open(&path_in(pid, path))).map_err(failed)?;
    let facts = file.metadata().map_err(failed)?;
    if qemus.is(&facts) { Ok((file, facts)) } else { Err(OpenError::JustReplaced { path: path.to_owned() }) }
}

/// What is known of a file on this host.
pub(super) fn file_facts(
    file: &File,
    facts: &Metadata,
    path: &Path,
    mounts: &str,
    mark: Option<i64>,
) -> Storage {
    let magic = rustix::fs::fstatfs(file).map_or(0, |system| system.f_type);
    let mount = mount_of(mounts, path);
    let (system, mounted) = mount.map_or(Default::default(), |mount| (mount.system, mount.source));
    Storage::File(FileFacts {
        // The kernel's numbers have 32 bits, whatever the type's width and sign.
        magic: u64::try_from(i128::from(magic) & 0xffff_ffff).unwrap_or(0),
        system,
        mounted,
        device: facts.dev(),
        inode: facts.ino(),
        mark,
    })
}

/// Where a file or device ends. Its offset is this process's own.
pub(super) fn end_of(mut file: &File) -> io::Result<u64> {
    use std::io::{Seek, SeekFrom};
    file.seek(SeekFrom::End(0))
}

/// Of all of a small file; none of a larger one.
pub(super) fn checksum(mut file: &File, size: u64) -> Option<u64> {
    use std::io::{Seek, SeekFrom};
    if size > COMPARED_BYTES_MAX {
        return None;
    }
    file.seek(SeekFrom::Start(0)).ok()?;
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    let mut rest = file.take(COMPARED_BYTES_MAX);
    let mut buffer = vec![0; 64 << 10];
    loop {
        match rest.read(&mut buffer) {
            Ok(0) => return Some(digest.finalize()),
            Ok(length) => digest.update(buffer.get(..length)?),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}
