//! Whether this host has what an incoming QEMU needs: firmware, machine type, files, interfaces, memory, a free name.

mod memory;
mod needs;
mod problem;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use crate::description::{Disk, GuestDescription, ImageFormat};
use crate::in_use;
use crate::incoming_qemu::{IncomingQemu, NeededFile, NeededNetwork, QemuBinary};
use crate::plain_file;
use crate::qcow2;
use crate::qmp::QemuVersion;
use crate::roots::is_allowed;
use linerate_lock::Mutex;

pub use needs::needs;
pub use problem::Problem;

/// Bytes of a page that is not huge.
const SMALL_PAGE: u64 = 4096;
/// QEMU counts disks in these, in bytes.
const SECTOR: u64 = 512;

/// What a host offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFacts {
    pub qemu: QemuFacts,
    /// Bytes of memory available.
    pub memory_available: u64,
    /// Bytes that files in the folder for RAM can still have; none if it has no limit of its own.
    pub ram_folder_available: Option<u64>,
    /// Sizes of explicit huge pages, and how many bytes of each can be had.
    pub huge_available: Vec<(u64, u64)>,
    /// Names and UUIDs of the guests that are here.
    pub guests: Vec<(String, Option<String>)>,
    /// /dev/kvm can be opened.
    pub kvm: bool,
}

/// What a QEMU program says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuFacts {
    pub version: QemuVersion,
    /// Machine types, versioned ones and aliases.
    pub machines: Vec<String>,
}

/// Why a QEMU program cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum QemuFactsError {
    /// It cannot be run.
    #[error("cannot run {program}: check the path of this QEMU in the configuration")]
    Run {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    /// It failed or said something else than expected.
    #[error("{program} {question} gave no usable answer: is it a QEMU system emulator?")]
    Answer {
        program: PathBuf,
        /// What it was asked.
        question: &'static str,
    },
    /// It did not end.
    #[error("{program} {question} did not end in time")]
    TimedOut {
        program: PathBuf,
        /// What it was asked.
        question: &'static str,
    },
}

/// Asks QEMU programs once each; a program that was replaced is asked again.
#[derive(Debug, Default)]
pub struct QemuCache {
    known: Mutex<HashMap<PathBuf, (Option<SystemTime>, QemuFacts)>>,
}

impl QemuCache {
    /// What the program says of itself.
    pub fn facts(&self, qemu: &QemuBinary, deadline: Instant) -> Result<QemuFacts, QemuFactsError> {
        let changed = fs::metadata(&qemu.path).and_then(|metadata| metadata.modified()).ok();
        let mut known = self.known.lock();
        if let Some((then, facts)) = known.get(&qemu.path)
            && *then == changed
        {
            return Ok(facts.clone());
        }
        let facts = ask(qemu, deadline)?;
        known.insert(qemu.path.clone(), (changed, facts.clone()));
        Ok(facts)
    }
}

fn ask(qemu: &QemuBinary, deadline: Instant) -> Result<QemuFacts, QemuFactsError> {
    let answer = |question| QemuFactsError::Answer { program: qemu.path.clone(), question };
    let version =
        parse_version(&run(qemu, &["-version"], "-version", deadline)?).ok_or(answer("-version"))?;
    let listing = run(qemu, &["-machine", "help"], "-machine help", deadline)?;
    let lines = listing.lines().skip(1);
    let machines: Vec<String> =
        lines.filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect();
    if machines.is_empty() { Err(answer("-machine help")) } else { Ok(QemuFacts { version, machines }) }
}

fn run(
    qemu: &QemuBinary,
    arguments: &[&str],
    question: &'static str,
    deadline: Instant,
) -> Result<String, QemuFactsError> {
    let program = qemu.path.clone();
    let failed = |source| QemuFactsError::Run { program: qemu.path.clone(), source };
    let mut child = Command::new(&qemu.path)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    // The answers are shorter than a pipe holds, so it can end before it is read.
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break status,
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(QemuFactsError::TimedOut { program, question });
            }
        }
    };
    let mut text = String::new();
    let read = child.stdout.take().map(|stdout| stdout.take(64 << 10).read_to_string(&mut text));
    match read {
        Some(Ok(_)) if status.success() => Ok(text),
        _ => Err(QemuFactsError::Answer { program, question }),
    }
}

