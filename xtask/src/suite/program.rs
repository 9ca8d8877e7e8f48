//! A program of tests: run with a time limit, its output in files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// How often it is looked whether it has ended.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub name: String,
    pub executable: PathBuf,
    /// Where cargo would run it.
    pub folder: PathBuf,
}

/// What a program that has ended leaves.
pub struct Ended {
    pub text: String,
    pub errors: String,
    /// None if it ended well; otherwise how it ended.
    pub trouble: Option<String>,
    pub took: Duration,
}

impl Program {
    /// Runs it to its end. After `limit` it is killed, with every process that it or one of these started.
    pub fn run(&self, limit: Duration) -> Result<Ended> {
        // In files and not in pipes: a process that outlives the program and has them open delays nothing.
        let output = Output::new().context("there is no place for the output of tests")?;
        let begun = Instant::now();
        let mut child = Command::new(&self.executable)
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .stdin(Stdio::null())
            .stdout(output.out.try_clone()?)
            .stderr(output.errors.try_clone()?)
            .spawn()
            .with_context(|| format!("{} cannot be run", self.executable.display()))?;
        let status = wait(&mut child, begun + limit)?;
        let trouble = match status {
            None => Some(format!("not ended after {} min", limit.as_secs().div_ceil(60))),
            Some(status) if status.success() => None,
            Some(status) => Some(status.to_string()),
        };
        let [text, errors] = output.read()?;
        Ok(Ended { text, errors, trouble, took: begun.elapsed() })
    }
}

/// None if it had to be killed.
fn wait(child: &mut Child, end: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= end {
            kill_tree(child.id());
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    }
}

/// Parents are stopped before their children are looked for, so that none starts another meanwhile.
fn kill_tree(root: u32) {
    let mut all = vec![root];
    let mut next = 0;
    while let Some(&pid) = all.get(next) {
        signal(pid, "STOP");
        all.extend(children().remove(&pid).unwrap_or_default());
        next += 1;
    }
    all.iter().rev().for_each(|&pid| signal(pid, "KILL"));
}

fn signal(pid: u32, name: &str) {
    // One that has ended by itself is as good.
    let _ = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null()).status();
}

/// Processes by their parent.
fn children() -> BTreeMap<u32, Vec<u32>> {
    let mut found = BTreeMap::<u32, Vec<u32>>::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name, in brackets, may have blanks and brackets in it.
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        if let (Some(parent), Ok(pid)) = (parent, entry.file_name().to_string_lossy().parse()) {
            found.entry(parent).or_default().push(pid);
        }
    }
    found
}

/// Two files of this process, removed when dropped.
struct Output {
    paths: [PathBuf; 2],
    out: File,
    errors: File,
}

impl Output {
    fn new() -> io::Result<Output> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path =
            |kind| std::env::temp_dir().join(format!("linerate-suite-{}-{count}.{kind}", std::process::id()));
        let paths = ["out", "err"].map(path);
        let [out, errors] =
            paths.each_ref().map(|path| File::options().write(true).create_new(true).open(path));
        Ok(Output { out: out?, errors: errors?, paths })
    }

    fn read(&self) -> io::Result<[String; 2]> {
        let text =
            |path: &Path| Ok::<_, io::Error>(String::from_utf8_lossy(&std::fs::read(path)?).into_owned());
        Ok([text(&self.paths[0])?, text(&self.paths[1])?])
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        for path in &self.paths {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // Tests say what they expect.

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    /// A script in the place of a program of tests.
    struct Script(PathBuf);

    impl Script {
        fn new(name: &str, text: &str) -> Script {
            let path = std::env::temp_dir().join(format!("linerate-suite-{}-{name}", std::process::id()));
            // Another process writes it: a child that another thread begins meanwhile would have it open for writing,
            // and the kernel runs no such file.
            let written = path.with_extension("text");
            std::fs::write(&written, format!("#!/bin/sh\n{text}\n")).unwrap();
            let made = Command::new("install").args(["-m", "755"]).arg(&written).arg(&path).status();
            std::fs::remove_file(&written).unwrap();
            assert!(made.unwrap().success());
            Script(path)
        }

        fn run(&self, limit: Duration) -> Ended {
            let program =
                Program { name: "x".into(), executable: self.0.clone(), folder: std::env::temp_dir() };
            program.run(limit).unwrap()
        }
    }

    impl Drop for Script {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn output_and_exit_status_are_recorded() {
        let good = Script::new("good", "echo 'test a ... ok'; echo 'not run: a: b' >&2").run(LONG);
        assert_eq!((good.text.as_str(), good.errors.as_str()), ("test a ... ok\n", "not run: a: b\n"));
        assert_eq!(good.trouble, None);
        let bad = Script::new("bad", "exit 101").run(LONG);
        assert_eq!(bad.trouble.as_deref(), Some("exit status: 101"));
        let crashed = Script::new("crashed", "echo 'running 2 tests'; kill -ABRT $$").run(LONG);
        assert!(crashed.trouble.unwrap().starts_with("signal: 6"), "{}", crashed.text);
        assert_eq!(crashed.text, "running 2 tests\n");
    }

    /// A process that has left its process group is found too, and delays nothing.
    #[test]
    fn one_that_does_not_end_is_killed_with_all_that_it_started() {
        let script = Script::new("hangs", "setsid sleep 8765432 & echo $!; wait");
        // On a busy host it may take longer until it has started the other.
        let found = [2, 10, 60].into_iter().find_map(|seconds| {
            let ended = script.run(Duration::from_secs(seconds));
            assert_eq!(ended.trouble.as_deref(), Some("not ended after 1 min"));
            ended.text.trim().parse::<u32>().ok()
        });
        let started = found.unwrap();
        let gone = |stat: &str| stat.is_empty() || stat.contains(") Z ");
        let stat = || std::fs::read_to_string(format!("/proc/{started}/stat")).unwrap_or_default();
        // It has its signal: it ends as soon as it gets CPU.
        let end = Instant::now() + LONG;
        while !gone(&stat()) && Instant::now() < end {
            std::thread::sleep(LOOK);
        }
        assert!(gone(&stat()), "{}", stat());
    }
}
