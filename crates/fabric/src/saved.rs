//! Inventories in files: collected earlier, or exported by other systems. One report covers a mixed survey.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::model::{INVENTORY_BYTES_MAX, Inventory, InventoryError, Survey, Switch};

/// Files of one folder.
const FILES_MAX: usize = 4096;

/// Why a folder is no survey.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum SavedError {
    /// It cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It cannot be written.
    #[error("{} cannot be written: {source}", path.display())]
    Write {
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file is no inventory.
    #[error("{}: {source}", path.display())]
    Inventory {
        path: PathBuf,
        #[source]
        source: InventoryError,
    },
    #[error("{} holds more than {} *.json; give it fewer", path.display(), FILES_MAX)]
    TooMany { path: PathBuf },
    #[error("{} holds no *.json; save inventories with `linerate doctor --inventory > HOST.json`", path.display())]
    Empty { path: PathBuf },
}

/// All `*.json` of a folder, in the order of their names: inventories of hosts, and switches.
pub fn read(folder: &Path) -> Result<Survey, SavedError> {
    let failed = |source| SavedError::Read { path: folder.to_owned(), source };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|ending| ending == "json") {
            paths.push(path);
        }
        // Of a part nobody could say that all is well.
        if paths.len() > FILES_MAX {
            return Err(SavedError::TooMany { path: folder.to_owned() });
        }
    }
    if paths.is_empty() {
        return Err(SavedError::Empty { path: folder.to_owned() });
    }
    paths.sort();
    let mut survey = Survey::default();
    for path in paths {
        let bytes = read_file(&path).map_err(|source| SavedError::Read { path: path.clone(), source })?;
        add(&bytes, &mut survey).map_err(|source| SavedError::Inventory { path, source })?;
    }
    Ok(survey)
}

/// Writes each host's inventory to `HOST.json`. A name that is no file name becomes one.
pub fn write(survey: &Survey, folder: &Path) -> Result<(), SavedError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| SavedError::Write { path, source }
    };
    fs::create_dir_all(folder).map_err(failed(folder))?;
    let mut taken = BTreeSet::new();
    for host in &survey.hosts {
        let mut name = file_name(&host.host);
        // Two names may become one.
        while !taken.insert(name.clone()) {
            name.push_str("-2");
        }
        let path = folder.join(format!("{name}.json"));
        let text = host.to_json().map_err(|error| failed(&path)(error.into()))?;
        fs::write(&path, text + "\n").map_err(failed(&path))?;
    }
    Ok(())
}

/// Names of hosts come from other hosts: they must not lead out of the folder.
fn file_name(host: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' };
    let name: String = host.chars().take(200).map(plain).collect();
    if name.starts_with('.') { format!("_{name}") } else { name }
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(INVENTORY_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A file with a field `switch` is a switch, any other a host.
fn add(bytes: &[u8], survey: &mut Survey) -> Result<(), InventoryError> {
    match serde_json::from_slice::<Switch>(bytes) {
        Ok(switch) if bytes.len() <= INVENTORY_BYTES_MAX && !switch.switch.is_empty() => {
            survey.switches.push(switch)
        }
        _ => survey.hosts.push(Inventory::from_json(bytes)?),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::healthy_survey;

    #[test]
    fn what_is_saved_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let survey = healthy_survey();
        write(&survey, folder.path()).unwrap();
        fs::write(
            folder.path().join("leaf0.json"),
            r#"{"switch":"leaf0","ports":[{"name":"Ethernet1/1","mtu":1500}]}"#,
        )
        .unwrap();
        let read = read(folder.path()).unwrap();
        assert_eq!(read.hosts, survey.hosts);
        assert_eq!(read.switches[0].ports[0].mtu, Some(1500));
    }

    #[test]
    fn a_file_that_is_no_inventory_is_named() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(read(folder.path()), Err(SavedError::Empty { .. })));
        fs::write(folder.path().join("x.json"), "{}").unwrap();
        let error = read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("x.json"), "{error}");
    }

    #[test]
    fn a_folder_that_is_too_full_is_not_read_in_part() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..=FILES_MAX {
            File::create(folder.path().join(format!("{number}.json"))).unwrap();
        }
        assert!(matches!(read(folder.path()), Err(SavedError::TooMany { .. })));
    }

    #[test]
    fn a_name_cannot_leave_the_folder() {
        assert_eq!(file_name("../../etc/x"), "_.._.._etc_x");
        assert_eq!(file_name("web-1.example"), "web-1.example");
    }

    #[test]
    fn hosts_whose_names_differ_in_signs_only_are_all_saved() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["web 1", "web_1", "web/1"];
        write(&Survey::of(names.map(Inventory::new).into()), folder.path()).unwrap();
        let mut saved: Vec<String> =
            read(folder.path()).unwrap().hosts.into_iter().map(|host| host.host).collect();
        saved.sort();
        assert_eq!(saved, ["web 1", "web/1", "web_1"]);
    }
}
