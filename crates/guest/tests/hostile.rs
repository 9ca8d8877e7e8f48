//! Descriptions from another host that try to reach into this one, and hosts that lack something.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests, too, say what they expect

mod common;

use std::path::PathBuf;

use common::*;
use linerate_guest::description::*;
use linerate_guest::host::{HostFacts, Problem, QemuFacts, check_host};
use linerate_guest::images::{self, Claims, ImageError};
use linerate_guest::incoming_qemu::{IncomingError, IncomingOptions, QemuBinary, build_incoming};
use linerate_guest::process::{GuestError, Launch, start};
use linerate_guest::qemu_user::{QemuUser, SANDBOX};
use linerate_guest::qmp::QemuVersion;
use linerate_guest::registry::{Origin, make_qemu_folder};

fn options() -> IncomingOptions {
    IncomingOptions {
        runtime_dir: "/run/linerate/guests/web".into(),
        ram_dir: "/dev/shm/linerate".into(),
        huge_ram_dir: None,
        qemu: QemuBinary::new("/usr/bin/qemu-system-x86_64"),
        file_roots: vec!["/srv/disks".into()],
        paths: Default::default(),
        taps: [("tap1".to_owned(), "tap9".to_owned())].into(),
        allow_user_network: false,
        keep_page_cache: false,
    }
}

/// Options that run programs, reach files that no guest may open, or open a way in.
const HOSTILE: [&str; 92] = [
    "-plugin /tmp/evil.so",
    "-readconfig /etc/evil",
    "-writeconfig /etc/passwd",
    "-run-with chroot=/x",
    "-runas nobody",
    "-chroot /x",
    "-set device.x.y=z",
    "-add-fd fd=3,set=1",
    "-fsdev local,id=f,path=/,security_model=none",
    "-virtfs local,path=/,mount_tag=x,security_model=none",
    "-tpmdev passthrough,id=t",
    "-gdb tcp::1234",
    "-s",
    "-dump-vmstate /etc/passwd",
    "-trace file=/etc/passwd",
    "-option-rom /etc/shadow",
    "-acpitable file=/etc/shadow",
    "-dtb /etc/shadow",
    "/etc/shadow",
    "-chardev pipe,id=a,path=/x",
    "-chardev socket,id=a,path=/run/docker.sock",
    "-chardev socket,id=a,host=10.0.0.1,port=1",
    "-chardev serial,id=a,path=/dev/ttyS0",
    "-chardev file,id=../../a,path=/x",
    "-serial pipe:/x",
    "-serial unix:/run/docker.sock",
    "-serial /dev/ttyS0",
    "-netdev tap,id=n,ifname=../../x",
    "-netdev user,id=n",
    "-netdev vhost-user,id=n,chardev=c",
    "-netdev socket,id=n,listen=:1234",
    "-netdev bridge,id=n,br=/x",
    "-netdev tap,id=n,ifname=t,evil=1",
    "-net user",
    "-net user,hostfwd=tcp::22-:22",
    "-net nic,model=virtio,romfile=/etc/shadow",
    "-net tap,ifname=t,helper=/x,evil=1",
    "-net socket,listen=:1",
    "-netdev user,id=n,hostfwd=tcp::22-:22",
    "-fda /etc/shadow",
    "-run-with user=root",
    "-audio pa,model=../x",
    "-snapshot",
    "-virtfs local,path=/,mount_tag=x",
    "-drive file=/srv/disks/a,format=raw,snapshot=on",
    "-nic user,smb=/",
    "-device vfio-pci,host=0000:00:1f.0",
    "-device loader,file=/etc/shadow",
    "-device usb-host,vendorid=1",
    "-device virtio-net-pci,romfile=/etc/shadow",
    "-device virtio-net-pci,romfile=vmlinuz",
    "-device {\"driver\":\"virtio-net-pci\",\"romfile\":\"/etc/shadow\"}",
    "-device vhost-user-blk-pci,chardev=c",
    "-drive file=/etc/shadow,format=raw",
    "-drive file=/srv/disks/../../etc/shadow",
    "-drive file=/srv/disks",
    "-drive file=/srv/disksx/a",
    "-drive file=nbd:10.0.0.1:10809",
    "-drive file=json:{}",
    "-drive file.driver=ssh,file.host=x",
    "-drive file.driver=file,file.filename=/etc/shadow",
    "-drive file=/srv/disks/a,file=/etc/shadow",
    "-drive if=none,file=/srv/disks/a,backing.file.filename=/etc/shadow",
    "-drive file=/dev/fdset/1",
    "-blockdev driver=nbd,node-name=a,server.type=unix",
    "-blockdev {\"driver\":\"file\",\"node-name\":\"a\",\"filename\":\"/etc/shadow\"}",
    "-blockdev {\"driver\":\"raw\",\"node-name\":\"a\",\"file\":{\"driver\":\"file\",\"filename\":\"/etc/shadow\"}}",
    "-blockdev driver=file,node-name=a,filename=/srv/disks/a,pr-manager=p",
    "-kernel /etc/shadow",
    "-initrd shadow",
    "-hda /etc/shadow",
    "-pflash /etc/shadow",
    "-fw_cfg name=opt/x,file=/etc/shadow",
    "-smbios type=11,path=/etc/shadow",
    "-smbios file=/etc/shadow",
    "-machine pc,dumpdtb=/etc/x",
    "-machine pc,kernel=vmlinuz",
    "-machine pc,firmware=x",
    "-global virtio-net-pci.romfile=x.rom",
    "-global virtio-net-pci.x=/etc/shadow",
    "-object filter-dump,id=f,netdev=n,file=/etc/x",
    "-object input-linux,id=i,evdev=/dev/input/event0",
    "-object rng-random,id=r,filename=/etc/shadow",
    "-object secret,id=s,file=/etc/shadow",
    "-object memory-backend-file,id=ram,size=64M,mem-path=/x,evil=1",
    "-object memory-backend-file,id=../../x,size=64M",
    "-usbdevice disk:/etc/shadow",
    "-icount shift=1,rr=record,rrfile=/etc/x",
    "-k ../../x",
    "-boot order=c,evil=1",
    "-name web,process=/x",
    "-m",
];

