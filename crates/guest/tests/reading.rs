//! Real QEMUs are started, found, read and judged.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests, too, say what they expect

mod common;

use std::time::{Duration, Instant};

use common::*;
use linerate_guest::description::{Backend, CopiedDisk, GuestDescription, ImageFormat};
use linerate_guest::discover::{self, DiscoverError};
use linerate_guest::graph;
use linerate_guest::host::Problem;
use linerate_guest::incoming_qemu::{QemuBinary, build_incoming};
use linerate_guest::leftover_ram::LeftoverRam;
use linerate_guest::process::{GuestError, Launch, StopMethod, start, stop};
use linerate_guest::qmp::{QemuVersion, Qmp, QmpError};
use linerate_guest::read::{Names, read};
use linerate_guest::registry::{GuestRecord, Origin};
use linerate_guest::run_state::RunState;
use linerate_guest::verdict::{Reason, judge, judge_images, judge_streams};
use linerate_guest::virtio_mem::is_emptied_at_start;
use serde_json::{Value, json};

const SPEC: &str = "name = 'web'\nmemory = '64M'\nvcpus = 2\nmachine = 'q35'\naccel = 'tcg'\nuuid = '01234567-89ab-cdef-0123-456789abcdef'\n[[disk]]\npath = 'a,b.img'\ncache = 'none'\naio = 'native'\n[[disk]]\npath = 'c.img'\ndrop_cache = false\n";

#[test]
fn a_guest_from_a_specification_is_read_judged_and_stopped() {
    for qemu in qemus() {
        let place = Place::new();
        let disk = place.disk("a,b.img", 8);
        place.disk("c.img", 4);
        let mut guest = start_spec(&place, &qemu, SPEC);
        let pid = guest.record.process.pid;
        assert_eq!(guest.qmp().peer_pid().unwrap(), pid);
        let found = read(guest.qmp(), pid, soon()).unwrap();
        assert_eq!((found.name.as_str(), found.vcpus, found.memory_bytes), ("web", 2, 64 << 20));
        assert_eq!(found.uuid.as_deref(), Some("01234567-89ab-cdef-0123-456789abcdef"));
        assert!(found.machine.starts_with("pc-q35-"), "{}", found.machine);
        assert_eq!(found.process.vcpu_threads.len(), 2);
        let regions: Vec<_> = found.regions().collect();
        assert_eq!(regions.len(), 1);
        assert_eq!((regions[0].backend, regions[0].size, regions[0].share), (Backend::File, 64 << 20, true));
        let link = std::fs::read_link(format!("/proc/{pid}/fd/{}", regions[0].descriptor.unwrap())).unwrap();
        assert_eq!(link, guest.record.ram_files[0]);
        let first = found.disks.iter().find(|d| d.path == disk.to_str().unwrap()).unwrap();
        assert_eq!((first.direct, first.size, first.format.as_str()), (true, 8 << 20, "raw"));
        assert_eq!((first.aio.as_deref(), first.drop_cache), (Some("native"), true));
        let second = found.disks.iter().find(|d| d.path.ends_with("c.img")).unwrap();
        assert!(!second.direct && !second.drop_cache);
        assert!(found.traits.hot_plugged.is_empty(), "{:?}", found.traits.hot_plugged);
        assert_eq!(GuestDescription::from_json(&found.to_json().unwrap()).unwrap(), found);

        let verdict = judge(&found, KERNEL);
        assert!(verdict.direct, "{verdict}");
        assert_eq!(verdict.to_string(), "direct: yes");
        assert_eq!(judge(&found, (6, 1)).reasons, [Reason::KernelOld { found: (6, 1) }]);

        let busy = Qmp::connect(&guest.record.qmp, Instant::now() + Duration::from_millis(300));
        assert!(matches!(busy, Err(QmpError::Busy { .. })), "{busy:?}");
        guest.qmp = None;
        let again = discover::by_pid(pid, soon()).unwrap();
        assert_eq!(again.socket, guest.record.qmp);
        drop(again);
        let mut by_socket = discover::by_socket(&guest.record.qmp, soon()).unwrap();
        assert_eq!(by_socket.pid, pid);
        stop(&place.registry, &guest.record, Some(&mut by_socket.qmp), StopMethod::Quit, soon()).unwrap();
        assert!(!guest.record.is_alive() && !guest.record.ram_files[0].exists());
        assert!(place.registry.list().unwrap().is_empty());
    }
}

