//! Disks that are not copied: what is proved to be shared, and what is refused. This process is in place of the
//! source's QEMU, which has the images open, and for both agents.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests, too, say what they expect

mod common;

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::description;
use linerate_guest::description::{CopiedDisk, Disk, GuestDescription, ImageFormat};
use linerate_guest::graph::DiskGraph;
use linerate_guest::in_use;
use linerate_guest::incoming_qemu::{IncomingQemu, NeededFile};
use linerate_guest::shared::{self, Marks, NotShared, Proof, Proved, Storage};
use linerate_guest::stale;
use serde_json::json;

/// Two hosts' folders, on a file system that one host alone sees.
struct Hosts {
    _place: tempfile::TempDir,
    here: PathBuf,
    there: PathBuf,
}

fn hosts() -> Hosts {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let [here, there] = ["here", "there"].map(|name| place.path().join(name));
    [&here, &there].into_iter().for_each(|folder| fs::create_dir(folder).unwrap());
    Hosts { _place: place, here, there }
}

/// A guest at the source, with its images open.
struct Source {
    guest: GuestDescription,
    marks: Marks,
    open: Vec<File>,
}

fn disk(id: &str, path: &Path, read_only: bool) -> Disk {
    Disk {
        id: id.into(),
        path: path.to_str().unwrap().into(),
        format: "raw".into(),
        protocol: "file".into(),
        read_only,
        direct: false,
        aio: None,
        drop_cache: true,
        size: 0,
        flash: false,
    }
}

fn source(disks: Vec<Disk>, asserted_shared: &[&str]) -> Source {
    let open = disks.iter().filter_map(|disk| File::open(&disk.path).ok()).collect();
    let mut source =
        Source { guest: GuestDescription { disks, ..description(&[]) }, marks: Marks::default(), open };
    source.guest.process.pid = i32::try_from(std::process::id()).unwrap();
    source.describe(asserted_shared);
    source
}

/// What opens these files, each with its name at the source.
fn incoming(files: &[(&Path, &Path)]) -> IncomingQemu {
    let needed = |(there, here): &(&Path, &Path)| NeededFile {
        source: there.to_str().unwrap().into(),
        path: here.to_path_buf(),
        writable: true,
        format: here.extension().is_none_or(|end| end != "qcow2").then_some(ImageFormat::Raw),
        as_device: None,
    };
    IncomingQemu {
        name: "web".into(),
        arguments: Vec::new(),
        qmp: "/run/q".into(),
        pid_file: "/run/p".into(),
        ram_files: Vec::new(),
        files: files.iter().map(needed).collect(),
        networks: Vec::new(),
        firmware: Vec::new(),
        user_network: false,
        notes: Vec::new(),
    }
}

impl Source {
    fn describe(&mut self, asserted_shared: &[&str]) {
        let asserted_shared: Vec<String> = asserted_shared.iter().map(|&disk| disk.into()).collect();
        let (facts, marks) = shared::describe(&self.guest, &asserted_shared).unwrap();
        (self.guest.storage, self.marks) = (Some(facts), marks);
    }

    /// The offer goes over the wire, and the destination opens these files, each with its name at the source.
    fn check(&self, files: &[(&Path, &Path)]) -> Result<Vec<Proved>, Vec<NotShared>> {
        let guest = GuestDescription::from_json(&self.guest.to_json().unwrap()).unwrap();
        shared::check(&guest, &incoming(files))
    }
}

fn image(path: &Path) -> PathBuf {
    fs::write(path, vec![7; 4096]).unwrap();
    path.to_owned()
}

