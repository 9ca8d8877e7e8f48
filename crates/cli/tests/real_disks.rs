//! Guests of real agents take disks along that the hosts do not share: by QEMU's mirror, over every link. As root, with
//! what lab/install.sh installs. One at a time, as in `real_stream.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Tests say what they expect.

#[path = "real/stage.rs"]
#[allow(dead_code, reason = "shared with real_migration.rs")]
mod stage;

#[path = "real/devices.rs"]
mod devices;
#[path = "real/images.rs"]
mod images;

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use linerate_lab::disk::SLOT_BYTES;
use linerate_lab::guest::{kvm_is_missing, not_run};
use linerate_lab::{DiskMode, GuestParameters, GuestSpec, QemuVersion, Qmp};
use serde_json::{Value, json};
use stage::{Migration, Stage, ended, lost, round_began};

/// Long enough for a slow machine; only a hang reaches it.
const LONG: Duration = Duration::from_secs(120);
const SLOW: [u64; 2] = [300, 300];
/// Long enough for slow links.
const ROOMY: [&str; 2] = ["--max-blackout", "5s"];
const COPY: [&str; 2] = ["--copy-storage", "all"];
/// The same for a guest that is to arrive: on a busy machine less may be carried in 300 ms than it writes.
const ARRIVE: [&str; 4] = ["--copy-storage", "all", "--max-blackout", "5s"];
/// For a guest that is to be met on the way and to arrive: its memory alone takes about six seconds.
const UNHURRIED: [&str; 2] = ["--bandwidth", "40M"];
/// For what is to fail while its disk is copied, which takes about twenty seconds.
const SLOWLY: [&str; 4] = ["--copy-storage", "all", "--bandwidth", "10M"];
/// Exit code where a host cannot take the guest.
const REFUSED: i64 = 4;
/// Most disks that are copied.
const DISKS_MAX: u32 = 24;
/// Exit code where the guest has ended.
const GONE: i64 = 7;
const MIB: u64 = 1 << 20;
/// What the disk that the guest leaves alone holds: bytes of no pattern, as many zeros that are written, and many times
/// that of holes.
const CONTENT: u64 = 24 * MIB;
const DISK: u64 = 256 * MIB;
/// What the disk holds that the guest writes all the time.
const BUSY: u64 = 16 * MIB;

fn parameters() -> GuestParameters {
    GuestParameters {
        mem_mb: 32,
        dirty_mbps: 10,
        dirty_ws_mb: Some(8),
        verify_mbps: 400,
        ..GuestParameters::default()
    }
}

/// Without a kernel, under KVM: quick, and QEMU 7.2 harms emulated guests (docs/stream-mode.md). It leaves disks alone
/// that it is given by arguments.
fn quick(version: QemuVersion) -> Option<GuestSpec> {
    let missing = kvm_is_missing().map(|error| not_run(&format!("no /dev/kvm ({error})")));
    let parameters = GuestParameters { dirty_mbps: 0, ..parameters() };
    missing.is_none().then(|| GuestSpec::user_mode("g", parameters).qemu(version))
}

/// Under KVM if there is one.
fn guest() -> GuestSpec {
    let bare = GuestSpec::bare("g", GuestParameters { dirty_mbps: 0, ..parameters() });
    if kvm_is_missing().is_none() { quick(QemuVersion::Ten).unwrap() } else { bare.qemu(QemuVersion::Ten) }
}

fn content() -> Vec<u8> {
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()
    };
    (0..CONTENT / 8).flat_map(|_| next()).collect()
}

/// A disk with content, zeros and holes.
fn fill(path: &Path) {
    let disk = File::create(path).unwrap();
    disk.set_len(DISK).unwrap();
    disk.write_all_at(&content(), 32 * MIB).unwrap();
    disk.write_all_at(&vec![0; CONTENT as usize], 128 * MIB).unwrap();
    disk.sync_all().unwrap();
}

fn drive(path: &Path, format: &str) -> Vec<String> {
    let drive = format!("if=none,id={format},format={format},file={}", path.display());
    ["-drive", &drive, "-device", &format!("virtio-blk-pci,drive={format}")].map(str::to_owned).into()
}

fn raw(folder: &Path) -> Vec<String> {
    let image = folder.join("raw.img");
    fill(&image);
    drive(&image, "raw")
}

