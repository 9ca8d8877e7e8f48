//! Rate of a channel, from what was acknowledged while it had something to do.

use std::time::Duration;

use crate::Time;

/// Shortest span that gives a sample: shorter ones measure the batching of acknowledgements.
const SAMPLE_SPAN_MIN: Duration = Duration::from_millis(20);
/// Weight of a new sample in the moving average: three samples (60 ms) carry two thirds of the estimate.
const SAMPLE_WEIGHT: f64 = 0.3;

/// Moving average of bytes per second over busy time.
///
/// Busy spans that are too short for a sample are added up. So a channel with little to do at a time shows a rate too.
/// The very first burst gives one whatever its length, because without any rate no blackout can be predicted.
#[derive(Clone, Debug, Default)]
pub struct Rate {
    bytes_per_s: f64,
    busy_since: Option<Time>,
    /// Busy time before `busy_since` that has gone into no sample yet.
    busy_before: Duration,
    bytes: u64,
}

impl Rate {
    /// The channel got its first work after having none.
    pub fn busy(&mut self, now: Time) {
        self.busy_since.get_or_insert(now);
    }

    /// `bytes` were acknowledged; `idle` says that nothing is left in flight.
    pub fn acknowledged(&mut self, now: Time, bytes: u64, idle: bool) {
        let Some(since) = self.busy_since else { return };
        self.bytes = self.bytes.saturating_add(bytes);
        let span = self.busy_before + (now - since);
        let first = idle && self.bytes_per_s == 0.0 && self.bytes > 0 && !span.is_zero();
        let sampled = span >= SAMPLE_SPAN_MIN || first;
        if sampled {
            self.sample(self.bytes as f64 / span.as_secs_f64());
            (self.busy_before, self.bytes) = (Duration::ZERO, 0);
        } else if idle {
            self.busy_before = span;
        }
        self.busy_since = if idle { None } else { Some(if sampled { now } else { since }) };
    }

    fn sample(&mut self, bytes_per_s: f64) {
        self.bytes_per_s = if self.bytes_per_s == 0.0 {
            bytes_per_s
        } else {
            self.bytes_per_s + SAMPLE_WEIGHT * (bytes_per_s - self.bytes_per_s)
        };
    }

    /// Bytes per second; 0 until the first sample.
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes_per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Time {
        Time(n * 1_000_000)
    }

    #[test]
    fn idle_time_does_not_count() {
        let mut rate = Rate::default();
        rate.busy(ms(0));
        rate.acknowledged(ms(100), 1_000_000, true);
        rate.busy(ms(1_000));
        rate.acknowledged(ms(1_100), 1_000_000, true);
        assert!((rate.bytes_per_s() - 10_000_000.0).abs() < 1.0, "{}", rate.bytes_per_s());
    }

    #[test]
    fn short_bursts_give_a_rate_too() {
        let mut rate = Rate::default();
        rate.busy(ms(0));
        rate.acknowledged(ms(1), 10_000, true);
        assert!((rate.bytes_per_s() - 10_000_000.0).abs() < 1.0, "the first: {}", rate.bytes_per_s());
        for burst in 1..=20 {
            rate.busy(ms(burst * 100));
            rate.acknowledged(ms(burst * 100 + 1), 20_000, true);
        }
        assert!((rate.bytes_per_s() - 13_000_000.0).abs() < 1.0, "twenty more: {}", rate.bytes_per_s());
    }

    #[test]
    fn follows_a_link_that_slows_down() {
        let mut rate = Rate::default();
        rate.busy(ms(0));
        (1..=10).for_each(|i| rate.acknowledged(ms(i * 20), 2_000_000, false));
        (11..=30).for_each(|i| rate.acknowledged(ms(i * 20), 200_000, false));
        assert!(rate.bytes_per_s() < 11_000_000.0, "{}", rate.bytes_per_s());
    }
}
