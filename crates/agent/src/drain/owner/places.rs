//! Destinations of guests: found, reserved in the store, and given up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use linerate_api::DrainGuestState;
use linerate_core::drain::{Event, Outcome, State};
use linerate_core::fleet::placement::Nowhere;
use linerate_core::fleet::{GuestId, HostId, Request};
use linerate_store::fleet::records::{DrainState as Stored, HostRecord};
use linerate_store::fleet::{Fleet, FleetError, Ownership};

use super::super::Input;
use super::super::hosts::{self, Destination, Known, Place, SOURCE};
use super::super::leaving::Leaving;
use super::super::member::Decided;
use super::super::rules::Rules;
use super::Owner;
use crate::agent::Agent;

/// So often, and with this pause, a host is waited for that answers and is not registered.
const REGISTERS_ASKS: u32 = 10;
const REGISTERS_PAUSE: Duration = Duration::from_millis(500);

/// Hosts that a reason names at most. A fleet may have thousands, and etcd takes a drain's record only up to 1.5 MiB.
const NAMED_MAX: usize = 8;

/// A destination that was found, or why there is none.
pub(in crate::drain) type PlaceResult = Result<(HostId, u64, f64), (Nowhere, Option<String>)>;

impl Owner {
    /// Finds destinations, in a thread: how each host is now is found out first.
    pub(super) fn place(&mut self, wanted: Vec<(GuestId, Vec<HostId>)>) {
        let (agent, to_self) = (self.agent.clone(), self.to_self.clone());
        self.next_number += 1;
        let number = self.next_number;
        self.questions.extend(wanted.iter().map(|(id, _)| (*id, number)));
        let guests: Vec<_> = self
            .members
            .iter()
            .zip(0..)
            .map(|(member, n)| (member.guest.clone(), self.place_of(GuestId(n))))
            .collect();
        let mut search = Search {
            fleet: self.fleet.clone(),
            ownership: self.ownership.clone(),
            source: self.source.clone(),
            destinations: self.destinations.clone(),
            guests,
            rules: self.rules.clone(),
        };
        std::thread::spawn(move || {
            let found = hosts::renew(&agent, &mut search.destinations, Some(search.ownership.drain()))
                .and_then(|()| {
                    let (is_shared, security) = (agent.fleet.shared().is_some(), &agent.security);
                    let (to, guests) = (&mut search.destinations, &search.guests);
                    hosts::look_at_namesakes(is_shared, security, to, guests);
                    register(&agent, &search.fleet, &search.source, &search.destinations)
                })
                .and_then(|()| search.find(&agent, wanted.clone()));
            let _ = to_self.send(match found {
                Ok(results) => Input::Placed(number, search.destinations, results),
                Err(error) => Input::NotPlaced(number, wanted, error.to_string()),
            });
        });
    }

    fn place_of(&self, id: GuestId) -> Place {
        let ended =
            self.controller.guests().find(|(guest, ..)| *guest == id).map(|(_, state, _)| state.clone());
        let member = self.members.get(id.0 as usize);
        match (ended, member.and_then(|member| member.decided.as_ref()), member.and_then(|member| member.to))
        {
            (Some(State::Ended(Outcome::Moved(host))), _, _) => Place::At(host),
            (Some(State::Ended(Outcome::Gone)), _, _) => Place::Gone,
            (_, Some(Decided { state: DrainGuestState::Moved, .. }), Some(host)) => Place::At(host),
            (_, Some(Decided { state: DrainGuestState::Gone | DrainGuestState::Moved, .. }), _) => {
                Place::Gone
            }
            _ => self.reserved.get(&id).map_or(Place::Source, |host| Place::Reserved(*host)),
        }
    }

    /// The answer to the question with this number. One that came after another question changes nothing: that one has
    /// made the reservation its own, or gives it up.
    pub(super) fn placed(&mut self, id: GuestId, number: u64, result: PlaceResult) {
        if self.questions.get(&id) != Some(&number) {
            tracing::debug!(guest = id.0, "an answer to an earlier question where it can go");
            return;
        }
        let is_placing = |(guest, state, _): (GuestId, &State, _)| guest == id && *state == State::Placing;
        if !self.controller.guests().any(is_placing) {
            // It came too late, and nobody asks any more. What was reserved by it is given up.
            if !self.reserved.contains_key(&id) {
                self.give_reservation_up(id);
            }
            return;
        }
        let links = self.controller.carries();
        let Some(member) = self.members.get_mut(id.0 as usize) else { return };
        match result {
            Ok((host, ports, bytes_per_s)) => {
                (member.to, member.nowhere) = (Some(host), None);
                self.not_released.remove(&id);
                let rate = bytes_per_s.min(links).max(1.0);
                member.predicted_ms = Some((member.guest.copy_bytes as f64 / rate * 1e3) as u64);
                self.reserved.insert(id, host);
                self.handle(Event::Placed { guest: id, host, ports, bytes_per_s });
            }
            Err((why, text)) => {
                (member.to, member.nowhere) = (None, text);
                // An earlier question may have been answered meanwhile.
                self.give_reservation_up(id);
                self.handle(Event::NoPlace { guest: id, why });
            }
        }
    }

