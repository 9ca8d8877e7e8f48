//! The destinations of a drain. With a store of its own this host asks each agent, and writes what it says into the
//! store; in a fleet that shares etcd, each host is in the store as it describes itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use linerate_api::Cordon;
use linerate_core::fleet::placement::Nowhere;
use linerate_core::fleet::{DrainId, Guest, GuestId, Host, HostId, Ledger, Obstacle, Offer, Port};
use linerate_fabric::probe::ask::AskError;
use linerate_fabric::probe::{Answer, Question};
use linerate_store::fleet::records::{HostRecord, PortRecord};
use linerate_store::fleet::{FleetError, View};

use super::leaving::Leaving;
use super::rules::Rules;
use crate::agent::Agent;
use crate::doctor::sides::{FindError, find};
use crate::faults::chain;
use crate::fleet::shown_cordon;
use crate::security::Security;

/// A host that does not answer within this is lost. It asks its guests and its QEMUs once.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(30);
/// Hosts that are asked at the same time.
const ASKED_AT_ONCE: usize = 32;
/// The host that is drained.
pub(super) const SOURCE: HostId = HostId(0);
/// The network of hosts that have none in common: migrations between them go by routers. It is the source's first port,
/// so that the others keep their numbers when some are added.
const ROUTED: &str = "by routers";
/// What it carries where no port says more, in bytes per second: one gigabit per second.
const ROUTED_LEAST: u64 = 125_000_000;
/// The only drain of a ledger.
const DRAIN: DrainId = DrainId(0);

/// A host that guests of the drain can move to.
#[derive(Clone, Debug)]
pub(super) struct Destination {
    /// `HOST` or `HOST:PORT`, as the operator named it; of a fleet that shares a store also a name in it.
    named: String,
    /// `HOST`, `HOST:PORT` or an address, by which it answered last.
    pub at: String,
    /// What it said last; none if it has never answered.
    pub record: Option<HostRecord>,
    pub cordon: Option<Cordon>,
    /// What other drains have reserved there, as far as the store of a fleet says: by UUID of the guest its name and
    /// the bytes.
    pub others: BTreeMap<String, (String, u64)>,
    /// It is being emptied itself, as far as the store of a fleet says.
    pub is_drained: bool,
    /// Bytes per second that it takes, where an earlier drain has measured less than its ports say.
    pub measured: Option<u64>,
    /// Why it did not answer the last time.
    pub lost: Option<String>,
}

impl Destination {
    pub fn new(named: &str) -> Destination {
        Destination {
            named: named.to_owned(),
            at: named.to_owned(),
            record: None,
            cordon: None,
            others: BTreeMap::new(),
            is_drained: false,
            measured: None,
            lost: Some("it has not been asked yet".into()),
        }
    }

    /// A host as the store of its fleet has it. `drain`: the one that looks.
    pub fn of(name: &str, view: &View, drain: Option<&str>) -> Option<Destination> {
        let mut one = Destination::new(name);
        one.at = view.hosts.get(name)?.record.addresses.first().cloned().unwrap_or_default();
        one.take(view, drain);
        Some(one)
    }

    fn take(&mut self, view: &View, drain: Option<&str>) {
        let Some(host) = view.hosts.get(self.name()).cloned() else {
            self.lost = Some(format!("host {} is not in this fleet", self.name()));
            return;
        };
        let others = view.reservations.iter().filter(|(_, one)| Some(one.drain.as_str()) != drain);
        let others = others.filter(|(_, one)| one.host == host.record.name);
        self.others = others.map(|(key, one)| (key.clone(), (one.name.clone(), one.bytes))).collect();
        self.cordon = host.cordon.map(shown_cordon);
        self.is_drained = host.drain.is_some();
        self.lost = (!host.alive).then(|| "the fleet's store has no recent record of it".to_owned());
        self.record = Some(host.record);
    }