#[test]
fn what_could_run_programs_or_reach_files_is_refused_by_name() {
    for line in HOSTILE {
        let mut words = vec!["-nodefaults"];
        // Only JSON values hold no blanks, so that a split at the first blank is right.
        words.extend(line.splitn(2, ' '));
        let made = build_incoming(&description(&words), &options());
        assert!(made.is_err(), "{line} was taken: {:?}", made.unwrap().arguments);
    }
}

#[test]
fn images_are_locked_here_whatever_the_source_says() {
    for (word, drive) in [
        (
            "-drive",
            "if=none,id=d,format=raw,file=/srv/disks/a,file.locking=off,file.locking=on,force-share=on",
        ),
        ("-blockdev", "driver=file,node-name=a,filename=/srv/disks/a,locking=off,force-share=on"),
        (
            "-blockdev",
            r#"{"driver":"raw","node-name":"a","force-share":true,"file":{"driver":"file","filename":"/srv/disks/a","locking":"off"}}"#,
        ),
    ] {
        let made = build_incoming(&description(&["-nodefaults", word, drive]), &options()).unwrap();
        let text = made.arguments.join(" ");
        assert!(text.contains("locking=auto") && !text.contains("locking=o"), "{text}");
        assert!(!text.contains("force-share"), "{text}");
        assert_eq!(
            made.notes.iter().filter(|note| note.contains("locked here")).count(),
            2,
            "{:?}",
            made.notes
        );
    }
    let drive = "driver=file,node-name=a,filename=/srv/disks/a,locking=on";
    let made = build_incoming(&description(&["-nodefaults", "-blockdev", drive]), &options()).unwrap();
    assert!(made.arguments.join(" ").contains("locking=on"));
}

#[test]
fn descriptions_that_contradict_themselves_are_refused() {
    let mut guest = description(&["-nodefaults"]);
    guest.name = "../../etc".into();
    assert!(matches!(build_incoming(&guest, &options()), Err(IncomingError::Name(_))));
    let mut guest = description(&["-nodefaults"]);
    guest.machine = "pc,dumpdtb=/x".into();
    assert!(matches!(build_incoming(&guest, &options()), Err(IncomingError::Refused { .. })));
    let mut guest = description(&["-nodefaults"]);
    guest.traits.hot_plugged.push("disk7 plugged".into());
    assert!(matches!(build_incoming(&guest, &options()), Err(IncomingError::HotPlugged(_))));
    assert!(matches!(build_incoming(&description(&[]), &options()), Err(IncomingError::UserNetwork)));
    let mut long = options();
    long.runtime_dir = format!("/run/{}", "x".repeat(100)).into();
    assert!(matches!(
        build_incoming(&description(&["-nodefaults"]), &long),
        Err(IncomingError::SocketPath(_))
    ));
}

