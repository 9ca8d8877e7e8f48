//! The guests that this host knows: a folder for each, with a record that survives the agent.
//!
//! `RUN_DIR/guests/NAME/record.json`, beside it the guest's sockets, pid file and logs. Records are replaced
//! atomically. A guest runs if its very process runs: pid, start time and boot must agree.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use linerate_lock::Mutex;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::access::{Access, AccessError};
use crate::argv::{Argument, split_loose};
use crate::description::{DescriptionError, check_name};
use crate::options::Options;
use crate::procfs::{ProcessError, ProcessIdentity, boot_id, command_line, is_other_boot};
use crate::qemu_user::{QemuUser, write_private};

/// Version of the record's form.
const SCHEMA: u32 = 1;
/// Longest record read, in bytes.
const RECORD_BYTES_MAX: u64 = 1 << 20;

/// Why the registry could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("there is no guest {0} on this host: `linerate vm list` shows those there are")]
    Unknown(String),
    /// The name is taken.
    #[error("there is a guest {0} on this host already: choose another name or stop it")]
    Exists(String),
    /// A name that cannot be used.
    #[error(transparent)]
    Name(#[from] DescriptionError),
    /// The RAM file belongs to another guest that runs.
    #[error("{path} is the RAM of the guest {guest}, which runs here: it is neither removed nor used again")]
    RamOfOther { path: PathBuf, guest: String },
    /// A record that cannot be read.
    #[error("the record {path} is damaged: remove its folder if the guest has ended")]
    Damaged {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    /// A record of another version.
    #[error("the record {path} is of another version of linerate")]
    Schema { path: PathBuf },
    /// A file could not be read or written.
    #[error("cannot read or write {path}")]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The process could not be looked at.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

/// Folder of QEMU's own files in a guest's folder: sockets, pid file and logs. The agent trusts nothing in it.
pub const QEMU_FOLDER: &str = "qemu";

/// Makes that folder, for the user that QEMU runs as.
pub fn make_qemu_folder(folder: &Path, user: Option<&QemuUser>) -> Result<PathBuf, RegistryError> {
    use std::os::unix::fs::DirBuilderExt;
    let path = folder.join(QEMU_FOLDER);
    let made = match user {
        Some(user) => user.make_folder(&path),
        None => fs::DirBuilder::new().mode(0o700).create(&path),
    };
    made.map_err(|source| RegistryError::File { path: path.clone(), source })?;
    Ok(path)
}

/// Name of the file with the RAM of a guest's memory object. Neither may have a plus in its name, so no other guest's
/// object has the same file. Without it `web` with `db-ram` and `web-db` with `ram` would share one.
pub(crate) fn ram_file_name(guest: &str, object: &str) -> String {
    format!("{guest}+{object}.ram")
}

/// How a guest came here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Started by `linerate vm start`.
    Started,
    /// Started by another program and adopted: its files are not ours to remove.
    Adopted,
    Arrived,
}

/// What is remembered of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestRecord {
    /// Version of this form.
    pub schema: u32,
    pub name: String,
    /// How it came here.
    pub origin: Origin,
    pub process: ProcessIdentity,
    /// The boot that the process belongs to.
    pub boot: String,
    pub qmp: PathBuf,
    /// RAM files that were made for it.
    pub ram_files: Vec<PathBuf>,
    /// The migration that brought it here, as its journal names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
}

impl GuestRecord {
    /// A record of a process that runs now.
    pub fn new(
        name: &str,
        origin: Origin,
        pid: i32,
        qmp: PathBuf,
        ram_files: Vec<PathBuf>,
    ) -> Result<GuestRecord, RegistryError> {
        check_name(name)?;
        let process = ProcessIdentity::of(pid)?;
        Ok(GuestRecord {
            schema: SCHEMA,
            name: name.to_owned(),
            origin,
            process,
            boot: boot_id()?,
            qmp,
            ram_files,
            session: None,
        })
    }

