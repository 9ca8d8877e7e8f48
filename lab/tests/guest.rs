//! The guest boots, its packets arrive, and it notices damage. As root, with what lab/install.sh installs.

#![allow(clippy::unwrap_used, clippy::panic)] // Tests say what they expect.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use linerate_lab::{
    Cache, Console, DiskMode, GuestParameters, GuestSpec, Lab, LinkSpec, Observer, Qemu, QemuOptions,
    QemuVersion, Ram, guest, make_disk,
};
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(180);
const PORT: u16 = 7000;
const DISK_MB: u64 = 16;

fn lab() -> Lab {
    let lab = Lab::builder().link(LinkSpec::shaped(1000)).build().unwrap();
    lab.hosts().iter().for_each(|host| host.add_tap("tap0").unwrap());
    lab
}

fn disk(lab: &Lab) -> PathBuf {
    let path = lab.directory().join("disk.img");
    make_disk(&path, DISK_MB).unwrap();
    path
}

fn busy() -> GuestParameters {
    GuestParameters { mem_mb: 32, dirty_mbps: 20, dirty_ws_mb: Some(8), ..GuestParameters::default() }
}

fn boots(version: QemuVersion, mode: DiskMode) {
    let lab = lab();
    let net = Some(guest::heartbeat(&lab, 0, PORT, 200));
    let parameters = GuestParameters { net, tcp: Some(7), work: true, disk_generation: Some(1), ..busy() };
    let spec = GuestSpec::new("g", parameters).disk(&disk(&lab), mode).tap("tap0").qemu(version);
    let host = &lab.hosts()[0];
    let observer = Observer::start(&lab, PORT).unwrap();
    let _qemu = Qemu::start(host, &spec, &QemuOptions::default()).unwrap();
    let console = Console::new([spec.serial(host)]);
    console.wait_for("BOOTED", LONG).unwrap();
    console.wait_for("FILLED mb=32", LONG).unwrap();
    console.wait_for("WORK n=", LONG).unwrap();
    observer.wait_beats(lab.guest_address(0), 100, LONG).unwrap();
    console.wait_passes(3, LONG).unwrap();
    console.wait_for("DISK ops=", LONG).unwrap();
    assert_eq!(console.bad_lines(), Vec::<String>::new());
    assert!(console.passes_follow());
    let seen = observer.blackout(lab.guest_address(0), Duration::ZERO);
    assert_eq!((seen.mem_bad, seen.disk_bad), (0, 0));
    assert!(observer.beats(lab.guest_address(0)).last().unwrap().disk_ops > 0);
    echo_answers(&lab);
}

fn echo_answers(lab: &Lab) {
    use std::io::{Read, Write};
    let address = (lab.guest_address(0), 7);
    let mut stream = linerate_lab::netns::inside(&lab.observer_namespace(), || {
        Ok(std::net::TcpStream::connect(address).unwrap())
    })
    .unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(b"still there?").unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"still there?");
}

#[test]
fn boots_under_the_systems_qemu_with_a_direct_disk() {
    boots(QemuVersion::System, DiskMode::Direct);
}

#[test]
fn boots_under_qemu_10_with_a_direct_disk() {
    boots(QemuVersion::Ten, DiskMode::Direct);
}

#[test]
fn boots_with_a_buffered_disk() {
    boots(QemuVersion::Ten, DiskMode::Buffered);
}

/// Changes a byte in the second half of every page of guest RAM that has one of the guest's own sequences in it.
fn harm_memory(file: &Path) -> usize {
    let file = std::fs::File::options().read(true).write(true).open(file).unwrap();
    let size = file.metadata().unwrap().len();
    // The upper part of RAM: the kernel and its initramfs are below, user memory is given out from the top.
    let mut changed = 0;
    for offset in (size / 2..size).step_by(4096) {
        let mut page = [0u8; 4096];
        file.read_exact_at(&mut page, offset).unwrap();
        if is_filled(&page) {
            file.write_all_at(&[page[2056] ^ 1], offset + 2056).unwrap();
            changed += 1;
        }
        if changed == 10 {
            break;
        }
    }
    changed
}

