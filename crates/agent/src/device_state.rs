//! QEMU's device-state stream: read from the source's QEMU, written to the destination's.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::local::{CONNECT_WAIT, connect_qemu};

/// Bytes read at a time; the protocol's cap of one piece.
const PIECE_BYTES: usize = 256 << 10;
/// Between two checks of the flag that ends it.
const SLICE: Duration = Duration::from_millis(20);
/// QEMU writes without pause; a silence this long means that it never will.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Reads the stream in a thread of its own, always: a QEMU whose stream is not read holds its monitor and its guest.
#[derive(Debug)]
pub struct Reader {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<()>>,
}

impl Reader {
    /// Takes one connection and gives its bytes on until it ends.
    pub fn start(listener: UnixListener, piece: impl FnMut(Vec<u8>) + Send + 'static) -> io::Result<Reader> {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = stop.clone();
        let thread = std::thread::Builder::new()
            .name("device-state".into())
            .spawn(move || read(&listener, &flag, piece))?;
        Ok(Reader { stop, thread })
    }

    /// Waits for the end of the stream; all pieces have been given on when this returns.
    pub fn finish(self) -> io::Result<()> {
        self.thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the reader of the device state panicked")))
    }

    pub fn abandon(self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = self.finish();
    }
}

fn read(listener: &UnixListener, stop: &AtomicBool, mut piece: impl FnMut(Vec<u8>)) -> io::Result<()> {
    let Some(mut stream) = accept(listener, stop)? else { return Ok(()) };
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(SLICE))?;
    let mut buffer = vec![0; PIECE_BYTES];
    let mut last = Instant::now();
    while !stop.load(Ordering::SeqCst) {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => {
                last = Instant::now();
                piece(buffer.iter().take(n).copied().collect());
            }
            Err(error) if is_wait(&error) => {}
            Err(error) => return Err(error),
        }
        // While QEMU waits at pre-switchover it writes nothing; that wait has its own limit, by which this is stopped.
        if last.elapsed() > 20 * SILENCE_MAX {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "QEMU writes no device state"));
        }
    }
    Ok(())
}

fn accept(listener: &UnixListener, stop: &AtomicBool) -> io::Result<Option<UnixStream>> {
    listener.set_nonblocking(true)?;
    let end = Instant::now() + SILENCE_MAX;
    while !stop.load(Ordering::SeqCst) && Instant::now() < end {
        match listener.accept() {
            Ok((stream, _)) => return Ok(Some(stream)),
            Err(error) if is_wait(&error) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn is_wait(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

#[derive(Debug)]
pub struct Writer(UnixStream);

impl Writer {
    /// Connects to the QEMU that waits for its state.
    pub fn connect(socket: &Path, qemu: i32) -> io::Result<Writer> {
        let stream = UnixStream::from(OwnedFd::from(connect_qemu(socket, qemu, CONNECT_WAIT)?));
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        Ok(Writer(stream))
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    /// The stream is complete.
    pub fn finish(&self) -> io::Result<()> {
        self.0.shutdown(Shutdown::Write)
    }
}
