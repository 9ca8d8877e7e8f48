//! Images that a move left behind. When disks were copied, the image at the source stays: it is whole, opens without
//! complaint, and grows older from then on. So it gets a mark, an extended attribute of the file, which survives
//! everything that the file survives.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::XattrFlags;
use serde::{Deserialize, Serialize};

use crate::plain_file;

/// Name of the attribute.
pub const ATTRIBUTE: &str = "user.linerate.stale";
/// Longest mark that is read.
const BYTES_MAX: usize = 4096;

/// What the mark says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stale {
    /// The guest that left it, or that was being copied into it.
    pub guest: String,
    /// The host that has the guest's disk since, as it was named.
    pub to: String,
    /// When, seconds since 1970.
    pub unix_s: u64,
}

/// Marks an image. Block devices and some file systems have no such attributes: then it is an error.
pub fn mark(path: &Path, guest: &str, to: &str) -> io::Result<()> {
    let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs());
    let value = serde_json::to_vec(&Stale { guest: guest.into(), to: to.into(), unix_s })?;
    rustix::fs::setxattr(path, ATTRIBUTE, &value, XattrFlags::empty())?;
    sync(path)
}

/// A host that loses its power keeps the change.
fn sync(path: &Path) -> io::Result<()> {
    plain_file::open(path)?.sync_all()
}

/// The mark of an open image. One that cannot be read is a mark all the same.
pub fn read(file: &File) -> Option<Stale> {
    let mut value = vec![0; BYTES_MAX];
    let length = match rustix::fs::fgetxattr(file, ATTRIBUTE, &mut value[..]) {
        Ok(length) => length,
        Err(rustix::io::Errno::RANGE) => 0,
        Err(_) => return None,
    };
    let stale = value.get(..length).and_then(|value| serde_json::from_slice(value).ok());
    Some(stale.unwrap_or_else(|| Stale { guest: "?".into(), to: "?".into(), unix_s: 0 }))
}

/// The mark of the image at a path.
pub fn of(path: &Path) -> Option<Stale> {
    read(&plain_file::open(path).ok()?)
}

/// Removes the mark, if there is one: the image is a guest's again.
pub fn clear(path: &Path) -> io::Result<()> {
    match rustix::fs::removexattr(path, ATTRIBUTE) {
        Ok(()) => sync(path),
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::PERM) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::process::Command;

    /// A file system in a file, unmounted when dropped.
    struct Mounted(PathBuf);

    impl Mounted {
        fn new(file: &Path, place: &Path) -> Mounted {
            std::fs::create_dir(place).unwrap();
            let mounted = Command::new("mount").args(["-o", "loop"]).args([file, place]).status().unwrap();
            assert!(mounted.success());
            Mounted(place.to_owned())
        }
    }

    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg(&self.0).status();
        }
    }

    /// The guest runs elsewhere by then, or here.
    #[test]
    fn a_mark_is_as_it_was_when_a_host_has_lost_its_power() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let disk = path("disk");
        File::create(&disk).unwrap().set_len(16 << 20).unwrap();
        let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&disk).status().unwrap();
        assert!(made.success());
        let _host = Mounted::new(&disk, &path("host"));
        let image = path("host/d");
        std::fs::write(&image, "x").unwrap();
        File::open(&image).unwrap().sync_all().unwrap();
        // What the disk has at that moment.
        let after = |moment: &str| {
            let (copy, place) = (path(&format!("{moment}.disk")), path(moment));
            std::fs::copy(&disk, &copy).unwrap();
            let _later = Mounted::new(&copy, &place);
            of(&place.join("d"))
        };
        mark(&image, "web", "beta").unwrap();
        assert_eq!(after("marked").unwrap().guest, "web");
        clear(&image).unwrap();
        assert_eq!(after("cleared"), None);
    }

    #[test]
    fn a_mark_stays_until_it_is_cleared_and_a_broken_one_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        std::fs::write(&path, "x").unwrap();
        assert_eq!(of(&path), None);
        mark(&path, "web", "beta").unwrap();
        let moved = dir.path().join("e");
        std::fs::rename(&path, &moved).unwrap();
        let stale = of(&moved).unwrap();
        assert_eq!((stale.guest.as_str(), stale.to.as_str()), ("web", "beta"));
        rustix::fs::setxattr(&moved, ATTRIBUTE, b"junk", XattrFlags::empty()).unwrap();
        assert_eq!(of(&moved).unwrap().guest, "?");
        clear(&moved).unwrap();
        clear(&moved).unwrap();
        assert_eq!(of(&moved), None);
    }
}