#[test]
fn a_typical_command_line_is_rewritten() {
    let line = "-name guest=web,debug-threads=on -S -machine q35,usb=off,memory-backend=pc.ram -accel kvm -m size=65536k -object {\"qom-type\":\"memory-backend-memfd\",\"id\":\"pc.ram\",\"share\":true,\"x-use-canonical-path-for-ramblock-id\":false,\"size\":67108864} -nodefaults -chardev socket,id=charmonitor,fd=30,server=on,wait=off -mon chardev=charmonitor,id=monitor,mode=control -blockdev {\"driver\":\"file\",\"filename\":\"/srv/disks/a.qcow2\",\"node-name\":\"s\",\"cache\":{\"direct\":true}} -netdev {\"type\":\"tap\",\"fd\":\"32\",\"vhost\":true,\"vhostfd\":\"33\",\"id\":\"hostnet0\"} -chardev pty,id=charserial0 -vnc 127.0.0.1:0 -monitor stdio -qmp unix:/x,server -incoming exec:evil -D /etc/passwd -L /evil -bios /evil/bios.bin -serial mon:stdio -display gtk -daemonize -pidfile /etc/x";
    let words: Vec<&str> = line.split(' ').collect();
    let mut guest = description(&words);
    guest.nics.push(Nic {
        id: "net0".into(),
        model: "virtio-net-pci".into(),
        mac: "52:54:00:00:00:01".into(),
        netdev: Some("hostnet0".into()),
        kind: Some("tap".into()),
        tap: Some("tap1".into()),
        bridge: Some("br7".into()),
    });
    guest.machine = "pc-q35-7.2".into();
    let mut local = options();
    local.qemu.data_dirs = vec!["/opt/qemu/share".into()];
    local.keep_page_cache = true;
    let made = build_incoming(&guest, &local).unwrap();
    let text = made.arguments.join(" ");
    for wanted in [
        "-machine pc-q35-7.2,usb=off,memory-backend=pc.ram",
        "mem-path=/dev/shm/linerate/web+pc.ram.ram,share=on,discard-data=off",
        "x-use-canonical-path-for-ramblock-id=off",
        "backend=socket,id=charmonitor,path=/run/linerate/guests/web/charmonitor.sock,server=on,wait=off",
        "ifname=tap9,script=no,downscript=no",
        "vhost=on",
        "drop-cache=off",
        "cache.direct=on",
        "-L /opt/qemu/share",
        "-bios bios.bin",
        "-serial file:/run/linerate/guests/web/serial1.log",
        "-vnc unix:/run/linerate/guests/web/vnc.sock",
        "-monitor none",
        "-qmp unix:/run/linerate/guests/web/qmp.sock,server=on,wait=off -pidfile /run/linerate/guests/web/pid -daemonize -S -incoming defer",
    ] {
        assert!(text.contains(wanted), "{wanted} is not in {text}");
    }
    for gone in ["evil", "/etc", "fd=", "gtk", "exec", "memfd"] {
        assert!(!text.contains(gone), "{gone} is in {text}");
    }
    assert_eq!(text.matches("-incoming").count(), 1);
    assert_eq!(made.ram_files.len(), 1);
}

#[test]
fn huge_pages_are_counted_apart_from_other_memory() {
    let mut guest = description(&["-nodefaults"]);
    guest.memory_bytes = 64 << 20;
    guest.ram.iter_mut().for_each(|block| (block.size, block.page_bytes) = (0, 4096));
    (guest.ram[0].size, guest.ram[0].page_bytes) = (64 << 20, 2 << 20);
    let made =
        build_incoming(&guest, &IncomingOptions { huge_ram_dir: Some("/".into()), ..options() }).unwrap();
    let mut host = facts(&guest.machine);
    host.memory_available = 1 << 20;
    let check = |host: &HostFacts| check_host(&guest, &made, &options().qemu, &[], host);
    host.huge_available = vec![(1 << 30, 1 << 40), (2 << 20, 64 << 20)];
    assert_eq!(check(&host), [], "the little other memory is not what it needs");
    host.huge_available = vec![(1 << 30, 1 << 40), (2 << 20, 62 << 20)];
    let (needed, available) = (64 << 20, 62 << 20);
    assert_eq!(check(&host), [Problem::HugePagesShort { needed, available, page_bytes: 2 << 20 }]);
    host.huge_available = Vec::new();
    assert!(matches!(check(&host)[..], [Problem::HugePagesShort { available: 0, .. }]));
}

