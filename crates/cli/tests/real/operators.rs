//! Operators of both hosts decide over one guest, and its hosts can reach each other again before a copy is let run. No
//! lock of an image keeps two copies from running.

use linerate_lab::{Gate, QemuVersion};

use crate::recovering::{FAST, LONG, goes_on, guest};
use crate::stage::{Stage, ended};

fn without_lock() -> (Stage, [Gate; 2]) {
    Stage::gated_without_disk(&FAST, guest(QemuVersion::Ten))
}

/// The guest is complete at the destination when the source's agent ends.
fn ends_when_loaded(stage: &mut Stage, gates: &[Gate; 2]) -> String {
    let loaded = gates[1].hold_after("destination.loaded").unwrap();
    let migration = stage.migrate(&[]);
    loaded.wait(LONG).unwrap();
    stage.agent(0).kill().unwrap();
    drop(loaded);
    drop(migration);
    stage.only(1, "in_doubt")["id"].as_str().unwrap().to_owned()
}

fn signal(stage: &Stage, host: usize, signal: &str) {
    for pid in stage.hypervisors(host) {
        let sent = std::process::Command::new("kill").args([signal, &pid.to_string()]).status().unwrap();
        assert!(sent.success());
    }
}

/// The destination's operator lets the guest run there.
fn runs_there(stage: &Stage) {
    let held = stage.only(1, "in_doubt");
    let (exit, text) = stage.linerate_at(1, &["resolve", held["id"].as_str().unwrap(), "--resume-here"]);
    assert_eq!(exit, 0, "{text}");
    assert_eq!(stage.state(1), "running");
}

/// It could not be reached for a moment, with commit written or not.
#[test]
fn a_live_source_does_not_resume_a_guest_that_was_let_run_at_the_destination() {
    for commit_is_next in [false, true] {
        let (mut stage, gates) = without_lock();
        let sent = commit_is_next.then(|| gates[0].hold_before("source.commit_sent").unwrap());
        let loaded = gates[1].hold_after("destination.loaded").unwrap();
        let migration = stage.migrate(&[]);
        loaded.wait(LONG).unwrap();
        match sent {
            Some(sent) => {
                drop(loaded);
                sent.wait(LONG).unwrap();
                stage.cut_all(true);
                runs_there(&stage);
                stage.cut_all(false);
                drop(sent);
            }
            None => {
                // It would resume the guest itself before the destination runs it.
                stage.agent(0).freeze().unwrap();
                stage.cut_all(true);
                drop(loaded);
                runs_there(&stage);
                stage.cut_all(false);
                stage.agent(0).thaw().unwrap();
            }
        }
        assert_ne!(ended(&migration.finish()).exit, Some(0), "the source was not told so");
        stage.settles_at(1);
        goes_on(&mut stage, 0);
    }
}

/// The source's QEMU hangs, and resumes the guest when it goes on.
#[test]
fn a_destination_that_has_just_started_does_not_run_a_guest_that_its_source_may_resume() {
    let (mut stage, gates) = without_lock();
    let loaded = gates[1].hold_after("destination.loaded").unwrap();
    let migration = stage.migrate(&[]);
    loaded.wait(LONG).unwrap();
    signal(&stage, 0, "-STOP");
    stage.agent(1).kill().unwrap();
    drop(loaded);
    stage.agent(1).restart().unwrap();
    let held = stage.only(1, "in_doubt");
    let (exit, text) = stage.linerate_at(1, &["resolve", held["id"].as_str().unwrap(), "--resume-here"]);
    assert!(exit == 4 && text.contains("is not resumed here"), "{exit}: {text}");
    signal(&stage, 0, "-CONT");
    assert_ne!(ended(&migration.finish()).exit, Some(0), "it did not move");
    stage.settles_at(0);
    goes_on(&mut stage, 1);
}