#[test]
fn a_guest_that_ignores_the_power_button_runs_on() {
    let place = Place::new();
    let mut guest = start_spec(&place, &qemus()[0], "name = 'deaf'\nmemory = '64M'\naccel = 'tcg'");
    let mut qmp = guest.qmp.take();
    let limit = Instant::now() + Duration::from_millis(300);
    let asked = stop(&place.registry, &guest.record, qmp.as_mut(), StopMethod::PowerDown, limit);
    assert!(matches!(asked, Err(GuestError::StillRuns)), "{asked:?}");
    assert!(guest.record.is_alive() && place.registry.get("deaf").is_ok());
    stop(&place.registry, &guest.record, qmp.as_mut(), StopMethod::Quit, soon()).unwrap();
    assert!(!guest.record.is_alive());
}

#[test]
fn a_failed_start_shows_qemus_error_and_leaves_nothing() {
    let place = Place::new();
    let qemu = &qemus()[0];
    let folder = place.registry.reserve("bad").unwrap();
    let ram = place.path("left.ram");
    let (qmp, pid_file) = (folder.join("qmp.sock"), folder.join("pid"));
    let line = format!(
        "-nodefaults -display none -object memory-backend-file,id=r,size=1M,mem-path={},share=on -device no-such-device -daemonize -pidfile {}",
        ram.display(),
        pid_file.display()
    );
    let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let launch = Launch {
        name: "bad",
        qemu,
        arguments: &arguments,
        folder: &folder,
        qmp: &qmp,
        pid_file: &pid_file,
        ram_files: vec![ram.clone()],
        ram_is_made: false,
        user: None,
        origin: Origin::Started,
        session: None,
    };
    match start(&place.registry, &launch, soon()) {
        Err(GuestError::Start { output, .. }) => assert!(output.contains("no-such-device"), "{output}"),
        other => panic!("{other:?}"),
    }
    assert!(!folder.exists() && !ram.exists());
}

#[test]
fn hand_run_guests_of_both_styles_are_found_and_judged() {
    for qemu in qemus() {
        let place = Place::new();
        let (disk, qmp) = (place.disk("d.img", 8), place.path("q.sock"));
        let line = format!(
            "-m 64 -accel tcg -display none -machine pc,memory-backend=mem -object memory-backend-memfd,id=mem,size=64M,share=on -drive file={},format=raw,if=virtio,cache=none,aio=threads -chardev socket,id=mon0,path={},server=on,wait=off -mon chardev=mon0,mode=control -device virtio-balloon -nic user,model=e1000 -serial null",
            disk.display(),
            qmp.display()
        );
        let guest = ByHand::start(&qemu, &line);
        wait_until_listening(&qmp);
        let mut found = discover::by_pid(guest.pid(), soon()).unwrap();
        let read_guest = read(&mut found.qmp, guest.pid(), soon()).unwrap();
        assert!(read_guest.machine.starts_with("pc-i440fx-"));
        let opened = read_guest.disks.iter().find(|d| d.path == disk.to_str().unwrap()).unwrap();
        assert_eq!(
            (opened.direct, opened.aio.as_deref(), opened.id.as_str()),
            (true, Some("threads"), "virtio0")
        );
        assert_eq!(read_guest.nics[0].kind.as_deref(), Some("user"));
        assert!(read_guest.traits.may_discard);
        let verdict = judge(&read_guest, KERNEL);
        let old = found.qmp.version() < QemuVersion { major: 8, minor: 1, micro: 0 };
        assert_eq!(verdict.direct, old, "{verdict}");
        if !old {
            assert!(matches!(verdict.reasons[0], Reason::RamMemfd { .. }), "{verdict}");
        }
    }
}