    /// Whether both name the same process.
    pub fn is_same_process(&self, other: &GuestRecord) -> bool {
        self.process == other.process && self.boot == other.boot
    }

    /// Whether its very process runs, as far as is known ([`ProcessIdentity::is_alive`]).
    pub fn is_alive(&self) -> bool {
        !is_other_boot(&self.boot) && self.process.is_alive()
    }

    /// Whether its very process can still run code of its own ([`ProcessIdentity::can_run`]).
    pub fn can_run(&self) -> bool {
        boot_id().is_ok_and(|boot| boot == self.boot) && self.process.can_run()
    }

    /// Whether it is certain that its very process runs no code of its own any more ([`ProcessIdentity::cannot_run`]).
    pub fn cannot_run(&self) -> bool {
        is_other_boot(&self.boot) || self.process.cannot_run()
    }

    /// The UUID that its QEMU was started with, which stays as long as its process. A record of an earlier agent has
    /// none, so the process is asked.
    pub fn uuid(&self) -> Option<String> {
        uuid_in(&command_line(self.process.pid).ok()?)
    }

    /// Kills the process if it is still the same one. On `Err` that is not known, or it could not be done.
    pub fn kill(&self) -> Result<(), ProcessError> {
        if boot_id()? != self.boot || !self.process.is_alive() {
            return Ok(());
        }
        match self.process.signal(Signal::KILL) {
            Err(ProcessError::Gone { .. }) => Ok(()),
            other => other,
        }
    }
}

/// `-uuid`, or that of SMBIOS: QEMU takes the last one. All zeros are none.
fn uuid_in(arguments: &[String]) -> Option<String> {
    let of_option = |option: &Argument| {
        let value = option.value.as_deref()?;
        match option.name.as_str() {
            "uuid" => Some(value.to_lowercase()),
            "smbios" => {
                let fields = Options::parse(value, None).ok()?;
                fields.get("uuid").filter(|_| fields.get("type") == Some("1")).map(str::to_lowercase)
            }
            _ => None,
        }
    };
    let given = split_loose(arguments).iter().filter_map(of_option).next_back();
    given.filter(|uuid| uuid.chars().any(|digit| digit != '0' && digit != '-'))
}

/// A guest whose record cannot be read: nobody knows whether it runs.
#[derive(Debug)]
pub struct Unreadable {
    pub name: String,
    pub why: RegistryError,
}

/// The records of this host.
#[derive(Clone, Debug)]
pub struct Registry {
    guests: PathBuf,
    /// What the guests' QEMUs have been let in to; none where they run as root.
    access: Option<Access>,
    /// Held while files of a dead guest are removed, so that they are not those of a new one of its name.
    removing: Arc<Mutex<()>>,
}

impl Registry {
    /// The registry under a run-time folder (made if missing, readable by its owner only).
    pub fn open(run_dir: &Path) -> Result<Registry, RegistryError> {
        let guests = run_dir.join("guests");
        make_folder(&guests)?;
        Ok(Registry { guests, access: None, removing: Arc::default() })
    }

