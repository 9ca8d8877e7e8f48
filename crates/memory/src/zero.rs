//! Is a page all zero?

/// Bytes of a page as it is tested.
pub(crate) const PAGE: usize = linerate_core::PAGE_BYTES as usize;
const WORDS: usize = PAGE / 8;
/// Words looked at first: most pages that are not zero show it in one of these.
const PROBES: [usize; 4] = [0, WORDS - 1, WORDS / 2, WORDS / 4 + 1];
const GROUP: usize = 8;

/// Whether the page at `page` is zero. Stops at the first group of words that is not.
///
/// The answer for a page that changes meanwhile is that of some moment in between for each word. A page that is written
/// after this is found by the next scan.
///
/// # Safety
/// `page` must be aligned to 8 bytes and readable for 4096 bytes during the call. It may be written by others
/// meanwhile.
pub(crate) unsafe fn page_is_zero(page: *const u64) -> bool {
    // SAFETY: every index is below WORDS, so inside the 4096 bytes that the caller guarantees. Volatile reads are used
    // because other processes may write: each word is read exactly once and any value is fine.
    let word = |index: usize| unsafe { page.add(index).read_volatile() };
    if PROBES.iter().any(|index| word(*index) != 0) {
        return false;
    }
    (0..WORDS / GROUP).all(|group| (0..GROUP).fold(0, |sum, lane| sum | word(group * GROUP + lane)) == 0)
}

/// The same for memory that is our own.
pub(crate) fn slice_is_zero(page: &[u8]) -> bool {
    let (head, words, tail) = {
        // SAFETY: any bytes are a valid `u64`.
        unsafe { page.align_to::<u64>() }
    };
    head.iter().chain(tail).all(|byte| *byte == 0)
        && words.chunks(GROUP).all(|group| group.iter().fold(0, |sum, word| sum | word) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_single_byte_counts() {
        let mut page = vec![0u64; WORDS];
        // SAFETY: the vector is one page, aligned to 8.
        let is_zero = |page: &[u64]| unsafe { page_is_zero(page.as_ptr()) };
        assert!(is_zero(&page));
        for index in 0..WORDS {
            for shift in 0..8 {
                page[index] = 1 << (shift * 8);
                assert!(!is_zero(&page), "word {index} byte {shift}");
                assert!(!slice_is_zero(&page[index].to_ne_bytes()));
            }
            page[index] = 0;
        }
        assert!(slice_is_zero(&[0; PAGE]));
        let mut bytes = [0u8; PAGE + 3];
        bytes[PAGE + 2] = 1;
        assert!(!slice_is_zero(&bytes[1..]));
        assert!(slice_is_zero(&bytes[1..PAGE]));
    }
}
