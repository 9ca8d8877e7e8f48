//! Connecting to sockets of this host.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use linerate_guest::socket_file::SocketFile;
use socket2::{Domain, SockAddr, Socket, Type};

/// A local service takes a connection within this. Those that were asked for behind it wait meanwhile.
pub(crate) const CONNECT_WAIT: Duration = Duration::from_secs(5);

/// Connects to a UNIX socket. Where the queue of connections that wait to be accepted is full, it waits for a place up
/// to `wait`.
pub(crate) fn connect_unix(path: &Path, wait: Duration) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A connect that does not block would fail at once there; one that blocks keeps to the time that a write may take.
    socket.set_write_timeout(Some(wait))?;
    socket.connect(&SockAddr::unix(path)?).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => {
            let text = format!("no process has accepted a connection to {} for {wait:?}", path.display());
            io::Error::new(io::ErrorKind::TimedOut, text)
        }
        _ => error,
    })?;
    socket.set_write_timeout(None)?;
    Ok(socket)
}

/// The same with a socket in a folder in which others make files. Its name leads nowhere else: a symbolic link is
/// refused, and so is what is no socket.
pub(crate) fn connect_in_folder(path: &Path, wait: Duration) -> io::Result<Socket> {
    let file = SocketFile::open(path)?;
    let socket = connect_unix(&file.path(), wait)?;
    file.check_server(rustix::net::sockopt::socket_peercred(&socket)?.uid.as_raw())?;
    Ok(socket)
}

/// Connects to a socket that this QEMU serves, in a folder of its own. Nothing else is taken for it, wherever a name
/// that a hostile QEMU made there may lead.
pub(crate) fn connect_qemu(path: &Path, pid: i32, wait: Duration) -> io::Result<Socket> {
    let socket = connect_in_folder(path, wait)?;
    let serves = rustix::net::sockopt::socket_peercred(&socket)?.pid.as_raw_nonzero().get();
    if serves == pid {
        return Ok(socket);
    }
    let text = format!("{} is served by process {serves} and not by the QEMU {pid}", path.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// Listens for a QEMU, which may run as another user: that user alone can connect.
pub(crate) fn listen_for(path: &Path, pid: i32) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    let user = linerate_guest::procfs::user_of(pid).map_err(io::Error::other)?;
    if user != rustix::process::geteuid().as_raw() {
        std::os::unix::fs::lchown(path, Some(user), None)?;
    }
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only a hang reaches it.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_name_in_a_folder_leads_to_a_socket_there_and_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("folder")).unwrap();
        let _outside = std::os::unix::net::UnixListener::bind(path("outside")).unwrap();
        let _inside = std::os::unix::net::UnixListener::bind(path("folder/inside")).unwrap();
        std::os::unix::fs::symlink(path("outside"), path("folder/link")).unwrap();
        std::fs::write(path("folder/file"), "").unwrap();
        connect_in_folder(&path("folder/inside"), LONG).unwrap();
        connect_unix(&path("folder/link"), LONG).expect("a plain connect follows it");
        for name in ["folder/link", "folder/file"] {
            let error = connect_in_folder(&path(name), LONG).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{name}: {error}");
        }
        assert!(connect_in_folder(&path("folder/.."), LONG).is_err());
    }

    #[test]
    fn a_full_backlog_is_waited_for_and_not_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("service");
        let service = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        service.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        service.listen(0).unwrap();
        let first = connect_unix(&path, LONG).unwrap();
        assert_eq!(first.write_timeout().unwrap(), None, "the limit is for connecting alone");
        let error = connect_unix(&path, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        std::thread::scope(|scope| {
            let second = scope.spawn(|| connect_unix(&path, LONG).unwrap());
            // Whether it waits already or not: it must not be refused for that.
            std::thread::sleep(Duration::from_millis(50));
            let _taken = service.accept().unwrap();
            second.join().unwrap();
        });
    }

    #[test]
    fn what_another_process_serves_is_not_taken_for_a_qemu() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("state.sock"), dir.path().join("link"));
        let own = i32::try_from(std::process::id()).unwrap();
        let _listener = listen_for(&path, own).unwrap();
        assert!(connect_qemu(&path, own, LONG).is_ok());
        let refused = connect_qemu(&path, own + 1, LONG).unwrap_err().to_string();
        assert!(refused.contains("not by the QEMU"), "{refused}");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(connect_qemu(&link, own, LONG).is_err());
    }

    /// Needs root, to become other users.
    #[test]
    fn a_socket_for_a_qemu_is_open_to_its_user_and_to_no_other() {
        use std::os::unix::process::CommandExt;

        use rustix::process::Uid;

        if !rustix::process::geteuid().is_root() {
            eprintln!("not run: a_socket_for_a_qemu_is_open_to_its_user: needs root");
            return;
        }
        // Users that every Debian has.
        let (daemon, bin) = (1, 2);
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o711)).unwrap();
        let path = dir.path().join("state.sock");
        let mut qemu = std::process::Command::new("sleep").arg("600").uid(bin).spawn().unwrap();
        let listening = listen_for(&path, i32::try_from(qemu.id()).unwrap());
        qemu.kill().unwrap();
        qemu.wait().unwrap();
        let _listener = listening.unwrap();
        let connects = |uid: u32| {
            let path = path.clone();
            let connecting = std::thread::spawn(move || {
                let uid = Uid::from_raw(uid);
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
                std::os::unix::net::UnixStream::connect(path).map(drop).map_err(|error| error.kind())
            });
            connecting.join().unwrap()
        };
        assert_eq!(connects(bin), Ok(()));
        assert_eq!(connects(daemon), Err(io::ErrorKind::PermissionDenied));
        // Whatever mask of file modes the agent was started with.
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
