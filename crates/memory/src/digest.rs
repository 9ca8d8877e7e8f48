//! A digest over the content of guest RAM, equal on both hosts exactly if (but for chance) the content is.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use crc_fast::CrcAlgorithm;
use linerate_core::{PAGE_BYTES, Run};

use crate::region::Mapping;
use crate::zero::{PAGE, slice_is_zero};

/// Bytes that one thread takes at a time.
const STRIPE_BYTES: u64 = 64 << 20;
/// Bytes read at a time: fits the second-level cache.
const READ_BYTES: usize = 256 << 10;

impl Mapping {
    /// Digest over (page index, content) of all pages that are not zero, so that a hole equals a page of zeros.
    ///
    /// The file is read with `pread`, which neither fills holes nor faults. Meant for paused guests: while the guest
    /// writes, the number means nothing. `threads` is bounded by the work there is; 0 counts as 1.
    pub fn digest(&self, threads: usize) -> io::Result<u64> {
        let stripes = stripes(&self.populated()?);
        let next = AtomicUsize::new(0);
        let work = || -> io::Result<u64> {
            let mut buffer = vec![0; READ_BYTES];
            let mut sum = 0u64;
            while let Some(stripe) = stripes.get(next.fetch_add(1, Ordering::Relaxed)) {
                sum = sum.wrapping_add(digest_run(self.file(), *stripe, &mut buffer)?);
            }
            Ok(sum)
        };
        let others = threads.clamp(1, stripes.len().max(1)) - 1;
        std::thread::scope(|scope| {
            let others: Vec<_> = (0..others).map(|_| scope.spawn(work)).collect();
            let own = work();
            others.into_iter().try_fold(own?, |sum, thread| {
                let part = thread.join().map_err(|_| io::Error::other("a digest thread ended early"))??;
                Ok(sum.wrapping_add(part))
            })
        })
    }
}

fn stripes(runs: &[Run]) -> Vec<Run> {
    let cut = |run: &Run| {
        let run = *run;
        (run.offset..run.end())
            .step_by(STRIPE_BYTES as usize)
            .map(move |offset| Run { offset, length: STRIPE_BYTES.min(run.end() - offset) })
    };
    runs.iter().flat_map(cut).collect()
}

/// Sum over the pages of one stripe. A sum, because stripes are taken in any order; the page index is in each term.
fn digest_run(file: &File, run: Run, buffer: &mut [u8]) -> io::Result<u64> {
    let mut sum = 0u64;
    let mut at = run.offset;
    while at < run.end() {
        let length = usize::try_from(run.end() - at).unwrap_or(usize::MAX).min(buffer.len());
        let Some(chunk) = buffer.get_mut(..length) else { break };
        file.read_exact_at(chunk, at)?;
        for (index, page) in (at / PAGE_BYTES..).zip(chunk.chunks(PAGE)) {
            if !slice_is_zero(page) {
                sum = sum.wrapping_add(mix(index, crc_fast::checksum(CrcAlgorithm::Crc64Nvme, page)));
            }
        }
        at += length as u64;
    }
    Ok(sum)
}

/// Spreads page index and checksum over 64 bits so that a sum of many does not cancel: two rounds of multiply and shift
/// (constants of SplitMix64's finalizer), with the index entering first.
fn mix(index: u64, checksum: u64) -> u64 {
    let scramble = |value: u64| {
        let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ (value >> 31)
    };
    scramble(scramble(index.wrapping_add(0x9E37_79B9_7F4A_7C15)) ^ checksum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(pages: &[(u64, u8)], size: u64) -> Mapping {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(size).unwrap();
        for (page, value) in pages {
            file.write_all_at(&[*value; PAGE], page * PAGE_BYTES).unwrap();
        }
        Mapping::of_file(file).unwrap()
    }

    #[test]
    fn a_hole_equals_zeros_and_order_and_place_count() {
        let size = 256 << 20;
        let reference = file(&[(1, 7), (40_000, 8)], size).digest(1).unwrap();
        assert_eq!(file(&[(1, 7), (2, 0), (40_000, 8), (65_535, 0)], size).digest(3).unwrap(), reference);
        for other in [[(1, 8), (40_000, 7)], [(2, 7), (40_000, 8)], [(1, 7), (40_001, 8)]] {
            assert_ne!(file(&other, size).digest(2).unwrap(), reference);
        }
        assert_eq!(file(&[], size).digest(0).unwrap(), 0);
    }

    #[test]
    fn reading_does_not_fill_holes() {
        let mapping = file(&[(3, 1)], 64 << 20);
        mapping.digest(2).unwrap();
        assert_eq!(mapping.resident_bytes().unwrap(), PAGE_BYTES);
    }
}
