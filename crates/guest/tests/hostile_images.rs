//! Images that name files of the host, and command lines that would have QEMU take a guest's bytes for an image's
//! header.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests, too, say what they expect

mod common;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::*;
use linerate_guest::description::*;
use linerate_guest::host::{HostFacts, Problem, QemuFacts, check_host};
use linerate_guest::images::{self, Claims, ImageError};
use linerate_guest::incoming_qemu::{
    IncomingError, IncomingOptions, IncomingQemu, QemuBinary, build_incoming,
};
use linerate_guest::qcow2::{ReferenceError, check};
use linerate_guest::qmp::QemuVersion;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

/// A folder for guests, and one beside it.
struct Folders {
    _place: tempfile::TempDir,
    roots: Vec<PathBuf>,
    inside: PathBuf,
    secret: PathBuf,
}

fn folders() -> Folders {
    let place = tempfile::tempdir().unwrap();
    let root = std::fs::canonicalize(place.path()).unwrap();
    let (inside, outside) = (root.join("disks"), root.join("etc"));
    [&inside, &outside].into_iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
    let secret = outside.join("shadow");
    std::fs::write(&secret, vec![1; MIB as usize]).unwrap();
    Folders { _place: place, roots: vec![inside.clone()], inside, secret }
}

impl Folders {
    /// As `qemu-img create` makes it, without looking at what it names.
    fn image(&self, name: &str, options: &[&str]) -> PathBuf {
        let path = self.inside.join(name);
        let mut command = Command::new("qemu-img");
        command.args(["create", "-q", "-u", "-f", "qcow2"]).args(options).arg(&path).arg("1M");
        assert!(command.status().unwrap().success());
        path
    }

    fn reach(&self, name: &str, options: &[&str]) -> Result<(), ReferenceError> {
        check(&self.image(name, options), &self.roots)
    }

    fn text(&self) -> (String, String) {
        (self.inside.display().to_string(), self.secret.display().to_string())
    }
}

fn put(path: &Path, offset: u64, bytes: &[u8]) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

/// Where these bytes stand in the first cluster.
fn find(path: &Path, bytes: &[u8]) -> u64 {
    let head = std::fs::read(path).unwrap();
    head.windows(bytes.len()).position(|window| window == bytes).unwrap() as u64
}

#[test]
fn images_that_name_nothing_or_files_of_the_guests_are_taken() {
    let f = folders();
    let (inside, _) = f.text();
    std::fs::write(f.inside.join("base.raw"), vec![0; MIB as usize]).unwrap();
    assert_eq!(check(&f.inside.join("base.raw"), &f.roots), Ok(()), "no such image at all");
    f.image("base", &[]);
    for (name, options) in [
        ("plain", &[][..]),
        ("old", &["-o", "compat=0.10"]),
        ("small", &["-o", "cluster_size=512"]),
        ("raw", &["-b", "base.raw", "-F", "raw"]),
        ("absolute", &["-b", &format!("{inside}/base"), "-F", "qcow2"]),
        ("chain", &["-b", "absolute", "-F", "qcow2"]),
        ("old-chain", &["-b", "chain", "-F", "qcow2", "-o", "compat=0.10"]),
        ("data", &["-o", &format!("data_file={inside}/data.raw")]),
    ] {
        assert_eq!(f.reach(name, options), Ok(()), "{name}");
    }
}

#[test]
fn images_that_name_files_of_the_host_are_not() {
    let f = folders();
    let (inside, secret) = f.text();
    std::os::unix::fs::symlink(&f.secret, f.inside.join("link")).unwrap();
    std::os::unix::fs::symlink(f.secret.parent().unwrap(), f.inside.join("folder")).unwrap();
    f.image("bad", &["-b", &secret, "-F", "raw"]);
    let outside = |reach: &ReferenceError| matches!(reach, ReferenceError::Outside(_));
    let name = |reach: &ReferenceError| matches!(reach, ReferenceError::Name(_));
    type Expected = fn(&ReferenceError) -> bool;
    let cases: [(&str, &[&str], Expected); 13] = [
        ("absolute", &["-b", &secret, "-F", "raw"], outside),
        ("old", &["-b", &secret, "-F", "raw", "-o", "compat=0.10"], outside),
        ("qcow2", &["-b", &secret, "-F", "qcow2"], outside),
        ("relative", &["-b", "../etc/shadow", "-F", "raw"], outside),
        ("dots", &["-b", &format!("{inside}/../etc/shadow"), "-F", "raw"], outside),
        ("by-link", &["-b", "link", "-F", "raw"], outside),
        ("by-folder", &["-b", "folder/shadow", "-F", "raw"], outside),
        ("missing", &["-b", "nothing", "-F", "raw"], outside),
        ("below", &["-b", "bad", "-F", "qcow2"], outside),
        (
            "json",
            &["-b", &format!("json:{{\"driver\":\"file\",\"filename\":\"{secret}\"}}"), "-F", "raw"],
            name,
        ),
        ("nbd", &["-b", "nbd:unix:/run/x.sock", "-F", "raw"], name),
        ("file", &["-b", &format!("file:{secret}"), "-F", "raw"], name),
        ("vmdk", &["-b", "bad", "-F", "vmdk"], |reach| matches!(reach, ReferenceError::Guessed(_))),
    ];
    for (image, options, expected) in cases {
        let refused = f.reach(image, options).unwrap_err();
        assert!(expected(&refused), "{image}: {refused:?}");
    }
    let itself = f.image("itself", &["-b", "itself", "-F", "qcow2"]);
    assert_eq!(check(&itself, &f.roots), Err(ReferenceError::Endless));
}

