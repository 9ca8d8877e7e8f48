//! The folder in which QEMUs of libvirt's domains have a QMP socket for the agent. Whoever listens there under a
//! domain's name is taken for its QEMU, and gets the guest's RAM. So nobody but the folder's owner and root may make
//! names in it, and its owner says whose QEMUs are meant.

use std::io;
use std::path::{Path, PathBuf};

use linerate_folder::{FolderRights, is_ours};
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::access::open_exactly;

/// Why the sockets in a folder are not used.
#[derive(Debug, thiserror::Error)]
pub enum DomainFolderError {
    #[error("cannot open {}, the folder of domains' sockets (domain_sockets)", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{} is no folder, or a symbolic link leads to it: name the folder itself in domain_sockets", path.display()
    )]
    NotAFolder { path: PathBuf },
    #[error(
        "other users can make files in {} (mode {mode:04o}), and answer for a domain's QEMU: run chmod 700, and chown to \
         the user that libvirt's QEMUs run as", path.display()
    )]
    Writable { path: PathBuf, mode: u32 },
    #[error(
        "other users can replace {}, as they may change {} (mode {mode:04o}): name a folder below one that only root may \
         change in domain_sockets", path.display(), above.display()
    )]
    Replaceable { path: PathBuf, above: PathBuf, mode: u32 },
}

/// A folder that was found to be safe.
#[derive(Debug)]
pub struct DomainFolder {
    owner: u32,
}

impl DomainFolder {
    /// Looks at the folder and all above it, from the root on: what was found safe stays so. No symbolic link is
    /// followed.
    pub fn open(path: &Path) -> Result<DomainFolder, DomainFolderError> {
        let replaceable = |above: &Path, rights: FolderRights| DomainFolderError::Replaceable {
            path: path.to_owned(),
            above: above.to_owned(),
            mode: rights.mode,
        };
        let folders: Vec<&Path> = path.ancestors().skip(1).collect();
        let mut parent = None;
        for &above in folders.iter().rev() {
            let rights = look_at(above)?;
            if rights.others_replace() {
                return Err(replaceable(above, rights));
            }
            parent = Some((above, rights));
        }
        let own = look_at(path)?;
        // Its owner may have made it.
        if let Some((above, rights)) = parent
            && !own.is_ours()
            && rights.others_write()
        {
            return Err(replaceable(above, rights));
        }
        if own.others_write() {
            return Err(DomainFolderError::Writable { path: path.to_owned(), mode: own.mode });
        }
        Ok(DomainFolder { owner: own.owner })
    }

    /// Whether a socket of this user may be a domain's: of the folder's owner, root and this process's user.
    pub fn trusts(&self, user: u32) -> bool {
        user == self.owner || is_ours(user)
    }
}

fn look_at(folder: &Path) -> Result<FolderRights, DomainFolderError> {
    let failed = |source: Errno| match source {
        Errno::LOOP | Errno::NOTDIR => DomainFolderError::NotAFolder { path: folder.to_owned() },
        other => DomainFolderError::Open { path: folder.to_owned(), source: other.into() },
    };
    let opened = open_exactly(folder).map_err(failed)?;
    let facts = rustix::fs::fstat(&opened).map_err(failed)?;
    if FileType::from_raw_mode(facts.st_mode) != FileType::Directory {
        return Err(DomainFolderError::NotAFolder { path: folder.to_owned() });
    }
    Ok(FolderRights::new(facts.st_uid, facts.st_mode))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    const ANOTHER: u32 = 12345;

    fn set(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn folder_of_one_user_is_taken_and_trusts_that_user_and_root() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("domains");
        std::fs::create_dir(&folder).unwrap();
        for mode in [0o700, 0o711, 0o755] {
            set(&folder, mode);
            let found = DomainFolder::open(&folder).unwrap();
            assert!(found.trusts(0) && !found.trusts(ANOTHER), "{mode:o}");
        }
        chown(&folder, Some(ANOTHER), None).unwrap();
        let found = DomainFolder::open(&folder).unwrap();
        assert!(found.trusts(0) && found.trusts(ANOTHER) && !found.trusts(ANOTHER + 1));
    }

    #[test]
    fn folder_in_which_others_make_files_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("domains");
        std::fs::create_dir(&folder).unwrap();
        for mode in [0o1733, 0o1777, 0o777, 0o730] {
            set(&folder, mode);
            let refused = DomainFolder::open(&folder).unwrap_err();
            assert!(matches!(refused, DomainFolderError::Writable { .. }), "{mode:o}: {refused}");
        }
    }

    #[test]
    fn folder_that_others_can_replace_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (above, folder) = (dir.path().join("above"), dir.path().join("above/domains"));
        std::fs::create_dir_all(&folder).unwrap();
        let replaceable =
            || matches!(DomainFolder::open(&folder), Err(DomainFolderError::Replaceable { .. }));
        set(&above, 0o777);
        assert!(replaceable(), "anybody can");
        set(&above, 0o1777);
        assert!(!replaceable(), "it is ours, and stays");
        chown(&folder, Some(ANOTHER), None).unwrap();
        assert!(replaceable(), "anybody may have made it");
        set(&above, 0o755);
        assert!(!replaceable(), "root gave it to that user");
        chown(&above, Some(ANOTHER), None).unwrap();
        assert!(replaceable(), "the owner of the folder above can");
    }

    #[test]
    fn symbolic_link_is_refused_also_above_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(path("real/domains")).unwrap();
        DomainFolder::open(&path("real/domains")).unwrap();
        symlink(path("real"), path("above")).unwrap();
        symlink(path("real/domains"), path("domains")).unwrap();
        std::fs::write(path("file"), "").unwrap();
        for name in ["above/domains", "domains", "file"] {
            let refused = DomainFolder::open(&path(name)).unwrap_err();
            assert!(matches!(refused, DomainFolderError::NotAFolder { .. }), "{name}: {refused}");
        }
        let missing = DomainFolder::open(&path("none")).unwrap_err();
        assert!(
            matches!(&missing, DomainFolderError::Open { source, .. } if source.kind() == io::ErrorKind::NotFound),
            "{missing}"
        );
    }
}
