//! The doctor with real agents on hosts in namespaces. As root, with what lab/install.sh installs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Tests say what they expect.

#[path = "doctor/judged.rs"]
mod judged;
#[path = "support/page.rs"]
mod page;
#[path = "doctor/schema.rs"]
mod schema;

use std::process::Command;
use std::sync::MutexGuard;

use linerate_lab::{Agent, AgentOptions, Lab, LinkSpec, Lldpd, Switch};
use linerate_lock::Mutex;
use serde_json::Value;

/// One lab at a time: loads would measure each other.
static ONE: Mutex<()> = Mutex::new(());

struct Stage {
    agents: Vec<Agent>,
    // Behind the agents: dropped after them.
    lab: Lab,
    _one: MutexGuard<'static, ()>,
}

impl Stage {
    fn new(hosts: usize, rates_mbps: &[u64]) -> Stage {
        Stage::with(hosts, rates_mbps, "")
    }

    /// With lines in the agents' configuration.
    fn with(hosts: usize, rates_mbps: &[u64], configuration: &str) -> Stage {
        let one = ONE.lock();
        let mut builder = Lab::builder().hosts(hosts);
        for rate in rates_mbps {
            builder = builder.link(LinkSpec::shaped(*rate));
        }
        Stage::started(builder.build().unwrap(), configuration, one)
    }

    /// Agents on all hosts of a lab.
    fn of(lab: Lab, configuration: &str) -> Stage {
        Stage::started(lab, configuration, ONE.lock())
    }

    fn started(lab: Lab, configuration: &str, one: MutexGuard<'static, ()>) -> Stage {
        let options = || AgentOptions {
            binary: Some(env!("CARGO_BIN_EXE_linerate").into()),
            configuration: configuration.to_owned(),
            ..AgentOptions::default()
        };
        let agents = lab.hosts().iter().map(|host| Agent::start(host, options()).unwrap()).collect();
        Stage { agents, lab, _one: one }
    }

    fn linerate(&self, arguments: &[&str]) -> (i32, String) {
        output(self.agents[0].client().args(arguments))
    }

    /// Exit code and document of `linerate doctor --json` about all hosts.
    fn doctor(&self, more: &[&str]) -> (i32, Value) {
        let others: Vec<String> = self.agents[1..].iter().map(|agent| agent.address(0).to_string()).collect();
        let mut arguments = vec!["doctor", "--json"];
        arguments.extend(others.iter().map(String::as_str));
        arguments.extend(more);
        let (exit, text) = self.linerate(&arguments);
        (exit, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}")))
    }

    /// A command on a host.
    fn on(&self, host: usize, words: &[&str]) {
        let done = self.lab.hosts()[host].command(words[0]).args(&words[1..]).output().unwrap();
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

fn output(command: &mut Command) -> (i32, String) {
    let done = command.output().unwrap();
    let text = if done.stdout.is_empty() { done.stderr } else { done.stdout };
    (done.status.code().unwrap(), String::from_utf8(text).unwrap())
}

fn ids(document: &Value) -> Vec<&str> {
    document["findings"].as_array().unwrap().iter().map(|finding| finding["id"].as_str().unwrap()).collect()
}

/// The probe from a port of one host to another host.
fn probe<'a>(document: &'a Value, from: &str, port: &str, to: &str) -> &'a Value {
    let probes = document["survey"]["matrix"]["probes"].as_array().unwrap();
    let wanted = |probe: &&Value| {
        probe["from"]["host"] == from && probe["from"]["port"] == port && probe["to"]["host"] == to
    };
    probes.iter().find(wanted).unwrap_or_else(|| panic!("no probe from {from} {port} to {to} in {probes:#?}"))
}

/// A load of half a second on a link of 200 Mb/s moves 12 MB. Without one a link carries some 100 kB of small packets.
const LOAD_BYTES_MIN: u64 = 2_000_000;

