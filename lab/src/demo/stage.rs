//! The stage: two hosts, two links, two agents, a guest that checks itself, and a listener on the network.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use linerate_api::Client;
use linerate_lab::trust::Cluster;
use linerate_lab::{
    Agent, AgentOptions, Console, DiskMode, GuestParameters, GuestSpec, Lab, LinkSpec, Observer, guest,
    make_disk,
};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use super::{Options, QUIET, Screen};

/// Name of the guest.
pub const GUEST: &str = "web";
const TAP: &str = "tap0";
const PORT: u16 = 7000;
const PACKETS_PER_S: u32 = 200;
const DISK_MB: u64 = 64;
/// Memory that the guest keeps writing, MiB, and how fast, MiB/s.
const WRITTEN_MB: u64 = 32;
const WRITTEN_MB_PER_S: i64 = 20;
/// Emulated guests boot and fill memory slowly on a busy machine.
pub const LONG: Duration = Duration::from_secs(300);
const STEP: Duration = Duration::from_millis(50);

/// Ctrl-C and SIGTERM: noted here, looked at in every wait.
pub struct Interrupt {
    came: Arc<AtomicBool>,
    runtime: Runtime,
}

impl Interrupt {
    pub fn watch() -> Result<Interrupt> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let came = Arc::new(AtomicBool::new(false));
        let noted = came.clone();
        let (mut interrupt, mut terminate) = {
            let _inside = runtime.enter();
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
        };
        runtime.spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            noted.store(true, Ordering::Relaxed);
        });
        Ok(Interrupt { came, runtime })
    }

    pub fn came(&self) -> bool {
        self.came.load(Ordering::Relaxed)
    }

    /// Where requests to agents run.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Looks until there is something, at most for [`LONG`].
    pub fn wait<T>(&self, what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let end = Instant::now() + LONG;
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            if self.came() {
                bail!("stopped on request");
            }
            if Instant::now() >= end {
                bail!("{what} did not happen within {LONG:?}");
            }
            std::thread::sleep(STEP);
        }
    }
}

/// See the module. Fields are dropped in this order: what runs in the lab before the lab.
pub struct Stage<'a> {
    pub interrupt: &'a Interrupt,
    pub agents: Vec<Agent>,
    pub observer: Observer,
    pub console: Console,
    pub spec: GuestSpec,
    /// What the network sees of the guest while nothing is done to it: the longest gap, µs.
    pub usual_gap_us: u64,
    pub lab: Lab,
}

