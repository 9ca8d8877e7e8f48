//! What a qcow2 image names: its backing file, and the file that has its data. QEMU opens those like files of the
//! command line, so they must lie where files of the command line may.
//!
//! Layout: docs/interop/qcow2.txt of QEMU (header, header extensions, external data file).

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::description::ImageFormat;
use crate::plain_file;
use crate::roots::is_allowed;

/// First bytes of an image.
pub(crate) const MAGIC: [u8; 4] = *b"QFI\xfb";
/// Bytes of a header of version 2; those of version 3 say their length.
const HEADER_BYTES: usize = 72;
const HEADER_BYTES_3: usize = 104;
/// More than any header and its extensions: they end with the first cluster, which has 2 MiB at the most; an honest one
/// has some hundred bytes.
const EXTENSIONS_BYTES_MAX: usize = 64 << 10;
/// Longest name of a backing file that QEMU takes, in bytes.
const NAME_BYTES_MAX: usize = 1023;
/// Incompatible feature: the data is in a file of its own.
const EXTERNAL_DATA: u64 = 1 << 2;
const END: u32 = 0;
const BACKING_FORMAT: u32 = 0xe279_2aca;
const DATA_FILE: u32 = 0x4441_5441;
/// Longest chain of images that is followed.
const CHAIN_MAX: usize = 64;

/// Why an image is not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// The header cannot be understood.
    #[error("has a qcow2 header that cannot be understood ({0})")]
    Header(&'static str),
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// A name that is not a file's, or not one that means the same everywhere.
    #[error("names {0:?} as its backing or data file, which is no plain file name")]
    Name(String),
    /// A file outside of the folders for guests, or none.
    #[error(
        "names {0} as its backing or data file, which is missing, or in none of the folders that guests may open files in (file_roots)"
    )]
    Outside(PathBuf),
    /// The backing file's format would be guessed.
    #[error(
        "names the backing file {0} without its format (raw or qcow2), which would be guessed from what is in it: `qemu-img rebase -u -F` sets it"
    )]
    Guessed(String),
    /// A chain without end.
    #[error("is the first of a chain of more than {CHAIN_MAX} images")]
    Endless,
}

/// What the header of an image says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Header {
    backing: Option<String>,
    backing_format: Option<String>,
    data: Option<String>,
}

/// Size of the disk in a qcow2 image; none if it is no such image.
pub(crate) fn disk_size(image: &mut File) -> io::Result<Option<u64>> {
    let mut head = Vec::new();
    image.take(HEADER_BYTES as u64).read_to_end(&mut head)?;
    Ok(number::<8>(&head, 24).map(u64::from_be_bytes).filter(|_| head.starts_with(&MAGIC)))
}

/// Follows what an image names, if it is a qcow2 image: everything must lie under the roots, in a format that is said.
pub fn check(image: &Path, roots: &[PathBuf]) -> Result<(), ReferenceError> {
    let mut image = image.to_owned();
    for _ in 0..CHAIN_MAX {
        let Some(header) = read(&image)? else { return Ok(()) };
        if let Some(data) = &header.data {
            // QEMU looks for a relative one in its own working directory.
            let path = plain(data).filter(|path| path.is_absolute());
            inside(path.ok_or_else(|| ReferenceError::Name(data.clone()))?, roots)?;
        }
        let Some(backing) = header.backing else { return Ok(()) };
        let path = plain(&backing).ok_or_else(|| ReferenceError::Name(backing.clone()))?;
        // A relative one begins at the image as it was named, not where a link leads.
        let path = inside(image.parent().unwrap_or(Path::new("/")).join(path), roots)?;
        match header.backing_format.as_deref().and_then(ImageFormat::from_name) {
            Some(ImageFormat::Raw) => return Ok(()),
            Some(ImageFormat::Qcow2) => image = path,
            None => return Err(ReferenceError::Guessed(backing)),
        }
    }
    Err(ReferenceError::Endless)
}

/// What an image names, as [`check`] follows it: each file here, and the name that the same file has for a QEMU that
/// opened the image as `there`.
pub(crate) fn named(image: &Path, there: &Path) -> Result<Vec<(PathBuf, PathBuf)>, ReferenceError> {
    let (mut image, mut there) = (image.to_owned(), there.to_owned());
    let mut found = Vec::new();
    for _ in 0..CHAIN_MAX {
        let Some(header) = read(&image)? else { return Ok(found) };
        found.extend(header.data.map(|data| (PathBuf::from(&data), PathBuf::from(data))));
        let Some(backing) = header.backing else { return Ok(found) };
        let beside = |image: &Path| image.parent().unwrap_or(Path::new("/")).join(&backing);
        (image, there) = (beside(&image), beside(&there));
        found.push((image.clone(), there.clone()));
        if header.backing_format.as_deref() == Some(ImageFormat::Raw.name()) {
            return Ok(found);
        }
    }
    Err(ReferenceError::Endless)
}

/// What QEMU opens because an image names it, and whether for writing: with the image its data file, and never a
/// backing file. It ends where nothing more can be read, which is refused elsewhere, with the reason.
pub(crate) fn opened_with(image: &Path, writable: bool) -> Vec<(PathBuf, bool)> {
    let (mut image, mut writable) = (image.to_owned(), writable);
    let mut found = Vec::new();
    for _ in 0..CHAIN_MAX {
        let Ok(Some(header)) = read(&image) else { return found };
        // QEMU looks for a relative one in its own working directory.
        let data = header.data.as_deref().and_then(plain);
        found.extend(data.map(|data| (Path::new("/").join(data), writable)));
        // What is no file is opened with QEMU's own rights.
        let Some(backing) = header.backing.as_deref().and_then(plain) else { return found };
        image = image.parent().unwrap_or(Path::new("/")).join(backing);
        writable = false;
        found.push((image.clone(), writable));
        if header.backing_format.as_deref() == Some(ImageFormat::Raw.name()) {
            return found;
        }
    }
    found
}

