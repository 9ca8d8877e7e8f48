//! Lists of addresses for gathered and scattered system calls.

use std::io;

use linerate_core::Run;

/// The kernel's limit (IOV_MAX) of entries in one call. What does not fit goes with the next call.
const ENTRIES_MAX: usize = 1024;

/// Addresses and lengths of what is left of `head` and of the runs after `done` bytes of both.
pub(crate) struct Gather {
    entries: Vec<libc::iovec>,
    skip: usize,
}

impl Gather {
    /// An empty list that leaves out the first `done` bytes of what is pushed.
    pub(crate) fn new(done: usize, runs: &[Run]) -> Gather {
        Gather { entries: Vec::with_capacity(runs.len().saturating_add(1).min(ENTRIES_MAX)), skip: done }
    }

    /// Whether one call can take no more.
    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= ENTRIES_MAX
    }

    /// Appends the part of `length` bytes at `base` that was not done yet. The address is only handed to the kernel.
    pub(crate) fn push(&mut self, base: *mut u8, length: usize) {
        let skipped = self.skip.min(length);
        self.skip -= skipped;
        if skipped < length && !self.is_full() {
            let iov_base = base.wrapping_add(skipped).cast();
            self.entries.push(libc::iovec { iov_base, iov_len: length - skipped });
        }
    }

    /// The entries; an error if nothing is left to move, which must not be mistaken for a closed connection.
    pub(crate) fn finish(self) -> io::Result<Vec<libc::iovec>> {
        if self.skip > 0 || self.entries.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "nothing is left to be moved"));
        }
        Ok(self.entries)
    }
}

/// Repeats a system call that a signal interrupted before it moved anything.
pub(crate) fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(bytes) => return Ok(bytes),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_what_is_done_and_stops_at_the_kernels_limit() {
        let base = 0x1000 as *mut u8;
        let mut gather = Gather::new(5, &[]);
        gather.push(base, 3);
        gather.push(base, 4);
        let entries = gather.finish().unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].iov_base as usize, entries[0].iov_len), (0x1002, 2));
        let mut gather = Gather::new(0, &[]);
        (0..2000).for_each(|_| gather.push(base, 1));
        assert!(gather.is_full());
        assert_eq!(gather.finish().unwrap().len(), ENTRIES_MAX);
    }

    #[test]
    fn nothing_left_is_an_error() {
        let mut gather = Gather::new(4, &[]);
        gather.push(0x1000 as *mut u8, 4);
        assert_eq!(gather.finish().unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
