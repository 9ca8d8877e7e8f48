//! Access of an unprivileged QEMU to the files of its guest, as long as it needs them.
//!
//! A file that QEMU's user cannot open gets an entry for that user in its POSIX access list. Owner, mode and all other
//! entries stay, so nobody loses access: not the source's QEMU while the destination prepares, and not another program.
//! What is to be put back is written to a file in `state_dir/access/` first, one for each guest, and is found there
//! after any crash.
//!
//! Where hosts share a file and the user's number, both QEMUs use one entry. An extended attribute beside it says that
//! Linerate made it. A destination that finds such an entry leaves it alone until its guest runs, and the source leaves
//! it with the guest.

mod acl;
pub mod needs;

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use linerate_lock::Mutex;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, XattrFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::qemu_user::{QemuUser, QemuUserError, closed_folder, write_private};
use crate::roots::is_allowed;
use acl::{Acl, READ, WRITE};

/// Prefix of the attribute that says that a user's entry is Linerate's; the user's number follows.
const ATTRIBUTE: &str = "user.linerate.access.";
/// Longest record read, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// Why QEMU cannot have a file.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error(transparent)]
    User(#[from] QemuUserError),
    #[error("what the QEMU of {guest} may open could not be written down")]
    Record {
        guest: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "the user {user} cannot be let in at {}, as which QEMU runs here (qemu_user): a file system without access lists? \
         Let the user open it by its owner or group (chown, chmod)", path.display()
    )]
    Grant {
        user: String,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "the user {user}, as which QEMU runs here (qemu_user), cannot pass through {folder} to {}: let others through \
         (chmod o+x), or put it elsewhere", path.display()
    )]
    Folder { user: String, path: PathBuf, folder: String },
    #[error(
        "the user {user}, as which QEMU runs here (qemu_user), cannot open {}: on a network's file system let the user open \
         it by its owner or group", path.display()
    )]
    Closed { user: String, path: PathBuf },
    #[error(
        "{}, which the guest's command line or an image of it names, is {}: that is in none of the folders that guests may \
         open files in (file_roots), so the user {user}, as which QEMU runs here (qemu_user), is not let in", path.display(),
        target.display()
    )]
    Outside { user: String, path: PathBuf, target: PathBuf },
}

/// A file that a guest's QEMU opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub path: PathBuf,
    pub writable: bool,
    /// An operator of this host names it, or the agent. What another host or an image names is let in to in
    /// `file_roots` only.
    pub anywhere: bool,
}

impl Wanted {
    /// Named by an operator of this host, or by the agent.
    pub fn new(path: impl Into<PathBuf>, writable: bool) -> Wanted {
        Wanted { path: path.into(), writable, anywhere: true }
    }

    /// Named by another host, or by an image, which a QEMU may have written.
    pub fn inside(path: impl Into<PathBuf>, writable: bool) -> Wanted {
        Wanted { path: path.into(), writable, anywhere: false }
    }
}

/// A file with an entry that a guest needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Granted {
    /// Where links lead.
    path: PathBuf,
    device: u64,
    inode: u64,
    /// When it was made, in nanoseconds since the epoch, where the file system says it: numbers of deleted files are
    /// used again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    made: Option<u64>,
    writable: bool,
    /// The entry goes with this guest. Otherwise it was there, made by Linerate for a guest of another host, which may
    /// come back to it.
    owned: bool,
    /// Permissions of an operator's entry for the user, which did not do. It is as before in the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<u16>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    guest: String,
    uid: u32,
    files: Vec<Granted>,
}

/// What all guests of this host have been let in to.
#[derive(Clone, Debug)]
pub struct Access {
    folder: PathBuf,
    /// Held while records and entries change.
    changing: Arc<Mutex<()>>,
}

impl Access {
    /// With a folder for records, which must survive a reboot, as entries do. It is made when it is needed.
    pub fn new(folder: PathBuf) -> Access {
        Access { folder, changing: Arc::default() }
    }

