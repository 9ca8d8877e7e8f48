//! Disks that are block devices at one host or at both, and images that are opened past the page cache.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use linerate_lab::guest::kvm_is_missing;
use linerate_lab::{BlockDevice, DiskMode, GuestParameters, GuestSpec, QemuVersion, make_disk};
use tempfile::TempDir;

use super::{ARRIVE, CONTENT, COPY, DISK, LONG, MIB, REFUSED, content, disk_began, fill, parameters, quick};
use crate::stage::{Stage, ended};

const BUSY_MB: u64 = 16;
/// As fcntl(2) has them.
const O_DIRECT: u32 = 0o40000;
const O_EXCL: i32 = 0o200;

/// A block device, and what its maker calls it.
struct Device {
    block: BlockDevice,
    file: PathBuf,
    facts: PathBuf,
}

impl Device {
    fn over(folder: &Path, name: &str) -> Device {
        let (file, facts) = (folder.join(name), folder.join(format!("{name}-facts")));
        let block = BlockDevice::over(&file, name).unwrap();
        std::fs::create_dir(&facts).unwrap();
        std::fs::write(facts.join("wwid"), format!("naa.{name}\n")).unwrap();
        Device { block, file, facts }
    }

    fn name(&self) -> &Path {
        self.block.name()
    }
}

/// Devices of both hosts, each with a disk that the guest writes and one that it leaves alone, and one that is too
/// small.
struct Devices {
    here: [Device; 2],
    there: [Device; 2],
    small: Device,
    // Behind what is in it.
    _folder: TempDir,
}

impl Devices {
    fn new() -> Devices {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let file = |name: &str| folder.path().join(name);
        make_disk(&file("here-busy"), BUSY_MB).unwrap();
        fill(&file("here-idle"));
        // So much that its copy goes on for seconds after an event has shown that it began.
        let idle = File::options().write(true).open(file("here-idle")).unwrap();
        [56, 80, 104_u64].into_iter().for_each(|at| idle.write_all_at(&content(), at * MIB).unwrap());
        idle.sync_all().unwrap();
        // What is in a device stays where nothing is copied over it: holes and zeros must be.
        for (name, bytes) in [("there-busy", BUSY_MB * MIB), ("there-idle", DISK), ("small", MIB)] {
            let disk = File::create(file(name)).unwrap();
            disk.set_len(bytes).unwrap();
            let junk = vec![0xee; MIB as usize];
            (0..bytes / MIB).step_by(5).for_each(|at| disk.write_all_at(&junk, at * MIB).unwrap());
        }
        let device = |name: &str| Device::over(folder.path(), name);
        let (here, there) =
            (["here-busy", "here-idle"].map(device), ["there-busy", "there-idle"].map(device));
        Devices { here, there, small: device("small"), _folder: folder }
    }

    /// Both agents see the names of all devices, as those of real ones.
    fn name_all(&self, stage: &mut Stage) {
        for process in [stage.source_agent().pid(), stage.destination_agent().pid()] {
            let all = self.here.iter().chain(&self.there).chain([&self.small]);
            all.for_each(|device| device.block.known_as(&device.facts, process).unwrap());
        }
    }

    fn stage(&self) -> Stage {
        let [busy, idle] = self.here.each_ref().map(Device::name);
        let parameters = GuestParameters { disk_generation: Some(1), disk_mbps: 11, ..parameters() };
        let guest = match kvm_is_missing() {
            None => quick(QemuVersion::Ten).unwrap(),
            Some(_) => GuestSpec::new("g", parameters.clone()).qemu(QemuVersion::Ten),
        };
        let parameters = GuestParameters { dirty_mbps: guest.parameters.dirty_mbps, ..parameters };
        let guest = GuestSpec { parameters, ..guest }.disk(busy, DiskMode::Direct);
        let idle =
            format!("driver=raw,node-name=idle,file.driver=host_device,file.filename={}", idle.display());
        let arguments = ["-blockdev", &idle, "-device", "virtio-blk-pci,drive=idle"].map(str::to_owned);
        // Slow enough that an event comes between the disks' first bytes and their last.
        Stage::unshared(&[100, 100], guest, None, |_| arguments.into())
    }
}

