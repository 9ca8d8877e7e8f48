//! Images that are missing are made, empty and sparse.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::ImageError;
use crate::access::open_exactly;
use crate::description::{CopiedDisk, ImageFormat};
use crate::roots::{is_inside, is_of_devices};

/// qemu-img writes a few clusters.
const QEMU_IMG_WAIT: Duration = Duration::from_secs(30);

/// Makes the file, which is the image whatever has its name later. `listed` is called with its name without links,
/// before there is more to remove.
pub(super) fn make(
    path: &Path,
    disk: &CopiedDisk,
    roots: &[PathBuf],
    listed: &mut dyn FnMut(PathBuf) -> Result<(), ImageError>,
) -> Result<File, ImageError> {
    let parent = path.parent().and_then(|parent| fs::canonicalize(parent).ok());
    let (Some(parent), Some(name)) = (parent.filter(|parent| is_inside(parent, roots)), path.file_name())
    else {
        return Err(ImageError::Folder(path.to_owned()));
    };
    // A file of that name would do for QEMU, and would be in memory.
    if is_of_devices(&parent) {
        return Err(ImageError::NoDevice(path.to_owned()));
    }
    let failed = |source: io::Error| ImageError::File { path: path.to_owned(), source };
    // A link that is put into the path now leads nowhere: the folder that was looked at is opened once.
    let folder = open_exactly(&parent).map_err(|error| failed(error.into()))?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // No other program's file, and no link that leads elsewhere, is taken for ours.
    let file = rustix::fs::openat(&folder, name, flags, Mode::from_raw_mode(0o666));
    let file = File::from(file.map_err(|error| failed(error.into()))?);
    if let Err(error) = listed(parent.join(name)) {
        rustix::fs::unlinkat(&folder, name, AtFlags::empty()).ok();
        return Err(error);
    }
    match disk.format {
        ImageFormat::Raw => file.set_len(disk.size).map_err(failed)?,
        ImageFormat::Qcow2 => {}
    }
    Ok(file)
}

/// Removes what was made under this name without links. A folder that has become a link since is another one.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let removed =
        open_exactly(parent).and_then(|folder| rustix::fs::unlinkat(&folder, name, AtFlags::empty()));
    match removed {
        Err(Errno::NOENT) => Ok(()),
        removed => Ok(removed?),
    }
}

/// The rest of making an image, which may take a while.
pub(super) fn format_new(disk: &CopiedDisk, path: &Path, file: &File) -> Result<(), ImageError> {
    match disk.format {
        ImageFormat::Qcow2 => make_qcow2(path, file, disk.size),
        ImageFormat::Raw => Ok(()),
    }
}

fn make_qcow2(path: &Path, file: &File, size: u64) -> Result<(), ImageError> {
    let failed = |output: String| ImageError::QemuImg { path: path.to_owned(), output };
    // It is given the open file, and not the name, which may be a link to another by now.
    let file = file.try_clone().map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new("qemu-img");
    command.args(["create", "-q", "-f", "qcow2", "--", "/proc/self/fd/0"]).arg(size.to_string());
    let command = command.stdin(file).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    let end = Instant::now() + QEMU_IMG_WAIT;
    let status = loop {
        match child.try_wait().map_err(|error| failed(error.to_string()))? {
            Some(status) => break status,
            None if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed("it did not end in time".into()));
            }
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut output = String::new();
    let _ = child.stderr.take().map(|stderr| stderr.take(500).read_to_string(&mut output));
    Err(failed(output.trim().to_owned()))
}
