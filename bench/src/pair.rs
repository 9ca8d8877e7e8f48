//! One guest that goes back and forth between the first two hosts of a lab.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use linerate_lab::{Agent, AgentOptions, Console, GuestParameters, GuestSpec, Lab};

use crate::moving::{Ending, Moving};

/// How long the guest may take to boot; only a hang meets it.
const BOOT: Duration = Duration::from_secs(120);

/// Two hosts with agents, and the guest.
#[derive(Debug)]
pub struct Pair {
    agents: Vec<Agent>,
    source: usize,
    pub lab: Lab,
}

impl Pair {
    /// Starts the agents with this configuration beside the lab's, and the guest on the first host.
    pub fn new(lab: Lab, binary: &Path, configuration: &str, guest_mib: u64) -> anyhow::Result<Pair> {
        let options = AgentOptions {
            binary: Some(binary.to_owned()),
            configuration: configuration.to_owned(),
            ..AgentOptions::default()
        };
        let hosts = lab.hosts().iter().take(2);
        let agents = hosts.map(|host| Agent::start(host, options.clone())).collect::<Result<_, _>>()?;
        let pair = Pair { agents, source: 0, lab };
        let guest = GuestSpec::new("g", GuestParameters { mem_mb: guest_mib, ..GuestParameters::default() });
        let host = pair.lab.host(0)?;
        let file = guest.write_toml(host)?;
        let done = pair.source()?.client().args(["vm", "start"]).arg(file).output()?;
        ensure!(done.status.success(), "the guest: {}", String::from_utf8_lossy(&done.stderr));
        Console::new(vec![guest.serial(host)]).wait_passes(1, BOOT)?;
        Ok(pair)
    }

    /// The agent where the guest is.
    pub fn source(&self) -> anyhow::Result<&Agent> {
        self.agents.get(self.source).context("no such agent")
    }

    /// The other host's address on the first link, as `--to` wants it.
    pub fn to(&self) -> anyhow::Result<String> {
        Ok(self.agents.get(1 - self.source).context("no such agent")?.address(0).to_string())
    }

    /// The network of a link, as `--links` wants it.
    pub fn network(&self, link: usize) -> anyhow::Result<String> {
        Ok(format!("{}/24", self.lab.host(self.source)?.address(link)))
    }

    /// Moves it to the other host.
    pub fn migrate(&mut self, flags: &[&str], limit: Duration) -> anyhow::Result<Ending> {
        let ending = Moving::begin(self.source()?, "g", &self.to()?, flags)?.finish(limit);
        if ending.completed() {
            self.source = 1 - self.source;
        }
        Ok(ending)
    }
}
