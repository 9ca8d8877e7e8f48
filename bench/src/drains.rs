//! A host that is emptied: `linerate drain` against a number of migrations at once that somebody typed. Guests write at
//! different rates; all go to the other host, and the next method brings them back.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use linerate_api::{CordonAnswer, DrainDetail, DrainGuestState};
use linerate_lab::{Agent, Console, GuestParameters, GuestSpec, Lab, LinkSpec};
use serde::Serialize;

use crate::moving::Moving;
use crate::output::{Progress, replace, replace_json};
use crate::site::{agents, answer};
use crate::statistics::{Spread, spread};
use crate::{Common, interrupt};

/// What each guest writes, MiB/s, all over its memory.
const WRITES: [i64; 8] = [0, 1, 1, 2, 4, 8, 12, 16];
/// Memory that each guest fills, MiB. Its kernel adds about 80.
const GUEST_MIB: u64 = 32;
/// Only a hang meets it.
const LONG: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, clap::Args)]
pub struct Flags {
    #[command(flatten)]
    common: Common,
    /// How often each method is taken, in turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Rate of each of the two links, Mb/s
    #[arg(long, default_value_t = 200)]
    mbps: u64,
    /// Only these methods, comma-separated: drain, or a number of guests at once
    #[arg(long, value_delimiter = ',', value_parser = method)]
    methods: Vec<Method>,
}

fn method(text: &str) -> Result<Method, String> {
    if text == "drain" {
        return Ok(Method::Drain);
    }
    let count = text.parse().ok().filter(|count| (1..=WRITES.len()).contains(count));
    count.map(Method::AtOnce).ok_or_else(|| format!("neither `drain` nor 1 to {}", WRITES.len()))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Method {
    Drain,
    /// So many `linerate migrate` at the same time.
    AtOnce(usize),
}

const METHODS: [Method; 5] =
    [Method::Drain, Method::AtOnce(WRITES.len()), Method::AtOnce(1), Method::AtOnce(2), Method::AtOnce(4)];

impl Method {
    fn name(self) -> String {
        match self {
            Method::Drain => "`linerate drain`".into(),
            Method::AtOnce(1) => "one after another".into(),
            Method::AtOnce(count) if count == WRITES.len() => "all at once".into(),
            Method::AtOnce(count) => format!("{count} at once"),
        }
    }
}

/// One host emptied once.
#[derive(Debug, Clone, Serialize)]
struct Run {
    method: Method,
    round: usize,
    /// From the first request until the last command has ended.
    seconds: f64,
    moved: usize,
    /// The longest and the median downtime of its guests.
    blackout_ms: Option<Spread>,
}

/// Two hosts, and the guests at the first.
struct Stage {
    agents: Vec<Agent>,
    guests: Vec<GuestSpec>,
    /// Number of the host where the guests are.
    at: usize,
    _lab: Lab,
}

/// All methods in turn. False if a guest was left behind, or found its memory damaged.
pub fn run(flags: &Flags, json: bool) -> anyhow::Result<bool> {
    let mut stage = Stage::new(flags.mbps, &flags.common.binary()?)?;
    let methods = if flags.methods.is_empty() { METHODS.to_vec() } else { flags.methods.clone() };
    ensure!(methods.contains(&Method::Drain), "the others are held against `drain`");
    let mut progress = Progress::new(flags.rounds * methods.len())?;
    let (mut runs, mut bytes) = (Vec::new(), Vec::new());
    for round in 1..=flags.rounds {
        for method in methods.iter().copied() {
            interrupt::check()?;
            progress.doing(&format!("round {round}: {}", method.name()));
            let run = stage.empty(method, round, &mut bytes)?;
            progress.done(&format!("{}: {} moved in {:.1} s", method.name(), run.moved, run.seconds));
            runs.push(run);
            replace_json(&flags.common.out.join("drains.json"), &runs)?;
        }
    }
    for (number, agent) in stage.agents.iter().enumerate() {
        std::fs::copy(agent.log(), flags.common.out.join(format!("drains-agent{number}.log")))?;
    }
    let bad: Vec<String> = stage.guests.iter().flat_map(|guest| stage.console(guest).bad_lines()).collect();
    bad.iter().for_each(|line| progress.print(&format!("a guest says: {line}")));
    // Nothing is faster than all bytes once over both links.
    let carries = (2 * flags.mbps * 125_000) as f64;
    let bound = spread(bytes.iter().map(|bytes| *bytes as f64 / carries)).context("no drain has ended")?;
    let text = table(&runs, bound.median);
    replace(&flags.common.out.join("drains.md"), &text)?;
    if json {
        println!("{}", serde_json::to_string(&runs)?);
    } else {
        print!("{text}");
    }
    Ok(bad.is_empty() && runs.iter().all(|run| run.moved == WRITES.len()))
}

impl Stage {
    fn new(mbps: u64, binary: &Path) -> anyhow::Result<Stage> {
        let lab = Lab::builder().links([LinkSpec::shaped(mbps).mtu(9000); 2]).ram_mb(3000).build()?;
        let agents = agents(&lab, binary, "")?;
        let guest = |(number, writes): (usize, &i64)| {
            let parameters = GuestParameters {
                mem_mb: GUEST_MIB,
                dirty_mbps: *writes,
                verify_mbps: 2,
                ..GuestParameters::default()
            };
            GuestSpec::new(&format!("g{number}"), parameters)
        };
        let guests: Vec<GuestSpec> = WRITES.iter().enumerate().map(guest).collect();
        let stage = Stage { agents, guests, at: 0, _lab: lab };
        let host = stage.agent(0)?;
        for guest in &stage.guests {
            let file = guest.write_toml(host.host())?;
            let done = host.client().args(["vm", "start"]).arg(file).output()?;
            ensure!(done.status.success(), "a guest: {}", String::from_utf8_lossy(&done.stderr));
        }
        for guest in &stage.guests {
            stage.console(guest).wait_passes(1, LONG)?;
        }
        Ok(stage)
    }

    fn agent(&self, host: usize) -> anyhow::Result<&Agent> {
        self.agents.get(host).context("a lab of two hosts")
    }

    fn console(&self, guest: &GuestSpec) -> Console {
        let hosts = self.agents.iter().map(Agent::host);
        let files = hosts.flat_map(|host| [guest.serial(host), guest.arrived_serial(host)]);
        Console::new(files.filter(|file| file.exists()))
    }

    /// Empties the host where the guests are. `bytes`: what was to be copied at first, of each drain.
    fn empty(&mut self, method: Method, round: usize, bytes: &mut Vec<u64>) -> anyhow::Result<Run> {
        let (source, to) = (self.agent(self.at)?, self.agent(1 - self.at)?.address(0).to_string());
        let began = Instant::now();
        let blackouts = match method {
            Method::Drain => {
                let last = drain(source, &to)?;
                bytes.push(last.guests.iter().map(|guest| guest.copy_bytes).sum());
                let moved = last.guests.iter().filter(|guest| guest.state == DrainGuestState::Moved);
                moved.map(|guest| guest.blackout_us.unwrap_or_default()).collect()
            }
            Method::AtOnce(count) => at_once(source, &self.guests, &to, count)?,
        };
        let seconds = began.elapsed().as_secs_f64();
        if method == Method::Drain {
            let mut release = source.client();
            release.args(["uncordon", "--json"]);
            answer::<CordonAnswer>(release)?;
        }
        let blackout_ms = spread(blackouts.iter().map(|us| *us as f64 / 1e3));
        let run = Run { method, round, seconds, moved: blackouts.len(), blackout_ms };
        ensure!(run.moved == self.guests.len(), "guests were left behind: {run:?}");
        self.at = 1 - self.at;
        Ok(run)
    }
}

/// The last document of a drain.
fn drain(source: &Agent, to: &str) -> anyhow::Result<DrainDetail> {
    let done = source.client().args(["drain", "--to", to, "--json"]).output()?;
    let text = String::from_utf8_lossy(&done.stdout);
    let last = text.lines().rev().find_map(|line| serde_json::from_str::<DrainDetail>(line).ok());
    let last = last.with_context(|| format!("no drain: {text}{}", String::from_utf8_lossy(&done.stderr)))?;
    ensure!(done.status.success(), "the drain ended with {}: {last:?}", done.status);
    Ok(last)
}

/// Downtimes of the guests that moved, in microseconds.
fn at_once(source: &Agent, guests: &[GuestSpec], to: &str, count: usize) -> anyhow::Result<Vec<u64>> {
    let (queue, done) = (Mutex::new(guests.iter().collect::<VecDeque<_>>()), Mutex::new(Vec::new()));
    let take = || queue.lock().ok()?.pop_front();
    let work = || -> anyhow::Result<()> {
        while let Some(guest) = take() {
            let ending = Moving::begin(source, &guest.name, to, &[])?.finish(LONG);
            ensure!(ending.completed(), "{}: {}", guest.name, ending.text());
            let blackout = ending.report.and_then(|report| report.blackout).map(|split| split.total_us);
            if let Ok(mut done) = done.lock() {
                done.push(blackout.unwrap_or_default());
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a defect in the benchmark")))
        })
    })?;
    done.into_inner().ok().context("a defect in the benchmark")
}

