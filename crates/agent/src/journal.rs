//! The journal: what must be known after a crash, in redb under `state_dir`.
//!
//! Each change of phase is one durable transaction (flushed before it returns). The phases and what follows from them
//! are `linerate-core`'s; this module only keeps them, with what the drivers need to find its guest again.
//!
//! A record that ends a session is kept in memory until the disk takes it ([`Journal::put_end`]); a question meanwhile
//! gets what is in memory. If the agent ends before, the next one finds the record before it, and recovers from that.
//!
//! Records are read from memory, so that no question of another host waits for a disk that hangs. A record that is
//! being written is known when the disk has it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use linerate_core::journal::{DestinationPhase, SourcePhase};
use linerate_core::recovery::{Entry, Phase, Process, UnwrittenEnds};
use linerate_core::{ModeTag, SessionId, Time, Token};
use linerate_guest::migrate::Settings;
use linerate_guest::registry::GuestRecord;
use linerate_guest::run_state::RunState;
use linerate_guest::vcpu_time::VcpuTime;
use linerate_lock::Mutex;
use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};
use serde::{Deserialize, Serialize};

use crate::clock::{Clock, unix_ms};
use crate::faults::chain;
use crate::ran_here::RanHere;
use crate::security::PeerName;

mod both_hosts;
mod departed;
mod names;
mod newest;
mod notes;
mod token;
mod trouble;
mod unreadable;

use both_hosts::OnBothHosts;
use names::{destination_phase, mode_name, source_phase};
use newest::Newest;
use notes::Notes;
pub(crate) use token::{parse_token, token_text};
pub use trouble::JournalTrouble;
use unreadable::Unreadable;

/// The format of the records, under [`FORMAT_KEY`].
const FORMATS: TableDefinition<'_, &str, u64> = TableDefinition::new("format");
const FORMAT_KEY: &str = "records";
/// Format of the records that this agent writes, and the only one that it reads. Format 1 had no number and no modes.
const FORMAT: u64 = 2;
/// Session id (16 bytes) to record (JSON).
const SESSIONS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("sessions");
/// Ended sessions kept to answer a source that asks late.
const ENDED_KEPT: usize = 1000;
/// Ends that are written until the journal is pruned again.
const ENDS_UNTIL_PRUNED: u64 = 100;

/// Why the journal could not be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The folder could not be made.
    #[error("cannot make the folder of the journal")]
    Folder(#[source] std::io::Error),
    /// The database refused (disk full, damaged, locked by another agent).
    #[error("the journal refused: {0}")]
    Database(#[from] redb::Error),
    /// Another release wrote it.
    #[error(
        "the journal {} has format {found}, and this release reads format {FORMAT} only: let the release that wrote it end its \
         migrations, then move the file away", path.display()
    )]
    Format {
        /// Path of the journal file.
        path: PathBuf,
        /// 1 for a journal without a number.
        found: u64,
    },
    /// Another release wrote the record, or it is damaged.
    #[error("the journal's record of session {session} cannot be read: {source}")]
    Record {
        /// The session, of which nothing else may be known.
        session: SessionId,
        /// What is wrong with it.
        source: serde_json::Error,
    },
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
        /// Mode in which the guest moves.
        #[serde(with = "mode_name")]
        mode: ModeTag,
        /// `started`, `commit_sent`, `taking_back`, `finished` or `rolled_back`.
        #[serde(with = "source_phase")]
        phase: SourcePhase,
        /// Its QEMU and the way to ask it: recovery acts on this very process and on no other.
        qemu: GuestRecord,
        /// Where the destination's agent can be asked.
        peers: Vec<std::net::SocketAddr>,
        /// Whether the guest ran when the migration began.
        ran: bool,
        /// The guest's run state before QEMU was to stop it; none if it ran, or if that is not known.
        #[serde(default, rename = "stood")]
        run_state_before: Option<RunState>,
        /// The session's token, which a question to the other host shows.
        token: String,
        /// The destination's name, where hosts prove who they are: no other host's answer counts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: PeerName,
        /// How its QEMU was set before.
        settings: Option<Settings>,
        /// Of its virtual CPUs, when commit was about to be sent.
        #[serde(flatten)]
        vcpu_time: VcpuTime,
        /// Whether another program let it run here after commit was sent. Then no question is asked, for it would be
        /// a commit: what the destination has is older than the disks.
        #[serde(default, skip_serializing_if = "RanHere::is_no", deserialize_with = "names::ran_here")]
        ran_here: RanHere,
        /// Images of disks that are copied: when the guest has left, they are marked as stale.
        #[serde(default)]
        copied: Vec<PathBuf>,
        /// It was rolled back, and the destination, which may hold the complete guest, has not been notified yet.
        #[serde(default, rename = "untold")]
        notice_due: bool,
    },
    /// The guest arrives at this host.
    Destination {
        /// `started`, `loaded`, `committed`, `running`, `aborted`, `returned` or `finished`.
        #[serde(with = "destination_phase")]
        phase: DestinationPhase,
        /// What is known of the guest here.
        #[serde(flatten)]
        incoming: IncomingRecord,
    },
    /// A domain of libvirt leaves this host or arrives at it in mode Handover. One capability of its QEMU was set, and
    /// recovery ends nothing.
    Handover {
        /// Its QEMU and the way to ask it; of no registry.
        qemu: GuestRecord,
        /// The capability is off again.
        over: bool,
    },
    /// libvirt is asked to move a domain away. Both libvirts know how that ended.
    Libvirt {
        /// What to ask them.
        domain: MovedDomain,
        /// It is known where the domain is.
        over: bool,
    },
}

