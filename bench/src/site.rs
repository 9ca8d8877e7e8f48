//! Two hosts with agents, the observer, and what is asked of them: the stage of all three kinds of run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use linerate_api::{GuestRunState, GuestSummary, MigrationState, MigrationSummary};
use linerate_lab::{
    Agent, AgentOptions, Gate, GuestSpec, Host, Lab, LinkSpec, Observer, Qemu, QemuOptions, Ram,
};
use serde::de::DeserializeOwned;

use crate::interrupt;
use crate::transcript::Transcript;

/// Where the observer listens.
pub const PORT: u16 = 7000;
/// Packets a second that a guest sends to it: gaps are seen to 2 ms.
pub const BEATS: u32 = 500;

/// Fields go in this order: processes before the namespaces that they run in.
#[derive(Debug)]
pub struct Site {
    /// Of host 0 and host 1.
    pub agents: Vec<Agent>,
    /// Listens to the guests' heartbeats.
    pub observer: Observer,
    /// What they stand on.
    pub lab: Lab,
}

/// What may be chosen about a site.
#[derive(Debug, Clone, Default)]
pub struct SiteOptions {
    /// As `linerate-lab up --links`.
    pub links: String,
    /// The binary under test.
    pub linerate: PathBuf,
    /// More lines for the configuration of each agent.
    pub configuration: [String; 2],
    /// A small file system of its own for the journal of this host.
    pub small_state: Option<usize>,
    /// Upper bound of guest RAM per host, MiB.
    pub ram_mb: u64,
}

impl Site {
    /// Makes it: two taps (`tap0`, `tap1`) and an agent on each host.
    pub fn new(options: &SiteOptions) -> anyhow::Result<Site> {
        Site::with(options, |_| Ok(Vec::new()))
    }

    /// The same with agents that stop where a gate is set.
    pub fn gated(options: &SiteOptions) -> anyhow::Result<(Site, [Gate; 2])> {
        let mut gates = Vec::new();
        let site = Site::with(options, |host| {
            let gate = Gate::new(host)?;
            let environment = gate.environment();
            gates.push(gate);
            Ok(environment)
        })?;
        let gates = gates.try_into().ok().context("a site has two hosts")?;
        Ok((site, gates))
    }

    fn with(
        options: &SiteOptions,
        mut environment: impl FnMut(&Host) -> anyhow::Result<Vec<(String, String)>>,
    ) -> anyhow::Result<Site> {
        let links = LinkSpec::parse_list(&options.links, linerate_lab::link::DEFAULT_MTU)?;
        let lab = Lab::builder().links(links).ram_mb(options.ram_mb.max(1024)).build()?;
        let observer = Observer::start(&lab, PORT)?;
        let mut site = Site { agents: Vec::new(), observer, lab };
        for (index, host) in site.lab.hosts().iter().enumerate() {
            host.add_tap("tap0")?;
            host.add_tap("tap1")?;
            if options.small_state == Some(index) {
                mount_small(&host.state_directory())?;
            }
            let agent = AgentOptions {
                binary: Some(options.linerate.clone()),
                configuration: options.configuration.get(index).cloned().unwrap_or_default(),
                environment: environment(host)?,
            };
            site.agents.push(Agent::start(host, agent)?);
        }
        Ok(site)
    }

    pub fn host(&self, index: usize) -> anyhow::Result<&Host> {
        Ok(self.lab.host(index)?)
    }

    pub fn agent(&self, index: usize) -> anyhow::Result<&Agent> {
        self.agents.get(index).context("no such agent")
    }

    /// The same, to harm it.
    pub fn agent_mut(&mut self, index: usize) -> anyhow::Result<&mut Agent> {
        self.agents.get_mut(index).context("no such agent")
    }

    /// Starts a guest through the agent; `aio` of its disk if it has one.
    pub fn start_guest(
        &self,
        host: usize,
        spec: &GuestSpec,
        aio: Option<&str>,
    ) -> anyhow::Result<Transcript> {
        let file = spec.write_toml(self.host(host)?)?;
        if let Some(aio) = aio {
            let text = std::fs::read_to_string(&file)?;
            let cache = "cache = \"none\"";
            ensure!(text.contains(cache), "the specification has no disk with {cache}");
            std::fs::write(&file, text.replace(cache, &format!("{cache}\naio = \"{aio}\"")))?;
        }
        let mut start = self.agent(host)?.client();
        start.args(["vm", "start", "--json"]).arg(&file);
        answer::<GuestSummary>(start)?;
        Ok(Transcript::new(spec.serial(self.host(host)?)))
    }

    /// Starts a guest as its users start it, with RAM that is its process's own, and has the host's agent adopt it.
    pub fn adopt_guest(&self, host: usize, spec: &GuestSpec) -> anyhow::Result<(Qemu, Transcript)> {
        let options = QemuOptions { ram: Ram::Plain, ..QemuOptions::default() };
        let qemu = Qemu::start(self.host(host)?, spec, &options)?;
        let socket = self.host(host)?.run_directory().join(format!("{}.qmp", spec.name));
        let mut adopt = self.agent(host)?.client();
        adopt.args(["vm", "adopt", "--json", "--qmp"]).arg(&socket);
        answer::<GuestSummary>(adopt)?;
        Ok((qemu, Transcript::new(spec.serial(self.host(host)?))))
    }

