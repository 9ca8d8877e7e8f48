//! The agent's own folders: keys, the journal, sockets and RAM of guests. No guest opens a file there, whatever
//! `file_roots` and grants allow: its host names the files, and a guest with the authority's key is any host.

use std::fs;
use std::path::{Path, PathBuf};

/// Folder in the agent's state that has images of guests.
const IMAGES: &str = "images";

/// A file of the agent's own that a guest would open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} leads to {}, which is among the agent's own files in {}: no guest opens those. Move the image to another folder \
     of file_roots", path.display(), target.display(), folder.display()
)]
pub struct OwnFile {
    pub path: PathBuf,
    /// Where the path leads.
    pub target: PathBuf,
    pub folder: PathBuf,
}

/// Folders, and single files, whose content is the agent's.
#[derive(Clone, Debug)]
pub struct OwnFolders {
    /// Its folder `images` is not among them.
    state: PathBuf,
    others: Vec<PathBuf>,
}

impl OwnFolders {
    pub fn new(state: PathBuf, others: Vec<PathBuf>) -> OwnFolders {
        OwnFolders { state, others }
    }

    /// Refuses the first of the files that lies in one of them.
    pub fn check<'a>(&self, files: impl IntoIterator<Item = &'a Path>) -> Result<(), OwnFile> {
        files.into_iter().try_for_each(|path| {
            let target = whole(path);
            let found = self.others.iter().find(|folder| target.starts_with(whole(folder)));
            let folder = found.or_else(|| self.is_state(&target).then_some(&self.state));
            folder.map_or(Ok(()), |folder| {
                Err(OwnFile { path: path.to_owned(), target: target.clone(), folder: folder.clone() })
            })
        })
    }

    fn is_state(&self, target: &Path) -> bool {
        let state = whole(&self.state);
        // The folder itself, and not what a link of that name leads to.
        let images = state.join(IMAGES);
        target.starts_with(&state) && (target == images || !target.starts_with(&images))
    }
}

/// Where a path leads. Its end may still have to be made.
fn whole(path: &Path) -> PathBuf {
    let known = |above: &Path| Some(fs::canonicalize(above).ok()?.join(path.strip_prefix(above).ok()?));
    fs::canonicalize(path)
        .ok()
        .or_else(|| path.ancestors().skip(1).find_map(known))
        .unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn no_file_of_the_agents_own_is_opened_under_any_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let folders = ["state/authority", "state/images", "identity", "run", "ram", "sockets", "srv"];
        for folder in folders {
            fs::create_dir_all(path(folder)).unwrap();
            fs::write(path(folder).join("file"), "x").unwrap();
        }
        fs::write(path("state/journal.redb"), "x").unwrap();
        symlink(path("state"), path("srv/link")).unwrap();
        symlink(path("identity"), path("state/images/out")).unwrap();
        let own = OwnFolders::new(path("state"), ["identity", "run", "ram", "sockets"].map(path).to_vec());
        let refused = |name: &str| own.check([path("srv/file").as_path(), &path(name)]).unwrap_err();
        for name in [
            "state/authority/file",
            "state/journal.redb",
            "state/new/made.img",
            "identity/file",
            "run/file",
            "ram/file",
            "sockets/new.img",
            "srv/link/authority/file",
            "srv/link/new.img",
            "state/images/out/file",
            "state",
            "state/images",
        ] {
            assert_eq!(refused(name).path, path(name));
        }
        assert!(refused("srv/link/journal.redb").to_string().contains("state/journal.redb"));
        for name in ["srv/file", "srv/new.img", "state/images/file", "state/images/new.img", "statement/x"] {
            own.check([path(name).as_path()]).unwrap();
        }
    }
}