    /// With what QEMUs that are not root have been let in to, which goes with their guests. Their user passes through
    /// the folders, and cannot list them.
    pub fn with_access(self, access: Access) -> Result<Registry, RegistryError> {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&self.guests, fs::Permissions::from_mode(0o711))
            .map_err(|source| RegistryError::File { path: self.guests.clone(), source })?;
        Ok(Registry { access: Some(access), ..self })
    }

    /// What QEMUs that are not root have been let in to.
    pub fn access(&self) -> Option<&Access> {
        self.access.as_ref()
    }

    /// The guest runs here: what its QEMU was let in to goes with it from now on.
    pub fn own_files(&self, guest: &str) {
        self.access.iter().for_each(|access| access.own(guest));
    }

    /// The guest runs on another host, which uses its files on. `copied` are those that stay.
    pub fn hand_files_over(&self, guest: &str, copied: &[PathBuf]) {
        let whole = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let copied: Vec<PathBuf> = copied.iter().map(|path| whole(path)).collect();
        self.access
            .iter()
            .for_each(|access| access.hand_over(guest, &|path| copied.iter().any(|one| one == path)));
    }

    /// QEMU may have to open its files again before it is asked to leave.
    pub fn renew_files(&self, guest: &str) -> Result<(), AccessError> {
        self.access.as_ref().map_or(Ok(()), |access| access.renew(guest))
    }

    /// Whether there is anything of this guest here, be its QEMU alive or not.
    pub fn has(&self, guest: &str) -> bool {
        !matches!(self.get(guest), Err(RegistryError::Unknown(_)))
    }

    /// Closes files to QEMU's user that were opened for guests which are not here any more.
    pub fn release_files_of_absent(&self) {
        self.access.iter().for_each(|access| access.release_all_but(|guest| self.has(guest)));
    }

    /// The guest that this name was reserved for is not started.
    pub fn give_up(&self, name: &str) -> Result<(), RegistryError> {
        self.remove_all(name, &self.folder(name)?)
    }

    /// Removes a guest's folder with all in it, and closes its files to QEMU's user.
    pub(crate) fn remove_all(&self, name: &str, folder: &Path) -> Result<(), RegistryError> {
        self.access.iter().for_each(|access| access.release(name));
        remove_folder(folder)
    }

    /// The folder of a guest, whether there is one or not.
    pub fn folder(&self, name: &str) -> Result<PathBuf, RegistryError> {
        check_name(name)?;
        Ok(self.guests.join(name))
    }

    /// Makes the folder of a new guest. Leftovers of a guest that ended are removed; a running one is an error.
    pub fn reserve(&self, name: &str) -> Result<PathBuf, RegistryError> {
        let folder = self.folder(name)?;
        let _removing = self.removing.lock();
        match self.get(name) {
            Ok(record) if record.is_alive() => return Err(RegistryError::Exists(name.to_owned())),
            Ok(record) => self.remove(&record)?,
            Err(RegistryError::Unknown(_)) if folder.exists() => self.remove_all(name, &folder)?,
            Err(RegistryError::Unknown(_)) => {}
            Err(other) => return Err(other),
        }
        self.make_guest_folder(&folder)?;
        Ok(folder)
    }

    /// QEMU's user passes through to the folder in it that is its own, whatever the agent's file mode mask is.
    fn make_guest_folder(&self, folder: &Path) -> Result<(), RegistryError> {
        use std::os::unix::fs::PermissionsExt;
        make_folder(folder)?;
        if self.access.is_none() {
            return Ok(());
        }
        fs::set_permissions(folder, fs::Permissions::from_mode(0o711))
            .map_err(|source| RegistryError::File { path: folder.to_owned(), source })
    }

    /// Writes a record: a new file beside the old one, made durable, then renamed over it.
    pub fn put(&self, record: &GuestRecord) -> Result<(), RegistryError> {
        let folder = self.folder(&record.name)?;
        self.make_guest_folder(&folder)?;
        let path = folder.join("record.json");
        let text = serde_json::to_vec_pretty(record)
            .map_err(|source| RegistryError::Damaged { path: path.clone(), source })?;
        write_private(&path, &text).map_err(|source| RegistryError::File { path: path.clone(), source })
    }

    /// The record of a guest.
    pub fn get(&self, name: &str) -> Result<GuestRecord, RegistryError> {
        let path = self.folder(name)?.join("record.json");
        let text = match fs::metadata(&path) {
            Ok(metadata) if metadata.len() > RECORD_BYTES_MAX => return Err(RegistryError::Schema { path }),
            Ok(_) => fs::read(&path),
            Err(error) => Err(error),
        };
        let text = text.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => RegistryError::Unknown(name.to_owned()),
            _ => RegistryError::File { path: path.clone(), source },
        })?;
        let record: GuestRecord = serde_json::from_slice(&text)
            .map_err(|source| RegistryError::Damaged { path: path.clone(), source })?;
        if record.schema != SCHEMA || record.name != name {
            return Err(RegistryError::Schema { path });
        }
        Ok(record)
    }

    /// Refuses to make RAM files for a guest that a running guest of another name has.
    pub fn check_ram(&self, name: &str, files: &[PathBuf]) -> Result<(), RegistryError> {
        for record in self.list()?.into_iter().filter(|record| record.name != name) {
            let shared = record.ram_files.iter().find(|file| files.contains(file));
            if let Some(path) = shared.filter(|_| record.is_alive()) {
                return Err(RegistryError::RamOfOther { path: path.clone(), guest: record.name.clone() });
            }
        }
        Ok(())
    }

    /// All guests with a readable record, by name; the dead too.
    pub fn list(&self) -> Result<Vec<GuestRecord>, RegistryError> {
        Ok(self.list_all()?.0)
    }

    /// The same, and the guests whose record cannot be read: they may run.
    pub fn list_all(&self) -> Result<(Vec<GuestRecord>, Vec<Unreadable>), RegistryError> {
        let failed = |source| RegistryError::File { path: self.guests.clone(), source };
        let (mut records, mut unreadable) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&self.guests).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            match self.get(&name) {
                Ok(record) => records.push(record),
                // Reserved for a guest that is just being started, or not a guest's folder.
                Err(RegistryError::Unknown(_) | RegistryError::Name(_)) => {}
                Err(_) if entry.file_type().is_ok_and(|kind| !kind.is_dir()) => {}
                Err(why) => unreadable.push(Unreadable { name, why }),
            }
        }
        records.sort_by(|a, b| a.name.cmp(&b.name));
        unreadable.sort_by(|a, b| a.name.cmp(&b.name));
        Ok((records, unreadable))
    }

    /// Names and folders in which there is no record: starts that were not finished, and what else is lying there.
    pub(crate) fn without_record(&self) -> Result<Vec<(String, PathBuf)>, RegistryError> {
        let entries = fs::read_dir(&self.guests)
            .map_err(|source| RegistryError::File { path: self.guests.clone(), source })?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let bare = names.filter(|name| matches!(self.get(name), Err(RegistryError::Unknown(_))));
        Ok(bare.map(|name| (name.clone(), self.guests.join(name))).collect())
    }

    /// Forgets a guest and removes what was made for it: sockets, logs and RAM files. The files of an adopted one stay.
    /// If its name has gone to another process since, that one's folder and files are left alone.
    pub fn remove(&self, record: &GuestRecord) -> Result<(), RegistryError> {
        if self.get(&record.name).is_ok_and(|now| !now.is_same_process(record)) {
            return Ok(());
        }
        if record.origin != Origin::Adopted {
            for path in &record.ram_files {
                remove_file(path)?;
            }
        }
        self.remove_all(&record.name, &self.folder(&record.name)?)
    }
}

