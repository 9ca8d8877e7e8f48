//! Command lines as platforms and people write them: which way each goes, and why not the others. What the source says
//! of a guest before it is moved must be what a destination answers.
//!
//! `UPDATE_GOLDEN=1 cargo test -p linerate-guest --test command_lines` writes docs/command-lines.md anew.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests, too, say what they expect

mod common;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use common::*;
use linerate_guest::argv::{Argument, split_loose};
use linerate_guest::description::*;
use linerate_guest::discover::qmp_sockets;
use linerate_guest::incoming_qemu::{IncomingOptions, QemuBinary, attempt, build_incoming};
use linerate_guest::options::Options;
use linerate_guest::qmp::{QemuVersion, Qmp};
use linerate_guest::read::{expand_config, read, traits_of_devices};
use linerate_guest::verdict::{Reason, judge, judge_streams, needs};

const PLATFORMS: [(&str, &str); 5] = [
    ("proxmox", "Proxmox VE"),
    ("libvirt", "libvirt (virt-install, virt-manager)"),
    ("openstack", "OpenStack Nova (libvirt)"),
    ("ovirt", "oVirt, RHV (VDSM, libvirt)"),
    ("plain", "plain scripts"),
];

/// Platforms whose guests libvirt starts: at the destination too, from its own XML.
const OF_LIBVIRT: [&str; 3] = ["libvirt", "openstack", "ovirt"];

struct Line {
    platform: &'static str,
    name: String,
    what: String,
    /// What libvirt or QEMU is known to refuse.
    refused: Option<String>,
    guest: GuestDescription,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/command_lines")
}

fn lines() -> Vec<Line> {
    let of = |platform: &'static str| {
        let files = std::fs::read_dir(folder().join(platform)).unwrap().map(|file| file.unwrap().path());
        let mut files: Vec<PathBuf> =
            files.filter(|file| file.extension().is_some_and(|it| it == "sh")).collect();
        files.sort();
        files.into_iter().map(move |file| line(platform, &file))
    };
    PLATFORMS.into_iter().flat_map(|(platform, _)| of(platform)).collect()
}

fn line(platform: &'static str, file: &Path) -> Line {
    let text = std::fs::read_to_string(file).unwrap();
    let (comments, command): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("# "));
    let comments: Vec<&str> = comments.iter().map(|line| line.trim_start_matches("# ")).collect();
    let words = shell_words(&command.join("\n"));
    let options = std::fs::read_to_string(folder().join("proxmox/q35.cfg")).unwrap();
    let arguments = expand_config(&words[1..], |_| Some(options.clone()));
    let refused = comments.iter().find_map(|line| line.strip_prefix("refused: ")).map(str::to_owned);
    let mut guest = describe(&arguments);
    guest.domain = OF_LIBVIRT.contains(&platform);
    let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
    Line { platform, name, what: comments[0].to_owned(), refused, guest }
}