fn qcow2(folder: &Path) -> Vec<String> {
    let [from, to] = ["filled", "qcow2.img"].map(|name| folder.join(name));
    fill(&from);
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-f", "raw", "-O", "qcow2"]).args([&from, &to]);
    assert!(convert.status().unwrap().success());
    std::fs::remove_file(from).unwrap();
    drive(&to, "qcow2")
}

fn both(folder: &Path) -> Vec<String> {
    [raw(folder), qcow2(folder)].concat()
}

/// Both hosts' images hold the same disk, and that of the guest is no larger than what it holds.
fn is_the_same(stage: &Stage, format: &str) {
    let [image, left] = stage.disks().map(|folder| folder.join(format!("{format}.img")));
    let mut compare = Command::new("qemu-img");
    // The guest runs and holds the lock of its image.
    compare.args(["compare", "-U", "-f", format, "-F", format]).args([&image, &left]);
    let output = compare.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let used = std::fs::metadata(&image).unwrap().blocks() * 512;
    assert!((CONTENT..CONTENT + 4 * MIB).contains(&used), "{used} bytes are used");
}

/// Some of the disk is over there, and some is not.
fn disk_began(event: &Value) -> bool {
    let bytes = |key: &str| event["disks"][key].as_u64().unwrap_or(0);
    event["kind"] == "progress" && bytes("done_bytes") > MIB && bytes("done_bytes") < bytes("total_bytes")
}

/// All of the disk is over there, and memory is being copied.
fn memory_began(event: &Value) -> bool {
    round_began(event) && event["disks"]["total_bytes"].as_u64().unwrap_or(0) > 0
}

/// What the source's QEMU says of jobs and of block nodes that are not the guest's.
fn remains(stage: &Stage) -> Vec<String> {
    let folder = stage.lab.hosts()[stage.source].run_directory().join("guests/g");
    for socket in ["state.sock", "disks.sock", "qemu/state.sock", "qemu/disks.sock"] {
        assert!(!folder.join(socket).exists(), "{socket} is left");
    }
    let mut qemu = Qmp::of_guest(&stage.lab.hosts()[stage.source], "g").unwrap();
    let mut ask = |command: &str| qemu.execute(command, Value::Null).unwrap().as_array().cloned().unwrap();
    let jobs = ask("query-jobs").into_iter().map(|job| job["id"].to_string());
    let jobs: Vec<String> = jobs.collect();
    let nodes = ask("query-named-block-nodes").into_iter().map(|node| node["node-name"].to_string());
    jobs.into_iter().chain(nodes.filter(|name| name.contains("linerate"))).collect()
}

/// The guest is as it was, and nothing of the try is left on either host.
fn as_before(stage: &Stage) {
    stage.guest_goes_on();
    stage.wait_freed_at_destination();
    nothing_remains(stage);
}

fn nothing_remains(stage: &Stage) {
    assert_eq!(remains(stage), Vec::<String>::new());
    let [_, there] = stage.disks();
    assert_eq!(std::fs::read_dir(there).unwrap().count(), 0, "an image that was made is left");
}

fn retry(stage: &mut Stage) {
    ended(&stage.migrate(&ARRIVE).finish()).completed();
    stage.arrived();
    stage.guest_goes_on();
    is_the_same(stage, "raw");
}

#[test]
fn a_disk_that_the_guest_writes_goes_there_and_back_with_a_link_cut_on_the_way() {
    let guest = GuestSpec::new("g", parameters()).qemu(QemuVersion::Ten);
    let mut stage = Stage::unshared(&SLOW, guest, Some(DiskMode::Buffered), qcow2);
    // So little that its disks take some seconds. The 8 MiB that the guest writes over and over fit into the 5 s.
    let mut migration = stage.migrate(&[&ARRIVE[..], &["--bandwidth", "80M"]].concat());
    migration.wait(LONG, disk_began);
    stage.lab.cut(1).unwrap();
    migration.wait(LONG, lost);
    stage.lab.restore(1).unwrap();
    let report = ended(&migration.finish()).completed();
    assert_eq!((&report["mode"], &report["disks"]["count"]), (&"stream".into(), &2.into()));
    let copied = report["disks"]["copied_bytes"].as_u64().unwrap();
    assert!(copied >= CONTENT + BUSY, "{copied} bytes were copied, of which the guest's own disk has {BUSY}");
    stage.arrived();
    stage.guest_goes_on();
    is_the_same(&stage, "qcow2");
    // Onto the images that are there from before.
    ended(&stage.migrate(&[&ARRIVE[..], &["--storage-share", "20"]].concat()).finish()).completed();
    stage.arrived();
    stage.guest_goes_on();
    is_the_same(&stage, "qcow2");
}

