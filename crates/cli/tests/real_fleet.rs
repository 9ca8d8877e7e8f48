//! Hosts that share an etcd cluster: real etcd, real agents, real guests. As root, with what lab/install.sh installs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Tests say what they expect.

#[path = "drains/hall.rs"]
mod hall;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hall::{Hall, LEASE_S, LOST_S, calm, ended_state, linux};
use linerate_lab::sshd::Sshd;
use rustix::process::Signal;
use serde_json::{Value, json};

/// Of all hosts, as one of them sees it.
fn reserved(hall: &Hall, host: usize) -> u64 {
    let found = std::cell::Cell::new(None);
    hall.until("the store answers", || {
        let (exit, status) = hall.json(host, &["fleet", "status"]);
        found.set(status["hosts"]["reserved_bytes"].as_u64().filter(|_| exit == 0));
        found.get().is_some()
    });
    found.get().unwrap()
}

#[test]
fn hosts_know_each_other_and_drain_without_names() {
    // No lease ends here, however busy the machine is.
    let hall = Hall::fleet_with(3, &[400, 400], 3, 60);
    let names: Vec<String> = (0..3).map(|host| hall.name(host)).collect();
    hall.start(0, &[calm("a1"), calm("a2"), linux("a3", 4), calm("a4")]);
    hall.start(1, &[calm("b1")]);
    hall.until("each host lists its guests", || hall.json(2, &["fleet", "status"]).1["hosts"]["guests"] == 5);
    let (exit, hosts) = hall.json(2, &["fleet", "hosts"]);
    let listed: Vec<&str> = hosts.as_array().unwrap().iter().map(|one| hall::text(one, "host")).collect();
    assert_eq!((exit, listed), (0, names.iter().map(String::as_str).collect()));

    // A cordon is seen by all, and keeps guests away.
    assert_eq!(hall.json(2, &["cordon"]).0, 0);
    let (exit, placed) = hall.json(0, &["place", "a1", "--explain"]);
    assert_eq!((exit, &placed["best"]), (0, &json!(names[1])), "{placed:#}");
    assert_eq!(hall.json(0, &["fleet", "status"]).1["hosts"]["cordoned"], 1);
    let (exit, text) = hall.run(0, &["drain", "--to", &names[2]]);
    assert!(exit == 4 && text.contains("cordoned"), "{exit} {text}");
    let (exit, text) = hall.run(0, &["drain", "--to", "nowhere.invalid"]);
    assert_eq!(exit, 4, "{text}");
    assert_eq!(hall.json(2, &["uncordon"]).0, 0);

    // Two hosts at the same time: neither goes to the other, and the third has room for all. What came to the second
    // before its drain began would be moved on, and could not be brought back.
    assert_eq!(hall.json(1, &["cordon"]).0, 0);
    let first = hall.begin(0, &["drain"]);
    hall.wait(0, "it has begun", |now| hall::guests(now).count() == 4);
    let (exit, lines) = hall.lines(1, &["drain"]);
    let last = lines.last().unwrap();
    assert_eq!((exit, ended_state(last)), (0, true), "{last:#}");
    let (exit, lines) = first.finish();
    let last = lines.last().unwrap();
    assert_eq!((exit, hall::count(last, "moved")), (0, 4), "{last:#}");
    assert_eq!((hall.names(0).len(), hall.names(1).len(), hall.names(2).len()), (0, 0, 5));
    hall.all_go_on();
    hall.until("no memory is reserved any more", || reserved(&hall, 0) == 0);

    // Each host shows the drains of all, and steers only its own.
    let (_, drains) = hall.json(2, &["fleet", "drains"]);
    let of: Vec<&str> = drains.as_array().unwrap().iter().map(|one| hall::text(one, "host")).collect();
    assert!(of.contains(&names[0].as_str()) && of.contains(&names[1].as_str()), "{of:?}");
    let id = last["id"].as_str().unwrap();
    let (exit, shown) = hall.json(2, &["drain", "status", id]);
    assert_eq!((exit, &shown["host"]), (0, &json!(names[0])), "{shown:#}");
    let (exit, text) = hall.run(2, &["drain", "abort", id]);
    assert!(exit == 4 && text.contains("run the command on"), "{exit} {text}");
    let (exit, text) = hall.run(2, &["drain", "status"]);
    assert!(exit == 4 && text.contains("no drain"), "its own: {exit} {text}");

    // The same guests come back.
    let (exit, lines) = hall.lines(0, &["undrain"]);
    assert_eq!(exit, 0, "{lines:#?}\n{}", hall.logs());
    assert_eq!(hall.names(0), ["a1", "a2", "a3", "a4"]);
    hall.all_go_on();
}

