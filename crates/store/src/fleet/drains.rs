//! Drains: begun, owned, taken over, ended.

use std::collections::{BTreeMap, BTreeSet};

use super::records::{Cordon, DrainRecord, DrainState, OwnerRecord};
use super::{Fleet, FleetError, check_name, decode, put, unsure};
use crate::{Condition, Entry, Lease, StoreError, Transaction, Write};

/// This agent owns a drain, until its lease ends or another one has taken it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    pub(super) drain: String,
    /// The host that is drained.
    host: String,
    /// Revision at which `owner/ID` was made.
    made: u64,
    /// The lease that `owner/ID` vanishes with.
    lease: Lease,
}

impl Ownership {
    /// Identity of the drain.
    pub fn drain(&self) -> &str {
        &self.drain
    }

    /// A record of this drain, whatever it says of its identity.
    fn record(&self, record: &DrainRecord) -> DrainRecord {
        DrainRecord { id: self.drain.clone(), host: self.host.clone(), ..record.clone() }
    }

    /// What every write of the owner needs.
    pub(super) fn condition(&self) -> Condition {
        Condition::SameKey(owner_key(&self.drain), self.made)
    }
}

fn owner_key(drain: &str) -> String {
    format!("owner/{drain}")
}

fn drain_key(drain: &str) -> String {
    format!("drain/{drain}")
}

fn elsewhere_key(host: &str) -> String {
    format!("elsewhere/{host}")
}

impl Fleet {
    /// Begins a drain, which this agent owns, and cordons its host.
    ///
    /// # Errors
    /// [`FleetError::Draining`] if the host has an open one; [`FleetError::NoHost`]; [`FleetError::NameTaken`],
    /// [`FleetError::NotRegistered`]; those of the store. With [`StoreError::Unknown`] and [`FleetError::NotOwner`] it
    /// may have begun.
    pub fn begin(&self, record: &DrainRecord) -> Result<Ownership, FleetError> {
        check_name(&record.id)?;
        check_name(&record.host)?;
        let (open, cordoned) = (format!("open/{}", record.host), format!("cordon/{}", record.host));
        self.change(|| {
            if let (_, Some(drain)) = self.read::<String>(&open)? {
                // Written by a try whose answer was lost.
                let is_this = drain == record.id && self.own_entry(&record.id)?.is_some();
                return if is_this {
                    Ok(None)
                } else {
                    Err(FleetError::Draining { host: record.host.clone(), drain })
                };
            }
            if self.store.get(&format!("host/{}", record.host))?.is_none() {
                return Err(FleetError::NoHost(record.host.clone()));
            }
            let registered = self.registered()?;
            let (cordon, _) = self.read::<Cordon>(&cordoned)?;
            let mut writes = vec![
                put(&open, &record.id, false)?,
                put(&drain_key(&record.id), record, false)?,
                put(&owner_key(&record.id), &self.owner()?, true)?,
            ];
            if cordon.is_none() {
                let (by, drain) = (record.by.clone(), Some(record.id.clone()));
                writes.push(put(&cordoned, &Cordon { by, since_ms: record.begun_ms, drain }, false)?);
            }
            let conditions = vec![
                registered,
                Condition::Absent(open.clone()),
                Condition::Absent(drain_key(&record.id)),
                Condition::Absent(owner_key(&record.id)),
                Condition::as_read(&cordoned, cordon.as_ref()),
            ];
            Ok(Some(Transaction { conditions, writes }))
        })?;
        self.ownership(&record.id, &record.host).map_err(|error| unsure(error, true))
    }

