//! The agent: the daemon that runs on every host.
//!
//! | module | what it has |
//! |---|---|
//! | [`config`], [`journal`] | what the operator configures, what must be known after a crash |
//! | `agent` | what all parts share; which part gets a connection from another agent |
//! | [mod@cluster] | membership of a cluster: authority, tokens, joining, renewal |
//! | `session` | what every session between two agents has: connections, links, channels, streams |
//! | `outgoing`, `incoming` | the drivers of the core's two state machines |
//! | [mod@bench] | measuring the links |
//! | `recovery` | sessions that have not ended: after a crash, or where a hypervisor does not answer |
//! | `doctor` | inventory and probes, for this host and for other agents |
//! | `trial`, `qos` | changes of ports that are put back unless confirmed; those of an intent |
//! | `settings` | the same here or on another host, which must allow it |
//! | `server` | the local API |
//! | `audit`, `local_users` | who did what on this host, or tried to; roles of users of this host |
//! | `seats` | how much is done at a time for other hosts |
//! | `permission` | what each call of a user or another host needs |
//! | [mod@libvirt] | libvirt's domains: libvirt is asked to move them |
//! | `tunnel` | sessions that carry byte streams between sockets of two hosts |
//! | `stream_gate` | connections of such a session that wait, and bytes that are held back |
//! | `fleet` | whether this host takes guests from others, by the store of its fleet |
//! | `fleet_member` | this host describes itself in a store that hosts share, and looks after what others have left |
//! | `host_record` | this host for a fleet: what it has, and which guests are there |
//! | `send_back` | guests that another host wants back, from which they came |
//! | `drain` | all guests of this host leave it |
//! | `event_log`, `convert` | events of a migration, and the core's types as the API's |
//! | `not_taken` | why a connection from another agent is not taken |
//! | `name_claims` | names of guests that something is just about to take |
//! | `ran_here` | whether a guest ran at its source after commit |
//! | `log` | standard error, for which nothing waits |
//! | `ram`, `cpu`, `digest`, `device_state`, `clock`, `faults`, `local` | small things that the drivers use |

mod agent;
mod audit;
pub mod bench;
mod both_hosts;
mod clock;
pub mod cluster;
pub mod config;
mod convert;
mod cpu;
mod decision;
mod device_state;
mod digest;
mod disks;
mod doctor;
mod drain;
mod event_log;
mod faults;
mod fleet;
mod fleet_member;
mod guests;
mod host_record;
mod incoming;
pub mod journal;
mod kernel;
pub mod libvirt;
mod local;
mod local_users;
mod log;
mod name_claims;
mod not_taken;
mod outgoing;
mod own_addresses;
mod permission;
mod private_folder;
mod qos;
mod ram;
mod ran_here;
mod rdma_ports;
mod recovery;
mod seats;
mod security;
mod send_back;
mod server;
mod session;
mod settings;
mod stream_gate;
#[cfg(test)]
mod testing;
mod trial;
mod tunnel;

