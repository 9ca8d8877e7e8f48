//! Whole migrations from a source to an incoming QEMU, and their ends in each phase, with real QEMUs.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests, too, say what they expect

mod common;

use std::fs::OpenOptions;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;

use common::*;
use linerate_guest::host::{HostFacts, QemuCache, check_host};
use linerate_guest::incoming_qemu::{IncomingQemu, QemuBinary, build_incoming};
use linerate_guest::migrate::{DestinationQemu, MigrateError, PauseMark, SourceQemu, TakeOverResult};
use linerate_guest::qmp::Qmp;
use linerate_guest::read::read;
use linerate_guest::run_state::RunState;
use serde_json::{Value, json};

const SPEC: &str = "name = 'web'\nmemory = '64M'\nmachine = 'pc'\naccel = 'tcg'\n[[disk]]\npath = 'd.img'\n";

// In place: the incoming QEMU has the file mapped.
fn copy_ram(from: &Path, to: &Path) {
    let mut source = std::fs::File::open(from).unwrap();
    let mut target = OpenOptions::new().write(true).open(to).unwrap();
    io::copy(&mut source, &mut target).unwrap();
}

fn parameters(qmp: &mut Qmp) -> Value {
    qmp.execute("query-migrate-parameters", json!({}), soon()).unwrap()
}

fn ours_are_off(qmp: &mut Qmp) {
    let listed = qmp.execute("query-migrate-capabilities", json!({}), soon()).unwrap();
    for entry in listed.as_array().unwrap() {
        let name = entry["capability"].as_str().unwrap();
        if ["x-ignore-shared", "events", "pause-before-switchover"].contains(&name) {
            assert_eq!(entry["state"], Value::Bool(false), "{name}");
        }
    }
    let parameters = parameters(qmp);
    assert_eq!(parameters["announce-rounds"], 5);
    assert_eq!(parameters["downtime-limit"], 300);
    assert!(parameters["max-bandwidth"].as_u64().unwrap() < 1 << 40);
}

fn migrate(place: &Place, qemu: &QemuBinary) {
    place.disk("d.img", 4);
    let mut source = start_spec(place, qemu, SPEC);
    let pid = source.record.process.pid;
    let guest = read(source.qmp(), pid, soon()).unwrap();
    let options = place.incoming_options(qemu);
    let made = build_incoming(&guest, &options).unwrap();
    let facts = HostFacts {
        qemu: QemuCache::default().facts(qemu, soon()).unwrap(),
        memory_available: 1 << 40,
        ram_folder_available: None,
        huge_available: Vec::new(),
        guests: Vec::new(),
        kvm: true,
    };
    assert_eq!(check_host(&guest, &made, qemu, &options.file_roots, &facts), []);
    let mut waiting = start_incoming(place, qemu, &made);
    let mut from = SourceQemu::new(source.qmp.take().unwrap(), soon()).unwrap();
    let mut to = DestinationQemu::new(waiting.qmp.take().unwrap());
    let channel = place.path("m.sock");

    to.prepare(true, soon()).unwrap();
    to.incoming(&channel, soon()).unwrap();
    from.prepare(soon()).unwrap();
    from.begin(&channel, soon()).unwrap();
    let stopped = from.wait_pre_switchover(soon(), &|| false).unwrap();
    assert!(stopped.stopped.is_some() && stopped.waiting.is_some());
    let (there, here) = (&source.record.ram_files[0], &made.ram_files[0].path);
    copy_ram(there, here);
    from.cont_switchover(soon()).unwrap();
    from.wait_completed(soon(), &|| false).unwrap();
    to.wait_loaded(soon(), &|| false).unwrap();
    assert!(from.downtime_ms(soon()).unwrap().is_some());
    // Zero pages count too: the 16384 pages of RAM are not among those that QEMU sent.
    let sent = from.qmp().execute("query-migrate", json!({}), soon()).unwrap();
    let pages = |kind: &str| sent["ram"][kind].as_u64().unwrap();
    assert!(pages("normal") + pages("duplicate") < 8192, "{sent}");
    assert!(matches!(to.take_over(true, soon()), TakeOverResult::Done));
    // Its agent dies before it has put the settings back.
    let journal = serde_json::to_string(&to.found()).unwrap();
    drop(to);
    let found = serde_json::from_str(&journal).unwrap();
    let mut to = DestinationQemu::recovered(Qmp::connect(&waiting.record.qmp, soon()).unwrap(), found);
    assert_eq!(parameters(to.qmp())["announce-rounds"], 0);
    to.settle(soon());
    assert_eq!(to.status(soon()).unwrap(), RunState::Running);
    ours_are_off(to.qmp());
    assert_eq!(from.status(soon()).unwrap(), RunState::PostMigrate);
    assert!(matches!(from.cancel(soon()), Err(MigrateError::AlreadyCompleted)));
    assert_eq!(from.status(soon()).unwrap(), RunState::PostMigrate, "it must not run twice");
    assert!(matches!(from.resume(soon()), Err(MigrateError::RunState { .. })));

    // The arrived guest can be read, and moves on: its command line now has -incoming and -S.
    let mut qmp = to.into_qmp();
    let arrived = read(&mut qmp, waiting.record.process.pid, soon()).unwrap();
    assert_eq!((&arrived.machine, arrived.memory_bytes), (&guest.machine, guest.memory_bytes));
    let next = build_incoming(&arrived, &options).unwrap();
    assert_eq!(next.arguments, made.arguments, "an incoming QEMU of an incoming QEMU is the same");
    from.quit(soon()).unwrap();
    assert!(source.record.process.wait_end(soon()));
}

