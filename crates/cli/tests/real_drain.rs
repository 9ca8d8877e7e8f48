//! Hosts that take no guests, and guests that are asked whether they could move. As root, with what lab/install.sh
//! installs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Tests say what they expect.

#[path = "real/stage.rs"]
#[allow(dead_code, reason = "shared with real_migration.rs")]
mod stage;

use std::time::Duration;

use linerate_lab::{GuestParameters, GuestSpec, QemuVersion};
use serde_json::{Value, json};
use stage::{Stage, ended, round_began};

/// Only a hang reaches it.
const LONG: Duration = Duration::from_secs(120);
/// Exit code where a host cannot take the guest.
const REFUSED: i32 = 4;
const STREAM: [&str; 4] = ["--mode", "stream", "--max-blackout", "5s"];

fn busy() -> GuestSpec {
    let parameters =
        GuestParameters { mem_mb: 64, dirty_mbps: 4, dirty_ws_mb: Some(1), ..GuestParameters::default() };
    GuestSpec::bare("g", parameters).qemu(QemuVersion::Ten)
}

fn asks(stage: &Stage, host: usize, arguments: &[&str]) -> Value {
    let (exit, text) = stage.linerate_at(host, &[arguments, &["--json"]].concat());
    assert_eq!(exit, 0, "{text}");
    serde_json::from_str(&text).unwrap()
}

fn is_refused(stage: &Stage, arguments: &[&str]) {
    let to = stage.destination_address();
    let (exit, text) =
        stage.linerate_at(0, &[&["migrate", "g", "--to", &to, "--no-check", "--json"], arguments].concat());
    let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let error = &lines.next_back().unwrap_or_else(|| panic!("{text}"))["error"];
    assert_eq!((exit, &error["code"]), (REFUSED, &Value::from("cordoned")), "{text}");
    assert_eq!(error["side"], "destination", "{text}");
    assert!(error["message"].as_str().unwrap().contains("cordoned by root@"), "{text}");
    assert!(error["hint"].as_str().unwrap().contains("linerate uncordon"), "{text}");
    stage.guest_goes_on();
}

