use std::io;
use std::path::{Path, PathBuf};

/// A file that says that the agent itself is about to stop the guest, or has: the next agent lets such a guest run, and
/// no other.
///
/// It outlives the agent. Neither it nor the guest outlives the host.
#[derive(Debug)]
pub struct PauseMark {
    path: PathBuf,
    session: String,
}

impl PauseMark {
    /// The mark of a session, in the guest's run-time folder.
    pub fn new(folder: &Path, session: &str) -> PauseMark {
        PauseMark { path: folder.join("paused-by-agent"), session: session.to_owned() }
    }

    /// Whether an agent left it in this session.
    pub fn is_set(&self) -> bool {
        std::fs::read_to_string(&self.path).is_ok_and(|found| found == self.session)
    }

    pub(super) fn set(&self) -> io::Result<()> {
        std::fs::write(&self.path, &self.session)
    }

    pub(super) fn clear(&self) {
        let _ = std::fs::remove_file(&self.path);
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}