/// What the two hosts sent by each of two links, as the kernel counts it.
fn sent_bytes(stage: &Stage) -> Vec<(String, u64)> {
    let places = [(0, "l0"), (0, "l1"), (1, "l0"), (1, "l1")];
    let sent = |(host, port): (usize, &str)| {
        of_port(stage, host, port, "statistics/tx_bytes").parse::<u64>().unwrap()
    };
    places.map(|place| (format!("{place:?}"), sent(place))).to_vec()
}

/// A full look in which the load of each link left by it. A stalled machine may need a second or third look.
fn loaded_look(stage: &Stage) -> Value {
    let mut looks = Vec::new();
    for _ in 0..3 {
        let before = sent_bytes(stage);
        let (_, document) = stage.doctor(&[]);
        let both = before.into_iter().zip(sent_bytes(stage));
        let sent: Vec<(String, u64)> =
            both.map(|((place, before), (_, after))| (place, after - before)).collect();
        if sent.iter().all(|(_, bytes)| *bytes > LOAD_BYTES_MIN) {
            return document;
        }
        looks.push(sent);
    }
    panic!("the load of a link did not leave by it: {looks:?} bytes");
}

#[test]
fn two_healthy_hosts_and_then_one_port_with_another_mtu() {
    let stage = Stage::new(2, &[1000, 200]);
    let healthy = loaded_look(&stage);
    assert!(!ids(&healthy).contains(&"mtu-between-hosts"), "{:?}", ids(&healthy));
    for (from, to) in [("a", "b"), ("b", "a")] {
        for port in ["l0", "l1"] {
            let probe = probe(&healthy, from, port, to);
            assert_eq!(probe["reachable"], true, "{probe}");
            assert_eq!(probe["path_mtu"]["passed"], 9000, "{probe}");
            assert_eq!(probe["path_mtu"]["black_hole"], false, "{probe}");
            let least_us = probe["latency"]["min_us"].as_f64().unwrap();
            assert!(least_us > 0.0, "{probe}");
            assert_eq!(probe["leaves_by"], Value::Null, "{probe}");
            assert_eq!(probe["arrives_at"], Value::Null, "{probe}");
            // Both hosts have one clock here, which the other host reads within the round trip.
            let ahead_us = probe["clock_ahead_us"].as_f64().unwrap().abs();
            assert!(ahead_us <= 1e6 + least_us / 2.0, "{probe}");
            assert!(probe["throughput_mbps"].as_u64().unwrap() > 0, "{probe}");
        }
    }

    stage.on(1, &["ip", "link", "set", "dev", "l1", "mtu", "1500"]);
    let (exit, faulty) = stage.doctor(&["--quick"]);
    assert_eq!(exit, 12, "{:?}", ids(&faulty));
    assert!(ids(&faulty).contains(&"mtu-between-hosts"), "{:?}", ids(&faulty));
    let there = probe(&faulty, "a", "l1", "b");
    // A virtual cable leaves room for a VLAN tag.
    let passed = there["path_mtu"]["passed"].as_u64().unwrap();
    assert!((1500..=1504).contains(&passed), "{there}");
    assert_eq!(there["path_mtu"]["black_hole"], true, "a cable says nothing: {there}");
    assert_eq!(probe(&faulty, "b", "l1", "a")["path_mtu"]["passed"], 1500);
    assert_eq!(probe(&faulty, "a", "l0", "b")["path_mtu"]["passed"], 9000);
    let (_, text) = stage.linerate(&["doctor", "--quick", &stage.agents[1].address(0).to_string()]);
    assert!(text.contains("b l1: MTU 1500 and 9000") && text.contains("of 9000, silently"), "{text}");
}

