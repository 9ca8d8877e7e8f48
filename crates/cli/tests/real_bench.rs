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

    /// Bytes that the first host's kernel has sent and got on a link, with all headers.
    fn counted(&self, link: usize) -> [u64; 2] {
        ["tx_bytes", "rx_bytes"].map(|name| {
            let mut command = self.lab.hosts()[0].command("cat");
            let output = command.arg(format!("/sys/class/net/l{link}/statistics/{name}")).output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
        })
    }

    /// As [`Stage::report`], with what the kernel counted of each link meanwhile.
    fn counted_report(&self, line: &str) -> (Value, [[u64; 2]; 2]) {
        let before = [0, 1].map(|link| self.counted(link));
        let report = self.report(line);
        let after = [0, 1].map(|link| self.counted(link));
        let of = |link: usize| [0, 1].map(|way: usize| after[link][way] - before[link][way]);
        (report, [0, 1].map(of))
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
    let (report, counted) = stage.counted_report(&line);
    assert_eq!((&report["from"], &report["to"]), (&"a".into(), &"b".into()));
    let mtus = |link: usize| {
        let mtu = |side: &str| report["links"][link][side]["mtu"].as_u64().unwrap();
        (mtu("source"), mtu("destination"))
    };
    assert_eq!([mtus(0), mtus(1)], [(9000, 9000), (1500, 1500)]);
    let tables = report["pingpong"].as_array().unwrap();
    assert_eq!(tables.len(), 2);
    for ((table, counted), rate) in tables.iter().zip(counted).zip([1000.0, 400.0]) {
        let rows = table["rows"].as_array().unwrap();
        for (row, (bytes, carried)) in rows.iter().zip([(0, 1), (4, 4), (65_536, 65_536), (1 << 20, 1 << 20)])
        {
            assert_eq!((row["bytes"].as_u64(), row["repetitions"].as_u64()), (Some(bytes), Some(12)));
            assert_eq!(row["moved_bytes"].as_u64(), Some(2 * 12 * carried), "{row}");
            let (latency_us, mbps) = (row["latency_us"].as_f64().unwrap(), row["mbps"].as_f64().unwrap());
            assert!(latency_us > 0.0, "{row}");
            // One message on each of both channels in that time.
            let wanted = 2.0 * 8.0 * bytes as f64 / latency_us;
            assert!((mbps - wanted).abs() <= 1e-6 * wanted, "{row}");
        }
        // The shaper lets a burst of 5 ms pass at once, far less than the 12 MiB that each channel moves each way.
        // Channels that take turns measure twice the rate, and none measures five times of it.
        assert!(rows[3]["mbps"].as_f64().unwrap() <= 5.0 * rate, "{table}");
        // It did go over this link, there and back.
        let moved: u64 = rows.iter().map(|row| row["moved_bytes"].as_u64().unwrap()).sum();
        assert!(counted.iter().all(|bytes| *bytes >= moved), "{counted:?} bytes: {table}");
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
    let began = Instant::now();
    let (report, counted) = stage.counted_report("bandwidth --time 2s --channels 2");
    let took_s = began.elapsed().as_secs_f64();
    let phases = report["bandwidth"].as_array().unwrap();
    let rate =
        |phase: usize, link: usize, way: &str| phases[phase]["links"][link]["rates"][way].as_f64().unwrap();
    // Each link has carried what is said of it, and no more than its shaper lets through with a burst of 5 ms.
    for (link, mbps) in [(0, 1000.0), (1, 400.0)] {
        for (way, name) in ["out_bytes", "in_bytes"].into_iter().enumerate() {
            let said: u64 = phases.iter().map(|phase| phase["links"][link][name].as_u64().unwrap()).sum();
            assert!(counted[link][way] >= said, "{counted:?}: {report:#}");
            assert!(said as f64 <= mbps * 1e6 / 8.0 * (took_s + 0.005), "in {took_s} s: {report:#}");
        }
    }
    for (phase, way, name) in [(0, "out_mbps", "out_bytes"), (1, "in_mbps", "in_bytes")] {
        // No stream has lasted longer than the command. The clock starts with the first block of each.
        for link in [0, 1] {
            let bytes = phases[phase]["links"][link][name].as_u64().unwrap();
            let timed = bytes.saturating_sub(2 * (256 << 10)) as f64;
            assert!(rate(phase, link, way) * took_s * 1.000_001 >= timed * 8.0 / 1e6, "{report:#}");
        }
        let sum = phases[phase]["sum"][way].as_f64().unwrap();
        assert!((sum - rate(phase, 0, way) - rate(phase, 1, way)).abs() < 1e-6);
    }
    // A receiver that stalls at its first block measures more than the shaper lets through, but not each time.
    let is_possible = |report: &Value| {
        [(0_usize, "out_mbps"), (1, "in_mbps")].into_iter().all(|(phase, way)| {
            let links = &report["bandwidth"][phase]["links"];
            let rate = |link: usize| links[link]["rates"][way].as_f64().unwrap();
            rate(0) <= 5.0 * 1000.0 && rate(1) <= 5.0 * 400.0
        })
    };
    let again = || is_possible(&stage.report("bandwidth --time 2s --channels 2"));
    assert!(is_possible(&report) || (0..4).any(|_| again()), "{report:#}");
    assert!(phases[0]["links"].as_array().unwrap().iter().all(|link| link["in_bytes"] == 0));
    let both = &phases[2]["links"];
    assert!(both.as_array().unwrap().iter().all(
        |link| link["out_bytes"].as_u64() >= Some(1 << 20) && link["in_bytes"].as_u64() >= Some(1 << 20)
    ));
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
    // Which of the two is seen depends on what of the dead process arrives first.
    let said = ["closed the connection", "the connection failed"];
    assert!(text.contains("error:") && said.iter().any(|words| text.contains(words)), "{text}");
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