#[test]
fn a_drain_outlives_its_agents_and_etcds_ends() {
    let mut hall = Hall::fleet(2, &[150, 150], 3);
    let guests: Vec<_> = (0..8).map(|n| calm(&format!("a{n}"))).collect();
    hall.start(0, &guests);
    // Ten seconds for a guest: some are left whenever something ends.
    hall.slow(40);
    let going = hall.begin(0, &["drain"]);
    hall.wait(0, "it copies", |now| hall::count(now, "copying") > 0);
    // One member is enough to lose nothing.
    let leader = hall.etcd.as_ref().unwrap().wait_for_leader().unwrap();
    hall.etcd.as_mut().unwrap().kill(leader).unwrap();
    // An agent that has just started may not know it yet.
    let moved = |hall: &Hall| hall::count(&hall.wait(0, "the drain is known", |_| true), "moved");
    let goes_on = |hall: &Hall, what: &str, before: usize| {
        assert!(before < guests.len(), "all have moved already");
        hall.wait(0, what, |now| hall::count(now, "moved") > before);
    };
    let before = moved(&hall);
    goes_on(&hall, "it goes on without a member", before);
    // The owner is killed. Its lease has not ended when it is back.
    hall.agents[0].kill().unwrap();
    hall.agents[0].restart().unwrap();
    let before = moved(&hall);
    goes_on(&hall, "it goes on with another process", before);
    // All members end, for longer than a lease.
    for member in 0..3 {
        hall.etcd.as_mut().unwrap().kill(member).unwrap();
    }
    hall.until("it is said that the store is away", || {
        let (exit, status) = hall.json(0, &["fleet", "status"]);
        exit == 1 && !status["error"].is_null() && status["hosts"].is_null()
    });
    hall.fast();
    hall.wait(0, "what runs ends", |now| hall::count(now, "copying") + hall::count(now, "preparing") == 0);
    std::thread::sleep(Duration::from_secs(LEASE_S + 2));
    let is_warned = |now: &Value| {
        now["warnings"].as_array().unwrap().iter().any(|one| one.to_string().contains("nothing new"))
    };
    let now = hall.wait(0, "it is said that nothing new is begun", is_warned);
    let all_moved = hall::count(&now, "moved");
    assert!(all_moved < guests.len(), "nothing is left to begin: {now:#}");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(moved(&hall), all_moved, "nothing new is begun");
    for member in 0..3 {
        hall.etcd.as_mut().unwrap().begin(member).unwrap();
    }
    let end = hall.wait(0, "it ends", ended_state);
    assert_eq!(hall::count(&end, "moved"), guests.len(), "{end:#}");
    // The first command ended with the agent that was killed, or watched on.
    drop(going);
    assert_eq!((hall.names(0).len(), hall.names(1).len()), (0, guests.len()));
    hall.all_go_on();
    hall.until("no memory is reserved any more", || reserved(&hall, 1) == 0);
}

#[test]
fn the_drain_of_a_lost_host_is_ended_by_another_one() {
    let mut hall = Hall::fleet(2, &[60], 1);
    hall.start(0, &[calm("a1"), calm("a2"), calm("a3")]);
    let id = {
        let (exit, text) = hall.run(0, &["drain", "--detach"]);
        assert_eq!(exit, 0, "{text}");
        hall.drain(0)["id"].as_str().unwrap().to_owned()
    };
    hall.wait(0, "one is prepared behind one that copies", |now| {
        hall::count(now, "copying") > 0 && hall::count(now, "prepared") > 0
    });
    assert!(reserved(&hall, 1) > 0);
    let killed = Instant::now();
    hall.agents[0].kill().unwrap();
    let of = |hall: &Hall| hall.json(1, &["drain", "status", &id]).1;
    hall.until("the drain waits for its agent", || {
        let (exit, status) = hall.json(1, &["fleet", "status"]);
        exit == 0 && status["drains"][0]["owner"].is_null() && status["hosts"]["answer"] == 1
    });
    hall.until("another host ends it", || ended_state(&of(&hall)));
    // A look that comes late sees the end late: only an early end fails.
    assert!(killed.elapsed() >= Duration::from_secs(LOST_S), "before {LOST_S} s");
    let ended = of(&hall);
    assert!(hall::count(&ended, "failed") >= 1, "{ended:#}");
    let left = hall::guests(&ended).filter(|one| one["state"] != "moved");
    for one in left {
        assert!(hall::text(one, "reason").contains("has not answered for"), "{one:#}");
    }
    hall.until("no memory is reserved any more", || reserved(&hall, 1) == 0);
    // It is back: nothing was lost, it is still cordoned, and it can be drained.
    hall.agents[0].restart().unwrap();
    hall.all_go_on();
    hall.until("it is known again", || hall.json(1, &["fleet", "status"]).1["hosts"]["answer"] == 2);
    assert!(ended_state(&hall.drain(0)));
    assert_ne!(hall.json(0, &["status"]).1["cordon"], Value::Null);
    let (exit, lines) = hall.lines(0, &["drain"]);
    assert_eq!(exit, 0, "{:#?}", lines.last());
    assert_eq!(hall.names(0).len(), 0);
    hall.all_go_on();
}

