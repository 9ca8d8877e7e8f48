//! The doctor with real agents on hosts in namespaces. As root, with what lab/install.sh installs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Tests say what they expect.

use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use linerate_lab::{Agent, AgentOptions, Lab, LinkSpec, Lldpd, Switch, Way};
use serde_json::Value;

/// One lab at a time: loads would measure each other.
static ONE: Mutex<()> = Mutex::new(());

struct Room {
    agents: Vec<Agent>,
    // Behind the agents: dropped after them.
    lab: Lab,
    _one: MutexGuard<'static, ()>,
}

impl Room {
    fn new(hosts: usize, rates_mbps: &[u64]) -> Room {
        Room::with(hosts, rates_mbps, "")
    }

    /// With lines in the agents' configuration.
    fn with(hosts: usize, rates_mbps: &[u64], configuration: &str) -> Room {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut builder = Lab::builder().hosts(hosts);
        for rate in rates_mbps {
            builder = builder.link(LinkSpec::shaped(*rate));
        }
        Room::started(builder.build().unwrap(), configuration, one)
    }

    /// Agents on all hosts of a lab.
    fn of(lab: Lab, configuration: &str) -> Room {
        Room::started(lab, configuration, ONE.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn started(lab: Lab, configuration: &str, one: MutexGuard<'static, ()>) -> Room {
        let options = || AgentOptions {
            binary: Some(env!("CARGO_BIN_EXE_linerate").into()),
            configuration: configuration.to_owned(),
            ..AgentOptions::default()
        };
        let agents = lab.hosts().iter().map(|host| Agent::start(host, options()).unwrap()).collect();
        Room { agents, lab, _one: one }
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
    let probes = document["room"]["matrix"]["probes"].as_array().unwrap();
    let wanted = |probe: &&Value| {
        probe["from"]["host"] == from && probe["from"]["port"] == port && probe["to"]["host"] == to
    };
    probes.iter().find(wanted).unwrap_or_else(|| panic!("no probe from {from} {port} to {to} in {probes:#?}"))
}

#[test]
fn two_healthy_hosts_and_then_one_port_with_another_mtu() {
    let room = Room::new(2, &[1000, 200]);
    let (_, healthy) = room.doctor(&[]);
    assert!(!ids(&healthy).contains(&"mtu-between-hosts"), "{:?}", ids(&healthy));
    for (from, to) in [("a", "b"), ("b", "a")] {
        for port in ["l0", "l1"] {
            let probe = probe(&healthy, from, port, to);
            assert_eq!(probe["reachable"], true, "{probe}");
            assert_eq!(probe["path_mtu"]["passed"], 9000, "{probe}");
            assert_eq!(probe["path_mtu"]["black_hole"], false, "{probe}");
            assert!(probe["latency"]["min_ns"].as_u64().unwrap() > 0, "{probe}");
            assert_eq!(probe["leaves_by"], Value::Null, "{probe}");
            assert_eq!(probe["arrives_at"], Value::Null, "{probe}");
            // Both hosts have one clock here.
            assert!(probe["clock_ahead_us"].as_i64().unwrap().abs() < 1_000_000, "{probe}");
        }
        // Each load went over its own link: what the shaper lets through, and not what the other link would.
        let slow = probe(&healthy, from, "l1", to)["throughput_mbps"].as_u64().unwrap();
        let fast = probe(&healthy, from, "l0", to)["throughput_mbps"].as_u64().unwrap();
        assert!(slow > 0 && slow < 300 && fast > slow, "{slow} and {fast} Mb/s");
    }

    room.on(1, &["ip", "link", "set", "dev", "l1", "mtu", "1500"]);
    let (exit, faulty) = room.doctor(&["--quick"]);
    assert_eq!(exit, 12, "{:?}", ids(&faulty));
    assert!(ids(&faulty).contains(&"mtu-between-hosts"), "{:?}", ids(&faulty));
    let there = probe(&faulty, "a", "l1", "b");
    // A virtual cable leaves room for a VLAN tag.
    let passed = there["path_mtu"]["passed"].as_u64().unwrap();
    assert!((1500..=1504).contains(&passed), "{there}");
    assert_eq!(there["path_mtu"]["black_hole"], true, "a cable says nothing: {there}");
    assert_eq!(probe(&faulty, "b", "l1", "a")["path_mtu"]["passed"], 1500);
    assert_eq!(probe(&faulty, "a", "l0", "b")["path_mtu"]["passed"], 9000);
    let (_, text) = room.linerate(&["doctor", "--quick", &room.agents[1].address(0).to_string()]);
    assert!(text.contains("b l1: MTU 1500 and 9000") && text.contains("of 9000, silently"), "{text}");
}

#[test]
fn a_firewall_and_a_wrong_route_are_seen() {
    let room = Room::new(2, &[1000, 1000]);
    let rules = "add table inet t; add chain inet t in { type filter hook input priority 0; policy accept; }; \
                 add rule inet t in iifname l1 udp dport 1-65535 drop";
    room.on(1, &["nft", rules]);
    let away = format!("{}/32", room.agents[1].address(0).ip());
    room.on(0, &["ip", "route", "add", &away, "dev", "l1"]);
    let (_, document) = room.doctor(&["--quick"]);
    let dropped = probe(&document, "a", "l1", "b");
    assert_eq!(dropped["reachable"], false, "{dropped}");
    assert_eq!(dropped["path_mtu"], Value::Null, "unknown, and no black hole: {dropped}");
    let routed = probe(&document, "a", "l0", "b");
    assert_eq!(routed["leaves_by"], "l1", "{routed}");
    assert_eq!(routed["reachable"], true, "bound to its port it goes the right way: {routed}");
    let chains = document["room"]["hosts"][1]["firewall"]["input"].as_array().unwrap();
    assert!(chains.iter().any(|chain| chain["table"] == "inet t" && chain["rules"] == 1), "{chains:?}");
}

#[test]
fn three_hosts_on_a_switch_with_a_small_mtu_and_all_to_one() {
    let room = Room::new(3, &[500]);
    let (_, document) = room.doctor(&[]);
    let probes = document["room"]["matrix"]["probes"].as_array().unwrap();
    assert_eq!(probes.len(), 6);
    let incasts = document["room"]["matrix"]["incasts"].as_array().unwrap();
    assert_eq!(incasts.len(), 3, "each host was sent to by both others");
    for incast in incasts {
        let each: Vec<u64> =
            incast["throughput_mbps"].as_array().unwrap().iter().map(|rate| rate.as_u64().unwrap()).collect();
        assert_eq!(each.len(), 2, "{incast}");
        assert!(
            each.iter().sum::<u64>() < 1000,
            "two senders cannot have more than the receiver's link: {incast}"
        );
    }

    // The bridge passes what its port to c passes: 1500 bytes, while all hosts believe in 9000.
    let switch = format!("{}-sw", room.lab.name());
    let done = Command::new("ip")
        .args(["-n", &switch, "link", "set", "dev", "l0-c", "mtu", "1500"])
        .status()
        .unwrap();
    assert!(done.success());
    let (_, document) = room.doctor(&["--quick"]);
    let through = probe(&document, "a", "l0", "c");
    assert_eq!(through["path_mtu"]["passed"], 1500, "{through}");
    assert_eq!(through["path_mtu"]["black_hole"], true, "{through}");
    assert_eq!(probe(&document, "a", "l0", "b")["path_mtu"]["passed"], 9000);
}

#[test]
fn saved_inventories_need_no_agent_and_silent_hosts_are_said() {
    let room = Room::new(2, &[1000]);
    room.on(1, &["ip", "link", "set", "dev", "l0", "mtu", "1500"]);
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().to_str().unwrap();
    room.doctor(&["--quick", "--save", saved]);
    let (_, text) = room.linerate(&["doctor", "--inventory"]);
    let inventory: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(inventory["host"], "a");
    assert_eq!(inventory["schema"]["major"], 1);
    let port = inventory["ports"].as_array().unwrap().iter().find(|port| port["name"] == "l0").unwrap();
    assert_eq!((port["kind"].as_str(), port["mtu"].as_u64()), (Some("veth"), Some(9000)), "{port}");

    let nowhere = format!("{}:1", room.agents[1].address(0).ip());
    let (exit, text) = room.linerate(&["doctor", "--quick", &nowhere]);
    assert_eq!(exit, 12, "{text}");
    assert!(text.contains("could not be asked"), "{text}");
    drop(room);

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
fn mtu(room: &Room, host: usize, port: &str) -> String {
    let done =
        room.lab.hosts()[host].command("cat").arg(format!("/sys/class/net/{port}/mtu")).output().unwrap();
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
    let mut room = Room::new(2, &[1000]);
    let (exit, text) = room.linerate(&["link", "set", "l0", "--mtu", "4000", "--dry-run"]);
    assert!(exit == 0 && text.contains("l0: MTU 9000 → 4000"), "{text}");
    assert_eq!(mtu(&room, 0, "l0"), "9000", "a dry run changes nothing");

    let (exit, text) = room.linerate(&["link", "set", "l0", "--mtu", "4000", "--within", "2s"]);
    assert!(exit == 0 && text.contains("on trial"), "{text}");
    assert_eq!(mtu(&room, 0, "l0"), "4000");
    until("put back without a word", || mtu(&room, 0, "l0") == "9000");

    room.linerate(&["link", "set", "l0", "--mtu", "4000", "--within", "2s"]);
    let (exit, text) = room.linerate(&["link", "confirm", "l0"]);
    assert_eq!(exit, 0, "{text}");
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(mtu(&room, 0, "l0"), "4000", "confirmed, it stays");
    let (exit, text) = room.linerate(&["link", "confirm", "l0"]);
    assert_ne!(exit, 0, "there is nothing to confirm any more: {text}");

    room.linerate(&["link", "set", "l0", "--mtu", "3000", "--within", "1h"]);
    assert_eq!(mtu(&room, 0, "l0"), "3000");
    room.agents[0].kill().unwrap();
    assert_eq!(mtu(&room, 0, "l0"), "3000", "a killed agent cannot put it back");
    room.agents[0].restart().unwrap();
    until("put back by the next agent", || mtu(&room, 0, "l0") == "4000");
}

/// A port cannot be larger than the one that it stands on, and its time is over first.
#[test]
fn a_port_that_stands_on_another_is_put_back_when_that_one_is() {
    let mut room = Room::new(2, &[1000]);
    room.on(0, &["ip", "link", "add", "link", "l0", "name", "a7", "mtu", "9000", "type", "macvlan"]);
    room.on(0, &["ip", "link", "set", "dev", "a7", "up"]);
    let lower = |room: &Room, port: &str, within: &str| {
        let (exit, text) = room.linerate(&["link", "set", port, "--mtu", "1500", "--within", within]);
        assert_eq!(exit, 0, "{text}");
    };
    let lowered = |room: &Room| {
        let both = [mtu(room, 0, "a7"), mtu(room, 0, "l0")];
        assert_eq!(both, ["1500", "1500"]);
    };
    lower(&room, "a7", "5s");
    lower(&room, "l0", "1h");
    let list = room.lab.hosts()[0].state_directory().join("link-trials.json");
    let stuck = "the MTU of a7 could not be set";
    until("its time is over", || std::fs::read_to_string(&list).is_ok_and(|text| text.contains(stuck)));
    lowered(&room);
    let (exit, text) = room.linerate(&["link", "put-back", "l0"]);
    assert_eq!(exit, 0, "{text}");
    assert_eq!([mtu(&room, 0, "a7"), mtu(&room, 0, "l0")], ["9000", "9000"]);
    assert!(!list.exists(), "nothing is left to put back");

    // The same at the agent's next beginning, by names in the wrong order.
    lower(&room, "a7", "1h");
    lower(&room, "l0", "1h");
    room.agents[0].kill().unwrap();
    lowered(&room);
    room.agents[0].restart().unwrap();
    until("both put back", || [mtu(&room, 0, "a7"), mtu(&room, 0, "l0")] == ["9000", "9000"]);
}

#[test]
fn what_a_port_cannot_do_is_refused_and_changes_nothing() {
    let room = Room::new(2, &[1000]);
    for wish in [["--mtu", "70000"], ["--speed", "10G"], ["--fec", "rs"], ["--queues", "99999"]] {
        let (exit, text) = room.linerate(&["link", "set", "l0", wish[0], wish[1]]);
        assert_eq!(exit, 4, "{wish:?}: {text}");
    }
    let (exit, text) = room.linerate(&["link", "set", "nowhere", "--mtu", "1500"]);
    assert!(exit != 0 && text.contains("there is no port nowhere"), "{text}");
    let (exit, text) = room.linerate(&["link", "show", "l0"]);
    assert!(exit == 0 && text.contains("veth") && text.contains("9000"), "{text}");
}

const INTENT: &str = "ports = [\"l0\"]\nswitch_ports = [\"Ethernet1\"]\n\
                      [migration]\npriority = 3\nshare = 50\nlossless = true\ndscp = 26\n";

#[test]
fn quality_of_service_on_a_port_without_dcb_is_refused_with_a_sentence() {
    let room = Room::new(2, &[1000]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("qos.toml");
    let file = file.to_str().unwrap();
    std::fs::write(file, INTENT).unwrap();
    let sentence = "l0 of a (a veth) has no DCB";
    for (command, code) in [("plan", 4), ("check", 13), ("apply", 4)] {
        let (exit, text) = room.linerate(&["qos", command, file]);
        assert!(exit == code && text.contains(sentence), "{command}: {exit}\n{text}");
    }
    let (exit, text) = room.linerate(&["qos", "apply", file, "--dry-run", "--json"]);
    let said: Value = serde_json::from_str(&text).unwrap();
    assert!(exit == 4 && said["error"]["message"].as_str().unwrap().contains(sentence), "{text}");
    let other = room.agents[1].address(0).to_string();
    let (_, text) = room.linerate(&["qos", "check", file, &other, "--json"]);
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["matches"], false);
    let hosts: Vec<&str> =
        document["hosts"].as_array().unwrap().iter().map(|host| host["host"].as_str().unwrap()).collect();
    assert_eq!(hosts, ["a", "b"], "{text}");

    std::fs::write(file, INTENT.replace("priority = 3", "priority = 9")).unwrap();
    for command in ["plan", "apply"] {
        let (exit, text) = room.linerate(&["qos", command, file]);
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

impl Room {
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
fn unequal_mtus_are_mended_on_both_hosts_and_the_findings_are_gone() {
    let room = Room::with(2, &[1000, 1000], SETTABLE);
    // One fault at each host: each is the smaller one of a link.
    room.on(0, &["ip", "link", "set", "dev", "l0", "mtu", "1500"]);
    room.on(1, &["ip", "link", "set", "dev", "l1", "mtu", "1500"]);
    let (_, text) = room.fix(&["--dry-run"], "");
    for line in ["a l0: MTU 1500 → 9000  [mtu-between-hosts]", "b l1: MTU 1500 → 9000  [mtu-between-hosts]"]
    {
        assert!(text.contains(line), "{text}");
    }
    assert_eq!([room.mtus("l0"), room.mtus("l1")], ["1500 9000", "9000 1500"]);

    let (exit, text) = room.fix(&[], "no\n");
    assert!(text.contains("nothing was changed"), "{exit}: {text}");
    assert_eq!(mtu(&room, 1, "l1"), "1500", "a no changes nothing");

    let (exit, text) = room.fix(&["--within", "5m"], "y\ny\n");
    assert!(
        text.contains("looked again: mtu-between-hosts gone") && text.contains("it stays"),
        "{exit}: {text}"
    );
    assert_eq!([room.mtus("l0"), room.mtus("l1")], ["9000 9000", "9000 9000"]);
    let (_, healthy) = room.doctor(&["--quick"]);
    assert!(!ids(&healthy).contains(&"mtu-between-hosts"), "{:?}", ids(&healthy));
    // Nothing waits for a word any more, on either host.
    for more in [&["l0"][..], &["l1", "--host", &room.agents[1].address(0).to_string()]] {
        let (exit, text) = room.linerate(&[&["link", "confirm"], more].concat());
        assert!(exit != 0 && text.contains("no change that waits"), "{text}");
    }
}

#[test]
fn what_is_not_kept_is_put_back_at_once_or_by_the_agents_in_time() {
    let room = Room::with(2, &[1000, 1000], SETTABLE);
    room.on(1, &["ip", "link", "set", "dev", "l1", "mtu", "1500"]);
    let (exit, text) = room.fix(&["--within", "1h"], "y\nn\n");
    assert!(exit == 1 && text.contains("not kept") && text.contains("is as before"), "{exit}: {text}");
    assert_eq!(mtu(&room, 1, "l1"), "1500");

    // The command dies between its two questions, with the port on trial.
    let mut command = room.agents[0].client();
    command.args(["doctor", "--quick", "--fix", "--within", "20s", &room.agents[1].address(0).to_string()]);
    let pipe = std::process::Stdio::piped;
    let mut child = command.stdin(pipe()).stdout(pipe()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"y\n").unwrap();
    until("on trial", || mtu(&room, 1, "l1") == "9000");
    child.kill().unwrap();
    child.wait().unwrap();
    until("put back by the agent of that host", || mtu(&room, 1, "l1") == "1500");
}

#[test]
fn what_does_not_help_is_put_back_and_other_hosts_must_allow_it() {
    let room = Room::with(3, &[1000, 1000], SETTABLE);
    // The bridge passes 1500 to c, so that a port of c that is raised to 9000 loses its large packets.
    let switch = format!("{}-sw", room.lab.name());
    let small = ["-n", &switch, "link", "set", "dev", "l0-c", "mtu", "1500"];
    assert!(Command::new("ip").args(small).status().unwrap().success());
    room.on(2, &["ip", "link", "set", "dev", "l0", "mtu", "1500"]);
    let (exit, text) = room.fix(&["--yes", "--within", "5m"], "");
    assert!(exit == 1 && text.contains("it did not help") && text.contains("mtu-path"), "{exit}: {text}");
    assert_eq!(room.mtus("l0"), "9000 9000 1500");
    drop(room);

    // What the other host would refuse is not planned; what is this host's own is mended all the same.
    let room = Room::new(2, &[1000, 1000]);
    room.on(0, &["ip", "link", "set", "dev", "l0", "mtu", "1500"]);
    room.on(1, &["ip", "link", "set", "dev", "l1", "mtu", "1500"]);
    let (exit, text) = room.fix(&["--yes"], "");
    assert!(exit == 12 && text.contains("b does not take settings from other hosts"), "{exit}: {text}");
    assert!(text.contains("settings_from_agents") && text.contains("it stays"), "{text}");
    assert_eq!([room.mtus("l0"), room.mtus("l1")], ["9000 9000", "9000 1500"]);
    let there = room.agents[1].address(0).to_string();
    let (exit, _) = room.linerate(&["link", "set", "l1", "--mtu", "9000", "--host", &there]);
    assert_eq!((exit, mtu(&room, 1, "l1")), (4, "1500".into()));
}

/// Before it is kept everything goes back, also where nobody reads what is said; after that it is said, whatever else goes wrong.
#[test]
fn an_output_that_breaks_never_leaves_it_open_what_stays() {
    use std::io::{Read as _, Write as _};
    let room = Room::with(2, &[1000, 1000], SETTABLE);
    room.on(1, &["ip", "link", "set", "dev", "l1", "mtu", "1500"]);
    let mut command = room.agents[0].client();
    command.args(["doctor", "--quick", "--fix", "--within", "1h", &room.agents[1].address(0).to_string()]);
    let pipe = std::process::Stdio::piped;
    let mut child = command.stdin(pipe()).stdout(pipe()).stderr(pipe()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut said = Vec::new();
    child.stdin.take().unwrap().write_all(b"y\ny\n").unwrap();
    // The end of the line is the last that is written before the port is set.
    while !said.ends_with(b"Set these on trial? [y/N] \n") {
        let mut byte = [0];
        stdout.read_exact(&mut byte).unwrap();
        said.extend(byte);
    }
    drop(stdout);
    let done = child.wait_with_output().unwrap();
    let errors = String::from_utf8(done.stderr).unwrap();
    assert!(errors.contains("output cannot be written") && errors.contains("is as before"), "{errors}");
    assert_eq!((done.status.code(), mtu(&room, 1, "l1")), (Some(1), "1500".into()));

    let page = room.lab.hosts()[0].directory().join("no-such-folder/page.html");
    let (exit, text) = room.fix(&["--json", "--yes", "--within", "5m", "--html", page.to_str().unwrap()], "");
    let document = serde_json::Deserializer::from_str(&text).into_iter::<Value>().next().unwrap().unwrap();
    assert_eq!(document["outcome"], "kept", "{text}");
    assert!(exit == 1 && text.contains("page.html cannot be written"), "{exit}: {text}");
    assert_eq!(mtu(&room, 1, "l1"), "9000");
}

/// What a program gets; and a path that nobody can raise is made to work by lowering both ends.
#[test]
fn a_path_through_a_small_bridge_is_mended_by_smaller_packets() {
    let room = Room::with(3, &[1000, 1000], SETTABLE);
    let switch = format!("{}-sw", room.lab.name());
    for port in ["l1-a", "l1-b", "l1-c"] {
        let small = ["-n", &switch, "link", "set", "dev", port, "mtu", "1500"];
        assert!(Command::new("ip").args(small).status().unwrap().success());
    }
    let (exit, text) = room.fix(&["--json"], "");
    assert!(exit == 2 && text.contains("a program cannot answer"), "{text}");
    let (_, text) = room.fix(&["--json", "--yes", "--within", "5m"], "");
    let document: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
    assert_eq!(document["outcome"], "kept", "{text}");
    assert_eq!(document["fix"]["ports"].as_array().unwrap().len(), 3);
    assert!(!ids(&document).contains(&"mtu-path"), "{:?}", ids(&document));
    assert_eq!([room.mtus("l1"), room.mtus("l0")], ["1500 1500 1500", "9000 9000 9000"]);
}

impl Room {
    /// lldpd at the other end of a host's port: between two hosts that is the other host's end of the cable.
    fn switch(&self, at: usize, system: &str, frame_bytes_max: u16, vlan: u16) -> Lldpd {
        let switch = Switch { system: system.into(), port: "Ethernet1/7".into(), frame_bytes_max, vlan };
        Lldpd::start(&self.lab.hosts()[1 - at], "l0", &switch).unwrap()
    }

    /// What the first link's port of each host hears, as `SYSTEM PORT`.
    fn heard(&self) -> Vec<String> {
        let (_, document) = self.doctor(&["--quick"]);
        let hosts = document["room"]["hosts"].as_array().unwrap();
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
fn what_lldpd_says_at_both_ends_is_heard_and_what_differs_is_found() {
    let room = Room::new(2, &[1000]);
    assert_eq!(room.heard(), ["", ""], "nobody speaks yet");
    let (mut small, mut other) = (room.switch(0, "leaf0", 1518, 100), room.switch(1, "leaf1", 9234, 200));
    until("both hosts hear their switch", || {
        small.must_run().unwrap();
        other.must_run().unwrap();
        room.heard() == ["leaf0 Ethernet1/7", "leaf1 Ethernet1/7"]
    });

    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().to_str().unwrap();
    let (exit, document) = room.doctor(&["--quick", "--save", saved]);
    let findings = document["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["id"] == "mtu-against-switch").unwrap();
    assert_eq!(found["title"], "MTU 9000, but its switch port leaf0 Ethernet1/7 passes 1500", "{exit}");
    assert_eq!(found["places"], serde_json::json!([{"host": "a", "port": "l0"}]));
    assert_eq!(
        ids(&document).iter().filter(|id| **id == "mtu-against-switch").count(),
        1,
        "leaf1 passes enough"
    );
    // Packets do arrive here, whatever the VLANs are called; files know nothing of that.
    assert!(!ids(&document).contains(&"vlan-between-hosts"), "{:?}", ids(&document));
    let (_, text) = room.linerate(&["doctor", "--json", "--from", saved]);
    let from_files: Value = serde_json::from_str(&text).unwrap();
    assert!(ids(&from_files).contains(&"vlan-between-hosts"), "{:?}", ids(&from_files));
    let (_, text) = room.linerate(&["link", "set", "l0", "--mtu", "8000", "--dry-run"]);
    assert!(text.contains("leaf0 passes packets of 1500 bytes only"), "{text}");

    // One that goes says so, and is forgotten.
    small.stop().unwrap();
    until("a switch that went is forgotten", || room.heard() == ["", "leaf1 Ethernet1/7"]);
    assert!(!ids(&room.doctor(&["--quick"]).1).contains(&"mtu-against-switch"));
}

impl Room {
    /// Two agents on links through switches, so that what happens on the way happens outside of both hosts. The third host has no agent.
    fn through_switches(rates_mbps: &[u64]) -> Room {
        let mut room = Room::new(3, rates_mbps);
        room.agents.truncate(2);
        room
    }

    /// What is wrong, hints left out: id, title, places.
    fn wrong(&self, more: &[&str]) -> Vec<(String, String, Vec<String>)> {
        let (_, document) = self.doctor(more);
        let grave = document["findings"].as_array().unwrap().iter().filter(|one| one["severity"] != "hint");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let place = |place: &Value| format!("{} {}", text(&place["host"]), text(&place["port"]));
        let places = |one: &Value| one["places"].as_array().unwrap().iter().map(place).collect();
        grave.map(|one| (text(&one["id"]), text(&one["title"]), places(one))).collect()
    }
}

/// The one thing that is wrong.
fn only(wrong: Vec<(String, String, Vec<String>)>, id: &str, about: &str) -> (String, Vec<String>) {
    assert_eq!(wrong.iter().map(|(id, ..)| id.as_str()).collect::<Vec<_>>(), [id], "{about}: {wrong:#?}");
    let (_, title, places) = wrong.into_iter().next().unwrap();
    (title, places)
}

#[test]
fn loss_in_each_direction_is_named_and_nothing_else() {
    let room = Room::through_switches(&[1000, 1000]);
    assert_eq!(room.wrong(&["--quick"]), []);
    for percent in [1, 30] {
        for (there, back) in [(percent, 0), (0, percent), (percent, percent)] {
            let about = format!("{there} % there, {back} % back");
            room.lab.lose(1, 0, there).unwrap();
            room.lab.lose(1, 1, back).unwrap();
            let (title, mut places) = only(room.wrong(&["--quick"]), "packet-loss", &about);
            places.sort();
            assert_eq!(places, ["a l1", "b l1"], "{about}: {title}");
            let one_way = if there == 0 { "to a l1" } else { "to b l1" };
            let fits = if there == back { title.contains("of those back") } else { title.contains(one_way) };
            assert!(fits, "{about}: {title}");
        }
    }
    room.lab.lose(1, 0, 0).unwrap();
    room.lab.lose(1, 1, 0).unwrap();
    assert_eq!(room.wrong(&["--quick"]), []);
}

#[test]
fn a_slow_link_is_named_beside_a_fast_one_and_its_slow_direction() {
    let room = Room::through_switches(&[1000, 1000]);
    for (there, back) in [(1, 0), (0, 10), (25, 25), (50, 0)] {
        let about = format!("{there} ms there, {back} ms back");
        let way = |ms| Way { delay: std::time::Duration::from_millis(ms) };
        let _forwarder = room.lab.forward(1, [0, 1], [way(there), way(back)]).unwrap();
        let (title, mut places) = only(room.wrong(&["--quick"]), "round-trip-long", &about);
        places.sort();
        assert_eq!(places, ["a l1", "b l1"], "{about}: {title}");
        let slow =
            [("b", there > back), ("a", back > there)].iter().find(|(_, slow)| *slow).map(|(host, _)| *host);
        let named = slow.is_none_or(|host| title.ends_with(&format!("the way to {host} is the slow one")));
        assert!(title.contains("over l0") && named, "{about}: {title}");
    }
}

#[test]
fn what_a_firewall_takes_is_named_at_its_host_and_one_cause_is_one_finding() {
    let room = Room::through_switches(&[1000, 1000]);
    for (rule, id) in [
        ("iifname l1 udp dport 1-65535 drop", "firewall-drops"),
        ("iifname l1 udp dport 7979 drop", "firewall-drops"),
        ("iifname l1 tcp dport 7979 drop", "tcp-blocked"),
        ("iifname l1 tcp dport 7979 reject", "tcp-blocked"),
        ("iifname l1 meta l4proto tcp drop", "tcp-blocked"),
        ("iifname l1 ip protocol != icmp drop", "firewall-drops"),
    ] {
        let rules = format!(
            "add table inet t; add chain inet t in {{ type filter hook input priority 0; policy accept; }}; \
                             add rule inet t in {rule}"
        );
        room.on(1, &["nft", &rules]);
        let (title, places) = only(room.wrong(&["--quick"]), id, rule);
        assert_eq!(places, ["b l1"], "{rule}: {title}");
        room.on(1, &["nft", "delete table inet t"]);
    }
    let away = format!("{}/32", room.agents[1].address(0).ip());
    room.on(0, &["ip", "route", "add", &away, "dev", "l1"]);
    let (title, places) = only(room.wrong(&["--quick"]), "asymmetric-routing", "a route");
    assert_eq!(places, ["a l0"], "{title}");
    room.on(0, &["ip", "route", "del", &away, "dev", "l1"]);
    assert_eq!(room.wrong(&["--quick"]), []);
}

#[test]
fn names_and_addresses_that_are_there_twice_are_named_and_no_host_vanishes() {
    let mut room = Room::through_switches(&[1000, 1000]);
    // The third machine is no host of the room.
    let address = room.agents[1].address(1).ip();
    room.on(2, &["ip", "address", "add", &format!("{address}/24"), "dev", "l1"]);
    let (title, places) = only(room.wrong(&["--quick"]), "address-taken", "a third machine");
    assert!(places == ["b l1"] && title.contains(&address.to_string()), "{places:?}: {title}");
    room.on(2, &["ip", "address", "del", &format!("{address}/24"), "dev", "l1"]);
    // It is still known where the address was.
    room.on(0, &["ip", "neighbour", "flush", "dev", "l1"]);

    room.on(1, &["ip", "route", "add", "default", "via", &nobody(&room), "dev", "l0"]);
    let (title, places) = only(room.wrong(&["--quick"]), "gateway-dead", "a route to nobody");
    assert_eq!(places, ["b l0"], "{title}");
    room.on(1, &["ip", "route", "del", "default"]);

    let file = room.lab.hosts()[1].directory().join("agent.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let ram = room.lab.directory().join("on-a-disk");
    std::fs::create_dir_all(&ram).unwrap();
    std::fs::write(&file, text.replace("name = \"b\"", "name = \"a\"")).unwrap();
    room.agents[1].kill().unwrap();
    room.agents[1].restart().unwrap();
    let (_, document) = room.doctor(&["--quick"]);
    assert_eq!(document["room"]["hosts"].as_array().unwrap().len(), 2, "both are there");
    assert_eq!(document["room"]["matrix"]["probes"].as_array().unwrap().len(), 4);
    let (title, _) = only(room.wrong(&["--quick"]), "equal-names", "two hosts of one name");
    assert_eq!(title, "2 hosts call themselves a");

    let old = format!("ram_dir = \"{}\"", room.lab.hosts()[1].ram_directory().display());
    std::fs::write(&file, text.replace(&old, &format!("ram_dir = \"{}\"", ram.display()))).unwrap();
    room.agents[1].kill().unwrap();
    room.agents[1].restart().unwrap();
    let (title, _) = only(room.wrong(&["--quick"]), "ram-folder-unfit", "a folder on a disk");
    assert!(title.ends_with("not on tmpfs"), "{title}");
}

/// An address of the first link that no host has.
fn nobody(room: &Room) -> String {
    let ours = room.agents[0].address(0).ip().to_string();
    let (network, _) = ours.rsplit_once('.').unwrap();
    format!("{network}.250")
}

/// Programs that take every CPU until it is dropped.
struct Busy {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Busy {
    fn start() -> Busy {
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let cpus = std::thread::available_parallelism().map_or(2, usize::from);
        let work = || {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::black_box((0..100_000u64).sum::<u64>());
                }
            })
        };
        let threads = (0..cpus * 2).map(|_| work()).collect();
        Busy { stop, threads }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn a_healthy_room_is_silent_every_time_also_on_a_busy_machine() {
    let room = Room::through_switches(&[1000, 1000, 1000, 1000]);
    (0..10).for_each(|time| assert_eq!(room.wrong(&["--quick"]), [], "look {time}"));
    let _busy = Busy::start();
    (0..10).for_each(|time| assert_eq!(room.wrong(&["--quick"]), [], "busy look {time}"));
    assert_eq!(room.wrong(&[]), [], "a full look on a busy machine");
}

#[test]
fn a_direction_and_a_link_that_move_less_than_what_is_beside_them_are_named() {
    let build = |slow: LinkSpec| {
        let lab = Lab::builder().hosts(2).link(LinkSpec::shaped(1000)).link(slow).build().unwrap();
        Room::of(lab, "")
    };
    let one_way = build(LinkSpec { reverse_rate_mbps: Some(500), ..LinkSpec::shaped(1000) });
    let (title, places) = only(one_way.wrong(&[]), "throughput-one-way", "half of it back");
    assert_eq!(places, ["b l1", "a l1"], "{title}");
    drop(one_way);
    let (title, mut places) =
        only(build(LinkSpec::shaped(300)).wrong(&[]), "throughput-below-sibling", "a slow link");
    places.sort();
    assert_eq!(places, ["a l1", "b l1"], "{title}");
}

/// Names of objects whose members are named by what they hold.
const BY_NAME: [&str; 2] = ["offloads", "paths"];

/// Where each value of a document is, and what it is: `room.hosts[].memory.total_bytes number`.
fn shape(value: &Value, at: &str, found: &mut std::collections::BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => {
            let by_name = BY_NAME.iter().any(|name| at.rsplit('.').next() == Some(name));
            for (name, field) in fields {
                let name = if by_name { "*" } else { name };
                let below = if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
                shape(field, &below, found);
            }
        }
        Value::Array(members) => members.iter().for_each(|one| shape(one, &format!("{at}[]"), found)),
        Value::Null => {}
        Value::Bool(_) => drop(found.insert(at.to_owned(), "yes or no".into())),
        Value::Number(_) => drop(found.insert(at.to_owned(), "number".into())),
        Value::String(_) => drop(found.insert(at.to_owned(), "text".into())),
    }
}

/// What other machines have more of: docs/inventory.md says what it is.
const OF_HARDWARE: [&str; 7] =
    ["cpu.", "notes[]", "rdma[]", "system.", "time.", "memory.huge_pages[]", "hypervisor.cpu_models[]"];

fn of_hardware(at: &str) -> bool {
    let at = at.strip_prefix("room.hosts[].").unwrap_or(at);
    OF_HARDWARE.iter().any(|prefix| at.starts_with(prefix))
}

/// What docs/json.md says of a command.
fn documented(page: &str, command: &str) -> std::collections::BTreeMap<String, String> {
    let section = page.split_once(&format!("\n## {command}\n")).map_or("", |(_, rest)| rest);
    let block = section.split("```").nth(1).unwrap_or_default();
    let line =
        |line: &str| line.split_once("  ").map(|(path, kind)| (path.to_owned(), kind.trim().to_owned()));
    block.lines().skip(1).filter_map(line).collect()
}

/// `UPDATE_GOLDEN=1` adds what is missing in docs/json.md.
#[test]
fn every_document_is_as_its_schema_says() {
    let room = Room::with(2, &[1000, 1000], SETTABLE);
    room.on(1, &["ip", "link", "set", "dev", "l1", "mtu", "1500"]);
    room.on(1, &["ip", "route", "add", "default", "via", &nobody(&room), "dev", "l0"]);
    let other = room.agents[1].address(0).to_string();
    let file = room.lab.directory().join("qos.toml");
    std::fs::write(&file, INTENT).unwrap();
    let intent = file.to_str().unwrap();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md");
    let mut page = std::fs::read_to_string(path).unwrap();
    let mut wrong = Vec::new();
    for (command, arguments) in [
        ("linerate bench", vec!["bench", "bandwidth", "--to", &other, "--time", "500ms"]),
        ("linerate doctor", vec!["doctor", &other]),
        ("linerate doctor --fix", vec!["doctor", &other, "--quick", "--fix", "--dry-run"]),
        ("linerate doctor --inventory", vec!["doctor", "--inventory"]),
        ("linerate link set", vec!["link", "set", "l0", "--mtu", "4000"]),
        ("linerate link confirm", vec!["link", "confirm", "l0"]),
        ("linerate link show", vec!["link", "show"]),
        ("linerate migration list", vec!["migration", "list"]),
        ("linerate qos check", vec!["qos", "check", intent, &other]),
        ("linerate status", vec!["status"]),
        ("linerate vm list", vec!["vm", "list"]),
    ] {
        let (exit, text) = room.linerate(&[&arguments[..], &["--json"]].concat());
        let Ok(document) = serde_json::from_str::<Value>(&text) else { panic!("{command}: {exit}: {text}") };
        let mut found = std::collections::BTreeMap::new();
        shape(&document, "", &mut found);
        let mut known = documented(&page, command);
        let missing = found.iter().filter(|(at, kind)| !of_hardware(at) && known.get(*at) != Some(kind));
        let missing: Vec<_> = missing.collect();
        wrong.extend(missing.iter().map(|(at, kind)| format!("{command}: {at}  {kind}")));
        known.extend(found.clone());
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            let lines: String = known.iter().map(|(at, kind)| format!("{at}  {kind}\n")).collect();
            let head = format!("\n## {command}\n");
            let (before, after) = page.split_once(&head).unwrap_or_else(|| panic!("no section {command}"));
            let mut parts = after.splitn(3, "```");
            let (intro, _, rest) = (parts.next().unwrap(), parts.next(), parts.next().unwrap());
            page = format!("{before}{head}{intro}```text\n{lines}```{rest}");
        }
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return std::fs::write(path, page).unwrap();
    }
    assert!(wrong.is_empty(), "docs/json.md does not say (UPDATE_GOLDEN=1 adds it):\n{}", wrong.join("\n"));
}
