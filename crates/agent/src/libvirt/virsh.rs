//! libvirt's own client as a child process: a host without libvirt runs the same binary, and errors are libvirt's own.

use std::ffi::OsString;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use linerate_api::{ErrorBody, Job, code};
use tokio::process::{Child, Command};
use tokio::time::timeout;

pub const HERE: &str = "qemu:///system";
/// libvirt's number of a job that moves a domain to another host.
const OUTGOING: u64 = 5;

/// A daemon that answers nothing for so long hangs; the longest answers are those while it migrates, and take seconds.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// A libvirt that is started again answers within this, unless it has trouble.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause before a command is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// A connection to one libvirt, named by its URI.
#[derive(Clone, Debug)]
pub struct Virsh {
    program: OsString,
    uri: String,
}

/// What of a domain its host keeps without its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Definition {
    /// It is defined there, and not only running there.
    pub persistent: bool,
    /// libvirt starts it when its host boots.
    pub autostart: bool,
}

impl Virsh {
    /// Nothing is connected yet.
    pub fn new(uri: impl Into<String>) -> Virsh {
        Virsh { program: "virsh".into(), uri: uri.into() }
    }

    /// Another program in its place.
    #[cfg(test)]
    pub fn by(program: impl Into<OsString>, uri: impl Into<String>) -> Virsh {
        Virsh { program: program.into(), uri: uri.into() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        // Its texts are read, so they must be the same everywhere.
        command.env("LC_ALL", "C").args(["--quiet", "--connect", &self.uri]).args(arguments);
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// What a command printed; if it failed, libvirt's message.
    pub async fn run(&self, arguments: &[&str]) -> Result<String, ErrorBody> {
        let asked = timeout(ANSWER_LIMIT, self.command(arguments).output()).await;
        let Output { status, stdout, stderr } =
            asked.map_err(|_| silent(&self.uri))?.map_err(|error| absent(&error))?;
        if status.success() {
            return Ok(String::from_utf8_lossy(&stdout).trim().to_owned());
        }
        Err(ErrorBody::new(code::REFUSED, format!("libvirt reports: {}", describe(&stderr))))
    }

    /// Starts a command that takes long; its errors can be read from the child.
    pub fn start(&self, arguments: &[String]) -> Result<Child, ErrorBody> {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut command = self.command(&arguments);
        // A signal to the agent's process group is not for it: the agent asks libvirt for the job's end.
        command.process_group(0).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().map_err(|error| absent(&error))
    }

    /// State of a domain, such as `running`.
    pub async fn state(&self, domain: &str) -> Result<String, ErrorBody> {
        self.run(&["domstate", domain]).await
    }

    /// State of a domain; none if libvirt answers and does not know it. An error means that libvirt does not answer.
    pub async fn look_up(&self, uuid: &str) -> Result<Option<String>, ErrorBody> {
        let refused = match self.state(uuid).await {
            Ok(state) => return Ok(Some(state)),
            Err(refused) => refused,
        };
        let known = self.run(&["list", "--all", "--uuid"]).await?;
        if known.lines().any(|line| line.trim() == uuid) { Err(refused) } else { Ok(None) }
    }

    /// The same, of a libvirt that may be restarting: `notify` is called when it is waited for.
    pub async fn find(&self, uuid: &str, mut notify: impl FnMut(&str)) -> Result<Option<String>, ErrorBody> {
        let until = Instant::now() + PATIENCE;
        let mut notified = false;
        loop {
            match self.look_up(uuid).await {
                Err(dead) if Instant::now() >= until => return Err(dead),
                Err(dead) => {
                    if !std::mem::replace(&mut notified, true) {
                        notify(&format!(
                            "libvirt at {} does not answer ({}); it is asked again for up to {} s",
                            self.uri,
                            dead.message,
                            PATIENCE.as_secs()
                        ));
                    }
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
                found => return found,
            }
        }
    }

    /// What of the domain stays on its host without its process.
    pub async fn definition(&self, domain: &str) -> Result<Definition, ErrorBody> {
        let text = self.run(&["dominfo", domain]).await?;
        Ok(Definition {
            persistent: field(&text, "Persistent") == Some("yes"),
            autostart: field(&text, "Autostart") == Some("enable"),
        })
    }

    /// The same once libvirt has no migration of the domain, for as long as one may take to be given up.
    pub async fn find_at_rest(
        &self,
        uuid: &str,
        notify: impl FnMut(&str),
    ) -> Result<Option<String>, ErrorBody> {
        let until = Instant::now() + PATIENCE;
        while self.job(uuid, false).await.is_some_and(|job| moves_away(&job)) && Instant::now() < until {
            tokio::time::sleep(AGAIN_AFTER).await;
        }
        self.find(uuid, notify).await
    }

    /// Asks libvirt to end its migration of a domain. Another job of the domain is left alone, and none is no error.
    pub async fn abort_migration(&self, uuid: &str) -> Result<(), ErrorBody> {
        if self.job(uuid, false).await.is_some_and(|job| moves_away(&job)) {
            self.run(&["domjobabort", uuid]).await?;
        }
        Ok(())
    }

    /// Numbers of the domain's job, or of the last one that was completed. None without a job.
    pub async fn job(&self, domain: &str, completed: bool) -> Option<Job> {
        let mut arguments = vec!["domjobinfo", domain, "--rawstats"];
        arguments.extend(completed.then_some("--completed"));
        let numbers = numbers(&self.run(&arguments).await.ok()?);
        // Without a job there is one line, and no times.
        numbers.contains_key("time_elapsed").then_some(numbers)
    }
}

/// The value in a line of `virsh dominfo`.
pub fn field<'a>(dominfo: &'a str, key: &str) -> Option<&'a str> {
    let mut pairs = dominfo.lines().filter_map(|line| line.split_once(':'));
    pairs.find_map(|(found, value)| (found.trim() == key).then(|| value.trim()))
}

/// Whether a job moves its domain to another host.
pub fn moves_away(job: &Job) -> bool {
    job.get("operation") == Some(&OUTGOING)
}

/// `key: number` lines; others are left out.
fn numbers(text: &str) -> Job {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.filter_map(|(key, value)| Some((key.trim().to_owned(), value.trim().parse().ok()?))).collect()
}

/// virsh's message, without its own prefix.
pub fn describe(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines =
        text.lines().map(|line| line.trim().trim_start_matches("error: ")).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("; ")
}

fn silent(uri: &str) -> ErrorBody {
    let text = format!("libvirt at {uri} did not answer for {} s", ANSWER_LIMIT.as_secs());
    ErrorBody::new(code::LIBVIRT_FAILED, text)
        .with_hint("`systemctl status libvirtd` (or virtqemud) there; `virsh list` shows whether it answers")
}

fn absent(error: &std::io::Error) -> ErrorBody {
    let text = format!("libvirt's client virsh cannot be started: {error}");
    let hint = "install it on this host (Debian: libvirt-clients), or name a guest of `linerate vm list`";
    ErrorBody::new(code::REFUSED, text).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{FakeLibvirt, target};
    use super::*;

    #[test]
    fn numbers_are_read_and_text_is_left_out() {
        let job = numbers("operation: 5\ntime_elapsed: 1021\nerrmsg: x\nmemory_total: 285736960\n");
        assert_eq!(job.get("memory_total"), Some(&285_736_960));
        assert_eq!(job.len(), 3);
        assert!(moves_away(&job));
        assert!(!moves_away(&numbers("operation: 6\ntime_elapsed: 3\n")), "it is being saved");
    }

    #[tokio::test]
    async fn a_libvirt_that_does_not_answer_is_not_one_that_does_not_know_the_domain() {
        let (fake, uuid) = (FakeLibvirt::new(None), target().uuid);
        let virsh = fake.virsh();
        assert_eq!(virsh.look_up(&uuid).await.ok(), Some(None));
        fake.set("others", "0f0e8c9a-0000-4000-8000-000000000002\n");
        assert_eq!(virsh.look_up(&uuid).await.ok(), Some(None), "it knows another domain only");
        fake.set("state", "running");
        assert_eq!(virsh.look_up(&uuid).await.ok(), Some(Some("running".to_owned())));
        for trouble in ["busy", "dead"] {
            fake.set(trouble, "");
            assert!(virsh.look_up(&uuid).await.is_err(), "{trouble}");
            fake.remove(trouble);
        }
    }

    #[test]
    fn libvirts_message_is_one_sentence() {
        assert_eq!(
            describe(b"error: operation failed: job aborted\n\nerror: late\n"),
            "operation failed: job aborted; late"
        );
    }
}