    /// Bytes that guests take which are on their way there, and are not of the drain: of others' drains, or of none.
    /// `of_drain`: names and UUIDs of its guests that are there, or have memory reserved there.
    fn on_way_bytes(&self, of_drain: &BTreeSet<&str>) -> u64 {
        let Some(record) = &self.record else { return 0 };
        let others = self.others.iter().map(|(key, (name, bytes))| (key.as_str(), name.as_str(), *bytes));
        let arriving = record.arriving.iter().filter(|(name, _)| !of_drain.contains(name.as_str()));
        let arriving = arriving.map(|(name, bytes)| (name.clone(), *bytes)).collect();
        let (guests, domains) = (record.guests.clone(), record.domains.clone());
        let there = HostRecord { arriving, guests, domains, ..HostRecord::default() };
        there.taken_bytes(others).saturating_sub(there.used_bytes())
    }

    /// As it calls itself, or as it was named.
    pub fn name(&self) -> &str {
        self.record.as_ref().map_or(&self.named, |record| &record.name)
    }

    /// Where it can be asked, the last address that answered first.
    fn places(&self) -> Vec<&str> {
        let mut places = vec![self.at.as_str()];
        let known = self.record.iter().flat_map(|record| &record.addresses).map(String::as_str);
        // What the operator named is a name in the fleet's store if it was found there.
        for place in known.chain([self.named.as_str()]) {
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }
}

/// Where a destination is in the list: they are numbered from 1, as 0 is the source, which is in no list.
pub(super) fn index(host: HostId) -> usize {
    usize::try_from(host.0).unwrap_or(usize::MAX).wrapping_sub(1)
}

/// The hosts that were named; without a name all others of a fleet that shares a store. Each is asked, or looked up in
/// the store.
pub(super) fn named(
    agent: &Agent,
    to: &[String],
    drain: Option<&str>,
) -> Result<Vec<Destination>, FleetError> {
    if agent.fleet.shared().is_none() {
        let mut all: Vec<Destination> = to.iter().map(|name| Destination::new(name)).collect();
        ask(&mut all, &agent.security);
        return Ok(all);
    }
    let view = agent.fleet.fleet()?.view()?;
    if to.is_empty() {
        let others = view.hosts.keys().filter(|name| **name != agent.config.name);
        return Ok(others.filter_map(|name| Destination::of(name, &view, drain)).collect());
    }
    let known = |name: &String| Destination::of(name, &view, drain).unwrap_or_else(|| Destination::new(name));
    let mut all: Vec<Destination> = to.iter().map(known).collect();
    let strangers = all.iter_mut().filter(|one| one.record.is_none()).collect();
    find_out(agent, strangers, &view, drain);
    Ok(all)
}

/// Hosts that have joined a fleet since its hosts were these.
pub(super) fn joined(
    agent: &Agent,
    destinations: &[Destination],
    drain: Option<&str>,
) -> Result<Vec<Destination>, FleetError> {
    let view = agent.fleet.fleet()?.view()?;
    Ok(new_in(&view, &agent.config.name, destinations, drain))
}

fn new_in(view: &View, own: &str, destinations: &[Destination], drain: Option<&str>) -> Vec<Destination> {
    let is_new = |name: &&String| **name != own && destinations.iter().all(|one| one.name() != **name);
    view.hosts.keys().filter(is_new).filter_map(|name| Destination::of(name, view, drain)).collect()
}

/// The destinations as they are now: each is asked, or looked up in the store that it shares.
pub(super) fn renew(
    agent: &Agent,
    destinations: &mut [Destination],
    drain: Option<&str>,
) -> Result<(), FleetError> {
    if agent.fleet.shared().is_none() {
        ask(destinations, &agent.security);
        return Ok(());
    }
    let view = agent.fleet.fleet()?.view()?;
    let mut unsure: Vec<&mut Destination> = Vec::new();
    for one in destinations {
        let was_there = one.lost.is_none();
        if one.record.is_some() {
            one.take(&view, drain);
        }
        // One that was named and has never answered is nobody yet. And after a pause of etcd's all hosts come back one
        // by one.
        if one.record.is_none() || (was_there && one.lost.is_some()) {
            unsure.push(one);
        }
    }
    find_out(agent, unsure, &view, drain);
    Ok(())
}

/// Asks hosts of a fleet. One that was not known is then the host of the store that it says it is.
fn find_out(agent: &Agent, hosts: Vec<&mut Destination>, view: &View, drain: Option<&str>) {
    at_once(hosts, |one| {
        let was_known = one.record.is_some();
        ask_one(one, &agent.security, ANSWER_WAIT);
        if !was_known && one.record.is_some() {
            one.take(view, drain);
        }
    });
}

/// Many at the same time.
fn at_once(mut hosts: Vec<&mut Destination>, ask: impl Fn(&mut Destination) + Sync) {
    for some in hosts.chunks_mut(ASKED_AT_ONCE) {
        std::thread::scope(|scope| {
            for one in some {
                scope.spawn(|| ask(one));
            }
        });
    }
}

/// Asks all of them.
pub(super) fn ask(destinations: &mut [Destination], security: &Arc<Security>) {
    ask_within(destinations, security, ANSWER_WAIT);
}

/// The same. Each address has `wait` for an answer.
pub(super) fn ask_within(destinations: &mut [Destination], security: &Arc<Security>, wait: Duration) {
    at_once(destinations.iter_mut().collect(), |one| ask_one(one, security, wait));
}

/// In a fleet that shares a store: asks these hosts. Which of their addresses can be reached from here only this host
/// knows. Returns whether all of them answer.
pub(super) fn reach(agent: &Agent, destinations: &mut [Destination], chosen: &BTreeSet<HostId>) -> bool {
    if agent.fleet.shared().is_none() {
        return true;
    }
    let numbered = || (1..).map(HostId);
    let asked = numbered().zip(destinations.iter_mut()).filter(|(host, _)| chosen.contains(host));
    at_once(asked.map(|(_, one)| one).collect(), |one| ask_one(one, &agent.security, ANSWER_WAIT));
    numbered().zip(destinations).all(|(host, one)| !chosen.contains(&host) || one.lost.is_none())
}

/// In a fleet that shares a store: asks the hosts that have a guest of the name of one that is to leave, as far as the
/// store says. It may be the guest itself, which has just come back from there. A lost host is not asked: no guest goes
/// there whatever it has, and those that it had when it was lost may have been started here since.
pub(super) fn look_at_namesakes(
    is_shared: bool,
    security: &Arc<Security>,
    destinations: &mut [Destination],
    guests: &[(Leaving, Place)],
) {
    if !is_shared {
        return;
    }
    let found: BTreeSet<HostId> = namesakes(destinations, guests).into_iter().map(|(_, host)| host).collect();
    let asked = (1..).map(HostId).zip(destinations.iter_mut());
    let asked = asked.filter(|(host, one)| found.contains(host) && one.lost.is_none());
    at_once(asked.map(|(_, one)| one).collect(), |one| ask_one(one, security, ANSWER_WAIT));
}

/// At each of its addresses, until one answers. Each has `wait` for it.
pub(super) fn ask_one(one: &mut Destination, security: &Arc<Security>, wait: Duration) {
    let mut first = None;
    let places: Vec<String> = one.places().into_iter().map(str::to_owned).collect();
    for at in places {
        match answer(&at, security, wait) {
            Ok((record, _)) if one.record.as_ref().is_some_and(|known| known.name != record.name) => {
                first.get_or_insert(format!("host {} answers at {at}", record.name));
            }
            Ok((record, cordon)) => {
                (one.at, one.record, one.cordon, one.lost) = (at, Some(record), cordon, None);
                return;
            }
            Err(error) => drop(first.get_or_insert_with(|| chain(&error))),
        }
    }
    one.lost = first;
}

/// Whether its agent answers at all, at one of its addresses. It may say that it cannot describe its host. Another host
/// may have got the address meanwhile.
pub(super) fn is_running(one: &Destination, security: &Arc<Security>, wait: Duration) -> bool {
    let is_it = |record: &HostRecord| one.record.as_ref().is_none_or(|known| known.name == record.name);
    one.places().into_iter().any(|at| match answer(at, security, wait) {
        Ok((record, _)) => is_it(&record),
        Err(AnswerError::Find(FindError::Ask(AskError::Refused { .. }))) => true,
        Err(AnswerError::Find(error)) => {
            tracing::debug!(at, error = chain(&error), "no answer");
            false
        }
        Err(AnswerError::Refused { .. } | AnswerError::Form(_) | AnswerError::Unexpected) => true,
    })
}

/// Why a host is not described.
#[derive(Debug, thiserror::Error)]
enum AnswerError {
    #[error(transparent)]
    Find(#[from] FindError),
    #[error("its answer cannot be read: {0}")]
    Form(#[source] serde_json::Error),
    /// The reason that its agent gave.
    #[error("{why}")]
    Refused { why: String },
    #[error("its agent answers another question: is it of another version?")]
    Unexpected,
}

fn answer(
    at: &str,
    security: &Arc<Security>,
    wait: Duration,
) -> Result<(HostRecord, Option<Cordon>), AnswerError> {
    match find(at, &Question::Host, wait, security)?.1 {
        Answer::Host { record, cordon } => {
            let record = serde_json::from_value(*record).map_err(AnswerError::Form)?;
            Ok((record, cordon))
        }
        Answer::Refused { why } => Err(AnswerError::Refused { why }),
        _ => Err(AnswerError::Unexpected),
    }
}

/// What a destination takes, in bytes per second: as the ports say, or less where that was measured.
pub(super) fn takes(ledger: &Ledger, destinations: &[Destination], host: HostId) -> f64 {
    let measured =
        destinations.get(index(host)).and_then(|one| one.measured).map_or(f64::INFINITY, |rate| rate as f64);
    ledger.links(SOURCE, host).1.min(measured).max(1.0)
}

/// A ledger, and the names of its guests by their numbers.
pub(super) struct Known {
    pub ledger: Ledger,
    guests: Vec<String>,
    /// Guests of the drain that cannot go to a host, as a guest of their name is there.
    namesakes: BTreeSet<(GuestId, HostId)>,
}

impl Known {
    /// Why there is no host, with those apart that have another guest of its name. For the controller a host that is
    /// forbidden was tried; nothing was tried there, and the other guest may leave.
    pub fn told(&self, guest: GuestId, nowhere: Nowhere) -> Nowhere {
        let hosts = self.namesakes.iter().filter(|(one, _)| *one == guest).count();
        let hosts = u32::try_from(hosts).unwrap_or(u32::MAX);
        let Nowhere(mut counts) = nowhere;
        let mut named = 0;
        for (what, count) in &mut counts {
            if *what == Obstacle::Forbidden.name() {
                named = hosts.min(*count);
                *count -= named;
            }
        }
        counts.retain(|(_, count)| *count > 0);
        counts.extend((named > 0).then_some(("another guest of its name", named)));
        Nowhere(counts)
    }
}

/// A guest of a destination, or one with memory reserved there by another drain.
struct There {
    host: HostId,
    /// What is not missing in the memory of the host's record.
    memory_bytes: u64,
    name: String,
    /// It has not the key of a guest of the drain. The rules of such a name are those of that guest.
    is_other: bool,
}

/// What the destinations have beside the guests of the drain that are there, or have memory reserved there. A guest of
/// the drain that is listed where it is not takes memory there all the same: it is another one without a UUID, or it is
/// in doubt.
fn there(destinations: &[Destination], guests: &[(Leaving, Place)]) -> Vec<There> {
    let of_drain: BTreeSet<&str> = guests.iter().map(|(guest, _)| guest.key.as_str()).collect();
    let mut all = Vec::new();
    for (host, one) in (1..).map(HostId).zip(destinations) {
        let is_counted = |(_, place): &&(Leaving, Place)| place.destination() == Some(host);
        let counted: BTreeSet<&str> =
            guests.iter().filter(is_counted).map(|(guest, _)| guest.key.as_str()).collect();
        let known = one.record.iter().flat_map(|record| &record.guests);
        let known = known.map(|(key, guest)| (key, guest.memory_bytes, &guest.name));
        // What the memory of these is, is not free already.
        let domains = one.record.iter().flat_map(|record| &record.domains);
        let domains = domains.map(|(key, name)| (key, 0, name));
        let reserved = one.others.iter().map(|(key, (name, _))| (key, 0, name));
        for (key, memory_bytes, name) in known.chain(domains).chain(reserved) {
            if !counted.contains(key.as_str()) {
                let is_other = !of_drain.contains(key.as_str());
                all.push(There { host, memory_bytes, name: name.clone(), is_other });
            }
        }
    }
    all
}

/// Whether a host has another guest, or another domain, of the guest's name. It would refuse the guest.
fn has_namesake(record: &HostRecord, guest: &Leaving) -> bool {
    if guest.domain {
        return record.domains.iter().any(|(key, name)| *key != guest.key && *name == guest.name);
    }
    record.guests.values().any(|other| other.name == guest.name)
}

/// Destinations that have another guest of the name of one that is to leave.
fn namesakes(destinations: &[Destination], guests: &[(Leaving, Place)]) -> BTreeSet<(GuestId, HostId)> {
    let mut found = BTreeSet::new();
    for (id, (guest, place)) in (0..).map(GuestId).zip(guests) {
        let others = (1..).map(HostId).zip(destinations);
        let others = others.filter(|(host, _)| place.destination() != Some(*host));
        let has = |one: &Destination| one.record.as_ref().is_some_and(|record| has_namesake(record, guest));
        found.extend(others.filter(|(_, one)| has(one)).map(|(host, _)| (id, host)));
    }
    found
}

/// The ledger of a drain. The guests of the drain come first, in their order.
///
/// Guests that have moved are where they moved to; those that are gone count nowhere.
pub(super) fn ledger(
    source: &HostRecord,
    destinations: &[Destination],
    guests: &[(Leaving, Place)],
    rules: &Rules,
) -> Known {
    let there = there(destinations, guests);
    let namesakes = namesakes(destinations, guests);
    let names: Vec<String> = guests
        .iter()
        .map(|(guest, _)| guest.name.clone())
        .chain(there.iter().map(|one| one.name.clone()))
        .collect();
    let (mut together, mut ledger) = (rules.together(&names).into_iter(), Ledger::new());
    ledger.add_host(host(source, &source_ports(source)));
    for (number, one) in (1..).zip(destinations) {
        let there = |record| host(record, &destination_ports(source, record));
        let mut host = one.record.as_ref().map_or_else(nothing, there);
        let of_drain = guests.iter().filter(|(_, place)| place.destination() == Some(HostId(number)));
        let of_drain = of_drain.flat_map(|(guest, _)| [guest.name.as_str(), guest.key.as_str()]).collect();
        host.reserve_bytes = host.reserve_bytes.saturating_add(one.on_way_bytes(&of_drain));
        let id = ledger.add_host(host);
        ledger.cordon(id, one.cordon.is_some());
        ledger.lose(id, one.lost.is_some());
    }
    for (number, (guest, place)) in (0..).map(GuestId).zip(guests) {
        let at = if let Place::At(host) = place { *host } else { SOURCE };
        let (needs, memory_bytes) = (guest.needs.clone(), taken_bytes(guest, *place, destinations));
        let (apart, together) = (rules.groups(&guest.name), together.next().flatten());
        let forbidden = namesakes.iter().filter(|(one, _)| *one == number).map(|(_, host)| *host).collect();
        let guest = Guest { needs, memory_bytes, forbidden, apart, together, ..Guest::default() };
        let id = ledger.add_guest(guest, at);
        if *place == Place::Gone {
            ledger.ended(id);
        }
    }
    for There { host, memory_bytes, name, is_other } in &there {
        let (memory_bytes, together) = (*memory_bytes, together.next().flatten().filter(|_| *is_other));
        let apart = if *is_other { rules.groups(name) } else { Vec::new() };
        ledger.add_guest(Guest { memory_bytes, apart, together, ..Guest::default() }, *host);
    }
    for (number, (_, place)) in (0..).zip(guests) {
        if let Place::Reserved(host) = place {
            // One that does not fit any more is found out by the store.
            let _ = ledger.reserve(DRAIN, GuestId(number), *host);
        }
    }
    Known { ledger, guests: names, namesakes }
}

/// Bytes that a guest of the drain takes of what its destination has free. What a domain takes that is there already
/// is not free in the host's record.
fn taken_bytes(guest: &Leaving, place: Place, destinations: &[Destination]) -> u64 {
    let there = place.destination().and_then(|host| destinations.get(index(host))?.record.as_ref());
    if there.is_some_and(|record| record.has_domain(&guest.key)) { 0 } else { guest.memory_bytes }
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

impl Place {
    /// The host where it is or has memory reserved, if that is not the source.
    fn destination(self) -> Option<HostId> {
        match self {
            Place::Reserved(host) | Place::At(host) => Some(host),
            Place::Source | Place::Gone => None,
        }
    }
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

/// An obstacle between a guest and a host, with the names of guests and hosts.
fn describe(
    obstacle: &Obstacle,
    (guest, host): (GuestId, HostId),
    known: &Known,
    destinations: &[Destination],
) -> String {
    let name = |guest: &GuestId| known.guests.get(guest.0 as usize).map_or("a guest", String::as_str);
    match obstacle {
        Obstacle::Forbidden if known.namesakes.contains(&(guest, host)) => {
            "another guest of its name is there".into()
        }
        Obstacle::ApartFrom(other) => {
            format!("{} is there or on its way there, and the two must be apart", name(other))
        }
        Obstacle::TogetherOn(SOURCE) => "a guest that it must be together with stays on this host".into(),
        Obstacle::TogetherOn(host) => {
            let at = destinations.get(index(*host)).map_or("another host", Destination::name);
            format!("a guest that it must be together with is on {at} or on its way there")
        }
        Obstacle::OfOther(other, why) => {
            let why = describe(why, (*other, host), known, destinations);
            format!("{}, which must be together with it, cannot go there: {why}", name(other))
        }
        other => other.to_string(),
    }
}

/// Why a guest cannot go to each destination: what each lacks. `leave`: the guests that leave with it.
pub(super) fn why(
    known: &Known,
    guest: GuestId,
    destinations: &[Destination],
    leave: &[GuestId],
) -> Vec<Vec<String>> {
    let obstacles: BTreeMap<HostId, Vec<_>> = known.ledger.explain(guest, leave).into_iter().collect();
    let one = |(number, one): (u32, &Destination)| {
        let host = HostId(number);
        let text = |obstacle: &Obstacle| describe(obstacle, (guest, host), known, destinations);
        let found = obstacles.get(&host).map(Vec::as_slice).unwrap_or_default();
        match (&one.lost, found) {
            (Some(lost), _) => vec![format!("its agent does not answer: {lost}")],
            (None, found) => found.iter().map(text).collect(),
        }
    };
    (1..).zip(destinations).map(one).collect()
}

#[cfg(test)]
mod tests;