#[test]
fn a_command_line_asks_for_no_more_memory_than_the_description() {
    let check = |words: &[&str]| {
        let guest = description(&[&["-nodefaults"], words].concat());
        let made = build_incoming(&guest, &options()).unwrap();
        check_host(&guest, &made, &options().qemu, &[], &facts(&guest.machine))
    };
    let memory = "memory-backend-ram,id=ram,size=64M";
    for honest in [
        &["-m", "64"][..],
        &["-m", "size=65536k,slots=4,maxmem=1T"],
        &["-m", "64M", "-object", memory, "-machine", "pc,memory-backend=ram"],
        &["-m", "32M"],
    ] {
        assert_eq!(check(honest), [], "{honest:?}");
    }
    for greedy in [&["-m", "512G"][..], &["-m", "65"], &["-m", "64", "-object", memory]] {
        assert!(matches!(check(greedy)[..], [Problem::MemoryDiffers { .. }]), "{greedy:?}");
    }
    assert!(matches!(check(&["-m", "64?"])[..], [Problem::MemoryUnknown { .. }]));
}

/// A memory device without an address would be elsewhere in the guest's memory.
#[test]
fn memory_is_aligned_as_at_the_source() {
    let memory = "memory-backend-file,id=dimm,size=512M,mem-path=/dev/shm/x,share=on,align=1G";
    let guest = description(&["-nodefaults", "-object", memory, "-device", "pc-dimm,memdev=dimm"]);
    let text = build_incoming(&guest, &options()).unwrap().arguments.join(" ");
    assert!(text.contains("id=dimm,size=512M,align=1G,"), "{text}");
}

#[test]
fn a_folder_for_ram_that_is_too_small_is_named() {
    let memory = "memory-backend-file,id=ram,size=64M,mem-path=/dev/shm/x,share=on";
    let guest = description(&["-nodefaults", "-object", memory]);
    let made = build_incoming(&guest, &options()).unwrap();
    let needed = guest.ram.iter().map(|block| block.size).sum::<u64>();
    assert!(needed > 0 && !made.ram_files.is_empty());
    let check = |available| {
        let host = HostFacts { ram_folder_available: available, ..facts(&guest.machine) };
        check_host(&guest, &made, &options().qemu, &[], &host)
    };
    assert_eq!(check(Some(needed)), []);
    assert_eq!(check(None), []);
    let problems = check(Some(needed - 1));
    assert!(
        matches!(problems[..], [Problem::RamFolderShort { available, .. }] if available == needed - 1),
        "{problems:?}"
    );
    assert!(
        problems[0].is_fatal() && problems[0].to_string().contains("/dev/shm/linerate "),
        "{}",
        problems[0]
    );
}

fn facts(machine: &str) -> HostFacts {
    let version = QemuVersion { major: 7, minor: 2, micro: 0 };
    HostFacts {
        qemu: QemuFacts { version, machines: vec![machine.into()] },
        memory_available: 1 << 40,
        ram_folder_available: None,
        huge_available: Vec::new(),
        guests: Vec::new(),
        kvm: false,
    }
}

