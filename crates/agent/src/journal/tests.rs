//! Records on disk, and journals that are refused.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use super::*;
use crate::testing::{SlowDisk, wait};

fn record(order: u64, phase: DestinationPhase) -> Record {
    Record::new("web", order, IncomingRecord::default().role(phase))
}

fn qemu() -> GuestRecord {
    let text = r#"{"schema":1,"name":"db","origin":"adopted","process":{"pid":7,"start_ticks":9},"boot":"b",
        "qmp":"/run/x/db.sock","ram_files":[]}"#;
    serde_json::from_str(text).unwrap()
}

const SETTINGS: &str = r#"{"capabilities":["xbzrle"],"parameters":{"max-bandwidth":134217728}}"#;

fn source(phase: SourcePhase) -> Record {
    let role = Role::Source {
        mode: ModeTag::Streams,
        phase,
        qemu: qemu(),
        peers: vec!["10.0.0.2:7979".parse().unwrap()],
        ran: true,
        run_state_before: None,
        token: "aa".into(),
        peer: None,
        settings: Some(serde_json::from_str(SETTINGS).unwrap()),
        vcpu_time: VcpuTime { threads: vec![3], run_ns: Some(5) },
        ran_here: RanHere::No,
        copied: vec!["/srv/db.img".into()],
        notice_due: false,
    };
    Record { changed_unix_ms: 7, ..Record::new("db", 4, role) }
}

#[test]
fn a_record_is_there_after_reopening_and_sessions_continue_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let session = SessionId([7; 16]);
    let mut destination = record(9, DestinationPhase::Loaded);
    let Role::Destination { incoming, .. } = &mut destination.role else { panic!("{destination:?}") };
    *incoming = IncomingRecord {
        mode: Some(ModeTag::Direct),
        qemu: Some(qemu()),
        token: "bb".into(),
        ran: Some(false),
        vcpu_time: VcpuTime { threads: vec![11, 12], run_ns: Some(77) },
        ..IncomingRecord::default()
    };
    let journal = Journal::open(dir.path()).unwrap();
    journal.put(session, &source(SourcePhase::CommitSent)).unwrap();
    journal.put(SessionId([9; 16]), &destination).unwrap();
    drop(journal);
    let journal = Journal::open(dir.path()).unwrap();
    assert_eq!(journal.get(session).unwrap(), Some(source(SourcePhase::CommitSent)));
    assert_eq!(journal.get(SessionId([9; 16])).unwrap(), Some(destination));
    assert_eq!(journal.get(SessionId([8; 16])).unwrap(), None);
    assert_eq!((journal.next_order(), journal.next_order()), (10, 11));
}

impl Journal {
    /// A folder in place of the database: redb can neither open nor make one there.
    pub(crate) fn break_disk(&self) {
        *self.database.lock() = None;
        std::fs::rename(&self.path, self.path.with_extension("away")).unwrap();
        std::fs::create_dir(&self.path).unwrap();
    }

    pub(crate) fn mend_disk(&self) {
        std::fs::remove_dir(&self.path).unwrap();
        std::fs::rename(self.path.with_extension("away"), &self.path).unwrap();
    }

    /// The disk hangs until the sender is gone, which is `true`, or for two minutes.
    pub(crate) fn hang(&self, begins: &Sender<()>, ends: &Receiver<()>) -> bool {
        let _unwritten = self.unwritten.lock();
        let mut is_ended = false;
        self.write(|_| {
            begins.send(()).unwrap();
            let ended = ends.recv_timeout(Duration::from_secs(120));
            is_ended = ended == Err(RecvTimeoutError::Disconnected);
            Ok(())
        })
        .unwrap();
        is_ended
    }

    /// What a later agent finds.
    fn on_disk(&self, session: SessionId) -> Option<Record> {
        let json = self.with(|database| {
            let table = database.begin_read()?.open_table(SESSIONS)?;
            let found = table.get(session.0.as_slice())?;
            Ok(found.map(|value| value.value().to_vec()))
        });
        json.unwrap().map(|json| serde_json::from_slice(&json).unwrap())
    }
}