#[test]
fn a_guest_moves_to_its_incoming_qemu() {
    for qemu in qemus() {
        migrate(&Place::new(), &qemu);
    }
}

/// A guest, and its incoming QEMU, which listens at `m.sock`.
fn incoming_qemu_listens(
    place: &Place,
    qemu: &QemuBinary,
) -> (Running, IncomingQemu, Running, DestinationQemu) {
    place.disk("d.img", 4);
    let mut source = start_spec(place, qemu, SPEC);
    let pid = source.record.process.pid;
    let guest = read(source.qmp(), pid, soon()).unwrap();
    let made = build_incoming(&guest, &place.incoming_options(qemu)).unwrap();
    let mut waiting = start_incoming(place, qemu, &made);
    let mut to = DestinationQemu::new(waiting.qmp.take().unwrap());
    to.prepare(true, soon()).unwrap();
    to.incoming(&place.path("m.sock"), soon()).unwrap();
    (source, made, waiting, to)
}

/// Loaded, the links gone before the commit: the source has its disks back at once, though the other QEMU still waits
/// there.
#[test]
fn a_guest_that_is_loaded_and_not_committed_leaves_its_disks_to_the_source() {
    for qemu in qemus() {
        let place = Place::new();
        let (mut source, made, _waiting, mut to) = incoming_qemu_listens(&place, &qemu);
        let mut from = SourceQemu::new(source.qmp.take().unwrap(), soon()).unwrap();
        let channel = place.path("m.sock");
        from.prepare(soon()).unwrap();
        from.begin(&channel, soon()).unwrap();
        from.wait_pre_switchover(soon(), &|| false).unwrap();
        copy_ram(&source.record.ram_files[0], &made.ram_files[0].path);
        from.cont_switchover(soon()).unwrap();
        from.wait_completed(soon(), &|| false).unwrap();
        to.wait_loaded(soon(), &|| false).unwrap();
        from.cancel_and_resume(soon()).unwrap();
        assert_eq!(from.status(soon()).unwrap(), RunState::Running);
        assert_ne!(to.status(soon()).unwrap(), RunState::Running);
        ours_are_off(from.qmp());
    }
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Prepared,
    Begun,
    PreSwitchover,
    PeerGone,
}

