//! What is known of each migration of a domain, and that there is one at a time for each.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use linerate_api::{
    Direction, ErrorBody, EventKind, Job, MigrationDetail, MigrationId, MigrationOutcome, MigrationState,
    MigrationSummary, Report, Step, code,
};
use linerate_core::SessionId;
use linerate_core::drain::Sample;
use linerate_lock::Mutex;
use tokio::sync::Notify;

use super::Needs;
use crate::clock::unix_ms;
use crate::event_log::EventLog;
use crate::journal::{Journal, JournalError, MovedDomain, Record, Role};
use crate::outgoing::Outgoing;

/// Ended migrations that are shown.
const ENDED_SHOWN: usize = 100;

/// Migrations of domains that leave this host.
#[derive(Default)]
pub struct Moves {
    claimed: Mutex<BTreeSet<String>>,
    /// In the order in which they began.
    all: Mutex<Vec<Arc<Move>>>,
}

/// A domain, by its UUID, is this migration's until this is dropped.
pub struct Claim {
    moves: Arc<Moves>,
    uuid: String,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.moves.claimed.lock().remove(&self.uuid);
    }
}

impl Moves {
    /// Refuses a domain that another migration has.
    pub fn claim(self: &Arc<Moves>, uuid: &str, name: &str) -> Result<Claim, ErrorBody> {
        if self.claimed.lock().insert(uuid.to_owned()) {
            return Ok(Claim { moves: self.clone(), uuid: uuid.to_owned() });
        }
        let text = format!(
            "the domain {name} is already moved by a migration; nothing was done, and nothing of it was touched"
        );
        let hint = "`linerate migration list` shows it; wait for its end, or end it with `linerate migration cancel`";
        Err(ErrorBody::new("guest_busy", text).with_hint(hint))
    }

    /// Whether a migration from this host has the domain.
    pub fn has(&self, uuid: &str) -> bool {
        self.claimed.lock().contains(uuid)
    }

    pub fn add(&self, one: Arc<Move>) {
        let mut all = self.all.lock();
        let mut surplus = all.iter().filter(|one| one.is_over()).count().saturating_sub(ENDED_SHOWN);
        all.retain(|one| {
            let goes = surplus > 0 && one.is_over();
            surplus -= usize::from(goes);
            !goes
        });
        all.push(one);
    }

    /// All migrations, ended ones too.
    pub fn all(&self) -> Vec<Arc<Move>> {
        self.all.lock().clone()
    }

    pub fn by_id(&self, id: &str) -> Option<Arc<Move>> {
        self.all.lock().iter().find(|one| one.id.0 == id).cloned()
    }
}

/// A record in the journal, from before libvirt is asked for anything to the migration's end.
pub struct Kept {
    journal: Arc<Journal>,
    key: SessionId,
    record: Record,
}

impl Kept {
    pub fn new(needs: &Needs, key: SessionId, name: &str, domain: MovedDomain) -> Result<Kept, JournalError> {
        let role = Role::Libvirt { domain, over: false };
        let record = Record::new(name, needs.journal.next_order(), role);
        needs.journal.put(key, &record)?;
        Ok(Kept::again(needs, key, record))
    }

    /// One of an earlier agent process.
    pub fn again(needs: &Needs, key: SessionId, record: Record) -> Kept {
        Kept { journal: needs.journal.clone(), key, record }
    }

    /// The next start of the agent has nothing to do with it.
    pub fn close(mut self) {
        if let Role::Libvirt { over, .. } = &mut self.record.role {
            *over = true;
        }
        // If the disk does not take it now, the journal tries it again.
        let _ = self.journal.put_end(self.key, &self.record);
    }
}

/// How the copy of a domain's RAM ended.
pub struct Copied {
    pub outcome: MigrationOutcome,
    pub error: Option<Box<ErrorBody>>,
    pub report: Option<Box<Report>>,
}

struct Known {
    step: Step,
    job: Job,
    /// The agent has ended during it, and finds out what became of the domain.
    recovering: bool,
    note: Option<String>,
}

pub struct Move {
    id: MigrationId,
    guest: String,
    to: String,
    started_unix_ms: u64,
    pub event_log: EventLog,
    /// The copy of RAM; none in other modes than direct.
    copy: Option<Arc<Outgoing>>,
    known: Mutex<Known>,
    /// Cipher of its tunnel, once that is open; never set in plain text.
    cipher: OnceLock<&'static str>,
    /// How often its end was asked for.
    asked: AtomicU32,
    pub(super) cancelled: Notify,
}

impl Move {
    pub fn new(name: &str, domain: &MovedDomain, copy: Option<Arc<Outgoing>>) -> Move {
        Move {
            id: MigrationId(domain.id.clone()),
            guest: name.to_owned(),
            to: domain.to.clone(),
            started_unix_ms: unix_ms(),
            event_log: EventLog::default(),
            copy,
            known: Mutex::new(Known { step: Step::Resolve, job: Job::new(), recovering: false, note: None }),
            cipher: OnceLock::new(),
            asked: AtomicU32::new(0),
            cancelled: Notify::new(),
        }
    }

