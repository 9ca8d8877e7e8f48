//! libvirt's domains go back and forth with disks that the hosts do not share, while one of their two links is lost at a random
//! instant of each move.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use linerate_lab::libvirt::IMAGES;
use linerate_lab::{
    Agent, AgentOptions, DiskMode, GuestParameters, GuestSpec, Lab, Libvirt, LibvirtVersion, LinkSpec,
    make_disk,
};
use serde::Serialize;
use serde_json::Value;

use crate::output::{Progress, replace, replace_json};
use crate::random::{Random, fresh_seed, seed_for};
use crate::statistics::median;
use crate::transcript::Transcript;
use crate::{Common, interrupt};

const NAME: &str = "g";
const DISK_MB: u64 = 24;
const LIMIT: Duration = Duration::from_secs(240);
/// What the agents are allowed to connect each other's tunnels to.
const ALLOWED: &str =
    "tunnel_targets = [\"unix:/run/libvirt/libvirt-sock\", \"unix:/run/linerate-libvirt/\"]";

/// `linerate-bench libvirt`
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
    /// What was done to which link, for how long, and how long after libvirt's job had begun.
    cut: String,
    links_lost: usize,
    total_s: f64,
    /// Everything that is not as it must be.
    wrong: Vec<String>,
}

/// What is kept.
#[derive(Debug, Serialize)]
struct Results<'a> {
    seed: u64,
    planned: usize,
    /// Stages: a domain that was harmed or stayed behind is not moved again.
    domains: usize,
    moves: &'a [Move],
}

