//! A file of JSON lines. When it is full it gets the ending `.1`, and a new one begins.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use linerate_api::AuditEntry;

/// Bytes of a file, after which the next one begins.
const FULL: u64 = 16 << 20;
/// Full files that are kept.
const KEPT: usize = 4;

#[derive(Debug)]
pub(super) struct Log {
    files: Files,
    file: File,
    bytes: u64,
    full: u64,
}

impl Log {
    pub fn open(path: &Path) -> io::Result<Log> {
        let mut file = open(path)?;
        let mut bytes = file.seek(SeekFrom::End(0))?;
        if bytes > 0 {
            // A line that a crash or a full disk cut off must not swallow the next one.
            file.seek(SeekFrom::End(-1))?;
            let mut last = [0];
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
                bytes += 1;
            }
        }
        Ok(Log { files: Files(path.to_owned()), file, bytes, full: FULL })
    }

    /// All lines so far. They can be read while more are written.
    pub fn lines(&self) -> io::Result<Lines> {
        // Opened while no file begins anew: each line is in one of them.
        self.files.lines()
    }

    pub fn append(&mut self, entry: &AuditEntry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        if self.bytes > 0 && self.bytes + line.len() as u64 > self.full {
            self.begin_anew()?;
        }
        let written = self.file.write_all(&line);
        match &written {
            Ok(()) => self.bytes += line.len() as u64,
            // Whatever the disk took of it goes, so that the next line is whole.
            Err(_) => self.file.set_len(self.bytes)?,
        }
        written
    }

    fn begin_anew(&mut self) -> io::Result<()> {
        // First what a full disk refuses: the full files stay where they are then.
        let next = self.files.next();
        let file = open(&next)?;
        for number in (0..KEPT).rev() {
            match std::fs::rename(self.files.path(number), self.files.path(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        std::fs::rename(next, &self.files.0)?;
        (self.bytes, self.file) = (file.metadata()?.len(), file);
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    let no_link = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let options = &mut OpenOptions::new();
    let file = options.read(true).append(true).create(true).mode(0o600).custom_flags(no_link).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    let text = format!("{} is no regular file; move it away, and the agent makes one", path.display());
    Err(io::Error::other(text))
}

/// None if it is no regular file: a FIFO would be waited for.
fn open_to_read(path: &Path) -> io::Result<Option<File>> {
    use rustix::fs::OFlags;
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) if file.metadata()?.is_file() => Ok(Some(file)),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Where the lines are: the file that is written, and the full ones.
#[derive(Clone, Debug)]
pub(super) struct Files(PathBuf);

impl Files {
    pub fn of(path: PathBuf) -> Files {
        Files(path)
    }

    /// All lines. If a file begins anew meanwhile, one of the files may be missed.
    pub fn lines(&self) -> io::Result<Lines> {
        let opened = (0..=KEPT).rev().map(|number| open_to_read(&self.path(number)));
        Ok(Lines(opened.filter_map(Result::transpose).collect::<io::Result<_>>()?))
    }

    /// The file that is written, or a full one: 1 is the newest.
    fn path(&self, number: usize) -> PathBuf {
        let mut name = self.0.clone().into_os_string();
        if number > 0 {
            name.push(format!(".{number}"));
        }
        name.into()
    }

    /// One that is made, and not in its place yet.
    fn next(&self) -> PathBuf {
        let mut name = self.0.clone().into_os_string();
        name.push(".new");
        name.into()
    }
}

/// Open files, oldest first.
pub(super) struct Lines(Vec<File>);

impl Lines {
    /// All lines that are wanted, oldest first. What is no line of this log is passed over.
    pub fn read(self, wanted: impl Fn(&AuditEntry) -> bool) -> io::Result<Vec<AuditEntry>> {
        let mut found = Vec::new();
        for file in self.0 {
            for line in BufReader::new(file).split(b'\n') {
                found.extend(serde_json::from_slice(&line?).ok().filter(|entry| wanted(entry)));
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use linerate_api::{AuditAction, AuditCaller, AuditResult};

    use super::super::entry;
    use super::*;

    fn line(number: u64) -> AuditEntry {
        AuditEntry { unix_ms: number, ..entry(AuditAction::Look, AuditResult::Refused, AuditCaller::Agent) }
    }

    fn numbers(log: &Log) -> Vec<u64> {
        log.lines().unwrap().read(|_| true).unwrap().iter().map(|entry| entry.unix_ms).collect()
    }

    #[test]
    fn full_files_are_kept_for_a_while_and_their_number_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        let mut log = Log { full: 1000, ..Log::open(&path).unwrap() };
        (0..200).for_each(|number| log.append(&line(number)).unwrap());
        let kept = numbers(&log);
        assert_eq!(kept.last(), Some(&199));
        assert!(kept.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{kept:?}");
        let files: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|one| one.unwrap()).collect();
        assert_eq!(files.len(), KEPT + 1);
        for file in files {
            let about = file.metadata().unwrap();
            assert!(about.len() <= 1000);
            assert_eq!(about.permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn a_line_that_was_cut_off_does_not_swallow_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        let mut log = Log::open(&path).unwrap();
        log.append(&line(1)).unwrap();
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"unix_ms\": 7").unwrap();
        let mut log = Log::open(&path).unwrap();
        log.append(&line(2)).unwrap();
        assert_eq!(numbers(&log), [1, 2]);
    }

    #[test]
    fn a_file_that_cannot_begin_leaves_the_full_ones_where_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        let mut log = Log { full: 1000, ..Log::open(&path).unwrap() };
        (0..200).for_each(|number| log.append(&line(number)).unwrap());
        let before = numbers(&log);
        // In the way of each new file, also for root.
        let in_the_way = log.files.next();
        std::fs::create_dir(&in_the_way).unwrap();
        let written = (200..300).take_while(|number| log.append(&line(*number)).is_ok()).count() as u64;
        assert!(written < 100);
        (0..20).for_each(|_| drop(log.append(&line(999)).unwrap_err()));
        let kept = numbers(&log);
        assert!(kept.starts_with(&before), "{before:?} {kept:?}");
        std::fs::remove_dir(&in_the_way).unwrap();
        log.append(&line(300)).unwrap();
        assert_eq!(numbers(&log).last(), Some(&300));
    }

    #[test]
    fn a_fifo_in_place_of_a_full_file_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        let mut log = Log::open(&path).unwrap();
        log.append(&line(1)).unwrap();
        let (fifo, mode) = (dir.path().join("a.jsonl.1"), rustix::fs::Mode::RUSR);
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).unwrap();
        assert_eq!(numbers(&log), [1]);
    }

    #[test]
    fn a_fifo_or_a_device_in_its_place_is_refused_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("a.jsonl");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).unwrap();
        let error = Log::open(&fifo).unwrap_err().to_string();
        assert!(error.contains("a.jsonl is no regular file"), "{error}");
        assert!(Log::open(Path::new("/dev/null")).is_err());
    }

    #[test]
    fn a_symbolic_link_in_its_place_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("other"), "").unwrap();
        std::os::unix::fs::symlink("other", dir.path().join("a.jsonl")).unwrap();
        assert!(Log::open(&dir.path().join("a.jsonl")).is_err());
    }
}