/// The migration is refused in such words, and nothing was written.
fn is_refused(stage: &Stage, message: &str, untouched: &Path) {
    let before = std::fs::read(untouched).unwrap();
    let failure = ended(&stage.migrate(&COPY).finish()).failed(REFUSED);
    assert!(failure["message"].as_str().unwrap().contains(message), "{failure}");
    assert_eq!(
        (&failure["code"], &failure["guest_state"]),
        (&"resource_missing".into(), &"runs_at_source".into())
    );
    assert!(std::fs::read(untouched).unwrap() == before, "{} was written", untouched.display());
}

/// Whether the incoming QEMU has something open past the page cache; it opens the guest's disk twice, once to write the
/// copy.
fn opened_directly(stage: &Stage, path: &Path) -> bool {
    let folder = PathBuf::from(format!("/proc/{}", stage.qemu_pid(true)));
    // What was closed since the folder was read is not open.
    let flags = |number: &std::ffi::OsStr| {
        let text = std::fs::read_to_string(folder.join("fdinfo").join(number)).ok()?;
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        Some(u32::from_str_radix(flags.unwrap().trim(), 8).unwrap())
    };
    let open = std::fs::read_dir(folder.join("fd")).unwrap().flatten();
    let of_path = open.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|target| target == path));
    let flags: Vec<u32> = of_path.filter_map(|entry| flags(&entry.file_name())).collect();
    assert!(!flags.is_empty(), "{} is not open", path.display());
    flags.iter().all(|flags| flags & O_DIRECT != 0)
}

/// Whether another program could claim a device, as mounts do.
fn is_free(device: &Device) -> bool {
    File::options().read(true).custom_flags(O_EXCL).open(device.name()).is_ok()
}

