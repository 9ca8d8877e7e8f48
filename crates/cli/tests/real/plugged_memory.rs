//! Guests with a part of their memory in a `virtio-mem` device, in a file of its own.

use linerate_lab::{GuestParameters, GuestSpec, QemuVersion};

use crate::stage::Stage;
use crate::{busy, goes_there_and_back};

/// Of the 288 MiB that the guest fills, less than 200 MiB find room in the rest of its memory.
const PLUGGED_MB: u64 = 256;

fn there_and_back(version: QemuVersion) {
    let parameters = GuestParameters { mem_mb: 288, plugged_mb: Some(PLUGGED_MB), ..busy() };
    let mut stage = Stage::with_guest(&[2500, 2500], GuestSpec::new("g", parameters).qemu(version));
    let shown = stage.shown();
    let blocks = shown["description"]["ram"].as_array().unwrap();
    let moved: Vec<u64> = blocks
        .iter()
        .filter(|block| block["path"].is_string())
        .map(|block| block["size"].as_u64().unwrap())
        .collect();
    assert!(moved.len() == 2 && moved.contains(&(PLUGGED_MB << 20)), "{blocks:?}");
    goes_there_and_back(&mut stage, false);
}

#[test]
fn a_guest_with_plugged_memory_with_qemu_7() {
    there_and_back(QemuVersion::System);
}

#[test]
fn a_guest_with_plugged_memory_with_qemu_10() {
    there_and_back(QemuVersion::Ten);
}
