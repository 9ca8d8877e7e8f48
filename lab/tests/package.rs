//! The Debian package in machines that boot Debian with systemd: from nothing to an encrypted migration, upgraded,
//! removed and purged with guests that run. `make deb-test` builds the packages, prepares the machines and runs these
//! tests.

#![allow(clippy::unwrap_used, clippy::panic)] // Tests say what they expect.

use std::path::{Path, PathBuf};
use std::time::Duration;

use linerate_lab::{Cache, LabError, Machine, MachineKernel, MachineOutput, Side};

/// Two machines that are emulated on busy cores, with a guest that is emulated in them.
const DEADLINE: Duration = Duration::from_secs(3600);

/// The folder with two packages of different versions, the older first.
fn packages() -> (PathBuf, Vec<String>) {
    let folder = std::env::var_os("LINERATE_DEBS").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| panic!("LINERATE_DEBS names no folder: use make deb-test"));
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().to_str().unwrap().to_owned())
        .filter(|name| name.ends_with(".deb"))
        .collect();
    // NAME_VERSION_ARCHITECTURE.deb: of the whole name `1+next1_` would come before `1_`.
    names.sort_by_key(|name| name.rsplit('_').nth(1).map(str::to_owned));
    assert_eq!(names.len(), 2, "{names:?}");
    (folder, names)
}

fn machine(folder: &Path, words: &[&str]) -> Machine {
    let bare = Cache::locate().bare_guest().unwrap();
    Machine::new(MachineKernel::Backports, words.iter().copied())
        .debian()
        .links(0)
        // The packaged configuration reserves 2 GiB of a host's memory.
        .memory_mb(3072)
        .deadline(DEADLINE)
        .share(folder)
        .share(bare.parent().unwrap())
}

fn bare() -> String {
    Cache::locate().bare_guest().unwrap().to_str().unwrap().to_owned()
}

fn shown(result: &Result<MachineOutput, LabError>) -> String {
    match result {
        Ok(output) => format!("exit code {}\n{}\n{}", output.code, output.stdout, output.stderr),
        Err(error) => error.to_string(),
    }
}

fn succeeded(result: &Result<MachineOutput, LabError>) -> bool {
    result.as_ref().is_ok_and(|output| output.code == 0 && output.stdout.ends_with("== done\n"))
}

#[test]
#[ignore = "takes minutes: make deb-test"]
fn the_package_is_installed_upgraded_removed_and_purged_with_a_guest_that_runs() {
    let (folder, debs) = packages();
    let result = machine(&folder, &["sh", "/lab/bin/package-life", &debs[0], &debs[1], &bare()]).run();
    println!("{}", shown(&result));
    assert!(succeeded(&result), "see above");
}

#[test]
#[ignore = "takes minutes: make deb-test"]
fn from_nothing_to_an_encrypted_migration_and_upgrades_during_migrations() {
    let (folder, debs) = packages();
    let common = tempfile::tempdir_in("/var/tmp").unwrap();
    let run = |side: Side| {
        let name = side.name();
        let path = common.path().to_str().unwrap();
        let words = ["sh", "/lab/bin/package-pair", name, &debs[0], &debs[1], &bare(), path];
        let machine = machine(&folder, &words).links(2).mtu(1500).wires(common.path(), side);
        let result = machine.results(common.path()).run();
        if !succeeded(&result) {
            // The other one would wait in vain.
            std::fs::write(common.path().join("failed"), "").unwrap();
        }
        result
    };
    let (a, b) = std::thread::scope(|scope| {
        let b = scope.spawn(|| run(Side::B));
        (run(Side::A), b.join().unwrap())
    });
    println!("machine a: {}\n\nmachine b: {}", shown(&a), shown(&b));
    assert!(succeeded(&a) && succeeded(&b), "see above");
}