use std::fs::{File, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use linerate_api::{AuditAction, TunnelAddress};
use linerate_guest::access::Access;
use linerate_guest::domain_folder::DomainFolder;
use linerate_guest::qemu_user::QemuUser;
use linerate_guest::registry::Registry;
use linerate_net::tcp::listen::OnRefusal;
use rustls_pki_types::UnixTime;
use tokio::runtime::Runtime;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::agent::Agent;
use crate::audit::Audit;
use crate::config::{Config, FleetSettings};
use crate::journal::Journal;
use crate::log::Log;
use crate::private_folder::private_folder;
use crate::security::Security;

/// Default path of the configuration.
pub const DEFAULT_CONFIG: &str = "/etc/linerate/agent.toml";

/// Users that libvirt's packages of Debian and Fedora run QEMU as.
const LIBVIRT_QEMU_USERS: [&str; 2] = ["libvirt-qemu", "qemu"];

/// Runs the agent until SIGTERM or SIGINT. Guests and their QEMU continue to run. With `check` the configuration is
/// read, with the files that it names, and nothing else is done.
pub fn run(config: &Path, check: bool) -> Result<()> {
    let config = Config::read(config)?;
    if check {
        let security = Security::open(&config)?;
        // The agent starts with these faults: what is open must be brought to its end, and guests must be able to
        // leave.
        if let Some(Err(error)) = security.identity().map(|own| own.check_own(UnixTime::now())) {
            eprintln!("warning: other hosts will refuse this host: {}", faults::chain(&error));
        }
        if let Some(Err(error)) = config.fleet.as_ref().map(FleetSettings::options) {
            eprintln!("warning: this host cannot take part in its fleet: {}", faults::chain(&error));
        }
        if let Err(error) = config.qemu_user() {
            eprintln!("warning: no guest can arrive or be started here: {}", faults::chain(&error));
        }
        return Ok(());
    }
    let log = std::io::stderr().as_fd().try_clone_to_owned();
    start_log(Log::to(log.context("standard error cannot be written to")?));
    let runtime = Runtime::new().context("cannot start the runtime")?;
    let _alone = alone(&config.run_dir)?;
    // Before anything is recovered or taken in: systemd starts an agent that cannot answer again and again.
    server::refuse_answered(&config.socket)?;
    let security = Security::open(&config)?;
    end_on_panic();
    let agent = Arc::new(open(config, security)?);
    agent.audit.agent(AuditAction::AgentStart);
    // First: it does not block, and what follows may.
    session::pending_notice::send_all(&agent.config.state_dir, &agent.security);
    agent.recovery.is_deaf.store(true, Ordering::Relaxed);
    recovery::recover(&agent.recovery).context("cannot recover from the journal")?;
    trial::recover(&agent.trials);
    if let Err(error) = agent.fleet.cordon() {
        tracing::error!(%error, "no guest can arrive here: whether this host is cordoned cannot be read");
    }
    tunnel::clear_folders(&agent.config);
    warm_up(&agent);
    kernel::probe();
    agent.doctor.begin_to_listen();
    let accepting = agent.clone();
    let (audit, refusals) = (agent.audit.clone(), agent.audit.clone());
    let on_refusal = OnRefusal(Arc::new(move |peer, reason| refusals.refused(peer, reason)));
    let handle = runtime.handle().clone();
    let accept = move |accepted| {
        let _inside = handle.enter();
        accepting.accept(accepted);
    };
    agent.cluster.start(accept, on_refusal, audit)?;
    agent.recovery.is_deaf.store(false, Ordering::Relaxed);
    if agent.security.allows_rdma() {
        rdma_ports::listen(&agent);
    } else {
        tracing::info!("RDMA is not used: the agents cannot encrypt it, and rdma_network is not \"trusted\"");
    }
    {
        let _inside = runtime.enter();
        libvirt::recover(&agent.libvirt()).context("cannot recover from the journal")?;
    }
    let drains = Arc::default();
    fleet_member::start(&agent);
    drain::resume(&agent, &drains, runtime.handle().clone());
    let served = runtime.block_on(server::serve(&agent, &drains));
    agent.fleet.leave();
    agent.audit.agent(AuditAction::AgentStop);
    end(runtime);
    agent.cluster.stop();
    served?;
    tracing::info!("the agent ends; guests run on");
    Ok(())
}

/// Waits for no request: it is left as by a crash. Sessions would go on to decide meanwhile, without the connections by
/// which other hosts are heard.
fn end(runtime: Runtime) {
    runtime.shutdown_background();
}

/// A defect ends the agent at once, also in a build without `panic = "abort"`: no thread continues with what the one
/// that panicked has left half changed. The next start recovers from the journal.
fn end_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panicked| {
        report(panicked);
        std::process::abort();
    }));
}

/// Two agents with one list of guests would end each other's guests while they are started. Released when it is
/// dropped.
fn alone(run_dir: &Path) -> Result<File> {
    private_folder(run_dir)?;
    let path = run_dir.join("agent.lock");
    let file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).with_context(|| {
        format!("cannot lock {}: is another agent running with this run_dir?", path.display())
    })?;
    Ok(file)
}