#[test]
fn a_host_that_never_comes_back_is_forgotten_by_its_fleet() {
    let mut hall = Hall::fleet(2, &[60], 1);
    let there = hall.name(1);
    let known = |hall: &Hall| hall.json(0, &["fleet", "status"]).1["hosts"]["known"].clone();
    let (exit, text) = hall.run(0, &["fleet", "forget", &there]);
    assert!(exit == 4 && text.contains("runs"), "{exit} {text}");
    assert_eq!(hall.json(1, &["cordon"]).0, 0);
    hall.agents[1].kill().unwrap();
    let answer = |hall: &Hall| hall.json(0, &["fleet", "status"]).1["hosts"]["answer"].clone();
    hall.until("its lease ends", || answer(&hall) == 1);
    let (exit, planned) = hall.json(0, &["fleet", "forget", &there, "--dry-run"]);
    assert_eq!((exit, &planned["dry_run"]), (0, &json!(true)), "{planned:#}");
    assert!(!planned["cordon"].is_null() && known(&hall) == 2, "{planned:#}");
    let (exit, gone) = hall.json(0, &["fleet", "forget", &there]);
    assert_eq!((exit, known(&hall)), (0, json!(1)), "{gone:#}");
    assert_eq!(hall.json(0, &["fleet", "status"]).1["warnings"], json!([]));
    let (exit, text) = hall.run(0, &["fleet", "forget", &there]);
    assert!(exit == 4 && text.contains("no host"), "{exit} {text}");
    // Its agent runs again all the same.
    hall.agents[1].restart().unwrap();
    hall.until("it is in the fleet again", || answer(&hall) == 2);
    assert_eq!(hall.json(1, &["status"]).1["cordon"], Value::Null);
}

#[test]
fn an_owner_that_cannot_reach_etcd_starts_nothing_and_goes_on_when_it_can() {
    let hall = Hall::fleet(2, &[150], 1);
    let guests: Vec<_> = (0..4).map(|n| calm(&format!("a{n}"))).collect();
    hall.start(0, &guests);
    let going = hall.begin(0, &["drain"]);
    hall.wait(0, "it copies", |now| hall::count(now, "copying") > 0);
    // The others see it go, and it sees nothing: its links for migrations carry.
    hall.lab.join_lan(0, false).unwrap();
    hall.wait(0, "what runs ends", |now| {
        hall::count(now, "copying") + hall::count(now, "preparing") == 0 && !now["warnings"][0].is_null()
    });
    hall.until("the other host misses it", || hall.json(1, &["fleet", "status"]).1["hosts"]["answer"] == 1);
    let before = hall::count(&hall.drain(0), "moved");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(hall::count(&hall.drain(0), "moved"), before, "nothing new is begun");
    hall.lab.join_lan(0, true).unwrap();
    let (exit, lines) = going.finish();
    assert_eq!(exit, 0, "{:#?}\n{}", lines.last(), hall.logs());
    assert_eq!((hall.names(0).len(), hall.names(1).len()), (0, 4));
    hall.all_go_on();
}

