//! The connection by which the source's libvirt drives a migration at the other host. While it is open, libvirt's job
//! for the domain is active, and no other program saves or migrates it: libvirt connects inside its job, and waits for
//! the answer to its closing message before it ends the job. So the connection is held twice: at its begin until the
//! hypervisor is set, and at its end until the hypervisor is put back.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use linerate_lock::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};

use super::{Connect, GateError, POLL_INTERVAL};
use crate::faults::chain;

/// libvirt's own protocol: length, program, version, procedure, kind, serial, status; four bytes each.
const HEADER_BYTES: usize = 28;
/// libvirt itself takes 32 MiB.
const FRAME_BYTES_MAX: u32 = 64 << 20;
const PROGRAM: u32 = 0x2000_8086;
const CLOSE: u32 = 2;
const CALL: u32 = 0;
/// Most that the end of libvirt's job is held up. The driver that puts the hypervisor back has given up by then.
const END_WAIT: Duration = Duration::from_secs(60);

/// Why libvirt's job ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// libvirt closes the connection: it is done, with success or not.
    Finished,
    /// libvirt itself has ended.
    LibvirtGone,
    /// The connection to the other libvirt has ended.
    PeerLost(String),
}

#[derive(Default)]
struct State {
    connected: bool,
    /// The hypervisor is being set for it: its end waits.
    held: bool,
    opened: bool,
    ending: Option<Ending>,
    end_allowed: bool,
    close_reason: Option<String>,
    /// To the other host.
    forward: Option<UnixStream>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

pub struct LibvirtJob {
    pub(super) path: PathBuf,
    shared: Arc<Shared>,
}

impl LibvirtJob {
    /// Listens for the one connection. It continues by `connect`.
    pub fn new(path: &Path, connect: Connect) -> io::Result<LibvirtJob> {
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let shared = Arc::<Shared>::default();
        let serving = shared.clone();
        std::thread::Builder::new().name("job-gate".into()).spawn(move || {
            if let Some(libvirt) = serving.accept(&listener) {
                drop(listener);
                serving.serve(libvirt, &connect);
            }
        })?;
        Ok(LibvirtJob { path: path.to_owned(), shared })
    }

    /// Whether libvirt has connected, so that its job has begun.
    #[cfg(test)]
    pub fn is_connected(&self) -> bool {
        self.shared.state.lock().connected
    }

    /// From now on libvirt's job does not end before [`LibvirtJob::allow_end`], if it has begun and this returns
    /// `true`.
    pub fn hold(&self) -> bool {
        let mut state = self.shared.state.lock();
        state.held = state.connected && state.close_reason.is_none();
        state.held
    }

    /// The hypervisor is set: libvirt continues.
    pub fn open(&self) {
        self.shared.change(|state| state.opened = true);
    }

    /// Why libvirt's job ends, if it does.
    pub fn ending(&self) -> Option<Ending> {
        self.shared.state.lock().ending.clone()
    }

    /// The hypervisor is put back: libvirt's job may end.
    pub fn allow_end(&self) {
        self.shared.change(|state| state.end_allowed = true);
    }

    /// Nothing is forwarded any more. libvirt sees it when its job may end, or at once where nothing was set for it.
    pub fn close(&self, why: &str) {
        self.shared.change(|state| {
            state.close_reason.get_or_insert_with(|| why.to_owned());
            state.ending.get_or_insert_with(|| Ending::PeerLost(why.to_owned()));
            if let Some(forward) = &state.forward {
                // It fails only if it has ended already.
                let _ = forward.shutdown(Shutdown::Both);
            }
        });
    }

    pub(super) fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for LibvirtJob {
    fn drop(&mut self) {
        self.close("it is not in use any more");
        self.allow_end();
        self.remove();
    }
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    fn accept(&self, listener: &UnixListener) -> Option<UnixStream> {
        while self.state.lock().close_reason.is_none() {
            let mut fds = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
            let _ = poll(&mut fds, Some(&POLL_INTERVAL));
            match listener.accept() {
                Ok((libvirt, _)) => return Some(libvirt),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    self.change(|state| {
                        state.close_reason = Some(format!("no connection can be taken: {error}"))
                    });
                }
            }
        }
        None
    }

