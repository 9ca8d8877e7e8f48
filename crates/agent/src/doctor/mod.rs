//! The doctor's part of the agent: it knows this host, answers other agents, and coordinates probes between hosts.
//!
//! | module | contents |
//! |---|---|
//! | here | what is kept between questions; the inventory with what only the agent knows |
//! | `serve` | one question of another agent |
//! | `coordinate` | a request of the local API: inventories, then probes between every two hosts |
//! | `pairs` | which ports probe which (pure) |
//! | `rdma` | RDMA throughput of a link |
//! | `sides` | a host by its agent: this one directly, others over the network |

pub mod coordinate;
mod pairs;
mod rdma;
pub mod serve;
pub(crate) mod sides;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use linerate_fabric::collect::lldp::Listener;
use linerate_fabric::collect::{Options, inventory, network};
use linerate_fabric::model::{Agent as AgentFacts, Inventory, Neighbour, Qemu};
use linerate_fabric::probe::echo::{Echo, EchoError};
use linerate_fabric::probe::{Answer, Echoing};
use linerate_guest::host::QemuCache;
use linerate_lock::Mutex;

use crate::bench;
use crate::config::Config;
use crate::seats::Seats;
use crate::security::Security;

/// Counters are watched no longer, whatever is asked.
const WATCH_MAX: Duration = Duration::from_secs(10);
/// QEMU programs were asked when the agent began; one that was replaced since is asked again.
const QEMU_WAIT: Duration = Duration::from_secs(15);
/// More names are not resolved at a time.
const NAMES_MAX: usize = 256;

/// Questions of one host at a time: each has a thread.
const QUESTIONS_OF_ONE: usize = 32;
/// Questions of all hosts at a time.
const QUESTIONS_OF_ALL: usize = 128;
/// Inventories at a time, each for another host.
const INVENTORIES_MAX: usize = 8;

/// What the doctor keeps, and what it needs of this host.
pub struct Doctor {
    pub(crate) config: Arc<Config>,
    qemu_cache: Arc<QemuCache>,
    bench: Arc<bench::Host>,
    pub(crate) security: Arc<Security>,
    /// The answer to a drain of another host that asks what this host has.
    describe: Box<dyn Fn() -> Answer + Send + Sync>,
    /// Guests are being moved from or to this host: it is left alone.
    is_migrating: Box<dyn Fn() -> bool + Send + Sync>,
    /// Probes are sent for one question at a time: two would measure each other.
    probing: Mutex<()>,
    /// How many connections take load now.
    sinks: AtomicUsize,
    /// Questions of other hosts that are read or answered now, but for loads.
    questions: Seats,
    /// Inventories for other hosts.
    inventories: Seats,
    /// Answers datagrams, if a host asked for it lately.
    echo: Mutex<Option<Echo>>,
    lldp: OnceLock<Listener>,
    /// Drawn once: hosts may have one name, and one host several addresses.
    instance: OnceLock<String>,
}

impl Doctor {
    /// One without any result yet.
    pub fn new(
        config: Arc<Config>,
        qemu_cache: Arc<QemuCache>,
        bench: Arc<bench::Host>,
        security: Arc<Security>,
        describe: impl Fn() -> Answer + Send + Sync + 'static,
        is_migrating: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Doctor {
        Doctor {
            config,
            qemu_cache,
            bench,
            security,
            describe: Box::new(describe),
            is_migrating: Box::new(is_migrating),
            probing: Mutex::default(),
            sinks: AtomicUsize::default(),
            questions: Seats::new(QUESTIONS_OF_ONE, QUESTIONS_OF_ALL),
            inventories: Seats::new(1, INVENTORIES_MAX),
            echo: Mutex::default(),
            lldp: OnceLock::new(),
            instance: OnceLock::new(),
        }
    }

    /// Guests are being moved from or to this host.
    pub fn is_migrating(&self) -> bool {
        (self.is_migrating)()
    }

    /// A number that no other agent has.
    fn instance(&self) -> String {
        let draw = || {
            let mut bytes = [0; 16];
            // Without random numbers hosts are distinguished by name.
            let drawn = getrandom::fill(&mut bytes).is_ok();
            if drawn { bytes.iter().map(|byte| format!("{byte:02x}")).collect() } else { String::new() }
        };
        self.instance.get_or_init(draw).clone()
    }

    /// Receives LLDP of the switches from now on. Without the privilege that stays unknown.
    pub fn begin_to_listen(&self) {
        match Listener::start() {
            Ok(listener) => {
                let _ = self.lldp.set(listener);
            }
            Err(error) => tracing::warn!(%error, "not listening for LLDP"),
        }
    }

    /// The neighbours of a port, by LLDP.
    pub fn neighbours(&self, port: &str) -> Vec<Neighbour> {
        let all = self.lldp.get().map(Listener::neighbours).unwrap_or_default();
        all.into_iter().filter(|(name, _)| name == port).map(|(_, neighbour)| neighbour).collect()
    }

    /// Datagrams to these addresses are answered for this long; the sockets of an earlier question are used again.
    fn echo(&self, addresses: &[SocketAddr], last: Duration) -> Result<Echoing, EchoError> {
        let mut echo = self.echo.lock();
        match echo.as_ref() {
            Some(running) if running.extend(last) => Ok(running.echoing()),
            _ => Ok(echo.insert(Echo::start(addresses, last)?).echoing()),
        }
    }
}

pub(crate) fn inventory_here(doctor: &Doctor, watch: Duration, names: Vec<String>) -> Inventory {
    inventory(&Options {
        watch: watch.min(WATCH_MAX),
        names: names.into_iter().take(NAMES_MAX).collect(),
        qemu: qemu(doctor),
        agent: Some(AgentFacts {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            listen: doctor.config.listen.iter().map(ToString::to_string).collect(),
            links: Vec::new(),
            rdma_type_of_service: Some(doctor.config.rdma_type_of_service.unwrap_or(0)),
            instance: Some(doctor.instance()).filter(|drawn| !drawn.is_empty()),
            settings_from_agents: Some(doctor.config.settings_from_agents),
        }),
        ram_folders: ram_folders(doctor),
        ask_networks: true,
        ..quick(doctor)
    })
}

/// Ports and RDMA devices of this host: what can be read five times a second.
pub(crate) fn network_here(doctor: &Doctor) -> Inventory {
    network(&quick(doctor))
}

fn quick(doctor: &Doctor) -> Options {
    let neighbours = doctor.lldp.get().map(Listener::neighbours).unwrap_or_default();
    Options { neighbours, ..Options::new(&doctor.config.name) }
}

fn ram_folders(doctor: &Doctor) -> Vec<(PathBuf, bool)> {
    let huge = doctor.config.huge_ram_dir.iter().map(|folder| (folder.clone(), true));
    std::iter::once((doctor.config.ram_dir.clone(), false)).chain(huge).collect()
}

/// Versioned machine types only: an alias such as `pc` means another one in every QEMU.
fn qemu(doctor: &Doctor) -> Vec<Qemu> {
    let facts = |qemu: &crate::config::Qemu| {
        let facts = doctor.qemu_cache.facts(&qemu.program(), Instant::now() + QEMU_WAIT).ok();
        let versioned = |machine: &String| machine.rsplit('-').next().is_some_and(|end| end.contains('.'));
        Qemu {
            path: qemu.binary.display().to_string(),
            version: facts.as_ref().map(|facts| facts.version.to_string()),
            machines: facts
                .map(|facts| facts.machines.into_iter().filter(versioned).collect())
                .unwrap_or_default(),
        }
    };
    doctor.config.qemu.iter().map(facts).collect()
}
