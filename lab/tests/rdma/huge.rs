//! What runs inside of two machines: a guest whose RAM is in explicit huge pages goes from one to the other by RDMA.
//! Registered pages stay in memory, so this counts the machines' huge pages before and behind the move.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use linerate_lab::{Agent, AgentOptions, Host, Side};

use super::inside::{guest, migrate_with, runs_unharmed, start};
use super::pair::{LINKS, RAM_MB, ReportFailure, arrived, mark, signal, wait_for};

/// The guest twice, and some.
const HUGE_MB: u64 = 96;
const PAGES_FILE: &str = "pages-at-the-source";

fn host(side: Side) -> (Host, Agent) {
    let host = Host::of_machine(side, LINKS, RAM_MB).unwrap();
    host.give_huge_pages(HUGE_MB).unwrap();
    let agent = Agent::start(&host, AgentOptions::default()).unwrap();
    (host, agent)
}

/// Huge pages of this machine that something holds.
fn pages_in_use() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let value = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').trim().parse().unwrap()
    };
    value("HugePages_Total") - value("HugePages_Free")
}

#[test]
#[ignore = "runs inside of a machine, started by the test next door"]
fn guest_in_huge_pages_leaves() {
    let _failure = ReportFailure::new();
    let (_host, agent) = host(Side::A);
    assert_eq!(pages_in_use(), 0);
    start(&agent, &guest().huge_pages());
    wait_for("b-is-ready");
    let before = pages_in_use();
    assert!(before > 0);
    fs::write(mark(PAGES_FILE), before.to_string()).unwrap();
    // It writes at least two huge pages in every round, which takes longer here than a usual blackout.
    let moved = migrate_with(&agent, "10.9.0.2:7979", "rdma", &["--max-blackout=10s"], || {});
    let report = moved.arrived(&agent);
    for link in report["links"].as_array().unwrap() {
        assert_eq!(link["rdma"], true, "{report:#}");
    }
    signal("a-has-moved-it");
    let until = Instant::now() + Duration::from_secs(60);
    while pages_in_use() > 0 {
        assert!(Instant::now() < until, "{} of {before} huge pages are still in use here", pages_in_use());
        thread::sleep(Duration::from_millis(100));
    }
    wait_for("b-is-done");
}

#[test]
#[ignore = "runs inside of a machine, started by the test next door"]
fn guest_in_huge_pages_arrives() {
    let _failure = ReportFailure::new();
    let (host, _agent) = host(Side::B);
    assert_eq!(pages_in_use(), 0);
    signal("b-is-ready");
    wait_for("a-has-moved-it");
    runs_unharmed(&arrived(&host));
    let before: u64 = fs::read_to_string(mark(PAGES_FILE)).unwrap().parse().unwrap();
    let here = pages_in_use();
    println!("huge pages: {before} at the source, {here} here");
    // It has touched some more meanwhile; what is kept twice would be as many again.
    assert!((1..=before + before / 4 + 1).contains(&here), "{before} huge pages at the source, {here} here");
    signal("b-is-done");
}
