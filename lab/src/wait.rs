//! Waiting with a deadline.

use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use crate::LabError;

pub(crate) const STEP: Duration = Duration::from_millis(20);

/// Calls `look` until it gives a value or an error, at most for `limit`.
/// `tail` is asked for the end of a log when the time is over.
pub fn until<T>(
    what: &str,
    limit: Duration,
    tail: impl FnOnce() -> String,
    mut look: impl FnMut() -> Result<Option<T>, LabError>,
) -> Result<T, LabError> {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() >= end {
            return Err(LabError::Deadline { what: what.to_owned(), waited: limit, tail: tail() });
        }
        std::thread::sleep(STEP);
    }
}

/// Waits for a process to end. One that still runs at `end` is killed: a test fails then, and does not hang.
pub fn exit(child: &mut Child, end: Instant) -> std::io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= end {
            child.kill()?;
            return child.wait();
        }
        std::thread::sleep(STEP);
    }
}
