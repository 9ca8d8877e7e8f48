//! What tests of this module need: a domain, and a libvirt that answers what the test sets.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use linerate_api::{DomainEvent, EventKind, LibvirtRequest, MigrateRequest};
use linerate_core::SessionId;
use tempfile::TempDir;

use super::moves::{Kept, Move};
use super::plan::Plan;
use super::target::Target;
use super::virsh::{Definition, Virsh};
use super::xml::Changes;
use super::{Job, Needs};
use crate::journal::MovedDomain;

/// Only a hang reaches it.
pub const LONG: Duration = Duration::from_secs(60);

/// A job that moves a domain away, as virsh prints it.
pub const MIGRATES: &str = "operation: 5\ntime_elapsed: 1000\nmemory_total: 4096\n";
/// One that saves it.
pub const SAVES: &str = "operation: 6\ntime_elapsed: 1000\n";

/// A domain that runs.
pub fn target() -> Target {
    let uuid = "0f0e8c9a-0000-4000-8000-000000000001".into();
    Target { name: "web".into(), uuid, paused: false, definition: Definition::default() }
}

pub fn request() -> (MigrateRequest, LibvirtRequest) {
    (MigrateRequest::new("web", "beta"), LibvirtRequest::default())
}

pub fn moved(id: &str) -> MovedDomain {
    MovedDomain {
        id: id.into(),
        uuid: target().uuid,
        paused: false,
        autostart: false,
        to: "beta".into(),
        remote_socket: "/run/libvirt/libvirt-sock".into(),
        links: Vec::new(),
    }
}

/// A libvirt in a folder, of which each file is an answer. `state`: the domain's, if it knows the domain. `job`: what
/// it does with it. `refuses`: it does not end that. `moved`: its migration succeeds. `leaves`: the domain does not
/// exist once its state was asked for. `dead`: it does not answer. `busy`: it does not answer the state. `asked` has
/// what was asked. `others`: UUIDs of other domains. `saved`: the UUID or name of a domain with a managed save. `xml`:
/// the domain's XML. `autostart`: the domain starts with its host. `killed`: virsh ends, and its migration goes on.
pub struct FakeLibvirt(TempDir);

const SCRIPT: &str = r#"#!/bin/sh
cd "$3" || exit 9
shift 3
echo "$*" >> asked
fail() { echo "error: $1" >&2; exit 1; }
test ! -e dead || fail "no process listens"
case "$*" in list*|*UUID*) ;; "dominfo web") test -e saved || fail "not asked by UUID" ;; *) fail "not asked by UUID: $*" ;; esac
case $1 in
  list)
    cat others 2>/dev/null
    test -e state || exit 0
    case "$*" in *--name) echo "UUID web" ;; *) echo UUID ;; esac ;;
  domstate)
    test ! -e busy || fail "the domain is busy"
    cat state 2>/dev/null || fail "Domain not found"
    test ! -e leaves || rm state ;;
  domjobinfo)
    if test -e job && test ! -e aborted; then cat job; else echo "Job type: None"; fi ;;
  dumpxml) cat xml 2>/dev/null || echo "<domain/>" ;;
  domjobabort)
    test ! -e refuses || fail "it is too late"
    echo > aborted ;;
  dominfo)
    if test "$2" = "$(cat saved 2>/dev/null)"; then echo "Managed save: yes"; exit; fi
    test -e state || fail "Domain not found"
    printf 'State: %s\nPersistent: yes\n' "$(cat state)"
    if test -e autostart; then echo "Autostart: enable"; else echo "Autostart: disable"; fi ;;
  autostart)
    test ! -e refuses || fail "it cannot be written"
    echo > autostart ;;
  migrate)
    until test -e moved; do
      test ! -e killed || kill -KILL $$
      test ! -e aborted || fail "migration job: canceled by client"
      sleep 0.02
    done ;;
  *) fail "not known here: $1" ;;
esac
"#;

impl FakeLibvirt {
    /// It has the domain in this state; none if it does not know it.
    pub fn new(state: Option<&str>) -> FakeLibvirt {
        let fake = FakeLibvirt(tempfile::tempdir().unwrap());
        script(&fake.0.path().join("virsh"), &SCRIPT.replace("UUID", &target().uuid));
        state.iter().for_each(|state| fake.set("state", state));
        fake
    }

    pub fn virsh(&self) -> Virsh {
        Virsh::by(self.0.path().join("virsh"), self.0.path().display().to_string())
    }

    /// At once, as a whole.
    pub fn set(&self, file: &str, text: &str) {
        let made = self.0.path().join("new");
        std::fs::write(&made, text).unwrap();
        std::fs::rename(made, self.0.path().join(file)).unwrap();
    }

    pub fn leaves_after_first_look(&self) {
        self.set("leaves", "");
    }

    pub fn remove(&self, file: &str) {
        std::fs::remove_file(self.0.path().join(file)).unwrap();
    }

    /// How often it was asked for this.
    pub fn asked(&self, command: &str) -> usize {
        let asked = std::fs::read_to_string(self.0.path().join("asked")).unwrap_or_default();
        asked.lines().filter(|line| line.split(' ').next() == Some(command)).count()
    }

    /// Waits until it is asked for this once more, `times` times.
    pub async fn wait_asked(&self, command: &str, times: usize) {
        let enough = self.asked(command) + times;
        wait(&format!("{command} is asked for"), || self.asked(command) >= enough).await;
    }
}

pub async fn wait(what: &str, is: impl Fn() -> bool) {
    let waiting = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(LONG, waiting).await.is_ok(), "waited in vain until {what}");
}

/// A migration that is not driven yet.
pub fn job(needs: &Arc<Needs>, domain: Target, here: &FakeLibvirt) -> Arc<Job> {
    let (request, libvirt) = request();
    let (key, changes) = (SessionId([7; 16]), Changes::default());
    let plan = Plan::new(&domain, (&request, &libvirt), &changes, false, "x").unwrap();
    let claim = needs.moves.claim(&domain.uuid, &domain.name).map_err(|error| error.message).unwrap();
    let kept = Kept::new(needs, key, &domain.name, moved("a1")).unwrap();
    Arc::new(Job {
        needs: needs.clone(),
        shared: Arc::new(Move::new(&domain.name, &moved("a1"), None)),
        here: here.virsh(),
        domain,
        plan,
        changes,
        max_blackout_ms: None,
        kept,
        claim,
    })
}

/// The warnings to the operator.
pub fn warnings(of: &Move) -> Vec<String> {
    let (events, _) = of.event_log.next_events(&mut of.event_log.watch());
    let texts = events.into_iter().filter_map(|event| match event.kind {
        EventKind::Domain(DomainEvent::Warning { text }) => Some(text),
        _ => None,
    });
    texts.collect()
}

/// A program that is a script. Another process writes it. A child that this process forks just then would have the file
/// open for writing, and the kernel does not execute such a file.
pub fn script(file: &Path, text: &str) {
    let mut writer = Command::new("sh")
        .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
        .arg(file)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    writer.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(writer.wait().unwrap().success());
}
