//! Agents that stop exactly where they write their journal, and what is seen of a guest behind their backs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use linerate_lab::{
    Agent, AgentOptions, Console, DiskMode, Gate, GuestSpec, Lab, LinkSpec, QemuOptions, Qmp, make_disk,
};
use serde_json::{Value, json};

use super::{Hosts, ONE, Stage, options, plain_disk_mbps};

/// The guest goes over all of it within some seconds.
const SMALL_DISK_MB: u64 = 4;
/// Recovery tries every second; only a hang reaches it.
const SOON: Duration = Duration::from_secs(120);

fn gated_hosts(links_mbps: &[u64]) -> (Hosts, [Gate; 2]) {
    configured_hosts(links_mbps, "")
}

fn configured_hosts(links_mbps: &[u64], configuration: &str) -> (Hosts, [Gate; 2]) {
    let one = ONE.lock();
    let links =
        links_mbps.iter().fold(Lab::builder(), |lab, &mbps| lab.link(LinkSpec::shaped(mbps).mtu(9000)));
    let lab = links.build().unwrap();
    let gates = [0, 1].map(|host: usize| Gate::new(&lab.hosts()[host]).unwrap());
    let start = |host: usize| {
        let mut options = options(configuration);
        options.environment.extend(gates[host].environment());
        Agent::start(&lab.hosts()[host], AgentOptions { ..options }).unwrap()
    };
    let agents = vec![start(0), start(1)];
    ((one, lab, agents), gates)
}

impl Stage {
    /// Two hosts whose agents stop where a gate is set, and a guest with a disk.
    pub fn gated(links_mbps: &[u64], mut guest: GuestSpec) -> (Stage, [Gate; 2]) {
        let (hosts, gates) = gated_hosts(links_mbps);
        guest.parameters.disk_generation = Some(1);
        guest.parameters.disk_mbps = plain_disk_mbps(guest.program);
        let stage = Stage::of(hosts, |lab| {
            let image = lab.directory().join("disk.img");
            make_disk(&image, SMALL_DISK_MB).unwrap();
            guest.disk(&image, DiskMode::Buffered)
        });
        (stage, gates)
    }

    /// The same without a disk, with more configuration of both agents.
    pub fn gated_with(links_mbps: &[u64], guest: GuestSpec, configuration: &str) -> (Stage, [Gate; 2]) {
        let (hosts, gates) = configured_hosts(links_mbps, configuration);
        (Stage::of(hosts, |_| guest), gates)
    }

    /// The same without a disk, for a guest that runs on an older copy of its memory: what it wrote to a disk meanwhile
    /// stays written.
    pub fn gated_without_disk(links_mbps: &[u64], guest: GuestSpec) -> (Stage, [Gate; 2]) {
        let (hosts, gates) = gated_hosts(links_mbps);
        (Stage::of(hosts, |_| guest), gates)
    }

    /// The same with a guest that another program started and has a monitor of, too; with such a disk or without one.
    pub fn gated_with_other_hands(
        links_mbps: &[u64],
        mut guest: GuestSpec,
        disk: Option<DiskMode>,
    ) -> (Stage, [Gate; 2], PathBuf) {
        let (hosts, gates) = gated_hosts(links_mbps);
        guest.parameters.disk_generation = disk.map(|_| 1);
        guest.parameters.disk_mbps = plain_disk_mbps(guest.program);
        let folder = hosts.1.directory().to_owned();
        let monitor = folder.join("second.qmp");
        let arguments = vec!["-qmp".into(), format!("unix:{},server=on,wait=off", monitor.display())];
        let options = QemuOptions { locks: true, arguments, ..QemuOptions::default() };
        (Stage::foreign_on(hosts, &folder, guest, disk, options), gates, monitor)
    }

    /// The guest's image, which both hosts share.
    pub fn image(&self) -> PathBuf {
        self.lab.directory().join("disk.img")
    }

    pub fn agent(&mut self, host: usize) -> &mut Agent {
        &mut self.agents[host]
    }

    /// Exit code and all output of a client command at a host.
    pub fn linerate_at(&self, host: usize, arguments: &[&str]) -> (i32, String) {
        super::run(&self.agents[host], arguments)
    }

    /// QEMUs of a host.
    pub fn hypervisors(&self, host: usize) -> Vec<i32> {
        let folder = self.lab.hosts()[host].run_directory();
        let of_host = |process: &Path| {
            let text = std::fs::read(process.join("cmdline")).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            text.split('\0').next().is_some_and(|program| program.contains("qemu-system"))
                && text.contains(&*folder.to_string_lossy())
        };
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let processes = processes.filter(|process| of_host(&process.path()));
        processes.filter_map(|process| process.file_name().to_string_lossy().parse().ok()).collect()
    }

