//! An operator's hands on the disks of a guest before or while it moves: snapshots, mirrors, media. The guest arrives
//! with the images that it uses, or stays.

use super::*;

/// With a second monitor, for an operator's own hands.
fn and_a_monitor(folder: &Path, mut arguments: Vec<String>) -> Vec<String> {
    arguments.extend(["-qmp".into(), format!("unix:{},server=on,wait=off", monitor(folder).display())]);
    arguments
}

fn monitor(folder: &Path) -> PathBuf {
    folder.join("second.qmp")
}

/// A chain of three that nothing was written to: their files have no whole sectors.
fn chain(folder: &Path) -> Vec<String> {
    let create = |arguments: &[&str]| {
        let mut create = Command::new("qemu-img");
        create.args(["create", "-q", "-f", "qcow2"]).args(arguments).current_dir(folder);
        assert!(create.status().unwrap().success());
    };
    create(&["base.img", "8M"]);
    create(&["-b", "base.img", "-F", "qcow2", "middle.img"]);
    create(&["-b", "middle.img", "-F", "qcow2", "chain.img"]);
    drive(&folder.join("chain.img"), "qcow2")
}

/// A CD by node.
fn medium(folder: &Path, number: u64) -> Vec<String> {
    let image = folder.join(format!("medium{number}.iso"));
    File::create(&image).unwrap().set_len(MIB).unwrap();
    let file = format!("file.driver=file,file.read-only=on,file.filename={}", image.display());
    let node = format!("driver=raw,node-name=medium{number},read-only=on,{file}");
    let device = format!("ide-cd,bus=ide.0,unit={},id=cd{number},drive=medium{number}", number - 1);
    ["-blockdev", &node, "-device", &device].map(str::to_owned).into()
}

/// CDs that stand on the command line, in other drives.
fn exchange(qmp: &mut Qmp, [one, two]: [&str; 2]) {
    for device in ["cd1", "cd2"] {
        qmp.execute("eject", json!({ "id": device, "force": true })).unwrap();
    }
    for (device, node) in [("cd1", one), ("cd2", two)] {
        qmp.execute("blockdev-insert-medium", json!({ "id": device, "node-name": node })).unwrap();
    }
}

/// Disks by id, one by node, one that no device uses, and a CD drive.
fn several(folder: &Path) -> Vec<String> {
    File::create(folder.join("node.img")).unwrap().set_len(8 * MIB).unwrap();
    for name in ["cd.iso", "other.iso"] {
        File::create(folder.join(name)).unwrap().set_len(MIB).unwrap();
    }
    std::fs::write(folder.join("spare.img"), vec![0x5a; MIB as usize]).unwrap();
    let spare = format!(
        "driver=raw,node-name=spare,file.driver=file,file.filename={}",
        folder.join("spare.img").display()
    );
    let node = format!(
        "driver=raw,node-name=node,file.driver=file,file.filename={}",
        folder.join("node.img").display()
    );
    let cd =
        format!("if=none,id=cd,media=cdrom,readonly=on,format=raw,file={}", folder.join("cd.iso").display());
    let more = ["-blockdev", &node, "-device", "virtio-blk-pci,drive=node,id=disk2", "-blockdev", &spare];
    let cd = ["-drive", &cd, "-device", "ide-cd,id=cd0,drive=cd"];
    let more = more.into_iter().chain(cd).map(str::to_owned).collect();
    let media = [1, 2].map(|number| medium(folder, number)).concat();
    and_a_monitor(folder, [raw(folder), chain(folder), more, media].concat())
}

type Hands = fn(&mut Qmp, &Path);

fn snapshot(qmp: &mut Qmp, folder: &Path) {
    let file = folder.join("snapshot.qcow2");
    let arguments = json!({ "device": "raw", "snapshot-file": file, "format": "qcow2" });
    qmp.execute("blockdev-snapshot-sync", arguments).unwrap();
}

