//! The newest record of each session, in memory: what the disk has, and ends that wait for it. Another host's question
//! must not wait for a disk that hangs, because a source takes silence for a host that cannot run its guest.

use std::collections::BTreeMap;

use linerate_core::SessionId;
use linerate_lock::Mutex;

use super::unreadable::describe;
use super::{JournalError, Record};

/// A record, or what the disk has of one that cannot be read.
type Kept = Result<Record, Vec<u8>>;

#[derive(Debug, Default)]
pub(super) struct Newest(Mutex<BTreeMap<SessionId, Kept>>);

impl Newest {
    /// Takes what the disk has of a session.
    pub fn load(&self, session: SessionId, json: &[u8]) {
        let kept = parse(json).map_err(|_| json.to_vec());
        self.0.lock().insert(session, kept);
    }

    /// Takes what the disk does not have yet.
    pub fn set(&self, session: SessionId, record: Record) {
        self.0.lock().insert(session, Ok(record));
    }

    pub fn remove(&self, sessions: &[SessionId]) {
        let mut all = self.0.lock();
        for session in sessions {
            all.remove(session);
        }
    }

    pub fn get(&self, session: SessionId) -> Result<Option<Record>, JournalError> {
        match self.0.lock().get(&session) {
            None => Ok(None),
            Some(Ok(record)) => Ok(Some(record.clone())),
            Some(Err(json)) => {
                parse(json).map(Some).map_err(|source| JournalError::Record { session, source })
            }
        }
    }

    /// All records, and what is known of those that cannot be read.
    pub fn all(&self) -> (Vec<(SessionId, Record)>, BTreeMap<SessionId, String>) {
        let (mut records, mut others) = (Vec::new(), BTreeMap::new());
        for (session, kept) in self.0.lock().iter() {
            let record = match kept {
                Ok(record) => Ok(record.clone()),
                Err(json) => parse(json).map_err(|error| describe(*session, json, &error)),
            };
            match record {
                Ok(record) => records.push((*session, record)),
                Err(what) => drop(others.insert(*session, what)),
            }
        }
        (records, others)
    }
}

fn parse(json: &[u8]) -> serde_json::Result<Record> {
    serde_json::from_slice(json)
}
