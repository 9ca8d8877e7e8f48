//! The store in a file of redb, for the one agent that has it open.
//!
//! A lease ends with the process: whoever opens the file removes what earlier ones wrote with theirs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use linerate_lock::Mutex;
use redb::{Database, ReadableDatabase, ReadableTable, Table, TableDefinition};

use crate::{Condition, Entry, Lease, Outcome, Store, StoreError, Transaction, Write};

/// Key to: revision of the last change, revision at which it was made, whether it is leased, value.
const ENTRIES: TableDefinition<'_, &str, (u64, u64, bool, &[u8])> = TableDefinition::new("entries");
/// The revision of the newest transaction, under [`REVISION`].
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
const REVISION: &str = "revision";

/// A store in a file.
#[derive(Debug)]
pub struct Local {
    file: PathBuf,
    /// `None` after a failure: redb refuses everything after an I/O error (a full disk) until it is opened again.
    database: Mutex<Option<Arc<Database>>>,
    lease: Lease,
}

/// The file could not be used.
fn failed(error: impl Into<redb::Error>) -> StoreError {
    StoreError::Away(error.into().to_string())
}

impl Local {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// [`StoreError::Away`] if the disk refuses, the file is damaged, or another process has it open.
    pub fn open(file: &Path) -> Result<Local, StoreError> {
        let database = Database::create(file).map_err(failed)?;
        let write = database.begin_write().map_err(failed)?;
        let revision = {
            let mut entries = write.open_table(ENTRIES).map_err(failed)?;
            entries.retain(|_, (_, _, leased, _)| !leased).map_err(failed)?;
            next_revision(&mut write.open_table(NUMBERS).map_err(failed)?)?
        };
        write.commit().map_err(failed)?;
        let (file, lease) = (file.to_owned(), Lease(revision.cast_signed()));
        Ok(Local { file, database: Mutex::new(Some(Arc::new(database))), lease })
    }

    fn with<T>(&self, work: impl FnOnce(&Database) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let slot = || self.database.lock();
        let database = match &mut *slot() {
            Some(database) => database.clone(),
            closed => closed.insert(Arc::new(Database::create(&self.file).map_err(failed)?)).clone(),
        };
        work(&database).inspect_err(|_| drop(slot().take_if(|open| Arc::ptr_eq(open, &database))))
    }

    fn read(&self, from: &str, wanted: impl Fn(&str) -> bool) -> Result<Vec<Entry>, StoreError> {
        self.with(|database| {
            let read = database.begin_read().map_err(failed)?;
            let entries = read.open_table(ENTRIES).map_err(failed)?;
            let mut found = Vec::new();
            for item in entries.range(from..).map_err(failed)? {
                let (key, stored) = item.map_err(failed)?;
                if !wanted(key.value()) {
                    break;
                }
                let (revision, made, _, value) = stored.value();
                found.push(Entry { key: key.value().to_owned(), value: value.to_vec(), revision, made });
            }
            Ok(found)
        })
    }
}

type Entries<'t> = Table<'t, &'static str, (u64, u64, bool, &'static [u8])>;

fn next_revision(numbers: &mut Table<'_, &'static str, u64>) -> Result<u64, StoreError> {
    let before = numbers.get(REVISION).map_err(failed)?.map_or(0, |value| value.value());
    numbers.insert(REVISION, before + 1).map_err(failed)?;
    Ok(before + 1)
}

fn holds(entries: &Entries<'_>, condition: &Condition) -> Result<bool, StoreError> {
    let find = |key: &str| -> Result<Option<(u64, u64)>, StoreError> {
        let stored = entries.get(key).map_err(failed)?;
        Ok(stored.map(|stored| {
            let (revision, made, _, _) = stored.value();
            (revision, made)
        }))
    };
    Ok(match condition {
        Condition::Absent(key) => find(key)?.is_none(),
        Condition::Unchanged(key, revision) => find(key)?.is_some_and(|(written, _)| written == *revision),
        Condition::SameKey(key, made) => find(key)?.is_some_and(|(_, began)| began == *made),
    })
}

fn change(entries: &mut Entries<'_>, write: &Write, revision: u64) -> Result<(), StoreError> {
    match write {
        Write::Put { key, value, leased } => {
            let before = entries.get(key.as_str()).map_err(failed)?.map(|stored| stored.value().1);
            let made = before.unwrap_or(revision);
            entries.insert(key.as_str(), (revision, made, *leased, value.as_slice())).map_err(failed)?;
        }
        Write::Delete(key) => drop(entries.remove(key.as_str()).map_err(failed)?),
    }
    Ok(())
}

impl Store for Local {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        Ok(self.read(key, |found| found == key)?.pop())
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        self.read(prefix, |found| found.starts_with(prefix))
    }

    fn commit(&self, transaction: &Transaction) -> Result<Outcome, StoreError> {
        self.with(|database| {
            let write = database.begin_write().map_err(failed)?;
            let revision = {
                let mut entries = write.open_table(ENTRIES).map_err(failed)?;
                for condition in &transaction.conditions {
                    if !holds(&entries, condition)? {
                        return Ok(Outcome::Refused);
                    }
                }
                let revision = next_revision(&mut write.open_table(NUMBERS).map_err(failed)?)?;
                transaction.writes.iter().try_for_each(|write| change(&mut entries, write, revision))?;
                revision
            };
            // A commit that failed may be on the disk all the same.
            write.commit().map_err(|error| StoreError::Unknown(redb::Error::from(error).to_string()))?;
            Ok(Outcome::Done(revision))
        })
    }

    fn lease(&self) -> Option<Lease> {
        Some(self.lease)
    }
}
