//! The audit log: who did what on this host, or tried to. JSON lines in `state_dir`, and journald's fields.
//!
//! | file | what it has |
//! |---|---|
//! | here | what is recorded, and what of it is read again |
//! | `command` | what commands on this host write, without the agent |
//! | `limit` | how many lines of one kind are written in a second |
//! | `log` | a file of lines that begins anew when it is full |
//!
//! Refusals and look-only requests have a file of their own. Otherwise strangers and viewers could push out
//! what was done, by being refused or by looking often enough. So has what other hosts begin here, and what of it
//! fails: a host that may send guests can begin any number of sessions, and end each at once.

pub(crate) mod command;
mod limit;
mod log;

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

use linerate_api::{
    AuditAction, AuditAnswer, AuditCaller, AuditEntry, AuditRequest, AuditResult, EventKind, MigrationOutcome,
};
use linerate_core::{Fault, SessionId};
use linerate_lock::Mutex;

use crate::clock::unix_ms;
use crate::faults::chain;
use crate::security::PeerName;

use limit::{Limit, Limits};
use log::{Files, Log};

/// Target of the events for journald.
pub(crate) const TARGET: &str = "linerate::audit";
/// Lines of hosts without a proved name that are written in a second, and of each host with one. Of refusals and of
/// what only looks; the others are counted.
const HOSTS_PER_SECOND: u32 = 10;
/// Lines of each host about what it begins or what of it fails, in a second. Each guest that may arrive from it at a
/// time begins once and ends once.
const BEGUN_PER_SECOND: u32 = 64;
/// The same for this host's users: of refusals, and of what only looks.
const USERS_PER_SECOND: u32 = 100;
/// Bytes of one text in a line. Callers choose some of them.
const TEXT_MAX: usize = 1024;

/// The audit log's files, and the limits for all but the first one.
#[derive(Debug)]
pub struct Audit {
    done: Mutex<Log>,
    /// Refusals, and what only looks.
    refused: Mutex<Log>,
    /// What other hosts begin here, and what of it fails.
    begun: Mutex<Log>,
    /// Lines of commands that work without an agent, such as `linerate cluster init`.
    commands: Files,
    /// By their proved names: no stranger, and no other host, uses up what one of them has.
    hosts: Mutex<Limits>,
    /// The same for what they begin.
    beginners: Mutex<Limits>,
    /// What users of this host were refused.
    users: Mutex<Limit>,
    /// What users of this host looked at: they do not use up what refusals have.
    lookers: Mutex<Limit>,
}

impl Audit {
    /// Opens the files of this folder, or makes them.
    pub fn open(state_dir: &Path) -> io::Result<Audit> {
        Ok(Audit {
            done: Mutex::new(Log::open(&state_dir.join("audit.jsonl"))?),
            refused: Mutex::new(Log::open(&state_dir.join("audit-refused.jsonl"))?),
            begun: Mutex::new(Log::open(&state_dir.join("audit-hosts.jsonl"))?),
            commands: Files::of(command::file(state_dir)),
            hosts: Mutex::new(Limits::of(HOSTS_PER_SECOND)),
            beginners: Mutex::new(Limits::of(BEGUN_PER_SECOND)),
            users: Mutex::new(Limit::of(USERS_PER_SECOND)),
            lookers: Mutex::new(Limit::of(USERS_PER_SECOND)),
        })
    }

    /// Writes a line. A disk that does not take it is an error in the agent's log; what was done is done.
    pub fn record(&self, entry: AuditEntry) {
        let kind = Kind::of(&entry);
        self.write(entry, kind);
    }

    /// Writes a line about what needs no more than to look.
    pub fn record_look(&self, entry: AuditEntry) {
        self.write(entry, Kind::Refused);
    }