#[test]
fn cancel_in_each_phase_leaves_the_source_running() {
    for qemu in qemus() {
        let place = Place::new();
        place.disk("d.img", 4);
        let mut source = start_spec(&place, &qemu, SPEC);
        let mut from = SourceQemu::new(source.qmp.take().unwrap(), soon()).unwrap();
        // Begun several times: cancel and pre-switchover meet at another moment each time.
        let phases = [Phase::Prepared, Phase::Begun, Phase::PreSwitchover, Phase::PeerGone];
        for phase in phases.into_iter().chain([Phase::Begun; 20]) {
            cancel_in(&place, &mut from, phase);
            assert_eq!(from.status(soon()).unwrap(), RunState::Running, "{phase:?}");
            ours_are_off(from.qmp());
        }
        // An agent that died at pre-switchover: another connects and knows from the journal that the guest ran and how
        // it was set.
        let before = parameters(from.qmp());
        let channel = place.path("dead.sock");
        let listener = UnixListener::bind(&channel).unwrap();
        from.prepare(soon()).unwrap();
        from.begin(&channel, soon()).unwrap();
        from.wait_pre_switchover(soon(), &|| false).unwrap();
        assert_ne!(parameters(from.qmp()), before);
        let journal = serde_json::to_string(&from.found()).unwrap();
        drop(from);
        let found = serde_json::from_str(&journal).unwrap();
        let mut heir =
            SourceQemu::recovered(Qmp::connect(&source.record.qmp, soon()).unwrap(), true, found, true);
        heir.cancel(soon()).unwrap();
        assert_eq!(heir.status(soon()).unwrap(), RunState::Running);
        ours_are_off(heir.qmp());
        assert_eq!(parameters(heir.qmp()), before);
        // One whose journal is of an older agent, which did not keep it.
        heir.prepare(soon()).unwrap();
        drop(heir);
        let mut heir =
            SourceQemu::recovered(Qmp::connect(&source.record.qmp, soon()).unwrap(), true, None, true);
        heir.cancel(soon()).unwrap();
        assert_eq!(heir.status(soon()).unwrap(), RunState::Running);
        drop(listener);
    }
}

fn cancel_in(place: &Place, from: &mut SourceQemu, phase: Phase) {
    let channel = place.path("c.sock");
    let _ = std::fs::remove_file(&channel);
    let listener = UnixListener::bind(&channel).unwrap();
    from.prepare(soon()).unwrap();
    if !matches!(phase, Phase::Prepared) {
        from.begin(&channel, soon()).unwrap();
        assert!(matches!(from.prepare(soon()), Err(MigrateError::Busy(_))));
    }
    if matches!(phase, Phase::PreSwitchover | Phase::PeerGone) {
        from.wait_pre_switchover(soon(), &|| false).unwrap();
        assert_ne!(from.status(soon()).unwrap(), RunState::Running, "the guest is stopped at pre-switchover");
    }
    if matches!(phase, Phase::PeerGone) {
        drop(listener.accept().unwrap());
        drop(listener);
        from.cont_switchover(soon()).unwrap();
        assert!(matches!(from.wait_completed(soon(), &|| false), Err(MigrateError::Failed { .. })));
    }
    from.cancel(soon()).unwrap();
}

#[test]
fn a_paused_guest_stays_paused_after_cancel() {
    for qemu in qemus() {
        let place = Place::new();
        place.disk("d.img", 4);
        let mut source = start_spec(&place, &qemu, SPEC);
        let mut from = SourceQemu::new(source.qmp.take().unwrap(), soon()).unwrap();
        assert!(from.pause(soon()).unwrap(), "it ran");
        assert!(!from.pause(soon()).unwrap(), "it was paused already");
        from.resume(soon()).unwrap();
        assert_eq!(from.status(soon()).unwrap(), RunState::Running);
        from.pause(soon()).unwrap();
        let mut from =
            SourceQemu::new(Qmp::connect(&source.record.qmp, reconnect(from)).unwrap(), soon()).unwrap();
        assert!(!from.ran());
        let channel = place.path("c.sock");
        let _listener = UnixListener::bind(&channel).unwrap();
        from.prepare(soon()).unwrap();
        from.begin(&channel, soon()).unwrap();
        assert!(from.wait_pre_switchover(soon(), &|| false).unwrap().stopped.is_none());
        from.cancel(soon()).unwrap();
        assert_eq!(from.status(soon()).unwrap(), RunState::Paused);
        from.resume(soon()).unwrap();
        assert_eq!(from.status(soon()).unwrap(), RunState::Running);
    }
}

