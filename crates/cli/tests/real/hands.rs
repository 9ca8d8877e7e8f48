//! What somebody does with a guest at another monitor, around commit.

use linerate_lab::{QemuVersion, Qmp};
use serde_json::json;

use super::{FAST, LONG, guest};
use crate::stage::{Stage, ended};

fn cont(monitor: &std::path::Path) {
    Qmp::connect(monitor).unwrap().execute("cont", json!({})).unwrap();
}

#[test]
fn a_guest_that_somebody_lets_run_at_the_source_before_commit_runs_there_only() {
    let (mut stage, gates, monitor) = Stage::gated_with_other_hands(&FAST, guest(QemuVersion::Ten));
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
    stage.only(0, "undecided");
    cont(&monitor);
    stage.cut_all(false);
    let held = stage.until("it is told", || {
        let shown = stage.only(0, "undecided");
        shown["note"].as_str()?.contains("lets the guest run here").then_some(shown)
    });
    stage.stays(0, "running");
    stage.only(1, "undecided");
    let (exit, text) = stage.linerate_at(0, &["resolve", held["id"].as_str().unwrap(), "--resume-here"]);
    assert_eq!(exit, 0, "{text}");
    stage.settles_at(0);
}
