//! Finding the RAM of a running process.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use linerate_core::PAGE_BYTES;

use crate::error::FindError;
use crate::maps::{self, MapEntry};

/// A piece of a process's address space that shows a piece of the block's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First address in the process.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// Byte of the file that `address` shows.
    pub offset: u64,
}

/// What kind of memory file a block lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// tmpfs or a memfd: holes can be asked for.
    Tmpfs,
    /// hugetlbfs or a memfd with huge pages: holes can only be found by reading the file.
    Hugetlbfs,
}

/// A block of RAM that a process maps shared from a file in memory.
///
/// Offsets into the block are offsets into its file.
#[derive(Debug)]
pub struct RamBlock {
    pid: i32,
    name: String,
    file: File,
    size: u64,
    backing: Backing,
    segments: Vec<Segment>,
    /// The page tables of the process that maps it, also when that has ended: then they are empty.
    pagemap: Option<File>,
}

impl RamBlock {
    /// Finds the block called `name` (for messages) that process `pid` maps from `path`.
    ///
    /// `path` is the file's name as the process itself sees it, also if it lies in another mount namespace or has been
    /// deleted, or `memfd:NAME`. The file is opened through `/proc`.
    pub fn find(pid: i32, name: &str, path: &Path) -> Result<RamBlock, FindError> {
        let entries = read_entries(pid)?;
        let mapped = matching(pid, &entries, path)?;
        let file = open(pid, &mapped, path)?;
        let meta = file.metadata().map_err(|source| FindError::Open { path: path.to_owned(), source })?;
        let first = mapped.first().map(|entry| (entry.device, entry.inode));
        if first != Some((meta.dev(), meta.ino())) {
            return Err(FindError::Changed { path: path.to_owned() });
        }
        let size = meta.size();
        if size == 0 || !size.is_multiple_of(PAGE_BYTES) {
            return Err(FindError::OddSize { path: path.to_owned(), size });
        }
        let backing = backing(&file, path)?;
        let segments = segments(&mapped);
        let pagemap = File::open(format!("/proc/{pid}/pagemap")).ok();
        Ok(RamBlock { pid, name: name.to_owned(), file, size, backing, segments, pagemap })
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The hypervisor's name of the block.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// What kind of file it is.
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// Where the process shows the file, in the order of addresses.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The file, open for reading and writing.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where the process shows the file now; differs from [`RamBlock::segments`] after the process remapped it.
    pub fn segments_now(&self) -> Result<Vec<Segment>, FindError> {
        Placement::of(self).segments_now()
    }

    /// None if it could not be opened.
    pub(crate) fn pagemap(&self) -> Option<&File> {
        self.pagemap.as_ref()
    }

    pub(crate) fn placement(&self) -> Placement {
        Placement::of(self)
    }
}

/// What identifies a block in its process's list of mappings, and where it was.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    pub(crate) pid: i32,
    pub(crate) name: String,
    pub(crate) segments: Vec<Segment>,
    pub(crate) backing: Backing,
    identity: Option<(u64, u64)>,
}

impl Placement {
    fn of(block: &RamBlock) -> Placement {
        let identity = block.file.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
        Placement {
            pid: block.pid,
            name: block.name.clone(),
            segments: block.segments.clone(),
            backing: block.backing,
            identity,
        }
    }

    pub(crate) fn segments_now(&self) -> Result<Vec<Segment>, FindError> {
        let entries = read_entries(self.pid)?;
        let mapped: Vec<_> = entries
            .iter()
            .filter(|entry| entry.shared && Some((entry.device, entry.inode)) == self.identity)
            .collect();
        Ok(segments(&mapped))
    }
}

fn read_entries(pid: i32) -> Result<Vec<MapEntry>, FindError> {
    let text = std::fs::read(format!("/proc/{pid}/maps")).map_err(|source| match source.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => FindError::NoProcess { pid },
        _ => FindError::MapsUnreadable { pid, source },
    })?;
    maps::parse(&text).ok_or(FindError::MapsMalformed { pid })
}

/// The shared mappings of the one file that `path` names.
fn matching<'a>(pid: i32, entries: &'a [MapEntry], path: &Path) -> Result<Vec<&'a MapEntry>, FindError> {
    let by_path = inode_in_root(pid, path);
    let named: Vec<_> = entries
        .iter()
        .filter(|entry| entry.inode != 0)
        .filter(|entry| same_name(&entry.path, path) || by_path == Some((entry.device, entry.inode)))
        .collect();
    let files: BTreeSet<_> = named.iter().map(|entry| (entry.device, entry.inode)).collect();
    match files.len() {
        0 => return Err(FindError::NotMapped { pid, path: path.to_owned() }),
        1 => {}
        files => return Err(FindError::Ambiguous { path: path.to_owned(), files }),
    }
    let shared: Vec<_> = named.into_iter().filter(|entry| entry.shared).collect();
    if shared.is_empty() {
        return Err(FindError::NotShared { path: path.to_owned() });
    }
    // The file is opened for writing with this process's rights: what the other one may only read stays as it is.
    if shared.iter().any(|entry| entry.writable) {
        Ok(shared)
    } else {
        Err(FindError::ReadOnly { path: path.to_owned() })
    }
}

