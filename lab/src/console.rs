//! What a guest said on its serial console, over all hosts that it was on.

use std::path::PathBuf;
use std::time::Duration;

use crate::{LabError, wait};

/// The serial files of one guest, in the order of the hosts that it visited.
#[derive(Debug, Clone)]
pub struct Console {
    files: Vec<PathBuf>,
}

// Words that begin a line about damage, or a line of a guest that cannot go on.
const BAD: [&str; 5] = ["MEMBAD", "DISKBAD", "DISKERR", "GUESTERR", "Kernel panic"];

impl Console {
    /// Reads these files; they need not exist yet.
    pub fn new(files: impl IntoIterator<Item = PathBuf>) -> Console {
        Console { files: files.into_iter().collect() }
    }

    /// The guest went on to another host.
    pub fn then(&mut self, file: PathBuf) {
        self.files.push(file);
    }

    /// All that it said. The files are joined as they are: a line that a migration cut in two is whole again.
    pub fn text(&self) -> String {
        let bytes: Vec<u8> =
            self.files.iter().flat_map(|file| std::fs::read(file).unwrap_or_default()).collect();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }

    /// Lines that it has ended; the one that it still writes is left out.
    pub fn lines(&self) -> Vec<String> {
        let text = self.text();
        let whole = text.rfind('\n').map_or("", |end| text.get(..end).unwrap_or(""));
        whole.lines().map(str::to_owned).collect()
    }

    /// Lines with which the guest says that memory or disk are not what it wrote.
    pub fn bad_lines(&self) -> Vec<String> {
        let is_bad = |line: &String| BAD.iter().any(|word| line.contains(word));
        self.lines().into_iter().filter(is_bad).collect()
    }

    /// Numbers of the finished passes, in the order of their lines.
    pub fn passes(&self) -> Vec<u64> {
        self.values("OK ", "pass")
    }

    /// The last finished pass, 0 when there was none.
    pub fn last_pass(&self) -> u64 {
        self.passes().last().copied().unwrap_or(0)
    }

    /// Whether each pass follows the one before: no pass was lost, none was done twice, no older guest came back.
    pub fn passes_follow(&self) -> bool {
        self.passes().iter().zip(1..).all(|(pass, expected)| *pass == expected)
    }

    /// All values of `key=` on lines that begin with `start`.
    pub fn values(&self, start: &str, key: &str) -> Vec<u64> {
        let lines = self.lines();
        let lines = lines.iter().filter(|line| line.starts_with(start));
        lines.filter_map(|line| value(line, key)?.parse().ok()).collect()
    }

    /// Waits for a line that begins with `start`.
    pub fn wait_for(&self, start: &str, limit: Duration) -> Result<String, LabError> {
        self.wait(&format!("a console line '{start}'"), limit, || {
            self.lines().into_iter().find(|line| line.starts_with(start))
        })
    }

    /// Waits for the lines of `count` more passes than now, and gives the last one's number.
    pub fn wait_passes(&self, count: u64, limit: Duration) -> Result<u64, LabError> {
        // By lines: a guest that has just arrived begins an empty file with whatever pass it is in.
        let target = self.passes().len() + usize::try_from(count).unwrap_or(usize::MAX);
        self.wait(&format!("{count} more passes of the guest"), limit, || {
            Some(self.passes()).filter(|passes| passes.len() >= target)?.pop()
        })
    }

    /// Waits until so many more slots of its disk have been read or written than the next line about it says.
    pub fn wait_disk(&self, count: u64, limit: Duration) -> Result<(), LabError> {
        let before = self.values("DISK ", "ops").len();
        self.wait(&format!("{count} more operations of the guest on its disk"), limit, || {
            let since = self.values("DISK ", "ops");
            let (first, last) = (since.get(before)?, since.last()?);
            (last.saturating_sub(*first) >= count).then_some(())
        })
    }

    fn wait<T>(
        &self,
        what: &str,
        limit: Duration,
        mut look: impl FnMut() -> Option<T>,
    ) -> Result<T, LabError> {
        let tail = || self.files.last().map(|file| crate::process::tail(file)).unwrap_or_default();
        wait::until(what, limit, tail, || Ok(look()))
    }
}

/// The value of `key=value` among the words of a line.
pub fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn console(texts: &[&str]) -> (tempfile::TempDir, Console) {
        let folder = tempfile::tempdir().unwrap();
        let files = texts.iter().enumerate().map(|(number, text)| {
            let path = folder.path().join(number.to_string());
            std::fs::write(&path, text).unwrap();
            path
        });
        let console = Console::new(files.collect::<Vec<_>>());
        (folder, console)
    }

    #[test]
    fn a_line_cut_by_a_migration_is_one_line() {
        let (_folder, console) =
            console(&["BOOTED up=1\r\nOK pass=1 bad=0\r\nOK pa", "ss=2 bad=0\r\nOK pass=3"]);
        assert_eq!(console.passes(), [1, 2]);
        assert!(console.passes_follow());
        assert_eq!(console.bad_lines(), Vec::<String>::new());
    }

    #[test]
    fn a_guest_that_went_back_is_seen() {
        let (_folder, older) = console(&["OK pass=1 bad=0\nOK pass=2 bad=0\n", "OK pass=2 bad=0\n"]);
        assert!(!older.passes_follow());
        let (_folder, gap) = console(&["OK pass=1 bad=0\n", "OK pass=3 bad=0\n"]);
        assert!(!gap.passes_follow());
    }

    #[test]
    fn counting_begins_at_the_guests_first_line_after_arrival() {
        let (folder, console) = console(&[""]);
        let done = std::sync::atomic::AtomicBool::new(false);
        let writes = || {
            let mut file = std::fs::File::options().append(true).open(folder.path().join("0")).unwrap();
            for number in 70.. {
                std::thread::sleep(Duration::from_millis(40));
                writeln!(file, "OK pass={number} bad=0\nDISK ops={number} bad=0").unwrap();
                if done.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(writes);
            assert!(console.wait_passes(2, Duration::from_secs(60)).unwrap() > 70);
            let before = console.values("DISK ", "ops").len() as u64;
            console.wait_disk(5, Duration::from_secs(60)).unwrap();
            assert!(*console.values("DISK ", "ops").last().unwrap() >= 70 + before + 5);
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }

    #[test]
    fn damage_is_found() {
        let (_folder, console) = console(&["OK pass=1 bad=0\nMEMBAD page=7\n", "DISKBAD on disk slot=1\n"]);
        assert_eq!(console.bad_lines().len(), 2);
    }
}
