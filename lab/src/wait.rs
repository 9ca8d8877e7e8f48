//! Waiting with a deadline.

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
