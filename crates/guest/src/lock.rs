use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks whatever became of the thread that had it. A panic ends the agent (`panic = "abort"`); in a test it has
/// failed the test.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
