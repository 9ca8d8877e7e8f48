//! Block devices over files: loop devices, with names in /dev as LVM gives them.

use std::path::{Path, PathBuf};

use crate::error::io_error;
use crate::files::{entries, unless_gone};
use crate::{LabError, tool};

/// Folder of the names, which agents of the lab let guests open devices in.
pub(crate) const FOLDER: &str = "/dev/linerate-lab";

/// A loop device; detached when dropped. A process that still has it open keeps it until it ends.
#[derive(Debug)]
pub struct BlockDevice {
    device: PathBuf,
    name: PathBuf,
}

impl BlockDevice {
    /// Of all of a file, under a name of this process.
    pub fn over(file: &Path, name: &str) -> Result<BlockDevice, LabError> {
        let folder = Path::new(FOLDER);
        std::fs::create_dir_all(folder).map_err(io_error("create", folder))?;
        let name = folder.join(format!("{}-{name}", std::process::id()));
        let shown = tool::run("losetup", &["--find", "--show", &file.to_string_lossy()])?;
        let device = BlockDevice { device: shown.trim().into(), name };
        std::os::unix::fs::symlink(&device.device, &device.name)
            .map_err(io_error("link", &device.name))
            .map(|()| device)
    }

    /// The name that is a link to it.
    pub fn name(&self) -> &Path {
        &self.name
    }

    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Lets processes of an agent's host see what the maker of a real device would have given it: a name of its own.
    /// `facts` is a folder with nothing but the file `wwid`.
    pub fn known_as(&self, facts: &Path, process: u32) -> Result<(), LabError> {
        let kernel = self.device.file_name().unwrap_or_default().to_string_lossy();
        let folder = format!("/sys/devices/virtual/block/{kernel}");
        let process = process.to_string();
        let words = ["--target", &process, "--mount", "mount", "--bind", &facts.to_string_lossy(), &folder];
        tool::run("nsenter", &words).map(drop)
    }
}

impl Drop for BlockDevice {
    fn drop(&mut self) {
        // Nothing can be done about what stays; `sweep` looks again.
        let _ = std::fs::remove_file(&self.name);
        let _ = tool::run("losetup", &["--detach", &self.device.to_string_lossy()]);
        let _ = std::fs::remove_dir(FOLDER);
    }
}

/// Detaches devices whose makers are dead.
pub(crate) fn sweep(is_alive: impl Fn(i32) -> bool) -> Result<(), LabError> {
    for name in entries(Path::new(FOLDER))? {
        let maker = name.split('-').next().and_then(|pid| pid.parse().ok());
        if maker.is_none_or(&is_alive) {
            continue;
        }
        let path = Path::new(FOLDER).join(name);
        if let Ok(device) = std::fs::read_link(&path) {
            // It may have been detached before its name went.
            let _ = tool::run("losetup", &["--detach", &device.to_string_lossy()]);
        }
        unless_gone(&path, std::fs::remove_file(&path).map_err(io_error("remove", &path)))?;
    }
    // Others may have names there.
    let _ = std::fs::remove_dir(FOLDER);
    Ok(())
}
