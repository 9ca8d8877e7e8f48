//! The records, as JSON. Times are for people: no rule compares those of two hosts.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// A host that takes part, as its agent describes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostRecord {
    /// Its name in the fleet.
    pub name: String,
    /// Where its agent listens: `10.0.0.1:7979`.
    pub addresses: Vec<String>,
    /// Release of its agent.
    pub agent: String,
    /// Bytes of memory that the host has.
    pub memory_bytes: u64,
    /// Bytes that stay free of guests.
    pub reserve_bytes: u64,
    /// CPU models that it can give to a guest.
    pub cpu_models: BTreeSet<String>,
    /// CPU features that it can give to a guest.
    pub cpu_features: BTreeSet<String>,
    /// Version of its newest QEMU, major and minor.
    pub qemu: (u16, u16),
    /// Machine types of its QEMUs.
    pub machines: BTreeSet<String>,
    /// Storage that it reaches.
    pub storage: BTreeSet<String>,
    /// Networks and bridges for guests.
    pub networks: BTreeSet<String>,
    /// Ports for migrations: network, and bytes per second.
    pub ports: Vec<PortRecord>,
    /// The guests that are there, by their UUID.
    pub guests: BTreeMap<String, GuestRecord>,
    /// Names of libvirt's domains that are there, by their UUID. What they take is not free in `memory_bytes`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub domains: BTreeMap<String, String>,
    /// Bytes of the guests that are on their way here and have a QEMU here, by name, of domains by UUID. `memory_bytes`
    /// has them in full.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub arriving: BTreeMap<String, u64>,
}

/// A port for migrations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PortRecord {
    /// The network that it is on.
    pub network: String,
    /// Bytes per second that it carries.
    pub bytes_per_s: u64,
}

/// A guest of a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GuestRecord {
    /// What the guest is called on that host.
    pub name: String,
    /// Bytes that it takes from its host.
    pub memory_bytes: u64,
}

impl HostRecord {
    /// Bytes of the guests that are there.
    pub fn used_bytes(&self) -> u64 {
        self.guests.values().map(|guest| guest.memory_bytes).fold(0, u64::saturating_add)
    }

    /// Whether the domain is there, and not on its way. What it takes is not free in `memory_bytes`.
    pub fn has_domain(&self, key: &str) -> bool {
        self.domains.contains_key(key) && !self.arriving.contains_key(key)
    }

    /// Bytes of the guests that are there or on their way, each once. `reserved`: what drains have reserved there, as
    /// UUID, name and bytes of each guest. A guest on its way has its memory here and a reservation, or one of the two.
    /// A domain that has arrived needs none.
    pub fn taken_bytes<'a>(&self, reserved: impl IntoIterator<Item = (&'a str, &'a str, u64)>) -> u64 {
        let mut arriving = self.arriving.clone();
        let mut taken = self.used_bytes();
        for (key, name, bytes) in reserved {
            let here = arriving.remove(key).or_else(|| arriving.remove(name)).unwrap_or(0);
            if !self.guests.contains_key(key) && !self.has_domain(key) {
                taken = taken.saturating_add(bytes.max(here));
            }
        }
        arriving.into_values().fold(taken, u64::saturating_add)
    }
}

/// A running agent of a host; vanishes with its lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct AliveRecord {
    /// Another one for each start of an agent.
    pub instance: String,
}

/// A host takes no arrivals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cordon {
    /// Who asked for it.
    pub by: String,
    /// When, in milliseconds since 1970.
    pub since_ms: u64,
    /// The drain that it belongs to; none: an operator's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<String>,
}

/// How far a drain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainState {
    /// Guests are prepared, copied and moved.
    Running,
    /// Nothing new starts; what runs goes on.
    Paused,
    /// What runs is being cancelled.
    Aborting,
    /// Its result is known.
    Ended,
}

/// A drain as its owner last wrote it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrainRecord {
    /// What names it in all keys and commands.
    pub id: String,
    /// The host that is emptied.
    pub host: String,
    /// Who asked for it.
    pub by: String,
    /// How far it is.
    pub state: DrainState,
    /// What the operator asked for; the agent's business.
    pub settings: serde_json::Value,
    /// The guests that it began with, by their UUID, and what became of each; the agent's business.
    pub guests: BTreeMap<String, serde_json::Value>,
    /// When it began, in milliseconds since 1970.
    pub begun_ms: u64,
    /// Milliseconds since 1970; none before its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
}

#[cfg(test)]
impl DrainRecord {
    /// One that goes on, without guests.
    pub(crate) fn running(id: &str, host: &str) -> DrainRecord {
        DrainRecord {
            id: id.into(),
            host: host.into(),
            by: "anna".into(),
            state: DrainState::Running,
            settings: serde_json::Value::Null,
            guests: BTreeMap::new(),
            begun_ms: 1,
            ended_ms: None,
        }
    }
}

/// The agent that owns a drain; vanishes with its lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnerRecord {
    /// Host whose agent it is.
    pub host: String,
    /// Another one for each start of an agent.
    pub instance: String,
    /// Number of the lease that the record vanishes with.
    pub lease: i64,
}

/// Memory at a destination that is held for a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// The host whose memory is held.
    pub host: String,
    /// The drain that has it.
    pub drain: String,
    /// How many bytes are held.
    pub bytes: u64,
    /// What the guest is called.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

impl Reservation {
    /// Whether both hold the same memory for the same drain.
    pub(super) fn is_for(&self, other: &Reservation) -> bool {
        (&self.host, &self.drain, self.bytes) == (&other.host, &other.drain, other.bytes)
    }
}

/// Sum of a host's reservations. Each change of one is a change of this, so two owners cannot both take the last bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LoadRecord {
    pub bytes: u64,
    pub guests: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_with_a_reservation_counts_once_on_its_way_and_when_it_is_there() {
        let mut record = HostRecord::default();
        let reserved = [("u1", "web", 100)];
        assert_eq!(record.taken_bytes(reserved), 100, "its QEMU is not there yet");
        record.domains.insert("u1".into(), "web".into());
        record.arriving.insert("u1".into(), 120);
        assert_eq!((record.taken_bytes(reserved), record.taken_bytes([])), (120, 120), "it is on its way");
        record.arriving.clear();
        assert_eq!(record.taken_bytes(reserved), 0, "what it takes is not free any more");
        assert_eq!(record.taken_bytes([("u2", "web", 100)]), 100, "another one with its name");
    }
}
