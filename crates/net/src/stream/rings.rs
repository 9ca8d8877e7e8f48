//! Rings: a stream's positions folded into a piece of memory, and all rings of one direction as a region.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use linerate_core::Run;
use linerate_core::stream::{Piece, StreamId, address, position_of};

use super::session::StreamSession;
use crate::region::pinned::{WINDOW_BYTES, window_of};
use crate::region::{Mapped, Region};
use linerate_lock::{Mutex, RwLock};

type Make = dyn Fn(u64) -> io::Result<Arc<dyn Region>> + Send + Sync;
type Memory = Arc<dyn Region>;

/// Makes memory for a ring of a given size.
#[derive(Clone)]
pub struct RingMemory {
    make: Arc<Make>,
    /// Memory of rings that are gone, if it is used again.
    kept: Option<Arc<Mutex<Vec<Memory>>>>,
}

impl RingMemory {
    /// Wraps what makes it. Memory of a ring goes with its stream.
    pub fn new(make: impl Fn(u64) -> io::Result<Memory> + Send + Sync + 'static) -> RingMemory {
        RingMemory { make: Arc::new(make), kept: None }
    }

    /// Memory of a ring is kept for the next stream, until the session ends: for sessions whose memory adapters may
    /// know, which go on using the pages whose address they have. All rings must be of one size.
    pub fn keeping(self) -> RingMemory {
        RingMemory { kept: Some(Arc::default()), ..self }
    }

    pub(super) fn ring(&self, bytes: u64) -> io::Result<Arc<Ring>> {
        let mut kept = self.kept.as_ref().map(|kept| kept.lock());
        let memory = match kept.as_mut().and_then(|kept| kept.pop()) {
            Some(memory) => memory,
            None => (self.make)(bytes)?,
        };
        let size = memory.size().min(bytes);
        Ok(Arc::new(Ring { memory, size, peer_window: AtomicU64::new(0), back_to: self.kept.clone() }))
    }
}

impl fmt::Debug for RingMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RingMemory")
    }
}

/// The bytes of a stream that are in flight here.
pub(super) struct Ring {
    memory: Memory,
    size: u64,
    /// Bytes of the ring at the other side; 0 until they are known.
    peer_window: AtomicU64,
    back_to: Option<Arc<Mutex<Vec<Memory>>>>,
}

impl Drop for Ring {
    fn drop(&mut self) {
        if let Some(kept) = &self.back_to {
            kept.lock().push(self.memory.clone());
        }
    }
}

impl Ring {
    /// The peer has said how large its ring for this stream is.
    pub fn set_peer_window(&self, bytes: u64) {
        self.peer_window.store(bytes, Ordering::SeqCst);
    }

    /// Where these positions lie: one run, or two around the end.
    fn fold(&self, position: u64, bytes: u64) -> io::Result<Vec<Run>> {
        if bytes == 0 || bytes > self.size {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a run does not fit its ring"));
        }
        let offset = position % self.size;
        let first = bytes.min(self.size - offset);
        let mut runs = vec![Run { offset, length: first }];
        if first < bytes {
            runs.push(Run { offset: 0, length: bytes - first });
        }
        Ok(runs)
    }

    /// Receives from a socket what is there, at most `bytes`.
    pub fn fill(&self, socket: BorrowedFd<'_>, position: u64, bytes: u64) -> io::Result<usize> {
        self.memory.receive(socket, &self.fold(position, bytes)?, 0)
    }

    /// Writes to a socket what it takes, at most `bytes`.
    pub fn drain(&self, socket: BorrowedFd<'_>, position: u64, bytes: u64) -> io::Result<usize> {
        self.memory.send(socket, &[], &self.fold(position, bytes)?, 0)
    }
}

/// The rings of one direction by stream.
#[derive(Default)]
pub(super) struct Rings(RwLock<HashMap<StreamId, Arc<Ring>>>);