    pub fn kill_hypervisors(&self, host: usize) {
        for pid in self.hypervisors(host) {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        self.until("its QEMU ends", || self.hypervisors(host).is_empty().then_some(()));
    }

    pub fn qmp(&self, host: usize) -> Qmp {
        Qmp::of_guest(&self.lab.hosts()[host], "g").unwrap()
    }

    /// QEMU's run state; `none` without a QEMU.
    pub fn state(&self, host: usize) -> String {
        if self.hypervisors(host).is_empty() {
            return "none".into();
        }
        let asked = Qmp::of_guest(&self.lab.hosts()[host], "g");
        let answer = asked.and_then(|mut qmp| qmp.execute("query-status", Value::Null));
        answer.map_or("none".into(), |answer| answer["status"].as_str().unwrap_or("?").to_owned())
    }

    pub fn command(&self, host: usize, command: &str) {
        self.qmp(host).execute(command, json!({})).unwrap();
    }

    /// Waits for a run state there.
    pub fn wait_state(&self, host: usize, wanted: &str) {
        self.until(&format!("the guest is {wanted} on host {host}"), || {
            (self.state(host) == wanted).then_some(())
        });
    }

    /// It stays in that state for longer than any recovery waits between two tries.
    pub fn stays(&self, host: usize, wanted: &str) {
        let end = Instant::now() + Duration::from_secs(3);
        while Instant::now() < end {
            assert_eq!(self.state(host), wanted, "host {host}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// No guest runs there for longer than any recovery waits between two tries.
    pub fn stays_stopped(&self, host: usize) {
        let end = Instant::now() + Duration::from_secs(3);
        while Instant::now() < end {
            assert_ne!(self.state(host), "running", "host {host}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// It runs there, nothing of it is on the other host, and no session is in progress.
    pub fn settles_at(&mut self, host: usize) {
        self.wait_state(host, "running");
        self.until("the other host has nothing", || self.hypervisors(1 - host).is_empty().then_some(()));
        self.until("nothing is unfinished", || {
            let open = [0, 1].map(|one| self.unfinished(one));
            open.iter().all(Vec::is_empty).then_some(())
        });
        // A QEMU that was killed leaves its record, and with it its RAM and its log, until its name is used again.
        let other = &self.lab.hosts()[1 - host];
        let killed = other.run_directory().join("guests/g/record.json").exists();
        let ram = std::fs::read_dir(other.ram_directory()).unwrap().count();
        assert!(killed || ram == 0, "files of RAM are left on host {}", 1 - host);
        assert_eq!(self.hypervisors(host).len(), 1);
        if self.source != host {
            self.arrived();
        }
        self.guest_goes_on();
    }

    /// Migrations of a host that are not over, as `migration list` has them.
    pub fn unfinished(&self, host: usize) -> Vec<Value> {
        let (exit, text) = self.linerate_at(host, &["migration", "list", "--json"]);
        assert_eq!(exit, 0, "{text}");
        let list: Vec<Value> = serde_json::from_str(&text).unwrap();
        let open = |one: &Value| {
            matches!(one["state"].as_str(), Some("in_doubt" | "recovering" | "running" | "cancelling"))
        };
        list.into_iter().filter(open).collect()
    }

    /// The only migration of a host that is in this state.
    pub fn only(&self, host: usize, state: &str) -> Value {
        self.until(&format!("a migration is {state} on host {host}"), || {
            let found = self.unfinished(host);
            (found.len() == 1 && found[0]["state"] == state).then(|| found[0].clone())
        })
    }

    /// Slots of its disk that the guest has read or written, by the last line on its newest console.
    pub fn disk_operations(&self) -> u64 {
        let console = Console::new(self.consoles.last().cloned());
        console.wait_for("DISK ops=", SOON).unwrap();
        console.values("DISK ", "ops").last().copied().unwrap()
    }

    /// The ends of both agents' logs.
    pub fn logs(&self) -> String {
        self.agents.iter().map(|agent| super::tail(&agent.log().to_owned())).collect()
    }

    pub fn cut_all(&self, cut: bool) {
        let links = 0..self.lab.topology().links.len();
        links.for_each(|link| if cut { self.lab.cut(link) } else { self.lab.restore(link) }.unwrap());
    }

    pub fn until<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let end = Instant::now() + SOON;
        loop {
            if let Some(found) = look() {
                return found;
            }
            if Instant::now() > end {
                panic!("never: {what}\n{}", self.logs());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
