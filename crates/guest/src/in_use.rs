//! Who else uses an image on this host. QEMU's locks are seen by QEMU alone: a loop device, a mount or a program that
//! writes a file takes none. Block devices that are mounted, swap, or part of LVM, RAID or multipath are found by
//! opening them with O_EXCL.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use crate::argv::split_loose;
use crate::description::GuestDescription;
use crate::incoming_qemu::IncomingQemu;
use crate::options::Options;
use crate::read::parsed;
use crate::shared::open_files::{self, OpenFile};

/// A claim whose owner is not known must last so long.
const CLAIM_LASTS: Duration = Duration::from_secs(1);
/// Between two looks at it.
const CLAIM_LOOK: Duration = Duration::from_millis(50);

/// A process or kernel driver that uses an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum User {
    /// A loop device is made of it.
    Loop(String),
    /// A process has it open.
    Process { pid: i32, name: String, writes: bool },
}

impl User {
    /// Programs that watch disks have devices open for reading. A QEMU watches none: its guest reads the disk, or is
    /// arriving and will write to it.
    fn may_only_watch(&self) -> bool {
        match self {
            User::Process { name, writes: false, .. } => !name.starts_with("qemu") && name != "kvm",
            _ => false,
        }
    }
}

impl std::fmt::Display for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            User::Loop(device) => write!(f, "the loop device {device} is made of it (losetup -d {device})"),
            User::Process { pid, name, writes: true } => {
                write!(f, "process {pid} ({name}) has it open for writing")
            }
            User::Process { pid, name, .. } => write!(f, "process {pid} ({name}) has it open"),
        }
    }
}

/// An image that another program uses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} is in use on this host: {}. Nothing was written to it. End that, or map the disk's path (paths in the \
     configuration)",
    path.display(), users.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
)]
pub struct InUse {
    pub path: PathBuf,
    pub users: Vec<User>,
}

/// Refuses an image that anybody uses: for what is about to be overwritten, a reader matters too.
pub fn check_overwritten(path: &Path) -> Result<(), InUse> {
    let mut users = users(path, &[]);
    // What mounts and maps devices is found by O_EXCL.
    if fs::metadata(path).is_ok_and(|facts| facts.file_type().is_block_device()) {
        users.retain(|user| !user.may_only_watch());
    }
    refuse(path, users)
}

/// Refuses shared images that something on this host writes. Other guests may, where the disk's own device agrees to it
/// (`share-rw`), and the guest itself may still run on this very machine.
pub fn check_shared(guest: &GuestDescription, incoming: &IncomingQemu) -> Result<(), InUse> {
    let options = split_loose(&guest.arguments);
    let agreed: Vec<Options> =
        parsed(&options, "device", Some("driver")).filter(|device| device.is_on("share-rw")).collect();
    let own = own_processes(guest);
    for file in incoming.files.iter().filter(|file| file.writable) {
        let Some(disk) = guest.disks.iter().find(|disk| disk.path == file.source) else { continue };
        let copied = guest.copied.iter().any(|copied| copied.path == file.source);
        let is_agreed = agreed.iter().any(|device| device.get("drive") == Some(&disk.id));
        if disk.read_only || copied || is_agreed {
            continue;
        }
        let mut users = users(&file.path, &own);
        users.retain(|user| !matches!(user, User::Process { writes: false, .. }));
        refuse(&file.path, users)?;
    }
    Ok(())
}

fn refuse(path: &Path, users: Vec<User>) -> Result<(), InUse> {
    if users.is_empty() { Ok(()) } else { Err(InUse { path: path.to_owned(), users }) }
}

/// The guest and the agent that it leaves, if both hosts are one machine.
fn own_processes(guest: &GuestDescription) -> Vec<i32> {
    let Some(facts) = &guest.storage else { return Vec::new() };
    let here = crate::procfs::boot_id().is_ok_and(|boot| boot == facts.boot);
    let agent = i32::try_from(facts.agent).unwrap_or(0);
    if here { vec![guest.process.pid, agent] } else { Vec::new() }
}

/// Who has claimed a block device for itself, if there is a claim: a mount, swap, LVM, RAID, multipath. QEMU claims
/// none. One whose owner is not known must last: this look claims the device for a moment as well, and so does a child
/// that is begun in that moment.
pub(crate) fn held_by(device: &Path) -> Option<String> {
    held_for(CLAIM_LASTS, device)
}