fn parse_version(text: &str) -> Option<QemuVersion> {
    let rest = text.split("version ").nth(1)?;
    let mut numbers = rest.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some(QemuVersion { major: next()?, minor: next()?, micro: next()? })
}

/// Bytes of memory that new processes can have without swapping.
pub fn memory_available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes that new files in a folder can have, with the holes of those that are there filled; none if its file system
/// has no limit of its own, or does not say.
pub fn folder_available(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    let free = (found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize))?;
    let facts = fs::read_dir(folder).ok()?.flatten().filter_map(|entry| entry.metadata().ok());
    let holes =
        facts.filter(fs::Metadata::is_file).map(|file| file.len().saturating_sub(file.blocks() * 512));
    Some(holes.fold(free, u64::saturating_sub))
}

/// Sizes of explicit huge pages that the kernel has, and how many bytes of each new files can have: those that are free
/// and not promised, and those that may be taken from other memory on demand.
pub fn huge_available() -> Vec<(u64, u64)> {
    let folders = fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    folders.filter_map(|folder| huge_available_in(&folder.path())).collect()
}

fn huge_available_in(folder: &Path) -> Option<(u64, u64)> {
    let size = folder.file_name()?.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?;
    let page_bytes = size.parse::<u64>().ok()?.checked_mul(1024)?;
    let count = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let free = count("free_hugepages")?.saturating_sub(count("resv_hugepages")?);
    let on_demand = count("nr_overcommit_hugepages")?.saturating_sub(count("surplus_hugepages")?);
    Some((page_bytes, free.saturating_add(on_demand).saturating_mul(page_bytes)))
}

/// All problems with taking the guest, fatal or not.
pub fn check_host(
    guest: &GuestDescription,
    incoming: &IncomingQemu,
    qemu: &QemuBinary,
    roots: &[PathBuf],
    host: &HostFacts,
) -> Vec<Problem> {
    let mut problems = machine_problems(guest, host);
    problems.extend(memory::problem(guest, &incoming.arguments));
    problems.extend(ram_folder_problem(guest, incoming, host));
    problems.extend(incoming.files.iter().filter_map(|file| file_problem(guest, file, roots)));
    problems.extend(incoming.networks.iter().filter_map(network_problem));
    let found = |name: &&String| qemu.data_dirs.iter().any(|dir| dir.join(name).exists());
    let missing = incoming.firmware.iter().filter(|name| !qemu.data_dirs.is_empty() && !found(name));
    problems.extend(missing.map(|name| Problem::FirmwareMissing { name: name.clone() }));
    problems
}

fn machine_problems(guest: &GuestDescription, host: &HostFacts) -> Vec<Problem> {
    let mut problems = Vec::new();
    let here = host.qemu.version;
    if (here.major, here.minor) < (guest.qemu.major, guest.qemu.minor) {
        problems.push(Problem::QemuOlder { here, source_version: guest.qemu });
    }
    if !host.qemu.machines.contains(&guest.machine) {
        problems.push(Problem::MachineUnknown { machine: guest.machine.clone(), here });
    }
    if guest.accelerator == "kvm" && !host.kvm {
        problems.push(Problem::KvmMissing);
    }
    problems.extend(memory_problems(guest, host));
    if host.guests.iter().any(|(name, _)| *name == guest.name) {
        problems.push(Problem::NameTaken { name: guest.name.clone() });
    }
    if let Some(uuid) = &guest.uuid
        // One that comes back may find what is left of itself.
        && host.guests.iter().any(|(name, other)| {
            *name != guest.name && other.as_ref().is_some_and(|other| other.eq_ignore_ascii_case(uuid))
        })
    {
        problems.push(Problem::UuidTaken { uuid: uuid.clone() });
    }
    problems
}