impl Rings {
    pub fn insert(&self, stream: StreamId, ring: Arc<Ring>) {
        self.0.write().insert(stream, ring);
    }

    pub fn remove(&self, stream: StreamId) {
        self.0.write().remove(&stream);
    }

    pub fn get(&self, stream: StreamId) -> io::Result<Arc<Ring>> {
        let rings = self.0.read();
        rings.get(&stream).cloned().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such stream"))
    }

    /// The ring of the run, and where the run lies in it.
    fn place(&self, run: Run) -> io::Result<(Arc<Ring>, Vec<Run>)> {
        let piece = Piece::of(run);
        let ring = self.get(piece.stream)?;
        let runs = ring.fold(piece.position, piece.bytes)?;
        Ok((ring, runs))
    }

    /// The checksum of all runs, which may lie in several rings.
    fn checksum_after(&self, before: u32, runs: &[Run]) -> io::Result<u32> {
        runs.iter().try_fold(before, |before, run| {
            let (ring, places) = self.place(*run)?;
            ring.memory.checksum_after(before, &places)
        })
    }

    /// Where a run is mapped that lies in one window.
    fn mapped_at(&self, run: Run) -> Option<(Mapped, Run)> {
        let (ring, places) = self.place(run).ok()?;
        match places.as_slice() {
            [one] => Some((ring.memory.mapped()?, *one)),
            _ => None,
        }
    }

    /// One system call over the first run that is not done yet; the caller repeats it until all is.
    fn each<T>(
        &self,
        runs: &[Run],
        mut done: usize,
        call: impl FnOnce(&dyn Region, &[Run], usize) -> io::Result<T>,
    ) -> io::Result<T> {
        for run in runs {
            let length = usize::try_from(run.length).unwrap_or(usize::MAX);
            if done < length {
                let (ring, runs) = self.place(*run)?;
                return call(&*ring.memory, &runs, done);
            }
            done -= length;
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "nothing is left to be moved"))
    }
}

/// The window in which a position lies, in a ring of `ring` bytes; none if windows do not divide it.
fn folded(stream: StreamId, position: u64, ring: u64) -> Option<Run> {
    let whole = ring > 0 && ring.is_multiple_of(WINDOW_BYTES);
    let offset = position.checked_rem(ring).filter(|_| whole)?;
    let window = window_of(offset, ring)?;
    Some(Run { offset: address(stream, window.offset), length: window.length })
}

/// What channels read: the rings that local sockets are received into.
pub(super) struct Sending(pub Arc<Rings>);

/// What channels write: the rings that local sockets are fed from.
pub(super) struct Receiving {
    pub rings: Arc<Rings>,
    pub session: Weak<StreamSession>,
}

fn wrong_way() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "streams go one way in a region")
}

impl Region for Sending {
    fn size(&self) -> u64 {
        u64::MAX
    }

    fn checksum_after(&self, before: u32, runs: &[Run]) -> io::Result<u32> {
        self.0.checksum_after(before, runs)
    }

    /// Streams are not looked through for zeroes: who sends RAM through them has done that.
    fn split_zero(&self, runs: &[Run], data: &mut Vec<Run>, _zero: &mut Vec<Run>) -> io::Result<()> {
        data.extend_from_slice(runs);
        Ok(())
    }

    fn send(&self, socket: BorrowedFd<'_>, head: &[u8], runs: &[Run], done: usize) -> io::Result<usize> {
        match runs {
            // The head goes with the first run.
            [first, ..] if done < head.len() + usize::try_from(first.length).unwrap_or(usize::MAX) => {
                let (ring, runs) = self.0.place(*first)?;
                ring.memory.send(socket, head, &runs, done)
            }
            runs => self.0.each(runs, done.saturating_sub(head.len()), |memory, runs, done| {
                memory.send(socket, &[], runs, done)
            }),
        }
    }

    fn receive(&self, _socket: BorrowedFd<'_>, _runs: &[Run], _done: usize) -> io::Result<usize> {
        Err(wrong_way())
    }

