//! Images that are looked at and made.

use super::*;
use std::os::unix::fs::symlink;

const MIB: u64 = 1 << 20;

fn disk(format: ImageFormat) -> CopiedDisk {
    CopiedDisk { id: "d".into(), path: "/there/d.img".into(), format, size: 64 * MIB, identity: None }
}

/// As it is there, with its own folder for a root.
fn look(path: &Path, disk: &CopiedDisk) -> Result<(), ImageError> {
    let root = fs::canonicalize(path.parent().unwrap()).unwrap();
    check(path, &fs::metadata(path).unwrap(), None, disk, &[root])
}

#[test]
fn no_file_is_made_where_devices_are() {
    let path = Path::new("/dev/linerate-test-volume");
    let refused = make(path, &disk(ImageFormat::Raw), &["/dev".into()], &mut |_| panic!("it is made"));
    assert!(matches!(refused, Err(ImageError::NoDevice(_))), "{refused:?}");
    assert!(!path.exists());
}

#[test]
fn what_is_or_may_be_the_disk_itself_is_not_copied_into() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d");
    File::create(&path).unwrap().set_len(64 * MIB).unwrap();
    let (facts, root) = (fs::metadata(&path).unwrap(), fs::canonicalize(dir.path()).unwrap());
    let from = CopiedDisk { identity: Some("naa.5".into()), ..disk(ImageFormat::Raw) };
    let to = |identity| check(&path, &facts, Some(identity), &from, std::slice::from_ref(&root));
    assert!(matches!(to("naa.5"), Err(ImageError::Same(_))));
    // One of them is known by multipath's name.
    assert!(matches!(to("mpath-5"), Err(ImageError::Nameless(_))));
    to("naa.6").unwrap();
}

#[test]
fn only_files_and_devices_in_the_folders_for_guests_are_looked_into() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let secret = elsewhere.path().join("secret");
    fs::write(&secret, vec![0; 64 << 20]).unwrap();
    symlink(&secret, dir.path().join("link")).unwrap();
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for name in ["link", "pipe"] {
        let refused = look(&dir.path().join(name), &disk(ImageFormat::Raw));
        assert!(matches!(refused, Err(ImageError::Outside(_))), "{name}: {refused:?}");
    }
}

fn make_in(dir: &Path, name: &str, format: ImageFormat, roots: &[PathBuf]) -> Result<PathBuf, ImageError> {
    let path = dir.join(name);
    let mut list = Vec::new();
    let file = make(&path, &disk(format), roots, &mut |path| {
        list.push(path);
        keep_list(dir, &list)
    })?;
    format_new(&disk(format), &path, &file)?;
    Ok(path)
}

#[test]
fn an_image_that_is_missing_is_made_sparse_and_of_the_disks_size() {
    let dir = tempfile::tempdir().unwrap();
    let roots = [dir.path().to_owned()];
    for format in [ImageFormat::Raw, ImageFormat::Qcow2] {
        let path = make_in(dir.path(), format.name(), format, &roots).unwrap();
        look(&path, &disk(format)).unwrap();
        assert!(fs::metadata(&path).unwrap().blocks() * 512 < MIB, "{format:?} is not sparse");
        let larger = CopiedDisk { size: 65 * MIB, ..disk(format) };
        assert!(matches!(look(&path, &larger), Err(ImageError::Other { .. })), "{format:?}");
        discard(&made(dir.path()));
        assert!(!path.exists());
    }
    let raw = make_in(dir.path(), "again", ImageFormat::Raw, &roots).unwrap();
    let qcow2 = look(&raw, &disk(ImageFormat::Qcow2));
    assert!(matches!(qcow2, Err(ImageError::Format { .. })), "{qcow2:?}");
}

#[test]
fn a_raw_file_that_ends_within_a_sector_takes_the_disk_that_came_from_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("odd.img");
    fs::write(&path, vec![0; 1000]).unwrap();
    look(&path, &CopiedDisk { size: 1024, ..disk(ImageFormat::Raw) }).unwrap();
    let smaller = look(&path, &CopiedDisk { size: 512, ..disk(ImageFormat::Raw) });
    assert!(matches!(smaller, Err(ImageError::Other { .. })), "{smaller:?}");
}

