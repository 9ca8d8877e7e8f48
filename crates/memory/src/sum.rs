//! crc32c over memory that others write meanwhile, without copying it first.
//!
//! The instruction `crc32` takes 3 cycles and can begin every cycle, so three pages are summed side by side and the
//! sums joined (V. Gopal et al., *Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction*, Intel, 2011).
//! Joining needs the effect of 4096 further zero bytes on a sum, which is linear and looked up byte by byte.

use linerate_core::PAGE_BYTES;

/// Bytes of each of the three lanes.
const LANE: usize = PAGE_BYTES as usize;
/// The polynomial of crc32c, bits reversed (RFC 3720).
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Effect of `LANE` zero bytes on a sum, by its four bytes.
static SHIFT: [[u32; 256]; 4] = shift_tables();

/// Whether the processor has the instruction.
pub(crate) fn available() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("sse4.2");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// crc32c of what was summed before (`before`, 0 for nothing) followed by `length` bytes at `from`.
///
/// # Safety
/// `from` must be readable for `length` bytes during the call, and [`available`] must have said yes. Others may write.
pub(crate) unsafe fn crc32c(before: u32, mut from: *const u8, mut length: usize) -> u32 {
    let mut sum = !before;
    while length >= 3 * LANE {
        // SAFETY: three lanes of readable bytes are left.
        let (a, b, c) = unsafe { three_lanes(sum, from) };
        sum = shift(shift(a) ^ b) ^ c;
        // SAFETY: still inside or just behind what the caller guarantees.
        from = unsafe { from.add(3 * LANE) };
        length -= 3 * LANE;
    }
    // SAFETY: `length` readable bytes are left.
    !unsafe { one_lane(sum, from, length) }
}

fn shift(sum: u32) -> u32 {
    let byte = |table: usize| {
        let index = (sum >> (8 * table)) as u8;
        SHIFT.get(table).and_then(|table| table.get(usize::from(index))).copied().unwrap_or_default()
    };
    byte(0) ^ byte(1) ^ byte(2) ^ byte(3)
}

/// Sums of three neighbouring lanes, the first going on from `sum`. Assembly is opaque to the compiler, which therefore
/// assumes nothing about the values that concurrent writers leave in the memory.
///
/// # Safety
/// As [`crc32c`], for `3 * LANE` bytes.
#[cfg(target_arch = "x86_64")]
unsafe fn three_lanes(sum: u32, from: *const u8) -> (u32, u32, u32) {
    let (mut a, mut b, mut c) = (u64::from(sum), 0u64, 0u64);
    // SAFETY: the loop reads 8 bytes of each lane in each of `LANE / 32 * 4` steps, all guaranteed by the caller, and
    // writes nothing.
    unsafe {
        std::arch::asm!(
            "2:",
            "crc32 {a}, qword ptr [{p}]",
            "crc32 {b}, qword ptr [{p} + {lane}]",
            "crc32 {c}, qword ptr [{p} + 2 * {lane}]",
            "crc32 {a}, qword ptr [{p} + 8]",
            "crc32 {b}, qword ptr [{p} + {lane} + 8]",
            "crc32 {c}, qword ptr [{p} + 2 * {lane} + 8]",
            "crc32 {a}, qword ptr [{p} + 16]",
            "crc32 {b}, qword ptr [{p} + {lane} + 16]",
            "crc32 {c}, qword ptr [{p} + 2 * {lane} + 16]",
            "crc32 {a}, qword ptr [{p} + 24]",
            "crc32 {b}, qword ptr [{p} + {lane} + 24]",
            "crc32 {c}, qword ptr [{p} + 2 * {lane} + 24]",
            "add {p}, 32",
            "dec {steps}",
            "jnz 2b",
            a = inout(reg) a,
            b = inout(reg) b,
            c = inout(reg) c,
            p = inout(reg) from => _,
            steps = inout(reg) LANE / 32 => _,
            lane = const LANE,
            options(nostack, readonly)
        );
    }
    // The upper halves are zero: `crc32` clears them.
    (a as u32, b as u32, c as u32)
}

