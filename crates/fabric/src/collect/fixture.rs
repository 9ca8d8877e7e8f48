//! Folders of files for tests.

use std::path::Path;

use tempfile::TempDir;

use super::root::Root;

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
