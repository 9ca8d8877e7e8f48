//! What the store keeps of a drain, and what of it cannot be read: another release wrote it, or it is damaged.

use std::collections::{BTreeMap, BTreeSet};

use linerate_api::{DrainBound, DrainDetail, DrainGuest, DrainRequest, DrainState};
use linerate_store::fleet::records::{DrainRecord, DrainState as Stored};
use serde::{Deserialize, Serialize};

use super::{leaving, nothing, sorted};
use crate::faults::chain;

/// What the store keeps of a drain besides its guests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    pub request: DrainRequest,
    pub bound: DrainBound,
    pub links_bytes_per_s: u64,
    /// Bytes per second that destinations take, by name, where that was measured.
    #[serde(default)]
    pub takes: BTreeMap<String, u64>,
    /// Why guests may be left that the last look at this host did not find.
    #[serde(default)]
    pub unseen: leaving::Unseen,
    /// Groups on different hosts when the drain ended: by the name of each guest its host, none if nobody knows.
    #[serde(default)]
    pub split: Vec<BTreeMap<String, Option<String>>>,
    /// Since when the host is cordoned, Unix ms. Drains begun since then are attempts of the same.
    #[serde(default)]
    pub cordoned_ms: Option<u64>,
    /// Its place among the drains of this host: a clock may be set back between two of them.
    #[serde(default)]
    pub order: u64,
    /// Keys of guests of which a copy began, and how that ended is not known. None: an earlier release wrote it.
    #[serde(default)]
    pub began: Option<BTreeSet<String>>,
}

impl Kept {
    pub fn read(record: &DrainRecord) -> Result<Kept, serde_json::Error> {
        serde_json::from_value(record.settings.clone())
    }
}

/// By which drains of a host are sorted. Those of earlier agents have no number, and come first.
pub(super) fn order(drain: &DrainRecord) -> (u64, u64) {
    (drain.settings["order"].as_u64().unwrap_or_default(), drain.begun_ms)
}

/// Whether a drain was begun under the cordon that began then.
pub(super) fn is_of_cordon(drain: &DrainRecord, since_ms: u64) -> bool {
    match drain.settings["cordoned_ms"].as_u64() {
        Some(cordoned) => cordoned == since_ms,
        None => drain.begun_ms >= since_ms,
    }
}

/// The guests of a drain that can be read.
pub(super) fn guests(record: &DrainRecord) -> Vec<DrainGuest> {
    let read = |value: &serde_json::Value| serde_json::from_value(value.clone()).ok();
    record.guests.values().filter_map(read).collect()
}

/// A guest of a drain that cannot be read.
#[derive(Clone, Debug)]
pub(super) struct Unreadable {
    /// As the store has it.
    pub value: serde_json::Value,
    /// What an operator should know, with what to do.
    pub text: String,
}

/// The guests of a drain that cannot be read, by their keys.
pub(super) fn unreadable(record: &DrainRecord) -> BTreeMap<String, Unreadable> {
    let one = |(key, value): (&String, &serde_json::Value)| {
        let error = serde_json::from_value::<DrainGuest>(value.clone()).err()?;
        let name = value["guest"].as_str().unwrap_or(key);
        let text = format!(
            "the store's record of guest {name} cannot be read, and the guest may still be here: {}. See `linerate vm \
             list` and `virsh list`. Start the release of the agent that wrote the record, or drain again when this \
             drain has ended",
            chain(&error)
        );
        Some((key.clone(), Unreadable { value: value.clone(), text }))
    };
    record.guests.iter().filter_map(one).collect()
}

/// Of a drain whose settings cannot be read: what an operator should know, with what to do.
fn of_settings(record: &DrainRecord, error: &serde_json::Error) -> String {
    let (id, why) = (&record.id, chain(error));
    if record.state == Stored::Ended {
        return format!(
            "the settings of drain {id} cannot be read, so it is not known whether all guests were found: {why}"
        );
    }
    format!(
        "the settings of drain {id} cannot be read, so nobody carries it on: {why}. Start the release of the agent \
         that wrote them, or end the drain with `linerate drain abort {id}`"
    )
}

pub(super) fn state(stored: Stored) -> DrainState {
    match stored {
        Stored::Running => DrainState::Running,
        Stored::Paused => DrainState::Paused,
        Stored::Aborting => DrainState::Aborting,
        Stored::Ended => DrainState::Ended,
    }
}

/// A drain as the store has it.
pub(super) fn of_record(record: &DrainRecord) -> DrainDetail {
    let kept = Kept::read(record);
    let mut unseen = match &kept {
        Ok(kept) => kept.unseen.texts(),
        Err(error) => vec![of_settings(record, error)],
    };
    unseen.extend(unreadable(record).into_values().map(|one| one.text));
    let kept = kept.ok();
    DrainDetail {
        id: record.id.clone(),
        host: record.host.clone(),
        by: record.by.clone(),
        state: state(record.state),
        begun_unix_ms: record.begun_ms,
        ended_unix_ms: record.ended_ms,
        guests: sorted(guests(record)),
        links_bytes_per_s: kept.as_ref().map_or(0, |kept| kept.links_bytes_per_s),
        unseen,
        split: kept.as_ref().map(|kept| kept.split.clone()).unwrap_or_default(),
        bound: kept.map(|kept| kept.bound).unwrap_or_default(),
        ..nothing()
    }
}
