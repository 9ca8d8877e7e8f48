//! Positions that are done, in whatever order they were: how far without a gap, and what lies beyond.

use std::collections::BTreeMap;

/// Everything below `through`, and spans above it that touch neither it nor each other.
#[derive(Debug, Default)]
pub(super) struct Spans {
    through: u64,
    beyond: BTreeMap<u64, u64>,
}

impl Spans {
    /// First position that is not done.
    pub fn contiguous_end(&self) -> u64 {
        self.through
    }

    /// Spans behind a gap.
    pub fn gaps(&self) -> usize {
        self.beyond.len()
    }

    /// These are done too.
    pub fn insert(&mut self, mut from: u64, mut to: u64) {
        if to <= self.through || from >= to {
            return;
        }
        if let Some((&before, &end)) = self.beyond.range(..=from).next_back()
            && end >= from
        {
            (from, to) = (before, to.max(end));
            self.beyond.remove(&before);
        }
        while let Some((&next, &end)) = self.beyond.range(from..=to).next() {
            to = to.max(end);
            self.beyond.remove(&next);
        }
        if from <= self.through {
            self.through = to;
        } else {
            self.beyond.insert(from, to);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_the_union_of_what_came(pieces in proptest::collection::vec((0u64..200, 0u64..30), 0..60)) {
            let (mut spans, mut all) = (Spans::default(), BTreeSet::new());
            for (from, length) in pieces {
                spans.insert(from, from + length);
                all.extend(from..from + length);
                let through = (0..).find(|position| !all.contains(position)).unwrap();
                prop_assert_eq!(spans.contiguous_end(), through);
                let beyond: BTreeSet<u64> = spans.beyond.iter().flat_map(|(from, to)| *from..*to).collect();
                let wanted: BTreeSet<u64> = all.iter().copied().filter(|position| *position > through).collect();
                prop_assert_eq!(beyond, wanted);
                let ends: Vec<_> = spans.beyond.iter().collect();
                prop_assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0), "spans touch: {:?}", ends);
            }
        }
    }
}
