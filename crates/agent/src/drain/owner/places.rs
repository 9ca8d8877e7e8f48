//! Destinations of guests: found, reserved in the store, and given up.

use std::collections::BTreeSet;

use linerate_api::DrainGuestState;
use linerate_core::drain::{Event, Outcome, State};
use linerate_core::fleet::placement::Nowhere;
use linerate_core::fleet::{GuestId, HostId, Ledger, Request};
use linerate_store::fleet::records::HostRecord;
use linerate_store::fleet::{Fleet, FleetError, Ownership};

use super::super::Input;
use super::super::hosts::{self, Destination, Place, SOURCE};
use super::super::leaving::Leaving;
use super::super::member::Decided;
use super::Owner;

/// A destination that was found, or why there is none.
pub(in crate::drain) type PlaceResult = Result<(HostId, u64, f64), (Nowhere, Option<String>)>;

impl Owner {
    /// Finds destinations, in a thread: each host is asked first.
    pub(super) fn place(&mut self, wanted: Vec<(GuestId, Vec<HostId>)>) {
        let (fleet, ownership, security) =
            (self.fleet.clone(), self.ownership.clone(), self.agent.security.clone());
        let (mut destinations, source, to_self) =
            (self.destinations.clone(), self.source.clone(), self.to_self.clone());
        let guests: Vec<_> = self
            .members
            .iter()
            .zip(0..)
            .map(|(member, n)| (member.guest.clone(), self.place_of(GuestId(n))))
            .collect();
        std::thread::spawn(move || {
            hosts::ask(&mut destinations, &security);
            if let Err(error) = register(&fleet, &source, &destinations) {
                let _ = to_self.send(Input::StoreFailed(error.to_string()));
            }
            let results = find(&fleet, &ownership, &source, &destinations, &guests, &wanted);
            let results = match results {
                Ok(results) => results,
                Err(error) => {
                    let _ = to_self.send(Input::StoreFailed(error.to_string()));
                    return;
                }
            };
            let _ = to_self.send(Input::Placed(destinations, results));
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

    pub(super) fn placed(&mut self, id: GuestId, result: PlaceResult) {
        let links = self.controller.carries();
        let Some(member) = self.members.get_mut(id.0 as usize) else { return };
        match result {
            Ok((host, ports, bytes_per_s)) => {
                (member.to, member.nowhere) = (Some(host), None);
                let rate = bytes_per_s.min(links).max(1.0);
                member.predicted_ms = Some((member.guest.copy_bytes as f64 / rate * 1e3) as u64);
                self.reserved.insert(id, host);
                self.handle(Event::Placed { guest: id, host, ports, bytes_per_s });
            }
            Err((why, text)) => {
                (member.to, member.nowhere) = (None, text);
                self.handle(Event::NoPlace { guest: id, why });
            }
        }
    }

    pub(super) fn release(&mut self, id: GuestId) {
        self.reserved.remove(&id);
        self.give_reservation_up(id);
    }

    /// Without a reservation nothing happens. One of an earlier drain, which left the guest in doubt, goes too: it is known
    /// where the guest is.
    pub(super) fn give_reservation_up(&mut self, id: GuestId) {
        let Some(key) = self.members.get(id.0 as usize).map(|member| member.guest.key.clone()) else {
            return;
        };
        let released = match self.fleet.release(&self.ownership, &key) {
            Err(FleetError::Reserved { .. }) => self.fleet.settle(&key),
            other => other,
        };
        match released {
            Ok(()) => {}
            Err(error @ FleetError::Draining { .. }) => {
                tracing::warn!(%error, guest = key, "another drain has a reservation for it");
            }
            Err(error) => self.store_failed(error.to_string()),
        }
    }
}

/// Writes what the hosts say into this host's store. One that does not answer is not there.
pub(in crate::drain) fn register(
    fleet: &Fleet,
    source: &HostRecord,
    destinations: &[Destination],
) -> Result<(), FleetError> {
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

/// Places guests and reserves their memory.
fn find(
    fleet: &Fleet,
    ownership: &Ownership,
    source: &HostRecord,
    destinations: &[Destination],
    guests: &[(Leaving, Place)],
    wanted: &[(GuestId, Vec<HostId>)],
) -> Result<Vec<(GuestId, PlaceResult)>, FleetError> {
    let ledger = hosts::ledger(source, destinations, guests);
    let request = Request {
        guests: wanted.iter().map(|(guest, _)| *guest).collect(),
        only: None,
        avoid: wanted.iter().map(|(guest, avoid)| (*guest, avoid.iter().copied().collect())).collect(),
    };
    let mut results = Vec::new();
    for (id, found) in ledger.place(&request) {
        let Some((guest, _)) = guests.get(id.0 as usize) else { continue };
        let name = |host: HostId| destinations.get((host.0 as usize).wrapping_sub(1)).map(Destination::name);
        let result = match found {
            Ok(host) => {
                match fleet.reserve(ownership, &guest.key, guest.memory_bytes, name(host).unwrap_or_default())
                {
                    Ok(()) => {
                        let (ports, bytes_per_s) = ledger.links(SOURCE, host);
                        Ok((host, ports, bytes_per_s))
                    }
                    Err(
                        error @ (FleetError::Store(_) | FleetError::NotOwner(_) | FleetError::Damaged { .. }),
                    ) => {
                        return Err(error);
                    }
                    Err(error) => Err((Nowhere::default(), Some(error.to_string()))),
                }
            }
            Err(nowhere) => {
                let avoid = request.avoid.get(&id);
                let text = why_nowhere(&ledger, id, destinations, avoid);
                Err((nowhere, Some(text)))
            }
        };
        results.push((id, result));
    }
    Ok(results)
}

/// Each destination with what keeps the guest from it.
pub(in crate::drain) fn why_nowhere(
    ledger: &Ledger,
    id: GuestId,
    destinations: &[Destination],
    avoid: Option<&BTreeSet<HostId>>,
) -> String {
    let why = hosts::why(ledger, id, destinations);
    let all = destinations.iter().zip(why).zip(1..).map(|((one, mut why), number)| {
        if avoid.is_some_and(|avoid| avoid.contains(&HostId(number))) {
            why.push("a try there failed".into());
        }
        let why = if why.is_empty() {
            "its memory is needed by other guests of this drain".into()
        } else {
            why.join(", ")
        };
        format!("{}: {why}", one.name())
    });
    format!("no host can take it: {}", all.collect::<Vec<_>>().join("; "))
}