    /// Takes an open drain that nobody owns, or returns that this agent owns it. What it owned with a lease that has
    /// ended it owns with the present one then.
    ///
    /// # Errors
    /// [`FleetError::Owned`] by another agent; [`FleetError::NoDrain`], [`FleetError::HasEnded`];
    /// [`FleetError::NameTaken`], [`FleetError::NotRegistered`]; those of the store.
    pub fn take_over(&self, drain: &str) -> Result<(Ownership, DrainRecord), FleetError> {
        check_name(drain)?;
        let mut taken = None;
        self.change(|| {
            let (entry, record) = self.read::<DrainRecord>(&drain_key(drain))?;
            let record = record.ok_or_else(|| FleetError::NoDrain(drain.to_owned()))?;
            if record.state == DrainState::Ended {
                return Err(FleetError::HasEnded(drain.to_owned()));
            }
            let (owner_entry, owner) = self.read::<OwnerRecord>(&owner_key(drain))?;
            if let Some(other) = owner.as_ref().filter(|owner| !self.is(owner)) {
                return Err(FleetError::Owned { drain: drain.to_owned(), owner: other.host.clone() });
            }
            let this = self.owner()?;
            taken = Some(record);
            if owner.as_ref() == Some(&this) {
                return Ok(None);
            }
            let conditions = vec![
                self.registered()?,
                Condition::as_read(&drain_key(drain), entry.as_ref()),
                Condition::as_read(&owner_key(drain), owner_entry.as_ref()),
            ];
            Ok(Some(Transaction { conditions, writes: vec![put(&owner_key(drain), &this, true)?] }))
        })?;
        let record = taken.ok_or_else(|| FleetError::NoDrain(drain.to_owned()))?;
        Ok((self.ownership(drain, &record.host)?, record))
    }

    /// Open drains that nobody owns, of hosts whose agents do not run; and those of other hosts that this agent has
    /// taken over, and has not ended. Identity and host.
    ///
    /// # Errors
    /// Those of the store; [`FleetError::Damaged`].
    pub fn left_behind(&self) -> Result<Vec<(String, String)>, FleetError> {
        // In this order: one that ends meanwhile is found out when it is taken over.
        let open = self.store.list("open/")?;
        let name = |entry: &Entry| Some(entry.key.split_once('/')?.1.to_owned());
        let owners = self.store.list("owner/")?;
        let alive: BTreeSet<String> = self.store.list("alive/")?.iter().filter_map(name).collect();
        let mut owned: BTreeMap<String, OwnerRecord> = BTreeMap::new();
        for entry in &owners {
            owned.extend(name(entry).map(|id| Ok::<_, FleetError>((id, decode(entry)?))).transpose()?);
        }
        let mut found = Vec::new();
        for entry in &open {
            let Some((_, host)) = entry.key.split_once('/') else { continue };
            let id: String = decode(entry)?;
            let is_left = match owned.get(&id) {
                None => !alive.contains(host),
                Some(owner) => self.is(owner) && host != self.host,
            };
            if is_left {
                found.push((id, host.to_owned()));
            }
        }
        Ok(found)
    }

    /// A drain, open or ended.
    ///
    /// # Errors
    /// Those of the store.
    pub fn drain(&self, drain: &str) -> Result<Option<DrainRecord>, FleetError> {
        Ok(self.read::<DrainRecord>(&drain_key(drain))?.1)
    }

    /// Whether the ownership holds by what this agent knows. Without it the owner starts nothing; the store itself
    /// refuses its writes.
    pub fn owns(&self, owner: &Ownership) -> bool {
        self.lease() == Some(owner.lease)
    }

    /// Writes how far the drain is; of one that has ended, its result ([`Fleet::end`]).
    ///
    /// # Errors
    /// [`FleetError::NotOwner`]; those of the store.
    pub fn update(&self, owner: &Ownership, record: &DrainRecord) -> Result<(), FleetError> {
        if record.state == DrainState::Ended {
            return self.end(owner, record);
        }
        let writes = vec![put(&drain_key(&owner.drain), &owner.record(record), false)?];
        self.write_as(owner, || Ok((Vec::new(), writes.clone())))
    }

    /// Writes the drain's result. It is open no more; its host stays cordoned, and reservations of guests in doubt
    /// stay.
    ///
    /// # Errors
    /// [`FleetError::NotOwner`]; those of the store.
    pub fn end(&self, owner: &Ownership, record: &DrainRecord) -> Result<(), FleetError> {
        let record = DrainRecord { state: DrainState::Ended, ..owner.record(record) };
        self.change(|| {
            let now = self.read::<DrainRecord>(&drain_key(&owner.drain))?.1;
            // Written by a try whose answer was lost.
            if now.as_ref() == Some(&record) {
                return Ok(None);
            }
            self.check_owner(owner)?;
            let writes = vec![
                put(&drain_key(&owner.drain), &record, false)?,
                Write::Delete(format!("open/{}", owner.host)),
                Write::Delete(owner_key(&owner.drain)),
            ];
            Ok(Some(Transaction { conditions: vec![owner.condition()], writes }))
        })
    }

