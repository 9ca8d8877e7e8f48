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
    place.access.grant("a", &user(), &[Wanted::new(&disk, true)], &[]).unwrap();
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
        place.access.grant(guest, &user(), &[Wanted::new(&disk, true)], &[]).unwrap();
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
    place.access.grant("g", &user(), &wanted(&disk), &[]).unwrap();
    // It comes, and is rolled back.
    there.grant("g", &user(), &wanted(&disk), &[]).unwrap();
    there.release("g");
    assert!(opens(&disk), "the source's QEMU opens it again");
    // It comes and runs, and the source gives it up.
    there.grant("g", &user(), &wanted(&disk), &[]).unwrap();
    there.own("g");
    place.access.hand_over("g", &|_| false);
    place.access.release("g");
    assert!(opens(&disk), "the destination's QEMU uses it");
    there.release("g");
    is_as_before(&disk);
}

#[test]
fn a_guest_that_is_run_opens_again_what_the_host_that_it_left_has_closed() {
    let place = place();
    let disk = place.file("disk");
    let there = place.other_host();
    for access in [&place.access, &there] {
        access.grant("g", &user(), &[Wanted::new(&disk, true)], &[]).unwrap();
    }
    // Its QEMU here ended after commit.
    place.access.release("g");
    assert!(!opens(&disk));
    there.own("g");
    assert!(opens(&disk));
    there.release("g");
    is_as_before(&disk);
}

#[test]
fn a_shared_disk_that_is_mounted_later_stays_open_to_the_other_host() {
    let place = place();
    let (folder, aside) = (place.dir.path().join("mounted"), place.dir.path().join("aside"));
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    let disk = place.file("mounted/disk");
    place.access.grant("g", &user(), &[Wanted::new(&disk, true)], &[]).unwrap();
    fs::rename(&folder, &aside).unwrap();
    place.access.hand_over("g", &|_| false);
    place.access.release("g");
    fs::rename(&aside, &folder).unwrap();
    // The agent's next start.
    Access::new(place.dir.path().join("access")).release_all_but(|_| false);
    assert!(opens(&disk), "the destination's QEMU uses it");
}

#[test]
fn a_disk_that_was_copied_is_closed_at_the_source() {
    let place = place();
    let disk = place.file("disk");
    place.access.grant("g", &user(), &[Wanted::new(&disk, true)], &[]).unwrap();
    place.access.hand_over("g", &|path| path == disk);
    place.access.release("g");
    is_as_before(&disk);
}

#[test]
fn what_a_crash_or_a_reboot_left_is_found() {
    let place = place();
    let disk = place.file("disk");
    place.access.grant("g", &user(), &[Wanted::new(&disk, true)], &[]).unwrap();
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
    place.access.grant("g", &user(), &[Wanted::new(&disk, true)], &[]).unwrap();
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
    place.access.grant("g", &user(), &[Wanted::new(&disk, true)], &[]).unwrap();
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
    let refused = place.access.grant("g", &user(), &wanted, &[]).unwrap_err().to_string();
    assert!(refused.contains(&format!("{} (mode 0700)", folder.display())), "{refused}");
    is_as_before(&open);
    assert!(place.access.all().is_empty());
}

#[test]
fn what_an_image_or_another_host_names_is_let_in_to_in_the_folders_for_guests_only() {
    use std::os::unix::fs::symlink;
    let place = place();
    let (roots, secret) = (place.dir.path().join("roots"), place.file("secret"));
    fs::create_dir(&roots).unwrap();
    fs::set_permissions(&roots, fs::Permissions::from_mode(0o755)).unwrap();
    let (base, link) = (place.file("roots/base"), roots.join("link"));
    symlink(&secret, &link).unwrap();
    let grant = |wanted| place.access.grant("g", &user(), &[wanted], std::slice::from_ref(&roots));
    for named in [&secret, &link] {
        let refused = grant(Wanted::inside(named, false)).unwrap_err().to_string();
        assert!(refused.contains("file_roots") && refused.contains("secret"), "{refused}");
        is_as_before(&secret);
    }
    assert!(place.access.all().is_empty());
    grant(Wanted::inside(&base, true)).unwrap();
    assert!(opens(&base));
    // What the user can open needs no entry, wherever it is.
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    grant(Wanted::inside(&secret, false)).unwrap();
    assert!(!is_marked(&secret, 65534));
    // And the operator of this host may name anything.
    grant(Wanted::new(&secret, true)).unwrap();
    assert!(opens(&secret));
}

