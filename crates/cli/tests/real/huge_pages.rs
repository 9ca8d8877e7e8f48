//! Guests whose RAM is in explicit huge pages: files on a hugetlbfs, tracked and copied in pieces of 2 MiB.

use linerate_lab::{GuestParameters, GuestSpec, Lab, QemuVersion};
use serde_json::Value;

use crate::stage::{Stage, ended};
use crate::{busy, goes_there_and_back};

/// Two guests of [`guest`] at once: the one that leaves and the one that comes.
const HUGE_MB: u64 = 2 * 512;
const PAGE: u64 = 2 << 20;

fn guest(version: QemuVersion) -> GuestSpec {
    GuestSpec::new("g", GuestParameters { mem_mb: 160, ..busy() }).huge_pages().qemu(version)
}

fn stage(huge_mb: u64, version: QemuVersion) -> Stage {
    Stage::with_hosts(Lab::builder().huge_mb(huge_mb), &[2500, 2500], |_| guest(version))
}

/// Its RAM: bytes of its pages, and bytes that its file takes.
fn ram(stage: &Stage) -> (u64, u64) {
    let shown = stage.shown();
    let block = |list: &Value| list.as_array().unwrap().iter().position(|block| block["path"].is_string());
    let described = &shown["description"]["ram"];
    let page = described[block(described).unwrap()]["page_bytes"].as_u64().unwrap();
    let listed = &shown["ram_blocks"];
    (page, listed[block(listed).unwrap()]["populated_bytes"].as_u64().unwrap())
}

fn there_and_back(version: QemuVersion) {
    let mut stage = stage(HUGE_MB, version);
    let (page, before) = ram(&stage);
    assert_eq!(page, PAGE);
    goes_there_and_back(&mut stage, false);
    let (page, after) = ram(&stage);
    assert_eq!(page, PAGE, "it is in huge pages again");
    // What it touched on the way may have grown; what it never touched takes no page anywhere.
    assert!(after < before + 16 * PAGE, "{before} bytes before, {after} after");
}

#[test]
fn a_guest_in_huge_pages_with_qemu_7() {
    there_and_back(QemuVersion::System);
}

#[test]
fn a_guest_in_huge_pages_with_qemu_10() {
    there_and_back(QemuVersion::Ten);
}

#[test]
fn too_few_huge_pages_are_reported_before_anything_changes() {
    // Enough for one of the two.
    let stage = stage(HUGE_MB / 2, QemuVersion::System);
    let failure = ended(&stage.migrate(&[]).finish()).failed(4);
    assert_eq!(failure["code"], "memory_short", "{failure}");
    assert!(failure["message"].as_str().unwrap().contains("in huge pages of 2 MiB"), "{failure}");
    stage.guest_goes_on();
    assert_eq!(stage.guests_at_destination(), 0);
}

#[test]
fn a_destination_without_a_folder_for_huge_pages_refuses() {
    let mut stage = stage(HUGE_MB, QemuVersion::System);
    stage.restart_destination_without_huge_pages();
    let failure = ended(&stage.migrate(&[]).finish()).failed(4);
    assert_eq!(failure["code"], "not_migratable", "{failure}");
    assert!(failure["message"].as_str().unwrap().contains("hugetlbfs"), "{failure}");
    stage.guest_goes_on();
}
