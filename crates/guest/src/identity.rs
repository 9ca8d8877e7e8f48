//! Whether two hosts see the same storage, as far as it says so itself. QEMU locks its images, but a lock on a block device, or on a
//! network file system without locks, is not seen by other hosts; and a disk must never be copied onto itself.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// File systems whose files have the same number on every host (linux/magic.h; Lustre and OCFS2 from their own headers, GFS2
/// from gfs2_ondisk.h): NFS, Ceph, SMB, SMB2, 9p, FUSE (GlusterFS, and others), Lustre, OCFS2, GFS2.
const SHARED: &[u64] = &[
    0x6969,
    0x00c3_6400,
    0x517b,
    0xfe53_4d42,
    0xff53_4d42,
    0x0102_1997,
    0x6573_5546,
    0x0bd0_0bd0,
    0x7461_636f,
    0x0116_1970,
];

/// A device of which nothing says what it is.
const NAMELESS: &str = "device without a name";

/// What two identities say of their storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// It is one.
    Same,
    /// It is not.
    Different,
    /// Both are devices, and one has no name, or their names are of different kinds.
    Unknown,
}

/// Compares what [`of`] says of two images, on two hosts.
pub fn compare(there: Option<&str>, here: Option<&str>) -> Compared {
    let (Some(there), Some(here)) = (there, here) else { return Compared::Different };
    let is_file = |identity: &str| identity.starts_with("file system ");
    match there == here && there != NAMELESS {
        true => Compared::Same,
        false if is_file(there) || is_file(here) => Compared::Different,
        // A LUN has a name of multipath's on one host and of its maker's on another; those that are known to be alike are made alike.
        false if there == NAMELESS || here == NAMELESS => Compared::Unknown,
        false if there.contains("mpath-") != here.contains("mpath-") => Compared::Unknown,
        false => Compared::Different,
    }
}

/// What tells a file or device from all others on every host; none for a file on a host's own file system.
pub fn of(path: &Path) -> Option<String> {
    let facts = fs::metadata(path).ok()?;
    if facts.file_type().is_block_device() {
        let number = facts.rdev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let folder = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok();
        return folder.and_then(|folder| of_device(&folder)).or_else(|| Some(NAMELESS.to_owned()));
    }
    let system = rustix::fs::statfs(path).ok()?.f_type;
    // The kernel's numbers have 32 bits, whatever the type's width and sign.
    let system = u64::try_from(i128::from(system) & 0xffff_ffff).ok()?;
    SHARED.contains(&system).then(|| format!("file system {system:x}, file {}", facts.ino()))
}

/// By what is in the device's folder in sysfs: device mapper's name for it (LVM, multipath), or the name that a disk has of its maker.
fn of_device(folder: &Path) -> Option<String> {
    let text = |path: PathBuf| {
        let text = fs::read_to_string(path).ok()?.trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    let whole = |folder: &Path| {
        ["dm/uuid", "wwid", "device/wwid"].into_iter().find_map(|name| text(folder.join(name)))
    };
    match text(folder.join("partition")) {
        Some(number) => Some(format!("{} partition {number}", whole(folder.parent()?)?)),
        None => whole(folder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_known_by_its_makers_or_its_mappers_name() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("sda/device/wwid", "naa.5000c500a1b2c3d4\n");
        put("sda/sda1/partition", "1\n");
        put("nvme0n1/wwid", "eui.0025\n");
        put("dm-0/dm/uuid", "LVM-abc\n");
        put("loop0/size", "8\n");
        put("dm-1/dm/uuid", "\n");
        for (folder, known) in [
            ("sda", Some("naa.5000c500a1b2c3d4")),
            ("sda/sda1", Some("naa.5000c500a1b2c3d4 partition 1")),
            ("nvme0n1", Some("eui.0025")),
            ("dm-0", Some("LVM-abc")),
            ("loop0", None),
            ("dm-1", None),
        ] {
            assert_eq!(of_device(&dir.path().join(folder)).as_deref(), known, "{folder}");
        }
    }

    #[test]
    fn two_devices_are_different_only_if_both_say_who_they_are() {
        for (there, here, compared) in [
            (None, None, Compared::Different),
            (None, Some(NAMELESS), Compared::Different),
            (Some("naa.5"), Some("naa.5"), Compared::Same),
            (Some("naa.5"), Some("naa.6"), Compared::Different),
            (Some("LVM-a"), Some("naa.6"), Compared::Different),
            (Some("mpath-36"), Some("naa.6"), Compared::Unknown),
            (Some(NAMELESS), Some(NAMELESS), Compared::Unknown),
            (Some("naa.5"), Some(NAMELESS), Compared::Unknown),
            (Some("file system 6969, file 7"), Some("file system 6969, file 7"), Compared::Same),
            (Some("file system 6969, file 7"), Some(NAMELESS), Compared::Different),
        ] {
            assert_eq!(compare(there, here), compared, "{there:?} {here:?}");
        }
    }

    #[test]
    fn files_of_a_hosts_own_file_system_are_not_known_elsewhere() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = dir.path().join("a");
        fs::write(&file, "x").unwrap();
        assert_eq!(of(&file), None);
    }
}
