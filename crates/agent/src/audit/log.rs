//! A file of JSON lines. When it is full it gets the ending `.1`, and a new one begins.

use std::collections::BTreeMap;
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
    /// A crash or a full disk cut the last line off: it must not swallow the next one.
    is_cut: bool,
}

impl Log {
    /// Writes nothing: an agent starts on a full disk, too.
    pub fn open(path: &Path) -> io::Result<Log> {
        let mut file = open(path)?;
        let bytes = file.seek(SeekFrom::End(0))?;
        let mut last = *b"\n";
        if bytes > 0 {
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
        }
        Ok(Log { files: Files(path.to_owned()), file, bytes, full: FULL, is_cut: last != *b"\n" })
    }

    /// All lines so far. They can be read while more are written.
    pub fn lines(&self) -> io::Result<Lines> {
        // Opened while no file begins anew: each line is in one of them.
        self.files.lines()
    }

    pub fn append(&mut self, entry: &AuditEntry) -> io::Result<()> {
        let mut line = if self.is_cut { vec![b'\n'] } else { Vec::new() };
        serde_json::to_writer(&mut line, entry)?;
        line.push(b'\n');
        if self.bytes > 0 && self.bytes + line.len() as u64 > self.full {
            self.begin_anew()?;
        }
        let written = self.file.write_all(&line);
        match &written {
            Ok(()) => (self.bytes, self.is_cut) = (self.bytes + line.len() as u64, false),
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

/// None if there is no such file.
fn open_to_read(path: &Path) -> io::Result<Option<Opened>> {
    use rustix::fs::OFlags;
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let about = file.metadata()?;
    // A line that is written from now on is not read in part.
    let file = about.is_file().then(|| file.take(about.len()));
    Ok(Some(Opened { path: path.to_owned(), file }))
}

#[derive(Debug)]
struct Opened {
    path: PathBuf,
    /// What it had when it was opened. None if it is no regular file: a FIFO would be waited for.
    file: Option<io::Take<File>>,
}

/// Where the lines are: the file that is written, and the full ones.
#[derive(Clone, Debug)]
pub(super) struct Files(PathBuf);

impl Files {
    pub fn of(path: PathBuf) -> Files {
        Files(path)
    }

    /// The file that is written.
    pub fn written(&self) -> &Path {
        &self.0
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
pub(super) struct Lines(Vec<Opened>);

impl Lines {
    /// All lines that are wanted, oldest first, and what is no line of this log.
    pub fn read(self, wanted: impl Fn(&AuditEntry) -> bool) -> io::Result<Found> {
        let mut found = Found::default();
        for Opened { path, file } in self.0 {
            let Some(file) = file else {
                found.unreadable.push(Unreadable { file: path, first: 0, lines: 0, until_ms: None });
                continue;
            };
            for (number, line) in (1..).zip(BufReader::new(file).split(b'\n')) {
                found.add(&path, number, &line?, &wanted);
            }
        }
        Ok(found)
    }
}

/// What a log has.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub entries: Vec<AuditEntry>,
    pub unreadable: Vec<Unreadable>,
}

impl Found {
    fn add(&mut self, path: &Path, number: u64, line: &[u8], wanted: &impl Fn(&AuditEntry) -> bool) {
        match serde_json::from_slice::<AuditEntry>(line) {
            Ok(entry) => {
                let before = self.unreadable.iter_mut().rev().take_while(|one| one.until_ms.is_none());
                before.for_each(|one| one.until_ms = Some(entry.unix_ms));
                self.entries.extend(Some(entry).filter(wanted));
            }
            Err(_) if line.is_empty() => {}
            Err(_) => match self.unreadable.last_mut() {
                Some(last) if last.until_ms.is_none() && last.file == path => last.lines += 1,
                _ => {
                    let file = path.to_owned();
                    self.unreadable.push(Unreadable { file, first: number, lines: 1, until_ms: None });
                }
            },
        }
    }
}

/// Lines of a file that are no lines of this log, and have none between them: another release wrote them, a crash cut
/// them off, or the file is damaged.
#[derive(Debug)]
pub(super) struct Unreadable {
    file: PathBuf,
    /// Number of the first one.
    first: u64,
    /// How many. 0: the file is no regular one.
    lines: u64,
    /// When the next line of the log was written; none if there is none.
    until_ms: Option<u64>,
}

impl Unreadable {
    /// Whether they may have been written then or later.
    pub fn may_be_since(&self, from_ms: u64) -> bool {
        self.until_ms.is_none_or(|until| until >= from_ms)
    }
}

/// A sentence for each file that has some.
pub(super) fn texts(all: &[Unreadable]) -> Vec<String> {
    let mut files: BTreeMap<&Path, (u64, u64)> = BTreeMap::new();
    for one in all {
        let (_, lines) = files.entry(&one.file).or_insert((one.first, 0));
        *lines += one.lines;
    }
    let text = |(file, (first, lines)): (&Path, (u64, u64))| match (file.display(), lines) {
        (file, 0) => format!("{file} is no regular file, and was not read"),
        (file, 1) => format!("{file}: line {first} cannot be read"),
        (file, _) => format!("{file}: {lines} lines cannot be read, the first is line {first}"),
    };
    files.into_iter().map(text).collect()
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

    fn found(log: &Log) -> Found {
        log.lines().unwrap().read(|_| true).unwrap()
    }

    fn numbers(log: &Log) -> Vec<u64> {
        found(log).entries.iter().map(|entry| entry.unix_ms).collect()
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
        let bytes = || std::fs::metadata(&path).unwrap().len();
        let before = bytes();
        let mut log = Log::open(&path).unwrap();
        assert_eq!(bytes(), before, "a full disk would keep the agent from starting");
        (2..4).for_each(|number| log.append(&line(number)).unwrap());
        assert_eq!(numbers(&log), [1, 2, 3]);
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
        let said = format!("{} is no regular file, and was not read", fifo.display());
        assert_eq!(texts(&found(&log).unreadable), [said]);
    }

    #[test]
    fn what_is_no_line_is_counted_and_lies_before_the_next_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        let write = |text: &str| {
            let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        let mut log = Log::open(&path).unwrap();
        log.append(&line(1)).unwrap();
        // A line that was cut off, and one with an action of a later release.
        write(
            "{\"unix_ms\": 7\n{\"unix_ms\":8,\"action\":\"fly\",\"result\":\"done\",\"caller\":{\"kind\":\"agent\"}}\n",
        );
        log.append(&line(20)).unwrap();
        write("\0\0\0");
        assert_eq!(numbers(&log), [1, 20]);
        let said = |from_ms: u64| {
            let mut all = found(&log).unreadable;
            all.retain(|one| one.may_be_since(from_ms));
            texts(&all)
        };
        let file = path.display();
        assert_eq!(said(0), [format!("{file}: 3 lines cannot be read, the first is line 2")]);
        assert_eq!(said(20), said(0));
        assert_eq!(said(21), [format!("{file}: line 5 cannot be read")]);
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
