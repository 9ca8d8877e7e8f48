//! What is mounted where, from the kernel's own list (proc(5), mountinfo).

use std::path::Path;

/// A mount, in the words that an operator knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// Type of the file system, such as `nfs4`.
    pub system: String,
    /// What is mounted, such as `nas:/export`.
    pub source: String,
}

/// The mount that a path without links is in.
pub(super) fn mount_of(mountinfo: &str, path: &Path) -> Option<Mount> {
    let mounts = mountinfo.lines().filter_map(parse).filter(|(point, _)| path.starts_with(point));
    // Of two at one point the later is seen.
    mounts.enumerate().max_by_key(|(index, (point, _))| (point.len(), *index)).map(|(_, (_, mount))| mount)
}

/// Where it is mounted, and what.
fn parse(line: &str) -> Option<(String, Mount)> {
    let (left, right) = line.split_once(" - ")?;
    let point = unescape(left.split(' ').nth(4)?);
    let mut right = right.split(' ');
    let (system, source) = (right.next()?.to_owned(), unescape(right.next()?));
    Some((point, Mount { system, source }))
}

/// Spaces and the like are written as three octal digits behind a backslash.
fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| byte == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) => {
                out.push(escaped);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
40 22 0:45 / /srv rw,relatime shared:7 - nfs4 nas:/export/vm rw,vers=4.2,addr=10.0.0.5
41 40 0:46 / /srv/with\\040space rw - nfs nas2:/b ro,nolock
42 22 0:47 /sub /srv2 rw master:3 propagate_from:2 - fuse.glusterfs g1:/vol rw
43 22 0:48 / /srv2 rw - tmpfs tmpfs rw
nonsense
";

    #[test]
    fn the_mount_of_a_path_is_the_deepest_and_of_those_the_last() {
        for (path, system, source) in [
            ("/srv/d.img", "nfs4", "nas:/export/vm"),
            ("/srv/with space/d.img", "nfs", "nas2:/b"),
            ("/srv2/d", "tmpfs", "tmpfs"),
            ("/srvx/d", "ext4", "/dev/vda1"),
        ] {
            let found = mount_of(MOUNTS, Path::new(path)).unwrap();
            assert_eq!((found.system.as_str(), found.source.as_str()), (system, source), "{path}");
        }
        assert_eq!(mount_of("nonsense\n - \n", Path::new("/")), None);
    }

    #[test]
    fn broken_escapes_stay_as_they_are() {
        for (text, plain) in [("a\\040b", "a b"), ("a\\04", "a\\04"), ("\\999", "\\999"), ("\\", "\\")] {
            assert_eq!(unescape(text), plain);
        }
    }
}
