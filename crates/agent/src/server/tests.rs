//! Programs of other users, over the real socket. Needs root, to become another user.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use linerate_api::{
    AuditAction, AuditCaller, AuditEntry, AuditRequest, AuditResult, Client, ClientError, StopGuest,
};
use linerate_guest::registry::Registry;
use rustix::process::{Gid, Uid};
use tempfile::TempDir;

use super::*;
use crate::audit::Audit;
use crate::journal::Journal;
use crate::security::Security;

/// Users that every Debian has.
const DAEMON: u32 = 1;
const BIN: u32 = 2;

fn agent(dir: &TempDir, local: &str) -> Arc<Agent> {
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let path = |name: &str| dir.path().join(name);
    let file = path("agent.toml");
    let text = format!(
        "socket = {:?}\nstate_dir = {:?}\nrun_dir = {:?}\n{local}",
        path("agent.sock"),
        path("state"),
        path("run"),
    );
    std::fs::write(&file, text).unwrap();
    let config = Config::read(&file).unwrap();
    let journal = Journal::open(&config.state_dir).unwrap();
    let registry = Registry::open(&config.run_dir).unwrap();
    let audit = Audit::open(&config.state_dir).unwrap();
    Arc::new(Agent::new(config, journal, registry, Security::insecure(), audit))
}

/// What the agent answers to this user. The thread alone becomes it.
fn as_user<T: Send + 'static>(
    uid: u32,
    socket: &Path,
    ask: impl AsyncFnOnce(Client) -> Result<T, ClientError> + Send + 'static,
) -> Result<T, ClientError> {
    let socket = socket.to_owned();
    let asking = std::thread::spawn(move || {
        let (gid, uid) = (Gid::from_raw(uid), Uid::from_raw(uid));
        rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(ask(Client::new(socket)))
    });
    asking.join().unwrap()
}

/// It answers until this is dropped.
fn serving(agent: &Arc<Agent>) -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let inside = runtime.enter();
    let (agent, listener) = (agent.clone(), listen(&agent.config).unwrap());
    runtime.spawn(async move { answer(&agent, listener).await });
    drop(inside);
    runtime
}

fn refused<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> bool {
    match answer {
        Err(ClientError::Agent { body, .. }) => body.code == "not_authorised",
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_user_does_what_its_role_allows_and_each_try_is_written_down() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: a_user_does_what_its_role_allows: needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, "[local.users]\ndaemon = \"viewer\"\n");
    let socket = agent.config.socket.clone();
    let _serving = serving(&agent);

    let stop = async |client: Client| client.stop_guest("web", StopGuest::default()).await;
    as_user(DAEMON, &socket, async |client| client.status().await).unwrap();
    assert!(refused(as_user(DAEMON, &socket, stop)));
    assert!(refused(as_user(BIN, &socket, async |client| client.status().await)));
    let all = AuditRequest { limit: 10, ..AuditRequest::default() };
    let asked = all.clone();
    assert!(refused(as_user(DAEMON, &socket, async move |client| client.audit(&asked).await)));
    // Root may, and there is no such guest.
    assert!(!refused(as_user(0, &socket, stop)));

    let lines = as_user(0, &socket, async move |client| client.audit(&all).await).unwrap();
    let told: Vec<_> = lines.iter().map(|line| (line.action, line.result, uid(line))).collect();
    assert_eq!(
        told,
        [
            (AuditAction::GuestStop, AuditResult::Refused, Some(DAEMON)),
            (AuditAction::Look, AuditResult::Refused, Some(BIN)),
            (AuditAction::Look, AuditResult::Refused, Some(DAEMON)),
            (AuditAction::GuestStop, AuditResult::Failed, Some(0)),
        ]
    );
    assert_eq!(lines[0].guest.as_deref(), Some("web"));
    assert!(matches!(&lines[0].caller, AuditCaller::Local { user: Some(user), .. } if user == "daemon"));
    assert!(lines[3].reason.is_some());
}

fn uid(line: &AuditEntry) -> Option<u32> {
    match line.caller {
        AuditCaller::Local { uid, .. } => Some(uid),
        _ => None,
    }
}

#[test]
fn without_roles_the_socket_is_for_root_alone() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: without_roles_the_socket_is_for_root_alone: needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, "");
    let socket = agent.config.socket.clone();
    let _serving = serving(&agent);
    let answer = as_user(DAEMON, &socket, async |client| client.status().await);
    assert!(matches!(answer, Err(ClientError::PermissionDenied { .. })), "{answer:?}");
    as_user(0, &socket, async |client| client.status().await).unwrap();
}