/// Three hosts that ssh reaches, with guests.
struct Rolling {
    sshd: Sshd,
    folder: tempfile::TempDir,
    hall: Hall,
    names: Vec<String>,
    /// The guests of each host.
    at: [Vec<&'static str>; 3],
}

impl Rolling {
    fn start() -> Rolling {
        // An agent that is killed is back when its lease has ended: long enough for a busy machine, and no longer.
        let hall = Hall::fleet_with(3, &[400], 1, 12);
        let names: Vec<String> = (0..3).map(|host| hall.name(host)).collect();
        let at = [vec!["a1", "a2"], vec!["b1"], vec!["c1"]];
        for (host, guests) in at.iter().enumerate() {
            hall.start(host, &guests.iter().map(|name| calm(name)).collect::<Vec<_>>());
        }
        let folder = tempfile::tempdir().unwrap();
        let sshd = Sshd::start(hall.lab.hosts(), folder.path()).unwrap();
        Rolling { sshd, folder, hall, names, at }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.hall.agents[0].client();
        command.env("LINERATE_SSH", self.sshd.client()).args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.command(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        (output.status.code().unwrap_or(-1), text.into_owned())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Any command asks the agent of another host.
    fn asks_the_agents_of_others(&self) {
        self.hall.until("sshd answers", || self.run(&["--connect", &self.names[1], "status"]).0 == 0);
        let (exit, text) = self.run(&["-c", &self.names[2], "vm", "list"]);
        assert!(exit == 0 && text.contains("c1") && !text.contains("a1"), "{text}");
        let (exit, text) = self.run(&["-c", &self.names[2], "drain", "status"]);
        assert!(exit != 0 && text.contains(&format!("where: the agent of {}", self.names[2])), "{text}");
        let (exit, text) = self.run(&["-c", "nowhere.invalid", "status"]);
        assert!(exit == 3 && text.contains("by ssh"), "{exit} {text}");
        let (exit, text) = self.run(&["-c", &self.names[2], "--socket", "/run/none.sock", "status"]);
        assert_eq!(exit, 3, "{text}");
        let (exit, text) = self.run(&["-c", &self.names[2], "token", "list"]);
        assert!(exit == 2 && text.contains("works on this host"), "{exit} {text}");
    }

    /// Nothing is begun if one of them is cordoned, or if what is asked for is wrong.
    fn begins_nothing_that_cannot_be_done(&self) {
        let all = self.names.join(",");
        assert_eq!(self.run(&["-c", &self.names[2], "cordon"]).0, 0);
        let (exit, text) = self.run(&["drain", "--each", &all, "--then", "true"]);
        assert!(
            exit == 4 && text.contains("nothing was begun") && text.contains("cordoned"),
            "{exit} {text}"
        );
        assert!(text.contains(&format!("where: the agent of {}", self.names[2])), "{text}");
        assert_eq!(self.run(&["-c", &self.names[2], "uncordon"]).0, 0);
        let (exit, text) = self.run(&["drain", "--each", &all, "--then", "true", "--keep", "a1,nobody"]);
        assert!(exit == 2 && text.contains("none of the hosts has: nobody"), "{exit} {text}");
        let (exit, text) = self.run(&["-c", &self.names[1], "drain", "--each", &all, "--then", "true"]);
        assert!(exit == 2 && text.contains("nothing was done"), "{exit} {text}");
        assert_eq!(self.hall.names(0), self.at[0]);
    }

    /// The agent of the second host is killed behind the command.
    fn empties_each_though_an_agent_is_killed(&mut self) {
        let all = self.names.join(",");
        let script = format!(
            "cd {}; {} -c $LINERATE_CONNECT vm list --json >$LINERATE_HOST.json || exit 1\n\
             [ $LINERATE_HOST != {} ] || {{ touch waits; until [ -e go ]; do sleep 0.1; done; }}",
            self.folder.path().display(),
            env!("CARGO_BIN_EXE_linerate"),
            self.names[1]
        );
        let mut rolling = self.command(&["drain", "--each", &all, "--then", &script, "--json"]);
        let rolling = rolling.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        self.hall.until("the command runs for the second host", || self.file("waits").exists());
        self.hall.agents[1].kill().unwrap();
        std::fs::write(self.file("go"), "").unwrap();
        std::thread::sleep(Duration::from_secs(2));
        self.hall.agents[1].restart().unwrap();
        let output = rolling.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}\n{}", self.hall.logs());
        let lines = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let steps: Vec<(&str, &str)> = lines
            .iter()
            .filter(|line| line["kind"] == "rolling")
            .map(|line| (hall::text(line, "host"), hall::text(line, "step")))
            .collect();
        let each = ["drain", "command", "undrain", "done"];
        let wanted: Vec<(&str, &str)> =
            self.names.iter().flat_map(|name| each.map(|step| (name.as_str(), step))).collect();
        assert_eq!(steps, wanted);
        for (host, name) in self.names.iter().enumerate() {
            let empty = std::fs::read_to_string(self.file(&format!("{name}.json"))).unwrap();
            assert_eq!(serde_json::from_str::<Value>(&empty).unwrap(), json!([]), "{name}");
            assert_eq!(self.hall.names(host), self.at[host], "the same guests are back");
            assert_eq!(self.hall.json(host, &["status"]).1["cordon"], Value::Null);
        }
        self.hall.all_go_on();
    }

    /// A command that fails ends it, and says what is where.
    fn ends_with_a_command_that_fails(&self) {
        let all = self.names.join(",");
        let (exit, text) = self.run(&["drain", "--each", &all, "--then", "exit 7"]);
        assert_eq!(exit, 1, "{text}");
        let said = ["exit status: 7", "is empty and cordoned", "done: none; not begun:"];
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.iter().all(|words| text.contains(words)), "{text}");
        assert!(self.hall.names(0).is_empty() && !self.hall.json(0, &["status"]).1["cordon"].is_null());
        assert_eq!(
            (self.hall.json(1, &["status"]).1["cordon"].clone(), self.hall.names(1).contains(&"b1".into())),
            (Value::Null, true)
        );
        let (exit, text) = self.run(&["-c", &self.names[0], "undrain"]);
        assert_eq!(
            (exit, self.hall.names(0)),
            (0, self.at[0].iter().map(|name| (*name).to_owned()).collect()),
            "{text}"
        );
    }

