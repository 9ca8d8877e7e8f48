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

use linerate_lab::trust::{self, Cluster};
use linerate_lab::{Agent, GuestParameters};
use serde_json::Value;
use stage::{Stage, ended, lost};

/// Only a hang reaches it.
const LONG: Duration = Duration::from_secs(180);
/// What strangers may cost an agent, KiB.
const STRANGERS_KIB: u64 = 64 << 10;

fn parameters() -> GuestParameters {
    GuestParameters { mem_mb: 96, dirty_mbps: 4, dirty_ws_mb: Some(1), ..GuestParameters::default() }
}

/// The migration is refused, and the guest runs on. All that was said.
fn refused(stage: &mut Stage) -> String {
    let events = stage.migrate(&["--no-check"]).finish();
    let exit = events.iter().rev().find(|event| event["kind"] == "exit").cloned().unwrap_or_default();
    assert_ne!(exit["code"].as_i64(), Some(0), "{events:#?}");
    stage.guest_goes_on();
    format!("{} {}", Value::from(events), exit["logs"])
}

/// Lines of a host's audit log that match.
fn audit(agent: &Agent, words: &[&str]) -> Vec<Value> {
    let output = agent.client().args(["audit", "--json"]).args(words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Action, result and reason of a line with this action.
fn has<'a>(lines: &'a [Value], action: &str) -> &'a Value {
    let found = lines.iter().find(|line| line["action"] == action);
    found.unwrap_or_else(|| panic!("{action} is not in {lines:#?}"))
}

#[test]
fn who_did_what_is_in_the_audit_log_of_both_hosts() {
    let mut stage = Stage::secured(&[1000, 1000], parameters());
    let source_name = stage.lab.hosts()[0].name().to_owned();
    stage.restart_agents_with(["", &format!("[peers.hosts.{source_name}]\nrole = \"viewer\"\n")]);
    refused(&mut stage);
    stage.restart_agents_with(["", ""]);
    let report = ended(&stage.migrate(&[]).finish()).completed();
    let id = report["id"].as_str().unwrap();
    stage.arrived();
    let [here, there] = [stage.agent_of(0), stage.agent_of(1)];

    let lines = audit(here, &[]);
    has(&lines, "agent_start");
    let begun = audit(here, &["--session", id, "--by", "root"]);
    let begun = has(&begun, "migration_begin");
    assert_eq!((&begun["guest"], &begun["result"]), (&"g".into(), &"done".into()));
    assert_eq!((&begun["caller"]["kind"], &begun["caller"]["uid"]), (&"local".into(), &0.into()));
    assert!(begun["to"].as_str().unwrap().contains("7979"), "{begun}");
    let ended = audit(here, &["--session", id, "--guest", "g"]);
    let ended = has(&ended, "migration_end");
    assert_eq!(ended["result"], "done");
    let failed = audit(here, &["--result", "failed"]);
    let reason = has(&failed, "migration_begin")["reason"].as_str().unwrap();
    assert!(reason.contains("may not send here"), "{reason}");

    // The session there ends when the source has acknowledged its last message.
    let arrived = stage.until("the end of the arrival is recorded", || {
        let lines = audit(there, &["--session", id, "--by", &source_name]);
        lines.iter().any(|line| line["action"] == "arrival_end").then_some(lines)
    });
    let begun = has(&arrived, "arrival_begin");
    assert!(begun["caller"]["cipher"].as_str().unwrap().starts_with("TLS13_"), "{begun}");
    assert_eq!(ended["cipher"], begun["caller"]["cipher"]);
    assert_eq!(has(&arrived, "arrival_end")["guest"], "g");
    let refused = audit(there, &["--result", "refused"]);
    let refused = has(&refused, "arrival_begin");
    assert!(refused["reason"].as_str().unwrap().contains("may not send"), "{refused}");
    assert_eq!(refused["caller"]["name"], source_name.as_str());

    let shown = here.client().args(["audit", "--limit", "5"]).output().unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(text.starts_with("TIME (UTC)") && text.contains("migration end"), "{text}");
}

