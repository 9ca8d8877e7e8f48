//! Agents that prove who they are move a real guest over TLS, and refuse everybody else. As root.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Tests say what they expect.

#[path = "real/flood.rs"]
mod flood;
#[path = "real/stage.rs"]
#[allow(dead_code, reason = "other programs use more of it")]
mod stage;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use flood::{Flood, memory};

use linerate_lab::GuestParameters;
use linerate_lab::trust::{self, Cluster};
use serde_json::Value;
use stage::{Stage, ended, lost, round_began};

/// Only a hang meets it.
const LONG: Duration = Duration::from_secs(180);
/// What strangers may cost an agent, KiB.
const STRANGERS_KIB: u64 = 64 << 10;

fn parameters() -> GuestParameters {
    GuestParameters {
        mem_mb: 96,
        dirty_mbps: 4,
        dirty_ws_mb: Some(8),
        verify_mbps: 32,
        ..GuestParameters::default()
    }
}

/// The migration is refused, and the guest runs on. All that was said.
fn refused(stage: &mut Stage) -> String {
    let events = stage.migrate(&["--no-check"]).finish();
    let exit = events.iter().rev().find(|event| event["kind"] == "exit").cloned().unwrap_or_default();
    assert_ne!(exit["code"].as_i64(), Some(0), "{events:#?}");
    stage.guest_goes_on();
    format!("{} {}", Value::from(events), exit["told"])
}

#[test]
fn a_guest_goes_there_and_back_over_tls_and_a_lost_link_is_replaced() {
    let mut stage = Stage::secured(&[1000, 1000], parameters());
    for mode in ["direct", "stream"] {
        // Only direct mode compares RAM.
        let options = if mode == "direct" { &["--verify"][..] } else { &["--mode=stream"] };
        let mut migration = stage.migrate(options);
        if mode == "direct" {
            migration.wait(LONG, round_began);
            stage.lab.cut(1).unwrap();
            migration.wait(LONG, lost);
            stage.lab.restore(1).unwrap();
        }
        let report = ended(&migration.finish()).completed();
        assert!(report["links"].as_array().unwrap().iter().all(|link| link["rdma"] != true));
        stage.arrived();
        stage.guest_goes_on();
    }
    let log = std::fs::read_to_string(stage.source_agent().log()).unwrap();
    assert!(log.contains("protected by TLS"), "{log}");
}

#[test]
fn plain_text_and_tls_do_not_meet() {
    let mut stage = Stage::secured(&[1000], parameters());
    let hosts = stage.lab.hosts().to_vec();
    trust::leave(&hosts[1]).unwrap();
    stage.restart_agents_with(["", ""]);
    let said = refused(&mut stage);
    assert!(said.contains("the peer expects plain text, and this host speaks TLS"), "{said}");
    // The other way round.
    let mut cluster = Cluster::new(&stage.lab.directory().join("other-authority")).unwrap();
    cluster.join(&hosts[1]).unwrap();
    trust::leave(&hosts[0]).unwrap();
    stage.restart_agents_with(["", ""]);
    let said = refused(&mut stage);
    assert!(said.contains("the peer expects TLS, and this host speaks plain text"), "{said}");
}

#[test]
fn a_stranger_is_refused_and_learns_nothing() {
    let mut stage = Stage::secured(&[1000], parameters());
    let hosts = stage.lab.hosts().to_vec();
    // A cluster and a host of the same names, and another authority. It takes the destination for what it is.
    let mut stranger = Cluster::new(&stage.lab.directory().join("stranger")).unwrap();
    stranger.trust(&Cluster::open(&stage.lab.directory().join("authority")).unwrap());
    stranger.join(&hosts[0]).unwrap();
    stage.restart_agents_with(["", ""]);
    let said = refused(&mut stage);
    assert!(said.contains("the peer refused this host's certificate"), "{said}");
    let address = stage.destination_agent().address(0).to_string();
    for question in [
        &["doctor", &address, "--quick", "--json"][..],
        &["bench", "bandwidth", "--to", &address, "--time", "1s", "--json"],
    ] {
        let (exit, said) = stage.linerate_at_source(question);
        assert_ne!(exit, 0, "{question:?}: {said}");
        assert!(said.contains("the peer refused this host's certificate"), "{question:?}: {said}");
    }
    let log = std::fs::read_to_string(stage.destination_agent().log()).unwrap();
    assert!(log.contains("from an authority that is not trusted"), "{log}");
}

