//! Files that a process has open, by what they are and not by their names.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A file or block device that a process has open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpenFile {
    /// Opens the same file again, whatever its name is now.
    pub link: PathBuf,
    identity: (bool, u64, u64),
}

/// A device is the same under any of its nodes; a file is a file system and a number.
pub(super) fn identity(facts: &Metadata) -> (bool, u64, u64) {
    match facts.file_type().is_block_device() {
        true => (true, facts.rdev(), 0),
        false => (false, facts.dev(), facts.ino()),
    }
}

impl OpenFile {
    /// Whether it is this one.
    pub fn is(&self, facts: &Metadata) -> bool {
        self.identity == identity(facts)
    }
}

/// Files and block devices that a process has open; none of the rest.
pub(crate) fn open_files(pid: i32) -> io::Result<Vec<OpenFile>> {
    let links = fs::read_dir(format!("/proc/{pid}/fd"))?.flatten().map(|entry| entry.path());
    let opened = links.filter_map(|link| {
        // Sockets, pipes and the like need no look: their names say what they are.
        if !fs::read_link(&link).ok()?.is_absolute() {
            return None;
        }
        let facts = fs::metadata(&link).ok()?;
        let kind = facts.file_type();
        (kind.is_file() || kind.is_block_device()).then(|| OpenFile { identity: identity(&facts), link })
    });
    Ok(opened.collect())
}

/// A path as the process sees it, which may live in a mount namespace of its own.
pub(crate) fn path_in(pid: i32, path: &Path) -> PathBuf {
    let inner = path.strip_prefix("/").unwrap_or(path);
    let seen = Path::new("/proc").join(pid.to_string()).join("root").join(inner);
    // An absolute link on the way leads out of that folder; then this process's view has to do.
    if seen.exists() { seen } else { path.to_owned() }
}

/// What is at a path as the process sees it.
pub(crate) fn metadata_in(pid: i32, path: &Path) -> io::Result<Metadata> {
    fs::metadata(path_in(pid, path))
}

/// Whether the file behind `/proc/PID/fd/N` is open for writing. If that is not known, it counts as open for writing.
pub(crate) fn writes(link: &Path) -> bool {
    let info = link.to_string_lossy().replace("/fd/", "/fdinfo/");
    let Ok(text) = fs::read_to_string(info) else { return true };
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_none_or(|flags| flags & rustix::fs::OFlags::ACCMODE.bits() != 0)
}
