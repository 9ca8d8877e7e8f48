//! The locks of `std` without poisoning. A panic ends the agent at once, in whichever thread it comes: no thread finds
//! a poisoned lock there. In a test the panic has failed the test already, and the threads that wait for the lock are
//! to end as usual.

#![allow(missing_docs, reason = "the names are those of std::sync")]

use std::sync::{self, MutexGuard, PoisonError, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::Duration;

#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None if another thread holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

#[derive(Debug, Default)]
pub struct RwLock<T>(sync::RwLock<T>);

impl<T> RwLock<T> {
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(sync::RwLock::new(value))
    }

    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    pub const fn new() -> Condvar {
        Condvar(sync::Condvar::new())
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits once. The caller checks the condition again afterwards.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// The same for at most `wait`.
    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, wait: Duration) -> MutexGuard<'a, T> {
        self.0.wait_timeout(guard, wait).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits until the condition is false.
    pub fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        self.0.wait_while(guard, condition).unwrap_or_else(PoisonError::into_inner)
    }

    /// The same for at most `wait`; the second is whether the condition is still true then.
    pub fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        wait: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, bool) {
        let (guard, waited) =
            self.0.wait_timeout_while(guard, wait, condition).unwrap_or_else(PoisonError::into_inner);
        (guard, waited.timed_out())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn locks_of_a_thread_that_panicked_are_free() {
        let both = Arc::new((Mutex::new(1), RwLock::new(2), Condvar::new()));
        let held = both.clone();
        let panicked = std::thread::spawn(move || {
            let (mut first, mut second) = (held.0.lock(), held.1.write());
            (*first, *second) = (10, 20);
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        assert!(panicked.join().is_err());
        let moment = Duration::from_millis(1);
        assert_eq!((*both.0.lock(), *both.1.read()), (10, 20));
        assert_eq!(both.0.try_lock().as_deref(), Some(&10));
        let first = both.0.lock();
        assert!(both.0.try_lock().is_none(), "it is held");
        drop(first);
        assert_eq!(*both.2.wait_timeout(both.0.lock(), moment), 10);
        assert_eq!(*both.2.wait_while(both.0.lock(), |number| *number != 10), 10);
        let (_guard, still) = both.2.wait_timeout_while(both.0.lock(), moment, |number| *number == 10);
        assert!(still);
    }
}