    fn write(&self, mut entry: AuditEntry, kind: Kind) {
        let Some(left_out) = self.left_out(&entry, kind) else { return };
        entry.left_out = left_out;
        for text in [&mut entry.guest, &mut entry.session, &mut entry.to, &mut entry.reason] {
            text.iter_mut().for_each(shorten);
        }
        to_journald(&entry);
        let file = match kind {
            Kind::Done => &self.done,
            Kind::Refused => &self.refused,
            Kind::Begun => &self.begun,
        };
        if let Err(error) = file.lock().append(&entry) {
            tracing::error!(
                error = chain(&error),
                action = entry.action.name(),
                "the audit log was not written"
            );
        }
    }

    /// How many lines were left out before this one; `None` if this one is too.
    fn left_out(&self, entry: &AuditEntry, kind: Kind) -> Option<u64> {
        let now = Instant::now();
        match (kind, &entry.caller) {
            (Kind::Done, _) | (_, AuditCaller::Agent) => Some(0),
            (Kind::Begun, AuditCaller::Host { name, .. }) => self.beginners.lock().take(name.as_deref(), now),
            (_, AuditCaller::Host { name, .. }) => self.hosts.lock().take(name.as_deref(), now),
            (_, AuditCaller::Local { .. }) if entry.result == AuditResult::Refused => {
                self.users.lock().take(now)
            }
            (_, AuditCaller::Local { .. }) => self.lookers.lock().take(now),
        }
    }

    /// The agent begins or ends.
    pub fn agent(&self, action: AuditAction) {
        self.record(entry(action, AuditResult::Done, AuditCaller::Agent));
    }

    /// TLS refused a peer, or the peer this host.
    pub fn refused(&self, peer: SocketAddr, reason: &str) {
        let line = entry(AuditAction::Connection, AuditResult::Refused, host(&None, peer, None));
        self.record(AuditEntry { reason: Some(reason.to_owned()), ..line });
    }

    /// A host joined at this authority's host, or tried to. Its name counts once it has a certificate.
    pub fn join(&self, peer: SocketAddr, joined: Result<&str, &dyn Error>) {
        let (result, to, reason) = match joined {
            Ok(name) => (AuditResult::Done, Some(name.to_owned()), None),
            Err(error) => (AuditResult::Refused, None, Some(error.to_string())),
        };
        let line = entry(AuditAction::Join, result, host(&None, peer, None));
        self.record(AuditEntry { to, reason, ..line });
    }

    /// A migration from this host has ended, with this last event. `cipher`: of its connections; none in plain text.
    pub fn migration_end(
        &self,
        session: &str,
        guest: &str,
        to: &str,
        cipher: Option<&str>,
        last: &EventKind,
    ) {
        let EventKind::Finished { outcome, error, .. } = last else { return };
        let (result, reason) = match outcome {
            MigrationOutcome::Completed => (AuditResult::Done, None),
            MigrationOutcome::Cancelled => (AuditResult::Failed, Some("cancelled".to_owned())),
            MigrationOutcome::Checked => (AuditResult::Done, Some("a dry run: it can move".to_owned())),
            MigrationOutcome::InDoubt => (AuditResult::Failed, Some("in doubt".to_owned())),
            MigrationOutcome::Failed => (
                AuditResult::Failed,
                Some(error.as_ref().map_or("failed".to_owned(), |error| error.message.clone())),
            ),
        };
        self.record(AuditEntry {
            guest: Some(guest.to_owned()),
            session: Some(session.to_owned()),
            to: Some(to.to_owned()),
            cipher: cipher.map(str::to_owned),
            reason,
            ..entry(AuditAction::MigrationEnd, result, AuditCaller::Agent)
        });
    }

    /// A migration to this host has ended, well without a fault.
    pub fn arrival_end(&self, session: SessionId, guest: &str, from: AuditCaller, fault: Option<&Fault>) {
        let result = if fault.is_none() { AuditResult::Done } else { AuditResult::Failed };
        self.record(AuditEntry {
            guest: Some(guest.to_owned()).filter(|guest| !guest.is_empty()),
            session: Some(session.to_string()),
            reason: fault.map(ToString::to_string),
            ..entry(AuditAction::ArrivalEnd, result, from)
        });
    }

