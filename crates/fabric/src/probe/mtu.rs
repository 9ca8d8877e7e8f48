//! Which packet sizes to try for the largest that passes. Pure: the trying is the caller's.

/// Every path passes this (the least that IPv4 hosts must take).
pub const LEAST: u32 = 576;
/// Where paths usually end: below jumbo frames, Ethernet, PPPoE, tunnels (VXLAN, GRE, IPsec), IPv6's least.
const USUAL: [u32; 8] = [9000, 8000, 4000, 1500, 1492, 1450, 1400, 1280];
/// Sizes that are tried at once.
const AT_ONCE: u32 = 16;

/// The largest packet up to `promised` that passes, to the byte. `None` if not even the least does. `passes` tries
/// sizes at the same time: what is lost is waited for once.
pub fn largest(promised: u32, mut passes: impl FnMut(&[u32]) -> Vec<bool>) -> Option<u32> {
    if passes(&[promised]).first() == Some(&true) {
        return Some(promised);
    }
    let below = |size: &u32| *size < promised && *size > LEAST;
    let mut sizes: Vec<u32> = USUAL.into_iter().rev().filter(below).collect();
    if promised > LEAST {
        sizes.insert(0, LEAST);
    }
    let (mut good, mut fails) = (None, promised);
    loop {
        let passed = passes(&sizes);
        good = sizes.iter().zip(&passed).filter(|(_, passed)| **passed).map(|(size, _)| *size).max().or(good);
        let known = good?;
        let failed = sizes.iter().zip(&passed).filter(|(size, passed)| **size > known && !**passed);
        fails = failed.map(|(size, _)| *size).min().unwrap_or(fails).min(fails);
        if fails <= known + 1 {
            return good;
        }
        sizes = between(known, fails);
    }
}

/// Sizes between a good and a bad one. Most often the usual size is the answer: one byte more says so at once.
fn between(good: u32, fails: u32) -> Vec<u32> {
    let mut sizes: Vec<u32> = (1..AT_ONCE)
        .map(|part| good + (u64::from(fails - good) * u64::from(part) / u64::from(AT_ONCE)) as u32)
        .collect();
    sizes.insert(0, good + 1);
    sizes.retain(|size| *size > good && *size < fails);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_found_to_the_byte_with_few_tries() {
        for promised in [1500, 9000, 9978, 65_535] {
            for limit in (LEAST..=promised).step_by(7).chain([1500, 1499, 1501, promised]) {
                let mut tries = 0;
                let found = largest(promised, |sizes| {
                    tries += 1;
                    sizes.iter().map(|size| *size <= limit).collect()
                });
                assert_eq!(found, Some(limit.min(promised)), "promised {promised}");
                assert!(tries <= 7, "{tries} tries for {limit} of {promised}");
            }
        }
    }

    #[test]
    fn the_usual_cases_cost_little() {
        let count = |promised, limit: u32| {
            let mut tries = 0;
            let _ = largest(promised, |sizes| {
                tries += 1;
                sizes.iter().map(|size| *size <= limit).collect()
            });
            tries
        };
        assert_eq!(count(9000, 9000), 1);
        assert_eq!(count(9000, 1500), 3);
    }

    #[test]
    fn a_path_that_passes_nothing() {
        assert_eq!(largest(9000, |sizes| vec![false; sizes.len()]), None);
        assert_eq!(largest(500, |sizes| vec![false; sizes.len()]), None);
    }
}