/// Another host's question waits for nothing else.
#[test]
fn records_are_read_while_the_disk_hangs_and_what_it_does_not_have_is_not_among_them() {
    let dir = tempfile::tempdir().unwrap();
    let (session, other) = (SessionId([7; 16]), SessionId([8; 16]));
    let journal = Arc::new(Journal::open(dir.path()).unwrap());
    journal.put(session, &source(SourcePhase::Started)).unwrap();
    journal.put(other, &source(SourcePhase::Finished)).unwrap();
    let disk = SlowDisk::start(&journal);
    let writing = journal.clone();
    let put = std::thread::spawn(move || writing.put(session, &source(SourcePhase::CommitSent)).unwrap());
    assert_eq!(journal.get(session).unwrap(), Some(source(SourcePhase::Started)));
    assert_eq!(journal.all().unwrap().len(), 2);
    assert_eq!(journal.prune().unwrap(), 0);
    assert!(journal.get(SessionId([9; 16])).unwrap().is_none());
    disk.end();
    put.join().unwrap();
    assert_eq!(journal.get(session).unwrap(), Some(source(SourcePhase::CommitSent)));
    assert_eq!(journal.on_disk(session), Some(source(SourcePhase::CommitSent)));
}

#[test]
fn an_end_that_the_disk_refuses_is_known_at_once_and_written_when_it_can_be() {
    let dir = tempfile::tempdir().unwrap();
    let session = SessionId([7; 16]);
    let journal = Arc::new(Journal::open(dir.path()).unwrap());
    journal.put(session, &source(SourcePhase::Started)).unwrap();
    journal.break_disk();
    assert!(journal.put_end(session, &source(SourcePhase::RolledBack)).is_err());
    assert_eq!(journal.get(session).unwrap(), Some(source(SourcePhase::RolledBack)));
    assert_eq!(journal.unwritten_ends(), 1);
    journal.mend_disk();
    while journal.unwritten_ends() > 0 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(journal.on_disk(session), Some(source(SourcePhase::RolledBack)));
    // And again, for the thread that tried has ended.
    journal.break_disk();
    assert!(journal.put_end(session, &source(SourcePhase::Finished)).is_err());
    journal.mend_disk();
    while journal.unwritten_ends() > 0 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(journal.on_disk(session), Some(source(SourcePhase::Finished)));
}

#[test]
fn an_end_that_waits_for_the_disk_never_overwrites_a_newer_record() {
    let dir = tempfile::tempdir().unwrap();
    let session = SessionId([7; 16]);
    let journal = Arc::new(Journal::open(dir.path()).unwrap());
    journal.put(session, &source(SourcePhase::Started)).unwrap();
    journal.break_disk();
    assert!(journal.put_end(session, &source(SourcePhase::RolledBack)).is_err());
    journal.mend_disk();
    journal.put(session, &source(SourcePhase::Finished)).unwrap();
    assert_eq!(journal.unwritten_ends(), 0);
    std::thread::sleep(linerate_core::recovery::RETRY_AFTER * 2);
    assert_eq!(journal.get(session).unwrap(), Some(source(SourcePhase::Finished)));
}

/// The same of a record that is put on a condition, which the waiting end meets.
#[test]
fn a_record_that_is_put_on_a_condition_replaces_an_end_that_waits() {
    let dir = tempfile::tempdir().unwrap();
    let session = SessionId([7; 16]);
    let journal = Arc::new(Journal::open(dir.path()).unwrap());
    journal.break_disk();
    assert!(journal.put_end(session, &source(SourcePhase::RolledBack)).is_err());
    journal.mend_disk();
    let is_waiting = |now: &Record| *now == source(SourcePhase::RolledBack);
    assert!(!journal.put_unless(session, &source(SourcePhase::Finished), is_waiting).unwrap());
    assert!(journal.put_unless(session, &source(SourcePhase::Finished), |now| !is_waiting(now)).unwrap());
    assert_eq!(journal.get(session).unwrap(), Some(source(SourcePhase::Finished)));
    assert_eq!(journal.unwritten_ends(), 0);
}

#[test]
fn a_destination_is_notified_of_a_roll_back_until_it_knows() {
    let dir = tempfile::tempdir().unwrap();
    let session = SessionId([7; 16]);
    let journal = Journal::open(dir.path()).unwrap();
    let mut record = source(SourcePhase::RolledBack);
    let Role::Source { notice_due, .. } = &mut record.role else { panic!("{record:?}") };
    *notice_due = true;
    assert!(!record.is_over());
    journal.put(session, &record).unwrap();
    journal.record_notified(session).unwrap();
    assert_eq!(
        journal.get(session).unwrap().map(|record| record.role),
        Some(source(SourcePhase::RolledBack).role)
    );
}

