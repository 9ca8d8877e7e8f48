//! What the agents of a fleet share: hosts, cordons, drains and their owners, reservations.
//!
//! * [`Store`]: keys with values, changed by transactions under conditions. A client has one lease; keys written with
//!   it vanish when it ends.
//! * [`local::Local`]: redb, in the agent that owns its drains. No server.
//! * [`etcd::Etcd`]: an etcd cluster.
//! * [`fleet::Fleet`]: the records, and the operations that keep their rules. The same over both.
//!
//! Nothing here decides whether a guest runs: the journals of both hosts do. docs/drain.md has the reasons.

pub mod etcd;
pub mod fleet;
mod keeper;
pub mod local;

use std::time::Duration;

use thiserror::Error;

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Without the prefix that an etcd cluster has for all keys.
    pub key: String,
    /// What was written last.
    pub value: Vec<u8>,
    /// Revision of the store at which it was written last.
    pub revision: u64,
    /// Revision at which the key was made: another one after it was deleted and written again.
    pub made: u64,
}

/// What must hold for a transaction to be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// There is no such key.
    Absent(String),
    /// The key was written last at this revision.
    Unchanged(String, u64),
    /// The key was made at this revision, and may have been written since.
    SameKey(String, u64),
}

impl Condition {
    /// The entry is as it was read; without one, there is none.
    pub fn as_read(key: &str, entry: Option<&Entry>) -> Condition {
        match entry {
            Some(entry) => Condition::Unchanged(key.to_owned(), entry.revision),
            None => Condition::Absent(key.to_owned()),
        }
    }
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variant says what its fields are")]
pub enum Write {
    /// Makes the key, or gives it another value.
    Put {
        key: String,
        value: Vec<u8>,
        /// The key vanishes when the lease of this client ends.
        leased: bool,
    },
    /// Removes a key. Without one nothing happens.
    Delete(String),
}

/// Changes that are made together or not at all. At most one for each key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// What must hold, all of it.
    pub conditions: Vec<Condition>,
    /// What is changed then.
    pub writes: Vec<Write>,
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All was written, at this revision.
    Done(u64),
    /// A condition did not hold. Nothing was written.
    Refused,
}

/// Number of a client's lease: another one after the one before has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease(pub i64);

/// Why the store gave no answer.
#[derive(Clone, Debug, Error)]
pub enum StoreError {
    /// Nothing was changed, and it may answer later.
    #[error("the store does not answer: {0}")]
    Away(String),
    /// It may have been changed or not: read it again.
    #[error("the store did not say whether it has written: {0}")]
    Unknown(String),
    /// It refuses what is asked.
    #[error("the store refused: {0}")]
    Refused(String),
}

/// Keys and values that agents share. All methods block; each ends within [`ANSWER_MAX`] and a little.
pub trait Store: Send + Sync {
    /// The entry of a key.
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError>;

    /// All entries whose keys begin so, as they were at one moment, in the order of their keys.
    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError>;

    /// Changes keys if all conditions hold, and returns when that is safe from a crash.
    fn commit(&self, transaction: &Transaction) -> Result<Outcome, StoreError>;

    /// The lease of this client. `None`: it may have ended, and a new one is asked for. What was written with an
    /// earlier lease is gone or soon will be: write it again.
    fn lease(&self) -> Option<Lease>;
}

/// How long a store is waited for.
pub const ANSWER_MAX: Duration = Duration::from_secs(5);
