//! Starts QEMU as a user without rights, in its sandbox.
//!
//! In the sandbox QEMU cannot fork, so it cannot detach itself (`-daemonize`). It is a child of the agent, in a process
//! group of its own, and lives on when the agent ends. What it writes goes through a pipe to the start log, up to a
//! limit.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::{GuestError, LOG_BYTES_MAX, Launch, POLL, last_lines, working_folder};
use crate::leftovers::START_VARIABLE;
use crate::qemu_user::{QemuUser, SANDBOX};
use crate::qmp::{Qmp, QmpError};

/// The last words of a process that has ended are in the log by then.
const LOG_WAIT: Duration = Duration::from_secs(1);

/// Starts it, and waits until it answers. On `Err` there is no process of it.
pub(super) fn run(
    user: &QemuUser,
    launch: &Launch<'_>,
    start: &str,
    deadline: Instant,
) -> Result<(i32, Qmp), GuestError> {
    make_ram(user, launch)?;
    let log = launch.folder.join("start.log");
    let file = File::create(&log).map_err(|source| GuestError::File { path: log.clone(), source })?;
    let mut command = user.guest_command(launch.name, &launch.qemu.path);
    command.env(START_VARIABLE, start).current_dir(working_folder(launch));
    command.args(launch.arguments.iter().filter(|argument| *argument != "-daemonize"));
    if !launch.arguments.iter().any(|argument| argument == SANDBOX[0]) {
        command.args(SANDBOX);
    }
    let failed = |source| GuestError::Spawn { program: launch.qemu.path.clone(), source };
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(failed)?;
    let (ended, log_ended) = channel();
    let (keep, kept) = channel();
    if let Some(stderr) = child.stderr.take() {
        let follow = move || follow(stderr, file, &ended, &kept);
        std::thread::Builder::new().name("qemu-log".into()).spawn(follow).map_err(failed)?;
    }
    match wait_ready(&mut child, launch, deadline) {
        Ok(answering) => {
            // It is waited for when it ends, so that no zombie is left.
            let _ = keep.send(child);
            Ok(answering)
        }
        Err(error) => Err(give_up(child, error, &log, &log_ended)),
    }
}

/// QEMU finds its RAM files, where it may not make any.
fn make_ram(user: &QemuUser, launch: &Launch<'_>) -> Result<(), GuestError> {
    launch.ram_files.iter().try_for_each(|path| {
        let made = if launch.ram_is_made { user.give(path) } else { user.make_file(path) };
        made.map_err(|source| GuestError::File { path: path.clone(), source })
    })
}

/// QEMU answers from its main loop: then its machine is set up.
fn wait_ready(child: &mut Child, launch: &Launch<'_>, deadline: Instant) -> Result<(i32, Qmp), GuestError> {
    let failed = |source| GuestError::Spawn { program: launch.qemu.path.clone(), source };
    let pid = i32::try_from(child.id()).unwrap_or_default();
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Err(GuestError::Start { status, output: String::new() });
        }
        let error = match Qmp::connect_to(launch.qmp, pid, (Instant::now() + LOG_WAIT).min(deadline)) {
            Ok(qmp) => return Ok((pid, qmp)),
            Err(error @ QmpError::OtherProcess { .. }) => return Err(error.into()),
            Err(error) => error,
        };
        if Instant::now() >= deadline {
            tracing::debug!(%error, "the new QEMU does not answer");
            return Err(GuestError::StartTime { output: String::new() });
        }
        match error {
            QmpError::Busy { .. } | QmpError::Closed { .. } => {}
            _ => std::thread::sleep(POLL),
        }
    }
}

/// Ends it, and says what it wrote.
fn give_up(mut child: Child, error: GuestError, log: &Path, log_ended: &Receiver<()>) -> GuestError {
    let _ = child.kill();
    let _ = child.wait();
    let _ = log_ended.recv_timeout(LOG_WAIT);
    match error {
        GuestError::Start { status, .. } => GuestError::Start { status, output: last_lines(log) },
        GuestError::StartTime { .. } => GuestError::StartTime { output: last_lines(log) },
        other => other,
    }
}

/// Keeps the beginning of what QEMU writes, as long as it runs, and then waits for its process.
fn follow(mut stderr: ChildStderr, mut log: File, ended: &Sender<()>, kept: &Receiver<Child>) {
    let mut buffer = [0; 4096];
    let mut left = LOG_BYTES_MAX;
    while let Ok(length @ 1..) = stderr.read(&mut buffer) {
        let taken = length.min(usize::try_from(left).unwrap_or(usize::MAX));
        let _ = log.write_all(buffer.get(..taken).unwrap_or_default());
        left -= taken as u64;
    }
    let _ = ended.send(());
    if let Ok(mut child) = kept.recv() {
        let _ = child.wait();
    }
}
