//! What is asked of a guest of this host's registry before commit is sent.

use std::fs::{self, File};
use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use linerate_core::source::Event;
use linerate_core::{Code, Fault, GuestState, ModeTag, Outcome, Side, Step};
use linerate_guest::description::Disk;
use linerate_guest::graph::DiskGraph;
use linerate_guest::registry::{GuestRecord, Origin};
use linerate_guest::run_state::RunState;
use linerate_guest::shared;
use linerate_net::tcp::listen::Accepted;
use tempfile::TempDir;

use super::super::Input;
use super::super::driver::{self, GuestRam, ModeParts};
use super::super::start::check_devices;
use super::super::worker::Worker;
use super::domain::{Fake, guest_of};
use super::{LONG, outgoing_of, sends_commit};
use crate::ran_here::Sighting;
use crate::security::Security;
use crate::session::links::Losses;
use crate::testing::{closed_port, listen};

/// The guest's disk.
fn vda(path: String, protocol: &str) -> Disk {
    Disk {
        id: "vda".into(),
        path,
        format: "raw".into(),
        protocol: protocol.into(),
        read_only: false,
        direct: false,
        aio: None,
        drop_cache: true,
        size: 4096,
        flash: false,
    }
}

/// The answer for a guest whose disk is `replaced` by another file of its name when the destination has found its mark.
fn checked_before_commit(replaced: bool) -> Input {
    let dir: TempDir = tempfile::tempdir().unwrap();
    let sessions = crate::testing::agent(&dir, &[]).outgoing.clone();
    let fake = Fake::default();
    fake.set("postmigrate", "completed");
    let (outgoing, inputs) = outgoing_of(ModeTag::Direct);
    let mut guest = guest_of(&fake, dir.path(), &outgoing, false);
    let image = dir.path().join("d.img");
    fs::write(&image, [7; 4096]).unwrap();
    let _opened_by_the_guest = File::open(&image).unwrap();
    guest.description.disks = vec![vda(image.to_str().unwrap().into(), "file")];
    let (_, marks) = shared::describe(&guest.description, &[]).unwrap();
    if replaced {
        fs::rename(&image, dir.path().join("aside")).unwrap();
        fs::write(&image, [7; 4096]).unwrap();
    }
    let mode = ModeParts::Direct { ram: GuestRam::default(), marks };
    let worker = Worker::start(driver::of(&sessions, guest, mode).unwrap()).unwrap();
    worker.submit("check source unchanged", |guest| guest.check_source_unchanged());
    inputs.recv_timeout(LONG).unwrap()
}

/// The cause is not in the log alone.
#[test]
fn why_a_guest_is_not_resumed_or_ended_is_known_to_an_operator() {
    let dir: TempDir = tempfile::tempdir().unwrap();
    let sessions = crate::testing::agent(&dir, &[]).outgoing.clone();
    let fake = Fake::default();
    fake.set("postmigrate", "completed");
    let (outgoing, inputs) = outgoing_of(ModeTag::Direct);
    let mut guest = guest_of(&fake, dir.path(), &outgoing, false);
    let (_, marks) = shared::describe(&guest.description, &[]).unwrap();
    // Nothing listens at the socket any more then.
    guest.qemu.qmp().hang_up();
    let mode = ModeParts::Direct { ram: GuestRam::default(), marks };
    let worker = Worker::start(driver::of(&sessions, guest, mode).unwrap()).unwrap();
    let refused = Fault::new(Code::HypervisorFailed, Step::CleanUp, Side::Source, "it does not end");
    worker.submit("clean up", move |_| Err(refused));
    let failed = inputs.recv_timeout(LONG).unwrap();
    assert!(matches!(failed, Input::Event(Event::Failed(_))));
    assert_eq!(outgoing.trouble.lock().as_deref(), Some("it does not end"));
    worker.roll_back();
    let rolled_back = inputs.recv_timeout(LONG).unwrap();
    assert!(matches!(rolled_back, Input::Event(Event::RolledBack { complete: false, .. })));
    let trouble = outgoing.trouble.lock().clone().unwrap();
    assert!(trouble.contains("QMP"), "{trouble}");
    worker.finish();
}

