//! What another client does with a guest at another monitor, around commit.

use std::path::Path;

use linerate_lab::{DiskMode, QemuVersion, Qmp};
use serde_json::{Value, json};

use crate::recovering::{FAST, LONG, guest};
use crate::stage::{Stage, ended, round_began};

fn cont(monitor: &std::path::Path) {
    Qmp::connect(monitor).unwrap().execute("cont", json!({})).unwrap();
}

#[test]
fn a_guest_resumed_at_the_source_before_commit_runs_there_only() {
    let (mut stage, gates, monitor) = Stage::gated_with_other_hands(&FAST, guest(QemuVersion::Ten), None);
    let loaded = gates[1].hold_before("destination.loaded").unwrap();
    let migration = stage.migrate(&[]);
    loaded.wait(LONG).unwrap();
    cont(&monitor);
    drop(loaded);
    let failure = ended(&migration.finish()).failed(4);
    assert_eq!(
        (&failure["code"], &failure["guest_state"]),
        (&"guest_differs".into(), &"runs_at_source".into()),
        "{failure}"
    );
    stage.settles_at(0);
    // Commit is on disk and has not left the host: a later agent does not say it while the guest runs here.
    let sent = gates[0].hold_after("source.commit_sent").unwrap();
    let migration = stage.migrate(&[]);
    sent.wait(LONG).unwrap();
    stage.cut_all(true);
    stage.agent(0).kill().unwrap();
    drop(sent);
    drop(migration);
    stage.agent(0).restart().unwrap();
    stage.only(0, "in_doubt");
    cont(&monitor);
    stage.cut_all(false);
    let held = stage.until("it is reported", || {
        let shown = stage.only(0, "in_doubt");
        shown["note"].as_str()?.contains("as another program resumed it").then_some(shown)
    });
    stage.stays(0, "running");
    stage.only(1, "in_doubt");
    let (exit, text) = stage.linerate_at(0, &["resolve", held["id"].as_str().unwrap(), "--resume-here"]);
    assert_eq!(exit, 0, "{text}");
    stage.settles_at(0);
}

/// The node of the guest's disk, and its drive.
fn disk(hands: &mut Qmp) -> (String, String) {
    let drives = hands.execute("query-block", json!({})).unwrap();
    let drive =
        drives.as_array().unwrap().iter().find(|drive| drive["inserted"]["file"].is_string()).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&drive["inserted"]["node-name"]), text(&drive["device"]))
}

/// A backup that goes on until it is ended.
fn backup(hands: &mut Qmp, folder: &Path) {
    let (node, _) = disk(hands);
    let target = folder.join("backup.img");
    let full = json!({ "device": node, "target": target, "sync": "full", "speed": 1, "job-id": "nightly" });
    hands.execute("drive-backup", full).unwrap();
}

/// A job on the snapshot that is as slow.
fn slowly(hands: &mut Qmp, command: &str) {
    let (node, _) = disk(hands);
    hands.execute(command, json!({ "device": node, "speed": 1, "job-id": "nightly" })).unwrap();
}

fn end_job(hands: &mut Qmp) {
    hands.execute("block-job-cancel", json!({ "device": "nightly", "force": true })).unwrap();
}

fn snapshot(hands: &mut Qmp, folder: &Path) {
    let (node, _) = disk(hands);
    let above = folder.join("above.qcow2");
    let above = json!({ "node-name": node, "snapshot-file": above, "snapshot-node-name": "above", "format": "qcow2" });
    hands.execute("blockdev-snapshot-sync", above).unwrap();
}

/// Merges the snapshot into the image below it; then the guest uses that again.
fn merge(hands: &mut Qmp) {
    let (node, _) = disk(hands);
    hands.execute("block-commit", json!({ "device": node, "job-id": "merge" })).unwrap();
    let end = std::time::Instant::now() + LONG;
    let status = |hands: &mut Qmp| {
        let jobs = hands.execute("query-jobs", json!({})).unwrap();
        jobs.as_array().unwrap().first().map(|job| job["status"].as_str().unwrap().to_owned())
    };
    while status(hands).as_deref() != Some("ready") {
        assert!(std::time::Instant::now() < end, "it is never ready");
    }
    hands.execute("job-complete", json!({ "id": "merge" })).unwrap();
    while status(hands).is_some() {
        assert!(std::time::Instant::now() < end, "it never ends");
    }
}

/// A destination has opened the disks of the beginning. QEMU itself refuses to hand a disk over that a job uses.
#[test]
fn a_job_or_snapshot_that_an_operator_begins_during_the_copy_keeps_the_guest_at_the_source() {
    let disk = Some(DiskMode::Buffered);
    let (mut stage, _, monitor) = Stage::gated_with_other_hands(&[60, 60], guest(QemuVersion::Ten), disk);
    let folder = stage.lab.directory().to_owned();
    type Hand = fn(&mut Qmp, &Path);
    let undo: [(Hand, Hand, &str); 4] = [
        (backup, |hands, _| end_job(hands), "nightly"),
        (snapshot, |_, _| (), "above"),
        // The images of the beginning are those with the snapshot now.
        (|hands, _| slowly(hands, "block-commit"), |hands, _| end_job(hands), "nightly"),
        (|hands, _| slowly(hands, "block-stream"), |hands, _| end_job(hands), "nightly"),
    ];
    for (begin, end, named) in undo {
        let mut hands = Qmp::connect(&monitor).unwrap();
        let mut migration = stage.migrate(&["--bandwidth", "40M", "--max-blackout", "5s"]);
        migration.wait(LONG, round_began);
        begin(&mut hands, &folder);
        let failure = ended(&migration.finish()).failed(4);
        assert_eq!(
            (&failure["code"], &failure["guest_state"]),
            (&"guest_differs".into(), &"runs_at_source".into()),
            "{failure}"
        );
        assert!(failure["message"].as_str().unwrap().contains(named), "{failure}");
        end(&mut hands, &folder);
        drop(hands);
        stage.settles_at(0);
    }
    // What is undone before the guest stops is no change.
    let mut hands = Qmp::connect(&monitor).unwrap();
    merge(&mut hands);
    // Ten seconds are left for it.
    let mut migration = stage.migrate(&["--bandwidth", "20M", "--max-blackout", "5s"]);
    migration.wait(LONG, round_began);
    std::fs::remove_file(folder.join("above.qcow2")).unwrap();
    snapshot(&mut hands, &folder);
    merge(&mut hands);
    drop(hands);
    ended(&migration.finish()).completed();
    // The RAM file of an adopted guest stays.
    stage.wait_state(1, "running");
    stage.until("the source has nothing", || stage.hypervisors(0).is_empty().then_some(()));
    stage.arrived();
    stage.guest_goes_on();
}