impl Registry {
    /// Frees the RAM of guests whose QEMU has ended: files in memory that no process reads any more. Their records,
    /// logs and images stay for a person who looks for the cause. Gives the names of the guests.
    ///
    /// What they were let in to is closed. It stays open for those of which `keeps_files` says that the guest may run
    /// on another host: the QEMU there uses the same entries.
    pub fn free_ram_of_dead(&self, keeps_files: impl Fn(&GuestRecord) -> bool) -> Vec<String> {
        let _removing = self.removing.lock();
        let dead = self
            .list()
            .unwrap_or_default()
            .into_iter()
            .filter(|record| record.origin != Origin::Adopted && !record.is_alive());
        let dead = dead.inspect(|record| {
            if let Some(access) = self.access.as_ref().filter(|_| !keeps_files(record)) {
                access.release(&record.name);
            }
        });
        dead.filter(free_ram).map(|record| record.name).collect()
    }
}

/// Whether there was any.
fn free_ram(record: &GuestRecord) -> bool {
    let mut freed = false;
    for path in record.ram_files.iter().filter(|path| path.exists()) {
        match fs::remove_file(path) {
            Ok(()) => freed = true,
            Err(error) => {
                tracing::warn!(guest = record.name, path = %path.display(), %error, "the RAM of a guest that has ended stays allocated");
            }
        }
    }
    if freed {
        tracing::info!(guest = record.name, "its QEMU has ended: its RAM is freed");
    }
    freed
}