/// The sum going on from `sum` over any number of bytes.
///
/// # Safety
/// As [`crc32c`].
#[cfg(target_arch = "x86_64")]
unsafe fn one_lane(sum: u32, from: *const u8, length: usize) -> u32 {
    let mut sum = u64::from(sum);
    // SAFETY: reads `length / 8` words and then the bytes that are left, all guaranteed by the caller; writes nothing.
    unsafe {
        std::arch::asm!(
            "test {words}, {words}",
            "jz 3f",
            "2:",
            "crc32 {sum}, qword ptr [{p}]",
            "add {p}, 8",
            "dec {words}",
            "jnz 2b",
            "3:",
            "test {bytes}, {bytes}",
            "jz 5f",
            "4:",
            "crc32 {sum:e}, byte ptr [{p}]",
            "inc {p}",
            "dec {bytes}",
            "jnz 4b",
            "5:",
            sum = inout(reg) sum,
            p = inout(reg) from => _,
            words = inout(reg) length / 8 => _,
            bytes = inout(reg) length % 8 => _,
            options(nostack, readonly)
        );
    }
    sum as u32
}

/// Never called: [`available`] says no.
///
/// # Safety
/// None needed.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn three_lanes(sum: u32, _from: *const u8) -> (u32, u32, u32) {
    (sum, 0, 0)
}

/// Never called: [`available`] says no.
///
/// # Safety
/// None needed.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn one_lane(sum: u32, _from: *const u8, _length: usize) -> u32 {
    sum
}

const fn shift_tables() -> [[u32; 256]; 4] {
    // Column n: what a sum with only bit n set becomes after one zero bit, then after twice as many, until LANE bytes.
    let mut columns = one_zero_bit();
    let mut bits = 1;
    while bits < 8 * LANE {
        columns = twice(&columns);
        bits *= 2;
    }
    let mut tables = [[0; 256]; 4];
    let mut table = 0;
    while table < 4 {
        let mut byte = 0;
        while byte < 256 {
            tables[table][byte] = apply(&columns, (byte as u32) << (8 * table));
            byte += 1;
        }
        table += 1;
    }
    tables
}

const fn one_zero_bit() -> [u32; 32] {
    let mut columns = [0; 32];
    columns[0] = POLYNOMIAL;
    let mut bit = 1;
    while bit < 32 {
        columns[bit] = 1 << (bit - 1);
        bit += 1;
    }
    columns
}

const fn twice(columns: &[u32; 32]) -> [u32; 32] {
    let mut squared = [0; 32];
    let mut bit = 0;
    while bit < 32 {
        squared[bit] = apply(columns, columns[bit]);
        bit += 1;
    }
    squared
}

const fn apply(columns: &[u32; 32], mut sum: u32) -> u32 {
    let (mut result, mut bit) = (0, 0);
    while sum != 0 {
        if sum & 1 != 0 {
            result ^= columns[bit];
        }
        sum >>= 1;
        bit += 1;
    }
    result
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use linerate_wire::payload_checksum;

    #[test]
    fn agrees_with_the_library_at_every_length_and_cut() {
        assert!(available());
        let bytes: Vec<u8> =
            (0..60_000u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for length in [0, 1, 7, 8, 9, 4095, 4096, 12_287, 12_288, 12_289, 16_384, 24_576, 49_152, 60_000] {
            let wanted = payload_checksum(&bytes[..length]);
            for cut in [0, length / 3, length / 2 + 1, length].map(|cut| cut.min(length)) {
                // SAFETY: both pieces lie in `bytes`, which no code writes.
                let sum = unsafe {
                    let head = crc32c(0, bytes.as_ptr(), cut);
                    crc32c(head, bytes.as_ptr().add(cut), length - cut)
                };
                assert_eq!(sum, wanted, "{length} bytes cut at {cut}");
            }
        }
    }
}
