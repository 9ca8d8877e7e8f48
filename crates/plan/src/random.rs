//! The simulator's only source of chance: xoshiro256++ (Blackman and Vigna, 2019), seeded by splitmix64.
//!
//! Written out here so that a seed means the same run for ever, whatever other crates do.

use std::time::Duration;

/// A stream of numbers determined by its seed.
#[derive(Clone, Debug)]
pub struct Random([u64; 4]);

impl Random {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Random {
        let mut state = seed;
        let mut splitmix = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Random([splitmix(), splitmix(), splitmix(), splitmix()])
    }

    /// The next pseudo-random number of this seed.
    pub fn number(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.0;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// A number from 0 to `bound` - 1; 0 if `bound` is 0. The bias is below 2^-40 for the bounds used here.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.number() % bound }
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in this many of a hundred cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A time from `low` to `high` microseconds, to the nanosecond so that ties are rare.
    pub fn micros(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_nanos(self.between(low * 1_000, high * 1_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_numbers_for_ever() {
        let mut random = Random::new(1);
        let first: Vec<u64> = (0..3).map(|_| random.number()).collect();
        assert_eq!(first, [14971601782005023387, 13781649495232077965, 1847458086238483744]);
    }

    #[test]
    fn bounds_are_kept_and_reached() {
        let mut random = Random::new(7);
        let seen: std::collections::BTreeSet<u64> = (0..200).map(|_| random.between(3, 6)).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [3, 4, 5, 6]);
        assert_eq!(random.below(0), 0);
    }
}
