//! Files of keys and certificates: read only if no other user could have written or read them, and replaced as a whole.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use linerate_folder::{FolderRights, is_ours};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// Largest file that is read: an authority bundle with its revocation lists has less than half.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// Between two tries to lock a file.
const LOCK_AGAIN: Duration = Duration::from_millis(20);

/// Access of others that a file must not allow.
const OTHERS_WRITE: u32 = 0o022;
const OTHERS_ANY: u32 = 0o077;

/// Why a file of an identity was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The path has no name at its end.
    #[error("{} names no file", .0.display())]
    NoName(PathBuf),
    /// The file itself is a link: what it leads to may be changed by another user.
    #[error("{} is a symbolic link; put the file itself there", .0.display())]
    SymbolicLink(PathBuf),
    /// A folder, a device, a socket or a FIFO.
    #[error("{} is not a regular file", .0.display())]
    NotRegular(PathBuf),
    /// The owner is neither root nor the caller.
    #[error("{} belongs to user {uid}; run: chown root {}", .path.display(), .path.display())]
    Owner {
        /// The file, or the folder that it is in.
        path: PathBuf,
        /// User id of its owner.
        uid: u32,
    },
    /// A private key, or another secret, that others may read or write.
    #[error("others may open {}, which is secret (mode {mode:04o}); run chmod 600 on it", .path.display())]
    KeyMode {
        /// File with the key.
        path: PathBuf,
        /// Its mode bits (`st_mode` without the kind of file).
        mode: u32,
    },
    /// A file or folder that others may write.
    #[error("{} may be written by others (mode {mode:04o}); run: chmod go-w {}", .path.display(), .path.display())]
    WritableMode {
        /// The file, or the folder that it is in.
        path: PathBuf,
        /// Its mode bits (`st_mode` without the kind of file).
        mode: u32,
    },
    /// It has more than [`FILE_BYTES_MAX`] bytes, and is not read.
    #[error("{} has more than {FILE_BYTES_MAX} bytes; is it the right file?", .0.display())]
    Large(PathBuf),
    /// What has to be made is there.
    #[error("{} exists; it is not overwritten", .0.display())]
    Exists(PathBuf),
    /// A system call on it failed.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
}

impl FileError {
    /// Whether the file is missing, and not refused.
    pub fn is_missing(&self) -> bool {
        matches!(self, FileError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    pub(crate) fn io(path: &Path, errno: impl Into<io::Error>) -> FileError {
        FileError::Io { path: path.to_owned(), source: errno.into() }
    }
}

/// Who may open the file besides its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrecy {
    /// A private key: only its owner. Mode 0600.
    Private,
    /// A certificate: everybody may read it. Mode 0644.
    Public,
}

/// The bytes of a regular file that only its owner, root or the caller, could have written.
pub fn read(path: &Path, secrecy: Secrecy) -> Result<Vec<u8>, FileError> {
    let (folder, name) = divide(path)?;
    let folder = open_folder(folder)?;
    // Without O_NONBLOCK a FIFO in place of the file would block the caller.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&folder, name, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::LOOP => FileError::SymbolicLink(path.to_owned()),
        errno => FileError::io(path, errno),
    })?;
    let about = rustix::fs::fstat(&file).map_err(|errno| FileError::io(path, errno))?;
    if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
        return Err(FileError::NotRegular(path.to_owned()));
    }
    check_owner(path, about.st_uid)?;
    let mode = about.st_mode & 0o7777;
    match secrecy {
        Secrecy::Private if mode & OTHERS_ANY != 0 => Err(FileError::KeyMode { path: path.to_owned(), mode }),
        Secrecy::Public if mode & OTHERS_WRITE != 0 => {
            Err(FileError::WritableMode { path: path.to_owned(), mode })
        }
        Secrecy::Private | Secrecy::Public => Ok(()),
    }?;
    let mut bytes = Vec::new();
    let read = File::from(file).take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| FileError::io(path, error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX { Err(FileError::Large(path.to_owned())) } else { Ok(bytes) }
}

/// Replaces or makes the file. When it returns, the bytes are on disk; a crash before leaves the file as it was.
pub fn write(path: &Path, bytes: &[u8], secrecy: Secrecy) -> Result<(), FileError> {
    let (folder, name) = divide(path)?;
    let folder_fd = open_folder(folder)?;
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(".new");
    // What a crash left behind: this crate's writers hold a lock or are alone.
    match rustix::fs::unlinkat(&folder_fd, &temporary, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(FileError::io(path, errno)),
    }
    let mode = match secrecy {
        Secrecy::Private => Mode::RUSR | Mode::WUSR,
        Secrecy::Public => Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH,
    };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let written =
        rustix::fs::openat(&folder_fd, &temporary, flags, mode).map_err(io::Error::from).and_then(|file| {
            let mut file = File::from(file);
            file.write_all(bytes)?;
            file.sync_all()?;
            rustix::fs::renameat(&folder_fd, &temporary, &folder_fd, name)?;
            Ok(rustix::fs::fsync(&folder_fd)?)
        });
    written.map_err(|error| {
        // The first error counts; the name is reused by the next attempt.
        let _ = rustix::fs::unlinkat(&folder_fd, &temporary, AtFlags::empty());
        FileError::io(path, error)
    })
}