/// Words as a shell has them: quotes, and lines that end in a backslash.
fn shell_words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let text = text.replace("\\\n", " ");
    for letter in text.chars() {
        match (quote, letter) {
            (Some(end), letter) if letter == end => quote = None,
            (Some(_), letter) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, letter) if letter.is_whitespace() => words.extend(word.take()),
            (None, letter) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

fn all(options: &[Argument], name: &str, implied: &str) -> Vec<Options> {
    let values =
        options.iter().filter(|option| option.name == name).filter_map(|option| option.value.as_deref());
    values.filter_map(|value| Options::parse(value, Some(implied).filter(|it| !it.is_empty())).ok()).collect()
}

/// What a QEMU that runs with these arguments says of itself, as far as verdicts ask for it.
fn describe(arguments: &[String]) -> GuestDescription {
    let options = split_loose(arguments);
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut guest = description(&words);
    let name = all(&options, "name", "guest").pop().and_then(|name| name.get("guest").map(str::to_owned));
    guest.name = name.unwrap_or_else(|| "qemu-4711".into());
    guest.qemu = QemuVersion { major: 9, minor: 2, micro: 0 };
    guest.machine = "pc-q35-9.2".into();
    let devices = all(&options, "device", "driver");
    let tree: Vec<String> = devices
        .iter()
        .map(|device| {
            let id = device.get("id").unwrap_or_default();
            format!("dev: {}, id \"{id}\"", device.get("driver").unwrap_or_default())
        })
        .collect();
    let capabilities = guest.traits.capabilities.clone();
    guest.traits = Traits { capabilities, ..traits_of_devices(&tree.join("\n")) };
    let kinds = all(&options, "netdev", "type");
    let kinds = kinds.iter().filter_map(|netdev| netdev.get("type"));
    guest.traits.vhost_user.extend(kinds.filter(|kind| *kind == "vhost-user").map(str::to_owned));
    guest.ram = memory(&options, guest.qemu);
    guest.nics = taps(&options);
    guest.disks = options.iter().flat_map(disks).collect();
    guest
}

fn memory(options: &[Argument], qemu: QemuVersion) -> Vec<RamBlock> {
    let objects = all(options, "object", "qom-type");
    let back_ends =
        objects.iter().filter(|object| object.get("qom-type").unwrap().starts_with("memory-backend"));
    let mut blocks: Vec<RamBlock> = back_ends.map(|object| block(object, qemu)).collect();
    if blocks.is_empty() {
        blocks
            .push(block(&Options::from_pairs(&[("qom-type", "memory-backend-ram"), ("id", "pc.ram")]), qemu));
    }
    blocks
}

fn block(object: &Options, qemu: QemuVersion) -> RamBlock {
    let backend = match object.get("qom-type") {
        Some("memory-backend-file") => Backend::File,
        Some("memory-backend-memfd") => Backend::Memfd,
        _ => Backend::Anonymous,
    };
    let share = object.is_on("share");
    let ignored =
        backend == Backend::File || (backend == Backend::Memfd && (qemu.major, qemu.minor) < (8, 1));
    RamBlock {
        id: object.get("id").unwrap().into(),
        size: 1 << 30,
        page_bytes: 4096,
        backend,
        share,
        path: object.get("mem-path").map(str::to_owned),
        descriptor: (backend != Backend::Anonymous).then_some(9),
        ignored_when_shared: share && ignored,
    }
}

/// Taps that were passed as open files are found by /proc; macvtaps are not.
fn taps(options: &[Argument]) -> Vec<Nic> {
    let of = |name| all(options, name, "type").into_iter().filter(|netdev| netdev.get("type") == Some("tap"));
    let nic = |netdev: Options| Nic {
        id: "net0".into(),
        model: "virtio-net-pci".into(),
        mac: "52:54:00:12:34:56".into(),
        netdev: netdev.get("id").map(str::to_owned),
        kind: Some("tap".into()),
        tap: netdev
            .get("ifname")
            .map(str::to_owned)
            .or_else(|| netdev.get("vhostfd").map(|_| "vnet0".into())),
        bridge: None,
    };
    of("netdev").chain(of("nic")).map(nic).collect()
}

fn disks(option: &Argument) -> Vec<Disk> {
    let value = option.value.as_deref().unwrap_or_default();
    let files: Vec<String> = match option.name.as_str() {
        "hda" | "hdb" | "hdc" | "hdd" | "fda" | "fdb" | "cdrom" | "pflash" => vec![value.to_owned()],
        "drive" | "blockdev" => {
            let options =
                Options::parse(value, Some("driver").filter(|_| option.name == "blockdev")).unwrap();
            let is_file = |key: &str| key.ends_with("filename") || (key == "file" && option.name == "drive");
            options.pairs().filter(|(key, _)| is_file(key)).map(|(_, file)| file.to_owned()).collect()
        }
        _ => Vec::new(),
    };
    let disk = |path: String| Disk {
        id: path.clone(),
        format: if path.ends_with(".qcow2") { "qcow2" } else { "raw" }.into(),
        protocol: "file".into(),
        read_only: false,
        direct: false,
        aio: None,
        drop_cache: true,
        size: 0,
        flash: false,
        path,
    };
    files.into_iter().map(disk).collect()
}

/// For the page, on which most lines have plain memory.
fn shown(reasons: &[Reason]) -> Vec<String> {
    let short = |reason: &Reason| match reason {
        Reason::RamAnonymous { .. } => "anonymous memory".to_owned(),
        other => other.to_string().replace("another host does not take this over: ", ""),
    };
    let mut reasons: Vec<String> = reasons.iter().map(short).collect();
    reasons.dedup();
    reasons
}

fn texts(reasons: &[Reason]) -> Vec<String> {
    reasons.iter().map(ToString::to_string).collect()
}

/// The mode that `linerate migrate` takes, and why not those before it.
fn mode(line: &Line) -> (&'static str, Vec<String>) {
    let (direct, stream) = (judge(&line.guest, KERNEL), judge_streams(&line.guest));
    if line.guest.domain {
        return match &line.refused {
            Some(why) => ("none", vec![why.clone()]),
            None if !direct.direct => ("stream", shown(&direct.reasons)),
            None if qmp_sockets(&line.guest.arguments).is_empty() => {
                ("stream", vec!["no monitor for Linerate: docs/libvirt-direct.md".into()])
            }
            None => ("direct", Vec::new()),
        };
    }
    match (direct.direct, stream.is_empty()) {
        (true, _) => ("direct", Vec::new()),
        (false, true) => ("stream", shown(&direct.reasons)),
        (false, false) => ("none", shown(&stream)),
    }
}

/// A host that takes whatever it can.
fn generous() -> IncomingOptions {
    IncomingOptions {
        runtime_dir: "/run/linerate/guests/x".into(),
        ram_dir: "/dev/shm/linerate".into(),
        huge_ram_dir: Some("/dev/hugepages".into()),
        qemu: QemuBinary::new("/usr/bin/qemu-system-x86_64"),
        file_roots: vec!["/".into()],
        paths: Default::default(),
        taps: Default::default(),
        allow_user_network: true,
        keep_page_cache: true,
    }
}

#[test]
fn what_the_source_sends_of_a_guest_is_what_a_destination_answers() {
    for line in lines().iter().filter(|line| !line.guest.domain) {
        let what = format!("{}/{}", line.platform, line.name);
        // As it arrives there.
        let received = GuestDescription::from_json(&line.guest.to_json().unwrap()).unwrap();
        let answer: BTreeSet<String> =
            attempt(&received, &generous()).1.iter().map(ToString::to_string).collect();
        let known = texts(&judge_streams(&line.guest));
        assert!(answer.iter().all(|one| known.contains(one)), "{what}: {answer:?} is not in {known:?}");
        let by_incoming = judge_streams(&line.guest);
        let by_incoming =
            by_incoming.iter().filter(|reason| matches!(reason, Reason::NotTakenOver { .. })).count();
        assert_eq!(by_incoming, answer.len(), "{what}: {known:?}");
        assert_eq!(build_incoming(&received, &generous()).is_ok(), by_incoming == 0, "{what}");
        // A host that has and allows nothing refuses what the source says that it needs, and nothing of the guest
        // itself.
        let bare = IncomingOptions {
            file_roots: vec![],
            allow_user_network: false,
            huge_ram_dir: None,
            ..generous()
        };
        let more: Vec<_> = attempt(&received, &bare).1;
        let of_host = more.iter().filter(|error| error.is_of_host()).count();
        assert_eq!(more.len() - of_host, answer.len(), "{what}: {more:?}");
        assert!(of_host == 0 || !needs(&line.guest).is_empty(), "{what}");
    }
}

#[test]
fn every_incoming_command_line_has_nothing_of_its_host() {
    for line in lines().iter().filter(|line| !line.guest.domain) {
        let Ok(made) = build_incoming(&line.guest, &generous()) else { continue };
        let text = made.arguments.join(" ");
        for gone in [
            "qemu-server",
            "/run/vm",
            "bootsplash",
            "pve-bridge",
            "iqn.",
            "+pve",
            "readconfig",
            "telnet",
            "fd=",
        ] {
            assert!(!text.contains(gone), "{}/{}: {gone} is in {text}", line.platform, line.name);
        }
        assert_eq!(text.matches("-name guest=").count(), 1, "{text}");
    }
}

/// Command lines of people, in the folder of their images, with a QMP socket of their own.
const BY_HAND: [&str; 6] = [
    "-nographic -net nic,model=e1000 -net user a.img",
    "-fda b.img -hda a.img -boot a -device sb16 -vga cirrus -nic none -display none",
    "-cdrom a.img -boot d -usb -usbdevice tablet -k de -nic user,model=rtl8139 -vnc unix:v.sock",
    "-M q35 -display none -nic none -audiodev none,id=s -device ich9-intel-hda -device hda-duplex,audiodev=s \
     -device qemu-xhci -device usb-kbd -fw_cfg name=opt/x,file=b.img",
    "-M microvm -nodefaults -nographic -drive id=r,file=a.img,format=raw,if=none -device virtio-blk-device,drive=r \
     -chardev stdio,id=c -device virtio-serial-device -device virtconsole,chardev=c",
    "-nodefaults -display none -chardev socket,id=q,path=q.sock,server=on,wait=off -mon chardev=q,mode=control \
     -chardev socket,id=e,path=q.sock,reconnect=5 -mon chardev=e,mode=control -iscsi initiator-name=iqn.2001-04.x:y \
     -object throttle-group,id=g,x-iops-total=100 -blockdev driver=raw,node-name=r,file.driver=file,file.filename=a.img \
     -blockdev driver=throttle,node-name=t,throttle-group=g,file=r -device virtio-blk-pci,drive=t",
];

/// What the verdict says can go by streams must go: QEMU itself migrates it to an incoming QEMU.
#[test]
fn guests_of_plain_scripts_load_in_their_incoming_qemu() {
    let qemus = qemus();
    for (number, line) in BY_HAND.iter().enumerate() {
        let (place, qemu) = (Place::new(), &qemus[number % qemus.len()]);
        place.disk("a.img", 4);
        place.disk("b.img", 1);
        let line: Vec<&str> = line.split_whitespace().collect();
        let socket = place.path("hand.qmp");
        let child = std::process::Command::new(&qemu.path)
            .args(qemu.data_arguments())
            .args(&line)
            .args(["-accel", "tcg", "-m", "64", "-S", "-qmp"])
            .arg(format!("unix:{},server=on,wait=off", socket.display()))
            .current_dir(place.path("disks"))
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let hand = ByHand(child);
        wait_until_listening(&socket);
        let mut source = Qmp::connect(&socket, soon()).unwrap();
        let guest = read(&mut source, hand.pid(), soon()).unwrap();
        assert_eq!(judge_streams(&guest), [], "{line:?}");
        let made = build_incoming(&guest, &place.incoming_options(qemu)).unwrap();
        let mut waiting = start_incoming(&place, qemu, &made);
        let channel = serde_json::json!({ "uri": format!("unix:{}", place.path("m.sock").display()) });
        waiting.qmp().execute("migrate-incoming", channel.clone(), soon()).unwrap();
        source.execute("migrate", channel, soon()).unwrap();
        let loaded = |qmp: &mut Qmp| {
            let answer = qmp.execute("query-migrate", serde_json::json!({}), soon()).unwrap();
            assert_ne!(answer["status"], "failed", "{line:?}: {answer}");
            answer["status"] == "completed"
        };
        while !loaded(&mut source) || !loaded(waiting.qmp()) {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// What is before the tables of the platforms.
const INTRODUCTION: &str = "\
# Which command lines go by which mode

Every command line in `crates/guest/tests/command_lines` is judged as `linerate vm list` judges a guest. A test holds
this page to it, and the judgement to what a destination answers. The lines were written from each platform's
documentation and for QEMU 9.2.

Guests of libvirt (OpenStack and oVirt too) are moved as domains (`qemu:///system/NAME`): *stream* is libvirt's own
migration over Linerate's links, see [libvirt.md](libvirt.md). What depends on the destination (files, taps, memory,
user-mode networks) is not judged here: `linerate vm show` lists it. *Anonymous memory* is plain `-m`:
[guests.md](guests.md#what-direct-mode-needs) says what to add for direct mode. A reason that begins with an option says
why another host does not take that option over.

| platform | lines | direct | stream | none |
|---|---|---|---|---|
";

fn page() -> String {
    let lines = lines();
    let mut page = INTRODUCTION.to_owned();
    for (platform, title) in PLATFORMS {
        let modes: Vec<&str> =
            lines.iter().filter(|line| line.platform == platform).map(|line| mode(line).0).collect();
        let count = |wanted| modes.iter().filter(|mode| **mode == wanted).count();
        let (direct, stream, none) = (count("direct"), count("stream"), count("none"));
        writeln!(page, "| {title} | {} | {direct} | {stream} | {none} |", modes.len()).unwrap();
    }
    for (platform, title) in PLATFORMS {
        writeln!(page, "\n## {title}\n\n| what | mode | why not the mode before |\n|---|---|---|").unwrap();
        for line in lines.iter().filter(|line| line.platform == platform) {
            let (mode, why) = mode(line);
            let why = why.join("; ").replace('|', "\\|");
            let why = if why.is_empty() { "–" } else { &why };
            writeln!(page, "| {} | {mode} | {why} |", line.what).unwrap();
        }
    }
    page
}

#[test]
fn the_page_of_command_lines_matches_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/command-lines.md");
    let page = page();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap();
    assert_eq!(kept, page, "run it with UPDATE_GOLDEN=1 and look at what changed");
    let lines = lines();
    let count = |platforms: &[&str]| lines.iter().filter(|line| platforms.contains(&line.platform)).count();
    assert!(count(&["proxmox"]) >= 20 && count(&["libvirt", "openstack"]) >= 15);
    assert!(count(&["ovirt"]) >= 8 && count(&["plain"]) >= 25);
}
