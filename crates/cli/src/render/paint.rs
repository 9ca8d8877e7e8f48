//! Colours, or none.

/// Puts colours around text, or leaves it as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paint {
    pub colours: bool,
}

impl Paint {
    /// No colours: what tests and pipes see.
    pub const PLAIN: Paint = Paint { colours: false };

    fn wrap(self, code: &str, text: &str) -> String {
        if self.colours && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// For what the reader is to see first.
    pub fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    /// For what only explains.
    pub fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    /// For a good outcome.
    pub fn green(self, text: &str) -> String {
        self.wrap("32", text)
    }

    /// For what is in progress.
    pub fn cyan(self, text: &str) -> String {
        self.wrap("36", text)
    }

    /// For what is worth a look.
    pub fn yellow(self, text: &str) -> String {
        self.wrap("33", text)
    }

    /// For what needs an operator.
    pub fn red(self, text: &str) -> String {
        self.wrap("1;31", text)
    }
}
