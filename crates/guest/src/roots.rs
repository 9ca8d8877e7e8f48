//! Which files guests may open: those in the folders that the operator names.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Whether a path without links lies under one of the folders, which may be links themselves.
pub(crate) fn is_inside(target: &Path, roots: &[PathBuf]) -> bool {
    roots.iter().any(|root| {
        target.starts_with(root) || fs::canonicalize(root).is_ok_and(|root| target.starts_with(root))
    })
}

/// Whether guests may open what a name leads to, which is `target`.
pub(crate) fn is_allowed(name: &Path, target: &Path, roots: &[PathBuf]) -> bool {
    is_inside(target, roots) || device_name(name).is_some_and(|name| is_inside(&name, roots))
}

/// A device's name in the system's own folder of devices, without links on the way there. LVM's names,
/// and all of /dev/disk, are links to the likes of /dev/dm-0. Only the system makes names there, so an operator who
/// allows their folder allows them.
fn device_name(name: &Path) -> Option<PathBuf> {
    let folder = fs::canonicalize(name.parent()?).ok()?;
    let is_device = fs::metadata(name).ok()?.file_type().is_block_device();
    (is_of_devices(&folder) && is_device).then(|| folder.join(name.file_name().unwrap_or_default()))
}

/// Whether the folder is in the system's own file system of devices. What is mounted below /dev is not: anybody makes
/// links in /dev/shm.
pub(crate) fn is_of_devices(folder: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).ok().map(|facts| facts.dev());
    device(folder).is_some() && device(folder) == device(Path::new("/dev"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_to_devices_count_only_where_the_system_makes_them() {
        let name = |path: &Path| device_name(path);
        let folder = tempfile::tempdir().unwrap();
        let shared = tempfile::tempdir_in("/dev/shm").unwrap();
        for folder in [folder.path(), shared.path()] {
            let link = folder.join("disk");
            symlink("/dev/loop0", &link).unwrap();
            assert_eq!(name(&link), None, "{}", link.display());
            assert!(!is_allowed(&link, Path::new("/dev/loop0"), &[folder.to_owned()]));
        }
        assert_eq!(name(Path::new("/dev/null")), None, "no block device");
        assert!(is_of_devices(Path::new("/dev")) && !is_of_devices(shared.path()));
        // Where there is one, as nearly everywhere.
        if Path::new("/dev/loop0").exists() {
            let roundabout = folder.path().join("devices");
            symlink("/dev", &roundabout).unwrap();
            assert_eq!(name(&roundabout.join("loop0")), Some("/dev/loop0".into()));
        }
    }
}
