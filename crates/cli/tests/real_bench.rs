//! `linerate bench` between two real agents in two namespaces over two links, and in one process. As root, with what
//! lab/install.sh installs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Tests say what they expect.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use linerate_lab::{Agent, AgentOptions, Lab, LinkSpec};
use linerate_lock::Mutex;
use serde_json::Value;

/// Only a hang meets it.
const LONG: Duration = Duration::from_secs(120);
/// One stage at a time: they share two cores.
static ONE: Mutex<()> = Mutex::new(());

/// Two hosts, two agents, two links of different MTU. Agents go before the namespaces that they run in.
struct Stage {
    agents: Vec<Agent>,
    lab: Lab,
    _one: MutexGuard<'static, ()>,
}

impl Stage {
    fn new() -> Stage {
        let one = ONE.lock();
        let links = [LinkSpec::shaped(1000).mtu(9000), LinkSpec::shaped(400).mtu(1500)];
        let lab = Lab::builder().links(links).build().unwrap();
        let options = || AgentOptions {
            binary: Some(env!("CARGO_BIN_EXE_linerate").into()),
            ..AgentOptions::default()
        };
        let agents = lab.hosts().iter().map(|host| Agent::start(host, options()).unwrap()).collect();
        Stage { agents, lab, _one: one }
    }

    /// A client of the first host's agent that measures to the second host.
    fn client(&self, line: &str) -> Command {
        let mut command = self.agents[0].client();
        command.arg("bench").args(line.split_whitespace());
        command.args(["--to", &self.agents[1].address(0).to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn begin(&self, line: &str) -> Running {
        Running(self.client(line).spawn().unwrap())
    }

    fn run(&self, line: &str) -> (i32, Value) {
        let output = self.client(line).arg("--json").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let value = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)));
        (output.status.code().unwrap(), value)
    }

    fn report(&self, line: &str) -> Value {
        let (code, report) = self.run(line);
        assert_eq!(code, 0, "{report:#}");
        report
    }

    /// The same can be asked again as soon as both sides have seen the end of what was before.
    fn is_free_again(&self) {
        let end = Instant::now() + LONG;
        loop {
            let (code, value) = self.run("pingpong --sizes 4 --repetitions 3");
            if code == 0 {
                return;
            }
            assert!(value["error"]["code"] == "bench_busy" && Instant::now() < end, "{value:#}");
        }
    }
}

/// A running client; killed when dropped.
struct Running(Child);

impl Running {
    /// Waits for a line of progress.
    fn wait_for_progress(&mut self, words: &str) {
        let lines = BufReader::new(self.0.stderr.as_mut().unwrap()).lines();
        let mut seen = Vec::new();
        for line in lines.map_while(Result::ok) {
            if line.contains(words) {
                return;
            }
            seen.push(line);
        }
        panic!("{words} was never printed: {seen:?}");
    }

    /// Exit code, and what was said after the progress.
    fn end(mut self) -> (i32, String) {
        let mut text = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (self.0.wait().unwrap().code().unwrap_or(-1), text)
    }