    /// The drain ends: memory stays reserved only for guests in doubt. One that has moved may still have a reservation,
    /// if its host or this one was away when it arrived. With etcd its host gives that up.
    pub(super) fn give_all_up(&mut self) {
        let is_shared = self.agent.fleet.shared().is_some();
        for (guest, n) in self.guests().iter().zip(0..) {
            let stays = guest.state == DrainGuestState::InDoubt
                || (guest.state == DrainGuestState::Moved && is_shared);
            if !stays {
                self.give_reservation_up(GuestId(n));
            }
        }
    }

    pub(super) fn release(&mut self, id: GuestId) {
        self.reserved.remove(&id);
        self.give_reservation_up(id);
    }

    /// Without a reservation nothing happens. One of an earlier drain, which left the guest in doubt, goes too: it is
    /// known where the guest is. While the store is away it is not asked: each question takes seconds.
    pub(super) fn give_reservation_up(&mut self, id: GuestId) {
        if self.away.is_some() {
            self.not_released.insert(id);
            return;
        }
        let Some(guest) = self.members.get(id.0 as usize).map(|member| member.guest.clone()) else {
            return;
        };
        let key = &guest.key;
        let released = match self.fleet.release(&self.ownership, key) {
            Err(FleetError::Reserved { .. }) => self.settle_earlier(&guest),
            // The drain's result is written already.
            Err(FleetError::NotOwner(_)) if self.record.state == Stored::Ended => self.settle_earlier(&guest),
            other => other,
        };
        match released {
            Ok(()) => {}
            Err(error @ FleetError::Draining { .. }) => {
                tracing::warn!(%error, guest = key, "another drain has a reservation for it");
            }
            Err(error) => {
                self.not_released.insert(id);
                self.store_failed(error.to_string());
            }
        }
    }

    /// Gives up what a drain that has ended has reserved for the guest. A guest without a UUID is known by its name
    /// alone: what another host's drain has reserved elsewhere is for another guest, and that may be in doubt.
    fn settle_earlier(&self, guest: &Leaving) -> Result<(), FleetError> {
        let (view, own) = (self.fleet.view()?, &self.record.host);
        let Some(by) = view.reservations.get(&guest.key) else { return Ok(()) };
        let is_own =
            by.host == *own || view.drains.get(&by.drain).is_none_or(|drain| drain.record.host == *own);
        if guest.key == guest.name && !is_own {
            return Ok(());
        }
        self.fleet.settle(&guest.key)
    }
}

/// Writes what the hosts say into this host's store. One that does not answer is not there. In a fleet that shares a
/// store each host writes for itself.
pub(in crate::drain) fn register(
    agent: &Agent,
    fleet: &Fleet,
    source: &HostRecord,
    destinations: &[Destination],
) -> Result<(), FleetError> {
    if agent.fleet.shared().is_some() {
        return Ok(());
    }
    fleet.register(source)?;
    for one in destinations {
        match (&one.record, &one.lost) {
            (Some(record), None) => fleet.register(record)?,
            (Some(record), Some(_)) => fleet.withdraw(&record.name)?,
            (None, _) => {}
        }
    }
    Ok(())
}

/// What a search for destinations knows.
struct Search {
    fleet: Fleet,
    ownership: Ownership,
    source: HostRecord,
    destinations: Vec<Destination>,
    guests: Vec<(Leaving, Place)>,
    rules: Rules,
}