fn wait_job(qmp: &mut Qmp, status: &str) {
    let end = Instant::now() + LONG;
    while !qmp.execute("query-jobs", Value::Null).unwrap().to_string().contains(status) {
        assert!(Instant::now() < end, "no job becomes {status}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn wait_no_job(qmp: &mut Qmp) {
    let end = Instant::now() + LONG;
    while qmp.execute("query-jobs", Value::Null).unwrap() != json!([]) {
        assert!(Instant::now() < end, "the job does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn mirror_to(qmp: &mut Qmp, from: &str, node: &str, image: &Path) {
    let file = json!({ "driver": "file", "filename": image });
    qmp.execute("blockdev-add", json!({ "driver": "raw", "node-name": node, "file": file })).unwrap();
    let job = json!({ "job-id": "m", "device": from, "target": node, "sync": "full" });
    qmp.execute("blockdev-mirror", job).unwrap();
    wait_job(qmp, "ready");
    qmp.execute("block-job-complete", json!({ "device": "m" })).unwrap();
    wait_no_job(qmp);
}

fn mirror(qmp: &mut Qmp, folder: &Path) {
    File::create(folder.join("mirror.img")).unwrap().set_len(8 * MIB).unwrap();
    mirror_to(qmp, "node", "target", &folder.join("mirror.img"));
    qmp.execute("blockdev-del", json!({ "node-name": "node" })).unwrap();
}

fn mirror_back(qmp: &mut Qmp, folder: &Path) {
    mirror_to(qmp, "target", "node", &folder.join("node.img"));
    qmp.execute("blockdev-del", json!({ "node-name": "target" })).unwrap();
}

fn insert(qmp: &mut Qmp, medium: &Path) {
    let arguments = json!({ "id": "cd0", "filename": medium, "format": "raw" });
    qmp.execute("blockdev-change-medium", arguments).unwrap();
}

fn hands_on(folder: &Path, hands: Hands) {
    hands(&mut Qmp::connect(&monitor(folder)).unwrap(), folder);
}

fn changed_during(stage: &Stage, folder: &Path, migration: Migration, began: Hands, hands: Hands) {
    hands_on(folder, began);
    hands_on(folder, hands);
    let failure = ended(&migration.finish()).failed(REFUSED);
    assert_eq!(failure["code"], "guest_differs", "{failure}");
    assert_eq!(failure["guest_state"], "runs_at_source", "{failure}");
    assert!(failure["message"].as_str().unwrap().contains("changed during the migration"), "{failure}");
    stage.guest_goes_on();
    stage.wait_freed_at_destination();
}

fn refused_before(stage: &Stage, arguments: &[&str], message: &str) {
    let to = stage.destination_address();
    let all = [&["migrate", "g", "--to", &to, "--json"], arguments].concat();
    let (exit, text) = stage.linerate_at_source(&all);
    assert_ne!(exit, 0, "{text}");
    assert!(text.contains("not_migratable") && text.contains(message), "{text}");
    stage.guest_goes_on();
}

/// Whatever is done to its disks, before or during a migration: the guest stays with the images that it uses.
#[test]
fn a_guest_arrives_with_the_images_that_it_uses_or_stays() {
    let mut stage = Stage::shared(&[100, 100], guest(), several);
    let folder = stage.lab.directory().to_owned();
    let during = |hands| {
        // Ten seconds are left for the hands, and the guest could arrive.
        let mut migration = stage.migrate(&["--bandwidth", "20M", "--max-blackout", "10s"]);
        migration.wait(LONG, round_began);
        changed_during(&stage, &folder, migration, |_, _| {}, hands);
    };
    hands_on(&folder, |qmp, _| exchange(qmp, ["medium2", "medium1"]));
    let failure = ended(&stage.migrate(&ROOMY).finish()).failed(REFUSED);
    assert_eq!(
        (&failure["code"], &failure["side"]),
        (&"guest_differs".into(), &"destination".into()),
        "{failure}"
    );
    assert!(failure["message"].as_str().unwrap().contains("medium2.iso"), "{failure}");
    hands_on(&folder, |qmp, _| exchange(qmp, ["medium1", "medium2"]));
    during(mirror);
    refused_before(&stage, &[], "mirror.img");
    hands_on(&folder, mirror_back);
    during(snapshot);
    during(|qmp, folder| insert(qmp, &folder.join("other.iso")));
    let base = std::fs::read(folder.join("raw.img")).unwrap();
    ended(&stage.migrate(&[&ROOMY[..], &["--verify"]].concat()).finish()).completed();
    stage.arrived();
    stage.guest_goes_on();
    let mut qemu = Qmp::of_guest(&stage.lab.hosts()[stage.source], "g").unwrap();
    let drives = qemu.execute("query-block", Value::Null).unwrap().to_string();
    assert!(["snapshot.qcow2", "other.iso"].iter().all(|image| drives.contains(image)), "{drives}");
    let write = json!({ "command-line": "qemu-io raw \"write -P 7 0 1M\"" });
    qemu.execute("human-monitor-command", write).unwrap();
    assert!(
        std::fs::read(folder.join("raw.img")).unwrap() == base,
        "the image below the snapshot was written"
    );
}

#[test]
fn a_guest_whose_medium_is_changed_while_its_disks_are_copied_stays() {
    let mut stage = Stage::unshared(&[40, 40], guest(), None, several);
    let [folder, there] = stage.disks();
    for name in ["cd.iso", "other.iso", "medium1.iso", "medium2.iso"] {
        std::fs::copy(folder.join(name), there.join(name)).unwrap();
    }
    // By the job, for nothing reports a disk's copy before its first second is over.
    let copies: Hands = |qmp, _| wait_job(qmp, "linerate-disk-1");
    let change: Hands = |qmp, folder| insert(qmp, &folder.join("other.iso"));
    let migration = stage.migrate(&[&ARRIVE[..], &UNHURRIED].concat());
    changed_during(&stage, &folder, migration, copies, change);
    hands_on(&folder, |qmp, folder| insert(qmp, &folder.join("cd.iso")));
    ended(&stage.migrate(&ARRIVE).finish()).completed();
    stage.arrived();
    stage.guest_goes_on();
    assert_eq!(
        std::fs::read(there.join("spare.img")).unwrap(),
        vec![0x5a; MIB as usize],
        "it was not copied"
    );
}
