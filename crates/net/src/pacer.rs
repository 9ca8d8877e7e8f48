//! The bandwidth limit of a migration: one token bucket that all channels draw from.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use linerate_lock::Mutex;

/// Token bucket, pure: the time is passed in as nanoseconds of any steady clock.
///
/// A sender asks before it sends and may go into debt by one write; who comes next waits until the debt is paid. So a
/// write is never cut, and the rate holds over any time longer than a write takes.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    bytes_per_second: NonZeroU64,
    /// Most that an idle time saves up, bytes.
    burst: u64,
    /// Bytes that may be sent now; negative is debt.
    balance: i128,
    updated_ns: u64,
}

/// Sending may catch up on this much time, which covers the scheduler's wake-up delays.
const BURST_MS: u64 = 5;

impl TokenBucket {
    /// Begins with a full bucket: the first burst is not delayed.
    pub fn new(bytes_per_second: NonZeroU64, now_ns: u64) -> TokenBucket {
        let burst = (bytes_per_second.get() / 1000).saturating_mul(BURST_MS).max(1);
        TokenBucket { bytes_per_second, burst, balance: i128::from(burst), updated_ns: now_ns }
    }

    /// Takes `bytes` and returns how long the caller has to wait before sending them.
    pub fn take(&mut self, bytes: u64, now_ns: u64) -> Duration {
        self.refill(now_ns);
        let wait = self.debt_time();
        self.balance -= i128::from(bytes);
        wait
    }

    /// Gives back what was taken and not sent.
    pub fn give_back(&mut self, bytes: u64) {
        self.balance = (self.balance + i128::from(bytes)).min(i128::from(self.burst));
    }

    fn refill(&mut self, now_ns: u64) {
        let passed = now_ns.saturating_sub(self.updated_ns);
        let earned = u128::from(passed) * u128::from(self.bytes_per_second.get()) / 1_000_000_000;
        if earned == 0 {
            // Too early for a whole byte: the fraction is kept by not moving the clock.
            return;
        }
        self.balance = (self.balance + earned as i128).min(i128::from(self.burst));
        self.updated_ns = now_ns;
    }

    fn debt_time(&self) -> Duration {
        if self.balance >= 0 {
            return Duration::ZERO;
        }
        let nanoseconds =
            self.balance.unsigned_abs() * 1_000_000_000 / u128::from(self.bytes_per_second.get());
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

/// The bucket shared by all pumps, with a clock.
#[derive(Debug)]
pub struct Pacer {
    bucket: Mutex<TokenBucket>,
    epoch: Instant,
}

impl Pacer {
    /// Limits all who share it to this many bytes per second together.
    pub fn new(bytes_per_second: NonZeroU64) -> Pacer {
        Pacer { bucket: Mutex::new(TokenBucket::new(bytes_per_second, 0)), epoch: Instant::now() }
    }

    /// Takes `bytes`, and says how long to wait before sending them.
    pub fn take(&self, bytes: u64) -> Duration {
        let now_ns = u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.bucket.lock().take(bytes, now_ns)
    }

    /// Gives back what was taken and not sent.
    pub fn give_back(&self, bytes: u64) {
        self.bucket.lock().give_back(bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MEGABYTE: NonZeroU64 = NonZeroU64::new(1_000_000).unwrap();

    #[test]
    fn a_debt_is_paid_before_the_next_write() {
        let mut bucket = TokenBucket::new(MEGABYTE, 0);
        assert_eq!(bucket.take(1_005_000, 0), Duration::ZERO, "the first write goes at once, into debt");
        assert_eq!(bucket.take(1, 0), Duration::from_secs(1));
        assert_eq!(bucket.take(1, 1_000_000_000), Duration::from_micros(1));
    }

    #[test]
    fn idle_time_saves_up_no_more_than_the_burst() {
        let mut bucket = TokenBucket::new(MEGABYTE, 0);
        assert_eq!(bucket.take(6_000, 3_600_000_000_000), Duration::ZERO);
        assert_eq!(bucket.take(0, 3_600_000_000_000), Duration::from_millis(1));
    }

    #[test]
    fn what_is_given_back_was_never_taken() {
        let mut bucket = TokenBucket::new(MEGABYTE, 0);
        bucket.take(1_000_000, 0);
        bucket.give_back(1_000_000);
        assert_eq!(bucket.take(5_000, 0), Duration::ZERO);
        assert_eq!(bucket.take(1, 0), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn the_rate_holds_over_any_run_of_writes(
            rate in 1_000u64..100_000_000_000,
            writes in prop::collection::vec((1u64..4_194_304, 0u64..2_000_000), 1..200),
        ) {
            let mut bucket = TokenBucket::new(NonZeroU64::new(rate).unwrap(), 0);
            let (mut now, mut sent, mut last) = (0u64, 0u128, 0u64);
            for (bytes, pause) in writes {
                now += pause;
                now += u64::try_from(bucket.take(bytes, now).as_nanos()).unwrap();
                sent += u128::from(bytes);
                last = bytes;
            }
            let allowed = u128::from(rate) * u128::from(now) / 1_000_000_000 + u128::from(bucket.burst) + u128::from(last);
            // One byte of rounding for each write.
            prop_assert!(sent <= allowed + 200, "sent {} of {} in {} ns", sent, allowed, now);
        }
    }
}
