//! What the destination's QEMU does with a committed guest: runs it, keeps it paused, or cannot run it.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests, too, say what they expect

mod common;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::*;
use linerate_guest::incoming_qemu::{QemuBinary, build_incoming};
use linerate_guest::migrate::{DestinationQemu, SourceQemu, TakeOverResult};
use linerate_guest::procfs::run_time_ns;
use linerate_guest::qmp::{Qmp, QmpError};
use linerate_guest::read::read;
use linerate_guest::run_state::RunState;
use serde_json::json;

const SPEC: &str = "name = 'web'\nmemory = '64M'\nmachine = 'pc'\naccel = 'tcg'\n[[disk]]\npath = 'd.img'\n";

/// Both ends of a migration whose state is loaded and that is not committed.
struct Loaded {
    source: Running,
    waiting: Running,
    from: SourceQemu,
    to: DestinationQemu,
    /// Threads of the virtual CPUs at the destination.
    threads: Vec<i32>,
    /// As the source's QEMU reported when it stopped the guest.
    ran: bool,
}

/// What another client does to the guest, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pause {
    Never,
    Before,
    OnTheWay,
}

fn load(place: &Place, qemu: &QemuBinary, pause: Pause) -> Loaded {
    place.disk("d.img", 4);
    let mut source = start_spec(place, qemu, SPEC);
    if pause == Pause::Before {
        source.qmp().execute("stop", json!({}), soon()).unwrap();
    }
    let pid = source.record.process.pid;
    let guest = read(source.qmp(), pid, soon()).unwrap();
    let made = build_incoming(&guest, &place.incoming_options(qemu)).unwrap();
    let mut waiting = start_incoming(place, qemu, &made);
    let mut from = SourceQemu::new(source.qmp.take().unwrap(), soon()).unwrap();
    let pid = waiting.record.process.pid;
    let incoming = read(waiting.qmp(), pid, soon()).unwrap();
    let mut to = DestinationQemu::new(waiting.qmp.take().unwrap());
    let channel = place.path("m.sock");
    to.prepare(guest.is_running(), soon()).unwrap();
    to.incoming(&channel, soon()).unwrap();
    from.prepare(soon()).unwrap();
    if pause == Pause::OnTheWay {
        from.qmp().execute("stop", json!({}), soon()).unwrap();
    }
    from.begin(&channel, soon()).unwrap();
    let ran = from.wait_pre_switchover(soon(), &|| false).unwrap().ran;
    let mut here = std::fs::File::open(&source.record.ram_files[0]).unwrap();
    let mut there = std::fs::OpenOptions::new().write(true).open(&made.ram_files[0].path).unwrap();
    std::io::copy(&mut here, &mut there).unwrap();
    from.cont_switchover(soon()).unwrap();
    from.wait_completed(soon(), &|| false).unwrap();
    to.wait_loaded(soon(), &|| false).unwrap();
    Loaded { source, waiting, from, to, threads: incoming.process.vcpu_threads, ran }
}

/// Has the image open for writing, and its locks, until it is dropped.
struct Holder(Child);

