//! A machine's scratch folder. It is named as a lab is, so that `sweep` removes what a killed run left behind.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::io_error;
use crate::{LabError, lab};

/// First number of machines' folders; labs of the same process count from 0.
const FIRST: u32 = 10_000;

/// The folder of one machine; it is removed when this is dropped.
pub(super) struct Directory(PathBuf);

impl Directory {
    pub(super) fn create() -> Result<Directory, LabError> {
        let root = lab::root();
        std::fs::create_dir_all(&root).map_err(io_error("create", &root))?;
        let mut number = FIRST;
        loop {
            let path = root.join(format!("lr{}-{number}", std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Directory(path)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(io_error("create", &path)(error)),
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What stays is removed by `sweep`.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
