//! Drains: begun, owned, taken over, ended.

use super::records::{Cordon, DrainRecord, DrainState, OwnerRecord};
use super::{Fleet, FleetError, check_name, put};
use crate::{Condition, Lease, Transaction, Write};

/// This agent owns a drain, until its lease ends or another one has taken it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    pub(super) drain: String,
    /// Revision at which `owner/ID` was made.
    made: u64,
    lease: Lease,
}

impl Ownership {
    /// Identity of the drain.
    pub fn drain(&self) -> &str {
        &self.drain
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

impl Fleet {
    /// Begins a drain, which this agent owns, and cordons its host.
    ///
    /// # Errors
    /// [`FleetError::Draining`] if the host has an open one; [`FleetError::NoHost`]; those of the store.
    pub fn begin(&self, record: &DrainRecord) -> Result<Ownership, FleetError> {
        check_name(&record.id)?;
        check_name(&record.host)?;
        let (open, cordoned) = (format!("open/{}", record.host), format!("cordon/{}", record.host));
        self.change(|| {
            if let (_, Some(drain)) = self.read::<String>(&open)? {
                // Written by a try whose answer was lost.
                let is_this = drain == record.id && self.owner_is_this(&record.id)?;
                return if is_this {
                    Ok(None)
                } else {
                    Err(FleetError::Draining { host: record.host.clone(), drain })
                };
            }
            if self.store.get(&format!("host/{}", record.host))?.is_none() {
                return Err(FleetError::NoHost(record.host.clone()));
            }
            let (cordon, _) = self.read::<Cordon>(&cordoned)?;
            let mut writes = vec![
                put(&open, &record.id, false)?,
                put(&drain_key(&record.id), record, false)?,
                put(&owner_key(&record.id), &self.owner(), true)?,
            ];
            if cordon.is_none() {
                let (by, drain) = (record.by.clone(), Some(record.id.clone()));
                writes.push(put(&cordoned, &Cordon { by, since_ms: record.begun_ms, drain }, false)?);
            }
            let conditions = vec![
                Condition::Absent(open.clone()),
                Condition::Absent(drain_key(&record.id)),
                Condition::Absent(owner_key(&record.id)),
                Condition::as_read(&cordoned, cordon.as_ref()),
            ];
            Ok(Some(Transaction { conditions, writes }))
        })?;
        self.ownership(&record.id)
    }

    /// Takes an open drain that nobody owns, or returns that this agent owns it.
    ///
    /// # Errors
    /// [`FleetError::Owned`] by another agent; [`FleetError::NoDrain`], [`FleetError::HasEnded`]; those of the store.
    pub fn take_over(&self, drain: &str) -> Result<(Ownership, DrainRecord), FleetError> {
        check_name(drain)?;
        let mut taken = None;
        self.change(|| {
            let (entry, record) = self.read::<DrainRecord>(&drain_key(drain))?;
            let record = record.ok_or_else(|| FleetError::NoDrain(drain.to_owned()))?;
            if record.state == DrainState::Ended {
                return Err(FleetError::HasEnded(drain.to_owned()));
            }
            let owner = self.read::<OwnerRecord>(&owner_key(drain))?.1;
            taken = Some(record);
            match owner {
                Some(owner) if owner == self.owner() => Ok(None),
                Some(owner) => Err(FleetError::Owned { drain: drain.to_owned(), owner: owner.host }),
                None => {
                    let conditions = vec![
                        Condition::as_read(&drain_key(drain), entry.as_ref()),
                        Condition::Absent(owner_key(drain)),
                    ];
                    let writes = vec![put(&owner_key(drain), &self.owner(), true)?];
                    Ok(Some(Transaction { conditions, writes }))
                }
            }
        })?;
        let record = taken.ok_or_else(|| FleetError::NoDrain(drain.to_owned()))?;
        Ok((self.ownership(drain)?, record))
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

    /// Writes how far the drain is.
    ///
    /// # Errors
    /// [`FleetError::NotOwner`]; those of the store.
    pub fn update(&self, owner: &Ownership, record: &DrainRecord) -> Result<(), FleetError> {
        let writes = vec![put(&drain_key(&owner.drain), record, false)?];
        self.write_as(owner, || Ok((Vec::new(), writes.clone())))
    }

    /// Writes the drain's result. It is open no more; its host stays cordoned, and reservations of guests in doubt stay.
    ///
    /// # Errors
    /// [`FleetError::NotOwner`]; those of the store.
    pub fn end(&self, owner: &Ownership, record: &DrainRecord) -> Result<(), FleetError> {
        let record = DrainRecord { state: DrainState::Ended, ..record.clone() };
        self.change(|| {
            let now = self.read::<DrainRecord>(&drain_key(&owner.drain))?.1;
            // Written by a try whose answer was lost.
            if now.as_ref() == Some(&record) {
                return Ok(None);
            }
            self.check_owner(owner)?;
            let writes = vec![
                put(&drain_key(&owner.drain), &record, false)?,
                Write::Delete(format!("open/{}", record.host)),
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

    fn owner(&self) -> OwnerRecord {
        OwnerRecord { host: self.host.clone(), instance: self.instance.clone() }
    }

    fn owner_is_this(&self, drain: &str) -> Result<bool, FleetError> {
        Ok(self.read::<OwnerRecord>(&owner_key(drain))?.1 == Some(self.owner()))
    }

    fn ownership(&self, drain: &str) -> Result<Ownership, FleetError> {
        let lost = || FleetError::NotOwner(drain.to_owned());
        // Before the entry is read: an entry of this lease is gone, or this lease still lives.
        let lease = self.lease().ok_or_else(lost)?;
        let (entry, owner) = self.read::<OwnerRecord>(&owner_key(drain))?;
        let entry = entry.filter(|_| owner == Some(self.owner())).ok_or_else(lost)?;
        Ok(Ownership { drain: drain.to_owned(), made: entry.made, lease })
    }
}