#[test]
fn data_files_are_files_of_the_guests_too() {
    let f = folders();
    let (inside, secret) = f.text();
    let image = f.image("data", &["-o", &format!("data_file={inside}/data.raw")]);
    let name = format!("{inside}/data.raw");
    let at = find(&image, name.as_bytes());
    // Names that are not longer, behind as many slashes as it takes.
    let named = |name: &str, length: usize| {
        put(&image, at, format!("{}{name}", "/".repeat(length - name.len())).as_bytes());
        check(&image, &f.roots).unwrap_err()
    };
    assert!(matches!(named(&secret, name.len()), ReferenceError::Outside(_)));
    let relative = "d".repeat(name.len());
    put(&image, at, relative.as_bytes());
    assert_eq!(
        check(&image, &f.roots),
        Err(ReferenceError::Name(relative)),
        "QEMU looks for it where it was started"
    );
    let json = format!("{:<width$}", "json:{\"driver\":\"file\"}", width = name.len());
    put(&image, at, json.as_bytes());
    assert!(matches!(check(&image, &f.roots), Err(ReferenceError::Name(_))));
    // Without a name.
    put(&image, at - 8, &0x1234_5678_u32.to_be_bytes());
    assert!(matches!(check(&image, &f.roots), Err(ReferenceError::Header(_))));
}

#[test]
fn a_backing_file_whose_format_would_be_guessed_is_not_opened() {
    let f = folders();
    f.image("base", &[]);
    let image = f.image("top", &["-b", "base", "-F", "qcow2"]);
    put(&image, find(&image, &0xe279_2aca_u32.to_be_bytes()), &0x1234_5678_u32.to_be_bytes());
    assert_eq!(check(&image, &f.roots), Err(ReferenceError::Guessed("base".into())));
}

proptest! {
    /// A header is another host's or a guest's word.
    #[test]
    fn a_header_of_any_bytes_is_read_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..300), version in 0_u8..5, long in any::<bool>()
    ) {
        let f = folders();
        let path = f.inside.join("x");
        std::fs::write(&path, [b"QFI\xfb\0\0\0", &[version][..], &bytes].concat()).unwrap();
        if long {
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        }
        let _ = check(&path, &f.roots);
    }

    /// An image that is taken names a file of the guests', whose path is a few bytes away from others. Some bytes of
    /// its header are others: whatever is taken then names, as QEMU reads it, nothing outside.
    #[test]
    fn a_changed_header_never_reaches_out(
        changes in proptest::collection::vec((0_u64..160, 0_u64..64, prop_oneof![Just(b'.'), Just(b'/'), any::<u8>()]), 1..5)
    ) {
        let f = folders();
        std::fs::write(f.inside.join("base"), vec![0; MIB as usize]).unwrap();
        let name = f.inside.join("./././base").display().to_string();
        let image = f.image("top", &["-b", &name, "-F", "raw"]);
        prop_assert_eq!(check(&image, &f.roots), Ok(()));
        let (start, end) = (find(&image, name.as_bytes()), name.len() as u64);
        for (header, back, byte) in changes {
            // Into the fixed header and its extensions, or into the name's end.
            let at = if header < 112 { header } else { start + end.saturating_sub(1 + back) };
            put(&image, at, &[byte]);
        }
        if check(&image, &f.roots).is_ok() {
            let mut command = Command::new("qemu-img");
            let output = command.args(["info", "-f", "qcow2", "--output=json"]).arg(&image).output().unwrap();
            let info: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let named = ["/full-backing-filename", "/format-specific/data/data-file"];
            for name in named.into_iter().filter_map(|pointer| info.pointer(pointer)?.as_str()) {
                let target = std::fs::canonicalize(f.inside.join(name));
                prop_assert!(target.is_ok_and(|target| target.starts_with(&f.inside)), "{name}");
            }
        }
    }
}