/// A domain that libvirt is asked to move to another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedDomain {
    /// The migration's name in the API.
    pub id: String,
    /// By which libvirt is asked: a name may become another domain's.
    pub uuid: String,
    /// It was paused, and shall be at the destination.
    pub paused: bool,
    /// This host's libvirt started it when the host booted, and the destination's shall.
    #[serde(default)]
    pub autostart: bool,
    /// The destination, as it was named.
    pub to: String,
    /// Socket of the destination's libvirt.
    pub remote_socket: String,
    /// Networks that links may be in; empty: all.
    pub links: Vec<String>,
}

/// What is known of an incoming guest, as the journal keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncomingRecord {
    /// How it moves; none if no mode was offered that this agent knows.
    #[serde(with = "mode_name::optional")]
    pub mode: Option<ModeTag>,
    /// Its QEMU, once it was started: recovery acts on this very process and on no other.
    #[serde(default)]
    pub qemu: Option<GuestRecord>,
    /// How that was set before it was prepared.
    #[serde(default)]
    pub settings: Option<Settings>,
    /// Shown by the source when it asks or decides.
    pub token: String,
    /// The source's name, where hosts prove who they are: no other host asks or decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: PeerName,
    /// Whether the guest ran at the source when it was stopped; none before.
    #[serde(default)]
    pub ran: Option<bool>,
    /// Of its virtual CPUs, when the guest was committed.
    #[serde(flatten)]
    pub vcpu_time: VcpuTime,
    /// Images that were copied into: when the guest runs with them, they are not stale any more.
    #[serde(default)]
    pub copied: Vec<PathBuf>,
    /// It is libvirt's, and whether its capability is off again.
    #[serde(skip)]
    pub domain: Option<(GuestRecord, bool)>,
}

impl IncomingRecord {
    /// The destination's part of a record.
    pub fn role(self, phase: DestinationPhase) -> Role {
        match self.domain {
            Some((qemu, over)) => Role::Handover { qemu, over },
            None => Role::Destination { phase, incoming: self },
        }
    }
}

/// What the journal keeps of one session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Name of the guest.
    pub guest: String,
    /// Its place in the order in which sessions began on this host: of two records about one process the later decides.
    pub order: u64,
    /// Milliseconds since 1970 of the last change; shown, and decides nothing.
    pub changed_unix_ms: u64,
    /// The guest may run on both hosts: each host has let it run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_both_hosts: bool,
    /// The guest has left, and was started here again since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub started_again: bool,
    /// What depends on this host's side of the session.
    #[serde(flatten)]
    pub role: Role,
}

impl Record {
    /// A record that is written for the first time.
    pub fn new(guest: &str, order: u64, role: Role) -> Record {
        Record {
            guest: guest.to_owned(),
            order,
            changed_unix_ms: unix_ms(),
            on_both_hosts: false,
            started_again: false,
            role,
        }
    }

    /// Nothing follows from it after a crash but an answer.
    fn is_over(&self) -> bool {
        match &self.role {
            Role::Source { notice_due: true, .. } => false,
            Role::Source { phase, .. } => matches!(phase, SourcePhase::Finished | SourcePhase::RolledBack),
            Role::Destination { phase, .. } => !matches!(
                phase,
                DestinationPhase::Started | DestinationPhase::Loaded | DestinationPhase::Committed
            ),
            Role::Handover { over, .. } | Role::Libvirt { over, .. } => *over,
        }
    }

    /// The process of a guest that came to this host, or is coming.
    fn arrived(&self) -> Option<Process> {
        let Role::Destination { incoming, .. } = &self.role else { return None };
        incoming.qemu.as_ref().map(process)
    }

