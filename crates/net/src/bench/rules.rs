//! Sizes and repetitions of a ping-pong: those of the Intel MPI Benchmarks' PingPong, so that its figures can be held
//! against published ones. docs/bench-wires.md names the sources and the two places where it is done otherwise.

use std::time::Duration;

use super::MESSAGE_BYTES_MAX;

/// Bytes in one direction after which a size has been repeated enough.
pub const VOLUME_BYTES: u64 = 40 << 20;
/// How long one size may take.
pub const TIME_PER_SIZE: Duration = Duration::from_secs(10);
/// Least repetitions of a warm-up; otherwise it is a tenth.
const WARM_UP_MIN: u32 = 10;

/// 0 bytes, then powers of two up to `max`.
pub fn sizes(max: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1usize), |size| size.checked_mul(2));
    std::iter::once(0).chain(powers.take_while(|size| *size <= max.min(MESSAGE_BYTES_MAX))).collect()
}

/// Repetitions of a size before time is looked at.
pub fn by_volume(bytes: usize, most: u32) -> u32 {
    match u64::try_from(bytes) {
        Ok(0) | Err(_) => most.max(1),
        Ok(bytes) => u32::try_from(VOLUME_BYTES / bytes).unwrap_or(u32::MAX).clamp(1, most.max(1)),
    }
}

/// At most so many that `time` is enough, when one round trip takes `each`.
pub fn by_time(repetitions: u32, each: Duration, time: Duration) -> u32 {
    if each.is_zero() {
        return repetitions;
    }
    let fit = 1.0 + time.as_secs_f64() / each.as_secs_f64();
    repetitions.min(fit as u32).max(1)
}

/// Of a warm-up before so many.
pub fn warm_up(repetitions: u32) -> u32 {
    (repetitions / 10).max(WARM_UP_MIN).min(repetitions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_nothing_and_the_powers_of_two() {
        assert_eq!(sizes(4), [0, 1, 2, 4]);
        assert_eq!(sizes(7), [0, 1, 2, 4]);
        assert_eq!(sizes(0), [0]);
        let all = sizes(usize::MAX);
        assert_eq!((all.len(), all.last()), (24, Some(&(4 << 20))));
    }

    #[test]
    fn repetitions_are_bounded_by_count_volume_and_time() {
        let of = |bytes| by_volume(bytes, 1000);
        assert_eq!([of(0), of(1), of(32 << 10), of(64 << 10), of(4 << 20)], [1000, 1000, 1000, 640, 10]);
        assert_eq!(by_volume(usize::MAX, 5), 1);
        assert_eq!(by_time(1000, Duration::from_millis(100), Duration::from_secs(10)), 101);
        assert_eq!(by_time(10, Duration::from_secs(60), Duration::from_secs(1)), 1);
        assert_eq!(by_time(1000, Duration::ZERO, Duration::from_secs(1)), 1000);
        assert_eq!([warm_up(1000), warm_up(50), warm_up(3)], [100, 10, 3]);
    }
}
