//! What tests of several modules need.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_guest::access::Access;
use linerate_guest::procfs::ProcessIdentity;
use linerate_guest::registry::{GuestRecord, Origin, Registry};
use linerate_net::tcp::listen::{Accepted, ListenOptions, Listener};
use linerate_net::tcp::options::TcpOptions;
use linerate_trust::authority::Authority;
use rustls_pki_types::UnixTime;
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

use crate::agent::Agent;
use crate::audit::Audit;
use crate::config::Config;
use crate::journal::Journal;
use crate::security::Security;

/// An agent that has its files in a folder and is not started.
pub(crate) fn agent(dir: &TempDir, listen: &[SocketAddr]) -> Arc<Agent> {
    secured(dir, listen, Security::insecure())
}

/// The same, of a host that is known to others as `security` says.
pub(crate) fn secured(dir: &TempDir, listen: &[SocketAddr], security: Arc<Security>) -> Arc<Agent> {
    made(dir, listen, security, false)
}

/// The same, of a host whose QEMUs are let in to their files.
pub(crate) fn with_access(dir: &TempDir) -> Arc<Agent> {
    made(dir, &[], Security::insecure(), true)
}

fn made(dir: &TempDir, listen: &[SocketAddr], security: Arc<Security>, has_access: bool) -> Arc<Agent> {
    let path = |name: &str| dir.path().join(name);
    let file = path("agent.toml");
    let listen: Vec<String> = listen.iter().map(ToString::to_string).collect();
    let text = format!(
        "listen = {listen:?}\nstate_dir = {:?}\nrun_dir = {:?}\ntunnel_targets = [\"tcp:127.0.0.1:9\"]\n",
        path("state"),
        path("run")
    );
    std::fs::write(&file, text).unwrap();
    let config = Config::read(&file).unwrap();
    let journal = Journal::open(&config.state_dir).unwrap();
    let mut registry = Registry::open(&config.run_dir).unwrap();
    if has_access {
        registry = registry.with_access(Access::new(config.state_dir.join("access"))).unwrap();
    }
    Arc::new(Agent::new(config, journal, registry, security, Audit::open(&path("state")).unwrap()))
}

/// The authority of a new cluster, whose files are in this folder.
pub(crate) fn authority(folder: &Path) -> Authority {
    Authority::create(folder, &"lab".parse().unwrap(), UnixTime::now()).unwrap()
}

/// A port at which a host that is known to others as `security` says takes connections.
pub(crate) fn listen(security: &Security, takes: impl Fn(Accepted) + Send + Sync + 'static) -> Listener {
    let tcp = TcpOptions { tls: security.tls().cloned(), ..TcpOptions::default() };
    let options = ListenOptions { tcp, ..ListenOptions::default() };
    Listener::start(&["127.0.0.1:0".parse().unwrap()], options, takes).unwrap()
}

/// An agent and its port. `takes` does with a connection what the agent would do, or something else.
pub(crate) fn listening(
    dir: &TempDir,
    security: Arc<Security>,
    takes: impl Fn(&Arc<Agent>, Accepted) + Send + Sync + 'static,
) -> (Arc<Agent>, Listener) {
    let place = Arc::new(OnceLock::<Arc<Agent>>::new());
    let taking = place.clone();
    let listener = listen(&security, move |accepted| takes(taking.get().unwrap(), accepted));
    let agent = secured(dir, listener.addresses(), security);
    place.set(agent.clone()).ok().unwrap();
    (agent, listener)
}

/// Waits until it is so. `trouble`: what is wrong if it never is, which only a hang shows.
#[track_caller]
pub(crate) fn wait(trouble: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < end, "{trouble}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A disk that hangs: whatever is written to the journal waits.
pub(crate) struct SlowDisk {
    ends: Sender<()>,
    hanging: JoinHandle<bool>,
}

impl SlowDisk {
    pub fn start(journal: &Arc<Journal>) -> SlowDisk {
        let ((begins, has_begun), (ends, has_ended)) = (channel(), channel());
        let journal = journal.clone();
        let hanging = std::thread::spawn(move || journal.hang(&begins, &has_ended));
        has_begun.recv_timeout(Duration::from_secs(60)).unwrap();
        SlowDisk { ends, hanging }
    }

    /// It works again. Until now nothing may have waited for it.
    pub fn end(self) {
        drop(self.ends);
        assert!(self.hanging.join().unwrap(), "something waited for the disk");
    }
}

/// An address that refuses connections. Nobody else gets its port while the socket is held.
pub(crate) fn closed_port() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// A process that is ending: its first thread has ended and another has not, as it is with a QEMU that was killed.
pub(crate) struct Ending(Child);

impl Ending {
    pub fn start(dir: &TempDir) -> Ending {
        let (source, program) = (dir.path().join("two.c"), dir.path().join("two"));
        let text = "#include <pthread.h>\n#include <unistd.h>\nvoid *stay(void *x) { pause(); return x; }\n\
                    int main(void) { pthread_t t; pthread_create(&t, 0, stay, 0); pthread_exit(0); }\n";
        std::fs::write(&source, text).unwrap();
        let mut compile = Command::new("cc");
        assert!(compile.args(["-pthread", "-o"]).args([&program, &source]).status().unwrap().success());
        let ending = Ending(Command::new(program).spawn().unwrap());
        while ProcessIdentity::of(ending.pid()).unwrap().can_run() {
            std::thread::sleep(Duration::from_millis(5));
        }
        ending
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }

    /// Its last thread ends.
    pub fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A record of a guest that arrived and has this process.
pub(crate) fn arrived(agent: &Agent, pid: i32) -> GuestRecord {
    let socket = agent.registry.folder("g").unwrap().join("q");
    GuestRecord::new("g", Origin::Arrived, pid, socket, vec![]).unwrap()
}

/// The guest `g`, whose process has this UUID and no QMP socket. It ends with its test.
pub(crate) struct SilentGuest(Child);

impl SilentGuest {
    pub fn start(agent: &Agent, uuid: &str) -> SilentGuest {
        let mut shell = Command::new("sh");
        // It ends by itself with this process, which has the other end of its input.
        shell.args(["-c", "read x", "-uuid", uuid]).stdin(Stdio::piped());
        let started = SilentGuest(shell.spawn().unwrap());
        let guest = arrived(agent, i32::try_from(started.0.id()).unwrap());
        agent.registry.put(&guest).unwrap();
        wait("its command line is not read", || guest.uuid().is_some());
        started
    }
}

impl Drop for SilentGuest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A QEMU that ends with its test.
pub(crate) struct TestQemu(Child);

impl TestQemu {
    pub fn start(socket: &Path, arguments: &[&str]) -> TestQemu {
        let child = Command::new("qemu-system-x86_64")
            .args(["-M", "pc", "-accel", "tcg", "-m", "16", "-nodefaults", "-display", "none", "-S", "-qmp"])
            .arg(format!("unix:{},server=on,wait=off", socket.display()))
            .args(arguments)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        // The file is there a moment before QEMU listens.
        while UnixStream::connect(socket).is_err() {
            assert!(Instant::now() < end, "QEMU does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        TestQemu(child)
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for TestQemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
