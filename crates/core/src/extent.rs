//! Extents: runs of pages in a region, and sets of them.

use crate::{RegionId, Run};

/// A run of bytes in a region of guest RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// The region.
    pub region: RegionId,
    /// The run in it.
    pub run: Run,
}

impl Extent {
    /// An extent of `length` bytes at `offset`.
    pub fn new(region: RegionId, offset: u64, length: u64) -> Extent {
        Extent { region, run: Run { offset, length } }
    }
}

/// Bytes in all extents.
pub fn total_bytes(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| extent.run.length).sum()
}

/// Sorts, and joins extents that touch or overlap: the result names every byte at most once.
pub fn normalise(mut extents: Vec<Extent>) -> Vec<Extent> {
    extents.retain(|extent| extent.run.length > 0);
    extents.sort_unstable();
    let mut joined: Vec<Extent> = Vec::with_capacity(extents.len());
    for extent in extents {
        match joined.last_mut() {
            Some(last) if last.region == extent.region && extent.run.offset <= last.run.end() => {
                let end = last.run.end().max(extent.run.end());
                last.run.length = end - last.run.offset;
            }
            _ => joined.push(extent),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn pages(extents: &[Extent]) -> BTreeSet<(u16, u64)> {
        extents.iter().flat_map(|e| (e.run.offset..e.run.end()).map(move |byte| (e.region, byte))).collect()
    }

    proptest! {
        #[test]
        fn normalise_keeps_every_byte_once(raw in prop::collection::vec((0u16..3, 0u64..60, 0u64..12), 0..40)) {
            let extents: Vec<Extent> = raw.iter().map(|&(r, o, l)| Extent::new(r, o, l)).collect();
            let joined = normalise(extents.clone());
            prop_assert_eq!(pages(&joined), pages(&extents));
            prop_assert_eq!(total_bytes(&joined) as usize, pages(&extents).len());
            prop_assert!(joined.windows(2).all(|w| w[0] < w[1]));
        }
    }
}
