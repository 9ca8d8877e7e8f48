//! Explicit huge pages for guest RAM: a lab lets the machine give out more of them for as long as it is there.
//!
//! The limit of surplus pages is raised, not the pool: pages are taken from free memory when a guest needs them and go back
//! when it ends. So a run that was killed leaves a limit behind and no memory taken away, and [`crate::sweep()`] lowers the limit.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::error::io_error;
use crate::{LabError, lab, tool};

/// Bytes of one page in MiB: the size that every x86-64 machine has.
const PAGE_MB: u64 = 2;
const LIMIT: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages";

/// Says in the lab's directory by how many pages it raised the limit.
fn claim(lab: &Path) -> PathBuf {
    lab.join("huge-pages")
}

/// Lets the machine give out so many more, until [`give_back`].
pub(crate) fn claim_pages(lab: &Path, mb: u64) -> Result<(), LabError> {
    let pages = mb.div_ceil(PAGE_MB);
    let path = claim(lab);
    let _lock = lock()?;
    std::fs::write(&path, pages.to_string()).map_err(io_error("write", &path))?;
    change(|limit| limit.saturating_add(pages))
}

/// Takes back what a lab was given; one that was given nothing is fine.
pub(crate) fn give_back(lab: &Path) -> Result<(), LabError> {
    let path = claim(lab);
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(()) };
    let _lock = lock()?;
    change(|limit| limit.saturating_sub(text.trim().parse().unwrap_or(0)))?;
    std::fs::remove_file(&path).map_err(io_error("remove", &path))
}

/// A file system for RAM files in huge pages.
pub(crate) fn mount(directory: &Path) -> Result<(), LabError> {
    std::fs::create_dir_all(directory).map_err(io_error("create", directory))?;
    let options = format!("pagesize={PAGE_MB}M,mode=0700");
    tool::run("mount", &["-t", "hugetlbfs", "-o", &options, "linerate-lab", &directory.to_string_lossy()])
        .map(drop)
}

fn change(by: impl Fn(u64) -> u64) -> Result<(), LabError> {
    let path = Path::new(LIMIT);
    let text = std::fs::read_to_string(path).map_err(io_error("read", path))?;
    let limit = by(text.trim().parse().unwrap_or(0));
    std::fs::write(path, limit.to_string()).map_err(io_error("write", path))
}

// Two labs that read, add and write at once would lose one change.
fn lock() -> Result<File, LabError> {
    let path = lab::root().join("huge-pages.lock");
    let file = File::create(&path).map_err(io_error("create", &path))?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive)
        .map_err(|error| io_error("lock", &path)(error.into()))?;
    Ok(file)
}
