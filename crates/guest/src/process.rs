//! Starts QEMU detached from the agent, and ends it.

mod unprivileged;

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::incoming_qemu::QemuBinary;
use crate::leftovers::{self, START_VARIABLE, announce, end_own};
use crate::procfs::ProcessError;
use crate::qemu_user::QemuUser;
use crate::qmp::{Qmp, QmpError};
use crate::registry::{GuestRecord, Origin, Registry, RegistryError, remove_file};

const POLL: Duration = Duration::from_millis(5);
/// How much of what a failed QEMU wrote is kept.
const LOG_BYTES_MAX: u64 = 8 << 10;

/// Why a guest could not be started or ended.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The program could not be run.
    #[error("cannot run {program}: check the path of this QEMU in the configuration")]
    Spawn {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A file of the guest's folder could not be used.
    #[error("cannot use {path}")]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// QEMU refused to start.
    #[error("QEMU did not start ({status}): {output}")]
    Start { status: ExitStatus, output: String },
    /// QEMU took too long to start.
    #[error("QEMU did not start in time: {output}")]
    StartTime {
        /// What it wrote so far.
        output: String,
    },
    /// Its monitor did not answer.
    #[error("the new QEMU does not answer on its QMP socket")]
    Qmp(#[from] QmpError),
    /// Its process could not be found.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The guest was not asked to shut down.
    #[error("the guest was not asked to shut down, because its QEMU did not take the request; it still runs")]
    NotAsked(#[source] QmpError),
    /// It was asked, and did not.
    #[error("the guest was asked to shut down, and still runs")]
    StillRuns,
    /// It did not end.
    #[error(
        "process {0} has not ended yet although it was killed: it still frees much memory, or hangs in the kernel, probably on a disk"
    )]
    Unkillable(i32),
}

/// A QEMU whose QMP socket takes no connection may be ending: it is waited for so long.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// What is to be started.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    pub name: &'a str,
    pub qemu: &'a QemuBinary,
    /// Its arguments, with `-daemonize`, `-pidfile` and `-qmp`.
    pub arguments: &'a [String],
    /// The guest's folder, reserved in the registry.
    pub folder: &'a Path,
    /// The QMP socket named in the arguments.
    pub qmp: &'a Path,
    /// The pid file named in the arguments.
    pub pid_file: &'a Path,
    /// RAM files named in the arguments: removed with the guest.
    pub ram_files: Vec<PathBuf>,
    /// The RAM files were made already, and may be filled while QEMU starts. Otherwise QEMU makes them.
    pub ram_is_made: bool,
    /// The user that it runs as, in QEMU's sandbox; as root without either if none.
    pub user: Option<&'a QemuUser>,
    /// How it came here.
    pub origin: Origin,
    /// The migration that brings it here.
    pub session: Option<String>,
}

/// Starts QEMU and waits until it answers. On `Err` nothing of it is left: no process, no RAM file, no folder. Another
/// guest of its name is left alone.
pub fn start(
    registry: &Registry,
    launch: &Launch<'_>,
    deadline: Instant,
) -> Result<(GuestRecord, Qmp), GuestError> {
    // Before anything that would remove them.
    if let Err(error) = registry.check_ram(launch.name, &launch.ram_files) {
        let _ = registry.remove_all(launch.name, launch.folder);
        return Err(error.into());
    }
    let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let start = format!("{}-{}", std::process::id(), begun.as_nanos());
    let result = try_start(registry, launch, &start, deadline);
    if result.is_err() {
        clean_up(registry, launch, &start);
    }
    result
}

fn try_start(
    registry: &Registry,
    launch: &Launch<'_>,
    start: &str,
    deadline: Instant,
) -> Result<(GuestRecord, Qmp), GuestError> {
    if !launch.ram_is_made {
        // A RAM file that a crash left behind must not give the new guest old memory.
        launch.ram_files.iter().try_for_each(|path| remove_file(path))?;
    }
    // From here to the record a crash leaves a process that only this names.
    announce(launch.folder, launch.pid_file, &launch.ram_files)?;
    let (pid, qmp) = match launch.user {
        Some(user) => unprivileged::run(user, launch, start, deadline).map(|(pid, qmp)| (pid, Some(qmp)))?,
        None => {
            run_until_detached(launch, start, deadline)?;
            (read_pid(launch.pid_file)?, None)
        }
    };
    let record =
        GuestRecord::new(launch.name, launch.origin, pid, launch.qmp.to_owned(), launch.ram_files.clone())?;
    let record = GuestRecord { session: launch.session.clone(), ..record };
    registry.put(&record)?;
    leftovers::finished(launch.folder)?;
    let qmp = qmp.map_or_else(|| connect(&record, deadline), Ok)?;
    Ok((record, qmp))
}

/// QEMU looks for firmware, ROMs and key maps in its working folder first, before its own folders, and another host
/// names them. Here it finds its sockets, pid file and logs, and no file of the host.
fn working_folder<'a>(launch: &Launch<'a>) -> &'a Path {
    launch.qmp.parent().unwrap_or(launch.folder)
}

