//! A mark in a file that is not in its content: a lock on one byte, far behind the end, at a random place. A process
//! that opens the *same* file finds the lock, on any host, because that is what locks are for. It needs no free space
//! and no right to write. It ends with the process that holds it, and no cache holds a copy of it.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::RecheckError;
use super::open_files::{self, OpenFile};

/// Marks are at or behind this byte: no image is so large, and QEMU's own locks are on bytes 100 to 300.
const FIRST: i64 = 1 << 60;

/// The marks of one guest at the source, and the files that carry them, until they are dropped.
#[derive(Debug, Default)]
pub struct Marks {
    pub(super) marked: Vec<Marked>,
    /// Shared images that QEMU never flushes.
    pub(super) unflushed: Vec<Unflushed>,
}

/// A file with a mark. The lock is the open file's: it goes when it is closed.
#[derive(Debug)]
pub(super) struct Marked {
    pub file: File,
    pub disk: String,
    pub path: PathBuf,
}

/// A file or block device that the guest's QEMU writes and never flushes.
#[derive(Debug)]
pub(super) struct Unflushed {
    pub file: File,
    pub disk: String,
    pub path: PathBuf,
}

fn lock(kind: libc::c_int, first: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: first,
        l_len: 1,
        l_pid: 0,
    }
}

/// Marks a file; gives the place.
pub(super) fn put(file: &File) -> io::Result<i64> {
    let first = FIRST + random()?;
    // For reading: it may be put on a file that is open for reading, and does not keep others from doing the same.
    fcntl(file, FcntlArg::F_OFD_SETLK(&lock(libc::F_RDLCK, first)))?;
    Ok(first)
}

/// Whether another program has marked this file at this place. A lock of another length is not the mark.
pub(super) fn is_there(file: &File, first: i64) -> io::Result<bool> {
    if first < FIRST {
        return Ok(false);
    }
    let mut found = lock(libc::F_WRLCK, first);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
    Ok(found.l_type == libc::F_RDLCK as libc::c_short && found.l_start == first && found.l_len == 1)
}

fn random() -> io::Result<i64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(i64::from_le_bytes(bytes) & (FIRST - 1))
}

impl Marks {
    /// Whether each path still leads to the file that was marked, and QEMU still has that file open. Cheap: for the
    /// blackout.
    pub fn recheck(&self, pid: i32) -> Result<(), RecheckError> {
        let open = open_files::open_files(pid).map_err(|source| RecheckError::OpenFiles { pid, source })?;
        self.marked.iter().try_for_each(|marked| marked.recheck(pid, &open))
    }

    /// The guest has stopped: has the kernel write what QEMU left in the page cache of this host (`cache=unsafe`). The
    /// destination would read what was on the storage before, and this host would write over it later.
    pub fn flush(&self) -> Result<(), RecheckError> {
        self.unflushed.iter().try_for_each(|one| {
            one.file.sync_data().map_err(|source| RecheckError::NotFlushed {
                disk: one.disk.clone(),
                path: one.path.clone(),
                source,
            })
        })
    }
}

impl Marked {
    fn recheck(&self, pid: i32, open: &[OpenFile]) -> Result<(), RecheckError> {
        let (disk, path) = (self.disk.clone(), self.path.clone());
        let facts = match self.file.metadata() {
            Ok(facts) => facts,
            Err(source) => return Err(RecheckError::Lost { disk, path, source }),
        };
        if !open.iter().any(|file| file.is(&facts)) {
            return Err(RecheckError::Closed { disk, path });
        }
        let now = open_files::metadata_in(pid, &self.path).ok();
        if now.is_none_or(|now| (now.dev(), now.ino()) != (facts.dev(), facts.ino())) {
            return Err(RecheckError::Replaced { disk, path });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::time::{Duration, Instant};

    fn open(path: &Path) -> File {
        File::open(path).unwrap()
    }

    #[test]
    fn a_mark_is_found_in_the_same_file_under_any_name_and_in_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let [image, link, symlink, copy] = ["d", "hard", "soft", "copy"].map(|name| dir.path().join(name));
        std::fs::write(&image, "x").unwrap();
        std::fs::hard_link(&image, &link).unwrap();
        std::os::unix::fs::symlink(&image, &symlink).unwrap();
        std::fs::copy(&image, &copy).unwrap();
        let marked = open(&image);
        let first = put(&marked).unwrap();
        for same in [&image, &link, &symlink] {
            assert!(is_there(&open(same), first).unwrap(), "{}", same.display());
            assert!(!is_there(&open(same), first + 1).unwrap());
        }
        assert!(!is_there(&open(&copy), first).unwrap());
        drop(marked);
        // With its holder. A child that another test forks has the file too, until it runs its own program.
        let deadline = Instant::now() + Duration::from_secs(60);
        while is_there(&open(&image), first).unwrap() {
            assert!(Instant::now() < deadline, "it stays although its holder has gone");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn locks_of_others_are_not_taken_for_marks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        std::fs::write(&path, "x").unwrap();
        let other = File::options().read(true).write(true).open(&path).unwrap();
        // All of the file, for writing, as of a program that knows nothing of marks.
        let whole = libc::flock { l_len: 0, ..lock(libc::F_WRLCK, 0) };
        fcntl(&other, FcntlArg::F_OFD_SETLK(&whole)).unwrap();
        assert!(!is_there(&open(&path), FIRST + 5).unwrap());
        assert!(!is_there(&open(&path), 0).unwrap() && !is_there(&open(&path), -1).unwrap());
    }

    #[test]
    fn a_file_that_was_replaced_or_closed_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        std::fs::write(&path, "x").unwrap();
        let (file, qemus) = (open(&path), open(&path));
        let pid = i32::try_from(std::process::id()).unwrap();
        let marked = vec![Marked { file, disk: "vda".into(), path: path.clone() }];
        let marks = Marks { marked, ..Marks::default() };
        marks.recheck(pid).unwrap();
        std::fs::rename(&path, dir.path().join("aside")).unwrap();
        assert!(marks.recheck(pid).unwrap_err().to_string().contains("vda"), "it is gone");
        std::fs::write(&path, "x").unwrap();
        assert!(marks.recheck(pid).unwrap_err().to_string().contains("replaced"), "another is in its place");
        drop(qemus);
    }

    #[test]
    fn an_image_that_is_not_flushed_keeps_the_guest_at_the_source() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        std::fs::write(&path, "x").unwrap();
        let flush = |file: File| {
            let unflushed = vec![Unflushed { file, disk: "vda".into(), path: path.clone() }];
            Marks { unflushed, ..Marks::default() }.flush()
        };
        flush(open(&path)).unwrap();
        // No kernel flushes that one.
        let refused = flush(open(Path::new("/dev/null"))).unwrap_err();
        assert!(matches!(&refused, RecheckError::NotFlushed { disk, .. } if disk == "vda"), "{refused}");
    }
}