#[test]
fn ordinary_guests_have_reasons_against_direct_mode() {
    for qemu in qemus() {
        let place = Place::new();
        let (disk, qmp) = (place.disk("d.img", 8), place.path("q.sock"));
        let line = format!(
            "-m 64 -accel tcg -display none -nodefaults -S -blockdev driver=file,node-name=f,filename={0} -blockdev {{\"driver\":\"raw\",\"node-name\":\"r\",\"file\":\"f\"}} -device virtio-blk-pci,drive=r -qmp unix:{1},server,nowait",
            disk.display(),
            qmp.display()
        );
        let guest = ByHand::start(&qemu, &line);
        wait_until_listening(&qmp);
        let mut found = discover::by_pid(guest.pid(), soon()).unwrap();
        let read_guest = read(&mut found.qmp, guest.pid(), soon()).unwrap();
        assert_eq!(read_guest.run_state, RunState::PreLaunch);
        assert_eq!(read_guest.name, format!("qemu-{}", guest.pid()));
        assert_eq!(read_guest.disks[0].format, "raw");
        let verdict = judge(&read_guest, KERNEL);
        assert!(matches!(&verdict.reasons[..], [Reason::RamAnonymous { .. }]), "{verdict}");
        assert!(verdict.to_string().starts_with("direct: no, because RAM block pc.ram is anonymous memory"));
    }
}

/// A QEMU with a state that the table lacks is noticed here.
#[test]
fn every_run_state_that_qemu_lists_is_known() {
    for qemu in qemus() {
        let place = Place::new();
        let qmp = place.path("q.sock");
        let line = format!(
            "-m 64 -accel tcg -display none -nodefaults -S -qmp unix:{},server,nowait",
            qmp.display()
        );
        let guest = ByHand::start(&qemu, &line);
        wait_until_listening(&qmp);
        let mut found = discover::by_pid(guest.pid(), soon()).unwrap();
        let schema = found.qmp.execute("query-qmp-schema", json!({}), soon()).unwrap();
        let lists = schema.as_array().unwrap().iter().filter_map(|one| one["values"].as_array());
        let names = |list: &Vec<Value>| -> Vec<String> {
            list.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
        };
        let states = lists.map(names).find(|names| names.iter().any(|name| name == "inmigrate")).unwrap();
        assert!(states.len() >= 16, "{states:?}");
        for name in states {
            assert!(!matches!(RunState::from(name.as_str()), RunState::Unknown(_)), "{name}");
        }
    }
}

#[test]
fn devices_and_states_that_direct_mode_refuses() {
    let mut guest = description(RAM_IN_A_FILE);
    assert!(judge(&guest, KERNEL).direct);
    assert_eq!(judge_streams(&guest), []);
    guest.traits.vhost_user.push("vhost-user-blk-pci".into());
    assert!(
        matches!(judge_streams(&guest)[..], [Reason::VhostUser { .. }]),
        "no incoming QEMU is built for it"
    );
    guest.traits.vfio.push("vfio-pci (gpu)".into());
    guest.traits.foreign_memory.push("nvdimm".into());
    guest.traits.blocked.push("a disk of the old kind".into());
    guest.traits.migration = Some("active".into());
    guest.traits.capabilities.retain(|name| name != "pause-before-switchover");
    let verdict = judge(&guest, KERNEL);
    assert_eq!(verdict.reasons.len(), 6, "{verdict}");
    let mut left = description(RAM_IN_A_FILE);
    left.run_state = RunState::PostMigrate;
    left.traits.migration = Some("cancelled".into());
    assert_eq!(judge(&left, KERNEL).reasons, [Reason::NotRunSince]);
    assert_eq!(judge_streams(&left), [Reason::NotRunSince]);
    left.traits.migration = Some("completed".into());
    assert!(matches!(judge(&left, KERNEL).reasons[..], [Reason::Left]));
    let mut private = description(RAM_IN_A_FILE);
    (private.ram[0].share, private.ram[0].ignored_when_shared) = (false, false);
    assert!(matches!(judge(&private, KERNEL).reasons[..], [Reason::RamNotShared { .. }]));
    // In huge pages its file would be longer than the block.
    let mut cut = description(RAM_IN_A_FILE);
    cut.ram[0].page_bytes = 3 << 20;
    let verdict = judge(&cut, KERNEL);
    assert!(matches!(verdict.reasons[..], [Reason::RamNotWholePages { .. }]), "{verdict}");
    let mut nested = description(RAM_IN_A_FILE);
    nested.traits.nested = true;
    assert_eq!(judge(&nested, KERNEL).reasons, [Reason::Nested]);
    assert_eq!(judge_streams(&nested), [], "KVM's own dirty log knows of these pages");
    let mut none = description(RAM_IN_A_FILE);
    none.ram.clear();
    assert_eq!(judge(&none, KERNEL).reasons, [Reason::NoRegion]);
}

