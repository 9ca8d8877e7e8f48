//! At the destination: is what the guest will open here what it has open there?

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::open_files::OpenFile;
use super::source::{checksum, end_of, file_facts};
use super::{
    DeviceFacts, FileFacts, ImageFacts, RecheckError, Storage, StorageFacts, device, mark, open_files,
};
use crate::description::{GuestDescription, ImageFormat};
use crate::identity::is_local;
use crate::incoming_qemu::IncomingQemu;
use crate::{plain_file, procfs, qcow2, stale};

/// The type of every NFS version (linux/magic.h).
const NFS: u64 = 0x6969;

/// How it is known that both hosts use one storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The source's mark is in the file here.
    Mark,
    /// The same device of the same kernel.
    SameKernel,
    /// A name that no other device has.
    UniqueName,
    /// Another file with the same bytes, which the guest only reads.
    SameContent,
    /// A flash device's file: QEMU carries what is in it.
    CarriedByQemu,
    /// The operator says so.
    OperatorAsserted,
}

/// An image that may be opened here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proved {
    /// Name of the drive.
    pub disk: String,
    pub path: PathBuf,
    /// How it is known.
    pub by: Proof,
    identity: (bool, u64, u64),
    mark: Option<i64>,
}

/// Why a disk is not taken for shared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotShared {
    /// The copy that an earlier move left behind.
    #[error(
        "the disk {disk} is not shared: {} is what guest {} left here when it was copied to {}. It is older than the \
         guest's disk. Copy the disk back: --copy-disks {disk}, or --copy-storage all",
        path.display(),
        left.guest,
        left.to
    )]
    Stale { disk: String, path: PathBuf, left: stale::Stale },
    /// It is known to be another storage.
    #[error(
        "the disk {disk} is not shared: {} here ({here}) is not what {there} is at the source ({theirs}). \
         Copy the disk: --copy-disks {disk}, or --copy-storage all", path.display()
    )]
    Differs {
        disk: String,
        path: PathBuf,
        here: String,
        /// The image at the source.
        there: String,
        theirs: String,
    },
    /// It is not known.
    #[error(
        "it cannot be proved that the disk {disk} is shared: {} here ({here}) and {there} at the source \
         ({theirs}): {why}. Copy the disk (--copy-disks {disk}), or, if you are certain that both are one storage, assert it: \
         --shared-storage {disk}", path.display()
    )]
    Unproved {
        disk: String,
        path: PathBuf,
        here: String,
        /// The image at the source.
        there: String,
        theirs: String,
        /// What was looked for.
        why: String,
    },
}

/// Looks at every image that the incoming QEMU will open and that is not copied into. `Err` names all that are not
/// proved.
pub fn check(guest: &GuestDescription, incoming: &IncomingQemu) -> Result<Vec<Proved>, Vec<NotShared>> {
    let nothing = StorageFacts::default();
    let view = View {
        facts: guest.storage.as_ref().unwrap_or(&nothing),
        same_kernel: guest
            .storage
            .as_ref()
            .is_some_and(|facts| procfs::boot_id().is_ok_and(|boot| !boot.is_empty() && boot == facts.boot)),
        mounts: fs::read_to_string("/proc/self/mountinfo").unwrap_or_default(),
    };
    let (mut proved, mut refused) = (Vec::new(), Vec::new());
    for image in images(guest, incoming) {
        match view.prove(&image) {
            Ok(one) => proved.push(one),
            Err(error) => refused.push(*error),
        }
    }
    if refused.is_empty() { Ok(proved) } else { Err(refused) }
}

/// Whether an image here is certainly the one that the guest has open as `there`: a copy would destroy it.
pub(crate) fn is_same(guest: &GuestDescription, there: &str, here: &Path) -> bool {
    let images = guest.storage.iter().flat_map(|facts| &facts.images);
    let marks = images.filter(|image| image.path == there).filter_map(|image| match &image.storage {
        Storage::File(file) => file.mark,
        _ => None,
    });
    let file = plain_file::open(here).ok();
    marks
        .into_iter()
        .any(|first| file.as_ref().is_some_and(|file| mark::is_there(file, first).unwrap_or(false)))
}

