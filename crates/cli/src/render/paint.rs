//! Colours, or none.

/// Puts colours around text, or leaves it as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paint {
    /// Whether to.
    pub colours: bool,
}

impl Paint {
    /// No colours: what tests and pipes see.
    pub const PLAIN: Paint = Paint { colours: false };

    fn wrap(self, code: &str, text: &str) -> String {
        if self.colours && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// What stands out.
    pub fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    /// What stands back.
    pub fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    /// Good.
    pub fn green(self, text: &str) -> String {
        self.wrap("32", text)
    }

    /// Under way.
    pub fn cyan(self, text: &str) -> String {
        self.wrap("36", text)
    }

    /// Worth a look.
    pub fn yellow(self, text: &str) -> String {
        self.wrap("33", text)
    }

    /// Bad.
    pub fn red(self, text: &str) -> String {
        self.wrap("1;31", text)
    }
}
