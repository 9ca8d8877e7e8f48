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
        let (to_self, key, domain) = (self.to_self.clone(), member.guest.key.clone(), member.guest.domain);
        let (mut to, agent, drain) = (self.destinations.clone(), self.agent.clone(), self.record.id.clone());
        let own = member.to;
        let came = if domain { came(&self.agent, member) } else { None };
        let (began, was_tried) = (member.began, member.migration.is_some());
        let is_held = domain && self.agent.moves.has(&key);
        let runtime = self.runtime.clone();
        std::thread::spawn(move || {
            let domain = domain.then(|| {
                runtime
                    .block_on(domains::look_up(&key))
                    .map_or(DomainHere::Unknown, |state| here(state.as_deref()))
            });
            let is_known = hosts::renew(&agent, &mut to, Some(&drain)).is_ok();
            // What the store has of a host may be older than the guest's arrival.
            let own = own.and_then(|host| to.get_mut(hosts::index(host)));
            if let Some(one) = own.filter(|_| agent.fleet.shared().is_some()) {
                hosts::ask_one(one, &agent.security, hosts::ANSWER_WAIT);
            }
            let lists = |one: &hosts::Destination| {
                one.record.as_ref().is_some_and(|record| record.guests.contains_key(&key))
            };
            let there = to.iter().zip(1..).find(|(one, _)| lists(one)).map(|(_, host)| HostId(host));
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
                    member.decided = decided(DrainGuestState::Moved, None);
                    self.give_reservation_up(id);
                }
            }
            (Whereabouts::Gone, _) => {
                if in_controller {
                    self.handle(Event::Gone { guest: id });
                } else {
                    member.decided = decided(DrainGuestState::Gone, None);
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

/// Where a domain went whose migration an earlier process of the agent began, once it is known that it is there.
fn came(agent: &Agent, member: &Member) -> Option<HostId> {
    let moving = agent.moves.by_id(member.migration.as_ref()?)?;
    match moving.event_log.finished()? {
        EventKind::Finished { outcome: MigrationOutcome::Completed, .. } => member.to,
        _ => None,
    }
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
    use super::*;

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
