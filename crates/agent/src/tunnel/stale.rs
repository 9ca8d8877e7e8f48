//! Sockets in the file system on which nobody listens any more: an agent or a hypervisor that was killed leaves them.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use linerate_api::{TunnelAddress, is_domain_socket};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::config::Config;

/// Sockets of this network namespace, with the names that they were bound to.
const BOUND: &str = "/proc/net/unix";

/// Removes what migrations of domains have left in the folders that tunnels may connect into. Names tell what is of such migrations;
/// other sockets are left alone. Done before this agent listens on any.
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
    let mut removed = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_domain_socket) && clear(&entry.path())? {
            removed += 1;
        }
    }
    Ok(removed)
}

/// Removes a socket on which nobody listens, and nothing else. Says whether it did.
pub fn clear(path: &Path) -> io::Result<bool> {
    match is_stale(path)
        .and_then(|stale| if stale { std::fs::remove_file(path).map(|()| true) } else { Ok(false) })
    {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        other => other,
    }
}

/// A hypervisor takes the first connection for the guest that it waits for: none is made where the kernel knows that somebody listens.
/// What it does not know may be of another network namespace, and is asked.
fn is_stale(path: &Path) -> io::Result<bool> {
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() || is_bound(path)? {
        return Ok(false);
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A full queue would hold us.
    socket.set_nonblocking(true)?;
    let refused = socket.connect(&SockAddr::unix(path)?);
    Ok(refused.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused))
}

/// By its last part: others may have bound it by another way to the same folder.
fn is_bound(path: &Path) -> io::Result<bool> {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let bound = std::fs::read(BOUND)?;
    Ok(bound.split(|byte| *byte == b'\n').any(|line| line.rsplit(|byte| *byte == b'/').next() == Some(name)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use linerate_api::domain_socket;

    use super::*;

    #[test]
    fn what_nobody_listens_on_goes_and_all_else_stays() {
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
        assert_eq!(asked, Err(io::ErrorKind::WouldBlock), "who listens was disturbed");
        assert!(!clear(&dir.path().join("missing")).unwrap());
    }
}
