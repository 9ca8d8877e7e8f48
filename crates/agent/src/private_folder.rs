//! Folders that no other user may list or change: guests' RAM, sockets, records and the journal.
//!
//! Another user who can make or replace such a folder could swap a guest's RAM file or read a session's token. So each
//! folder must belong to this process's user, and no other user may be able to replace a folder above it.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use linerate_folder::FolderRights;
use rustix::fs::{Mode, OFlags};

/// Read and write for group and others. Search alone (0711) shows no names: libvirt's QEMUs may need it for `ram_dir`.
const FOR_OTHERS: u32 = 0o066;

/// Why a folder is not used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("cannot make or open {}", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{} belongs to user {owner}, and the agent runs as user {own}: another user may have made it. Remove it, or name \
         another folder in the configuration", path.display()
    )]
    Owner { path: PathBuf, owner: u32, own: u32 },
    #[error("other users can read or change {} (mode {mode:04o}): chmod 700 {}", path.display(), path.display())]
    Readable { path: PathBuf, mode: u32 },
    #[error(
        "other users can replace {}, as they may change {} (mode {mode:04o}): name a folder below one that only root may \
         change", path.display(), above.display()
    )]
    Replaceable { path: PathBuf, above: PathBuf, mode: u32 },
}

/// Makes the folder with mode 0700 if it is not there, and refuses one that other users can list, change or replace.
pub(crate) fn private_folder(path: &Path) -> Result<(), FolderError> {
    let failed = |source| FolderError::Open { path: path.to_owned(), source };
    let whole = std::path::absolute(path).map_err(failed)?;
    std::fs::create_dir_all(whole.parent().unwrap_or(&whole)).map_err(failed)?;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&whole).map_err(failed)?;
    // The folder itself is no symbolic link, of which another user may be the owner.
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::PATH;
    let opened = rustix::fs::open(&whole, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
    let facts = rustix::fs::fstat(&opened).map_err(|error| failed(error.into()))?;
    let own = rustix::process::geteuid().as_raw();
    if facts.st_uid != own {
        return Err(FolderError::Owner { path: whole, owner: facts.st_uid, own });
    }
    let mode = facts.st_mode & 0o7777;
    if mode & FOR_OTHERS != 0 {
        return Err(FolderError::Readable { path: whole, mode });
    }
    let real = std::fs::canonicalize(&whole).map_err(failed)?;
    for above in real.ancestors().skip(1) {
        let facts = std::fs::metadata(above).map_err(failed)?;
        let rights = FolderRights::new(facts.uid(), facts.mode());
        if rights.others_replace() {
            let (path, above) = (whole.clone(), above.to_owned());
            return Err(FolderError::Replaceable { path, above, mode: rights.mode });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn set(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_new_folder_is_private_and_an_existing_one_must_be() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/ram");
        private_folder(&folder).unwrap();
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o7777, 0o700);
        for (mode, taken) in [(0o700, true), (0o711, true), (0o755, false), (0o770, false), (0o702, false)] {
            set(&folder, mode);
            let found = private_folder(&folder);
            assert_eq!(found.is_ok(), taken, "{mode:o}: {found:?}");
        }
    }

    #[test]
    fn a_folder_of_another_user_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("ram");
        std::fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
        std::os::unix::fs::chown(&folder, Some(12345), Some(12345)).unwrap();
        let refused = private_folder(&folder).unwrap_err();
        assert!(matches!(refused, FolderError::Owner { owner: 12345, .. }), "{refused}");
        // Its owner could put another folder in its place.
        let refused = private_folder(&folder.join("below")).unwrap_err();
        assert!(matches!(refused, FolderError::Replaceable { .. }), "{refused}");
    }

    #[test]
    fn a_folder_that_others_can_replace_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let above = dir.path().join("shared");
        private_folder(&above.join("ram")).unwrap();
        set(&above, 0o777);
        let refused = private_folder(&above.join("ram")).unwrap_err();
        assert!(matches!(refused, FolderError::Replaceable { .. }), "{refused}");
        // As /tmp and /dev/shm are: no user may remove what is another's.
        set(&above, 0o1777);
        private_folder(&above.join("ram")).unwrap();
    }

    #[test]
    fn a_symbolic_link_in_place_of_the_folder_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("ram"));
        private_folder(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert!(matches!(private_folder(&link), Err(FolderError::Open { .. })));
    }
}
