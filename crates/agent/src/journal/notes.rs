//! What is noted in the newest record of a session, whatever phase that has.
//!
//! That a guest runs or ran here is written in a thread of its own. Its source tells the destination every few seconds,
//! and a disk that hangs must not silence it.

use std::collections::BTreeMap;
use std::sync::Arc;

use linerate_core::SessionId;
use linerate_core::journal::SourcePhase;

use super::{Journal, JournalError, Record, Role, Unwritten};
use crate::faults::chain;
use crate::ran_here::RanHere;

/// What an operator reads if the disk refuses a note.
const RAN_SINCE_IS_LOST: &str = "the journal does not have that the guest ran here since: if its QEMU has ended by the next start of the agent, the destination is not notified";
const RAN_HERE_IS_LOST: &str = "the journal does not have whether the guest ran here after commit. If its QEMU has ended by the next start of the agent, that may ask the destination, which may run memory that is older than the disks; or ask nothing, and leave the guest to an operator";

/// Notes that wait for the disk.
#[derive(Debug, Default)]
pub(super) struct Notes {
    due: BTreeMap<SessionId, Note>,
    /// A thread writes them.
    has_thread: bool,
}

/// What was noted last of a guest at its source.
#[derive(Clone, Copy, Debug, Default)]
struct Note {
    ran_since: bool,
    ran_here: Option<RanHere>,
}

impl Note {
    /// False if the record says so already.
    fn apply(self, role: &mut Role) -> bool {
        let Role::Source { ran, ran_here, .. } = role else { return false };
        let before = (*ran, *ran_here);
        *ran |= self.ran_since;
        *ran_here = self.ran_here.unwrap_or(*ran_here);
        before != (*ran, *ran_here)
    }
}

impl Journal {
    /// Changes the newest record of a session. `change`: false if there is nothing to write.
    fn change(
        &self,
        unwritten: &mut Unwritten,
        session: SessionId,
        change: impl FnOnce(&mut Role) -> bool,
    ) -> Result<(), JournalError> {
        let Some(mut record) = self.get(session)? else { return Ok(()) };
        if !change(&mut record.role) {
            return Ok(());
        }
        self.put_newest(unwritten, session, &record)
    }

    /// A guest that was paused when it was to leave was seen to run here since. The disk is not waited for.
    pub fn note_ran_since(self: &Arc<Journal>, session: SessionId) {
        self.note_later(session, |note| note.ran_since = true);
    }

    /// Whether the guest ran here after commit, as it is known now. `record` says so from now on, whatever the disk
    /// does, which is not waited for; called again it tries the disk again.
    pub(crate) fn note_ran_here(self: &Arc<Journal>, session: SessionId, record: &mut Record, now: RanHere) {
        if record.ran_here().is_no() && now.is_no() {
            return;
        }
        let note = Note { ran_here: Some(now), ..Note::default() };
        if note.apply(&mut record.role) {
            let guest = &record.guest;
            match now.describe() {
                Some(what) => tracing::error!(%session, guest, "{what}"),
                None => {
                    tracing::info!(%session, guest, "QEMU says that the guest has not run here: the destination is asked again")
                }
            }
        }
        self.note_later(session, |note| note.ran_here = Some(now));
    }

    fn note_later(self: &Arc<Journal>, session: SessionId, set: impl FnOnce(&mut Note)) {
        let mut notes = self.notes.lock();
        set(notes.due.entry(session).or_default());
        if notes.has_thread {
            return;
        }
        let journal = self.clone();
        let writing = move || while journal.write_next_note() {};
        match std::thread::Builder::new().name("journal-notes".into()).spawn(writing) {
            Ok(_) => notes.has_thread = true,
            Err(error) => tracing::error!(%error, "cannot start a thread to write the journal"),
        }
    }

    /// False if nothing is due any more.
    fn write_next_note(&self) -> bool {
        // First: what is put while this waits for the disk has a newer note.
        let mut unwritten = self.unwritten.lock();
        let mut notes = self.notes.lock();
        let Some((session, note)) = notes.due.pop_first() else {
            notes.has_thread = false;
            return false;
        };
        drop(notes);
        if let Err(error) = self.change(&mut unwritten, session, |role| note.apply(role)) {
            let what = if note.ran_here.is_some() { RAN_HERE_IS_LOST } else { RAN_SINCE_IS_LOST };
            tracing::warn!(%session, error = chain(&error), "{what}");
        }
        true
    }

    /// No note waits for the disk any more, and none is being written.
    #[cfg(test)]
    pub(crate) fn has_noted(&self) -> bool {
        !self.notes.lock().has_thread
    }

    /// The destination knows of a roll-back: a later agent need not notify it again.
    pub fn note_notified(&self, session: SessionId) {
        if let Err(error) = self.record_notified(session) {
            tracing::warn!(%session, error = chain(&error), "the next start of the agent notifies the destination again");
        }
    }

    /// The destination knows that the session was rolled back.
    pub fn record_notified(&self, session: SessionId) -> Result<(), JournalError> {
        self.change(&mut self.unwritten.lock(), session, |role| match role {
            Role::Source { phase: SourcePhase::RolledBack, notice_due, .. } => {
                std::mem::replace(notice_due, false)
            }
            _ => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::recovery::tests::leaves;
    use crate::testing::{SlowDisk, agent, arrived, wait};

    /// One that was taken out already would be written behind a newer record.
    #[test]
    fn notes_of_a_session_that_wait_for_the_disk_are_one_and_the_newest_counts() {
        let dir = tempfile::tempdir().unwrap();
        let agent = agent(&dir, &[]);
        let (journal, session) = (&agent.journal, SessionId([7; 16]));
        let own = i32::try_from(std::process::id()).unwrap();
        let mut role = leaves(&arrived(&agent, own), SourcePhase::CommitSent);
        let Role::Source { ran, .. } = &mut role else { panic!("{role:?}") };
        *ran = false;
        let mut record = Record::new("g", journal.next_order(), role);
        journal.put(session, &record).unwrap();
        let disk = SlowDisk::start(journal);
        journal.note_ran_here(session, &mut record, RanHere::Maybe);
        // By now its thread waits for the disk.
        std::thread::sleep(Duration::from_millis(200));
        journal.note_ran_since(session);
        let due = journal.notes.lock().due.get(&session).copied().unwrap();
        assert_eq!((due.ran_since, due.ran_here), (true, Some(RanHere::Maybe)));
        journal.note_ran_here(session, &mut record, RanHere::Yes);
        disk.end();
        wait("they are not written", || journal.has_noted());
        let written = journal.get(session).unwrap().unwrap().role;
        assert!(matches!(written, Role::Source { ran: true, ran_here: RanHere::Yes, .. }), "{written:?}");
    }
}
