//! What can be wrong: one file for each check, with its test.
//!
//! # How to write a check
//!
//! 1. A file here, named like the check's id with `_` for `-`: `mtu_between_hosts.rs` holds `mtu-between-hosts`. In it a unit
//!    struct that implements [`Check`]. `run` is a pure function: it reads the room and gives one [`Finding`] for each thing
//!    that is wrong, not one for each port. What a host does not know (`None`) is never wrong.
//! 2. A finding names the culprits first, shows the values of all sides with [`Finding::seen`], says what it does to a migration,
//!    and how to put it right, with a command where there is one.
//! 3. A line in [`ALL`]. The registry's tests then demand that the id is the file's name, that `docs/findings.md` has a section
//!    with the id, and that the healthy room of [`crate::testing`] is silent.
//! 4. A test in the same file that makes one fault in the healthy room and calls `testing::only(&room, "id")`: the check speaks,
//!    and **no other check does**.

mod mtu_between_hosts;

use crate::model::{Finding, Room};

/// Something that can be wrong.
pub trait Check: Sync {
    /// Its id, as in findings and in the documentation.
    fn id(&self) -> &'static str;

    /// Everything of its sort that is wrong in the room.
    fn run(&self, room: &Room) -> Vec<Finding>;
}

/// Every check there is, by id.
pub const ALL: &[&dyn Check] = &[&mtu_between_hosts::MtuBetweenHosts];

/// Runs every check. The worst come first; among equals the order of [`ALL`] is kept.
pub fn run_all(room: &Room) -> Vec<Finding> {
    let mut findings: Vec<Finding> = ALL.iter().flat_map(|check| check.run(room)).collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::healthy_room;

    #[test]
    fn a_healthy_room_is_silent() {
        assert_eq!(run_all(&healthy_room()), Vec::new());
    }

    #[test]
    fn an_empty_room_is_silent() {
        assert_eq!(run_all(&Room::default()), Vec::new());
    }

    #[test]
    fn hosts_that_know_nothing_are_silent() {
        use crate::model::Inventory;
        let room = Room::of(vec![Inventory::new("alpha"), Inventory::new("beta")]);
        assert_eq!(run_all(&room), Vec::new());
    }

    #[test]
    fn every_check_has_its_own_file_and_section() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/checks/");
        let page = include_str!("../../../../docs/findings.md");
        let mut ids: Vec<&str> = ALL.iter().map(|check| check.id()).collect();
        for id in &ids {
            let file = format!("{folder}{}.rs", id.replace('-', "_"));
            assert!(std::path::Path::new(&file).is_file(), "{file}");
            assert!(page.contains(&format!("## {id}\n")), "docs/findings.md has no section {id}");
        }
        let written = std::fs::read_dir(folder).unwrap().count();
        assert_eq!(written, ids.len() + 1, "a file of this folder is not in the registry");
        let before = ids.clone();
        ids.sort();
        ids.dedup();
        assert_eq!(before, ids, "the registry is in the order of ids");
    }
}
