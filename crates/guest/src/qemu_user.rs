//! The user that QEMU runs as, and how a program is started as that user.
//!
//! `setsid` and `setpriv` (util-linux) give a program its own session and its user, and take every privilege away. Each
//! runs the next in its own place, so that the process id stays. QEMU never runs as root, not even while it opens its
//! files.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::unistd::User;

/// Everything that QEMU can deny itself. What a guest's command line may still use needs none of it: no scripts, no
/// helpers.
pub const SANDBOX: [&str; 2] =
    ["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"];

/// Asks for each pair of arguments, a letter and a path, whether the file can be used; prints the numbers of those that
/// cannot.
const CAN_OPEN: &str = r#"n=0
while [ $# -gt 0 ]; do
    if [ "$1" = w ]; then [ -r "$2" ] && [ -w "$2" ]; else [ -r "$2" ]; fi || echo $n
    n=$((n + 1)); shift 2
done"#;

/// A user of this host without rights of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuUser {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    /// systemd's slice in which each guest gets a scope of its own; where the agent is if none.
    pub slice: Option<String>,
}

/// Why QEMU cannot be run as a user.
#[derive(Debug, thiserror::Error)]
pub enum QemuUserError {
    #[error(
        "there is no user {0} on this host, as which QEMU is to run (qemu_user): `useradd --system --user-group --no-create-home \
         --shell /usr/sbin/nologin {0}`, or name another in agent.toml; qemu_user = \"root\" runs QEMU with all rights"
    )]
    Missing(String),
    #[error("the user database of this host cannot be read for the user {0} (qemu_user)")]
    Database(String, #[source] io::Error),
    #[error("cannot try what the user {0} may open: is setpriv (util-linux) installed?")]
    Try(String, #[source] io::Error),
}

impl QemuUser {
    /// The user of that name; none if QEMU is to run as root.
    pub fn find(name: &str) -> Result<Option<QemuUser>, QemuUserError> {
        if name.is_empty() || name == "root" {
            return Ok(None);
        }
        let found = User::from_name(name)
            .map_err(|error| QemuUserError::Database(name.to_owned(), io::Error::from(error)))?;
        let user = found.ok_or_else(|| QemuUserError::Missing(name.to_owned()))?;
        let (uid, gid) = (user.uid.as_raw(), user.gid.as_raw());
        Ok((uid != 0).then(|| QemuUser { name: name.to_owned(), uid, gid, slice: None }))
    }

    /// The same with a scope for each guest in this slice of systemd's.
    pub fn in_slice(self, slice: Option<&str>) -> QemuUser {
        QemuUser { slice: slice.map(str::to_owned), ..self }
    }

    /// The command that starts a guest's QEMU. In a scope it is no part of the agent's unit; `systemd-run --scope` runs
    /// the program in its own place.
    pub fn guest_command(&self, guest: &str, program: impl AsRef<OsStr>) -> Command {
        let plain = self.command(program);
        let Some(slice) = &self.slice else { return plain };
        let mut command = Command::new("systemd-run");
        command.args(["--scope", "--quiet", "--collect"]).arg(format!("--slice={slice}"));
        command.arg(format!("--description=Linerate guest {guest}")).arg("--");
        command.arg(plain.get_program()).args(plain.get_args());
        command.current_dir("/");
        command
    }

    /// A command that runs a program as this user, with the user's groups, without any capability, and without a way to
    /// get one. It has a session of its own: no signal of the agent's terminal reaches it. Otherwise the kernel would
    /// also hang it up if it is stopped (SIGSTOP) when the agent ends.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("setsid");
        command.arg("setpriv").arg(format!("--reuid={}", self.uid)).arg(format!("--regid={}", self.gid));
        command.args(["--init-groups", "--no-new-privs", "--inh-caps=-all", "--ambient-caps=-all"]);
        command.args(["--bounding-set=-all", "--"]).arg(program);
        command.current_dir("/");
        command
    }

    /// Which of these files this user cannot open, for writing where that is said. Asked of the kernel as the user
    /// itself, so that groups, access lists and a network's own rules count.
    pub fn cannot_open(&self, files: &[(PathBuf, bool)]) -> Result<Vec<PathBuf>, QemuUserError> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let failed = |error| QemuUserError::Try(self.name.clone(), error);
        let mut command = self.command("/bin/sh");
        command.args(["-c", CAN_OPEN, "sh"]);
        for (path, writable) in files {
            command.arg(if *writable { "w" } else { "r" }).arg(path);
        }
        let output = command.stdin(Stdio::null()).output().map_err(failed)?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(failed(io::Error::other(text)));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let numbers = text.lines().filter_map(|line| line.parse::<usize>().ok());
        Ok(numbers.filter_map(|number| files.get(number)).map(|(path, _)| path.clone()).collect())
    }

    /// Makes a file that only this user may open, where there is none.
    pub fn make_file(&self, path: &Path) -> io::Result<()> {
        use std::os::unix::fs::OpenOptionsExt;
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        std::os::unix::fs::fchown(&file, Some(self.uid), Some(self.gid))
    }

    /// Makes a folder of this user's, in which it makes its sockets and logs.
    pub fn make_folder(&self, path: &Path) -> io::Result<()> {
        use std::os::unix::fs::DirBuilderExt;
        fs::DirBuilder::new().mode(0o700).create(path)?;
        std::os::unix::fs::lchown(path, Some(self.uid), Some(self.gid))
    }

    /// Gives a file of the agent's own making to this user.
    pub fn give(&self, path: &Path) -> io::Result<()> {
        std::os::unix::fs::lchown(path, Some(self.uid), Some(self.gid))
    }
}

