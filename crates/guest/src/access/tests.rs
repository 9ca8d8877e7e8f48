//! As root: only root gives entries, and becomes another user.

use std::os::unix::fs::PermissionsExt;

use super::*;

/// A user that need not be in the user database for its number to count.
fn user() -> QemuUser {
    QemuUser { name: "nobody".into(), uid: 65534, gid: 65534, slice: None }
}

struct Place {
    dir: tempfile::TempDir,
    access: Access,
}

fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let access = Access::new(dir.path().join("access"));
    Place { dir, access }
}

impl Place {
    fn file(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// Another host that shares the files.
    fn other_host(&self) -> Access {
        Access::new(self.dir.path().join("access-there"))
    }
}

fn opens(path: &Path) -> bool {
    user().cannot_open(&[(path.to_owned(), true)]).unwrap().is_empty()
}

fn is_as_before(path: &Path) {
    assert!(!opens(path));
    assert_eq!(fs::metadata(path).unwrap().mode() & 0o7777, 0o600);
    assert!(!is_marked(path, 65534));
}

#[test]
fn a_user_is_let_in_while_its_guest_is_here() {
    let place = place();
    let disk = place.file("disk");
    place.access.grant("a", &user(), &[Wanted::new(&disk, true)]).unwrap();
    assert!(opens(&disk));
    assert_eq!(fs::metadata(&disk).unwrap().uid(), 0, "its owner stays");
    place.access.release("a");
    is_as_before(&disk);
    assert!(place.access.all().is_empty());
}

#[test]
fn a_file_of_two_guests_is_closed_after_the_second() {
    let place = place();
    let disk = place.file("disk");
    for guest in ["a", "b"] {
        place.access.grant(guest, &user(), &[Wanted::new(&disk, true)]).unwrap();
    }
    place.access.release("a");
    assert!(opens(&disk));
    place.access.release("b");
    is_as_before(&disk);
}

#[test]
fn a_shared_disk_stays_open_to_whichever_host_has_the_guest() {
    let (place, wanted) = (place(), |disk: &Path| [Wanted::new(disk, true)]);
    let disk = place.file("disk");
    let there = place.other_host();
    place.access.grant("g", &user(), &wanted(&disk)).unwrap();
    // It comes, and is rolled back.
    there.grant("g", &user(), &wanted(&disk)).unwrap();
    there.release("g");
    assert!(opens(&disk), "the source's QEMU opens it again");
    // It comes and runs, and the source gives it up.
    there.grant("g", &user(), &wanted(&disk)).unwrap();
    there.own("g");
    place.access.hand_over("g", &|_| false);
    place.access.release("g");
    assert!(opens(&disk), "the destination's QEMU uses it");
    there.release("g");
    is_as_before(&disk);
}

#[test]
fn a_disk_that_was_copied_is_closed_at_the_source() {
    let place = place();
    let disk = place.file("disk");
    place.access.grant("g", &user(), &[Wanted::new(&disk, true)]).unwrap();
    place.access.hand_over("g", &|path| path == disk);
    place.access.release("g");
    is_as_before(&disk);
}

#[test]
fn what_a_crash_or_a_reboot_left_is_found() {
    let place = place();
    let disk = place.file("disk");
    place.access.grant("g", &user(), &[Wanted::new(&disk, true)]).unwrap();
    let restarted = Access::new(place.dir.path().join("access"));
    restarted.release_all_but(|guest| guest == "g");
    assert!(opens(&disk));
    restarted.release_all_but(|_| false);
    is_as_before(&disk);
}

#[test]
fn another_file_of_the_name_is_not_touched_and_a_taken_entry_is_renewed() {
    let place = place();
    let disk = place.file("disk");
    place.access.grant("g", &user(), &[Wanted::new(&disk, true)]).unwrap();
    fs::set_permissions(&disk, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!opens(&disk));
    place.access.renew("g").unwrap();
    assert!(opens(&disk));
    fs::rename(&disk, place.dir.path().join("old")).unwrap();
    let later = place.file("disk");
    let mut acl = Acl::read(&later, 0o600).unwrap();
    acl.grant(65534, READ | WRITE);
    acl.write(&later).unwrap();
    place.access.release("g");
    assert!(opens(&later), "an operator's entry of another file");
}

#[test]
fn an_operators_entry_stays() {
    let place = place();
    let disk = place.file("disk");
    let mut acl = Acl::read(&disk, 0o600).unwrap();
    acl.grant(65534, READ | WRITE);
    acl.write(&disk).unwrap();
    place.access.grant("g", &user(), &[Wanted::new(&disk, true)]).unwrap();
    place.access.own("g");
    place.access.release("g");
    assert!(opens(&disk));
}

#[test]
fn a_closed_folder_is_named_and_nothing_is_left() {
    let place = place();
    let folder = place.dir.path().join("closed");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    let (open, disk) = (place.file("open"), place.file("closed/disk"));
    let wanted = [Wanted::new(&open, true), Wanted::new(&disk, true)];
    let refused = place.access.grant("g", &user(), &wanted).unwrap_err().to_string();
    assert!(refused.contains(&format!("{} (mode 0700)", folder.display())), "{refused}");
    is_as_before(&open);
    assert!(place.access.all().is_empty());
}
