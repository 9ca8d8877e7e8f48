//! Connecting to sockets of this host.

use std::io;
use std::path::Path;
use std::time::Duration;

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

#[cfg(test)]
mod tests {
    use super::*;

    /// Only a hang meets it.
    const LONG: Duration = Duration::from_secs(60);

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
}
