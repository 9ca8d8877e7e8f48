//! QEMU runs without rights: as `linerate-qemu`, in its sandbox, let in to what its guest has, for as long as it needs
//! it. As root, with what lab/install.sh installs, the user among it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Tests say what they expect.

#[path = "real/stage.rs"]
#[allow(dead_code, reason = "shared with real_migration.rs")]
mod stage;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use linerate_lab::guest::kvm_is_missing;
use linerate_lab::{DiskMode, GuestParameters, GuestSpec, Lab, QemuVersion, Qmp, make_disk};
use serde_json::{Value, json};
use stage::{Stage, ended, round_began};

/// Only a hang reaches it.
const LONG: Duration = Duration::from_secs(120);
const USER: &str = "linerate-qemu";
/// Exit code where a host cannot take the guest.
const REFUSED: i64 = 4;
const ATTRIBUTE: &str = "system.posix_acl_access";
const STREAM: [&str; 4] = ["--mode", "stream", "--max-blackout", "5s"];
const COPY: [&str; 4] = ["--copy-storage", "all", "--max-blackout", "5s"];
/// For a migration that is to end early: its memory alone takes over ten seconds.
const SLOWLY: [&str; 2] = ["--bandwidth", "40M"];

fn busy() -> GuestParameters {
    GuestParameters {
        mem_mb: 64,
        dirty_mbps: 5,
        dirty_ws_mb: Some(8),
        verify_mbps: 50,
        disk_generation: Some(1),
        disk_mbps: 4,
        ..GuestParameters::default()
    }
}

/// For the guest without a kernel, which makes more passes over less memory.
fn steady() -> GuestParameters {
    GuestParameters { dirty_ws_mb: Some(1), ..busy() }
}

/// A guest that its agent starts, with a tap and a disk that both hosts share.
fn stage() -> Stage {
    on_lan(GuestSpec::bare("g", steady()))
}

/// The same with any guest called `g`.
fn on_lan(guest: GuestSpec) -> Stage {
    let on_lan = |lab: &Lab| {
        for host in lab.hosts() {
            host.add_tap("g0").unwrap();
        }
        let image = lab.directory().join("disk.img");
        make_disk(&image, 4).unwrap();
        std::fs::set_permissions(&image, std::fs::Permissions::from_mode(0o640)).unwrap();
        guest.tap("g0").disk(&image, DiskMode::Buffered)
    };
    Stage::with_hosts(Lab::builder(), &[1000, 1000], on_lan)
}

fn image(stage: &Stage) -> PathBuf {
    stage.lab.directory().join("disk.img")
}

fn status(pid: u64) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap()
}

fn field(status: &str, name: &str) -> Vec<String> {
    let line = status.lines().find_map(|line| line.strip_prefix(&format!("{name}:"))).unwrap();
    line.split_whitespace().map(str::to_owned).collect()
}

fn uid() -> String {
    let output = Command::new("id").args(["-u", USER]).output().unwrap();
    assert!(output.status.success(), "there is no user {USER}: run lab/install.sh user");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The guest's QEMU has no rights and no way to get any.
fn has_no_rights(stage: &Stage) {
    let status = status(stage.qemu_pid(false));
    let uid = uid();
    assert_eq!(field(&status, "Uid"), [&*uid; 4]);
    assert_eq!(field(&status, "NoNewPrivs"), ["1"]);
    assert_eq!(field(&status, "Seccomp"), ["2"]);
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(&status, set), ["0000000000000000"], "{set}");
    }
}

/// Whether QEMU's user has an entry of its own.
fn is_open(path: &Path) -> bool {
    let mut bytes = [0; 4096];
    let Ok(length) = rustix::fs::getxattr(path, ATTRIBUTE, &mut bytes[..]) else { return false };
    let uid: u32 = uid().parse().unwrap();
    bytes[4..length].chunks(8).any(|entry| entry[..2] == [2, 0] && entry[4..] == uid.to_le_bytes())
}

/// As the lab made it.
fn is_closed(path: &Path, mode: u32) {
    let facts = std::fs::metadata(path).unwrap();
    assert_eq!((facts.uid(), facts.gid(), facts.mode() & 0o7777), (0, 0, mode), "{}", path.display());
    assert!(!is_open(path), "{}", path.display());
}

