//! The driver's clock: time as the core wants it.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use linerate_core::Time;

/// Counts from when it was made.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    pub fn now(self) -> Time {
        self.at(Instant::now())
    }

    /// A moment as this clock counts it.
    pub fn at(self, instant: Instant) -> Time {
        let since = instant.saturating_duration_since(self.0);
        Time(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Milliseconds since 1970, for people and the journal; never used to measure.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// CPU time of this process so far, user and system.
pub fn cpu_time() -> std::time::Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let seconds = u64::try_from(spent.tv_sec).unwrap_or(0);
    std::time::Duration::new(seconds, u32::try_from(spent.tv_nsec).unwrap_or(0))
}
