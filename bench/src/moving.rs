//! One `linerate migrate --json`, followed event by event.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use linerate_api::{ErrorBody, Event, EventKind, MigrationOutcome, Progress, Report, Step, StepState};
use linerate_lab::Agent;
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use crate::interrupt;

/// A migration that has been asked for.
#[derive(Debug)]
pub struct Moving {
    child: Child,
    began: Instant,
    lines: Receiver<(Instant, String)>,
    errors: Option<JoinHandle<String>>,
    ending: Ending,
    /// The last line, if that was progress.
    progress: Option<(u64, Progress)>,
}

/// How it ended, as its client saw it.
#[derive(Debug, Clone, Default)]
pub struct Ending {
    /// None if the client was cut off, or was refused before it began.
    pub outcome: Option<MigrationOutcome>,
    pub error: Option<ErrorBody>,
    pub report: Option<Box<Report>>,
    /// From the request until the destination had confirmed that it runs the guest.
    pub runs_after: Option<Duration>,
    /// From the request until the client said how it ended.
    pub answered: Option<Duration>,
    /// From the request until the client ended.
    pub total: Duration,
    /// The client's exit code.
    pub exit: Option<i32>,
    /// What it wrote to standard error, whole.
    pub errors: String,
    pub steps: Vec<Step>,
    /// Links lost on the way.
    pub links_lost: usize,
}

impl Ending {
    pub fn completed(&self) -> bool {
        self.outcome == Some(MigrationOutcome::Completed)
    }

    /// The outcome in one line.
    pub fn text(&self) -> String {
        let why = self.error.as_ref().map_or_else(
            || self.errors.trim().to_owned(),
            |error| format!("{}: {}", error.code, error.message),
        );
        match self.outcome {
            Some(MigrationOutcome::Completed) => "completed".to_owned(),
            Some(outcome) => format!("{outcome:?} ({why})").to_lowercase(),
            None => format!("no outcome, exit {:?} ({why})", self.exit),
        }
    }
}

/// What the client says if it was refused, or lost the agent.
#[derive(Debug, Deserialize)]
struct Failure {
    error: ErrorBody,
    #[serde(rename = "exit_code")]
    _exit_code: i32,
}

impl Moving {
    /// Starts `linerate migrate --json`.
    pub fn begin(agent: &Agent, guest: &str, to: &str, flags: &[&str]) -> anyhow::Result<Moving> {
        let mut command = agent.client();
        command.args(["migrate", guest, "--to", to, "--json"]).args(flags);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let began = Instant::now();
        let mut child = command.spawn().context("cannot start linerate migrate")?;
        let (out, mut err) =
            (child.stdout.take().context("no output")?, child.stderr.take().context("no errors")?);
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if sender.send((Instant::now(), line)).is_err() {
                    break;
                }
            }
        });
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            // An error message that cannot be read is a shorter error message.
            let _ = err.read_to_string(&mut text);
            text
        });
        Ok(Moving { child, began, lines, errors: Some(errors), ending: Ending::default(), progress: None })
    }

    /// When it was asked for.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// The last step that began.
    pub fn step(&self) -> Option<Step> {
        self.ending.steps.last().copied()
    }

    /// Waits until a step begins; false if it ended before, or took longer.
    pub fn reach(&mut self, step: Step, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while !self.ending.steps.contains(&step) {
            if self.ending.outcome.is_some() || !self.next(end) {
                return false;
            }
        }
        true
    }

    /// The next progress that it prints, and when since it began, µs; none if it ended before, or printed nothing so
    /// long.
    pub fn progress(&mut self, end: Instant) -> Option<(u64, Progress)> {
        while self.ending.outcome.is_none() {
            self.progress = None;
            if !self.next(end) {
                break;
            }
            if let Some(progress) = self.progress.take() {
                return Some(progress);
            }
        }
        None
    }

    /// Takes the guest back, as Ctrl-C does.
    pub fn cancel(&self) -> anyhow::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::INT)?)
    }

    /// Follows it for a while, or to its end.
    pub fn follow(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while self.ending.outcome.is_none() && self.next(end) {}
    }

    /// Follows it to the end; after `limit` the client is asked to stop watching, and killed at last.
    pub fn finish(mut self, limit: Duration) -> Ending {
        let end = Instant::now() + limit;
        while self.next(end) {}
        if !matches!(self.child.try_wait(), Ok(Some(_))) && Instant::now() >= end {
            // It is only the watching that ends so; the guest's whereabouts are asked of the agents.
            let _ = self.child.kill();
        }
        self.ending.exit = self.child.wait().ok().and_then(|status| status.code());
        self.ending.total = self.began.elapsed();
        if let Some(errors) = self.errors.take() {
            self.ending.errors = errors.join().unwrap_or_default();
        }
        std::mem::take(&mut self.ending)
    }

    /// Takes one line; false at the end of the stream or the time.
    fn next(&mut self, end: Instant) -> bool {
        loop {
            if interrupt::asked() {
                return false;
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left.min(Duration::from_millis(200))) {
                Ok((at, line)) => {
                    self.take(at, &line);
                    return true;
                }
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return false,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn take(&mut self, at: Instant, line: &str) {
        // The first line is the migration's name; the client's own last word has no time in it.
        if let Ok(last) = serde_json::from_str::<Failure>(line) {
            self.ending.error = Some(last.error);
            self.ending.answered = Some(at.duration_since(self.began));
        }
        let Ok(event) = serde_json::from_str::<Event>(line) else { return };
        match event.kind {
            EventKind::Step { name, state: StepState::Started, .. } => self.ending.steps.push(name),
            EventKind::Step { name: Step::Commit, state: StepState::Done, .. } => {
                self.ending.runs_after = Some(at.duration_since(self.began));
            }
            EventKind::Progress(progress) => self.progress = Some((event.at_us, *progress)),
            EventKind::LinkLost { .. } => self.ending.links_lost += 1,
            EventKind::Finished { outcome, error, report } => {
                self.ending.outcome = Some(outcome);
                self.ending.answered = Some(at.duration_since(self.began));
                self.ending.error = error.map(|error| *error);
                self.ending.report = report;
            }
            _ => {}
        }
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        // Errors mean that it has ended already, as intended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