    /// Lets a user's QEMU open what its guest has, and makes sure that it can. `roots` are the folders in which files
    /// may lie that no operator of this host names. On `Err` nothing is changed.
    pub fn grant(
        &self,
        guest: &str,
        user: &QemuUser,
        wanted: &[Wanted],
        roots: &[PathBuf],
    ) -> Result<(), AccessError> {
        let _changing = self.changing.lock();
        let targets = targets(wanted);
        let files = whole(&targets);
        let closed = user.cannot_open(&files)?;
        if let Some(Target { wanted, path }) = outside(&targets, &closed, roots) {
            let (user, target) = (user.name.clone(), path.clone());
            return Err(AccessError::Outside { user, path: wanted.path.clone(), target });
        }
        if self.read(guest).is_some_and(|left| left.uid != user.uid) {
            self.release_now(guest);
        }
        let left = self.read(guest).filter(|left| left.uid == user.uid);
        let mut record = left.unwrap_or_else(|| Record::new(guest, user));
        for (path, writable) in &files {
            let needed = closed.contains(path);
            if let Some(granted) = self.needed(user, path, *writable, needed)? {
                record.files.retain(|known| known.path != granted.path);
                record.files.push(granted);
            }
        }
        if !record.files.is_empty() {
            self.write(&record).map_err(|source| AccessError::Record { guest: guest.to_owned(), source })?;
        }
        let granted = record.files.iter().try_for_each(|file| {
            let added = add(file, user.uid)
                .and_then(|added| added.ok_or_else(|| io::Error::other("another file has its name now")));
            added.map_err(|source| AccessError::Grant {
                user: user.name.clone(),
                path: file.path.clone(),
                source,
            })
        });
        let checked = granted.and_then(|()| can_open(user, &files));
        if checked.is_err() {
            self.release_now(guest);
        }
        checked
    }

