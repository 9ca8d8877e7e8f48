//! A plain QEMU guest goes back and forth with a disk that the hosts do not share, while one of their two links is lost at a random
//! instant of each move.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use linerate_api::{GuestRunState, GuestSummary, Step};
use linerate_lab::{
    Agent, AgentOptions, DiskMode, GuestParameters, GuestSpec, Lab, LinkSpec, QemuVersion, make_disk,
};
use serde::Serialize;

use crate::moving::{Ending, Moving};
use crate::output::{Progress, replace, replace_json};
use crate::random::{Random, fresh_seed, seed_for};
use crate::site::{answer, console_at};
use crate::statistics::median;
use crate::transcript::Transcript;
use crate::{Common, interrupt};

const NAME: &str = "g";
const IMAGE: &str = "g.img";
const DISK_MB: u64 = 24;
const LIMIT: Duration = Duration::from_secs(240);
const FLAGS: [&str; 4] = ["--copy-storage", "all", "--link-timeout", "20s"];

/// `linerate-bench disks`
#[derive(Debug, Clone, Args)]
pub struct Flags {
    #[command(flatten)]
    common: Common,
    /// Moves, back and forth
    #[arg(long, default_value_t = 50)]
    moves: usize,
    /// Repeats the random instants of an earlier run
    #[arg(long)]
    seed: Option<u64>,
}

/// One move.
#[derive(Debug, Clone, Serialize)]
struct Move {
    number: usize,
    from: usize,
    /// What was done to which link, for how long, and how long after the copy had begun.
    cut: String,
    /// An image of an earlier move was there, and was overwritten.
    overwritten: bool,
    links_lost: usize,
    total_s: f64,
    blackout_ms: Option<f64>,
    /// Everything that is not as it must be.
    wrong: Vec<String>,
}

/// What is kept.
#[derive(Debug, Serialize)]
struct Results<'a> {
    seed: u64,
    planned: usize,
    /// Stages: a guest that was harmed or stayed behind is not moved again.
    guests: usize,
    moves: &'a [Move],
}

/// Runs it; false if anything went wrong.
pub fn run(flags: Flags, json: bool) -> anyhow::Result<bool> {
    let seed = flags.seed.unwrap_or_else(fresh_seed);
    eprintln!("seed {seed}");
    let mut progress = Progress::new(flags.moves);
    let (mut moves, mut stage, mut guests) = (Vec::<Move>::new(), None, 0);
    for number in 1..=flags.moves {
        if interrupt::asked() {
            break;
        }
        progress.doing(&format!("move {number}"));
        let mut fresh = match stage.take() {
            Some(stage) => stage,
            None => {
                guests += 1;
                Stage::new(&flags.common)?
            }
        };
        let one = fresh.go(number, &mut Random::new(seed_for(seed, &format!("move/{number}"))))?;
        progress.done(&format!("move {number}: {:.1} s, {} {:?}", one.total_s, one.cut, one.wrong));
        if one.wrong.is_empty() {
            stage = Some(fresh);
        } else {
            progress.say(&fresh.logs());
        }
        moves.push(one);
        let results = Results { seed, planned: flags.moves, guests, moves: &moves };
        replace_json(&flags.common.out.join("disks.json"), &results)?;
    }
    let text = summary(seed, guests, &moves);
    replace(&flags.common.out.join("disks.md"), &text)?;
    if json {
        let results = Results { seed, planned: flags.moves, guests, moves: &moves };
        println!("{}", serde_json::to_string(&results)?);
    } else {
        println!("{text}");
    }
    Ok(moves.len() == flags.moves && moves.iter().all(|one| one.wrong.is_empty()))
}

/// Two hosts that do not share disks, each with an agent, and a guest that checks its memory and its disk.
struct Stage {
    agents: Vec<Agent>,
    lab: Lab,
    spec: GuestSpec,
    console: Transcript,
    at: usize,
    /// How long a move takes here without a cut, from the beginning of the copy.
    usual: Duration,
}

