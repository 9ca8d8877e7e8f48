//! Files that a guest or its QEMU names are opened only if they are files or block devices. A FIFO would hold the
//! caller for ever, and a character device may act when it is opened.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};

/// Opens a file or block device for reading; links are followed.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    open_with(path, OFlags::empty())
}

/// The same, with more flags.
pub(crate) fn open_with(path: &Path, more: OFlags) -> io::Result<File> {
    // Without opening it: what is there is known before, and is still that when it is opened.
    let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::BlockDevice) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is neither a file nor a block device"));
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | more;
    let name = format!("/proc/self/fd/{}", found.as_raw_fd());
    Ok(File::from(rustix::fs::open(name, flags, Mode::empty())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    #[test]
    fn neither_fifos_nor_character_devices_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("file"), "x").unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, path("fifo"), Mode::RUSR).unwrap();
        for (link, to) in [("good", "file"), ("bad", "fifo")] {
            symlink(path(to), path(link)).unwrap();
        }
        for name in ["fifo", "bad"] {
            let refused = open(&path(name)).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{name}");
        }
        assert!(open(Path::new("/dev/zero")).is_err() && open(dir.path()).is_err());
        let refused = open_with(&path("fifo"), OFlags::DIRECT).unwrap_err();
        assert_eq!(refused.raw_os_error(), None, "the file system has not refused it");
        for name in ["file", "good"] {
            let mut text = String::new();
            open(&path(name)).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "x");
        }
    }
}