#[test]
fn a_domain_is_kept_until_its_capability_is_off() {
    let text = r#"{"guest":"db","order":1,"changed_unix_ms":1,"role":"handover","over":false,"qemu":{"schema":1,"name":"db",
        "origin":"adopted","process":{"pid":7,"start_ticks":9},"boot":"b","qmp":"/run/x/db.sock","ram_files":[]}}"#;
    let record: Record = serde_json::from_str(text).unwrap();
    assert!(!record.is_over());
    let Role::Handover { qemu, .. } = record.role.clone() else { panic!("{record:?}") };
    // Whatever phase the session is in.
    let incoming = |over| IncomingRecord { domain: Some((qemu.clone(), over)), ..IncomingRecord::default() };
    assert_eq!(incoming(false).role(DestinationPhase::Aborted), record.role);
    let over = Record { role: incoming(true).role(DestinationPhase::Started), ..record };
    assert!(over.is_over());
}

#[test]
fn journal_of_another_format_is_refused_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let session = SessionId([7; 16]);
    let journal = Journal::open(dir.path()).unwrap();
    journal.put(session, &source(SourcePhase::CommitSent)).unwrap();
    for (format, found) in [(None, 1), (Some(FORMAT + 1), FORMAT + 1)] {
        let mut slot = journal.database.lock();
        let database = slot.take().unwrap_or_else(|| Database::create(&journal.path).unwrap());
        let transaction = database.begin_write().unwrap();
        match format {
            None => drop(transaction.open_table(FORMATS).unwrap().remove(FORMAT_KEY).unwrap()),
            Some(format) => {
                drop(transaction.open_table(FORMATS).unwrap().insert(FORMAT_KEY, format).unwrap())
            }
        }
        transaction.commit().unwrap();
        drop((database, slot));
        let refused = Journal::open(dir.path()).unwrap_err();
        assert!(matches!(refused, JournalError::Format { found: is, .. } if is == found), "{refused}");
        assert!(
            refused.to_string().contains("let the release that wrote it end its migrations"),
            "{refused}"
        );
        assert_eq!(journal.get(session).unwrap(), Some(source(SourcePhase::CommitSent)));
    }
}

#[test]
fn record_without_a_mode_or_of_an_unknown_one_is_not_read() {
    let record = serde_json::to_value(source(SourcePhase::Started)).unwrap();
    assert_eq!(record["mode"], "streams");
    let read = |record: serde_json::Value| serde_json::from_value::<Record>(record);
    assert_eq!(read(record.clone()).unwrap().mode(), Some(ModeTag::Streams));
    for mode in [serde_json::Value::Null, "post_copy".into()] {
        let mut record = record.clone();
        record["mode"] = mode;
        read(record).unwrap_err();
    }
    let mut destination = serde_json::to_value(super::tests::record(1, DestinationPhase::Loaded)).unwrap();
    assert_eq!(read(destination.clone()).unwrap().mode(), None);
    destination.as_object_mut().unwrap().remove("mode");
    read(destination).unwrap_err();
}

#[test]
fn pruning_keeps_what_is_not_over() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    for n in 0..1005u64 {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&n.to_le_bytes());
        let phase = if n < 3 { DestinationPhase::Started } else { DestinationPhase::Aborted };
        let json = serde_json::to_vec(&record(n, phase)).unwrap();
        // Not by `put`: a thousand flushes take their time.
        journal.write_for_test(&id, &json);
    }
    assert_eq!(journal.prune().unwrap(), 2);
    let left = journal.all().unwrap();
    assert_eq!(left.len(), 1003);
    assert_eq!(left.iter().filter(|(_, record)| !record.is_over()).count(), 3);
}

#[test]
fn a_host_with_many_sessions_does_not_have_those_of_others_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let of = |order: u64, peer: &str| {
        let incoming = IncomingRecord { peer: Some(peer.parse().unwrap()), ..IncomingRecord::default() };
        Record::new("web", order, incoming.role(DestinationPhase::Aborted))
    };
    for n in 0..1100u64 {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&n.to_le_bytes());
        // The oldest are of another host.
        let record = of(n, if n < 20 { "one" } else { "many" });
        journal.write_for_test(&id, &serde_json::to_vec(&record).unwrap());
    }
    assert_eq!(journal.prune().unwrap(), 100);
    let left = journal.all().unwrap();
    let orders = |peer: &str| {
        let of = left.iter().filter(|(_, record)| record.peer().is_some_and(|name| name.as_str() == peer));
        of.map(|(_, record)| record.order).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(orders("one"), (0..20).collect());
    assert_eq!(orders("many"), (120..1100).collect());
}

