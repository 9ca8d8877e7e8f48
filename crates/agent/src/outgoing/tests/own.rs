//! What is asked of a guest of this host's registry before commit is sent.

use std::fs::{self, File};

use linerate_core::source::Event;
use linerate_core::{Code, ModeTag};
use linerate_guest::description::Disk;
use linerate_guest::shared;
use tempfile::TempDir;

use super::super::Input;
use super::super::driver::{self, GuestRam, ModeParts};
use super::super::worker::Worker;
use super::domain::{Fake, guest_of};
use super::{LONG, outgoing_of};

/// The answer for a guest whose disk is `replaced` by another file of its name when the destination has found its mark.
fn checked_before_commit(replaced: bool) -> Input {
    let dir: TempDir = tempfile::tempdir().unwrap();
    let sessions = crate::testing::agent(&dir, &[]).outgoing.clone();
    let fake = Fake::default();
    fake.set("postmigrate", "completed");
    let (outgoing, inputs) = outgoing_of(ModeTag::Direct);
    let mut guest = guest_of(&fake, dir.path(), &outgoing, false);
    let image = dir.path().join("d.img");
    fs::write(&image, [7; 4096]).unwrap();
    let _opened_by_the_guest = File::open(&image).unwrap();
    guest.description.disks = vec![Disk {
        id: "vda".into(),
        path: image.to_str().unwrap().into(),
        format: "raw".into(),
        protocol: "file".into(),
        read_only: false,
        direct: false,
        aio: None,
        drop_cache: true,
        size: 4096,
        flash: false,
    }];
    let (_, marks) = shared::describe(&guest.description, &[]).unwrap();
    if replaced {
        fs::rename(&image, dir.path().join("aside")).unwrap();
        fs::write(&image, [7; 4096]).unwrap();
    }
    let mode = ModeParts::Direct { ram: GuestRam::default(), marks };
    let worker = Worker::start(driver::of(&sessions, guest, mode).unwrap()).unwrap();
    worker.submit("check source unchanged", |guest| guest.check_source_unchanged());
    inputs.recv_timeout(LONG).unwrap()
}

#[test]
fn a_disk_that_was_replaced_under_its_name_is_found_before_commit() {
    assert!(matches!(checked_before_commit(false), Input::SourceUnchanged));
    match checked_before_commit(true) {
        Input::Event(Event::Failed(fault)) => {
            assert_eq!(fault.code, Code::GuestDiffers, "{fault}");
            assert!(fault.detail.contains("vda") && fault.detail.contains("replaced"), "{fault}");
        }
        _ => panic!("a guest with a disk that was replaced counts as it was"),
    }
}