/// Its guest runs again, and the disk does not take that.
#[test]
fn a_destination_learns_of_a_roll_back_that_the_sources_disk_refuses() {
    let (mut stage, gates) = without_lock();
    ends_when_loaded(&mut stage, &gates);
    gates[0].fill("source.rolled_back", true).unwrap();
    stage.agent(0).restart().unwrap();
    stage.wait_state(0, "running");
    stage.until("the destination gives its copy up", || {
        (stage.hypervisors(1).is_empty() && stage.unfinished(1).is_empty()).then_some(())
    });
    gates[0].fill("source.rolled_back", false).unwrap();
    stage.settles_at(0);
    goes_on(&mut stage, 1);
}

/// The source's agent has asked, and waits for a QEMU that hangs.
#[test]
fn a_guest_that_its_source_is_about_to_resume_is_not_let_run_at_the_destination() {
    let (mut stage, gates) = without_lock();
    let session = ends_when_loaded(&mut stage, &gates);
    signal(&stage, 0, "-STOP");
    stage.agent(0).restart().unwrap();
    stage.until("the destination was asked", || {
        stage.whole_logs().contains("its source is about to resume the guest and asks").then_some(())
    });
    let end = std::time::Instant::now() + std::time::Duration::from_secs(12);
    while std::time::Instant::now() < end {
        let (exit, text) = stage.linerate_at(1, &["resolve", &session, "--resume-here"]);
        assert!(exit != 0 && text.contains("Both copies would run"), "{exit}: {text}");
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    signal(&stage, 0, "-CONT");
    stage.settles_at(0);
    goes_on(&mut stage, 1);
}

/// The source went on with its guest while no link worked. They work again, and its notice is not sent yet.
#[test]
fn a_destination_hears_its_source_before_it_runs_the_guest_for_an_operator() {
    let (mut stage, gates) = without_lock();
    let session = ends_when_loaded(&mut stage, &gates);
    stage.cut_all(true);
    let unsent = gates[0].hold_before("source.rolled_back").unwrap();
    stage.agent(0).restart().unwrap();
    unsent.wait(LONG).unwrap();
    assert_eq!(stage.state(0), "running");
    stage.cut_all(false);
    let (exit, text) = std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(std::time::Duration::from_secs(5));
            drop(unsent);
        });
        stage.linerate_at(1, &["resolve", &session, "--resume-here"])
    });
    // Where the command takes longer than that to begin, the session is over by then.
    assert!(exit == 4, "{exit}: {text}");
    stage.settles_at(0);
    goes_on(&mut stage, 1);
}

/// The source's operator saw that the guest never ran there.
#[test]
fn a_destination_that_starts_again_does_not_run_a_guest_that_its_source_has_back() {
    let (mut stage, gates) = without_lock();
    let committed = gates[1].hold_after("destination.committed").unwrap();
    let migration = stage.migrate(&[]);
    committed.wait(LONG).unwrap();
    stage.agent(1).kill().unwrap();
    drop(committed);
    let held = stage.only(0, "in_doubt");
    let (exit, text) = stage.linerate_at(0, &["resolve", held["id"].as_str().unwrap(), "--resume-here"]);
    assert_eq!(exit, 0, "{text}");
    assert_eq!(stage.state(0), "running");
    stage.agent(1).restart().unwrap();
    stage.until("the destination gives its copy up", || {
        assert_ne!(stage.state(1), "running");
        stage.hypervisors(1).is_empty().then_some(())
    });
    assert_ne!(ended(&migration.finish()).exit, Some(0), "it did not move");
    stage.settles_at(0);
    goes_on(&mut stage, 1);
}

/// No agent had its monitor. The source would resume a copy that is older than the disks.
#[test]
fn a_guest_that_another_program_lets_run_at_the_destination_is_not_resumed_at_its_source() {
    let (mut stage, gates) = without_lock();
    ends_when_loaded(&mut stage, &gates);
    stage.agent(1).kill().unwrap();
    stage.agent(1).restart().unwrap();
    stage.only(1, "in_doubt");
    stage.command(1, "cont");
    stage.until("it is noticed", || stage.unfinished(1).is_empty().then_some(()));
    stage.agent(0).restart().unwrap();
    stage.settles_at(1);
    goes_on(&mut stage, 0);
}