#[test]
fn what_the_host_lacks_is_listed() {
    let place = Place::new();
    let disk = place.disk("d.img", 4);
    let outside = place.path("secret");
    std::fs::write(&outside, "x").unwrap();
    let link = place.path("disks").join("link.img");
    std::os::unix::fs::symlink(&outside, &link).unwrap();
    let missing = place.path("disks").join("missing.img");
    let drive = |path: &PathBuf| format!("if=none,file={},format=raw", path.display());
    let (a, b, c) = (drive(&disk), drive(&link), drive(&missing));
    let mut guest = description(&[
        "-nodefaults",
        "-drive",
        &a,
        "-drive",
        &b,
        "-drive",
        &c,
        "-netdev",
        "tap,id=n,ifname=lrnone0",
        "-netdev",
        "bridge,id=m,br=lrnone1",
    ]);
    guest.qemu.major = 10;
    guest.accelerator = "kvm".into();
    guest.uuid = Some("u".into());
    guest.disks.push(Disk {
        id: "d".into(),
        path: disk.display().to_string(),
        format: "raw".into(),
        protocol: "file".into(),
        read_only: false,
        direct: false,
        aio: None,
        drop_cache: true,
        size: 5 << 20,
        flash: false,
    });
    let mut local = options();
    local.file_roots = vec![place.path("disks")];
    let made = build_incoming(&guest, &local).unwrap();
    let mut host = facts("pc-q35-7.2");
    host.memory_available = 1;
    host.guests.extend([("web".into(), None), ("other".into(), Some("U".into()))]);
    let problems = check_host(&guest, &made, &local.qemu, &local.file_roots, &host);
    let has = |wanted: fn(&Problem) -> bool| assert!(problems.iter().any(wanted), "{problems:?}");
    has(|p| matches!(p, Problem::QemuOlder { .. }) && !p.is_fatal());
    has(|p| matches!(p, Problem::MachineUnknown { .. }) && p.is_fatal());
    has(|p| matches!(p, Problem::KvmMissing));
    has(|p| matches!(p, Problem::MemoryShort { .. }));
    has(|p| matches!(p, Problem::NameTaken { .. }));
    has(|p| matches!(p, Problem::UuidTaken { .. }));
    has(|p| matches!(p, Problem::FileSize { .. }));
    has(|p| matches!(p, Problem::FileOutside { .. }));
    has(|p| matches!(p, Problem::FileMissing { .. }));
    has(|p| matches!(p, Problem::TapMissing { .. }));
    has(|p| matches!(p, Problem::BridgeMissing { .. }));
    assert_eq!(problems.len(), 11, "{problems:?}");
}

#[test]
fn more_disks_than_there_are_streams_for_are_refused() {
    let disk = || CopiedDisk {
        id: "d".into(),
        path: "/d".into(),
        format: ImageFormat::Raw,
        size: 512,
        identity: None,
    };
    let mut guest = description(&[]);
    guest.copied = std::iter::repeat_with(disk).take(COPIED_MAX).collect();
    assert_eq!(GuestDescription::from_json(&guest.to_json().unwrap()).unwrap().copied.len(), COPIED_MAX);
    guest.copied.push(disk());
    let refused = GuestDescription::from_json(&guest.to_json().unwrap());
    assert!(matches!(refused, Err(DescriptionError::Copied(_))), "{refused:?}");
}

/// A missing image that one guest makes is not another's to write, nor to be surprised by when it goes again.
#[test]
fn two_guests_that_arrive_never_copy_into_one_image() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("disks")).unwrap();
    let (image, link) = (place.path("disks/new.img"), place.path("disks/link.img"));
    let arriving = |path: &PathBuf| {
        let drive = format!("if=none,id=d,file={},format=raw", path.display());
        let mut guest = description(&["-nodefaults", "-drive", &drive]);
        let path = path.display().to_string();
        guest.copied =
            vec![CopiedDisk { id: "d".into(), path, format: ImageFormat::Raw, size: 512, identity: None }];
        guest
    };
    let roots = vec![std::fs::canonicalize(place.path("disks")).unwrap()];
    let (claims, folder) = (Claims::default(), place.path(""));
    let prepare = |path: &PathBuf| {
        let guest = arriving(path);
        let made =
            build_incoming(&guest, &IncomingOptions { file_roots: roots.clone(), ..options() }).unwrap();
        images::prepare(&guest, &made, &roots, &folder, &claims)
    };
    let first = prepare(&image).unwrap();
    assert_eq!(images::made(&folder), std::slice::from_ref(&image));
    std::fs::hard_link(&image, &link).unwrap();
    for name in [&image, &link] {
        let second = prepare(name);
        assert!(matches!(second, Err(ImageError::Claimed(_))), "{second:?}");
    }
    assert!(image.exists(), "the second guest's failure takes nothing of the first's");
    // Nor does it leave what was made for the disks before.
    let mut two = arriving(&place.path("disks/one.img"));
    let other = arriving(&image);
    two.arguments.extend(other.arguments.into_iter().map(|word| word.replace("id=d", "id=e")));
    two.disks.extend(other.disks);
    two.copied.extend(other.copied.into_iter().map(|disk| CopiedDisk { id: "e".into(), ..disk }));
    let made = build_incoming(&two, &IncomingOptions { file_roots: roots.clone(), ..options() }).unwrap();
    let folder_of_two = tempfile::tempdir().unwrap();
    let refused = images::prepare(&two, &made, &roots, folder_of_two.path(), &claims);
    assert!(matches!(refused, Err(ImageError::Claimed(_))), "{refused:?}");
    assert!(!place.path("disks/one.img").exists() && images::made(folder_of_two.path()).is_empty());
    first.discard();
    assert!(!image.exists() && link.exists(), "what was made goes");
    // By its list it would go once more when the name is another guest's already.
    assert_eq!(images::made(&folder), Vec::<PathBuf>::new());
    drop(first);
    drop(prepare(&link).unwrap());
    assert!(link.exists(), "what was there stays");
}