impl<'a> Stage<'a> {
    pub fn set(options: &Options, screen: &mut Screen, interrupt: &'a Interrupt) -> Result<Stage<'a>> {
        let lab = build(options, screen)?;
        let agents = start_agents(&lab, options, screen)?;
        let spec = specify(&lab, options)?;
        let observer = Observer::start(&lab, PORT)?;
        let console = Console::new([spec.serial(lab.host(0)?)]);
        let mut stage = Stage { interrupt, agents, observer, console, spec, usual_gap_us: 0, lab };
        stage.start_guest(options, screen)?;
        Ok(stage)
    }

    pub fn agent(&self, host: usize) -> Result<&Agent> {
        self.agents.get(host).context("there are two hosts")
    }

    pub fn client(&self, host: usize) -> Result<Client> {
        Ok(Client::new(self.agent(host)?.socket()))
    }

    pub fn guest_address(&self) -> Ipv4Addr {
        self.lab.guest_address(0)
    }

    fn start_guest(&mut self, options: &Options, screen: &mut Screen) -> Result<()> {
        screen.step(&format!(
            "A guest starts on a: QEMU with a Linux of its own, {} MiB of RAM.",
            self.spec.memory_mb
        ));
        let file = self.spec.write_toml(self.lab.host(0)?)?;
        screen.command("linerate vm start web.toml");
        let done =
            self.agent(0)?.client().args(["vm", "start"]).arg(&file).output().context("linerate vm start")?;
        if !done.status.success() {
            bail!("linerate vm start failed: {}", String::from_utf8_lossy(&done.stderr).trim());
        }
        screen.note(&format!("It fills {} MiB with data that cannot be compressed,", options.memory_mb));
        screen.note(&format!("rewrites {WRITTEN_MB} MiB of it over and over at {WRITTEN_MB_PER_S} MiB/s, writes to its disk (O_DIRECT),"));
        screen.note(&format!(
            "sends {PACKETS_PER_S} packets a second, and checks every byte that it reads back."
        ));
        self.interrupt.wait("the guest's first pass", || {
            self.complain()?;
            Ok((self.console.last_pass() >= 1).then_some(()))
        })?;
        let since = self.observer.now();
        self.interrupt.wait("a quiet moment", || Ok((self.observer.now() >= since + QUIET).then_some(())))?;
        let seen = self.observer.blackout(self.guest_address(), since);
        if seen.received == 0 {
            bail!("no packet of the guest has come to the observer");
        }
        self.usual_gap_us = seen.longest_gap_us;
        screen.note(&format!(
            "It runs. Between two of its packets pass at most {} ms, with nothing going on.",
            super::findings::ms(seen.longest_gap_us)
        ));
        Ok(())
    }

    fn complain(&self) -> Result<()> {
        match self.console.bad_lines().first() {
            Some(line) => bail!("the guest says: {line}"),
            None => Ok(()),
        }
    }

    /// Everything is taken away.
    pub fn strike(mut self) {
        // Agents in order, so that their logs end well; whatever is left goes with the lab.
        self.agents.iter_mut().for_each(|agent| drop(agent.stop()));
    }
}

fn build(options: &Options, screen: &mut Screen) -> Result<Lab> {
    screen.step(&format!(
        "Two hosts, a and b, with two links between them: l0 and l1, {} each.",
        super::findings::rate(options.rate_mbps * 125_000)
    ));
    let links = [LinkSpec::shaped(options.rate_mbps); 2];
    let lab = Lab::builder().links(links).ram_mb(options.memory_mb + 1024).build()?;
    lab.hosts().iter().try_for_each(|host| host.add_tap(TAP))?;
    for host in lab.hosts() {
        let addresses: Vec<String> = host.addresses().iter().map(ToString::to_string).collect();
        screen.note(&format!("{}: {}", host.name(), addresses.join(", ")));
    }
    Ok(lab)
}

fn start_agents(lab: &Lab, options: &Options, screen: &mut Screen) -> Result<Vec<Agent>> {
    screen.step(
        "The hosts become one cluster, and an agent starts on each. What they send each other is TLS 1.3.",
    );
    let mut cluster = Cluster::new(&lab.directory().join("authority"))?;
    lab.hosts().iter().try_for_each(|host| cluster.join(host))?;
    screen.command("linerate agent --config agent.toml");
    let options = AgentOptions { binary: options.linerate.clone(), ..AgentOptions::default() };
    let agents: Result<Vec<_>, _> =
        lab.hosts().iter().map(|host| Agent::start_apart(host, options.clone())).collect();
    screen.note("They know nothing of links or of each other: links are found when a guest is to be moved.");
    Ok(agents?)
}

fn specify(lab: &Lab, options: &Options) -> Result<GuestSpec> {
    let disk = lab.directory().join("disk.img");
    make_disk(&disk, DISK_MB)?;
    let parameters = GuestParameters {
        mem_mb: options.memory_mb,
        dirty_mbps: WRITTEN_MB_PER_S,
        dirty_ws_mb: Some(WRITTEN_MB.min(options.memory_mb / 2)),
        disk_mbps: 4,
        disk_threads: 1,
        disk_generation: Some(1),
        net: Some(guest::heartbeat(lab, 0, PORT, PACKETS_PER_S)),
        ..GuestParameters::default()
    };
    Ok(GuestSpec::new(GUEST, parameters).disk(&disk, DiskMode::Direct).tap(TAP))
}
