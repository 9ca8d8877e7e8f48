//! Which disks have the kernel write into pages that it pinned when a read began, past the process's page tables.
//!
//! * A disk open with O_DIRECT.
//! * A device: a guest may send commands to a SCSI device (`device='lun'`, scsi-block, scsi-generic). They move their
//!   data by DMA into the guest's pages, whatever the cache mode is.
//! * A file on a file system that may go past the page cache by itself: FUSE with direct I/O, 9p, CIFS, Ceph, ZFS.
//! * A driver of QEMU's that is not known to copy.
//!
//! What is not known to copy counts as pinned. The price is a short stop of the guest in each round.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};

use linerate_guest::description::{Disk, GuestDescription};
use linerate_guest::procfs::proc_path;

/// File systems whose reads without O_DIRECT copy from the page cache: tmpfs, hugetlbfs, ext2 to ext4, XFS, btrfs,
/// F2FS, NFS.
const BUFFERED: [i64; 7] = [0x0102_1994, 0x9584_58f6, 0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x6969];

/// Drivers of QEMU's that copy what they read, by themselves or by a socket.
const COPYING: [&str; 13] = [
    "nbd", "rbd", "ssh", "http", "https", "ftp", "ftps", "nfs", "iscsi", "gluster", "null-co", "null-aio",
    "vvfat",
];

/// Whether any disk reads into pinned pages. A disk that is only read does so as well as one that is written.
pub(super) fn reads_into_pinned_pages(guest: &GuestDescription) -> bool {
    guest.disks.iter().any(pins) || on_other_file_systems(guest.process.pid)
}

/// As far as QEMU's own description shows.
fn pins(disk: &Disk) -> bool {
    let copies = disk.protocol == "file" || COPYING.contains(&disk.protocol.as_str());
    disk.direct || !copies || disk.path.starts_with("iser:")
}

/// Whether the process has a file open that is not on one of the file systems that copy, or a SCSI device. The
/// descriptors are checked, because names mean something else in another mount namespace. What cannot be checked counts
/// too.
fn on_other_file_systems(pid: i32) -> bool {
    let Ok(open) = fs::read_dir(proc_path(pid, "fd")) else { return true };
    open.flatten().any(|descriptor| {
        let path = descriptor.path();
        // The link's own permissions show how the file is open: a log, which is only written, reads into no page.
        let read = fs::symlink_metadata(&path).is_ok_and(|link| link.permissions().mode() & 0o400 != 0);
        let Some(about) = read.then(|| fs::metadata(&path).ok()).flatten() else { return false };
        let kind = about.file_type();
        if kind.is_char_device() {
            return fs::read_link(&path).is_ok_and(|link| link.starts_with("/dev") && is_generic_scsi(&link));
        }
        let copies = || rustix::fs::statfs(&path).is_ok_and(|about| BUFFERED.contains(&about.f_type));
        kind.is_file() && !copies()
    })
}

/// `/dev/sg0` and the like.
fn is_generic_scsi(path: &std::path::Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.strip_prefix("sg")
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::*;

    fn disk(protocol: &str, direct: bool) -> Disk {
        Disk {
            id: "d".into(),
            path: "/images/d.raw".into(),
            format: "raw".into(),
            protocol: protocol.into(),
            read_only: true,
            direct,
            aio: None,
            drop_cache: true,
            size: 0,
            flash: false,
        }
    }

    #[test]
    fn disks_that_are_not_known_to_copy_are_drained() {
        for copying in ["file", "nbd", "rbd", "iscsi", "https"] {
            assert!(!pins(&disk(copying, false)), "{copying}");
            assert!(pins(&disk(copying, true)), "{copying} with O_DIRECT");
        }
        // A LUN that is passed to the guest is a host device with any cache mode.
        for pinning in ["host_device", "host_cdrom", "io_uring", "of-next-year"] {
            assert!(pins(&disk(pinning, false)), "{pinning}");
        }
        assert!(pins(&Disk { path: "iser://target/1".into(), ..disk("iscsi", false) }));
    }

    #[test]
    fn scsi_devices_are_known_by_their_names() {
        for (path, generic) in [
            ("/dev/sg0", true),
            ("/dev/sg12", true),
            ("/dev/sgx", false),
            ("/dev/sg", false),
            ("/dev/sda", false),
        ] {
            assert_eq!(is_generic_scsi(path.as_ref()), generic, "{path}");
        }
    }

    #[test]
    fn a_file_on_a_file_system_that_may_pin_is_found_among_open_files() {
        let (piped, null) = (Stdio::piped, Stdio::null());
        let mut reader = Command::new("cat").stdin(piped()).stdout(piped()).stderr(null).spawn().unwrap();
        // Once it copies, its libraries have been opened and closed.
        reader.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        reader.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        assert!(!on_other_file_systems(reader.id() as i32), "it has only pipes and /dev/null open");
        reader.kill().unwrap();
        reader.wait().unwrap();
        // /proc is not a file system that is known to copy.
        let file = fs::File::open("/proc/version").unwrap();
        assert!(on_other_file_systems(std::process::id() as i32));
        drop(file);
        assert!(on_other_file_systems(-1), "a process that cannot be checked");
    }
}
