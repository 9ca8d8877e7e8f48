//! Faults after faults: one guest, one history of moves in which an agent stops exactly where it writes its journal,
//! and then something breaks; agents start again in any order, and the guest moves there and back before the next
//! fault.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use linerate_lab::{Gate, Held, Qmp};

use super::stage::{NAME, victim};
use super::{Book, Outcome, series};
use crate::moving::Moving;
use crate::random::Random;
use crate::site::{Site, SiteOptions, console_at};
use crate::transcript::Transcript;
use crate::{cpu, interrupt};

/// Where an agent can be stopped: side and phase of the record that it writes.
const PLACES: [&str; 8] = [
    "source.started",
    "source.commit_sent",
    "source.finished",
    "destination.started",
    "destination.loaded",
    "destination.committed",
    "destination.running",
    "destination.finished",
];
/// What happens there: it stops before the record is on disk, or after it, or the disk is full.
const HOWS: [&str; 3] = ["before", "after", "full"];
const SOON: Duration = Duration::from_secs(60);

/// What fails while an agent is stopped there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Harm {
    /// The agents that are killed.
    killed: [bool; 2],
    /// Host whose agent starts again first.
    first: usize,
    /// Between the two starts.
    pause: Duration,
    /// Links are away for so long.
    links: Duration,
    /// Another client has the source's QMP for so long.
    qmp: Duration,
    /// The QEMU on this side ends, where the other side has the guest.
    qemu: bool,
}

impl Harm {
    fn random(random: &mut Random) -> Harm {
        let seconds = |random: &mut Random, choices: [u64; 3]| {
            Duration::from_secs(choices[usize::try_from(random.below(3)).unwrap_or(0)])
        };
        let killed = random.below(4);
        Harm {
            killed: [killed & 1 != 0, killed & 2 != 0],
            first: usize::from(random.below(2) == 1),
            pause: seconds(random, [0, 1, 3]),
            links: seconds(random, [0, 1, 6]),
            qmp: seconds(random, [0, 0, 5]),
            qemu: random.below(3) == 0,
        }
    }
}

struct Stage {
    site: Site,
    gates: [Gate; 2],
    console: Transcript,
    at: usize,
}

/// Names of the histories: each place in each way, then as many at random as are wanted.
pub(super) fn names(rounds: usize) -> Vec<String> {
    let table = PLACES.iter().flat_map(|place| HOWS.map(|how| format!("again/{place}/{how}")));
    table.chain((1..=rounds).map(|round| format!("again/random/{round}"))).collect()
}

pub(super) fn run(book: &mut Book<'_>, names: &[String]) -> anyhow::Result<()> {
    series::play_all::<Stage>(book, names)
}

impl series::Stage for Stage {
    fn new(book: &Book<'_>) -> anyhow::Result<Stage> {
        let (site, gates) = Site::gated(&SiteOptions {
            links: "2x1000".to_owned(),
            linerate: book.flags.common.binary()?,
            ram_mb: 2048,
            ..Default::default()
        })?;
        let console = site.start_guest(0, &victim(&site), None)?;
        let mut stage = Stage { site, gates, console, at: 0 };
        stage.console.wait_passes(1, SOON)?;
        Ok(stage)
    }

    /// One fault, what follows, and the way there and back.
    fn play(&mut self, outcome: &mut Outcome) -> anyhow::Result<()> {
        let mut random = Random::new(outcome.seed);
        let chosen: Vec<&str> = outcome.name.split('/').skip(1).collect();
        let (place, how) = match chosen.as_slice() {
            [place, how] if *place != "random" => ((*place).to_owned(), (*how).to_owned()),
            _ => (pick(&mut random, &PLACES).to_owned(), pick(&mut random, &HOWS).to_owned()),
        };
        let harm = Harm::random(&mut random);
        let side = place.split('.').next().unwrap_or_default().to_owned();
        (outcome.fault, outcome.step, outcome.side) = (format!("{how} {harm:?}"), place.clone(), side);
        outcome.migration = self.fault(&place, &how, harm)?;
        self.settle()?;
        outcome.guest = format!("runs on host {}", self.at);
        for _ in 0..2 {
            let ending =
                Moving::begin(self.site.agent(self.at)?, NAME, &self.site.to(1 - self.at)?, &["--verify"])?;
            let arrival = console_at(self.site.host(1 - self.at)?, &victim(&self.site));
            let ending = ending.finish(SOON);
            ensure!(ending.completed(), "the next move did not succeed: {}", ending.text());
            self.at = 1 - self.at;
            self.console.arrived(arrival.0, arrival.1);
            self.settle()?;
        }
        outcome.retry = "there and back: completed".to_owned();
        outcome.wrong.extend(self.console.damage_in_two_passes(SOON));
        Ok(())
    }

    fn logs(&self) -> String {
        self.site.logs()
    }
}