    /// Somebody cordons the next host meanwhile: it is not begun, and stays cordoned. A guest that is kept stays.
    fn leaves_a_host_that_somebody_cordons(&self) {
        let two = self.names[..2].join(",");
        let cordons = format!("{} -c {} cordon", env!("CARGO_BIN_EXE_linerate"), self.names[1]);
        let (exit, text) = self.run(&["drain", "--each", &two, "--then", &cordons, "--keep", "a1"]);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            exit == 1 && text.contains(&format!("done: {}; not begun: none", self.names[0])),
            "{exit} {text}"
        );
        assert!(text.contains(&format!("host {} is cordoned by", self.names[1])), "{text}");
        assert!(!self.hall.json(1, &["status"]).1["cordon"].is_null() && self.hall.names(1) == self.at[1]);
        assert_eq!(self.run(&["-c", &self.names[1], "uncordon"]).0, 0);
    }

    /// A terminal's Ctrl-C, or SIGTERM to `linerate` alone, while the command runs: it is waited for, and nothing
    /// follows, though it ends with 0.
    fn is_ended_by(&self, signal: Signal) {
        let name = if signal == Signal::INT { "INT" } else { "TERM" };
        let two = self.names[..2].join(",");
        let _ = std::fs::remove_file(self.file("waits"));
        let script = format!(
            "trap 'exit 0' {name}; touch {}; while :; do sleep 0.1; done",
            self.file("waits").display()
        );
        let mut rolling = self.command(&["drain", "--each", &two, "--then", &script]);
        rolling.stdout(Stdio::piped()).stderr(Stdio::piped());
        let rolling = std::os::unix::process::CommandExt::process_group(&mut rolling, 0).spawn().unwrap();
        self.hall.until("the command runs", || self.file("waits").exists());
        let pid = rustix::process::Pid::from_child(&rolling);
        match signal {
            Signal::INT => rustix::process::kill_process_group(pid, signal).unwrap(),
            _ => rustix::process::kill_process(pid, signal).unwrap(),
        }
        let output = rolling.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(output.status.code(), Some(8), "{text}");
        assert!(text.contains("was ended by Ctrl-C") && text.contains("is empty and cordoned"), "{text}");
        assert!(self.hall.names(0).is_empty() && self.hall.json(1, &["status"]).1["cordon"].is_null());
        assert_eq!(self.run(&["-c", &self.names[0], "undrain"]).0, 0);
        assert_eq!(self.hall.names(0), self.at[0]);
        self.hall.all_go_on();
    }
}

#[test]
fn hosts_are_emptied_one_after_another_with_a_command_between() {
    let mut rolling = Rolling::start();
    rolling.asks_the_agents_of_others();
    rolling.begins_nothing_that_cannot_be_done();
    rolling.empties_each_though_an_agent_is_killed();
    rolling.ends_with_a_command_that_fails();
    rolling.leaves_a_host_that_somebody_cordons();
    rolling.is_ended_by(Signal::INT);
    rolling.is_ended_by(Signal::TERM);
}
