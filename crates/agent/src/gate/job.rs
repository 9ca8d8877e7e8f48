//! The connection by which the source's libvirt drives a migration at the other host. As long as it stands, libvirt's
//! job for the domain does, and nobody else saves or migrates it: libvirt connects inside its job, and waits for the
//! answer to its closing message before it ends it. So it is held twice: when it comes until the hypervisor is set, and
//! when it ends until the hypervisor is put back.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use linerate_net::lock::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};

use super::{Connect, LOOK};
use crate::faults::chain;

/// libvirt's own protocol: length, program, version, procedure, kind, serial, status; four bytes each.
const HEADER_BYTES: usize = 28;
/// libvirt itself takes 32 MiB.
const FRAME_BYTES_MAX: u32 = 64 << 20;
const PROGRAM: u32 = 0x2000_8086;
const CLOSE: u32 = 2;
const CALL: u32 = 0;
/// Most that the end of libvirt's job is held up. Whoever puts the hypervisor back has given up by then.
const END_WAIT: Duration = Duration::from_secs(60);

/// Why libvirt's job ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// libvirt closes the connection: it is done, however it went.
    Said,
    /// libvirt itself is gone.
    LibvirtGone,
    /// The way to the other libvirt is gone.
    Cut(String),
}

#[derive(Default)]
struct State {
    came: bool,
    /// Somebody sets the hypervisor for it: its end waits.
    held: bool,
    opened: bool,
    ending: Option<Ending>,
    may_end: bool,
    shut: Option<String>,
    /// To the other host.
    onward: Option<UnixStream>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// See the module.
pub struct LibvirtJob {
    pub(super) path: PathBuf,
    shared: Arc<Shared>,
}

impl LibvirtJob {
    /// Listens for the one connection. It goes on by `connect`.
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
    pub fn has_come(&self) -> bool {
        self.shared.state.lock().came
    }

    /// From now on libvirt's job does not end before [`LibvirtJob::let_end`], if it has begun and this says so.
    pub fn hold(&self) -> bool {
        let mut state = self.shared.state.lock();
        state.held = state.came && state.shut.is_none();
        state.held
    }

    /// The hypervisor is set: libvirt goes on.
    pub fn open(&self) {
        self.shared.change(|state| state.opened = true);
    }

    /// Why libvirt's job ends, if it does.
    pub fn ending(&self) -> Option<Ending> {
        self.shared.state.lock().ending.clone()
    }

    /// The hypervisor is put back: libvirt's job may end.
    pub fn let_end(&self) {
        self.shared.change(|state| state.may_end = true);
    }

    /// Nothing goes on. libvirt sees it when its job may end, or at once where nothing was set for it.
    pub fn shut(&self, why: &str) {
        self.shared.change(|state| {
            state.shut.get_or_insert_with(|| why.to_owned());
            state.ending.get_or_insert_with(|| Ending::Cut(why.to_owned()));
            if let Some(onward) = &state.onward {
                // It fails only if it has ended already.
                let _ = onward.shutdown(Shutdown::Both);
            }
        });
    }

    pub(super) fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for LibvirtJob {
    fn drop(&mut self) {
        self.shut("nobody uses it any more");
        self.let_end();
        self.remove();
    }
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    fn accept(&self, listener: &UnixListener) -> Option<UnixStream> {
        while self.state.lock().shut.is_none() {
            let mut fds = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
            let _ = poll(&mut fds, Some(&LOOK));
            match listener.accept() {
                Ok((libvirt, _)) => return Some(libvirt),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    self.change(|state| state.shut = Some(format!("no connection can be taken: {error}")));
                }
            }
        }
        None
    }

    /// Until its end. The socket is closed when this returns.
    fn serve(self: &Arc<Shared>, libvirt: UnixStream, connect: &Connect) {
        self.change(|state| state.came = true);
        {
            let waits = |state: &mut State| !state.opened && state.shut.is_none();
            let state = self.changed.wait_while(self.state.lock(), waits);
            if !state.opened && !state.held {
                return;
            }
        }
        if let Err(error) = self.may_go_on().and_then(|()| self.carry(&libvirt, connect)) {
            self.change(|state| {
                state.ending.get_or_insert(Ending::Cut(error));
            });
        }
        self.wait_may_end();
        let _ = libvirt.shutdown(Shutdown::Both);
    }

    fn may_go_on(&self) -> Result<(), String> {
        self.state.lock().shut.clone().map_or(Ok(()), Err)
    }

