//! Programs of other users, over the real socket. Needs root, to become another user.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use linerate_api::{
    AuditAction, AuditCaller, AuditEntry, AuditRequest, AuditResult, Client, ClientError, Decision, StopGuest,
};
use linerate_core::journal::{Decided, DestinationPhase, SourcePhase};
use linerate_core::{Outcome, SessionId};
use linerate_guest::registry::{GuestRecord, Origin, Registry};
use linerate_lock::Mutex;
use linerate_wire::frame::Welcome;
use rustix::process::{Gid, Uid};
use tempfile::TempDir;

use super::resolve::{Decider, Place, carried_out, give, judge, resolve};
use super::*;
use crate::audit::Audit;
use crate::decision::DECISION_WAIT;
use crate::journal::{IncomingRecord, Journal, Record, Role};
use crate::ran_here::RanHere;
use crate::security::Security;
use crate::testing::{TestQemu, wait};

/// Users that every Debian has.
const DAEMON: u32 = 1;
const BIN: u32 = 2;

/// The folder for temporary files of whoever runs the tests may be closed to other users.
fn folder() -> TempDir {
    tempfile::tempdir_in("/tmp").unwrap()
}

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
    runtime.spawn(async move { answer(&agent, &Arc::default(), listener).await });
    drop(inside);
    runtime
}

