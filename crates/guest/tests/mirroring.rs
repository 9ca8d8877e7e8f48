//! Copied disks, between two real QEMUs. What is left when the guest is stopped is carried over before anything else
//! happens. Nothing of the copy is left when the guest is resumed at the source.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests, too, say what they expect

mod common;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::*;
use linerate_guest::description::{GuestDescription, ImageFormat};
use linerate_guest::drives::{DiskSelection, writable};
use linerate_guest::incoming_qemu::{QemuBinary, build_incoming};
use linerate_guest::migrate::{DestinationQemu, Export, MigrateError, SourceQemu, StreamLimits, Writes};
use linerate_guest::qmp::Qmp;
use linerate_guest::read::read;
use linerate_guest::run_state::RunState;
use serde_json::{Value, json};

const SPEC: &str = "name = 'web'\nmemory = '64M'\nmachine = 'pc'\naccel = 'tcg'\n[[disk]]\npath = 'd.img'\n";
const MIB: u64 = 1 << 20;

/// A boot sector that writes the 64 KiB from 0x20000 on, for ever: xor di, di; mov ax, 0x2000; mov es, ax; stosw; jmp
/// to the stosw.
const WRITES_RAM: [u8; 10] = [0x31, 0xff, 0xb8, 0x00, 0x20, 0x8e, 0xc0, 0xab, 0xeb, 0xfd];

fn boots(image: &Path) {
    let file = std::fs::OpenOptions::new().write(true).open(image).unwrap();
    file.write_all_at(&WRITES_RAM, 0).unwrap();
    file.write_all_at(&[0x55, 0xaa], 510).unwrap();
}

fn has_booted(qmp: &mut Qmp) -> bool {
    let line = json!({ "command-line": "xp /1wx 0x20000" });
    qmp.execute("human-monitor-command", line, soon()).unwrap().to_string().contains("0x20002000")
}

/// A guest whose disk is mirrored, and the QEMU that has the other image.
struct Pair {
    place: Place,
    source: SourceQemu,
    destination: DestinationQemu,
    images: [PathBuf; 2],
    description: GuestDescription,
    _guest: Running,
    waiting: Running,
}

fn export(path: &Path) -> Export {
    Export { path: path.to_owned(), format: ImageFormat::Raw, is_device: false, direct: false }
}

fn mirrored(qemu: &QemuBinary) -> Pair {
    mirrored_by(qemu, Writes::Background)
}

fn mirrored_by(qemu: &QemuBinary, writes: Writes) -> Pair {
    let place = Place::new();
    let images = ["d.img", "copy.img"].map(|name| place.disk(name, 8));
    boots(&images[0]);
    let mut guest = start_spec(&place, qemu, SPEC);
    let pid = guest.record.process.pid;
    let mut description = read(guest.qmp(), pid, soon()).unwrap();
    description.copied = writable(guest.qmp(), &description, DiskSelection::All, soon()).unwrap();
    let mut options = place.incoming_options(qemu);
    let [from, to] = images.each_ref().map(|path| path.to_str().unwrap().to_owned());
    options.paths.insert(from, to);
    let mut waiting = start_incoming(&place, qemu, &build_incoming(&description, &options).unwrap());
    let mut source = SourceQemu::new(guest.qmp.take().unwrap(), soon()).unwrap();
    let mut destination = DestinationQemu::new(waiting.qmp.take().unwrap());
    let socket = place.path("disks.sock");
    destination.export_disks(&[export(&images[1])], &socket, soon()).unwrap();
    source.begin_mirrors(&description.copied, &socket, writes, soon()).unwrap();
    source.wait_mirrors_ready(&|| false, &mut |_| {}).unwrap();
    Pair { place, source, destination, images, description, _guest: guest, waiting }
}

fn ask(qmp: &mut Qmp, command: &str, arguments: Value) -> Vec<Value> {
    qmp.execute(command, arguments, soon()).unwrap().as_array().cloned().unwrap_or_default()
}

/// Names of jobs, and of block nodes that are not the guest's.
fn remains(qmp: &mut Qmp) -> Vec<String> {
    let jobs: Vec<String> =
        ask(qmp, "query-jobs", json!({})).iter().map(|job| job["id"].to_string()).collect();
    let nodes = ask(qmp, "query-named-block-nodes", json!({}));
    let nodes = nodes.iter().map(|node| node["node-name"].to_string());
    jobs.into_iter().chain(nodes.filter(|name| name.contains("linerate"))).collect()
}

/// As the guest would, through its device.
fn write(qmp: &mut Qmp, offset: u64, bytes: u64) {
    let device = ask(qmp, "query-block", json!({}))[0]["qdev"].as_str().unwrap().to_owned();
    let line = format!("qemu-io -d {device} \"write -P 7 {offset} {bytes}\"");
    qmp.execute("human-monitor-command", json!({ "command-line": line }), soon()).unwrap();
}

#[test]
fn the_rest_is_copied_while_the_guest_is_paused_and_no_job_remains() {
    for qemu in qemus() {
        let mut pair = mirrored(&qemu);
        let qmp = pair.source.qmp();
        qmp.execute("stop", json!({}), soon()).unwrap();
        // So slow that much is left.
        let slow = json!({ "device": "linerate-disk-0", "speed": MIB });
        qmp.execute("block-job-set-speed", slow, soon()).unwrap();
        write(qmp, MIB, 2 * MIB);
        let progress = pair.source.complete_mirrors(soon(), &|| false).unwrap().unwrap();
        assert!(
            progress.done_bytes >= 2 * MIB && progress.done_bytes == progress.total_bytes,
            "{progress:?}"
        );
        assert_eq!(remains(pair.source.qmp()), Vec::<String>::new());
        let [ours, theirs] = pair.images.each_ref().map(|path| std::fs::read(path).unwrap());
        assert_eq!(ours[MIB as usize], 7, "nothing was written");
        assert!(ours == theirs, "the disks differ");
        assert!(pair.place.path("disks.sock").exists());
    }
}

