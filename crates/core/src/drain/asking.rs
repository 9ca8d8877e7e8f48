//! Questions that are asked again until the answer is another one: how often, and after which pause.

use std::time::Duration;

/// A question to which "not yet" is no end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asking {
    left: u32,
    pause: Duration,
}

impl Asking {
    /// Whether a destination lists a guest that has moved there.
    pub fn arrival() -> Asking {
        Asking { left: 50, pause: Duration::from_millis(100) }
    }

    /// Whether the store has a drain whose beginning it did not confirm: the request may arrive there late.
    pub fn begun() -> Asking {
        Asking { left: 30, pause: Duration::from_secs(1) }
    }

    /// Time between two questions.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// The answer was "not yet". Returns whether it is asked again, after the pause.
    pub fn not_yet(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_asked_again_and_not_for_ever() {
        for (mut asking, seconds) in [(Asking::arrival(), 5), (Asking::begun(), 30)] {
            let mut asked = 1;
            while asking.not_yet() {
                asked += 1;
                assert!(asked < 1000, "it is asked for ever: {asking:?}");
            }
            assert_eq!(asking.pause() * asked, Duration::from_secs(seconds), "{asking:?}");
            assert!(!asking.not_yet());
        }
    }
}