/// Both would run, and the users of the first would talk to the second.
#[test]
fn an_agent_does_not_take_the_socket_of_another_that_listens() {
    let dir = folder();
    let agent = agent(&dir, "");
    let first = serving(&agent);
    let inside = first.enter();
    let refused = listen(&agent.config).unwrap_err().to_string();
    assert!(refused.contains("another agent listens on"), "{refused}");
    drop(inside);
    // What an agent that was killed leaves there is in nobody's way.
    first.shutdown_background();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while is_answered(&agent.config.socket) {
        assert!(std::time::Instant::now() < end, "it listens on");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(agent.config.socket.exists());
    drop(serving(&agent));
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
    let dir = folder();
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

    let mut lines = as_user(0, &socket, async move |client| client.audit(&all).await).unwrap().entries;
    // Refusals have a file of their own: within a millisecond their order with other lines is not known.
    lines.sort_by_key(|line| line.result != AuditResult::Refused);
    let audited: Vec<_> = lines.iter().map(|line| (line.action, line.result, uid(line))).collect();
    assert_eq!(
        audited,
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

/// The status of an answer to a plain request of this user.
fn status_of_raw(uid: u32, socket: &Path, request: String) -> u16 {
    let socket = socket.to_owned();
    let asking = std::thread::spawn(move || {
        let uid = Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split_whitespace().nth(1).unwrap().parse().unwrap()
    });
    asking.join().unwrap()
}

fn posted(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[test]
fn an_operator_does_not_say_what_the_other_hosts_libvirt_opens() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: an_operator_does_not_say_what_libvirt_opens: needs root");
        return;
    }
    let dir = folder();
    let agent = agent(&dir, "[local.users]\ndaemon = \"operator\"\nbin = \"administrator\"\n");
    let socket = agent.config.socket.clone();
    let _serving = serving(&agent);
    let asked = |uid, more: &str| {
        let body = format!(r#"{{"guest": "no such domain", "to": "127.0.0.1:1", "libvirt": {more}}}"#);
        status_of_raw(uid, &socket, posted(paths::MIGRATIONS, &body))
    };
    let reaching = [
        r#"{"xml": "<domain/>"}"#,
        r#"{"persistent_xml": "<domain/>"}"#,
        r#"{"remote_socket": "/run/other.sock"}"#,
        // A list of the same values.
        r#"["/run/libvirt/libvirt-sock", false, null, "<domain/>", null]"#,
    ];
    for more in reaching {
        assert_eq!(asked(DAEMON, more), 403, "{more}");
        assert_ne!(asked(BIN, more), 403, "{more}");
    }
    for more in ["{}", "null", r#"{"remote_socket": "/run/libvirt/libvirt-sock"}"#] {
        assert_ne!(asked(DAEMON, more), 403, "{more}");
    }
    let body = r#"["g", "127.0.0.1:1"]"#;
    assert_eq!(status_of_raw(DAEMON, &socket, posted(paths::MIGRATIONS, body)), 400);
}

#[test]
fn a_viewer_does_not_take_the_links_of_guests_that_move() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: a_viewer_does_not_take_the_links: needs root");
        return;
    }
    let dir = folder();
    let agent = agent(&dir, "[local.users]\ndaemon = \"viewer\"\nbin = \"operator\"\n");
    let socket = agent.config.socket.clone();
    let _serving = serving(&agent);
    let bench = |uid, force: bool| {
        let body =
            format!(r#"{{"to":"127.0.0.1:1","force":{force},"test":{{"name":"bandwidth","time_ms":100}}}}"#);
        status_of_raw(uid, &socket, posted(paths::BENCH, &body))
    };
    assert_eq!((bench(DAEMON, true), bench(DAEMON, false), bench(BIN, true)), (403, 200, 200));
    let doctor = |uid, probes: &str| {
        status_of_raw(uid, &socket, posted(paths::DOCTOR, &format!(r#"{{"probes":"{probes}"}}"#)))
    };
    assert_eq!((doctor(DAEMON, "full"), doctor(DAEMON, "short"), doctor(BIN, "full")), (403, 200, 200));
}

#[test]
fn a_user_without_a_role_cannot_use_up_the_agents_descriptors() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: a_user_without_a_role_cannot_use_up_descriptors: needs root");
        return;
    }
    let dir = folder();
    let agent = agent(&dir, "[local.users]\ndaemon = \"viewer\"\n");
    let socket = agent.config.socket.clone();
    let _serving = serving(&agent);
    let flooded = socket.clone();
    let flood = std::thread::spawn(move || {
        let uid = Uid::from_raw(BIN);
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        let connect = || std::os::unix::net::UnixStream::connect(&flooded).unwrap();
        let opened: Vec<_> = (0..connections::OF_ONE_USER + 50).map(|_| connect()).collect();
        // Those for which there was no room are closed.
        let mut last = connect();
        last.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        let read = last.read(&mut [0]);
        let closed = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(matches!(&read, Ok(0)) || read.as_ref().is_err_and(closed), "{read:?}");
        opened
    });
    let flood = flood.join().unwrap();
    for uid in [0, DAEMON] {
        as_user(uid, &socket, async |client| client.status().await).unwrap();
    }
    drop(flood);
    // There is room again once they have gone.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !as_user(BIN, &socket, async |client| client.status().await)
        .is_err_and(|error| matches!(error, ClientError::Agent { .. }))
    {
        assert!(std::time::Instant::now() < end);
    }
}

/// Each asks another host, which does not answer. A client that hangs up must not make room for the next request.
#[test]
fn of_a_users_requests_a_few_are_worked_on_at_a_time_also_when_its_clients_have_gone() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: of_a_users_requests_a_few_are_worked_on: needs root");
        return;
    }
    let dir = folder();
    let agent = agent(&dir, "[local.users]\ndaemon = \"viewer\"\n");
    let socket = agent.config.socket.clone();
    let _serving = serving(&agent);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let asking = asked.clone();
    let silent = crate::testing::listen(&Security::insecure(), move |accepted| {
        let welcome = Welcome { version: VERSION_MAX, control_received: 0 };
        asking.lock().push(accepted.welcome(welcome).unwrap());
    });
    let body = format!(r#"{{"hosts":["{}"]}}"#, silent.addresses()[0]);
    let ask = |count: usize| {
        let (socket, request) = (socket.clone(), posted(paths::DOCTOR, &body));
        let asking = std::thread::spawn(move || {
            let uid = Uid::from_raw(DAEMON);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            let one = |_| {
                let mut client = std::os::unix::net::UnixStream::connect(&socket).unwrap();
                client.write_all(request.as_bytes()).unwrap();
                client
            };
            (0..count).map(one).collect::<Vec<_>>()
        });
        asking.join().unwrap()
    };
    let gone = ask(connections::TURNS);
    wait("they are not worked on", || asked.lock().len() == connections::TURNS);
    drop(gone);
    let _waiting = ask(4);
    // Long enough to notice that clients have gone, and to begin more.
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(asked.lock().len(), connections::TURNS);
    // Nobody else waits for that user, and the user sees what goes on.
    for uid in [0, DAEMON] {
        as_user(uid, &socket, async |client| client.status().await).unwrap();
    }
    asked.lock().clear();
    wait("no turn is given back", || asked.lock().len() == 4);
    asked.lock().clear();
}

#[tokio::test]
async fn events_are_not_kept_ready_for_a_client_that_has_gone() {
    let log = Arc::new(EventLog::default());
    let cursor = log.watch();
    let (lines, received) = tokio::sync::mpsc::channel(16);
    let limit = std::time::Duration::from_secs(60);
    let feeding = tokio::spawn(feed(log, |log| log, cursor, lines, limit * 60));
    drop(received);
    tokio::time::timeout(limit, feeding).await.expect("it waits for the next event").unwrap();
}

#[test]
fn without_roles_the_socket_is_for_root_alone() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: without_roles_the_socket_is_for_root_alone: needs root");
        return;
    }
    let dir = folder();
    let agent = agent(&dir, "");
    let socket = agent.config.socket.clone();
    let _serving = serving(&agent);
    let answer = as_user(DAEMON, &socket, async |client| client.status().await);
    assert!(matches!(answer, Err(ClientError::PermissionDenied { .. })), "{answer:?}");
    // Whatever mask of file modes the agent was started with.
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    as_user(0, &socket, async |client| client.status().await).unwrap();
}

