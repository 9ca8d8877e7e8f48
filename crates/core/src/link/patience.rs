//! How long the next try to open a link's channels may take.
//!
//! A host without CPU to spare answers the small packets of a new link at once, and needs seconds for queue pairs and a
//! probe. The start of a migration waits for the first try of each link, so that one is short. Nothing waits for the
//! later ones: each may take twice as long as the one before. RDMA may be given more (`rdma_connect_s`).

use std::time::Duration;

/// The longest try. A link that works again may have to wait for the end of one.
const LONGEST: Duration = Duration::from_secs(8);

/// The time of the next try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    first: Duration,
    next: Duration,
}

impl Patience {
    /// A first try may take so long.
    pub fn new(first: Duration) -> Patience {
        Patience { first, next: first }
    }

    /// How long the next try may take.
    pub fn get(self) -> Duration {
        self.next
    }

    /// The link's control connection was opened, and its channels were or were not.
    pub fn tried(&mut self, opened: bool) {
        self.next = if opened { self.first } else { (self.next * 2).min(LONGEST) };
    }

    /// The next try is as a first one.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_try_in_vain_doubles_the_time_of_the_next_up_to_a_limit() {
        let first = Patience::new(Duration::from_secs(2));
        let mut patience = first;
        let mut tried = Vec::new();
        for _ in 0..4 {
            tried.push(patience.get().as_secs());
            patience.tried(false);
        }
        assert_eq!(tried, [2, 4, 8, 8]);
        let mut unreachable = patience;
        unreachable.reset();
        patience.tried(true);
        assert_eq!((patience, unreachable), (first, first));
    }
}