/// The images are made on the way there, and those from before are overwritten on the way back, whatever was done to
/// them. The guest writes a third disk all the time.
#[test]
fn disks_of_both_formats_and_a_busy_one_with_qemu_7() {
    let Some(guest) = quick(QemuVersion::System) else { return };
    let mut stage = Stage::unshared(&[1000, 1000], guest, Some(DiskMode::Direct), both);
    for _ in 0..2 {
        let before = stage.disk_operations();
        let report = ended(&stage.migrate(&ARRIVE).finish()).completed();
        stage.arrived();
        // Whatever it has written meanwhile may have been sent again.
        let written = (stage.disk_operations() - before) * SLOT_BYTES as u64;
        let [count, copied, sent] =
            ["count", "copied_bytes", "sent_bytes"].map(|key| report["disks"][key].as_u64().unwrap());
        // What is written as zeros in the raw image is looked at and not sent; in the other it is none any more.
        assert!(count == 3 && copied >= 3 * CONTENT + BUSY, "{count} disks, {copied} bytes were copied");
        let most = 2 * CONTENT + 2 * BUSY + written;
        assert!((2 * CONTENT + BUSY..most).contains(&sent), "{sent} bytes were sent, {written} were written");
        stage.guest_goes_on();
        ["raw", "qcow2"].into_iter().for_each(|format| is_the_same(&stage, format));
        assert_eq!(remains(&stage), Vec::<String>::new());
        let [_, left] = stage.disks();
        let left = File::options().write(true).open(left.join("raw.img")).unwrap();
        left.write_all_at(&vec![7; 16 * MIB as usize], 100 * MIB).unwrap();
    }
}

/// The guest writes its disk faster than the link carries. It leaves the processor to that.
fn writes_too_fast() -> Stage {
    let parameters = GuestParameters { dirty_mbps: 0, verify_mbps: 32, ..parameters() };
    let guest = GuestSpec::new("g", parameters).qemu(QemuVersion::Ten);
    Stage::unshared_busy(&[40], guest, Some((DiskMode::Direct, 24)), |_| Vec::new())
}

#[test]
fn a_guest_that_writes_its_disk_too_fast_is_given_up_or_made_to_wait() {
    let mut stage = writes_too_fast();
    // So little that an emulated guest writes more also on a busy machine.
    let slowly = ["--max-rounds", "2", "--bandwidth", "10M"];
    let events = stage.migrate(&[&COPY[..], &slowly].concat()).finish();
    let failure = ended(&events).failed(1);
    assert_eq!((&failure["code"], &failure["step"]), (&"not_converging".into(), &"copy".into()), "{failure}");
    assert_eq!(failure["guest_state"], "runs_at_source", "{failure}");
    let message = failure["message"].as_str().unwrap();
    assert!(message.contains("passes over its disks") && message.contains("--throttle"), "{failure}");
    let shown = events.iter().filter(|event| event["kind"] == "progress").map(|event| &event["disks"]);
    let number = |disks: &Value, key: &str| disks[key].as_u64().unwrap_or(0);
    assert!(shown.clone().any(|disks| number(disks, "pass") >= 2), "no pass is shown");
    assert!(shown.clone().any(|disks| number(disks, "write_rate_bytes_per_s") > MIB), "no rate is shown");
    as_before(&stage);
    ended(&stage.migrate(&[&ARRIVE[..], &["--throttle"]].concat()).finish()).completed();
    stage.arrived();
    stage.guest_goes_on();
}

fn cancelled(stage: &mut Stage, bandwidth: &str, began: fn(&Value) -> bool) {
    let mut migration = stage.migrate(&[&COPY[..], &["--bandwidth", bandwidth]].concat());
    migration.wait(LONG, began);
    migration.interrupt();
    assert_eq!(ended(&migration.finish()).exit, Some(5));
}

fn the_destinations_agent_is_killed(stage: &mut Stage) {
    let mut migration = stage.migrate(&[&SLOWLY[..], &["--link-timeout", "5s"]].concat());
    migration.wait(LONG, disk_began);
    stage.destination_agent().kill().unwrap();
    let failure = ended(&migration.finish()).failed(1);
    assert_eq!(failure["guest_state"], "runs_at_source", "{failure}");
    stage.destination_agent().restart().unwrap();
}