/// Whether the images are still what was proved, and, once QEMU has opened them, that QEMU has those very files open.
/// Cheap: for the blackout. Marks are there as long as the source runs and has not given up.
pub fn recheck(proved: &[Proved], pid: Option<i32>) -> Result<(), RecheckError> {
    let list = |pid| open_files::open_files(pid).map_err(|source| RecheckError::OpenFiles { pid, source });
    let open = pid.map(list).transpose()?;
    proved.iter().try_for_each(|one| one.recheck(open.as_deref()))
}

impl Proved {
    /// `open`: the files that the incoming QEMU has open; none as long as it has opened nothing.
    fn recheck(&self, open: Option<&[OpenFile]>) -> Result<(), RecheckError> {
        let (disk, path) = (self.disk.clone(), self.path.clone());
        let (file, facts) = match plain_file::open(&path).and_then(|file| Ok((file.metadata()?, file))) {
            Ok((facts, file)) => (file, facts),
            Err(source) => return Err(RecheckError::Lost { disk, path, source }),
        };
        if identity_of(&facts) != self.identity {
            return Err(RecheckError::Replaced { disk, path });
        }
        if open.is_some_and(|open| !open.iter().any(|file| file.is(&facts))) {
            return Err(RecheckError::NotOpened { disk, path });
        }
        let marked = self.mark.map(|first| mark::is_there(&file, first));
        if !marked.is_none_or(|found| found.unwrap_or(false)) {
            return Err(RecheckError::Unmarked { disk, path });
        }
        Ok(())
    }
}

/// An image that will be opened here, and what it is called at the source.
struct Image {
    disk: String,
    here: PathBuf,
    there: PathBuf,
}

/// What is on the command line, and what those images name.
fn images(guest: &GuestDescription, incoming: &IncomingQemu) -> Vec<Image> {
    let mut images = Vec::new();
    for file in &incoming.files {
        let disk = guest.disks.iter().find(|disk| disk.path == file.source).map(|disk| disk.id.clone());
        // Kernels and the like are read once, at the start. A disk of the command line that is not open there is not
        // the guest's any more.
        let disk = disk.or_else(|| file.writable.then(|| file.source.clone()));
        let Some(disk) = disk.filter(|_| !guest.copied.iter().any(|copied| copied.path == file.source))
        else {
            continue;
        };
        let top = Image { disk: disk.clone(), here: file.path.clone(), there: file.source.clone().into() };
        // What is opened as a raw image may begin like any other.
        let below = match file.format {
            Some(ImageFormat::Raw) => Vec::new(),
            // One that cannot be followed was refused before.
            _ => qcow2::named(&file.path, Path::new(&file.source)).unwrap_or_default(),
        };
        let below = below.into_iter().map(|(here, there)| Image { disk: disk.clone(), here, there });
        images.extend(std::iter::once(top).chain(below));
    }
    images
}

/// Both hosts, as they are seen from here.
struct View<'a> {
    facts: &'a StorageFacts,
    same_kernel: bool,
    mounts: String,
}

/// How two storages compare.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Same(Proof),
    Different,
    Unknown(String),
}

