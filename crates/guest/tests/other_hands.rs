//! What another client does at another monitor of a guest's QEMU while Linerate moves it.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests, too, say what they expect

mod common;

use common::*;
use linerate_guest::incoming_qemu::QemuBinary;
use linerate_guest::migrate::SourceQemu;
use linerate_guest::qmp::Qmp;
use linerate_guest::run_state::RunState;
use serde_json::{Value, json};

/// A guest that another program has a monitor of, too.
fn guest(place: &Place, qemu: &QemuBinary) -> (Running, SourceQemu, Qmp) {
    let image = place.disk("d.img", 4);
    let mut make = std::process::Command::new("qemu-img");
    assert!(make.args(["create", "-q", "-f", "qcow2"]).arg(&image).arg("8M").status().unwrap().success());
    let second = place.path("second.qmp");
    let spec = format!(
        "name = 'web'\nmemory = '64M'\nmachine = 'pc'\naccel = 'tcg'\n\
         extra_args = ['-qmp', 'unix:{},server=on,wait=off']\n[[disk]]\npath = 'd.img'\nformat = 'qcow2'\n",
        second.display()
    );
    let mut source = start_spec(place, qemu, &spec);
    let from = SourceQemu::new(source.qmp.take().unwrap(), soon()).unwrap();
    (source, from, Qmp::connect(&second, soon()).unwrap())
}

fn monitor(hands: &mut Qmp, line: &str) -> String {
    let answer = hands.execute("human-monitor-command", json!({ "command-line": line }), soon()).unwrap();
    answer.as_str().unwrap().to_owned()
}

fn migration(hands: &mut Qmp) -> String {
    let answer = hands.execute("query-migrate", json!({}), soon()).unwrap();
    answer.get("status").and_then(Value::as_str).unwrap_or("none").to_owned()
}

