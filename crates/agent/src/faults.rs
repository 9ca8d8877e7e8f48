//! Errors of the modules below, as faults: which step, which side, and the whole chain of causes as text.

use std::error::Error;

use linerate_core::{Code, Fault, Side, Step};

/// An error and all its causes in one line.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

/// A fault of this side.
pub fn fault(code: Code, step: Step, side: Side, error: &(dyn Error + 'static)) -> Fault {
    Fault::new(code, step, side, chain(error))
}