#[test]
fn disks_whose_controller_writes_ram_refuse_direct_mode() {
    let disk = |protocol: &str| {
        json!({"id": "d", "path": "nvme://0000:01:00.0/1", "format": "raw", "protocol": protocol,
            "read_only": false, "direct": true, "aio": null, "drop_cache": true, "size": 1 << 20})
    };
    for (protocol, direct) in
        [("file", true), ("host_device", true), ("nvme", false), ("nvme-io_uring", false)]
    {
        let mut guest = description(RAM_IN_A_FILE);
        guest.disks.push(serde_json::from_value(disk(protocol)).unwrap());
        let verdict = judge(&guest, KERNEL);
        assert_eq!(verdict.direct, direct, "{protocol}: {verdict}");
        assert!(direct || verdict.to_string().contains(protocol), "{verdict}");
    }
}

/// Starts QEMU in the folder of disks, in the foreground or not.
fn in_its_folder(place: &Place, qemu: &QemuBinary, line: &str, detached: bool) -> Running {
    let (qmp, pid_file) = (place.path("hand.qmp"), place.path("hand.pid"));
    let mut command = std::process::Command::new(&qemu.path);
    command.args(qemu.data_arguments()).args(line.split(' ')).current_dir(place.path("disks"));
    command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", qmp.display()));
    command.arg("-pidfile").arg(&pid_file).stdin(std::process::Stdio::null());
    if detached {
        assert!(command.arg("-daemonize").status().unwrap().success());
    } else {
        let mut child = command.spawn().unwrap();
        // Another thread waits for its end when the record has ended it.
        std::thread::spawn(move || child.wait());
    }
    wait_until_listening(&qmp);
    let deadline = soon();
    let mut pid = String::new();
    while !pid.ends_with('\n') {
        assert!(Instant::now() < deadline, "QEMU wrote no process number");
        pid = std::fs::read_to_string(&pid_file).unwrap_or_default();
    }
    let record =
        GuestRecord::new("hand", Origin::Adopted, pid.trim().parse().unwrap(), qmp, Vec::new()).unwrap();
    let qmp = Qmp::connect(&record.qmp, soon()).unwrap();
    Running { record, qmp: Some(qmp) }
}

#[test]
fn a_guest_started_in_a_folder_with_options_from_a_file_gets_an_incoming_qemu() {
    for (qemu, detached) in qemus().into_iter().zip([false, true]) {
        let place = Place::new();
        let (first, second) = (place.disk("a.img", 4), place.disk("b.img", 8));
        let options =
            "[device \"usb\"]\n  driver = \"ich9-usb-ehci1\"\n  bus = \"pcie.0\"\n  addr = \"1d.7\"\n";
        std::fs::write(place.path("disks/usb.cfg"), options).unwrap();
        let config = place.path("disks/usb.cfg");
        let line = format!(
            "-M q35 -accel tcg -m 64 -S -display none -serial null a.img -drive if=virtio,file=./b.img,format=raw,id=b \
             -readconfig {} -net nic,model=e1000 -net user",
            config.display()
        );
        let mut hand = in_its_folder(&place, &qemu, &line, detached);
        let pid = hand.record.process.pid;
        let mut guest = read(hand.qmp(), pid, soon()).unwrap();
        assert_eq!(guest.name, format!("qemu-{pid}"));
        guest.name = "chosen".into();
        for disk in [&first, &second] {
            assert!(guest.disks.iter().any(|one| one.path == disk.to_str().unwrap()), "{:?}", guest.disks);
        }
        assert_eq!(guest.traits.hot_plugged, [""; 0], "what the file says was not plugged in later");
        let mut live = graph::read(hand.qmp(), soon()).unwrap();
        Names::of(pid, &guest.arguments).in_graph(&mut live);
        live.check_named(&guest.arguments).unwrap();
        graph::check_files(&live, pid).unwrap();
        assert_eq!(judge_streams(&guest), []);
        let made = build_incoming(&guest, &place.incoming_options(&qemu)).unwrap();
        let text = made.arguments.join(" ");
        assert!(text.contains("-name guest=chosen") && text.contains("driver=ich9-usb-ehci1"), "{text}");
        let mut waiting = start_incoming(&place, &qemu, &made);
        let there = graph::read(waiting.qmp(), soon()).unwrap();
        let mapping = graph::Mapping { paths: &Default::default(), copied: &[] };
        assert_eq!(live.difference(&there, mapping), None);
    }
}