/// The folder for RAM is a tmpfs, which may be smaller than what the host has free: half of its memory, unless it was
/// mounted with another size.
fn ram_folder_problem(
    guest: &GuestDescription,
    incoming: &IncomingQemu,
    host: &HostFacts,
) -> Option<Problem> {
    let size = |object: &str| {
        let small = guest.ram.iter().filter(|block| block.page_bytes <= SMALL_PAGE);
        let of_file = small.filter(|block| block.id.rsplit('/').next() == Some(object));
        of_file.map(|block| block.size).fold(0, u64::saturating_add)
    };
    let needed = incoming.ram_files.iter().map(|file| size(&file.object)).fold(0, u64::saturating_add);
    let available = host.ram_folder_available.filter(|available| needed > *available)?;
    let folder = incoming.ram_files.first()?.path.parent()?.to_path_buf();
    Some(Problem::RamFolderShort { folder, needed, available })
}

/// Huge pages are set aside beforehand, so they are counted apart from all other memory.
fn memory_problems(guest: &GuestDescription, host: &HostFacts) -> Vec<Problem> {
    let mut by_page = BTreeMap::<u64, u64>::new();
    for block in &guest.ram {
        let sum = by_page.entry(block.page_bytes.max(SMALL_PAGE)).or_default();
        *sum = sum.saturating_add(block.size);
    }
    let huge: u64 = by_page.range(SMALL_PAGE + 1..).fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes));
    // What the blocks say counts: the number beside them may be of another guest.
    let blocks = by_page.get(&SMALL_PAGE).copied().unwrap_or(0);
    let needed = guest.memory_bytes.saturating_sub(huge).max(blocks);
    let short = |needed, available| Problem::MemoryShort { needed, available };
    let mut problems = Vec::new();
    problems.extend((needed > host.memory_available).then(|| short(needed, host.memory_available)));
    for (&page_bytes, &needed) in by_page.range(SMALL_PAGE + 1..) {
        let of_size = host.huge_available.iter().find(|(size, _)| *size == page_bytes);
        let available = of_size.map_or(0, |(_, bytes)| *bytes);
        if needed > available {
            problems.push(Problem::HugePagesShort { needed, available, page_bytes });
        }
    }
    problems
}

fn file_problem(guest: &GuestDescription, file: &NeededFile, roots: &[PathBuf]) -> Option<Problem> {
    let path = file.path.clone();
    let Ok(target) = fs::canonicalize(&path) else { return Some(Problem::FileMissing { path }) };
    if !is_allowed(&path, &target, roots) {
        return Some(Problem::FileOutside { path, target });
    }
    if let Some(problem) = unfit(file, &path, &target, roots) {
        return Some(problem);
    }
    let disk = guest.disks.iter().find(|disk| disk.path == file.source);
    if disk.is_some_and(|disk| disk.direct) && !opens_directly(&target) {
        return Some(Problem::FileBuffered { path });
    }
    // What is copied is checked where its image is prepared: of an image that is not the disk itself the file may
    // differ.
    if guest.copied.iter().any(|disk| disk.path == file.source) {
        return None;
    }
    if let Some(by) = in_use::held_by(&target) {
        return Some(Problem::DeviceHeld { path, by });
    }
    let (here, there) = disk_sizes(guest, file, &target, disk?)?;
    (there != 0 && here != there).then_some(Problem::FileSize { path, here, there })
}

/// What every host finds of the same file, wherever it is.
fn unfit(file: &NeededFile, path: &Path, target: &Path, roots: &[PathBuf]) -> Option<Problem> {
    let kind = fs::metadata(target).ok()?.file_type();
    let path = path.to_owned();
    if !kind.is_file() && !kind.is_block_device() {
        return Some(Problem::FileKind { path });
    }
    if let Some(as_device) = file.as_device.filter(|as_device| *as_device != kind.is_block_device()) {
        return Some(Problem::FileDriver { path, as_device });
    }
    // What is opened as a raw image may begin like any other.
    let reach = qcow2::check(&path, roots).err().filter(|_| file.format != Some(ImageFormat::Raw))?;
    Some(Problem::Image { path, reach })
}

