//! Two hosts with libvirt and agents, and a domain.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_lab::guest::kvm_is_missing;
use linerate_lab::libvirt::{IMAGES, SHARED};
use linerate_lab::trust::Cluster;
use linerate_lab::{
    Agent, AgentOptions, Console, DiskMode, GuestParameters, GuestProgram, GuestSpec, Lab, LabBuilder,
    Libvirt, LibvirtVersion, LinkSpec, make_disk,
};
use linerate_lock::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Long enough for a slow machine; only a hang reaches it.
pub const LONG: Duration = Duration::from_secs(240);
/// The same for a whole migration.
const ENDS: Duration = Duration::from_secs(600);
const DISK_MB: u64 = 24;

/// One stage at a time.
static ONE: Mutex<()> = Mutex::new(());

/// Two hosts with libvirt and agents, and a domain that runs at the first, with a disk that they do not share.
pub struct Stage {
    pub agents: Vec<Agent>,
    pub libvirts: Vec<Libvirt>,
    pub console: Console,
    /// What it said at hosts that it has left, in order.
    consoles: Vec<PathBuf>,
    /// Passes in which the guest has checked all of its memory.
    passes: u64,
    pub lab: Lab,
    _one: MutexGuard<'static, ()>,
}

impl Stage {
    pub fn new(version: LibvirtVersion) -> Stage {
        let stage = Stage::empty(version);
        let disk = PathBuf::from(IMAGES).join("g.img");
        let parameters = GuestParameters { mem_mb: 32, dirty_mbps: 16, ..GuestParameters::default() };
        let guest = GuestSpec::new("g", parameters).disk(&disk, DiskMode::Direct);
        make_disk(&stage.libvirts[0].images().join("g.img"), DISK_MB).unwrap();
        stage.empty_disk(1);
        stage.libvirts[0].start_domain(&guest).unwrap();
        stage.console.wait_passes(2, LONG).unwrap();
        stage
    }

    /// With a domain whose RAM is a shared file and that has a second monitor. It has a disk that both hosts see, if
    /// one is given. The guest has no kernel and begins at once, where there is KVM.
    pub fn shared(version: LibvirtVersion, disk: Option<DiskMode>) -> Stage {
        Stage::shared_with(version, disk, quick(48))
    }

    /// The same with a guest that boots Linux in QEMU's emulation, and writes the same part of its memory again and
    /// again.
    pub fn shared_steady(version: LibvirtVersion, disk: Option<DiskMode>) -> Stage {
        let mut guest = emulated(48);
        guest.parameters.dirty_ws_mb = Some(8);
        Stage::shared_with(version, disk, guest)
    }

    fn shared_with(version: LibvirtVersion, disk: Option<DiskMode>, mut guest: GuestSpec) -> Stage {
        let mut stage = Stage::empty(version);
        if let Some(mode) = disk {
            make_disk(&stage.libvirts[0].shared().join("g.img"), DISK_MB).unwrap();
            guest.parameters.disk_generation = Some(1);
            guest = guest.disk(&PathBuf::from(SHARED).join("g.img"), mode);
        }
        stage.begin(&guest);
        stage
    }

    /// Starts a domain that direct mode can move, at the first host.
    pub fn begin(&mut self, guest: &GuestSpec) {
        self.consoles.clear();
        for libvirt in &self.libvirts {
            let _ = std::fs::remove_file(libvirt.console("g"));
        }
        self.console = Console::new([self.libvirts[0].console("g")]);
        self.libvirts[0].start_shared_domain(guest).unwrap();
        self.knows(guest);
    }

    /// The guest that is looked at from now on, once it has checked its memory.
    pub fn knows(&mut self, guest: &GuestSpec) {
        self.passes = if guest.program == GuestProgram::Linux { 2 } else { 9 };
        self.console.wait_passes(self.passes, LONG).unwrap();
    }

    /// Ends the domain at the first host, for another one.
    pub fn ends(&self) {
        self.libvirts[0].virsh(&["destroy", "g"]).unwrap();
        self.libvirts[0].virsh(&["undefine", "g"]).unwrap();
    }

    pub fn empty(version: LibvirtVersion) -> Stage {
        Stage::empty_over(version, 300)
    }