// With -daemonize the first process ends when the guest is set up, or with an error and a sentence.
fn run_until_detached(launch: &Launch<'_>, start: &str, deadline: Instant) -> Result<(), GuestError> {
    let log = launch.folder.join("start.log");
    let file = fs::File::create(&log).map_err(|source| GuestError::File { path: log.clone(), source })?;
    let spawned = Command::new(&launch.qemu.path)
        .args(launch.arguments)
        .env(START_VARIABLE, start)
        .current_dir(working_folder(launch))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file)
        .spawn();
    let mut child =
        spawned.map_err(|source| GuestError::Spawn { program: launch.qemu.path.clone(), source })?;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(GuestError::Start { status, output: last_lines(&log) }),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL),
            Ok(None) => {
                // Its own child may be there already: the pid file names it, see `clean_up`.
                let _ = child.kill();
                let _ = child.wait();
                return Err(GuestError::StartTime { output: last_lines(&log) });
            }
            Err(source) => return Err(GuestError::Spawn { program: launch.qemu.path.clone(), source }),
        }
    }
}

/// Connects to a guest's QMP socket, and makes sure that its own process answers.
pub fn connect(record: &GuestRecord, deadline: Instant) -> Result<Qmp, GuestError> {
    Ok(Qmp::connect_to(&record.qmp, record.process.pid, deadline)?)
}

/// How a guest is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMethod {
    /// The guest is asked to shut down (ACPI power button). One that does not by the deadline runs on.
    PowerDown,
    /// QEMU gets the command to end at once; what does not by the deadline is killed.
    Quit,
}

/// Ends a guest, and removes what was made for it. `qmp` is a connection, if one is open.
pub fn stop(
    registry: &Registry,
    record: &GuestRecord,
    qmp: Option<&mut Qmp>,
    how: StopMethod,
    deadline: Instant,
) -> Result<(), GuestError> {
    end(record, qmp, how, deadline)?;
    registry.remove(record)?;
    Ok(())
}

/// Ends a guest's process, and leaves what was made for it.
pub fn end(
    record: &GuestRecord,
    qmp: Option<&mut Qmp>,
    how: StopMethod,
    deadline: Instant,
) -> Result<(), GuestError> {
    if !record.is_alive() {
        return Ok(());
    }
    let asked = match qmp {
        Some(qmp) => ask_to_end(qmp, how, deadline),
        None => Qmp::connect_to(&record.qmp, record.process.pid, deadline)
            .and_then(|mut qmp| ask_to_end(&mut qmp, how, deadline)),
    };
    // One that ends closes the connection, perhaps before its answer or its greeting.
    let asked =
        asked.or_else(|error| if matches!(error, QmpError::Closed { .. }) { Ok(()) } else { Err(error) });
    // A process that ends closes its sockets before it is seen to have ended.
    let until = if asked.is_ok() { deadline } else { Instant::now() + ENDS_WITHIN };
    let ended = record.process.wait_end(until);
    match (how, asked) {
        _ if ended || !record.is_alive() => {}
        (StopMethod::Quit, _) => record.kill()?,
        // Whoever wants its power cut says so: a guest that installs updates may take long.
        (StopMethod::PowerDown, Ok(())) => return Err(GuestError::StillRuns),
        (StopMethod::PowerDown, Err(error)) => return Err(GuestError::NotAsked(error)),
    }
    // A killed process ends as soon as the kernel lets it.
    match record.process.wait_end(Instant::now() + Duration::from_secs(30)) {
        true => Ok(()),
        false => Err(GuestError::Unkillable(record.process.pid)),
    }
}

fn ask_to_end(qmp: &mut Qmp, how: StopMethod, deadline: Instant) -> Result<(), QmpError> {
    let command = match how {
        StopMethod::PowerDown => "system_powerdown",
        StopMethod::Quit => "quit",
    };
    match qmp.execute(command, json!({}), deadline) {
        // One that is slow may still act on it.
        Ok(_) | Err(QmpError::TimedOut { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

fn clean_up(registry: &Registry, launch: &Launch<'_>, start: &str) {
    if let Err(error) = end_own(launch.pid_file, start) {
        tracing::error!(guest = launch.name, %error, "a QEMU that did not come up could not be ended");
    }
    if registry.get(launch.name).is_ok_and(|other| other.is_alive()) {
        return;
    }
    for path in &launch.ram_files {
        let _ = remove_file(path);
    }
    let _ = registry.remove_all(launch.name, launch.folder);
}

fn read_pid(path: &Path) -> Result<i32, GuestError> {
    let failed = |source| GuestError::File { path: path.to_owned(), source };
    let text = fs::read_to_string(path).map_err(failed)?;
    text.trim().parse().map_err(|_| failed(io::ErrorKind::InvalidData.into()))
}

/// What a QEMU with this folder has written since it was started, as far as that is kept.
pub fn start_log(folder: &Path) -> String {
    last_lines(&folder.join("start.log"))
}

fn last_lines(log: &Path) -> String {
    let mut bytes = Vec::new();
    let read = fs::File::open(log).and_then(|file| file.take(LOG_BYTES_MAX).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    if read.is_err() || text.is_empty() { "it wrote nothing".to_owned() } else { text }
}
