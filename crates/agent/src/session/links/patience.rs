//! How long the next try to open a link's channels may take.
//!
//! A host without CPU to spare answers the small packets of a new link at once, and needs seconds for queue pairs and a
//! probe. The start of a migration waits for the first try of each link, so that one is short. Nothing waits for the
//! later ones: each may take twice as long as the one before. RDMA may be given more (`rdma_connect_s`).

use std::time::Duration;

use crate::session::contact::OPEN_WITHIN;

/// The longest try. A link that works again may have to wait for the end of one.
const LONGEST: Duration = Duration::from_secs(8);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Patience(Duration);

impl Default for Patience {
    fn default() -> Patience {
        Patience(OPEN_WITHIN)
    }
}

impl Patience {
    pub fn get(self) -> Duration {
        self.0
    }

    /// The link's control connection was opened, and its channels were or were not.
    pub fn tried(&mut self, opened: bool) {
        *self = if opened { Patience::default() } else { Patience((self.0 * 2).min(LONGEST)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_try_in_vain_doubles_the_time_of_the_next_up_to_a_limit() {
        let mut patience = Patience::default();
        let mut tried = Vec::new();
        for _ in 0..4 {
            tried.push(patience.get().as_secs());
            patience.tried(false);
        }
        assert_eq!(tried, [2, 4, 8, 8]);
        patience.tried(true);
        assert_eq!(patience, Patience::default());
    }
}