/// Makes the folder with mode 0700 if it is missing, and its parents as well.
pub fn make_folder(path: &Path) -> Result<(), FileError> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| FileError::io(path, error))?;
    open_folder(path).map(drop)
}

/// Makes the file if it is missing and locks it until the result is dropped. None if another process has it.
pub fn lock(path: &Path) -> Result<Option<File>, FileError> {
    let (folder, name) = divide(path)?;
    let folder = open_folder(folder)?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&folder, name, flags, Mode::RUSR | Mode::WUSR);
    let file = file.map_err(|errno| FileError::io(path, errno))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(File::from(file))),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(FileError::io(path, errno)),
    }
}

/// The same, and waits for the other process. None if that has it for longer.
pub fn lock_within(path: &Path, wait: Duration) -> Result<Option<File>, FileError> {
    let end = Instant::now() + wait;
    loop {
        let locked = lock(path)?;
        if locked.is_some() || Instant::now() >= end {
            return Ok(locked);
        }
        std::thread::sleep(LOCK_AGAIN);
    }
}

fn divide(path: &Path) -> Result<(&Path, &OsStr), FileError> {
    let name = path.file_name().ok_or_else(|| FileError::NoName(path.to_owned()))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((folder, name))
}

/// A user who may write the folder can replace the files in it, except in a sticky one such as `/tmp`.
fn open_folder(path: &Path) -> Result<OwnedFd, FileError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| FileError::io(path, errno))?;
    let about = rustix::fs::fstat(&folder).map_err(|errno| FileError::io(path, errno))?;
    let rights = FolderRights::new(about.st_uid, about.st_mode);
    if rights.others_replace() {
        check_owner(path, rights.owner)?;
        return Err(FileError::WritableMode { path: path.to_owned(), mode: rights.mode });
    }
    Ok(folder)
}

fn check_owner(path: &Path, uid: u32) -> Result<(), FileError> {
    if is_ours(uid) { Ok(()) } else { Err(FileError::Owner { path: path.to_owned(), uid }) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn key(folder: &tempfile::TempDir) -> PathBuf {
        let path = folder.path().join("key.pem");
        write(&path, b"secret", Secrecy::Private).unwrap();
        path
    }

    #[test]
    fn what_was_written_is_read_and_only_its_owner_may_open_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = key(&folder);
        assert_eq!(read(&path, Secrecy::Private).unwrap(), b"secret");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
        write(&path, b"next", Secrecy::Private).unwrap();
        assert_eq!(read(&path, Secrecy::Private).unwrap(), b"next");
        assert_eq!(folder.path().read_dir().unwrap().count(), 1, "no temporary file stays");
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = key(&folder);
        for mode in [0o640, 0o604, 0o620, 0o610] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let error = read(&path, Secrecy::Private).unwrap_err();
            assert!(matches!(error, FileError::KeyMode { mode: found, .. } if found == mode), "{error}");
        }
        set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(read(&path, Secrecy::Public).is_ok());
        set_permissions(&path, Permissions::from_mode(0o664)).unwrap();
        assert!(matches!(read(&path, Secrecy::Public), Err(FileError::WritableMode { .. })));
    }

    #[test]
    fn a_link_in_place_of_the_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = key(&folder);
        let link = folder.path().join("link.pem");
        symlink(&path, &link).unwrap();
        for secrecy in [Secrecy::Private, Secrecy::Public] {
            assert!(matches!(read(&link, secrecy), Err(FileError::SymbolicLink(_))));
        }
        // Writing replaces the link and not what it leads to.
        write(&link, b"other", Secrecy::Private).unwrap();
        assert_eq!(read(&path, Secrecy::Private).unwrap(), b"secret");
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = key(&folder);
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        assert!(matches!(read(&path, Secrecy::Private), Err(FileError::Owner { uid: 65534, .. })));
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        std::os::unix::fs::chown(folder.path(), Some(65534), None).unwrap();
        assert!(matches!(read(&path, Secrecy::Private), Err(FileError::Owner { uid: 65534, .. })));
    }

    #[test]
    fn a_folder_that_others_may_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = key(&folder);
        set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(read(&path, Secrecy::Private), Err(FileError::WritableMode { .. })));
        assert!(matches!(write(&path, b"next", Secrecy::Private), Err(FileError::WritableMode { .. })));
        // As /tmp is: no user may remove what is another's.
        set_permissions(folder.path(), Permissions::from_mode(0o1777)).unwrap();
        write(&path, b"next", Secrecy::Private).unwrap();
        assert_eq!(read(&path, Secrecy::Private).unwrap(), b"next");
    }

    #[test]
    fn something_else_than_a_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        assert!(matches!(read(&fifo, Secrecy::Private), Err(FileError::NotRegular(_))));
        assert!(matches!(read(Path::new("/dev/zero"), Secrecy::Private), Err(FileError::NotRegular(_))));
        assert!(read(&folder.path().join("none"), Secrecy::Private).unwrap_err().is_missing());
    }

    #[test]
    fn a_huge_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = key(&folder);
        File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(matches!(read(&path, Secrecy::Private), Err(FileError::Large(_))));
    }
}
