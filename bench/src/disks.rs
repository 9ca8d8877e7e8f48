//! A plain QEMU guest goes back and forth with a disk that the hosts do not share, while one of their two links is lost at a random
//! instant of each move.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use linerate_api::{GuestRunState, GuestSummary, Step};
use linerate_lab::{
    Agent, AgentOptions, DiskMode, GuestParameters, GuestSpec, Lab, LinkSpec, QemuVersion, make_disk,
};

use crate::Common;
use crate::moving::{Ending, Moving};
use crate::random::Random;
use crate::shuttle::{Cut, LIMIT, Moved, Stage, tails};
use crate::site::{answer, console_at};
use crate::transcript::Transcript;

const NAME: &str = "g";
const IMAGE: &str = "g.img";
const DISK_MB: u64 = 24;
const FLAGS: [&str; 4] = ["--copy-storage", "all", "--link-timeout", "20s"];

/// Two hosts that do not share disks, each with an agent, and a guest that checks its memory and its disk.
pub struct Disks {
    agents: Vec<Agent>,
    lab: Lab,
    spec: GuestSpec,
    console: Transcript,
    at: usize,
    /// From the beginning of the copy.
    usual: Duration,
}

impl Stage for Disks {
    const FILE: &'static str = "disks";

    fn new(common: &Common) -> anyhow::Result<Disks> {
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
        let mut stage = Disks { agents, lab, spec, console, at: 0, usual: Duration::ZERO };
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

    fn at(&self) -> usize {
        self.at
    }

    fn usual(&self) -> Duration {
        self.usual
    }

    fn go(&mut self, cut: &Cut, random: &mut Random) -> anyhow::Result<Moved> {
        let overwritten = random.below(2) == 1;
        let image = folder(&self.lab, 1 - self.at).join(IMAGE);
        if !overwritten && image.exists() {
            std::fs::remove_file(&image).with_context(|| format!("cannot remove {}", image.display()))?;
        }
        let mut wrong = Vec::new();
        let ending = self.carry(&mut wrong, |lab| cut.make(lab))?;
        if wrong.is_empty() {
            self.look(&mut wrong)?;
        }
        let blackout = ending.report.as_ref().and_then(|report| report.blackout.as_ref());
        Ok(Moved {
            overwritten,
            links_lost: ending.links_lost,
            total_s: ending.total.as_secs_f64(),
            blackout_ms: blackout.map(|blackout| blackout.total_us as f64 / 1e3),
            wrong,
        })
    }

    fn logs(&self) -> String {
        tails(self.agents.iter().map(Agent::log))
    }
}

impl Disks {
    fn agent(&self, host: usize) -> anyhow::Result<&Agent> {
        self.agents.get(host).context("no such host")
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
        wrong.extend(self.console.damage_in_two_passes(LIMIT));
        Ok(())
    }
}

fn folder(lab: &Lab, host: usize) -> PathBuf {
    Path::new(lab.directory()).join("disks").join(if host == 0 { "here" } else { "there" })
}