fn the_sources_agent_is_killed(stage: &mut Stage) {
    let mut migration = stage.migrate(&SLOWLY);
    migration.wait(LONG, disk_began);
    stage.source_agent().kill().unwrap();
    stage.guest_runs();
    stage.source_agent().restart().unwrap();
}

fn links_are_silent(stage: &mut Stage) {
    let mut migration = stage.migrate(&[&SLOWLY[..], &["--link-timeout", "5s"]].concat());
    migration.wait(LONG, disk_began);
    (0..2).for_each(|link| stage.lab.drop_silently(link).unwrap());
    let failure = ended(&migration.finish()).failed(1);
    assert_eq!(failure["guest_state"], "runs_at_source", "{failure}");
    stage.guest_goes_on();
    (0..2).for_each(|link| stage.lab.restore(link).unwrap());
}

/// One after the other on one stage, because most of the time is a guest's start; in the end the same migration
/// succeeds.
#[test]
fn whatever_goes_wrong_leaves_the_guest_and_its_disk_as_they_were() {
    let mut stage = Stage::unshared(&[100, 100], guest(), None, raw);
    let faults: [fn(&mut Stage); 4] = [
        |stage| cancelled(stage, "10M", disk_began),
        // All of the disk comes first.
        |stage| cancelled(stage, "40M", memory_began),
        the_destinations_agent_is_killed,
        the_sources_agent_is_killed,
    ];
    for fault in faults {
        fault(&mut stage);
        as_before(&stage);
    }
    // Last, because the destination may end this by its own limit, and its log says so from then on.
    links_are_silent(&mut stage);
    stage.guest_goes_on();
    stage.wait_guests_at_destination(0, LONG);
    nothing_remains(&stage);
    retry(&mut stage);
}

fn is_refused(stage: &Stage, arguments: &[&str], message: &str) {
    let to = stage.destination_address();
    let all = [&["migrate", "g", "--to", &to, "--json"], arguments].concat();
    let (exit, text) = stage.linerate_at_source(&all);
    assert_ne!(exit, 0);
    assert!(text.contains(message), "{text}");
}

#[test]
fn a_disk_is_never_copied_onto_itself_or_onto_another_of_its_name() {
    let mut stage = Stage::unshared(&[1000, 1000], guest(), None, raw);
    is_refused(&stage, &["--copy-storage", "all", "--mode", "direct"], "in stream mode only");
    is_refused(&stage, &["--copy-storage", "inc"], "is only for domains of libvirt");
    is_refused(&stage, &[], "is not here: share the disk, copy it along");
    let [here, there] = stage.disks().map(|folder| folder.join("raw.img"));
    let before = std::fs::read(&here).unwrap();
    // As where both hosts see one storage: the same file under the other host's name.
    std::fs::hard_link(&here, &there).unwrap();
    let failure = ended(&stage.migrate(&COPY).finish()).failed(REFUSED);
    assert_eq!(failure["code"], "resource_missing", "{failure}");
    assert!(
        failure["message"].as_str().unwrap().contains("is the very disk that the guest uses"),
        "{failure}"
    );
    assert_eq!(failure["guest_state"], "runs_at_source", "{failure}");
    stage.guest_goes_on();
    assert!(std::fs::read(&here).unwrap() == before, "the guest's disk was touched");
    std::fs::remove_file(&there).unwrap();
    std::fs::write(&there, "not a disk of that size").unwrap();
    let failure = ended(&stage.migrate(&COPY).finish()).failed(REFUSED);
    assert!(failure["message"].as_str().unwrap().contains("is here already with a disk of"), "{failure}");
    assert_eq!(std::fs::read(&there).unwrap(), b"not a disk of that size");
    std::fs::remove_file(&there).unwrap();
    as_before(&stage);
    retry(&mut stage);
}