/// Its state was written and thrown away: its operator has it as it was, with its disks, and it can be migrated again.
#[test]
fn a_paused_guest_that_rolls_back_is_paused_and_can_be_migrated_again() {
    for qemu in qemus() {
        let place = Place::new();
        let (mut source, made, _waiting, mut to) = incoming_qemu_listens(&place, &qemu);
        source.qmp().execute("stop", json!({}), soon()).unwrap();
        let mut from = SourceQemu::new(source.qmp.take().unwrap(), soon()).unwrap();
        write_state(&mut from, &place.path("m.sock"), &source, &made);
        to.wait_loaded(soon(), &|| false).unwrap();
        from.cancel_and_resume(soon()).unwrap();
        assert_eq!(from.status(soon()).unwrap(), RunState::Paused);
        ours_are_off(from.qmp());
        let blocks = from.qmp().execute("query-block", json!({}), soon()).unwrap();
        let drive = blocks[0]["device"].as_str().unwrap();
        let write = json!({ "command-line": format!("qemu-io {drive} \"write 0 512\"") });
        // A disk that is not taken over again ends QEMU here.
        from.qmp().execute("human-monitor-command", write, soon()).unwrap();
        // A later agent rolls back: its journal has the run state.
        for state in [RunState::Paused, RunState::PreLaunch] {
            write_state(&mut from, &discarding(&place, state.name()), &source, &made);
            drop(from);
            let qmp = Qmp::connect(&source.record.qmp, soon()).unwrap();
            from = SourceQemu::recovered(qmp, false, None, true).with_run_state_before(Some(state));
            from.cancel_and_resume(soon()).unwrap();
            assert_eq!(from.status(soon()).unwrap(), RunState::Paused);
        }
    }
}

/// Paused by its operator while it moves, or stopped by itself: only the operator lets it run.
#[test]
fn a_guest_that_did_not_run_is_not_run_after_a_roll_back() {
    for qemu in qemus() {
        let place = Place::new();
        place.disk("d.img", 4);
        let mut source = start_spec(&place, &qemu, SPEC);
        source.qmp().execute("stop", json!({}), soon()).unwrap();
        for (state, wanted) in [
            (None, RunState::PostMigrate),
            (Some(RunState::GuestPanicked), RunState::PostMigrate),
            (Some(RunState::Paused), RunState::Paused),
        ] {
            drop(source.qmp.take());
            let mut from =
                SourceQemu::new(Qmp::connect(&source.record.qmp, soon()).unwrap(), soon()).unwrap();
            if from.status(soon()).unwrap() == RunState::PostMigrate {
                from.qmp().execute("cont", json!({}), soon()).unwrap();
                from.qmp().execute("stop", json!({}), soon()).unwrap();
            }
            from.prepare(soon()).unwrap();
            from.begin(&discarding(&place, "c.sock"), soon()).unwrap();
            from.wait_pre_switchover(soon(), &|| false).unwrap();
            from.cont_switchover(soon()).unwrap();
            from.wait_completed(soon(), &|| false).unwrap();
            drop(from);
            let qmp = Qmp::connect(&source.record.qmp, soon()).unwrap();
            let mut heir =
                SourceQemu::recovered(qmp, state.is_some(), None, true).with_run_state_before(state.clone());
            heir.cancel_and_resume(soon()).unwrap();
            assert_eq!(heir.status(soon()).unwrap(), wanted, "{state:?}");
        }
    }
}