/// Waits for a status of QEMU's migration.
fn wait_migration(hands: &mut Qmp, wanted: &str) {
    let end = soon();
    while migration(hands) != wanted {
        assert!(std::time::Instant::now() < end, "{} and never {wanted}", migration(hands));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_snapshot_that_is_taken_while_a_guest_is_moved_can_be_loaded() {
    for qemu in qemus() {
        let place = Place::new();
        let (_source, mut from, mut hands) = guest(&place, &qemu);
        from.prepare(soon()).unwrap();
        assert_eq!(monitor(&mut hands, "savevm during"), "");
        from.cancel(soon()).unwrap();
        assert_eq!(monitor(&mut hands, "loadvm during"), "");
        assert_eq!(from.status(soon()).unwrap(), RunState::Running);
    }
}

/// Whether the agent has started QEMU's migration when it sees the other client's, has not, or has ended meanwhile.
#[derive(Clone, Copy, Debug)]
enum Agent {
    Tries,
    Gives,
    Ended,
}

/// Another client begins a migration with a session prepared, and the session is given up.
fn another_operator(qemu: &QemuBinary, agent: Agent, bytes_per_s: u64, comes_to: &str) -> (String, RunState) {
    let place = Place::new();
    let (source, mut from, mut hands) = guest(&place, qemu);
    from.prepare(soon()).unwrap();
    hands.execute("migrate-set-parameters", json!({ "max-bandwidth": bytes_per_s }), soon()).unwrap();
    hands.execute("migrate", json!({ "uri": "exec:cat > /dev/null" }), soon()).unwrap();
    wait_migration(&mut hands, comes_to);
    let channel = place.path("c.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&channel).unwrap();
    match agent {
        Agent::Tries => assert!(from.begin(&channel, soon()).is_err()),
        Agent::Gives => {}
        Agent::Ended => {
            let found = from.found().cloned();
            drop(from);
            let qmp = Qmp::connect(&source.record.qmp, soon()).unwrap();
            from = SourceQemu::recovered(qmp, true, found, true);
        }
    }
    for _ in 0..2 {
        from.cancel_and_resume(soon()).unwrap();
    }
    (migration(&mut hands), from.status(soon()).unwrap())
}

#[test]
fn what_another_program_does_with_a_guest_is_not_undone() {
    for qemu in qemus() {
        for agent in [Agent::Tries, Agent::Gives, Agent::Ended] {
            let done = another_operator(&qemu, agent, 1 << 30, "completed");
            assert_eq!(done, ("completed".into(), RunState::PostMigrate), "it would run twice: {agent:?}");
            let done = another_operator(&qemu, agent, 65537, "active");
            assert_eq!(done, ("active".into(), RunState::Running), "{agent:?}");
        }
    }
}

#[test]
fn a_guest_reset_during_a_drain_pause_runs_on() {
    for qemu in qemus() {
        let place = Place::new();
        let (_source, mut from, mut hands) = guest(&place, &qemu);
        let mut reset = || {
            hands.execute("system_reset", json!({}), soon()).unwrap();
            hands.wait_event(|event| event.name == "RESET", soon()).unwrap();
        };
        assert!(from.pause(soon()).unwrap());
        reset();
        from.resume(soon()).unwrap();
        assert_eq!(from.status(soon()).unwrap(), RunState::Running);
        assert!(from.pause(soon()).unwrap());
        reset();
        from.cancel_and_resume(soon()).unwrap();
        assert_eq!(from.status(soon()).unwrap(), RunState::Running);
    }
}

#[test]
fn a_guest_whose_record_was_removed_is_not_ended() {
    for qemu in qemus() {
        let place = Place::new();
        let (source, mut from, _hands) = guest(&place, &qemu);
        std::fs::remove_file(place.registry.folder("web").unwrap().join("record.json")).unwrap();
        assert!(linerate_guest::leftovers::clear_unfinished(&place.registry).unwrap().is_empty());
        assert!(source.record.is_alive());
        assert_eq!(from.status(soon()).unwrap(), RunState::Running);
    }
}

#[test]
fn a_device_plugged_or_unplugged_during_a_migration_is_found() {
    for qemu in qemus() {
        let place = Place::new();
        let (_source, mut from, mut hands) = guest(&place, &qemu);
        from.check_devices(soon()).unwrap();
        // Without an id, too.
        for id in [json!({ "id": "rng" }), json!({})] {
            let mut device = json!({ "driver": "virtio-rng-pci" });
            device.as_object_mut().unwrap().extend(id.as_object().unwrap().clone());
            hands.execute("device_add", device, soon()).unwrap();
            let message = from.check_devices(soon()).unwrap_err().to_string();
            assert!(message.contains("(virtio-rng-pci) was plugged in"), "{message}");
        }
    }
}

/// QEMU aborts when a guest in this state is to migrate.
#[test]
fn a_guest_whose_snapshot_could_not_be_loaded_is_not_lost() {
    for qemu in qemus() {
        let place = Place::new();
        let (source, mut from, mut hands) = guest(&place, &qemu);
        from.prepare(soon()).unwrap();
        assert!(!monitor(&mut hands, "loadvm never-saved").is_empty());
        assert_eq!(from.status(soon()).unwrap(), RunState::RestoreVm);
        let channel = place.path("c.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&channel).unwrap();
        let refused = from.begin(&channel, soon()).unwrap_err().to_string();
        assert!(refused.contains("restore-vm"), "{refused}");
        from.cancel_and_resume(soon()).unwrap();
        drop(from);
        let again = SourceQemu::new(Qmp::connect(&source.record.qmp, soon()).unwrap(), soon());
        assert!(again.is_err() && source.record.is_alive());
    }
}

#[test]
fn a_guest_resumed_during_a_migration_runs_after_a_roll_back() {
    for qemu in qemus() {
        let place = Place::new();
        let (source, from, mut hands) = guest(&place, &qemu);
        drop(from);
        hands.execute("stop", json!({}), soon()).unwrap();
        let mut from = SourceQemu::new(Qmp::connect(&source.record.qmp, soon()).unwrap(), soon()).unwrap();
        assert!(!from.ran());
        from.prepare(soon()).unwrap();
        hands.execute("cont", json!({}), soon()).unwrap();
        let channel = place.path("c.sock");
        let listener = std::os::unix::net::UnixListener::bind(&channel).unwrap();
        let taken = std::thread::spawn(move || {
            std::io::copy(&mut listener.accept().unwrap().0, &mut std::io::sink()).unwrap()
        });
        from.begin(&channel, soon()).unwrap();
        assert!(from.wait_pre_switchover(soon(), &|| false).unwrap().ran);
        from.cont_switchover(soon()).unwrap();
        from.wait_completed(soon(), &|| false).unwrap();
        assert!(taken.join().unwrap() > 0);
        from.cancel_and_resume(soon()).unwrap();
        assert_eq!(from.status(soon()).unwrap(), RunState::Running);
    }
}

/// What is done to a paused guest is done again if it ran meanwhile, however shortly.
#[test]
fn a_guest_resumed_for_a_moment_was_not_paused_throughout() {
    for qemu in qemus() {
        let place = Place::new();
        let (_source, mut from, mut hands) = guest(&place, &qemu);
        let mut execute = |command| drop(hands.execute(command, json!({}), soon()).unwrap());
        for meanwhile in [&["cont", "stop"][..], &["cont"]] {
            execute("stop");
            for _ in 0..2 {
                assert!(!from.pause(soon()).unwrap());
                assert!(from.has_stayed_paused(soon()).unwrap(), "what was before does not count");
            }
            meanwhile.iter().for_each(|command| execute(command));
            assert!(!from.has_stayed_paused(soon()).unwrap(), "{meanwhile:?}");
        }
        assert!(from.pause(soon()).unwrap(), "it runs, and is stopped this time");
        from.resume(soon()).unwrap();
    }
}
