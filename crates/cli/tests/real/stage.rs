//! Two hosts, two agents, a guest.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::MutexGuard;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use linerate_lab::{
    Agent, AgentOptions, Console, DiskMode, GuestParameters, GuestProgram, GuestSpec, Lab, LabBuilder,
    LinkSpec, Qemu, QemuOptions, QemuVersion, Ram, disk::SLOT_BYTES, make_disk,
};
use linerate_lock::Mutex;
use serde_json::Value;

#[allow(dead_code, reason = "not every test file stops agents there")]
mod gated;
#[allow(dead_code, reason = "not every test file has such hosts")]
mod secured;
#[allow(dead_code, reason = "not every test file has such hosts")]
mod unshared;

const LONG: Duration = Duration::from_secs(180);
const DISK_MB: u64 = 16;
/// At this rate of each link a copy takes far longer than any pause of a test on a busy machine.
const SLOW_MBPS: u64 = 25;

/// One stage at a time.
static ONE: Mutex<()> = Mutex::new(());

/// See the module. Everything of it goes away when it is dropped.
pub struct Stage {
    agents: Vec<Agent>,
    /// Host that has the guest.
    pub source: usize,
    consoles: Vec<PathBuf>,
    /// Passes in which the guest has checked all of its memory, one that is half done included.
    passes: u64,
    /// Operations in which it has come to every slot of its disk, where that is certain.
    disk_operations: u64,
    /// A QEMU that no agent started.
    _foreign: Option<Qemu>,
    // Behind the agents: dropped after them.
    pub lab: Lab,
    _one: MutexGuard<'static, ()>,
}

impl Stage {
    /// With the guest without a kernel.
    pub fn new(links_mbps: &[u64], parameters: GuestParameters) -> Stage {
        Stage::with_guest(links_mbps, GuestSpec::bare("g", parameters))
    }

    pub fn with_disk(
        links_mbps: &[u64],
        parameters: GuestParameters,
        qemu: QemuVersion,
        disk: DiskMode,
    ) -> Stage {
        let parameters = GuestParameters { disk_generation: Some(1), disk_mbps: 4, ..parameters };
        Stage::of(hosts(links_mbps), |lab| {
            let image = lab.directory().join("disk.img");
            make_disk(&image, DISK_MB).unwrap();
            GuestSpec::new("g", parameters).qemu(qemu).disk(&image, disk)
        })
    }

    /// Two hosts whose cables end in switches, bridges that can be set; their ports may be set from each other.
    pub fn through_switches(links_mbps: &[u64], parameters: GuestParameters) -> Stage {
        Stage::guest_through_switches(links_mbps, GuestSpec::bare("g", parameters))
    }

    /// The same with any guest called `g`.
    pub fn guest_through_switches(links_mbps: &[u64], guest: GuestSpec) -> Stage {
        Stage::with_hosts_set(Lab::builder().hosts(3), links_mbps, "settings_from_agents = true\n", |_| guest)
    }

    /// The switch of a link passes no larger packets any more. A veth hands over what an adapter would have cut into
    /// packets, and a bridge passes that whatever its length: so the hosts cut for themselves.
    pub fn switch_mtu(&self, link: usize, mtu: u32) {
        let namespace = format!("{}-sw", self.lab.name());
        let set = |namespace: &str, port: &str, what: &str, value: &str| {
            let words = ["-n", namespace, "link", "set", "dev", port, what, value];
            assert!(std::process::Command::new("ip").args(words).status().unwrap().success());
        };
        for host in self.lab.hosts() {
            set(&namespace, &format!("l{link}-{}", host.name()), "mtu", &mtu.to_string());
            set(host.namespace(), &host.device(link), "gso_max_segs", "1");
        }
    }

    /// With a guest that another program started, and that the source's agent has adopted.
    pub fn adopted(parameters: GuestParameters) -> Stage {
        Stage::foreign(&[1000, 1000], GuestSpec::new("g", parameters), None, QemuOptions::default())
    }

    /// The same with more arguments for its QEMU.
    #[allow(dead_code, reason = "not every test file has such guests")]
    pub fn adopted_with(parameters: GuestParameters, arguments: &[&str]) -> Stage {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let options = QemuOptions { arguments, ..QemuOptions::default() };
        Stage::foreign(&[1000, 1000], GuestSpec::new("g", parameters), None, options)
    }

