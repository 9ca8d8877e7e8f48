//! Who can change what is in a folder, by its owner and mode. A path is trusted only as far as no other user can put
//! something else in place of what is on it: folders of guests, of libvirt's domains, and of keys.

const WRITE_FOR_OTHERS: u32 = 0o022;
const WRITE_FOR_EVERYBODY: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Owner and mode of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FolderRights {
    /// User id of its owner.
    pub owner: u32,
    /// `st_mode` without the kind of file.
    pub mode: u32,
}

impl FolderRights {
    /// `mode`: `st_mode`, with the kind of file or without.
    pub fn new(owner: u32, mode: u32) -> FolderRights {
        FolderRights { owner, mode: mode & 0o7777 }
    }

    /// Whether it belongs to root or to this process's user.
    pub fn is_ours(self) -> bool {
        is_ours(self.owner)
    }

    /// Whether its group or others may make files in it.
    pub fn others_write(self) -> bool {
        self.mode & WRITE_FOR_OTHERS != 0
    }

    /// Whether another user can replace what root or this process's user has in it.
    pub fn others_replace(self) -> bool {
        !self.is_ours() || self.is_replaced_by(WRITE_FOR_OTHERS)
    }

    /// Whether everybody can replace what is in it, whoever has it. Its owner and group may be able to.
    pub fn everybody_replaces(self) -> bool {
        self.is_replaced_by(WRITE_FOR_EVERYBODY)
    }

    /// The sticky bit keeps those who may write from replacing what is not theirs.
    fn is_replaced_by(self, writers: u32) -> bool {
        self.mode & writers != 0 && self.mode & STICKY == 0
    }
}

/// Whether a user is root or this process's.
pub fn is_ours(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_replace_what_is_in_a_folder_of_theirs_or_one_that_they_write_and_that_is_not_sticky() {
        let own = rustix::process::geteuid().as_raw();
        for owner in [0, own] {
            let replaced = |mode| FolderRights::new(owner, mode).others_replace();
            assert_eq!([0o700, 0o755, 0o1777, 0o1770, 0o40755].map(replaced), [false; 5]);
            assert_eq!([0o777, 0o770, 0o707, 0o702, 0o40720].map(replaced), [true; 5]);
        }
        assert_eq!([0o700, 0o1777].map(|mode| FolderRights::new(own + 1, mode).others_replace()), [true; 2]);
    }

    #[test]
    fn everybody_replaces_what_is_in_a_folder_that_all_write_and_that_is_not_sticky() {
        let replaced = |mode| FolderRights::new(0, mode).everybody_replaces();
        assert_eq!([0o770, 0o755, 0o1777, 0o777, 0o702].map(replaced), [false, false, false, true, true]);
    }
}
