//! Random numbers that a seed repeats.

use std::time::Duration;

/// SplitMix64 (Steele, Lea, Flood 2014): small, and good enough to choose instants.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next pseudo-random number of this seed.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A part of a duration, from none to nearly all of it.
    pub fn part_of(&mut self, whole: Duration) -> Duration {
        whole.mul_f64((self.number() >> 11) as f64 / (1u64 << 53) as f64)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit.max(1)
    }
}

/// A seed from the clock, for a run that was given none.
pub fn fresh_seed() -> u64 {
    let age = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::from(age.subsec_nanos()) ^ (age.as_secs() << 20) & 0xffff_ffff
}

/// Another seed for a named part of a run, so that a part can be repeated alone.
pub fn seed_for(seed: u64, name: &str) -> u64 {
    let fold = |sum: u64, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    Random::new(name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, fold)).number()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_parts_differ() {
        let take = |seed| {
            let mut random = Random::new(seed);
            [random.number(), random.number()]
        };
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
        assert_eq!(seed_for(1, "a"), seed_for(1, "a"));
        assert_ne!(seed_for(1, "a"), seed_for(1, "b"));
    }

    #[test]
    fn a_part_is_not_longer_than_the_whole() {
        let mut random = Random::new(1);
        let whole = Duration::from_secs(3);
        let parts: Vec<Duration> = (0..1000).map(|_| random.part_of(whole)).collect();
        assert!(parts.iter().all(|part| *part < whole));
        assert!(parts.iter().any(|part| *part > whole / 2) && parts.iter().any(|part| *part < whole / 2));
    }
}