    /// The same with any guest called `g`, and with RAM that is its process's own.
    #[allow(dead_code, reason = "not every test file has such guests")]
    pub fn plain(links_mbps: &[u64], mut guest: GuestSpec, disk: Option<DiskMode>) -> Stage {
        guest.parameters.disk_generation = disk.map(|_| 1);
        guest.parameters.disk_mbps = plain_disk_mbps(guest.program);
        let options = QemuOptions { ram: Ram::Plain, ..QemuOptions::default() };
        Stage::foreign(links_mbps, guest, disk, options)
    }

    fn foreign(links: &[u64], spec: GuestSpec, disk: Option<DiskMode>, options: QemuOptions) -> Stage {
        let hosts = hosts(links);
        let folder = hosts.1.directory().to_owned();
        Stage::foreign_on(hosts, &folder, spec, disk, options)
    }

    fn foreign_on(
        (one, lab, agents): Hosts,
        folder: &Path,
        mut spec: GuestSpec,
        disk: Option<DiskMode>,
        options: QemuOptions,
    ) -> Stage {
        if let Some(mode) = disk {
            let image = folder.join("disk.img");
            make_disk(&image, DISK_MB).unwrap();
            spec = spec.disk(&image, mode);
        }
        let host = &lab.hosts()[0];
        let foreign = Qemu::start(host, &spec, &options).unwrap();
        let consoles = vec![spec.serial(host)];
        let (passes, disk_operations) = rounds_of(&spec);
        let foreign = Some(foreign);
        let stage =
            Stage { agents, source: 0, consoles, passes, disk_operations, _foreign: foreign, lab, _one: one };
        stage.console().wait_passes(1, LONG).unwrap();
        let socket = stage.lab.hosts()[0].run_directory().join("g.qmp");
        let (exit, text) = stage.linerate_at_source(&["vm", "adopt", "--qmp", socket.to_str().unwrap()]);
        assert_eq!(exit, 0, "{text}");
        stage
    }

    /// With a guest of any kind, called `g`.
    pub fn with_guest(links_mbps: &[u64], guest: GuestSpec) -> Stage {
        Stage::of(hosts(links_mbps), |_| guest)
    }

    /// On hosts that have more than usual.
    pub fn with_hosts(hosts: LabBuilder, links_mbps: &[u64], guest: impl FnOnce(&Lab) -> GuestSpec) -> Stage {
        Stage::with_hosts_set(hosts, links_mbps, "", guest)
    }

    /// The same with more lines for the configuration of both agents.
    #[allow(dead_code, reason = "not every test file needs it")]
    pub fn with_hosts_set(
        hosts: LabBuilder,
        links_mbps: &[u64],
        configuration: &str,
        guest: impl FnOnce(&Lab) -> GuestSpec,
    ) -> Stage {
        Stage::of(hosts_of(hosts, links_mbps, |_| configuration.into()), guest)
    }

    fn of((one, lab, agents): Hosts, guest: impl FnOnce(&Lab) -> GuestSpec) -> Stage {
        let spec = guest(&lab);
        let host = &lab.hosts()[0];
        let file = spec.write_toml(host).unwrap();
        let consoles = vec![spec.serial(host)];
        let (passes, disk_operations) = rounds_of(&spec);
        let stage =
            Stage { agents, source: 0, consoles, passes, disk_operations, _foreign: None, lab, _one: one };
        let (exit, text) = stage.linerate_at_source(&["vm", "start", file.to_str().unwrap()]);
        assert_eq!(exit, 0, "{text}");
        stage.console().wait_passes(1, LONG).unwrap();
        stage
    }

    pub fn source_agent(&mut self) -> &mut Agent {
        &mut self.agents[self.source]
    }

    pub fn destination_agent(&mut self) -> &mut Agent {
        &mut self.agents[1 - self.source]
    }

    pub fn source_address(&self) -> String {
        self.agents[self.source].address(0).to_string()
    }

    pub fn destination_address(&self) -> String {
        self.agents[1 - self.source].address(0).to_string()
    }

    pub fn restart_destination_with(&mut self, configuration: &str) {
        let host = self.lab.hosts()[1 - self.source].clone();
        let place = 1 - self.source;
        self.agents[place].stop().unwrap();
        self.agents[place] = Agent::start(&host, options(configuration)).unwrap();
    }

    /// Restarts both agents with another program.
    #[allow(dead_code, reason = "not every test file needs it")]
    pub fn restart_both_as(&mut self, program: &Path) {
        for (place, host) in self.lab.hosts().iter().take(2).enumerate() {
            self.agents[place].stop().unwrap();
            let options = AgentOptions { binary: Some(program.to_owned()), ..options("") };
            self.agents[place] = Agent::start(host, options).unwrap();
        }
    }