/// Nothing is written down of a guest that is not there.
fn has_no_record(stage: &Stage, host: usize) {
    let folder = stage.lab.hosts()[host].state_directory().join("access");
    let left = std::fs::read_dir(folder).map_or(0, |entries| entries.count());
    assert_eq!(left, 0);
}

fn ends(stage: &Stage) {
    let (exit, text) = stage.linerate_at_source(&["vm", "stop", "g", "--force"]);
    assert_eq!(exit, 0, "{text}");
    is_closed(&image(stage), 0o640);
    has_no_record(stage, stage.source);
}

fn goes(stage: &mut Stage, arguments: &[&str]) {
    let from = stage.source;
    ended(&stage.migrate(arguments).finish()).completed();
    stage.arrived();
    stage.guest_goes_on();
    has_no_rights(stage);
    has_no_record(stage, from);
}

fn there_and_back(version: QemuVersion) {
    let mut stage = on_lan(GuestSpec::new("g", busy()).qemu(version));
    has_no_rights(&stage);
    assert!(is_open(&image(&stage)));
    for arguments in [&["--verify"][..], &["--verify"], &STREAM] {
        goes(&mut stage, arguments);
        assert!(is_open(&image(&stage)), "the disk is shared, and is in use");
    }
    ends(&stage);
}

#[test]
fn qemu_7_has_no_rights_wherever_it_goes_and_its_disk_is_as_before_in_the_end() {
    there_and_back(QemuVersion::System);
}

#[test]
fn qemu_10_has_no_rights_wherever_it_goes_and_its_disk_is_as_before_in_the_end() {
    there_and_back(QemuVersion::Ten);
}

/// What QEMU itself can be made to open by whoever has it: nothing but what the guest was given.
#[test]
fn a_hostile_qemu_opens_nothing_of_the_hosts_and_nothing_of_the_agents() {
    let mut stage = on_lan(GuestSpec::bare("g", steady()).qemu(QemuVersion::Ten));
    goes(&mut stage, &[]);
    let host = stage.lab.hosts()[stage.source].clone();
    let (state, run) = (host.state_directory(), host.run_directory());
    let journal = std::fs::read_dir(&state).unwrap().flatten().map(|entry| entry.path());
    let journal: Vec<PathBuf> = journal.filter(|path| path.is_file()).collect();
    assert!(!journal.is_empty());
    let others = ["/etc/shadow".into(), run.join("guests/g/record.json"), state.join("access/g.json")];
    let mut qemu = Qmp::of_guest(&host, "g").unwrap();
    for path in others.iter().chain(&journal) {
        assert!(path.exists(), "{}", path.display());
        let node = json!({ "driver": "file", "node-name": "x", "filename": path, "read-only": true });
        let refused = qemu.execute("blockdev-add", node).unwrap_err().to_string();
        assert!(refused.contains("Permission denied"), "{}: {refused}", path.display());
    }
    for (folder, name) in
        [(run.join("guests/g"), "images.json"), (run.clone(), "x"), (host.ram_directory(), "x")]
    {
        let path = folder.join(name);
        let device = json!({ "id": "x", "backend": { "type": "file", "data": { "out": path } } });
        assert!(qemu.execute("chardev-add", device).is_err(), "{} was made", path.display());
    }
    drop(qemu);
    stage.guest_goes_on();
}

#[test]
fn a_migration_that_ends_early_leaves_the_disk_open_to_the_source_and_closed_in_the_end() {
    let mut stage = stage();
    for arguments in [&[][..], &STREAM] {
        let mut migration = stage.migrate(&[arguments, &SLOWLY[..]].concat());
        migration.wait(LONG, round_began);
        stage.destination_agent().kill().unwrap();
        let failure = ended(&migration.finish());
        assert_ne!(failure.exit, Some(0));
        stage.destination_agent().restart().unwrap();
        stage.wait_guests_at_destination(0, LONG);
        stage.guest_goes_on();
        assert!(is_open(&image(&stage)));
        has_no_record(&stage, 1 - stage.source);
    }
    let mut migration = stage.migrate(&SLOWLY);
    migration.wait(LONG, round_began);
    stage.source_agent().kill().unwrap();
    drop(migration);
    stage.source_agent().restart().unwrap();
    stage.guest_goes_on();
    stage.wait_guests_at_destination(0, LONG);
    goes(&mut stage, &["--verify"]);
    ends(&stage);
}

