//! Guests that may run on both hosts. That stays in the session's record, so that a later agent shows it too.

use std::borrow::Cow;
use std::collections::BTreeMap;

use linerate_core::SessionId;
use linerate_lock::Mutex;

use super::{Journal, Record};
use crate::faults::chain;

/// Newest records of such guests: what the disk had when the agent started, and what was noted and written since.
#[derive(Debug, Default)]
pub(super) struct OnBothHosts(Mutex<BTreeMap<SessionId, Record>>);

impl OnBothHosts {
    /// Takes what the disk has when the agent starts.
    pub fn load(&self, all: &[(SessionId, Record)]) {
        let noted = all.iter().filter(|(_, record)| record.on_both_hosts);
        self.0.lock().extend(noted.cloned());
    }

    /// The record as it goes to disk, by which an operator is told from now on what to do. A session that goes on
    /// writes a record of its own, which does not have the note.
    pub fn with_note<'a>(&self, session: SessionId, record: &'a Record) -> Cow<'a, Record> {
        let mut noted = self.0.lock();
        let Some(newest) = noted.get_mut(&session) else { return Cow::Borrowed(record) };
        *newest = Record { on_both_hosts: true, ..record.clone() };
        Cow::Owned(newest.clone())
    }
}

impl Journal {
    /// The guest of this session may run on both hosts. Its record, if that was not known. It is known from now on,
    /// whatever the disk does.
    pub fn note_on_both_hosts(&self, session: SessionId) -> Option<Record> {
        let found = match self.get(session) {
            Ok(found) => found?,
            Err(error) => {
                tracing::error!(%session, error = chain(&error), "its guest may run on both hosts, and the journal cannot be read: `linerate migration list` does not show it");
                return None;
            }
        };
        let record = Record { on_both_hosts: true, ..found };
        if self.on_both_hosts.0.lock().insert(session, record.clone()).is_some() {
            return None;
        }
        // Of what is newest when the disk can be written to: an operator may have settled it by then.
        let mut unwritten = self.unwritten.lock();
        let written = self.get(session).and_then(|newest| {
            newest.map_or(Ok(()), |newest| self.put_newest(&mut unwritten, session, &newest))
        });
        if let Err(error) = written {
            tracing::warn!(%session, error = chain(&error), "the journal does not have that the guest may run on both hosts: the next start of the agent does not show it");
        }
        Some(record)
    }

    /// Guests that may run on both hosts, also those whose QEMU on this host has ended since.
    pub fn on_both_hosts(&self) -> Vec<(SessionId, Record)> {
        self.on_both_hosts.0.lock().iter().map(|(session, record)| (*session, record.clone())).collect()
    }

    /// An operator has seen to it that one copy is left.
    pub fn settle_on_both_hosts(&self, session: SessionId) {
        self.on_both_hosts.0.lock().remove(&session);
        let mut unwritten = self.unwritten.lock();
        let found = self.get(session);
        let settled = match found {
            Ok(Some(record)) => {
                let record = Record { on_both_hosts: false, ..record };
                self.put_newest(&mut unwritten, session, &record)
            }
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = settled {
            tracing::warn!(%session, error = chain(&error), "the journal still has that the guest may run on both hosts: the next start of the agent shows it again");
        }
    }
}

#[cfg(test)]
mod tests {
    use linerate_core::journal::DestinationPhase;
    use linerate_core::recovery::Phase;

    use super::*;
    use crate::journal::IncomingRecord;

    #[test]
    fn a_guest_that_may_run_on_both_hosts_stays_noted_until_an_operator_settles_it() {
        let dir = tempfile::tempdir().unwrap();
        let session = SessionId([7; 16]);
        let mut record = Record::new("g", 1, IncomingRecord::default().role(DestinationPhase::Running));
        let journal = std::sync::Arc::new(Journal::open(dir.path()).unwrap());
        assert!(journal.note_on_both_hosts(session).is_none(), "no session of that name");
        journal.put(session, &record).unwrap();
        assert!(journal.note_on_both_hosts(session).is_some());
        assert!(journal.note_on_both_hosts(session).is_none(), "it is known");
        // The live session has not seen it, and writes its end.
        record.set_phase(Phase::Destination(DestinationPhase::Finished));
        journal.put_end(session, &record).unwrap();
        assert_eq!(journal.on_both_hosts()[0].1.role, record.role, "its phase is an old one");
        drop(journal);
        let noted = |journal: &Journal| -> Vec<SessionId> {
            journal.on_both_hosts().into_iter().map(|(session, _)| session).collect()
        };
        let journal = Journal::open(dir.path()).unwrap();
        assert_eq!(noted(&journal), [session]);
        let written = journal.get(session).unwrap().unwrap();
        assert_eq!(written.role, record.role, "only the note was added");
        journal.settle_on_both_hosts(session);
        assert!(noted(&journal).is_empty());
        drop(journal);
        assert!(noted(&Journal::open(dir.path()).unwrap()).is_empty());
    }

    #[test]
    fn a_record_of_an_earlier_agent_has_no_such_note() {
        let record = Record::new("g", 1, IncomingRecord::default().role(DestinationPhase::Running));
        let text = serde_json::to_value(&record).unwrap();
        assert_eq!(text.get("on_both_hosts"), None);
        assert_eq!(serde_json::from_value::<Record>(text).unwrap(), record);
    }
}
