//! Which domain is meant, what it must be like, and two commands at once.

use std::time::{Duration, Instant};

use linerate_lab::LibvirtVersion;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::stage::{Ended, LONG, Stage};
use super::{SLOW, copies, ignores_shared, stayed, wait_put_back};

fn fails_with(ended: &Ended, code: i32, words: &str) {
    assert_eq!(ended.code, Some(code), "{words}: {ended:#?}");
    let message = ended.last()["error"]["message"].as_str().unwrap();
    assert!(message.contains(words), "{words}: {message}");
}

/// A definition of it with memory that was saved long ago, at the destination.
fn old_memory_there(stage: &Stage) {
    let xml = stage.libvirts[0].virsh(&["dumpxml", "g", "--inactive"]).unwrap();
    let file = stage.write(1, "old.xml", &xml);
    for words in [&["define", &file][..], &["start", "g"], &["managedsave", "g"]] {
        stage.libvirts[1].virsh(words).unwrap();
    }
    let _ = std::fs::remove_file(stage.libvirts[1].console("g"));
}

#[test]
fn a_domain_is_moved_by_its_name_its_id_or_its_uuid_in_the_state_that_it_has() {
    let mut stage = Stage::shared(LibvirtVersion::Eleven, None);
    fails_with(&stage.start_named(0, "nobody", &[]).end(), 4, "no domain nobody");
    old_memory_there(&stage);
    fails_with(&stage.start_bare(0, &["--mode", "direct"]).end(), 4, "managed save");
    assert!(!ignores_shared(&stage, 0));
    stage.libvirts[1].virsh(&["undefine", "g", "--managed-save"]).unwrap();

    let id = stage.libvirts[0].virsh(&["domid", "g"]).unwrap();
    let ended = stage.start_named(0, id.trim(), &["--mode", "direct"]).end();
    assert_eq!(ended.code, Some(0), "by its ID: {ended:#?}");
    assert_eq!((&ended.last()["state"], &ended.last()["domain"]), (&"running".into(), &"g".into()));
    stage.arrived(1);
    stage.is_whole_at(1);
    wait_put_back(&stage, 1);

    // Back, suspended: by libvirt's own migration, and not resumed there.
    stage.libvirts[1].virsh(&["suspend", "g"]).unwrap();
    let uuid = stage.libvirts[1].virsh(&["domuuid", "g"]).unwrap();
    fails_with(&stage.start_named(1, uuid.trim(), &["--mode", "direct"]).end(), 4, "paused");
    let ended = stage.start_named(1, uuid.trim(), &[]).end();
    assert_eq!(ended.code, Some(0), "suspended: {ended:#?}");
    assert_eq!(ended.last()["state"], "paused", "{ended:#?}");
    assert_eq!(stage.state(0).as_deref(), Some("paused"));
    // An undrain takes a domain with any other reason for one that is not well.
    let reason = stage.libvirts[0].virsh(&["domstate", "--reason", "g"]).unwrap();
    assert_eq!(reason.trim(), "paused (user)");
    stage.libvirts[0].virsh(&["resume", "g"]).unwrap();
    stage.arrived(0);
    stage.is_whole_at(0);
}

#[test]
fn of_two_commands_for_a_domain_one_moves_it_and_the_other_harms_nothing() {
    let mut stage = Stage::shared(LibvirtVersion::Eleven, None);
    for first in ["direct", "stream"] {
        let mut flags = SLOW;
        flags[1] = first;
        let moving = stage.start_bare(0, &flags);
        if first == "direct" {
            copies(&moving);
        } else {
            moving.moves(&stage, 0);
        }
        for second in ["direct", "stream"] {
            let refused = stage.start_bare(0, &["--mode", second]).end();
            fails_with(&refused, 4, "already moved");
            assert_eq!(ignores_shared(&stage, 0), first == "direct", "{first}, {second}");
        }
        stage.libvirts[0].virsh(&["domjobabort", "g"]).unwrap();
        drop(moving.end());
        wait_put_back(&stage, 0);
        stage.is_whole_at(0);
    }

    // Neither sees the other when it looks.
    let both = ["stream", "direct"].map(|mode| stage.start_bare(0, &["--mode", mode]));
    let ended = both.map(|moving| moving.end());
    assert_eq!(ended.iter().filter(|one| one.code == Some(0)).count(), 1, "{ended:#?}");
    let deadline = Instant::now() + LONG;
    while stage.state(0).is_some() {
        assert!(Instant::now() < deadline, "it stays: {ended:#?}");
    }
    stage.arrived(1);
    stage.is_whole_at(1);
    wait_put_back(&stage, 1);
}

/// Kills a host's libvirt, which is started again a second later.
fn kill_libvirt(stage: &Stage, host: usize) {
    let mark =
        format!("LIBVIRT_DRIVER_DIR={}/libvirt/drivers", stage.libvirts[host].host().directory().display());
    let mut killed = 0;
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let is = environment.split(|byte| *byte == 0).any(|one| one == mark.as_bytes());
        if name.trim() == "libvirtd" && is {
            let pid = entry.file_name().to_str().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
            kill_process(pid.unwrap(), Signal::KILL).unwrap();
            killed += 1;
        }
    }
    assert!(killed > 0, "no libvirtd with {mark}");
}

#[test]
fn a_libvirt_that_ends_is_no_unknown_domain() {
    let mut stage = Stage::shared(LibvirtVersion::Eleven, None);
    let moving = stage.start_bare(0, &SLOW);
    copies(&moving);
    kill_libvirt(&stage, 0);
    let ended = moving.end();
    assert_eq!(ended.code, Some(1), "{ended:#?}");
    let message = format!("{ended:?}");
    assert!(!message.contains("does not know"), "{message}");
    // The first to ask is the one that waits for it to be back.
    let deadline = Instant::now() + LONG;
    while stage.state(0).is_none() {
        assert!(Instant::now() < deadline, "libvirt does not come back");
        std::thread::sleep(Duration::from_millis(200));
    }
    stayed(&stage);

    let moving = stage.start_bare(0, &["--mode", "direct"]);
    moving.wait("the hand-over", |line: &Value| line["name"] == "commit" && line["state"] == "started");
    kill_libvirt(&stage, 0);
    let ended = moving.end();
    let at = loop {
        assert!(Instant::now() < deadline, "not decided: {ended:#?}");
        match [0, 1].map(|host| stage.state(host)).each_ref().map(Option::as_deref) {
            [Some("running"), None] => break 0,
            [None | Some("shut off"), Some("running")] => break 1,
            // As the advice says.
            [Some("paused"), None] => drop(stage.libvirts[0].virsh(&["resume", "g"]).unwrap()),
            [Some("paused"), Some("running")] => drop(stage.libvirts[0].virsh(&["destroy", "g"]).unwrap()),
            _ => std::thread::sleep(Duration::from_millis(200)),
        }
    };
    assert!(at == 1 || ended.code != Some(0), "{ended:#?}");
    let message = format!("{ended:?}");
    assert!(ended.code == Some(0) || message.contains("virsh domstate"), "{message}");
    wait_put_back(&stage, at);
    if at == 1 {
        stage.arrived(1);
    }
}