/// Runs it; false if anything went wrong.
pub fn run(flags: Flags, json: bool) -> anyhow::Result<bool> {
    let seed = flags.seed.unwrap_or_else(fresh_seed);
    eprintln!("seed {seed}");
    let mut progress = Progress::new(flags.moves);
    let (mut moves, mut stage, mut domains) = (Vec::<Move>::new(), None, 0);
    for number in 1..=flags.moves {
        if interrupt::asked() {
            break;
        }
        progress.doing(&format!("move {number}"));
        let mut fresh = match stage.take() {
            Some(stage) => stage,
            None => {
                domains += 1;
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
        let results = Results { seed, planned: flags.moves, domains, moves: &moves };
        replace_json(&flags.common.out.join("libvirt.json"), &results)?;
    }
    let text = summary(seed, domains, &moves);
    replace(&flags.common.out.join("libvirt.md"), &text)?;
    if json {
        let results = Results { seed, planned: flags.moves, domains, moves: &moves };
        println!("{}", serde_json::to_string(&results)?);
    } else {
        println!("{text}");
    }
    Ok(moves.len() == flags.moves && moves.iter().all(|one| one.wrong.is_empty()))
}

/// Two hosts, each with a libvirt 11.3 and an agent, and a domain that checks its memory and its disk.
struct Stage {
    agents: Vec<Agent>,
    libvirts: Vec<Libvirt>,
    lab: Lab,
    console: Transcript,
    at: usize,
    /// How long a move takes here without a cut, from the beginning of libvirt's job.
    usual: Duration,
}

impl Stage {
    fn new(common: &Common) -> anyhow::Result<Stage> {
        let lab = Lab::builder().links([LinkSpec::shaped(300); 2]).build()?;
        let start = |host| Libvirt::start(host, LibvirtVersion::Eleven);
        let libvirts = lab.hosts().iter().map(start).collect::<Result<Vec<_>, _>>()?;
        let binary = common.binary()?;
        let options = || AgentOptions {
            binary: Some(binary.clone()),
            configuration: ALLOWED.into(),
            ..AgentOptions::default()
        };
        let agent = |libvirt: &Libvirt| Agent::start(libvirt.host(), options());
        let agents = libvirts.iter().map(agent).collect::<Result<Vec<_>, _>>()?;
        let [first, ..] = libvirts.as_slice() else { anyhow::bail!("a lab without hosts") };
        let disk = PathBuf::from(IMAGES).join("g.img");
        // It writes all the time, memory and disk.
        let parameters =
            GuestParameters { mem_mb: 32, dirty_mbps: 16, disk_mbps: 2, ..GuestParameters::default() };
        make_disk(&first.images().join("g.img"), DISK_MB)?;
        first.start_domain(&GuestSpec::new(NAME, parameters).disk(&disk, DiskMode::Direct))?;
        let console = Transcript::new(first.console(NAME));
        let mut stage = Stage { agents, libvirts, lab, console, at: 0, usual: Duration::ZERO };
        stage.console.wait_passes(2, LIMIT)?;
        let (mut wrong, mut began) = (Vec::new(), None);
        let (_, ended) = stage.carry(&mut wrong, |_| {
            began = Some(Instant::now());
            Ok(())
        })?;
        ensure!(wrong.is_empty(), "a move without a cut: {wrong:?}\n{}", stage.logs());
        stage.usual = began.map_or(Duration::ZERO, |began| ended - began);
        Ok(stage)
    }

    fn host(&self, index: usize) -> anyhow::Result<(&Libvirt, &Agent)> {
        self.libvirts.get(index).zip(self.agents.get(index)).context("no such host")
    }

    /// One move with a cut.
    fn go(&mut self, number: usize, random: &mut Random) -> anyhow::Result<Move> {
        let from = self.at;
        let instant = random.part_of(self.usual);
        let away = Duration::from_millis(100) + random.part_of(Duration::from_secs(3));
        let link = usize::try_from(random.below(2)).unwrap_or(0);
        let silent = random.below(2) == 1;
        let kind = if silent { "packets lost" } else { "port down" };
        let cut =
            format!("l{link} {kind} after {:.1} s for {:.1} s", instant.as_secs_f64(), away.as_secs_f64());
        let (mut wrong, began) = (Vec::new(), Instant::now());
        let (links_lost, ended) = self.carry(&mut wrong, |lab| {
            interrupt::sleep(instant);
            if silent {
                lab.drop_silently(link)?
            } else {
                lab.cut(link)?
            }
            interrupt::sleep(away);
            Ok(lab.restore(link)?)
        })?;
        Ok(Move { number, from, cut, links_lost, total_s: (ended - began).as_secs_f64(), wrong })
    }

    /// Moves the domain to the other host; `harm` begins with libvirt's job. Gives how many links were lost, and when the command
    /// ended.
    fn carry(
        &mut self,
        wrong: &mut Vec<String>,
        harm: impl FnOnce(&Lab) -> anyhow::Result<()>,
    ) -> anyhow::Result<(usize, Instant)> {
        let (from, to) = (self.at, 1 - self.at);
        let (there, other) = self.host(to)?;
        let (_, agent) = self.host(from)?;
        empty_disk(&there.images().join("g.img"))?;
        let (path, skip) = (there.console(NAME), Transcript::length(&there.console(NAME)));
        let mut command = agent.client();
        command.args(["migrate", "qemu:///system/g", "--json", "--no-check", "--copy-storage", "all"]);
        command.args(["--link-timeout", "20s", "--to", &other.address(0).to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start linerate migrate")?;
        let harmed = self.wait_moving(from, &mut child).and_then(|()| harm(&self.lab));
        let output = child.wait_with_output()?;
        let ended = Instant::now();
        harmed?;
        let text = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            let last = text.lines().last().unwrap_or_default();
            wrong.push(format!("exit {:?}: {last} {}", output.status.code(), errors.trim()));
            return Ok((0, ended));
        }
        self.console.arrived(path, skip);
        self.at = to;
        self.look(to, wrong)?;
        let lost = |line: &&Value| line.get("event").is_some_and(|event| event == "link_lost");
        Ok((lines.iter().filter(lost).count(), ended))
    }

    /// Waits until libvirt's job has begun to move something, or the command has ended.
    fn wait_moving(&self, from: usize, child: &mut std::process::Child) -> anyhow::Result<()> {
        let (libvirt, _) = self.host(from)?;
        let end = Instant::now() + LIMIT;
        while child.try_wait()?.is_none() {
            let job = libvirt.virsh(&["domjobinfo", NAME, "--rawstats"]).unwrap_or_default();
            let moved =
                |line: &str| line.strip_prefix("data_processed: ").is_some_and(|bytes| bytes.trim() != "0");
            if job.lines().any(moved) {
                break;
            }
            ensure!(Instant::now() < end, "libvirt's job moves nothing: {job}");
            interrupt::check()?;
            interrupt::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// It runs there and nowhere else, and its memory and disk are whole.
    fn look(&mut self, at: usize, wrong: &mut Vec<String>) -> anyhow::Result<()> {
        let state = |host: usize| -> anyhow::Result<String> {
            let (libvirt, _) = self.host(host)?;
            Ok(libvirt.virsh(&["domstate", NAME]).unwrap_or_default().trim().to_owned())
        };
        let (here, there) = (state(at)?, state(1 - at)?);
        if here != "running" || there == "running" {
            wrong.push(format!("it is {here:?} where it went and {there:?} where it was"));
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
        let last = |path: &Path| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines.get(lines.len().saturating_sub(20)..).unwrap_or_default().join("\n")
        };
        let of_agents = self.agents.iter().map(|agent| last(agent.log()));
        of_agents
            .chain(self.libvirts.iter().map(|libvirt| last(libvirt.log())))
            .collect::<Vec<_>>()
            .join("\n---\n")
    }
}

/// A disk without content, for what comes to a host.
fn empty_disk(path: &Path) -> anyhow::Result<()> {
    let file = std::fs::File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(file.set_len(DISK_MB << 20)?)
}

fn summary(seed: u64, domains: usize, moves: &[Move]) -> String {
    let wrong: Vec<&Move> = moves.iter().filter(|one| !one.wrong.is_empty()).collect();
    let noticed = moves.iter().filter(|one| one.links_lost > 0).count();
    let times = median(moves.iter().map(|one| one.total_s));
    let mut text = format!(
        "seed {seed}: {} moves of {domains} domains, {noticed} of them lost a link while it was in use, {} went wrong; median {:.1} s\n",
        moves.len(),
        wrong.len(),
        times.unwrap_or_default(),
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
