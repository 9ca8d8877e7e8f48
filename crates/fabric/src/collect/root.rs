//! Files below a root folder: `/` on a host, a fixture in a test. What cannot be read is `None`.

use std::fs;
use std::path::{Path, PathBuf};

/// No file that is read here is larger: sysfs files are a page, /proc/interrupts and /proc/cpuinfo grow with CPUs.
const BYTES_MAX: u64 = 8 << 20;

/// Where files are read.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Default for Root {
    fn default() -> Root {
        Root::at("/")
    }
}

impl Root {
    /// Everything is below this folder.
    pub fn at(folder: impl Into<PathBuf>) -> Root {
        Root(folder.into())
    }

    /// A path as the host knows it, such as `sys/class/net`, below the root.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join(path)
    }

    /// The text of a file without white space around it; `None` also for an empty one.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = self.bytes(path)?;
        let text = String::from_utf8_lossy(&bytes).trim().to_owned();
        (!text.is_empty()).then_some(text)
    }

    /// The bytes of a file.
    pub fn bytes(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        use std::io::Read;
        let mut bytes = Vec::new();
        fs::File::open(self.path(path)).ok()?.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// A number in a file, decimal.
    pub fn number<T: std::str::FromStr>(&self, path: impl AsRef<Path>) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// Names in a folder, sorted; numbers by value.
    pub fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_by_key(|name| (name.parse::<u64>().unwrap_or(u64::MAX), name.clone()));
        names
    }

    /// A file or folder is at this path below the root.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// Last part of what a symbolic link points to.
    pub fn link_name(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        target.file_name()?.to_str().map(str::to_owned)
    }

    /// Names of the folders on the real path, the last first: a device, the bridge above it, and so on.
    pub fn real_folders(&self, path: impl AsRef<Path>) -> Vec<String> {
        let real = fs::canonicalize(self.path(path)).unwrap_or_default();
        real.ancestors().filter_map(|folder| folder.file_name()?.to_str().map(str::to_owned)).collect()
    }
}

/// Numbers of a list as the kernel writes CPUs, such as `0-3,8`. What is no list gives nothing; at most 64 Ki numbers.
pub fn number_list(text: &str) -> Vec<u32> {
    const MOST: usize = 1 << 16;
    let mut numbers = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
            numbers.extend((first..=last).take(MOST.saturating_sub(numbers.len())));
        }
    }
    numbers
}

#[cfg(test)]
pub(crate) mod fixture {
    //! Folders of files for tests.

    use std::path::Path;

    use tempfile::TempDir;

    use super::Root;

    /// A root with these files; it goes away with the folder.
    pub(crate) fn files<P: AsRef<str>, T: AsRef<str>>(all: &[(P, T)]) -> (TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in all {
            let path = folder.path().join(path.as_ref());
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text.as_ref()).unwrap();
        }
        let root = Root::at(folder.path());
        (folder, root)
    }

    /// A symbolic link inside of the root.
    pub(crate) fn link(root: &Root, at: &str, to: &str) {
        let at = root.path(at);
        std::fs::create_dir_all(at.parent().unwrap_or(Path::new("/"))).unwrap();
        std::os::unix::fs::symlink(root.path(to), at).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(number_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(number_list(""), Vec::<u32>::new());
        assert_eq!(number_list("a-b,-"), Vec::<u32>::new());
        assert_eq!(number_list("0-4294967295,7").len(), 1 << 16);
    }

    #[test]
    fn what_is_not_there_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        assert_eq!(root.text("sys/nothing"), None);
        assert_eq!(root.names("sys"), Vec::<String>::new());
        assert_eq!(root.link_name("sys"), None);
        assert!(!root.exists("sys"));
    }
}