fn open(config: Config, security: Arc<Security>) -> Result<Agent> {
    for folder in
        [&config.run_dir, &config.ram_dir, &config.state_dir].into_iter().chain(&config.huge_ram_dir)
    {
        private_folder(folder)?;
        if config.has_qemu_user() && *folder != config.state_dir {
            let_pass(folder)?;
        }
    }
    make_socket_folders(&config)?;
    make_domain_folder(&config);
    let journal = Journal::open(&config.state_dir).with_context(|| {
        format!("cannot open the journal in {}; is another agent running?", config.state_dir.display())
    })?;
    let mut registry = Registry::open(&config.run_dir)?;
    let access = config.state_dir.join("access");
    // Guests that were started as another user keep what it was let in to, also where new ones are started as root.
    if config.has_qemu_user() || access.exists() {
        registry = registry.with_access(Access::new(access))?;
    }
    if config.has_qemu_user() {
        if let Some(slice) = config.qemu_slice.as_ref().filter(|_| !config::has_systemd()) {
            tracing::warn!(
                slice,
                "qemu_slice has no effect, as systemd does not run here: guests are in the agent's control group"
            );
        }
        // Guests that are here can still leave, and what is open can be ended.
        if let Err(error) = config.qemu_user() {
            tracing::error!(error = faults::chain(&error), "no guest can arrive or be started here");
        }
    }
    let audit = Audit::open(&config.state_dir)
        .with_context(|| format!("cannot open the audit log in {}", config.state_dir.display()))?;
    Ok(Agent::new(config, journal, registry, security, audit))
}

/// QEMU's user passes through to its guests' files, and cannot list the folder.
fn let_pass(folder: &Path) -> Result<()> {
    std::fs::set_permissions(folder, Permissions::from_mode(0o711))
        .with_context(|| format!("cannot let QEMU's user through {}", folder.display()))
}

/// Folders that tunnels may connect into are there from the start. Hypervisors of any user may make sockets in them,
/// and none can see those of others.
fn make_socket_folders(config: &Config) -> Result<()> {
    for folder in config.tunnel_targets.iter().filter_map(TunnelAddress::folder) {
        let made = std::fs::create_dir_all(folder.parent().unwrap_or(folder)).and_then(|()| {
            if folder.exists() {
                return Ok(());
            }
            make_folder(folder, |made| std::fs::set_permissions(made, Permissions::from_mode(0o1733)))
        });
        made.with_context(|| format!("cannot make {}", folder.display()))?;
    }
    Ok(())
}

/// Where domains have a QMP socket for us. It is made for the user that libvirt's QEMUs run as, so that no other user
/// can take a domain's name. A host without a safe one does without direct mode for domains.
fn make_domain_folder(config: &Config) {
    let folder = &config.domain_sockets;
    if folder.symlink_metadata().is_err()
        && let Err(error) = make_folder(folder, for_domains)
    {
        tracing::warn!(%error, folder = %folder.display(), "libvirt's domains cannot have their QMP sockets there");
        return;
    }
    if let Err(error) = DomainFolder::open(folder) {
        tracing::warn!(error = faults::chain(&error), "no domain of libvirt moves in direct mode");
    }
}

/// Gives a new folder to the user that libvirt's QEMUs run as; it stays root's where there is none.
fn for_domains(made: &Path) -> std::io::Result<()> {
    std::fs::set_permissions(made, Permissions::from_mode(0o700))?;
    let user = LIBVIRT_QEMU_USERS.iter().find_map(|name| QemuUser::find(name).ok().flatten());
    match user.filter(|_| rustix::process::geteuid().is_root()) {
        Some(user) => std::os::unix::fs::chown(made, Some(user.uid), Some(user.gid)),
        None => Ok(()),
    }
}