    /// With two links of this rate, Mb/s.
    pub fn empty_over(version: LibvirtVersion, mbps: u64) -> Stage {
        Stage::with_hosts(version, Lab::builder().links([LinkSpec::shaped(mbps); 2]), |_| String::new())
    }

    /// Hosts of one cluster, which prove who they are. The first two are each other's operators, and take the third
    /// one for a viewer.
    pub fn secured(version: LibvirtVersion) -> Stage {
        let hosts = Lab::builder().hosts(3).links([LinkSpec::shaped(300); 2]);
        Stage::with_hosts(version, hosts, |lab| {
            let mut cluster = Cluster::new(&lab.directory().join("authority")).unwrap();
            lab.hosts().iter().for_each(|host| cluster.join(host).unwrap());
            let roles = lab.hosts().iter().zip(["operator", "operator", "viewer"]);
            let tables =
                roles.map(|(host, role)| format!("[peers.hosts.{}]\nrole = {role:?}\n", host.name()));
            tables.collect()
        })
    }

    /// `configure` prepares the hosts, and has more lines for the configuration of all agents.
    fn with_hosts(
        version: LibvirtVersion,
        hosts: LabBuilder,
        configure: impl FnOnce(&Lab) -> String,
    ) -> Stage {
        let one = ONE.lock();
        let lab = hosts.build().unwrap();
        let allowed =
            "tunnel_targets = [\"unix:/run/libvirt/libvirt-sock\", \"unix:/run/linerate-libvirt/\"]";
        let configuration = format!("{allowed}\n{}", configure(&lab));
        let libvirts: Vec<Libvirt> =
            lab.hosts().iter().map(|host| Libvirt::start(host, version).unwrap()).collect();
        let start = |libvirt: &Libvirt| Agent::start(libvirt.host(), options(&configuration)).unwrap();
        let agents = libvirts.iter().map(start).collect();
        let console = Console::new([libvirts[0].console("g")]);
        Stage { agents, libvirts, console, consoles: Vec::new(), passes: 2, lab, _one: one }
    }

    /// A disk without content, for what comes to this host.
    pub fn empty_disk(&self, host: usize) {
        self.empty_image(host, "g.img");
    }

    pub fn empty_image(&self, host: usize, name: &str) {
        let file = std::fs::File::create(self.libvirts[host].images().join(name)).unwrap();
        file.set_len(DISK_MB << 20).unwrap();
    }

    /// Writes a file on a host, and names it as programs there do.
    pub fn write(&self, host: usize, name: &str, text: &str) -> String {
        std::fs::write(self.libvirts[host].images().join(name), text).unwrap();
        format!("{IMAGES}/{name}")
    }

    /// What it said at the other host ends here; if it comes back it begins a new file there.
    pub fn arrived(&mut self, host: usize) {
        let left = &self.libvirts[1 - host];
        let left_behind = left.images().join(format!("console{}", self.consoles.len()));
        std::fs::rename(left.console("g"), &left_behind).unwrap();
        self.consoles.push(left_behind);
        self.console = Console::new(self.consoles.iter().cloned().chain([self.libvirts[host].console("g")]));
    }

    fn command(&self, from: usize, more: &[&str]) -> Command {
        let command = self.agents[from].client();
        let to = self.agents[1 - from].address(0).to_string();
        self.asks(command, "g", &to, more)
    }

    /// Begins a move of a domain that is named like this.
    pub fn start_named(&self, from: usize, name: &str, more: &[&str]) -> Moving {
        let to = self.agents[1 - from].address(0).to_string();
        self.moving(self.asks(self.agents[from].client(), name, &to, more))
    }

