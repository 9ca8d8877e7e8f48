//! Disk images that the guest knows by heart. The layout is described in lab/guest/slot.h; a test boots the guest on
//! it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::LabError;
use crate::error::io_error;

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 65536;
const WORDS: usize = SLOT_BYTES / 8;
const HEADER_WORDS: usize = 4;
const MAGIC: u64 = 0x3054_4f4c_534c_4c52;

/// Writes an image of `mb` MiB in which every slot is at generation 1, and puts it on the disk.
pub fn make_disk(path: &Path, mb: u64) -> Result<(), LabError> {
    let file = File::create(path).map_err(io_error("create", path))?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    for number in 0..mb * (1 << 20) / SLOT_BYTES as u64 {
        out.write_all(&slot(number, 1)).map_err(io_error("write", path))?;
    }
    let file = out.into_inner().map_err(|error| io_error("write", path)(error.into_error()))?;
    file.sync_all().map_err(io_error("sync", path))
}

/// The bytes that the guest writes to a slot of its disk in this generation.
pub fn slot(number: u64, generation: u64) -> Vec<u8> {
    let mut word = mix(number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(generation)) | 1;
    let body: Vec<u64> = std::iter::repeat_with(|| {
        word = xorshift(word);
        word
    })
    .take(WORDS - HEADER_WORDS)
    .collect();
    let sum = body.iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
    [MAGIC, number, generation, sum].iter().chain(&body).flat_map(|word| word.to_le_bytes()).collect()
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn xorshift(mut x: u64) -> u64 {
    x ^= x << 13;
    x ^= x >> 7;
    x ^ (x << 17)
}
