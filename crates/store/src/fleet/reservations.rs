//! Reservations: memory at a destination, before anything is started there.

use super::records::{Cordon, HostRecord, LoadRecord, Reservation};
use super::{Fleet, FleetError, Ownership, check_name, decode, put};
use crate::{Condition, Write};

fn load_key(host: &str) -> String {
    format!("load/{host}")
}

fn reserved_key(guest: &str) -> String {
    format!("reserved/{guest}")
}

impl Fleet {
    /// Holds memory at a host for a guest that is called `name`. A reservation that this drain has there already is not
    /// made again. With `apart`: refused where a guest is, or has a reservation, whose name `apart` accepts. Of two
    /// owners that reserve at the same time, the later one sees the other's reservation.
    ///
    /// # Errors
    /// [`FleetError::NoRoom`], [`FleetError::Cordoned`], [`FleetError::Lost`], [`FleetError::NoHost`],
    /// [`FleetError::Reserved`], [`FleetError::Place`] if the guest is there, [`FleetError::Apart`];
    /// [`FleetError::NotOwner`]; those of the store.
    pub fn reserve(
        &self,
        owner: &Ownership,
        guest: &str,
        name: &str,
        bytes: u64,
        host: &str,
        apart: Option<&dyn Fn(&str) -> bool>,
    ) -> Result<(), FleetError> {
        check_name(guest)?;
        check_name(host)?;
        let drain = owner.drain.clone();
        let wanted = Reservation { host: host.to_owned(), drain, bytes, name: name.to_owned() };
        self.write_as(owner, || {
            let (_, reserved) = self.read::<Reservation>(&reserved_key(guest))?;
            match reserved {
                Some(there) if there.is_for(&wanted) => return Ok((Vec::new(), Vec::new())),
                Some(by) => return Err(FleetError::Reserved { guest: guest.to_owned(), by }),
                None => {}
            }
            let host_key = format!("host/{host}");
            let (host_entry, record) = self.read::<HostRecord>(&host_key)?;
            let (cordon_entry, cordon) = self.read::<Cordon>(&format!("cordon/{host}"))?;
            let alive = self.store.get(&format!("alive/{host}"))?;
            let (load_entry, load) = self.read::<LoadRecord>(&load_key(host))?;
            let record = record.ok_or_else(|| FleetError::NoHost(host.to_owned()))?;
            let alive = alive.ok_or_else(|| FleetError::Lost(host.to_owned()))?;
            if let Some(cordon) = cordon {
                return Err(FleetError::Cordoned { host: host.to_owned(), cordon });
            }
            if record.guests.contains_key(guest) {
                return Err(FleetError::Place {
                    guest: guest.to_owned(),
                    host: host.to_owned(),
                    is_there: true,
                });
            }
            // Each reservation changes the load, so none is made unseen after that was read.
            let reserved = self.reservations_at(host)?;
            if let Some(apart) = apart {
                let guests = record.guests.iter().map(|(key, guest)| (key, &guest.name));
                let there = guests.chain(&record.domains).map(|(key, name)| (key.clone(), name.clone()));
                let on_way = reserved.iter().map(|(key, by)| (key.clone(), by.name.clone()));
                let other = |(key, name): &(String, String)| key != guest && apart(name);
                if let Some((_, other)) = there.chain(on_way).find(other) {
                    return Err(FleetError::Apart { host: host.to_owned(), other });
                }
            }
            let load = load.unwrap_or_default();
            let on_way = reserved.iter().map(|(key, by)| (key.as_str(), &*by.name, by.bytes));
            // What an earlier try of this guest still has there is not counted beside what it needs.
            let own = if record.has_domain(guest) { 0 } else { bytes };
            let taken = record.taken_bytes(on_way.chain([(guest, name, bytes)])).saturating_sub(own);
            let free_bytes = record.memory_bytes.saturating_sub(record.reserve_bytes.saturating_add(taken));
            if bytes > free_bytes {
                return Err(FleetError::NoRoom { host: host.to_owned(), bytes, free_bytes });
            }
            let load = LoadRecord { bytes: load.bytes + bytes, guests: load.guests + 1 };
            let conditions = vec![
                Condition::Absent(reserved_key(guest)),
                Condition::as_read(&host_key, host_entry.as_ref()),
                Condition::as_read(&format!("cordon/{host}"), cordon_entry.as_ref()),
                Condition::SameKey(alive.key, alive.made),
                Condition::as_read(&load_key(host), load_entry.as_ref()),
            ];
            let writes =
                vec![put(&reserved_key(guest), &wanted, false)?, put(&load_key(host), &load, false)?];
            Ok((conditions, writes))
        })
    }

