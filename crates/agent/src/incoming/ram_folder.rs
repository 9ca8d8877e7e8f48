//! The tmpfs that holds guests' RAM may be filled by something else while a guest arrives. That fails under other
//! names: a bad address for the thread that copies, a signal for QEMU, a broken pipe for a writer to QEMU.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use linerate_core::{Code, Fault};

/// Less than one huge page: nothing more can be written there.
const FULL_BYTES: u64 = 2 << 20;

/// The folder that the RAM of a session's guest is in, once that is known.
#[derive(Debug, Default)]
pub(super) struct RamFolder(OnceLock<PathBuf>);

impl RamFolder {
    /// Sets where it is: the folder of the first of these files.
    pub fn set(&self, file: Option<&Path>) {
        if let Some(folder) = file.and_then(Path::parent) {
            let _ = self.0.set(folder.to_owned());
        }
    }

    /// The fault, or what caused it if the folder is full.
    pub fn explain(&self, fault: Fault) -> Fault {
        match self.0.get().filter(|folder| is_full(folder)) {
            None => fault,
            Some(folder) => {
                let detail = format!(
                    "the folder for guests' RAM {} is full: enlarge that tmpfs (`mount -o remount,size=…`) or empty it \
                     ({})",
                    folder.display(),
                    fault.detail
                );
                Fault { code: Code::MemoryShort, detail, ..fault }
            }
        }
    }
}

fn is_full(folder: &Path) -> bool {
    rustix::fs::statvfs(folder)
        .is_ok_and(|facts| facts.f_blocks > 0 && facts.f_bavail.saturating_mul(facts.f_frsize) < FULL_BYTES)
}
