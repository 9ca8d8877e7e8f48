//! Some hosts with agents, and guests on them.

#![allow(dead_code, reason = "each test program uses a part")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use linerate_lab::etcd::Cluster;
use linerate_lab::{Agent, AgentOptions, Console, Gate, GuestParameters, GuestSpec, Lab, LinkSpec};
use serde_json::Value;

/// Only a hang reaches it.
pub const LONG: Duration = Duration::from_secs(240);

/// A host of a fleet counts as not answering after this, and as lost after that.
pub const LEASE_S: u64 = 4;
pub const LOST_S: u64 = 12;

pub struct Hall {
    pub agents: Vec<Agent>,
    /// They stop an agent where its journal is written.
    pub gates: Vec<Gate>,
    guests: Mutex<Vec<GuestSpec>>,
    /// What the hosts share.
    pub etcd: Option<Cluster>,
    // Behind the agents: dropped after them.
    pub lab: Lab,
}

/// A guest that hardly writes.
pub fn calm(name: &str) -> GuestSpec {
    writes(name, 1)
}

/// A guest that writes so many MiB in a second. Many of them start at a time: without a kernel that takes a second
/// each.
pub fn writes(name: &str, mbps: u32) -> GuestSpec {
    GuestSpec::bare(name, parameters(96, mbps))
}

/// A guest whose copy takes five times as long, with another one beside it or not.
pub fn large(name: &str) -> GuestSpec {
    GuestSpec::bare(name, GuestParameters { verify_mbps: 64, ..parameters(480, 1) })
}

/// The same with a kernel.
pub fn linux(name: &str, mbps: u32) -> GuestSpec {
    GuestSpec::new(name, parameters(24, mbps))
}

fn parameters(mem_mb: u64, mbps: u32) -> GuestParameters {
    GuestParameters {
        mem_mb,
        dirty_mbps: mbps.into(),
        // A pass takes about a second.
        dirty_ws_mb: Some(u64::from(mbps).min(16)),
        verify_mbps: 16,
        ..GuestParameters::default()
    }
}

impl Hall {
    pub fn new(hosts: usize, links_mbps: &[u64]) -> Hall {
        Hall::with(hosts, links_mbps, "")
    }

    /// With more lines for the configuration of all agents.
    pub fn with(hosts: usize, links_mbps: &[u64], configuration: &str) -> Hall {
        Hall::built(hosts, links_mbps, configuration, None)
    }

    /// Hosts that share an etcd cluster of so many members, and know each other when this returns.
    pub fn fleet(hosts: usize, links_mbps: &[u64], members: u8) -> Hall {
        Hall::fleet_with(hosts, links_mbps, members, LEASE_S)
    }

    /// The same with another lease.
    pub fn fleet_with(hosts: usize, links_mbps: &[u64], members: u8, lease_s: u64) -> Hall {
        let hall = Hall::built(hosts, links_mbps, "", Some((members, lease_s)));
        hall.until("all hosts are in the fleet", || {
            let (exit, status) = hall.json(0, &["fleet", "status"]);
            exit == 0 && status["hosts"]["answer"] == hosts
        });
        hall
    }

    /// `shared`: members of an etcd cluster, and the lease in it.
    fn built(hosts: usize, links_mbps: &[u64], configuration: &str, shared: Option<(u8, u64)>) -> Hall {
        let builder = links_mbps
            .iter()
            .fold(Lab::builder().hosts(hosts), |lab, &mbps| lab.link(LinkSpec::shaped(mbps).mtu(9000)));
        let lab = builder.build().unwrap();
        let etcd = shared.map(|(members, _)| lab.start_etcd(members).unwrap());
        let fleet = etcd.as_ref().zip(shared).map(|(etcd, (_, lease_s))| {
            let (endpoints, lost_s) = (etcd.endpoints(), lease_s * LOST_S / LEASE_S);
            format!("[fleet]\nendpoints = {endpoints:?}\ninsecure = true\nlease_s = {lease_s}\nlost_s = {lost_s}\n")
        });
        let configuration = configuration.to_owned() + &fleet.unwrap_or_default();
        let hosts: Vec<_> = lab.hosts().iter().take(hosts).cloned().collect();
        let gates: Vec<Gate> = hosts.iter().map(|host| Gate::new(host).unwrap()).collect();
        let start = |(host, gate): (&linerate_lab::Host, &Gate)| {
            let mut environment = gate.environment();
            environment.push(("LINERATE_LOG".into(), "debug".into()));
            let options = AgentOptions {
                binary: Some(env!("CARGO_BIN_EXE_linerate").into()),
                configuration: configuration.clone(),
                environment,
            };
            Agent::start(host, options).unwrap()
        };
        let agents = hosts.iter().zip(&gates).map(start).collect();
        Hall { agents, gates, guests: Mutex::default(), etcd, lab }
    }

    pub fn name(&self, host: usize) -> String {
        let (_, status) = self.json(host, &["status"]);
        status["name"].as_str().unwrap().to_owned()
    }

    pub fn address(&self, host: usize) -> String {
        self.agents[host].address(0).to_string()
    }

    /// Starts guests, and waits until each has checked its memory once.
    pub fn start(&self, host: usize, guests: &[GuestSpec]) {
        let place = &self.lab.hosts()[host];
        for guest in guests {
            let file = guest.write_toml(place).unwrap();
            let (exit, text) = self.run(host, &["vm", "start", file.to_str().unwrap()]);
            assert_eq!(exit, 0, "{text}");
        }
        for guest in guests {
            Console::new([guest.serial(place)]).wait_passes(1, LONG).unwrap();
        }
        self.guests.lock().unwrap().extend(guests.iter().cloned());
    }

