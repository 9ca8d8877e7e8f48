//! Guests of which it is not known whether they are here: what moved them before, recovery and the other hosts say.

use linerate_api::{DrainGuestState, EventKind, MigrationOutcome};
use linerate_core::drain::{Answers, DomainHere, Event, Look, Seen, Settling, Whereabouts};
use linerate_core::fleet::{GuestId, HostId};
use linerate_core::{Code, Fault, Side, Step};

use super::super::Input;
use super::super::hosts;
use super::super::leaving::{self, Leaving};
use super::super::member::{Decided, Member};
use super::Owner;
use crate::agent::Agent;
use crate::libvirt::domains;

/// Of a guest that is nowhere after a restart of the agent.
const WAS_MOVED: &str =
    "it was being moved when the agent ended, and neither this host nor a destination has it";

impl Owner {
    pub(super) fn settle(&mut self) {
        let (now, is_aborting) = (self.clock.now(), self.is_aborting());
        let mut looks = Vec::new();
        for (id, one) in self.settling.iter_mut().filter(|(_, one)| one.may_look(now)) {
            let Some(member) = self.members.get(id.0 as usize) else { continue };
            let seen = seen(&self.agent, &member.guest, one.may_be_of_another());
            looks.push((*id, one.looked(now, seen, is_aborting)));
        }
        for (id, look) in looks {
            let look = match look {
                Look::Settled(Whereabouts::Here) if !self.look_at(id) => {
                    self.settling.get(&id).map_or(Look::Wait, |one| one.not_readable(now))
                }
                look => look,
            };
            match look {
                Look::Wait => {}
                Look::Ask => self.ask_where(id),
                Look::Settled(at) => self.found(id, at),
            }
        }
    }

    /// Asks this host's libvirt for a domain, and the destinations, in a thread.
    fn ask_where(&self, id: GuestId) {
        let Some(member) = self.members.get(id.0 as usize) else { return };
        let (to_self, guest, domain) = (self.to_self.clone(), member.guest.clone(), member.guest.domain);
        let (mut to, agent, drain) = (self.destinations.clone(), self.agent.clone(), self.record.id.clone());
        let (own, was_to) = (member.to, member.was_to.clone());
        let came = if domain { came(&self.agent, member) } else { None };
        let (began, was_tried) = (member.began, member.migration.is_some());
        let is_held = domain && self.agent.moves.has(&guest.key);
        let runtime = self.runtime.clone();
        std::thread::spawn(move || {
            let domain = domain.then(|| {
                runtime
                    .block_on(domains::look_up(&guest.key))
                    .map_or(DomainHere::Unknown, |state| here(state.as_deref()))
            });
            let is_known = hosts::renew(&agent, &mut to, Some(&drain)).is_ok();
            // One that did not answer when the agent was started again has its name only now.
            let was_there = || to.iter().position(|one| Some(one.name()) == was_to.as_deref());
            let own = own.map(hosts::index).or_else(was_there);
            // What the store has of a host may be older than the guest's arrival.
            let asked = own.and_then(|at| to.get_mut(at)).filter(|_| agent.fleet.shared().is_some());
            if let Some(one) = asked {
                hosts::ask_one(one, &agent.security, hosts::ANSWER_WAIT);
            }
            let there = listing(&to, &guest, own);
            let all_answered = is_known && to.iter().all(|one| one.lost.is_none());
            let at = there.or(came);
            let answers = Answers { domain, began, was_tried, is_held, at, all_answered };
            let _ = to_self.send(Input::Found(id, answers.whereabouts()));
        });
    }

    pub(super) fn found(&mut self, id: GuestId, at: Whereabouts) {
        if at == Whereabouts::Unknown {
            self.settling.entry(id).and_modify(Settling::not_answered);
            return;
        }
        let Some(settling) = self.settling.remove(&id) else { return };
        let fault = settling.into_fault();
        let in_controller = fault.is_some();
        let decided = |state, reason: Option<&str>| {
            let hint = "see `linerate migration list` and `linerate resolve` on both hosts".to_owned();
            Some(Decided { state, reason: reason.map(str::to_owned), hint })
        };
        let Some(member) = self.members.get_mut(id.0 as usize) else { return };
        let was_moved = member.began.then_some(WAS_MOVED);
        // Where it is known to be, no copy of it is open.
        member.began &= !matches!(at, Whereabouts::Here | Whereabouts::At(_) | Whereabouts::Gone);
        match (at, fault) {
            (Whereabouts::Here, None) => {
                if let Some(start) = self.start(id) {
                    self.handle(Event::Added(start));
                }
            }
            (Whereabouts::Here, Some(fault)) => self.handle(Event::Failed { guest: id, fault }),
            (Whereabouts::At(host), _) => {
                member.to = Some(host);
                if in_controller {
                    let now = self.clock.now();
                    self.moved(id, None, now);
                } else {
                    member.decided = decided(DrainGuestState::Moved, undone(&self.agent, member).as_deref());
                    self.give_reservation_up(id);
                }
            }
            (Whereabouts::Gone, fault) => {
                if in_controller {
                    member.fault = fault;
                    self.handle(Event::Gone { guest: id });
                } else {
                    member.decided = decided(DrainGuestState::Gone, was_moved);
                    self.give_reservation_up(id);
                }
            }
            (Whereabouts::Leaving, _) => {
                member.decided = decided(
                    DrainGuestState::Aborted,
                    Some("a migration that is not of this drain moves it, and goes on"),
                );
            }
            (Whereabouts::Doubt | Whereabouts::Unknown, fault) => {
                let text = fault.map_or_else(
                    || {
                        "an earlier migration of it has not ended: it is not known where it is to run"
                            .to_owned()
                    },
                    |fault| fault.to_string(),
                );
                member.decided = decided(DrainGuestState::InDoubt, Some(&text));
                if in_controller {
                    // Its part is over, and its reservation stays.
                    let fault = Fault::new(Code::Internal, Step::Commit, Side::Source, text);
                    self.reserved.remove(&id);
                    self.controller.leave_in_doubt(id, fault, self.clock.now());
                }
            }
        }
    }
}