    /// A migration has ended that a restarted agent continued, or that was in doubt. `action`: its end as this host
    /// sees it; `what`: what is known of the guest.
    pub fn recovered_end(
        &self,
        session: SessionId,
        guest: &str,
        action: AuditAction,
        is_where_it_was_to_go: bool,
        what: &str,
    ) {
        let result = if is_where_it_was_to_go { AuditResult::Done } else { AuditResult::Failed };
        self.record(AuditEntry {
            guest: Some(guest.to_owned()),
            session: Some(session.to_string()),
            reason: Some(format!("after a restart of the agent, or after it was in doubt: {what}")),
            ..entry(action, result, AuditCaller::Agent)
        });
    }

    /// The guest of a migration may run on both hosts. `action`: the end of its migration, as this host saw it.
    pub fn on_both_hosts(&self, session: SessionId, guest: &str, action: AuditAction) {
        self.record(AuditEntry {
            guest: Some(guest.to_owned()),
            session: Some(session.to_string()),
            reason: Some("the guest may run on both hosts".to_owned()),
            ..entry(action, AuditResult::Failed, AuditCaller::Agent)
        });
    }

    /// The newest lines that match, oldest first, and what cannot be read and is not older than all that was asked for.
    pub fn read(&self, request: &AuditRequest) -> io::Result<AuditAnswer> {
        // The locks end with these lines: what is done meanwhile must not wait until all was read.
        let done = self.done.lock().lines()?;
        let refused = self.refused.lock().lines()?;
        let begun = self.begun.lock().lines()?;
        let commands = command::lines(&self.commands)?;
        let (mut entries, mut unreadable) = (Vec::new(), Vec::new());
        for log in [done, refused, begun, commands] {
            let found = log.read(|entry| request.matches(entry))?;
            entries.extend(found.entries);
            unreadable.extend(found.unreadable);
        }
        entries.sort_by_key(|entry| entry.unix_ms);
        let limit = usize::try_from(request.limit).unwrap_or(usize::MAX);
        let too_many = entries.len().saturating_sub(limit);
        entries.drain(..too_many);
        let oldest = entries.first().map(|entry| entry.unix_ms).filter(|_| too_many > 0);
        let from_ms = oldest.max(request.since_unix_ms).unwrap_or(0);
        unreadable.retain(|one| one.may_be_since(from_ms));
        Ok(AuditAnswer { entries, unreadable: log::texts(&unreadable) })
    }
}

/// Which file a line goes to. All but the first have limits: anybody may bring about any number of their lines.
#[derive(Clone, Copy)]
enum Kind {
    Done,
    /// Refusals, and what only looks.
    Refused,
    /// What another host begins here, and what of it fails.
    Begun,
}

impl Kind {
    fn of(entry: &AuditEntry) -> Kind {
        use AuditAction::{ArrivalBegin, MigrationBegin, Tunnel};
        let begins = matches!(entry.action, ArrivalBegin | MigrationBegin | Tunnel);
        match (&entry.caller, entry.result) {
            (_, AuditResult::Refused) => Kind::Refused,
            (AuditCaller::Host { .. }, result) if begins || result == AuditResult::Failed => Kind::Begun,
            _ => Kind::Done,
        }
    }
}

/// What another host asked for on one connection, and what became of it.
#[derive(Debug)]
pub(crate) struct Asked {
    pub action: AuditAction,
    pub result: AuditResult,
    /// It needs no more than to look.
    pub only_looks: bool,
    pub reason: Option<String>,
}

/// A line with nothing but who did what, and what became of it.
pub(crate) fn entry(action: AuditAction, result: AuditResult, caller: AuditCaller) -> AuditEntry {
    AuditEntry {
        unix_ms: unix_ms(),
        action,
        result,
        caller,
        guest: None,
        session: None,
        to: None,
        cipher: None,
        reason: None,
        left_out: 0,
    }
}

/// Another host's agent, as a caller.
pub(crate) fn host(name: &PeerName, address: SocketAddr, cipher: Option<&str>) -> AuditCaller {
    AuditCaller::Host {
        name: name.as_ref().map(ToString::to_string),
        address: address.to_string(),
        cipher: cipher.map(str::to_owned),
    }
}

