//! Images that are missing are made, empty and sparse.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::ImageError;
use crate::description::{CopiedDisk, ImageFormat};
use crate::registry::remove_file;
use crate::roots::{is_inside, is_of_devices};

/// qemu-img writes a few clusters.
const QEMU_IMG_WAIT: Duration = Duration::from_secs(30);

/// `listed` is called before there is anything to remove.
pub(super) fn make(
    path: &Path,
    disk: &CopiedDisk,
    roots: &[PathBuf],
    listed: &mut dyn FnMut() -> Result<(), ImageError>,
) -> Result<(), ImageError> {
    let parent = path.parent().and_then(|parent| fs::canonicalize(parent).ok());
    if !parent.is_some_and(|parent| is_inside(&parent, roots)) {
        return Err(ImageError::Folder(path.to_owned()));
    }
    // A file of that name would do for QEMU, and would be in memory.
    if path.parent().is_some_and(is_of_devices) {
        return Err(ImageError::NoDevice(path.to_owned()));
    }
    let failed = |source: io::Error| ImageError::File { path: path.to_owned(), source };
    // No other program's file, and no link that leads elsewhere, is taken for ours.
    let file = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
    if let Err(error) = listed() {
        remove_file(path).ok();
        return Err(error);
    }
    match disk.format {
        ImageFormat::Raw => file.set_len(disk.size).map_err(failed),
        ImageFormat::Qcow2 => Ok(()),
    }
}

/// The rest of making an image, which may take a while.
pub(super) fn format_new(disk: &CopiedDisk, path: Option<&PathBuf>) -> Result<(), ImageError> {
    match (disk.format, path) {
        (ImageFormat::Qcow2, Some(path)) => make_qcow2(path, disk.size),
        _ => Ok(()),
    }
}

fn make_qcow2(path: &Path, size: u64) -> Result<(), ImageError> {
    let failed = |output: String| ImageError::QemuImg { path: path.to_owned(), output };
    let mut command = Command::new("qemu-img");
    command.args(["create", "-q", "-f", "qcow2", "--"]).arg(path).arg(size.to_string());
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
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
