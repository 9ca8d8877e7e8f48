//! The agent of another host, reached by ssh: its socket is forwarded to one here. What the operator may do there is what the
//! user may do that ssh logs in as.

use std::ffi::OsString;
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
/// ssh gives up a host that does not answer for so long, in seconds.
const CONNECT_S: u32 = 15;
/// It asks a silent host this often, in seconds, and three times.
const ALIVE_S: u32 = 5;
/// Of what ssh writes, the end is shown.
const SHOWN_BYTES: usize = 2048;

/// A connection to the agent of another host. It ends when this is dropped.
#[derive(Debug)]
pub struct Remote {
    ssh: Child,
    folder: TempDir,
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
        let mut ssh = command(target, &folder.path().join(LOCAL), there);
        let errors = folder.path().join("errors");
        let file = std::fs::File::create(&errors).map_err(|error| failed(error.to_string()))?;
        let child = ssh.stderr(file).spawn();
        let child = child.map_err(|error| failed(format!("ssh cannot be started: {error}")))?;
        let mut remote = Remote { ssh: child, folder };
        let ready = async {
            loop {
                if let Some(status) = remote.ssh.try_wait().ok().flatten() {
                    let said = std::fs::read(&errors).unwrap_or_default();
                    let said = String::from_utf8_lossy(&said[said.len().saturating_sub(SHOWN_BYTES)..]);
                    let said: Vec<&str> =
                        said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
                    return Err(if said.is_empty() { status.to_string() } else { said.join("; ") });
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

    /// The same command's surroundings, with the agent of that host.
    pub fn context(&self, here: &Context) -> Context {
        Context {
            client: Client::new(self.folder.path().join(LOCAL)),
            socket_is_named: true,
            socket_flag: None,
            ..*here
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self.ssh.kill();
        let _ = self.ssh.wait();
    }
}

/// Name of the socket here.
const LOCAL: &str = "agent.sock";

fn command(target: &str, here: &Path, there: &Path) -> Command {
    let program = std::env::var_os("LINERATE_SSH").filter(|name| !name.is_empty());
    let mut command = Command::new(program.unwrap_or_else(|| "ssh".into()));
    command.args(["-N", "-T", "-o", "ExitOnForwardFailure=yes"]);
    // A shared connection of ssh's own would forward, and outlive this.
    command.args(["-o", "ControlPath=none", "-o", "ForwardAgent=no", "-o", "ForwardX11=no"]);
    command.args(["-o", &format!("ConnectTimeout={CONNECT_S}")]);
    command.args(["-o", &format!("ServerAliveInterval={ALIVE_S}"), "-o", "ServerAliveCountMax=3"]);
    let mut sockets = OsString::from(here);
    sockets.push(":");
    sockets.push(there);
    command.arg("-L").arg(sockets).arg("--").arg(target);
    // It asks for passwords on the terminal itself.
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_never_an_option_of_ssh() {
        let command = command("-oProxyCommand=x", Path::new("/a"), Path::new("/b"));
        let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap().to_owned()).collect();
        let end = words.iter().position(|word| word == "--").unwrap();
        assert_eq!(words[end - 2..], ["-L", "/a:/b", "--", "-oProxyCommand=x"]);
    }
}
