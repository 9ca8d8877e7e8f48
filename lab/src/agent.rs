//! A `linerate agent` in a host.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;
use serde::Serialize;

use crate::error::io_error;
use crate::{Cache, Host, LabError, Process, QemuVersion, device, trust, wait};

/// Port of agents in the lab, on every link address.
pub const PORT: u16 = 7979;
const START_LIMIT: Duration = Duration::from_secs(60);

/// What may be chosen about an agent.
#[derive(Debug, Clone, Default)]
pub struct AgentOptions {
    /// The `linerate` binary; found by itself when None (see [`binary`]).
    pub binary: Option<PathBuf>,
    /// More lines for the configuration file, put before the tables.
    pub configuration: String,
    /// More environment, for instance `RUST_LOG`.
    pub environment: Vec<(String, String)>,
}

/// An agent in a host; killed when dropped.
#[derive(Debug)]
pub struct Agent {
    host: Host,
    binary: PathBuf,
    options: AgentOptions,
    own_group: bool,
    process: Process,
}

#[derive(Serialize)]
struct Configuration<'a> {
    name: &'a str,
    listen: Vec<SocketAddr>,
    socket: &'a Path,
    state_dir: PathBuf,
    run_dir: PathBuf,
    ram_dir: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    huge_ram_dir: Option<PathBuf>,
    file_roots: Vec<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    qemu_user: Option<&'a str>,
}

#[derive(Serialize)]
struct Hypervisors {
    qemu: Vec<Hypervisor>,
}

#[derive(Serialize)]
struct Hypervisor {
    name: &'static str,
    binary: PathBuf,
    data_dirs: Vec<PathBuf>,
}

/// `$LINERATE_BIN`, or `linerate` beside the running program or its `deps` folder.
pub fn binary() -> Result<PathBuf, LabError> {
    if let Some(path) = std::env::var_os("LINERATE_BIN") {
        return Ok(path.into());
    }
    let program = std::env::current_exe().map_err(io_error("find", "this program"))?;
    let folders = program.ancestors().skip(1).take(2);
    folders.map(|folder| folder.join("linerate")).find(|path| path.is_file()).ok_or(LabError::NoLinerate)
}

impl Agent {
    /// Writes the configuration, starts the agent and waits until its local API answers.
    pub fn start(host: &Host, options: AgentOptions) -> Result<Agent, LabError> {
        Agent::start_in(host, options, false)
    }

    /// The same in a process group of its own, so that Ctrl-C on the terminal does not reach it.
    pub fn start_apart(host: &Host, options: AgentOptions) -> Result<Agent, LabError> {
        Agent::start_in(host, options, true)
    }

    fn start_in(host: &Host, options: AgentOptions, own_group: bool) -> Result<Agent, LabError> {
        let binary = options.binary.clone().map_or_else(binary, Ok)?;
        write_configuration(host, &options.configuration)?;
        let process = spawn(host, &binary, &options, own_group)?;
        let mut agent = Agent { host: host.clone(), binary, options, own_group, process };
        agent.wait_ready()?;
        Ok(agent)
    }

    /// The host it runs in.
    pub fn host(&self) -> &Host {
        &self.host
    }

    pub fn socket(&self) -> PathBuf {
        socket(&self.host)
    }

    /// What it has in its environment beyond the usual.
    pub fn environment(&self) -> &[(String, String)] {
        &self.options.environment
    }

    /// Its control and data address on a link.
    pub fn address(&self, link: usize) -> SocketAddr {
        (self.host.address(link), PORT).into()
    }

