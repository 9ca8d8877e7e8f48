//! Which connections of this process have large buffers: some at a time. The others move bytes in smaller steps.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Connections at a time that have a large buffer for one direction.
pub(super) const LARGE_MAX: usize = 256;

/// The right to a large buffer; given back when it is dropped.
pub(super) struct Large(&'static AtomicUsize);

impl Large {
    /// `count`: connections that have a large buffer for this direction. None if they are too many already.
    pub fn take(count: &'static AtomicUsize) -> Option<Large> {
        let before = count.fetch_add(1, Ordering::SeqCst);
        // Given back at once if there are too many.
        let taken = Large(count);
        (before < LARGE_MAX).then_some(taken)
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