impl Search {
    /// Places guests and reserves their memory. In a fleet that shares a store, the hosts that were found are asked
    /// then: which of their addresses can be reached from here only this host knows.
    fn find(
        &mut self,
        agent: &Agent,
        mut wanted: Vec<(GuestId, Vec<HostId>)>,
    ) -> Result<Vec<(GuestId, PlaceResult)>, FleetError> {
        let mut results = Vec::new();
        loop {
            let mut found = self.reserve(&wanted)?;
            let chosen = found.iter().filter_map(|(_, result)| Some(result.as_ref().ok()?.0)).collect();
            if hosts::reach(agent, &mut self.destinations, &chosen) {
                results.extend(found);
                return Ok(results);
            }
            // Those whose host does not answer are placed again, elsewhere.
            let lost = |result: &PlaceResult| match result {
                Ok((host, ..)) => self.at(*host).is_none_or(|one| one.lost.is_some()),
                Err(_) => false,
            };
            let (again, good): (Vec<_>, Vec<_>) = found.drain(..).partition(|(_, result)| lost(result));
            results.extend(good);
            for (id, _) in &again {
                if let Some((guest, place)) = self.guests.get_mut(id.0 as usize) {
                    *place = Place::Source;
                    self.fleet.release(&self.ownership, &guest.key)?;
                }
            }
            wanted.retain(|(id, _)| again.iter().any(|(again, _)| again == id));
        }
    }

    fn at(&self, host: HostId) -> Option<&Destination> {
        self.destinations.get(hosts::index(host))
    }

    /// A host that answers and is not registered is waited for: after a pause of etcd's all hosts register again.
    fn reserve_one(&self, guest: &Leaving, host: &str) -> Result<(), FleetError> {
        let mut tries = 0;
        loop {
            let Leaving { key, name, memory_bytes, .. } = guest;
            let is_apart = |other: &str| self.rules.keep_apart(name, other);
            let apart = (!self.rules.groups(name).is_empty()).then_some(&is_apart as &dyn Fn(&str) -> bool);
            match self.fleet.reserve(&self.ownership, key, name, *memory_bytes, host, apart) {
                Err(FleetError::Lost(_)) if tries < REGISTERS_ASKS => {
                    tries += 1;
                    std::thread::sleep(REGISTERS_PAUSE);
                }
                other => return other,
            }
        }
    }

    /// A host that the store refuses, since others have changed it meanwhile, is left out when its guest is placed
    /// again.
    fn reserve(
        &mut self,
        wanted: &[(GuestId, Vec<HostId>)],
    ) -> Result<Vec<(GuestId, PlaceResult)>, FleetError> {
        let avoid = wanted.iter().map(|(guest, avoid)| (*guest, avoid.iter().copied().collect()));
        let mut request = Request {
            guests: wanted.iter().map(|(guest, _)| *guest).collect(),
            only: None,
            avoid: avoid.collect(),
        };
        let mut refused: BTreeMap<GuestId, Vec<String>> = BTreeMap::new();
        let mut results: Vec<(GuestId, PlaceResult)> = Vec::new();
        while !request.guests.is_empty() {
            let known = hosts::ledger(&self.source, &self.destinations, &self.guests, &self.rules);
            let mut again: BTreeSet<GuestId> = BTreeSet::new();
            for (id, found) in known.ledger.place(&request) {
                let Some((guest, _)) = self.guests.get(id.0 as usize) else { continue };
                let host = match found {
                    Ok(host) => host,
                    Err(nowhere) => {
                        let avoid = request.avoid.get(&id);
                        let mut text = why_nowhere(&known, id, &self.destinations, avoid, &request.guests);
                        let refused = refused.remove(&id).into_iter().flatten().take(NAMED_MAX);
                        refused.for_each(|why| text += &format!("; {why}"));
                        results.push((id, Err((known.told(id, nowhere), Some(text)))));
                        continue;
                    }
                };
                let name = self.at(host).map(Destination::name).unwrap_or_default();
                match self.reserve_one(guest, name) {
                    Ok(()) => {
                        let (ports, bytes_per_s) = known.ledger.links(SOURCE, host);
                        results.push((id, Ok((host, ports, bytes_per_s))));
                        self.guests[id.0 as usize].1 = Place::Reserved(host);
                    }
                    Err(
                        error @ (FleetError::Store(_) | FleetError::NotOwner(_) | FleetError::Damaged { .. }),
                    ) => return Err(error),
                    Err(error) => {
                        refused.entry(id).or_default().push(error.to_string());
                        let group = known.ledger.group_of(id).into_iter();
                        for one in group.filter(|one| request.guests.contains(one)) {
                            request.avoid.entry(one).or_default().insert(host);
                            again.insert(one);
                        }
                    }
                }
            }
            // Guests that must be together with one that was refused are placed again with it.
            for (id, _) in results.extract_if(.., |(id, found)| found.is_ok() && again.contains(id)) {
                if let Some((guest, place)) = self.guests.get_mut(id.0 as usize) {
                    *place = Place::Source;
                    self.fleet.release(&self.ownership, &guest.key)?;
                }
            }
            request.guests.retain(|id| results.iter().all(|(done, _)| done != id));
        }
        Ok(results)
    }
}

