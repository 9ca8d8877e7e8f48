//! Fences: how a destination makes sure that a channel writes nothing more.
//!
//! An extent may go to another channel only when the one that had it can no longer write it: otherwise an old page
//! could land on a new one. [`Fence::close`] ends the connection *and waits until the thread that applied it has
//! ended*; only the second makes it true.

use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use linerate_wire::frame::DAMAGED_MAX;
use thiserror::Error;

use crate::channel::Closer;
use linerate_lock::{Condvar, Mutex};

/// What a channel applied before it was fenced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fenced {
    /// All frames up to this number were applied, but for damaged ones. Frames above it were not, or not in full.
    pub applied: u64,
    /// All frames up to `applied` that arrived damaged, also those that an acknowledgement named: it may have been lost
    /// with the link. If there were more than a message holds, `applied` is 0 and this is empty. The source then sends
    /// everything again that it has no acknowledgement for.
    pub damaged: Vec<u64>,
}

/// The fence did not close in time.
#[derive(Debug, Error)]
pub enum FenceError {
    /// The serving thread did not end; its channel's extents must not be given out.
    #[error("the channel was shut, but its thread still applies a write after {} ms", waited.as_millis())]
    StillServing {
        /// How long was waited.
        waited: Duration,
    },
}

/// One per channel of the destination, shared by the serving thread and the threads that close it.
#[derive(Debug)]
pub struct Fence {
    closer: Closer,
    closing: AtomicBool,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    serving: bool,
    fenced: Fenced,
}

impl Fence {
    /// A fence around the channel that the closer ends.
    pub fn new(closer: Closer) -> Fence {
        Fence { closer, closing: AtomicBool::new(false), state: Mutex::default(), ended: Condvar::new() }
    }

    /// Shuts the channel and waits until nothing is applied from it any more. May be called again.
    pub fn close(&self, wait: Duration) -> Result<Fenced, FenceError> {
        let state = {
            // Under the lock, so that a thread that is about to serve sees it.
            let state = self.lock();
            self.closing.store(true, Ordering::SeqCst);
            state
        };
        self.closer.close();
        let (state, still_serving) = self.ended.wait_timeout_while(state, wait, |state| state.serving);
        if still_serving {
            return Err(FenceError::StillServing { waited: wait });
        }
        Ok(state.fenced.clone())
    }

    /// Whether the channel was asked to end. The serving thread looks before each system call.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Begins serving; `None` if the fence was closed before, or another thread serves already.
    pub fn enter(&self) -> Option<Serving<'_>> {
        let mut state = self.lock();
        if self.is_closing() || state.serving {
            return None;
        }
        state.serving = true;
        Some(Serving { fence: self, applied: 0, damaged: Vec::new(), damaged_too_many: false })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Held by the thread that applies a channel; dropping it, also by a panic, says that it applies no more.
#[derive(Debug)]
pub struct Serving<'a> {
    fence: &'a Fence,
    applied: u64,
    damaged: Vec<u64>,
    damaged_too_many: bool,
}

impl Serving<'_> {
    /// Highest frame number dealt with.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// The frame was applied in full.
    pub fn apply(&mut self, sequence: u64) {
        self.applied = sequence;
    }

    /// The frame was dealt with, but arrived damaged.
    pub fn mark_damaged(&mut self, sequence: u64) {
        self.applied = sequence;
        if self.damaged.len() < DAMAGED_MAX {
            self.damaged.push(sequence);
        } else {
            self.damaged_too_many = true;
        }
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let fenced = match self.damaged_too_many {
            false => Fenced { applied: self.applied, damaged: std::mem::take(&mut self.damaged) },
            true => Fenced::default(),
        };
        let mut state = self.fence.lock();
        *state = State { serving: false, fenced };
        self.fence.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence() -> Fence {
        Fence::new(Closer::new(|| {}))
    }

    #[test]
    fn a_fence_closed_first_admits_no_connection() {
        let fence = fence();
        assert_eq!(fence.close(Duration::ZERO).unwrap(), Fenced::default());
        assert!(fence.enter().is_none());
    }

    #[test]
    fn one_thread_serves_at_a_time() {
        let fence = fence();
        let serving = fence.enter().unwrap();
        assert!(fence.enter().is_none());
        assert!(matches!(fence.close(Duration::from_millis(1)), Err(FenceError::StillServing { .. })));
        drop(serving);
        assert_eq!(fence.close(Duration::ZERO).unwrap(), Fenced::default());
    }

    #[test]
    fn it_reports_what_was_applied_and_damaged() {
        let fence = fence();
        let mut serving = fence.enter().unwrap();
        serving.apply(1);
        serving.mark_damaged(2);
        serving.apply(3);
        drop(serving);
        assert_eq!(fence.close(Duration::ZERO).unwrap(), Fenced { applied: 3, damaged: vec![2] });
    }

    #[test]
    fn more_damaged_than_a_message_holds_means_that_nothing_is_claimed() {
        let fence = fence();
        let mut serving = fence.enter().unwrap();
        (1..=DAMAGED_MAX as u64 + 1).for_each(|sequence| serving.mark_damaged(sequence));
        drop(serving);
        assert_eq!(fence.close(Duration::ZERO).unwrap(), Fenced::default());
    }
}