    fn clear(&self, _run: Run) -> io::Result<()> {
        Err(wrong_way())
    }

    fn populate(&self, _runs: &[Run]) -> io::Result<()> {
        Err(wrong_way())
    }

    fn mapped_at(&self, run: Run) -> Option<(Mapped, Run)> {
        self.0.mapped_at(run)
    }

    fn read(&self, run: Run, to: &mut [u8]) -> io::Result<()> {
        let (ring, places) = self.0.place(run)?;
        let mut rest = to;
        for place in places {
            let length = usize::try_from(place.length).unwrap_or(usize::MAX);
            let (piece, behind) = rest.split_at_mut_checked(length).ok_or(io::ErrorKind::InvalidInput)?;
            ring.memory.read(place, piece)?;
            rest = behind;
        }
        Ok(())
    }

    fn write(&self, _run: Run, _from: &[u8]) -> io::Result<()> {
        Err(wrong_way())
    }

    /// Where it lands in the peer's ring: so a window has the same name each time that the stream comes around.
    fn window(&self, offset: u64) -> Option<Run> {
        let (stream, position) = position_of(offset);
        let ring = self.0.get(stream).ok()?;
        folded(stream, position, ring.peer_window.load(Ordering::SeqCst))
    }

    /// Rings have no holes that are worth keeping.
    fn is_whole(&self, _run: Run) -> io::Result<bool> {
        Ok(true)
    }
}