#[test]
fn a_firewall_and_a_wrong_route_are_seen() {
    let stage = Stage::new(2, &[1000, 1000]);
    let rules = "add table inet t; add chain inet t in { type filter hook input priority 0; policy accept; }; \
                 add rule inet t in iifname l1 udp dport 1-65535 drop";
    stage.on(1, &["nft", rules]);
    let away = format!("{}/32", stage.agents[1].address(0).ip());
    stage.on(0, &["ip", "route", "add", &away, "dev", "l1"]);
    let (_, document) = stage.doctor(&["--quick"]);
    let dropped = probe(&document, "a", "l1", "b");
    assert_eq!(dropped["reachable"], false, "{dropped}");
    assert_eq!(dropped["path_mtu"], Value::Null, "unknown, and no black hole: {dropped}");
    let routed = probe(&document, "a", "l0", "b");
    assert_eq!(routed["leaves_by"], "l1", "{routed}");
    assert_eq!(routed["reachable"], true, "bound to its port it goes the right way: {routed}");
    let chains = document["survey"]["hosts"][1]["firewall"]["input"].as_array().unwrap();
    assert!(chains.iter().any(|chain| chain["table"] == "inet t" && chain["rules"] == 1), "{chains:?}");
}

#[test]
fn three_hosts_on_a_switch_with_a_small_mtu_and_all_to_one() {
    let stage = Stage::new(3, &[500]);
    let (_, document) = stage.doctor(&[]);
    let probes = document["survey"]["matrix"]["probes"].as_array().unwrap();
    assert_eq!(probes.len(), 6);
    let incasts = document["survey"]["matrix"]["incasts"].as_array().unwrap();
    assert_eq!(incasts.len(), 3, "each host was sent to by both others");
    for incast in incasts {
        let each: Vec<u64> =
            incast["throughput_mbps"].as_array().unwrap().iter().map(|rate| rate.as_u64().unwrap()).collect();
        assert!(each.len() == 2 && each.iter().all(|rate| *rate > 0), "{incast}");
        let from = incast["from"].as_array().unwrap().iter().map(|end| &end["host"]);
        let mut hosts: Vec<&str> =
            from.chain([&incast["to"]["host"]]).map(|host| host.as_str().unwrap()).collect();
        hosts.sort_unstable();
        assert_eq!(hosts, ["a", "b", "c"], "both others send: {incast}");
    }

    // The bridge passes what its port to c passes: 1500 bytes, while all hosts believe in 9000.
    let switch = format!("{}-sw", stage.lab.name());
    let done = Command::new("ip")
        .args(["-n", &switch, "link", "set", "dev", "l0-c", "mtu", "1500"])
        .status()
        .unwrap();
    assert!(done.success());
    let (_, document) = stage.doctor(&["--quick"]);
    let through = probe(&document, "a", "l0", "c");
    assert_eq!(through["path_mtu"]["passed"], 1500, "{through}");
    assert_eq!(through["path_mtu"]["black_hole"], true, "{through}");
    assert_eq!(probe(&document, "a", "l0", "b")["path_mtu"]["passed"], 9000);
}

#[test]
fn saved_inventories_need_no_agent_and_silent_hosts_are_reported() {
    let stage = Stage::new(2, &[1000]);
    stage.on(1, &["ip", "link", "set", "dev", "l0", "mtu", "1500"]);
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().to_str().unwrap();
    stage.doctor(&["--quick", "--save", saved]);
    let (_, text) = stage.linerate(&["doctor", "--inventory"]);
    let inventory: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(inventory["host"], "a");
    assert_eq!(inventory["schema"]["major"], 1);
    let port = inventory["ports"].as_array().unwrap().iter().find(|port| port["name"] == "l0").unwrap();
    assert_eq!((port["kind"].as_str(), port["mtu"].as_u64()), (Some("veth"), Some(9000)), "{port}");

    let nowhere = format!("{}:1", stage.agents[1].address(0).ip());
    let (exit, text) = stage.linerate(&["doctor", "--quick", &nowhere]);
    assert_eq!(exit, 12, "{text}");
    assert!(text.contains("could not be asked"), "{text}");
    drop(stage);

    let mut command = Command::new(env!("CARGO_BIN_EXE_linerate"));
    let page = folder.path().join("page.html");
    let (exit, text) =
        output(command.args(["doctor", "--json", "--from", saved, "--html", page.to_str().unwrap()]));
    assert!(std::fs::read_to_string(&page).unwrap().contains("mtu-between-hosts"));
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(exit, 12, "{text}");
    assert!(ids(&document).contains(&"mtu-between-hosts"), "{:?}", ids(&document));
}

