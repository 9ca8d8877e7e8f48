//! The destinations of a drain: each is asked by its agent, and written into this host's store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use linerate_api::Cordon;
use linerate_core::fleet::{DrainId, Guest, GuestId, Host, HostId, Ledger, Offer, Port};
use linerate_fabric::probe::{Answer, Question};
use linerate_store::fleet::records::{HostRecord, PortRecord};

use super::leaving::Leaving;
use crate::doctor::sides::find;
use crate::faults::chain;
use crate::security::Security;

/// A host that does not answer within this is lost. It asks its guests and its QEMUs once.
const ANSWER_WAIT: Duration = Duration::from_secs(30);
/// The host that is drained.
pub(super) const SOURCE: HostId = HostId(0);
/// The network of hosts that have none in common: migrations between them go by routers. It is the source's first port, so that
/// the others keep their numbers when some are added.
const ROUTED: &str = "by routers";
/// What it carries where no port says more, in bytes per second: one gigabit per second.
const ROUTED_LEAST: u64 = 125_000_000;
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
    /// Bytes per second that it takes, where an earlier drain has measured less than its ports say.
    pub measured: Option<u64>,
    /// Why it did not answer the last time.
    pub lost: Option<String>,
}

impl Destination {
    pub fn new(named: &str) -> Destination {
        Destination {
            named: named.to_owned(),
            record: None,
            cordon: None,
            measured: None,
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

/// What a destination takes, in bytes per second: as the ports say, or less where that was measured.
pub(super) fn takes(ledger: &Ledger, destinations: &[Destination], host: HostId) -> f64 {
    let at = usize::try_from(host.0).unwrap_or_default().wrapping_sub(1);
    let measured =
        destinations.get(at).and_then(|one| one.measured).map_or(f64::INFINITY, |rate| rate as f64);
    ledger.links(SOURCE, host).1.min(measured).max(1.0)
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
    ledger.add_host(host(source, &source_ports(source)));
    for one in destinations {
        let there = |record| host(record, &destination_ports(source, record));
        let id = ledger.add_host(one.record.as_ref().map_or_else(nothing, there));
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

/// In the order of the controller's numbers.
fn source_ports(source: &HostRecord) -> Vec<PortRecord> {
    [routed(source)].into_iter().chain(source.ports.iter().cloned()).collect()
}

/// Those on networks of the source; without any, what routers carry.
fn destination_ports(source: &HostRecord, record: &HostRecord) -> Vec<PortRecord> {
    let common = |port: &&PortRecord| source.ports.iter().any(|own| own.network == port.network);
    let ports: Vec<PortRecord> = record.ports.iter().filter(common).cloned().collect();
    if ports.is_empty() { vec![routed(record)] } else { ports }
}

/// Nobody knows by which port routers are reached: by the fastest.
fn routed(record: &HostRecord) -> PortRecord {
    let fastest = record.ports.iter().map(|port| port.bytes_per_s).max();
    PortRecord { network: ROUTED.into(), bytes_per_s: fastest.unwrap_or_default().max(ROUTED_LEAST) }
}

/// What each port of the source carries to any of the destinations, in bytes per second.
pub(super) fn port_rates(source: &HostRecord, destinations: &[Destination]) -> Vec<f64> {
    let there: BTreeSet<String> = destinations
        .iter()
        .filter_map(|one| one.record.as_ref())
        .flat_map(|record| destination_ports(source, record))
        .map(|port| port.network)
        .collect();
    let rate = |port: PortRecord| if there.contains(&port.network) { port.bytes_per_s as f64 } else { 0.0 };
    source_ports(source).into_iter().map(rate).collect()
}

fn host(record: &HostRecord, ports: &[PortRecord]) -> Host {
    let port =
        |port: &PortRecord| Port { network: port.network.clone(), bytes_per_s: port.bytes_per_s as f64 };
    let offer = Offer {
        cpu_models: record.cpu_models.clone(),
        cpu_features: record.cpu_features.clone(),
        qemu: record.qemu,
        machines: record.machines.clone(),
        storage: record.storage.clone(),
        networks: record.networks.clone(),
        ports: ports.iter().map(port).collect(),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(name: &str, ports: &[(&str, u64)]) -> HostRecord {
        let port = |(network, bytes_per_s): &(&str, u64)| PortRecord {
            network: (*network).to_owned(),
            bytes_per_s: *bytes_per_s,
        };
        HostRecord {
            name: name.into(),
            memory_bytes: 1 << 30,
            ports: ports.iter().map(port).collect(),
            ..HostRecord::default()
        }
    }

    fn answered(record: HostRecord) -> Destination {
        Destination { record: Some(record), lost: None, ..Destination::new("it") }
    }

    #[test]
    fn hosts_without_a_network_in_common_are_reached_by_routers() {
        let source = at("a", &[("10.0.0.0/24", 200_000_000), ("10.0.1.0/24", 300_000_000)]);
        let near = answered(at("b", &[("10.0.1.0/24", 250_000_000), ("10.9.0.0/24", 1)]));
        let far = answered(at("c", &[("192.0.2.0/24", 150_000_000)]));
        let all = [near.clone(), far];
        assert_eq!(port_rates(&source, &all), [300_000_000.0, 0.0, 300_000_000.0]);
        assert_eq!(port_rates(&source, &[near]), [0.0, 0.0, 300_000_000.0], "no routers");
        let ledger = ledger(&source, &all, &[]);
        assert_eq!(ledger.links(SOURCE, HostId(1)), (0b100, 250_000_000.0));
        assert_eq!(ledger.links(SOURCE, HostId(2)), (0b001, 150_000_000.0));
    }
}