fn to_journald(entry: &AuditEntry) {
    let (kind, who, uid, address, cipher) = match &entry.caller {
        AuditCaller::Local { uid, user, .. } => ("local", user.as_deref(), Some(*uid), None, None),
        AuditCaller::Host { name, address, cipher } => {
            ("host", name.as_deref(), None, Some(address.as_str()), cipher.as_deref())
        }
        AuditCaller::Agent => ("agent", None, None, None, None),
    };
    let cipher = cipher.or(entry.cipher.as_deref());
    tracing::info!(
        target: TARGET,
        action = entry.action.name(),
        result = entry.result.name(),
        caller = kind,
        who,
        uid,
        address,
        cipher,
        guest = entry.guest,
        session = entry.session,
        to = entry.to,
        reason = entry.reason,
        left_out = entry.left_out,
        "audit",
    );
}

fn shorten(text: &mut String) {
    if text.len() > TEXT_MAX {
        let end = (0..=TEXT_MAX).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stranger() -> AuditCaller {
        AuditCaller::Host { name: None, address: "192.0.2.1:4711".into(), cipher: None }
    }

    #[test]
    fn lines_are_read_again_in_order_and_the_newest_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::open(dir.path()).unwrap();
        for (number, result) in
            [AuditResult::Done, AuditResult::Refused, AuditResult::Failed].iter().enumerate()
        {
            let line = entry(AuditAction::MigrationBegin, *result, AuditCaller::Agent);
            audit.record(AuditEntry { unix_ms: number as u64, guest: Some(format!("g{number}")), ..line });
        }
        drop(audit);
        let audit = Audit::open(dir.path()).unwrap();
        let guests = |request: &AuditRequest| -> Vec<String> {
            audit.read(request).unwrap().entries.into_iter().filter_map(|entry| entry.guest).collect()
        };
        let all = AuditRequest { limit: 10, ..AuditRequest::default() };
        assert_eq!(guests(&all), ["g0", "g1", "g2"]);
        assert_eq!(guests(&AuditRequest { limit: 2, ..all.clone() }), ["g1", "g2"]);
        assert_eq!(guests(&AuditRequest { result: Some(AuditResult::Refused), ..all }), ["g1"]);
    }

    #[test]
    fn what_cannot_be_read_is_said_unless_it_is_older_than_what_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::open(dir.path()).unwrap();
        let done = |unix_ms| {
            let line = entry(AuditAction::GuestStop, AuditResult::Done, AuditCaller::Agent);
            audit.record(AuditEntry { unix_ms, ..line });
        };
        done(10);
        let path = dir.path().join("audit.jsonl");
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        io::Write::write_all(&mut file, b"no line\n").unwrap();
        done(20);
        done(30);
        let said = |since_unix_ms, limit| {
            let asked = AuditRequest { since_unix_ms, limit, ..AuditRequest::default() };
            let answer = audit.read(&asked).unwrap();
            (answer.entries.len(), answer.unreadable)
        };
        let text = vec![format!("{}: line 2 cannot be read", path.display())];
        assert_eq!(said(None, 10), (3, text.clone()));
        assert_eq!(said(None, 2), (2, text.clone()));
        assert_eq!(said(None, 1), (1, vec![]));
        assert_eq!(said(Some(20), 10), (2, text));
        assert_eq!(said(Some(21), 10), (1, vec![]));
    }

    #[test]
    fn a_line_that_a_command_is_just_writing_is_not_taken_for_one_that_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::open(dir.path()).unwrap();
        let path = command::file(dir.path());
        let write = |text: &str| {
            let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&path).unwrap();
            io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        };
        let line = entry(AuditAction::GuestStop, AuditResult::Done, AuditCaller::Agent);
        let line = serde_json::to_string(&line).unwrap() + "\n";
        let (begun, rest) = line.split_at(10);
        let lock = command::lock(&path).unwrap().unwrap();
        write(begun);
        let asked = AuditRequest { limit: 10, ..AuditRequest::default() };
        let answer = std::thread::scope(|scope| {
            let read = scope.spawn(|| audit.read(&asked).unwrap());
            std::thread::sleep(std::time::Duration::from_millis(100));
            write(rest);
            drop(lock);
            read.join().unwrap()
        });
        assert_eq!((answer.entries.len(), answer.unreadable), (1, vec![]));
    }

    #[test]
    fn refused_strangers_are_limited_and_counted_and_leave_the_other_file_alone() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::open(dir.path()).unwrap();
        audit.record(entry(AuditAction::GuestStop, AuditResult::Done, AuditCaller::Agent));
        let before = std::fs::read(dir.path().join("audit.jsonl")).unwrap();
        for _ in 0..10_000 {
            audit.record(entry(AuditAction::Connection, AuditResult::Refused, stranger()));
        }
        assert_eq!(std::fs::read(dir.path().join("audit.jsonl")).unwrap(), before);
        let lines = audit.read(&AuditRequest { limit: u32::MAX, ..AuditRequest::default() }).unwrap().entries;
        assert!(lines.len() < 5_000, "{} lines", lines.len());
        // Refusals of users are counted apart.
        let local = AuditCaller::Local { uid: 1, user: None, pid: None };
        audit.record(entry(AuditAction::Look, AuditResult::Refused, local));
        let request = AuditRequest { limit: u32::MAX, by: Some("1".into()), ..AuditRequest::default() };
        assert_eq!(audit.read(&request).unwrap().entries.len(), 1);
    }

    #[test]
    fn a_user_without_a_role_cannot_push_out_what_was_refused_before() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::open(dir.path()).unwrap();
        audit.record(entry(AuditAction::Connection, AuditResult::Refused, stranger()));
        let local = AuditCaller::Local { uid: 1, user: None, pid: None };
        let began = Instant::now();
        for _ in 0..3_000 {
            let line = entry(AuditAction::Look, AuditResult::Refused, local.clone());
            // As long as a path of a request may be.
            audit.record(AuditEntry { guest: Some("ü".repeat(30 << 10)), ..line });
        }
        let seconds = began.elapsed().as_secs() + 2;
        let lines = audit.read(&AuditRequest { limit: u32::MAX, ..AuditRequest::default() }).unwrap().entries;
        assert_eq!(lines[0].action, AuditAction::Connection);
        assert!(lines.len() as u64 <= 1 + seconds * u64::from(USERS_PER_SECOND), "{} lines", lines.len());
        assert!(lines.iter().flat_map(|line| &line.guest).all(|guest| guest.len() < TEXT_MAX + 8));
    }

    #[test]
    fn a_viewer_that_looks_often_cannot_push_out_what_was_done() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::open(dir.path()).unwrap();
        audit.record(entry(AuditAction::GuestStop, AuditResult::Done, AuditCaller::Agent));
        let before = std::fs::read(dir.path().join("audit.jsonl")).unwrap();
        let viewer = AuditCaller::Local { uid: 1, user: None, pid: None };
        let host = AuditCaller::Host { name: Some("b".into()), address: "192.0.2.1:1".into(), cipher: None };
        let began = Instant::now();
        for result in [AuditResult::Done, AuditResult::Failed] {
            for _ in 0..3_000 {
                audit.record_look(entry(AuditAction::Bench, result, viewer.clone()));
                audit.record_look(entry(AuditAction::Doctor, result, host.clone()));
            }
        }
        let seconds = began.elapsed().as_secs() + 2;
        assert_eq!(std::fs::read(dir.path().join("audit.jsonl")).unwrap(), before);
        let lines =
            audit.read(&AuditRequest { limit: u32::MAX, ..AuditRequest::default() }).unwrap().entries.len();
        let most = 1 + seconds * u64::from(USERS_PER_SECOND + HOSTS_PER_SECOND);
        assert!(lines > 2 && lines as u64 <= most, "{lines} lines");
        // What is refused is not left out for that.
        audit.record(entry(AuditAction::GuestStop, AuditResult::Refused, viewer));
        let refused =
            AuditRequest { result: Some(AuditResult::Refused), limit: 10, ..AuditRequest::default() };
        assert_eq!(audit.read(&refused).unwrap().entries.len(), 1);
    }

    #[test]
    fn strangers_do_not_hide_what_a_host_with_a_name_was_refused() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::open(dir.path()).unwrap();
        for _ in 0..1_000 {
            audit.record(entry(AuditAction::Connection, AuditResult::Refused, stranger()));
        }
        for name in ["b", "c"] {
            let host =
                AuditCaller::Host { name: Some(name.into()), address: "192.0.2.1:1".into(), cipher: None };
            audit.record(entry(AuditAction::ArrivalBegin, AuditResult::Refused, host));
            let by = AuditRequest { by: Some(name.into()), limit: 10, ..AuditRequest::default() };
            assert_eq!(audit.read(&by).unwrap().entries.len(), 1);
        }
    }

    #[test]
    fn a_host_that_begins_often_pushes_out_neither_what_was_done_nor_what_was_refused() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::open(dir.path()).unwrap();
        let host = |name: &str| AuditCaller::Host {
            name: Some(name.into()),
            address: "192.0.2.1:1".into(),
            cipher: None,
        };
        audit.record(entry(AuditAction::GuestStop, AuditResult::Done, AuditCaller::Agent));
        audit.record(entry(AuditAction::ArrivalEnd, AuditResult::Done, host("b")));
        audit.record(entry(AuditAction::Connection, AuditResult::Refused, stranger()));
        let files =
            || ["audit", "audit-refused"].map(|name| std::fs::read(dir.path().join(format!("{name}.jsonl"))));
        let before = files().map(Result::unwrap);
        let began = Instant::now();
        for _ in 0..3_000 {
            audit.record(entry(AuditAction::ArrivalBegin, AuditResult::Done, host("b")));
            audit.record(entry(AuditAction::ArrivalEnd, AuditResult::Failed, host("b")));
        }
        let seconds = began.elapsed().as_secs() + 2;
        assert_eq!(files().map(Result::unwrap), before);
        let by = |name: &str| {
            let by = AuditRequest { by: Some(name.into()), limit: u32::MAX, ..AuditRequest::default() };
            audit.read(&by).unwrap().entries.len() as u64
        };
        assert!((2..=1 + seconds * u64::from(BEGUN_PER_SECOND)).contains(&by("b")), "{} lines", by("b"));
        // Another host has its own share.
        audit.record(entry(AuditAction::ArrivalBegin, AuditResult::Done, host("c")));
        assert_eq!(by("c"), 1);
    }

    #[derive(Clone, Default)]
    struct Text(std::sync::Arc<Mutex<Vec<u8>>>);

    impl io::Write for Text {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The agent's own layer gives what has this target to journald, each field by its name.
    #[test]
    fn each_line_is_an_event_with_the_fields_that_journald_gets() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::open(dir.path()).unwrap();
        let written = Text::default();
        let writer = written.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let caller = AuditCaller::Local { uid: 4711, user: Some("alice".into()), pid: None };
        let line = AuditEntry {
            guest: Some("web".into()),
            session: Some("a7".into()),
            cipher: Some("TLS13_AES_128_GCM_SHA256".into()),
            ..entry(AuditAction::MigrationEnd, AuditResult::Failed, caller)
        };
        tracing::subscriber::with_default(subscriber, || audit.record(line));
        let text = String::from_utf8(written.0.lock().clone()).unwrap();
        let fields = [
            "action=\"migration_end\"",
            "result=\"failed\"",
            "caller=\"local\"",
            "who=\"alice\"",
            "uid=4711",
            "cipher=\"TLS13_AES_128_GCM_SHA256\"",
            "guest=\"web\"",
            "session=\"a7\"",
        ];
        for what in fields.iter().chain(&[TARGET]) {
            assert!(text.contains(what), "{what} is not in {text}");
        }
    }
}