/// Whether words 9 to 15 follow each other in the guest's fill sequence.
fn is_filled(page: &[u8; 4096]) -> bool {
    let word = |at: usize| u64::from_le_bytes(page[at * 8..at * 8 + 8].try_into().unwrap());
    let next = |mut x: u64| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^ (x << 17)
    };
    word(9) != 0 && (9..15).all(|at| word(at + 1) == next(word(at)))
}

#[test]
fn a_damaged_page_is_reported() {
    let lab = lab();
    let spec = GuestSpec::new("g", GuestParameters { verify_mbps: 256, ..busy() });
    let host = &lab.hosts()[0];
    let qemu = Qemu::start(host, &spec, &QemuOptions::default()).unwrap();
    let console = Console::new([spec.serial(host)]);
    console.wait_passes(2, LONG).unwrap();
    assert_eq!(console.bad_lines(), Vec::<String>::new());
    let mut qmp = qemu.qmp().unwrap();
    qmp.execute("stop", Value::Null).unwrap();
    assert_eq!(harm_memory(&spec.ram_file(host)), 10);
    qmp.execute("cont", Value::Null).unwrap();
    let line = console.wait_for("MEMBAD page=", LONG).unwrap();
    assert!(line.contains("wrong_words=1"), "{line}");
}

/// Each guest without a kernel checks one word of 64 bytes: a migration loses whole pages.
fn notices_a_damaged_page(make: fn(&str, GuestParameters) -> GuestSpec) {
    let lab = lab();
    let parameters = GuestParameters { mem_mb: 32, dirty_ws_mb: Some(1), ..GuestParameters::default() };
    let spec = make("g", parameters);
    let host = &lab.hosts()[0];
    let qemu = Qemu::start(host, &spec, &QemuOptions::default()).unwrap();
    let console = Console::new([spec.serial(host)]);
    console.wait_passes(9, LONG).unwrap();
    assert_eq!(console.bad_lines(), Vec::<String>::new());
    let mut qmp = qemu.qmp().unwrap();
    qmp.execute("stop", Value::Null).unwrap();
    let ram = std::fs::File::options().write(true).open(spec.ram_file(host)).unwrap();
    // Its memory is at 4 MiB: a page that it writes all the time, and one that it only checks.
    for page in [1, 5000] {
        ram.write_all_at(&[0; 4096], (4 << 20) + page * 4096).unwrap();
    }
    qmp.execute("cont", Value::Null).unwrap();
    for page in ["page=1 ", "page=5000 "] {
        let line = console.wait_for(&format!("MEMBAD {page}"), LONG).unwrap();
        assert!(line.contains("lines=64"), "{line}");
    }
}

#[test]
fn a_damaged_page_is_reported_without_a_kernel() {
    notices_a_damaged_page(GuestSpec::bare);
}

#[test]
fn a_damaged_page_is_reported_under_kvm() {
    match guest::kvm_is_missing() {
        Some(error) => guest::not_run(&format!("no /dev/kvm ({error})")),
        None => notices_a_damaged_page(GuestSpec::user_mode),
    }
}

#[test]
fn a_stale_page_is_reported_with_its_age() {
    let lab = lab();
    let spec = GuestSpec::new("g", busy());
    let host = &lab.hosts()[0];
    let qemu = Qemu::start(host, &spec, &QemuOptions::default()).unwrap();
    let console = Console::new([spec.serial(host)]);
    let mut qmp = qemu.qmp().unwrap();
    console.wait_passes(2, LONG).unwrap();
    qmp.execute("stop", Value::Null).unwrap();
    let older = std::fs::read(spec.ram_file(host)).unwrap();
    qmp.execute("cont", Value::Null).unwrap();
    console.wait_passes(2, LONG).unwrap();
    qmp.execute("stop", Value::Null).unwrap();
    assert!(bring_back_a_page(&spec.ram_file(host), &older), "no page had changed");
    qmp.execute("cont", Value::Null).unwrap();
    let line = console.wait_for("MEMBAD page=", LONG).unwrap();
    let number = |key| linerate_lab::console::value(&line, key).unwrap().parse::<i64>().unwrap();
    assert!((1..number("expected_pass")).contains(&number("looks_like")), "{line}");
}