#[test]
fn a_created_image_is_removed_if_the_incoming_qemu_fails_to_start() {
    let mut stage = Stage::unshared(&[1000, 1000], guest(), None, raw);
    let found = stage.restart_destination_with_broken_qemu();
    let failure = ended(&stage.migrate(&COPY).finish()).failed(1);
    assert_eq!(
        (&failure["code"], &failure["step"]),
        (&"hypervisor_failed".into(), &"prepare".into()),
        "{failure}"
    );
    assert_eq!(
        (&failure["side"], &failure["guest_state"]),
        (&"destination".into(), &"runs_at_source".into()),
        "{failure}"
    );
    assert!(failure["message"].as_str().unwrap().contains("it does not start"), "{failure}");
    assert_eq!(std::fs::read_to_string(found).unwrap().trim(), "raw.img", "it was made before");
    as_before(&stage);
    stage.restart_destination_whole();
    retry(&mut stage);
}

fn refusal(stage: &Stage, arguments: &[&str]) -> String {
    let failure = ended(&stage.migrate(arguments).finish()).failed(REFUSED);
    assert_eq!(failure["guest_state"], "runs_at_source", "{failure}");
    stage.guest_goes_on();
    failure["message"].as_str().unwrap().to_owned()
}

/// The way back with a disk that was copied on the way there: what was left behind is whole, and old.
#[test]
fn a_copy_that_was_left_behind_is_not_taken_for_the_shared_disk() {
    let mut stage = Stage::unshared(&[1000, 1000], guest(), None, both);
    ended(&stage.migrate(&ARRIVE).finish()).completed();
    stage.arrived();
    let images =
        |stage: &Stage| stage.disks().map(|folder| ["raw.img", "qcow2.img"].map(|name| folder.join(name)));
    let read =
        |images: &[std::path::PathBuf; 2]| images.each_ref().map(|image| std::fs::read(image).unwrap());
    let [here, left] = images(&stage);
    let before = [read(&here), read(&left)];
    let message = refusal(&stage, &[]);
    assert!(
        message.contains("left here") && message.contains("raw") && message.contains("qcow2"),
        "{message}"
    );
    let spec = stage.lab.directory().join("old.toml");
    let text = format!(
        "name = \"old\"\nmemory = \"64M\"\naccel = \"tcg\"\n[[disk]]\npath = \"{}\"\n",
        left[0].display()
    );
    std::fs::write(&spec, text).unwrap();
    let (exit, text) = stage.linerate_at_source(&["vm", "start", spec.to_str().unwrap()]);
    assert!(exit == REFUSED as i32 && text.contains("is stale: the guest g left it here"), "{text}");
    // It is not marked, and the operator's assertion is wrong.
    for image in &left {
        rustix::fs::removexattr(image, "user.linerate.stale").unwrap();
    }
    for arguments in [&["--mode", "stream"][..], &["--shared-storage", "raw", "--shared-storage", "qcow2"]] {
        let message = refusal(&stage, arguments);
        assert!(message.contains("is not shared") && message.contains("--copy-disks"), "{message}");
    }
    assert!([read(&here), read(&left)] == before, "a disk was touched");
    is_refused(&stage, &["--shared-storage", "sda"], "it has qcow2, raw");
    ended(&stage.migrate(&ARRIVE).finish()).completed();
    stage.arrived();
    stage.guest_goes_on();
    ["raw", "qcow2"].into_iter().for_each(|format| is_the_same(&stage, format));
    let [now, _] = images(&stage);
    for image in &now {
        let mark = || rustix::fs::getxattr(image, "user.linerate.stale", &mut [0_u8; 4096][..]);
        // The guest runs on it.
        wait_until(|| mark() == Err(rustix::io::Errno::NODATA));
    }
}

/// Ends a process, also if the test fails.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Takes a loop device back, also if the test fails.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn an_image_that_something_else_uses_is_not_overwritten() {
    let mut stage = Stage::unshared(&[1000, 1000], guest(), None, raw);
    let [_, there] = stage.disks().map(|folder| folder.join("raw.img"));
    File::create(&there).unwrap().set_len(DISK).unwrap();
    let before = std::fs::read(&there).unwrap();
    let socket = stage.lab.directory().join("other.nbd");
    let mut serve = Command::new("qemu-nbd");
    serve.args(["-t", "-f", "raw", "-k"]).args([&socket, &there]);
    let server = Ended(serve.spawn().unwrap());
    wait_until(|| greets(&socket));
    let message = refusal(&stage, &COPY);
    assert!(message.contains("(qemu-nbd) has it open for writing"), "{message}");
    drop(server);
    let mut attach = Command::new("losetup");
    let attached = attach.args(["-f", "--show"]).arg(&there).output().unwrap();
    match attached.status.success() {
        false => not_run(&format!("no loop devices ({attached:?})")),
        true => {
            let device = Loop(String::from_utf8(attached.stdout).unwrap().trim().to_owned());
            let message = refusal(&stage, &COPY);
            assert!(message.contains("is in use on this host") && message.contains(&device.0), "{message}");
        }
    }
    assert!(std::fs::read(&there).unwrap() == before, "it was written to");
    std::fs::remove_file(&there).unwrap();
    retry(&mut stage);
}

