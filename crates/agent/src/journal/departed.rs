//! Guests that have left this host: what is known of a name last.

use linerate_core::SessionId;
use linerate_core::journal::{DestinationPhase, SourcePhase};

use super::{Journal, JournalError, Record, Role};
use crate::faults::chain;

impl Journal {
    /// The migration in which the guest of this name left, if that is the last that is known of it. None if it came
    /// back, stayed in a later migration, or was started here since. A departure that was forgotten is not known.
    pub fn departure_of(&self, guest: &str) -> Result<Option<(SessionId, Record)>, JournalError> {
        let all = self.all()?.into_iter();
        let last = all.filter(|(_, record)| record.guest == guest && was_here(record));
        let last = last.max_by_key(|(_, record)| record.order);
        Ok(last.filter(|(_, record)| has_left(record) && !record.started_again))
    }

    /// A guest that has left was started here again: its departure is no longer the last that is known of it.
    pub fn note_started_again(&self, session: SessionId) {
        let mut unwritten = self.unwritten.lock();
        let noted = match self.get(session) {
            Ok(Some(record)) => {
                self.put_newest(&mut unwritten, session, &Record { started_again: true, ..record })
            }
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = noted {
            tracing::warn!(%session, error = chain(&error), "the journal does not have that this guest was started here again: the next start asks the host to which it went once more");
        }
    }
}

/// Whether the guest was on this host when the session ended.
fn was_here(record: &Record) -> bool {
    match &record.role {
        Role::Source { .. } => true,
        Role::Destination { phase, .. } => matches!(
            phase,
            DestinationPhase::Committed | DestinationPhase::Running | DestinationPhase::Finished
        ),
        Role::Handover { .. } | Role::Libvirt { .. } => false,
    }
}

fn has_left(record: &Record) -> bool {
    matches!(record.role, Role::Source { phase: SourcePhase::Finished, .. })
}

#[cfg(test)]
mod tests {
    use linerate_guest::registry::{GuestRecord, Origin};

    use super::*;
    use crate::journal::IncomingRecord;
    use crate::recovery::tests::leaves;

    fn qemu() -> GuestRecord {
        let own = i32::try_from(std::process::id()).unwrap();
        GuestRecord::new("g", Origin::Arrived, own, "/run/x/g.sock".into(), vec![]).unwrap()
    }

    #[test]
    fn the_last_that_is_known_of_a_name_decides_whether_its_guest_has_left() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, qemu) = (Journal::open(dir.path()).unwrap(), qemu());
        let put = |role: Role| {
            let order = journal.next_order();
            let session = SessionId([u8::try_from(order).unwrap(); 16]);
            journal.put(session, &Record::new("g", order, role)).unwrap();
            session
        };
        let left = |name: &str| journal.departure_of(name).unwrap().map(|(session, _)| session);
        let comes = |phase| IncomingRecord::default().role(phase);
        assert_eq!(left("g"), None);
        let first = put(leaves(&qemu, SourcePhase::Finished));
        assert_eq!((left("g"), left("other")), (Some(first), None));
        put(comes(DestinationPhase::Aborted));
        assert_eq!(left("g"), Some(first), "it did not come");
        put(comes(DestinationPhase::Finished));
        assert_eq!(left("g"), None, "it came back");
        let second = put(leaves(&qemu, SourcePhase::Finished));
        assert_eq!(left("g"), Some(second));
        journal.note_started_again(second);
        assert_eq!(left("g"), None, "it was started here");
        let third = put(leaves(&qemu, SourcePhase::Finished));
        assert_eq!(left("g"), Some(third));
        put(leaves(&qemu, SourcePhase::RolledBack));
        assert_eq!(left("g"), None, "it was here, and stayed");
    }

    #[test]
    fn that_a_guest_was_started_again_is_known_to_the_next_agent() {
        let dir = tempfile::tempdir().unwrap();
        let session = SessionId([7; 16]);
        let record = Record::new("g", 1, leaves(&qemu(), SourcePhase::Finished));
        let text = serde_json::to_value(&record).unwrap();
        assert_eq!(text.get("started_again"), None, "an agent of an earlier version reads it too");
        let journal = Journal::open(dir.path()).unwrap();
        journal.put(session, &record).unwrap();
        journal.note_started_again(session);
        drop(journal);
        let journal = Journal::open(dir.path()).unwrap();
        assert!(journal.departure_of("g").unwrap().is_none());
        assert!(journal.get(session).unwrap().unwrap().started_again);
    }
}
