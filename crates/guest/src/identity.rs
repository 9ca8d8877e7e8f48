//! Whether two hosts see the same storage, as far as it says so itself. QEMU locks its images, but a lock on a block
//! device, or on a network file system without locks, is not seen by other hosts; and a disk must never be copied onto
//! itself.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// File systems that one host alone sees (linux/magic.h; XFS, ZFS and bcachefs from their own headers): ext2 to ext4,
/// XFS, Btrfs, ZFS, bcachefs, F2FS, tmpfs, ramfs, overlayfs. Every other may be one that hosts share, where a file has
/// the same number on each.
const LOCAL: &[u64] = &[
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x2fc1_2fc1,
    0xca45_1a4e,
    0xf2f5_2010,
    0x0102_1994,
    0x8584_58f6,
    0x794c_7630,
];

/// Whether one host alone sees file systems of this type.
pub(crate) fn is_local(magic: u64) -> bool {
    LOCAL.contains(&magic)
}

/// A device of which nothing says what it is.
const NAMELESS: &str = "device without a name";
/// What is said of a file begins so.
const FILE: &str = "file system ";

/// What two identities say of their storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    Same,
    Different,
    /// Both are devices, and one has no name, or their names are of different kinds; or both are files of one number,
    /// and of different file systems of which not both are local.
    Unknown,
}

/// File system and number of a file.
fn file(identity: &str) -> Option<(u64, &str)> {
    let (system, number) = identity.strip_prefix(FILE)?.split_once(", file ")?;
    Some((u64::from_str_radix(system, 16).ok()?, number))
}

/// Compares what [`of`] says of two images, on two hosts.
pub fn compare(there: Option<&str>, here: Option<&str>) -> Compared {
    let (Some(there), Some(here)) = (there, here) else { return Compared::Different };
    match (file(there), file(here)) {
        (Some(there), Some(here)) => compare_files(there, here),
        (None, None) if there == NAMELESS || here == NAMELESS => Compared::Unknown,
        (None, None) if there == here => Compared::Same,
        // A LUN has a name of multipath's on one host and of its maker's on another; those that are known to be alike
        // are made alike.
        (None, None) if there.contains("mpath-") != here.contains("mpath-") => Compared::Unknown,
        _ => Compared::Different,
    }
}

/// A server's own file system is local to it, and shared for its clients: the numbers of its files are the same for
/// both.
fn compare_files(there: (u64, &str), here: (u64, &str)) -> Compared {
    let both_local = LOCAL.contains(&there.0) && LOCAL.contains(&here.0);
    match there.1 == here.1 && !both_local {
        false => Compared::Different,
        true if there.0 == here.0 => Compared::Same,
        true => Compared::Unknown,
    }
}

/// What distinguishes a device from all others on every host, or a file from all others of its file system.
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
    Some(format!("{FILE}{system:x}, file {}", facts.ino()))
}

/// By what is in the device's folder in sysfs: device mapper's name for it (LVM, multipath), or the name that a disk
/// has of its maker.
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
            (Some("file system 6969, file 7"), Some("file system 6969, file 8"), Compared::Different),
            // A server and its client, and a file system that is not known.
            (Some("file system ef53, file 7"), Some("file system 6969, file 7"), Compared::Unknown),
            (Some("file system 19830326, file 7"), Some("file system 19830326, file 7"), Compared::Same),
            (Some("file system ef53, file 7"), Some("file system ef53, file 7"), Compared::Different),
        ] {
            assert_eq!(compare(there, here), compared, "{there:?} {here:?}");
        }
    }

    #[test]
    fn a_file_is_known_by_its_number_also_by_another_name() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let (file, link) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&file, "x").unwrap();
        fs::hard_link(&file, &link).unwrap();
        let identity = of(&file).unwrap();
        assert!(identity.starts_with("file system 1021994, file "), "{identity}");
        assert_eq!(of(&link), Some(identity.clone()));
        // No other host has this tmpfs: the same number elsewhere is another file.
        assert_eq!(compare(Some(&identity), Some(&identity)), Compared::Different);
    }
}
