//! Extents: runs of pages in a region, and sets of them.

pub use linerate_wire::message::Extent;

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

/// At most `max` extents that cover these: where there are more, those nearest to each other in a region become one
/// with the gap between them. They must be in order, as [`normalise`] leaves them. More regions than `max` cannot be
/// helped.
pub fn join_nearest(extents: Vec<Extent>, max: usize) -> Vec<Extent> {
    let gap = |pair: &[Extent]| match pair {
        [a, b] if a.region == b.region => Some(b.run.offset - a.run.end()),
        _ => None,
    };
    let mut gaps: Vec<u64> = extents.windows(2).filter_map(gap).collect();
    let Some(over) = extents.len().checked_sub(max).filter(|over| *over > 0) else { return extents };
    gaps.sort_unstable();
    let Some(&widest) = gaps.get(over.min(gaps.len()).saturating_sub(1)) else { return extents };
    let mut joined: Vec<Extent> = Vec::with_capacity(max);
    for extent in extents {
        match joined.last_mut() {
            Some(last) if gap(&[*last, extent]).is_some_and(|gap| gap <= widest) => {
                last.run.length = extent.run.end() - last.run.offset;
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
        fn joining_the_nearest_covers_everything_with_few(
            raw in prop::collection::vec((0u16..3, 0u64..300, 1u64..12), 0..60),
            max in 3usize..20,
        ) {
            let extents = normalise(raw.iter().map(|&(r, o, l)| Extent::new(r, o, l)).collect());
            let joined = join_nearest(extents.clone(), max);
            prop_assert!(joined.len() <= max.max(3));
            prop_assert!(pages(&joined).is_superset(&pages(&extents)));
            if extents.len() <= max {
                prop_assert_eq!(joined, extents);
            }
        }

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