/// Removes a file; that it is not there is fine.
pub(crate) fn remove_file(path: &Path) -> Result<(), RegistryError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(RegistryError::File { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// Removes a folder with all in it; that it is not there is fine.
pub(crate) fn remove_folder(path: &Path) -> Result<(), RegistryError> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(RegistryError::File { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

// Monitors are in these folders: who may open them owns the guest.
fn make_folder(path: &Path) -> Result<(), RegistryError> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| RegistryError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str) -> GuestRecord {
        GuestRecord::new(name, Origin::Started, std::process::id() as i32, "/x/qmp.sock".into(), Vec::new())
            .unwrap()
    }

    #[test]
    fn records_are_read_back_and_running_guests_are_protected() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        registry.put(&record("b")).unwrap();
        registry.put(&record("a")).unwrap();
        let names: Vec<String> = registry.list().unwrap().into_iter().map(|r| r.name).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(registry.get("a").unwrap(), record("a"));
        assert!(matches!(registry.reserve("a"), Err(RegistryError::Exists(_))));
        assert!(matches!(registry.get("c"), Err(RegistryError::Unknown(_))));
        assert!(matches!(registry.get("../a"), Err(RegistryError::Name(_))));
    }

    #[test]
    fn a_reused_pid_is_another_guest_and_is_not_killed() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        let ram = dir.path().join("ram");
        fs::write(&ram, "x").unwrap();
        // This test's own process is in place of the one that got the pid later: were it taken for the guest, kill
        // ended the test.
        let mut stale = record("a");
        stale.process.start_ticks -= 1;
        stale.ram_files.push(ram.clone());
        registry.put(&stale).unwrap();
        assert!(!stale.is_alive());
        stale.kill().unwrap();
        registry.reserve("a").unwrap();
        assert!(!ram.exists(), "leftovers of the dead are removed");

        let mut other_boot = record("a");
        other_boot.boot = "another".into();
        assert!(!other_boot.is_alive());
        other_boot.kill().unwrap();
    }

    #[test]
    fn damaged_records_are_reported_and_their_guests_listed_apart() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        registry.put(&record("a")).unwrap();
        fs::write(registry.folder("a").unwrap().join("record.json"), "{").unwrap();
        assert!(matches!(registry.get("a"), Err(RegistryError::Damaged { .. })));
        fs::write(dir.path().join("guests/a-file"), "").unwrap();
        fs::create_dir(dir.path().join("guests/reserved")).unwrap();
        let (records, unreadable) = registry.list_all().unwrap();
        assert!(records.is_empty() && registry.list().unwrap().is_empty());
        assert!(matches!(&unreadable[..], [Unreadable { name, .. }] if name == "a"), "{unreadable:?}");
        assert!(registry.reserve("a").is_err(), "it may still run: not silently overwritten");
    }

    #[test]
    fn what_belongs_to_a_later_guest_of_the_name_is_not_removed_with_an_earlier_one() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        let ram = dir.path().join("ram");
        fs::write(&ram, "x").unwrap();
        let mut earlier = record("a");
        earlier.process.start_ticks -= 1;
        earlier.ram_files.push(ram.clone());
        registry.put(&record("a")).unwrap();
        registry.remove(&earlier).unwrap();
        assert!(ram.exists() && registry.get("a").is_ok());
    }

    #[test]
    fn the_ram_of_a_dead_guest_is_freed_and_its_record_kept() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        let put = |name: &str, origin: Origin, dead: bool| {
            let ram = dir.path().join(format!("{name}.ram"));
            fs::write(&ram, "x").unwrap();
            let mut record = record(name);
            record.origin = origin;
            record.process.start_ticks -= u64::from(dead);
            record.ram_files.push(ram.clone());
            registry.put(&record).unwrap();
            ram
        };
        let dead = [put("a", Origin::Started, true), put("b", Origin::Arrived, true)];
        let others = [put("c", Origin::Arrived, false), put("d", Origin::Adopted, true)];
        assert_eq!(registry.free_ram_of_dead(|_| true), ["a", "b"]);
        assert!(dead.iter().all(|ram| !ram.exists()) && others.iter().all(|ram| ram.exists()));
        assert_eq!(registry.list().unwrap().len(), 4);
        assert!(registry.free_ram_of_dead(|_| true).is_empty());
    }

    #[test]
    fn what_a_guest_was_let_in_to_is_closed_when_it_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let access = Access::new(dir.path().join("access"));
        let registry = Registry::open(dir.path()).unwrap().with_access(access).unwrap();
        fs::create_dir(dir.path().join("access")).unwrap();
        let record_of = |name: &str| dir.path().join("access").join(format!("{name}.json"));
        for name in ["dead", "removed", "given-up", "absent", "runs"] {
            let text = format!(r#"{{ "guest": "{name}", "uid": 65534, "files": [] }}"#);
            fs::write(record_of(name), text).unwrap();
        }
        let mut dead = record("dead");
        dead.process.start_ticks -= 1;
        for record in [&dead, &record("removed"), &record("runs")] {
            registry.put(record).unwrap();
        }
        let left = || ["dead", "removed", "given-up", "absent", "runs"].map(|name| record_of(name).exists());
        registry.free_ram_of_dead(|record| record.name == "dead");
        assert_eq!(left(), [true; 5], "it may run elsewhere");
        registry.free_ram_of_dead(|_| false);
        assert_eq!(left(), [false, true, true, true, true]);
        registry.remove(&record("removed")).unwrap();
        registry.give_up("given-up").unwrap();
        assert_eq!(left(), [false, false, false, true, true]);
        registry.release_files_of_absent();
        assert_eq!(left(), [false, false, false, false, true]);
    }

    #[test]
    fn the_ram_of_a_guest_that_runs_is_no_other_guests() {
        assert_ne!(ram_file_name("web", "db-ram"), ram_file_name("web-db", "ram"));
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        let ram = [dir.path().join("ram")];
        let mut live = record("a");
        live.ram_files = ram.to_vec();
        registry.put(&live).unwrap();
        let refused = registry.check_ram("b", &ram).unwrap_err().to_string();
        assert!(refused.contains("the RAM of the guest a"), "{refused}");
        registry.check_ram("a", &ram).unwrap();
        registry.check_ram("b", &[dir.path().join("other")]).unwrap();
        live.process.start_ticks -= 1;
        registry.put(&live).unwrap();
        registry.check_ram("b", &ram).unwrap();
    }

    #[test]
    fn a_uuid_is_read_from_the_command_line_as_qemu_does() {
        let uuid = "0f0e8c9a-0000-4000-8000-00000000000A";
        let found = |line: &str| {
            let line = line.replace("UUID", uuid);
            uuid_in(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
        };
        let expected = Some(uuid.to_lowercase());
        for line in ["q -m 1 -uuid UUID", "q --uuid UUID -S", "q -uuid 1 -smbios type=1,sku=x,uuid=UUID"] {
            assert_eq!(found(line), expected, "{line}");
        }
        for line in
            ["q -name UUID", "q -smbios type=3,uuid=UUID", "q -uuid 00000000-0000-0000-0000-000000000000"]
        {
            assert_eq!(found(line), None, "{line}");
        }
    }

    #[test]
    fn files_of_an_adopted_guest_stay() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        let ram = dir.path().join("ram");
        fs::write(&ram, "x").unwrap();
        let mut adopted = record("a");
        (adopted.origin, adopted.ram_files) = (Origin::Adopted, vec![ram.clone()]);
        registry.put(&adopted).unwrap();
        registry.remove(&adopted).unwrap();
        assert!(ram.exists() && registry.list().unwrap().is_empty());
    }
}