/// A command without an answer may still be carried out. No operator may let the other copy run as long as it is tried.
#[test]
fn a_destination_is_asked_before_each_try_also_if_its_guests_qemu_does_not_answer_at_the_source() {
    let dir: TempDir = tempfile::tempdir().unwrap();
    let sessions = crate::testing::agent(&dir, &[]).outgoing.clone();
    let fake = Fake::default();
    fake.set("postmigrate", "completed");
    // It takes questions, and answers none.
    let peer = TcpListener::bind("127.0.0.1:0").unwrap();
    let (outgoing, inputs) = outgoing_of(ModeTag::Streams);
    let mut outgoing = Arc::into_inner(outgoing).unwrap();
    outgoing.losses = Losses::of_link_to(peer.local_addr().unwrap());
    sends_commit(&outgoing);
    let outgoing = Arc::new(outgoing);
    let mut guest = guest_of(&fake, dir.path(), &outgoing, false);
    let (_, marks) = shared::describe(&guest.description, &[]).unwrap();
    // Nothing listens at the socket any more then.
    guest.qemu.qmp().hang_up();
    let mode = ModeParts::Direct { ram: GuestRam::default(), marks };
    let worker = Worker::start(driver::of(&sessions, guest, mode).unwrap()).unwrap();
    worker.roll_back();
    let asked = std::thread::spawn(move || {
        let mut asked = 0;
        while let Ok((stream, _)) = peer.accept() {
            drop(stream);
            asked += 1;
            if asked == 6 {
                break;
            }
        }
        asked
    });
    let rolled_back = inputs.recv_timeout(LONG).unwrap();
    assert!(matches!(rolled_back, Input::Event(Event::RolledBack { complete: false, .. })));
    crate::testing::wait("it is not asked before each of five tries", || asked.is_finished());
    assert_eq!(asked.join().unwrap(), 6);
    worker.finish();
}

/// An operator has let it run there. Its links are lost, and the network by which it was reached first works.
#[test]
fn a_destination_is_asked_at_the_addresses_of_to_as_well_before_its_guest_is_resumed_at_the_source() {
    let dir: TempDir = tempfile::tempdir().unwrap();
    let sessions = crate::testing::agent(&dir, &[]).outgoing.clone();
    let fake = Fake::default();
    fake.set("postmigrate", "completed");
    let destination = listen(&Security::insecure(), |accepted: Accepted| {
        let _ = accepted.outcome(Outcome::Committed);
    });
    let (_held, lost) = closed_port();
    let (outgoing, inputs) = outgoing_of(ModeTag::Streams);
    let mut outgoing = Arc::into_inner(outgoing).unwrap();
    outgoing.losses = Losses::of_link_to(lost);
    outgoing.peers = destination.addresses().to_vec();
    sends_commit(&outgoing);
    let outgoing = Arc::new(outgoing);
    let guest = guest_of(&fake, dir.path(), &outgoing, false);
    let (_, marks) = shared::describe(&guest.description, &[]).unwrap();
    let mode = ModeParts::Direct { ram: GuestRam::default(), marks };
    let worker = Worker::start(driver::of(&sessions, guest, mode).unwrap()).unwrap();
    worker.roll_back();
    let rolled_back = inputs.recv_timeout(LONG).unwrap();
    let paused = GuestState::PausedAtSource;
    assert!(
        matches!(rolled_back, Input::Event(Event::RolledBack { guest, complete: false }) if guest == paused),
        "recovery does not go on"
    );
    worker.finish();
    assert!(!fake.is_resumed(), "it runs on both hosts");
}

#[test]
fn a_disk_that_was_replaced_under_its_name_is_found_before_commit() {
    assert!(matches!(checked_before_commit(false), Input::SourceUnchanged));
    match checked_before_commit(true) {
        Input::Event(Event::Failed(fault)) => {
            assert_eq!(fault.code, Code::GuestDiffers, "{fault}");
            assert!(fault.detail.contains("vda") && fault.detail.contains("replaced"), "{fault}");
        }
        _ => panic!("a guest with a disk that was replaced counts as it was"),
    }
}

