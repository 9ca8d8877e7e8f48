//! What a host keeps: its agent, the agent's journal, and the sessions that recovery brings to their end.

use std::collections::BTreeMap;

use linerate_core::journal::{DestinationPhase, SourcePhase};
use linerate_core::recovery::{DestinationRecovery, Entry, Phase, Process, RETRY_AFTER, SourceRecovery};
use linerate_core::roll_back_notice::RollBackNotice;
use linerate_core::{SessionId, Time};

use crate::check::Mutation;

/// A record of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its place among the sessions of the host.
    pub order: u64,
    /// How far the session got.
    pub phase: Phase,
    /// The guest's process here, once it was started.
    pub process: Option<u64>,
    /// The guest ran at the source when it was stopped.
    pub ran: bool,
    /// Rolled back, and the destination may hold the guest and was not notified.
    pub notice_due: bool,
    /// What the host's clock showed. Nothing may depend on it.
    pub clock: i64,
}

/// A session that is brought to its end.
#[derive(Debug)]
pub enum Machine {
    /// The guest was to leave.
    Source(SourceRecovery),
    /// The guest was to come.
    Destination(DestinationRecovery),
}

/// What is written with a phase.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// The guest's process here.
    pub process: Option<u64>,
    /// The guest ran at the source when it was stopped.
    pub ran: Option<bool>,
    /// Recovery writes, and tries again by itself.
    pub recovers: bool,
}

#[derive(Debug)]
pub struct RecoveryCase {
    pub machine: Machine,
    pub since: Time,
    /// The operator has spoken.
    pub resolved: bool,
}

/// A host: what is on its disk, and its agent.
#[derive(Debug, Default)]
pub struct Host {
    pub up: bool,
    /// Counts the agent's incarnations; what was begun in an earlier one is void.
    pub incarnation: u64,
    pub journal: BTreeMap<u64, Record>,
    /// Ends of sessions that the disk has not taken yet; in the agent's memory.
    pub unwritten: BTreeMap<u64, Record>,
    /// So many writes of the journal fail.
    pub journal_fails: u64,
    /// All writes of the journal fail until then.
    pub journal_full_until: Time,
    /// The agent tries again to write what the disk did not take.
    pub writes_again_at: Time,
    /// Sessions that are brought to their end.
    pub cases: BTreeMap<u64, RecoveryCase>,
    /// Roll-back notices on connections of their own.
    pub roll_back_notices: BTreeMap<u64, RollBackNotice>,
    /// [`Record::notice_due`] where the disk did not take it: it goes with the session's next record.
    pub notice_due: BTreeMap<u64, bool>,
    /// Disks cannot be activated here until then.
    pub disks_away_until: Time,
    /// No hypervisor here answers until then.
    pub hypervisors_away_until: Time,
    /// By how many seconds the clock is off.
    pub clock_off: i64,
    /// The host crashed with a guest.
    pub crashed: bool,
    next_order: u64,
}

/// Whether a phase ends a session: it is written until the disk takes it.
fn ends(phase: Phase) -> bool {
    use DestinationPhase as To;
    use SourcePhase as From;
    match phase {
        Phase::Source(phase) => matches!(phase, From::Finished | From::RolledBack),
        Phase::Destination(phase) => !matches!(phase, To::Started | To::Loaded | To::Committed),
    }
}

impl Host {
    /// A host whose agent runs.
    pub fn new() -> Host {
        Host { up: true, ..Host::default() }
    }

    /// What the agent knows of a session.
    pub fn record(&self, session: u64) -> Option<&Record> {
        self.unwritten.get(&session).or_else(|| self.journal.get(&session))
    }

    /// Whether the disk takes a record now.
    fn takes(&mut self, now: Time) -> bool {
        if now < self.journal_full_until {
            return false;
        }
        let fails = self.journal_fails > 0;
        self.journal_fails -= u64::from(fails);
        !fails
    }

