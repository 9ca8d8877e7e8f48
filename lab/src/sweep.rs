//! Removing labs: one's own at the end, and those of runs that died.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

use crate::error::io_error;
use crate::files::entries;
use crate::{LabError, device, huge, lab, netns, tool};

/// Removes all that is left of labs whose maker is dead, and returns their names. One that cannot be removed keeps none
/// of the others, nor does a folder that cannot be read.
pub fn sweep() -> Result<Vec<String>, LabError> {
    let (names, unread) = found(&lab::root(), netns::list());
    let removed = each(names.into_iter().filter(|name| !maker_is_alive(name)), remove);
    // When nothing of a lab has them open any more.
    device::sweep(is_alive)?;
    let removed = removed?;
    unread.map_or(Ok(removed), Err)
}

/// Those that were removed, or the first error when all were tried.
fn each(
    names: impl Iterator<Item = String>,
    remove: impl Fn(&str) -> Result<(), LabError>,
) -> Result<Vec<String>, LabError> {
    let (mut removed, mut failed) = (Vec::new(), None);
    for name in names {
        match remove(&name) {
            Ok(()) => removed.push(name),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(removed), Err)
}

/// Names of all labs of which anything is there: a namespace, a directory or an address claim.
pub fn all() -> Result<BTreeSet<String>, LabError> {
    let (names, unread) = found(&lab::root(), netns::list());
    unread.map_or(Ok(names), Err)
}

/// The same as far as it can be read, and the first error.
fn found(root: &Path, namespaces: Result<Vec<String>, LabError>) -> (BTreeSet<String>, Option<LabError>) {
    let of_namespace = |name: String| Some(name.rsplit_once('-')?.0.to_owned());
    let namespaces = namespaces.map(|names| names.into_iter().filter_map(of_namespace).collect());
    let (mut names, mut unread) = (BTreeSet::new(), None);
    for some in [entries(root), claims(&root.join("octets")), namespaces] {
        match some {
            Ok(some) => names.extend(some.into_iter().filter(|name| maker(name).is_some())),
            Err(error) => unread = unread.or(Some(error)),
        }
    }
    (names, unread)
}

/// Names of the labs that have claimed addresses.
fn claims(directory: &Path) -> Result<Vec<String>, LabError> {
    let mut names = Vec::new();
    for octet in entries(directory)? {
        let path = directory.join(octet);
        match std::fs::read_to_string(&path) {
            Ok(name) => names.push(name),
            // Another sweep was faster.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(io_error("read", &path)(error)),
        }
    }
    Ok(names)
}

/// Kills what runs in a lab and removes all of it. What does not exist any more is no error.
pub(crate) fn remove(name: &str) -> Result<(), LabError> {
    let prefix = format!("{name}-");
    let namespaces: Vec<String> =
        netns::list()?.into_iter().filter(|found| found.starts_with(&prefix)).collect();
    namespaces.iter().try_for_each(|namespace| netns::remove(namespace))?;
    let directory = lab::root().join(name);
    unmount_below(&directory)?;
    huge::give_back(&directory)?;
    match std::fs::remove_dir_all(&directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(io_error("remove", &directory)(error));
        }
        _ => {}
    }
    release_octet(name)
}

/// The maker's process id, from a lab's name; None for names that are not a lab's.
fn maker(name: &str) -> Option<i32> {
    let (pid, number) = name.strip_prefix("lr")?.split_once('-')?;
    number.parse::<u32>().ok()?;
    pid.parse().ok()
}

fn maker_is_alive(name: &str) -> bool {
    maker(name).is_some_and(is_alive)
}

/// A process that has ended and was not waited for does nothing any more.
fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    // The name may hold anything, so the state is looked for behind the last bracket.
    stat.is_ok_and(|stat| {
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
    })
}

fn unmount_below(directory: &Path) -> Result<(), LabError> {
    for point in mounts_below(directory)? {
        match tool::run("umount", &[point.as_str()]) {
            // Another sweep was faster.
            Err(_) if !mounts_below(directory)?.contains(&point) => {}
            unmounted => drop(unmounted?),
        }
    }
    Ok(())
}

fn mounts_below(directory: &Path) -> Result<Vec<String>, LabError> {
    let path = Path::new("/proc/self/mounts");
    let mounts = std::fs::read_to_string(path).map_err(io_error("read", path))?;
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    Ok(points.filter(|point| Path::new(point).starts_with(directory)).map(str::to_owned).collect())
}

fn release_octet(name: &str) -> Result<(), LabError> {
    let directory = lab::root().join("octets");
    for octet in entries(&directory)? {
        let path = directory.join(octet);
        if !std::fs::read_to_string(&path).is_ok_and(|owner| owner == name) {
            continue;
        }
        match std::fs::remove_file(&path) {
            // Another sweep may have been faster.
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(io_error("remove", &path)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn only_names_of_labs_are_labs() {
        assert_eq!(maker("lr12-0"), Some(12));
        for name in ["lr12", "lrx-0", "lr12-a", "octets", "router1-0", ""] {
            assert_eq!(maker(name), None, "{name}");
        }
    }

    #[test]
    fn a_lab_that_cannot_be_removed_keeps_no_other() {
        let tried = std::cell::RefCell::new(Vec::new());
        let remove = |name: &str| {
            tried.borrow_mut().push(name.to_owned());
            let no = || LabError::Unknown { kind: "lab", name: name.to_owned() };
            if name == "lr1-0" { Err(no()) } else { Ok(()) }
        };
        let names = || ["lr1-0", "lr2-0"].map(str::to_owned).into_iter();
        assert!(each(names(), remove).is_err());
        assert_eq!(tried.take(), ["lr1-0", "lr2-0"]);
        assert_eq!(each(names().skip(1), remove).ok(), Some(vec!["lr2-0".to_owned()]));
    }

    #[test]
    fn a_folder_that_cannot_be_read_is_not_taken_for_empty_and_hides_no_lab() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        assert_eq!(entries(&root.join("missing")).unwrap(), [""; 0]);
        std::fs::create_dir_all(root.join("lr1-0")).unwrap();
        std::fs::create_dir_all(root.join("octets")).unwrap();
        std::fs::write(root.join("octets/7"), "lr2-0").unwrap();
        let namespaces = || Ok(vec!["lr3-0-a".to_owned(), "other".to_owned()]);
        let (names, unread) = found(root, namespaces());
        assert!(unread.is_none(), "{unread:?}");
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["lr1-0", "lr2-0", "lr3-0"]);
        // Nobody can list a file, not even root.
        std::fs::remove_dir_all(root.join("octets")).unwrap();
        std::fs::write(root.join("octets"), "").unwrap();
        let (names, unread) = found(root, namespaces());
        assert!(unread.is_some_and(|error| error.to_string().contains("octets")));
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["lr1-0", "lr3-0"]);
        let (names, unread) = found(&root.join("octets"), entries(&root.join("octets")));
        assert!(names.is_empty() && unread.is_some());
    }

    #[test]
    fn this_process_is_alive() {
        assert!(maker_is_alive(&format!("lr{}-0", std::process::id())));
        // Above the largest process id that Linux gives out.
        assert!(!maker_is_alive("lr4194305-0"));
    }

    #[test]
    fn a_process_that_nobody_waits_for_is_not_alive() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(is_alive(pid));
        child.kill().unwrap();
        // It ends at some time after the signal.
        let deadline = Instant::now() + Duration::from_secs(60);
        while is_alive(pid) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let alive = is_alive(pid);
        child.wait().unwrap();
        assert!(!alive);
    }
}
