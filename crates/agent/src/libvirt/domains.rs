//! The domains that run on this host, for a drain.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use linerate_api::{ErrorBody, code};

use super::processor::is_hosts;
use super::virsh::{HERE, Virsh};

/// Sockets of a libvirt of this host: of the one daemon, and of the one for QEMU alone.
const SOCKETS: [&str; 2] = ["/run/libvirt/libvirt-sock", "/run/libvirt/virtqemud-sock"];

/// Where libvirt keeps the process and the state of each domain that runs. They outlive it.
const STATE: &str = "/run/libvirt/qemu";

/// libvirt answers all of [`list`] within this, or it hangs.
const LIST_MAX: Duration = Duration::from_secs(5);

/// Why this host's domains are not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DomainsError {
    #[error("{} cannot be read: {source}", .folder.display())]
    State { folder: PathBuf, source: io::Error },
    /// QEMUs of a libvirt that was stopped.
    #[error("libvirt does not run on this host, but {left} of its domains {}: start libvirt", does(*left))]
    LibvirtStopped { left: u32 },
    #[error("{program} cannot be run: {source}")]
    Run { program: String, source: io::Error },
    #[error("a pipe is missing")]
    NoPipe,
    #[error("libvirt does not answer")]
    Silent,
    /// The thread that reads has panicked.
    #[error("a defect in the agent")]
    Panicked,
    #[error("{0}")]
    Output(#[source] io::Error),
    #[error("virsh fails: {0}")]
    Failed(ExitStatus),
}

fn does(left: u32) -> &'static str {
    if left == 1 { "does" } else { "do" }
}

/// A running or paused domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Domain {
    pub name: String,
    pub uuid: String,
    /// Bytes of memory that it may have.
    pub memory_bytes: u64,
    /// It has all that this host's processor can. Of one on its way here that is not looked at.
    pub has_hosts_cpu: bool,
}

/// Domains as the record of this host has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listed {
    /// Names of all by UUID.
    pub names: BTreeMap<String, String>,
    /// Those of them that are on their way here.
    pub arriving: Vec<Domain>,
}

fn has_libvirt() -> bool {
    SOCKETS.iter().any(|socket| Path::new(socket).exists())
}

/// Domains that this host's libvirt runs; none on a host without libvirt.
pub(crate) async fn running() -> Result<Vec<Domain>, ErrorBody> {
    if has_libvirt() {
        return all(&Virsh::new(HERE)).await;
    }
    none_left(Path::new(STATE)).map(|()| Vec::new()).map_err(|why| {
        ErrorBody::new(code::LIBVIRT_FAILED, why.to_string())
            .with_hint("`systemctl start libvirtd` (or virtqemud) on that host")
    })
}

/// The same with those that are on their way here, for callers that are no task.
pub(crate) fn list() -> Result<Listed, DomainsError> {
    if has_libvirt() { listed("virsh") } else { none_left(Path::new(STATE)).map(|()| Listed::default()) }
}

/// The QEMU of a domain that runs or is paused here.
pub(crate) fn process(name: &str) -> Option<i32> {
    let text = std::fs::read_to_string(Path::new(STATE).join(format!("{name}.pid"))).ok()?;
    text.trim().parse().ok()
}

/// No domain runs without its libvirt. The QEMUs of a libvirt that was stopped go on, so a host without its socket need
/// not be without domains.
fn none_left(state: &Path) -> Result<(), DomainsError> {
    let unread = |source| DomainsError::State { folder: state.to_owned(), source };
    let files = match std::fs::read_dir(state) {
        Ok(files) => files,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unread(error)),
    };
    let mut left = 0;
    for file in files {
        let path = file.map_err(unread)?.path();
        // libvirt's own process and its helpers have no such XML.
        if path.extension().is_some_and(|end| end == "pid") && path.with_extension("xml").exists() {
            let pid = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u32>().ok());
            left += u32::from(pid.is_some_and(|pid| Path::new("/proc").join(pid.to_string()).exists()));
        }
    }
    match left {
        0 => Ok(()),
        left => Err(DomainsError::LibvirtStopped { left }),
    }
}