/// The request waits for another host's agent when its client goes.
#[test]
fn what_a_client_began_is_written_down_although_it_hangs_up() {
    let dir = folder();
    let agent = agent(&dir, "");
    let _serving = serving(&agent);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let body = format!(r#"{{"port":"eth0","host":"{}"}}"#, silent.local_addr().unwrap());
    let mut client = std::os::unix::net::UnixStream::connect(&agent.config.socket).unwrap();
    client.write_all(posted(paths::LINK_CONFIRM, &body).as_bytes()).unwrap();
    let asked = silent.accept().unwrap();
    drop(client);
    // Long enough for the agent to notice.
    std::thread::sleep(std::time::Duration::from_millis(300));
    drop((asked, silent));
    let all = AuditRequest { limit: 10, ..AuditRequest::default() };
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let lines = loop {
        let lines = agent.audit.read(&all).unwrap().entries;
        if !lines.is_empty() {
            break lines;
        }
        assert!(std::time::Instant::now() < end, "no line");
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    let audited: Vec<_> = lines.iter().map(|line| (line.action, line.result)).collect();
    assert_eq!(audited, [(AuditAction::LinkConfirm, AuditResult::Failed)]);
}

/// A guest that is paused in doubt must not be reported as a migration that there is not.
#[test]
fn a_session_that_recovery_has_is_in_doubt_to_whoever_attaches_or_cancels() {
    let dir = folder();
    let mut agent = agent(&dir, "");
    Arc::get_mut(&mut agent).unwrap().decision_wait = std::time::Duration::from_millis(500);
    crate::recovery::tests::commit_sent(&agent);
    crate::recovery::recover(&agent.recovery).unwrap();
    let _serving = serving(&agent);
    let client = Client::new(&agent.config.socket);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let id = client.migrations().await.unwrap()[0].id.clone();
        let errors = [client.events(&id).await.err(), client.cancel(&id).await.err()];
        for error in errors {
            let Some(ClientError::Agent { body, .. }) = error else { panic!("{error:?}") };
            assert_eq!(body.guest_state, Some(GuestState::InDoubt), "{body:?}");
            assert!(
                body.message.contains("paused here") && body.hint.contains("linerate resolve"),
                "{body:?}"
            );
        }
        // It is written, and nothing shows that the guest is back: its process does not answer.
        let summary = client.resolve(&id, Decision::ResumeHere).await.unwrap();
        assert_eq!(summary.state, MigrationState::InDoubt, "{summary:?}");
        assert!(summary.note.is_some(), "{summary:?}");
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let note = client.migrations().await.unwrap()[0].note.clone().unwrap_or_default();
            if note.contains("is being resumed here") {
                break;
            }
            assert!(std::time::Instant::now() < end, "{note}");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    });
}

