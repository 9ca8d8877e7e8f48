//! `xtask test`: all tests of the workspace, some programs of them at a time. `cargo test` runs one program after the
//! other, and those that move guests wait most of their time: for guests to boot, for losses to be noticed.

mod counted;
mod program;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use counted::{Counted, Written};
use program::{Ended, Program};
use serde_json::Value;

/// Those that take minutes, the longest first: begun first, so that none of them is alone at the end.
const LONG: &[&str] = &[
    "real_libvirt_direct",
    "real_migration",
    "real_disks",
    "rdma",
    "real_stream",
    "real_orders",
    "real_recovery",
    "real_fleet",
    "real_drains",
    "doctor",
    "real_user",
    "linerate_agent",
    "real_join",
    "real_libvirt",
    "real_drain",
    "real_trust",
    "cluster",
    "real_tunnel",
    "guest",
    "fence",
    "debian",
    "linerate_guest",
];
/// At a time, where nothing else is said. Most of their time they wait.
const JOBS: usize = 5;

/// The longest takes sixteen minutes beside four others on two cores.
const LIMIT: Duration = Duration::from_secs(45 * 60);

/// Builds and runs them all; false if one failed. The last line says what became of them.
pub fn run(jobs: Option<&str>) -> Result<bool> {
    let jobs = jobs.map_or(Ok(JOBS), str::parse).context("how many at a time?")?;
    let waiting = Mutex::new(VecDeque::from(in_order(build()?)));
    let sum = Mutex::new(Counted::default());
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some(program) = next(&waiting) {
                    let counted = run_one(&program, LIMIT);
                    lock(&sum).add(counted);
                }
            });
        }
    });
    let mut sum = std::mem::take(&mut *lock(&sum));
    sum.add(examples());
    print(&sum.to_string());
    Ok(sum.is_good())
}

/// Runs the examples in the documentation.
fn examples() -> Counted {
    let asked = Command::new(cargo())
        .args(["test", "--workspace", "--locked", "--no-fail-fast", "--doc"])
        .stderr(Stdio::inherit())
        .output();
    match asked {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            let trouble = (!output.status.success()).then(|| output.status.to_string());
            print(&text);
            let program = "examples in the documentation";
            Counted::of(&Written { program, text: &text, errors: "", trouble: trouble.as_deref() })
        }
        Err(error) => failed(format!("cargo cannot be run: {error}")),
    }
}

fn failed(what: String) -> Counted {
    let mut counted = Counted::default();
    counted.fail(what);
    counted
}

fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// A panic of one thread ends the run as a whole, behind the others.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn next(waiting: &Mutex<VecDeque<Program>>) -> Option<Program> {
    lock(waiting).pop_front()
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
        programs.extend(program(&line.context("cargo's output is truncated")?));
    }
    if !child.wait()?.success() {
        bail!("the tests could not be built");
    }
    if programs.is_empty() {
        bail!("cargo named no test");
    }
    Ok(programs)
}

/// The program that a message of cargo's names, if it has tests.
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

/// Its output is shown when it has ended, so that those of two do not mix.
fn run_one(program: &Program, limit: Duration) -> Counted {
    print(&format!("begins: {}\n", program.name));
    match program.run(limit) {
        Ok(ended) => {
            print(&report(program, &ended));
            let (text, errors) = (&ended.text, &ended.errors);
            Counted::of(&Written { program: &program.name, text, errors, trouble: ended.trouble.as_deref() })
        }
        Err(error) => {
            print(&format!("{error:#}\n"));
            failed(format!("{} ({error:#})", program.name))
        }
    }
}

/// A line for each test, and all that was said if one failed.
fn report(program: &Program, ended: &Ended) -> String {
    let (shown, how) = match &ended.trouble {
        Some(trouble) => (ended.errors.as_str(), trouble.as_str()),
        None => ("", "exit status: 0"),
    };
    let folder = program.folder.file_name().unwrap_or_default().to_string_lossy();
    let (text, took) = (&ended.text, ended.took.as_secs_f64());
    format!("{text}{shown}ended: {folder}/{}, {took:.0} s, {how}\n\n", program.name)
}

fn print(text: &str) {
    // A closed output is not written any more; the exit code still counts.
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
    fn the_long_ones_begin_first_and_none_is_left_out() {
        let ordered = in_order(vec![named("a"), named("doctor"), named("b"), named("rdma")]);
        let names: Vec<&str> = ordered.iter().map(|program| program.name.as_str()).collect();
        assert_eq!(names, ["rdma", "doctor", "a", "b"]);
    }
}
