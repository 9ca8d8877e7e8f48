//! Why the journal did not take the last record of a session, for the log and for the operator.

use linerate_core::SessionId;
use linerate_lock::Mutex;

use super::JournalError;
use crate::faults::chain;

/// A disk that is full keeps a guest paused: that must not be silent.
#[derive(Debug, Default)]
pub struct JournalTrouble(Mutex<Option<String>>);

impl JournalTrouble {
    /// Logs what is new: the same record may be tried every second.
    pub fn note(&self, session: SessionId, put: &Result<(), JournalError>) {
        let now = put.as_ref().err().map(|error| chain(error));
        let mut known = self.0.lock();
        if let Some(why) = now.as_ref().filter(|_| *known != now) {
            tracing::error!(%session, why, "the journal cannot record this session");
        }
        *known = now;
    }

    /// For a note; none if the last record is on disk.
    pub fn sentence(&self) -> Option<String> {
        let why = self.0.lock().clone()?;
        Some(format!("This host's journal cannot be written, so the session waits: {why}"))
    }
}