    /// Until its end. The socket is closed when this returns.
    fn serve(self: &Arc<Shared>, libvirt: UnixStream, connect: &Connect) {
        self.change(|state| state.connected = true);
        {
            let waits = |state: &mut State| !state.opened && state.close_reason.is_none();
            let state = self.changed.wait_while(self.state.lock(), waits);
            if !state.opened && !state.held {
                return;
            }
        }
        if let Err(error) = self.check_open().and_then(|()| self.carry(&libvirt, connect)) {
            self.change(|state| {
                state.ending.get_or_insert_with(|| Ending::PeerLost(chain(&error)));
            });
        }
        self.wait_end_allowed();
        let _ = libvirt.shutdown(Shutdown::Both);
    }

    fn check_open(&self) -> Result<(), GateError> {
        let closed = self.state.lock().close_reason.clone();
        closed.map_or(Ok(()), |why| Err(GateError::Closed { why }))
    }

    /// Both directions, until either end has closed.
    fn carry(self: &Arc<Shared>, libvirt: &UnixStream, connect: &Connect) -> Result<(), GateError> {
        libvirt.set_nonblocking(false)?;
        let (forward, other) = UnixStream::pair()?;
        let (mut back_from, mut back_to) = (forward.try_clone()?, libvirt.try_clone()?);
        let kept = forward.try_clone()?;
        self.change(|state| state.forward = Some(kept));
        connect(other)?;
        let shared = self.clone();
        let back = move || {
            let _ = io::copy(&mut back_from, &mut back_to);
            shared.change(|state| {
                state.ending.get_or_insert(Ending::PeerLost(
                    "the connection to the other host's libvirt is lost".into(),
                ));
            });
            shared.wait_end_allowed();
            let _ = back_to.shutdown(Shutdown::Both);
        };
        std::thread::Builder::new().name("job-gate-back".into()).spawn(back)?;
        if let Err(error) = self.forward(&mut libvirt.try_clone()?, &mut forward.try_clone()?) {
            tracing::debug!(error = chain(&error), "libvirt's connection has ended");
            self.change(|state| {
                state.ending.get_or_insert(Ending::LibvirtGone);
            });
        }
        let _ = forward.shutdown(Shutdown::Both);
        Ok(())
    }