    fn asks(&self, mut command: Command, name: &str, to: &str, more: &[&str]) -> Command {
        command.args(["migrate", &format!("qemu:///system/{name}"), "--json", "--no-check", "--to", to]);
        command.args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// What `linerate migration …` or another command answers at a host.
    pub fn asks_agent(&self, host: usize, words: &[&str]) -> (Option<i32>, Value) {
        let output = self.agents[host].client().args(words).arg("--json").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // One document, or lines of which the last counts.
        let last = || text.lines().last().and_then(|line| serde_json::from_str(line).ok());
        (output.status.code(), serde_json::from_str(&text).ok().or_else(last).unwrap_or(Value::Null))
    }

    /// The domain's newest migration in the list of a host.
    pub fn listed(&self, host: usize) -> Value {
        let (_, list) = self.asks_agent(host, &["migration", "list"]);
        list.as_array().and_then(|list| list.first()).cloned().unwrap_or(Value::Null)
    }

    /// Waits until the newest migration of that host is in this state. Gives its line.
    pub fn wait_listed(&self, host: usize, state: &str) -> Value {
        let deadline = Instant::now() + LONG;
        loop {
            let listed = self.listed(host);
            if listed["state"] == state {
                return listed;
            }
            assert!(Instant::now() < deadline, "not {state}: {listed:#}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until the agent of a host knows what became of migrations during which it ended.
    pub fn wait_known(&self, host: usize) {
        let deadline = Instant::now() + LONG;
        loop {
            let (_, list) = self.asks_agent(host, &["migration", "list"]);
            let list = list.as_array().expect("a list");
            if list.iter().all(|one| one["state"] != "recovering") {
                return;
            }
            assert!(Instant::now() < deadline, "not known: {list:#?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Begins a move with its disk.
    pub fn start(&self, from: usize, more: &[&str]) -> Moving {
        self.start_bare(from, &[&["--copy-storage", "all"], more].concat())
    }

    /// Begins a move with these flags and no others.
    pub fn start_bare(&self, from: usize, more: &[&str]) -> Moving {
        self.moving(self.command(from, more))
    }

    /// Begins a command at the first host, which reaches the agents by this ssh.
    pub fn start_by_ssh(&self, ssh: &Path, words: &[&str]) -> Moving {
        let mut command = self.agents[0].client();
        command.env("LINERATE_SSH", ssh).args(words).arg("--json");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        self.moving(command)
    }

    fn moving(&self, mut command: Command) -> Moving {
        Moving::new(
            command.spawn().unwrap(),
            self.agents.iter().map(|agent| agent.log().to_owned()).collect(),
        )
    }

    pub fn state(&self, host: usize) -> Option<String> {
        self.libvirts[host].virsh(&["domstate", "g"]).ok().map(|text| text.trim().to_owned())
    }

    /// What each host's libvirt, QEMU, agent and guest wrote last, for a message.
    pub fn evidence(&self) -> String {
        let of_host = |host: usize| {
            let libvirt = &self.libvirts[host];
            let folder = libvirt.host().directory().join("libvirt");
            let state = libvirt.virsh(&["domstate", "g", "--reason"]);
            format!(
                "host {host}: {state:?}\nQEMU:\n{}\nlibvirt:\n{}\nagent:\n{}\nconsole:\n{}",
                last(&folder.join("log/qemu/g.log"), 25),
                last(libvirt.log(), 15),
                last(self.agents[host].log(), 30),
                last(&libvirt.console("g"), 10),
            )
        };
        [0, 1].map(of_host).join("\n\n")
    }

    /// Waits until libvirt has stopped the domain for its switch-over, or has moved it already.
    pub fn wait_stopped(&self, from: usize) {
        let deadline = Instant::now() + LONG;
        while self.state(from).as_deref() == Some("running") {
            assert!(Instant::now() < deadline, "it is not stopped");
        }
    }

    /// Waits until libvirt's job has begun to move something.
    pub fn job_moves(&self, from: usize) {
        let deadline = Instant::now() + LONG;
        loop {
            let job = self.libvirts[from].virsh(&["domjobinfo", "g", "--rawstats"]).unwrap_or_default();
            let moved = job
                .lines()
                .any(|line| line.strip_prefix("data_processed: ").is_some_and(|bytes| bytes.trim() != "0"));
            if moved {
                return;
            }
            assert!(Instant::now() < deadline, "nothing moves; {job}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Watches a migration that has begun.
    pub fn attach(&self, host: usize, id: &str) -> Moving {
        let mut command = self.agents[host].client();
        command.args(["migration", "attach", id, "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.moving(command)
    }

    /// It runs there and nowhere else, and goes on with whole memory and disk.
    pub fn is_whole_at(&self, host: usize) {
        assert_eq!(self.state(host).as_deref(), Some("running"), "at host {host}");
        let deadline = Instant::now() + LONG;
        while let Some(state) = self.state(1 - host) {
            assert_ne!(state, "running", "there are two");
            assert!(Instant::now() < deadline, "it stays at the other host and is {state}");
            std::thread::sleep(Duration::from_millis(200));
        }
        self.console.wait_passes(self.passes, LONG).unwrap();
        assert!(self.console.bad_lines().is_empty(), "{}", self.console.text());
        assert!(self.console.passes_follow(), "{:?}", self.console.passes());
    }

    /// Sockets of migrations that are in a host's folder.
    pub fn sockets(&self, host: usize) -> Vec<OsString> {
        let folder = self.libvirts[host].host().directory().join("libvirt/sockets");
        std::fs::read_dir(&folder).unwrap().flatten().map(|entry| entry.file_name()).collect()
    }

    /// No socket of a migration is left, and no tunnel.
    pub fn nothing_is_left(&self) {
        for host in 0..self.libvirts.len() {
            let deadline = Instant::now() + LONG;
            loop {
                // What QEMU made at the destination it also removes, but not after a failure.
                let mut left = self.sockets(host);
                left.retain(|name| !is_of_qemu(name));
                if left.is_empty() {
                    break;
                }
                assert!(Instant::now() < deadline, "left behind: {left:?}");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn emulated(mem_mb: u64) -> GuestSpec {
    let parameters = GuestParameters { mem_mb, dirty_mbps: 16, disk_mbps: 4, ..GuestParameters::default() };
    GuestSpec::new("g", parameters)
}

/// Writes part of its memory all the time, and checks all of it about twice a second.
pub fn quick(mem_mb: u64) -> GuestSpec {
    if kvm_is_missing().is_some() {
        return emulated(mem_mb);
    }
    let parameters =
        GuestParameters { mem_mb, dirty_ws_mb: Some(8), disk_mbps: 4, ..GuestParameters::default() };
    GuestSpec::user_mode("g", parameters)
}

fn is_of_qemu(name: &OsStr) -> bool {
    name.to_string_lossy().ends_with("-mig.sock") || name.to_string_lossy().ends_with("-nbd.sock")
}

fn options(configuration: &str) -> AgentOptions {
    AgentOptions {
        binary: Some(env!("CARGO_BIN_EXE_linerate").into()),
        configuration: configuration.into(),
        environment: vec![("LINERATE_LOG".into(), "debug".into())],
    }
}

/// The last lines of a file.
fn last(path: &Path, count: usize) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// A running `linerate migrate`; killed when dropped.
pub struct Moving {
    child: Child,
    lines: Arc<Mutex<Vec<Value>>>,
    readers: Vec<JoinHandle<String>>,
    /// Both agents', for a message.
    logs: Vec<PathBuf>,
}

impl Moving {
    fn new(mut child: Child, logs: Vec<PathBuf>) -> Moving {
        let lines = Arc::<Mutex<Vec<Value>>>::default();
        let (stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let sink = lines.clone();
        let out = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                sink.lock().push(serde_json::from_str(&line).unwrap());
            }
            String::new()
        });
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        Moving { child, lines, readers: vec![out, errors], logs }
    }

    /// Waits for a line like this.
    pub fn wait(&self, what: &str, is: impl Fn(&Value) -> bool) {
        let deadline = Instant::now() + LONG;
        loop {
            let over = self.readers[0].is_finished() || Instant::now() > deadline;
            if self.lines.lock().iter().any(&is) {
                return;
            }
            assert!(!over, "{what} never came: {}", self.evidence());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What the command and both agents said.
    fn evidence(&self) -> String {
        let lines = self.lines.lock();
        let said = lines.iter().filter(|line| line["kind"] != "progress").map(Value::to_string);
        let logs = self.logs.iter().map(|log| format!("{}:\n{}", log.display(), last(log, 80)));
        said.chain(logs).collect::<Vec<_>>().join("\n")
    }

    /// Waits until libvirt's job has begun to move something.
    pub fn moves(&self, stage: &Stage, from: usize) {
        stage.job_moves(from);
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn end(mut self) -> Ended {
        // One that never ends must show what it said, and not hang.
        let status = linerate_lab::wait::exit(&mut self.child, Instant::now() + ENDS).unwrap();
        let errors = self.readers.drain(..).map(|reader| reader.join().unwrap()).collect();
        Ended { code: status.code(), lines: std::mem::take(&mut *self.lines.lock()), errors }
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub lines: Vec<Value>,
    /// Shown when a test fails.
    pub errors: String,
}

impl Ended {
    pub fn last(&self) -> &Value {
        self.lines.last().expect("a line")
    }
}
