//! Explicit huge pages for guest RAM: a lab lets the machine give out more of them for as long as it is there.
//!
//! The limit of surplus pages is raised, not the pool: pages are taken from free memory when a guest needs them and go
//! back when it ends. So a run that was killed leaves a limit behind and no memory taken away, and [`crate::sweep()`]
//! lowers the limit.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::error::io_error;
use crate::{LabError, lab, tool};

/// Bytes of one page in MiB: the size that every x86-64 machine has.
const PAGE_MB: u64 = 2;
const LIMIT: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages";

/// Lets the machine give out so many more, until [`give_back`].
pub(crate) fn claim_pages(lab: &Path, mb: u64) -> Result<(), LabError> {
    Limit::of_machine().claim(lab, mb.div_ceil(PAGE_MB))
}

/// Takes back what a lab was given; one that was given nothing is fine.
pub(crate) fn give_back(lab: &Path) -> Result<(), LabError> {
    Limit::of_machine().give_back(lab)
}

/// A file system for RAM files in huge pages.
pub(crate) fn mount(directory: &Path) -> Result<(), LabError> {
    std::fs::create_dir_all(directory).map_err(io_error("create", directory))?;
    let options = format!("pagesize={PAGE_MB}M,mode=0700");
    tool::run("mount", &["-t", "hugetlbfs", "-o", &options, "linerate-lab", &directory.to_string_lossy()])
        .map(drop)
}

/// Says in the lab's directory by how many pages it raised the limit.
fn claim(lab: &Path) -> PathBuf {
    lab.join("huge-pages")
}

/// The limit, and the file whose lock keeps two labs that read, add and write at once from losing one change.
struct Limit {
    file: PathBuf,
    lock: PathBuf,
}

impl Limit {
    fn of_machine() -> Limit {
        Limit { file: LIMIT.into(), lock: lab::root().join("huge-pages.lock") }
    }

    fn claim(&self, lab: &Path, pages: u64) -> Result<(), LabError> {
        let path = claim(lab);
        let _lock = self.lock()?;
        std::fs::write(&path, pages.to_string()).map_err(io_error("write", &path))?;
        let changed = self.change(|limit| limit.saturating_add(pages));
        if changed.is_err() {
            // Pages that were not reserved are not returned.
            let _ = std::fs::remove_file(&path);
        }
        changed.map_err(|error| io_error("change", &self.file)(error))
    }

    fn give_back(&self, lab: &Path) -> Result<(), LabError> {
        let path = claim(lab);
        if !path.exists() {
            return Ok(());
        }
        let _lock = self.lock()?;
        let text = match std::fs::read_to_string(&path) {
            // Another sweep was faster.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            text => text.map_err(io_error("read", &path))?,
        };
        match self.change(|limit| limit.saturating_sub(text.trim().parse().unwrap_or(0))) {
            // A kernel without huge pages has no limit of them.
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(io_error("change", &self.file)(error));
            }
            _ => {}
        }
        std::fs::remove_file(&path).map_err(io_error("remove", &path))
    }

    fn change(&self, by: impl Fn(u64) -> u64) -> std::io::Result<()> {
        let text = std::fs::read_to_string(&self.file)?;
        std::fs::write(&self.file, by(text.trim().parse().unwrap_or(0)).to_string())
    }

    fn lock(&self) -> Result<File, LabError> {
        let file = File::create(&self.lock).map_err(io_error("create", &self.lock))?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)
            .map_err(|error| io_error("lock", &self.lock)(error.into()))?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // Tests say what they expect.

    use std::time::Duration;

    use super::*;

    /// A machine that gives out ten pages, and a lab.
    fn machine() -> (tempfile::TempDir, Limit) {
        let folder = tempfile::tempdir().unwrap();
        let limit = Limit { file: folder.path().join("limit"), lock: folder.path().join("lock") };
        std::fs::write(&limit.file, "10\n").unwrap();
        (folder, limit)
    }

    fn pages(limit: &Limit) -> String {
        std::fs::read_to_string(&limit.file).unwrap().trim().to_owned()
    }

    #[test]
    fn reserved_pages_are_returned_once() {
        let (folder, limit) = machine();
        limit.claim(folder.path(), 5).unwrap();
        assert_eq!(pages(&limit), "15");
        for _ in 0..2 {
            limit.give_back(folder.path()).unwrap();
            assert_eq!(pages(&limit), "10");
        }
    }

    #[test]
    fn pages_that_were_not_reserved_are_not_returned() {
        let (folder, limit) = machine();
        let nowhere = Limit { file: folder.path().join("no-such-file"), lock: limit.lock.clone() };
        nowhere.claim(folder.path(), 5).unwrap_err();
        assert!(!claim(folder.path()).exists());
        // Left by another kernel.
        std::fs::write(claim(folder.path()), "5").unwrap();
        nowhere.give_back(folder.path()).unwrap();
        assert!(!claim(folder.path()).exists());
    }

    #[test]
    fn of_two_sweeps_one_takes_it_back() {
        let (folder, limit) = machine();
        limit.claim(folder.path(), 5).unwrap();
        std::thread::scope(|scope| {
            let held = limit.lock().unwrap();
            let other = scope.spawn(|| limit.give_back(folder.path()));
            // It has looked at the claim, if it does that before it has the lock.
            std::thread::sleep(Duration::from_millis(300));
            limit.change(|pages| pages - 5).unwrap();
            std::fs::remove_file(claim(folder.path())).unwrap();
            drop(held);
            other.join().unwrap().unwrap();
        });
        assert_eq!(pages(&limit), "10");
    }
}
