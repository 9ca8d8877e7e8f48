//! What runs inside of two machines: a guest leaves by RDMA, and in the middle of the copy its host is revoked. The
//! other host has the authority of their cluster.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use linerate_lab::{Agent, AgentOptions, Console, Host, Side};
use serde_json::{Value, json};

use super::inside::{migrate_with, runs_unharmed, start_guest};
use super::pair::{LINKS, RAM_MB, ReportFailure, mark, signal, wait_for};

/// The destination keeps what it has of a guest for 60 s after the last link, and a machine that is emulated is slow.
const WAIT: Duration = Duration::from_secs(180);
/// Where the host with the authority writes how the other one joins.
const JOIN_LINE: &str = "join-line";

/// A host in no cluster, and its agent, which takes RDMA connections on all links.
fn host(side: Side) -> (Host, Agent) {
    let host = Host::of_machine(side, LINKS, RAM_MB).unwrap();
    // Both machines are emulated on processors that others use, too.
    let configuration = "security = \"tls\"\nrdma_network = \"trusted\"\nrdma_connect_s = 10\n";
    let options = AgentOptions { configuration: configuration.into(), ..AgentOptions::default() };
    let agent = Agent::start(&host, options).unwrap();
    let addresses: Vec<String> = host.addresses().iter().map(|address| format!("{address}:")).collect();
    let takes = |line: &str| {
        line.contains("RDMA connections are taken") && addresses.iter().all(|address| line.contains(address))
    };
    until("RDMA connections are not taken on all links", || log(&agent).lines().any(takes));
    (host, agent)
}

fn log(agent: &Agent) -> String {
    fs::read_to_string(agent.log()).unwrap()
}

#[track_caller]
fn until(trouble: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + WAIT;
    while !is() {
        assert!(Instant::now() < end, "{trouble}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Standard output of a command about the cluster.
fn linerate(agent: &Agent, words: &[&str]) -> String {
    let file = agent.host().directory().join("agent.toml");
    let output = agent.client().args(words).arg("--config").arg(file).output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// `vm list` or `migration list`.
fn list(agent: &Agent, of: &str) -> Value {
    let output = agent.client().args([of, "list", "--json"]).output().unwrap();
    assert!(output.status.success(), "{of}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What programs have of this machine's RDMA devices, and the kernel for itself, by the kernel's count.
#[derive(Debug, PartialEq, Eq)]
struct Verbs {
    queue_pairs: u64,
    memory_regions: u64,
}

impl Verbs {
    fn now() -> Verbs {
        let output = Command::new("rdma").args(["resource", "show"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        let count = |kind: &str| -> u64 {
            let of_devices = words.windows(2).filter(|pair| pair[0] == kind);
            let counts: Vec<u64> = of_devices.map(|pair| pair[1].parse().unwrap()).collect();
            assert_eq!(counts.len(), LINKS, "{text}");
            counts.iter().sum()
        };
        Verbs { queue_pairs: count("qp"), memory_regions: count("mr") }
    }

    /// A session has queue pairs here, and memory that they use.
    fn assert_more_than(&self, before: &Verbs) {
        let more = self.queue_pairs > before.queue_pairs && self.memory_regions > before.memory_regions;
        assert!(more, "{self:?}, and before the migration {before:?}");
    }
}

/// Whether the other host's agent answers in time. For its first handshake a machine that is emulated may take longer
/// than a migration waits.
fn answers(agent: &Agent) -> bool {
    let words = "bench pingpong --to 10.9.0.2:7979 --transport tcp --sizes 4 --repetitions 10 --json";
    agent.client().args(words.split(' ')).output().unwrap().status.success()
}

#[test]
#[ignore = "runs inside of a machine, started by the test next door"]
fn guest_stays_on_the_host_that_is_revoked() {
    let _failure = ReportFailure::new();
    let (host, agent) = host(Side::A);
    let guest = start_guest(&agent);
    wait_for("b-has-the-authority");
    let line = fs::read_to_string(mark(JOIN_LINE)).unwrap();
    // Behind `linerate`.
    let join: Vec<&str> = line.split_whitespace().skip(1).collect();
    linerate(&agent, &join);
    until("the other agent does not answer by TLS", || answers(&agent));
    let before = Verbs::now();
    // So slow that the copy lasts for a minute.
    let options = ["--bandwidth", "4M", "--link-timeout", "60s"];
    let moved = migrate_with(&agent, "10.9.0.2:7979", "rdma", &options, || {
        Verbs::now().assert_more_than(&before);
        signal("a-copies");
    });
    assert_eq!(moved.code, Some(1), "{}\n{:#?}", moved.errors, moved.events_without_progress());
    let finished = moved.events.iter().find(|event| event["kind"] == "finished").unwrap();
    let error = &finished["error"];
    assert_eq!(error["guest_state"], "runs_at_source", "{finished:#}");
    // Whichever of all that is gone was missed first.
    assert!(error["code"] == "peer_lost" || error["code"] == "no_link", "{finished:#}");
    assert!(error["message"].as_str().is_some_and(|text| text.ends_with(" for 60 s")), "{finished:#}");
    for link in finished["report"]["links"].as_array().unwrap() {
        assert_eq!(link["rdma"], true, "{finished:#}");
        assert_eq!(link["fallback"], Value::Null, "{finished:#}");
    }
    assert!(log(&agent).contains("the peer refused this host's certificate"), "{}", log(&agent));
    until("queue pairs or memory of the session are in use", || Verbs::now() == before);
    runs_unharmed(&Console::new([guest.serial(&host)]));
    signal("a-is-done");
    wait_for("b-is-done");
}

fn ram_files(host: &Host) -> BTreeSet<OsString> {
    fs::read_dir(host.ram_directory()).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
#[ignore = "runs inside of a machine, started by the test next door"]
fn destination_revokes_the_source() {
    let _failure = ReportFailure::new();
    let (host, agent) = host(Side::B);
    linerate(&agent, &["cluster", "init"]);
    fs::write(mark(JOIN_LINE), linerate(&agent, &["token", "create"])).unwrap();
    let (before, files) = (Verbs::now(), ram_files(&host));
    signal("b-has-the-authority");
    wait_for("a-copies");
    Verbs::now().assert_more_than(&before);
    let arriving = list(&agent, "vm");
    let qemu = arriving[0]["pid"].as_u64().unwrap_or_else(|| panic!("{arriving:#}"));
    assert_ne!(ram_files(&host), files);
    linerate(&agent, &["host", "revoke", "a"]);
    assert!(log(&agent).contains("connections of hosts that were revoked are ended"), "{}", log(&agent));
    // Before its source has closed anything.
    until("no queue pair ended for this reason", || log(&agent).contains("the other host was revoked"));
    until("queue pairs are open", || Verbs::now().queue_pairs == before.queue_pairs);
    until("the guest is listed", || list(&agent, "vm") == json!([]));
    until("its migration has not failed", || list(&agent, "migration")[0]["state"] == "failed");
    until("its QEMU is there", || !Path::new(&format!("/proc/{qemu}")).exists());
    until("its RAM is there", || ram_files(&host) == files);
    until("memory is registered", || Verbs::now() == before);
    signal("b-is-done");
    wait_for("a-is-done");
}