fn same(one: &Path, other: &Path) {
    let output = Command::new("qemu-img")
        .args(["compare", "-U", "-f", "raw", "-F", "raw"])
        .args([one, other])
        .output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn mount(arguments: &[&str]) {
    assert!(Command::new("mount").args(arguments).status().unwrap().success());
}

/// A mount that ends when this is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(kind: &[&str], what: &Path, place: &Path) -> Mounted {
        mount(&[kind, &[what.to_str().unwrap(), place.to_str().unwrap()]].concat());
        Mounted(place.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn block_devices_go_to_devices_and_files_and_back() {
    let devices = Devices::new();
    let [busy, idle] = &devices.here;
    let [busy_there, idle_there] = &devices.there;
    let mut stage = devices.stage();
    unnamed_or_wrong_devices_are_refused(&devices, &mut stage);
    stage.guest_goes_on();

    // To devices, which hold something else.
    stage.restart_destination_with_paths(&[
        (busy.name(), busy_there.name()),
        (idle.name(), idle_there.name()),
    ]);
    devices.name_all(&mut stage);
    let mut migration = stage.migrate(&ARRIVE);
    migration.wait(LONG, disk_began);
    assert!(
        opened_directly(&stage, busy_there.block.device())
            && !opened_directly(&stage, idle_there.block.device())
    );
    assert!(!is_free(busy_there) && !is_free(idle_there), "another program could mount it now");
    let report = ended(&migration.finish()).completed();
    assert_eq!(report["disks"]["count"], 2);
    stage.arrived();
    stage.guest_goes_on();
    same(idle.name(), idle_there.name());
    assert!(is_free(busy_there) && is_free(idle_there));

    // Back, the one into a file that is made, the other into the device that it came from.
    let [_, folder] = stage.disks();
    let image = folder.join("busy.img");
    let without = Mounted::new(&["-t", "ramfs"], Path::new("none"), &folder);
    stage.restart_destination_with_paths(&[
        (busy_there.name(), image.as_path()),
        (idle_there.name(), idle.name()),
    ]);
    devices.name_all(&mut stage);
    is_refused(&stage, "on a file system without O_DIRECT", &idle.file);
    drop(without);
    stage.restart_destination_with_paths(&[
        (busy_there.name(), busy.name()),
        (idle_there.name(), image.as_path()),
    ]);
    devices.name_all(&mut stage);
    is_refused(&stage, "is a file here, and the guest's command line opens it as a block device", &busy.file);
    assert!(!image.exists());
    stage.restart_destination_with_paths(&[
        (busy_there.name(), image.as_path()),
        (idle_there.name(), idle.name()),
    ]);
    devices.name_all(&mut stage);
    let mut migration = stage.migrate(&ARRIVE);
    migration.wait(LONG, disk_began);
    assert!(opened_directly(&stage, &image));
    ended(&migration.finish()).completed();
    stage.arrived();
    stage.guest_goes_on();
    same(idle.name(), idle_there.name());

    // And the file into a device.
    stage.restart_destination_with_paths(&[
        (image.as_path(), busy_there.name()),
        (idle.name(), idle_there.name()),
    ]);
    devices.name_all(&mut stage);
    let report = ended(&stage.migrate(&ARRIVE).finish()).completed();
    assert!(report["disks"]["copied_bytes"].as_u64().unwrap() >= BUSY_MB * MIB + CONTENT);
    stage.arrived();
    stage.guest_goes_on();
}

/// Both hosts are one machine here, so a claim of the device holds at the destination too.
#[test]
fn a_shared_device_that_the_destination_host_uses_is_refused() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = folder.path().join("shared");
    make_disk(&file, BUSY_MB).unwrap();
    let device = BlockDevice::over(&file, "shared").unwrap();
    let parameters = GuestParameters { disk_generation: Some(1), disk_mbps: 4, ..parameters() };
    let guest = GuestSpec::new("g", parameters).qemu(QemuVersion::Ten).disk(device.name(), DiskMode::Direct);
    let mut stage = Stage::with_guest(&[1000], guest);
    let claimed = File::options().read(true).custom_flags(O_EXCL).open(device.name()).unwrap();
    let failure = ended(&stage.migrate(&[]).finish()).failed(REFUSED);
    assert!(failure["message"].as_str().unwrap().contains("has claimed it"), "{failure}");
    assert_eq!(failure["guest_state"], "runs_at_source");
    stage.guest_goes_on();
    drop(claimed);
    ended(&stage.migrate(&[]).finish()).completed();
    stage.arrived();
    stage.guest_goes_on();
}

fn unnamed_or_wrong_devices_are_refused(devices: &Devices, stage: &mut Stage) {
    let [busy, idle] = &devices.here;
    let [busy_there, idle_there] = &devices.there;
    // Without another name both hosts have the same devices, as with shared storage.
    is_refused(stage, "may be the same storage", &idle.file);
    devices.name_all(stage);
    is_refused(stage, "is the very disk that the guest uses", &idle.file);
    stage.restart_destination_with_paths(&[(busy.name(), devices.small.name())]);
    devices.name_all(stage);
    is_refused(stage, "with a disk of 1 MiB (1048576 bytes), the guest's has 16 MiB", &devices.small.file);
    // A file system that is mounted, for reading only: nothing but the copy could change it.
    let format = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(busy_there.name()).status().unwrap();
    assert!(format.success());
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    let mounted = Mounted::new(&["-o", "ro,noload"], busy_there.name(), place.path());
    stage.restart_destination_with_paths(&[
        (busy.name(), busy_there.name()),
        (idle.name(), idle_there.name()),
    ]);
    devices.name_all(stage);
    is_refused(stage, "is in use on this host", &busy_there.file);
    drop(mounted);
}
