//! Two hosts, two agents, a tunnel between them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::MutexGuard;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use linerate_lab::{Agent, AgentOptions, Lab, LinkSpec};
use linerate_lock::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

pub const LONG: Duration = Duration::from_secs(120);

/// One stage at a time.
static ONE: Mutex<()> = Mutex::new(());

pub struct Stage {
    pub agents: Vec<Agent>,
    pub target: UnixListener,
    pub target_path: PathBuf,
    pub listen_path: PathBuf,
    // Behind the agents: dropped after them.
    pub lab: Lab,
    _one: MutexGuard<'static, ()>,
}

impl Stage {
    /// Two links. The second host allows what is in a folder, and a TCP port.
    pub fn new() -> Stage {
        Stage::on(2, &[1000; 2])
    }

    /// The same over one link through a switch.
    pub fn through_a_switch() -> Stage {
        Stage::on(3, &[1000])
    }

    /// The first two hosts have agents.
    fn on(hosts: usize, links_mbps: &[u64]) -> Stage {
        let one = ONE.lock();
        let links = links_mbps.iter().map(|&mbps| LinkSpec::shaped(mbps).mtu(9000));
        let lab = Lab::builder().hosts(hosts).links(links).build().unwrap();
        let targets = lab.directory().join("targets");
        std::fs::create_dir(&targets).unwrap();
        let allowed = format!("tunnel_targets = [\"unix:{}/\", \"tcp:127.0.0.1:7000\"]", targets.display());
        let hosts = lab.hosts().iter().take(2);
        let agents = hosts.map(|host| Agent::start(host, options(&allowed)).unwrap()).collect();
        let target_path = targets.join("target.sock");
        let target = UnixListener::bind(&target_path).unwrap();
        let listen_path = lab.directory().join("listen.sock");
        Stage { agents, target, target_path, listen_path, lab, _one: one }
    }

    pub fn pair(&self) -> String {
        format!("unix:{}=unix:{}", self.listen_path.display(), self.target_path.display())
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.agents[0].client();
        let to = self.agents[1].address(0).to_string();
        command.args(["tunnel", "--json", "--to", &to]).args(arguments);
        command
    }

    pub fn tunnel(&self, arguments: &[&str]) -> Tunnel {
        let tunnel = Tunnel::start(self.command(arguments));
        tunnel.wait("ready");
        for _ in 0..self.lab.topology().links.len() {
            tunnel.wait("link_up");
        }
        tunnel
    }

    /// A connection through the tunnel: its end here and its end there.
    pub fn connection(&self) -> (UnixStream, UnixStream) {
        let near = UnixStream::connect(&self.listen_path).unwrap();
        (near, self.target.accept().unwrap().0)
    }

    /// The same over loopback TCP in the two hosts.
    pub fn tcp_connection(&self, listener: &TcpListener, port: u16) -> (TcpStream, TcpStream) {
        let near =
            self.lab.hosts()[0].inside(|| Ok(TcpStream::connect(("127.0.0.1", port)).unwrap())).unwrap();
        (near, listener.accept().unwrap().0)
    }

    pub fn tcp_target(&self) -> TcpListener {
        self.lab.hosts()[1].inside(|| Ok(TcpListener::bind("127.0.0.1:7000").unwrap())).unwrap()
    }

    /// Descriptors and threads of both agents.
    pub fn held(&self) -> Vec<(usize, usize)> {
        let count = |pid, what| std::fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
        self.agents.iter().map(|agent| (count(agent.pid(), "fd"), count(agent.pid(), "task"))).collect()
    }

    /// Nothing more is held than before.
    pub fn wait_released(&self, before: &[(usize, usize)]) {
        let deadline = Instant::now() + LONG;
        loop {
            let now = self.held();
            let descriptors = now.iter().zip(before).all(|(now, before)| now.0 <= before.0);
            // Idle threads of the runtime's pool go after some seconds, and may be more than before meanwhile.
            let threads = now.iter().zip(before).all(|(now, before)| now.1 <= before.1 + 1);
            if descriptors && threads {
                return;
            }
            assert!(Instant::now() < deadline, "descriptors and threads before {before:?}, now {now:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn options(configuration: &str) -> AgentOptions {
    AgentOptions {
        binary: Some(env!("CARGO_BIN_EXE_linerate").into()),
        configuration: configuration.into(),
        environment: vec![("LINERATE_LOG".into(), "debug".into())],
    }
}

/// A `linerate tunnel` that runs; killed when dropped.
pub struct Tunnel {
    child: Child,
    events: Receiver<Value>,
}

impl Tunnel {
    fn start(mut command: Command) -> Tunnel {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let (lines, events) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = lines.send(serde_json::from_str(&line).unwrap());
            }
        });
        Tunnel { child, events }
    }

    /// The next event of that kind; others are passed over.
    pub fn wait(&self, kind: &str) -> Value {
        let deadline = Instant::now() + LONG;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = self.events.recv_timeout(left).unwrap_or_else(|_| panic!("no {kind} event"));
            if event["event"] == kind {
                return event;
            }
        }
    }

    /// Events that came and were not waited for.
    pub fn events(&self) -> impl Iterator<Item = Value> {
        self.events.try_iter()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn exit(mut self) -> ExitStatus {
        let deadline = Instant::now() + LONG;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the command does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes that follow from a seed.
pub struct Bytes(pub u64);

impl Bytes {
    pub fn fill(&mut self, place: &mut [u8]) {
        for word in place.chunks_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            word.copy_from_slice(&self.0.to_le_bytes()[..word.len()]);
        }
    }
}

const BLOCK: usize = 64 << 10;

/// Writes so many blocks of random bytes.
pub fn send(mut socket: impl Write, seed: u64, blocks: usize) {
    let (mut bytes, mut block) = (Bytes(seed), vec![0; BLOCK]);
    for _ in 0..blocks {
        bytes.fill(&mut block);
        socket.write_all(&block).unwrap();
    }
}

/// Reads to the end and compares every byte.
pub fn receive(mut socket: impl Read, seed: u64, blocks: usize) {
    let (mut bytes, mut wanted, mut got) = (Bytes(seed), vec![0; BLOCK], vec![0; BLOCK]);
    for block in 0..blocks {
        bytes.fill(&mut wanted);
        socket.read_exact(&mut got).unwrap();
        assert!(got == wanted, "stream {seed}: block {block} differs");
    }
    assert_eq!(socket.read(&mut got).unwrap(), 0, "stream {seed}: more was received than was sent");
}

pub fn gone(path: &Path) -> bool {
    !path.exists()
}