impl Stage {
    fn new(common: &Common) -> anyhow::Result<Stage> {
        let lab = Lab::builder().links([LinkSpec::shaped(300); 2]).build()?;
        let folders = [0, 1].map(|host| folder(&lab, host));
        for folder in &folders {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let [here, there] = folders.map(|folder| folder.display().to_string());
        let paths = format!("paths = {{ \"{here}/\" = \"{there}/\", \"{there}/\" = \"{here}/\" }}\n");
        let binary = common.binary()?;
        let options = || AgentOptions {
            binary: Some(binary.clone()),
            configuration: paths.clone(),
            ..AgentOptions::default()
        };
        let agents = lab.hosts().iter().map(|host| Agent::start(host, options()));
        let agents = agents.collect::<Result<Vec<_>, _>>()?;
        let image = folder(&lab, 0).join(IMAGE);
        make_disk(&image, DISK_MB)?;
        // It writes all the time, memory and disk. QEMU 7.2 harms emulated guests that it moves (docs/stream-mode.md).
        let parameters = GuestParameters {
            mem_mb: 32,
            dirty_mbps: 16,
            disk_mbps: 2,
            disk_generation: Some(1),
            ..GuestParameters::default()
        };
        let spec = GuestSpec::new(NAME, parameters).disk(&image, DiskMode::Direct).qemu(QemuVersion::Ten);
        let first = lab.host(0)?;
        let file = spec.write_toml(first)?;
        let mut start = agents.first().context("a lab without hosts")?.client();
        start.args(["vm", "start", "--json"]).arg(&file);
        answer::<GuestSummary>(start)?;
        let console = Transcript::new(spec.serial(first));
        let mut stage = Stage { agents, lab, spec, console, at: 0, usual: Duration::ZERO };
        stage.console.wait_passes(2, LIMIT)?;
        let (mut wrong, mut began) = (Vec::new(), None);
        stage.carry(&mut wrong, |_| {
            began = Some(Instant::now());
            Ok(())
        })?;
        ensure!(wrong.is_empty(), "a move without a cut: {wrong:?}\n{}", stage.logs());
        stage.usual = began.map_or(Duration::ZERO, |began| began.elapsed());
        stage.look(&mut wrong)?;
        ensure!(wrong.is_empty(), "after a move without a cut: {wrong:?}\n{}", stage.logs());
        Ok(stage)
    }

    fn agent(&self, host: usize) -> anyhow::Result<&Agent> {
        self.agents.get(host).context("no such host")
    }

    /// One move with a cut.
    fn go(&mut self, number: usize, random: &mut Random) -> anyhow::Result<Move> {
        let from = self.at;
        let instant = random.part_of(self.usual);
        let away = Duration::from_millis(100) + random.part_of(Duration::from_secs(3));
        let link = usize::try_from(random.below(2)).unwrap_or(0);
        let silent = random.below(2) == 1;
        let overwritten = random.below(2) == 1;
        let kind = if silent { "packets lost" } else { "port down" };
        let cut =
            format!("l{link} {kind} after {:.1} s for {:.1} s", instant.as_secs_f64(), away.as_secs_f64());
        let image = folder(&self.lab, 1 - from).join(IMAGE);
        if !overwritten && image.exists() {
            std::fs::remove_file(&image).with_context(|| format!("cannot remove {}", image.display()))?;
        }
        let mut wrong = Vec::new();
        let ending = self.carry(&mut wrong, |lab| {
            interrupt::sleep(instant);
            if silent {
                lab.drop_silently(link)?
            } else {
                lab.cut(link)?
            }
            interrupt::sleep(away);
            Ok(lab.restore(link)?)
        })?;
        if wrong.is_empty() {
            self.look(&mut wrong)?;
        }
        let blackout = ending.report.as_ref().and_then(|report| report.blackout.as_ref());
        Ok(Move {
            number,
            from,
            cut,
            overwritten,
            links_lost: ending.links_lost,
            total_s: ending.total.as_secs_f64(),
            blackout_ms: blackout.map(|blackout| blackout.total_us as f64 / 1e3),
            wrong,
        })
    }

    /// Moves the guest to the other host; `harm` begins with the copy.
    fn carry(
        &mut self,
        wrong: &mut Vec<String>,
        harm: impl FnOnce(&Lab) -> anyhow::Result<()>,
    ) -> anyhow::Result<Ending> {
        let to = 1 - self.at;
        let (path, skip) = console_at(self.lab.host(to)?, &self.spec);
        let address = self.agent(to)?.address(0).to_string();
        let mut moving = Moving::begin(self.agent(self.at)?, NAME, &address, &FLAGS)?;
        ensure!(moving.reach(Step::Copy, LIMIT), "the copy did not begin\n{}", self.logs());
        harm(&self.lab)?;
        let ending = moving.finish(LIMIT);
        if ending.completed() {
            self.console.arrived(path, skip);
            self.at = to;
        } else {
            wrong.push(ending.text());
        }
        Ok(ending)
    }

    /// It runs where it went and is nowhere else, and its memory and disk are whole.
    fn look(&mut self, wrong: &mut Vec<String>) -> anyhow::Result<()> {
        let guests = |host: usize| -> anyhow::Result<Vec<GuestSummary>> {
            let mut list = self.agent(host)?.client();
            list.args(["vm", "list", "--json"]);
            answer(list)
        };
        let (here, there) = (guests(self.at)?, guests(1 - self.at)?);
        let runs = here.iter().any(|guest| guest.name == NAME && guest.state == GuestRunState::Running);
        if !runs || !there.is_empty() {
            wrong.push(format!("where it went: {here:?}; where it was: {there:?}"));
        }
        // A page or a slot that was harmed is only seen when the guest comes to it again.
        if let Err(error) = self.console.wait_passes(2, LIMIT) {
            wrong.push(format!("{error:#}"));
        }
        wrong.extend(self.console.bad());
        if !self.console.passes_follow() {
            wrong.push("passes do not follow one another".to_owned());
        }
        Ok(())
    }

    fn logs(&self) -> String {
        let last = |agent: &Agent| {
            let text = std::fs::read_to_string(agent.log()).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines.get(lines.len().saturating_sub(30)..).unwrap_or_default().join("\n")
        };
        self.agents.iter().map(last).collect::<Vec<_>>().join("\n---\n")
    }
}

fn folder(lab: &Lab, host: usize) -> PathBuf {
    Path::new(lab.directory()).join("disks").join(if host == 0 { "here" } else { "there" })
}

fn summary(seed: u64, guests: usize, moves: &[Move]) -> String {
    let wrong: Vec<&Move> = moves.iter().filter(|one| !one.wrong.is_empty()).collect();
    let noticed = moves.iter().filter(|one| one.links_lost > 0).count();
    let mut text = format!(
        "seed {seed}: {} moves of {guests} guests, {noticed} of them lost a link while it was in use, {} went wrong; median {:.1} s, blackout {:.0} ms\n",
        moves.len(),
        wrong.len(),
        median(moves.iter().map(|one| one.total_s)).unwrap_or_default(),
        median(moves.iter().filter_map(|one| one.blackout_ms)).unwrap_or_default(),
    );
    for one in wrong {
        text.push_str(&format!(
            "- move {} from host {}, {}: {}\n",
            one.number,
            one.from,
            one.cut,
            one.wrong.join("; ")
        ));
    }
    text
}
