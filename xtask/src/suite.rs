//! `xtask test`: all tests of the workspace, some programs of them at a time. `cargo test` runs one program after the other,
//! and those that move guests wait most of their time: for guests to boot, for losses to be noticed.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Those that take minutes, the longest first: begun first, so that none of them is alone at the end.
const LONG: &[&str] = &[
    "real_recovery",
    "real_libvirt_direct",
    "rdma",
    "real_stream",
    "real_migration",
    "real_orders",
    "doctor",
    "real_disks",
    "real_libvirt",
];
/// At a time, where nothing else is said. More would share two cores among more emulated machines.
const JOBS: usize = 2;

/// A program with tests in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    name: String,
    executable: PathBuf,
    /// Where cargo would run it.
    folder: PathBuf,
}

/// Builds and runs them all; an error names those that failed.
pub fn run(jobs: Option<&str>) -> Result<()> {
    let jobs = jobs.map_or(Ok(JOBS), str::parse).context("how many at a time?")?;
    let waiting = Mutex::new(VecDeque::from(in_order(build()?)));
    let (failed, counted) = (Mutex::new(Vec::new()), Mutex::new(Counted::default()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some(program) = next(&waiting) {
                    match run_one(&program) {
                        Ok((ok, of_it)) => {
                            counted.lock().unwrap_or_else(PoisonError::into_inner).add(of_it);
                            if let Err(error) = ok {
                                failed.lock().unwrap_or_else(PoisonError::into_inner).push(error);
                            }
                        }
                        Err(error) => {
                            failed.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{error:#}"));
                        }
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let examples =
        Command::new(cargo()).args(["test", "--workspace", "--locked", "--quiet", "--doc"]).status();
    if !examples.context("cannot run cargo")?.success() {
        failed.push("examples in the documentation".into());
    }
    say(&counted.into_inner().unwrap_or_else(PoisonError::into_inner).to_string());
    if failed.is_empty() { Ok(()) } else { bail!("failed: {}", failed.join("; ")) }
}

/// What became of tests.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counted {
    passed: usize,
    failed: usize,
    /// Those that are marked as ignored, by reason.
    ignored: BTreeMap<String, usize>,
    /// Those that passed without doing anything, since the machine lacks something: a lab's `not_run` writes these lines.
    not_run: Vec<String>,
}

impl Counted {
    fn of(program: &Program, text: &str, errors: &str) -> Counted {
        let mut counted = Counted::default();
        for line in text.lines().filter_map(|line| line.strip_prefix("test ")) {
            let Some((_, what)) = line.split_once(" ... ") else { continue };
            match what.split_once(", ") {
                Some(("ignored", why)) => *counted.ignored.entry(why.to_owned()).or_default() += 1,
                _ if what == "ignored" => *counted.ignored.entry("without a reason".into()).or_default() += 1,
                _ => {}
            }
        }
        for line in text.lines().filter(|line| line.starts_with("test result: ")) {
            counted.passed += number_before(line, " passed");
            counted.failed += number_before(line, " failed");
        }
        let whys = errors.lines().filter_map(|line| line.strip_prefix("not run: "));
        counted.not_run = whys.map(|why| format!("{}, {why}", program.name)).collect();
        counted.passed = counted.passed.saturating_sub(counted.not_run.len());
        counted
    }

    fn add(&mut self, other: Counted) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.not_run.extend(other.not_run);
        for (why, count) in other.ignored {
            *self.ignored.entry(why).or_default() += count;
        }
    }
}

impl fmt::Display for Counted {
    /// The sum is the last line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.not_run {
            writeln!(f, "not run: {line}")?;
        }
        for (why, count) in &self.ignored {
            writeln!(f, "not run: {count} marked as ignored: {why}")?;
        }
        let not_run = self.not_run.len() + self.ignored.values().sum::<usize>();
        writeln!(f, "tests: {} passed, {} failed, {not_run} not run", self.passed, self.failed)
    }
}

/// 0 if there is none.
fn number_before(line: &str, word: &str) -> usize {
    let before = line.split(word).next().filter(|before| before.len() < line.len()).unwrap_or_default();
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

fn next(waiting: &Mutex<VecDeque<Program>>) -> Option<Program> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}

fn build() -> Result<Vec<Program>> {
    let mut child = Command::new(cargo())
        .args(["test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics"])
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut programs = Vec::new();
    for line in BufReader::new(output).lines() {
        programs.extend(program(&line.context("cargo's output breaks off")?));
    }
    if !child.wait()?.success() {
        bail!("the tests could not be built");
    }
    if programs.is_empty() {
        bail!("cargo named no test");
    }
    Ok(programs)
}

/// The program that a message of cargo's tells of, if it has tests.
fn program(line: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let executable = message["executable"].as_str().filter(|_| is_test)?.into();
    Some(Program { name: message["target"]["name"].as_str()?.to_owned(), executable, folder })
}

/// The long ones first; all others as cargo named them.
fn in_order(mut programs: Vec<Program>) -> Vec<Program> {
    programs.sort_by_key(|program| LONG.iter().position(|long| *long == program.name).unwrap_or(LONG.len()));
    programs
}

/// Its output is shown when it has ended, so that those of two do not mix. What became of its tests, and which program it is if
/// it failed.
fn run_one(program: &Program) -> Result<(Result<(), String>, Counted)> {
    let begun = Instant::now();
    say(&format!("begins: {}\n", program.name));
    let output = Command::new(&program.executable)
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{} cannot be run", program.executable.display()))?;
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    say(&report(program, output.status, begun.elapsed(), &text, &errors));
    let ok =
        if output.status.success() { Ok(()) } else { Err(format!("{} ({})", program.name, output.status)) };
    Ok((ok, Counted::of(program, &text, &errors)))
}

/// A line for each test, and all that was said if one failed.
fn report(program: &Program, status: ExitStatus, took: Duration, text: &str, errors: &str) -> String {
    let shown = if status.success() { "" } else { errors };
    let folder = program.folder.file_name().unwrap_or_default().to_string_lossy();
    format!("{text}{shown}ended: {folder}/{}, {:.0} s, {status}\n\n", program.name, took.as_secs_f64())
}

fn say(text: &str) {
    // Whoever closed the output wants no more of it; the exit code still tells.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // Tests say what they expect.

    use super::*;

    fn named(name: &str) -> Program {
        Program { name: name.into(), executable: "/x".into(), folder: "/".into() }
    }

    #[test]
    fn only_programs_with_tests_are_taken() {
        let line = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/lab/Cargo.toml","target":{{"name":"rdma"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let found = program(&line(true, r#""/w/target/rdma-1""#)).unwrap();
        assert_eq!((found.name.as_str(), found.folder.as_path()), ("rdma", Path::new("/w/lab")));
        for other in [line(false, r#""/w/target/linerate""#), line(true, "null"), "warning: x".into()] {
            assert_eq!(program(&other), None, "{other}");
        }
    }

    #[test]
    fn what_became_of_each_test_is_in_the_last_line() {
        let text = "running 5 tests\ntest a ... ok\ntest b ... FAILED\ntest c ... ignored, needs a device\ntest d ... ignored\n\
                    test e ... ignored, needs a device\n\ntest result: FAILED. 11 passed; 1 failed; 3 ignored; 0 measured\n";
        let errors = "warning: x\nnot run: kvm::a: no /dev/kvm (gone)\nit was not run: y\n";
        let mut counted = Counted::default();
        counted.add(Counted::of(&named("real_migration"), text, errors));
        counted.add(Counted::of(&named("x"), "test result: ok. 2 passed; 0 failed\n", ""));
        let said = counted.to_string();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(
            lines,
            [
                "not run: real_migration, kvm::a: no /dev/kvm (gone)",
                "not run: 2 marked as ignored: needs a device",
                "not run: 1 marked as ignored: without a reason",
                "tests: 12 passed, 1 failed, 4 not run"
            ]
        );
    }

    /// A program that passed and says so on its standard error.
    #[test]
    fn what_a_program_that_passed_says_is_heard() {
        let folder = std::env::temp_dir();
        let script = folder.join(format!("linerate-suite-{}", std::process::id()));
        std::fs::write(&script, "#!/bin/sh\necho 'not run: a: b' >&2\n").unwrap();
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let heard = run_one(&Program { executable: script.clone(), folder, ..named("x") });
        std::fs::remove_file(&script).unwrap();
        let (ok, counted) = heard.unwrap();
        assert_eq!((ok, counted.not_run), (Ok(()), vec!["x, a: b".to_owned()]));
    }

    #[test]
    fn the_long_ones_begin_first_and_none_is_left_out() {
        let ordered = in_order(vec![named("a"), named("doctor"), named("b"), named("rdma")]);
        let names: Vec<&str> = ordered.iter().map(|program| program.name.as_str()).collect();
        assert_eq!(names, ["rdma", "doctor", "a", "b"]);
    }
}