#[test]
fn a_guest_goes_there_and_back_over_tls_and_a_lost_link_is_replaced() {
    let mut stage = Stage::secured(&[300, 300], parameters());
    for mode in ["direct", "stream"] {
        // Only direct mode compares RAM.
        let options = if mode == "direct" { &["--verify"][..] } else { &["--mode=stream"] };
        let mut migration = stage.migrate_slowly(options);
        if mode == "direct" {
            stage.lab.cut(1).unwrap();
            migration.wait(LONG, |event| lost(event) && event["link"] == 1);
            stage.lab.restore(1).unwrap();
            // The other link is still slow: it is used again before the copy is over.
            migration.wait(LONG, |event| event["kind"] == "link_restored" && event["link"] == 1);
        }
        stage.speed_up();
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
    let message = refused(&mut stage);
    assert!(message.contains("the peer expects plain text, and this host speaks TLS"), "{message}");
    // The other way round.
    let mut cluster = Cluster::new(&stage.lab.directory().join("other-authority")).unwrap();
    cluster.join(&hosts[1]).unwrap();
    trust::leave(&hosts[0]).unwrap();
    stage.restart_agents_with(["", ""]);
    let message = refused(&mut stage);
    assert!(message.contains("the peer expects TLS, and this host speaks plain text"), "{message}");
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
    let message = refused(&mut stage);
    assert!(message.contains("the peer refused this host's certificate"), "{message}");
    let address = stage.destination_agent().address(0).to_string();
    for question in [
        &["doctor", &address, "--quick", "--json"][..],
        &["bench", "bandwidth", "--to", &address, "--time", "1s", "--json"],
    ] {
        let (exit, message) = stage.linerate_at_source(question);
        assert_ne!(exit, 0, "{question:?}: {message}");
        assert!(message.contains("the peer refused this host's certificate"), "{question:?}: {message}");
    }
    let log = std::fs::read_to_string(stage.destination_agent().log()).unwrap();
    assert!(log.contains("from an authority that is not trusted"), "{log}");
    let lines = audit(stage.agent_of(1), &["--result", "refused", "--limit", "1000"]);
    let line = has(&lines, "connection");
    assert!(line["reason"].as_str().unwrap().contains("not trusted"), "{line}");
    assert!(line["caller"]["address"].as_str().is_some() && line["caller"]["name"].is_null(), "{line}");
}

#[test]
fn a_host_does_what_its_role_allows_and_no_more() {
    let mut stage = Stage::secured(&[1000], parameters());
    stage.restart_agents_with(["", "[peers.hosts.a]\nrole = \"viewer\"\n"]);
    let message = refused(&mut stage);
    assert!(message.contains("host a may not send here"), "{message}");
    // It may look.
    let address = stage.destination_agent().address(0).to_string();
    let (exit, message) = stage.linerate_at_source(&["doctor", &address, "--quick", "--json"]);
    let document: Value = serde_json::from_str(&message).unwrap_or_default();
    assert!(document["survey"]["hosts"].as_array().is_some_and(|hosts| hosts.len() == 2), "{exit} {message}");
    stage.restart_agents_with(["", ""]);
    ended(&stage.migrate(&[]).finish()).completed();
    stage.arrived();
    stage.guest_goes_on();
    // The source decides which host gets its guests.
    stage.restart_agents_with(["[peers.hosts.a]\nrole = \"viewer\"\n", ""]);
    let message = refused(&mut stage);
    assert!(message.contains("host a may not receive here"), "{message}");
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

/// Connections that are made before the first look, and before each further one: many more than may wait.
const STRANGERS: usize = 11_000;
const MORE: usize = 1_100;
/// Only a hang reaches it, however slow the machine is.
const FLOOD: Duration = Duration::from_secs(600);

/// Lets more strangers come, and has those that are there stay.
fn fill(flood: &Flood) {
    let made = || flood.made.load(Ordering::SeqCst);
    let wanted = (made() + MORE).max(STRANGERS);
    flood.pause.store(false, Ordering::SeqCst);
    let end = Instant::now() + FLOOD;
    while made() < wanted {
        assert!(Instant::now() < end, "{} of {wanted} connections were made", made());
        std::thread::sleep(Duration::from_millis(20));
    }
    flood.pause.store(true, Ordering::SeqCst);
}

/// Both hosts are seen from the source. How long that took.
fn looks(stage: &Stage, address: &str) -> Result<Duration, String> {
    let began = Instant::now();
    let (exit, said) = stage.linerate_at_source(&["doctor", address, "--quick", "--json"]);
    let document: Value = serde_json::from_str(&said).unwrap_or_default();
    let hosts = document["survey"]["hosts"].as_array().map_or(0, Vec::len);
    if hosts == 2 { Ok(began.elapsed()) } else { Err(format!("{exit} {said}")) }
}

fn moves(stage: &Stage) -> Result<(), String> {
    let events = stage.migrate(&["--no-check"]).finish();
    if ended(&events).exit == Some(0) { Ok(()) } else { Err(Value::from(events).to_string()) }
}

/// Each try has limits of some seconds, which a busy machine may exceed. Who is kept out fails in every one.
const TRIES: usize = 3;

fn not_kept_out<T>(what: &str, mut attempt: impl FnMut() -> Result<T, String>) -> T {
    for number in 1..=TRIES {
        match attempt() {
            Ok(done) => return done,
            Err(error) => println!("{what}, try {number} of {TRIES}: {error}"),
        }
    }
    panic!("{what}: {TRIES} tries failed");
}

/// While 10,000 connections of one address and 1,000 of ten others say nothing, and more of them come: a host looks,
/// and moves a guest.
fn a_flood_keeps_nobody_out(stage: &mut Stage) {
    let host = stage.lab.hosts()[0].clone();
    let (pid, address) = (stage.destination_agent().pid(), stage.destination_agent().address(0));
    let flood = Flood::new(&host, address);
    let address = address.to_string();
    let alone = not_kept_out("the doctor alone", || looks(stage, &address));
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
        // Silent ones are closed after a while, so there are new ones for each try.
        let beside = not_kept_out("the doctor beside silent strangers", || {
            fill(&flood);
            looks(stage, &address)
        });
        flood.pause.store(false, Ordering::SeqCst);
        let took = not_kept_out("the doctor while more came", || looks(stage, &address));
        let now = memory(pid, "VmRSS");
        let threads = memory(pid, "Threads");
        println!(
            "memory {} KiB before, {now} KiB in the flood, {threads} threads; doctor took {took:?}",
            before[0]
        );
        println!("doctor took {alone:?} before, {beside:?} beside silent ones, {took:?} while more came");
        assert!(now < before[0] + STRANGERS_KIB, "{now} KiB, and {} KiB before", before[0]);
        let began = Instant::now();
        not_kept_out("a migration while more came", || moves(stage));
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
