//! The destinations of a drain: each is asked by its agent, and written into this host's store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use linerate_api::Cordon;
use linerate_core::fleet::{DrainId, Guest, GuestId, Host, HostId, Ledger, Offer, Port};
use linerate_fabric::probe::{Answer, Question};
use linerate_store::fleet::records::HostRecord;

use super::leaving::Leaving;
use crate::doctor::sides::find;
use crate::faults::chain;
use crate::security::Security;

/// A host that does not answer within this is lost. It asks its guests and its QEMUs once.
const ANSWER_WAIT: Duration = Duration::from_secs(30);
/// The host that is drained.
pub(super) const SOURCE: HostId = HostId(0);
/// The only drain of a ledger.
const DRAIN: DrainId = DrainId(0);

/// A destination, as the operator named it.
#[derive(Clone, Debug)]
pub(super) struct Destination {
    /// `HOST` or `HOST:PORT`.
    pub named: String,
    /// What it said last; none if it has never answered.
    pub record: Option<HostRecord>,
    pub cordon: Option<Cordon>,
    /// Why it did not answer the last time.
    pub lost: Option<String>,
}

impl Destination {
    pub fn new(named: &str) -> Destination {
        Destination {
            named: named.to_owned(),
            record: None,
            cordon: None,
            lost: Some("it was not asked yet".into()),
        }
    }

    /// As it calls itself, or as it was named.
    pub fn name(&self) -> &str {
        self.record.as_ref().map_or(&self.named, |record| &record.name)
    }
}

/// Asks all of them at the same time.
pub(super) fn ask(destinations: &mut [Destination], security: &Arc<Security>) {
    std::thread::scope(|scope| {
        for one in destinations {
            scope.spawn(move || ask_one(one, security));
        }
    });
}

fn ask_one(one: &mut Destination, security: &Arc<Security>) {
    let lost = match find(&one.named, &Question::Host, ANSWER_WAIT, security) {
        Ok((_, Answer::Host { record, cordon })) => match serde_json::from_value::<HostRecord>(*record) {
            Ok(record) => {
                (one.record, one.cordon) = (Some(record), cordon);
                None
            }
            Err(error) => Some(format!("its answer cannot be read: {error}")),
        },
        Ok((_, Answer::Refused { why })) => Some(why),
        Ok(_) => Some("its agent answers another question: is it of another version?".into()),
        Err(error) => Some(chain(&error)),
    };
    one.lost = lost;
}

/// The ledger of a drain, and who is who in it: the guests of the drain come first, in their order.
///
/// Guests that have moved are where they moved to; those that are gone count nowhere.
pub(super) fn ledger(
    source: &HostRecord,
    destinations: &[Destination],
    guests: &[(Leaving, Place)],
) -> Ledger {
    let mut ledger = Ledger::new();
    ledger.add_host(host(source));
    for one in destinations {
        let id = ledger.add_host(one.record.as_ref().map_or_else(nothing, host));
        ledger.cordon(id, one.cordon.is_some());
        ledger.lose(id, one.lost.is_some());
    }
    let of_drain: BTreeSet<&str> = guests.iter().map(|(guest, _)| guest.key.as_str()).collect();
    for (guest, place) in guests {
        let at = if let Place::At(host) = place { *host } else { SOURCE };
        let id = ledger.add_guest(leaving(guest), at);
        if *place == Place::Gone {
            ledger.ended(id);
        }
    }
    for (number, one) in (1..).zip(destinations) {
        for (key, guest) in one.record.iter().flat_map(|record| &record.guests) {
            if !of_drain.contains(key.as_str()) {
                ledger.add_guest(
                    Guest { memory_bytes: guest.memory_bytes, ..Guest::default() },
                    HostId(number),
                );
            }
        }
    }
    for (number, (_, place)) in (0..).zip(guests) {
        if let Place::Reserved(host) = place {
            // One that does not fit any more is found out by the store.
            let _ = ledger.reserve(DRAIN, GuestId(number), *host);
        }
    }
    ledger
}

/// Where a guest of a drain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Source,
    /// At the source, with memory reserved there.
    Reserved(HostId),
    At(HostId),
    Gone,
}

fn leaving(guest: &Leaving) -> Guest {
    Guest { needs: guest.needs.clone(), memory_bytes: guest.memory_bytes, ..Guest::default() }
}

/// A host that has never answered.
fn nothing() -> Host {
    Host { offer: Offer::default(), memory_bytes: 0, reserve_bytes: 0 }
}

fn host(record: &HostRecord) -> Host {
    let port = |port: &linerate_store::fleet::records::PortRecord| Port {
        network: port.network.clone(),
        bytes_per_s: port.bytes_per_s as f64,
    };
    let offer = Offer {
        cpu_models: record.cpu_models.clone(),
        cpu_features: record.cpu_features.clone(),
        qemu: record.qemu,
        machines: record.machines.clone(),
        storage: record.storage.clone(),
        networks: record.networks.clone(),
        ports: record.ports.iter().map(port).collect(),
    };
    Host { offer, memory_bytes: record.memory_bytes, reserve_bytes: record.reserve_bytes }
}

/// Why a guest cannot go to each destination: what each lacks.
pub(super) fn why(ledger: &Ledger, guest: GuestId, destinations: &[Destination]) -> Vec<Vec<String>> {
    let obstacles: BTreeMap<HostId, Vec<_>> = ledger.explain(guest).into_iter().collect();
    let one = |(number, one): (u32, &Destination)| {
        let found = obstacles.get(&HostId(number)).map(Vec::as_slice).unwrap_or_default();
        match (&one.lost, found) {
            (Some(lost), _) => vec![format!("its agent does not answer: {lost}")],
            (None, found) => found.iter().map(ToString::to_string).collect(),
        }
    };
    (1..).zip(destinations).map(one).collect()
}
