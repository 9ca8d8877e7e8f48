//! Sockets in the file system on which no process listens any more: a killed agent or hypervisor leaves them.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use linerate_api::{TunnelAddress, is_domain_socket};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::config::Config;

/// Sockets of this network namespace, with the names that they were bound to.
const BOUND: &str = "/proc/net/unix";

/// Removes what migrations of domains have left in the folders that tunnels may connect into. Names show what is of
/// such migrations; other sockets are left alone. Done before this agent listens on any.
pub fn clear_folders(config: &Config) {
    for folder in config.tunnel_targets.iter().filter_map(TunnelAddress::folder) {
        match clear_folder(folder) {
            Ok(0) => {}
            Ok(removed) => {
                tracing::info!(removed, folder = %folder.display(), "removed sockets of migrations that are over")
            }
            Err(error) => {
                tracing::warn!(%error, folder = %folder.display(), "sockets of earlier migrations may be left")
            }
        }
    }
}

fn clear_folder(folder: &Path) -> io::Result<u32> {
    let bound = std::fs::read(BOUND)?;
    // Names are of one migration each, and another process may have bound them by another path to the same folder: the
    // last part identifies them.
    let is_bound = |name: &OsStr| {
        let last = |line: &[u8]| line.rsplit(|byte| *byte == b'/').next() == Some(name.as_encoded_bytes());
        bound.split(|byte| *byte == b'\n').any(last)
    };
    let mut removed = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        // A hypervisor takes the first connection for the guest that it waits for: where the kernel knows a listener,
        // the socket is not tried. What it does not know may be of another network namespace.
        if name.to_str().is_some_and(is_domain_socket) && !is_bound(&name) && clear(&entry.path())? {
            removed += 1;
        }
    }
    Ok(removed)
}

/// Removes a socket on which no process listens, and nothing else. `true` if it did. A listener sees a connection that
/// ends.
pub fn clear(path: &Path) -> io::Result<bool> {
    let removed = is_refused(path)
        .and_then(|refused| if refused { std::fs::remove_file(path).map(|()| true) } else { Ok(false) });
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        other => other,
    }
}

fn is_refused(path: &Path) -> io::Result<bool> {
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return Ok(false);
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A full queue would block this thread.
    socket.set_nonblocking(true)?;
    let asked = socket.connect(&SockAddr::unix(path)?);
    Ok(asked.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use linerate_api::domain_socket;

    use super::*;

    #[test]
    fn sockets_without_a_listener_are_removed_and_all_else_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = |id: &str, kind: &str| dir.path().join(domain_socket(&id.repeat(32), kind));
        let left = path("1", "mig");
        drop(UnixListener::bind(&left).unwrap());
        let foreign = dir.path().join("other.sock");
        drop(UnixListener::bind(&foreign).unwrap());
        let file = path("2", "rpc");
        std::fs::write(&file, "").unwrap();
        let live = path("3", "nbd");
        let listener = UnixListener::bind(&live).unwrap();
        listener.set_nonblocking(true).unwrap();
        let link = path("4", "mig");
        std::os::unix::fs::symlink(&left, &link).unwrap();

        assert_eq!(clear_folder(dir.path()).unwrap(), 1);
        assert!(!left.exists());
        for kept in [&foreign, &file, &live] {
            assert!(kept.exists(), "{kept:?}");
        }
        assert!(std::fs::symlink_metadata(&link).is_ok());
        let asked = listener.accept().map(drop).map_err(|error| error.kind());
        assert_eq!(asked, Err(io::ErrorKind::WouldBlock), "the listener was disturbed");
    }

    #[test]
    fn a_socket_by_its_name_is_removed_without_a_listener_and_a_full_queue_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        assert!(!clear(&path).unwrap(), "there is none");
        let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        listener.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        listener.listen(0).unwrap();
        let _fills = std::os::unix::net::UnixStream::connect(&path).unwrap();
        assert!(!clear(&path).unwrap() && path.exists());
        drop(listener);
        assert!(clear(&path).unwrap() && !path.exists());
    }
}