/// The same, of a claim that lasts so long.
fn held_for(lasts: Duration, device: &Path) -> Option<String> {
    let facts = fs::metadata(device).ok().filter(|facts| facts.file_type().is_block_device())?;
    let number = format!("{}:{}", rustix::fs::major(facts.rdev()), rustix::fs::minor(facts.rdev()));
    let end = Instant::now() + lasts;
    while is_claimed(device) {
        let mut by = mounts_of(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default(), &number);
        let holders =
            fs::read_dir(format!("/sys/dev/block/{number}/holders")).into_iter().flatten().flatten();
        by.extend(holders.map(|holder| format!("part of {}", holder.file_name().display())));
        if !by.is_empty() {
            return Some(by.join(", "));
        }
        if Instant::now() >= end {
            return Some("a program or the kernel has claimed it".into());
        }
        std::thread::sleep(CLAIM_LOOK);
    }
    None
}

/// Whether the kernel refuses to claim it for this process.
fn is_claimed(device: &Path) -> bool {
    let exclusive = (OFlags::EXCL | OFlags::NONBLOCK).bits().cast_signed();
    let busy = rustix::io::Errno::BUSY.raw_os_error();
    let opened = fs::OpenOptions::new().read(true).custom_flags(exclusive).open(device);
    opened.is_err_and(|error| error.raw_os_error() == Some(busy))
}

/// Where a device is mounted, by the lines of mountinfo (proc_pid_mountinfo(5)): the third field is its number.
fn mounts_of(mountinfo: &str, number: &str) -> Vec<String> {
    let fields = mountinfo.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let here = fields.filter(|fields| fields.get(2) == Some(&number));
    here.filter_map(|fields| Some(format!("mounted at {}", fields.get(4)?))).collect()
}

/// Everybody who uses it but these processes and this one.
pub(crate) fn users(path: &Path, but: &[i32]) -> Vec<User> {
    let Ok(facts) = fs::metadata(path) else { return Vec::new() };
    let mut users = loops(Path::new("/sys/block"), path, &facts);
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    for pid in processes.filter(|pid| *pid != own && !but.contains(pid)) {
        // Before its files are read: those of ours are closed when it runs its own program.
        if is_beginning(pid, own) {
            continue;
        }
        let open = open_files::open_files(pid).unwrap_or_default();
        let same: Vec<&OpenFile> = open.iter().filter(|file| file.is(&facts)).collect();
        if !same.is_empty() {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let writes = same.iter().any(|file| open_files::writes(&file.link));
            users.push(User::Process { pid, name: name.trim().to_owned(), writes });
        }
    }
    users
}

/// Whether it is a child of ours that does not run its own program yet: until then it has every file open that we have.
fn is_beginning(pid: i32, own: i32) -> bool {
    let program = |pid: i32| fs::read_link(format!("/proc/{pid}/exe")).ok();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
    parent == Some(own) && program(pid).is_some_and(|theirs| program(own) == Some(theirs))
}

/// Loop devices that are made of it. They have it open without a process.
fn loops(block: &Path, path: &Path, facts: &Metadata) -> Vec<User> {
    let devices = fs::read_dir(block).into_iter().flatten().flatten();
    let uses = |device: &fs::DirEntry| {
        let behind = fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
        let behind = behind.trim_end_matches('\n');
        // A file that was removed since, or that has another name in another mount namespace, is known by its words
        // alone.
        let named = behind.strip_suffix(" (deleted)").unwrap_or(behind);
        let same = match fs::metadata(behind) {
            Ok(found) => same(&found, facts),
            Err(_) => fs::canonicalize(path).is_ok_and(|path| path == Path::new(named)),
        };
        same.then(|| User::Loop(format!("/dev/{}", device.file_name().display())))
    };
    devices.filter_map(|device| uses(&device)).collect()
}