/// It has nothing of the guest then but its journal and the record of what it opened. The guest runs at the other host.
#[test]
fn a_host_that_is_restarted_behind_commit_leaves_a_shared_disk_open() {
    let guest = GuestSpec::bare("g", steady()).qemu(QemuVersion::Ten);
    let (mut stage, gates) = Stage::gated(&[1000, 1000], guest);
    let disk = stage.image();
    assert!(is_open(&disk));
    let sent = gates[0].hold_after("source.commit_sent").unwrap();
    let migration = stage.migrate(&[]);
    sent.wait(LONG).unwrap();
    stage.agent(0).kill().unwrap();
    drop(sent);
    stage.kill_hypervisors(0);
    std::fs::remove_dir_all(stage.lab.hosts()[0].run_directory().join("guests/g")).unwrap();
    stage.agent(0).restart().unwrap();
    assert!(is_open(&disk));
    assert_eq!(ended(&migration.finish()).exit, Some(8));
    stage.settles_at(1);
    assert!(is_open(&disk), "the destination's QEMU has it");
    has_no_record(&stage, 0);
    let (exit, text) = stage.linerate_at(1, &["vm", "stop", "g", "--force"]);
    assert_eq!(exit, 0, "{text}");
    assert!(!is_open(&disk));
}

/// Disks that are copied: the one that is left is as before, the new one is open to its QEMU.
#[test]
fn a_copied_disk_is_open_where_the_guest_is_and_nowhere_else() {
    let parameters = GuestParameters { dirty_mbps: 0, ..busy() };
    let spec = if kvm_is_missing().is_none() {
        GuestSpec::user_mode("g", parameters)
    } else {
        GuestSpec::new("g", parameters)
    };
    let spec = spec.qemu(QemuVersion::Ten);
    let mut stage = Stage::unshared(&[1000, 1000], spec, Some(DiskMode::Buffered), |_| Vec::new());
    let [first, second] = stage.disks().map(|folder| folder.join("disk.img"));
    goes(&mut stage, &COPY);
    assert!(is_open(&second) && !is_open(&first));
    goes(&mut stage, &COPY);
    assert!(is_open(&first));
    is_closed(&second, 0o644);
}

/// The agent as its unit starts it: no more capabilities than those, and files that are its own alone.
#[test]
fn agents_with_the_capabilities_and_the_mask_of_their_unit_move_guests() {
    let mut stage = stage();
    let unit = include_str!("../../../packaging/linerate-agent.service");
    let lines = unit.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet=~"));
    let dropped: Vec<String> =
        lines.flat_map(str::split_whitespace).map(|name| name.replace("CAP_", "-").to_lowercase()).collect();
    assert!(dropped.len() > 10);
    let (program, binary) = (stage.lab.directory().join("agent.sh"), env!("CARGO_BIN_EXE_linerate"));
    let script =
        format!("#!/bin/sh\numask 077\nexec setpriv --bounding-set={} {binary} \"$@\"\n", dropped.join(","));
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    stage.restart_both_as(&program);
    for arguments in [&["--verify"][..], &["--verify"], &STREAM] {
        goes(&mut stage, arguments);
    }
    ends(&stage);
}

#[test]
fn a_host_without_the_user_takes_no_guest_and_says_what_to_do() {
    let mut stage = Stage::with_disk(&[1000], busy(), QemuVersion::System, DiskMode::Buffered);
    stage.restart_destination_with("qemu_user = \"no-such-user\"\n");
    let error = ended(&stage.migrate(&[]).finish()).failed(REFUSED);
    let text = error.to_string();
    assert!(text.contains("no-such-user") && text.contains("useradd"), "{text}");
    assert_eq!(
        (&error["code"], &error["side"]),
        (&"resource_missing".into(), &"destination".into()),
        "{text}"
    );
    stage.guest_goes_on();
    stage.restart_destination_with("");
    goes(&mut stage, &[]);
}