/// The agent stops a guest for moments itself, and its operator may stop it while no agent is there.
#[test]
fn the_next_agent_resumes_a_guest_that_the_agent_stopped_and_none_that_its_operator_stopped() {
    for qemu in qemus() {
        let place = Place::new();
        place.disk("d.img", 4);
        let mut source = start_spec(&place, &qemu, SPEC);
        drop(source.qmp.take());
        let folder = place.path("run/guests/web");
        let mark = |session: &str| PauseMark::new(&folder, session);
        let connect = || Qmp::connect(&source.record.qmp, soon()).unwrap();
        let next_agent = |session: &str| {
            let mark = mark(session);
            let mut heir = SourceQemu::recovered(connect(), true, None, mark.is_set());
            heir.mark_pauses(mark);
            heir.cancel_and_resume(soon()).unwrap();
            heir.status(soon()).unwrap()
        };
        let agent = || {
            let mut from = SourceQemu::new(connect(), soon()).unwrap();
            from.mark_pauses(mark("s1"));
            from
        };
        assert!(agent().pause(soon()).unwrap());
        assert!(mark("s1").is_set() && !mark("s2").is_set());
        assert_eq!(next_agent("s1"), RunState::Running);
        assert!(!mark("s1").is_set());
        let mut from = agent();
        assert!(from.pause(soon()).unwrap());
        from.resume(soon()).unwrap();
        drop(from);
        connect().execute("stop", json!({}), soon()).unwrap();
        assert!(!agent().pause(soon()).unwrap());
        assert_eq!(next_agent("s1"), RunState::Paused, "it is the operator's");
    }
}

/// What it did when QEMU stopped it counts, not what it did at the beginning.
#[test]
fn a_guest_resumed_by_its_operator_runs_after_a_roll_back() {
    for qemu in qemus() {
        let place = Place::new();
        place.disk("d.img", 4);
        let mut source = start_spec(&place, &qemu, SPEC);
        source.qmp().execute("stop", json!({}), soon()).unwrap();
        let mut from = SourceQemu::new(source.qmp.take().unwrap(), soon()).unwrap();
        from.prepare(soon()).unwrap();
        from.qmp().execute("cont", json!({}), soon()).unwrap();
        from.begin(&discarding(&place, "c.sock"), soon()).unwrap();
        assert!(from.wait_pre_switchover(soon(), &|| false).unwrap().ran);
        from.cont_switchover(soon()).unwrap();
        from.wait_completed(soon(), &|| false).unwrap();
        from.cancel_and_resume(soon()).unwrap();
        assert_eq!(from.status(soon()).unwrap(), RunState::Running);
    }
}

/// QEMU writes the whole state to this socket.
fn write_state(from: &mut SourceQemu, socket: &Path, source: &Running, made: &IncomingQemu) {
    from.prepare(soon()).unwrap();
    from.begin(socket, soon()).unwrap();
    assert!(!from.wait_pre_switchover(soon(), &|| false).unwrap().ran);
    copy_ram(&source.record.ram_files[0], &made.ram_files[0].path);
    from.cont_switchover(soon()).unwrap();
    from.wait_completed(soon(), &|| false).unwrap();
    // QEMU says that it is completed a moment before its run state does.
    let mut state = from.status(soon()).unwrap();
    while state == RunState::FinishMigrate {
        state = from.status(soon()).unwrap();
    }
    assert_eq!(state, RunState::PostMigrate);
}

/// A socket that takes one stream and throws it away.
fn discarding(place: &Place, name: &str) -> std::path::PathBuf {
    let path = place.path(name);
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || io::copy(&mut listener.accept().unwrap().0, &mut io::sink()));
    path
}

// One client at a time: the old connection goes before the new one comes.
fn reconnect(old: SourceQemu) -> std::time::Instant {
    drop(old);
    soon()
}

#[test]
fn a_destination_that_cannot_load_is_an_error() {
    for qemu in qemus() {
        let place = Place::new();
        let (_source, _made, _waiting, mut to) = incoming_qemu_listens(&place, &qemu);
        let channel = place.path("m.sock");
        use std::io::Write;
        let mut stream = std::os::unix::net::UnixStream::connect(&channel).unwrap();
        stream.write_all(&[0xff; 64]).unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Both);
        let error = to.wait_loaded(soon(), &|| false).unwrap_err();
        assert!(matches!(error, MigrateError::LoaderEnded(_) | MigrateError::Failed { .. }), "{error:?}");
    }
}
