//! Files that another program may remove meanwhile.

use std::io::ErrorKind;
use std::path::Path;

use crate::LabError;
use crate::error::io_error;

/// Names in a folder; none if it does not exist.
pub(crate) fn entries(directory: &Path) -> Result<Vec<String>, LabError> {
    let failed = |error| io_error("read", directory)(error);
    let all = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        all => all.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in all {
        names.extend(entry.map_err(failed)?.file_name().into_string().ok());
    }
    Ok(names)
}

/// What became of work on a file. Where the file is gone nothing is left to do: another sweep was faster.
pub(crate) fn unless_gone<T: Default>(path: &Path, done: Result<T, LabError>) -> Result<T, LabError> {
    match done {
        Err(_) if matches!(path.symlink_metadata(), Err(error) if error.kind() == ErrorKind::NotFound) => {
            Ok(T::default())
        }
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_sweep_has_removed_meanwhile_is_no_failure() {
        let folder = tempfile::tempdir().unwrap();
        let failed = || Err::<String, _>(LabError::Unknown { kind: "lab", name: "lr1-0-a".to_owned() });
        let gone = folder.path().join("lr1-0-a");
        assert_eq!(unless_gone(&gone, failed()).ok().as_deref(), Some(""));
        assert!(unless_gone(folder.path(), failed()).is_err(), "it is still there");
        std::os::unix::fs::symlink("nowhere", &gone).unwrap();
        assert!(unless_gone(&gone, failed()).is_err(), "a device's name is there without its device");
        assert_eq!(unless_gone(&gone, Ok(7)).ok(), Some(7));
    }
}