fn listed(program: &str) -> Result<Listed, DomainsError> {
    let end = Instant::now() + LIST_MAX;
    let text = output(program, &["list", "--uuid", "--name"], end)?;
    let pair = |line: &str| {
        line.split_once(char::is_whitespace).map(|(uuid, name)| (uuid.into(), name.trim().into()))
    };
    let names: BTreeMap<String, String> = text.lines().filter_map(pair).collect();
    // Asked after the names: a domain that runs by now is not on its way any more.
    let paused = output(program, &["list", "--state-paused", "--uuid"], end)?;
    let mut arriving = Vec::new();
    for uuid in paused.split_whitespace() {
        let Some(name) = names.get(uuid) else { continue };
        // One that has ended meanwhile is not on its way.
        let Some(state) = of_one(program, &["domstate", "--reason", uuid], end)? else { continue };
        if !is_arriving(&state) {
            continue;
        }
        let Some(text) = of_one(program, &["dominfo", uuid], end)? else { continue };
        let memory_bytes = field(&text, "Max memory:").and_then(kib).unwrap_or(0);
        let (name, uuid) = (name.clone(), uuid.to_owned());
        arriving.push(Domain { name, uuid, memory_bytes, has_hosts_cpu: false });
    }
    Ok(Listed { names, arriving })
}

/// Whether a domain in this state has a QEMU that waits for its memory. One that leaves is in the same state during its
/// switch-over.
fn is_arriving(state: &str) -> bool {
    matches!(state.trim(), "paused (migrating)" | "paused (starting up)")
}

/// None if libvirt answers and does not know the domain.
fn of_one(program: &str, arguments: &[&str], end: Instant) -> Result<Option<String>, DomainsError> {
    match output(program, arguments, end) {
        Ok(text) => Ok(Some(text)),
        Err(DomainsError::Failed(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What virsh prints, if it ends before `end`.
fn output(program: &str, arguments: &[&str], end: Instant) -> Result<String, DomainsError> {
    let mut command = Command::new(program);
    command.env("LC_ALL", "C").args(["--quiet", "--connect", HERE]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let failed = |source| DomainsError::Run { program: program.to_owned(), source };
    let mut child = command.spawn().map_err(failed)?;
    let mut output = child.stdout.take().ok_or(DomainsError::NoPipe)?;
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        output.read_to_string(&mut text).map(|_| text)
    });
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(DomainsError::Silent);
            }
        }
    };
    let text = reader.join().map_err(|_| DomainsError::Panicked)?.map_err(DomainsError::Output)?;
    if !status.success() {
        return Err(DomainsError::Failed(status));
    }
    Ok(text)
}

/// State of a domain of this host's libvirt. One that is arriving is `paused`. None if libvirt does not know it or does
/// not answer.
pub(crate) async fn state(uuid: &str) -> Option<String> {
    Virsh::new(HERE).state(uuid).await.ok()
}

/// The same with libvirt's reason, such as `paused (user)`.
pub(crate) async fn state_with_reason(uuid: &str) -> Option<String> {
    Virsh::new(HERE).run(&["domstate", "--reason", uuid]).await.ok()
}

/// The same; none if libvirt answers and does not know it. An error: it does not answer.
pub(crate) async fn look_up(uuid: &str) -> Result<Option<String>, ErrorBody> {
    Virsh::new(HERE).look_up(uuid).await
}

/// Whether libvirt answers that the domain does not run here: somebody has stopped it, or it was moved.
pub(crate) async fn has_stopped(uuid: &str) -> bool {
    stopped(&Virsh::new(HERE), uuid).await
}

async fn stopped(virsh: &Virsh, uuid: &str) -> bool {
    virsh.look_up(uuid).await.is_ok_and(|state| state.is_none_or(|state| state == "shut off"))
}

async fn all(virsh: &Virsh) -> Result<Vec<Domain>, ErrorBody> {
    let mut found = Vec::new();
    // A name may have blanks: each domain is asked for by its UUID.
    let listed = virsh.run(&["list", "--uuid"]).await?;
    for uuid in listed.split_whitespace() {
        let text = match virsh.run(&["dominfo", uuid]).await {
            Ok(text) => text,
            // One that has ended meanwhile is not there.
            Err(error) if virsh.run(&["list", "--uuid"]).await?.contains(uuid) => return Err(error),
            Err(_) => continue,
        };
        let name = field(&text, "Name:").unwrap_or(uuid).to_owned();
        let memory_bytes = field(&text, "Max memory:").and_then(kib).unwrap_or(0);
        let has_hosts_cpu = virsh.run(&["dumpxml", uuid]).await.is_ok_and(|xml| is_hosts(&xml));
        found.push(Domain { name, uuid: uuid.to_owned(), memory_bytes, has_hosts_cpu });
    }
    Ok(found)
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.trim().strip_prefix(name)).map(str::trim)
}