impl View<'_> {
    fn prove(&self, image: &Image) -> Result<Proved, Box<NotShared>> {
        let (disk, path) = (image.disk.clone(), image.here.clone());
        let there = image.there.display().to_string();
        let theirs = self.facts.images.iter().find(|facts| Path::new(&facts.path) == image.there);
        let their_storage = theirs.map_or(&Storage::Unknown, |facts| &facts.storage);
        let unproved = |here: String, why: String| {
            let (disk, path) = (disk.clone(), path.clone());
            let (there, theirs) = (there.clone(), their_storage.to_string());
            Box::new(NotShared::Unproved { disk, path, here, there, theirs, why })
        };
        let opened = plain_file::open(&image.here).and_then(|file| Ok((file.metadata()?, file)));
        let (facts, file) = opened.map_err(|error| unproved("cannot be opened".into(), error.to_string()))?;
        let here = self.storage(&file, &facts, &image.here);
        let verdict = match theirs {
            Some(theirs) => self.compare(theirs, &here, &file),
            None => Verdict::Unknown("the source's QEMU does not have it open".into()),
        };
        let asserted_shared = self.facts.asserted_shared.contains(&image.disk);
        let read_only = theirs.is_some_and(|theirs| theirs.read_only);
        let flash = theirs.is_some_and(|theirs| theirs.flash);
        let left = stale::read(&file);
        let by = match (verdict, left) {
            (Verdict::Same(by), _) => by,
            _ if flash => Proof::CarriedByQemu,
            (_, Some(left)) => return Err(Box::new(NotShared::Stale { disk, path, left })),
            (Verdict::Different, _) if asserted_shared && read_only => Proof::OperatorAsserted,
            (Verdict::Different, _) => {
                let (here, theirs) = (here.to_string(), their_storage.to_string());
                return Err(Box::new(NotShared::Differs { disk, path, here, there, theirs }));
            }
            (Verdict::Unknown(_), _) if asserted_shared => Proof::OperatorAsserted,
            (Verdict::Unknown(why), _) => return Err(unproved(here.to_string(), why)),
        };
        let mark = match (by, their_storage) {
            (Proof::Mark, Storage::File(file)) => file.mark,
            _ => None,
        };
        Ok(Proved { disk, path, by, identity: identity_of(&facts), mark })
    }

    fn storage(&self, file: &File, facts: &fs::Metadata, path: &Path) -> Storage {
        if facts.file_type().is_block_device() {
            let number = facts.rdev();
            return Storage::Device(DeviceFacts { number, unique: device::unique(number) });
        }
        let named = fs::canonicalize(path).unwrap_or(path.to_owned());
        file_facts(file, facts, &named, &self.mounts, None)
    }

    fn compare(&self, theirs: &ImageFacts, here: &Storage, file: &File) -> Verdict {
        match (&theirs.storage, here) {
            (Storage::File(there), Storage::File(here)) => self.compare_files(theirs, there, here, file),
            (Storage::Device(there), Storage::Device(here)) => compare_devices(there, here, self.same_kernel),
            (Storage::Unknown, _) => Verdict::Unknown(problem_of(theirs)),
            _ => Verdict::Different,
        }
    }

    fn compare_files(
        &self,
        theirs: &ImageFacts,
        there: &FileFacts,
        here: &FileFacts,
        file: &File,
    ) -> Verdict {
        let marked = there.mark.map(|first| look_for_mark(file, here.magic, first));
        if matches!(marked, Some(Ok(true))) {
            return Verdict::Same(Proof::Mark);
        }
        let read =
            || end_of(file).ok().filter(|size| *size == theirs.size).and_then(|size| checksum(file, size));
        if theirs.read_only && theirs.checksum.is_some() && theirs.checksum == read() {
            return Verdict::Same(Proof::SameContent);
        }
        let one_number = (there.device, there.inode) == (here.device, here.inode);
        if is_local(there.magic) && is_local(here.magic) && !(self.same_kernel && one_number) {
            return Verdict::Different;
        }
        Verdict::Unknown(match marked {
            None => problem_of(theirs),
            Some(Ok(_)) => "the lock that the source put on its file is not seen on the file here".into(),
            Some(Err(error)) => format!("locks cannot be asked for here ({error})"),
        })
    }
}

/// An NFS client that has been promised that no other client writes (a delegation) keeps locks to itself. A file that
/// is opened for writing elsewhere takes the promise back, and the locks go to the server.
fn look_for_mark(file: &File, magic: u64, first: i64) -> std::io::Result<bool> {
    let found = mark::is_there(file, first);
    if magic != NFS || !matches!(found, Ok(false)) {
        return found;
    }
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    match OpenOptions::new().read(true).write(true).open(again) {
        Ok(file) => mark::is_there(&file, first),
        Err(_) => found,
    }
}

fn problem_of(theirs: &ImageFacts) -> String {
    theirs.problem.clone().unwrap_or_else(|| "the source reports nothing of it".into())
}

fn compare_devices(there: &DeviceFacts, here: &DeviceFacts, same_kernel: bool) -> Verdict {
    match (&there.unique, &here.unique) {
        _ if same_kernel && there.number == here.number => Verdict::Same(Proof::SameKernel),
        (Some(there), Some(here)) if there == here => Verdict::Same(Proof::UniqueName),
        (Some(_), Some(_)) => Verdict::Different,
        _ if same_kernel => Verdict::Different,
        _ => Verdict::Unknown("not both block devices have a name that no other device has".into()),
    }
}

fn identity_of(facts: &fs::Metadata) -> (bool, u64, u64) {
    open_files::identity(facts)
}