#[test]
fn resolve_reports_a_decision_that_was_not_followed() {
    let fate = |decided, here, place, is_alive| {
        judge(decided, here, place, is_alive).map_err(|Refusal(body)| body.guest_state)
    };
    let (source, paused) = (Place::Source { ran: true }, Place::Source { ran: false });
    for place in [source, paused, Place::Destination] {
        for here in [true, false] {
            for is_alive in [true, false] {
                assert_eq!(fate(Decided::Waiting, here, place, is_alive), Ok(false));
                let done = if here && !is_alive { Err(Some(GuestState::Gone)) } else { Ok(true) };
                assert_eq!(fate(Decided::Taken, here, place, is_alive), done, "{place:?}, {here}");
                let doubt = Err(Some(GuestState::InDoubt));
                assert_eq!(fate(Decided::Void, here, place, is_alive), doubt);
                assert_eq!(fate(Decided::AlsoAtSource, here, place, is_alive), doubt);
            }
        }
    }
    let overruled = |here, place, is_alive| fate(Decided::Overruled, here, place, is_alive).unwrap_err();
    assert_eq!(overruled(true, source, true), Some(GuestState::RunsAtDestination));
    assert_eq!(overruled(true, paused, true), Some(GuestState::PausedAtDestination));
    assert_eq!(overruled(false, source, true), Some(GuestState::RunsAtSource));
    assert_eq!(overruled(false, source, false), Some(GuestState::Gone), "it could not be resumed");
    assert_eq!(overruled(true, Place::Destination, true), None);
}

/// Its QEMU ends when the decision is on disk.
#[tokio::test]
async fn a_guest_whose_qemu_has_ended_is_not_reported_as_one_that_is_to_run() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let mut ending = crate::testing::Ending::start(&dir);
    let qemu = crate::testing::arrived(&agent, ending.pid());
    let mut role = crate::recovery::tests::leaves(&qemu, SourcePhase::CommitSent);
    let Role::Source { ran_here, .. } = &mut role else { panic!("{role:?}") };
    *ran_here = RanHere::Yes;
    let session = SessionId([7; 16]);
    agent.journal.put(session, &Record::new("g", agent.journal.next_order(), role)).unwrap();
    crate::recovery::recover(&agent.recovery).unwrap();
    let journal = agent.journal.clone();
    let ends = std::thread::spawn(move || {
        let is_on_disk = || {
            let role = journal.get(session).unwrap().unwrap().role;
            matches!(role, Role::Source { phase: SourcePhase::ResumingHere, .. })
        };
        crate::testing::wait("the decision is not written", is_on_disk);
        ending.end();
    });
    let decision = Bytes::from_static(br#"{"decision":"resume_here"}"#);
    let answer = resolve(State(agent.clone()), Path(session.to_string()), decision).await;
    ends.join().unwrap();
    let Err(Refusal(body)) = answer else { panic!("the guest runs nowhere") };
    assert_eq!((body.code.as_str(), body.guest_state), ("guest_gone", Some(GuestState::Gone)), "{body:?}");
    assert!(body.message.contains("has ended"), "{body:?}");
}

#[test]
fn a_client_waits_for_a_decision_longer_than_the_agent_takes_to_answer() {
    assert!(DECISION_WAIT * 2 < linerate_api::RESOLVE_MAX);
}

/// As after the start of an agent whose guest was committed. QEMU serves one client at a time.
#[tokio::test]
async fn a_decision_waits_until_recovery_has_looked_at_the_guest() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let socket = dir.path().join("g.qmp");
    let hand = TestQemu::start(&socket, &[]);
    let pid = i32::try_from(hand.pid()).unwrap();
    let qemu = GuestRecord::new("g", Origin::Arrived, pid, socket.clone(), vec![]).unwrap();
    let incoming = IncomingRecord { qemu: Some(qemu), ..IncomingRecord::default() };
    let session = SessionId([7; 16]);
    let record = Record::new("g", agent.journal.next_order(), incoming.role(DestinationPhase::Committed));
    agent.journal.put(session, &record).unwrap();
    let other = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    crate::recovery::recover(&agent.recovery).unwrap();
    let id = session.to_string();
    let Err(Refusal(body)) = give(&agent, &id, true, std::time::Duration::ZERO).await else {
        panic!("nobody knows whether it runs")
    };
    assert!(body.message.contains("is being looked at"), "{body:?}");
    assert_eq!((body.guest_state, body.retry_can_help), (Some(GuestState::InDoubt), true), "{body:?}");
    let [one] = <[_; 1]>::try_from(agent.unfinished()).unwrap_or_else(|all| panic!("{}", all.len()));
    let (shown, note) = (one.summary().state, one.summary().note.unwrap());
    assert!(
        shown == MigrationState::Recovering && note.contains("Look at that QEMU, on this host"),
        "{note}"
    );
    drop(other);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let decision = Bytes::from_static(br#"{"decision":"resume_here"}"#);
        let Err(Refusal(body)) = resolve(State(agent.clone()), Path(id.clone()), decision).await else {
            break;
        };
        // One that may have run is not let run before its source is heard.
        let is_early =
            ["is being looked at", "less than 20 s ago"].iter().any(|text| body.message.contains(text));
        assert!(is_early && std::time::Instant::now() < end, "{body:?}");
        one.commit_again(true);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    wait("it does not run", || agent.incoming.outcome(session) == Outcome::Committed);
}