#[test]
fn a_device_that_went_while_the_guest_was_looked_at_is_noticed() {
    let dir: TempDir = tempfile::tempdir().unwrap();
    let (outgoing, _inputs) = outgoing_of(ModeTag::Direct);
    // It lists no devices.
    let mut guest = guest_of(&Fake::default(), dir.path(), &outgoing, false);
    let deadline = Instant::now() + LONG;
    check_devices(&mut guest.qemu, &guest.description, deadline).unwrap();
    guest.description.arguments = ["-device", "virtio-rng-pci,id=rng"].map(str::to_owned).to_vec();
    let fault = check_devices(&mut guest.qemu, &guest.description, deadline).unwrap_err();
    assert_eq!(fault.code, Code::NotMigratable);
    assert!(fault.detail.contains("rng unplugged"), "{fault}");
}

/// What the CPU writes for guests of a guest is not tracked. QEMU's own streams have it.
#[test]
fn a_guest_that_has_begun_to_run_guests_of_its_own_is_not_committed_in_direct_mode() {
    for tag in [ModeTag::Direct, ModeTag::Streams] {
        let dir: TempDir = tempfile::tempdir().unwrap();
        let sessions = crate::testing::agent(&dir, &[]).outgoing.clone();
        let fake = Fake::default();
        fake.set_nested("postmigrate", "completed");
        let (outgoing, inputs) = outgoing_of(tag);
        let guest = guest_of(&fake, dir.path(), &outgoing, false);
        let (_, marks) = shared::describe(&guest.description, &[]).unwrap();
        let mode = match tag {
            ModeTag::Streams => ModeParts::Streams { marks },
            _ => ModeParts::Direct { ram: GuestRam::default(), marks },
        };
        let worker = Worker::start(driver::of(&sessions, guest, mode).unwrap()).unwrap();
        worker.submit("check source unchanged", |guest| guest.check_source_unchanged());
        let is_answer =
            |input: &Input| matches!(input, Input::SourceUnchanged | Input::Event(Event::Failed(_)));
        match inputs.iter().find(is_answer) {
            Some(Input::Event(Event::Failed(fault))) => {
                assert_eq!((tag, fault.code), (ModeTag::Direct, Code::TrackingFailed), "{fault}");
            }
            _ => assert_eq!(tag, ModeTag::Streams),
        }
        worker.finish();
    }
}

/// A block device with less space behind it than it says. Detached when dropped.
struct FullDevice {
    place: TempDir,
    device: PathBuf,
}

impl FullDevice {
    fn new() -> FullDevice {
        let place = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(place.path());
        assert!(mount.status().unwrap().success());
        let file = place.path().join("file");
        File::create(&file).unwrap().set_len(16 << 20).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&file).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        FullDevice { place, device: String::from_utf8(made.stdout).unwrap().trim().into() }
    }
}

impl Drop for FullDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
        let _ = Command::new("umount").arg("--lazy").arg(self.place.path()).status();
    }
}

/// What becomes of a guest when QEMU holds it. What it wrote to its disk (`cache=unsafe`) cannot be flushed.
fn held_and_not_flushed(run_state: RunState) -> Input {
    let full = FullDevice::new();
    let dir: TempDir = tempfile::tempdir().unwrap();
    let sessions = crate::testing::agent(&dir, &[]).outgoing.clone();
    fs::create_dir_all(sessions.registry.folder("g").unwrap()).unwrap();
    let fake = Fake::default();
    fake.set("paused", "none");
    let (outgoing, inputs) = outgoing_of(ModeTag::Direct);
    let mut guest = guest_of(&fake, dir.path(), &outgoing, false);
    guest.description.run_state = run_state;
    let path = full.device.to_str().unwrap();
    guest.description.disks = vec![vda(path.into(), "host_device")];
    let node = serde_json::json!({
        "name": "n", "driver": "host_device", "path": path, "read_only": false, "size": 4096, "children": []
    });
    let graph = serde_json::json!({ "drives": [], "unused": [], "nodes": [node], "jobs": [] });
    let mut graph = DiskGraph::from_json(&graph.to_string()).unwrap();
    graph.nodes[0].no_flush = true;
    guest.description.graph = Some(graph);
    let mut opened_by_the_guest = File::options().write(true).open(&full.device).unwrap();
    let (_, marks) = shared::describe(&guest.description, &[]).unwrap();
    opened_by_the_guest.write_all(&[7; 4 << 20]).unwrap();
    let mode = ModeParts::Direct { ram: GuestRam::default(), marks };
    let worker = Worker::start(driver::of(&sessions, guest, mode).unwrap()).unwrap();
    worker.submit("switch over", |guest| guest.switch_over());
    // It has looked by then that no other migration is in progress.
    fake.wait_asked(1);
    fake.set("paused", "pre-switchover");
    let held = loop {
        let input = inputs.recv_timeout(LONG).unwrap();
        if matches!(input, Input::Event(Event::PreSwitchover { .. } | Event::Failed(_))) {
            break input;
        }
    };
    worker.finish();
    held
}