/// What the kernel says of a port's MTU.
fn mtu(stage: &Stage, host: usize, port: &str) -> String {
    of_port(stage, host, port, "mtu")
}

/// What the kernel says of a port.
fn of_port(stage: &Stage, host: usize, port: &str, what: &str) -> String {
    let file = format!("/sys/class/net/{port}/{what}");
    let done = stage.lab.hosts()[host].command("cat").arg(file).output().unwrap();
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !reached() {
        assert!(std::time::Instant::now() < deadline, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn a_port_is_set_on_trial_and_put_back_unless_confirmed() {
    let mut stage = Stage::new(2, &[1000]);
    let (exit, text) = stage.linerate(&["link", "set", "l0", "--mtu", "4000", "--dry-run"]);
    assert!(exit == 0 && text.contains("l0: MTU 9000 → 4000"), "{text}");
    assert_eq!(mtu(&stage, 0, "l0"), "9000", "a dry run changes nothing");

    let set = |stage: &Stage, within: &str| {
        let (exit, text) = stage.linerate(&["link", "set", "l0", "--mtu", "4000", "--within", within]);
        assert!(exit == 0 && text.contains("on trial"), "{text}");
    };
    let list = stage.lab.hosts()[0].state_directory().join("link-trials.json");
    // Its time is over when it is; before that nobody looks at the port.
    set(&stage, "2s");
    until("put back without any output", || mtu(&stage, 0, "l0") == "9000");
    until("nothing is on trial", || !list.exists());

    // Longer where a busy machine confirmed it too late.
    let within_s = [4_u64, 16, 64].into_iter().find(|within_s| {
        set(&stage, &format!("{within_s}s"));
        let (exit, text) = stage.linerate(&["link", "confirm", "l0"]);
        if exit != 0 {
            until(&format!("not confirmed, and not put back: {text}"), || !list.exists());
        }
        exit == 0
    });
    let within_s = within_s.expect("one is confirmed in time");
    assert!(!list.exists(), "nothing is left to put back");
    assert_eq!(mtu(&stage, 0, "l0"), "4000", "confirmed, it stays");
    std::thread::sleep(std::time::Duration::from_secs(within_s + 2));
    assert_eq!(mtu(&stage, 0, "l0"), "4000", "also after its time");
    let (exit, text) = stage.linerate(&["link", "confirm", "l0"]);
    assert_ne!(exit, 0, "there is nothing to confirm any more: {text}");

    stage.linerate(&["link", "set", "l0", "--mtu", "3000", "--within", "1h"]);
    assert_eq!(mtu(&stage, 0, "l0"), "3000");
    stage.agents[0].kill().unwrap();
    assert_eq!(mtu(&stage, 0, "l0"), "3000", "a killed agent cannot put it back");
    stage.agents[0].restart().unwrap();
    until("put back by the next agent", || mtu(&stage, 0, "l0") == "4000");
}

/// A port cannot be larger than the port below it, and its time is over first.
#[test]
fn a_port_on_top_of_another_is_restored_with_it() {
    let mut stage = Stage::new(2, &[1000]);
    stage.on(0, &["ip", "link", "add", "link", "l0", "name", "a7", "mtu", "9000", "type", "macvlan"]);
    stage.on(0, &["ip", "link", "set", "dev", "a7", "up"]);
    let lower = |stage: &Stage, port: &str, within: &str| {
        let (exit, text) = stage.linerate(&["link", "set", port, "--mtu", "1500", "--within", within]);
        assert_eq!(exit, 0, "{text}");
    };
    let lowered = |stage: &Stage| {
        let both = [mtu(stage, 0, "a7"), mtu(stage, 0, "l0")];
        assert_eq!(both, ["1500", "1500"]);
    };
    let list = stage.lab.hosts()[0].state_directory().join("link-trials.json");
    // The time of the upper port must not be over before the lower one is set.
    for within in ["5s", "15s", "45s"] {
        lower(&stage, "a7", within);
        lower(&stage, "l0", "1h");
        if std::fs::read_to_string(&list).unwrap().contains("\"a7\"") {
            break;
        }
        stage.linerate(&["link", "put-back", "l0"]);
        stage.on(0, &["ip", "link", "set", "dev", "a7", "mtu", "9000"]);
    }
    let stuck = "the MTU of a7 could not be set";
    until("its time is over", || std::fs::read_to_string(&list).is_ok_and(|text| text.contains(stuck)));
    lowered(&stage);
    let (exit, text) = stage.linerate(&["link", "put-back", "l0"]);
    assert_eq!(exit, 0, "{text}");
    assert_eq!([mtu(&stage, 0, "a7"), mtu(&stage, 0, "l0")], ["9000", "9000"]);
    assert!(!list.exists(), "nothing is left to put back");

    // The same at the agent's next beginning, by names in the wrong order.
    lower(&stage, "a7", "1h");
    lower(&stage, "l0", "1h");
    stage.agents[0].kill().unwrap();
    lowered(&stage);
    stage.agents[0].restart().unwrap();
    until("both put back", || [mtu(&stage, 0, "a7"), mtu(&stage, 0, "l0")] == ["9000", "9000"]);
}

#[test]
fn what_a_port_cannot_do_is_refused_and_changes_nothing() {
    let stage = Stage::new(2, &[1000]);
    for wish in [["--mtu", "70000"], ["--speed", "10G"], ["--fec", "rs"], ["--queues", "99999"]] {
        let (exit, text) = stage.linerate(&["link", "set", "l0", wish[0], wish[1]]);
        assert_eq!(exit, 4, "{wish:?}: {text}");
    }
    let (exit, text) = stage.linerate(&["link", "set", "nowhere", "--mtu", "1500"]);
    assert!(exit != 0 && text.contains("there is no port nowhere"), "{text}");
    let (exit, text) = stage.linerate(&["link", "show", "l0"]);
    assert!(exit == 0 && text.contains("veth") && text.contains("9000"), "{text}");
}

const INTENT: &str = "ports = [\"l0\"]\nswitch_ports = [\"Ethernet1\"]\n\
                      [migration]\npriority = 3\nshare = 50\nlossless = true\ndscp = 26\n";

#[test]
fn quality_of_service_on_a_port_without_dcb_is_refused_with_a_sentence() {
    let stage = Stage::new(2, &[1000]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("qos.toml");
    let file = file.to_str().unwrap();
    std::fs::write(file, INTENT).unwrap();
    let sentence = "l0 of a (a veth) has no DCB";
    for (command, code) in [("plan", 4), ("check", 13), ("apply", 4)] {
        let (exit, text) = stage.linerate(&["qos", command, file]);
        assert!(exit == code && text.contains(sentence), "{command}: {exit}\n{text}");
    }
    let (exit, text) = stage.linerate(&["qos", "apply", file, "--dry-run", "--json"]);
    let message: Value = serde_json::from_str(&text).unwrap();
    assert!(exit == 4 && message["error"]["message"].as_str().unwrap().contains(sentence), "{text}");
    let other = stage.agents[1].address(0).to_string();
    let (_, text) = stage.linerate(&["qos", "check", file, &other, "--json"]);
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["matches"], false);
    let hosts: Vec<&str> =
        document["hosts"].as_array().unwrap().iter().map(|host| host["host"].as_str().unwrap()).collect();
    assert_eq!(hosts, ["a", "b"], "{text}");

    std::fs::write(file, INTENT.replace("priority = 3", "priority = 9")).unwrap();
    for command in ["plan", "apply"] {
        let (exit, text) = stage.linerate(&["qos", command, file]);
        assert!(exit == 4 && text.contains("priority 9 of [migration]"), "{command}: {exit}\n{text}");
    }
}

/// Other hosts may set ports.
const SETTABLE: &str = "settings_from_agents = true\n";

/// A command with words for its questions.
fn answering(command: &mut Command, words: &str) -> (i32, String) {
    use std::io::Write as _;
    use std::process::Stdio;
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It may end without a question.
    let _ = child.stdin.take().unwrap().write_all(words.as_bytes());
    let done = child.wait_with_output().unwrap();
    let text = [done.stdout, done.stderr].concat();
    (done.status.code().unwrap(), String::from_utf8(text).unwrap())
}

impl Stage {
    /// `linerate doctor OTHERS --quick --fix …` at the first host, with words for its questions.
    fn fix(&self, more: &[&str], words: &str) -> (i32, String) {
        let others: Vec<String> = self.agents[1..].iter().map(|agent| agent.address(0).to_string()).collect();
        let mut command = self.agents[0].client();
        command.args(["doctor", "--quick", "--fix"]).args(others).args(more);
        answering(&mut command, words)
    }

    /// Of a port on all hosts.
    fn mtus(&self, port: &str) -> String {
        (0..self.agents.len()).map(|host| mtu(self, host, port)).collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn unequal_mtus_are_fixed_on_both_hosts_and_the_findings_are_gone() {
    let stage = Stage::with(2, &[1000, 1000], SETTABLE);
    // One fault at each host: each is the smaller one of a link.
    stage.on(0, &["ip", "link", "set", "dev", "l0", "mtu", "1500"]);
    stage.on(1, &["ip", "link", "set", "dev", "l1", "mtu", "1500"]);
    let (_, text) = stage.fix(&["--dry-run"], "");
    for line in ["a l0: MTU 1500 → 9000  [mtu-between-hosts]", "b l1: MTU 1500 → 9000  [mtu-between-hosts]"]
    {
        assert!(text.contains(line), "{text}");
    }
    assert_eq!([stage.mtus("l0"), stage.mtus("l1")], ["1500 9000", "9000 1500"]);

    let (exit, text) = stage.fix(&[], "no\n");
    assert!(text.contains("nothing was changed"), "{exit}: {text}");
    assert_eq!(mtu(&stage, 1, "l1"), "1500", "a no changes nothing");

    let (exit, text) = stage.fix(&["--within", "5m"], "y\ny\n");
    assert!(
        text.contains("looked again: mtu-between-hosts gone") && text.contains("it stays"),
        "{exit}: {text}"
    );
    assert_eq!([stage.mtus("l0"), stage.mtus("l1")], ["9000 9000", "9000 9000"]);
    let (_, healthy) = stage.doctor(&["--quick"]);
    assert!(!ids(&healthy).contains(&"mtu-between-hosts"), "{:?}", ids(&healthy));
    // Nothing waits for a decision any more, on either host.
    for more in [&["l0"][..], &["l1", "--host", &stage.agents[1].address(0).to_string()]] {
        let (exit, text) = stage.linerate(&[&["link", "confirm"], more].concat());
        assert!(exit != 0 && text.contains("no change that waits"), "{text}");
    }
}

#[test]
fn what_is_not_kept_is_put_back_at_once_or_by_the_agents_in_time() {
    let stage = Stage::with(2, &[1000, 1000], SETTABLE);
    stage.on(1, &["ip", "link", "set", "dev", "l1", "mtu", "1500"]);
    let (exit, text) = stage.fix(&["--within", "1h"], "y\nn\n");
    assert!(exit == 1 && text.contains("not kept") && text.contains("is as before"), "{exit}: {text}");
    assert_eq!(mtu(&stage, 1, "l1"), "1500");

    // The command dies between its two questions, with the port on trial.
    let mut command = stage.agents[0].client();
    command.args(["doctor", "--quick", "--fix", "--within", "20s", &stage.agents[1].address(0).to_string()]);
    let pipe = std::process::Stdio::piped;
    let mut child = command.stdin(pipe()).stdout(pipe()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"y\n").unwrap();
    until("on trial", || mtu(&stage, 1, "l1") == "9000");
    child.kill().unwrap();
    child.wait().unwrap();
    until("put back by the agent of that host", || mtu(&stage, 1, "l1") == "1500");
}

#[test]
fn what_does_not_help_is_put_back_and_other_hosts_must_allow_it() {
    let stage = Stage::with(3, &[1000, 1000], SETTABLE);
    // The bridge passes 1500 to c, so that a port of c that is raised to 9000 loses its large packets.
    let switch = format!("{}-sw", stage.lab.name());
    let small = ["-n", &switch, "link", "set", "dev", "l0-c", "mtu", "1500"];
    assert!(Command::new("ip").args(small).status().unwrap().success());
    stage.on(2, &["ip", "link", "set", "dev", "l0", "mtu", "1500"]);
    let (exit, text) = stage.fix(&["--yes", "--within", "5m"], "");
    assert!(exit == 1 && text.contains("it did not help") && text.contains("mtu-path"), "{exit}: {text}");
    assert_eq!(stage.mtus("l0"), "9000 9000 1500");
    drop(stage);

    // What the other host would refuse is not planned; what is this host's own is fixed all the same.
    let stage = Stage::new(2, &[1000, 1000]);
    stage.on(0, &["ip", "link", "set", "dev", "l0", "mtu", "1500"]);
    stage.on(1, &["ip", "link", "set", "dev", "l1", "mtu", "1500"]);
    let (exit, text) = stage.fix(&["--yes"], "");
    assert!(exit == 12 && text.contains("b does not take settings from other hosts"), "{exit}: {text}");
    assert!(text.contains("settings_from_agents") && text.contains("it stays"), "{text}");
    assert_eq!([stage.mtus("l0"), stage.mtus("l1")], ["9000 9000", "9000 1500"]);
    let there = stage.agents[1].address(0).to_string();
    let (exit, _) = stage.linerate(&["link", "set", "l1", "--mtu", "9000", "--host", &there]);
    assert_eq!((exit, mtu(&stage, 1, "l1")), (4, "1500".into()));
}

/// Before it is kept everything goes back, also where the output is not read; after that the result is printed,
/// whatever else fails.
#[test]
fn doctor_fix_with_a_broken_output_is_kept_or_rolled_back() {
    use std::io::{Read as _, Write as _};
    let stage = Stage::with(2, &[1000, 1000], SETTABLE);
    stage.on(1, &["ip", "link", "set", "dev", "l1", "mtu", "1500"]);
    let mut command = stage.agents[0].client();
    command.args(["doctor", "--quick", "--fix", "--within", "1h", &stage.agents[1].address(0).to_string()]);
    let pipe = std::process::Stdio::piped;
    let mut child = command.stdin(pipe()).stdout(pipe()).stderr(pipe()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut message = Vec::new();
    child.stdin.take().unwrap().write_all(b"y\ny\n").unwrap();
    // The end of the line is the last that is written before the port is set.
    while !message.ends_with(b"Set these on trial? [y/N] \n") {
        let mut byte = [0];
        stdout.read_exact(&mut byte).unwrap();
        message.extend(byte);
    }
    drop(stdout);
    let done = child.wait_with_output().unwrap();
    let errors = String::from_utf8(done.stderr).unwrap();
    assert!(errors.contains("output cannot be written") && errors.contains("is as before"), "{errors}");
    assert_eq!((done.status.code(), mtu(&stage, 1, "l1")), (Some(1), "1500".into()));

    let page = stage.lab.hosts()[0].directory().join("no-such-folder/page.html");
    let (exit, text) =
        stage.fix(&["--json", "--yes", "--within", "5m", "--html", page.to_str().unwrap()], "");
    let document = serde_json::Deserializer::from_str(&text).into_iter::<Value>().next().unwrap().unwrap();
    assert_eq!(document["outcome"], "kept", "{text}");
    assert!(exit == 1 && text.contains("page.html cannot be written"), "{exit}: {text}");
    assert_eq!(mtu(&stage, 1, "l1"), "9000");
}

/// What a program gets; and a path whose MTU cannot be raised is made to work by lowering both ends.
#[test]
fn a_path_through_a_small_bridge_is_fixed_by_smaller_packets() {
    let stage = Stage::with(3, &[1000, 1000], SETTABLE);
    let switch = format!("{}-sw", stage.lab.name());
    for port in ["l1-a", "l1-b", "l1-c"] {
        let small = ["-n", &switch, "link", "set", "dev", port, "mtu", "1500"];
        assert!(Command::new("ip").args(small).status().unwrap().success());
    }
    let (exit, text) = stage.fix(&["--json"], "");
    assert!(exit == 2 && text.contains("a program cannot answer"), "{text}");
    let (_, text) = stage.fix(&["--json", "--yes", "--within", "5m"], "");
    let document: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
    assert_eq!(document["outcome"], "kept", "{text}");
    assert_eq!(document["fix"]["ports"].as_array().unwrap().len(), 3);
    assert!(!ids(&document).contains(&"mtu-path"), "{:?}", ids(&document));
    assert_eq!([stage.mtus("l1"), stage.mtus("l0")], ["1500 1500 1500", "9000 9000 9000"]);
}

impl Stage {
    /// lldpd at the other end of a host's port: between two hosts that is the other host's end of the cable.
    fn switch(&self, at: usize, system: &str, frame_bytes_max: u16, vlan: u16) -> Lldpd {
        let switch = Switch { system: system.into(), port: "Ethernet1/7".into(), frame_bytes_max, vlan };
        Lldpd::start(&self.lab.hosts()[1 - at], "l0", &switch).unwrap()
    }

    /// What the first link's port of each host receives by LLDP, as `SYSTEM PORT`.
    fn neighbours(&self) -> Vec<String> {
        let (_, document) = self.doctor(&["--quick"]);
        let hosts = document["survey"]["hosts"].as_array().unwrap();
        let port = |host: &Value| {
            host["ports"].as_array().unwrap().iter().find(|port| port["name"] == "l0").cloned()
        };
        let neighbour = |host: &Value| port(host).unwrap()["neighbours"][0].clone();
        let word = |one: Value| Some(format!("{} {}", one["system"].as_str()?, one["port"].as_str()?));
        hosts.iter().map(|host| word(neighbour(host)).unwrap_or_default()).collect()
    }
}

/// A daemon that others wrote speaks at both ends of a cable, as two ports of switches that are set in different ways.
#[test]
fn lldp_of_both_ends_is_received_and_compared() {
    let stage = Stage::new(2, &[1000]);
    assert_eq!(stage.neighbours(), ["", ""], "no neighbour sends yet");
    let (mut small, mut other) = (stage.switch(0, "leaf0", 1518, 100), stage.switch(1, "leaf1", 9234, 200));
    until("both hosts receive their switch", || {
        small.must_run().unwrap();
        other.must_run().unwrap();
        stage.neighbours() == ["leaf0 Ethernet1/7", "leaf1 Ethernet1/7"]
    });

    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().to_str().unwrap();
    let (exit, document) = stage.doctor(&["--quick", "--save", saved]);
    let findings = document["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["id"] == "mtu-against-switch").unwrap();
    assert_eq!(found["title"], "MTU 9000, but its switch port leaf0 Ethernet1/7 passes 1500", "{exit}");
    assert_eq!(found["locations"], serde_json::json!([{"host": "a", "port": "l0"}]));
    assert_eq!(
        ids(&document).iter().filter(|id| **id == "mtu-against-switch").count(),
        1,
        "leaf1 passes enough"
    );
    // Packets do arrive here, whatever the VLANs are called; files know nothing of that.
    assert!(!ids(&document).contains(&"vlan-between-hosts"), "{:?}", ids(&document));
    let (_, text) = stage.linerate(&["doctor", "--json", "--from", saved]);
    let from_files: Value = serde_json::from_str(&text).unwrap();
    assert!(ids(&from_files).contains(&"vlan-between-hosts"), "{:?}", ids(&from_files));
    let (_, text) = stage.linerate(&["link", "set", "l0", "--mtu", "8000", "--dry-run"]);
    assert!(text.contains("leaf0 passes packets of 1500 bytes only"), "{text}");

    // One that goes says so, and is forgotten.
    small.stop().unwrap();
    until("a switch that went is forgotten", || stage.neighbours() == ["", "leaf1 Ethernet1/7"]);
    assert!(!ids(&stage.doctor(&["--quick"]).1).contains(&"mtu-against-switch"));
}
