//! Records of the journal that cannot be read: another release wrote them, or the disk has damaged them. Recovery does
//! not know their sessions, so the operator must.

use std::collections::BTreeMap;
use std::path::Path;

use linerate_core::SessionId;
use linerate_lock::Mutex;
use serde::Deserialize;

/// What is known of each, as of the last time that all records were read.
#[derive(Debug, Default)]
pub(super) struct Unreadable(Mutex<BTreeMap<SessionId, String>>);

/// What may be read of a record although the rest cannot.
#[derive(Deserialize)]
struct Named {
    guest: String,
}

/// What is known of a record that cannot be read.
pub(super) fn describe(session: SessionId, record: &[u8], error: &serde_json::Error) -> String {
    match serde_json::from_slice::<Named>(record) {
        Ok(Named { guest }) => format!("session {session} of guest {guest}: {error}"),
        Err(_) => format!("session {session}: {error}"),
    }
}

impl Unreadable {
    /// All records were read but these. What is new is logged.
    pub fn set(&self, now: BTreeMap<SessionId, String>) {
        let mut known = self.0.lock();
        for (_, what) in now.iter().filter(|(session, _)| !known.contains_key(*session)) {
            tracing::error!(what, "a journal record cannot be read");
        }
        *known = now;
    }

    /// What an operator should know, with what to do; none if all records can be read.
    pub fn sentence(&self, journal: &Path) -> Option<String> {
        let known = self.0.lock();
        let all: Vec<&str> = known.values().map(String::as_str).collect();
        (!all.is_empty()).then(|| {
            format!(
                "the journal has records that cannot be read, and guests of these migrations may be here: {}. Start \
                 the release of the agent that wrote them, and let it end these migrations. If that cannot be, and one \
                 is in doubt at its source: see that no QEMU of the guest runs here, stop this agent, wait 10 s, and \
                 decide there (`linerate resolve ID --resume-here`). If `linerate migration list` shows them on no \
                 host, and no other migration here goes on, stop the agent and move {} away",
                all.join("; "),
                journal.display()
            )
        })
    }
}
