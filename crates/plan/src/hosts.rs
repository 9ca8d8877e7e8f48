//! What a host keeps: its agent, the agent's journal, and the sessions that recovery brings to their end.

use std::collections::{BTreeMap, BTreeSet};

use linerate_core::journal::{DestinationPhase, SourcePhase};
use linerate_core::recovery::{
    DestinationRecovery, DomainRecovery, Entry, Phase, Process, SettingRecovery, SourceRecovery,
    UnwrittenEnds,
};
use linerate_core::roll_back_notice::RollBackNotice;
use linerate_core::{SessionId, Time};

use crate::check::{Decision, Mutation};

/// What a record is for where the guest is libvirt's: who runs it follows from no such record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DomainRecord {
    /// A capability of its hypervisor is set until this is `over`. The agent's `Role::Handover`.
    Setting { over: bool },
    /// libvirt is asked to move it, and where it is becomes known when this is `over`. The agent's `Role::Libvirt`.
    Move { over: bool },
}

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
    /// Commit was sent, and the guest was seen to have run here since.
    pub ran_here: bool,
    /// Rolled back, and the destination may hold the guest and was not notified.
    pub notice_due: bool,
    /// It is of a domain of libvirt.
    pub domain: Option<DomainRecord>,
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
    /// A hypervisor of libvirt was set.
    Setting(SettingRecovery),
    /// libvirt was moving the guest.
    Domain(DomainRecovery),
}

