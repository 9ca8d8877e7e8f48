//! A region in ordinary memory, for tests, examples and byte streams: safe and simple rather than fast.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

use linerate_core::{PAGE_BYTES, Run};
use linerate_wire::PayloadChecksum;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

use super::Region;
use linerate_lock::RwLock;

/// A region on the heap.
#[derive(Debug)]
pub struct HeapRegion {
    bytes: RwLock<Vec<u8>>,
}

impl HeapRegion {
    /// A region of zeroes.
    pub fn new(size: usize) -> HeapRegion {
        HeapRegion::from(vec![0; size])
    }

    /// A copy of what it holds now.
    pub fn snapshot(&self) -> Vec<u8> {
        self.bytes.read().clone()
    }

    /// Writes from outside of any channel, as a guest does.
    pub fn store(&self, offset: usize, bytes: &[u8]) -> io::Result<()> {
        let run = Run { offset: offset as u64, length: bytes.len() as u64 };
        slice_mut(&mut self.bytes.write(), run)?.copy_from_slice(bytes);
        Ok(())
    }
}

impl From<Vec<u8>> for HeapRegion {
    fn from(bytes: Vec<u8>) -> HeapRegion {
        HeapRegion { bytes: RwLock::new(bytes) }
    }
}

impl Region for HeapRegion {
    fn size(&self) -> u64 {
        self.bytes.read().len() as u64
    }

    fn checksum_after(&self, before: u32, runs: &[Run]) -> io::Result<u32> {
        let bytes = self.bytes.read();
        let mut checksum = PayloadChecksum::after(before);
        for run in runs {
            checksum.update(slice(&bytes, *run)?);
        }
        Ok(checksum.finish())
    }

    fn split_zero(&self, runs: &[Run], data: &mut Vec<Run>, zero: &mut Vec<Run>) -> io::Result<()> {
        let bytes = self.bytes.read();
        for run in runs {
            let mut offset = run.offset;
            for page in slice(&bytes, *run)?.chunks(PAGE_BYTES as usize) {
                let list = if page.iter().all(|byte| *byte == 0) { &mut *zero } else { &mut *data };
                append(list, Run { offset, length: page.len() as u64 });
                offset += page.len() as u64;
            }
        }
        Ok(())
    }

    fn send(&self, socket: BorrowedFd<'_>, head: &[u8], runs: &[Run], done: usize) -> io::Result<usize> {
        let bytes = self.bytes.read();
        let mut pieces = vec![head];
        for run in runs {
            pieces.push(slice(&bytes, *run)?);
        }
        let left = skip(&pieces, done);
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        Ok(rustix::net::sendmsg(socket, &left, &mut SendAncillaryBuffer::default(), flags)?)
    }

    fn receive(&self, socket: BorrowedFd<'_>, runs: &[Run], done: usize) -> io::Result<usize> {
        let mut bytes = self.bytes.write();
        let mut done = done as u64;
        for run in runs {
            if done < run.length {
                let rest = Run { offset: run.offset + done, length: run.length - done };
                let place = slice_mut(&mut bytes, rest)?;
                return Ok(rustix::net::recv(socket, place, RecvFlags::DONTWAIT)?.0);
            }
            done -= run.length;
        }
        Ok(0)
    }

    fn read(&self, run: Run, to: &mut [u8]) -> io::Result<()> {
        let bytes = self.bytes.read();
        let from = slice(&bytes, run)?;
        if from.len() != to.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        to.copy_from_slice(from);
        Ok(())
    }

    fn write(&self, run: Run, from: &[u8]) -> io::Result<()> {
        let mut bytes = self.bytes.write();
        let to = slice_mut(&mut bytes, run)?;
        if from.len() != to.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        to.copy_from_slice(from);
        Ok(())
    }

    fn clear(&self, run: Run) -> io::Result<()> {
        slice_mut(&mut self.bytes.write(), run)?.fill(0);
        Ok(())
    }

    fn populate(&self, _runs: &[Run]) -> io::Result<()> {
        Ok(())
    }
}

fn append(list: &mut Vec<Run>, run: Run) {
    match list.last_mut() {
        Some(last) if last.end() == run.offset => last.length += run.length,
        _ => list.push(run),
    }
}

/// What is left of the pieces when the first `done` bytes are gone.
fn skip<'a>(pieces: &[&'a [u8]], mut done: usize) -> Vec<IoSlice<'a>> {
    let mut left = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let gone = done.min(piece.len());
        done -= gone;
        if let Some(rest) = piece.get(gone..).filter(|rest| !rest.is_empty()) {
            left.push(IoSlice::new(rest));
        }
    }
    left
}

fn range(run: Run) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(run.offset).ok()?;
    Some(start..start.checked_add(usize::try_from(run.length).ok()?)?)
}

fn slice(bytes: &[u8], run: Run) -> io::Result<&[u8]> {
    range(run).and_then(|range| bytes.get(range)).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

fn slice_mut(bytes: &mut [u8], run: Run) -> io::Result<&mut [u8]> {
    range(run).and_then(|range| bytes.get_mut(range)).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_by_page_and_joins_neighbours() {
        let region = HeapRegion::new(5 * 4096);
        region.store(4096 + 17, &[1]).unwrap();
        region.store(2 * 4096, &[1]).unwrap();
        let (mut data, mut zero) = (Vec::new(), Vec::new());
        region.split_zero(&[Run { offset: 0, length: 5 * 4096 }], &mut data, &mut zero).unwrap();
        assert_eq!(data, [Run { offset: 4096, length: 8192 }]);
        assert_eq!(zero, [Run { offset: 0, length: 4096 }, Run { offset: 3 * 4096, length: 8192 }]);
    }

    #[test]
    fn runs_over_the_end_are_refused() {
        let region = HeapRegion::new(4096);
        for bad in [Run { offset: 1, length: 4096 }, Run { offset: u64::MAX, length: 1 }] {
            assert_eq!(region.checksum(&[bad]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
            assert_eq!(region.clear(bad).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}