/// To a source that asks late, its guest would have ended here, and its operator would let the old copy run.
#[test]
fn that_a_guest_has_moved_on_is_kept_as_long_as_that_it_came() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let of = |name: &str| -> PeerName { Some(name.parse().unwrap()) };
    let put = |n: u64, record: &Record| {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&n.to_le_bytes());
        journal.write_for_test(&id, &serde_json::to_vec(record).unwrap());
        SessionId(id)
    };
    let came = |qemu: Option<GuestRecord>| {
        let incoming = IncomingRecord { qemu, peer: of("one"), ..IncomingRecord::default() };
        Record::new("db", 0, incoming.role(DestinationPhase::Running))
    };
    let arrival = put(0, &came(Some(qemu())));
    let mut left = Record { order: 1, ..source(SourcePhase::Finished) };
    let Role::Source { peer, .. } = &mut left.role else { panic!("{left:?}") };
    *peer = of("many");
    let departure = put(1, &left);
    for n in 2..1007 {
        let incoming = IncomingRecord { peer: of("many"), ..IncomingRecord::default() };
        put(n, &Record::new("web", n, incoming.role(DestinationPhase::Aborted)));
    }
    // The departure is the oldest record of the host with most.
    assert_eq!(journal.prune().unwrap(), 6);
    assert!(journal.get(arrival).unwrap().is_some());
    assert_eq!(journal.get(departure).unwrap(), Some(left));
    assert_eq!(journal.all().unwrap().len(), ENDED_KEPT + 1);
    // Nobody asks any more.
    put(0, &came(None));
    assert_eq!(journal.prune().unwrap(), 1);
    assert_eq!(journal.get(departure).unwrap(), None);
}

#[test]
fn the_journal_is_pruned_while_the_agent_runs() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Arc::new(Journal::open(dir.path()).unwrap());
    for n in 0..1200u64 {
        let mut id = [0xff; 16];
        id[..8].copy_from_slice(&n.to_le_bytes());
        let json = serde_json::to_vec(&record(n, DestinationPhase::Aborted)).unwrap();
        journal.write_for_test(&id, &json);
    }
    for n in 0..ENDS_UNTIL_PRUNED {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&n.to_le_bytes());
        journal.put_end(SessionId(id), &record(2000 + n, DestinationPhase::Aborted)).unwrap();
    }
    assert_eq!(journal.all().unwrap().len(), ENDED_KEPT);
}

/// It would be started again and again, and guests that wait for it stay paused.
#[test]
fn an_agent_starts_though_the_disk_takes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    for n in 0..=ENDED_KEPT as u64 {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&n.to_le_bytes());
        let json = serde_json::to_vec(&record(n, DestinationPhase::Aborted)).unwrap();
        agent.journal.write_for_test(&id, &json);
    }
    agent.journal.is_full.store(true, Ordering::SeqCst);
    assert!(agent.journal.prune().is_err());
    crate::recovery::recover(&agent.recovery).unwrap();
    agent.journal.is_full.store(false, Ordering::SeqCst);
    assert_eq!(agent.journal.prune().unwrap(), 1);
}

#[test]
fn the_peers_name_is_kept_and_a_record_without_one_is_read() {
    let name = |record: &Record| serde_json::to_value(record).unwrap()["peer"].clone();
    let peer: PeerName = Some("one".parse().unwrap());
    for mut record in [source(SourcePhase::CommitSent), record(1, DestinationPhase::Loaded)] {
        assert!(name(&record).is_null());
        let old = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&old).unwrap().peer(), None);
        match &mut record.role {
            Role::Source { peer: name, .. } => name.clone_from(&peer),
            Role::Destination { incoming, .. } => incoming.peer.clone_from(&peer),
            other => panic!("{other:?}"),
        }
        assert_eq!(name(&record), "one");
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    }
}

#[test]
fn a_failure_is_not_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let full = || JournalError::Folder(std::io::ErrorKind::StorageFull.into());
    assert!(journal.with(|_| Err::<(), _>(full())).is_err());
    journal.put(SessionId([1; 16]), &record(1, DestinationPhase::Started)).unwrap();
    assert!(journal.get(SessionId([1; 16])).unwrap().is_some());
}

