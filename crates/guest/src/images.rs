//! Images at the destination that copied disks go into. One that is not there is made, empty and sparse. One that is
//! there must hold a disk of the same size in the same format, and is overwritten. What was made is listed in the
//! guest's folder. It is removed if the guest does not come, if need be by the next start of an agent that died.

mod error;
mod make;

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};

use crate::description::{CopiedDisk, GuestDescription, ImageFormat};
use crate::identity::{self, Compared};
use crate::incoming_qemu::IncomingQemu;
use crate::migrate::Export;
use crate::qcow2;
use crate::registry::remove_file;
use crate::roots::is_allowed;
use crate::{in_use, plain_file, shared, stale};
use linerate_lock::Mutex;

use make::{format_new, make, remove};

pub use error::ImageError;

/// Name of the list.
const LIST: &str = "images.json";
/// Longest list read, in bytes.
const LIST_BYTES_MAX: u64 = 1 << 20;
/// Disks are counted in these.
const SECTOR: u64 = 512;

/// What an image is, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Storage {
    /// File system and number.
    File(u64, u64),
    /// Number of the device.
    Device(u64),
}

impl Storage {
    fn of(facts: &fs::Metadata) -> Storage {
        match facts.file_type().is_block_device() {
            true => Storage::Device(facts.rdev()),
            false => Storage::File(facts.dev(), facts.ino()),
        }
    }
}

/// The images that guests which are arriving copy into. QEMU's own locks do not do: an image that is offered over NBD
/// may be offered by another QEMU too.
#[derive(Clone, Debug, Default)]
pub struct Claims(Arc<Mutex<HashSet<Storage>>>);

impl Claims {
    fn lock(&self) -> MutexGuard<'_, HashSet<Storage>> {
        self.0.lock()
    }
}

/// Images of one guest, and the claim to them until it is dropped: to be kept until the guest runs, or its images are
/// discarded.
#[derive(Debug)]
pub struct Prepared {
    /// In the order of the guest's disks.
    pub exports: Vec<Export>,
    /// Devices among them, held so that nothing else takes them for its own meanwhile: no mount, volume group or RAID.
    held: Vec<File>,
    /// Those that were made for it, by their names without links.
    made: Vec<PathBuf>,
    /// Where they are listed.
    folder: PathBuf,
    claims: Claims,
    claimed: Vec<Storage>,
}

impl Prepared {
    /// The guest does not come: removes what was made for it, and the list of it too. Otherwise the list would remove
    /// it again, when another guest may have made an image of that name. Its process must have ended.
    pub fn discard(&self) {
        discard(&self.made);
        keep(&self.folder);
    }

    /// Before the first byte: from now on an image that was here holds neither its old disk nor all of the new one.
    pub fn are_overwritten(&self, guest: &str, by: &str) {
        for export in &self.exports {
            if let Err(error) = stale::mark(&export.path, guest, by) {
                tracing::debug!(path = %export.path.display(), %error, "an image that is overwritten cannot be marked");
            }
        }
    }

    /// The guest runs with them.
    pub fn are_the_guests(&self) {
        for export in &self.exports {
            if let Err(error) = stale::clear(&export.path) {
                tracing::warn!(path = %export.path.display(), %error, "an image's mark as stale could not be removed");
            }
        }
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        let mut all = self.claims.lock();
        all.retain(|one| !self.claimed.contains(one));
    }
}

/// Makes what is missing, looks at what is there, and claims both. Nothing that was there is changed, and on `Err`
/// nothing that was made is left.
pub fn prepare(
    guest: &GuestDescription,
    incoming: &IncomingQemu,
    roots: &[PathBuf],
    folder: &Path,
    claims: &Claims,
) -> Result<Prepared, ImageError> {
    let mut prepared = Prepared {
        exports: Vec::new(),
        held: Vec::new(),
        made: Vec::new(),
        folder: folder.to_owned(),
        claims: claims.clone(),
        claimed: Vec::new(),
    };
    for disk in &guest.copied {
        // While no other thread looks: what one guest makes and removes again must not be found by another in between.
        let mut all = claims.lock();
        let done = prepare_one(guest, disk, incoming, roots, folder, &mut prepared.made);
        let done = done.and_then(|(export, new)| {
            if export.is_device {
                prepared.held.push(hold(&export.path)?);
            }
            let facts = new.as_ref().map_or_else(|| fs::metadata(&export.path), File::metadata);
            let facts = facts.map_err(|source| ImageError::File { path: export.path.clone(), source })?;
            Ok((Storage::of(&facts), export, new))
        });
        match done {
            Ok((storage, export, new)) if all.insert(storage) => {
                prepared.claimed.push(storage);
                drop(all);
                // After the claim no other thread looks at it: others need not wait for qemu-img.
                if let Some(Err(error)) = new.map(|file| format_new(disk, &export.path, &file)) {
                    prepared.discard();
                    return Err(error);
                }
                prepared.exports.push(export);
            }
            done => {
                prepared.discard();
                drop(all);
                return Err(
                    done.map_or_else(|error| error, |(_, export, _)| ImageError::Claimed(export.path))
                );
            }
        }
    }
    Ok(prepared)
}

