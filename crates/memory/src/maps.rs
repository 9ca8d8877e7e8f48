//! `/proc/PID/maps`: which file is mapped where.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// One line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MapEntry {
    pub(crate) start: u64,
    /// First address behind the mapping.
    pub(crate) end: u64,
    /// Byte of the file that `start` shows.
    pub(crate) offset: u64,
    /// Mapped shared, not private.
    pub(crate) shared: bool,
    /// The process may write it.
    pub(crate) writable: bool,
    /// Device number in `stat`'s encoding.
    pub(crate) device: u64,
    /// Inode number; 0 for memory without a file.
    pub(crate) inode: u64,
    /// Name as the kernel shows it, with ` (deleted)` taken off; empty for memory without a name.
    pub(crate) path: OsString,
}

/// Parses the whole file; `None` if a line is not what the kernel documents, since a line left out could hide guest
/// RAM.
pub(crate) fn parse(text: &[u8]) -> Option<Vec<MapEntry>> {
    text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<MapEntry> {
    let (range, rest) = field(line)?;
    let (permissions, rest) = field(rest)?;
    let (offset, rest) = field(rest)?;
    let (device, rest) = field(rest)?;
    let (inode, rest) = field(rest).unwrap_or((rest, &[]));
    let (start, end) = split_hex(range, '-')?;
    let (major, minor) = split_hex(device, ':')?;
    Some(MapEntry {
        start,
        end: Some(end).filter(|end| *end > start)?,
        offset: hex(offset)?,
        shared: permissions.get(3) == Some(&b's'),
        writable: permissions.get(1) == Some(&b'w'),
        device: libc::makedev(u32::try_from(major).ok()?, u32::try_from(minor).ok()?),
        inode: std::str::from_utf8(inode).ok()?.parse().ok()?,
        path: path(rest),
    })
}

/// The next field and what follows its separating space.
fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = line.iter().position(|byte| *byte == b' ')?;
    let (head, tail) = line.split_at_checked(space)?;
    Some((head, tail.get(1..)?))
}

fn hex(text: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok()
}

fn split_hex(text: &[u8], separator: char) -> Option<(u64, u64)> {
    let (left, right) = std::str::from_utf8(text).ok()?.split_once(separator)?;
    Some((hex(left.as_bytes())?, hex(right.as_bytes())?))
}

/// The kernel pads the name with spaces and writes a newline in it as `\012`.
fn path(padded: &[u8]) -> OsString {
    let start = padded.iter().position(|byte| *byte != b' ').unwrap_or(padded.len());
    let name = padded.get(start..).unwrap_or_default();
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((byte, tail)) = rest.split_first() {
        match rest.strip_prefix(br"\012") {
            Some(tail) => {
                out.push(b'\n');
                rest = tail;
            }
            None => {
                out.push(*byte);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_names_with_spaces_newlines_and_deleted_files() {
        let text = b"7f0000000000-7f0000200000 rw-s 00100000 00:1a 4711    /dev/shm/a b\\012c (deleted)\n\
            7ffd00000000-7ffd00001000 r-xp 00000000 00:00 0                          [vdso]\n\
            7ffe00000000-7ffe00001000 rw-p 00000000 00:00 0 \n";
        let entries = parse(text).unwrap();
        assert_eq!(entries.len(), 3);
        assert_eq!(entries[0].path, "/dev/shm/a b\nc");
        assert_eq!((entries[0].start, entries[0].end), (0x7f00_0000_0000, 0x7f00_0020_0000));
        assert_eq!((entries[0].offset, entries[0].inode, entries[0].shared), (0x10_0000, 4711, true));
        assert_eq!(entries[0].device, libc::makedev(0, 0x1a));
        assert_eq!(entries[1].path, "[vdso]");
        assert!(!entries[1].shared && entries[2].path.is_empty());
        assert_eq!(entries.iter().map(|entry| entry.writable).collect::<Vec<_>>(), [true, false, true]);
    }

    #[test]
    fn reads_its_own_process() {
        let entries = parse(&std::fs::read("/proc/self/maps").unwrap()).unwrap();
        assert!(entries.iter().any(|entry| entry.path == "[vdso]"));
    }

    #[test]
    fn refuses_what_the_kernel_never_writes() {
        for line in
            ["x", "1-2 rw-s 0 0:0", "2-1 rw-s 0 00:00 0 ", "zz-1 rw-s 0 00:00 0 ", "1-2 rw-s 0 00:00 -1 "]
        {
            assert_eq!(parse(line.as_bytes()), None, "{line}");
        }
    }
}