    /// Exit code and all output of a command at a host.
    pub fn run(&self, host: usize, arguments: &[&str]) -> (i32, String) {
        let output = self.agents[host].client().args(arguments).output().unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code().unwrap_or(-1), text)
    }

    /// Exit code and the document of a command.
    pub fn json(&self, host: usize, arguments: &[&str]) -> (i32, Value) {
        let output = self.agents[host].client().args(arguments).arg("--json").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let document = serde_json::Deserializer::from_str(&text).into_iter().next();
        let document = document.unwrap_or_else(|| panic!("{arguments:?}: {output:?}")).unwrap();
        (output.status.code().unwrap_or(-1), document)
    }

    /// Exit code and each document of a command that prints many.
    pub fn lines(&self, host: usize, arguments: &[&str]) -> (i32, Vec<Value>) {
        let output = self.agents[host].client().args(arguments).arg("--json").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (output.status.code().unwrap_or(-1), lines)
    }

    /// Gives all links this rate, so that a copy lasts as long as the test needs it to.
    pub fn slow(&self, mbps: u64) {
        (0..self.lab.topology().links.len()).for_each(|link| self.lab.slow(link, mbps).unwrap());
    }

    /// Gives all links the rate that they began with.
    pub fn fast(&self) {
        (0..self.lab.topology().links.len()).for_each(|link| self.lab.restore(link).unwrap());
    }

    /// A command that goes on while the test does something else.
    pub fn begin(&self, host: usize, arguments: &[&str]) -> Going {
        let mut command = self.agents[host].client();
        command
            .args(arguments)
            .arg("--json")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap_or(Value::Null));
            }
        });
        Going { child, lines, seen: Vec::new() }
    }

    /// Names of the guests of a host.
    pub fn names(&self, host: usize) -> Vec<String> {
        let (_, list) = self.json(host, &["vm", "list"]);
        let mut names: Vec<String> =
            list.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    }

    /// The last drain of a host.
    pub fn drain(&self, host: usize) -> Value {
        self.json(host, &["drain", "status"]).1
    }

    /// Waits for something about the last drain of a host.
    pub fn wait(&self, host: usize, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + LONG;
        loop {
            let now = self.drain(host);
            // Before it is begun there is none.
            if now["guests"].is_array() && wanted(&now) {
                return now;
            }
            assert!(Instant::now() < end, "{what}: {now:#}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for anything else.
    pub fn until(&self, what: &str, wanted: impl Fn() -> bool) {
        let end = Instant::now() + LONG;
        while !wanted() {
            assert!(Instant::now() < end, "{what}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What `linerate vm list` says of a guest.
    pub fn guest_state(&self, host: usize, guest: &str) -> Value {
        let (_, list) = self.json(host, &["vm", "list"]);
        let found = list.as_array().unwrap().iter().find(|one| one["name"] == guest);
        found.map_or(Value::Null, |one| one["state"].clone())
    }

    /// Every guest runs on exactly one host, checks its memory, and found nothing wrong in it.
    pub fn all_go_on(&self) {
        let guests = self.guests.lock().unwrap().clone();
        for guest in &guests {
            let hosts: Vec<usize> =
                (0..self.agents.len()).filter(|host| self.runs(*host, &guest.name)).collect();
            assert_eq!(hosts.len(), 1, "{} is on {hosts:?}\n{}", guest.name, self.logs());
            let places = self.lab.hosts().iter().take(self.agents.len());
            let files = places.flat_map(|place| [guest.serial(place), guest.arrived_serial(place)]);
            let console = Console::new(files.filter(|file| file.exists()));
            console.wait_passes(2, LONG).unwrap();
            assert!(console.bad_lines().is_empty(), "{}: {:?}", guest.name, console.bad_lines());
        }
    }

    fn runs(&self, host: usize, guest: &str) -> bool {
        let (_, list) = self.json(host, &["vm", "list"]);
        list.as_array().unwrap().iter().any(|one| one["name"] == guest && one["state"] == "running")
    }

    pub fn logs(&self) -> String {
        let tail = |agent: &Agent| {
            let text = std::fs::read_to_string(agent.log()).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(60)..].join("\n")
        };
        self.agents.iter().map(tail).collect::<Vec<_>>().join("\n---\n")
    }
}

/// Numbers from a seed (SplitMix64, Steele and others 2014).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// A command that goes on; killed when dropped.
pub struct Going {
    child: Child,
    lines: Receiver<Value>,
    pub seen: Vec<Value>,
}

impl Going {
    /// Its exit code and what it printed.
    pub fn finish(mut self) -> (i32, Vec<Value>) {
        let end = Instant::now() + LONG;
        while let Ok(line) = self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            self.seen.push(line);
        }
        // One that never ends must show what it said, and not hang.
        let status = linerate_lab::wait::exit(&mut self.child, end).unwrap();
        (status.code().unwrap_or(-1), std::mem::take(&mut self.seen))
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The guests of a drain.
pub fn guests(drain: &Value) -> impl Iterator<Item = &Value> {
    drain["guests"].as_array().unwrap().iter()
}

pub fn text<'a>(of: &'a Value, key: &str) -> &'a str {
    of[key].as_str().unwrap_or_default()
}

/// How many guests of a drain are in this state.
pub fn count(drain: &Value, state: &str) -> usize {
    guests(drain).filter(|one| one["state"] == state).count()
}

/// Whether nothing more happens to a drain.
pub fn ended_state(drain: &Value) -> bool {
    drain["state"] == "ended"
}
