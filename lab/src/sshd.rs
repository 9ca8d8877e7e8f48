//! sshd in a host, for commands that reach the host's agent by ssh, and what its clients need.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::error::io_error;
use crate::{Cache, Host, LabError, Process, tool};

/// The ssh servers of some hosts; ended when dropped.
#[derive(Debug)]
pub struct Sshd {
    folder: PathBuf,
    _running: Vec<Process>,
}

// It wants a user and a folder of its own, and its clients find the agent's socket where a package has it: here they
// are in a mount namespace, which `ip netns exec` has made, and go with it.
const SURROUNDINGS: &str = r#"
mount -t tmpfs sshd /mnt && mkdir /mnt/sshd /mnt/linerate && mount --bind "$2" /mnt/linerate
printf 'root:x:0:0:root:/nonexistent:/bin/sh\nsshd:x:65532:65534::/run/sshd:/bin/false\n' >/mnt/passwd
printf 'root:*:1:0:99999:7:::\nsshd:*:1:0:99999:7:::\n' >/mnt/shadow
mount --bind /mnt/passwd /etc/passwd && mount --bind /mnt/shadow /etc/shadow && mount --rbind /mnt /run
exec setpriv --pdeathsig KILL "$0" -D -e -f "$1""#;

impl Sshd {
    /// Starts one in each host, at its address on the first link, which lets in the key that [`Sshd::client`] has.
    /// `folder` gets the keys.
    pub fn start(hosts: &[Host], folder: &Path) -> Result<Sshd, LabError> {
        let daemon = Cache::locate().sshd()?;
        let file = |name: &str| folder.join(name);
        for key in ["server", "client"] {
            let path = file(key);
            tool::run("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &path.to_string_lossy()])?;
        }
        let mut running = Vec::new();
        for host in hosts {
            let (address, name) = (host.address(0), host.name());
            let configuration = file(&format!("{name}.conf"));
            let text = format!(
                "ListenAddress {address}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\n\
                 PermitRootLogin prohibit-password\nPasswordAuthentication no\n",
                file("server").display(),
                file("client.pub").display(),
            );
            std::fs::write(&configuration, text).map_err(io_error("write", &configuration))?;
            let mut command = host.command("sh");
            command.args(["-ec", SURROUNDINGS]).arg(&daemon).arg(&configuration).arg(host.run_directory());
            running.push(Process::start("sshd", command, &file(&format!("{name}.log")))?);
        }
        let sshd = Sshd { folder: folder.to_owned(), _running: running };
        sshd.write_client(hosts)?;
        Ok(sshd)
    }

    /// A program that is ssh with the key and the names of the hosts.
    pub fn client(&self) -> PathBuf {
        self.folder.join("ssh")
    }

    fn write_client(&self, hosts: &[Host]) -> Result<(), LabError> {
        let file = |name: &str| self.folder.join(name);
        let mut text = String::new();
        for host in hosts {
            text += &format!("Host {}\n  HostName {}\n", host.name(), host.address(0));
        }
        text += &format!(
            "Host *\n  User root\n  IdentityFile {}\n  IdentitiesOnly yes\n  BatchMode yes\n  StrictHostKeyChecking no\n  \
             UserKnownHostsFile /dev/null\n  LogLevel ERROR\n",
            file("client").display()
        );
        let (configuration, program) = (file("client.conf"), self.client());
        std::fs::write(&configuration, text).map_err(io_error("write", &configuration))?;
        let script = format!("#!/bin/sh\nexec ssh -F {} \"$@\"\n", configuration.display());
        std::fs::write(&program, script).map_err(io_error("write", &program))?;
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, executable).map_err(io_error("write", &program))
    }
}
