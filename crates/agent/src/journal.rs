//! The journal: what must be known after a crash, in redb under `state_dir`.
//!
//! Each change of phase is one durable transaction (flushed before it returns). The phases and what follows from them
//! are `linerate-core`'s; this room only keeps them, with what the body needs to find its guest again.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use linerate_core::SessionId;
use linerate_core::journal::{DestinationPhase, SourcePhase};
use linerate_guest::migrate::Settings;
use linerate_guest::procfs::ProcessIdentity;
use linerate_guest::registry::GuestRecord;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde::{Deserialize, Serialize};

/// Session id (16 bytes) to record (JSON).
const SESSIONS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("sessions");
/// Ended sessions kept to answer a source that asks late.
const ENDED_KEPT: usize = 1000;

/// Why the journal could not be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The folder could not be made.
    #[error("cannot make the folder of the journal")]
    Folder(#[source] std::io::Error),
    /// The database refused (disk full, damaged, locked by another agent).
    #[error("the journal refused: {0}")]
    Database(#[from] redb::Error),
    /// A record could not be written as JSON.
    #[error("a journal record could not be written: {0}")]
    Encode(#[source] serde_json::Error),
}

macro_rules! from_redb {
    ($($error:ty),*) => { $(impl From<$error> for JournalError {
        fn from(error: $error) -> JournalError { JournalError::Database(error.into()) }
    })* };
}
from_redb!(
    redb::DatabaseError,
    redb::TransactionError,
    redb::TableError,
    redb::StorageError,
    redb::CommitError,
    redb::SetDurabilityError
);

/// What a session is to this host, and how far it got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Role {
    /// The guest leaves this host.
    Source {
        /// `started`, `commit_sent`, `finished` or `rolled_back`.
        #[serde(with = "source_phase")]
        phase: SourcePhase,
        /// Where the destination's agent can be asked.
        peers: Vec<std::net::SocketAddr>,
        /// Whether the guest ran when the migration began.
        ran: bool,
        /// Shown when asking.
        token: String,
        /// How its QEMU was set before; none in records of older agents.
        #[serde(default)]
        settings: Option<Settings>,
    },
    /// The guest comes to this host.
    Destination {
        /// `started`, `committed`, `aborted` or `finished`.
        #[serde(with = "destination_phase")]
        phase: DestinationPhase,
        /// The waiting guest's QEMU, once it was started: after a crash this very process and no other is ended.
        #[serde(default)]
        process: Option<ProcessIdentity>,
        /// How that QEMU was set before it was prepared; none in records of older agents.
        #[serde(default)]
        settings: Option<Settings>,
    },
    /// A domain of libvirt leaves this host or comes to it. All that was set in its QEMU is one capability, and nothing is ended.
    Domain {
        /// Its QEMU and the way to ask it; of no registry.
        qemu: GuestRecord,
        /// The capability is off again.
        over: bool,
    },
}

/// What is known of a waiting guest, as the journal keeps it.
#[derive(Clone, Debug, Default)]
pub struct Waiting {
    /// Its QEMU.
    pub process: Option<ProcessIdentity>,
    /// How that was set before.
    pub settings: Option<Settings>,
    /// It is libvirt's, and whether its capability is off again.
    pub domain: Option<(GuestRecord, bool)>,
}

impl Waiting {
    /// The destination's part of a record.
    pub fn role(self, phase: DestinationPhase) -> Role {
        match self.domain {
            Some((qemu, over)) => Role::Domain { qemu, over },
            None => Role::Destination { phase, process: self.process, settings: self.settings },
        }
    }
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Name of the guest.
    pub guest: String,
    /// Milliseconds since 1970 of the last change.
    pub changed_unix_ms: u64,
    /// The rest.
    #[serde(flatten)]
    pub role: Role,
}

impl Record {
    fn is_over(&self) -> bool {
        match &self.role {
            Role::Source { phase, .. } => matches!(phase, SourcePhase::Finished | SourcePhase::RolledBack),
            Role::Destination { phase, .. } => !matches!(phase, DestinationPhase::Started),
            Role::Domain { over, .. } => *over,
        }
    }
}

macro_rules! phase_names {
    ($module:ident, $phase:ident, $($variant:ident = $name:literal),*) => {
        mod $module {
            use linerate_core::journal::$phase;
            use serde::{Deserialize, Deserializer, Serializer, de::Error};

            pub fn serialize<S: Serializer>(phase: &$phase, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(match phase { $($phase::$variant => $name),* })
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$phase, D::Error> {
                match String::deserialize(deserializer)?.as_str() {
                    $($name => Ok($phase::$variant),)*
                    other => Err(D::Error::unknown_variant(other, &[$($name),*])),
                }
            }
        }
    };
}
phase_names!(
    source_phase,
    SourcePhase,
    Started = "started",
    CommitSent = "commit_sent",
    Finished = "finished",
    RolledBack = "rolled_back"
);
phase_names!(
    destination_phase,
    DestinationPhase,
    Started = "started",
    Committed = "committed",
    Aborted = "aborted",
    Finished = "finished"
);

/// See the module. Cheap to share; one user at a time.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// `None` after a failure: redb refuses everything after an I/O error (a full disk) until it is opened anew.
    database: Mutex<Option<Database>>,
}

impl Journal {
    /// Opens or makes the journal in a folder.
    pub fn open(folder: &Path) -> Result<Journal, JournalError> {
        std::fs::create_dir_all(folder).map_err(JournalError::Folder)?;
        let journal = Journal { path: folder.join("journal.redb"), database: Mutex::new(None) };
        journal.write(|_| Ok(()))?;
        Ok(journal)
    }

    /// Uses the database, opening it first if it has to be; after any failure it is opened anew the next time.
    fn with<T>(&self, work: impl FnOnce(&Database) -> Result<T, JournalError>) -> Result<T, JournalError> {
        let mut slot = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        let database = match slot.take() {
            Some(database) => database,
            None => Database::create(&self.path)?,
        };
        let done = work(&database);
        if done.is_ok() {
            *slot = Some(database);
        }
        done
    }

    /// Puts a record on disk; returns when it is flushed.
    pub fn put(&self, session: SessionId, record: &Record) -> Result<(), JournalError> {
        let json = serde_json::to_vec(record).map_err(JournalError::Encode)?;
        self.write(|table| {
            table.insert(session.0.as_slice(), json.as_slice())?;
            Ok(())
        })
    }

    /// The record of a session.
    pub fn get(&self, session: SessionId) -> Result<Option<Record>, JournalError> {
        self.with(|database| {
            let table = database.begin_read()?.open_table(SESSIONS)?;
            let found = table.get(session.0.as_slice())?;
            Ok(found.and_then(|value| serde_json::from_slice(value.value()).ok()))
        })
    }

    /// All sessions. A record that cannot be read is reported in the log and left alone.
    pub fn all(&self) -> Result<Vec<(SessionId, Record)>, JournalError> {
        self.with(|database| {
            let table = database.begin_read()?.open_table(SESSIONS)?;
            let mut sessions = Vec::new();
            for entry in table.iter()? {
                let (key, value) = entry?;
                let Ok(id) = <[u8; 16]>::try_from(key.value()) else { continue };
                match serde_json::from_slice(value.value()) {
                    Ok(record) => sessions.push((SessionId(id), record)),
                    Err(error) => {
                        tracing::error!(session = %SessionId(id), %error, "a journal record cannot be read")
                    }
                }
            }
            Ok(sessions)
        })
    }

    /// Forgets the oldest ended sessions beyond what is kept to answer late questions.
    pub fn prune(&self) -> Result<usize, JournalError> {
        let mut ended: Vec<_> = self.all()?.into_iter().filter(|(_, record)| record.is_over()).collect();
        ended.sort_by_key(|(_, record)| record.changed_unix_ms);
        let surplus = ended.len().saturating_sub(ENDED_KEPT);
        self.write(|table| {
            for (session, _) in ended.iter().take(surplus) {
                table.remove(session.0.as_slice())?;
            }
            Ok(())
        })?;
        Ok(surplus)
    }

    fn write(
        &self,
        change: impl FnOnce(&mut redb::Table<'_, &'static [u8], &'static [u8]>) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        self.with(|database| {
            let mut transaction = database.begin_write()?;
            transaction.set_durability(redb::Durability::Immediate)?;
            change(&mut transaction.open_table(SESSIONS)?)?;
            transaction.commit()?;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(changed_unix_ms: u64, phase: DestinationPhase) -> Record {
        Record { guest: "web".into(), changed_unix_ms, role: Waiting::default().role(phase) }
    }

    const SETTINGS: &str = r#"{"capabilities":["xbzrle"],"parameters":{"max-bandwidth":134217728}}"#;

    #[test]
    fn records_of_older_agents_are_read() {
        let source = r#"{"guest":"db","changed_unix_ms":1,"role":"source","phase":"started","peers":[],
            "ran":true,"token":"aa"}"#;
        let record: Record = serde_json::from_str(source).unwrap();
        assert!(matches!(record.role, Role::Source { settings: None, ran: true, .. }));
        let destination = r#"{"guest":"db","changed_unix_ms":1,"role":"destination","phase":"committed"}"#;
        let record: Record = serde_json::from_str(destination).unwrap();
        assert!(matches!(record.role, Role::Destination { settings: None, process: None, .. }));
    }

    #[test]
    fn a_record_is_there_after_reopening() {
        let dir = tempfile::tempdir().unwrap();
        let session = SessionId([7; 16]);
        let source = Record {
            guest: "db".into(),
            changed_unix_ms: 1,
            role: Role::Source {
                phase: SourcePhase::CommitSent,
                peers: vec!["10.0.0.2:7979".parse().unwrap()],
                ran: true,
                token: "aa".into(),
                settings: Some(serde_json::from_str(SETTINGS).unwrap()),
            },
        };
        Journal::open(dir.path()).unwrap().put(session, &source).unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        assert_eq!(journal.get(session).unwrap(), Some(source));
        assert_eq!(journal.get(SessionId([8; 16])).unwrap(), None);
    }

    #[test]
    fn a_domain_is_kept_until_its_capability_is_off() {
        let text = r#"{"guest":"db","changed_unix_ms":1,"role":"domain","over":false,"qemu":{"schema":1,"name":"db",
            "origin":"adopted","process":{"pid":7,"start_ticks":9},"boot":"b","qmp":"/run/x/db.sock","ram_files":[]}}"#;
        let record: Record = serde_json::from_str(text).unwrap();
        assert!(!record.is_over());
        let Role::Domain { qemu, .. } = record.role.clone() else { panic!("{record:?}") };
        // Whatever phase the session is in.
        let waiting = |over| Waiting { domain: Some((qemu.clone(), over)), ..Waiting::default() };
        assert_eq!(waiting(false).role(DestinationPhase::Aborted), record.role);
        let over = Record { role: waiting(true).role(DestinationPhase::Started), ..record };
        assert!(over.is_over());
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
            // Not through `put`: a thousand flushes take their time.
            journal.write_for_test(&id, &json);
        }
        assert_eq!(journal.prune().unwrap(), 2);
        let left = journal.all().unwrap();
        assert_eq!(left.len(), 1003);
        assert_eq!(left.iter().filter(|(_, record)| !record.is_over()).count(), 3);
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
    fn a_second_agent_on_the_same_journal_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let _first = Journal::open(dir.path()).unwrap();
        assert!(Journal::open(dir.path()).is_err());
    }

    impl Journal {
        fn write_for_test(&self, id: &[u8], json: &[u8]) {
            self.with(|database| {
                let mut transaction = database.begin_write()?;
                transaction.set_durability(redb::Durability::None)?;
                transaction.open_table(SESSIONS)?.insert(id, json)?;
                transaction.commit()?;
                Ok(())
            })
            .unwrap();
        }
    }
}
