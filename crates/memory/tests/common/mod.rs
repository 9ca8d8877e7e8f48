//! Test guests that leave nothing behind. All of these tests need root.
#![allow(dead_code, reason = "each test program uses its part")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use linerate_core::Run;
use linerate_memory::{RamBlock, Tracker};

pub const PAGE: u64 = 4096;
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A file on tmpfs that is removed at the end.
pub struct Shm(pub PathBuf);

impl Shm {
    pub fn new() -> Shm {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Shm(PathBuf::from(format!("/dev/shm/linerate-memory-test-{}-{number}", std::process::id())))
    }

    pub fn sized(bytes: u64) -> (Shm, std::fs::File) {
        let shm = Shm::new();
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(&shm.0).unwrap();
        file.set_len(bytes).unwrap();
        (shm, file)
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A running test guest; killed and its file removed at the end.
pub struct Guest {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    pub path: PathBuf,
    _shm: Option<Shm>,
}

impl Guest {
    pub fn start(bytes: u64, options: &[&str]) -> Guest {
        let shm = Shm::new();
        let path = shm.0.clone();
        Guest::start_at(&path, bytes, options, Some(shm))
    }

    pub fn start_at(path: &Path, bytes: u64, options: &[&str], shm: Option<Shm>) -> Guest {
        let mut child = Command::new(env!("CARGO_BIN_EXE_linerate-test-guest"))
            .arg("--path")
            .arg(path)
            .args(["--size", &bytes.to_string()])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut guest = Guest { child, input, output, path: path.to_owned(), _shm: shm };
        assert_eq!(guest.line(), "READY");
        guest
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Gives a command and waits for its answer; reports of the writers before it must be good.
    pub fn command(&mut self, command: &str) {
        self.begin(command);
        self.finish(command);
    }

    /// Gives a command and goes on.
    pub fn begin(&mut self, command: &str) {
        writeln!(self.input.as_mut().unwrap(), "{command}").unwrap();
    }

    /// Waits for the answer to a command.
    pub fn finish(&mut self, command: &str) {
        loop {
            match self.line() {
                line if line == "DONE" => return,
                line => assert!(line.starts_with("OK "), "guest says {line:?} to {command:?}"),
            }
        }
    }

    /// Waits until the writers report more than `writes`.
    pub fn wait_writes(&mut self, writes: u64) -> u64 {
        loop {
            let line = self.line();
            let count: u64 =
                line.strip_prefix("OK ").unwrap_or_else(|| panic!("guest says {line:?}")).parse().unwrap();
            if count > writes {
                return count;
            }
        }
    }

    pub fn block(&self) -> RamBlock {
        RamBlock::find(self.pid(), "ram", &self.path).unwrap()
    }

    /// Gives pages back to the kernel, as a balloon does.
    pub fn punch(&self, first: u64, count: u64) {
        let mode = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(self.block().file(), mode, first * PAGE, count * PAGE).unwrap();
    }

    pub fn signal(&self, signal: i32) {
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    /// Stops all threads and waits until they are stopped.
    pub fn pause(&self) {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        assert_eq!(unsafe { libc::waitpid(self.pid(), &mut status, libc::WUNTRACED) }, self.pid());
        assert!(libc::WIFSTOPPED(status), "status {status:#x}");
    }

    pub fn resume(&self) {
        self.signal(libc::SIGCONT);
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Whether any mapping of the guest is registered with a userfaultfd for write protection.
    pub fn is_watched(&self) -> bool {
        is_watched(self.pid())
    }

    /// Pieces of its address space that show its RAM file.
    pub fn mappings(&self) -> usize {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap();
        maps.lines().filter(|line| line.ends_with(self.path.to_str().unwrap())).count()
    }

    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn is_watched(pid: i32) -> bool {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    assert!(smaps.contains("VmFlags:"));
    smaps
        .lines()
        .filter_map(|line| line.strip_prefix("VmFlags:"))
        .any(|flags| flags.split(' ').any(|flag| flag == "uw"))
}

pub fn run(first_page: u64, pages: u64) -> Run {
    Run { offset: first_page * PAGE, length: pages * PAGE }
}

/// Runs as (first page, pages).
pub fn in_pages(found: &[(usize, Run)]) -> Vec<(u64, u64)> {
    found.iter().map(|(_, run)| (run.offset / PAGE, run.length / PAGE)).collect()
}

/// Pages that were written since the last look, as (first page, pages); with `clear` they are protected again.
pub fn scan(tracker: &Tracker, clear: bool) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    tracker.scan(clear, &mut found).unwrap();
    in_pages(&found)
}
