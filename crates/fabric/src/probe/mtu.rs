//! Which packet sizes to try for the largest that passes. Pure: the trying is the caller's.

/// Every path passes this (the least that IPv4 hosts must take).
pub const LEAST: u32 = 576;
/// Where paths usually end: below jumbo frames, Ethernet, PPPoE, tunnels (VXLAN, GRE, IPsec), IPv6's least.
const USUAL: [u32; 8] = [9000, 8000, 4000, 1500, 1492, 1450, 1400, 1280];

/// The largest packet up to `promised` that passes, to the byte. `None` if not even the least does.
pub fn largest(promised: u32, mut passes: impl FnMut(u32) -> bool) -> Option<u32> {
    if passes(promised) {
        return Some(promised);
    }
    let mut fails = promised;
    let mut good = None;
    for size in USUAL.into_iter().filter(|size| *size < promised && *size > LEAST) {
        if passes(size) {
            good = Some(size);
            break;
        }
        fails = size;
    }
    let mut good = match good {
        Some(good) => good,
        None if fails > LEAST && passes(LEAST) => LEAST,
        None => return None,
    };
    // Most often the usual size is the answer: one byte more says so at once.
    if fails > good + 1 && !passes(good + 1) {
        return Some(good);
    }
    while fails > good + 1 {
        let middle = good + (fails - good) / 2;
        if passes(middle) { good = middle } else { fails = middle }
    }
    Some(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_found_to_the_byte_with_few_tries() {
        for promised in [1500, 9000, 9978, 65_535] {
            for limit in (LEAST..=promised).step_by(7).chain([1500, 1499, 1501, promised]) {
                let mut tries = 0;
                let found = largest(promised, |size| {
                    tries += 1;
                    size <= limit
                });
                assert_eq!(found, Some(limit.min(promised)), "promised {promised}");
                assert!(tries <= 28, "{tries} tries for {limit} of {promised}");
            }
        }
    }

    #[test]
    fn the_usual_cases_cost_little() {
        let count = |promised, limit: u32| {
            let mut tries = 0;
            let _ = largest(promised, |size| {
                tries += 1;
                size <= limit
            });
            tries
        };
        assert_eq!(count(9000, 9000), 1);
        assert_eq!(count(9000, 1500), 5);
    }

    #[test]
    fn a_path_that_passes_nothing() {
        assert_eq!(largest(9000, |_| false), None);
        assert_eq!(largest(500, |_| false), None);
    }
}
