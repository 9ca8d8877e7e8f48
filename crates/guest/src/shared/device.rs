//! Names of block devices that no other storage in the world has.
//!
//! LVM's UUIDs and those of partitions and file systems are copied with what they are written on: by a snapshot of a
//! LUN, or by `dd`. So they prove nothing alone. The maker's name of the disk below is not written on it: a device is
//! unique if all disks below it are.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Devices on devices on devices; more is a circle.
const DEPTH_MAX: usize = 16;
/// Kinds of names that makers give out only once (SCSI NAA, IEEE EUI-64, NVMe UUID). The kernel also makes names of
/// vendor, model and serial number (`t10.`, `nvme.`): machines of one kind may have the same ones.
const GIVEN_ONCE: [&str; 3] = ["naa.", "eui.", "uuid."];

/// Whether a maker's name is one that no other disk has.
pub(crate) fn is_unique(name: &str) -> bool {
    let number = GIVEN_ONCE.iter().find_map(|kind| name.strip_prefix(kind));
    number.is_some_and(|number| number.len() >= 16 && number.bytes().any(|byte| !matches!(byte, b'0' | b'-')))
}

/// The unique name of the device with this number.
pub(super) fn unique(number: u64) -> Option<String> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    unique_in(&fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?, 0)
}

fn text(path: PathBuf) -> Option<String> {
    let text = fs::read_to_string(path).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// By what is in the device's folder in sysfs.
fn unique_in(folder: &Path, depth: usize) -> Option<String> {
    if depth > DEPTH_MAX {
        return None;
    }
    if let Some(number) = text(folder.join("partition")) {
        let whole = unique_in(folder.parent()?, depth + 1)?;
        let (start, size) = (text(folder.join("start"))?, text(folder.join("size"))?);
        return Some(format!("{whole} partition {number} at {start}+{size}"));
    }
    if let Some(mapped) = text(folder.join("dm/uuid")) {
        return of_mapped(folder, &mapped, depth);
    }
    let made = ["wwid", "device/wwid"].into_iter().find_map(|name| text(folder.join(name)));
    made.filter(|name| is_unique(name)).or_else(|| rbd(folder))
}

/// Device mapper's own name for it, and the devices below it. Paths of one LUN have one name.
fn of_mapped(folder: &Path, mapped: &str, depth: usize) -> Option<String> {
    let below = fs::read_dir(folder.join("slaves")).ok()?.flatten();
    let below: Option<BTreeSet<String>> =
        below.map(|entry| unique_in(&fs::canonicalize(entry.path()).ok()?, depth + 1)).collect();
    let below: Vec<String> = below?.into_iter().collect();
    (!below.is_empty()).then(|| format!("{mapped} on {}", below.join(" and ")))
}

/// An image of Ceph's: cluster, pool, image and snapshot.
fn rbd(folder: &Path) -> Option<String> {
    let number = folder.file_name()?.to_str()?.strip_prefix("rbd")?;
    let device = folder.ancestors().find(|above| above.file_name().is_some_and(|name| name == number))?;
    let part = |name: &str| text(device.join(name));
    let (cluster, pool) = (part("cluster_fsid")?, part("pool_id")?);
    let (image, snapshot) = (part("image_id")?, part("current_snap")?);
    Some(format!("rbd {cluster}/{pool}/{image}@{snapshot}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const NAA: &str = "naa.5000c500a1b2c3d4";

    #[test]
    fn names_made_of_serial_numbers_and_empty_ones_are_not_unique() {
        for name in [NAA, "eui.0025388b91d0b6c1", "uuid.6f1d62f0-5d3b-4b2a-9a57-0a1b2c3d4e5f"] {
            assert!(is_unique(name), "{name}");
        }
        for name in [
            "",
            "naa.",
            "naa.0000000000000000",
            "naa.5",
            "t10.ATA     QEMU HARDDISK   QM00001",
            "nvme.1b36-x",
        ] {
            assert!(!is_unique(name), "{name}");
        }
    }

    #[test]
    fn a_mapped_device_is_unique_only_if_all_below_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let below = |device: &str, disk: &str| {
            fs::create_dir_all(dir.path().join(device).join("slaves")).unwrap();
            symlink(
                dir.path().join(disk),
                dir.path().join(device).join("slaves").join(disk.replace('/', "_")),
            )
            .unwrap();
        };
        put("sda/device/wwid", NAA);
        put("sda/sda1/partition", "1");
        put("sda/sda1/start", "2048");
        put("sda/sda1/size", "4096");
        put("sdb/device/wwid", "t10.QEMU");
        put("dm-0/dm/uuid", "LVM-abc");
        below("dm-0", "sda/sda1");
        put("dm-1/dm/uuid", "LVM-abc");
        below("dm-1", "sda");
        below("dm-1", "sdb");
        put("dm-2/dm/uuid", "LVM-abc");
        // In a circle.
        put("dm-3/dm/uuid", "LVM-abc");
        below("dm-3", "dm-3");
        put("loop0/size", "8");
        put("rbd/7/cluster_fsid", "c");
        for (name, value) in [("pool_id", "2"), ("image_id", "i"), ("current_snap", "-")] {
            put(&format!("rbd/7/{name}"), value);
        }
        put("rbd/7/block/rbd7/size", "8");
        let name = |folder: &str| unique_in(&dir.path().join(folder), 0);
        assert_eq!(name("sda").as_deref(), Some(NAA));
        assert_eq!(name("sda/sda1").unwrap(), format!("{NAA} partition 1 at 2048+4096"));
        assert_eq!(name("dm-0").unwrap(), format!("LVM-abc on {NAA} partition 1 at 2048+4096"));
        assert_eq!(name("rbd/7/block/rbd7").as_deref(), Some("rbd c/2/i@-"));
        for nameless in ["sdb", "dm-1", "dm-2", "dm-3", "loop0"] {
            assert_eq!(name(nameless), None, "{nameless}");
        }
    }
}