    /// Restarts the destination's agent on a host that has no hugetlbfs any more.
    pub fn restart_destination_without_huge_pages(&mut self) {
        let folder = self.lab.hosts()[1 - self.source].huge_directory();
        assert!(std::process::Command::new("umount").arg(&folder).status().unwrap().success());
        std::fs::remove_dir(&folder).unwrap();
        self.restart_destination_with("");
    }

    /// Exit code and all output of a client command.
    pub fn linerate_at_source(&self, arguments: &[&str]) -> (i32, String) {
        run(&self.agents[self.source], arguments)
    }

    /// Waits until so many guests, waiting ones too, are left there.
    pub fn wait_guests_at_destination(&self, wanted: usize, limit: Duration) {
        let end = Instant::now() + limit;
        while self.guests_at_destination() != wanted {
            assert!(
                Instant::now() < end,
                "{} guests are left at the destination",
                self.guests_at_destination()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Nothing is left at the destination, and not because of its own limit of 60 s.
    #[allow(dead_code, reason = "not every test file gives migrations up")]
    pub fn wait_freed_at_destination(&self) {
        self.wait_guests_at_destination(0, LONG);
        let log = std::fs::read_to_string(self.agents[1 - self.source].log()).unwrap();
        assert!(!log.contains("no control connection from the source for"), "{log}");
    }

    /// The source's agent has told the destination to give a migration up, and nothing of it is left there.
    pub fn wait_told_at_destination(&self) {
        let log = || std::fs::read_to_string(self.agents[1 - self.source].log()).unwrap();
        self.until("the destination is told", || log().contains("rolled back at its source").then_some(()));
        self.wait_freed_at_destination();
    }

    pub fn guests_at_destination(&self) -> usize {
        self.guests_at(1 - self.source).len()
    }

    fn guests_at(&self, place: usize) -> Vec<Value> {
        let (exit, text) = run(&self.agents[place], &["vm", "list", "--json"]);
        assert_eq!(exit, 0, "{text}");
        serde_json::from_str::<Value>(&text).unwrap().as_array().unwrap().clone()
    }

    /// Process of the only QEMU at the source or at the destination.
    #[allow(dead_code, reason = "not every test file needs it")]
    pub fn qemu_pid(&self, at_destination: bool) -> u64 {
        let place = if at_destination { 1 - self.source } else { self.source };
        self.guests_at(place)[0]["pid"].as_u64().unwrap()
    }

    /// Open descriptors of both agents, by what they are: what a migration took must be given back.
    #[allow(dead_code, reason = "not every test file looks at it")]
    pub fn descriptors(&self) -> Vec<String> {
        let of = |agent: &Agent| {
            let folder = format!("/proc/{}/fd", agent.pid());
            let links = std::fs::read_dir(folder).unwrap().flatten();
            let names = links.filter_map(|link| std::fs::read_link(link.path()).ok());
            names.map(|name| name.display().to_string()).collect::<Vec<_>>()
        };
        self.agents.iter().flat_map(of).collect()
    }

    /// What its agent reads from the running guest.
    pub fn description(&self) -> Value {
        self.shown()["description"].take()
    }

    pub fn shown(&self) -> Value {
        let (exit, text) = self.linerate_at_source(&["vm", "show", "g", "--json"]);
        assert_eq!(exit, 0, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    fn console(&self) -> Console {
        Console::new(self.consoles.clone())
    }

    /// Process of the guest's QEMU.
    #[allow(dead_code, reason = "not every test file needs it")]
    pub fn guest_process(&self) -> rustix::process::Pid {
        let (exit, text) = self.linerate_at_source(&["vm", "show", "g", "--json"]);
        assert_eq!(exit, 0, "{text}");
        let guest: Value = serde_json::from_str(&text).unwrap();
        let pid = guest["summary"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        rustix::process::Pid::from_raw(pid.unwrap()).unwrap()
    }

    /// What the agent of the guest's host has logged.
    #[allow(dead_code, reason = "not every test file asks")]
    pub fn source_log(&self) -> String {
        std::fs::read_to_string(self.agents[self.source].log()).unwrap()
    }

    /// All that both agents have logged.
    pub fn whole_logs(&self) -> String {
        self.agents.iter().map(|agent| std::fs::read_to_string(agent.log()).unwrap()).collect()
    }

    /// Begins to move the guest to the other host.
    pub fn migrate(&self, arguments: &[&str]) -> Migration {
        let to = self.destination_address();
        let mut all = vec!["migrate", "g", "--to", &to, "--json"];
        all.extend(arguments);
        let logs = self.agents.iter().map(|agent| agent.log().to_owned()).collect();
        Migration::start(&self.agents[self.source], &all, logs)
    }

    /// Begins to move the guest over links that are slow until [`Stage::speed_up`]. When it returns, every link carries
    /// and most of the guest is still to come. A link that is not open yet could not be lost.
    pub fn migrate_slowly(&self, arguments: &[&str]) -> Migration {
        let links = self.lab.topology().links.len();
        (0..links).for_each(|link| self.lab.slow(link, SLOW_MBPS).unwrap());
        let mut migration = self.migrate(arguments);
        migration.wait(LONG, |event| carries_over(event, links));
        migration
    }

    /// The links are whole, and as fast as they were at first.
    pub fn speed_up(&self) {
        (0..self.lab.topology().links.len()).for_each(|link| self.lab.restore(link).unwrap());
    }

    /// Moves the guest, and hurries only once every link carries: each has its part, however late it was open.
    pub fn migrate_over_all_links(&self, arguments: &[&str]) -> Vec<Value> {
        let migration = self.migrate_slowly(arguments);
        self.speed_up();
        migration.finish()
    }

    /// The guest is at the other host now.
    pub fn arrived(&mut self) {
        self.source = 1 - self.source;
        let host = &self.lab.hosts()[self.source];
        self.consoles.push(host.run_directory().join("guests/g/qemu/serial0.log"));
    }

    /// It passes over its memory, and its disk if that has an order, again, and nothing is damaged.
    pub fn guest_goes_on(&self) {
        // Only its present console counts: the files of hosts that it left are removed with what was there.
        let console = Console::new(self.consoles.last().cloned());
        console.wait_passes(self.passes, LONG).unwrap();
        if self.disk_operations > 0 {
            console.wait_disk(self.disk_operations, LONG).unwrap();
        }
        assert_eq!(console.bad_lines(), Vec::<String>::new(), "{}", console.text());
    }

    /// It has ended a pass over its memory since.
    pub fn guest_runs(&self) {
        Console::new(self.consoles.last().cloned()).wait_passes(1, LONG).unwrap();
    }

    /// No write protection is left on any memory of its QEMU.
    pub fn is_unprotected(&self) {
        let (_, text) = self.linerate_quietly(&["vm", "list", "--json"]);
        let pid = serde_json::from_str::<Value>(&text).ok().and_then(|list| list[0]["pid"].as_u64());
        // With its agent dead the pid is in the pid file all the same.
        let pid = pid.unwrap_or_else(|| {
            let file = self.lab.hosts()[self.source].run_directory().join("guests/g/record.json");
            let record: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
            record["process"]["pid"].as_u64().unwrap()
        });
        let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
        let protected: Vec<&str> =
            maps.lines().filter(|line| line.starts_with("VmFlags:") && line.contains(" uw")).collect();
        assert_eq!(protected, Vec::<&str>::new());
    }

    fn linerate_quietly(&self, arguments: &[&str]) -> (i32, String) {
        run(&self.agents[self.source], arguments)
    }

    /// After whatever went wrong: the same migration succeeds.
    pub fn retry(&mut self) {
        let report = ended(&self.migrate(&["--verify"]).finish()).completed();
        assert_eq!(report["verified"], true);
        self.arrived();
        self.guest_goes_on();
    }
}

type Hosts = (MutexGuard<'static, ()>, Lab, Vec<Agent>);

fn hosts(links: &[u64]) -> Hosts {
    hosts_of(Lab::builder(), links, |_| String::new())
}

/// The first two hosts have agents.
fn hosts_of(builder: LabBuilder, links: &[u64], configuration: impl FnOnce(&Lab) -> String) -> Hosts {
    let one = ONE.lock();
    let builder = links.iter().fold(builder, |lab, &mbps| lab.link(LinkSpec::shaped(mbps).mtu(9000)));
    let lab = builder.build().unwrap();
    let hosts = lab.hosts().iter().take(2);
    let configuration = configuration(&lab);
    let agents = hosts.map(|host| Agent::start(host, options(&configuration)).unwrap()).collect();
    (one, lab, agents)
}

fn options(configuration: &str) -> AgentOptions {
    AgentOptions {
        binary: Some(env!("CARGO_BIN_EXE_linerate").into()),
        configuration: configuration.into(),
        environment: vec![("LINERATE_LOG".into(), "debug".into())],
    }
}

fn run(agent: &Agent, arguments: &[&str]) -> (i32, String) {
    let output = agent.client().args(arguments).output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap_or(-1), text)
}

/// A running `linerate migrate --json`.
pub struct Migration {
    child: Child,
    lines: Receiver<Value>,
    seen: Vec<Value>,
    logs: Vec<PathBuf>,
}

impl Migration {
    fn start(agent: &Agent, arguments: &[&str], logs: Vec<PathBuf>) -> Migration {
        let mut command = agent.client();
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::null()).stdin(Stdio::null());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap_or(Value::Null));
            }
        });
        Migration { child, lines, seen: Vec::new(), logs }
    }

    /// Waits for an event.
    pub fn wait(&mut self, limit: Duration, wanted: impl Fn(&Value) -> bool) {
        let end = Instant::now() + limit;
        while !self.seen.iter().any(&wanted) {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(event) => self.seen.push(event),
                Err(error) => panic!("{error}: the event never came\n{}", self.logs()),
            }
        }
    }