/// Another program may use that file, or it may be the source's own.
#[test]
fn an_image_that_has_its_data_in_another_file_is_not_copied_into() {
    let dir = tempfile::tempdir().unwrap();
    let [image, data] = ["d.qcow2", "data.raw"].map(|name| dir.path().join(name));
    let mut command = std::process::Command::new("qemu-img");
    command.args(["create", "-q", "-f", "qcow2", "-o"]).arg(format!("data_file={}", data.display()));
    assert!(command.arg(&image).arg("64M").status().unwrap().success());
    let refused = look(&image, &disk(ImageFormat::Qcow2));
    assert!(
        matches!(&refused, Err(ImageError::DataFile { data: found, .. }) if *found == data),
        "{refused:?}"
    );
    // Without it the image could not be read.
    fs::remove_file(&data).unwrap();
    assert!(matches!(look(&image, &disk(ImageFormat::Qcow2)), Err(ImageError::DataFile { .. })));
}

#[test]
fn what_was_there_is_never_taken_for_made() {
    let dir = tempfile::tempdir().unwrap();
    let roots = [dir.path().to_owned()];
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("old"), "x").unwrap();
    symlink(elsewhere.path().join("target"), dir.path().join("link")).unwrap();
    for name in ["old", "link"] {
        assert!(matches!(make_in(dir.path(), name, ImageFormat::Raw, &roots), Err(ImageError::File { .. })));
    }
    assert!(made(dir.path()).is_empty() && !elsewhere.path().join("target").exists());
}

#[test]
fn nothing_is_made_outside_of_the_folders_for_guests() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let roots = [dir.path().to_owned()];
    symlink(elsewhere.path(), dir.path().join("out")).unwrap();
    for name in ["out/d.img", "missing/d.img"] {
        let refused = make_in(dir.path(), name, ImageFormat::Raw, &roots);
        assert!(matches!(refused, Err(ImageError::Folder(_))), "{refused:?}");
    }
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn what_was_made_is_the_guests_once_it_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = make_in(dir.path(), "d", ImageFormat::Raw, &[dir.path().to_owned()]).unwrap();
    assert_eq!(made(dir.path()), std::slice::from_ref(&path));
    keep(dir.path());
    discard(&made(dir.path()));
    assert!(path.exists());
}

#[test]
fn a_link_that_is_put_in_place_of_an_image_or_its_folder_leads_to_nothing() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (folder, victim) = (dir.path().join("folder"), elsewhere.path().join("d"));
    fs::create_dir(&folder).unwrap();
    fs::write(&victim, "x").unwrap();
    let path = folder.join("d");
    let mut list = Vec::new();
    let file = make(&path, &disk(ImageFormat::Qcow2), &[dir.path().to_owned()], &mut |path| {
        list.push(path);
        Ok(())
    });
    fs::remove_file(&path).unwrap();
    symlink(&victim, &path).unwrap();
    let file = file.unwrap();
    format_new(&disk(ImageFormat::Qcow2), &path, &file).unwrap();
    assert!(file.metadata().unwrap().len() > 0, "the file that was made is the image");
    fs::rename(&folder, dir.path().join("moved")).unwrap();
    symlink(elsewhere.path(), &folder).unwrap();
    discard(&list);
    assert_eq!(fs::read(&victim).unwrap(), b"x");
}

#[test]
fn an_image_is_listed_by_its_name_without_links() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("folder")).unwrap();
    symlink(dir.path().join("folder"), dir.path().join("link")).unwrap();
    let roots = [dir.path().to_owned()];
    make(&dir.path().join("link/d"), &disk(ImageFormat::Raw), &roots, &mut |path| {
        assert_eq!(path, dir.path().join("folder/d"));
        keep_list(dir.path(), &[path])
    })
    .unwrap();
    discard(&made(dir.path()));
    assert!(!dir.path().join("folder/d").exists());
}