/// Two copies write to the same disks: the agent's log is not where an operator looks.
#[tokio::test]
async fn a_guest_that_may_run_on_both_hosts_is_in_doubt_until_an_operator_settles_it() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let own = i32::try_from(std::process::id()).unwrap();
    let qemu = crate::testing::arrived(&agent, own);
    let role = crate::recovery::tests::leaves(&qemu, SourcePhase::RolledBack);
    let session = SessionId([7; 16]);
    agent.journal.put(session, &Record::new("g", agent.journal.next_order(), role)).unwrap();
    both_hosts::note(&agent.journal, &agent.audit, session);
    let Json(listed) = list_migrations(State(agent.clone())).await;
    let states: Vec<MigrationState> = listed.iter().map(|one| one.state).collect();
    assert_eq!((states, status_of(&agent).in_doubt), (vec![MigrationState::InDoubt], 1));
    let decide = |decision: &'static [u8]| {
        resolve(State(agent.clone()), Path(session.to_string()), Bytes::from_static(decision))
    };
    let Err(Refusal(body)) = decide(br#"{"decision":"give_up"}"#).await else { panic!("nothing was ended") };
    assert_eq!(body.guest_state, Some(GuestState::InDoubt), "{body:?}");
    assert!(decide(br#"{"decision":"resume_here"}"#).await.is_ok());
    let Json(listed) = list_migrations(State(agent.clone())).await;
    assert_eq!((listed.len(), status_of(&agent).in_doubt), (0, 0));
}

/// The notice of the roll-back came when QEMU had the command to run the guest.
#[tokio::test]
async fn a_guest_that_a_live_session_has_run_beside_its_source_is_not_reported_as_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let incoming = crate::incoming::tests::run_by_its_operator();
    let session = incoming.session;
    let own = i32::try_from(std::process::id()).unwrap();
    let qemu = Some(crate::testing::arrived(&agent, own));
    let role = IncomingRecord { qemu, ..IncomingRecord::default() }.role(DestinationPhase::Running);
    agent.journal.put(session, &Record::new("g", agent.journal.next_order(), role)).unwrap();
    let decider = Decider::Incoming(incoming);
    let Ok(done) = carried_out(&agent, &decider, true).await else { panic!("it runs here alone") };
    assert_eq!(done.state, MigrationState::Completed, "{done:?}");
    both_hosts::note(&agent.journal, &agent.audit, session);
    let Err(Refusal(body)) = carried_out(&agent, &decider, true).await else { panic!("exit code 0") };
    assert_eq!(body.guest_state, Some(GuestState::InDoubt), "{body:?}");
}

/// Another program let it run at its source, and the destination answers that it runs there. Nothing ends it here.
#[tokio::test]
async fn a_live_session_in_doubt_takes_a_decision_about_a_guest_that_may_run_on_both_hosts() {
    let dir = tempfile::tempdir().unwrap();
    let mut agent = crate::testing::agent(&dir, &[]);
    Arc::get_mut(&mut agent).unwrap().decision_wait = std::time::Duration::from_millis(500);
    let own = i32::try_from(std::process::id()).unwrap();
    let qemu = crate::testing::arrived(&agent, own);
    let outgoing = crate::outgoing::tests::in_doubt(&qemu);
    let role = crate::recovery::tests::leaves(&qemu, SourcePhase::CommitSent);
    let record = Record::new("g", agent.journal.next_order(), role);
    agent.journal.put(outgoing.session, &record).unwrap();
    agent.outgoing.add(outgoing.clone());
    both_hosts::note(&agent.journal, &agent.audit, outgoing.session);
    let decision = Bytes::from_static(br#"{"decision":"give_up"}"#);
    let answer = resolve(State(agent.clone()), Path(outgoing.session.to_string()), decision).await;
    assert!(answer.is_ok(), "it is refused");
    assert_eq!(outgoing.decided_for(false), Decided::Waiting);
}