    /// Sends it what Ctrl-C sends.
    pub fn interrupt(&self) {
        let pid = self.child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    }

    /// All events; the last says how the process ended.
    pub fn finish(mut self) -> Vec<Value> {
        let end = Instant::now() + LONG;
        while let Ok(event) = self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            self.seen.push(event);
        }
        // One that never ends must show what it said, and not hang.
        let status = linerate_lab::wait::exit(&mut self.child, end).unwrap();
        let mut seen = std::mem::take(&mut self.seen);
        seen.push(serde_json::json!({ "kind": "exit", "code": status.code(), "logs": self.logs() }));
        seen
    }

    fn logs(&self) -> String {
        self.logs.iter().map(tail).collect()
    }
}

/// The end of a log.
fn tail(log: &PathBuf) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    format!("{}:\n{}\n", log.display(), lines[lines.len().saturating_sub(40)..].join("\n"))
}

impl Drop for Migration {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Passes and operations on its disk in which a guest has come to all that it has. Those without a kernel check what
/// they do not write in every eighth pass only. They go over their disk in order, with at most two operations on each
/// slot.
fn rounds_of(guest: &GuestSpec) -> (u64, u64) {
    let slots = |image: &Path| std::fs::metadata(image).unwrap().len() / SLOT_BYTES as u64;
    match guest.program {
        GuestProgram::Linux => (2, 0),
        _ => (9, guest.disk.as_ref().map_or(0, |(image, _)| 2 * slots(image))),
    }
}

/// Fast enough that going over the disk in order takes some seconds only.
fn plain_disk_mbps(program: GuestProgram) -> u64 {
    if program == GuestProgram::UserMode { 11 } else { 4 }
}

/// How a migration ended.
pub struct End {
    pub exit: Option<i64>,
    finished: Value,
    logs: String,
}

/// The end of a list of events.
pub fn ended(events: &[Value]) -> End {
    let find =
        |kind: &str| events.iter().rev().find(|event| event["kind"] == kind).cloned().unwrap_or(Value::Null);
    let exit = find("exit");
    let logs = exit["logs"].as_str().unwrap_or_default().to_owned();
    End { exit: exit["code"].as_i64(), finished: find("finished"), logs }
}

impl End {
    /// The report of a migration that succeeded.
    pub fn completed(&self) -> Value {
        assert_eq!(self.exit, Some(0), "{:#}\n{}", self.finished["error"], self.logs);
        assert_eq!(self.finished["outcome"], "completed");
        self.finished["report"].clone()
    }

    /// The error of one that did not.
    pub fn failed(&self, exit: i64) -> Value {
        assert_eq!(self.exit, Some(exit), "{:#}\n{}", self.finished, self.logs);
        self.finished["error"].clone()
    }
}

/// Bytes are in flight.
pub fn round_began(event: &Value) -> bool {
    event["kind"] == "progress" && event["sent_bytes"].as_u64().is_some_and(|bytes| bytes > 8 << 20)
}

/// So many links carry, each more than what only opening it takes.
fn carries_over(event: &Value, links: usize) -> bool {
    let carries = |link: &Value| link["sent_bytes"].as_u64() > Some(1 << 20);
    event["kind"] == "progress"
        && event["links"].as_array().is_some_and(|all| all.len() == links && all.iter().all(carries))
}

/// A link was lost.
pub fn lost(event: &Value) -> bool {
    event["kind"] == "link_lost"
}
