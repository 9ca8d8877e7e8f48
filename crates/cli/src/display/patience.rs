//! An agent that was just started again, and what is watched.

use std::time::{Duration, Instant};

use linerate_api::ClientError;

/// It may not know yet what it goes on with, or wait for its store: it is asked again for so long.
const PATIENCE: Duration = Duration::from_secs(15);

/// Whether an agent that says no is asked again.
#[derive(Default)]
pub struct Patience {
    since: Option<Instant>,
}

impl Patience {
    /// The agent has answered: the time to wait for it begins anew at its next failure.
    pub fn answered(&mut self) {
        self.since = None;
    }

    /// An agent that is lost is not waited for.
    pub fn goes_on(&mut self, error: &ClientError) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        matches!(error, ClientError::Agent { .. }) && since.elapsed() < PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use linerate_api::{ErrorBody, code};

    use super::*;

    #[test]
    fn an_agent_that_says_no_is_asked_again_for_a_while() {
        let body = Box::new(ErrorBody::new(code::DRAIN_UNKNOWN, "there is no drain"));
        let no = ClientError::Agent { status: 404, body };
        let mut patience = Patience::default();
        assert!(patience.goes_on(&no) && patience.goes_on(&no));
        assert!(!patience.goes_on(&ClientError::Silent { limit: PATIENCE }));
        patience.since = Instant::now().checked_sub(PATIENCE);
        assert!(!patience.goes_on(&no));
        patience.answered();
        assert!(patience.goes_on(&no));
    }
}