/// Puts one page of the hot working set back to what it was: what a migration that misses a write does.
fn bring_back_a_page(file: &Path, older: &[u8]) -> bool {
    let file = std::fs::File::options().read(true).write(true).open(file).unwrap();
    let size = file.metadata().unwrap().len();
    (size / 2..size).step_by(4096).any(|offset| {
        let mut page = [0u8; 4096];
        file.read_exact_at(&mut page, offset).unwrap();
        let before: &[u8; 4096] = older[offset as usize..][..4096].try_into().unwrap();
        let stale = is_filled(&page) && is_filled(before) && page != *before;
        if stale {
            file.write_all_at(before, offset).unwrap();
        }
        stale
    })
}

#[test]
fn a_damaged_disk_is_reported() {
    notices_a_damaged_disk(GuestSpec::new);
}

#[test]
fn a_damaged_disk_is_reported_without_a_kernel() {
    notices_a_damaged_disk(GuestSpec::bare);
}

#[test]
fn a_damaged_disk_is_reported_under_kvm() {
    match guest::kvm_is_missing() {
        Some(error) => guest::not_run(&format!("no /dev/kvm ({error})")),
        None => notices_a_damaged_disk(GuestSpec::user_mode),
    }
}

fn notices_a_damaged_disk(make: fn(&str, GuestParameters) -> GuestSpec) {
    let lab = lab();
    let image = disk(&lab);
    let parameters =
        GuestParameters { mem_mb: 32, disk_generation: Some(1), disk_mbps: 32, ..GuestParameters::default() };
    let spec = make("g", parameters).disk(&image, DiskMode::Direct);
    let host = &lab.hosts()[0];
    let _qemu = Qemu::start(host, &spec, &QemuOptions::default()).unwrap();
    let console = Console::new([spec.serial(host)]);
    console.wait_disk(32, LONG).unwrap();
    assert_eq!(console.bad_lines(), Vec::<String>::new());
    // Every slot goes back to a generation that no slot ever had: whole and valid, but not what the guest wrote.
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    for number in 0..DISK_MB * 16 {
        file.write_all_at(&linerate_lab::disk::slot(number, 1_000_000), number * 65536).unwrap();
    }
    let line = console.wait_for("DISKBAD on disk", LONG).unwrap();
    assert!(line.contains("found_generation=1000000"), "{line}");
}

#[test]
fn a_guest_moved_by_qemu_itself_is_followed_on_both_hosts() {
    let lab = lab();
    let net = Some(guest::heartbeat(&lab, 0, PORT, 200));
    let parameters = GuestParameters { net, disk_generation: Some(1), ..busy() };
    let spec = GuestSpec::new("g", parameters)
        .disk(&disk(&lab), DiskMode::Direct)
        .tap("tap0")
        .qemu(QemuVersion::Ten);
    let [from, to] = lab.hosts() else { panic!("two hosts") };
    let observer = Observer::start(&lab, PORT).unwrap();
    let plain = QemuOptions { ram: Ram::Plain, ..QemuOptions::default() };
    let source = Qemu::start(from, &spec, &plain).unwrap();
    let console = Console::new([spec.serial(from), spec.serial(to)]);
    console.wait_passes(2, LONG).unwrap();
    let address = format!("tcp:{}:4444", to.address(0));
    let incoming = QemuOptions { incoming: Some(address.clone()), ..plain };
    let _destination = Qemu::start(to, &spec, &incoming).unwrap();
    let mut qmp = source.qmp().unwrap();
    qmp.execute("migrate", json!({ "uri": address })).unwrap();
    let answer = qmp.wait_migrated(LONG).unwrap();
    assert_eq!(answer["status"], "completed", "{answer}");
    drop(source);
    console.wait_passes(3, LONG).unwrap();
    observer.wait_beats(lab.guest_address(0), 50, LONG).unwrap();
    assert_eq!(console.bad_lines(), Vec::<String>::new());
    assert!(console.passes_follow(), "{:?}", console.passes());
    let seen = observer.blackout(lab.guest_address(0), Duration::ZERO);
    assert!(seen.longest_gap_us > 0 && seen.mem_bad == 0 && seen.disk_bad == 0, "{seen:?}");
}

#[test]
fn the_guest_is_built_from_what_is_here() {
    // Fails when the initramfs is older than lab/guest: the install script rebuilds it, and says so.
    Cache::locate().install(&["kernel", "guest"]).unwrap();
    assert!(Cache::locate().initramfs().unwrap().is_file());
}
