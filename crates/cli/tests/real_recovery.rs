//! What becomes of a guest when something breaks around commit, and after it: real agents stopped exactly where they
//! write their journal (lab's `Gate`), real QEMUs, and restarts in every order. As root, with what lab/install.sh
//! installs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Tests say what they expect.

#[path = "real/stage.rs"]
#[allow(dead_code, reason = "shared with real_migration.rs")]
mod stage;

#[path = "real/recovering.rs"]
mod recovering;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use linerate_lab::guest::kvm_is_missing;
use linerate_lab::{GuestSpec, QemuVersion};
use recovering::{FAST, LONG, gated, goes_on, guest};
use stage::{Migration, Stage, ended, round_began};

const STREAM: [&str; 4] = ["--mode", "stream", "--max-blackout", "5s"];

/// Another process that holds the lock of the guest's image.
struct Lock(Child);

impl Lock {
    fn take(stage: &Stage) -> Lock {
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw", "-c", "sleep 600000"]).arg(stage.image());
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        let folder = format!("/proc/{}", child.id());
        // Of the image's descriptors: the kernel names the locks that are held by each.
        stage.until("the lock is taken", || {
            let open = std::fs::read_dir(format!("{folder}/fd")).ok()?.flatten();
            let mut of_image = open
                .filter(|file| std::fs::read_link(file.path()).is_ok_and(|target| target == stage.image()));
            let holds = |file: std::fs::DirEntry| {
                let facts = format!("{folder}/fdinfo/{}", file.file_name().to_string_lossy());
                let facts = std::fs::read_to_string(facts).unwrap_or_default();
                facts.lines().any(|line| line.starts_with("lock:"))
            };
            of_image.any(holds).then_some(())
        });
        Lock(child)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// For stream mode, in which QEMU may lose what an emulated guest writes (docs/stream-mode.md): under KVM if there is
/// one.
fn streamed() -> GuestSpec {
    let emulated = guest(QemuVersion::Ten);
    if kvm_is_missing().is_some() {
        return emulated;
    }
    GuestSpec::user_mode("g", emulated.parameters).qemu(QemuVersion::Ten)
}

#[test]
fn a_guest_whose_disk_cannot_be_taken_over_runs_at_the_source_again() {
    let (mut stage, gates) = Stage::gated(&FAST, streamed());
    for arguments in [&[][..], &STREAM] {
        let [from, to] = [stage.source, 1 - stage.source];
        let sent = gates[from].hold_before("source.commit_sent").unwrap();
        let returned = gates[to].hold_after("destination.returned").unwrap();
        let migration = stage.migrate(arguments);
        sent.wait(LONG).unwrap();
        let lock = Lock::take(&stage);
        drop(sent);
        returned.wait(LONG).unwrap();
        drop(lock);
        drop(returned);
        let failure = ended(&migration.finish()).failed(1);
        assert_eq!(
            (&failure["code"], &failure["guest_state"]),
            (&"hypervisor_failed".into(), &"runs_at_source".into()),
            "{failure}"
        );
        stage.settles_at(from);
        goes_on(&mut stage, to);
    }
}

/// The source's QEMU cannot take its disk back either, until its holder closes it: it is tried until then.
#[test]
fn a_disk_that_neither_host_gets_is_waited_for_at_the_source() {
    let (mut stage, gates) = gated();
    let sent = gates[0].hold_before("source.commit_sent").unwrap();
    let migration = stage.migrate(&[]);
    sent.wait(LONG).unwrap();
    let lock = Lock::take(&stage);
    drop(sent);
    let failure = ended(&migration.finish()).failed(9);
    assert_eq!(failure["guest_state"], "paused_at_source", "{failure}");
    stage.until("the reason is reported", || {
        stage.only(0, "recovering")["note"].as_str()?.contains("lock").then_some(())
    });
    drop(lock);
    stage.settles_at(0);
    goes_on(&mut stage, 0);
}

#[test]
fn an_end_that_was_not_written_does_not_harm_a_guest_that_came_back() {
    let (mut stage, gates) = gated();
    gates[0].set_clock_ahead(-3600).unwrap();
    gates[0].fill("source.finished", true).unwrap();
    moves_to(&mut stage, 1);
    moves_to(&mut stage, 0);
    stage.agent(0).kill().unwrap();
    gates[0].fill("source.finished", false).unwrap();
    stage.agent(0).restart().unwrap();
    stage.stays(0, "running");
    stage.settles_at(0);
    goes_on(&mut stage, 1);
}

/// Without looking at what is unfinished.
fn moves_to(stage: &mut Stage, host: usize) {
    ended(&stage.migrate(&[]).finish()).completed();
    assert_eq!(stage.state(host), "running");
    stage.arrived();
}

#[test]
fn a_roll_back_that_was_not_written_does_not_resume_a_guest_that_a_later_migration_commits() {
    let (mut stage, gates) = gated();
    gates[0].fill("source.rolled_back", true).unwrap();
    let sent = gates[0].hold_before("source.started").unwrap();
    let migration = stage.migrate(&[]);
    sent.wait(LONG).unwrap();
    migration.interrupt();
    stage.only(0, "cancelling");
    drop(sent);
    assert_eq!(ended(&migration.finish()).exit, Some(5));
    gates[0].set_clock_ahead(-3600).unwrap();
    let runs = gates[1].hold_after("destination.running").unwrap();
    let migration = stage.migrate(&[]);
    runs.wait(LONG).unwrap();
    stage.agent(0).kill().unwrap();
    gates[0].fill("source.rolled_back", false).unwrap();
    stage.agent(0).restart().unwrap();
    stage.wait_state(1, "running");
    // The destination answers that it runs, although its disk hangs: nothing is left here then.
    stage.stays_stopped(0);
    drop(runs);
    assert_eq!(ended(&migration.finish()).exit, Some(8));
    stage.settles_at(1);
    goes_on(&mut stage, 0);
}

#[test]
fn a_committed_guest_that_its_agent_did_not_run_yet_is_run_by_the_next() {
    let (mut stage, gates) = gated();
    for how in ["before", "after"] {
        let [from, to] = [stage.source, 1 - stage.source];
        let committed = match how {
            "before" => gates[to].hold_before("destination.committed"),
            _ => gates[to].hold_after("destination.committed"),
        };
        let committed = committed.unwrap();
        let migration = stage.migrate(&[]);
        committed.wait(LONG).unwrap();
        stage.agent(to).kill().unwrap();
        drop(committed);
        stage.stays(to, "paused");
        stage.agent(to).restart().unwrap();
        ended(&migration.finish()).completed();
        assert!(stage.hypervisors(from).is_empty());
        stage.settles_at(to);
        goes_on(&mut stage, from);
    }
}

/// So little fits into this over [`SLOW`] links, some pages, that the guest is slowed down however busy the machine is.
const THROTTLED: [&str; 3] = ["--throttle", "--max-blackout", "5ms"];
const SLOW: [u64; 2] = [25, 25];

/// Kills the source's agent in a moment in which it has stopped the guest to slow it down.
fn killed_while_it_throttles(stage: &mut Stage) {
    let mark = stage.lab.hosts()[0].run_directory().join("guests/g/paused-by-agent");
    loop {
        let migration = stage.migrate(&THROTTLED);
        let end = Instant::now() + LONG;
        while !mark.exists() {
            assert!(Instant::now() < end, "it is never throttled\n{}", stage.logs());
            std::thread::sleep(Duration::from_millis(1));
        }
        stage.agent(0).kill().unwrap();
        drop(migration);
        if stage.state(0) == "paused" {
            return;
        }
        stage.agent(0).restart().unwrap();
        stage.settles_at(0);
    }
}

/// What the agent stopped itself runs again, and what its operator stopped while no agent was there does not.
#[test]
fn a_throttled_guest_runs_when_its_agent_comes_back_and_stays_paused_if_its_operator_paused_it() {
    let (mut stage, _) = Stage::gated(&SLOW, guest(QemuVersion::Ten));
    killed_while_it_throttles(&mut stage);
    stage.agent(0).restart().unwrap();
    stage.settles_at(0);
    let mut migration = stage.migrate(&THROTTLED);
    migration.wait(LONG, round_began);
    stage.agent(0).kill().unwrap();
    drop(migration);
    stage.command(0, "stop");
    stage.agent(0).restart().unwrap();
    stage.until("it is rolled back", || stage.unfinished(0).is_empty().then_some(()));
    stage.stays(0, "paused");
    stage.command(0, "cont");
    stage.settles_at(0);
}

/// Commit is in the source's journal and has not left it: the restarted agent sends it.
#[test]
fn a_source_that_ended_before_it_sent_commit_sends_it_after_its_restart() {
    let (mut stage, gates) = gated();
    let sent = gates[0].hold_after("source.commit_sent").unwrap();
    let migration = stage.migrate(&[]);
    sent.wait(LONG).unwrap();
    stage.agent(0).kill().unwrap();
    drop(sent);
    stage.agent(0).restart().unwrap();
    assert_eq!(ended(&migration.finish()).exit, Some(8));
    stage.settles_at(1);
    goes_on(&mut stage, 0);
}

/// Its operator saw a source that did not answer, and whose agent was only down. No lock of an image keeps the other
/// copy from running.
#[test]
fn a_guest_that_was_let_run_at_the_destination_is_not_resumed_by_a_source_that_starts_again() {
    let (mut stage, gates) = Stage::gated_without_disk(&FAST, guest(QemuVersion::Ten));
    let loaded = gates[1].hold_after("destination.loaded").unwrap();
    let migration = stage.migrate(&[]);
    loaded.wait(LONG).unwrap();
    stage.agent(0).kill().unwrap();
    drop(loaded);
    let held = stage.only(1, "in_doubt");
    let (exit, text) = stage.linerate_at(1, &["resolve", held["id"].as_str().unwrap(), "--resume-here"]);
    assert_eq!(exit, 0, "{text}");
    stage.stays(0, "postmigrate");
    stage.agent(0).restart().unwrap();
    drop(migration);
    stage.settles_at(1);
    goes_on(&mut stage, 0);
}

#[test]
fn a_guest_that_its_operator_paused_stays_paused_when_the_agent_starts_again() {
    let (mut stage, gates) = gated();
    let runs = gates[1].hold_before("destination.running").unwrap();
    let migration = stage.migrate(&[]);
    runs.wait(LONG).unwrap();
    stage.agent(1).kill().unwrap();
    drop(runs);
    std::thread::sleep(Duration::from_millis(500));
    stage.command(1, "stop");
    stage.agent(1).restart().unwrap();
    let held = stage.only(1, "in_doubt");
    stage.stays(1, "paused");
    assert_eq!(stage.hypervisors(0).len(), 1);
    let (exit, text) = stage.linerate_at(1, &["resolve", held["id"].as_str().unwrap(), "--resume-here"]);
    assert_eq!(exit, 0, "{text}");
    ended(&migration.finish()).completed();
    stage.settles_at(1);
    // Of an earlier session that is over: the agent leaves an operator's pause as it is.
    stage.command(1, "stop");
    for host in [1, 0] {
        stage.agent(host).kill().unwrap();
        stage.agent(host).restart().unwrap();
    }
    stage.stays(1, "paused");
    stage.command(1, "cont");
    goes_on(&mut stage, 0);
}

/// The guest runs at the destination, whose QEMU ends before the source knows of it, and its agent too or not.
fn dies_behind_commit(stage: &mut Stage, gates: &[linerate_lab::Gate; 2], agent_ends: bool) -> String {
    let [from, to] = [stage.source, 1 - stage.source];
    let runs = gates[to].hold_after("destination.running").unwrap();
    let migration = stage.migrate(&[]);
    runs.wait(LONG).unwrap();
    stage.cut_all(true);
    stage.kill_hypervisors(to);
    if agent_ends {
        stage.agent(to).kill().unwrap();
        drop(runs);
        stage.agent(to).restart().unwrap();
    } else {
        drop(runs);
    }
    stage.cut_all(false);
    let failure = ended(&migration.finish()).failed(6);
    assert_eq!(failure["guest_state"], "in_doubt", "{failure}");
    assert!(failure["message"].as_str().unwrap().contains("kept"), "{failure}");
    let held = stage.only(from, "in_doubt");
    assert!(held["note"].as_str().unwrap().contains("linerate resolve"), "{held}");
    let (_, shown) = stage.linerate_at(from, &["status"]);
    assert!(shown.contains("In doubt") && shown.contains("linerate migration list"), "{shown}");
    let (_, shown) = stage.linerate_at(from, &["migration", "list"]);
    assert!(shown.contains("linerate resolve"), "{shown}");
    stage.stays(from, "postmigrate");
    stage.agent(from).kill().unwrap();
    stage.agent(from).restart().unwrap();
    stage.only(from, "in_doubt")["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_guest_that_died_right_behind_commit_is_kept_at_the_source_for_its_operator() {
    let (mut stage, gates) = Stage::gated_without_disk(&FAST, guest(QemuVersion::Ten));
    let id = dies_behind_commit(&mut stage, &gates, true);
    let (exit, text) = stage.linerate_at(0, &["resolve", &id, "--resume-here"]);
    assert_eq!(exit, 0, "{text}");
    stage.settles_at(0);
    goes_on(&mut stage, 1);
    let id = dies_behind_commit(&mut stage, &gates, false);
    let (exit, text) = stage.linerate_at(0, &["resolve", &id, "--give-up"]);
    assert_eq!(exit, 0, "{text}");
    stage.until("nothing is left", || {
        [0, 1]
            .iter()
            .all(|&host| stage.hypervisors(host).is_empty() && stage.unfinished(host).is_empty())
            .then_some(())
    });
}

#[test]
fn a_complete_guest_is_run_when_the_source_that_committed_it_lost_its_own_copy() {
    let (mut stage, gates) = gated();
    for destination_restarts in [false, true] {
        let [from, to] = [stage.source, 1 - stage.source];
        let sent = gates[from].hold_after("source.commit_sent").unwrap();
        let migration = stage.migrate(&[]);
        sent.wait(LONG).unwrap();
        stage.cut_all(true);
        stage.agent(from).kill().unwrap();
        stage.kill_hypervisors(from);
        drop(sent);
        if destination_restarts {
            stage.agent(to).kill().unwrap();
            stage.agent(to).restart().unwrap();
            stage.stays(to, "paused");
        }
        stage.cut_all(false);
        stage.agent(from).restart().unwrap();
        drop(migration);
        stage.settles_at(to);
        goes_on(&mut stage, from);
    }
}

#[test]
fn a_roll_back_waits_for_a_qemu_that_another_client_holds() {
    let (mut stage, gates) = gated();
    let loaded = gates[1].hold_before("destination.loaded").unwrap();
    let migration = stage.migrate(&[]);
    loaded.wait(LONG).unwrap();
    stage.agent(0).kill().unwrap();
    let holder = stage.qmp(0);
    drop(loaded);
    // It listens at once.
    stage.agent(0).restart().unwrap();
    let shown = stage.only(0, "recovering");
    assert_eq!(shown["guest"], "g");
    let (exit, text) = stage.linerate_at(0, &["migrate", "g", "--to", &stage.destination_address()]);
    assert_eq!(exit, 4, "{text}");
    std::thread::sleep(Duration::from_secs(12));
    assert_eq!(stage.only(0, "recovering")["guest"], "g", "it is tried until it is done");
    drop(holder);
    assert_eq!(ended(&migration.finish()).exit, Some(8));
    stage.settles_at(0);
    goes_on(&mut stage, 1);
}

/// At the destination: on the way it ends the migration, behind the last copy it does not.
#[test]
fn a_migration_is_cancelled_at_its_destination_until_the_guest_is_complete_there() {
    let (mut stage, gates) = gated();
    let migration = stage.migrate(&["--bandwidth", "20M"]);
    let coming = stage.only(1, "running");
    let id = coming["id"].as_str().unwrap().to_owned();
    let (exit, text) = stage.linerate_at(1, &["migration", "attach", &id]);
    assert_eq!(exit, 4, "{text}");
    assert!(text.contains("watched at its source"), "{text}");
    let (exit, text) = stage.linerate_at(1, &["migration", "cancel", &id]);
    assert_eq!(exit, 0, "{text}");
    assert_eq!(ended(&migration.finish()).exit, Some(5));
    stage.settles_at(0);
    let sent = gates[0].hold_after("source.commit_sent").unwrap();
    let migration = stage.migrate(&[]);
    sent.wait(LONG).unwrap();
    let coming = stage.only(1, "running");
    let (exit, text) = stage.linerate_at(1, &["migration", "cancel", coming["id"].as_str().unwrap()]);
    assert_eq!(exit, 4, "{text}");
    assert!(text.contains("too late to cancel"), "{text}");
    drop(sent);
    ended(&migration.finish()).completed();
    stage.settles_at(1);
}

/// In direct mode and by streams.
fn arrives_paused(version: QemuVersion) {
    let (mut stage, _) = Stage::gated(&FAST, guest(version));
    for arguments in [&[][..], &STREAM] {
        for _ in 0..2 {
            let [from, to] = [stage.source, 1 - stage.source];
            stage.command(from, "stop");
            let report = ended(&stage.migrate(arguments).finish()).completed();
            assert_eq!(stage.state(to), "paused", "{report:#}");
            assert!(stage.hypervisors(from).is_empty());
            stage.stays(to, "paused");
            stage.command(to, "cont");
            stage.settles_at(to);
        }
    }
}

#[test]
fn a_paused_guest_arrives_paused_with_qemu_10() {
    arrives_paused(QemuVersion::Ten);
}

#[test]
fn a_paused_guest_arrives_paused_with_qemu_7() {
    arrives_paused(QemuVersion::System);
}

/// QEMU has written its state by then, and migrates no paused guest after that.
#[test]
fn a_paused_guest_that_goes_back_is_paused_and_moves_at_the_next_try() {
    let (mut stage, gates) = gated();
    stage.command(0, "stop");
    let loaded = gates[1].hold_before("destination.loaded").unwrap();
    let migration = stage.migrate(&[]);
    loaded.wait(LONG).unwrap();
    stage.agent(0).kill().unwrap();
    stage.agent(0).restart().unwrap();
    drop(loaded);
    drop(migration);
    stage.until("it is rolled back", || {
        (stage.unfinished(0).is_empty() && stage.hypervisors(1).is_empty()).then_some(())
    });
    stage.stays(0, "paused");
    ended(&stage.migrate(&[]).finish()).completed();
    assert_eq!(stage.state(1), "paused");
    stage.command(1, "cont");
    stage.settles_at(1);
}

/// The disk is full for QEMU.
#[test]
fn a_guest_with_an_i_o_error_arrives_with_it_or_keeps_it() {
    let (mut stage, gates) = gated();
    for arguments in [&[][..], &STREAM] {
        let [from, to] = [stage.source, 1 - stage.source];
        (0..2).for_each(|host| gates[host].fill("disk", true).unwrap());
        stage.wait_state(from, "io-error");
        let events = stage.migrate(arguments).finish();
        ended(&events).completed();
        assert_eq!(stage.state(to), "io-error");
        (0..2).for_each(|host| gates[host].fill("disk", false).unwrap());
        stage.command(to, "cont");
        stage.settles_at(to);
    }
}

/// Moves a guest whose next write fails at the destination, and returns that host and the error. On a busy machine an
/// emulated guest may not come to its next write while it is looked at: then it is moved once more.
fn stops_at_once(
    stage: &mut Stage,
    gates: &[linerate_lab::Gate; 2],
    arguments: &[&str],
) -> (usize, serde_json::Value) {
    for _ in 0..10 {
        let to = 1 - stage.source;
        gates[to].fill("disk", true).unwrap();
        let events = stage.migrate(arguments).finish();
        if ended(&events).exit != Some(0) {
            return (to, ended(&events).failed(10));
        }
        stage.wait_state(to, "io-error");
        gates[to].fill("disk", false).unwrap();
        stage.command(to, "cont");
        stage.settles_at(to);
    }
    panic!("a guest that stops in its first moment is reported as one that runs");
}

/// QEMU has let it run, and exit code 0 would say that it does.
#[test]
fn a_guest_that_an_i_o_error_stops_in_its_first_moment_is_not_reported_as_one_that_runs() {
    let (mut stage, gates) = gated();
    for arguments in [&[][..], &STREAM] {
        let (to, error) = stops_at_once(&mut stage, &gates, arguments);
        let said = [&error["code"], &error["guest_state"]].map(|text| text.as_str().unwrap_or_default());
        assert_eq!(said, ["guest_stopped", "stopped_at_destination"], "{error:#}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("moved") && message.contains("io-error"), "{message}");
        assert_eq!(stage.state(to), "io-error");
        gates[to].fill("disk", false).unwrap();
        stage.command(to, "cont");
        stage.settles_at(to);
    }
}

/// Links over which the rest of a copy still takes longer than QEMU needs to stop.
const MODERATE: [u64; 2] = [100, 100];

/// Larger, so that over slow links most of it is still to come when its disk fills up.
fn larger(mut guest: GuestSpec) -> GuestSpec {
    guest.memory_mb += 64 - guest.parameters.mem_mb;
    guest.parameters.mem_mb = 64;
    guest
}

/// Begins a migration in whose copy the guest's disk fills up. The links stay slow.
fn paused_while(stage: &Stage, arguments: &[&str], gates: &[linerate_lab::Gate; 2]) -> Migration {
    let from = stage.source;
    let migration = stage.migrate_slowly(arguments);
    gates[from].fill("disk", true).unwrap();
    gates[from].wait_refused(LONG).unwrap();
    migration
}

#[test]
fn an_i_o_error_during_the_copy_goes_along_or_stays() {
    const STREAM: [&str; 2] = ["--mode", "stream"];
    let (mut stage, gates) = Stage::gated(&MODERATE, larger(streamed()));
    for (arguments, cancels) in [(&[][..], false), (&STREAM, false), (&[][..], true), (&STREAM, true)] {
        let [from, to] = [stage.source, 1 - stage.source];
        let migration = paused_while(&stage, arguments, &gates);
        if cancels {
            migration.interrupt();
            let end = ended(&migration.finish());
            assert!(matches!(end.exit, Some(5 | 9)), "{:?}", end.exit);
            stage.speed_up();
        } else {
            stage.speed_up();
            ended(&migration.finish()).completed();
        }
        let place = if cancels { from } else { to };
        assert_eq!(stage.state(place), "io-error", "{arguments:?} {cancels}\n{}", stage.logs());
        gates[from].fill("disk", false).unwrap();
        stage.command(place, "cont");
        stage.settles_at(place);
    }
}

/// Only its operator lets it run again, though it ran when the migration began.
#[test]
fn a_guest_that_stopped_during_the_copy_is_not_run_by_the_next_agent() {
    let (mut stage, gates) = Stage::gated(&MODERATE, larger(guest(QemuVersion::Ten)));
    let loaded = gates[1].hold_before("destination.loaded").unwrap();
    let migration = paused_while(&stage, &[], &gates);
    stage.speed_up();
    loaded.wait(LONG).unwrap();
    stage.agent(0).kill().unwrap();
    gates[0].fill("disk", false).unwrap();
    stage.agent(0).restart().unwrap();
    drop(loaded);
    drop(migration);
    stage.until("it is rolled back", || stage.unfinished(0).is_empty().then_some(()));
    stage.stays(0, "postmigrate");
    stage.command(0, "cont");
    stage.settles_at(0);
}
