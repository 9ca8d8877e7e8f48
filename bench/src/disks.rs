//! A plain QEMU guest goes back and forth with a disk that the hosts do not share. One of their two links is lost at a
//! random instant of each move.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use linerate_api::{GuestRunState, GuestSummary, Step};
use linerate_lab::disk::SLOT_BYTES;
use linerate_lab::guest::kvm_is_missing;
use linerate_lab::{
    Agent, DiskMode, GuestParameters, GuestProgram, GuestSpec, Lab, LinkSpec, QemuVersion, make_disk,
};

use crate::moving::{Ending, Moving};
use crate::random::Random;
use crate::run::version_name;
use crate::shuttle::{Cut, LIMIT, Moved, Stage, tails};
use crate::site::{agents, answer, console_at};
use crate::transcript::Transcript;
use crate::{Common, shuttle};

const NAME: &str = "g";
const IMAGE: &str = "g.img";
const DISK_MB: u64 = 24;
const FLAGS: [&str; 4] = ["--copy-storage", "all", "--link-timeout", "20s"];

#[derive(Debug, Clone, Args)]
#[group(id = "disks")] // its own name is that of what it is flattened with
pub struct Flags {
    #[command(flatten)]
    shuttle: shuttle::Flags,
    /// The guest's QEMU
    #[arg(long, value_name = "VERSION", default_value = "10.0", value_parser = ["7.2", "10.0"])]
    qemu: String,
    /// The guest that runs under KVM, instead of the emulated one: QEMU 7.2 harms those that it moves
    /// (docs/stream-mode.md)
    #[arg(long)]
    kvm: bool,
}

#[derive(Debug, Clone, Copy)]
struct Kind {
    version: QemuVersion,
    kvm: bool,
}

impl Kind {
    /// It writes all the time, memory and disk.
    fn guest(self) -> GuestSpec {
        let parameters =
            GuestParameters { mem_mb: 32, disk_generation: Some(1), ..GuestParameters::default() };
        let guest = match self.kvm {
            // 8 MiB in each of 18 passes a second are more than the links carry.
            true => GuestSpec::user_mode(
                NAME,
                GuestParameters { dirty_ws_mb: Some(1), disk_mbps: 8, ..parameters },
            ),
            false => GuestSpec::new(NAME, GuestParameters { dirty_mbps: 16, disk_mbps: 2, ..parameters }),
        };
        guest.qemu(self.version)
    }

    fn file(self) -> String {
        let under = if self.kvm { "-kvm" } else { "" };
        format!("disks-{}{under}", version_name(self.version))
    }
}

/// Runs it; false if anything went wrong.
pub fn run(flags: &Flags, json: bool) -> anyhow::Result<bool> {
    let mut versions = QemuVersion::ALL.into_iter();
    let version = versions.find(|version| version_name(*version) == flags.qemu).context("no such QEMU")?;
    let kind = Kind { version, kvm: flags.kvm };
    let harms = version == QemuVersion::System && !kind.kvm;
    ensure!(!harms, "QEMU 7.2 harms emulated guests that it moves, by itself too: with it goes --kvm");
    if let Some(error) = kvm_is_missing().filter(|_| kind.kvm) {
        bail!("/dev/kvm cannot be used here: {error}");
    }
    shuttle::run(&flags.shuttle, &kind.file(), |common| Disks::new(common, kind), json)
}

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
    fn new(common: &Common, kind: Kind) -> anyhow::Result<Disks> {
        let lab = Lab::builder().links([LinkSpec::shaped(300); 2]).build()?;
        let folders = [0, 1].map(|host| folder(&lab, host));
        for folder in &folders {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let [here, there] = folders.map(|folder| folder.display().to_string());
        let paths = format!("paths = {{ \"{here}/\" = \"{there}/\", \"{there}/\" = \"{here}/\" }}\n");
        let binary = common.binary()?;
        let agents = agents(&lab, &binary, &paths)?;
        let image = folder(&lab, 0).join(IMAGE);
        make_disk(&image, DISK_MB)?;
        let spec = kind.guest().disk(&image, DiskMode::Direct);
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
        if self.spec.program == GuestProgram::UserMode {
            // It goes over its disk in order, with two operations on a slot at most; what it does not write of its
            // memory is looked at in every eighth pass.
            let slots = (DISK_MB << 20) / SLOT_BYTES as u64;
            let looked =
                self.console.wait_disk(2 * slots, LIMIT).and_then(|()| self.console.wait_passes(9, LIMIT));
            wrong.extend(looked.err().map(|error| format!("{error:#}")));
        }
        wrong.extend(self.console.damage_in_two_passes(LIMIT));
        Ok(())
    }
}

fn folder(lab: &Lab, host: usize) -> PathBuf {
    Path::new(lab.directory()).join("disks").join(if host == 0 { "here" } else { "there" })
}