/// What is seen of a guest on this host. `may_be_of_another`: another migration than the drain's may have it.
fn seen(agent: &Agent, guest: &Leaving, may_be_of_another: bool) -> Seen {
    if may_be_of_another && leaving::is_being_moved(agent, guest) {
        Seen::Moving
    } else if guest.domain {
        Seen::Unseen
    } else if !leaving::is_settled(agent, &guest.name) {
        Seen::Unsettled
    } else if leaving::is_here(agent, &guest.name) {
        Seen::Here
    } else {
        Seen::Unseen
    }
}

/// The destination that lists the guest: the one at `own`, to which it went, or another. A guest without a UUID is
/// known by its name alone, and other hosts may have another guest of that name.
fn listing(to: &[hosts::Destination], guest: &Leaving, own: Option<usize>) -> Option<HostId> {
    let lists = |at: &usize| {
        let record = to.get(*at).and_then(|one| one.record.as_ref());
        record.is_some_and(|record| record.guests.contains_key(&guest.key))
    };
    let others = (0..to.len()).filter(|_| guest.key != guest.name);
    let at = own.into_iter().chain(others).find(lists)?;
    Some(HostId(u32::try_from(at).ok()? + 1))
}

/// Where a domain went whose migration an earlier process of the agent began, once it is known that it is there.
fn came(agent: &Agent, member: &Member) -> Option<HostId> {
    match ended(agent, member)? {
        EventKind::Finished { outcome: MigrationOutcome::Completed, .. } => member.to,
        _ => None,
    }
}

/// What such a migration has left undone of a domain that is there.
fn undone(agent: &Agent, member: &Member) -> Option<String> {
    match ended(agent, member)? {
        EventKind::Finished { outcome: MigrationOutcome::Completed, error, .. } => {
            error.map(|error| error.message)
        }
        _ => None,
    }
}

/// The last event of a domain's migration, once it has ended.
fn ended(agent: &Agent, member: &Member) -> Option<EventKind> {
    agent.moves.by_id(member.migration.as_ref()?)?.event_log.finished()
}

/// A domain that libvirt has in this state, or does not have.
fn here(state: Option<&str>) -> DomainHere {
    match state {
        Some("running") => DomainHere::Running,
        Some("shut off") | None => DomainHere::Off,
        Some(_) => DomainHere::Paused,
    }
}

#[cfg(test)]
mod tests {
    use linerate_store::fleet::records::{GuestRecord, HostRecord};

    use super::*;

    #[test]
    fn a_guest_without_a_uuid_is_not_taken_for_another_hosts_guest_of_its_name() {
        let host = |guests: &[&str]| {
            let listed = |key: &&str| ((*key).to_owned(), GuestRecord::default());
            let record = HostRecord { guests: guests.iter().map(listed).collect(), ..HostRecord::default() };
            let mut one = hosts::Destination::new("it");
            one.record = Some(record);
            one
        };
        let guest = |key: &str| Leaving { key: key.into(), ..Leaving::unknown("web") };
        let both = [host(&["web", "u1"]), host(&["web"])];
        assert_eq!(listing(&both, &guest("web"), Some(1)), Some(HostId(2)), "it went there");
        assert_eq!(listing(&both, &guest("web"), None), None, "it was stopped here");
        let other = [host(&["web"]), host(&[])];
        assert_eq!(listing(&other, &guest("web"), Some(1)), None, "the other host has one of its own");
        // A UUID is one guest's, wherever it is.
        assert_eq!(listing(&both, &guest("u1"), Some(1)), Some(HostId(1)));
        assert_eq!(listing(&both, &guest("u2"), Some(1)), None);
    }

    #[test]
    fn the_states_that_libvirt_names_are_read() {
        for (state, is) in [
            (Some("running"), DomainHere::Running),
            (Some("paused"), DomainHere::Paused),
            (Some("shut off"), DomainHere::Off),
            (None, DomainHere::Off),
        ] {
            assert_eq!(here(state), is, "{state:?}");
        }
    }
}
