//! What the worker does between two tasks: a guest that writes too fast is stopped for a part of the time.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::{State, Task};
use crate::faults::chain;

/// A throttled guest is stopped for a part of each of these: short enough for its clocks and network, long enough that
/// stopping and resuming do not count.
const THROTTLE_PERIOD: Duration = Duration::from_millis(100);

impl State {
    /// The next task. While there is none, a guest that is to be slowed down is stopped for a part of each period.
    pub(in crate::outgoing) fn next_task(&mut self, tasks: &Receiver<Task>) -> Option<Task> {
        while self.throttle_percent > 0 {
            let stopped = THROTTLE_PERIOD * u32::from(self.throttle_percent) / 100;
            match tasks.recv_timeout(THROTTLE_PERIOD.saturating_sub(stopped)) {
                Err(RecvTimeoutError::Timeout) => {}
                other => return other.ok(),
            }
            let paused = self.guest.qemu.pause(Self::deadline());
            let task = tasks.recv_timeout(stopped);
            let resumed = match paused {
                Ok(false) => Ok(()),
                // What could not be stopped may stand all the same.
                paused => {
                    let resumed = self.guest.qemu.resume(Self::deadline());
                    paused.and(resumed)
                }
            };
            if let Err(error) = resumed {
                self.throttle_percent = 0;
                tracing::warn!(error = chain(&error), "the guest can no longer be slowed down");
            }
            match task {
                Err(RecvTimeoutError::Timeout) => {}
                other => return other.ok(),
            }
        }
        tasks.recv().ok()
    }
}