    /// Guests that have memory reserved at a host.
    ///
    /// # Errors
    /// Those of the store; [`FleetError::Damaged`].
    pub fn reserved_at(&self, host: &str) -> Result<Vec<String>, FleetError> {
        Ok(self.reservations_at(host)?.into_iter().map(|(guest, _)| guest).collect())
    }

    fn reservations_at(&self, host: &str) -> Result<Vec<(String, Reservation)>, FleetError> {
        let mut found = Vec::new();
        for entry in self.store.list("reserved/")? {
            let there: Reservation = decode(&entry)?;
            if let Some((_, guest)) = entry.key.split_once('/').filter(|_| there.host == host) {
                found.push((guest.to_owned(), there));
            }
        }
        Ok(found)
    }

    /// Gives a reservation of this drain up. Without one nothing happens.
    ///
    /// # Errors
    /// [`FleetError::Reserved`] if it is another drain's; [`FleetError::NotOwner`]; those of the store.
    pub fn release(&self, owner: &Ownership, guest: &str) -> Result<(), FleetError> {
        check_name(guest)?;
        self.write_as(owner, || match self.read::<Reservation>(&reserved_key(guest))? {
            (None, _) => Ok((Vec::new(), Vec::new())),
            (_, Some(by)) if by.drain != owner.drain => {
                Err(FleetError::Reserved { guest: guest.to_owned(), by })
            }
            (entry, there) => self.remove(guest, entry.as_ref(), there.as_ref()),
        })
    }

    /// Gives the reservation of a guest up that has arrived. The destination lists it by now: else its memory would
    /// count as free for a moment.
    ///
    /// # Errors
    /// [`FleetError::Place`] while the host does not list it; those of [`Fleet::release`].
    pub fn arrived(&self, owner: &Ownership, guest: &str) -> Result<(), FleetError> {
        check_name(guest)?;
        if let (_, Some(there)) = self.read::<Reservation>(&reserved_key(guest))? {
            let record = self.read::<HostRecord>(&format!("host/{}", there.host))?.1;
            let lists =
                |record: &HostRecord| record.guests.contains_key(guest) || record.domains.contains_key(guest);
            if record.is_some_and(|record| !lists(&record)) {
                return Err(FleetError::Place { guest: guest.to_owned(), host: there.host, is_there: false });
            }
        }
        self.release(owner, guest)
    }

    /// Gives the reservation of a guest up whose drain has ended: it was in doubt, and an operator or recovery knows
    /// now where it is.
    ///
    /// # Errors
    /// [`FleetError::Draining`] while the drain is open; those of the store.
    pub fn settle(&self, guest: &str) -> Result<(), FleetError> {
        check_name(guest)?;
        self.change(|| {
            let (entry, there) = self.read::<Reservation>(&reserved_key(guest))?;
            let Some(there) = there else { return Ok(None) };
            let key = format!("owner/{}", there.drain);
            if let Some(record) = self.drain(&there.drain)?
                && record.state != super::records::DrainState::Ended
            {
                return Err(FleetError::Draining { host: record.host, drain: there.drain });
            }
            let (mut conditions, writes) = self.remove(guest, entry.as_ref(), Some(&there))?;
            conditions.push(Condition::Absent(key));
            Ok(Some(crate::Transaction { conditions, writes }))
        })
    }

