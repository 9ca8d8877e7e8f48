//! What the demo says: numbered short lines, colours only on a terminal.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use super::findings::Findings;

/// Standard output, with a count of the steps.
pub struct Screen {
    colours: bool,
    step: u32,
    began: Instant,
}

impl Screen {
    pub fn new() -> Screen {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let colours = std::io::stdout().is_terminal() && !plain && !dumb;
        Screen { colours, step: 0, began: Instant::now() }
    }

    /// Whether `linerate migrate`, which writes to standard error, draws there; then nothing else may be written
    /// meanwhile.
    pub fn is_drawn_on(&self) -> bool {
        std::io::stderr().is_terminal()
    }

    pub fn title(&self, title: &str, below: &str) {
        self.line(&format!("\n  {}\n  {}", self.paint("1", title), self.paint("2", below)));
    }

    /// The next thing that is done.
    pub fn step(&mut self, text: &str) {
        self.step += 1;
        let number = self.paint("1;36", &format!("{:>2}", self.step));
        self.line(&format!("\n {number}  {}", self.paint("1", text)));
    }

    /// More about the step.
    pub fn note(&self, text: &str) {
        self.line(&format!("     {}", self.paint("2", text)));
    }

    /// A command as an operator would type it.
    pub fn command(&self, text: &str) {
        self.line(&format!("     {}\n", self.paint("36", &format!("# {text}"))));
    }

    /// A fact that was looked at, and whether it is as it should be.
    pub fn fact(&self, good: bool, who: &str, text: &str) {
        let mark = if good { self.paint("32", "✓") } else { self.paint("1;31", "✗") };
        self.line(&format!("   {mark} {}{text}", self.paint("2", &format!("{who:<10}"))));
    }

    pub fn verdict(&self, findings: &Findings) {
        let word = if findings.good() { self.paint("1;32", "PASS") } else { self.paint("1;31", "FAIL") };
        let seconds = self.began.elapsed().as_secs();
        self.line(&format!(
            "\n  {word}  {}  {}",
            findings.summary(),
            self.paint("2", &format!("({seconds} s)"))
        ));
        for problem in findings.problems() {
            self.line(&format!("        {}", self.paint("31", problem)));
        }
        self.line("");
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// A reader that went away is no reason to leave the lab behind, so errors are passed over.
    fn line(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }
}