impl Receiving {
    fn session(&self) -> io::Result<Arc<StreamSession>> {
        self.session.upgrade().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Region for Receiving {
    fn size(&self) -> u64 {
        u64::MAX
    }

    fn checksum_after(&self, before: u32, runs: &[Run]) -> io::Result<u32> {
        self.rings.checksum_after(before, runs)
    }

    fn split_zero(&self, _runs: &[Run], _data: &mut Vec<Run>, _zero: &mut Vec<Run>) -> io::Result<()> {
        Err(wrong_way())
    }

    fn send(&self, _socket: BorrowedFd<'_>, _head: &[u8], _runs: &[Run], _done: usize) -> io::Result<usize> {
        Err(wrong_way())
    }

    fn receive(&self, socket: BorrowedFd<'_>, runs: &[Run], done: usize) -> io::Result<usize> {
        self.rings.each(runs, done, |memory, runs, done| memory.receive(socket, runs, done))
    }

    fn read(&self, _run: Run, _to: &mut [u8]) -> io::Result<()> {
        Err(wrong_way())
    }

    fn write(&self, run: Run, from: &[u8]) -> io::Result<()> {
        let (ring, places) = self.rings.place(run)?;
        let mut rest = from;
        for place in places {
            let length = usize::try_from(place.length).unwrap_or(usize::MAX);
            let (piece, behind) = rest.split_at_checked(length).ok_or(io::ErrorKind::InvalidInput)?;
            ring.memory.write(place, piece)?;
            rest = behind;
        }
        Ok(())
    }

    fn clear(&self, _run: Run) -> io::Result<()> {
        Err(wrong_way())
    }

    fn mapped_at(&self, run: Run) -> Option<(Mapped, Run)> {
        self.rings.mapped_at(run)
    }

    /// Only by the names that an honest peer uses, so that there are no more windows than rings have.
    fn window(&self, offset: u64) -> Option<Run> {
        let (stream, position) = position_of(offset);
        let ring = self.rings.get(stream).ok()?;
        folded(stream, position, ring.size).filter(|_| position < ring.size)
    }

    /// Whether these bytes may come at all; every run, before any of it is received.
    fn populate(&self, runs: &[Run]) -> io::Result<()> {
        self.session()?.check(runs)
    }

    fn placed(&self, runs: &[Run]) -> io::Result<()> {
        self.session()?.received(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::memory::FileRegion;

    const STREAM: StreamId = 6;

    fn rings(bytes: u64) -> (Arc<Ring>, Arc<Rings>) {
        let memory = RingMemory::new(|bytes| Ok(Arc::new(FileRegion::new(bytes)?) as Arc<dyn Region>));
        let (ring, rings) = (memory.ring(bytes).unwrap(), Arc::new(Rings::default()));
        rings.insert(STREAM, ring.clone());
        (ring, rings)
    }

    fn run(position: u64, length: u64) -> Run {
        Run { offset: address(STREAM, position), length }
    }

    #[test]
    fn a_window_has_one_name_however_often_the_stream_comes_around() {
        let (ring, rings) = rings(3 * WINDOW_BYTES);
        let sending = Sending(rings);
        assert_eq!(sending.window(address(STREAM, 5)), None, "the peer has not said how large its ring is");
        ring.set_peer_window(2 * WINDOW_BYTES);
        for (position, at) in
            [(0, 0), (2 * WINDOW_BYTES + 7, 0), (9 * WINDOW_BYTES - 1, 0), (9 * WINDOW_BYTES, 1)]
        {
            let window = sending.window(address(STREAM, position));
            assert_eq!(window, Some(run(at * WINDOW_BYTES, WINDOW_BYTES)), "{position}");
        }
        assert_eq!(sending.window(address(STREAM + 2, 0)), None);
        ring.set_peer_window(WINDOW_BYTES + 4096);
        assert_eq!(sending.window(address(STREAM, 0)), None, "windows would lie across the ring's end");
    }

    #[test]
    fn what_an_adapter_cannot_read_is_copied_out_around_the_rings_end() {
        let (ring, rings) = rings(8192);
        let memory = ring.memory.clone();
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        rustix::net::send(&near, b"end", rustix::net::SendFlags::empty()).unwrap();
        memory.receive(std::os::fd::AsFd::as_fd(&far), &[Run { offset: 8189, length: 3 }], 0).unwrap();
        rustix::net::send(&near, b"begin", rustix::net::SendFlags::empty()).unwrap();
        memory.receive(std::os::fd::AsFd::as_fd(&far), &[Run { offset: 0, length: 5 }], 0).unwrap();
        let mut bytes = [0; 8];
        Sending(rings).read(run(3 * 8192 - 3, 8), &mut bytes).unwrap();
        assert_eq!(&bytes, b"endbegin");
    }

    #[test]
    fn a_peer_can_claim_the_windows_of_a_ring_and_no_others() {
        let (_ring, rings) = rings(2 * WINDOW_BYTES);
        let receiving = Receiving { rings, session: Weak::new() };
        assert_eq!(receiving.window(address(STREAM, WINDOW_BYTES)), Some(run(WINDOW_BYTES, WINDOW_BYTES)));
        assert_eq!(receiving.window(address(STREAM, 2 * WINDOW_BYTES)), None);
        assert_eq!(receiving.window(address(STREAM + 2, 0)), None);
        let (_, at) = receiving.mapped_at(run(5 * WINDOW_BYTES, 4096)).unwrap();
        assert_eq!(at, Run { offset: WINDOW_BYTES, length: 4096 });
        assert!(receiving.mapped_at(run(2 * WINDOW_BYTES - 1, 2)).is_none(), "around the ring's end");
    }

    #[test]
    fn memory_of_a_ring_is_reused() {
        let made = Arc::new(AtomicU64::new(0));
        let count = made.clone();
        let make = move |bytes| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(Arc::new(FileRegion::new(bytes)?) as Arc<dyn Region>)
        };
        let memory = RingMemory::new(make).keeping();
        let base = |ring: &Ring| ring.memory.mapped().unwrap().base;
        let (one, _two) = (memory.ring(4096).unwrap(), memory.ring(4096).unwrap());
        let first = base(&one);
        drop(one);
        let third = memory.ring(4096).unwrap();
        // New memory may well be mapped where the old was.
        assert_eq!((base(&third), made.load(Ordering::Relaxed)), (first, 2));
    }
}