    fn remove(
        &self,
        guest: &str,
        entry: Option<&crate::Entry>,
        there: Option<&Reservation>,
    ) -> Result<(Vec<Condition>, Vec<Write>), FleetError> {
        let Some(there) = there else { return Ok((Vec::new(), Vec::new())) };
        let (load_entry, load) = self.read::<LoadRecord>(&load_key(&there.host))?;
        let load = load.unwrap_or_default();
        let left = LoadRecord {
            bytes: load.bytes.saturating_sub(there.bytes),
            guests: load.guests.saturating_sub(1),
        };
        let conditions = vec![
            Condition::as_read(&reserved_key(guest), entry),
            Condition::as_read(&load_key(&there.host), load_entry.as_ref()),
        ];
        let load = match left.guests {
            0 => Write::Delete(load_key(&there.host)),
            _ => put(&load_key(&there.host), &left, false)?,
        };
        Ok((conditions, vec![Write::Delete(reserved_key(guest)), load]))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::super::records::{DrainRecord, GuestRecord};
    use super::*;
    use crate::local::Local;

    fn host(name: &str, memory_bytes: u64) -> HostRecord {
        HostRecord { name: name.into(), memory_bytes, ..HostRecord::default() }
    }

    fn fleet(folder: &tempfile::TempDir) -> (Fleet, Ownership) {
        let store = Arc::new(Local::open(&folder.path().join("fleet.redb")).unwrap());
        let fleet = Fleet::new(store, "a", "1").unwrap();
        fleet.register(&host("a", 0)).unwrap();
        let record = DrainRecord::running("d1", "a");
        let owner = fleet.begin(&record).unwrap();
        (fleet, owner)
    }

    #[test]
    fn a_guest_on_its_way_counts_once_with_or_without_a_reservation() {
        let folder = tempfile::tempdir().unwrap();
        let (fleet, owner) = fleet(&folder);
        let free = || fleet.view().unwrap().hosts["b"].free_bytes();
        fleet.register(&host("b", 8)).unwrap();
        fleet.reserve(&owner, "u1", "web", 3, "b", None).unwrap();
        assert_eq!(free(), 5);
        // Its QEMU is there now, and so is that of a guest that somebody moves by hand.
        let arriving: BTreeMap<String, u64> = [("web".to_owned(), 3), ("db".to_owned(), 2)].into();
        fleet.register(&HostRecord { arriving, ..host("b", 8) }).unwrap();
        assert_eq!(free(), 3);
        let refused = fleet.reserve(&owner, "u3", "log", 4, "b", None).unwrap_err();
        assert!(matches!(refused, FleetError::NoRoom { free_bytes: 3, .. }), "{refused}");
        fleet.reserve(&owner, "u3", "log", 3, "b", None).unwrap();
        fleet.release(&owner, "u3").unwrap();
        // It is a guest of that host, and its reservation is not given up yet.
        let came = GuestRecord { name: "web".into(), memory_bytes: 3 };
        fleet.register(&HostRecord { guests: [("u1".to_owned(), came)].into(), ..host("b", 8) }).unwrap();
        assert_eq!(free(), 5);
    }

    #[test]
    fn what_an_earlier_try_of_a_guest_has_there_does_not_keep_it_away() {
        let folder = tempfile::tempdir().unwrap();
        let (fleet, owner) = fleet(&folder);
        fleet.register(&HostRecord { arriving: [("web".to_owned(), 5)].into(), ..host("b", 8) }).unwrap();
        assert!(fleet.reserve(&owner, "u2", "db", 4, "b", None).is_err());
        fleet.reserve(&owner, "u1", "web", 5, "b", None).unwrap();
        fleet.reserve(&owner, "u2", "db", 3, "b", None).unwrap();
    }
}