/// Makes a folder, and gives it its name when it is finished: one that a crash left half made would be taken for whole.
fn make_folder(folder: &Path, finish: impl FnOnce(&Path) -> std::io::Result<()>) -> std::io::Result<()> {
    let mut name = folder.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let unfinished = folder.with_file_name(name);
    match std::fs::remove_dir(&unfinished) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::fs::create_dir(&unfinished)?;
    finish(&unfinished)?;
    std::fs::rename(unfinished, folder)
}

/// Asks the configured QEMU programs what they can, so that the first incoming guest need not wait for it.
fn warm_up(agent: &Arc<Agent>) {
    let agent = agent.clone();
    let asking = move || {
        for qemu in &agent.config.qemu {
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
            if let Err(error) = agent.qemu_cache.facts(&qemu.program(), deadline) {
                tracing::warn!(qemu = qemu.name, error = faults::chain(&error), "cannot be used");
            }
        }
    };
    let _ = std::thread::Builder::new().name("warm-up".into()).spawn(asking);
}

/// Logs to standard error, which systemd keeps. `LINERATE_LOG` filters (`debug`, `linerate_net=trace`).
fn start_log(log: Log) {
    let wanted = std::env::var("LINERATE_LOG").unwrap_or_else(|_| "info".into());
    let filter = tracing_subscriber::EnvFilter::try_new(log_filter(&wanted))
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(log_filter("info")));
    // What is audited has its own files; journald gets its fields, where there is a journald.
    let text = tracing_subscriber::fmt::layer()
        .with_writer(move || log.clone())
        .with_ansi(false)
        .with_filter(filter)
        .with_filter(filter_fn(|event| event.target() != audit::TARGET));
    let journald = tracing_journald::layer().ok().map(|layer| {
        let layer = layer.with_field_prefix(Some("LINERATE".to_owned()));
        layer.with_filter(filter_fn(|event| event.target() == audit::TARGET))
    });
    let _ = tracing_subscriber::registry().with(text).with(journald).try_init();
}