fn same(one: &Metadata, other: &Metadata) -> bool {
    match (one.file_type().is_block_device(), other.file_type().is_block_device()) {
        (true, true) => one.rdev() == other.rdev(),
        (false, false) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_loop_device_uses_its_file_under_any_name() {
        let dir = tempfile::tempdir().unwrap();
        let [image, link, other] = ["d", "link", "other"].map(|name| dir.path().join(name));
        fs::write(&image, "x").unwrap();
        fs::write(&other, "x").unwrap();
        fs::hard_link(&image, &link).unwrap();
        let folder = dir.path().join("block/loop3/loop");
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir_all(dir.path().join("block/sda")).unwrap();
        fs::write(folder.join("backing_file"), format!("{}\n", link.display())).unwrap();
        let found = |path: &Path| loops(&dir.path().join("block"), path, &fs::metadata(path).unwrap());
        assert_eq!(found(&image), [User::Loop("/dev/loop3".into())]);
        assert!(found(&other).is_empty());
        // As the kernel writes it of a file that was removed under it; another has its name now.
        fs::write(folder.join("backing_file"), format!("{} (deleted)\n", other.display())).unwrap();
        assert_eq!(found(&other).len(), 1);
    }

    #[test]
    fn a_process_that_has_it_open_is_named_with_what_it_may_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        fs::write(&path, "x").unwrap();
        check_overwritten(&path).unwrap();
        let open = |file: fs::File| Command::new("sleep").arg("60").stdin(Stdio::from(file)).spawn().unwrap();
        let users_of = |file: fs::File| {
            let mut process = open(file);
            let found = users(&path, &[]);
            let but = users(&path, &[i32::try_from(process.id()).unwrap()]);
            process.kill().unwrap();
            process.wait().unwrap();
            assert!(but.is_empty(), "{but:?}");
            found
        };
        let reader = users_of(fs::File::open(&path).unwrap());
        assert!(matches!(&reader[..], [User::Process { writes: false, .. }]), "{reader:?}");
        let writer = users_of(fs::File::options().write(true).open(&path).unwrap());
        assert!(matches!(&writer[..], [User::Process { writes: true, .. }]), "{writer:?}");
        let message = InUse { path: path.clone(), users: writer }.to_string();
        assert!(message.contains("has it open for writing"), "{message}");
    }

    #[test]
    fn mounts_of_a_device_are_found_by_its_number() {
        let mounts = "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw\n\
            37 35 98:1 / /srv rw - ext4 /dev/sdb rw\n38 35 98:0 / /a\\040b rw - ext3 /dev/root rw\n";
        assert_eq!(mounts_of(mounts, "98:0"), ["mounted at /mnt2", "mounted at /a\\040b"]);
        assert!(mounts_of(mounts, "98:2").is_empty());
    }

    /// Detached when dropped.
    struct LoopDevice(PathBuf);

    impl LoopDevice {
        fn of(file: &Path) -> LoopDevice {
            let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output().unwrap();
            assert!(made.status.success(), "{made:?}");
            LoopDevice(String::from_utf8(made.stdout).unwrap().trim().into())
        }

        /// Claims it. Others claim it for a moment too, so this is tried for so long.
        fn claim(&self, long: Duration) -> fs::File {
            let exclusive = OFlags::EXCL.bits().cast_signed();
            let end = Instant::now() + long;
            loop {
                match fs::OpenOptions::new().read(true).custom_flags(exclusive).open(&self.0) {
                    Ok(claimed) => return claimed,
                    Err(error) => assert!(Instant::now() < end, "it cannot be claimed: {error}"),
                }
                std::thread::sleep(CLAIM_LOOK);
            }
        }
    }

    impl Drop for LoopDevice {
        fn drop(&mut self) {
            let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
        }
    }

    #[test]
    fn a_device_that_is_claimed_is_held_and_one_that_is_merely_open_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("d");
        fs::File::create(&file).unwrap().set_len(1 << 20).unwrap();
        assert_eq!(held_by(&file), None, "a file is no device");
        let made = LoopDevice::of(&file);
        let device = made.0.as_path();
        let open = fs::File::open(device).unwrap();
        // What others claim for a moment, and what is let go, may take long on a busy host.
        let long = Duration::from_secs(60);
        let merely_open = held_for(long, device);
        drop(open);
        let claimed = made.claim(long);
        let held = held_by(device);
        let let_go = std::thread::spawn(move || {
            std::thread::sleep(CLAIM_LASTS / 4);
            drop(claimed);
        });
        let released = held_for(long, device);
        let_go.join().unwrap();
        assert_eq!((merely_open, released), (None, None));
        assert!(held.is_some_and(|by| by.contains("claimed")));
    }

    #[test]
    fn a_device_that_a_qemu_reads_is_not_overwritten_and_one_that_is_only_watched_is() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("d");
        fs::File::create(&file).unwrap().set_len(1 << 20).unwrap();
        let made = LoopDevice::of(&file);
        for (name, is_refused) in [("watcher", false), ("qemu-system-x86", true), ("kvm", true)] {
            let program = dir.path().join(name);
            std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
            let reader = Stdio::from(fs::File::open(&made.0).unwrap());
            let mut process = Command::new(&program).arg("60").stdin(reader).spawn().unwrap();
            let found = check_overwritten(&made.0);
            process.kill().unwrap();
            process.wait().unwrap();
            assert_eq!(found.is_err(), is_refused, "{name}: {found:?}");
        }
    }

    #[test]
    fn a_child_that_does_not_run_its_program_yet_uses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        let _own = fs::File::create(&path).unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::SeqCst) {
                    Command::new("true").status().unwrap();
                }
            });
            let found = (0..200).map(|_| users(&path, &[])).find(|users| !users.is_empty());
            over.store(true, std::sync::atomic::Ordering::SeqCst);
            assert_eq!(found, None);
        });
    }
}