/// What a destination would find of the images of a guest that runs here, if it has the same. Those that are copied are
/// made anew.
pub fn unfit_images(guest: &GuestDescription, incoming: &IncomingQemu) -> Vec<Problem> {
    let anywhere = [PathBuf::from("/")];
    let stays = |file: &&NeededFile| !guest.copied.iter().any(|disk| disk.path == file.source);
    let look = |file: &NeededFile| {
        let target = fs::canonicalize(&file.path).ok()?;
        unfit(file, &file.path, &target, &anywhere)
    };
    incoming.files.iter().filter(stays).filter_map(look).collect()
}

/// Bytes of the disk in the image here, and at the source. The file of a qcow2 image grows, and says nothing of the
/// disk; QEMU counts the bytes of a raw file in sectors.
fn disk_sizes(guest: &GuestDescription, file: &NeededFile, here: &Path, there: &Disk) -> Option<(u64, u64)> {
    if file.format != Some(ImageFormat::Raw) && there.format == ImageFormat::Qcow2.name() {
        let there = guest.graph.as_ref()?.image_size(&file.source, ImageFormat::Qcow2.name())?;
        let mut image = plain_file::open(here).ok()?;
        return Some((qcow2::disk_size(&mut image).ok()??, there));
    }
    let sectors = |bytes: u64| bytes.checked_next_multiple_of(SECTOR);
    Some((sectors(size_of(here)?)?, sectors(there.size)?))
}

/// False if the file system says that it has no such thing; what else is wrong is found elsewhere.
fn opens_directly(path: &Path) -> bool {
    let opened = plain_file::open_with(path, rustix::fs::OFlags::DIRECT);
    let refused = rustix::io::Errno::INVAL.raw_os_error();
    !opened.is_err_and(|error| error.raw_os_error() == Some(refused))
}

// The size of a block device is where its end is.
fn size_of(path: &Path) -> Option<u64> {
    use std::io::{Seek, SeekFrom};
    plain_file::open(path).ok()?.seek(SeekFrom::End(0)).ok()
}

fn network_problem(network: &NeededNetwork) -> Option<Problem> {
    match network {
        NeededNetwork::Bridge { name } => {
            (!is_bridge(name)).then(|| Problem::BridgeMissing { name: name.clone() })
        }
        NeededNetwork::Tap { name, bridge } if !interface(name).exists() => {
            let bridge = bridge.clone().filter(|bridge| is_bridge(bridge));
            Some(Problem::TapMissing { name: name.clone(), bridge })
        }
        NeededNetwork::Tap { name, bridge: Some(bridge) } => {
            let unbridged = crate::read::bridge_of(name).is_none();
            unbridged.then(|| Problem::TapUnbridged { name: name.clone(), bridge: bridge.clone() })
        }
        NeededNetwork::Tap { bridge: None, .. } => None,
    }
}

// Names were checked with the command line; one with a slash would lead elsewhere.
fn interface(name: &str) -> PathBuf {
    Path::new("/sys/class/net").join(name.replace('/', "_"))
}

fn is_bridge(name: &str) -> bool {
    interface(name).join("bridge").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        let text = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)\nCopyright";
        assert_eq!(parse_version(text), Some(QemuVersion { major: 7, minor: 2, micro: 22 }));
        assert_eq!(parse_version("ls (GNU coreutils) 9.1"), None);
        assert_eq!(parse_version("version x"), None);
    }

    #[test]
    fn memory_that_guests_may_still_fill_is_not_free() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let before = folder_available(dir.path()).unwrap();
        let ram = fs::File::create(dir.path().join("g.ram")).unwrap();
        // All of it a hole, and more than others could give back meanwhile.
        ram.set_len(1 << 40).unwrap();
        assert_eq!(folder_available(dir.path()), Some(0), "{before} before");
    }
}