#[test]
fn a_host_does_what_its_role_allows_and_no_more() {
    let mut stage = Stage::secured(&[1000], parameters());
    stage.restart_agents_with(["", "[peers.hosts.a]\nrole = \"viewer\"\n"]);
    let said = refused(&mut stage);
    assert!(said.contains("host a may not send here"), "{said}");
    // It may look.
    let address = stage.destination_agent().address(0).to_string();
    let (exit, said) = stage.linerate_at_source(&["doctor", &address, "--quick", "--json"]);
    let document: Value = serde_json::from_str(&said).unwrap_or_default();
    assert!(document["survey"]["hosts"].as_array().is_some_and(|hosts| hosts.len() == 2), "{exit} {said}");
    stage.restart_agents_with(["", ""]);
    ended(&stage.migrate(&[]).finish()).completed();
    stage.arrived();
    stage.guest_goes_on();
    // The source decides which host gets its guests.
    stage.restart_agents_with(["[peers.hosts.a]\nrole = \"viewer\"\n", ""]);
    let said = refused(&mut stage);
    assert!(said.contains("host a may not receive here"), "{said}");
}

#[test]
fn a_guest_opens_what_its_host_is_granted_and_no_more() {
    let mut stage = Stage::secured(&[1000], parameters());
    stage.restart_agents_with(["", "[peers.grants]\n"]);
    let said = refused(&mut stage);
    assert!(said.contains("is not granted to guests of host a: add its folder to `folders` in"), "{said}");
    // Every folder of the machine, for the files of this guest.
    let folders = std::fs::read_dir("/").unwrap().flatten().map(|entry| entry.path());
    let folders: Vec<_> = folders.filter(|path| path.is_dir() && !path.ends_with("proc")).collect();
    let granted = format!("[peers.grants]\n[peers.hosts.a.grants]\nfolders = {folders:?}\n");
    stage.restart_agents_with(["", &granted]);
    ended(&stage.migrate(&["--no-check"]).finish()).completed();
    stage.arrived();
    stage.guest_goes_on();
}

/// Ends a flood also when the test fails.
struct Ends<'a>(&'a Flood);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// While 10,000 connections of one address and 1,000 of ten others say nothing, and more of them come: a host looks,
/// and moves a guest.
fn a_flood_keeps_nobody_out(stage: &mut Stage) {
    let host = stage.lab.hosts()[0].clone();
    let (pid, address) = (stage.destination_agent().pid(), stage.destination_agent().address(0));
    let flood = Flood::new(&host, address);
    let looks = |stage: &Stage| {
        let began = Instant::now();
        let (exit, said) = stage.linerate_at_source(&["doctor", &address.to_string(), "--quick", "--json"]);
        let took = began.elapsed();
        let document: Value = serde_json::from_str(&said).unwrap_or_default();
        assert_eq!(document["survey"]["hosts"].as_array().map_or(0, Vec::len), 2, "{exit} {said}");
        took
    };
    let alone = looks(stage);
    let before = ["VmRSS", "RssAnon"].map(|line| memory(pid, line));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let run = || {
                flood.run();
                Ok(())
            };
            host.inside(run).unwrap();
        });
        let _ends = Ends(&flood);
        let end = Instant::now() + LONG;
        while flood.made.load(Ordering::SeqCst) < 11_000 {
            assert!(Instant::now() < end, "{} connections were made", flood.made.load(Ordering::SeqCst));
            std::thread::sleep(Duration::from_millis(20));
        }
        flood.pause.store(true, Ordering::SeqCst);
        let beside = looks(stage);
        flood.pause.store(false, Ordering::SeqCst);
        let took = looks(stage);
        let now = memory(pid, "VmRSS");
        let threads = memory(pid, "Threads");
        println!(
            "memory {} KiB before, {now} KiB in the flood, {threads} threads; doctor took {took:?}",
            before[0]
        );
        println!("doctor took {alone:?} before, {beside:?} beside silent ones, {took:?} while more came");
        assert!(now < before[0] + STRANGERS_KIB, "{now} KiB, and {} KiB before", before[0]);
        let began = Instant::now();
        ended(&stage.migrate(&["--no-check"]).finish()).completed();
        println!("the migration took {:?}", began.elapsed());
    });
    stage.arrived();
    stage.guest_goes_on();
    // The guest's RAM is mapped, and does not count.
    let now = memory(pid, "RssAnon");
    let (made, open) = (flood.made.load(Ordering::SeqCst), flood.open.load(Ordering::SeqCst));
    println!(
        "{made} connections were made, at most {open} were open; RssAnon {} KiB before, {now} KiB after",
        before[1]
    );
    assert!(now < before[1] + STRANGERS_KIB, "{now} KiB, and {} KiB before", before[1]);
}

#[test]
fn silent_strangers_keep_no_host_out_over_tls() {
    a_flood_keeps_nobody_out(&mut Stage::secured(&[1000], parameters()));
}

#[test]
fn silent_strangers_keep_no_host_out_in_plain_text() {
    a_flood_keeps_nobody_out(&mut Stage::new(&[1000], parameters()));
}