impl Stage {
    fn fault(&mut self, place: &str, how: &str, harm: Harm) -> anyhow::Result<String> {
        let [from, to] = [self.at, 1 - self.at];
        let host = if place.starts_with("source") { from } else { to };
        let arrival = console_at(self.site.host(to)?, &victim(&self.site));
        let gates = self.gates.clone();
        let gate = gates.get(host).context("no such gate")?;
        let held = match how {
            "full" => gate.fill(place, true).map(|()| None),
            "before" => gate.hold_before(place).map(Some),
            _ => gate.hold_after(place).map(Some),
        }?;
        let moving =
            Moving::begin(self.site.agent(from)?, NAME, &self.site.to(to)?, &["--link-timeout", "4s"])?;
        let held = stand(held)?;
        let held_qmp = self.break_things(place, how, harm, [from, to])?;
        drop(held);
        interrupt::sleep(harm.links);
        if !harm.links.is_zero() {
            self.links(true)?;
        }
        for one in [harm.first, 1 - harm.first] {
            self.site.agent_mut(one)?.restart_if_dead()?;
            interrupt::sleep(harm.pause);
        }
        interrupt::sleep(if held_qmp.is_some() { harm.qmp } else { Duration::ZERO });
        drop(held_qmp);
        let ending = moving.finish(SOON);
        if how == "full" {
            gate.fill(place, false)?;
        }
        self.find(arrival)?;
        Ok(ending.text())
    }

    fn break_things(
        &mut self,
        place: &str,
        how: &str,
        harm: Harm,
        [from, to]: [usize; 2],
    ) -> anyhow::Result<Option<Qmp>> {
        if !harm.links.is_zero() {
            self.links(false)?;
        }
        for host in [0, 1] {
            if harm.killed.get(host) == Some(&true) {
                self.site.agent_mut(host)?.kill()?;
            }
        }
        // Only the side that does not have the guest.
        let waiting = ["destination.started", "destination.loaded"].contains(&place);
        let left = place == "source.finished" || place == "destination.finished";
        let loser = if waiting { Some(to) } else { left.then_some(from) };
        if let (true, true, Some(host)) = (harm.qemu, how != "full", loser) {
            for pid in cpu::hypervisors(&self.site.host(host)?.run_directory()) {
                let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
                let _ = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL));
            }
        }
        let free = harm.killed.get(from) == Some(&true) && !harm.qmp.is_zero();
        Ok(free.then(|| Qmp::of_guest(self.site.host(from).ok()?, NAME).ok()).flatten())
    }

    fn links(&self, up: bool) -> anyhow::Result<()> {
        let mut links = 0..self.site.lab.topology().links.len();
        Ok(links
            .try_for_each(|link| if up { self.site.lab.restore(link) } else { self.site.lab.cut(link) })?)
    }

    /// Waits until the guest runs on one host and on no other.
    fn find(&mut self, arrival: (std::path::PathBuf, u64)) -> anyhow::Result<()> {
        let end = Instant::now() + SOON;
        loop {
            let runs = [self.site.runs(0, NAME)?, self.site.runs(1, NAME)?];
            match runs {
                [true, true] => bail!("the guest runs on both hosts"),
                [false, false] => {}
                _ => {
                    let at = usize::from(runs[1]);
                    if at != self.at {
                        self.console.arrived(arrival.0, arrival.1);
                    }
                    self.at = at;
                    return Ok(());
                }
            }
            if Instant::now() >= end {
                bail!(
                    "the guest runs nowhere: {:?} {:?}",
                    self.site.migrations(0)?,
                    self.site.migrations(1)?
                );
            }
            interrupt::sleep(Duration::from_millis(200));
        }
    }

    /// No session is in progress, the guest runs on its host only, and nothing is left on the other.
    fn settle(&mut self) -> anyhow::Result<()> {
        self.site.settle(SOON)?;
        let other = 1 - self.at;
        ensure!(self.site.runs(self.at, NAME)?, "the guest does not run on host {}", self.at);
        let host = self.site.host(other)?;
        ensure!(cpu::hypervisors(&host.run_directory()).is_empty(), "a QEMU is left on host {other}");
        let killed = host.run_directory().join("guests").join(NAME).join("record.json").exists();
        let ram = std::fs::read_dir(host.ram_directory())?.count();
        ensure!(killed || ram == 0, "{ram} files of RAM are left on host {other}");
        self.console.wait_passes(1, SOON)?;
        let seen = self.site.observer.blackout(self.site.lab.guest_address(0), Duration::ZERO);
        ensure!(seen.out_of_order == 0 && seen.mem_bad == 0, "heartbeat: {seen:?}");
        Ok(())
    }
}

/// An agent may never come there: a fault before it ends the move.
fn stand(held: Option<Held<'_>>) -> anyhow::Result<Option<Held<'_>>> {
    if let Some(held) = &held {
        held.wait(Duration::from_secs(20)).context("the agent did not come there")?;
    } else {
        interrupt::sleep(Duration::from_secs(2));
    }
    Ok(held)
}

fn pick<'a>(random: &mut Random, from: &[&'a str]) -> &'a str {
    let place = usize::try_from(random.below(from.len() as u64)).unwrap_or(0);
    from.get(place).copied().unwrap_or_default()
}