    /// The process of a guest that has left this host, and runs at another one.
    fn left(&self) -> Option<Process> {
        match &self.role {
            Role::Source { phase: SourcePhase::Finished, qemu, .. } => Some(process(qemu)),
            _ => None,
        }
    }

    /// What recovery depends on; none for a domain, whose end is libvirt's.
    pub fn entry(&self, session: SessionId) -> Option<Entry> {
        let (phase, qemu) = match &self.role {
            Role::Source { phase, qemu, .. } => (Phase::Source(*phase), Some(qemu)),
            Role::Destination { phase, incoming } => (Phase::Destination(*phase), incoming.qemu.as_ref()),
            Role::Handover { .. } | Role::Libvirt { .. } => return None,
        };
        Some(Entry { session, order: self.order, phase, process: qemu.map(process) })
    }

    /// How the guest moves; none if no mode was offered that this agent knows, or if libvirt moves the domain.
    pub fn mode(&self) -> Option<ModeTag> {
        match &self.role {
            Role::Source { mode, .. } => Some(*mode),
            Role::Destination { incoming, .. } => incoming.mode,
            Role::Handover { .. } => Some(ModeTag::Handover),
            Role::Libvirt { .. } => None,
        }
    }

    /// The other host's name, if it proved one.
    pub(crate) fn peer(&self) -> PeerName {
        match &self.role {
            Role::Source { peer, .. } => peer.clone(),
            Role::Destination { incoming, .. } => incoming.peer.clone(),
            Role::Handover { .. } | Role::Libvirt { .. } => None,
        }
    }

    /// Whether this is the token of the session. A domain's end is libvirt's, and nobody asks about it by a token.
    pub fn knows(&self, token: &Token) -> bool {
        match &self.role {
            Role::Source { token: ours, .. } => parse_token(ours) == *token,
            Role::Destination { incoming, .. } => parse_token(&incoming.token) == *token,
            Role::Handover { .. } | Role::Libvirt { .. } => true,
        }
    }

    /// Whether its other host is this one. Of a session that began in plain text nobody knows which host that is.
    pub(crate) fn is_of(&self, caller: &PeerName) -> bool {
        self.peer().is_none_or(|peer| caller.as_ref() == Some(&peer))
    }

    /// Whether the guest ran at this source after commit was sent.
    pub(crate) fn ran_here(&self) -> RanHere {
        match self.role {
            Role::Source { ran_here, .. } => ran_here,
            _ => RanHere::No,
        }
    }

    /// The destination has still to be notified of a roll-back.
    pub(crate) fn is_notice_due(&self) -> bool {
        matches!(self.role, Role::Source { notice_due: true, .. })
    }

    /// Puts another phase of the same side in.
    pub fn set_phase(&mut self, new: Phase) {
        match (&mut self.role, new) {
            (Role::Source { phase, .. }, Phase::Source(new)) => *phase = new,
            (Role::Destination { phase, .. }, Phase::Destination(new)) => *phase = new,
            _ => {}
        }
    }
}

/// The process of a guest, as recovery names it.
pub fn process(qemu: &GuestRecord) -> Process {
    Process { boot: qemu.boot.clone(), pid: qemu.process.pid, start_ticks: qemu.process.start_ticks }
}

/// See the module. Cheap to share; one user at a time.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// `None` after a failure: redb refuses everything after an I/O error (a full disk) until it is opened again.
    database: Mutex<Option<Database>>,
    next_order: AtomicU64,
    /// Ends that were written since it was opened.
    ends: AtomicU64,
    /// Held while a record is written, so that no newer one of its session is overwritten.
    unwritten: Mutex<Unwritten>,
    newest: Newest,
    notes: Mutex<Notes>,
    unreadable: Unreadable,
    on_both_hosts: OnBothHosts,
    clock: Clock,
    /// The disk takes nothing, and what is on it can be read.
    #[cfg(test)]
    pub(crate) is_full: std::sync::atomic::AtomicBool,
}

/// Ends that the disk has not taken yet.
#[derive(Debug, Default)]
struct Unwritten {
    ends: UnwrittenEnds<Record>,
    /// A thread tries to write them.
    has_thread: bool,
}