#[test]
fn a_link_that_takes_a_folders_place_leads_to_no_entry() {
    use std::os::unix::fs::symlink;
    let place = place();
    for folder in ["guests", "secrets"] {
        fs::create_dir(place.dir.path().join(folder)).unwrap();
        fs::set_permissions(place.dir.path().join(folder), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let (secret, folder) = (place.file("secrets/disk"), place.dir.path().join("guests"));
    // It was looked up before the link was there.
    let facts = fs::metadata(&secret).unwrap();
    fs::remove_dir(&folder).unwrap();
    symlink(place.dir.path().join("secrets"), &folder).unwrap();
    let path = folder.join("disk");
    let (device, inode) = (facts.dev(), facts.ino());
    let file = Granted { path, device, inode, made: made(&facts), writable: true, owned: true, before: None };
    assert!(add(&file, 65534).unwrap().is_none());
    is_as_before(&secret);
}

#[test]
fn a_guest_whose_medium_was_removed_can_leave() {
    let place = place();
    let (disk, medium) = (place.file("disk"), place.file("medium"));
    let wanted = [Wanted::new(&disk, true), Wanted::new(&medium, false)];
    place.access.grant("g", &user(), &wanted, &[]).unwrap();
    fs::remove_file(&medium).unwrap();
    place.access.renew("g").unwrap();
    place.file("other");
    fs::rename(place.dir.path().join("other"), &medium).unwrap();
    place.access.renew("g").unwrap();
    is_as_before(&medium);
    place.access.release("g");
    is_as_before(&disk);
}

#[test]
fn an_operators_entry_that_did_not_do_is_as_before_in_the_end() {
    let place = place();
    let disk = place.file("disk");
    let mut acl = Acl::read(&disk, 0o600).unwrap();
    acl.grant(65534, READ);
    acl.write(&disk).unwrap();
    for guest in ["a", "b"] {
        place.access.grant(guest, &user(), &[Wanted::new(&disk, true)], &[]).unwrap();
        place.access.own(guest);
    }
    assert!(opens(&disk));
    for guest in ["a", "b"] {
        place.access.release(guest);
    }
    assert_eq!(Acl::read(&disk, 0).unwrap(), acl);
    assert!(!is_marked(&disk, 65534));
}

#[test]
fn a_device_is_closed_when_its_guest_has_left() {
    let place = place();
    let device = place.dir.path().join("device");
    let (kind, mode) = (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::from_raw_mode(0o600));
    rustix::fs::mknodat(CWD, &device, kind, mode, rustix::fs::makedev(1, 3)).unwrap();
    place.access.grant("g", &user(), &[Wanted::new(&device, true)], &[]).unwrap();
    assert!(opens(&device));
    place.access.hand_over("g", &|_| false);
    place.access.release("g");
    is_as_before(&device);
}

/// A file system that is mounted until this is dropped.
struct Mount(PathBuf);

impl Mount {
    fn at(folder: &Path, from: &Path) -> Mount {
        let mount = std::process::Command::new("mount").arg("--bind").args([from, folder]).status();
        assert!(mount.unwrap().success());
        Mount(folder.to_owned())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_file_system_that_is_mounted_later_is_closed_then() {
    let place = place();
    let (folder, other) = (place.dir.path().join("mounted"), tempfile::tempdir_in("/dev/shm").unwrap());
    fs::create_dir(&folder).unwrap();
    for folder in [&folder, other.path()] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mounted = Mount::at(&folder, other.path());
    let (disk, gone) = (place.file("mounted/disk"), place.file("gone"));
    let wanted = [Wanted::new(&disk, true), Wanted::new(&gone, true)];
    place.access.grant("g", &user(), &wanted, &[]).unwrap();
    fs::remove_file(&gone).unwrap();
    drop(mounted);
    place.access.release_all_but(|_| false);
    let left: Vec<PathBuf> =
        place.access.all().into_iter().flat_map(|record| record.files).map(|file| file.path).collect();
    assert_eq!(left, std::slice::from_ref(&disk));
    let _mounted = Mount::at(&folder, other.path());
    place.access.release_all_but(|_| false);
    is_as_before(&disk);
    assert!(place.access.all().is_empty());
}

#[test]
fn what_another_user_was_let_in_to_is_closed_when_the_guest_is_started_anew() {
    let place = place();
    let (disk, later) = (place.file("disk"), QemuUser { name: "daemon".into(), uid: 1, gid: 1, slice: None });
    place.access.grant("g", &user(), &[Wanted::new(&disk, true)], &[]).unwrap();
    place.access.grant("g", &later, &[Wanted::new(&disk, true)], &[]).unwrap();
    assert!(!opens(&disk) && later.cannot_open(&[(disk.clone(), true)]).unwrap().is_empty());
    place.access.release("g");
    is_as_before(&disk);
    assert!(!is_marked(&disk, 1));
}

#[test]
fn only_the_very_file_or_device_is_touched_and_no_folder() {
    let place = place();
    let disk = place.file("disk");
    let of = |path: &Path, other: u64| {
        let facts = fs::metadata(path).unwrap();
        let (path, device, inode) = (path.to_owned(), facts.dev(), facts.ino() + other);
        // As on a file system that does not say when a file was made.
        Granted { path, device, inode, made: None, writable: true, owned: true, before: None }
    };
    assert!(add(&of(&disk, 1), 65534).unwrap().is_none());
    is_as_before(&disk);
    assert!(add(&of(place.dir.path(), 0), 65534).unwrap().is_none());
    assert!(add(&of(&disk, 0), 65534).unwrap().is_some());
    assert!(opens(&disk));
}

#[test]
fn a_folder_for_files_of_its_own_must_let_the_user_pass() {
    let place = place();
    let folder = place.dir.path().join("ram");
    fs::create_dir(&folder).unwrap();
    let passes = |mode| {
        fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
        place.access.passes(&user(), [folder.as_path()])
    };
    passes(0o711).unwrap();
    let refused = passes(0o700).unwrap_err().to_string();
    assert!(refused.contains("ram (mode 0700)"), "{refused}");
}