/// Whether the other image has what the guest wrote when the write is done for the guest. The QEMU that has that image
/// does nothing until the guest has begun to write. If no write waits for it, it does nothing until the image was read.
fn is_there_when_it_is_written(qemu: &QemuBinary, writes: Writes) -> bool {
    let mut pair = mirrored_by(qemu, writes);
    let waiting = rustix::process::Pid::from_raw(pair.waiting.record.process.pid).unwrap();
    let signal = |signal| rustix::process::kill_process(waiting, signal).unwrap();
    signal(rustix::process::Signal::STOP);
    let goes_on = (writes == Writes::WriteBlocking).then(|| {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(500));
            let _ = rustix::process::kill_process(waiting, rustix::process::Signal::CONT);
        })
    });
    write(pair.source.qmp(), MIB, MIB);
    let there = std::fs::read(&pair.images[1]).unwrap()[MIB as usize..2 * MIB as usize] == [7; MIB as usize];
    match goes_on {
        Some(goes_on) => goes_on.join().unwrap(),
        None => signal(rustix::process::Signal::CONT),
    }
    there
}

#[test]
fn a_guest_whose_writes_wait_is_never_ahead_of_the_copy() {
    for qemu in qemus() {
        assert!(is_there_when_it_is_written(&qemu, Writes::WriteBlocking));
        assert!(!is_there_when_it_is_written(&qemu, Writes::Background));
    }
}

/// How often it was asked whether the guest may be stopped, until it was: the first 20 times it may not.
fn asked_until_it_was_stopped(qemu: &QemuBinary) -> u32 {
    let mut pair = mirrored(qemu);
    let end = soon();
    while !has_booted(pair.source.qmp()) {
        assert!(Instant::now() < end, "it does not boot");
        std::thread::sleep(Duration::from_millis(50));
    }
    let socket = pair.place.path("state.sock");
    let options = pair.destination.prepare_streams(0, &pair.description, soon()).unwrap();
    pair.destination.incoming(&socket, soon()).unwrap();
    let limits = StreamLimits { downtime: Duration::from_millis(300), throttle: false };
    pair.source.prepare_streams(options, limits, soon()).unwrap();
    pair.source.begin(&socket, soon()).unwrap();
    let mut asked = 0;
    let mut ask = |_| {
        asked += 1;
        (asked > 20).then_some(Duration::from_millis(300))
    };
    pair.source.wait_streams_held(&|| false, &mut ask).unwrap();
    pair.source.cancel(soon()).unwrap();
    assert_eq!(pair.source.status(soon()).unwrap(), RunState::Running);
    asked
}

/// Its RAM is over there within the first question. Only what the guest writes keeps QEMU from the end. Where the
/// machine gives the guest no time between two looks of QEMU's, it writes nothing. So it may be tried again.
#[test]
fn a_guest_is_not_stopped_before_its_disks_let_it() {
    for qemu in qemus() {
        let (mut asked, end) = (Vec::new(), soon());
        while asked.last().is_none_or(|last| *last <= 20) && (asked.is_empty() || Instant::now() < end) {
            asked.push(asked_until_it_was_stopped(&qemu));
        }
        assert!(asked.last() > Some(&20), "{qemu:?}: stopped at these questions: {asked:?}");
    }
}

#[test]
fn a_guest_that_rolls_back_has_no_job_and_no_node_of_the_copy() {
    for qemu in qemus() {
        let mut pair = mirrored(&qemu);
        assert_eq!(remains(pair.source.qmp()).len(), 2, "a job and what it writes to");
        pair.source.cancel(soon()).unwrap();
        assert_eq!(remains(pair.source.qmp()), Vec::<String>::new());
        assert_eq!(pair.source.status(soon()).unwrap(), RunState::Running);
    }
}

#[test]
fn a_mirror_whose_destination_ends_fails_and_is_removed() {
    for qemu in qemus() {
        let mut pair = mirrored(&qemu);
        pair.destination.quit(soon()).unwrap();
        write(pair.source.qmp(), 0, MIB);
        let failed = pair.source.complete_mirrors(soon(), &|| false);
        assert!(matches!(failed, Err(MigrateError::Mirror { .. })), "{failed:?}");
        pair.source.cancel(soon()).unwrap();
        assert_eq!(remains(pair.source.qmp()), Vec::<String>::new());
        assert_eq!(pair.source.status(soon()).unwrap(), RunState::Running);
    }
}

#[test]
fn an_image_that_the_guest_has_open_is_not_offered() {
    for qemu in qemus() {
        let place = Place::new();
        let image = place.disk("d.img", 8);
        let mut guest = start_spec(&place, &qemu, SPEC);
        let pid = guest.record.process.pid;
        let description = read(guest.qmp(), pid, soon()).unwrap();
        let mut waiting = start_incoming(
            &place,
            &qemu,
            &build_incoming(&description, &place.incoming_options(&qemu)).unwrap(),
        );
        let mut destination = DestinationQemu::new(waiting.qmp.take().unwrap());
        let refused = destination.export_disks(&[export(&image)], &place.path("disks.sock"), soon());
        assert!(matches!(refused, Err(MigrateError::ImageInUse { .. })), "{refused:?}");
    }
}
