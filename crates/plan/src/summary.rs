//! Running seeds and adding up what happened.

use std::fmt;
use std::time::Duration;

use linerate_core::{Code, GuestState, Time};

use crate::check::{Answer, Options, Violation};
use crate::faults::FaultKind;
use crate::world::World;

/// How the first session of a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Moved,
    /// It did not, and the guest is at the source; the fault's code if the agent ran long enough to report it.
    Stayed(Option<Code>),
    /// A host crashed with it.
    Died,
    /// Two operators, who could not know of each other, let two copies run.
    Split,
}

/// What happened in a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// How the first session ended.
    pub end: End,
    /// A second session was tried (and moved the guest, if it could).
    pub retried: bool,
    /// Faults that happened, by [`FaultKind::kind`].
    pub faults: [u64; FaultKind::NAMES.len()],
    /// Answers to operators, by [`Answer`].
    pub answers: [u64; Answer::NAMES.len()],
    /// Two operators decided over one session.
    pub pairs: u64,
    /// Time of the simulation.
    pub took: Duration,
    /// How many events the simulation went through.
    pub events: u64,
    /// The last lines of the trace, if one was kept.
    pub trace: Vec<String>,
}

/// Runs a seed. On a violation it is run once more with a trace.
pub fn simulate(seed: u64, options: Options) -> Result<Report, Box<Violation>> {
    run(seed, options).map_err(|violation| {
        let traced = Options { trace: true, ..options };
        if options.trace { violation } else { run(seed, traced).err().unwrap_or(violation) }
    })
}

fn run(seed: u64, options: Options) -> Result<Report, Box<Violation>> {
    let mut world = World::new(seed, options);
    if options.histories {
        world.live_through()?;
    } else {
        world.run()?;
    }
    let end = end(&world);
    let (faults, pairs) = (world.happened, world.check.pairs.len() as u64);
    let retried =
        !options.histories && matches!(end, End::Stayed(_)) && !world.guest.gone && world.guest.current;
    if retried {
        world.retry()?;
    }
    let trace = world.trace().cloned().collect();
    let answers = world.answers;
    let took = world.now - Time::ZERO;
    Ok(Report { end, retried, faults, answers, pairs, took, events: world.events, trace })
}

fn end(world: &World) -> End {
    let alive = !world.guest.gone || world.destination.owns();
    match world.source.decided {
        _ if world.check.is_split => End::Split,
        Some(GuestState::RunsAtDestination | GuestState::PausedAtDestination) if alive => End::Moved,
        _ if !alive => End::Died,
        _ => {
            let fault = world.source.ending.as_ref().and_then(|ending| ending.fault.as_ref());
            End::Stayed(fault.map(|fault| fault.code))
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Summary {
    runs: u64,
    moved: u64,
    died: u64,
    split: u64,
    pairs: u64,
    answers: [u64; Answer::NAMES.len()],
    retried: u64,
    stayed: Vec<(Option<Code>, u64)>,
    faults: [u64; FaultKind::NAMES.len()],
    took: Duration,
    events: u64,
}

impl Summary {
    pub fn add(&mut self, report: &Report) {
        self.runs += 1;
        self.retried += u64::from(report.retried);
        self.took += report.took;
        self.events += report.events;
        self.pairs += report.pairs;
        self.answers.iter_mut().zip(report.answers).for_each(|(sum, count)| *sum += count);
        self.faults.iter_mut().zip(report.faults).for_each(|(sum, count)| *sum += count);
        match report.end {
            End::Moved => self.moved += 1,
            End::Died => self.died += 1,
            End::Split => self.split += 1,
            End::Stayed(code) => self.stay(code),
        }
    }

    fn stay(&mut self, code: Option<Code>) {
        match self.stayed.iter_mut().find(|(known, _)| *known == code) {
            Some((_, count)) => *count += 1,
            None => self.stayed.push((code, 1)),
        }
    }

    /// Runs in which the guest moved.
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// Sessions over which two operators decided.
    pub fn pairs(&self) -> u64 {
        self.pairs
    }

    /// Answers to operators, by [`Answer`].
    pub fn answers(&self) -> [u64; Answer::NAMES.len()] {
        self.answers
    }

    /// Runs that ended because two operators let two copies run.
    pub fn split(&self) -> u64 {
        self.split
    }

    /// Faults that happened, by [`FaultKind::kind`].
    pub fn faults(&self) -> &[u64] {
        &self.faults
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>9}  runs, each promise kept", self.runs)?;
        writeln!(f, "{:>9}  the guest moved", self.moved)?;
        writeln!(f, "{:>9}  the guest died with its host", self.died)?;
        let mut stayed = self.stayed.clone();
        stayed.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        for (code, count) in stayed {
            let why = code.map_or("an agent was restarted", Code::sentence);
            writeln!(f, "{count:>9}  the guest stayed: {why}")?;
        }
        writeln!(f, "{:>9}  retries without faults", self.retried)?;
        writeln!(f, "{:>9}  sessions over which two operators decided", self.pairs)?;
        writeln!(f, "{:>9}  runs in which they let two copies run", self.split)?;
        for (name, count) in Answer::NAMES.iter().zip(self.answers) {
            writeln!(f, "{count:>9}  decisions answered: {name}")?;
        }
        for (name, count) in FaultKind::NAMES.iter().zip(self.faults) {
            writeln!(f, "{count:>9}  {name}")?;
        }
        let hours = self.took.as_secs_f64() / 3600.0;
        write!(f, "{hours:>9.1}  hours of virtual time, {} events", self.events)
    }
}