/// The file that has the data of an image, if that is not the image itself.
pub(crate) fn data_file(image: &Path) -> Option<PathBuf> {
    opened_with(image, true).into_iter().find(|(_, writable)| *writable).map(|(path, _)| path)
}

/// A file's name that QEMU takes for nothing else: `json:` and `nbd:` are protocols, as is any word with a colon before
/// the first slash.
fn plain(name: &str) -> Option<PathBuf> {
    let protocol = name.split('/').next().is_some_and(|first| first.contains(':'));
    let usable = !name.is_empty() && !name.contains('\0') && !protocol && !name.starts_with("/dev/fdset");
    usable.then(|| PathBuf::from(name))
}

fn inside(path: PathBuf, roots: &[PathBuf]) -> Result<PathBuf, ReferenceError> {
    let target = fs::canonicalize(&path).ok().filter(|target| is_allowed(&path, target, roots));
    let kind = target.and_then(|target| fs::metadata(target).ok()).map(|facts| facts.file_type());
    let usable =
        kind.is_some_and(|kind| kind.is_file() || std::os::unix::fs::FileTypeExt::is_block_device(&kind));
    if usable { Ok(path) } else { Err(ReferenceError::Outside(path)) }
}

/// None if it is no qcow2 image.
fn read(image: &Path) -> Result<Option<Header>, ReferenceError> {
    let unreadable = |error: io::Error| ReferenceError::Unreadable(error.to_string());
    let mut file = plain_file::open(image).map_err(unreadable)?;
    let mut head = Vec::new();
    file.by_ref().take(EXTENSIONS_BYTES_MAX as u64).read_to_end(&mut head).map_err(unreadable)?;
    if !head.starts_with(&MAGIC) {
        return Ok(None);
    }
    let mut header = parse(&head)?;
    let (offset, length) = (long(&head, 8)?, word(&head, 16)? as usize);
    if offset != 0 && length != 0 {
        if length > NAME_BYTES_MAX {
            return Err(ReferenceError::Header("the backing file's name is too long"));
        }
        let mut name = vec![0; length];
        file.read_exact_at(&mut name, offset).map_err(unreadable)?;
        header.backing = Some(text(&name)?);
    }
    Ok(Some(header))
}

/// All but the backing file's name, which may lie anywhere.
fn parse(head: &[u8]) -> Result<Header, ReferenceError> {
    let mut header = Header::default();
    let (mut at, features) = match word(head, 4)? {
        2 => (HEADER_BYTES, 0),
        3 => (word(head, 100)? as usize, long(head, 72)?),
        _ => return Err(ReferenceError::Header("its version is neither 2 nor 3")),
    };
    if at != HEADER_BYTES && at < HEADER_BYTES_3 || !at.is_multiple_of(8) {
        return Err(ReferenceError::Header("its length"));
    }
    // As QEMU reads them: up to the backing file's name, or to the end of the first cluster.
    let end = match (long(head, 8)?, word(head, 20)?) {
        (0, cluster_bits @ 9..=21) => 1 << cluster_bits,
        (0, _) => return Err(ReferenceError::Header("its cluster size")),
        (name, _) => name,
    };
    while (at as u64) < end {
        let (kind, length) = (word(head, at)?, word(head, at + 4)? as usize);
        let body = at.checked_add(8).and_then(|from| Some(from..from.checked_add(length)?));
        let body =
            body.and_then(|range| head.get(range)).ok_or(ReferenceError::Header("an extension's length"))?;
        match kind {
            END => break,
            BACKING_FORMAT => header.backing_format = Some(text(body)?),
            DATA_FILE => header.data = Some(text(body)?),
            _ => {}
        }
        at = (at + 8 + length).next_multiple_of(8);
    }
    if features & EXTERNAL_DATA == 0 {
        header.data = None;
    } else if header.data.is_none() {
        return Err(ReferenceError::Header("its data is in a file without a name"));
    }
    Ok(header)
}

fn text(bytes: &[u8]) -> Result<String, ReferenceError> {
    let text = std::str::from_utf8(bytes).map_err(|_| ReferenceError::Header("a name is no text"))?;
    Ok(text.to_owned())
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn word(bytes: &[u8], at: usize) -> Result<u32, ReferenceError> {
    number::<4>(bytes, at).map(u32::from_be_bytes).ok_or(ReferenceError::Header("it is cut off"))
}

fn long(bytes: &[u8], at: usize) -> Result<u64, ReferenceError> {
    number::<8>(bytes, at).map(u64::from_be_bytes).ok_or(ReferenceError::Header("it is cut off"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_holds_nobody_and_hides_nothing_that_an_image_names() {
        let dir = tempfile::tempdir().unwrap();
        let (image, fifo) = (dir.path().join("image"), dir.path().join("fifo"));
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
        let mut head = MAGIC.to_vec();
        head.extend(2_u32.to_be_bytes());
        head.extend(72_u64.to_be_bytes());
        head.extend([0, 0, 0, 4, 0, 0, 0, 16]);
        head.resize(HEADER_BYTES, 0);
        head.extend(b"fifo");
        fs::write(&image, head).unwrap();
        assert_eq!(opened_with(&image, true), [(fifo.clone(), false)]);
        assert_eq!(opened_with(&fifo, true), []);
        assert!(matches!(check(&fifo, &["/".into()]), Err(ReferenceError::Unreadable(_))));
    }
}
