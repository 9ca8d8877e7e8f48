//! A mutex whose owner panicked is good all the same: the test that panicked says so itself.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks whatever became of the thread that had it.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