/// QEMU would read from another program through it, or act on a device when it is opened.
#[test]
fn sockets_fifos_folders_and_character_devices_are_no_disks() {
    let place = Place::new();
    let (socket, fifo, folder) = (place.path("disks/s"), place.path("disks/f"), place.path("disks/d"));
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
    std::fs::create_dir(&folder).unwrap();
    let link = place.path("disks/l");
    std::os::unix::fs::symlink(&socket, &link).unwrap();
    let local = IncomingOptions { file_roots: vec![place.path("disks"), "/dev".into()], ..options() };
    for path in [socket, fifo, folder, link, "/dev/zero".into()] {
        for option in ["-drive if=none,format=raw,file=", "-kernel "] {
            let line = format!("{option}{}", path.display());
            let (name, value) = line.split_once(' ').unwrap();
            let guest = description(&["-nodefaults", name, value]);
            let made = build_incoming(&guest, &local).unwrap();
            let problems = check_host(&guest, &made, &local.qemu, &local.file_roots, &facts(&guest.machine));
            assert!(matches!(problems[..], [Problem::FileKind { .. }]), "{line}: {problems:?}");
            assert!(problems[0].is_fatal(), "{line}");
        }
    }
}

/// QEMU looks for `-bios`, `romfile=` and `-k` in its working folder before its own folders, and the source names them.
#[test]
fn a_bare_name_of_firmware_leads_to_no_file_of_the_host() {
    // In its place one that says where it works, and ends.
    let qemu = QemuBinary::new("/bin/sh");
    let arguments = ["-c".to_owned(), "echo \"works in $(pwd -P).\" >&2; exit 1".to_owned()];
    let nobody = QemuUser::find("nobody").unwrap();
    assert!(nobody.is_some());
    for user in [None, nobody.as_ref()] {
        let place = Place::new();
        let folder = place.registry.reserve("web").unwrap();
        let own = make_qemu_folder(&folder, user).unwrap();
        let expected = format!("works in {}.", std::fs::canonicalize(&own).unwrap().display());
        let launch = Launch {
            name: "web",
            qemu: &qemu,
            arguments: &arguments,
            folder: &folder,
            qmp: &own.join("qmp.sock"),
            pid_file: &own.join("pid"),
            ram_files: Vec::new(),
            ram_is_made: false,
            user,
            origin: Origin::Arrived,
            session: None,
        };
        match start(&place.registry, &launch, soon()) {
            Err(GuestError::Start { output, .. }) => assert!(output.contains(&expected), "{output}"),
            other => panic!("{other:?}"),
        }
    }
}

/// Whether a QEMU with these options runs a program of this host when it is asked to.
fn runs_programs(qemu: &QemuBinary, options: &[&str]) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let made = dir.path().join("made");
    let mut command = std::process::Command::new(&qemu.path);
    command.args(qemu.data_arguments()).args(options);
    command.args(["-M", "pc", "-accel", "tcg", "-m", "16", "-nodefaults", "-display", "none"]);
    command.args(["-incoming", &format!("exec:touch {}", made.display())]);
    let mut child = command.stdin(std::process::Stdio::null()).spawn().unwrap();
    let end = soon();
    let mut has_ended = false;
    while !made.exists() && !has_ended {
        assert!(std::time::Instant::now() < end, "it neither runs the program nor ends");
        std::thread::sleep(std::time::Duration::from_millis(5));
        has_ended = child.try_wait().unwrap().is_some();
    }
    let _ = child.kill();
    child.wait().unwrap();
    made.exists()
}

/// As one that hostile device state has taken over would try.
#[test]
fn a_qemu_in_its_sandbox_starts_no_program() {
    for qemu in qemus() {
        assert!(runs_programs(&qemu, &[]), "it would without the sandbox");
        assert!(!runs_programs(&qemu, &SANDBOX), "{qemu:?}");
    }
}