    /// Whether the user can pass through these folders, to files of its own.
    pub fn passes<'a>(
        &self,
        user: &QemuUser,
        folders: impl IntoIterator<Item = &'a Path>,
    ) -> Result<(), AccessError> {
        let closed = folders.into_iter().find_map(|folder| {
            let path = folder.join("file");
            closed_folder(user, &path).map(|closed| (folder.to_owned(), closed))
        });
        closed.map_or(Ok(()), |(path, folder)| {
            Err(AccessError::Folder { user: user.name.clone(), path, folder })
        })
    }

    /// The guest runs here, or is about to: entries that were found go with it from now on. Those are made again that
    /// the host that it left has taken away, for a QEMU of its own that ended.
    pub fn own(&self, guest: &str) {
        let _changing = self.changing.lock();
        let Some(mut record) = self.read(guest) else { return };
        record.files.iter_mut().for_each(|file| file.owned = true);
        self.keep(&record);
        for file in &record.files {
            if let Err(error) = add(file, record.uid) {
                let path = file.path.display();
                tracing::warn!(guest, %path, %error, "its entry for QEMU's user could not be made again");
            }
        }
    }

    /// The guest runs on another host with the files that hosts share: their entries go with it. `stays` says which
    /// files it has not taken along. Devices' entries are this host's. What is not there may be a file that is mounted
    /// later.
    pub fn hand_over(&self, guest: &str, stays: &dyn Fn(&Path) -> bool) {
        let _changing = self.changing.lock();
        let Some(mut record) = self.read(guest) else { return };
        record.files.retain(|file| {
            let is_other = fs::metadata(&file.path).is_ok_and(|facts| !facts.is_file());
            is_other || stays(&file.path)
        });
        self.keep(&record);
    }

    /// Entries that another host or program has taken away since are made again: QEMU opens its disks anew when it
    /// takes them back. A file that is not there any more, such as a medium that was ejected, needs none.
    pub fn renew(&self, guest: &str) -> Result<(), AccessError> {
        let _changing = self.changing.lock();
        let Some(record) = self.read(guest) else { return Ok(()) };
        record.files.iter().try_for_each(|file| {
            let failed =
                |source| AccessError::Grant { user: record.uid.to_string(), path: file.path.clone(), source };
            add(file, record.uid).map(drop).map_err(failed)
        })
    }

    /// The guest's QEMU has ended, or never came to be: what it was let in to is as before.
    pub fn release(&self, guest: &str) {
        let _changing = self.changing.lock();
        self.release_now(guest);
    }

    /// Releases what guests have that are not here any more: after a reboot, or a crash.
    pub fn release_all_but(&self, is_here: impl Fn(&str) -> bool) {
        let _changing = self.changing.lock();
        for record in self.all().into_iter().filter(|record| !is_here(&record.guest)) {
            tracing::info!(guest = record.guest, "is not here any more: its files are closed to QEMU's user");
            self.release_now(&record.guest);
        }
    }

    fn release_now(&self, guest: &str) {
        let Some(mut record) = self.read(guest) else { return };
        let others: Vec<Record> = self.all().into_iter().filter(|other| other.guest != guest).collect();
        for file in record.files.iter().filter(|file| file.owned) {
            if others.iter().any(|other| other.uid == record.uid && other.has(file)) {
                continue;
            }
            if let Err(error) = remove(file, record.uid) {
                let (path, uid) = (file.path.display(), record.uid);
                tracing::warn!(%path, uid, %error, "its entry for QEMU's user could not be removed: setfacl -x does it");
            }
        }
        // The entries of a file system that is mounted later are still there: the next start of the agent removes them.
        record.files.retain(|file| file.owned && is_unmounted(file));
        if !record.files.is_empty() {
            tracing::warn!(
                guest,
                "a file system with its files is not mounted: they are closed to QEMU's user later"
            );
            return self.keep(&record);
        }
        if let Err(error) = fs::remove_file(self.path(guest)) {
            tracing::warn!(guest, %error, "the record of what its QEMU may open could not be removed");
        }
    }

    /// The file with what is known of its entry; none if the user needs none.
    fn needed(
        &self,
        user: &QemuUser,
        path: &Path,
        writable: bool,
        closed: bool,
    ) -> Result<Option<Granted>, AccessError> {
        let failed = |source| AccessError::Grant { user: user.name.clone(), path: path.to_owned(), source };
        let facts = fs::metadata(path).map_err(failed)?;
        let (device, inode) = (facts.dev(), facts.ino());
        let mut granted = Granted {
            path: path.to_owned(),
            device,
            inode,
            made: made(&facts),
            writable,
            owned: true,
            before: None,
        };
        let entry = Acl::read(path, facts.mode()).ok().and_then(|acl| acl.of_user(user.uid));
        let Some(permissions) = entry else { return Ok(closed.then_some(granted)) };
        let all = self.all();
        let mut known = all.iter().filter(|record| record.uid == user.uid && record.has(&granted));
        if let Some(known) = known.find_map(|record| record.find(&granted).filter(|file| file.owned)) {
            granted.before = known.before;
            return Ok(Some(granted));
        }
        if is_marked(path, user.uid) {
            granted.owned = false;
            return Ok(Some(granted));
        }
        // An entry of an operator's is none of ours, unless it does not do.
        granted.before = Some(permissions);
        Ok(closed.then_some(granted))
    }

    fn keep(&self, record: &Record) {
        if let Err(error) = self.write(record) {
            tracing::error!(guest = record.guest, %error, "what its QEMU may open could not be written down");
        }
    }

    fn write(&self, record: &Record) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        write_private(&self.path(&record.guest), &serde_json::to_vec_pretty(record)?)
    }

    fn read(&self, guest: &str) -> Option<Record> {
        read(&self.path(guest))
    }

    fn all(&self) -> Vec<Record> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let paths = entries
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == "json"));
        paths.filter_map(|path| read(&path)).collect()
    }

    fn path(&self, guest: &str) -> PathBuf {
        self.folder.join(format!("{guest}.json"))
    }
}

impl Record {
    fn new(guest: &str, user: &QemuUser) -> Record {
        Record { guest: guest.to_owned(), uid: user.uid, files: Vec::new() }
    }

    fn find(&self, file: &Granted) -> Option<&Granted> {
        self.files.iter().find(|other| (other.device, other.inode) == (file.device, file.inode))
    }

    fn has(&self, file: &Granted) -> bool {
        self.find(file).is_some()
    }
}

fn read(path: &Path) -> Option<Record> {
    let known = fs::metadata(path).is_ok_and(|facts| facts.len() <= BYTES_MAX);
    let record = serde_json::from_slice(&known.then(|| fs::read(path).ok()).flatten()?);
    record.inspect_err(|error| tracing::error!(path = %path.display(), %error, "is damaged: entries of its guest stay; getfacl shows them, setfacl -x removes them")).ok()
}

/// A wanted file with where its name leads. That is looked up once: what was checked is what gets an entry, whatever
/// has the name by then.
struct Target<'a> {
    wanted: &'a Wanted,
    path: PathBuf,
}

fn targets(wanted: &[Wanted]) -> Vec<Target<'_>> {
    let target = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    wanted.iter().map(|wanted| Target { wanted, path: target(&wanted.path) }).collect()
}