    /// Its log, kept over restarts.
    pub fn log(&self) -> &Path {
        self.process.log()
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The process, to look at.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Ends it by SIGKILL, as a crash does.
    pub fn kill(&mut self) -> Result<ExitStatus, LabError> {
        self.process.kill()
    }

    /// SIGTERM: an orderly end.
    pub fn stop(&mut self) -> Result<ExitStatus, LabError> {
        self.process.terminate(Duration::from_secs(60))
    }

    /// SIGSTOP: a host that hangs.
    pub fn freeze(&mut self) -> Result<(), LabError> {
        self.process.signal(Signal::STOP)
    }

    /// Lets it go on by SIGCONT.
    pub fn thaw(&mut self) -> Result<(), LabError> {
        self.process.signal(Signal::CONT)
    }

    /// Starts it again over the same directories; ends it first if it still runs.
    pub fn restart(&mut self) -> Result<(), LabError> {
        self.stop()?;
        self.process = spawn(&self.host, &self.binary, &self.options, self.own_group)?;
        self.wait_ready()
    }

    /// The same with a new configuration file: with TLS if the host has a certificate by now, without if it has none.
    pub fn reconfigure(&mut self) -> Result<(), LabError> {
        write_configuration(&self.host, &self.options.configuration)?;
        self.restart()
    }

    /// Starts it again if it has ended.
    pub fn restart_if_dead(&mut self) -> Result<(), LabError> {
        if self.process.must_run().is_ok() { Ok(()) } else { self.restart() }
    }

    /// A `linerate` client command that talks to this agent (`LINERATE_SOCKET`).
    pub fn client(&self) -> std::process::Command {
        let mut command = self.host.command(&self.binary);
        command.env("LINERATE_SOCKET", self.socket());
        command
    }

    fn wait_ready(&mut self) -> Result<(), LabError> {
        let (socket, log) = (self.socket(), self.process.log().to_owned());
        let what = format!("an answer on {}", socket.display());
        wait::until(
            &what,
            START_LIMIT,
            move || crate::process::tail(&log),
            || {
                self.process.must_run()?;
                Ok(UnixStream::connect(&socket).ok().map(drop))
            },
        )
    }
}

fn socket(host: &Host) -> PathBuf {
    host.run_directory().join("agent.sock")
}

fn spawn(host: &Host, binary: &Path, options: &AgentOptions, own_group: bool) -> Result<Process, LabError> {
    let mut command = host.command(binary);
    command.arg("agent").arg("--config").arg(host.directory.join("agent.toml"));
    command.envs(options.environment.iter().map(|(key, value)| (key, value)));
    if own_group {
        command.process_group(0);
    }
    let log = host.directory.join("agent.log");
    Process::start(&format!("agent {}", host.name()), command, &log)
}

/// Whether the default user of QEMU is here. The image of a machine of the RDMA lab has no users; `lab/install.sh`
/// makes it on others.
fn has_qemu_user() -> bool {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    users.lines().any(|line| line.starts_with("linerate-qemu:"))
}

fn write_configuration(host: &Host, more: &str) -> Result<(), LabError> {
    let render = |source| LabError::Toml { what: "the agent's configuration", source };
    let configuration = Configuration {
        name: host.name(),
        listen: host.addresses().into_iter().map(|address| (address, PORT).into()).collect(),
        socket: &socket(host),
        state_dir: host.state_directory(),
        run_dir: host.run_directory(),
        ram_dir: host.ram_directory(),
        huge_ram_dir: Some(host.huge_directory()).filter(|folder| folder.is_dir()),
        file_roots: file_roots(host),
        qemu_user: (!has_qemu_user()).then_some("root"),
    };
    let head = toml::to_string(&configuration).map_err(render)?;
    let tables = toml::to_string(&Hypervisors { qemu: hypervisors()? }).map_err(render)?;
    let path = host.directory.join("agent.toml");
    let (security, certificate) = trust::configuration(host, more);
    let text = format!("{head}{security}{more}\n{certificate}{tables}");
    std::fs::write(&path, text).map_err(io_error("write", &path))
}

// Where guests' files are: the lab's own directory (disks, consoles), the kernel and initramfs of the cache, and block
// devices.
fn file_roots(host: &Host) -> Vec<PathBuf> {
    let lab = host.directory.parent().map(Path::to_owned);
    lab.into_iter().chain([Cache::locate().directory().to_owned(), device::FOLDER.into()]).collect()
}

fn hypervisors() -> Result<Vec<Hypervisor>, LabError> {
    let cache = Cache::locate();
    let describe = |version: QemuVersion| {
        let (binary, data_dirs) = (cache.qemu(version)?, cache.qemu_data(version)?);
        Ok(Hypervisor { name: version.name(), binary, data_dirs })
    };
    QemuVersion::ALL.into_iter().map(describe).collect()
}