/// Whether an NBD server speaks there: it does when it has opened its image.
fn greets(socket: &Path) -> bool {
    let mut magic = [0; 8];
    let answer = UnixStream::connect(socket).and_then(|mut server| server.read_exact(&mut magic));
    answer.is_ok() && &magic == b"NBDMAGIC"
}

fn wait_until(is: impl Fn() -> bool) {
    let end = std::time::Instant::now() + LONG;
    while !is() {
        assert!(std::time::Instant::now() < end);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn one_disk_is_shared_and_one_is_copied() {
    let mut stage = Stage::unshared(&[1000, 1000], guest(), None, both);
    let [here, _] = stage.disks().map(|folder| folder.join("raw.img"));
    // By another name of the same file: what counts is the file.
    let alias = stage.lab.directory().join("disks").join("alias.img");
    std::fs::hard_link(&here, &alias).unwrap();
    stage.restart_destination_with_paths(&[(&here, &alias)]);
    is_refused(&stage, &["--copy-disks", "raw,sda"], "it has qcow2, raw");
    is_refused(&stage, &["--copy-disks", "qcow2", "--shared-storage", "qcow2"], "not both");
    let named = ["--copy-disks", "qcow2", "--max-blackout", "5s"];
    let report = ended(&stage.migrate(&named).finish()).completed();
    assert_eq!(report["disks"]["count"], 1, "{report}");
    assert_eq!(report.get("shared_by_assertion"), None, "it was proved: {report}");
    stage.arrived();
    stage.guest_goes_on();
    is_the_same(&stage, "qcow2");
    let [there, _] = stage.disks();
    assert!(!there.join("raw.img").exists(), "a shared disk was copied");
}

#[test]
fn a_guest_that_ends_while_its_disk_is_copied_is_reported_gone() {
    let stage = Stage::unshared(&[100, 100], guest(), None, raw);
    let pid = stage.guest_process();
    let mut migration = stage.migrate(&SLOWLY);
    migration.wait(LONG, disk_began);
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let failure = ended(&migration.finish()).failed(GONE);
    assert_eq!((&failure["code"], &failure["side"]), (&"guest_gone".into(), &"source".into()), "{failure}");
    assert_eq!(failure["guest_state"], "gone", "{failure}");
    let [_, there] = stage.disks();
    stage.wait_freed_at_destination();
    assert_eq!(std::fs::read_dir(there).unwrap().count(), 0, "an image that was made is left");
}

/// As many as can be copied, and one beside them.
fn many(folder: &Path) -> Vec<String> {
    let disk = |number: u32| {
        let image = folder.join(format!("d{number}.img"));
        std::fs::write(&image, vec![number as u8; MIB as usize]).unwrap();
        ["-drive".to_owned(), format!("if=none,id=d{number},format=raw,file={}", image.display())]
    };
    (0..=DISKS_MAX).flat_map(disk).collect()
}

#[test]
fn as_many_disks_as_can_be_copied_are_and_one_more_is_refused_at_the_start() {
    let mut stage = Stage::unshared(&[1000, 1000], guest(), None, many);
    is_refused(&stage, &COPY, "25 disks are to be copied, at most 24 can be");
    let [shared, _] = stage.disks().map(|folder| folder.join(format!("d{DISKS_MAX}.img")));
    stage.restart_destination_with_paths(&[(&shared, &shared)]);
    let named: Vec<String> = (0..DISKS_MAX).map(|number| format!("d{number}")).collect();
    let report = ended(&stage.migrate(&["--copy-disks", &named.join(","), "--max-blackout", "5s"]).finish())
        .completed();
    assert_eq!(report["disks"]["count"], DISKS_MAX, "{report}");
    stage.arrived();
    let [here, left] = stage.disks();
    for name in named.iter().map(|name| format!("{name}.img")) {
        assert!(
            std::fs::read(here.join(&name)).unwrap() == std::fs::read(left.join(&name)).unwrap(),
            "{name}"
        );
    }
}
