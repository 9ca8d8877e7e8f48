//! Real QEMUs are started, found, read and judged.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests, too, say what they expect

mod common;

use std::time::{Duration, Instant};

use common::*;
use linerate_guest::description::{Backend, GuestDescription};
use linerate_guest::discover::{self, DiscoverError};
use linerate_guest::process::{GuestError, Launch, StopHow, start, stop};
use linerate_guest::qmp::{QemuVersion, Qmp, QmpError};
use linerate_guest::read::read;
use linerate_guest::registry::Origin;
use linerate_guest::verdict::{Reason, judge, judge_streams};

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
        stop(&place.registry, &guest.record, Some(&mut by_socket.qmp), StopHow::Quit, soon()).unwrap();
        assert!(!guest.record.is_alive() && !guest.record.ram_files[0].exists());
        assert!(place.registry.list().unwrap().is_empty());
    }
}

#[test]
fn a_guest_that_ignores_the_power_button_is_killed() {
    let place = Place::new();
    let mut guest = start_spec(&place, &qemus()[0], "name = 'deaf'\nmemory = '64M'\naccel = 'tcg'");
    let mut qmp = guest.qmp.take();
    let limit = Instant::now() + Duration::from_millis(300);
    stop(&place.registry, &guest.record, qmp.as_mut(), StopHow::PowerDown, limit).unwrap();
    assert!(!guest.record.is_alive());
}

#[test]
fn a_start_that_fails_says_what_qemu_said_and_leaves_nothing() {
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
        origin: Origin::Started,
        session: None,
    };
    match start(&place.registry, &launch, soon()) {
        Err(GuestError::Start { said, .. }) => assert!(said.contains("no-such-device"), "{said}"),
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
        wait_for(&qmp);
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
fn ordinary_guests_are_told_why_not() {
    for qemu in qemus() {
        let place = Place::new();
        let (disk, qmp) = (place.disk("d.img", 8), place.path("q.sock"));
        let line = format!(
            "-m 64 -accel tcg -display none -nodefaults -S -blockdev driver=file,node-name=f,filename={0} -blockdev {{\"driver\":\"raw\",\"node-name\":\"r\",\"file\":\"f\"}} -device virtio-blk-pci,drive=r -qmp unix:{1},server,nowait",
            disk.display(),
            qmp.display()
        );
        let guest = ByHand::start(&qemu, &line);
        wait_for(&qmp);
        let mut found = discover::by_pid(guest.pid(), soon()).unwrap();
        let read_guest = read(&mut found.qmp, guest.pid(), soon()).unwrap();
        assert_eq!(read_guest.run_state, "prelaunch");
        assert_eq!(read_guest.name, format!("qemu-{}", guest.pid()));
        assert_eq!(read_guest.disks[0].format, "raw");
        let verdict = judge(&read_guest, KERNEL);
        assert!(matches!(&verdict.reasons[..], [Reason::RamAnonymous { .. }]), "{verdict}");
        assert!(verdict.to_string().starts_with("direct: no, because RAM block pc.ram is anonymous memory"));
    }
}

#[test]
fn devices_and_states_that_stand_against_direct_mode() {
    let mut guest = description(RAM_IN_A_FILE);
    assert!(judge(&guest, KERNEL).direct);
    assert_eq!(judge_streams(&guest), []);
    guest.traits.vhost_user.push("vhost-user-blk-pci".into());
    assert!(matches!(judge_streams(&guest)[..], [Reason::VhostUser { .. }]), "no twin is made of it");
    guest.traits.vfio.push("vfio-pci (gpu)".into());
    guest.traits.foreign_memory.push("nvdimm".into());
    guest.traits.blocked.push("a disk of the old kind".into());
    guest.traits.migration = Some("active".into());
    guest.traits.capabilities.retain(|name| name != "pause-before-switchover");
    let verdict = judge(&guest, KERNEL);
    assert_eq!(verdict.reasons.len(), 6, "{verdict}");
    let mut left = description(RAM_IN_A_FILE);
    left.run_state = "postmigrate".into();
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
        serde_json::json!({"id": "d", "path": "nvme://0000:01:00.0/1", "format": "raw", "protocol": protocol,
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

#[test]
fn a_process_without_qmp_is_told() {
    let me = std::process::id() as i32;
    assert!(matches!(discover::by_pid(me, soon()), Err(DiscoverError::NoSocket { .. })));
    assert!(matches!(discover::by_pid(i32::MAX, soon()), Err(DiscoverError::Process(_))));
}