    /// Both ways, until either end is gone.
    fn carry(self: &Arc<Shared>, libvirt: &UnixStream, connect: &Connect) -> Result<(), String> {
        let plain = |error: io::Error| chain(&error);
        libvirt.set_nonblocking(false).map_err(plain)?;
        let (onward, other) = UnixStream::pair().map_err(plain)?;
        let clone = |socket: &UnixStream| socket.try_clone().map_err(plain);
        let (mut back_from, mut back_to) = (clone(&onward)?, clone(libvirt)?);
        let kept = clone(&onward)?;
        self.change(|state| state.onward = Some(kept));
        connect(other)?;
        let shared = self.clone();
        let back = move || {
            let _ = io::copy(&mut back_from, &mut back_to);
            shared.change(|state| {
                state.ending.get_or_insert(Ending::Cut("the way to the other host's libvirt is gone".into()));
            });
            shared.wait_may_end();
            let _ = back_to.shutdown(Shutdown::Both);
        };
        std::thread::Builder::new().name("job-gate-back".into()).spawn(back).map_err(plain)?;
        if let Err(error) = self.forward(&mut clone(libvirt)?, &mut clone(&onward)?) {
            tracing::debug!(error = chain(&error), "libvirt's connection has ended");
            self.change(|state| {
                state.ending.get_or_insert(Ending::LibvirtGone);
            });
        }
        let _ = onward.shutdown(Shutdown::Both);
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
            if frame.is_farewell() {
                self.change(|state| {
                    state.ending.get_or_insert(Ending::Said);
                });
                self.wait_may_end();
            }
            to.write_all(&header)?;
            if io::copy(&mut Read::take(&mut *from, body.into()), to)? < u64::from(body) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn wait_may_end(&self) {
        let waits = |state: &mut State| !state.may_end;
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
        let (words, _) = header.as_chunks::<4>();
        let mut words = words.iter().map(|word| u32::from_be_bytes(*word));
        let mut next = || words.next().unwrap_or(0);
        let (length, program, _version) = (next(), next(), next());
        Frame { length, program, procedure: next(), kind: next() }
    }

    fn is_farewell(&self) -> bool {
        (self.program, self.procedure, self.kind) == (PROGRAM, CLOSE, CALL)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::*;

    /// Only a hang meets it.
    const LONG: Duration = Duration::from_secs(60);
    /// Long enough for what is not held back to arrive.
    const SHORT: Duration = Duration::from_millis(200);

    fn frame(procedure: u32, body: &[u8]) -> Vec<u8> {
        let length = (HEADER_BYTES + body.len()) as u32;
        let words = [length, PROGRAM, 1, procedure, CALL, 7, 0];
        words.iter().flat_map(|word| word.to_be_bytes()).chain(body.iter().copied()).collect()
    }

    /// A gate, libvirt's end and the other host's end, with the first two frames gone through.
    fn driven(dir: &tempfile::TempDir) -> (LibvirtJob, UnixStream, UnixStream) {
        let (out, outs) = channel();
        let out = Mutex::new(out);
        let connect = move |socket: UnixStream| {
            let _ = out.lock().send(socket);
            Ok(())
        };
        let gate = LibvirtJob::new(&dir.path().join("job.sock"), Box::new(connect)).unwrap();
        assert!(!gate.has_come());
        let mut libvirt = UnixStream::connect(&gate.path).unwrap();
        libvirt.write_all(&frame(1, b"open")).unwrap();
        wait("it comes", || gate.has_come());
        assert!(outs.recv_timeout(SHORT).is_err(), "it goes on before the hypervisor is set");
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

    fn says_nothing(socket: &mut UnixStream) -> bool {
        socket.set_read_timeout(Some(SHORT)).unwrap();
        let held = socket.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        socket.set_read_timeout(Some(LONG)).unwrap();
        held
    }

    #[test]
    fn libvirts_farewell_waits_until_the_hypervisor_is_put_back() {
        let dir = tempfile::tempdir().unwrap();
        let (gate, mut libvirt, mut other) = driven(&dir);
        // In two pieces, after a frame that has the same bytes in its body.
        let likeness = frame(300, &frame(CLOSE, b""));
        libvirt.write_all(&likeness).unwrap();
        other.read_exact(&mut vec![0; likeness.len()]).unwrap();
        assert_eq!(gate.ending(), None);
        libvirt.write_all(&frame(CLOSE, b"")[..5]).unwrap();
        libvirt.write_all(&frame(CLOSE, b"")[5..]).unwrap();
        assert!(says_nothing(&mut other));
        assert_eq!(gate.ending(), Some(Ending::Said));
        gate.let_end();
        other.read_exact(&mut [0; HEADER_BYTES]).unwrap();
        other.write_all(b"bye").unwrap();
        libvirt.read_exact(&mut [0; 3]).unwrap();
    }

    #[test]
    fn a_way_that_is_cut_is_not_seen_by_libvirt_before_the_hypervisor_is_put_back() {
        let dir = tempfile::tempdir().unwrap();
        for shut in [false, true] {
            let (gate, mut libvirt, other) = driven(&dir);
            if shut {
                gate.shut("the tunnel ended");
            }
            drop(other);
            wait("it is cut", || matches!(gate.ending(), Some(Ending::Cut(_))));
            assert!(says_nothing(&mut libvirt), "{shut}");
            gate.let_end();
            assert_eq!(libvirt.read(&mut [0]).unwrap(), 0);
        }
    }

    #[test]
    fn a_libvirt_that_dies_is_known_at_once_and_its_other_end_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let (gate, libvirt, mut other) = driven(&dir);
        drop(libvirt);
        assert_eq!(other.read(&mut [0]).unwrap(), 0);
        wait("it is known", || gate.ending() == Some(Ending::LibvirtGone));
    }

    #[test]
    fn where_nothing_was_set_libvirt_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let connect = |_: UnixStream| Err("nobody lets it go on".to_owned());
        let gate = LibvirtJob::new(&dir.path().join("job.sock"), Box::new(connect)).unwrap();
        let mut libvirt = UnixStream::connect(&gate.path).unwrap();
        wait("it comes", || gate.has_come());
        gate.shut("given up");
        assert!(!gate.hold(), "nothing may be set for it any more");
        assert_eq!(libvirt.read(&mut [0]).unwrap(), 0);
        // One that could not go on waits for its end as any other.
        let gate = LibvirtJob::new(&dir.path().join("again.sock"), Box::new(connect)).unwrap();
        let mut libvirt = UnixStream::connect(&gate.path).unwrap();
        wait("it comes", || gate.hold());
        gate.open();
        wait("it is refused", || gate.ending().is_some());
        assert!(says_nothing(&mut libvirt));
        gate.let_end();
        assert_eq!(libvirt.read(&mut [0]).unwrap(), 0);
    }
}
