//! The agent of another host, reached by ssh: its socket is forwarded to one here. What the operator may do there is
//! what the user may do that ssh logs in as.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use linerate_api::{Client, ClientError, DEFAULT_SOCKET};
use tempfile::TempDir;

use crate::commands::with_progress;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

/// How often ssh is looked at until it forwards. It has its own limits, and may ask for a password.
const LOOK: Duration = Duration::from_millis(50);
/// ssh gives up a host that does not answer for so long, in seconds. A host with busy processors was seen to need 15
/// for one answer.
const CONNECT_S: u32 = 30;
/// It asks a silent host this often, in seconds, and three times. Each answer of the handshake may take as long as the
/// three together.
const ALIVE_S: u32 = 10;
/// Of what ssh writes, the end is shown.
const SHOWN_BYTES: usize = 2048;

/// Runs ssh so that Ctrl-C, which the terminal sends to all, is left to this process: the way to the agent is needed to
/// cancel. When this process ends, however it does, its end of the pipe is closed: the first argument, a folder, is
/// removed, and ssh is ended. A terminal that is closed, or a signal for the whole process group, ends the others, but
/// not what does this.
const GUARD: &str = "trap '' INT; folder=$1; shift; exec 3<&0; \"$@\" </dev/null 3<&- & ssh=$!; \
    { trap '' HUP TERM; read -r _ <&3; rm -f \"$folder\"/*; rmdir \"$folder\"; kill $ssh; } >/dev/null 2>&1 & guard=$!; \
    exec 3<&-; wait $ssh; status=$?; kill -9 $guard 2>/dev/null; exit $status";

/// A connection to the agent of another host. It ends when this is dropped.
#[derive(Debug)]
pub struct Remote {
    /// A shell that runs it, see [`GUARD`].
    ssh: Child,
    folder: TempDir,
    /// Options of a command that asks the same agent.
    options: String,
}

impl Remote {
    /// Connects to the agent of `target`, `[USER@]HOST` or a name of ssh's configuration.
    ///
    /// # Errors
    /// [`Exit::Unreachable`] if ssh ends, with its last words, or if no agent answers there.
    pub async fn open(target: &str, here: &Context) -> Result<Remote, Failure> {
        let failed = |text: String| {
            let hint = format!("`ssh {target}` shows what is wrong; LINERATE_SSH names another ssh program");
            Failure::new(Exit::Unreachable, format!("{target} cannot be reached by ssh: {text}"), hint)
        };
        // The variable for the socket is about this host.
        let there = here.socket_flag.as_deref().unwrap_or(Path::new(DEFAULT_SOCKET));
        let folder = tempfile::Builder::new().prefix("linerate-").tempdir();
        let folder = folder.map_err(|error| failed(format!("no folder for its socket: {error}")))?;
        let program = std::env::var_os("LINERATE_SSH").filter(|name| !name.is_empty());
        let program = program.unwrap_or_else(|| "ssh".into());
        let mut ssh = command(&program, target, &folder.path().join(LOCAL), there);
        let file =
            std::fs::File::create(folder.path().join(ERRORS)).map_err(|error| failed(error.to_string()))?;
        let child = ssh.stderr(file).spawn();
        let child = child.map_err(|error| failed(format!("ssh cannot be started: {error}")))?;
        let socket = here.socket_flag.as_ref().map(|socket| format!(" --socket {}", socket.display()));
        let options = format!("--connect {target}{}", socket.unwrap_or_default());
        let mut remote = Remote { ssh: child, folder, options };
        let ready = async {
            loop {
                if let Some(said) = remote.has_ended() {
                    return Err(said);
                }
                if remote.folder.path().join(LOCAL).exists() {
                    return Ok(());
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        with_progress(format!("connecting to {target}"), here.err, ready).await.map_err(failed)?;
        // ssh connects to the socket there only now.
        match Client::new(remote.folder.path().join(LOCAL)).status().await {
            Ok(_) | Err(ClientError::Agent { .. }) => Ok(remote),
            Err(error) => {
                if let Some(said) = remote.has_ended() {
                    return Err(failed(said));
                }
                let text = format!(
                    "ssh reaches {target}, but no agent answers at {} there: {error}",
                    there.display()
                );
                let hint =
                    "does the agent run there, and may that user open its socket ([local] in agent.toml)?";
                Err(Failure::new(Exit::Unreachable, text, hint))
            }
        }
    }

    /// What ssh has said, if it has ended.
    fn has_ended(&mut self) -> Option<String> {
        let status = self.ssh.try_wait().ok().flatten()?;
        let said = std::fs::read(self.folder.path().join(ERRORS)).unwrap_or_default();
        let said = String::from_utf8_lossy(&said[said.len().saturating_sub(SHOWN_BYTES)..]);
        let said: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        Some(if said.is_empty() { status.to_string() } else { said.join("; ") })
    }

    /// The same command's surroundings, with the agent of that host.
    pub fn context(&self, here: &Context) -> Context {
        Context {
            client: Client::new(self.folder.path().join(LOCAL)),
            socket_is_named: true,
            socket_flag: None,
            connected: Some(self.options.clone()),
            ..*here
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        drop(self.ssh.stdin.take());
        let _ = self.ssh.wait();
    }
}

/// Name of the socket here.
const LOCAL: &str = "agent.sock";
/// Name of the file for what ssh writes.
const ERRORS: &str = "errors";

fn command(program: &OsStr, target: &str, here: &Path, there: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", GUARD, "sh"]).arg(here.parent().unwrap_or(here)).arg(program);
    command.args(["-N", "-T", "-o", "ExitOnForwardFailure=yes"]);
    // Why a host closed the connection is no error to ssh. What it says is shown only if it fails.
    command.args(["-o", "LogLevel=INFO"]);
    // A shared connection of ssh's own would forward, and outlive this.
    command.args(["-o", "ControlPath=none", "-o", "ForwardAgent=no", "-o", "ForwardX11=no"]);
    command.args(["-o", &format!("ConnectTimeout={CONNECT_S}")]);
    command.args(["-o", &format!("ServerAliveInterval={ALIVE_S}"), "-o", "ServerAliveCountMax=3"]);
    let mut sockets = OsString::from(here);
    sockets.push(":");
    sockets.push(there);
    command.arg("-L").arg(sockets).arg("--").arg(target);
    // It asks for passwords on the terminal itself.
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
    use std::time::Instant;

    use rustix::process::{Pid, Signal, kill_process_group};

    use super::*;

    /// Only a hang reaches it.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_target_is_never_an_option_of_ssh() {
        let command = command("ssh".as_ref(), "-oProxyCommand=x", Path::new("/a"), Path::new("/b"));
        let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap().to_owned()).collect();
        let end = words.iter().position(|word| word == "--").unwrap();
        assert_eq!(words[end - 2..], ["-L", "/a:/b", "--", "-oProxyCommand=x"]);
    }

    fn kill(signal: &str, pid: &str) -> bool {
        Command::new("kill").args([signal, pid]).stderr(Stdio::null()).status().unwrap().success()
    }

    /// A program that is this script. Another process writes it. A child that another thread begins meanwhile would
    /// have it open for writing, and the kernel does not execute such a file.
    fn script(program: &Path, text: &str) {
        let written = program.with_extension("text");
        std::fs::write(&written, text).unwrap();
        let made = Command::new("install").args(["-m", "755"]).arg(&written).arg(program).status().unwrap();
        assert!(made.success());
    }

    /// Whether a child of the process ignores both of SIGHUP and SIGTERM, as the guard does.
    fn has_guard(parent: u32) -> bool {
        // Signal N is bit N - 1.
        const BOTH: u64 = 1 | (1 << 14);
        std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
            let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let ignored = field("SigIgn:").and_then(|mask| u64::from_str_radix(mask, 16).ok());
            let is_child = field("PPid:").and_then(|pid| pid.parse::<u32>().ok()) == Some(parent);
            is_child && ignored.is_some_and(|mask| mask & BOTH == BOTH)
        })
    }

