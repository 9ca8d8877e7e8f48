//! An etcd cluster: real servers of Debian, each on a loopback address of its own, or on one of a lab's guest LAN.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::error::io_error;
use crate::{Cache, LabError, Process, netns, wait};

/// Until a member answers.
const ANSWERS: Duration = Duration::from_secs(120);
/// How long a member may take for one question.
const QUESTION: Duration = Duration::from_secs(5);

/// Members of one cluster; ended when dropped.
#[derive(Debug)]
pub struct Cluster {
    folder: PathBuf,
    /// Where they run; this process's own if there is none.
    namespace: Option<String>,
    /// Folder with `ca.pem`, `server.pem` and `server.key`; clients need a certificate of that authority then.
    tls: Option<PathBuf>,
    addresses: Vec<Ipv4Addr>,
    running: Vec<Option<Process>>,
}

impl Cluster {
    /// Starts `members` servers with their data in `folder`, and waits until they have a leader.
    pub fn start(folder: &Path, members: u8) -> Result<Cluster, LabError> {
        Cluster::start_at(folder, None, (0..members).map(|_| next_address()).collect())
    }

    /// The same with these addresses, which a network namespace has.
    pub(crate) fn start_at(
        folder: &Path,
        namespace: Option<String>,
        addresses: Vec<Ipv4Addr>,
    ) -> Result<Cluster, LabError> {
        let running = addresses.iter().map(|_| None).collect();
        let mut cluster = Cluster { folder: folder.to_owned(), namespace, tls: None, addresses, running };
        (0..cluster.addresses.len()).try_for_each(|number| cluster.begin(number))?;
        cluster.wait_for_leader()?;
        Ok(cluster)
    }

    /// One member that speaks TLS with clients. It is not waited for: its clients do. `make` gets its address and
    /// writes `ca.pem`, `server.pem` and `server.key` into the folder.
    pub fn start_tls(
        folder: &Path,
        make: impl FnOnce(Ipv4Addr) -> Result<(), LabError>,
    ) -> Result<Cluster, LabError> {
        let addresses = vec![next_address()];
        make(addresses[0])?;
        let (folder, tls) = (folder.to_owned(), Some(folder.to_owned()));
        let mut cluster = Cluster { folder, namespace: None, tls, addresses, running: vec![None] };
        cluster.begin(0)?;
        Ok(cluster)
    }

    fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// What a client is given.
    pub fn endpoints(&self) -> Vec<String> {
        self.addresses.iter().map(|address| format!("{}://{address}:2379", self.scheme())).collect()
    }

    /// Starts a member that has ended, with the data that it has.
    pub fn begin(&mut self, number: usize) -> Result<(), LabError> {
        let address = self.addresses[number];
        let all: Vec<String> =
            self.addresses.iter().enumerate().map(|(n, at)| format!("m{n}=http://{at}:2380")).collect();
        // It ends with the thread that starts it: nothing of a test program that was killed is left.
        let mut command = match &self.namespace {
            None => Command::new("setpriv"),
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace, "setpriv"]);
                command
            }
        };
        command.args(["--pdeathsig", "KILL"]).arg(Cache::locate().etcd()?);
        command.arg("--name").arg(format!("m{number}"));
        command.arg("--data-dir").arg(self.folder.join(format!("m{number}")));
        for (kind, port) in [("client", 2379), ("peer", 2380)] {
            let advertised =
                if kind == "client" { "--advertise-client-urls" } else { "--initial-advertise-peer-urls" };
            let scheme = if kind == "client" { self.scheme() } else { "http" };
            let url = format!("{scheme}://{address}:{port}");
            command.arg(format!("--listen-{kind}-urls")).arg(&url).arg(advertised).arg(&url);
        }
        if let Some(tls) = &self.tls {
            command
                .arg("--cert-file")
                .arg(tls.join("server.pem"))
                .arg("--key-file")
                .arg(tls.join("server.key"));
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(tls.join("ca.pem"));
        }
        command.arg("--initial-cluster").arg(all.join(","));
        // A busy machine must not make it elect all the time.
        command.args(["--heartbeat-interval", "200", "--election-timeout", "2000"]);
        // A busy disk would delay it for seconds. What a killed process has written is kept all the same.
        command.arg("--unsafe-no-fsync");
        let log = self.folder.join(format!("m{number}.log"));
        self.running[number] = Some(Process::start("etcd", command, &log)?);
        Ok(())
    }

    /// Waits until the members that run have a leader; its number.
    pub fn wait_for_leader(&self) -> Result<usize, LabError> {
        let tail = || self.running.iter().flatten().map(Process::tail).collect();
        wait::until("a leader of the etcd cluster", ANSWERS, tail, || Ok(self.leader()))
    }

    /// Number of the member that leads, by what the others say.
    pub fn leader(&self) -> Option<usize> {
        let runs = |number: &usize| self.running[*number].is_some();
        let said: Vec<(usize, String, String)> = (0..self.addresses.len())
            .filter(runs)
            .filter_map(|number| {
                let answer = self.status(number)?;
                let text = |value: &Value| value.as_str().map(str::to_owned);
                Some((number, text(&answer["header"]["member_id"])?, text(&answer["leader"])?))
            })
            .collect();
        let (_, _, leader) = said.first()?;
        said.iter().find(|(_, member, _)| member == leader).map(|(number, _, _)| *number)
    }

    fn status(&self, number: usize) -> Option<Value> {
        let at = (self.addresses[number], 2379).into();
        let connect = || TcpStream::connect_timeout(&at, QUESTION).map_err(io_error("reach", "etcd"));
        let mut stream = match &self.namespace {
            None => connect(),
            Some(namespace) => netns::inside(namespace, connect),
        }
        .ok()?;
        stream.set_read_timeout(Some(QUESTION)).ok()?;
        let head = "POST /v3/maintenance/status HTTP/1.0\r\nHost: etcd\r\nContent-Length: 2\r\n\r\n{}";
        stream.write_all(head.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// SIGKILL, as a crash.
    pub fn kill(&mut self, number: usize) -> Result<(), LabError> {
        self.running[number].take().map_or(Ok(()), |mut member| member.kill().map(drop))
    }

    /// SIGSTOP: it has its connections and answers nothing.
    pub fn freeze(&mut self, number: usize) -> Result<(), LabError> {
        self.signal(number, Signal::STOP)
    }

    /// SIGCONT: it goes on where it was.
    pub fn thaw(&mut self, number: usize) -> Result<(), LabError> {
        self.signal(number, Signal::CONT)
    }

    fn signal(&mut self, number: usize, signal: Signal) -> Result<(), LabError> {
        self.running[number].as_mut().map_or(Ok(()), |member| member.signal(signal))
    }
}

/// Loopback addresses are many: each process has its own, and each member one of these.
fn next_address() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(10);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high, low, NEXT.fetch_add(1, Ordering::Relaxed))
}