impl Journal {
    /// Opens or makes the journal in a folder.
    pub fn open(folder: &Path) -> Result<Journal, JournalError> {
        std::fs::create_dir_all(folder).map_err(JournalError::Folder)?;
        let journal = Journal {
            path: folder.join("journal.redb"),
            database: Mutex::new(None),
            next_order: AtomicU64::new(1),
            ends: AtomicU64::new(0),
            unwritten: Mutex::default(),
            newest: Newest::default(),
            notes: Mutex::default(),
            unreadable: Unreadable::default(),
            on_both_hosts: OnBothHosts::default(),
            clock: Clock::start(),
            #[cfg(test)]
            is_full: Default::default(),
        };
        journal.check_format()?;
        journal.load()?;
        let all = journal.all()?;
        journal.on_both_hosts.load(&all);
        let newest = all.iter().map(|(_, record)| record.order).max().unwrap_or(0);
        journal.next_order.store(newest + 1, Ordering::SeqCst);
        Ok(journal)
    }

    /// Refuses a journal of another format, and marks a new one.
    fn check_format(&self) -> Result<(), JournalError> {
        self.with(|database| {
            let mut transaction = database.begin_write()?;
            transaction.set_durability(redb::Durability::Immediate)?;
            let is_new = transaction.open_table(SESSIONS)?.is_empty()?;
            let mut formats = transaction.open_table(FORMATS)?;
            let found = formats.get(FORMAT_KEY)?.map(|found| found.value());
            match found {
                Some(FORMAT) => {}
                None if is_new => drop(formats.insert(FORMAT_KEY, FORMAT)?),
                other => {
                    let (path, found) = (self.path.clone(), other.unwrap_or(1));
                    return Err(JournalError::Format { path, found });
                }
            }
            drop(formats);
            transaction.commit()?;
            Ok(())
        })
    }

    /// Takes into memory what the disk has.
    fn load(&self) -> Result<(), JournalError> {
        self.with(|database| {
            let table = database.begin_read()?.open_table(SESSIONS)?;
            for entry in table.iter()? {
                let (key, value) = entry?;
                let Ok(session) = <[u8; 16]>::try_from(key.value()).map(SessionId) else { continue };
                self.newest.load(session, value.value());
            }
            Ok(())
        })
    }

    /// The place of a session that begins now.
    pub fn next_order(&self) -> u64 {
        self.next_order.fetch_add(1, Ordering::SeqCst)
    }

    /// Ends of sessions that the disk has not taken yet.
    pub fn unwritten_ends(&self) -> usize {
        self.unwritten.lock().ends.len()
    }

    /// What an operator should know of records that cannot be read, as of the last time that all were read; none if
    /// there are none.
    pub fn unreadable(&self) -> Option<String> {
        self.unreadable.sentence(&self.path)
    }

    /// Puts a record on disk that ends a session. If the disk does not take it now, it is tried until it does, and an
    /// error is logged. `true` if it is on disk already.
    pub fn put_end(self: &Arc<Journal>, session: SessionId, record: &Record) -> Result<(), JournalError> {
        let mut unwritten = self.unwritten.lock();
        let done = self.put_newest(&mut unwritten, session, record);
        if let Err(error) = &done {
            tracing::error!(%session, guest = record.guest, error = chain(error), "the end of this session is not in the journal yet; it is tried until the disk takes it");
            unwritten.ends.refused(self.clock.now(), session, record.clone());
            self.newest.set(session, record.clone());
            self.write_ends(&mut unwritten);
        }
        drop(unwritten);
        if self.ends.fetch_add(1, Ordering::Relaxed) % ENDS_UNTIL_PRUNED == ENDS_UNTIL_PRUNED - 1
            && let Err(error) = self.prune()
        {
            tracing::warn!(error = chain(&error), "old sessions stay in the journal");
        }
        done
    }

    /// One thread tries all of them, until none is left.
    fn write_ends(self: &Arc<Journal>, unwritten: &mut Unwritten) {
        if unwritten.has_thread {
            return;
        }
        let journal = self.clone();
        let trying = move || {
            while let Some(due) = journal.write_due_end() {
                std::thread::sleep(due.since(journal.clock.now()));
            }
        };
        match std::thread::Builder::new().name("journal".into()).spawn(trying) {
            Ok(_) => unwritten.has_thread = true,
            Err(error) => tracing::error!(%error, "cannot start a thread to write the journal"),
        }
    }

    /// Tries the end that is due, if there is one. Gives the time of the next try; none if nothing is left.
    fn write_due_end(&self) -> Option<Time> {
        let mut unwritten = self.unwritten.lock();
        if let Some((session, record)) = unwritten.ends.due(self.clock.now()) {
            let written = self.insert(session, record).is_ok();
            if let Some(record) = unwritten.ends.tried(self.clock.now(), session, written) {
                tracing::info!(%session, guest = record.guest, "the end of this session is in the journal now");
            }
        }
        let next = unwritten.ends.timeout();
        unwritten.has_thread = next.is_some();
        next
    }