    /// Guests that a host's agent knows.
    pub fn guests(&self, host: usize) -> anyhow::Result<Vec<GuestSummary>> {
        let mut list = self.agent(host)?.client();
        list.args(["vm", "list", "--json"]);
        answer(list)
    }

    /// A guest of a host, by its name.
    pub fn guest(&self, host: usize, name: &str) -> anyhow::Result<Option<GuestSummary>> {
        Ok(self.guests(host)?.into_iter().find(|guest| guest.name == name))
    }

    /// Process of a guest's QEMU.
    pub fn pid(&self, host: usize, name: &str) -> anyhow::Result<u32> {
        self.guest(host, name)?
            .and_then(|guest| guest.pid)
            .with_context(|| format!("{name} is not on host {host}"))
    }

    /// Whether a host's agent says that the guest runs there.
    pub fn runs(&self, host: usize, name: &str) -> anyhow::Result<bool> {
        Ok(self.guest(host, name)?.is_some_and(|guest| guest.state == GuestRunState::Running))
    }

    /// Migrations that a host's agent knows.
    pub fn migrations(&self, host: usize) -> anyhow::Result<Vec<MigrationSummary>> {
        let mut list = self.agent(host)?.client();
        list.args(["migration", "list", "--json"]);
        answer(list)
    }

    /// Whether nothing is in progress or in doubt on a host.
    pub fn quiet(&self, host: usize) -> anyhow::Result<bool> {
        let busy = |migration: &MigrationSummary| {
            matches!(
                migration.state,
                MigrationState::Running
                    | MigrationState::Cancelling
                    | MigrationState::InDoubt
                    | MigrationState::Recovering
            )
        };
        Ok(!self.migrations(host)?.iter().any(busy))
    }

    /// Waits until both agents answer and nothing is in progress or in doubt.
    pub fn settle(&self, limit: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + limit;
        loop {
            interrupt::check()?;
            let (a, b) = (self.quiet(0), self.quiet(1));
            if matches!((&a, &b), (Ok(true), Ok(true))) {
                return Ok(());
            }
            if Instant::now() >= end {
                let list = |host| self.migrations(host);
                bail!("not settled after {limit:?}: host a {:?}; host b {:?}", list(0), list(1));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Where a migration goes, as `--to` wants it.
    pub fn to(&self, host: usize) -> anyhow::Result<String> {
        Ok(self.agent(host)?.address(0).to_string())
    }

    /// The ends of both agents' logs, and of what their guests' QEMUs said.
    pub fn logs(&self) -> String {
        let of = |agent: &Agent| {
            let mut files = vec![agent.log().to_owned()];
            for folder in entries(&agent.host().run_directory().join("guests")) {
                let is_log = |path: &PathBuf| {
                    let name =
                        path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                    name.ends_with(".log") && !name.starts_with("serial")
                };
                files.extend(entries(&folder).into_iter().filter(is_log));
            }
            files.iter().map(|file| tail(file)).collect::<String>()
        };
        self.agents.iter().map(of).collect()
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn tail(file: &Path) -> String {
    let bytes = std::fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.get(lines.len().saturating_sub(40)..).unwrap_or_default().join("\n");
    format!("--- {}\n{last}\n", file.display())
}

fn mount_small(directory: &Path) -> anyhow::Result<()> {
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=4m,mode=0700", "linerate-bench"]).arg(directory);
    let done = mount.output()?;
    ensure!(
        done.status.success(),
        "cannot mount {}: {}",
        directory.display(),
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(())
}

/// Runs a client command that answers with a document.
pub fn answer<T: DeserializeOwned>(mut command: Command) -> anyhow::Result<T> {
    let done = command.output().context("cannot start linerate")?;
    if !done.status.success() {
        let message = String::from_utf8_lossy(&done.stderr);
        bail!(
            "{command:?} failed ({}): {}{}",
            done.status,
            message.trim(),
            String::from_utf8_lossy(&done.stdout).trim()
        );
    }
    serde_json::from_slice(&done.stdout).with_context(|| format!("unreadable answer of {command:?}"))
}

/// Its console file on the host that Linerate moves it to, and where its part of it will begin.
pub fn console_at(host: &Host, spec: &GuestSpec) -> (PathBuf, u64) {
    let path = spec.arrived_serial(host);
    let skip = Transcript::length(&path);
    (path, skip)
}

/// An agent at each host of a lab, all with this configuration beside the lab's.
pub fn agents(lab: &Lab, binary: &Path, configuration: &str) -> anyhow::Result<Vec<Agent>> {
    let options = || AgentOptions {
        binary: Some(binary.to_owned()),
        configuration: configuration.to_owned(),
        ..AgentOptions::default()
    };
    Ok(lab.hosts().iter().map(|host| Agent::start(host, options())).collect::<Result<_, _>>()?)
}