#[test]
fn a_folder_that_the_user_cannot_pass_is_named_before_anything_is_copied() {
    let mut stage = stage();
    let (other, closed) = (stage.lab.directory().join("closed"), image(&stage));
    std::fs::create_dir(&other).unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::hard_link(&closed, other.join("disk.img")).unwrap();
    let paths = format!("paths = {{ {closed:?} = {:?} }}\n", other.join("disk.img"));
    stage.restart_destination_with(&paths);
    let error = ended(&stage.migrate(&[]).finish()).failed(REFUSED).to_string();
    assert!(error.contains("linerate-qemu") && error.contains("closed (mode 0700)"), "{error}");
    assert!(is_open(&closed), "the source's QEMU uses it");
    stage.guest_goes_on();
    stage.restart_destination_with("");
    goes(&mut stage, &[]);
    ends(&stage);
}

#[test]
fn as_root_where_that_is_asked_for() {
    let mut stage = Stage::with_disk(&[1000], busy(), QemuVersion::System, DiskMode::Buffered);
    has_no_rights(&stage);
    stage.restart_destination_with("qemu_user = \"root\"\n");
    ended(&stage.migrate(&[]).finish()).completed();
    stage.arrived();
    stage.guest_goes_on();
    assert_eq!(field(&status(stage.qemu_pid(false)), "Uid"), ["0"; 4]);
    let _: Value = stage.description();
    goes(&mut stage, &[]);
}

