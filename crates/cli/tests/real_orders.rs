//! Other orders in which things break around commit. Whatever breaks: the guest runs once, with its disk, and exit code
//! 0 says that it runs at the destination. As root, with what lab/install.sh installs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Tests say what they expect.

#[path = "real/hands.rs"]
mod hands;
#[path = "real/operators.rs"]
mod operators;
#[path = "real/recovering.rs"]
mod recovering;
#[path = "real/stage.rs"]
#[allow(dead_code, reason = "shared with real_migration.rs")]
mod stage;

use linerate_lab::{Gate, Refusal};
use recovering::{LONG, gated, goes_on};
use stage::{Migration, Stage, ended};

fn restart(stage: &mut Stage, hosts: [usize; 2]) {
    for host in hosts {
        stage.agent(host).restart().unwrap();
    }
}

/// The exit code of a migration that ended, and where the guest runs for good.
fn outcome(stage: &mut Stage, migration: Migration) -> (i64, usize) {
    let exit = ended(&migration.finish()).exit.unwrap();
    let place = stage.until("it runs somewhere", || (0..2).find(|&host| stage.state(host) == "running"));
    if exit == 0 {
        assert_eq!(place, 1 - stage.source, "exit code 0 means the destination");
    }
    (exit, place)
}

#[test]
fn both_agents_end_before_commit_is_sent_and_restart_in_either_order() {
    let (mut stage, gates) = gated();
    for first in [0, 1] {
        let [from, to] = [stage.source, 1 - stage.source];
        let sent = gates[from].hold_after("source.commit_sent").unwrap();
        let migration = stage.migrate(&[]);
        sent.wait(LONG).unwrap();
        for host in [0, 1] {
            stage.agent(host).kill().unwrap();
        }
        drop(sent);
        drop(migration);
        restart(&mut stage, [first, 1 - first]);
        stage.settles_at(to);
    }
}

#[test]
fn a_destination_whose_agent_ends_between_loading_and_commit_gives_the_guest_back() {
    let (mut stage, gates) = gated();
    for after in [false, true] {
        let [from, to] = [stage.source, 1 - stage.source];
        let loaded = match after {
            true => gates[to].hold_after("destination.loaded").unwrap(),
            false => gates[to].hold_before("destination.loaded").unwrap(),
        };
        let migration = stage.migrate(&[]);
        loaded.wait(LONG).unwrap();
        stage.agent(to).kill().unwrap();
        drop(loaded);
        let (exit, place) = outcome(&mut stage, migration);
        assert!(exit != 0 && place == from, "{exit} {place}");
        stage.agent(to).restart().unwrap();
        stage.settles_at(from);
        goes_on(&mut stage, to);
    }
}

/// The destination holds a complete guest, all links are cut, and the source's agent is dead.
fn reaches_the_agent_when_links_are_back(stage: &mut Stage) {
    assert_eq!(stage.hypervisors(1).len(), 1);
    stage.cut_all(false);
    stage.agent(0).restart().unwrap();
    stage.settles_at(0);
    goes_on(stage, 1);
}

/// The roll-back was written, and the notice could not be sent. The destination keeps the complete guest until it is
/// notified.
#[test]
fn the_second_next_agent_notifies_the_destination_of_a_roll_back() {
    let (mut stage, gates) = gated();
    let loaded = gates[1].hold_after("destination.loaded").unwrap();
    let migration = stage.migrate(&[]);
    loaded.wait(LONG).unwrap();
    stage.cut_all(true);
    stage.agent(0).kill().unwrap();
    drop(loaded);
    drop(migration);
    stage.agent(0).restart().unwrap();
    stage.until("it is rolled back", || stage.unfinished(0).is_empty().then_some(()));
    stage.wait_state(0, "running");
    stage.agent(0).kill().unwrap();
    reaches_the_agent_when_links_are_back(&mut stage);
}

/// The record of the roll-back is the last that the source's agent does; no message about it has left the host.
#[test]
fn the_next_agent_notifies_the_destination_of_a_roll_back() {
    let (mut stage, gates) = gated();
    let written = gates[0].hold_after("source.rolled_back").unwrap();
    let sent = gates[0].hold_before("source.commit_sent").unwrap();
    gates[0].fill("source.commit_sent", true).unwrap();
    let migration = stage.migrate(&[]);
    sent.wait(LONG).unwrap();
    stage.cut_all(true);
    drop(sent);
    written.wait(LONG).unwrap();
    stage.agent(0).kill().unwrap();
    drop(written);
    drop(migration);
    gates[0].fill("source.commit_sent", false).unwrap();
    reaches_the_agent_when_links_are_back(&mut stage);
}

/// Every record of both sides in turn.
#[test]
fn a_journal_that_does_not_take_a_record_makes_no_guest_run_twice_or_nowhere() {
    let (mut stage, gates) = gated();
    let records =
        ["started", "commit_sent", "rolled_back", "finished"].map(|phase| format!("source.{phase}"));
    let there = ["started", "loaded", "committed", "running", "finished", "aborted", "returned"];
    let records = records.into_iter().chain(there.map(|phase| format!("destination.{phase}")));
    for record in records {
        refused(&mut stage, &gates, &record, Refusal::Full);
    }
    goes_on(&mut stage, 0);
}

/// A file system that became read-only, and one whose fsync fails although the write succeeded.
#[test]
fn a_journal_on_a_disk_with_errors_makes_no_guest_run_twice_or_nowhere() {
    let (mut stage, gates) = gated();
    for record in ["source.commit_sent", "source.finished", "destination.loaded", "destination.committed"] {
        for how in [Refusal::ReadOnly, Refusal::Unsynced] {
            refused(&mut stage, &gates, record, how);
        }
    }
    goes_on(&mut stage, 0);
}

/// One migration while neither host's journal takes this record; then both do again.
fn refused(stage: &mut Stage, gates: &[Gate], record: &str, how: Refusal) {
    (0..2).for_each(|host| gates[host].refuse(record, Some(how)).unwrap());
    let migration = stage.migrate(&[]);
    let exit = ended(&migration.finish()).exit.unwrap();
    let wanted = if exit == 0 { 1 - stage.source } else { stage.source };
    let at_once = [0, 1].map(|host| stage.state(host) == "running");
    eprintln!("{record}, {how:?}: {exit} {at_once:?}");
    assert!(exit != 0 || at_once[wanted], "{record}, {how:?}: {exit} {at_once:?}");
    (0..2).for_each(|host| gates[host].refuse(record, None).unwrap());
    let place = stage.until("it runs", || (0..2).find(|&host| stage.state(host) == "running"));
    stage.settles_at(place);
    eprintln!("{record}, {how:?}: settled at {place} (wanted {wanted})");
}

/// No command waits for what an agent does after the exit code.
#[test]
fn a_guest_moved_again_while_agents_end_runs_where_the_exit_code_reports() {
    let (mut stage, _) = gated();
    for round in 0..6 {
        let [from, to] = [stage.source, 1 - stage.source];
        let (exit, place) = {
            let migration = stage.migrate(&[]);
            outcome(&mut stage, migration)
        };
        assert_eq!((exit, place), (0, to), "{round}\n{}", stage.logs());
        stage.arrived();
        let ends = if round % 2 == 0 { from } else { to };
        stage.agent(ends).kill().unwrap();
        stage.agent(ends).restart().unwrap();
    }
    let place = stage.source;
    stage.settles_at(place);
}
