//! A UNIX socket by its path, in a folder in which others may make files: the file that is connected to is the one that
//! was looked at. A symbolic link in its place is refused, and so is a folder in which anybody may replace it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use linerate_folder::{FolderRights, is_ours};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// A socket's file, whatever has its name by now.
#[derive(Debug)]
pub struct SocketFile {
    file: OwnedFd,
    /// User id of the file's owner.
    pub owner: u32,
}

impl SocketFile {
    /// Finds the socket. Links in the path of its folder are followed; the folder is the operator's choice.
    pub fn open(path: &Path) -> io::Result<SocketFile> {
        let refused =
            |why: &str| io::Error::new(io::ErrorKind::PermissionDenied, format!("{} {why}", path.display()));
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(refused("names no file in a folder"));
        };
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let folder = rustix::fs::open(folder, flags | OFlags::DIRECTORY, Mode::empty())?;
        let about = rustix::fs::fstat(&folder)?;
        if FolderRights::new(about.st_uid, about.st_mode).everybody_replaces() {
            return Err(refused(
                "is in a folder in which everybody may replace it; run chmod +t on the folder",
            ));
        }
        let only = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let opened = match rustix::fs::openat2(&folder, name, flags | OFlags::NOFOLLOW, Mode::empty(), only) {
            // Linux before 5.6, or a filter of system calls. `name` is one name: it leads out of no folder.
            Err(Errno::NOSYS | Errno::PERM) => {
                rustix::fs::openat(&folder, name, flags | OFlags::NOFOLLOW, Mode::empty())
            }
            opened => opened,
        };
        let file = opened.map_err(|error| match error {
            Errno::LOOP => refused("is a symbolic link, which is not followed"),
            other => other.into(),
        })?;
        let about = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(about.st_mode) != FileType::Socket {
            return Err(refused("is a symbolic link or no socket, and is not followed"));
        }
        Ok(SocketFile { file, owner: about.st_uid })
    }

    /// A path that leads to this very file as long as it is open.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }

    /// Refuses a server of another user than the file's owner, root and this process's user.
    pub fn check_server(&self, uid: u32) -> io::Result<()> {
        if uid == self.owner || is_ours(uid) {
            return Ok(());
        }
        let text = format!("its file belongs to user {}, and user {uid} listens there", self.owner);
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn a_socket_is_found_and_what_leads_elsewhere_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("folder")).unwrap();
        let _outside = UnixListener::bind(path("outside")).unwrap();
        let _inside = UnixListener::bind(path("folder/inside")).unwrap();
        std::os::unix::fs::symlink(path("outside"), path("folder/link")).unwrap();
        std::fs::write(path("folder/file"), "").unwrap();
        let found = SocketFile::open(&path("folder/inside")).unwrap();
        assert_eq!(found.owner, rustix::process::geteuid().as_raw());
        UnixStream::connect(found.path()).unwrap();
        for name in ["folder/link", "folder/file"] {
            let error = SocketFile::open(&path(name)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{name}: {error}");
        }
        assert!(SocketFile::open(&path("folder/..")).is_err());
        let missing = SocketFile::open(&path("folder/none")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_folder_in_which_everybody_replaces_files_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let _listens = UnixListener::bind(&socket).unwrap();
        let mode =
            |mode| std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o777);
        assert!(SocketFile::open(&socket).unwrap_err().to_string().contains("chmod +t"));
        for allowed in [0o1777, 0o1733, 0o750] {
            mode(allowed);
            SocketFile::open(&socket).unwrap();
        }
    }

    #[test]
    fn a_server_of_another_user_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let _listens = UnixListener::bind(&socket).unwrap();
        let file = SocketFile { owner: 1000, ..SocketFile::open(&socket).unwrap() };
        file.check_server(0).unwrap();
        file.check_server(1000).unwrap();
        let error = file.check_server(1001).unwrap_err().to_string();
        assert!(error.contains("user 1001 listens there"), "{error}");
    }
}
