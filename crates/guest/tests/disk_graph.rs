//! The disks that a guest uses, as real QEMUs say: against its command line, and against the QEMU that waits at the
//! destination.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests, too, say what they expect

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::*;
use linerate_guest::description::{CopiedDisk, GuestDescription, ImageFormat};
use linerate_guest::drives::{DiskSelection, DrivesError, writable};
use linerate_guest::graph::{Difference, DiskGraph, GraphError, Mapping, Node, NotNamed, check_files, read};
use linerate_guest::incoming_qemu::QemuBinary;
use linerate_guest::qmp::Qmp;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// A guest that was started by hand and does not run.
struct Guest {
    qmp: Qmp,
    arguments: Vec<String>,
    process: ByHand,
}

fn start(place: &Place, qemu: &QemuBinary, name: &str, arguments: &str) -> Guest {
    let socket = place.path(name);
    let folder = place.path("disks");
    let arguments = arguments.replace("DIR", folder.to_str().unwrap());
    let line = format!(
        "-nodefaults -display none -machine pc,accel=tcg -m 32 -S -qmp unix:{},server=on,wait=off {arguments}",
        socket.display()
    );
    let process = ByHand::start(qemu, &line);
    wait_until_listening(&socket);
    let end = soon();
    // The socket is there a moment before QEMU listens on it.
    let qmp = loop {
        match Qmp::connect(&socket, end) {
            Ok(qmp) => break qmp,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    Guest { qmp, arguments: line.split_whitespace().map(str::to_owned).collect(), process }
}

impl Guest {
    fn ask(&mut self, command: &str, arguments: Value) -> Value {
        self.qmp.execute(command, arguments, soon()).unwrap()
    }

    fn graph(&mut self) -> DiskGraph {
        let graph = read(&mut self.qmp, soon()).unwrap();
        check_files(&graph, self.process.pid()).unwrap();
        let read_again = DiskGraph::from_json(&graph.to_json().unwrap()).unwrap();
        assert_eq!(read_again, graph);
        graph
    }

    /// The node of `top.qcow2`.
    fn top_of_chain(&mut self) -> Node {
        let is_top = |node: &Node| node.path.ends_with("top.qcow2") && node.driver == "qcow2";
        self.graph().nodes.into_iter().find(is_top).unwrap()
    }

    fn wait_job(&mut self, status: &str) {
        let end = soon();
        while !self.ask("query-jobs", json!({})).to_string().contains(status) {
            assert!(Instant::now() < end, "the job does not become {status}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn wait_no_job(&mut self) {
        let end = soon();
        while self.ask("query-jobs", json!({})) != json!([]) {
            assert!(Instant::now() < end, "the job does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn qemu_img(arguments: &str, folder: &Path) {
    let arguments = arguments.replace("DIR", folder.to_str().unwrap());
    let status = Command::new("qemu-img").args(arguments.split_whitespace()).status().unwrap();
    assert!(status.success(), "{arguments}");
}

fn images(place: &Place) {
    for (name, megabytes) in [("a.img", 8), ("b.img", 8), ("cd.iso", 1), ("other.iso", 2), ("part.img", 8)] {
        place.disk(name, megabytes);
    }
    let folder = place.path("disks");
    qemu_img("create -q -f qcow2 DIR/base.qcow2 8M", &folder);
    qemu_img("create -q -f qcow2 -b base.qcow2 -F qcow2 DIR/middle.qcow2", &folder);
    qemu_img("create -q -f qcow2 -b DIR/middle.qcow2 -F qcow2 DIR/top.qcow2", &folder);
}

/// A guest with the disks of a command line, and where it has them.
fn started(qemu: &QemuBinary, arguments: &str) -> (Place, Guest) {
    let place = Place::new();
    images(&place);
    let guest = start(&place, qemu, "g", arguments);
    (place, guest)
}

/// All kinds of notation.
const ALL: &str = "-drive if=none,id=d0,file=DIR/a.img,format=raw -device virtio-blk-pci,drive=d0,id=vd0 \
    -blockdev driver=file,node-name=f1,filename=DIR/b.img -blockdev driver=raw,node-name=n1,file=f1 \
    -device virtio-blk-pci,drive=n1,id=vd1 \
    -drive if=virtio,file=DIR/top.qcow2,format=qcow2 \
    -drive if=none,id=cd,media=cdrom,file=DIR/cd.iso,format=raw,readonly=on -device ide-cd,id=cd0,drive=cd \
    -device ide-cd,id=cd1";

fn same(source: &DiskGraph, destination: &DiskGraph) -> Option<Difference> {
    source.difference(destination, Mapping { paths: &BTreeMap::new(), copied: &[] })
}

#[test]
fn a_guest_as_it_was_started_is_the_same_in_every_qemu_that_waits_for_it() {
    let place = Place::new();
    images(&place);
    let versions = qemus();
    for (number, qemu) in versions.iter().enumerate() {
        let mut source = start(&place, qemu, &format!("source-{number}"), ALL);
        let graph = source.graph();
        graph.check_named(&source.arguments).unwrap();
        assert_eq!(graph.drives.len(), 5);
        let chain: Vec<&str> = graph.nodes.iter().map(|node| node.path.rsplit('/').next().unwrap()).collect();
        assert!(
            ["top.qcow2", "middle.qcow2", "base.qcow2"].iter().all(|name| chain.contains(name)),
            "{chain:?}"
        );
        for (other, waiting) in versions.iter().enumerate().skip(number) {
            let name = format!("waits-{number}-{other}");
            let mut waiting = start(&place, waiting, &name, &format!("{ALL} -incoming defer"));
            assert_eq!(same(&graph, &waiting.graph()), None, "{number} to {other}");
        }
    }
}

#[test]
fn a_disk_that_qemu_never_flushes_is_known_in_the_graph() {
    let line = "-drive if=none,id=d0,file=DIR/a.img,format=raw,cache=unsafe -device virtio-blk-pci,drive=d0 \
        -drive if=virtio,file=DIR/b.img,format=raw";
    for qemu in qemus() {
        let (_place, mut guest) = started(&qemu, line);
        let graph = read(&mut guest.qmp, soon()).unwrap();
        let opener = |name: &str| {
            graph.nodes.iter().find(|node| node.children.is_empty() && node.path.ends_with(name)).unwrap()
        };
        assert!(opener("a.img").no_flush && !opener("b.img").no_flush, "{graph:?}");
    }
}

/// What an operator may do to a running guest's disks, and a word of the message about it.
type Change = (&'static str, fn(&mut Guest, &Path));

fn snapshot(guest: &mut Guest, what: Value, folder: &Path) {
    let mut arguments = json!({ "snapshot-file": folder.join("snapshot.qcow2"), "format": "qcow2" });
    arguments.as_object_mut().unwrap().extend(what.as_object().unwrap().clone());
    guest.ask("blockdev-snapshot-sync", arguments);
}

const CHANGES: &[Change] = &[
    ("snapshot.qcow2", |guest, folder| snapshot(guest, json!({ "device": "d0" }), folder)),
    ("snapshot.qcow2", |guest, folder| {
        snapshot(guest, json!({ "node-name": "n1", "snapshot-node-name": "s1" }), folder);
    }),
    ("mirror.img", |guest, folder| {
        std::fs::File::create(folder.join("mirror.img")).unwrap().set_len(8 * MIB).unwrap();
        let target = json!({ "job-id": "m", "device": "d0", "target": folder.join("mirror.img"), "sync": "full",
            "format": "raw", "mode": "existing" });
        guest.ask("drive-mirror", target);
        guest.wait_job("ready");
        guest.ask("block-job-complete", json!({ "device": "m" }));
        guest.wait_no_job();
    }),
    ("other.iso", |guest, folder| {
        let medium = json!({ "id": "cd0", "filename": folder.join("other.iso"), "format": "raw" });
        guest.ask("blockdev-change-medium", medium);
    }),
    ("cd.iso", |guest, _| {
        guest.ask("eject", json!({ "id": "cd0", "force": true }));
    }),
    ("other.iso", |guest, folder| {
        let medium = json!({ "id": "cd1", "filename": folder.join("other.iso"), "format": "raw" });
        guest.ask("blockdev-change-medium", medium);
    }),
    // A file of the command line, in another drive.
    ("cd.iso", |guest, folder| {
        guest.ask(
            "blockdev-change-medium",
            json!({ "id": "cd1", "filename": folder.join("cd.iso"), "format": "raw" }),
        );
        guest.ask("eject", json!({ "id": "cd0", "force": true }));
    }),
    ("base.qcow2", |guest, _| {
        guest.ask("block-commit", json!({ "device": "virtio1", "job-id": "c" }));
        guest.wait_job("ready");
        guest.ask("block-job-complete", json!({ "device": "c" }));
        guest.wait_no_job();
    }),
    ("unused", |guest, folder| {
        std::fs::File::create(folder.join("unused.img")).unwrap().set_len(MIB).unwrap();
        let file = json!({ "driver": "file", "filename": folder.join("unused.img") });
        guest.ask("blockdev-add", json!({ "driver": "raw", "node-name": "unused", "file": file }));
    }),
    ("plugged.img", |guest, folder| {
        std::fs::File::create(folder.join("plugged.img")).unwrap().set_len(MIB).unwrap();
        let file = json!({ "driver": "file", "filename": folder.join("plugged.img") });
        guest.ask("blockdev-add", json!({ "driver": "raw", "node-name": "plugged", "file": file }));
        guest.ask("device_add", json!({ "driver": "virtio-blk-pci", "id": "vd9", "drive": "plugged" }));
    }),
    ("mirror", |guest, _| {
        let target = json!({ "driver": "null-co", "node-name": "away", "size": 8 * MIB });
        guest.ask("blockdev-add", target);
        guest.ask(
            "blockdev-mirror",
            json!({ "job-id": "m", "device": "d0", "target": "away", "sync": "full" }),
        );
        guest.wait_job("ready");
    }),
];

/// The drive without an id is `virtio1` or `virtio0`, whatever else there is.
const FEWER: &str = "-drive if=none,id=d0,file=DIR/a.img,format=raw -device virtio-blk-pci,drive=d0,id=vd0 \
    -blockdev driver=file,node-name=f1,filename=DIR/b.img -blockdev driver=raw,node-name=n1,file=f1 \
    -device virtio-blk-pci,drive=n1,id=vd1 \
    -drive if=virtio,index=1,file=DIR/top.qcow2,format=qcow2 \
    -drive if=none,id=cd,media=cdrom,file=DIR/cd.iso,format=raw,readonly=on -device ide-cd,id=cd0,drive=cd \
    -device ide-cd,id=cd1";

#[test]
fn a_replaced_image_is_found_before_during_and_after_a_migration() {
    for qemu in qemus() {
        for (number, (word, change)) in CHANGES.iter().enumerate() {
            let (place, mut guest) = started(&qemu, FEWER);
            let before = guest.graph();
            assert_eq!(before.change(&guest.graph()), None);
            change(&mut guest, &place.path("disks"));
            let after = guest.graph();
            let named = after.check_named(&guest.arguments);
            let changed = before.change(&after);
            assert!(named.is_err_and(|error| error.to_string().contains(word)), "{number}: {word}");
            // A node of which nothing is to arrive is no change.
            assert!(changed.is_some() || *word == "unused", "{number}: {word}");
            let mut waiting = start(&place, &qemu, "w", &format!("{FEWER} -incoming defer"));
            assert!(same(&after, &waiting.graph()).is_some(), "{number}: {word}");
        }
    }
}

/// Changes that a drive's option can follow, by their number in [`CHANGES`].
const FOLLOWED: [usize; 4] = [0, 2, 3, 4];

/// A snapshot of a `-blockdev` node is not followed. The refusal says how to undo it, and then the guest can be moved.
#[test]
fn a_committed_snapshot_is_no_reason_to_refuse() {
    for qemu in qemus() {
        let (place, mut guest) = started(&qemu, FEWER);
        let node = json!({ "node-name": "n1", "snapshot-node-name": "s1" });
        snapshot(&mut guest, node, &place.path("disks"));
        let refused = guest.graph().check_named(&guest.arguments).unwrap_err().to_string();
        assert!(refused.contains("block-commit"), "{refused}");
        guest.ask("block-commit", json!({ "device": "s1", "job-id": "c" }));
        guest.wait_job("ready");
        guest.ask("block-job-complete", json!({ "device": "c" }));
        guest.wait_no_job();
        guest.graph().check_named(&guest.arguments).unwrap();
    }
}

fn wait_migration(guest: &mut Guest, status: &str) {
    let end = soon();
    while guest.ask("query-migrate", json!({}))["status"] != status {
        assert!(Instant::now() < end, "the migration does not become {status}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// QEMU refuses to plug devices while it migrates, and nothing else: images can be replaced until it has written its
/// state.
#[test]
fn a_disk_that_is_changed_when_qemu_already_holds_the_guest_is_seen_when_its_state_is_written() {
    let changes: [(&str, Value); 4] = [
        ("nothing", json!({})),
        ("blockdev-snapshot-sync", json!({ "device": "d0", "snapshot-file": "SNAP", "format": "qcow2" })),
        ("blockdev-change-medium", json!({ "id": "cd0", "filename": "OTHER" })),
        ("block_resize", json!({ "device": "d0", "size": 16 * MIB })),
    ];
    for qemu in qemus() {
        for (command, arguments) in &changes {
            let (place, mut guest) = started(&qemu, ALL);
            let bitmap = json!({ "node": "#block000", "name": "b", "persistent": true });
            let _ = guest.qmp.execute("block-dirty-bitmap-add", bitmap, soon());
            let before = guest.graph();
            let hold = json!([{ "capability": "pause-before-switchover", "state": true }]);
            guest.ask("migrate-set-capabilities", json!({ "capabilities": hold }));
            guest.ask("migrate", json!({ "uri": "exec:cat >/dev/null" }));
            wait_migration(&mut guest, "pre-switchover");
            assert_eq!(before.change(&guest.graph()), None, "{command}");
            let plugged = guest.qmp.execute("device_add", json!({ "driver": "virtio-rng-pci" }), soon());
            assert!(plugged.unwrap_err().to_string().contains("not allowed while migrating"));
            if *command != "nothing" {
                let folder = place.path("disks").to_str().unwrap().to_owned();
                let text = arguments.to_string().replace("SNAP", &format!("{folder}/snap.qcow2"));
                let text = text.replace("OTHER", &format!("{folder}/other.iso"));
                guest.ask(command, serde_json::from_str(&text).unwrap());
            }
            guest.ask("migrate-continue", json!({ "state": "pre-switchover" }));
            wait_migration(&mut guest, "completed");
            let began = Instant::now();
            let change = before.change(&guest.graph());
            eprintln!("{command}: looked at in {:?}: {change:?}", began.elapsed());
            assert_eq!(change.is_some(), *command != "nothing", "{command}: {change:?}");
        }
    }
}

#[test]
fn a_qemu_of_the_followed_command_line_has_the_images_in_use() {
    for qemu in qemus() {
        for (number, (word, change)) in CHANGES.iter().enumerate() {
            let (place, mut guest) = started(&qemu, FEWER);
            assert_eq!(guest.graph().follow(&guest.arguments), None);
            change(&mut guest, &place.path("disks"));
            let graph = guest.graph();
            let followed = graph.follow(&guest.arguments);
            let arguments = followed.map_or_else(|| guest.arguments.clone(), |(arguments, _)| arguments);
            let named = graph.check_named(&arguments);
            assert_eq!(named.is_ok(), FOLLOWED.contains(&number), "{number}: {word}: {named:?}");
            if named.is_ok() {
                let at = arguments.iter().position(|argument| argument.starts_with("-qmp")).unwrap();
                let line = [&arguments[at + 2..], &["-incoming".into(), "defer".into()]].concat().join(" ");
                let mut waiting = start(&place, &qemu, "w", &line);
                assert_eq!(same(&graph, &waiting.graph()), None, "{number}: {word}");
            }
        }
    }
}

#[test]
fn a_cd_of_an_option_of_its_own_is_followed() {
    for qemu in qemus() {
        let place = Place::new();
        images(&place);
        let folder = place.path("disks");
        let mut guest = start(&place, &qemu, "g", "-cdrom DIR/cd.iso");
        let name = guest.graph().drives[0].name.clone();
        for step in ["eject", "change"] {
            match step {
                "eject" => guest.ask("eject", json!({ "device": name, "force": true })),
                _ => guest.ask(
                    "blockdev-change-medium",
                    json!({ "device": name, "filename": folder.join("other.iso"), "format": "raw" }),
                ),
            };
            let graph = guest.graph();
            let (arguments, _) = graph.follow(&guest.arguments).unwrap();
            graph.check_named(&arguments).unwrap();
            let line = arguments[arguments.len() - 2..].join(" ");
            let mut waiting = start(&place, &qemu, step, &format!("{line} -incoming defer"));
            assert_eq!(same(&graph, &waiting.graph()), None, "{step}: {line}");
        }
    }
}

#[test]
fn a_backing_image_that_was_merged_into_the_one_above_is_no_change_of_what_the_command_line_names() {
    for qemu in qemus() {
        let (place, mut guest) = started(&qemu, FEWER);
        let top = guest.top_of_chain();
        let [middle, base] = ["middle.qcow2", "base.qcow2"].map(|name| place.path("disks").join(name));
        let commit = json!({ "device": top.name, "top": middle, "base": base, "job-id": "c" });
        guest.ask("block-commit", commit);
        guest.wait_no_job();
        let graph = guest.graph();
        graph.check_named(&guest.arguments).unwrap();
        let mut waiting = start(&place, &qemu, "w", &format!("{FEWER} -incoming defer"));
        assert_eq!(same(&graph, &waiting.graph()), None);
    }
}

#[test]
fn linerates_own_copying_is_no_change() {
    for qemu in qemus() {
        let place = Place::new();
        images(&place);
        let spare = "-blockdev driver=raw,node-name=spare,file.driver=file,file.filename=DIR/part.img";
        let mut guest = start(&place, &qemu, "g", &format!("{FEWER} {spare}"));
        let before = guest.graph();
        let target = json!({ "driver": "null-co", "node-name": "linerate-disk-0", "size": 8 * MIB });
        guest.ask("blockdev-add", target);
        let job = json!({ "job-id": "linerate-disk-0", "device": "d0", "target": "linerate-disk-0", "sync": "full" });
        guest.ask("blockdev-mirror", job);
        guest.wait_job("ready");
        guest.ask(
            "blockdev-add",
            json!({ "driver": "null-co", "node-name": "linerate-disk-1", "size": 8 * MIB }),
        );
        let job = json!({ "job-id": "linerate-disk-1", "device": "spare", "target": "linerate-disk-1", "sync": "full" });
        guest.ask("blockdev-mirror", job);
        assert_eq!(before.change(&guest.graph()), None);
        snapshot(&mut guest, json!({ "node-name": "n1", "snapshot-node-name": "s1" }), &place.path("disks"));
        assert!(matches!(before.change(&guest.graph()), Some(Difference::Image { .. })));
    }
}

const PART: &str = "-blockdev driver=raw,node-name=part,offset=1048576,size=2097152,file.driver=file,file.filename=DIR/part.img \
    -device virtio-blk-pci,drive=part -blockdev driver=raw,node-name=tail,offset=4194304,file.driver=file,file.filename=DIR/a.img \
    -device virtio-blk-pci,drive=tail -blockdev driver=raw,node-name=spare,file.driver=file,file.filename=DIR/b.img";

#[test]
fn parts_of_files_and_nodes_without_a_device_are_seen() {
    for qemu in qemus() {
        let place = Place::new();
        images(&place);
        let mut guest = start(&place, &qemu, "g", PART);
        let graph = guest.graph();
        graph.check_named(&guest.arguments).unwrap();
        assert_eq!(graph.part_of_file("part"), Some((MIB, 2 * MIB)));
        assert_eq!(graph.part_of_file("tail"), Some((4 * MIB, 4 * MIB)));
        assert_eq!(graph.part_of_file("spare"), None);
        assert_eq!(graph.unused_nodes().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["spare"]);
        for (number, (from, to)) in
            [("offset=1048576", "offset=0"), ("size=2097152", "size=1048576"), ("offset=4194304,", "")]
                .into_iter()
                .enumerate()
        {
            let other = format!("{} -incoming defer", PART.replace(from, to));
            let mut waiting = start(&place, &qemu, &format!("w{number}"), &other);
            let found = same(&graph, &waiting.graph());
            assert!(matches!(found, Some(Difference::Size { .. })), "{from}: {found:?}");
        }
    }
}

#[test]
fn nodes_without_a_device_are_copied_and_parts_of_files_are_not() {
    for qemu in qemus() {
        let place = Place::new();
        images(&place);
        let disks = |line: &str| {
            let name = format!("g{}", line.len());
            let mut guest = start(&place, &qemu, &name, line);
            let mut described = description(&[]);
            described.graph = Some(guest.graph());
            writable(&mut guest.qmp, &described, DiskSelection::All, soon())
        };
        let [part, tail, spare] = ["part.img", "a.img", "b.img"].map(|image| {
            let end = PART.find(image).unwrap();
            let begin = PART[..end].rfind("-blockdev").unwrap();
            let next = PART[end..].find(" -blockdev").map_or(PART.len(), |next| end + next);
            PART[begin..next].to_owned()
        });
        for refused in [&part, &tail, &format!("{spare} {part}")] {
            let found = disks(refused);
            assert!(matches!(found, Err(DrivesError::Part { .. })), "{refused}: {found:?}");
        }
        let found = disks(&spare).unwrap();
        let [disk] = &found[..] else { panic!("{found:?}") };
        assert_eq!((disk.id.as_str(), disk.size, disk.format), ("spare", 8 * MIB, ImageFormat::Raw));
        assert!(disk.path.ends_with("disks/b.img"));
    }
}

/// A copy is one image, which has all of the disk.
#[test]
fn a_disk_that_has_its_data_in_another_file_is_not_copied() {
    for qemu in qemus() {
        let place = Place::new();
        images(&place);
        let options = "create -q -f qcow2 -o data_file=DIR/data.raw DIR/apart.qcow2 8M";
        qemu_img(options, &place.path("disks"));
        let line = "-drive if=none,id=d,file=DIR/apart.qcow2,format=qcow2 -device virtio-blk-pci,drive=d";
        let mut guest = start(&place, &qemu, "g", line);
        let described = GuestDescription { graph: Some(guest.graph()), ..description(&[]) };
        let refused = writable(&mut guest.qmp, &described, DiskSelection::All, soon());
        let Err(DrivesError::DataFile { data, .. }) = &refused else { panic!("{refused:?}") };
        assert!(data.ends_with("data.raw"), "{data}");
    }
}

#[test]
fn a_copied_disk_may_have_another_path_and_no_backing_file_but_not_another_size() {
    for qemu in qemus() {
        let place = Place::new();
        images(&place);
        let folder = place.path("disks");
        qemu_img("create -q -f qcow2 DIR/copy.qcow2 8M", &folder);
        qemu_img("create -q -f qcow2 DIR/larger.qcow2 9M", &folder);
        let line = "-drive if=none,id=d,file=DIR/top.qcow2,format=qcow2 -device virtio-blk-pci,drive=d";
        let graph = start(&place, &qemu, "g", line).graph();
        let text = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let copied = CopiedDisk {
            id: "d".into(),
            path: text("top.qcow2"),
            format: ImageFormat::Qcow2,
            size: 8 * MIB,
            identity: None,
        };
        for (image, fits) in [("copy.qcow2", true), ("larger.qcow2", false)] {
            let waits = format!("{} -incoming defer", line.replace("top.qcow2", image));
            let there = start(&place, &qemu, image, &waits).graph();
            let paths = BTreeMap::from([(text("top.qcow2"), text(image))]);
            let found =
                graph.difference(&there, Mapping { paths: &paths, copied: std::slice::from_ref(&copied) });
            assert_eq!(found.is_none(), fits, "{image}: {found:?}");
            let shared = graph.difference(&there, Mapping { paths: &paths, copied: &[] });
            assert!(shared.is_some(), "a shared disk has its backing files");
        }
    }
}

#[test]
fn an_image_whose_name_leads_to_another_file_is_found() {
    for qemu in qemus() {
        let (place, mut guest) = started(&qemu, FEWER);
        guest.graph();
        let (image, other) = (place.path("disks/b.img"), place.path("disks/other.iso"));
        std::fs::rename(&image, place.path("disks/kept.img")).unwrap();
        for step in ["missing", "replaced"] {
            let graph = read(&mut guest.qmp, soon()).unwrap();
            let found = check_files(&graph, guest.process.pid());
            assert!(matches!(found, Err(GraphError::Replaced { .. })), "{step}: {found:?}");
            std::fs::copy(&other, &image).unwrap();
        }
        std::fs::rename(place.path("disks/kept.img"), &image).unwrap();
        guest.graph();
    }
}

#[test]
fn bitmaps_that_stay_behind_are_named() {
    for qemu in qemus() {
        let (_place, mut guest) = started(&qemu, FEWER);
        let top = guest.top_of_chain();
        guest.ask("block-dirty-bitmap-add", json!({ "node": top.name, "name": "kept", "persistent": true }));
        guest.ask("block-dirty-bitmap-add", json!({ "node": "d0", "name": "lost" }));
        let graph = guest.graph();
        assert_eq!(graph.lost_bitmaps(&[]), ["d0: lost"]);
        assert_eq!(graph.lost_bitmaps(&[copied(&top)]), ["d0: lost", "virtio1: kept"]);
        assert!(graph.check_named(&guest.arguments).is_ok());
    }
}

fn copied(top: &Node) -> CopiedDisk {
    let (id, path, format) = (top.name.clone(), top.path.clone(), ImageFormat::Qcow2);
    CopiedDisk { id, path, format, size: top.size, identity: None }
}

#[test]
fn snapshots_within_copied_images_that_stay_behind_are_named() {
    for qemu in qemus() {
        let place = Place::new();
        images(&place);
        let folder = place.path("disks");
        qemu_img("snapshot -c first DIR/top.qcow2", &folder);
        qemu_img("snapshot -c second DIR/top.qcow2", &folder);
        qemu_img("snapshot -c below DIR/middle.qcow2", &folder);
        let mut guest = start(&place, &qemu, "g", FEWER);
        let graph = read(&mut guest.qmp, soon()).unwrap();
        let top = graph.nodes.iter().find(|node| node.driver == "qcow2" && node.path.ends_with("top.qcow2"));
        assert_eq!(graph.lost_snapshots(&[]), [""; 0], "a shared image has them at both hosts");
        let lost = graph.lost_snapshots(&[copied(top.unwrap())]);
        assert_eq!(lost, ["virtio1: first", "virtio1: second", "virtio1: below"]);
    }
}

#[test]
fn a_running_job_keeps_a_guest_where_it_is() {
    for qemu in qemus() {
        let (_place, mut guest) = started(&qemu, FEWER);
        guest.ask("blockdev-add", json!({ "driver": "null-co", "node-name": "away", "size": 8 * MIB }));
        guest.ask(
            "blockdev-backup",
            json!({ "job-id": "nightly", "device": "d0", "target": "away", "sync": "full", "speed": 1 }),
        );
        let named = guest.graph().check_named(&guest.arguments);
        assert!(matches!(&named, Err(NotNamed::Job { id, .. }) if id == "nightly"), "{named:?}");
    }
}

#[test]
fn a_disk_that_was_enlarged_is_the_same_once_its_qemu_knows() {
    for qemu in qemus() {
        let place = Place::new();
        images(&place);
        let line = "-drive if=none,id=d,file=DIR/a.img,format=raw -device virtio-blk-pci,drive=d";
        let mut guest = start(&place, &qemu, "g", line);
        let before = guest.graph();
        std::fs::OpenOptions::new()
            .write(true)
            .open(place.path("disks/a.img"))
            .unwrap()
            .set_len(9 * MIB)
            .unwrap();
        assert_eq!(before.change(&guest.graph()), None);
        let there = start(&place, &qemu, "w", &format!("{line} -incoming defer")).graph();
        let found = same(&before, &there);
        assert!(
            matches!(found, Some(Difference::Size { first, second, .. }) if second == first + MIB),
            "{found:?}"
        );
        guest.ask("block_resize", json!({ "device": "d", "size": 9 * MIB }));
        assert_eq!(same(&guest.graph(), &there), None);
        assert!(before.change(&guest.graph()).is_some());
    }
}

/// Three ways to name a disk: by its drive, by its device, and by the device's place in the machine.
#[test]
fn limits_of_io_that_were_set_since_the_start_are_those_of_the_waiting_qemu_too() {
    const NODE: &str = "-blockdev driver=file,filename=DIR/a.img,node-name=n";
    for qemu in qemus() {
        let place = Place::new();
        images(&place);
        let lines = [
            "-drive if=none,id=d,file=DIR/a.img,format=raw,throttling.iops-total=700 -device virtio-blk-pci,drive=d"
                .to_owned(),
            format!("{NODE} -device virtio-blk-pci,drive=n,id=vd"),
            format!("{NODE} -device virtio-blk-pci,drive=n"),
        ];
        for (number, line) in lines.iter().enumerate() {
            let mut guest = start(&place, &qemu, &format!("g{number}"), line);
            let mut there = start(&place, &qemu, &format!("w{number}"), &format!("{line} -incoming defer"));
            assert!(guest.graph().limits_to_set(&there.graph()).is_empty(), "{line}");
            let drive = guest.graph().drives.remove(0);
            let (key, name) = match drive.device {
                Some(device) if drive.name.is_empty() => ("id", device),
                _ => ("device", drive.name),
            };
            let mut limits = json!({ "bps": 0, "bps_rd": 1_000_000, "bps_wr": 500_000, "iops": 0, "iops_rd": 0,
                "iops_wr": 50, "iops_wr_max": 80, "iops_wr_max_length": 3, "group": "shared" });
            limits[key] = json!(name);
            guest.ask("block_set_io_throttle", limits);
            let set = guest.graph().limits_to_set(&there.graph());
            assert_eq!(set.len(), 1, "{line}: {set:?}");
            for limits in set {
                there.ask("block_set_io_throttle", limits);
            }
            let limits = there.graph().drives.remove(0).limits;
            assert!(limits.is_some() && limits == guest.graph().drives[0].limits, "{line}: {limits:?}");
            assert!(guest.graph().limits_to_set(&there.graph()).is_empty(), "{line}");
        }
    }
}

/// As QEMU 7.2 has an empty `sd0` that 10.0 has not.
#[test]
fn empty_drives_that_only_one_qemu_makes_are_no_difference() {
    let graph = |drives: &str| {
        let node = r#"{"name":"n","driver":"file","path":"/a","read_only":false,"size":1,"children":[]}"#;
        DiskGraph::from_json(&format!(r#"{{"drives":[{drives}],"unused":[],"nodes":[{node}],"jobs":[]}}"#))
            .unwrap()
    };
    let full = r#"{"name":"d","device":null,"node":0}"#;
    let empty = r#"{"name":"sd0","device":null,"node":null}"#;
    // A device of the same id as a drive.
    let other = r#"{"name":"","device":"d","node":0}"#;
    assert_eq!(same(&graph(&format!("{full},{empty}")), &graph(full)), None);
    assert_eq!(same(&graph(full), &graph(&format!("{empty},{full}"))), None);
    for (one, two) in [(format!("{full},{other}"), full), (full.to_owned(), other), (full.to_owned(), empty)]
    {
        assert!(same(&graph(&one), &graph(two)).is_some(), "{one} {two}");
        assert!(same(&graph(two), &graph(&one)).is_some(), "{two} {one}");
    }
}

#[test]
fn a_graph_that_is_none_is_refused() {
    let node = |below: usize| {
        format!(
            r#"{{"name":"n","driver":"raw","path":"","read_only":false,"size":1,"children":[{{"role":"file","node":{below}}}]}}"#
        )
    };
    let graph = |drive: usize, nodes: &str| {
        let drives = format!(r#"{{"name":"d","device":null,"node":{drive}}}"#);
        DiskGraph::from_json(&format!(r#"{{"drives":[{drives}],"unused":[],"nodes":[{nodes}],"jobs":[]}}"#))
    };
    for (drive, nodes) in [(0, node(0)), (0, node(1)), (1, node(7)), (5, String::new())] {
        assert!(graph(drive, &nodes).is_err(), "{drive} {nodes}");
    }
    assert!(DiskGraph::from_json(&" ".repeat((1 << 20) + 1)).is_err());
}
