//! Guests that libvirt drives and whose RAM Linerate copies. A second QMP socket, which libvirt does not use, reports
//! what they are and how far libvirt's migration is. Nothing is set there but one capability, and nothing is ever
//! ended.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::description::{DescriptionError, check_name};
use crate::discover::{self, DiscoverError};
use crate::domain_folder::{DomainFolder, DomainFolderError};
use crate::migrate::MigrateError;

use crate::process::{self, GuestError};
use crate::qmp::{Qmp, QmpError};
use crate::registry::{GuestRecord, Origin, RegistryError};
use crate::run_state::RunState;
use crate::socket_file::SocketFile;

/// QEMU leaves RAM in shared files out of its stream. libvirt does not know it, and never puts it back.
const IGNORE_SHARED: &str = "x-ignore-shared";
/// Between two tries to put it back.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
const TRY: Duration = Duration::from_secs(5);

/// Why a domain's QEMU cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DomainError {
    /// The name cannot be a socket's.
    #[error(transparent)]
    Name(#[from] DescriptionError),
    /// It has no second monitor.
    #[error(
        "the domain has no QMP socket of its own for Linerate: there is no {path} (docs/libvirt-direct.md says what to put into its XML)"
    )]
    NoSocket {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// Another process than a domain's QEMU could answer there.
    #[error(transparent)]
    Folder(#[from] DomainFolderError),
    #[error(
        "the socket {path} belongs to user {owner}, who may have taken the name of a domain: its folder must belong to the \
         user that libvirt's QEMUs run as. Remove the socket, or chown the folder, and start the domain again"
    )]
    Foreign {
        path: PathBuf,
        /// User id of the file's owner.
        owner: u32,
    },
    #[error("the QEMU behind {path} does not answer")]
    Silent {
        path: PathBuf,
        #[source]
        source: DiscoverError,
    },
    /// Its process cannot be looked at.
    #[error(transparent)]
    Process(#[from] RegistryError),
}

/// The capability may still be on in a running process.
#[derive(Debug, thiserror::Error)]
pub enum PutBackError {
    /// QEMU does not answer.
    #[error("its QEMU does not answer")]
    Silent(#[source] GuestError),
    /// QEMU does not take it.
    #[error("its QEMU does not take it")]
    Refused(#[source] MigrateError),
}

/// Connects to a domain's second monitor, `FOLDER/NAME.sock`. The record is of no registry. The process that listens
/// there is of root, this process's user or the folder's owner.
pub fn open(folder: &Path, name: &str, deadline: Instant) -> Result<(GuestRecord, Qmp), DomainError> {
    check_name(name)?;
    let path = folder.join(format!("{name}.sock"));
    let folder = match DomainFolder::open(folder) {
        Err(DomainFolderError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Err(DomainError::NoSocket { path });
        }
        opened => opened?,
    };
    if !path.exists() {
        return Err(DomainError::NoSocket { path });
    }
    // To connect checks that the listening process is of the file's owner, root or this process's user.
    let owner = SocketFile::open(&path).ok().map(|file| file.owner);
    if let Some(owner) = owner.filter(|owner| !folder.trusts(*owner)) {
        return Err(DomainError::Foreign { path, owner });
    }
    let found = discover::by_socket(&path, deadline);
    let found = found.map_err(|source| DomainError::Silent { path: path.clone(), source })?;
    let record = GuestRecord::new(name, Origin::Adopted, found.pid, path, Vec::new())?;
    Ok((record, found.qmp))
}

/// Has RAM in shared files left out of QEMU's stream, or not. Refused while a migration is in progress at the source.
pub fn ignore_shared(qmp: &mut Qmp, on: bool, deadline: Instant) -> Result<(), QmpError> {
    let change = json!({ "capabilities": [{ "capability": IGNORE_SHARED, "state": on }] });
    qmp.execute("migrate-set-capabilities", change, deadline).map(drop)
}

/// Whether the QEMU that waited at the destination has taken its stream: nothing more comes that the capability is for.
pub fn has_arrived(qmp: &mut Qmp, deadline: Instant) -> Result<bool, QmpError> {
    Ok(RunState::ask(qmp, deadline)? != RunState::InMigrate)
}

/// Has all RAM go in QEMU's stream again, once QEMU allows it: as long as the capability is on, a domain is saved
/// without its RAM. No other client may be connected to its monitor. On `Ok` it is off, or the process has ended.
pub fn put_back(record: &GuestRecord, deadline: Instant) -> Result<(), PutBackError> {
    loop {
        if !record.is_alive() {
            return Ok(());
        }
        let slice = deadline.min(Instant::now() + TRY);
        let done = process::connect(record, slice).map_err(PutBackError::Silent).and_then(|mut qmp| {
            ignore_shared(&mut qmp, false, slice).map_err(|error| PutBackError::Refused(error.into()))
        });
        match done {
            Ok(()) => return Ok(()),
            Err(_) if !record.is_alive() => return Ok(()),
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(error) => tracing::debug!(guest = record.name, %error, "not put back yet"),
        }
        std::thread::sleep(AGAIN_AFTER);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_domain_without_its_own_socket_gets_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let soon = Instant::now() + Duration::from_secs(1);
        let missing = open(dir.path(), "web", soon).unwrap_err();
        assert!(
            matches!(&missing, DomainError::NoSocket { path } if path.ends_with("web.sock")),
            "{missing}"
        );
        assert!(matches!(open(dir.path(), "../web", soon), Err(DomainError::Name(_))));
        std::fs::write(dir.path().join("web.sock"), "").unwrap();
        assert!(matches!(open(dir.path(), "web", soon), Err(DomainError::Silent { .. })));
    }

    #[test]
    fn name_that_another_user_has_taken_is_refused_before_anything_is_sent() {
        const ANOTHER: u32 = 12345;
        let dir = tempfile::tempdir().unwrap();
        let (folder, path) = (dir.path().join("domains"), dir.path().join("domains/web.sock"));
        std::fs::create_dir(&folder).unwrap();
        let squatter = UnixListener::bind(&path).unwrap();
        squatter.set_nonblocking(true).unwrap();
        chown(&path, Some(ANOTHER), None).unwrap();
        let soon = || Instant::now() + Duration::from_millis(100);
        let refused = open(&folder, "web", soon()).unwrap_err();
        assert!(matches!(refused, DomainError::Foreign { owner: ANOTHER, .. }), "{refused}");
        assert_eq!(squatter.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "it was connected to");
        std::fs::set_permissions(&folder, Permissions::from_mode(0o1733)).unwrap();
        assert!(matches!(open(&folder, "web", soon()), Err(DomainError::Folder(_))));
        // The folder is that user's: its QEMUs are meant. This one says nothing.
        std::fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
        chown(&folder, Some(ANOTHER), None).unwrap();
        assert!(matches!(open(&folder, "web", soon()), Err(DomainError::Silent { .. })));
        squatter.accept().expect("it is connected to");
    }

    #[test]
    fn in_a_process_that_has_ended_there_is_nothing_to_put_back() {
        let mut record =
            GuestRecord::new("a", Origin::Adopted, std::process::id() as i32, "/nowhere".into(), Vec::new())
                .unwrap();
        let soon = || Instant::now() + Duration::from_millis(1);
        assert!(matches!(put_back(&record, soon()), Err(PutBackError::Silent(_))));
        record.process.start_ticks -= 1;
        put_back(&record, soon()).unwrap();
    }
}
