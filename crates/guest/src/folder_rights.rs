//! Who can change what is in a folder, by its owner and mode. The agent trusts a path only as far as no other user can
//! put something else in place of a folder on it.

const WRITE_FOR_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Owner and mode of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FolderRights {
    /// User id.
    pub owner: u32,
    /// `st_mode` without the kind of file.
    pub mode: u32,
}

impl FolderRights {
    /// `mode`: `st_mode`, with the kind of file or without.
    pub fn new(owner: u32, mode: u32) -> FolderRights {
        FolderRights { owner, mode: mode & 0o7777 }
    }

    pub fn is_ours(self) -> bool {
        is_ours(self.owner)
    }

    /// Whether its group or others may make files in it.
    pub fn others_write(self) -> bool {
        self.mode & WRITE_FOR_OTHERS != 0
    }

    /// Whether another user can replace a folder of root or of this process's user in it. The sticky bit keeps others
    /// from replacing what is not theirs.
    pub fn others_replace(self) -> bool {
        !self.is_ours() || (self.others_write() && self.mode & STICKY == 0)
    }
}

/// Whether a user is root or this process's.
pub fn is_ours(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}