/// A QEMU older than 10.0 that was prepared for a guest that does not run reads its disks when it loads the state. For
/// any other guest it is early enough when the state has been written.
#[test]
fn disks_of_a_guest_that_does_not_run_are_flushed_before_its_state_is_written() {
    match held_and_not_flushed(RunState::Paused) {
        Input::Event(Event::Failed(fault)) => {
            assert!(fault.detail.contains("vda") && fault.detail.contains("cache=unsafe"), "{fault}");
        }
        _ => panic!("the destination would read older data"),
    }
    let held = held_and_not_flushed(RunState::Running);
    assert!(matches!(held, Input::Event(Event::PreSwitchover { .. })), "it is flushed twice in the blackout");
}

/// What is seen of a guest in this run state. `is_lost`: the connection to its QEMU broke before, as it does when QEMU
/// does not answer in time.
fn seen_before_a_question(run_state: &'static str, is_lost: bool) -> Sighting {
    let dir: TempDir = tempfile::tempdir().unwrap();
    let sessions = crate::testing::agent(&dir, &[]).outgoing.clone();
    let fake = Fake::default();
    fake.set(run_state, "completed");
    let (outgoing, inputs) = outgoing_of(ModeTag::Direct);
    let mut guest = guest_of(&fake, dir.path(), &outgoing, false);
    if is_lost {
        guest.qemu.qmp().hang_up();
        fs::remove_file(&guest.record.qmp).unwrap();
        fake.serve(&guest.record.qmp);
    }
    let (_, marks) = shared::describe(&guest.description, &[]).unwrap();
    let mode = ModeParts::Direct { ram: GuestRam::default(), marks };
    let worker = Worker::start(driver::of(&sessions, guest, mode).unwrap()).unwrap();
    worker.submit("check source intact", |guest| guest.check_source_intact());
    let seen = inputs.recv_timeout(LONG).unwrap();
    worker.finish();
    match seen {
        Input::SourceSeen(seen) => seen,
        _ => panic!("{run_state}: another answer"),
    }
}

/// A client that has resumed the guest may have stopped it again.
#[test]
fn only_a_guest_in_the_state_in_which_its_migration_left_it_has_not_run() {
    for is_lost in [false, true] {
        for run_state in ["postmigrate", "finish-migrate"] {
            assert_eq!(seen_before_a_question(run_state, is_lost), Sighting::Stopped, "{run_state}");
        }
        for run_state in ["running", "paused", "prelaunch", "io-error"] {
            assert_eq!(seen_before_a_question(run_state, is_lost), Sighting::Resumed, "{run_state}");
        }
    }
}

/// With exit code 0 nobody would look at disks that both copies have written to.
#[test]
fn a_guest_that_another_program_runs_here_is_seen_before_its_qemu_is_ended() {
    for (run_state, ran) in [("postmigrate", false), ("running", true), ("paused", true)] {
        let dir: TempDir = tempfile::tempdir().unwrap();
        let sessions = crate::testing::agent(&dir, &[]).outgoing.clone();
        let fake = Fake::default();
        fake.set(run_state, "completed");
        let (outgoing, inputs) = outgoing_of(ModeTag::Direct);
        let mut guest = guest_of(&fake, dir.path(), &outgoing, false);
        let mut process = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = i32::try_from(process.id()).unwrap();
        guest.record =
            GuestRecord::new("g", Origin::Adopted, pid, guest.record.qmp.clone(), Vec::new()).unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
        let (_, marks) = shared::describe(&guest.description, &[]).unwrap();
        let mode = ModeParts::Direct { ram: GuestRam::default(), marks };
        let worker = Worker::start(driver::of(&sessions, guest, mode).unwrap()).unwrap();
        worker.submit("clean up", |guest| guest.clean_up());
        let first = inputs.recv_timeout(LONG).unwrap();
        assert_eq!(matches!(first, Input::RanHereToo), ran, "{run_state}");
        worker.finish();
    }
}
