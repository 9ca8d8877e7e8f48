//! RAM that an adopted guest leaves behind. QEMU does not remove a named file of its RAM, and the file is its
//! operator's: it stays, with its name, owner and size. The memory in it is given back, as its content is not needed
//! any more.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, OFlags};

use crate::argv::split_loose;
use crate::in_use;
use crate::options::Options;
use crate::procfs::{self, ProcessIdentity};
use crate::read::{command_line, parsed};
use crate::registry::{GuestRecord, Origin};

/// File systems whose files are memory.
const TMPFS: i128 = 0x0102_1994;
const HUGETLBFS: i128 = 0x9584_58f6;
/// Devices whose memory is the guest's RAM, and nothing else.
const OF_RAM: &[&str] = &["pc-dimm", "virtio-mem-pci", "virtio-mem-device"];

/// The files of a guest that is about to end here.
#[derive(Debug, Default)]
pub struct LeftoverRam(Vec<RamFile>);

#[derive(Debug)]
struct RamFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl RamFile {
    fn is(&self, facts: &Metadata) -> bool {
        facts.is_file() && (facts.dev(), facts.ino()) == (self.device, self.inode)
    }
}

impl LeftoverRam {
    /// To be asked while the process runs. What Linerate made itself is removed with the guest, and is not among them.
    pub fn of(record: &GuestRecord) -> LeftoverRam {
        let pid = record.process.pid;
        // Seen, and not only supposed: the files of another process with its number are not its own.
        let is_seen = ProcessIdentity::of(pid).is_ok_and(|now| now == record.process);
        let adopted = record.origin == Origin::Adopted && record.is_alive() && is_seen;
        let Some((arguments, _)) = adopted.then(|| command_line(pid).ok()).flatten() else {
            return LeftoverRam::default();
        };
        let maps = fs::read_to_string(procfs::proc_path(pid, "maps")).unwrap_or_default();
        let file = |path: String| {
            let path = PathBuf::from(path);
            let facts = fs::metadata(&path).ok().filter(|facts| facts.is_file() && is_memory(&path))?;
            let file = RamFile { path, device: facts.dev(), inode: facts.ino() };
            maps.lines().any(|line| maps_shared(line, &file)).then_some(file)
        };
        LeftoverRam(ram_paths(&arguments).into_iter().filter_map(file).collect())
    }

    /// Gives the memory back, once the process has ended. A file that anybody else uses is left alone. Gives the bytes
    /// that are free now.
    pub fn free(&self) -> u64 {
        self.0.iter().map(|file| free(file).unwrap_or(0)).sum()
    }
}

/// Files of memory back ends that are shared, written to, and nothing but the guest's RAM.
fn ram_paths(arguments: &[String]) -> Vec<String> {
    let options = split_loose(arguments);
    let others: Vec<Options> = parsed(&options, "device", Some("driver"))
        .filter(|device| !device.get("driver").is_some_and(|driver| OF_RAM.contains(&driver)))
        .collect();
    let is_ram = |object: &Options| {
        let id = object.get("id");
        let of_file = object.get("qom-type") == Some("memory-backend-file");
        let lent = others.iter().any(|device| device.get("memdev") == id);
        of_file && object.is_on("share") && !object.is_on("readonly") && !object.is_on("pmem") && !lent
    };
    let objects = parsed(&options, "object", Some("qom-type")).filter(is_ram);
    objects.filter_map(|object| object.get("mem-path").map(str::to_owned)).collect()
}

/// A line of `/proc/PID/maps`: range, rights, offset, device, inode, path.
fn maps_shared(line: &str, file: &RamFile) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, rights, _, device, inode, ..] = words.as_slice() else { return false };
    let number = device.split_once(':').and_then(|(major, minor)| {
        let part = |text| u32::from_str_radix(text, 16).ok();
        Some(rustix::fs::makedev(part(major)?, part(minor)?))
    });
    rights.starts_with("rw-s") && number == Some(file.device) && inode.parse() == Ok(file.inode)
}

fn is_memory(path: &Path) -> bool {
    // The kernel's numbers have 32 bits, whatever the type's width and sign.
    let magic = rustix::fs::statfs(path).map(|system| i128::from(system.f_type) & 0xffff_ffff);
    magic.is_ok_and(|magic| magic == TMPFS || magic == HUGETLBFS)
}

fn free(left: &RamFile) -> io::Result<u64> {
    let (flags, none) = (OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, rustix::fs::Mode::empty());
    let file = File::from(rustix::fs::open(&left.path, flags, none)?);
    let before = file.metadata()?;
    let unused = in_use::users(&left.path, &[]).is_empty() && !mapped_elsewhere(left);
    if !left.is(&before) || before.len() == 0 || !unused {
        return Ok(0);
    }
    rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, before.len())?;
    Ok(before.blocks().saturating_sub(file.metadata()?.blocks()) * 512)
}

/// A process may have it mapped without having it open.
fn mapped_elsewhere(left: &RamFile) -> bool {
    let own = std::process::id();
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut others = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    others.any(|pid| {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        pid != own && maps.lines().any(|line| line.contains("rw-s") && maps_shared(line, left))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shared_files_that_are_nothing_but_ram_are_given_back() {
        let line = "-object memory-backend-file,id=ram,size=1G,mem-path=/dev/shm/a,share=on \
            -object memory-backend-file,id=d,size=1G,mem-path=/dev/shm/dimm,share=on -device pc-dimm,memdev=d \
            -object memory-backend-file,id=n,size=1G,mem-path=/dev/shm/nvdimm,share=on -device nvdimm,memdev=n \
            -object memory-backend-file,id=i,size=1M,mem-path=/dev/shm/ivshmem,share=on -device ivshmem-plain,memdev=i \
            -object memory-backend-file,id=p,size=1G,mem-path=/dev/shm/private -mem-path /dev/shm/x \
            -object memory-backend-file,id=r,size=1G,mem-path=/dev/shm/rom,share=on,readonly=on";
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        assert_eq!(ram_paths(&words), ["/dev/shm/a", "/dev/shm/dimm"]);
    }

    #[test]
    fn a_mapping_is_known_by_its_file() {
        let file = RamFile { path: "/x".into(), device: rustix::fs::makedev(0, 0x19), inode: 77 };
        let line = |rights: &str, device: &str, inode: u32| {
            format!("7f00-7f10 {rights} 00000000 {device} {inode}   /dev/shm/a b (deleted)")
        };
        assert!(maps_shared(&line("rw-s", "00:19", 77), &file));
        for other in
            [line("rw-p", "00:19", 77), line("rw-s", "00:1a", 77), line("rw-s", "00:19", 78), "x".into()]
        {
            assert!(!maps_shared(&other, &file), "{other}");
        }
    }
}
