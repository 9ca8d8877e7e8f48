//! Results on disk, and how far a run is on the terminal.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Serialize;

/// Replaces a file at once: who reads it sees the old or the new one, and an interrupted run leaves the last.
pub fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let draft = path.with_extension("new");
    std::fs::write(&draft, text).with_context(|| format!("cannot write {}", draft.display()))?;
    std::fs::rename(&draft, path).with_context(|| format!("cannot write {}", path.display()))
}

/// The same for a JSON document.
pub fn replace_json(path: &Path, document: &impl Serialize) -> anyhow::Result<()> {
    replace(path, &format!("{}\n", serde_json::to_string_pretty(document)?))
}

/// Says on standard error what is done and how long the rest may take.
#[derive(Debug)]
pub struct Progress {
    total: usize,
    done: usize,
    began: Instant,
    terminal: bool,
}

impl Progress {
    /// Nothing done of `total`. It is an error if there is nothing to do: no result would look like a good one.
    pub fn new(total: usize) -> anyhow::Result<Progress> {
        ensure!(total > 0, "nothing is to be measured: a number of rounds is 0, or no name fits");
        Ok(Progress::of_the_rest(total))
    }

    /// The same of what an earlier run has left, which may be nothing.
    pub fn of_the_rest(total: usize) -> Progress {
        Progress { total, done: 0, began: Instant::now(), terminal: std::io::stderr().is_terminal() }
    }

    /// Something begins; shown only where the line can be rewritten.
    pub fn doing(&self, what: &str) {
        if self.terminal {
            eprint!("\r\x1b[2K{} {what} …", self.head());
            // A terminal that went away is no reason to end.
            let _ = std::io::stderr().flush();
        }
    }

    /// One of the parts is done.
    pub fn done(&mut self, what: &str) {
        self.done += 1;
        self.print(&format!("{} {what}", self.head()));
    }

    /// Something that is no part of the count.
    pub fn print(&self, what: &str) {
        let clear = if self.terminal { "\r\x1b[2K" } else { "" };
        eprintln!("{clear}{what}");
    }

    fn head(&self) -> String {
        let spent = self.began.elapsed();
        let left = (self.done > 0)
            .then(|| spent.mul_f64(self.total.saturating_sub(self.done) as f64 / self.done as f64));
        let left = left.map_or(String::new(), |left| format!(", {} left", minutes(left)));
        format!("[{}/{} {}{left}]", self.done, self.total, minutes(spent))
    }
}

fn minutes(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_to_measure_is_no_good_result() {
        assert!(Progress::new(0).is_err() && Progress::new(1).is_ok());
    }
}