/// What is written with a phase.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// The guest's process here.
    pub process: Option<u64>,
    /// The guest ran at the source when it was stopped.
    pub ran: Option<bool>,
    /// It is of a domain of libvirt.
    pub domain: Option<DomainRecord>,
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
    pub unwritten: UnwrittenEnds<Record>,
    /// So many writes of the journal fail.
    pub journal_fails: u64,
    /// All writes of the journal fail until then.
    pub journal_full_until: Time,
    /// Sessions that are brought to their end.
    pub cases: BTreeMap<u64, RecoveryCase>,
    /// Decisions whose operators wait for the agent's answer.
    pub decisions: Vec<Decision>,
    /// Roll-back notices on connections of their own.
    pub roll_back_notices: BTreeMap<u64, RollBackNotice>,
    /// [`Record::notice_due`] in the agent's memory: it goes to disk with the session's next record.
    pub notice_due: BTreeMap<u64, bool>,
    /// [`Record::ran_here`] in the agent's memory.
    pub ran_here: BTreeSet<u64>,
    /// Sessions whose recovery has asked before it resumes the guest.
    pub looks: BTreeSet<u64>,
    /// Settings that are off, and that the next start finds open.
    pub left_open: BTreeSet<u64>,
    /// Files beside the journal: sessions that the other host shall give up if this agent ends.
    pub pending_notices: BTreeSet<u64>,
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
        self.unwritten.get(id(session)).or_else(|| self.journal.get(&session))
    }

    /// Writes a phase; what is known of the process is kept. Whether it is on disk. The journal tries an end again that
    /// the disk does not take, unless recovery does that itself.
    pub fn write(&mut self, now: Time, session: u64, phase: Phase, known: Known) -> bool {
        let clock = now.0 as i64 / 1_000_000_000 + self.clock_off;
        let mut record = match self.record(session) {
            Some(record) => record.clone(),
            None => {
                self.next_order += 1;
                let order = self.next_order;
                let (ran, ran_here, notice_due) = (true, false, false);
                Record { order, phase, process: None, ran, ran_here, notice_due, domain: None, clock }
            }
        };
        record.phase = phase;
        record.process = known.process.or(record.process);
        record.ran = known.ran.unwrap_or(record.ran);
        record.domain = known.domain.or(record.domain);
        record.ran_here |= self.ran_here.contains(&session);
        record.notice_due = self.notice_due.get(&session).copied().unwrap_or(record.notice_due);
        // It was to be resumed here, and runs at the destination.
        record.notice_due &= phase != Phase::Source(SourcePhase::Finished);
        // The state machine of an active session says so itself.
        record.notice_due |= known.recovers && phase == Phase::Source(SourcePhase::ResumingHere);
        match ends(phase) && !known.recovers {
            true => self.put_end(now, session, record),
            false => self.put(now, session, record),
        }
    }

    /// As the agent's `Journal::put`: a record that only counts when it is on disk.
    fn put(&mut self, now: Time, session: u64, record: Record) -> bool {
        let written = self.insert(now, session, record);
        if written {
            self.unwritten.superseded(id(session));
            self.notice_due.remove(&session);
        }
        written
    }

    /// As the agent's `Journal::put_end`: what the disk refuses is tried until the disk takes it.
    fn put_end(&mut self, now: Time, session: u64, record: Record) -> bool {
        let written = self.put(now, session, record.clone());
        if !written {
            self.unwritten.refused(now, id(session), record);
        }
        written
    }

    /// There is nothing left to do about this record of a domain.
    pub fn close_domain(&mut self, now: Time, session: u64) {
        let Some(mut record) = self.record(session).cloned() else { return };
        if let Some(DomainRecord::Setting { over } | DomainRecord::Move { over }) = &mut record.domain {
            *over = true;
        }
        self.put_end(now, session, record);
    }

    /// As the agent's `Journal::put_unless`, when a driver has put a setting back. What the disk refuses here is left
    /// to the next start.
    pub fn note_put_back(&mut self, now: Time, session: u64) -> bool {
        let Some(mut record) = self.record(session).cloned() else { return true };
        record.domain = Some(DomainRecord::Setting { over: true });
        let written = self.put(now, session, record);
        if !written {
            self.left_open.insert(session);
        }
        written
    }

    /// As the agent's `Journal::record_notified`: the destination knows that the session was rolled back.
    pub fn record_notified(&mut self, now: Time, session: u64) {
        let rolled_back = Phase::Source(SourcePhase::RolledBack);
        let due = self.record(session).filter(|record| record.notice_due && record.phase == rolled_back);
        if let Some(record) = due.cloned() {
            self.put(now, session, Record { notice_due: false, ..record });
        }
    }

    /// The guest ran here after commit was sent: no agent asks the destination any more.
    pub fn note_ran_here(&mut self, now: Time, session: u64) {
        self.ran_here.insert(session);
        if let Some(record) = self.record(session).cloned() {
            self.put(now, session, Record { ran_here: true, ..record });
        }
    }

    /// As the agent's thread that writes ends: tries all that are due.
    pub fn write_due_ends(&mut self, now: Time, mutation: Option<Mutation>) {
        while let Some((due, record)) = self.unwritten.due(now) {
            let record = record.clone();
            let forgets = mutation == Some(Mutation::EndWrittenOnce);
            let written = forgets || self.insert(now, session(due), record);
            self.unwritten.tried(now, due, written);
        }
    }

    /// Puts a record on disk, if the disk takes one now.
    fn insert(&mut self, now: Time, session: u64, record: Record) -> bool {
        if now < self.journal_full_until {
            return false;
        }
        let fails = self.journal_fails > 0;
        self.journal_fails -= u64::from(fails);
        if !fails {
            self.journal.insert(session, record);
        }
        !fails
    }

    /// The agent has ended, and the content of its memory is lost.
    pub fn forget(&mut self) {
        self.up = false;
        self.incarnation += 1;
        self.unwritten = UnwrittenEnds::default();
        self.cases.clear();
        self.decisions.clear();
        self.roll_back_notices.clear();
        self.notice_due.clear();
        self.ran_here.clear();
        self.looks.clear();
        self.left_open.clear();
    }

    /// Records of domains that are not over, the newest first.
    pub fn open_domains(&self) -> Vec<(u64, DomainRecord)> {
        let newest = |session: &u64| self.record(*session).map(|record| (record.order, record.domain));
        let mut open: Vec<_> = self
            .journal
            .keys()
            .filter_map(|session| newest(session).map(|(order, domain)| (order, *session, domain)))
            .filter_map(|(order, session, domain)| Some((order, session, domain?)))
            .filter(|(.., domain)| {
                matches!(domain, DomainRecord::Setting { over: false } | DomainRecord::Move { over: false })
            })
            .collect();
        open.sort_unstable_by_key(|(order, ..)| std::cmp::Reverse(*order));
        open.into_iter().map(|(_, session, domain)| (session, domain)).collect()
    }

    /// The journal as recovery sees it.
    pub fn entries(&self, mutation: Option<Mutation>) -> Vec<Entry> {
        let on_disk = self.journal.iter().map(|(session, record)| (*session, record));
        let waiting = self.unwritten.iter().map(|(due, record)| (session(due), record));
        let all: BTreeMap<u64, &Record> = on_disk.chain(waiting).collect();
        all.into_iter()
            .filter(|(_, record)| record.domain.is_none())
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

    /// An unfinished record names the process: no new session of it begins. Nor does one of a domain that is looked
    /// for. A hypervisor whose setting is put back keeps none from it.
    pub fn claims(&self, pid: u64) -> bool {
        if self.cases.values().any(|case| matches!(case.machine, Machine::Domain(_))) {
            return true;
        }
        let names = |record: &Record| record.process == Some(pid) && record.domain.is_none();
        let open = |record: &Record| !ends(record.phase) && names(record);
        self.cases.keys().any(|session| self.record(*session).is_some_and(names))
            || self
                .journal
                .iter()
                .any(|(session, record)| open(self.unwritten.get(id(*session)).unwrap_or(record)))
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

/// The number under which the source keeps that libvirt moves the guest.
pub fn move_of(session: u64) -> u64 {
    session | 1 << 63
}

/// A process as recovery names it.
pub fn process(pid: u64) -> Process {
    Process { boot: String::new(), pid: pid as i32, start_ticks: pid }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use linerate_core::recovery::RETRY_AFTER;

    use super::*;

    const RUNNING: Phase = Phase::Destination(DestinationPhase::Running);
    const FINISHED: Phase = Phase::Destination(DestinationPhase::Finished);
    const ROLLED_BACK: Phase = Phase::Source(SourcePhase::RolledBack);

    fn later(now: Time) -> Time {
        now + RETRY_AFTER + Duration::from_millis(1)
    }

    #[test]
    fn an_end_that_waits_does_not_replace_what_was_written_since() {
        let mut host = Host { journal_fails: 1, ..Host::new() };
        assert!(!host.write(Time::ZERO, 7, RUNNING, Known::default()));
        assert_eq!((host.unwritten.len(), host.record(7).map(|record| record.phase)), (1, Some(RUNNING)));
        assert!(host.write(Time::ZERO, 7, FINISHED, Known::default()));
        host.write_due_ends(later(Time::ZERO), None);
        assert_eq!((host.unwritten.len(), host.journal[&7].phase), (0, FINISHED));
    }

    #[test]
    fn every_end_is_tried_when_it_is_due_whatever_the_disk_says_to_another() {
        let mut host = Host { journal_fails: 3, ..Host::new() };
        for session in [1, 2] {
            assert!(!host.write(Time::ZERO, session, FINISHED, Known::default()));
        }
        host.write_due_ends(Time::ZERO, None);
        assert_eq!((host.journal.len(), host.journal_fails), (0, 1), "not at once again");
        let now = later(Time::ZERO);
        host.write_due_ends(now, None);
        assert_eq!((host.journal.keys().collect::<Vec<_>>(), host.unwritten.len()), (vec![&2], 1));
        host.write_due_ends(later(now), None);
        assert_eq!((host.journal.len(), host.unwritten.is_empty()), (2, true));
    }

    #[test]
    fn recovery_and_phases_that_are_no_ends_are_not_tried_by_the_journal() {
        let mut host = Host { journal_fails: 2, ..Host::new() };
        assert!(!host.write(Time::ZERO, 1, FINISHED, Known { recovers: true, ..Known::default() }));
        let committed = Phase::Destination(DestinationPhase::Committed);
        assert!(!host.write(Time::ZERO, 2, committed, Known::default()));
        assert!(host.unwritten.is_empty() && host.record(1).is_none());
    }

    #[test]
    fn a_notice_is_due_from_the_record_of_the_roll_back_until_the_disk_has_that_it_arrived() {
        let mut host = Host::new();
        host.notice_due.insert(3, true);
        assert!(host.write(Time::ZERO, 3, ROLLED_BACK, Known::default()));
        host.forget();
        let due = |host: &Host| host.record(3).is_some_and(|record| record.notice_due);
        assert!(due(&host));
        host.journal_fails = 1;
        host.record_notified(Time::ZERO, 3);
        assert!(due(&host), "the disk has refused it");
        host.record_notified(Time::ZERO, 3);
        assert!(!due(&host));
    }
}