fn options(f: &Folders) -> IncomingOptions {
    IncomingOptions {
        runtime_dir: "/run/linerate/guests/web".into(),
        ram_dir: "/dev/shm/linerate".into(),
        huge_ram_dir: None,
        qemu: QemuBinary::new("/usr/bin/qemu-system-x86_64"),
        file_roots: f.roots.clone(),
        paths: Default::default(),
        taps: Default::default(),
        allow_user_network: false,
        keep_page_cache: false,
    }
}

fn guest_with(
    f: &Folders,
    arguments: &[&str],
    disks: &[(&str, &str)],
) -> (GuestDescription, Result<IncomingQemu, IncomingError>) {
    let (inside, _) = f.text();
    let arguments: Vec<String> = arguments.iter().map(|argument| argument.replace("DIR", &inside)).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut guest = description(&[&["-nodefaults"], &arguments[..]].concat());
    guest.disks = disks
        .iter()
        .filter(|(_, format)| !format.is_empty())
        .map(|(path, format)| Disk {
            id: "d".into(),
            path: path.replace("DIR", &inside),
            format: (*format).into(),
            protocol: "file".into(),
            read_only: false,
            direct: false,
            aio: None,
            drop_cache: true,
            size: 0,
            flash: false,
        })
        .collect();
    let made = build_incoming(&guest, &options(f));
    (guest, made)
}

#[test]
fn no_format_is_left_to_be_guessed() {
    let f = folders();
    let (inside, _) = f.text();
    for (arguments, format, wanted) in [
        (["-drive", "file=DIR/a"], "qcow2", "file=DIR/a,format=qcow2"),
        (["-drive", "file=DIR/a"], "raw", "file=DIR/a,format=raw"),
        (["-drive", "file=DIR/a,format=raw"], "qcow2", "file=DIR/a,format=raw"),
        (["-drive", "file.filename=DIR/a"], "raw", "file.filename=DIR/a,format=raw"),
        (["-drive", "file=DIR/a,media=cdrom"], "", "file=DIR/a,media=cdrom,format=raw"),
        (["-hda", "DIR/a"], "raw", "-drive index=0,media=disk,file=DIR/a,format=raw"),
        (["-hdd", "DIR/a"], "qcow2", "-drive index=3,media=disk,file=DIR/a,format=qcow2"),
        (["-cdrom", "DIR/a"], "", "-drive index=2,media=cdrom,file=DIR/a,format=raw"),
        (["-pflash", "DIR/a"], "raw", "-drive if=pflash,file=DIR/a,format=raw"),
    ] {
        let text = guest_with(&f, &arguments, &[("DIR/a", format)]).1.unwrap().arguments.join(" ");
        assert!(text.contains(&wanted.replace("DIR", &inside)), "{wanted} is not in {text}");
    }
    for arguments in [
        &["-drive", "file=DIR/a"][..],
        &["-hda", "DIR/a"],
        &["-drive", "file=DIR/a,format=qcow2,backing.file.filename=DIR/b"],
        &["-blockdev", "driver=throttle,node-name=a,throttle-group=g,file.file.filename=DIR/a"],
        &["-blockdev", "driver=throttle,node-name=a,throttle-group=g,file.filename=DIR/a"],
        &["-blockdev", "driver=copy-on-read,node-name=a,file.backing.filename=DIR/a"],
    ] {
        for format in ["vmdk", ""] {
            let refused = guest_with(&f, arguments, &[("DIR/a", format)]).1;
            assert!(matches!(refused, Err(IncomingError::Refused { .. })), "{arguments:?}: {refused:?}");
        }
    }
}