#[test]
fn a_cordoned_host_takes_no_guest_until_it_is_released() {
    let (mut stage, _gates) = Stage::gated_without_disk(&[1000, 1000], busy());
    let names: Vec<String> = [0, 1]
        .into_iter()
        .map(|host| asks(&stage, host, &["status"])["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(asks(&stage, 1, &["status"])["cordon"], Value::Null);
    let (exit, text) = stage.linerate_at(1, &["cordon", &names[0]]);
    assert_eq!(exit, REFUSED, "{text}");
    assert!(text.contains(&format!("run the command on {}", names[0])), "{text}");

    let answer = asks(&stage, 1, &["cordon", &names[1]]);
    assert_eq!((&answer["host"], &answer["changed"]), (&Value::from(&*names[1]), &Value::from(true)));
    assert_eq!(asks(&stage, 1, &["cordon"])["changed"], false);
    let (_, text) = stage.linerate_at(1, &["status"]);
    assert!(text.contains("none: cordoned by root@"), "{text}");
    is_refused(&stage, &[]);
    is_refused(&stage, &STREAM);
    let host = stage.agent(1);
    host.kill().unwrap();
    host.restart().unwrap();
    is_refused(&stage, &[]);
    let audited = asks(&stage, 1, &["audit"]);
    let actions: Vec<&str> =
        audited.as_array().unwrap().iter().filter_map(|line| line["action"].as_str()).collect();
    assert_eq!(actions.iter().filter(|action| **action == "cordon").count(), 3, "{actions:?}");

    assert_eq!(asks(&stage, 1, &["uncordon"])["changed"], true);
    stage.retry();
    // A host that takes no guests may give them away.
    asks(&stage, 1, &["cordon"]);
    stage.retry();
}

#[test]
fn a_guest_that_is_arriving_goes_on_where_its_host_is_cordoned() {
    let (mut stage, _gates) = Stage::gated_without_disk(&[300, 300], busy());
    let mut migration = stage.migrate(&["--bandwidth", "120M"]);
    migration.wait(LONG, round_began);
    asks(&stage, 1, &["cordon"]);
    // Connections of its session are made anew.
    stage.lab.cut(0).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    stage.lab.restore(0).unwrap();
    ended(&migration.finish()).completed();
    stage.arrived();
    stage.guest_goes_on();
}

/// Nothing of the guest is at a host: no QEMU, no files, nothing in progress.
fn has_nothing(stage: &Stage, host: usize) {
    stage.until("its QEMU ends", || stage.hypervisors(host).is_empty().then_some(()));
    let folder = stage.lab.hosts()[host].run_directory().join("guests/g");
    stage.until("its folder goes", || (!folder.exists()).then_some(()));
    let going: Vec<Value> = asks(stage, host, &["migration", "list"]).as_array().unwrap().clone();
    assert!(going.iter().all(|one| one["state"] != "running" && one["state"] != "in_doubt"), "{going:#?}");
}

#[test]
fn a_dry_run_finds_out_whether_a_guest_can_move_and_touches_nothing() {
    let (mut stage, _gates) = Stage::gated_without_disk(&[1000, 1000], busy());
    for mode in ["direct", "stream"] {
        let events = stage.migrate(&["--dry-run", "--mode", mode]).finish();
        let end = ended(&events);
        assert_eq!(end.exit, Some(0), "{mode}: {events:#?}");
        assert!(events.iter().all(|event| event["kind"] != "link_lost"), "{mode}: {events:#?}");
        let last = events.iter().rev().find(|event| event["kind"] == "finished").unwrap();
        assert_eq!((&last["outcome"], &last["error"]), (&Value::from("checked"), &Value::Null), "{last:#}");
        let report = &last["report"];
        assert_eq!((&report["mode"], &report["blackout"]), (&Value::from(mode), &Value::Null), "{report:#}");
        assert_eq!(report["links"].as_array().unwrap().len(), 2, "{report:#}");
        assert_eq!(
            (&report["ram"]["sent_bytes"], &report["pauses_us"]),
            (&json!(0), &json!(0)),
            "{report:#}"
        );
        let steps: Vec<&str> =
            report["steps"].as_array().unwrap().iter().filter_map(|step| step["step"].as_str()).collect();
        assert!(
            steps.contains(&"prepare") && !steps.contains(&"track") && !steps.contains(&"copy"),
            "{steps:?}"
        );
        stage.is_unprotected();
        has_nothing(&stage, 1);
        stage.guest_goes_on();
    }
    let (exit, text) = stage
        .linerate_at(0, &["migrate", "g", "--to", &stage.destination_address(), "--dry-run", "--no-check"]);
    assert!(exit == 0 && text.contains("nothing was moved"), "{text}");
    assert!(text.contains("Links that carry") && !text.contains("LOST"), "{text}");
    let listed = asks(&stage, 0, &["migration", "list"]);
    assert!(listed.as_array().unwrap().iter().all(|one| one["state"] == "checked"), "{listed:#}");

    // One that its operator has paused can move as well, and stays as it is.
    stage.command(0, "stop");
    let (exit, text) =
        stage.linerate_at(0, &["migrate", "g", "--to", &stage.destination_address(), "--dry-run"]);
    assert!(exit == 0 && text.contains("nothing was moved"), "{exit} {text}");
    stage.stays(0, "paused");
    stage.command(0, "cont");

    // What the migration would say. The disks of a dry run are never written.
    let copies = stage.linerate_at(0, &["migrate", "g", "--to", "b", "--dry-run", "--copy-storage", "all"]);
    assert_eq!(copies.0, 2, "{}", copies.1);
    asks(&stage, 1, &["cordon"]);
    is_refused(&stage, &["--dry-run"]);
    asks(&stage, 1, &["uncordon"]);
    stage.retry();
    stage.retry();
}

/// At every point of a dry run at which an agent writes its journal.
#[test]
fn a_dry_run_whose_agent_is_killed_leaves_the_guest_alone() {
    for place in ["source.started", "source.rolled_back", "destination.started"] {
        let (mut stage, gates) = Stage::gated_without_disk(&[1000, 1000], busy());
        let host = usize::from(place.starts_with("destination"));
        let held = gates[host].hold_after(place).unwrap();
        let migration = stage.migrate(&["--dry-run"]);
        held.wait(LONG).unwrap();
        stage.agent(host).kill().unwrap();
        drop(held);
        assert_eq!(stage.state(0), "running", "{place}");
        stage.agent(host).restart().unwrap();
        drop(migration);
        stage.settles_at(0);
        has_nothing(&stage, 1);
        stage.retry();
    }
}