    /// Forgets a drain that has ended.
    ///
    /// # Errors
    /// [`FleetError::Draining`] while it is open; those of the store.
    pub fn forget(&self, drain: &str) -> Result<(), FleetError> {
        check_name(drain)?;
        self.change(|| {
            let (entry, record) = self.read::<DrainRecord>(&drain_key(drain))?;
            let Some(record) = record else { return Ok(None) };
            if record.state != DrainState::Ended {
                return Err(FleetError::Draining { host: record.host, drain: drain.to_owned() });
            }
            let conditions = vec![Condition::as_read(&drain_key(drain), entry.as_ref())];
            Ok(Some(Transaction { conditions, writes: vec![Write::Delete(drain_key(drain))] }))
        })
    }

    /// Guests of this host that an undrain has not brought back, in a shape that only the agent knows; none if all are
    /// back.
    ///
    /// # Errors
    /// Those of the store; [`FleetError::Damaged`].
    pub fn elsewhere(&self) -> Result<Option<serde_json::Value>, FleetError> {
        Ok(self.read(&elsewhere_key(&self.host))?.1)
    }

    /// Writes which guests an undrain of this host has not brought back; `None` if it has brought back all.
    ///
    /// # Errors
    /// [`FleetError::NameTaken`], [`FleetError::NotRegistered`]; those of the store.
    pub fn set_elsewhere(&self, guests: Option<&serde_json::Value>) -> Result<(), FleetError> {
        let key = elsewhere_key(&self.host);
        let write = match guests {
            Some(guests) => put(&key, guests, false)?,
            None => Write::Delete(key.clone()),
        };
        self.change(|| {
            let entry = self.store.get(&key)?;
            let is_done = match (&entry, &write) {
                (Some(entry), Write::Put { value, .. }) => entry.value == *value,
                (entry, Write::Delete(_)) => entry.is_none(),
                (None, Write::Put { .. }) => false,
            };
            if is_done {
                return Ok(None);
            }
            let conditions = vec![self.registered()?, Condition::as_read(&key, entry.as_ref())];
            Ok(Some(Transaction { conditions, writes: vec![write.clone()] }))
        })
    }

    /// Drains that have ended are this host's, whatever it was called. One that cannot be read stays as it is.
    pub(super) fn take_drains_along(&self, host: &str) -> Result<(), FleetError> {
        for Entry { key, .. } in self.store.list("drain/")? {
            self.change(|| {
                let Some(entry) = self.store.get(&key)? else { return Ok(None) };
                let record = decode::<DrainRecord>(&entry).ok();
                let is_earlier =
                    |record: &DrainRecord| record.host != host && record.state == DrainState::Ended;
                let Some(record) = record.filter(is_earlier) else { return Ok(None) };
                let record = DrainRecord { host: host.to_owned(), ..record };
                let conditions = vec![Condition::as_read(&key, Some(&entry))];
                Ok(Some(Transaction { conditions, writes: vec![put(&key, &record, false)?] }))
            })?;
        }
        Ok(())
    }

    /// The same with guests that an undrain has not brought back, unless there are some of the present name.
    pub(super) fn take_elsewhere_along(&self, host: &str) -> Result<(), FleetError> {
        let key = elsewhere_key(host);
        self.change(|| {
            let all = self.store.list("elsewhere/")?;
            let is_known = all.iter().any(|entry| entry.key == key);
            let Some(before) = all.last().filter(|_| !is_known) else { return Ok(None) };
            let conditions =
                vec![Condition::as_read(&before.key, Some(before)), Condition::Absent(key.clone())];
            let write = Write::Put { key: key.clone(), value: before.value.clone(), leased: false };
            Ok(Some(Transaction { conditions, writes: vec![Write::Delete(before.key.clone()), write] }))
        })
    }

