//! The destinations while the drain goes on: lost, drained themselves, or found again.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use linerate_core::Fault;
use linerate_core::drain::{Event, Judging, State};
use linerate_core::fleet::{GuestId, HostId};

use super::super::Input;
use super::super::hosts::{self, Destination};
use super::Owner;

/// How often the destinations are looked at.
const LOOK_AT_HOSTS: Duration = Duration::from_secs(5);

/// Why no guest goes to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    Lost,
    Drained,
}

impl Owner {
    /// A migration failed by something that may pass. If its destination does not answer, the guest goes elsewhere at
    /// once.
    pub(super) fn judge(&mut self, id: GuestId, fault: Fault) {
        let to = self.members.get(id.0 as usize).and_then(|member| member.to);
        let known = to.and_then(|host| self.destinations.get(hosts::index(host)));
        let Some(mut destination) = known.cloned() else {
            return self.handle(Event::Failed { guest: id, fault });
        };
        let (to_self, security, number) =
            (self.to_self.clone(), self.agent.security.clone(), self.next_number);
        self.judging.insert(id, number);
        let (clock, judging) = (self.clock, Judging::new(self.clock.now(), id, fault));
        std::thread::spawn(move || {
            hosts::ask_one(&mut destination, &security, judging.wait(clock.now()));
            let _ = to_self.send(Input::Judged(id, number, judging, Box::new(destination)));
        });
    }

    pub(super) fn judged(&mut self, id: GuestId, number: u64, judging: Judging, destination: Destination) {
        if self.judging.get(&id) != Some(&number) {
            return;
        }
        self.judging.remove(&id);
        let is_lost = destination.lost.is_some();
        let host = self.members.get(id.0 as usize).and_then(|member| member.to);
        let at = host.and_then(|host| self.destinations.get_mut(hosts::index(host)));
        if let Some(one) = at.filter(|one| one.name() == destination.name()) {
            *one = destination;
        }
        let lost = host.filter(|_| is_lost);
        if let Some(host) = lost {
            let fault = judging.fault();
            tracing::info!(guest = id.0, %fault, "its destination does not answer: it goes elsewhere");
            self.unusable.insert(host, Unusable::Lost);
        }
        judging.over(lost).into_iter().for_each(|event| self.handle(event));
    }

    /// What is known of the destinations now; the controller is told what has changed. A host to which a guest is being
    /// copied is not lost: the links are watched by its session.
    pub(super) fn hosts_are(&mut self, mut destinations: Vec<Destination>) {
        // Hosts that have joined stand at the end. A list that was taken before does not have them.
        let known = self.destinations.len();
        destinations.extend(self.destinations.drain(..).skip(destinations.len()));
        let has_new = destinations.len() > known;
        self.destinations = destinations;
        let copies: BTreeSet<HostId> = self
            .controller
            .guests()
            .filter(|(_, state, _)| matches!(state, State::Copying))
            .filter_map(|(id, ..)| self.members.get(id.0 as usize)?.to)
            .collect();
        let mut events = Vec::new();
        if has_new {
            events.push(Event::Ports(hosts::port_rates(&self.source, &self.destinations)));
        }
        for (host, one) in (1..).map(HostId).zip(&self.destinations) {
            let now = match (&one.lost, one.is_drained) {
                (Some(_), _) => Some(Unusable::Lost),
                (None, true) => Some(Unusable::Drained),
                (None, false) => None,
            };
            if now == self.unusable.get(&host).copied()
                || (now == Some(Unusable::Lost) && copies.contains(&host))
            {
                continue;
            }
            events.push(match now {
                Some(Unusable::Lost) => Event::HostLost(host),
                Some(Unusable::Drained) => Event::HostDrained(host),
                None => Event::HostFound(host),
            });
            match now {
                Some(why) => drop(self.unusable.insert(host, why)),
                None => drop(self.unusable.remove(&host)),
            }
        }
        events.into_iter().for_each(|event| self.handle(event));
    }

    pub(super) fn look_at_hosts(&mut self) {
        if self.looks_at_hosts || self.hosts_looked.elapsed() < LOOK_AT_HOSTS {
            return;
        }
        (self.looks_at_hosts, self.hosts_looked) = (true, Instant::now());
        let (agent, to_self, drain) = (self.agent.clone(), self.to_self.clone(), self.record.id.clone());
        let mut destinations = self.destinations.clone();
        let may_join = self.kept.request.to.is_empty() && self.agent.fleet.shared().is_some();
        std::thread::spawn(move || {
            let mut looked = hosts::renew(&agent, &mut destinations, Some(&drain));
            if looked.is_ok() && may_join {
                looked =
                    hosts::joined(&agent, &destinations, Some(&drain)).map(|new| destinations.extend(new));
            }
            let _ = to_self.send(Input::Hosts(looked.ok().map(|()| destinations)));
        });
    }
}