    /// Writes a phase; what is known of the process is kept. Whether it is on disk. An end that the disk does not take is kept
    /// and tried again, unless recovery does that itself.
    pub fn write(&mut self, now: Time, session: u64, phase: Phase, known: Known) -> bool {
        let clock = now.0 as i64 / 1_000_000_000 + self.clock_off;
        let mut record = match self.record(session) {
            Some(record) => record.clone(),
            None => {
                self.next_order += 1;
                Record { order: self.next_order, phase, process: None, ran: true, notice_due: false, clock }
            }
        };
        record.phase = phase;
        record.process = known.process.or(record.process);
        record.ran = known.ran.unwrap_or(record.ran);
        record.notice_due = self.notice_due.get(&session).copied().unwrap_or(record.notice_due);
        // The state machine of an active session says so itself.
        record.notice_due |= known.recovers && phase == Phase::Source(SourcePhase::ResumingHere);
        self.put(now, session, record, !known.recovers)
    }

    /// Puts a record on disk.
    pub fn put(&mut self, now: Time, session: u64, record: Record, keep: bool) -> bool {
        if self.takes(now) {
            self.unwritten.remove(&session);
            self.notice_due.remove(&session);
            self.journal.insert(session, record);
            return true;
        }
        if keep && ends(record.phase) {
            if self.unwritten.is_empty() {
                self.writes_again_at = now + RETRY_AFTER;
            }
            self.unwritten.insert(session, record);
        }
        false
    }

    /// Tries what the disk did not take.
    pub fn write_again(&mut self, now: Time, mutation: Option<Mutation>) {
        if self.unwritten.is_empty() || now < self.writes_again_at {
            return;
        }
        if mutation == Some(Mutation::EndWrittenOnce) {
            return self.unwritten.clear();
        }
        self.writes_again_at = now + RETRY_AFTER;
        for (session, record) in self.unwritten.clone() {
            if self.takes(now) {
                self.unwritten.remove(&session);
                self.journal.insert(session, record);
            }
        }
    }

    /// The agent has ended, and the content of its memory is lost.
    pub fn forget(&mut self) {
        self.up = false;
        self.incarnation += 1;
        self.unwritten.clear();
        self.cases.clear();
        self.roll_back_notices.clear();
        self.notice_due.clear();
    }

    /// The journal as recovery sees it.
    pub fn entries(&self, mutation: Option<Mutation>) -> Vec<Entry> {
        let records = self.journal.iter().chain(&self.unwritten);
        let mut all: BTreeMap<u64, &Record> = BTreeMap::new();
        for (session, record) in records {
            all.insert(*session, record);
        }
        all.into_iter()
            .map(|(session, record)| Entry {
                session: id(session),
                order: match mutation {
                    Some(Mutation::OrderByClock) => record.clock.wrapping_add(1 << 40) as u64,
                    _ => record.order,
                },
                phase: record.phase,
                process: record.process.map(process),
            })
            .collect()
    }

    /// An unfinished record names the process: no new session of it begins.
    pub fn claims(&self, pid: u64) -> bool {
        let names = |record: &Record| record.process == Some(pid);
        let open = |record: &Record| !ends(record.phase) && names(record);
        self.cases.keys().any(|session| self.record(*session).is_some_and(names))
            || self
                .journal
                .iter()
                .any(|(session, record)| open(self.unwritten.get(session).unwrap_or(record)))
    }
}

/// A session's number as the core knows it.
pub fn id(session: u64) -> SessionId {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&session.to_le_bytes());
    SessionId(bytes)
}

/// A session's number as the simulator knows it.
pub fn session(id: SessionId) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&id.0[..8]);
    u64::from_le_bytes(bytes)
}

/// A process as recovery names it.
pub fn process(pid: u64) -> Process {
    Process { boot: String::new(), pid: pid as i32, start_ticks: pid }
}