    /// The same program, ended by SIGHUP and SIGTERM also if this process ignores them, as it does under nohup.
    fn with_default_signals(program: &Command) -> Command {
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP,TERM").arg(program.get_program()).args(program.get_args());
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command
    }

    /// The shell ends by itself, and tells that ssh was ended.
    fn ends_as_ended(guard: &mut Child) {
        let status = linerate_lab::wait::exit(guard, Instant::now() + LONG).unwrap();
        assert_ne!(status.signal(), Some(Signal::KILL.as_raw()), "it never ends");
        assert!(!status.success());
    }

    #[test]
    fn ssh_outlives_ctrl_c_and_ends_with_the_command() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let program = folder.path().join("ssh");
        let text = format!("#!/bin/sh\necho $$ > {0}.new; mv {0}.new {0}; exec sleep 1000\n", file.display());
        script(&program, &text);
        let for_socket = folder.path().join("socket");
        std::fs::create_dir(&for_socket).unwrap();
        let here = for_socket.join(LOCAL);
        let mut guard = command(program.as_ref(), "x", &here, Path::new("/b")).spawn().unwrap();
        let end = Instant::now() + LONG;
        let pid = loop {
            match std::fs::read_to_string(&file) {
                Ok(text) => break text.trim().to_owned(),
                Err(error) => assert!(Instant::now() < end, "ssh does not begin: {error}"),
            }
            std::thread::sleep(LOOK);
        };
        for pid in [pid.as_str(), &guard.id().to_string()] {
            assert!(kill("-INT", pid));
        }
        std::thread::sleep(LOOK);
        assert!(kill("-0", &pid) && guard.try_wait().unwrap().is_none() && for_socket.exists());
        // As when the process ends.
        drop(guard.stdin.take());
        ends_as_ended(&mut guard);
        assert!(!kill("-0", &pid) && !for_socket.exists());
    }

    #[test]
    fn the_folder_goes_when_all_are_ended_together() {
        for signal in [Signal::HUP, Signal::TERM] {
            let folder = tempfile::tempdir().unwrap();
            let for_socket = folder.path().join("socket");
            std::fs::create_dir(&for_socket).unwrap();
            std::fs::write(for_socket.join(ERRORS), "").unwrap();
            let begun = folder.path().join("begun");
            let program = folder.path().join("ssh");
            script(&program, &format!("#!/bin/sh\n> {}; exec sleep 1000\n", begun.display()));
            let ssh = command(program.as_ref(), "x", &for_socket.join(LOCAL), Path::new("/b"));
            let mut guard = with_default_signals(&ssh).process_group(0).spawn().unwrap();
            let end = Instant::now() + LONG;
            // The guard begins behind ssh.
            while !begun.exists() || !has_guard(guard.id()) {
                assert!(Instant::now() < end, "{signal:?}: neither of ssh and its guard may be missing");
                std::thread::sleep(LOOK);
            }
            kill_process_group(Pid::from_child(&guard), signal).unwrap();
            ends_as_ended(&mut guard);
            drop(guard.stdin.take());
            let end = Instant::now() + LONG;
            while for_socket.exists() {
                assert!(Instant::now() < end, "{signal:?}");
                std::thread::sleep(LOOK);
            }
        }
    }
}