/// A level alone is that of Linerate; libraries tell their warnings then.
fn log_filter(wanted: &str) -> String {
    if wanted.contains(['=', ',', '[']) { wanted.to_owned() } else { format!("warn,linerate={wanted}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_alone_is_linerates() {
        assert_eq!(log_filter("debug"), "warn,linerate=debug");
        assert_eq!(log_filter("off,linerate_agent::drain=trace"), "off,linerate_agent::drain=trace");
    }

    #[test]
    fn a_second_agent_with_the_same_guests_ends_at_once_and_reports_why() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.toml");
        let folder = |name: &str| dir.path().join(name);
        let text = format!(
            "name = \"a\"\nlisten = []\nsocket = {:?}\nstate_dir = {:?}\nrun_dir = {:?}\nram_dir = {:?}\n",
            folder("agent.sock"),
            folder("state"),
            folder("run"),
            folder("ram")
        );
        std::fs::write(&path, text).unwrap();
        let first = alone(&folder("run")).unwrap();
        let (ends, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || ends.send(run(&path, false)));
        let second = ended.recv_timeout(std::time::Duration::from_secs(60)).expect("it runs");
        let message = format!("{:#}", second.unwrap_err());
        assert!(message.contains("agent.lock") && message.contains("another agent"), "{message}");
        assert!(!folder("state").exists(), "it has touched nothing");
        drop(first);
        // A process that another test forks has the lock until it runs its program.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while let Err(error) = alone(&folder("run")) {
            assert!(std::time::Instant::now() < end, "{error:#}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    #[test]
    fn an_agent_does_not_start_with_a_folder_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let folder = |name: &str| dir.path().join(name);
        let text = format!(
            "name = \"a\"\nstate_dir = {:?}\nrun_dir = {:?}\nram_dir = {:?}\nhuge_ram_dir = {:?}\n",
            folder("state"),
            folder("run"),
            folder("ram"),
            folder("huge")
        );
        let starts = || open(toml::from_str(&text).unwrap(), Security::insecure()).map(drop);
        let mode = |name: &str, mode| {
            std::fs::set_permissions(folder(name), Permissions::from_mode(mode)).unwrap();
        };
        starts().unwrap();
        for name in ["state", "run", "ram", "huge"] {
            mode(name, 0o755);
            let message = format!("{:#}", starts().unwrap_err());
            assert!(message.contains(&format!("chmod 700 {}", folder(name).display())), "{message}");
            mode(name, 0o700);
        }
        starts().unwrap();
    }

    /// The unit checks the configuration before each start, and the agent itself starts without its fleet.
    #[test]
    fn files_of_a_fleet_that_cannot_be_read_keep_no_agent_from_starting() {
        let dir = tempfile::tempdir().unwrap();
        let (path, missing) = (dir.path().join("agent.toml"), dir.path().join("ca.pem"));
        let text = format!(
            "state_dir = {:?}\n[fleet]\nendpoints = [\"https://192.0.2.1:2379\"]\nauthorities = {missing:?}\n",
            dir.path().join("state")
        );
        std::fs::write(&path, text).unwrap();
        run(&path, true).unwrap();
        std::fs::write(&path, "[fleet]\nendpoints = []\nhosts = 3\n").unwrap();
        assert!(run(&path, true).is_err(), "a key that there is not");
    }

    #[test]
    fn an_agent_that_is_stopped_waits_for_no_request() {
        use std::sync::mpsc::channel;
        use std::time::Duration;
        let runtime = Runtime::new().unwrap();
        let (begins, has_begun) = channel();
        runtime.spawn_blocking(move || {
            begins.send(()).unwrap();
            std::thread::sleep(Duration::from_secs(600));
        });
        has_begun.recv_timeout(Duration::from_secs(60)).unwrap();
        let (ends, has_ended) = channel();
        std::thread::spawn(move || {
            end(runtime);
            ends.send(()).unwrap();
        });
        has_ended.recv_timeout(Duration::from_secs(60)).expect("a request is waited for");
    }

    #[test]
    fn a_panic_in_any_thread_ends_the_agent() {
        use std::os::unix::process::ExitStatusExt;
        const INSIDE: &str = "LINERATE_TEST_PANICS";
        if std::env::var_os(INSIDE).is_some() {
            end_on_panic();
            let panicked = std::thread::spawn(|| panic!("on purpose")).join();
            println!("it continues: {panicked:?}");
            return;
        }
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "tests::a_panic_in_any_thread_ends_the_agent", "--nocapture"]);
        let ended = again.env(INSIDE, "1").output().unwrap();
        let abort = rustix::process::Signal::ABORT.as_raw();
        assert_eq!(ended.status.signal(), Some(abort), "{ended:?}");
        assert!(
            String::from_utf8_lossy(&ended.stderr).contains("on purpose"),
            "the cause is reported: {ended:?}"
        );
    }

    #[test]
    fn folder_of_domains_sockets_is_made_so_that_no_other_user_makes_names_there() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("domains");
        let config: Config = toml::from_str(&format!("domain_sockets = {folder:?}\n")).unwrap();
        make_domain_folder(&config);
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o7777, 0o700);
        DomainFolder::open(&folder).unwrap();
        // What the operator made stays as it is.
        std::fs::set_permissions(&folder, Permissions::from_mode(0o1733)).unwrap();
        make_domain_folder(&config);
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o7777, 0o1733);
    }

    #[test]
    fn a_folder_that_was_not_finished_is_not_there_and_is_made_the_next_time() {
        let dir = tempfile::tempdir().unwrap();
        // As the operator names it.
        let folder = dir.path().join("sockets/");
        let dies = |_: &Path| Err(std::io::ErrorKind::Interrupted.into());
        assert!(make_folder(&folder, dies).is_err());
        assert!(!folder.exists(), "the next start would take it for made");
        let finish = |made: &Path| std::fs::set_permissions(made, Permissions::from_mode(0o1733));
        make_folder(&folder, finish).unwrap();
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o7777, 0o1733);
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}