    fn interrupt(&self) {
        let status = Command::new("kill").args(["-INT", &self.0.id().to_string()]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended, most likely.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_ping_pong_over_two_links_counts_every_byte_and_names_both_mtus() {
    let stage = Stage::new();
    let out = stage.lab.directory().join("charts");
    let line = format!(
        "pingpong --sizes 0,4,65536,1MiB --repetitions 12 --channels 2 --speed 1G --out {}",
        out.display()
    );
    let report = stage.report(&line);
    assert_eq!((&report["from"], &report["to"]), (&"a".into(), &"b".into()));
    let mtus = |link: usize| {
        let mtu = |side: &str| report["links"][link][side]["mtu"].as_u64().unwrap();
        (mtu("source"), mtu("destination"))
    };
    assert_eq!([mtus(0), mtus(1)], [(9000, 9000), (1500, 1500)]);
    let tables = report["pingpong"].as_array().unwrap();
    assert_eq!(tables.len(), 2);
    for table in tables {
        let rows = table["rows"].as_array().unwrap();
        for (row, (bytes, carried)) in rows.iter().zip([(0, 1), (4, 4), (65_536, 65_536), (1 << 20, 1 << 20)])
        {
            assert_eq!((row["bytes"].as_u64(), row["repetitions"].as_u64()), (Some(bytes), Some(12)));
            assert_eq!(row["moved_bytes"].as_u64(), Some(2 * 12 * carried), "{row}");
            assert!(row["latency_us"].as_f64().unwrap() > 0.0);
        }
        // What the shaper passes, with room for its burst: 2.5 MB at most against 25 MB there and back.
        assert!(rows[3]["mbps"].as_f64().unwrap() < 4000.0, "{table}");
    }
    for file in
        ["pingpong-curve.svg", "pingpong-latency.svg", "pingpong-bandwidth.svg", "pingpong-latency-curve.svg"]
    {
        let svg = std::fs::read_to_string(out.join(file)).unwrap();
        assert!(svg.contains("MTU 1500 at a, 1500 at b"), "{file}: {svg}");
    }
    let kept: Value = serde_json::from_slice(&std::fs::read(out.join("pingpong.json")).unwrap()).unwrap();
    assert_eq!(kept["pingpong"], report["pingpong"]);
}

#[test]
fn links_are_narrowed_and_streams_go_over_all_of_them_at_once() {
    let stage = Stage::new();
    let network = format!("{}/24", stage.lab.hosts()[0].address(1));
    let one = stage.report(&format!("pingpong --sizes 4 --repetitions 3 --links {network}"));
    assert_eq!(one["links"].as_array().unwrap().len(), 1);
    assert_eq!(one["links"][0]["source"]["interface"], "l1");
    let report = stage.report("bandwidth --time 2s --channels 2");
    let phases = report["bandwidth"].as_array().unwrap();
    let rate =
        |phase: usize, link: usize, way: &str| phases[phase]["links"][link]["rates"][way].as_f64().unwrap();
    // Wire rates with headers are 1.0 and 0.4 Gb/s. The shapers' 5 ms of burst are within the 5 %.
    for (phase, way) in [(0, "out_mbps"), (1, "in_mbps")] {
        assert!(rate(phase, 0, way) < 1050.0 && rate(phase, 1, way) < 420.0, "{report:#}");
        // Both at once, or the slower one would have the rate of both.
        assert!(rate(phase, 0, way) > rate(phase, 1, way), "{report:#}");
        let sum = phases[phase]["sum"][way].as_f64().unwrap();
        assert!((sum - rate(phase, 0, way) - rate(phase, 1, way)).abs() < 1e-6);
    }
    assert!(phases[0]["links"].as_array().unwrap().iter().all(|link| link["in_bytes"] == 0));
    let both = &phases[2]["links"];
    assert!(
        both.as_array()
            .unwrap()
            .iter()
            .all(|link| link["out_bytes"].as_u64() > Some(1 << 20)
                && link["in_bytes"].as_u64() > Some(1 << 20))
    );
    assert!(phases[2]["cpu_s_per_gbit"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_peer_that_dies_on_the_way_is_a_clear_error_and_the_next_try_succeeds() {
    let mut stage = Stage::new();
    let mut running = stage.begin("bandwidth --time 60s");
    running.wait_for_progress("from here");
    stage.agents[1].kill().unwrap();
    let (code, text) = running.end();
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("error:") && text.contains("closed the connection"), "{text}");
    let (code, value) = stage.run("pingpong --sizes 4");
    assert_eq!((code, &value["error"]["code"]), (1, &"no_link".into()), "{value:#}");
    stage.agents[1].restart().unwrap();
    stage.is_free_again();
}

#[test]
fn ctrl_c_stops_both_sides_and_only_one_measures_at_a_time() {
    let stage = Stage::new();
    let mut running = stage.begin("bandwidth --time 60s");
    running.wait_for_progress("from here");
    let (code, value) = stage.run("pingpong --sizes 4 --force");
    assert_eq!((code, &value["error"]["code"]), (4, &"bench_busy".into()), "{value:#}");
    running.interrupt();
    let (code, text) = running.end();
    assert_eq!(code, 5, "{text}");
    stage.is_free_again();
}

#[test]
fn one_process_measures_without_an_agent() {
    let run = |line: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_linerate"));
        command.arg("bench").args(line.split_whitespace()).env("LINERATE_SOCKET", "/nonexistent");
        command.output().unwrap()
    };
    let output = run("pingpong --local --sizes 0,4,4MiB --repetitions 5 --cpu 0 --json");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["links"][0]["source"]["interface"], "lo");
    assert_eq!(report["pingpong"][0]["rows"][2]["moved_bytes"], 5 * (4 << 20));
    let output = run("bandwidth --local --time 50ms --quiet");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("Both directions at once"), "{text}");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    // An address of documentation, which no host has.
    let output = run("pingpong --local 192.0.2.1 --json");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("cannot listen on 192.0.2.1"));
}