#[test]
fn a_device_without_an_id_that_came_or_went_is_found() {
    for qemu in qemus() {
        let place = Place::new();
        let image = place.disk("d.img", 4);
        let line = format!(
            "-M pc -accel tcg -m 64 -nodefaults -display none -S -device qemu-xhci,id=x -device usb-kbd \
             -drive if=virtio,file={},format=raw -device usb-tablet",
            image.display()
        );
        let mut hand = in_its_folder(&place, &qemu, &line, false);
        let pid = hand.record.process.pid;
        let changes = |qmp: &mut Qmp| read(qmp, pid, soon()).unwrap().traits.hot_plugged;
        assert_eq!(changes(hand.qmp()), [""; 0]);
        hand.qmp().execute("device_add", json!({ "driver": "usb-mouse" }), soon()).unwrap();
        assert_eq!(changes(hand.qmp()), ["usb-mouse without an id plugged"]);
        let folder = "/machine/peripheral-anon";
        for (driver, left) in [("usb-kbd", 2), ("usb-mouse", 1)] {
            let listed = hand.qmp().execute("qom-list", json!({ "path": folder }), soon()).unwrap();
            let mut devices = listed.as_array().unwrap().iter();
            let found = devices.find(|one| one["type"] == format!("child<{driver}>")).unwrap();
            let device = json!({ "id": format!("{folder}/{}", found["name"].as_str().unwrap()) });
            hand.qmp().execute("device_del", device, soon()).unwrap();
            let changes = changes(hand.qmp());
            assert_eq!(changes.len(), left, "{changes:?}");
            assert_eq!(changes.last().unwrap(), "1 without an id unplugged");
        }
    }
}

#[test]
fn a_generation_id_that_qemu_made_up_is_the_same_in_the_incoming_qemu() {
    for qemu in qemus() {
        let place = Place::new();
        let line = "-M pc -accel tcg -m 64 -nodefaults -display none -S -device vmgenid";
        let mut hand = in_its_folder(&place, &qemu, line, false);
        let pid = hand.record.process.pid;
        let guest = read(hand.qmp(), pid, soon()).unwrap();
        let made = build_incoming(&guest, &place.incoming_options(&qemu)).unwrap();
        let mut waiting = start_incoming(&place, &qemu, &made);
        let id = |qmp: &mut Qmp| qmp.execute("query-vm-generation-id", json!({}), soon()).unwrap();
        assert_eq!(id(hand.qmp()), id(waiting.qmp()));
    }
}

#[test]
fn memory_that_a_starting_qemu_empties_is_known() {
    for qemu in qemus() {
        let place = Place::new();
        let object = |id: &str| {
            let file = place.path(id);
            std::fs::write(&file, vec![7; 32 << 20]).unwrap();
            format!(
                "-object memory-backend-file,id={id},size=32M,mem-path={},share=on,discard-data=off",
                file.display()
            )
        };
        let line = format!(
            "-M pc,memory-backend=base -m 32M,slots=1,maxmem=1G -accel tcg -nodefaults -display none {} {} \
             -device virtio-mem-pci,memdev=more -S -incoming defer",
            object("base"),
            object("more")
        );
        let mut waits = in_its_folder(&place, &qemu, &line, false);
        let pid = waits.record.process.pid;
        let found = read(waits.qmp(), pid, soon()).unwrap();
        assert_eq!(found.regions().count(), 2, "{:?}", found.ram);
        for block in found.regions() {
            let file = std::fs::metadata(block.path.as_ref().unwrap()).unwrap();
            let is_empty = std::os::unix::fs::MetadataExt::blocks(&file) == 0;
            assert_eq!(is_emptied_at_start(&found, block), is_empty, "{} {}", found.qemu, block.id);
        }
    }
}