    /// Uses the database, opening it first if it has to be; after any failure it is opened again the next time.
    fn with<T>(&self, work: impl FnOnce(&Database) -> Result<T, JournalError>) -> Result<T, JournalError> {
        let mut slot = self.database.lock();
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

    /// Puts a record on disk unless the one that is there, or waits to be written, is `refused`; `true` if it did.
    pub fn put_unless(
        &self,
        session: SessionId,
        record: &Record,
        refused: impl FnOnce(&Record) -> bool,
    ) -> Result<bool, JournalError> {
        let mut unwritten = self.unwritten.lock();
        let now = self.get(session)?;
        if now.as_ref().is_some_and(refused) {
            return Ok(false);
        }
        self.put_newest(&mut unwritten, session, record).map(|()| true)
    }

    /// Puts a record on disk; returns when it is flushed.
    pub fn put(&self, session: SessionId, record: &Record) -> Result<(), JournalError> {
        self.put_newest(&mut self.unwritten.lock(), session, record)
    }

    fn put_newest(
        &self,
        unwritten: &mut Unwritten,
        session: SessionId,
        record: &Record,
    ) -> Result<(), JournalError> {
        self.insert(session, record)?;
        unwritten.ends.superseded(session);
        Ok(())
    }

    fn insert(&self, session: SessionId, record: &Record) -> Result<(), JournalError> {
        let record = self.on_both_hosts.with_note(session, record);
        let json = serde_json::to_vec(&*record).map_err(JournalError::Encode)?;
        self.write(|table| {
            table.insert(session.0.as_slice(), json.as_slice())?;
            Ok(())
        })?;
        self.newest.load(session, &json);
        Ok(())
    }

    /// The record of a session. One that cannot be read is an error: its session is not unknown here.
    pub fn get(&self, session: SessionId) -> Result<Option<Record>, JournalError> {
        self.newest.get(session)
    }

    /// All sessions. A record that cannot be read is left alone, and noted for the operator ([`Journal::unreadable`]).
    pub fn all(&self) -> Result<Vec<(SessionId, Record)>, JournalError> {
        let (sessions, others) = self.newest.all();
        self.unreadable.set(others);
        Ok(sessions)
    }

    /// Forgets ended sessions beyond what is kept to answer late questions.
    pub fn prune(&self) -> Result<usize, JournalError> {
        let surplus = self.surplus();
        if surplus.is_empty() {
            return Ok(0);
        }
        let unwritten = self.unwritten.lock();
        let is_written = |session: &SessionId| unwritten.ends.get(*session).is_none();
        let forgotten: Vec<SessionId> = surplus.into_iter().filter(is_written).collect();
        self.write(|table| {
            for session in &forgotten {
                table.remove(session.0.as_slice())?;
            }
            Ok(())
        })?;
        self.newest.remove(&forgotten);
        Ok(forgotten.len())
    }

    /// Ended sessions beyond what is kept: the oldest of the host that has most, so that no host has those of others
    /// forgotten. That a guest has left is kept besides those as long as its arrival is: to the host that it came from,
    /// its process would have ended here.
    fn surplus(&self) -> Vec<SessionId> {
        let (found, _) = self.newest.all();
        let arrived: HashSet<Process> = found.iter().filter_map(|(_, record)| record.arrived()).collect();
        let explains = |record: &Record| record.left().is_some_and(|process| arrived.contains(&process));
        let mut ended: BTreeMap<PeerName, Vec<(u64, SessionId)>> = BTreeMap::new();
        for (session, record) in found.iter().filter(|(_, record)| record.is_over() && !explains(record)) {
            ended.entry(record.peer()).or_default().push((record.order, *session));
        }
        // The oldest last.
        ended.values_mut().for_each(|of_host| of_host.sort_unstable_by_key(|(order, _)| Reverse(*order)));
        let surplus = ended.values().map(Vec::len).sum::<usize>().saturating_sub(ENDED_KEPT);
        let oldest = (0..surplus).map_while(|_| {
            let most = ended.values_mut().max_by_key(|of_host| of_host.len());
            most.and_then(Vec::pop).map(|(_, session)| session)
        });
        oldest.collect()
    }

    fn write(
        &self,
        change: impl FnOnce(&mut redb::Table<'_, &'static [u8], &'static [u8]>) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        #[cfg(test)]
        if self.is_full.load(Ordering::SeqCst) {
            return Err(JournalError::Folder(std::io::ErrorKind::StorageFull.into()));
        }
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
mod tests;