    /// Frame by frame, so that the closing message is known. Ends with an error.
    fn forward(&self, from: &mut UnixStream, to: &mut UnixStream) -> io::Result<()> {
        loop {
            let mut header = [0; HEADER_BYTES];
            from.read_exact(&mut header)?;
            let frame = Frame::read(&header);
            let body =
                frame.length.checked_sub(HEADER_BYTES as u32).filter(|_| frame.length <= FRAME_BYTES_MAX);
            let body = body.ok_or_else(|| io::Error::other("this is not libvirt's protocol"))?;
            if frame.is_close() {
                self.change(|state| {
                    state.ending.get_or_insert(Ending::Finished);
                });
                self.wait_end_allowed();
            }
            to.write_all(&header)?;
            if io::copy(&mut Read::take(&mut *from, body.into()), to)? < u64::from(body) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn wait_end_allowed(&self) {
        let waits = |state: &mut State| !state.end_allowed;
        let (_state, still_waits) = self.changed.wait_timeout_while(self.state.lock(), END_WAIT, waits);
        if still_waits {
            tracing::error!(
                "libvirt's job ends although its hypervisor may not be put back: do not save this domain"
            );
        }
    }
}

/// What is read of a frame's header.
struct Frame {
    length: u32,
    program: u32,
    procedure: u32,
    kind: u32,
}

impl Frame {
    fn read(header: &[u8; HEADER_BYTES]) -> Frame {
        let (fields, _) = header.as_chunks::<4>();
        let mut fields = fields.iter().map(|field| u32::from_be_bytes(*field));
        let mut next = || fields.next().unwrap_or(0);
        let (length, program, _version) = (next(), next(), next());
        Frame { length, program, procedure: next(), kind: next() }
    }

    fn is_close(&self) -> bool {
        (self.program, self.procedure, self.kind) == (PROGRAM, CLOSE, CALL)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::super::ConnectError;
    use super::*;

    /// Only a hang reaches it.
    const LONG: Duration = Duration::from_secs(60);
    /// Long enough for what is not held back to arrive.
    const SHORT: Duration = Duration::from_millis(200);

    fn frame(procedure: u32, body: &[u8]) -> Vec<u8> {
        let length = (HEADER_BYTES + body.len()) as u32;
        let fields = [length, PROGRAM, 1, procedure, CALL, 7, 0];
        fields.iter().flat_map(|field| field.to_be_bytes()).chain(body.iter().copied()).collect()
    }

    /// A gate, libvirt's end and the other host's end, with the first two frames forwarded.
    fn driven(dir: &tempfile::TempDir) -> (LibvirtJob, UnixStream, UnixStream) {
        let (out, outs) = channel();
        let out = Mutex::new(out);
        let connect = move |socket: UnixStream| {
            let _ = out.lock().send(socket);
            Ok(())
        };
        let gate = LibvirtJob::new(&dir.path().join("job.sock"), Box::new(connect)).unwrap();
        assert!(!gate.is_connected());
        let mut libvirt = UnixStream::connect(&gate.path).unwrap();
        libvirt.write_all(&frame(1, b"open")).unwrap();
        wait("it connects", || gate.is_connected());
        assert!(outs.recv_timeout(SHORT).is_err(), "it continues before the hypervisor is set");
        assert!(gate.hold());
        gate.open();
        let mut other = outs.recv_timeout(LONG).unwrap();
        let mut got = vec![0; frame(1, b"open").len()];
        other.read_exact(&mut got).unwrap();
        assert_eq!(got, frame(1, b"open"));
        (gate, libvirt, other)
    }

    fn wait(what: &str, is: impl Fn() -> bool) {
        let end = Instant::now() + LONG;
        while !is() {
            assert!(Instant::now() < end, "waited in vain until {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_silent(socket: &mut UnixStream) -> bool {
        socket.set_read_timeout(Some(SHORT)).unwrap();
        let held = socket.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        socket.set_read_timeout(Some(LONG)).unwrap();
        held
    }

    #[test]
    fn libvirts_closing_message_waits_until_the_hypervisor_is_put_back() {
        let dir = tempfile::tempdir().unwrap();
        let (gate, mut libvirt, mut other) = driven(&dir);
        // In two pieces, after a frame that has the same bytes in its body.
        let likeness = frame(300, &frame(CLOSE, b""));
        libvirt.write_all(&likeness).unwrap();
        other.read_exact(&mut vec![0; likeness.len()]).unwrap();
        assert_eq!(gate.ending(), None);
        libvirt.write_all(&frame(CLOSE, b"")[..5]).unwrap();
        libvirt.write_all(&frame(CLOSE, b"")[5..]).unwrap();
        assert!(is_silent(&mut other));
        assert_eq!(gate.ending(), Some(Ending::Finished));
        gate.allow_end();
        other.read_exact(&mut [0; HEADER_BYTES]).unwrap();
        other.write_all(b"bye").unwrap();
        libvirt.read_exact(&mut [0; 3]).unwrap();
    }

    #[test]
    fn a_lost_peer_is_not_seen_by_libvirt_before_the_hypervisor_is_put_back() {
        let dir = tempfile::tempdir().unwrap();
        for closed in [false, true] {
            let (gate, mut libvirt, other) = driven(&dir);
            if closed {
                gate.close("the tunnel ended");
            }
            drop(other);
            wait("the peer is lost", || matches!(gate.ending(), Some(Ending::PeerLost(_))));
            assert!(is_silent(&mut libvirt), "{closed}");
            gate.allow_end();
            assert_eq!(libvirt.read(&mut [0]).unwrap(), 0);
        }
    }

    #[test]
    fn a_libvirt_that_dies_is_known_at_once_and_its_peer_is_notified() {
        let dir = tempfile::tempdir().unwrap();
        let (gate, libvirt, mut other) = driven(&dir);
        drop(libvirt);
        assert_eq!(other.read(&mut [0]).unwrap(), 0);
        wait("it is known", || gate.ending() == Some(Ending::LibvirtGone));
    }

    #[test]
    fn where_nothing_was_set_libvirt_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let connect = |_: UnixStream| -> Result<(), ConnectError> { Err("it may not continue".into()) };
        let gate = LibvirtJob::new(&dir.path().join("job.sock"), Box::new(connect)).unwrap();
        let mut libvirt = UnixStream::connect(&gate.path).unwrap();
        wait("it connects", || gate.is_connected());
        gate.close("given up");
        assert!(!gate.hold(), "nothing may be set for it any more");
        assert_eq!(libvirt.read(&mut [0]).unwrap(), 0);
        // One that could not continue waits for its end as any other.
        let gate = LibvirtJob::new(&dir.path().join("again.sock"), Box::new(connect)).unwrap();
        let mut libvirt = UnixStream::connect(&gate.path).unwrap();
        wait("it connects", || gate.hold());
        gate.open();
        wait("it is refused", || gate.ending().is_some());
        assert!(is_silent(&mut libvirt));
        gate.allow_end();
        assert_eq!(libvirt.read(&mut [0]).unwrap(), 0);
    }
}