fn table(runs: &[Run], bound_s: f64) -> String {
    let mut text = format!(
        "{} guests; the lower bound is {bound_s:.1} s.\n\n\
         | method | whole, s, median (least to most) | against the bound | against `linerate drain` | longest downtime, ms |\n\
         |---|---|---|---|---|\n",
        WRITES.len()
    );
    let of = |method: Method| runs.iter().filter(move |run| run.method == method);
    let drain = spread(of(Method::Drain).map(|run| run.seconds)).map_or(f64::NAN, |one| one.median);
    for method in METHODS {
        let Some(seconds) = spread(of(method).map(|run| run.seconds)) else { continue };
        let longest = spread(of(method).filter_map(|run| Some(run.blackout_ms?.max)));
        let longest = longest.map_or_else(
            || "–".to_owned(),
            |one| format!("{:.0} ({:.0} to {:.0})", one.median, one.min, one.max),
        );
        text += &format!(
            "| {} | {:.1} ({:.1} to {:.1}) | {:.2} | {:.2} | {longest} |\n",
            method.name(),
            seconds.median,
            seconds.min,
            seconds.max,
            seconds.median / bound_s,
            seconds.median / drain
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_held_against_the_bound_and_the_drain() {
        let run = |method, seconds| Run { method, round: 1, seconds, moved: 8, blackout_ms: None };
        let runs = [run(Method::Drain, 10.0), run(Method::AtOnce(8), 15.0), run(Method::AtOnce(8), 17.0)];
        let text = table(&runs, 8.0);
        assert!(text.contains("| `linerate drain` | 10.0 (10.0 to 10.0) | 1.25 | 1.00 | – |"), "{text}");
        assert!(text.contains("| all at once | 16.0 (15.0 to 17.0) | 2.00 | 1.60 | – |"), "{text}");
        assert!(!text.contains("one after another"), "{text}");
    }
}