/// A memfd is listed with a slash that is not part of its name.
fn same_name(listed: &std::ffi::OsStr, wanted: &Path) -> bool {
    let wanted = wanted.as_os_str().as_bytes();
    let listed = listed.as_bytes();
    listed == wanted || (wanted.starts_with(b"memfd:") && listed.strip_prefix(b"/") == Some(wanted))
}

/// Device and inode of `path` in the process's own view of the file system: it may be a link or a bind mount.
fn inode_in_root(pid: i32, path: &Path) -> Option<(u64, u64)> {
    let below = path.strip_prefix("/").ok()?;
    let meta = std::fs::metadata(Path::new(&format!("/proc/{pid}/root")).join(below)).ok()?;
    meta.is_file().then(|| (meta.dev(), meta.ino()))
}

/// Opens the mapped file itself, whatever has happened to its name: through `map_files`, or through a descriptor that
/// the process holds where `map_files` is forbidden (it needs CAP_CHECKPOINT_RESTORE).
fn open(pid: i32, mapped: &[&MapEntry], path: &Path) -> Result<File, FindError> {
    let entry = mapped.first().ok_or_else(|| FindError::NotMapped { pid, path: path.to_owned() })?;
    let link = format!("/proc/{pid}/map_files/{:x}-{:x}", entry.start, entry.end);
    open_both(Path::new(&link))
        .or_else(|refused| open_descriptor(pid, entry).ok_or(refused))
        .map_err(|source| FindError::Open { path: path.to_owned(), source })
}

fn open_both(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn open_descriptor(pid: i32, entry: &MapEntry) -> Option<File> {
    let wanted = (entry.device, entry.inode);
    let listing = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let link = listing.flatten().map(|item| item.path()).find(|link| {
        std::fs::metadata(link).is_ok_and(|meta| meta.is_file() && (meta.dev(), meta.ino()) == wanted)
    })?;
    open_both(&link).ok()
}

fn backing(file: &File, path: &Path) -> Result<Backing, FindError> {
    let status = rustix::fs::fstatfs(file)
        .map_err(|errno| FindError::Open { path: path.to_owned(), source: errno.into() })?;
    match status.f_type {
        libc::TMPFS_MAGIC => Ok(Backing::Tmpfs),
        libc::HUGETLBFS_MAGIC => Ok(Backing::Hugetlbfs),
        magic => Err(FindError::NotMemory { path: path.to_owned(), magic }),
    }
}

/// The mappings as segments; those that continue each other both in memory and in the file are one.
fn segments(mapped: &[&MapEntry]) -> Vec<Segment> {
    let mut out: Vec<Segment> = Vec::with_capacity(mapped.len());
    for entry in mapped {
        let length = entry.end - entry.start;
        match out.last_mut() {
            Some(last)
                if last.address + last.length == entry.start && last.offset + last.length == entry.offset =>
            {
                last.length += length;
            }
            _ => out.push(Segment { address: entry.start, length, offset: entry.offset }),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(start: u64, end: u64, offset: u64) -> MapEntry {
        MapEntry { start, end, offset, shared: true, writable: true, device: 1, inode: 2, path: "/x".into() }
    }

    #[test]
    fn joins_only_what_continues_in_memory_and_file() {
        let list = [entry(0, 10, 0), entry(10, 20, 10), entry(20, 30, 50), entry(40, 50, 60)];
        let joined = segments(&list.iter().collect::<Vec<_>>());
        let lengths: Vec<_> = joined.iter().map(|segment| segment.length).collect();
        assert_eq!(lengths, [20, 10, 10]);
    }

    #[test]
    fn a_file_that_its_process_may_only_read_is_not_its_ram() {
        let path = Path::new("/x");
        let read_only = |start, end| MapEntry { writable: false, ..entry(start, end, start) };
        let refused = matching(1, &[read_only(0, 10), read_only(10, 20)], path).unwrap_err();
        assert!(matches!(refused, FindError::ReadOnly { .. }), "{refused}");
        assert_eq!(matching(1, &[read_only(0, 10), entry(10, 20, 10)], path).unwrap().len(), 2);
    }

    #[test]
    fn a_memfd_is_found_without_its_slash() {
        assert!(same_name("/memfd:ram".as_ref(), Path::new("memfd:ram")));
        assert!(!same_name("/memfd:ram2".as_ref(), Path::new("memfd:ram")));
        assert!(!same_name("/dev/shm/x".as_ref(), Path::new("dev/shm/x")));
    }
}