#[test]
fn it_is_known_in_which_format_a_file_is_opened() {
    use ImageFormat::{Qcow2, Raw};
    let f = folders();
    let file = "driver=file,node-name=f,filename=DIR/a";
    for (arguments, wanted) in [
        (&["-drive", "file=DIR/a,format=raw"][..], Some(Raw)),
        (&["-drive", "file.filename=DIR/a,driver=qcow2"], Some(Qcow2)),
        (&["-blockdev", "driver=qcow2,node-name=a,file.driver=file,file.filename=DIR/a"], Some(Qcow2)),
        (&["-blockdev", file], Some(Raw)),
        (&["-blockdev", file, "-blockdev", "driver=raw,node-name=a,file=f"], Some(Raw)),
        (&["-blockdev", "driver=qcow2,node-name=a,file=f", "-blockdev", file], Some(Qcow2)),
        (
            &[
                "-blockdev",
                file,
                "-blockdev",
                "driver=throttle,throttle-group=g,node-name=t,file=f",
                "-blockdev",
                "driver=qcow2,node-name=a,file=t",
            ],
            Some(Qcow2),
        ),
        (
            &[
                "-blockdev",
                file,
                "-blockdev",
                "driver=raw,node-name=a,file=f",
                "-blockdev",
                "driver=qcow2,node-name=b,file=f",
            ],
            None,
        ),
        // A raw node may be under another one.
        (
            &[
                "-blockdev",
                "driver=raw,node-name=a,file.driver=file,file.filename=DIR/a",
                "-blockdev",
                "driver=qcow2,node-name=b,file=a",
            ],
            None,
        ),
        (
            &[
                "-blockdev",
                "driver=raw,node-name=a,file.driver=file,file.node-name=f,file.filename=DIR/a",
                "-blockdev",
                "driver=qcow2,node-name=b,file=f",
            ],
            None,
        ),
        (
            &[
                "-drive",
                "if=none,id=d,format=raw,file=DIR/a",
                "-blockdev",
                "driver=throttle,throttle-group=g,node-name=t,file=d",
                "-blockdev",
                "driver=raw,node-name=r,file.driver=qcow2,file.file=t",
            ],
            None,
        ),
    ] {
        let made = guest_with(&f, arguments, &[]).1.unwrap();
        assert_eq!(made.files[0].format, wanted, "{arguments:?}");
    }
}

/// All of them name each other: a search that goes every way would never end.
#[test]
fn nodes_in_a_circle_take_no_time() {
    let f = folders();
    let node =
        |nth: usize| format!("driver=throttle,throttle-group=g,node-name=t{},file=t{}", nth % 30, nth / 30);
    let file = "driver=file,node-name=t0,filename=DIR/a".to_owned();
    let nodes: Vec<String> = std::iter::once(file).chain((0..900).map(node)).collect();
    let arguments: Vec<&str> = nodes.iter().flat_map(|node| ["-blockdev", node.as_str()]).collect();
    assert_eq!(guest_with(&f, &arguments, &[]).1.unwrap().files[0].format, Some(ImageFormat::Raw));
}

#[test]
fn what_is_copied_raw_is_never_opened_as_an_image_that_names_others() {
    let f = folders();
    let path = f.inside.join("a").display().to_string();
    let claims = Claims::default();
    for (opened, copied, taken) in [
        ("raw", ImageFormat::Raw, true),
        ("qcow2", ImageFormat::Qcow2, true),
        ("qcow2", ImageFormat::Raw, false),
        ("raw", ImageFormat::Qcow2, false),
    ] {
        let (mut guest, made) = guest_with(&f, &["-drive", &format!("file=DIR/a,format={opened}")], &[]);
        guest.copied = vec![CopiedDisk {
            id: "d".into(),
            path: path.clone(),
            format: copied,
            size: MIB,
            identity: None,
        }];
        let prepared = images::prepare(&guest, &made.unwrap(), &f.roots, &f.inside, &claims);
        match prepared {
            Ok(prepared) => {
                assert!(taken, "{copied:?} is opened as {opened}");
                prepared.discard();
            }
            Err(error) => assert!(!taken && matches!(error, ImageError::OpenedAs { .. }), "{error}"),
        }
        assert!(!Path::new(&path).exists());
    }
}

#[test]
fn a_host_does_not_start_a_guest_whose_image_reaches_out() {
    let f = folders();
    let (_, secret) = f.text();
    f.image("a", &["-b", &secret, "-F", "raw"]);
    for (format, taken) in [("qcow2", false), ("raw", true)] {
        let (guest, made) = guest_with(&f, &["-drive", &format!("file=DIR/a,format={format}")], &[]);
        let host = HostFacts {
            qemu: QemuFacts {
                version: QemuVersion { major: 10, minor: 0, micro: 0 },
                machines: vec![guest.machine.clone()],
            },
            memory_available: 1 << 40,
            ram_folder_available: None,
            huge_available: Vec::new(),
            guests: Vec::new(),
            kvm: false,
        };
        let problems = check_host(&guest, &made.unwrap(), &options(&f).qemu, &f.roots, &host);
        let reaches = matches!(&problems[..], [problem @ Problem::Image { .. }] if problem.is_fatal());
        assert!(if taken { problems.is_empty() } else { reaches }, "{format}: {problems:?}");
    }
}
