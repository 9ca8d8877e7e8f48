//! This host as a member of a fleet that shares etcd: it describes itself there, and looks after what others have left.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_store::fleet::records::HostRecord;
use linerate_store::fleet::{Fleet, FleetError};
use linerate_store::local::Local;
use linerate_store::{Lease, StoreError};

use crate::agent::Agent;
use crate::clock::unix_ms;
use crate::drain::lost;

/// How often this host looks whether what it has described has changed.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often it looks after what others have left, at most.
const LOOK_AFTER: Duration = Duration::from_secs(20);
/// A change of free memory that others are told of: bytes, and a part of the memory.
const MEMORY_CHANGE: (u64, u64) = (64 << 20, 100);

/// Begins to describe this host, if it shares a store.
pub(crate) fn start(agent: &Arc<Agent>) {
    let Some(settings) = agent.fleet.shared() else { return };
    let lost = Duration::from_secs(settings.lost_s);
    let mut member = Member {
        agent: agent.clone(),
        lost,
        said: None,
        looked_after: None,
        left_behind: BTreeMap::new(),
        is_carried: false,
    };
    let run = move || {
        loop {
            let done = member.look();
            member.agent.fleet.note(done.err().map(|error| error.to_string()));
            std::thread::sleep(INTERVAL);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("fleet".into()).spawn(run) {
        tracing::error!(%error, "this host cannot take part in its fleet");
    }
}

struct Member {
    agent: Arc<Agent>,
    /// A host that does not answer for so long is lost.
    lost: Duration,
    /// What the store has of this host, and by which lease.
    said: Option<(Lease, HostRecord)>,
    looked_after: Option<Instant>,
    /// Drains that nobody owns, of hosts that do not answer: since when, by this host's clock.
    left_behind: BTreeMap<String, Instant>,
    /// What this host's own store had is in the shared one.
    is_carried: bool,
}

impl Member {
    fn look(&mut self) -> Result<(), FleetError> {
        let fleet = self.agent.fleet.fleet()?;
        let lease = fleet.lease().ok_or_else(|| StoreError::Away("it gives no lease at present".into()))?;
        let record = self.agent.describer.describe();
        let is_new =
            self.said.as_ref().is_none_or(|(before, said)| *before != lease || has_changed(said, &record));
        if is_new {
            fleet.register(&record)?;
            self.said = Some((lease, record));
        }
        if !self.is_carried {
            self.carry(&fleet)?;
            self.is_carried = true;
        }
        let pause = LOOK_AFTER.min(self.lost / 4);
        if self.looked_after.is_none_or(|before| before.elapsed() >= pause) {
            self.looked_after = Some(Instant::now());
            self.give_up_reservations(&fleet)?;
            self.end_lost(&fleet)?;
        }
        Ok(())
    }

    /// A cordon of the time before this host shared a store holds on.
    fn carry(&self, fleet: &Fleet) -> Result<(), FleetError> {
        let (Some(file), name) = (self.agent.fleet.earlier_file(), &self.agent.config.name) else {
            return Ok(());
        };
        let before = Fleet::new(Arc::new(Local::open(file)?), name, "carried")?;
        let view = before.view()?;
        if let Some(id) = view.hosts.get(name).and_then(|host| host.drain.as_ref()) {
            tracing::warn!(drain = id, "this drain was begun before [fleet] was configured: begin it again");
        }
        // A host that was renamed meanwhile had it by its earlier name.
        let cordons = view.hosts.values().filter_map(|host| host.cordon.as_ref());
        if let Some(cordon) = cordons.min_by_key(|cordon| cordon.since_ms) {
            fleet.cordon(name, &cordon.by, unix_ms())?;
            tracing::info!(by = cordon.by, "this host is cordoned in its fleet too");
        }
        drop((before, view));
        let kept = file.with_extension("redb.before-etcd");
        std::fs::rename(file, &kept)
            .map_err(|error| StoreError::Away(format!("cannot rename {}: {error}", file.display())).into())
    }

    /// Memory that was reserved here by drains that have ended, for guests that cannot arrive any more or have arrived.
    fn give_up_reservations(&self, fleet: &Fleet) -> Result<(), FleetError> {
        let reserved = fleet.reserved_at(&self.agent.config.name)?;
        // Any of them may be such a guest.
        if !self.agent.incoming_live().is_empty() || !self.agent.unfinished().is_empty() {
            return Ok(());
        }
        for guest in reserved {
            match fleet.settle(&guest) {
                Ok(()) => tracing::debug!(guest, "its reservation was given up, if its drain has ended"),
                Err(FleetError::Draining { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn end_lost(&mut self, fleet: &Fleet) -> Result<(), FleetError> {
        let left: BTreeMap<String, String> = fleet.left_behind()?.into_iter().collect();
        self.left_behind.retain(|id, _| left.contains_key(id));
        for (id, host) in &left {
            let since = *self.left_behind.entry(id.clone()).or_insert_with(Instant::now);
            if since.elapsed() < self.lost {
                continue;
            }
            match lost::end(&self.agent, fleet, (id, host), self.lost.as_secs()) {
                // It answers this host: it has only lost the way to the store.
                Ok(false) => drop(self.left_behind.insert(id.clone(), Instant::now())),
                Ok(true)
                | Err(FleetError::Owned { .. } | FleetError::HasEnded(_) | FleetError::NoDrain(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Whether others are told. Free memory changes all the time.
fn has_changed(said: &HostRecord, now: &HostRecord) -> bool {
    let (bytes, part) = MEMORY_CHANGE;
    let by = said.memory_bytes.abs_diff(now.memory_bytes);
    by > bytes.max(said.memory_bytes / part)
        || *now != HostRecord { memory_bytes: now.memory_bytes, ..said.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_significant_changes_of_a_host_are_published() {
        let said = HostRecord { name: "a".into(), memory_bytes: 100 << 30, ..HostRecord::default() };
        let with = |memory_bytes| HostRecord { memory_bytes, ..said.clone() };
        assert!(!has_changed(&said, &with((100 << 30) - (900 << 20))));
        assert!(has_changed(&said, &with(98 << 30)));
        assert!(has_changed(&said, &HostRecord { agent: "2".into(), ..said.clone() }));
        let small = HostRecord { memory_bytes: 1 << 30, ..said.clone() };
        assert!(!has_changed(&small, &HostRecord { memory_bytes: (1 << 30) - (60 << 20), ..small.clone() }));
        assert!(has_changed(&small, &HostRecord { memory_bytes: (1 << 30) - (70 << 20), ..small.clone() }));
    }
}