    /// Carries out what `plan` returns while this agent owns the drain.
    pub(super) fn write_as(
        &self,
        owner: &Ownership,
        mut plan: impl FnMut() -> Result<(Vec<Condition>, Vec<Write>), FleetError>,
    ) -> Result<(), FleetError> {
        self.change(|| {
            self.check_owner(owner)?;
            let (mut conditions, writes) = plan()?;
            if writes.is_empty() {
                return Ok(None);
            }
            conditions.push(owner.condition());
            Ok(Some(Transaction { conditions, writes }))
        })
    }

    fn check_owner(&self, owner: &Ownership) -> Result<(), FleetError> {
        let entry = self.store.get(&owner_key(&owner.drain))?;
        match entry {
            Some(entry) if entry.made == owner.made => Ok(()),
            _ => Err(FleetError::NotOwner(owner.drain.clone())),
        }
    }

    /// This agent, with its present lease.
    fn owner(&self) -> Result<OwnerRecord, FleetError> {
        let lease = self.lease().ok_or_else(|| StoreError::Away("it gives no lease at present".into()))?;
        Ok(OwnerRecord { host: self.host.clone(), instance: self.instance.clone(), lease: lease.0 })
    }

    /// Whether it is this start of this agent, with whatever lease.
    fn is(&self, owner: &OwnerRecord) -> bool {
        (&owner.host, &owner.instance) == (&self.host, &self.instance)
    }

    /// The owner's entry and record, if this agent made it.
    fn own_entry(&self, drain: &str) -> Result<Option<(Entry, OwnerRecord)>, FleetError> {
        let (entry, owner) = self.read::<OwnerRecord>(&owner_key(drain))?;
        Ok(entry.zip(owner.filter(|owner| self.is(owner))))
    }

    fn ownership(&self, drain: &str, host: &str) -> Result<Ownership, FleetError> {
        let (entry, owner) = self.own_entry(drain)?.ok_or_else(|| FleetError::NotOwner(drain.to_owned()))?;
        let (drain, host) = (drain.to_owned(), host.to_owned());
        Ok(Ownership { drain, host, made: entry.made, lease: Lease(owner.lease) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::records::HostRecord;
    use super::*;
    use crate::local::Local;
    use crate::{Outcome, Store};

    /// A store that carries out the next transaction, and does not answer from then on.
    struct Leaves {
        store: Local,
        next: AtomicBool,
        away: AtomicBool,
    }

    impl Leaves {
        fn answers(&self) -> Result<(), StoreError> {
            let is_away = self.away.load(Ordering::Relaxed);
            if is_away { Err(StoreError::Away("by the test".into())) } else { Ok(()) }
        }
    }

    impl Store for Leaves {
        fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
            self.answers().and_then(|()| self.store.get(key))
        }

        fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
            self.answers().and_then(|()| self.store.list(prefix))
        }

        fn commit(&self, transaction: &Transaction) -> Result<Outcome, StoreError> {
            self.answers()?;
            let done = self.store.commit(transaction);
            if self.next.swap(false, Ordering::Relaxed) {
                self.away.store(true, Ordering::Relaxed);
                return Err(StoreError::Unknown("by the test".into()));
            }
            done
        }

        fn lease(&self) -> Option<Lease> {
            self.store.lease()
        }
    }

    #[test]
    fn a_drain_whose_beginning_was_not_answered_may_have_begun_and_is_still_ours() {
        let folder = tempfile::tempdir().unwrap();
        let store = Local::open(&folder.path().join("fleet.redb")).unwrap();
        let store = Arc::new(Leaves { store, next: false.into(), away: false.into() });
        let fleet = Fleet::new(store.clone(), "a", "1").unwrap();
        fleet.register(&HostRecord { name: "a".into(), ..HostRecord::default() }).unwrap();
        let record = DrainRecord::running("d1", "a");
        store.next.store(true, Ordering::Relaxed);
        let error = fleet.begin(&record).unwrap_err();
        assert!(matches!(error, FleetError::Store(StoreError::Unknown(_))), "{error}");
        // Before anything was written, it is known that nothing was.
        let error = fleet.begin(&record).unwrap_err();
        assert!(matches!(error, FleetError::Store(StoreError::Away(_))), "{error}");
        store.away.store(false, Ordering::Relaxed);
        let (owner, _) = fleet.take_over("d1").unwrap();
        fleet.end(&owner, &record).unwrap();
    }
}