impl Holder {
    fn of(image: &std::path::Path) -> Holder {
        let child = Command::new("qemu-io")
            .args(["-f", "raw", "-c", "sleep 600000"])
            .arg(image)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        while !linerate_guest::procfs::holds_locks(pid, image) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Holder(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether all of these threads wait for something. One that gets no CPU on a busy host does not.
fn all_wait(pid: i32, threads: &[i32]) -> bool {
    threads.iter().all(|thread| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
    })
}

/// The time that the guest's CPUs have used, once it rests: their threads still do a little when the state is loaded.
/// QEMU's main thread answers in between, so it has given the vCPU threads all that loading needs.
fn rested(loaded: &mut Loaded) -> u64 {
    let (pid, threads) = (loaded.waiting.record.process.pid, loaded.threads.clone());
    let now = || run_time_ns(pid, &threads).unwrap();
    let (mut before, mut since, end) = (now(), Instant::now(), soon());
    while since.elapsed() < Duration::from_millis(300) {
        std::thread::sleep(Duration::from_millis(10));
        assert_ne!(loaded.to.status(soon()).unwrap(), RunState::Running);
        if !all_wait(pid, &threads) || now() != before {
            assert!(Instant::now() < end, "its CPUs do not come to rest");
            (before, since) = (now(), Instant::now());
        }
    }
    before
}

#[test]
fn a_guest_that_ran_runs_and_its_cpus_show_whether_it_ever_did() {
    for qemu in qemus() {
        let place = Place::new();
        let mut loaded = load(&place, &qemu, Pause::Never);
        assert!(loaded.ran);
        let pid = loaded.waiting.record.process.pid;
        let before = rested(&mut loaded);
        for _ in 0..20 {
            assert_ne!(loaded.to.status(soon()).unwrap(), RunState::Running);
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(run_time_ns(pid, &loaded.threads), Some(before), "it has not run");
        // A snapshot that is taken as soon as it runs has its RAM in it.
        loaded.to.put_back(soon());
        let on = loaded.to.qmp().execute("query-migrate-capabilities", json!({}), soon()).unwrap();
        let on = on.as_array().unwrap().iter().filter(|one| one["state"] == true);
        assert!(on.clone().next().is_none(), "{:?}", on.collect::<Vec<_>>());
        assert!(matches!(loaded.to.take_over(true, soon()), TakeOverResult::Done));
        assert_eq!(loaded.to.status(soon()).unwrap(), RunState::Running);
        // Also if it is paused at once.
        loaded.to.qmp().execute("stop", json!({}), soon()).unwrap();
        assert!(run_time_ns(pid, &loaded.threads).is_some_and(|now| now > before));
    }
}

#[test]
fn a_guest_whose_disk_is_locked_is_refused_has_not_run_and_the_source_has_it_back() {
    for qemu in qemus() {
        let place = Place::new();
        let mut loaded = load(&place, &qemu, Pause::Never);
        let pid = loaded.waiting.record.process.pid;
        let before = Some(rested(&mut loaded));
        let holder = Holder::of(&place.path("disks/d.img"));
        let refused = loaded.to.take_over(true, soon());
        assert!(matches!(refused, TakeOverResult::Refused(_)), "{refused:?}");
        assert_ne!(loaded.to.status(soon()).unwrap(), RunState::Running);
        assert_eq!(run_time_ns(pid, &loaded.threads), before, "it has not run");
        drop(holder);
        drop(loaded.to);
        loaded.waiting.record.kill().unwrap();
        loaded.waiting.record.process.wait_end(soon());
        loaded.from.cancel_and_resume(soon()).unwrap();
        assert_eq!(loaded.from.status(soon()).unwrap(), RunState::Running);
    }
}

#[test]
fn a_guest_that_was_paused_before_arrives_paused_with_its_disks_or_not_at_all() {
    for qemu in qemus() {
        let place = Place::new();
        let mut loaded = load(&place, &qemu, Pause::Before);
        assert!(!loaded.ran);
        assert!(matches!(loaded.to.take_over(loaded.ran, soon()), TakeOverResult::Done));
        assert_eq!(loaded.to.status(soon()).unwrap(), RunState::Paused);
        let pid = loaded.waiting.record.process.pid;
        assert!(linerate_guest::procfs::holds_locks(pid, &place.path("disks/d.img")), "it has its disk");
        drop(loaded);

        let place = Place::new();
        let image = place.disk("d.img", 4);
        let mut loaded = load(&place, &qemu, Pause::Before);
        // QEMU 7.2 has the lock since it loaded the state; 10.0 takes it on command.
        if !linerate_guest::procfs::holds_locks(loaded.waiting.record.process.pid, &image) {
            let _holder = Holder::of(&image);
            let refused = loaded.to.take_over(false, soon());
            assert!(matches!(refused, TakeOverResult::Refused(_)), "{refused:?}");
        }
    }
}

#[test]
fn a_guest_that_an_operator_paused_on_the_way_is_not_made_to_run_anywhere() {
    for qemu in qemus() {
        let place = Place::new();
        let mut loaded = load(&place, &qemu, Pause::OnTheWay);
        assert!(!loaded.ran, "it did not run when it was stopped");
        let taken = loaded.to.take_over(false, soon());
        // QEMU 7.2 cannot take disks over without running the guest unless that was set before: then it reports that.
        assert!(matches!(taken, TakeOverResult::Done | TakeOverResult::Refused(_)), "{taken:?}");
        assert_ne!(loaded.to.status(soon()).unwrap(), RunState::Running);
        drop(loaded.to);
        loaded.waiting.record.kill().unwrap();
        loaded.waiting.record.process.wait_end(soon());
        loaded.from.cancel_and_resume(soon()).unwrap();
        assert!(!loaded.from.runs(soon()).unwrap(), "the pause is the operator's to end");
        drop(loaded.from);
        let mut qmp = Qmp::connect(&loaded.source.record.qmp, soon()).unwrap();
        qmp.execute("cont", json!({}), soon()).unwrap();
    }
}

/// What becomes of the connection on which QEMU got `cont`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lost {
    Late,
    /// It is another now, and the guest's CPUs have worked.
    Connection,
    /// It is another now, and QEMU never received it.
    Command,
}

/// QEMU gets the command to run the guest, and its answer is lost. Then an operator pauses the guest.
fn paused_behind_a_lost_answer(place: &Place, qemu: &QemuBinary, lost: Lost) -> Loaded {
    let mut loaded = load(place, qemu, Pause::Never);
    let before = rested(&mut loaded);
    let process = loaded.waiting.record.process;
    if lost != Lost::Command {
        process.signal(rustix::process::Signal::STOP).unwrap();
        let shortly = std::time::Instant::now() + std::time::Duration::from_millis(200);
        let error = loaded.to.qmp().execute("cont", json!({}), shortly).unwrap_err();
        assert!(matches!(error, QmpError::TimedOut { .. }), "{error}");
        process.signal(rustix::process::Signal::CONT).unwrap();
        loaded.to.qmp().execute("stop", json!({}), soon()).unwrap();
    }
    if lost != Lost::Late {
        loaded.to.qmp().hang_up();
        let worked = run_time_ns(process.pid, &loaded.threads).unwrap() > before;
        assert_eq!(worked, lost == Lost::Connection);
        let qmp = Qmp::connect(&loaded.waiting.record.qmp, soon()).unwrap();
        loaded.to.reconnect(qmp, worked);
    }
    loaded
}

#[test]
fn a_guest_that_was_paused_behind_a_lost_answer_is_not_let_run_again() {
    for qemu in qemus() {
        for lost in [Lost::Late, Lost::Connection] {
            let place = Place::new();
            let mut loaded = paused_behind_a_lost_answer(&place, &qemu, lost);
            for _ in 0..2 {
                assert!(matches!(loaded.to.take_over(true, soon()), TakeOverResult::Done));
                assert_eq!(loaded.to.status(soon()).unwrap(), RunState::Paused, "{lost:?}");
            }
        }
    }
}

#[test]
fn a_guest_that_missed_the_command_is_resumed_again() {
    for qemu in qemus() {
        let place = Place::new();
        let mut loaded = paused_behind_a_lost_answer(&place, &qemu, Lost::Command);
        assert!(matches!(loaded.to.take_over(true, soon()), TakeOverResult::Done));
        assert_eq!(loaded.to.status(soon()).unwrap(), RunState::Running);
        drop(loaded);
        // Whatever its CPUs' threads did: the guest has not run without its disk.
        let place = Place::new();
        let mut loaded = load(&place, &qemu, Pause::Never);
        loaded.to.qmp().hang_up();
        loaded.to.reconnect(Qmp::connect(&loaded.waiting.record.qmp, soon()).unwrap(), true);
        assert!(matches!(loaded.to.take_over(true, soon()), TakeOverResult::Done));
        assert_eq!(loaded.to.status(soon()).unwrap(), RunState::Running);
    }
}