fn kib(text: &str) -> Option<u64> {
    text.strip_suffix("KiB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::super::testing::FakeLibvirt;
    use super::*;

    #[tokio::test]
    async fn a_domain_that_is_listed_and_cannot_be_looked_at_is_not_left_out() {
        let fake = FakeLibvirt::new(None);
        assert_eq!(all(&fake.virsh()).await.ok(), Some(vec![]));
        fake.set("others", "0f0e8c9a-0000-4000-8000-000000000002\n");
        assert!(all(&fake.virsh()).await.is_err());
    }

    #[tokio::test]
    async fn a_domain_with_its_hosts_processor_is_known() {
        let fake = FakeLibvirt::new(Some("running"));
        for (xml, is) in [("  <cpu mode='host-passthrough'/>", true), ("  <cpu mode='host-model'/>", false)] {
            fake.set("xml", &format!("<domain>\n{xml}\n</domain>"));
            let found = all(&fake.virsh()).await.map_err(|error| error.message).unwrap();
            assert_eq!(found.iter().map(|one| one.has_hosts_cpu).collect::<Vec<_>>(), [is], "{xml}");
        }
    }

    #[tokio::test]
    async fn a_domain_has_stopped_only_if_libvirt_says_so() {
        let uuid = super::super::testing::target().uuid;
        for (state, has_stopped) in
            [(Some("running"), false), (Some("paused"), false), (Some("shut off"), true), (None, true)]
        {
            let fake = FakeLibvirt::new(state);
            assert_eq!(stopped(&fake.virsh(), &uuid).await, has_stopped, "{state:?}");
        }
        let fake = FakeLibvirt::new(None);
        fake.set("dead", "");
        assert!(!stopped(&fake.virsh(), &uuid).await, "it does not answer");
    }

    #[test]
    fn a_host_whose_libvirt_is_stopped_is_not_empty_while_domains_run() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("qemu");
        assert!(none_left(&state).is_ok(), "it never had a libvirt");
        std::fs::create_dir(&state).unwrap();
        let write = |name: &str, text: &str| std::fs::write(state.join(name), text).unwrap();
        // A domain that has ended, one that is being started, and libvirt's own process.
        write("ended.pid", &format!("{}\n", u32::MAX));
        write("empty.pid", "");
        write("driver.pid", &std::process::id().to_string());
        ["ended.xml", "empty.xml"].iter().for_each(|name| write(name, ""));
        none_left(&state).unwrap();
        write("my web.pid", &format!("{}\n", std::process::id()));
        write("my web.xml", "");
        let why = none_left(&state).unwrap_err().to_string();
        assert!(why.contains("does not run on this host, but 1 of its domains does:"), "{why}");
    }

    /// A program that prints what virsh prints.
    fn program(text: &str) -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("virsh");
        crate::libvirt::testing::script(&file, &format!("#!/bin/sh\n{text}\n"));
        let name = file.to_str().unwrap().to_owned();
        (folder, name)
    }

    #[test]
    fn names_of_domains_may_have_blanks() {
        let uuid = "6695eb01-f6a4-8304-79aa-97f2502e193f";
        let all = format!("echo '{uuid} my web                        '; echo");
        let (_folder, lists) = program(&format!("case \"$*\" in *--name) {all};; esac"));
        let names = BTreeMap::from([(uuid.into(), "my web".into())]);
        assert_eq!(listed(&lists).unwrap(), Listed { names, arriving: Vec::new() });
        let (_folder, fails) = program("exit 1");
        assert!(listed(&fails).unwrap_err().to_string().contains("fails"));
        assert!(listed("/no/such/virsh").unwrap_err().to_string().contains("cannot be run"));
    }

    #[test]
    fn a_domain_that_waits_for_its_memory_is_on_its_way() {
        let script = "case \"$*\" in\n\
            *--name) for n in 1 2 3 4 5; do echo \"u$n web $n\"; done;;\n\
            *--state-paused*) for n in 2 3 4 5 6; do echo u$n; done;;\n\
            *domstate*u2) echo 'paused (migrating)';;\n\
            *domstate*u3) echo 'paused (user)';;\n\
            *domstate*u4) exit 1;;\n\
            *domstate*u5) echo 'running (migrated)';;\n\
            *domstate*u6) echo 'paused (migrating)';;\n\
            *dominfo*u2) echo 'Max memory:     262144 KiB';;\n\
            *) exit 2;;\n\
            esac";
        let (_folder, lists) = program(script);
        let found = listed(&lists).unwrap();
        let (name, uuid) = ("web 2".into(), "u2".into());
        let two = Domain { name, uuid, memory_bytes: 256 << 20, has_hosts_cpu: false };
        assert_eq!((found.arriving, found.names.len()), (vec![two], 5));
    }

    #[test]
    fn a_domain_has_its_name_and_its_memory() {
        let text =
            "Id:             3\nName:           my web\nMax memory:     262144 KiB\nUsed memory:    1 KiB\n";
        assert_eq!(field(text, "Name:"), Some("my web"));
        assert_eq!(field(text, "Max memory:").and_then(kib), Some(256 << 20));
        assert_eq!(kib("12 MiB"), None);
    }
}