/// The first folder above a file that the user cannot pass through, and its mode, for a person.
pub(crate) fn closed_folder(user: &QemuUser, path: &Path) -> Option<String> {
    let above: Vec<&Path> = path.ancestors().skip(1).collect();
    let closed = above.into_iter().rev().find(|folder| {
        let mut test = user.command("/bin/sh");
        test.args(["-c", "[ -x \"$1\" ]", "sh"]).arg(folder).stdin(Stdio::null());
        !test.output().is_ok_and(|output| output.status.success())
    })?;
    let mode = fs::metadata(closed).map_or(0, |facts| facts.mode() & 0o7777);
    Some(format!("{} (mode {mode:04o})", closed.display()))
}

/// Puts bytes in a file that only root may open, and makes them durable before it has its name.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let unfinished = path.with_file_name(name);
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    fs::File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(slice: Option<&str>) -> QemuUser {
        let user = QemuUser { name: "nobody".into(), uid: 65534, gid: 65534, slice: None };
        user.in_slice(slice)
    }

    #[test]
    fn a_missing_user_is_refused_and_root_has_to_be_named() {
        assert!(QemuUser::find("root").unwrap().is_none());
        assert!(QemuUser::find("").unwrap().is_none());
        let refused = QemuUser::find("no-such-user").unwrap_err().to_string();
        assert!(refused.contains("useradd") && refused.contains("no-such-user"), "{refused}");
    }

    #[test]
    fn a_program_has_no_rights_and_the_process_id_that_was_started() {
        let mut command = user(None).command("/bin/cat");
        let child = command.arg("/proc/self/status").stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().map(str::to_owned).collect::<Vec<String>>()
        };
        assert_eq!(field("Pid:"), [pid.to_string()]);
        assert_eq!(field("Uid:"), ["65534"; 4]);
        assert_eq!(field("Gid:"), ["65534"; 4]);
        assert_eq!(field("Groups:"), ["65534"], "the agent's groups are not the user's");
        assert_eq!(field("NoNewPrivs:"), ["1"]);
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(field(set), ["0000000000000000"], "{set}");
        }
    }

    #[test]
    fn what_is_made_for_it_is_its_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (file, folder, user) = (dir.path().join("ram"), dir.path().join("qemu"), user(None));
        user.make_file(&file).unwrap();
        user.make_folder(&folder).unwrap();
        for (path, mode) in [(&file, 0o600), (&folder, 0o700)] {
            let facts = fs::metadata(path).unwrap();
            assert_eq!((facts.uid(), facts.gid(), facts.mode() & 0o7777), (65534, 65534, mode));
        }
        assert!(
            user.make_file(&file).is_err() && user.make_folder(&folder).is_err(),
            "what is there is not taken"
        );
    }

    /// The kernel hangs up a stopped process whose session's other processes have ended.
    #[test]
    fn a_guest_has_a_session_of_its_own_and_the_pid_that_was_started() {
        let mut child = user(None).guest_command("web", "sleep").arg("600").spawn().unwrap();
        let stat = format!("/proc/{}/stat", child.id());
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let found = loop {
            // pid (comm) state parent group session
            let text = fs::read_to_string(&stat).unwrap();
            let fields: Vec<&str> = text.split(' ').collect();
            if fields[1] == "(sleep)" || std::time::Instant::now() > end {
                break (fields[1].to_owned(), fields[5].to_owned());
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, ("(sleep)".to_owned(), child.id().to_string()));
    }

    #[test]
    fn a_guest_gets_a_scope_only_where_a_slice_is_named() {
        let line = |command: Command| {
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<String>>().join(" ")
        };
        let plain = line(user(None).guest_command("web", "/bin/qemu"));
        assert!(plain.starts_with("setsid setpriv ") && plain.ends_with(" -- /bin/qemu"), "{plain}");
        let scoped = line(user(Some("machine.slice")).guest_command("web", "/bin/qemu"));
        assert!(
            scoped.starts_with("systemd-run --scope ") && scoped.contains(" --slice=machine.slice "),
            "{scoped}"
        );
        assert!(scoped.ends_with(&format!(" -- {plain}")), "{scoped}");
    }
}
