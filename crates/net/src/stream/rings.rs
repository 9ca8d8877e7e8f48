//! Rings: a stream's positions folded into a piece of memory, and all rings of one direction as a region.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, PoisonError, RwLock, Weak};

use linerate_core::Run;
use linerate_core::stream::{Piece, StreamId};

use super::session::StreamSession;
use crate::region::Region;

/// Makes memory for a ring of so many bytes.
#[derive(Clone)]
pub struct RingMemory(Arc<dyn Fn(u64) -> io::Result<Arc<dyn Region>> + Send + Sync>);

impl RingMemory {
    /// Wraps what makes it.
    pub fn new(make: impl Fn(u64) -> io::Result<Arc<dyn Region>> + Send + Sync + 'static) -> RingMemory {
        RingMemory(Arc::new(make))
    }

    /// A new ring.
    pub(super) fn ring(&self, bytes: u64) -> io::Result<Arc<Ring>> {
        let memory = (self.0)(bytes)?;
        Ok(Arc::new(Ring { size: memory.size().min(bytes), memory }))
    }
}

impl fmt::Debug for RingMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RingMemory")
    }
}

/// The bytes of a stream that are under way here.
pub(super) struct Ring {
    memory: Arc<dyn Region>,
    size: u64,
}

impl Ring {
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

    /// Receives from a socket what is there, at most so many bytes.
    pub fn fill(&self, socket: BorrowedFd<'_>, position: u64, bytes: u64) -> io::Result<usize> {
        self.memory.receive(socket, &self.fold(position, bytes)?, 0)
    }

    /// Writes to a socket what it takes, at most so many bytes.
    pub fn drain(&self, socket: BorrowedFd<'_>, position: u64, bytes: u64) -> io::Result<usize> {
        self.memory.send(socket, &[], &self.fold(position, bytes)?, 0)
    }
}

/// The rings of one direction by stream.
#[derive(Default)]
pub(super) struct Rings(RwLock<HashMap<StreamId, Arc<Ring>>>);

impl Rings {
    pub fn insert(&self, stream: StreamId, ring: Arc<Ring>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(stream, ring);
    }

    pub fn remove(&self, stream: StreamId) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&stream);
    }

    pub fn get(&self, stream: StreamId) -> io::Result<Arc<Ring>> {
        let rings = self.0.read().unwrap_or_else(PoisonError::into_inner);
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

    fn clear(&self, _run: Run) -> io::Result<()> {
        Err(wrong_way())
    }

    /// Whether these bytes may come at all; every run, before any of it is received.
    fn populate(&self, runs: &[Run]) -> io::Result<()> {
        self.session()?.check(runs)
    }

    fn placed(&self, runs: &[Run]) -> io::Result<()> {
        self.session()?.landed(runs)
    }
}