#[test]
fn a_record_that_cannot_be_read_is_noted_and_its_session_is_not_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let (good, newer, damaged) = (SessionId([7; 16]), SessionId([8; 16]), SessionId([9; 16]));
    let journal = Journal::open(dir.path()).unwrap();
    let mut record = serde_json::to_value(source(SourcePhase::CommitSent)).unwrap();
    record["mode"] = "post_copy".into();
    journal.write_for_test(&newer.0, &serde_json::to_vec(&record).unwrap());
    journal.write_for_test(&damaged.0, b"{");
    journal.put(good, &source(SourcePhase::CommitSent)).unwrap();
    assert_eq!(journal.unreadable(), None, "it was empty when all records were read");
    drop(journal);
    let journal = Journal::open(dir.path()).unwrap();
    let said = journal.unreadable().unwrap();
    assert!(
        said.contains(&format!("session {newer} of guest db: this release does not know mode")),
        "{said}"
    );
    assert!(
        said.contains(&format!("session {damaged}: EOF")) && said.contains("journal.redb away"),
        "{said}"
    );
    assert!(!said.contains(&good.to_string()), "{said}");
    // Others would take a session that is unknown here for one that may run elsewhere.
    for session in [newer, damaged] {
        let error = journal.get(session).unwrap_err();
        assert!(matches!(error, JournalError::Record { session: of, .. } if of == session), "{error}");
    }
    journal.put(newer, &source(SourcePhase::Finished)).unwrap();
    journal.put(damaged, &source(SourcePhase::Finished)).unwrap();
    assert_eq!((journal.all().unwrap().len(), journal.unreadable()), (3, None));
}

#[test]
fn a_second_agent_on_the_same_journal_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _first = Journal::open(dir.path()).unwrap();
    assert!(Journal::open(dir.path()).is_err());
}

impl Journal {
    pub(crate) fn write_for_test(&self, id: &[u8], json: &[u8]) {
        self.with(|database| {
            let mut transaction = database.begin_write()?;
            transaction.set_durability(redb::Durability::None)?;
            transaction.open_table(SESSIONS)?.insert(id, json)?;
            transaction.commit()?;
            Ok(())
        })
        .unwrap();
        self.newest.load(SessionId(id.try_into().unwrap()), json);
    }
}

#[test]
fn that_a_guest_ran_here_is_kept_and_a_record_without_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, session) = (Arc::new(Journal::open(dir.path()).unwrap()), SessionId([7; 16]));
    let mut record = source(SourcePhase::CommitSent);
    let old = serde_json::to_string(&record).unwrap();
    assert!(!old.contains("ran_here") && serde_json::from_str::<Record>(&old).unwrap().ran_here().is_no());
    journal.put(session, &record).unwrap();
    journal.break_disk();
    journal.note_ran_here(session, &mut record, RanHere::Yes);
    assert_eq!(record.ran_here(), RanHere::Yes, "whatever the disk does");
    wait("the disk is not tried", || journal.has_noted());
    journal.mend_disk();
    assert_eq!(journal.get(session).unwrap().unwrap().ran_here(), RanHere::No);
    for now in [RanHere::Yes, RanHere::Maybe, RanHere::No] {
        journal.note_ran_here(session, &mut record, now);
        assert_eq!(record.ran_here(), now);
        wait("it is not written", || journal.has_noted());
        assert_eq!(journal.get(session).unwrap(), Some(record.clone()));
        assert_eq!(journal.on_disk(session), Some(record.clone()));
    }
}

/// An earlier agent wrote the same for CPU time as for what QEMU had said.
#[test]
fn that_a_guest_ran_here_is_not_certain_from_the_record_of_an_earlier_agent() {
    let read = |ran_here: serde_json::Value| {
        let mut record = serde_json::to_value(source(SourcePhase::CommitSent)).unwrap();
        record["ran_here"] = ran_here;
        serde_json::from_value::<Record>(record).map(|record| record.ran_here()).ok()
    };
    assert_eq!(read(true.into()), Some(RanHere::Maybe));
    assert_eq!(read(false.into()), Some(RanHere::No));
    assert_eq!(read("maybe".into()), Some(RanHere::Maybe));
    assert_eq!(read("yes".into()), Some(RanHere::Yes));
    assert_eq!(read("perhaps".into()), None, "it must not be asked about");
}

/// Records of earlier versions must still be read.
#[test]
fn names_in_a_record_stay() {
    let text = serde_json::to_string(&source(SourcePhase::ResumingHere)).unwrap();
    for name in ["untold", "stood", "taking_back"] {
        assert!(text.contains(&format!("\"{name}\"")), "{name}: {text}");
    }
}