#[test]
fn an_image_that_no_destination_would_open_is_known_at_the_source() {
    let place = Place::new();
    let (base, image) = (place.disk("base.img", 4), place.path("disks/top.qcow2"));
    // Without the format of its backing file.
    let mut header = vec![0; 512];
    header[..8].copy_from_slice(b"QFI\xfb\0\0\0\x02");
    let name = base.to_str().unwrap().as_bytes();
    header[8..16].copy_from_slice(&200_u64.to_be_bytes());
    header[16..20].copy_from_slice(&u32::try_from(name.len()).unwrap().to_be_bytes());
    header[200..200 + name.len()].copy_from_slice(name);
    std::fs::write(&image, header).unwrap();
    let drive = format!("if=virtio,file={},format=qcow2", image.display());
    let mut guest = description(&["-nodefaults", "-drive", &drive]);
    let reasons = judge_images(&guest);
    assert!(matches!(&reasons[..], [Reason::Image { problem: Problem::Image { .. } }]), "{reasons:?}");
    assert!(reasons[0].to_string().contains("qemu-img rebase"), "{}", reasons[0]);
    let path = image.to_str().unwrap().to_owned();
    guest.copied =
        vec![CopiedDisk { id: "d".into(), path, format: ImageFormat::Qcow2, size: 512, identity: None }];
    assert_eq!(judge_images(&guest), [], "a copy is an image of its own");
}

#[test]
fn a_process_without_qmp_is_an_error() {
    let me = std::process::id() as i32;
    assert!(matches!(discover::by_pid(me, soon()), Err(DiscoverError::NoSocket { .. })));
    assert!(matches!(discover::by_pid(i32::MAX, soon()), Err(DiscoverError::Process(_))));
}

#[test]
fn the_memory_that_an_adopted_guest_leaves_is_given_back_and_its_files_stay() {
    let place = Place::new();
    let qemu = &qemus()[0];
    let file = |name: &str| place.path(name);
    let memory = |name: &str, id: &str, share: &str| {
        format!(
            "-object memory-backend-file,id={id},size=64M,prealloc=on,mem-path={},share={share}",
            file(name).display()
        )
    };
    // The second is kept open by another client, the third is another guest's template.
    let reader = |name: &str| {
        std::process::Command::new("sleep")
            .arg("600")
            .stdin(std::fs::File::open(file(name)).unwrap())
            .spawn()
            .unwrap()
    };
    let [own, lent, template] = ["own.ram", "lent.ram", "template.ram"];
    let line = format!(
        "-machine pc -accel tcg -nodefaults -S -display none -m 128 -smp 2 {} {} {} -numa node,cpus=0,memdev=a -numa node,cpus=1,memdev=b",
        memory(own, "a", "on"),
        memory(lent, "b", "on"),
        memory(template, "c", "off"),
    );
    let mut guest = in_its_folder(&place, qemu, &line, false);
    std::fs::write(file(template), vec![1; 1 << 20]).unwrap();
    let bytes =
        |name: &str| std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(file(name)).unwrap()) * 512;
    let before = [own, lent, template].map(bytes);
    assert!(before.iter().all(|bytes| *bytes > 0), "{before:?}");
    let left = LeftoverRam::of(&guest.record);
    assert_eq!(left.free(), 0, "its process runs");
    let qmp = guest.qmp.as_mut();
    stop(&place.registry, &guest.record, qmp, StopMethod::Quit, soon()).unwrap();
    let mut other = reader(lent);
    assert_eq!(left.free(), before[0]);
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!([own, lent, template].map(bytes), [0, before[1], before[2]]);
    let size = std::fs::metadata(file(own)).unwrap().len();
    assert_eq!(size, 64 << 20, "it can be used again as it is");
    assert_eq!(left.free(), before[1], "it is not used any more");
}
