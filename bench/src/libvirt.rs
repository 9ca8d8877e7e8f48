//! libvirt's domains go back and forth with disks that the hosts do not share. One of their two links is lost at a
//! random instant of each move.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use linerate_lab::libvirt::IMAGES;
use linerate_lab::{
    Agent, AgentOptions, DiskMode, GuestParameters, GuestSpec, Lab, Libvirt, LibvirtVersion, LinkSpec,
    make_disk,
};
use serde_json::Value;

use crate::random::Random;
use crate::shuttle::{Cut, LIMIT, Moved, Stage, tails};
use crate::transcript::Transcript;
use crate::{Common, interrupt};

const NAME: &str = "g";
const DISK_MB: u64 = 24;
/// What the agents are allowed to connect each other's tunnels to.
const ALLOWED: &str =
    "tunnel_targets = [\"unix:/run/libvirt/libvirt-sock\", \"unix:/run/linerate-libvirt/\"]";

/// Two hosts, each with a libvirt 11.3 and an agent, and a domain that checks its memory and its disk.
pub struct Domains {
    agents: Vec<Agent>,
    libvirts: Vec<Libvirt>,
    lab: Lab,
    console: Transcript,
    at: usize,
    /// From the beginning of libvirt's job.
    usual: Duration,
}

impl Stage for Domains {
    fn at(&self) -> usize {
        self.at
    }

    fn usual(&self) -> Duration {
        self.usual
    }

    fn go(&mut self, cut: &Cut, _: &mut Random) -> anyhow::Result<Moved> {
        let (mut wrong, began) = (Vec::new(), Instant::now());
        let (links_lost, ended) = self.carry(&mut wrong, |lab| cut.make(lab))?;
        Ok(Moved { links_lost, total_s: (ended - began).as_secs_f64(), wrong, ..Moved::default() })
    }

    fn logs(&self) -> String {
        tails(self.agents.iter().map(Agent::log).chain(self.libvirts.iter().map(Libvirt::log)))
    }
}

impl Domains {
    /// Makes them; the domain has gone there once.
    pub fn new(common: &Common) -> anyhow::Result<Domains> {
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
        let mut stage = Domains { agents, libvirts, lab, console, at: 0, usual: Duration::ZERO };
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

    /// Moves the domain to the other host; `harm` begins with libvirt's job. Gives how many links were lost, and when
    /// the command ended.
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
        wrong.extend(self.console.damage_in_two_passes(LIMIT));
        Ok(())
    }
}

/// A disk without content, for what comes to a host.
fn empty_disk(path: &Path) -> anyhow::Result<()> {
    let file = std::fs::File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(file.set_len(DISK_MB << 20)?)
}
