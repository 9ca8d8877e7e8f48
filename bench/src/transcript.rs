//! All that a guest said on its console, over any number of moves back and forth.
//!
//! A host's console file may be emptied or removed once the guest has left it. So it is kept open and read to its end.
//! Only then is the next host's file opened, where the guest's part of it begins.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use linerate_lab::console::value;

use crate::interrupt;

const BAD: [&str; 5] = ["MEMBAD", "DISKBAD", "DISKERR", "GUESTERR", "Kernel panic"];

#[derive(Debug)]
pub struct Transcript {
    path: PathBuf,
    file: Option<File>,
    skip: u64,
    text: String,
}

impl Transcript {
    /// Begins with a file that need not exist yet.
    pub fn new(path: PathBuf) -> Transcript {
        Transcript { path, file: None, skip: 0, text: String::new() }
    }

    /// Length of a console file now: where a guest's part begins that arrives later.
    pub fn length(path: &Path) -> u64 {
        std::fs::metadata(path).map_or(0, |file| file.len())
    }

    /// The guest went on to another file, where its part begins after `skip` bytes.
    pub fn arrived(&mut self, path: PathBuf, skip: u64) {
        self.read();
        (self.path, self.file, self.skip) = (path, None, skip);
        self.read();
    }

    /// Reads what is new; gives all of it.
    pub fn read(&mut self) -> &str {
        if self.file.is_none() {
            self.file = open(&self.path, self.skip);
        }
        let mut bytes = Vec::new();
        if let Some(file) = &mut self.file {
            // What cannot be read now is read the next time.
            let _ = file.read_to_end(&mut bytes);
        }
        self.text.extend(String::from_utf8_lossy(&bytes).chars().filter(|letter| *letter != '\r'));
        &self.text
    }

    /// Lines that it has ended; the one that it still writes is left out.
    pub fn lines(&mut self) -> Vec<&str> {
        let text = self.read();
        text.rfind('\n').map_or(Vec::new(), |end| text.get(..end).unwrap_or("").lines().collect())
    }

    /// How many complete lines there are.
    pub fn count(&mut self) -> usize {
        self.lines().len()
    }

    /// Lines with which the guest says that memory or disk are not what it wrote.
    pub fn bad(&mut self) -> Vec<String> {
        let lines = self.lines().into_iter();
        let bad = lines.filter(|line| BAD.iter().any(|word| line.contains(word)) || has_bad(line));
        bad.map(str::to_owned).collect()
    }

    /// Numbers of finished passes.
    pub fn passes(&mut self) -> Vec<u64> {
        let lines = self.lines().into_iter().filter(|line| line.starts_with("OK "));
        lines.filter_map(|line| value(line, "pass")?.parse().ok()).collect()
    }

    /// No pass was lost or done twice: no older copy of the guest came back.
    pub fn passes_follow(&mut self) -> bool {
        self.passes().iter().zip(1..).all(|(pass, expected)| *pass == expected)
    }

    /// Everything that is not as it must be.
    pub fn damage(&mut self) -> Vec<String> {
        let mut damage = self.bad();
        if !self.passes_follow() {
            damage.push("passes do not follow one another".to_owned());
        }
        damage
    }

    /// The same of a guest that shall go on: a page or a slot that was harmed is only seen when it comes to it again.
    pub fn damage_in_two_passes(&mut self, limit: Duration) -> Vec<String> {
        let goes_on = self.wait_passes(2, limit);
        goes_on.err().map(|error| format!("{error:#}")).into_iter().chain(self.damage()).collect()
    }

    /// Rates on lines that begin with `start`, from line number `from` on: of `WORK n= ms=` the first over the second,
    /// of anything else the value of `key`.
    pub fn rates(&mut self, from: usize, start: &str, key: &str) -> Vec<f64> {
        let lines = self.lines().into_iter().skip(from).filter(|line| line.starts_with(start));
        let number = |line, key| value(line, key).and_then(|text| text.parse::<f64>().ok());
        lines
            .filter_map(|line| {
                let above = number(line, key)?;
                let below = if start.starts_with("WORK") { number(line, "ms")? } else { 1.0 };
                (below > 0.0).then_some(above / below)
            })
            .collect()
    }

    /// Waits for a line that begins with `start`.
    pub fn wait_for(&mut self, start: &str, limit: Duration) -> anyhow::Result<()> {
        let what = format!("a console line '{start}'");
        self.wait(&what, limit, |transcript| transcript.lines().iter().any(|line| line.starts_with(start)))
    }

    /// Waits for `count` more passes.
    pub fn wait_passes(&mut self, count: usize, limit: Duration) -> anyhow::Result<()> {
        let target = self.passes().len() + count;
        self.wait("more passes of the guest", limit, |transcript| transcript.passes().len() >= target)
    }

    /// Waits until so many more slots of the disk have been read or written.
    pub fn wait_disk(&mut self, count: u64, limit: Duration) -> anyhow::Result<()> {
        let target = self.disk_operations() + count;
        self.wait("more operations of the guest on its disk", limit, |transcript| {
            transcript.disk_operations() >= target
        })
    }

    fn disk_operations(&mut self) -> u64 {
        let lines = self.lines();
        let last = lines.iter().rev().find(|line| line.starts_with("DISK "));
        last.and_then(|line| value(line, "ops")?.parse().ok()).unwrap_or(0)
    }

    fn wait(
        &mut self,
        what: &str,
        limit: Duration,
        look: impl Fn(&mut Transcript) -> bool,
    ) -> anyhow::Result<()> {
        let end = Instant::now() + limit;
        while !look(self) {
            interrupt::check()?;
            if Instant::now() >= end {
                let last: Vec<String> =
                    self.lines().iter().rev().take(5).map(|line| (*line).to_owned()).collect();
                bail!(
                    "{what} did not come within {limit:?}; {} ends (newest first): {last:?}",
                    self.path.display()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

fn has_bad(line: &str) -> bool {
    (line.starts_with("OK ") || line.starts_with("DISK ")) && value(line, "bad").is_some_and(|bad| bad != "0")
}

fn open(path: &Path, skip: u64) -> Option<File> {
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    // A file that is shorter than it was is a new one.
    let begin = if length < skip { 0 } else { skip };
    file.seek(SeekFrom::Start(begin)).context("seek").ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_file_is_read_to_its_end_and_a_used_one_from_the_guests_part() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("1"), folder.path().join("2"));
        std::fs::write(&one, "BOOTED\r\nOK pass=1 bad=0\r\n").unwrap();
        std::fs::write(&two, "OK pass=9 bad=0\n").unwrap();
        let mut transcript = Transcript::new(one.clone());
        assert_eq!(transcript.passes(), [1]);
        std::fs::write(&one, "BOOTED\r\nOK pass=1 bad=0\r\nOK pa").unwrap();
        std::fs::remove_file(&one).unwrap();
        let skip = Transcript::length(&two);
        std::fs::write(&two, "OK pass=9 bad=0\nss=2 bad=0\nOK pass=3 bad=0\n").unwrap();
        transcript.arrived(two, skip);
        assert_eq!(transcript.passes(), [1, 2, 3]);
        assert!(transcript.passes_follow() && transcript.bad().is_empty());
    }

    #[test]
    fn damage_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1");
        std::fs::write(&path, "OK pass=1 bad=1\nDISK ops=1 bad=0\nMEMBAD page=1\nOK pass=3 bad=0\n").unwrap();
        let mut transcript = Transcript::new(path);
        assert_eq!(transcript.bad().len(), 2);
        assert!(!transcript.passes_follow());
    }
}