    /// One during which the agent has ended.
    pub fn recovering(name: &str, domain: &MovedDomain, record: &Record) -> Move {
        let one = Move { started_unix_ms: record.changed_unix_ms, ..Move::new(name, domain, None) };
        one.known.lock().recovering = true;
        one.set_step(Step::Copy);
        one
    }

    pub fn id(&self) -> &MigrationId {
        &self.id
    }

    pub fn guest(&self) -> &str {
        &self.guest
    }

    pub fn to(&self) -> &str {
        &self.to
    }

    /// Its tunnel has this cipher.
    pub fn note_cipher(&self, cipher: Option<&'static str>) {
        if let Some(cipher) = cipher {
            let _ = self.cipher.set(cipher);
        }
    }

    /// For the audit log; none in plain text, and where the tunnel was not opened or is of an earlier agent process.
    pub fn cipher(&self) -> Option<&'static str> {
        self.cipher.get().copied()
    }

    pub fn copy(&self) -> Option<&Arc<Outgoing>> {
        self.copy.as_ref()
    }

    /// How the copy of RAM ended, once it has.
    pub fn copied(&self) -> Option<Copied> {
        match self.copy.as_ref()?.event_log.finished()? {
            EventKind::Finished { outcome, error, report } => Some(Copied { outcome, error, report }),
            _ => None,
        }
    }

    pub fn is_over(&self) -> bool {
        self.event_log.finished().is_some()
    }

    /// Whether it is of an earlier agent process, and not over.
    pub fn is_recovering(&self) -> bool {
        self.known.lock().recovering && !self.is_over()
    }

    /// Asks for its end. It has ended with the last event. Refused once it is over, and after a restart of the agent:
    /// libvirt's part has ended then.
    pub fn cancel(&self) -> Result<(), ErrorBody> {
        let id = &self.id.0;
        if self.is_over() {
            return Err(ErrorBody::new(code::TOO_LATE, format!("migration {id} is over")));
        }
        if self.is_recovering() {
            let text = format!(
                "too late to cancel: the agent has ended during migration {id}, and libvirt's part of it too"
            );
            return Err(ErrorBody::new(code::TOO_LATE, text));
        }
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.cancelled.notify_one();
        Ok(())
    }

    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst) > 0
    }

    pub fn set_step(&self, step: Step) {
        self.known.lock().step = step;
    }

    pub fn set_job(&self, job: &Job) {
        self.known.lock().job.clone_from(job);
    }

    /// Why it has not ended.
    pub fn set_note(&self, note: String) {
        self.known.lock().note = Some(note);
    }

    fn state(&self, known: &Known) -> MigrationState {
        match self.event_log.finished() {
            Some(EventKind::Finished { outcome, .. }) => match outcome {
                MigrationOutcome::Completed => MigrationState::Completed,
                MigrationOutcome::Cancelled => MigrationState::Cancelled,
                MigrationOutcome::Checked => MigrationState::Checked,
                MigrationOutcome::Failed => MigrationState::Failed,
                MigrationOutcome::InDoubt => MigrationState::InDoubt,
            },
            _ if known.recovering => MigrationState::Recovering,
            _ if self.is_asked() => MigrationState::Cancelling,
            _ => MigrationState::Running,
        }
    }

    /// A line about it.
    pub fn summary(&self) -> MigrationSummary {
        let copy = self.copy.as_ref().map(|copy| copy.summary());
        let known = self.known.lock();
        let state = self.state(&known);
        MigrationSummary {
            id: self.id.clone(),
            guest: self.guest.clone(),
            direction: Direction::Outgoing,
            peer: self.to.clone(),
            state,
            step: match (&copy, state) {
                (_, MigrationState::Completed) => Step::CleanUp,
                (Some(copy), _) => copy.step,
                (None, _) => known.step,
            },
            started_unix_ms: self.started_unix_ms,
            sent_bytes: copy.map_or_else(
                || known.job.get("data_processed").copied().unwrap_or(0),
                |copy| copy.sent_bytes,
            ),
            note: known.note.clone().filter(|_| state == MigrationState::Recovering),
        }
    }

    /// How far the copy of RAM is; none before its first byte. Of a copy by libvirt it has no rate.
    pub fn sample(&self) -> Option<Sample> {
        if let Some(copy) = &self.copy {
            return copy.sample();
        }
        let known = self.known.lock();
        let number = |key: &str| known.job.get(key).copied();
        let copied_bytes = number("data_processed").filter(|bytes| *bytes > 0)?;
        // libvirt counts from 1.
        let round = number("memory_iteration").unwrap_or(1).saturating_sub(1);
        let pages = number("memory_dirty_rate").filter(|_| round > 0);
        let writes = pages.zip(number("memory_page_size"));
        Some(Sample {
            round: u32::try_from(round).unwrap_or(u32::MAX),
            copied_bytes,
            left_bytes: number("data_remaining").unwrap_or(u64::MAX),
            bytes_per_s: 0.0,
            write_bytes_per_s: writes.map(|(pages, bytes)| pages as f64 * bytes as f64),
        })
    }

    /// Whether more was copied than the domain's memory so many times over.
    pub fn has_copied(&self, times: u64) -> bool {
        let memory = match &self.copy {
            Some(copy) => Some(copy.ram_bytes()),
            None => self.known.lock().job.get("memory_total").copied(),
        };
        let memory = memory.filter(|bytes| *bytes > 0);
        let copied = self.sample().map(|sample| sample.copied_bytes);
        copied.zip(memory).is_some_and(|(copied, memory)| copied > memory.saturating_mul(times))
    }

    /// All that is known of it.
    pub fn detail(&self) -> MigrationDetail {
        let (report, error) = match self.event_log.finished() {
            Some(EventKind::Finished { report, error, .. }) => (report, error),
            _ => (None, None),
        };
        MigrationDetail {
            summary: self.summary(),
            report: report.map(|report| *report),
            error: error.map(|error| *error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::moved;
    use super::*;

    const UUID: &str = "0f0e8c9a-0000-4000-8000-000000000001";

    #[test]
    fn what_was_copied_is_compared_with_the_domains_memory() {
        let one = Move::new("web", &moved("1"), None);
        assert!(!one.has_copied(30), "nothing is known");
        let job =
            |copied: u64| [("data_processed".to_owned(), copied), ("memory_total".to_owned(), 100)].into();
        one.set_job(&job(3000));
        assert!(!one.has_copied(30));
        one.set_job(&job(3001));
        assert!(one.has_copied(30));
    }

    #[test]
    fn a_domain_has_one_migration_at_a_time_whatever_it_is_called() {
        let moves = Arc::<Moves>::default();
        let claim = moves.claim(UUID, "web").unwrap();
        assert!(moves.has(UUID));
        let refused = moves.claim(UUID, "renamed").map(drop).unwrap_err();
        assert_eq!(refused.code, "guest_busy");
        assert!(refused.message.contains("already moved"), "{}", refused.message);
        // Another domain may have the name that this one had.
        let other = moves.claim("0f0e8c9a-0000-4000-8000-000000000002", "web").unwrap();
        drop((claim, other));
        assert!(!moves.has(UUID));
        assert!(moves.claim(UUID, "web").is_ok());
    }

    #[test]
    fn the_next_start_of_the_agent_finds_what_has_not_ended() {
        let dir = tempfile::tempdir().unwrap();
        let agent = crate::testing::agent(&dir, &[]);
        let key = SessionId([7; 16]);
        let kept = Kept::new(&agent.libvirt(), key, "web", moved("a1")).unwrap();
        let found = || agent.journal.get(key).unwrap().map(|record| (record.guest, record.role));
        let role = |over| Role::Libvirt { domain: moved("a1"), over };
        assert_eq!(found(), Some(("web".to_owned(), role(false))));
        kept.close();
        assert_eq!(found(), Some(("web".to_owned(), role(true))));
    }

    #[test]
    fn a_migration_is_listed_from_its_begin_to_long_after_its_end() {
        let moves = Moves::default();
        let one = Arc::new(Move::new("web", &moved("a1"), None));
        moves.add(one.clone());
        let state = |id: &str| moves.by_id(id).map(|one| one.summary().state);
        assert_eq!(state("a1"), Some(MigrationState::Running));
        one.set_step(Step::Copy);
        assert_eq!(one.sample().map(|sample| sample.copied_bytes), None);
        one.set_job(&Job::from([("data_processed".to_owned(), 7)]));
        assert_eq!((one.summary().step, one.summary().sent_bytes), (Step::Copy, 7));
        let sample = one.sample().unwrap_or_default();
        assert_eq!((sample.round, sample.left_bytes, sample.write_bytes_per_s), (0, u64::MAX, None));
        let job = [("memory_iteration", 2), ("memory_dirty_rate", 3), ("memory_page_size", 4096)];
        let job = job.into_iter().chain([("data_processed", 9), ("data_remaining", 5)]);
        one.set_job(&job.map(|(key, number)| (key.to_owned(), number)).collect());
        let sample = one.sample().unwrap_or_default();
        assert_eq!((sample.round, sample.left_bytes, sample.write_bytes_per_s), (1, 5, Some(12288.0)));
        assert!(one.cancel().is_ok());
        assert_eq!(state("a1"), Some(MigrationState::Cancelling));
        let error = Some(Box::new(ErrorBody::new("cancelled", "no")));
        one.event_log.publish(EventKind::Finished {
            outcome: MigrationOutcome::Cancelled,
            error,
            report: None,
        });
        assert_eq!(state("a1"), Some(MigrationState::Cancelled));
        assert_eq!(one.detail().error.map(|error| error.code).as_deref(), Some("cancelled"));
        assert_eq!(one.cancel().unwrap_err().code, code::TOO_LATE, "it is over");
        for number in 0..=ENDED_SHOWN {
            let more = Move::new("web", &moved(&number.to_string()), None);
            more.event_log.publish(one.event_log.finished().unwrap());
            moves.add(Arc::new(more));
        }
        assert_eq!(state("a1"), None, "the oldest goes first");
        assert!(moves.by_id("0").is_some());
    }
}