/// With the file, if it is new.
fn prepare_one(
    guest: &GuestDescription,
    disk: &CopiedDisk,
    incoming: &IncomingQemu,
    roots: &[PathBuf],
    folder: &Path,
    made: &mut Vec<PathBuf>,
) -> Result<(Export, Option<File>), ImageError> {
    let needed = incoming.files.iter().find(|file| file.source == disk.path && file.writable);
    let Some(needed) = needed else {
        return Err(ImageError::Unknown { disk: disk.id.clone(), path: disk.path.clone() });
    };
    let path = needed.path.clone();
    if needed.format != Some(disk.format) {
        let (disk, copied) = (disk.id.clone(), disk.format);
        return Err(ImageError::OpenedAs { disk, path, copied, opened: needed.format });
    }
    if disk.size == 0 || !disk.size.is_multiple_of(SECTOR) || i64::try_from(disk.size).is_err() {
        return Err(ImageError::Size { disk: disk.id.clone(), size: disk.size });
    }
    let failed = |source: io::Error| ImageError::File { path: path.clone(), source };
    let (is_device, new) = match fs::metadata(&path) {
        Ok(facts) => {
            check(&path, &facts, identity::of(&path).as_deref(), disk, roots)?;
            if shared::is_same(guest, &disk.path, &path) {
                return Err(ImageError::Same(path));
            }
            in_use::check_overwritten(&path)?;
            (facts.file_type().is_block_device(), None)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let file = make(&path, disk, roots, &mut |path| {
                made.push(path);
                keep_list(folder, made)
            })?;
            (false, Some(file))
        }
        Err(error) => return Err(failed(error)),
    };
    let direct = guest.disks.iter().any(|other| other.path == disk.path && other.direct);
    Ok((Export { path, format: disk.format, is_device, direct }, new))
}

/// Takes a block device for this process alone, as mounts do. Those that ask for no such thing, QEMU among them, may
/// open it all the same.
fn hold(device: &Path) -> Result<File, ImageError> {
    let exclusive = rustix::fs::OFlags::EXCL.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(exclusive).open(device).map_err(|source| {
        let path = device.to_owned();
        match source.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
            Some(rustix::io::Errno::BUSY) => ImageError::Held(path),
            _ => ImageError::File { path, source },
        }
    })
}

/// What is there, with this identity, must hold such a disk, and not be the very one that is copied.
fn check(
    path: &Path,
    facts: &fs::Metadata,
    identity: Option<&str>,
    disk: &CopiedDisk,
    roots: &[PathBuf],
) -> Result<(), ImageError> {
    let kind = facts.file_type();
    let inside = fs::canonicalize(path).is_ok_and(|target| is_allowed(path, &target, roots));
    if !inside || !(kind.is_file() || kind.is_block_device()) {
        return Err(ImageError::Outside(path.to_owned()));
    }
    match identity::compare(disk.identity.as_deref(), identity) {
        Compared::Same => return Err(ImageError::Same(path.to_owned())),
        Compared::Unknown => return Err(ImageError::Nameless(path.to_owned())),
        Compared::Different => {}
    }
    let failed = |source: io::Error| ImageError::File { path: path.to_owned(), source };
    let mut image = plain_file::open(path).map_err(failed)?;
    let here = match disk.format {
        // The size of a block device is where its end is.
        ImageFormat::Raw => {
            let bytes = image.seek(SeekFrom::End(0)).map_err(failed)?;
            // A file that ends within a sector has all of it for QEMU.
            bytes.checked_next_multiple_of(SECTOR).unwrap_or(bytes)
        }
        ImageFormat::Qcow2 => {
            // Whose that file is, and who uses it, has not been looked at.
            if let Some(data) = qcow2::data_file(path) {
                return Err(ImageError::DataFile { path: path.to_owned(), data });
            }
            let format = || ImageError::Format { path: path.to_owned(), format: disk.format };
            qcow2::disk_size(&mut image).map_err(failed)?.ok_or_else(format)?
        }
    };
    if here == disk.size {
        Ok(())
    } else {
        Err(ImageError::Other { path: path.to_owned(), here, there: disk.size })
    }
}

fn keep_list(folder: &Path, made: &[PathBuf]) -> Result<(), ImageError> {
    let path = folder.join(LIST);
    let written = serde_json::to_vec(made).map_err(io::Error::other);
    written.and_then(|text| fs::write(&path, text)).map_err(|source| ImageError::List { path, source })
}

/// What was made for the guest with this folder, and is not the guest's yet.
pub fn made(folder: &Path) -> Vec<PathBuf> {
    let path = folder.join(LIST);
    let known = fs::metadata(&path).is_ok_and(|facts| facts.len() <= LIST_BYTES_MAX);
    let text = known.then(|| fs::read(path).ok()).flatten();
    text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

/// The guest does not come: removes what was made for it. Its process must have ended.
pub fn discard(made: &[PathBuf]) {
    for path in made {
        if let Err(error) = remove(path) {
            tracing::error!(path = %path.display(), %error, "an image that was made for a guest that did not come could not be removed");
        }
    }
}

/// Nothing of what was made for a guest is to be removed any more: it runs here, and its images are its own, or they
/// are gone.
pub fn keep(folder: &Path) {
    if let Err(error) = remove_file(&folder.join(LIST)) {
        tracing::error!(%error, "the list of images that were made for a guest could not be removed");
    }
}

#[cfg(test)]
mod tests;