#[test]
fn the_same_file_is_proved_under_any_name_and_a_copy_of_it_is_not() {
    let hosts = hosts();
    let original = image(&hosts.here.join("d.img"));
    let [hard, soft, copy] = ["hard", "soft", "d.img"].map(|name| hosts.there.join(name));
    fs::hard_link(&original, &hard).unwrap();
    symlink(&original, &soft).unwrap();
    fs::copy(&original, &copy).unwrap();
    let source = source(vec![disk("vda", &original, false)], &[]);
    for same in [&original, &hard, &soft] {
        let proved = source.check(&[(&original, same)]).unwrap();
        assert_eq!((proved[0].by, proved.len()), (Proof::Mark, 1), "{}", same.display());
    }
    let refused = source.check(&[(&original, &copy)]).unwrap_err();
    assert!(matches!(&refused[..], [NotShared::Differs { .. }]), "{refused:?}");
    let message = refused[0].to_string();
    for word in ["vda", "tmpfs", "--copy-disks vda", original.to_str().unwrap(), copy.to_str().unwrap()] {
        assert!(message.contains(word), "{message}");
    }
    drop(source.marks);
}

/// Waits for a mark to go with its files: a child that another test forks has them too, until it runs its own program.
fn until(mut gone: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !gone() {
        assert!(Instant::now() < deadline, "a mark stays although its file was closed");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// As on a file system without locks.
fn without_marks(mut source: Source, path: &Path) -> Source {
    source.marks = Marks::default();
    let by_mark = |proved: Vec<Proved>| proved.iter().any(|proved| proved.by == Proof::Mark);
    until(|| !source.check(&[(path, path)]).is_ok_and(by_mark));
    source
}

#[test]
fn the_operators_assertion_counts_only_where_nothing_is_known() {
    let hosts = hosts();
    let original = image(&hosts.here.join("d.img"));
    let copy = hosts.there.join("d.img");
    fs::copy(&original, &copy).unwrap();
    fs::write(&copy, "another disk").unwrap();
    let of = |read_only: bool, asserted_shared: &[&str]| {
        source(vec![disk("vda", &original, read_only)], asserted_shared)
    };
    for asserted_shared in [&[][..], &["vda"]] {
        let refused = of(false, asserted_shared).check(&[(&original, &copy)]).unwrap_err();
        assert!(matches!(&refused[..], [NotShared::Differs { .. }]), "{refused:?}");
    }
    assert!(of(true, &[]).check(&[(&original, &copy)]).is_err());
    let proved = of(true, &["vda"]).check(&[(&original, &copy)]).unwrap();
    assert_eq!(proved[0].by, Proof::OperatorAsserted);
    // The very file, of which the mark is not seen.
    let unseen = without_marks(of(false, &[]), &original).check(&[(&original, &original)]).unwrap_err();
    assert!(matches!(&unseen[..], [NotShared::Unproved { .. }]), "{unseen:?}");
    assert!(unseen[0].to_string().contains("--shared-storage vda"), "{unseen:?}");
    let proved = without_marks(of(false, &["vda"]), &original).check(&[(&original, &original)]).unwrap();
    assert_eq!(proved[0].by, Proof::OperatorAsserted);
    // A stale copy is refused with the better sentence, whatever the operator says.
    stale::mark(&copy, "web", "beta").unwrap();
    for asserted_shared in [&[][..], &["vda"]] {
        let refused = of(false, asserted_shared).check(&[(&original, &copy)]).unwrap_err();
        assert!(matches!(&refused[..], [NotShared::Stale { .. }]), "{refused:?}");
        assert!(refused[0].to_string().contains("copied to beta"), "{refused:?}");
    }
}

#[test]
fn a_file_that_is_only_read_may_be_another_with_the_same_bytes() {
    let hosts = hosts();
    let original = image(&hosts.here.join("cd.iso"));
    let copy = hosts.there.join("cd.iso");
    fs::copy(&original, &copy).unwrap();
    let source = source(vec![disk("cd0", &original, true)], &[]);
    assert_eq!(source.check(&[(&original, &copy)]).unwrap()[0].by, Proof::SameContent);
    fs::write(&copy, vec![8; 4096]).unwrap();
    assert!(source.check(&[(&original, &copy)]).is_err());
}

/// What is on the command line is one file; the image that it names is not.
#[test]
fn backing_files_that_images_name_must_be_shared_too() {
    let hosts = hosts();
    let qemu_img = |arguments: &[&str], path: &Path| {
        let mut command = Command::new("qemu-img");
        command
            .args(["create", "-q", "-f", "qcow2"])
            .args(arguments)
            .arg(path)
            .arg("1M")
            .current_dir(&hosts.here);
        assert!(command.status().unwrap().success());
    };
    let [base, top] = ["base.qcow2", "top.qcow2"].map(|name| hosts.here.join(name));
    qemu_img(&[], &base);
    qemu_img(&["-b", "base.qcow2", "-F", "qcow2"], &top);
    let [base_there, top_there] = ["base.qcow2", "top.qcow2"].map(|name| hosts.there.join(name));
    fs::hard_link(&top, &top_there).unwrap();
    fs::hard_link(&base, &base_there).unwrap();
    let disks = vec![disk("vda", &top, false), disk("#block3", &base, true)];
    let source = source(disks, &[]);
    let proved = source.check(&[(&top, &top_there)]).unwrap();
    let paths: Vec<&Path> = proved.iter().map(|one| one.path.as_path()).collect();
    assert_eq!(paths, [&top_there, &base_there]);
    // The same name in another folder, with other bytes.
    fs::remove_file(&base_there).unwrap();
    qemu_img(&["-o", "cluster_size=4096"], &base_there);
    let refused = source.check(&[(&top, &top_there)]).unwrap_err();
    assert!(matches!(&refused[..], [NotShared::Differs { .. }]), "{refused:?}");
    assert!(refused[0].to_string().contains("base.qcow2"), "{refused:?}");
}

#[test]
fn an_image_that_was_replaced_since_the_guest_opened_it_is_refused() {
    let hosts = hosts();
    let path = image(&hosts.here.join("d.img"));
    let mut source = source(vec![disk("vda", &path, false)], &[]);
    fs::rename(&path, hosts.here.join("aside")).unwrap();
    image(&path);
    source.describe(&[]);
    let facts = source.guest.storage.as_ref().unwrap();
    assert_eq!(facts.images[0].storage, Storage::Unknown);
    let refused = source.check(&[(&path, &path)]).unwrap_err();
    assert!(refused[0].to_string().contains("was replaced since"), "{refused:?}");
}

#[test]
fn what_is_replaced_between_admission_and_blackout_is_noticed_on_both_sides() {
    let hosts = hosts();
    let path = image(&hosts.here.join("d.img"));
    let source = source(vec![disk("vda", &path, false)], &[]);
    let own = source.guest.process.pid;
    let proved = source.check(&[(&path, &path)]).unwrap();
    shared::recheck(&proved, Some(own)).unwrap();
    source.marks.recheck(own).unwrap();
    let aside = hosts.here.join("aside");
    fs::rename(&path, &aside).unwrap();
    image(&path);
    let messages = [shared::recheck(&proved, None), source.marks.recheck(own)]
        .map(|found| found.unwrap_err().to_string());
    assert!(
        messages.iter().all(|message| message.contains("vda") && message.contains("replaced")),
        "{messages:?}"
    );
    fs::rename(&aside, &path).unwrap();
    shared::recheck(&proved, Some(own)).unwrap();
    drop((source.marks, source.open));
    let lost = |error: shared::RecheckError| error.to_string().contains("no longer marked");
    until(|| shared::recheck(&proved, None).is_err_and(lost));
}

/// What the guest wrote is in this host's page cache alone, and the destination's host would not see it.
#[test]
fn a_shared_disk_that_qemu_never_flushes_is_flushed_by_the_agent_or_refused() {
    let hosts = hosts();
    let path = image(&hosts.here.join("d.img"));
    let mut source = source(vec![disk("vda", &path, false)], &[]);
    let opener =
        json!({ "name": "n", "driver": "file", "path": path, "read_only": false, "size": 1, "children": [] });
    let graph = json!({ "drives": [], "unused": [], "nodes": [opener], "jobs": [] }).to_string();
    let mut graph = DiskGraph::from_json(&graph).unwrap();
    graph.nodes[0].no_flush = true;
    source.guest.graph = Some(graph);
    source.describe(&[]);
    source.marks.flush().unwrap();
    // Another file has its name, and only an assertion of the operator would let the guest go.
    fs::rename(&path, hosts.here.join("aside")).unwrap();
    image(&path);
    let refused = shared::describe(&source.guest, &["vda".into()]).unwrap_err().to_string();
    assert!(refused.contains("vda") && refused.contains("cache=unsafe"), "{refused}");
    // QEMU's mirror sees what is in the page cache.
    let (id, path) = ("vda".to_owned(), path.to_str().unwrap().to_owned());
    let copied = CopiedDisk { id, path, format: ImageFormat::Raw, size: 4096, identity: None };
    source.guest.copied = vec![copied];
    source.describe(&[]);
}

/// QEMU writes all of a flash device into its file when the guest arrives (tried with QEMU 7.2).
#[test]
fn a_file_of_flash_need_not_be_shared() {
    let hosts = hosts();
    let original = image(&hosts.here.join("vars.fd"));
    let other = hosts.there.join("vars.fd");
    fs::write(&other, vec![9; 4096]).unwrap();
    let source = source(vec![Disk { flash: true, ..disk("pflash1", &original, false) }], &[]);
    assert_eq!(source.check(&[(&original, &other)]).unwrap()[0].by, Proof::CarriedByQemu);
    assert_eq!(source.check(&[(&original, &original)]).unwrap()[0].by, Proof::Mark);
}

/// Ends a process, also if the test fails.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_shared_image_that_something_else_writes_is_refused() {
    let hosts = hosts();
    let path = image(&hosts.here.join("d.img"));
    let mut source = source(vec![disk("vda", &path, false)], &[]);
    let open = |file: File| {
        let mut command = Command::new("sleep");
        Ended(command.arg("60").stdin(std::process::Stdio::from(file)).spawn().unwrap())
    };
    let files = [(path.as_path(), path.as_path())];
    let reader = open(File::open(&path).unwrap());
    in_use::check_shared(&source.guest, &incoming(&files)).unwrap();
    drop(reader);
    let writer = open(File::options().write(true).open(&path).unwrap());
    let refused = in_use::check_shared(&source.guest, &incoming(&files)).unwrap_err().to_string();
    assert!(refused.contains("(sleep) has it open for writing"), "{refused}");
    // As the guest itself, where both hosts are one machine.
    source.guest.process.pid = i32::try_from(writer.0.id()).unwrap();
    in_use::check_shared(&source.guest, &incoming(&files)).unwrap();
    source.guest.process.pid = 1;
    let mut check = |arguments: [&str; 2]| {
        source.guest.arguments = arguments.map(str::to_owned).to_vec();
        in_use::check_shared(&source.guest, &incoming(&files))
    };
    for other in [
        ["-append", "share-rw=on"],
        ["-device", "virtio-blk-pci,drive=vdb,share-rw=on"],
        ["-device", "virtio-blk-pci,drive=vda,share-rw=off"],
        ["-device", "virtio-blk-pci,drive=vda,serial=share-rw"],
    ] {
        assert!(check(other).is_err(), "{other:?}");
    }
    check(["-device", "virtio-blk-pci,drive=vda,share-rw=on"]).unwrap();
    check(["-device", r#"{"driver":"virtio-blk-pci","drive":"vda","share-rw":true}"#]).unwrap();
}

#[test]
fn a_source_without_storage_marks_shares_none() {
    let hosts = hosts();
    let path = image(&hosts.here.join("d.img"));
    let mut source = source(vec![disk("vda", &path, false)], &["vda"]);
    source.guest.storage = None;
    let refused = source.check(&[(&path, &path)]).unwrap_err();
    assert!(matches!(&refused[..], [NotShared::Unproved { .. }]), "{refused:?}");
    // A disk that the guest does not have open any more, but that is still on its command line.
    source.describe(&[]);
    let other = image(&hosts.here.join("other.img"));
    let refused = source.check(&[(&path, &path), (&other, &other)]).unwrap_err();
    assert!(refused.len() == 1 && refused[0].to_string().contains("does not have it open"), "{refused:?}");
    let unknown = shared::describe(&source.guest, &["sda".into()]).unwrap_err().to_string();
    assert!(unknown.contains("sda") && unknown.contains("vda"), "{unknown}");
}
