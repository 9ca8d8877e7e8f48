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
    Ok(rustix::fs::setxattr(path, ATTRIBUTE, &value, XattrFlags::empty())?)
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
        Ok(()) | Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::PERM) => {
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
