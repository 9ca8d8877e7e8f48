//! Hosts whose agents will never run again: an operator says so, and the store forgets them.

use super::records::{Cordon, DrainState, HostRecord, LoadRecord};
use super::{Fleet, FleetError, View, check_name};
use crate::{Condition, Transaction, Write};

impl View {
    /// Whether the host is known, and no open drain needs it: neither its own, nor one that has memory reserved there.
    ///
    /// # Errors
    /// [`FleetError::NoHost`]; [`FleetError::Draining`].
    pub fn may_forget(&self, host: &str) -> Result<(), FleetError> {
        let known = self.hosts.get(host).ok_or_else(|| FleetError::NoHost(host.to_owned()))?;
        let there = self.reservations.values().filter(|one| one.host == host).map(|one| &one.drain);
        let is_open = |id: &&String| {
            let drain = self.drains.get(*id);
            drain.is_some_and(|drain| drain.record.state != DrainState::Ended)
        };
        match known.drain.iter().chain(there).find(is_open) {
            Some(id) => {
                let of = self.drains.get(id).map_or(host, |drain| drain.record.host.as_str());
                Err(FleetError::Draining { host: of.to_owned(), drain: id.clone() })
            }
            None => Ok(()),
        }
    }

    /// Drains of a host that have ended.
    pub fn ended_drains<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a String> {
        let of_host = self.drains.iter().filter(move |(_, drain)| drain.record.host == host);
        of_host.filter(|(_, drain)| drain.record.state == DrainState::Ended).map(|(id, _)| id)
    }

    /// Guests that have memory reserved at a host, by their UUID.
    pub fn reserved_at<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a String> {
        self.reservations.iter().filter(move |(_, one)| one.host == host).map(|(guest, _)| guest)
    }
}

impl Fleet {
    /// Forgets a host whose agent does not run: what it said of itself, its cordon, its drains that have ended, and
    /// guests that its undrain was to bring back. Memory that ended drains have reserved there is free again. If its
    /// agent runs again, it is a new host of the fleet.
    ///
    /// # Errors
    /// [`FleetError::Runs`]; those of [`View::may_forget`]; [`FleetError::NameTaken`], [`FleetError::NotRegistered`] of
    /// this agent; those of the store. The host itself is forgotten last, so the order can be given again.
    pub fn forget_host(&self, host: &str) -> Result<(), FleetError> {
        check_name(host)?;
        let view = self.view()?;
        view.may_forget(host)?;
        self.check_does_not_run(host)?;
        for guest in view.reserved_at(host) {
            self.settle(guest)?;
        }
        for drain in view.ended_drains(host) {
            self.forget(drain)?;
        }
        let [record, cordon, open, load, elsewhere] =
            ["host", "cordon", "open", "load", "elsewhere"].map(|kind| format!("{kind}/{host}"));
        self.change(|| {
            let (record_entry, _) = self.read::<HostRecord>(&record)?;
            // By a try whose answer was lost.
            let Some(record_entry) = record_entry else { return Ok(None) };
            let alive = self.check_does_not_run(host)?;
            if let (_, Some(drain)) = self.read::<String>(&open)? {
                return Err(FleetError::Draining { host: host.to_owned(), drain });
            }
            let (cordon_entry, _) = self.read::<Cordon>(&cordon)?;
            // Nothing is reserved at a host whose agent does not run.
            let (load_entry, _) = self.read::<LoadRecord>(&load)?;
            let conditions = vec![
                self.registered()?,
                alive,
                Condition::Absent(open.clone()),
                Condition::as_read(&record, Some(&record_entry)),
                Condition::as_read(&cordon, cordon_entry.as_ref()),
                Condition::as_read(&load, load_entry.as_ref()),
            ];
            let writes = [&record, &cordon, &load, &elsewhere].map(|key| Write::Delete(key.clone())).to_vec();
            Ok(Some(Transaction { conditions, writes }))
        })
    }

    /// What a write needs that must not be made while the host's agent runs.
    fn check_does_not_run(&self, host: &str) -> Result<Condition, FleetError> {
        let alive = format!("alive/{host}");
        match self.store.get(&alive)? {
            Some(_) => Err(FleetError::Runs(host.to_owned())),
            None => Ok(Condition::Absent(alive)),
        }
    }
}