/// Destinations with what keeps the guest from each, and how many more there are. `leave`: the guests that are placed
/// with it.
pub(in crate::drain) fn why_nowhere(
    known: &Known,
    id: GuestId,
    destinations: &[Destination],
    avoid: Option<&BTreeSet<HostId>>,
    leave: &[GuestId],
) -> String {
    let why = hosts::why(known, id, destinations, leave);
    let all = destinations.iter().zip(why).zip(1..).map(|((one, mut why), number)| {
        if avoid.is_some_and(|avoid| avoid.contains(&HostId(number))) {
            why.push("an attempt there failed".into());
        }
        let why = if why.is_empty() {
            "other guests of this drain go there: they need its memory, or must be apart from this one".into()
        } else {
            why.join(", ")
        };
        format!("{}: {why}", one.name())
    });
    let mut named: Vec<String> = all.take(NAMED_MAX).collect();
    let others = destinations.len().saturating_sub(NAMED_MAX);
    named.extend((others > 0).then(|| format!("and {others} more cannot take it either")));
    format!("no host can take it: {}", named.join("; "))
}

#[cfg(test)]
mod tests {
    use linerate_store::fleet::records::PortRecord;

    use super::*;
    use crate::config::Placement;

    fn host(name: &str, memory_mib: u64) -> HostRecord {
        let port = PortRecord { network: "10.0.0.0/24".into(), bytes_per_s: 1 << 20 };
        HostRecord {
            name: name.into(),
            memory_bytes: memory_mib << 20,
            ports: vec![port],
            ..HostRecord::default()
        }
    }

    fn destination(record: HostRecord) -> Destination {
        let mut one = Destination::new(&record.name);
        (one.record, one.lost) = (Some(record), None);
        one
    }

    fn guest(name: &str) -> Leaving {
        Leaving {
            name: name.into(),
            key: format!("uuid-{name}"),
            memory_bytes: 100 << 20,
            ..Leaving::default()
        }
    }

    #[test]
    fn a_reason_is_short_however_many_hosts_there_are() {
        let fleet = |count: usize| -> String {
            let names = (0..count).map(|n| format!("host-{n}"));
            let destinations: Vec<Destination> = names.map(|name| destination(host(&name, 50))).collect();
            let guests = [(guest("web"), Place::Source)];
            let known = hosts::ledger(&host("a", 4096), &destinations, &guests, &Rules::default());
            why_nowhere(&known, GuestId(0), &destinations, None, &[GuestId(0)])
        };
        let each = "the guest needs 100 MiB and 50 MiB are free";
        assert_eq!(fleet(2), format!("no host can take it: host-0: {each}; host-1: {each}"));
        let text = fleet(10_000);
        assert_eq!(text.matches(each).count(), NAMED_MAX);
        assert!(text.ends_with("; and 9992 more cannot take it either"), "{text}");
    }

    #[test]
    fn guests_that_must_be_together_are_placed_again_together() {
        let dir = tempfile::tempdir().unwrap();
        let agent = crate::testing::agent(&dir, &[]);
        let fleet = agent.fleet.fleet().unwrap();
        let record = crate::drain::tests::record("d1", &agent.config.name);
        let ownership = fleet.begin(&record).unwrap();
        // Since it was asked, `b` has got other guests: the store has room for one there.
        for record in [host("b", 150), host("c", 4096)] {
            fleet.register(&record).unwrap();
        }
        let lists = [vec!["web".to_owned(), "db".to_owned()]];
        let mut search = Search {
            fleet: fleet.clone(),
            ownership,
            source: host("a", 4096),
            destinations: [host("b", 1024), host("c", 4096)].map(destination).into(),
            guests: ["web", "db"].map(|name| (guest(name), Place::Source)).into(),
            rules: Rules::new(&Placement::default(), &[], &lists).unwrap(),
        };
        let wanted = [0, 1].map(|number| (GuestId(number), Vec::new()));
        let found = search.reserve(&wanted).unwrap();
        let at: Vec<_> = found.iter().map(|(_, found)| found.as_ref().ok().map(|found| found.0)).collect();
        assert_eq!(at, [Some(HostId(2)); 2]);
        assert_eq!(fleet.reserved_at("b").unwrap(), [""; 0], "it was given up");
        assert_eq!(fleet.reserved_at("c").unwrap().len(), 2);
    }
}