/// A specification of a stopped guest with one qcow2 disk.
fn write_other(stage: &Stage, disk: &Path) -> PathBuf {
    let path = stage.lab.directory().join("h.toml");
    let text = format!(
        "name = \"h\"\nmemory = \"64M\"\naccel = \"tcg\"\n[[disk]]\npath = {disk:?}\nformat = \"qcow2\"\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// What QEMU can write, its image's header too, names no file that the agent would then open to it.
#[test]
fn an_image_that_a_hostile_qemu_has_written_opens_nothing() {
    let stage = stage();
    let other = tempfile::tempdir().unwrap();
    std::fs::set_permissions(other.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (secret, disk) = (other.path().join("secret"), stage.lab.directory().join("h.qcow2"));
    std::fs::write(&secret, vec![0; 1 << 20]).unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let made = Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
        .args([&secret, &disk])
        .status();
    assert!(made.unwrap().success());
    let file = write_other(&stage, &disk);
    let starts = || stage.linerate_at_source(&["vm", "start", file.to_str().unwrap()]);
    let (exit, text) = starts();
    assert_ne!(exit, 0);
    assert!(text.contains("file_roots") && text.contains("secret"), "{text}");
    is_closed(&secret, 0o600);
    assert!(!is_open(&disk), "nothing of the guest is left");
    // A file that its user may open anyway is no secret.
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (exit, text) = starts();
    assert_eq!(exit, 0, "{text}");
    let (exit, text) = stage.linerate_at_source(&["vm", "stop", "h", "--force"]);
    assert_eq!(exit, 0, "{text}");
    assert!(!is_open(&disk));
    ends(&stage);
}

/// The guests that run are still another user's, and leave what they had as it was.
#[test]
fn an_agent_that_runs_new_guests_as_root_closes_the_files_of_those_before() {
    let mut stage = stage();
    stage.restart_destination_with("");
    goes(&mut stage, &[]);
    stage.source = 1 - stage.source;
    stage.restart_destination_with("qemu_user = \"root\"\n");
    stage.source = 1 - stage.source;
    stage.guest_goes_on();
    ends(&stage);
}

/// Links and a socket of its own where the agent looks for QEMU's, by whoever has the user.
#[test]
fn what_is_planted_in_qemus_folder_harms_neither_the_agent_nor_the_host() {
    let stage = stage();
    let folder = stage.lab.hosts()[0].run_directory().join("guests/g/qemu");
    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("kept"), "x").unwrap();
    let names: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().flatten().map(|e| e.path()).collect();
    for name in names {
        std::fs::remove_file(&name).unwrap();
        std::os::unix::fs::symlink(stage.lab.hosts()[0].directory().join("agent.sock"), &name).unwrap();
    }
    std::os::unix::fs::symlink(other.path(), folder.join("link")).unwrap();
    let (exit, text) = stage.linerate_at_source(&["vm", "list"]);
    assert_eq!(exit, 0, "{text}");
    let error = ended(&stage.migrate(&[]).finish());
    assert_ne!(error.exit, Some(0));
    ends(&stage);
    assert!(other.path().join("kept").exists());
}

/// A disk of the agent's that is full while it would write down what it opens.
#[test]
fn a_record_that_cannot_be_written_opens_nothing() {
    let mut stage = stage();
    let folder = stage.lab.hosts()[1].state_directory().join("access");
    std::fs::create_dir_all(&folder).unwrap();
    let mount = |words: &[&str]| {
        assert!(Command::new(words[0]).args(&words[1..]).arg(&folder).status().unwrap().success());
    };
    mount(&["mount", "-t", "tmpfs", "-o", "size=4k", "none"]);
    std::fs::write(folder.join("full"), [0; 4096]).unwrap();
    // It sees what was mounted before it starts.
    stage.restart_destination_with("");
    let before = rustix::fs::getxattr(image(&stage), ATTRIBUTE, &mut [0; 4096][..]);
    let end = ended(&stage.migrate(&[]).finish());
    mount(&["umount"]);
    stage.restart_destination_with("");
    let error = end.failed(REFUSED).to_string();
    assert!(error.contains("could not be written down"), "{error}");
    assert_eq!(rustix::fs::getxattr(image(&stage), ATTRIBUTE, &mut [0; 4096][..]), before);
    stage.guest_goes_on();
    goes(&mut stage, &[]);
    ends(&stage);
}

/// Where there are no access lists, the mode and the groups count.
#[test]
fn a_disk_without_access_lists_is_used_as_its_mode_allows() {
    let mut stage = stage();
    let folder = stage.lab.directory().join("ramfs");
    std::fs::create_dir(&folder).unwrap();
    let mounted = Command::new("mount").args(["-t", "ramfs", "none"]).arg(&folder).status();
    assert!(mounted.unwrap().success());
    stage.source_agent().kill().unwrap();
    stage.source_agent().restart().unwrap();
    let disk = folder.join("h.qcow2");
    let made = Command::new("qemu-img").args(["create", "-q", "-f", "qcow2"]).arg(&disk).arg("1M").status();
    assert!(made.unwrap().success());
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&disk, std::fs::Permissions::from_mode(0o640)).unwrap();
    let file = write_other(&stage, &disk);
    let starts = || stage.linerate_at_source(&["vm", "start", file.to_str().unwrap()]);
    let refused = starts();
    std::fs::set_permissions(&disk, std::fs::Permissions::from_mode(0o666)).unwrap();
    let started = starts();
    let stopped = stage.linerate_at_source(&["vm", "stop", "h", "--force"]);
    assert!(Command::new("umount").arg(&folder).status().unwrap().success());
    assert_ne!(refused.0, 0);
    assert!(refused.1.contains("access lists") && refused.1.contains("chown"), "{}", refused.1);
    assert_eq!((started.0, stopped.0), (0, 0), "{} {}", started.1, stopped.1);
    ends(&stage);
}

#[test]
fn a_tap_of_another_user_is_named_before_anything_is_copied() {
    let mut stage = stage();
    let host = stage.lab.hosts()[1].clone();
    host.remove_tap("g0").unwrap();
    let words = ["-n", host.namespace(), "tuntap", "add", "g0", "mode", "tap", "user", "nobody"];
    assert!(Command::new("ip").args(words).status().unwrap().success());
    let error = ended(&stage.migrate(&[]).finish()).failed(REFUSED).to_string();
    assert!(error.contains("the tap g0 belongs to user 65534"), "{error}");
    host.remove_tap("g0").unwrap();
    host.add_tap("g0").unwrap();
    goes(&mut stage, &[]);
    ends(&stage);
}
