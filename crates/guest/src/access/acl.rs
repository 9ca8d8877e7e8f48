//! POSIX access lists as the kernel stores them in the extended attribute `system.posix_acl_access`: a version, then
//! entries of tag, permissions and id, all little-endian (include/uapi/linux/posix_acl_xattr.h).

use std::io;
use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

const ATTRIBUTE: &str = "system.posix_acl_access";
const VERSION: u32 = 2;
/// Bytes of an entry.
const ENTRY: usize = 8;
/// More than file systems store.
const BYTES_MAX: usize = 64 << 10;
const NO_ID: u32 = u32::MAX;

const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

pub(super) const READ: u16 = 4;
pub(super) const WRITE: u16 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// Who may do what with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Acl(Vec<Entry>);

impl Acl {
    /// Of the file at this path; `mode` where it has no list of its own.
    pub fn read(path: &Path, mode: u32) -> io::Result<Acl> {
        let mut bytes = vec![0; BYTES_MAX];
        match rustix::fs::getxattr(path, ATTRIBUTE, &mut bytes[..]) {
            Ok(length) => {
                let stored = bytes.get(..length).and_then(Acl::parse);
                stored.ok_or_else(|| io::Error::other("its access list cannot be understood"))
            }
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(Acl::of_mode(mode)),
            Err(error) => Err(error.into()),
        }
    }

    /// A list that says no more than a mode becomes the file's mode.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::setxattr(path, ATTRIBUTE, &self.bytes(), XattrFlags::empty())?)
    }

    fn of_mode(mode: u32) -> Acl {
        let three = |shift: u32| (mode >> shift & 7) as u16;
        let entry = |tag, permissions| Entry { tag, permissions, id: NO_ID };
        Acl(vec![entry(OWNER, three(6)), entry(OWNING_GROUP, three(3)), entry(OTHERS, three(0))])
    }

    fn parse(bytes: &[u8]) -> Option<Acl> {
        let (version, rest) = bytes.split_at_checked(4)?;
        if version != VERSION.to_le_bytes() || !rest.len().is_multiple_of(ENTRY) {
            return None;
        }
        let entry = |entry: &[u8]| {
            let tag = u16::from_le_bytes(entry.get(..2)?.try_into().ok()?);
            let permissions = u16::from_le_bytes(entry.get(2..4)?.try_into().ok()?);
            let id = u32::from_le_bytes(entry.get(4..8)?.try_into().ok()?);
            Some(Entry { tag, permissions, id })
        };
        rest.chunks(ENTRY).map(entry).collect::<Option<Vec<Entry>>>().map(Acl)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for Entry { tag, permissions, id } in &self.0 {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(permissions.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    /// Permissions of this user's entry, if there is one.
    pub fn of_user(&self, uid: u32) -> Option<u16> {
        let entry = self.0.iter().find(|entry| entry.tag == USER && entry.id == uid);
        entry.map(|entry| entry.permissions)
    }

    /// Adds permissions for a user; nobody else gets more than before.
    pub fn grant(&mut self, uid: u32, permissions: u16) {
        let mask = self.mask();
        // What the mask held back so far stays held back when the mask grows.
        if let Some(mask) = mask {
            self.0
                .iter_mut()
                .filter(|entry| is_masked(entry.tag))
                .for_each(|entry| entry.permissions &= mask);
        }
        match self.0.iter_mut().find(|entry| entry.tag == USER && entry.id == uid) {
            Some(entry) => entry.permissions |= permissions,
            None => self.0.push(Entry { tag: USER, permissions, id: uid }),
        }
        self.set_mask();
    }

    /// Takes the user's entry away, and the mask with the last entry that needs one.
    pub fn revoke(&mut self, uid: u32) {
        let mask = self.mask();
        self.0.retain(|entry| !(entry.tag == USER && entry.id == uid));
        if let Some(mask) = mask {
            self.0
                .iter_mut()
                .filter(|entry| is_masked(entry.tag))
                .for_each(|entry| entry.permissions &= mask);
        }
        if self.0.iter().any(|entry| matches!(entry.tag, USER | GROUP)) {
            self.set_mask();
        } else {
            self.0.retain(|entry| entry.tag != MASK);
        }
    }

    fn mask(&self) -> Option<u16> {
        self.0.iter().find(|entry| entry.tag == MASK).map(|entry| entry.permissions)
    }

    fn set_mask(&mut self) {
        let all = self.0.iter().filter(|entry| is_masked(entry.tag));
        let permissions = all.fold(0, |all, entry| all | entry.permissions);
        self.0.retain(|entry| entry.tag != MASK);
        self.0.push(Entry { tag: MASK, permissions, id: NO_ID });
        // The order that the kernel wants.
        self.0.sort_by_key(|entry| (entry.tag, entry.id));
    }
}

fn is_masked(tag: u16) -> bool {
    matches!(tag, USER | OWNING_GROUP | GROUP)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn a_grant_is_for_one_user_and_leaves_no_trace() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, "x").unwrap();
        for mode in [0o600, 0o640, 0o664, 0o660] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            let before = Acl::read(&file, mode).unwrap();
            let mut acl = before.clone();
            acl.grant(4321, READ | WRITE);
            acl.grant(4322, READ);
            acl.write(&file).unwrap();
            let mut stored = Acl::read(&file, 0).unwrap();
            assert_eq!(stored, acl);
            assert!(stored.of_user(4321).is_some() && stored.of_user(4323).is_none());
            stored.revoke(4321);
            stored.revoke(4322);
            stored.write(&file).unwrap();
            assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o7777, mode, "{mode:o}");
            assert_eq!(stored, before);
            assert!(
                rustix::fs::getxattr(&file, ATTRIBUTE, &mut [0; 64][..]).is_err(),
                "{mode:o}: a list is left"
            );
        }
    }

    #[test]
    fn an_entry_does_not_lift_what_the_mask_removes() {
        let mut acl = Acl::of_mode(0o600);
        acl.grant(1, READ | WRITE);
        // As chmod 0600 does.
        acl.0.iter_mut().filter(|entry| entry.tag == MASK).for_each(|entry| entry.permissions = 0);
        acl.grant(2, READ);
        let of = |uid| acl.0.iter().find(|entry| entry.tag == USER && entry.id == uid).unwrap().permissions;
        assert_eq!((of(1), of(2)), (0, READ));
    }

    #[test]
    fn what_is_no_access_list_is_refused() {
        for bytes in [&[][..], &[2, 0, 0], &[1, 0, 0, 0], &[2, 0, 0, 0, 1]] {
            assert_eq!(Acl::parse(bytes), None, "{bytes:?}");
        }
    }
}