/// A file that the user would have to be let in to, and must not be.
fn outside<'a>(targets: &'a [Target<'a>], closed: &[PathBuf], roots: &[PathBuf]) -> Option<&'a Target<'a>> {
    let is_meant = |path: &Path| targets.iter().any(|one| one.wanted.anywhere && one.path == path);
    let is_fine = |one: &Target<'_>| is_meant(&one.path) || is_allowed(&one.wanted.path, &one.path, roots);
    targets.iter().find(|one| closed.contains(&one.path) && !is_fine(one))
}

/// Each file once.
fn whole(targets: &[Target<'_>]) -> Vec<(PathBuf, bool)> {
    let mut files = BTreeMap::<PathBuf, bool>::new();
    for Target { wanted, path } in targets {
        *files.entry(path.clone()).or_default() |= wanted.writable;
    }
    files.into_iter().collect()
}

fn can_open(user: &QemuUser, files: &[(PathBuf, bool)]) -> Result<(), AccessError> {
    let Some(path) = user.cannot_open(files)?.into_iter().next() else { return Ok(()) };
    let name = user.name.clone();
    Err(match closed_folder(user, &path) {
        Some(folder) => AccessError::Folder { user: name, path, folder },
        None => AccessError::Closed { user: name, path },
    })
}

/// Opens a path in which nothing is a link: one that was put there meanwhile leads to a file that was not meant.
pub(crate) fn open_exactly(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        // Linux before 5.6.
        Err(Errno::NOSYS) => rustix::fs::open(path, flags, Mode::empty()),
        opened => opened,
    }
}

/// Calls with a name of the very file, whatever has its path by now. None if it is another file.
fn with_file<T>(
    file: &Granted,
    change: impl FnOnce(&Path, &Metadata) -> io::Result<T>,
) -> io::Result<Option<T>> {
    let opened = match open_exactly(&file.path) {
        Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => return Ok(None),
        opened => opened?,
    };
    let name = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    let facts = fs::metadata(&name)?;
    let kind = facts.file_type();
    let usable = kind.is_file() || kind.is_block_device() || kind.is_char_device();
    // After a reboot a file system may have another number.
    let is_later = file.made.zip(made(&facts)).is_some_and(|(then, now)| then != now);
    if !usable || facts.ino() != file.inode || is_later {
        return Ok(None);
    }
    change(&name, &facts).map(Some)
}

/// None if the file is not there any more.
fn add(file: &Granted, uid: u32) -> io::Result<Option<()>> {
    with_file(file, |name, facts| {
        let mut acl = Acl::read(name, facts.mode())?;
        let before = acl.clone();
        acl.grant(uid, if file.writable { READ | WRITE } else { READ });
        if facts.is_file() && file.owned && file.before.is_none() {
            // Where it cannot be said, hosts that share the file leave the entry in place when the guest has ended.
            let _ = rustix::fs::setxattr(name, attribute(uid), b"", XattrFlags::empty());
        }
        if acl == before { Ok(()) } else { acl.write(name) }
    })
}

fn remove(file: &Granted, uid: u32) -> io::Result<()> {
    let removed = with_file(file, |name, facts| {
        let mut acl = Acl::read(name, facts.mode())?;
        if acl.of_user(uid).is_some() {
            acl.revoke(uid);
            if let Some(before) = file.before {
                acl.grant(uid, before);
            }
            acl.write(name)?;
        }
        let _ = rustix::fs::removexattr(name, attribute(uid));
        Ok(())
    });
    removed.map(drop)
}

/// Whether the file system that had the file is not there. A file that was deleted has a folder in it.
fn is_unmounted(file: &Granted) -> bool {
    let is_gone = matches!(open_exactly(&file.path), Err(Errno::NOENT));
    let above = file.path.parent().and_then(|folder| fs::metadata(folder).ok());
    is_gone && above.is_none_or(|folder| folder.dev() != file.device)
}

fn made(facts: &Metadata) -> Option<u64> {
    let since = facts.created().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_nanos()).ok()
}

fn attribute(uid: u32) -> String {
    format!("{ATTRIBUTE}{uid}")
}

fn is_marked(path: &Path, uid: u32) -> bool {
    rustix::fs::getxattr(path, attribute(uid), &mut [0; 1][..]).is_ok()
}

#[cfg(test)]
mod tests;
